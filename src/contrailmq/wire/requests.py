"""Ext fields of every request and response that we serve or send, typed.

A field without a default is required: a request without it is refused with an answer that names it. A field whose
default is None may be absent; what absence means is written beside it where it is not obvious. Python names are
RocketMQ's in snake case; `rename` maps them to the wire's camelCase, and the exceptions are spelled out.

Ints and booleans travel as text (`"queueId":"3"`, `"order":"false"`): decoding is lax, encoding goes through
`header.to_ext`. Requests that have no ext fields of their own have no struct here; `REQUEST_HEADERS` says which have.
"""

from __future__ import annotations

from typing import Final

from msgspec import field

from contrailmq.wire.admin_requests import (
    AccessKeyHeader,
    AclHeader,
    AddBroker,
    AddWritePermResponse,
    BrokerHeartbeat,
    BrokerIdentity,
    BrokerMemberGroupRequest,
    BrokerNameHeader,
    CheckRocksdbProgress,
    CloneGroupOffset,
    ClusterHeader,
    CreateTopic,
    DeleteSubscriptionGroup,
    DeleteTopicInNamesrv,
    ExchangeHaInfo,
    ExportRocksdbConfig,
    ExtHeader,
    GetAllSubscriptionGroup,
    GetAllSubscriptionGroupResponse,
    GetAllTopicConfig,
    GetAllTopicConfigResponse,
    GetBrokerConfigResponse,
    GetBrokerConsumeStats,
    GetConsumeStats,
    GetRouteInfo,
    GroupHeader,
    KvKey,
    KvValueResponse,
    ListAcl,
    ListUser,
    NamespaceHeader,
    NotifyMinBrokerIdChange,
    PutKvConfig,
    QueryConsumeQueue,
    QueryConsumeTimeSpan,
    QueryCorrectionOffset,
    QueryDataVersionResponse,
    QuerySubscription,
    RegisterBroker,
    RegisterBrokerResponse,
    RemoveBroker,
    ResetMasterFlushOffset,
    ResumeCheckHalfMessage,
    RpcHeader,
    SetCommitLogReadMode,
    SwitchTimerEngine,
    TopicHeader,
    TopicRpcHeader,
    UpdateAclConfig,
    UpdateGlobalWhiteAddrs,
    UpdateGroupForbidden,
    UserHeader,
    ViewBrokerStats,
    WipeWritePermResponse,
)
from contrailmq.wire.codes import RequestCode

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


class PullMessageResponse(ExtHeader, kw_only=True):
    suggest_which_broker_id: int
    next_begin_offset: int
    min_offset: int
    max_offset: int
    offset_delta: int | None = None
    topic_sys_flag: int | None = None
    group_sys_flag: int | None = None
    forbidden_type: int | None = None


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


# ---------------------------------------------------------------------------------------------------------------- POP


class PopMessage(TopicRpcHeader, kw_only=True):
    consumer_group: str
    topic: str
    queue_id: int  # -1: all
    max_msg_nums: int
    invisible_time: int
    poll_time: int
    born_time: int
    init_mode: int
    exp_type: str | None = None
    exp: str | None = None
    order: bool | None = None
    attempt_id: str | None = None


class PopMessageResponse(ExtHeader, kw_only=True):
    pop_time: int
    invisible_time: int
    revive_qid: int
    rest_num: int
    start_offset_info: str | None = None
    msg_offset_info: str | None = None
    order_count_info: str | None = None


class AckMessage(TopicRpcHeader, kw_only=True):
    consumer_group: str
    topic: str
    queue_id: int
    extra_info: str
    offset: int


class ChangeInvisibleTime(AckMessage, kw_only=True):
    invisible_time: int
    suspend: bool | None = None


class ChangeInvisibleTimeResponse(ExtHeader, kw_only=True):
    pop_time: int
    invisible_time: int
    revive_qid: int


class Notification(TopicRpcHeader, kw_only=True):
    consumer_group: str
    topic: str
    queue_id: int
    poll_time: int
    born_time: int
    order: bool | None = None
    attempt_id: str | None = None


class NotificationResponse(ExtHeader, kw_only=True):
    has_msg: bool
    polling_full: bool | None = None


class PeekMessage(TopicRpcHeader, kw_only=True):
    topic: str
    queue_id: int
    max_msg_nums: int
    consumer_group: str


