"""The typed header of each request and of its answer, by request code, for the golden and the fuzz tests.

Structs that only these tests need, most of them of requests that ContrailMQ does not serve, are here too.
"""

from __future__ import annotations

from typing import Final

import msgspec
from msgspec import field

from contrailmq.wire import admin_requests as admin
from contrailmq.wire import requests
from contrailmq.wire.admin_bodies import SubscriptionGroupConfig
from contrailmq.wire.admin_requests import ExtHeader, TopicRpcHeader
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.fastjson import Body, MessageQueueBody, new_dict, written


class PullMessageResponse(ExtHeader, kw_only=True):
    suggest_which_broker_id: int
    next_begin_offset: int
    min_offset: int
    max_offset: int
    offset_delta: int | None = None
    topic_sys_flag: int | None = None
    group_sys_flag: int | None = None
    forbidden_type: int | None = None


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


class SetCommitLogReadMode(ExtHeader, kw_only=True):
    read_ahead_mode: int | None = field(name="READ_AHEAD_MODE", default=None)


class CheckRocksdbProgress(ExtHeader, kw_only=True):
    topic: str
    check_store_time: int | None = None


class ExportRocksdbConfig(ExtHeader, kw_only=True):
    config_type: str


class UpdateAclConfig(ExtHeader, kw_only=True):
    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool | None = None
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None
    group_perms: str | None = None


class AccessKeyHeader(ExtHeader, kw_only=True):
    """DELETE_ACL_CONFIG(51)."""

    access_key: str


class UpdateGlobalWhiteAddrs(ExtHeader, kw_only=True):
    global_white_addrs: str
    acl_file_full_path: str | None = None


class UserHeader(ExtHeader, kw_only=True):
    """AUTH_CREATE/UPDATE/DELETE/GET_USER(3001-3004)."""

    username: str | None = None


class ListUser(ExtHeader, kw_only=True):
    filter: str | None = None


class AclHeader(ExtHeader, kw_only=True):
    """AUTH_CREATE/UPDATE/DELETE/GET_ACL(3006-3009)."""

    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


class ListAcl(ExtHeader, kw_only=True):
    subject_filter: str | None = None
    resource_filter: str | None = None


class SwitchTimerEngine(ExtHeader, kw_only=True):
    engine: str | None = field(name="E_T", default=None)


class AddBroker(ExtHeader, kw_only=True):
    config_path: str | None = None


class RemoveBroker(ExtHeader, kw_only=True):
    broker_name: str
    broker_cluster_name: str
    broker_id: int


class SubscriptionGroupList(Body, kw_only=True):
    group_config_list: list[SubscriptionGroupConfig]


class MessageRequestMode(Body, kw_only=True):
    """SET_MESSAGE_REQUEST_MODE(401)."""

    consumer_group: str
    mode: str = written("PULL")
    pop_share_queue_num: int = written(0)
    topic: str


class MessageRequestModes(Body, kw_only=True):
    """Answer to GET_ALL_MESSAGE_REQUEST_MODE(402): topic, group."""

    message_request_mode_map: dict[str, dict[str, MessageRequestMode]] = msgspec.field(default_factory=new_dict)


class QueryAssignment(Body, kw_only=True):
    """QUERY_ASSIGNMENT(400)."""

    client_id: str
    consumer_group: str
    message_model: str = written("CLUSTERING")
    strategy_name: str = written("AVG")
    topic: str


class QueueAssignment(Body, kw_only=True):
    message_queue: MessageQueueBody
    mode: str = written("PULL")


class QueueAssignments(Body, kw_only=True):
    """Answer to QUERY_ASSIGNMENT(400). No list: keep what you have; an empty one: you have nothing."""

    message_queue_assignments: list[QueueAssignment] | None = None


class UserInfo(Body, kw_only=True):
    password: str | None = None
    user_status: str | None = None
    user_type: str | None = None
    username: str | None = None


