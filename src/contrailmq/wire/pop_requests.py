"""Ext fields of POP: pop, acknowledge, change the invisible time, ask whether there is anything. Rules: `requests`."""

from __future__ import annotations

from contrailmq.wire.admin_requests import ExtHeader, TopicRpcHeader


class PopMessage(TopicRpcHeader, kw_only=True):
    """POP_MESSAGE(200050)."""

    consumer_group: str
    topic: str
    queue_id: int  # negative: every queue
    max_msg_nums: int
    invisible_time: int
    poll_time: int
    init_mode: int  # 0: from the first message, 1: from the last
    born_time: int = 0  # 0: now, as proxies say
    exp_type: str | None = None
    exp: str | None = None  # absent or empty: everything
    order: bool | None = None
    attempt_id: str | None = None


class PopMessageResponse(ExtHeader, kw_only=True):
    """All numbers must be there, on refusals too: Java clients fail on null."""

    pop_time: int = 0
    invisible_time: int = 0
    revive_qid: int = 0
    rest_num: int = 0
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckMessage(TopicRpcHeader, kw_only=True):
    """ACK_MESSAGE(200051). `topic` is the one that the message is stored in."""

    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: int
    lite_topic: str | None = None  # of a message of a lite topic; `topic` is its parent then


class ChangeInvisibleTime(AckMessage, kw_only=True):
    """CHANGE_MESSAGE_INVISIBLETIME(200053)."""

    invisible_time: int
    suspend: bool | None = None  # what comes again does not count as an attempt


class ChangeInvisibleTimeResponse(ExtHeader, kw_only=True):
    pop_time: int = 0
    invisible_time: int = 0
    revive_qid: int = 0


class Notification(TopicRpcHeader, kw_only=True):
    """NOTIFICATION(200054)."""

    consumer_group: str
    topic: str
    queue_id: int
    poll_time: int
    born_time: int = 0
    order: bool | None = None
    attempt_id: str | None = None
    exp_type: str | None = None
    exp: str | None = None


class NotificationResponse(ExtHeader, kw_only=True):
    has_msg: bool = False
    polling_full: bool = False


class PollingInfo(TopicRpcHeader, kw_only=True):
    """POLLING_INFO(200055)."""

    consumer_group: str
    topic: str
    queue_id: int


class PollingInfoResponse(ExtHeader, kw_only=True):
    polling_num: int = 0


class PeekMessage(TopicRpcHeader, kw_only=True):
    """PEEK_MESSAGE(200052)."""

    consumer_group: str
    topic: str
    queue_id: int
    max_msg_nums: int