class PollingInfo(TopicRpcHeader, kw_only=True):
    consumer_group: str
    topic: str
    queue_id: int


class PollingInfoResponse(ExtHeader, kw_only=True):
    polling_num: int


# ------------------------------------------------------------------------------------------------------------- tables

REQUEST_HEADERS: Final[dict[int, type[ExtHeader]]] = {
    RequestCode.SEND_MESSAGE: SendMessage,
    RequestCode.SEND_REPLY_MESSAGE: SendMessage,
    RequestCode.SEND_MESSAGE_V2: SendMessageV2,
    RequestCode.SEND_BATCH_MESSAGE: SendMessageV2,
    RequestCode.SEND_REPLY_MESSAGE_V2: SendMessageV2,
    RequestCode.CONSUMER_SEND_MSG_BACK: ConsumerSendMessageBack,
    RequestCode.END_TRANSACTION: EndTransaction,
    RequestCode.RECALL_MESSAGE: RecallMessage,
    RequestCode.PULL_MESSAGE: PullMessage,
    RequestCode.LITE_PULL_MESSAGE: PullMessage,
    RequestCode.QUERY_CONSUMER_OFFSET: QueryConsumerOffset,
    RequestCode.UPDATE_CONSUMER_OFFSET: UpdateConsumerOffset,
    RequestCode.GET_MAX_OFFSET: GetMaxOffset,
    RequestCode.GET_MIN_OFFSET: QueueHeader,
    RequestCode.GET_EARLIEST_MSG_STORETIME: QueueHeader,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: SearchOffset,
    RequestCode.VIEW_MESSAGE_BY_ID: ViewMessage,
    RequestCode.QUERY_MESSAGE: QueryMessage,
    RequestCode.HEART_BEAT: RpcHeader,
    RequestCode.LOCK_BATCH_MQ: RpcHeader,
    RequestCode.UNLOCK_BATCH_MQ: RpcHeader,
    RequestCode.UNREGISTER_CLIENT: UnregisterClient,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: ConsumerGroup,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: ConsumerGroup,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: ConsumerGroup,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: ProducerGroup,
    RequestCode.CHECK_TRANSACTION_STATE: CheckTransactionState,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: ResetOffset,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: ResetOffset,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: GetConsumerStatus,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: GetConsumerStatus,
    RequestCode.GET_CONSUMER_RUNNING_INFO: GetConsumerRunningInfo,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: ConsumeMessageDirectly,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: PushReplyMessage,
    RequestCode.POP_MESSAGE: PopMessage,
    RequestCode.ACK_MESSAGE: AckMessage,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: ChangeInvisibleTime,
    RequestCode.NOTIFICATION: Notification,
    RequestCode.PEEK_MESSAGE: PeekMessage,
    RequestCode.POLLING_INFO: PollingInfo,
    RequestCode.REGISTER_BROKER: RegisterBroker,
    RequestCode.UNREGISTER_BROKER: BrokerIdentity,
    RequestCode.QUERY_DATA_VERSION: BrokerIdentity,
    RequestCode.BROKER_HEARTBEAT: BrokerHeartbeat,
    RequestCode.GET_BROKER_MEMBER_GROUP: BrokerMemberGroupRequest,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: GetRouteInfo,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: TopicHeader,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: DeleteTopicInNamesrv,
    RequestCode.GET_TOPICS_BY_CLUSTER: ClusterHeader,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: BrokerNameHeader,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: BrokerNameHeader,
    RequestCode.GET_KVLIST_BY_NAMESPACE: NamespaceHeader,
    RequestCode.GET_KV_CONFIG: KvKey,
    RequestCode.DELETE_KV_CONFIG: KvKey,
    RequestCode.PUT_KV_CONFIG: PutKvConfig,
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: NotifyMinBrokerIdChange,
    RequestCode.UPDATE_AND_CREATE_TOPIC: CreateTopic,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: CreateTopic,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: RpcHeader,
    RequestCode.DELETE_TOPIC_IN_BROKER: TopicHeader,
    RequestCode.GET_TOPIC_CONFIG: TopicHeader,
    RequestCode.GET_TOPIC_STATS_INFO: TopicHeader,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: TopicHeader,
    RequestCode.GET_ALL_TOPIC_CONFIG: GetAllTopicConfig,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: GetAllSubscriptionGroup,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: GroupHeader,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: GroupHeader,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: DeleteSubscriptionGroup,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: UpdateGroupForbidden,
    RequestCode.GET_CONSUME_STATS: GetConsumeStats,
    RequestCode.GET_BROKER_CONSUME_STATS: GetBrokerConsumeStats,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: QuerySubscription,
    RequestCode.QUERY_CONSUME_TIME_SPAN: QueryConsumeTimeSpan,
    RequestCode.QUERY_CORRECTION_OFFSET: QueryCorrectionOffset,
    RequestCode.CLONE_GROUP_OFFSET: CloneGroupOffset,
    RequestCode.VIEW_BROKER_STATS_DATA: ViewBrokerStats,
    RequestCode.QUERY_CONSUME_QUEUE: QueryConsumeQueue,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: ResumeCheckHalfMessage,
    RequestCode.SET_COMMITLOG_READ_MODE: SetCommitLogReadMode,
    RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: CheckRocksdbProgress,
    RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: ExportRocksdbConfig,
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG: UpdateAclConfig,
    RequestCode.DELETE_ACL_CONFIG: AccessKeyHeader,
    RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG: UpdateGlobalWhiteAddrs,
    RequestCode.AUTH_CREATE_USER: UserHeader,
    RequestCode.AUTH_UPDATE_USER: UserHeader,
    RequestCode.AUTH_DELETE_USER: UserHeader,
    RequestCode.AUTH_GET_USER: UserHeader,
    RequestCode.AUTH_LIST_USER: ListUser,
    RequestCode.AUTH_CREATE_ACL: AclHeader,
    RequestCode.AUTH_UPDATE_ACL: AclHeader,
    RequestCode.AUTH_DELETE_ACL: AclHeader,
    RequestCode.AUTH_GET_ACL: AclHeader,
    RequestCode.AUTH_LIST_ACL: ListAcl,
    RequestCode.SWITCH_TIMER_ENGINE: SwitchTimerEngine,
    RequestCode.EXCHANGE_BROKER_HA_INFO: ExchangeHaInfo,
    RequestCode.RESET_MASTER_FLUSH_OFFSET: ResetMasterFlushOffset,
    RequestCode.ADD_BROKER: AddBroker,
    RequestCode.REMOVE_BROKER: RemoveBroker,
}