REQUEST_HEADERS: Final[dict[int, type[ExtHeader]]] = {
    RequestCode.SEND_MESSAGE: requests.SendMessage,
    RequestCode.SEND_REPLY_MESSAGE: requests.SendMessage,
    RequestCode.SEND_MESSAGE_V2: requests.SendMessageV2,
    RequestCode.SEND_BATCH_MESSAGE: requests.SendMessageV2,
    RequestCode.SEND_REPLY_MESSAGE_V2: requests.SendMessageV2,
    RequestCode.CONSUMER_SEND_MSG_BACK: requests.ConsumerSendMessageBack,
    RequestCode.END_TRANSACTION: requests.EndTransaction,
    RequestCode.END_TRANSACTIONS: requests.EndTransactions,
    RequestCode.SEND_HALF_BATCH: requests.SendMessageV2,
    RequestCode.RECALL_MESSAGE: requests.RecallMessage,
    RequestCode.PULL_MESSAGE: requests.PullMessage,
    RequestCode.LITE_PULL_MESSAGE: requests.PullMessage,
    RequestCode.QUERY_CONSUMER_OFFSET: requests.QueryConsumerOffset,
    RequestCode.UPDATE_CONSUMER_OFFSET: requests.UpdateConsumerOffset,
    RequestCode.GET_MAX_OFFSET: requests.GetMaxOffset,
    RequestCode.GET_MIN_OFFSET: requests.QueueHeader,
    RequestCode.GET_EARLIEST_MSG_STORETIME: requests.QueueHeader,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: requests.SearchOffset,
    RequestCode.VIEW_MESSAGE_BY_ID: requests.ViewMessage,
    RequestCode.QUERY_MESSAGE: requests.QueryMessage,
    RequestCode.HEART_BEAT: admin.RpcHeader,
    RequestCode.LOCK_BATCH_MQ: admin.RpcHeader,
    RequestCode.UNLOCK_BATCH_MQ: admin.RpcHeader,
    RequestCode.UNREGISTER_CLIENT: requests.UnregisterClient,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: requests.ConsumerGroup,
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: requests.ConsumerGroup,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: requests.ConsumerGroup,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: requests.ProducerGroup,
    RequestCode.CHECK_TRANSACTION_STATE: requests.CheckTransactionState,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: requests.ResetOffset,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: requests.ResetOffset,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: requests.GetConsumerStatus,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: requests.GetConsumerStatus,
    RequestCode.GET_CONSUMER_RUNNING_INFO: requests.GetConsumerRunningInfo,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: requests.ConsumeMessageDirectly,
    RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT: requests.PushReplyMessage,
    RequestCode.POP_MESSAGE: PopMessage,
    RequestCode.ACK_MESSAGE: AckMessage,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: ChangeInvisibleTime,
    RequestCode.NOTIFICATION: Notification,
    RequestCode.PEEK_MESSAGE: PeekMessage,
    RequestCode.POLLING_INFO: PollingInfo,
    RequestCode.REGISTER_BROKER: admin.RegisterBroker,
    RequestCode.UNREGISTER_BROKER: admin.BrokerIdentity,
    RequestCode.QUERY_DATA_VERSION: admin.BrokerIdentity,
    RequestCode.BROKER_HEARTBEAT: admin.BrokerHeartbeat,
    RequestCode.GET_BROKER_MEMBER_GROUP: admin.BrokerMemberGroupRequest,
    RequestCode.GET_ROUTEINFO_BY_TOPIC: admin.GetRouteInfo,
    RequestCode.REGISTER_TOPIC_IN_NAMESRV: admin.TopicHeader,
    RequestCode.DELETE_TOPIC_IN_NAMESRV: admin.DeleteTopicInNamesrv,
    RequestCode.GET_TOPICS_BY_CLUSTER: admin.ClusterHeader,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: admin.BrokerNameHeader,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: admin.BrokerNameHeader,
    RequestCode.GET_KVLIST_BY_NAMESPACE: admin.NamespaceHeader,
    RequestCode.GET_KV_CONFIG: admin.KvKey,
    RequestCode.DELETE_KV_CONFIG: admin.KvKey,
    RequestCode.PUT_KV_CONFIG: admin.PutKvConfig,
    RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: admin.NotifyMinBrokerIdChange,
    RequestCode.UPDATE_AND_CREATE_TOPIC: admin.CreateTopic,
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: admin.CreateTopic,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: admin.RpcHeader,
    RequestCode.DELETE_TOPIC_IN_BROKER: admin.TopicHeader,
    RequestCode.GET_TOPIC_CONFIG: admin.TopicHeader,
    RequestCode.GET_TOPIC_STATS_INFO: admin.TopicHeader,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: admin.TopicHeader,
    RequestCode.GET_ALL_TOPIC_CONFIG: admin.GetAllTopicConfig,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: admin.GetAllSubscriptionGroup,
    RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG: admin.GroupHeader,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: admin.GroupHeader,
    RequestCode.DELETE_SUBSCRIPTIONGROUP: admin.DeleteSubscriptionGroup,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: admin.UpdateGroupForbidden,
    RequestCode.GET_CONSUME_STATS: admin.GetConsumeStats,
    RequestCode.GET_BROKER_CONSUME_STATS: admin.GetBrokerConsumeStats,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: admin.QuerySubscription,
    RequestCode.QUERY_CONSUME_TIME_SPAN: admin.QueryConsumeTimeSpan,
    RequestCode.QUERY_CORRECTION_OFFSET: admin.QueryCorrectionOffset,
    RequestCode.CLONE_GROUP_OFFSET: admin.CloneGroupOffset,
    RequestCode.VIEW_BROKER_STATS_DATA: admin.ViewBrokerStats,
    RequestCode.QUERY_CONSUME_QUEUE: admin.QueryConsumeQueue,
    RequestCode.RESUME_CHECK_HALF_MESSAGE: admin.ResumeCheckHalfMessage,
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
    RequestCode.EXCHANGE_BROKER_HA_INFO: admin.ExchangeHaInfo,
    RequestCode.RESET_MASTER_FLUSH_OFFSET: admin.ResetMasterFlushOffset,
    RequestCode.ADD_BROKER: AddBroker,
    RequestCode.REMOVE_BROKER: RemoveBroker,
}

