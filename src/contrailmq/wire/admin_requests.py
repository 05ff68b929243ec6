"""Ext fields of the requests that brokers send to NameServers, that tools send to both, and that brokers exchange.

It begins with the roots of all ext fields: what every request may carry. The rules are those of `requests`.
"""

from __future__ import annotations

from msgspec import Struct, field


class ExtHeader(Struct, rename="camel", kw_only=True, gc=False):
    """Root of all ext-field structs."""


class RpcHeader(ExtHeader, kw_only=True):
    """What 5.x clients may add to any request: namespace, broker name, oneway hint. A broker ignores them."""

    ns: str | None = None
    nsd: bool | None = None
    bname: str | None = None
    oway: bool | None = None
    req_t: str | None = field(name="ReqT", default=None)  # 0: a stream client (lite pull)


class TopicRpcHeader(RpcHeader, kw_only=True):
    """The same for requests about a topic: `lo` marks logical queues (static topics)."""

    lo: bool | None = None


# --------------------------------------------------------------------------------------------------------- NameServer


class BrokerIdentity(ExtHeader, kw_only=True):
    """UNREGISTER_BROKER(104), QUERY_DATA_VERSION(322)."""

    broker_name: str
    broker_addr: str
    cluster_name: str
    broker_id: int


class RegisterBroker(BrokerIdentity, kw_only=True):
    ha_server_addr: str
    heartbeat_timeout_millis: int | None = None
    enable_acting_master: bool | None = None
    compressed: bool | None = None
    body_crc32: int | None = None
    zone_name: str | None = field(name="__ZONE_NAME", default=None)


class RegisterBrokerResponse(ExtHeader, kw_only=True):
    ha_server_addr: str | None = None
    master_addr: str | None = None


class QueryDataVersionResponse(ExtHeader, kw_only=True):
    changed: bool


class BrokerHeartbeat(ExtHeader, kw_only=True):
    cluster_name: str
    broker_addr: str
    broker_name: str
    broker_id: int | None = None
    epoch: int | None = None
    max_offset: int | None = None
    confirm_offset: int | None = None
    heartbeat_timeout_mills: int | None = None  # sic
    election_priority: int | None = None


class BrokerMemberGroupRequest(ExtHeader, kw_only=True):
    cluster_name: str
    broker_name: str


class GetRouteInfo(TopicRpcHeader, kw_only=True):
    topic: str
    accept_standard_json_only: bool | None = None
    zone_name: str | None = field(name="__ZONE_NAME", default=None)
    zone_mode: bool | None = field(name="__ZONE_MODE", default=None)


class TopicHeader(TopicRpcHeader, kw_only=True):
    """Requests about one topic: 202, 215, 217, 300, 351."""

    topic: str


class DeleteTopicInNamesrv(TopicRpcHeader, kw_only=True):
    topic: str
    cluster_name: str | None = None


class ClusterHeader(ExtHeader, kw_only=True):
    """GET_TOPICS_BY_CLUSTER(224)."""

    cluster: str


class BrokerNameHeader(ExtHeader, kw_only=True):
    """WIPE_WRITE_PERM_OF_BROKER(205), ADD_WRITE_PERM_OF_BROKER(327)."""

    broker_name: str


class WipeWritePermResponse(ExtHeader, kw_only=True):
    wipe_topic_count: int


class AddWritePermResponse(ExtHeader, kw_only=True):
    add_topic_count: int


class NamespaceHeader(ExtHeader, kw_only=True):
    """GET_KVLIST_BY_NAMESPACE(219)."""

    namespace: str


class KvKey(NamespaceHeader, kw_only=True):
    """GET_KV_CONFIG(101), DELETE_KV_CONFIG(102)."""

    key: str


class PutKvConfig(KvKey, kw_only=True):
    value: str


class KvValueResponse(ExtHeader, kw_only=True):
    value: str | None = None


class NotifyMinBrokerIdChange(ExtHeader, kw_only=True):
    min_broker_id: int | None = None
    broker_name: str | None = None
    min_broker_addr: str | None = None
    offline_broker_addr: str | None = None
    ha_broker_addr: str | None = None


