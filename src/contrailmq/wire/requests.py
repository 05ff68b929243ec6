"""Ext fields of every request and response that we serve or send, typed.

A field without a default is required: a request without it is refused with an answer that names it. A field whose
default is None may be absent; what absence means is written beside it where it is not obvious. Python names are
RocketMQ's in snake case; `rename` maps them to the wire's camelCase, and the exceptions are spelled out.

Ints and booleans travel as text (`"queueId":"3"`, `"order":"false"`): decoding is lax, encoding goes through
`header.to_ext`. Requests without ext fields of their own have no struct.
"""

from __future__ import annotations

from msgspec import field

from contrailmq.wire.admin_requests import ExtHeader, RpcHeader, TopicRpcHeader

# ---------------------------------------------------------------------------------------------------- sending messages


class SendMessage(TopicRpcHeader, kw_only=True):
    """SEND_MESSAGE(10), SEND_REPLY_MESSAGE(324). The Go client sends single messages so."""

    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    properties: str | None = None
    reconsume_times: int | None = None
    unit_mode: bool | None = None
    max_reconsume_times: int | None = None  # means something for %RETRY% topics only; Go always sends 0
    batch: bool | None = None


class SendMessageV2(ExtHeader, kw_only=True):
    """SEND_MESSAGE_V2(310), SEND_BATCH_MESSAGE(320), SEND_REPLY_MESSAGE_V2(325): SendMessage with one-letter names."""

    producer_group: str = field(name="a")
    topic: str = field(name="b")
    default_topic: str = field(name="c")
    default_topic_queue_nums: int = field(name="d")
    queue_id: int = field(name="e")
    sys_flag: int = field(name="f")
    born_timestamp: int = field(name="g")
    flag: int = field(name="h")
    properties: str | None = field(name="i", default=None)
    reconsume_times: int | None = field(name="j", default=None)
    unit_mode: bool | None = field(name="k", default=None)
    max_reconsume_times: int | None = field(name="l", default=None)
    batch: bool | None = field(name="m", default=None)
    bname: str | None = field(name="n", default=None)


class SendMessageResponse(ExtHeader, kw_only=True):
    """Answer to every send. The first three must be there on codes 0, 10, 11 and 12, or Java clients fail on null."""

    msg_id: str
    queue_id: int
    queue_offset: int
    transaction_id: str | None = None
    batch_uniq_id: str | None = None
    recall_handle: str | None = None
    msg_region: str | None = field(name="MSG_REGION", default=None)
    trace_on: bool | None = field(name="TRACE_ON", default=None)


class ConsumerSendMessageBack(RpcHeader, kw_only=True):
    offset: int
    group: str
    delay_level: int
    origin_msg_id: str | None = None
    origin_topic: str | None = None
    unit_mode: bool | None = None
    max_reconsume_times: int | None = None


class EndTransaction(RpcHeader, kw_only=True):
    producer_group: str
    tran_state_table_offset: int
    commit_log_offset: int
    commit_or_rollback: int  # 0 unknown, 8 commit, 12 rollback
    msg_id: str
    from_transaction_check: bool | None = None
    transaction_id: str | None = None
    topic: str | None = None


class EndTransactions(RpcHeader, kw_only=True):
    """END_TRANSACTIONS(30037): ends of one topic and group; the body says of which half messages."""

    topic: str
    producer_group: str
    commit_or_rollback: int  # 8 commit, 12 rollback


class RecallMessage(TopicRpcHeader, kw_only=True):
    topic: str
    recall_handle: str
    producer_group: str | None = None


class RecallMessageResponse(ExtHeader, kw_only=True):
    msg_id: str


# --------------------------------------------------------------------------------------------------- pulling, offsets


class PullMessage(TopicRpcHeader, kw_only=True):
    """PULL_MESSAGE(11), LITE_PULL_MESSAGE(361)."""

    consumer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    max_msg_nums: int
    sys_flag: int
    commit_offset: int
    suspend_timeout_millis: int
    sub_version: int
    subscription: str | None = None
    expression_type: str | None = None  # absent or empty: TAG
    max_msg_bytes: int | None = None
    request_source: int | None = None
    proxy_froward_client_id: str | None = None  # sic
    max_transfer_bytes: int | None = None  # ContrailMQ's own: the client takes more than RocketMQ's brokers give