RESPONSE_HEADERS: Final[dict[int, type[ExtHeader]]] = {
    RequestCode.SEND_MESSAGE: requests.SendMessageResponse,
    RequestCode.SEND_MESSAGE_V2: requests.SendMessageResponse,
    RequestCode.SEND_BATCH_MESSAGE: requests.SendMessageResponse,
    RequestCode.SEND_REPLY_MESSAGE: requests.SendMessageResponse,
    RequestCode.SEND_REPLY_MESSAGE_V2: requests.SendMessageResponse,
    RequestCode.RECALL_MESSAGE: requests.RecallMessageResponse,
    RequestCode.PULL_MESSAGE: PullMessageResponse,
    RequestCode.LITE_PULL_MESSAGE: PullMessageResponse,
    RequestCode.QUERY_CONSUMER_OFFSET: requests.OffsetResponse,
    RequestCode.GET_MAX_OFFSET: requests.OffsetResponse,
    RequestCode.GET_MIN_OFFSET: requests.OffsetResponse,
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: requests.OffsetResponse,
    RequestCode.GET_EARLIEST_MSG_STORETIME: requests.TimestampResponse,
    RequestCode.QUERY_MESSAGE: requests.QueryMessageResponse,
    RequestCode.HEART_BEAT: requests.HeartBeatResponse,
    RequestCode.POP_MESSAGE: PopMessageResponse,
    RequestCode.PEEK_MESSAGE: PopMessageResponse,
    RequestCode.CHANGE_MESSAGE_INVISIBLETIME: ChangeInvisibleTimeResponse,
    RequestCode.NOTIFICATION: NotificationResponse,
    RequestCode.POLLING_INFO: PollingInfoResponse,
    RequestCode.REGISTER_BROKER: admin.RegisterBrokerResponse,
    RequestCode.QUERY_DATA_VERSION: admin.QueryDataVersionResponse,
    RequestCode.WIPE_WRITE_PERM_OF_BROKER: admin.WipeWritePermResponse,
    RequestCode.ADD_WRITE_PERM_OF_BROKER: admin.AddWritePermResponse,
    RequestCode.GET_KV_CONFIG: admin.KvValueResponse,
    RequestCode.GET_ALL_TOPIC_CONFIG: admin.GetAllTopicConfigResponse,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: admin.GetAllSubscriptionGroupResponse,
    RequestCode.GET_BROKER_CONFIG: admin.GetBrokerConfigResponse,
    RequestCode.EXCHANGE_BROKER_HA_INFO: admin.ExchangeHaInfo,
}