# ----------------------------------------------------------------------------------------------------- administration


class CreateTopic(TopicRpcHeader, kw_only=True):
    """UPDATE_AND_CREATE_TOPIC(17), UPDATE_AND_CREATE_STATIC_TOPIC(513)."""

    topic: str
    default_topic: str
    read_queue_nums: int
    write_queue_nums: int
    perm: int
    topic_filter_type: str
    order: bool
    topic_sys_flag: int | None = None
    attributes: str | None = None  # +key=value,-key
    force: bool | None = None


class GetAllTopicConfig(ExtHeader, kw_only=True):
    topic_seq: int | None = None
    data_version: str | None = None
    max_topic_num: int | None = None
    with_deleted: bool | None = None  # ContrailMQ's own: a slave wants to know which topics were deleted, and where


class GetAllTopicConfigResponse(ExtHeader, kw_only=True):
    total_topic_num: int | None = None  # absent: everything was returned


class GetTimerCheckPoint(ExtHeader, kw_only=True):
    clock_version: str | None = None  # ContrailMQ's own: what a slave knows of how its master's clock was set


class GetTimerCheckPointResponse(ExtHeader, kw_only=True):
    """ContrailMQ's own, for a slave that asks for it (store/base/store_clock.py)."""

    clock_version: str | None = None
    clock_steady_ms: int | None = None
    clock_stretches: str | None = None  # rows of a JSON array; absent: those of the slave's version
    tables_version: str | None = None  # another one when topics or groups have changed


class GetAllSubscriptionGroup(ExtHeader, kw_only=True):
    group_seq: int | None = None
    data_version: str | None = None
    max_group_num: int | None = None


class GetAllSubscriptionGroupResponse(ExtHeader, kw_only=True):
    total_group_num: int | None = None


class GroupHeader(RpcHeader, kw_only=True):
    """GET_SUBSCRIPTIONGROUP_CONFIG(352), QUERY_TOPICS_BY_CONSUMER(343)."""

    group: str


class DeleteSubscriptionGroup(RpcHeader, kw_only=True):
    group_name: str
    clean_offset: bool | None = None  # 5.x
    remove_offset: bool | None = None  # 4.9


class UpdateGroupForbidden(TopicRpcHeader, kw_only=True):
    group: str
    topic: str
    readable: bool | None = None


class GetConsumeStats(TopicRpcHeader, kw_only=True):
    consumer_group: str
    topic: str | None = None
    topic_list: str | None = None  # separated by ;


class GetBrokerConsumeStats(ExtHeader, kw_only=True):
    is_order: bool


class QuerySubscription(TopicRpcHeader, kw_only=True):
    group: str
    topic: str | None = None


class QueryConsumeTimeSpan(TopicRpcHeader, kw_only=True):
    topic: str
    group: str


class QueryCorrectionOffset(TopicRpcHeader, kw_only=True):
    compare_group: str
    topic: str
    filter_groups: str | None = None  # separated by ,


class CloneGroupOffset(RpcHeader, kw_only=True):
    src_group: str
    dest_group: str
    topic: str | None = None
    offline: bool | None = None


class GetBrokerConfigResponse(ExtHeader, kw_only=True):
    version: str  # DataVersion as JSON


class ViewBrokerStats(ExtHeader, kw_only=True):
    stats_name: str
    stats_key: str


class QueryConsumeQueue(TopicRpcHeader, kw_only=True):
    topic: str | None = None
    queue_id: int | None = None
    index: int | None = None
    count: int | None = None
    consumer_group: str | None = None


class ResumeCheckHalfMessage(RpcHeader, kw_only=True):
    topic: str | None = None
    msg_id: str | None = None


class ExchangeHaInfo(ExtHeader, kw_only=True):
    """Request and response of EXCHANGE_BROKER_HA_INFO(906)."""

    master_ha_address: str | None = None
    master_flush_offset: int | None = None
    master_address: str | None = None


class ResetMasterFlushOffset(ExtHeader, kw_only=True):
    master_flush_offset: int