class QueryConsumerOffset(TopicRpcHeader, kw_only=True):
    consumer_group: str
    topic: str
    queue_id: int
    set_zero_if_not_found: bool | None = None  # absent: true


class UpdateConsumerOffset(TopicRpcHeader, kw_only=True):
    consumer_group: str
    topic: str
    queue_id: int
    commit_offset: int


class GetMaxOffset(TopicRpcHeader, kw_only=True):
    topic: str
    queue_id: int
    committed: bool | None = None  # absent: true


class QueueHeader(TopicRpcHeader, kw_only=True):
    """GET_MIN_OFFSET(31), GET_EARLIEST_MSG_STORETIME(32)."""

    topic: str
    queue_id: int


class SearchOffset(TopicRpcHeader, kw_only=True):
    topic: str
    queue_id: int
    timestamp: int
    boundary_type: str | None = None  # LOWER (also when absent) or UPPER, in any case


class OffsetResponse(ExtHeader, kw_only=True):
    offset: int


class TimestampResponse(ExtHeader, kw_only=True):
    timestamp: int


class ViewMessage(RpcHeader, kw_only=True):
    offset: int  # in the commit log
    topic: str | None = None


class QueryMessage(TopicRpcHeader, kw_only=True):
    topic: str
    key: str
    max_num: int
    begin_timestamp: int
    end_timestamp: int
    index_type: str | None = None
    unique_key_query: bool | None = field(name="_UNIQUE_KEY_QUERY", default=None)


class QueryMessageResponse(ExtHeader, kw_only=True):
    index_last_update_timestamp: int
    index_last_update_phyoffset: int


# ------------------------------------------------------------------------------------------------------ group members


class HeartBeatResponse(ExtHeader, kw_only=True):
    is_support_heart_beat_v2: bool | None = field(name="IS_SUPPORT_HEART_BEAT_V2", default=None)
    is_sub_change: bool | None = field(name="IS_SUB_CHANGE", default=None)


class UnregisterClient(RpcHeader, kw_only=True):
    client_id: str = field(name="clientID")
    producer_group: str | None = None  # C++ sends an empty text for the group that it does not mean
    consumer_group: str | None = None


class ConsumerGroup(RpcHeader, kw_only=True):
    """GET_CONSUMER_LIST_BY_GROUP(38), NOTIFY_CONSUMER_IDS_CHANGED(40), GET_CONSUMER_CONNECTION_LIST(203)."""

    consumer_group: str


class ProducerGroup(RpcHeader, kw_only=True):
    """GET_PRODUCER_CONNECTION_LIST(204)."""

    producer_group: str


class CheckTransactionState(RpcHeader, kw_only=True):
    tran_state_table_offset: int
    commit_log_offset: int
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None
    topic: str | None = None


class ResetOffset(TopicRpcHeader, kw_only=True):
    """RESET_CONSUMER_CLIENT_OFFSET(220), INVOKE_BROKER_TO_RESET_OFFSET(222)."""

    group: str
    topic: str
    timestamp: int
    is_force: bool
    queue_id: int | None = None  # absent or -1: every queue
    offset: int | None = None


class GetConsumerStatus(TopicRpcHeader, kw_only=True):
    """GET_CONSUMER_STATUS_FROM_CLIENT(221), INVOKE_BROKER_TO_GET_CONSUMER_STATUS(223)."""

    topic: str
    group: str
    client_addr: str | None = None


class GetConsumerRunningInfo(RpcHeader, kw_only=True):
    consumer_group: str
    client_id: str
    jstack_enable: bool | None = None


class ConsumeMessageDirectly(TopicRpcHeader, kw_only=True):
    consumer_group: str
    client_id: str | None = None
    msg_id: str | None = None
    broker_name: str | None = None
    topic: str | None = None
    topic_sys_flag: int | None = None
    group_sys_flag: int | None = None


class PushReplyMessage(TopicRpcHeader, kw_only=True):
    producer_group: str
    topic: str
    default_topic: str
    default_topic_queue_nums: int
    queue_id: int
    sys_flag: int
    born_timestamp: int
    flag: int
    born_host: str  # ip:port
    store_host: str
    store_timestamp: int
    properties: str | None = None
    reconsume_times: int | None = None
    unit_mode: bool | None = None
