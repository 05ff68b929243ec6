"""JSON bodies of lite topics: subscriptions, and what administrators see. Rules and doors: see `bodies`."""

from __future__ import annotations

import msgspec

from contrailmq.wire.admin_bodies import OffsetProgress, TopicOffset
from contrailmq.wire.fastjson import Body, new_dict, new_list, written

PARTIAL_ADD, PARTIAL_REMOVE, COMPLETE_ADD, COMPLETE_REMOVE = ACTIONS = (
    "PARTIAL_ADD", "PARTIAL_REMOVE", "COMPLETE_ADD", "COMPLETE_REMOVE",
)  # fmt: skip
POLICY, OFFSET, TAIL_N, TIMESTAMP = "POLICY", "OFFSET", "TAIL_N", "TIMESTAMP"
LAST_VALUE, MIN_VALUE, MAX_VALUE = 0, 1, 2  # of a POLICY


class OffsetOption(Body, kw_only=True):
    type: str = ""
    value: int = written(0)


class LiteSubscription(Body, kw_only=True):
    """A change of one client's subscription, or all of it. Nulls are those of a client that left something out."""

    action: str | None = None
    client_id: str | None = None
    group: str | None = None
    lite_topic_set: list[str] | None = None
    offset_option: OffsetOption | None = None
    topic: str | None = None
    version: int = written(0)


class LiteSubscriptionCtl(Body, kw_only=True):
    """LITE_SUBSCRIPTION_CTL(200071)."""

    subscription_set: list[LiteSubscription] = msgspec.field(default_factory=new_list)


class BrokerLiteInfo(Body, kw_only=True):
    """Answer to GET_BROKER_LITE_INFO(200074)."""

    cq_table_size: int = written(0)
    current_lmq_num: int = written(0)
    event_map_size: int = written(0)
    group_meta: dict[str, list[str]] = msgspec.field(default_factory=new_dict)
    lite_subscription_count: int = written(0)
    max_lmq_num: int = written(0)
    offset_table_size: int = written(0)
    order_info_count: int = written(0)
    store_type: str = written("default")
    topic_meta: dict[str, int] = msgspec.field(default_factory=new_dict)


class ParentTopicInfo(Body, kw_only=True):
    """Answer to GET_PARENT_TOPIC_INFO(200075)."""

    groups: list[str] = msgspec.field(default_factory=new_list)
    lite_topic_count: int = written(0)
    lmq_num: int = written(0)
    topic: str = written("")
    ttl: int = written(-1)


class ClientGroup(Body, kw_only=True):
    client_id: str
    group: str


class LiteTopicInfo(Body, kw_only=True):
    """Answer to GET_LITE_TOPIC_INFO(200076)."""

    lite_topic: str = written("")
    parent_topic: str = written("")
    sharding_to_broker: bool = written(False)
    subscriber: list[ClientGroup] = msgspec.field(default_factory=new_list)
    topic_offset: TopicOffset | None = None


class LiteClientInfo(Body, kw_only=True):
    """Answer to GET_LITE_CLIENT_INFO(200077)."""

    client_id: str = written("")
    group: str = written("")
    last_access_time: int = written(-1)
    last_consume_time: int = written(0)
    lite_topic_count: int = written(-1)
    lite_topic_set: list[str] | None = None
    parent_topic: str = written("")


class LiteLag(Body, kw_only=True):
    earliest_unconsumed_timestamp: int = written(-1)
    lag_count: int = written(0)
    lite_topic: str = written("")


class LiteGroupInfo(Body, kw_only=True):
    """Answer to GET_LITE_GROUP_INFO(200078)."""

    earliest_unconsumed_timestamp: int = written(-1)
    group: str = written("")
    lag_count_top_k: list[LiteLag] | None = msgspec.field(name="lagCountTopK", default=None)
    lag_timestamp_top_k: list[LiteLag] | None = msgspec.field(name="lagTimestampTopK", default=None)
    lite_topic: str | None = None
    lite_topic_offset_wrapper: OffsetProgress | None = None
    parent_topic: str = written("")
    total_lag_count: int = written(0)