RESPONSE_HEADERS: Final[dict[int, type[ExtHeader]]] = {
    RequestCode.SEND_MESSAGE: SendMessageResponse,
    RequestCode.SEND_MESSAGE_V2: SendMessageResponse,
    RequestCode.SEND_BATCH_MESSAGE: SendMessageResponse,
    RequestCode.SEND_REPLY_MESSAGE: SendMessageResponse,
    RequestCode.SEND_REPLY_MESSAGE_V2: SendMessageResponse,
    RequestCode.RECALL_MESSAGE: RecallMessageResponse,
    RequestCode.PULL_MESSAGE: PullMessageResponse,
    RequestCode.LITE_PULL_MESSAGE: PullMessageResponse,
    RequestCode.QUERY_CONSUMER_OFFSET: OffsetResponse,
    RequestCode.GET_MAX_OFFSET: OffsetResponse,
    RequestCode.GET_MIN_OFFSET: OffsetResponse,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: OffsetResponse,
    RequestCode.GET_EARLIEST_MSG_STORETIME: TimestampResponse,
    RequestCode.QUERY_MESSAGE: QueryMessageResponse,
    RequestCode.HEART_BEAT: HeartBeatResponse,
    RequestCode.POP_MESSAGE: PopMessageResponse,
    RequestCode.PEEK_MESSAGE: PopMessageResponse,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: ChangeInvisibleTimeResponse,
    RequestCode.NOTIFICATION: NotificationResponse,
    RequestCode.POLLING_INFO: PollingInfoResponse,
    RequestCode.REGISTER_BROKER: RegisterBrokerResponse,
    RequestCode.QUERY_DATA_VERSION: QueryDataVersionResponse,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: WipeWritePermResponse,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: AddWritePermResponse,
    RequestCode.GET_KV_CONFIG: KvValueResponse,
    RequestCode.GET_ALL_TOPIC_CONFIG: GetAllTopicConfigResponse,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: GetAllSubscriptionGroupResponse,
    RequestCode.GET_BROKER_CONFIG: GetBrokerConfigResponse,
    RequestCode.EXCHANGE_BROKER_HA_INFO: ExchangeHaInfo,
}
