"""Ext fields of lite topics: pop, and what administrators ask. Rules: `requests`."""

from __future__ import annotations

from contrailmq.wire.admin_requests import ExtHeader, TopicRpcHeader


class PopLiteMessage(TopicRpcHeader, kw_only=True):
    """POP_LITE_MESSAGE(200070): of all lite topics that the client is subscribed to. `topic` is their parent."""

    client_id: str
    consumer_group: str
    topic: str
    max_msg_num: int
    invisible_time: int
    poll_time: int
    born_time: int = 0  # 0: now
    attempt_id: str | None = None


class PopLiteMessageResponse(ExtHeader, kw_only=True):
    """All numbers must be there, on refusals too: Java clients fail on null."""

    pop_time: int = 0
    invisible_time: int = 0
    revive_qid: int = 0
    order_count_info: str | None = None  # earlier deliveries of each message: 0;0;1


class NotifyUnsubscribeLite(TopicRpcHeader, kw_only=True):
    """NOTIFY_UNSUBSCRIBE_LITE(200073), from a broker: another client of the group has the lite topic now."""

    lite_topic: str
    consumer_group: str
    client_id: str


class GetParentTopicInfo(TopicRpcHeader, kw_only=True):
    """GET_PARENT_TOPIC_INFO(200075)."""

    topic: str


class GetLiteTopicInfo(TopicRpcHeader, kw_only=True):
    """GET_LITE_TOPIC_INFO(200076)."""

    parent_topic: str
    lite_topic: str


class GetLiteClientInfo(TopicRpcHeader, kw_only=True):
    """GET_LITE_CLIENT_INFO(200077)."""

    parent_topic: str
    group: str
    client_id: str
    max_count: int = 1000


class GetLiteGroupInfo(TopicRpcHeader, kw_only=True):
    """GET_LITE_GROUP_INFO(200078); without a lite topic, of those with the most messages before the group."""

    group: str
    lite_topic: str | None = None
    top_k: int = 0


class TriggerLiteDispatch(TopicRpcHeader, kw_only=True):
    """TRIGGER_LITE_DISPATCH(200079); without a client, to all of the group."""

    group: str
    client_id: str | None = None
