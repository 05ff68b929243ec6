"""JSON bodies of administration, statistics, POP and broker-to-broker requests. Rules and doors: see `bodies`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from contrailmq.message import MessageQueue
from contrailmq.wire.bodies import (
    CONSUME_FROM_WHERE,
    CONSUME_TYPES,
    MESSAGE_MODELS,
    DataVersion,
    SubscriptionData,
    TopicConfig,
    enum_name,
)
from contrailmq.wire.fastjson import (
    Body,
    MessageQueueBody,
    decode_queue_table,
    new_dict,
    new_list,
    queue_table,
    written,
)

_EMPTY: Final = msgspec.Raw(b"{}")
_DEFAULT_RETRY_POLICY: Final[dict[str, object]] = {"type": "CUSTOMIZED"}


# --------------------------------------------------------------------------------------------------- topics and groups


class SubscriptionGroupConfig(Body, kw_only=True):
    attributes: dict[str, str] = msgspec.field(default_factory=new_dict)
    broker_id: int = written(0)
    consume_broadcast_enable: bool = written(True)
    consume_enable: bool = written(True)
    consume_from_min_enable: bool = written(True)
    consume_message_orderly: bool = written(False)
    consume_timeout_minute: int = written(15)
    group_name: str
    group_retry_policy: dict[str, object] = msgspec.field(default_factory=lambda: _DEFAULT_RETRY_POLICY.copy())
    group_sys_flag: int = written(0)
    notify_consumer_ids_changed_enable: bool = written(True)
    retry_max_times: int = written(16)
    retry_queue_nums: int = written(1)
    subscription_data_set: list[dict[str, object]] | None = None
    which_broker_when_consume_slowly: int = written(1)


class SubscriptionGroupWrapper(Body, kw_only=True):
    """Answer to GET_ALL_SUBSCRIPTIONGROUP_CONFIG(201)."""

    data_version: DataVersion = msgspec.field(default_factory=DataVersion)
    forbidden_table: dict[str, dict[str, int]] = msgspec.field(default_factory=new_dict)
    subscription_group_table: dict[str, SubscriptionGroupConfig] = msgspec.field(default_factory=new_dict)


class TopicConfigList(Body, kw_only=True):
    topic_config_list: list[TopicConfig]


class GroupList(Body, kw_only=True):
    group_list: list[str] = msgspec.field(default_factory=new_list)


class GroupForbidden(Body, kw_only=True):
    group: str
    readable: bool = written(True)
    topic: str


class SubscriptionOfGroup(Body, kw_only=True):
    """Answer to QUERY_SUBSCRIPTION_BY_CONSUMER(345)."""

    group: str
    subscription_data: SubscriptionData | None = None
    topic: str


# -------------------------------------------------------------------------------------------------- offsets and stats


class TopicOffset(Body, kw_only=True):
    last_update_timestamp: int = written(0)
    max_offset: int = written(0)
    min_offset: int = written(0)


class TopicStatsTable(Body, kw_only=True):
    """Answer to GET_TOPIC_STATS_INFO(202)."""

    may_have_object_names = True

    offset_table: msgspec.Raw = written(_EMPTY)
    topic_put_tps: float = written(0.0)

    @classmethod
    def of(cls, queues: Mapping[MessageQueue, TopicOffset], *, put_tps: float = 0.0) -> TopicStatsTable:
        return cls(offset_table=queue_table(queues), topic_put_tps=put_tps)

    @property
    def queues(self) -> dict[MessageQueue, TopicOffset]:
        return decode_queue_table(self.offset_table, TopicOffset)


class OffsetProgress(Body, kw_only=True):
    broker_offset: int = written(0)
    consumer_offset: int = written(0)
    last_timestamp: int = written(0)
    pull_offset: int = written(0)


class ConsumeStats(Body, kw_only=True):
    """Answer to GET_CONSUME_STATS(208)."""

    may_have_object_names = True

    consume_tps: float = written(0.0)
    offset_table: msgspec.Raw = written(_EMPTY)

    @classmethod
    def of(cls, queues: Mapping[MessageQueue, OffsetProgress], *, consume_tps: float = 0.0) -> ConsumeStats:
        return cls(consume_tps=consume_tps, offset_table=queue_table(queues))

    @property
    def queues(self) -> dict[MessageQueue, OffsetProgress]:
        return decode_queue_table(self.offset_table, OffsetProgress)


class ConsumeStatsList(Body, kw_only=True):
    """Answer to GET_BROKER_CONSUME_STATS(317)."""

    may_have_object_names = True

    broker_addr: str | None = None
    consume_stats_list: list[dict[str, list[ConsumeStats]]] = msgspec.field(default_factory=new_list)
    total_diff: int = written(0)
    total_inflight_diff: int = written(0)


class ResetOffsetBody(Body, kw_only=True):
    """RESET_CONSUMER_CLIENT_OFFSET(220), and the answer to INVOKE_BROKER_TO_RESET_OFFSET(222)."""

    may_have_object_names = True

    offset_table: msgspec.Raw = written(_EMPTY)

    @classmethod
    def of(cls, offsets: Mapping[MessageQueue, int]) -> ResetOffsetBody:
        return cls(offset_table=queue_table(offsets))

    @property
    def offsets(self) -> dict[MessageQueue, int]:
        return decode_queue_table(self.offset_table, int)


class ConsumerStatusBody(Body, kw_only=True):
    """Clients answer 221 with `messageQueueTable`, brokers answer 223 with `consumerTable` of many clients."""

    may_have_object_names = True

    consumer_table: dict[str, msgspec.Raw] = msgspec.field(default_factory=new_dict)
    message_queue_table: msgspec.Raw = written(_EMPTY)

    @classmethod
    def of(cls, offsets: Mapping[MessageQueue, int]) -> ConsumerStatusBody:
        return cls(message_queue_table=queue_table(offsets))

    @classmethod
    def of_clients(cls, clients: Mapping[str, Mapping[MessageQueue, int]]) -> ConsumerStatusBody:
        return cls(consumer_table={client: queue_table(offsets) for client, offsets in clients.items()})

    @property
    def offsets(self) -> dict[MessageQueue, int]:
        return decode_queue_table(self.message_queue_table, int)

    @property
    def clients(self) -> dict[str, dict[MessageQueue, int]]:
        return {client: decode_queue_table(raw, int) for client, raw in self.consumer_table.items()}


class QueueTimeSpan(Body, kw_only=True):
    consume_time_stamp: int = written(0)
    consume_time_stamp_str: str | None = None
    delay_time: int = written(0)
    max_time_stamp: int = written(0)
    max_time_stamp_str: str | None = None
    message_queue: MessageQueueBody
    min_time_stamp: int = written(0)
    min_time_stamp_str: str | None = None


class QueueTimeSpans(Body, kw_only=True):
    """Answer to QUERY_CONSUME_TIME_SPAN(303)."""

    consume_time_span_set: list[QueueTimeSpan] = msgspec.field(default_factory=new_list)


class CorrectionOffsets(Body, kw_only=True):
    """Answer to QUERY_CORRECTION_OFFSET(308)."""

    correction_offsets: dict[int, int] = msgspec.field(default_factory=new_dict)


class BrokerStatsItem(Body, kw_only=True):
    avgpt: float = written(0.0)
    sum: int = written(0)
    tps: float = written(0.0)


class BrokerStatsData(Body, kw_only=True):
    """Answer to VIEW_BROKER_STATS_DATA(315)."""

    stats_day: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)
    stats_hour: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)
    stats_minute: BrokerStatsItem = msgspec.field(default_factory=BrokerStatsItem)


class ConsumeQueueUnit(Body, kw_only=True):
    bit_map: str | None = None
    eval: bool = written(False)
    extend_data_json: str | None = None
    msg: str | None = None
    physic_offset: int = written(0)
    physic_size: int = written(0)
    tags_code: int = written(0)


class ConsumeQueueUnits(Body, kw_only=True):
    """Answer to QUERY_CONSUME_QUEUE(321)."""

    filter_data: str | None = None
    max_queue_index: int = written(0)
    min_queue_index: int = written(0)
    queue_data: list[ConsumeQueueUnit] = msgspec.field(default_factory=new_list)
    subscription_data: SubscriptionData | None = None


# ---------------------------------------------------------------------------------------------------------- connections


class ClientConnection(Body, kw_only=True):
    client_addr: str
    client_id: str
    language: str = written("OTHER")
    version: int = written(0)


class ConsumerConnection(Body, kw_only=True):
    """Answer to GET_CONSUMER_CONNECTION_LIST(203)."""

    connection_set: list[ClientConnection] = msgspec.field(default_factory=new_list)
    consume_from_where: str | int = written("CONSUME_FROM_LAST_OFFSET")
    consume_type: str | int = written("CONSUME_PASSIVELY")
    message_model: str | int = written("CLUSTERING")
    subscription_table: dict[str, SubscriptionData] = msgspec.field(default_factory=new_dict)

    def __post_init__(self) -> None:
        self.consume_from_where = enum_name(self.consume_from_where, CONSUME_FROM_WHERE)
        self.consume_type = enum_name(self.consume_type, CONSUME_TYPES)
        self.message_model = enum_name(self.message_model, MESSAGE_MODELS)


class ProducerConnection(Body, kw_only=True):
    """Answer to GET_PRODUCER_CONNECTION_LIST(204)."""

    connection_set: list[ClientConnection] = msgspec.field(default_factory=new_list)


class ProducerInfo(Body, kw_only=True):
    client_id: str
    language: str = written("OTHER")
    last_update_timestamp: int = written(0)
    remote_ip: str = msgspec.field(name="remoteIP", default_factory=lambda: "")
    version: int = written(0)


class ProducerTable(Body, kw_only=True):
    """Answer to GET_ALL_PRODUCER_INFO(328)."""

    data: dict[str, list[ProducerInfo]] = msgspec.field(default_factory=new_dict)


class ProcessQueueInfo(Body, kw_only=True):
    cached_msg_count: int = written(0)
    cached_msg_max_offset: int = written(0)
    cached_msg_min_offset: int = written(0)
    cached_msg_size_in_mib: int = msgspec.field(name="cachedMsgSizeInMiB", default_factory=lambda: 0)
    commit_offset: int = written(0)
    droped: bool = written(False)  # sic
    last_consume_timestamp: int = written(0)
    last_lock_timestamp: int = written(0)
    last_pull_timestamp: int = written(0)
    locked: bool = written(False)
    transaction_msg_count: int = written(0)
    transaction_msg_max_offset: int = written(0)
    transaction_msg_min_offset: int = written(0)
    try_unlock_times: int = written(0)


class ConsumeStatus(Body, kw_only=True):
    consume_failed_msgs: int = written(0)
    consume_failed_tps: float = msgspec.field(name="consumeFailedTPS", default_factory=lambda: 0.0)
    consume_ok_tps: float = msgspec.field(name="consumeOKTPS", default_factory=lambda: 0.0)
    consume_rt: float = msgspec.field(name="consumeRT", default_factory=lambda: 0.0)
    pull_rt: float = msgspec.field(name="pullRT", default_factory=lambda: 0.0)
    pull_tps: float = msgspec.field(name="pullTPS", default_factory=lambda: 0.0)


class ConsumerRunningInfo(Body, kw_only=True):
    """A client's answer to GET_CONSUMER_RUNNING_INFO(307)."""

    may_have_object_names = True

    jstack: str | None = None
    mq_pop_table: msgspec.Raw = written(_EMPTY)
    mq_table: msgspec.Raw = written(_EMPTY)
    properties: dict[str, str] = msgspec.field(default_factory=new_dict)
    status_table: dict[str, ConsumeStatus] = msgspec.field(default_factory=new_dict)
    subscription_set: list[SubscriptionData] = msgspec.field(default_factory=new_list)
    user_consumer_info: dict[str, str] = msgspec.field(default_factory=new_dict)

    @property
    def queues(self) -> dict[MessageQueue, ProcessQueueInfo]:
        return decode_queue_table(self.mq_table, ProcessQueueInfo)


CONSUME_RESULTS: Final = (
    "CR_SUCCESS",
    "CR_LATER",
    "CR_ROLLBACK",
    "CR_COMMIT",
    "CR_THROW_EXCEPTION",
    "CR_RETURN_NULL",
)


class ConsumeMessageDirectlyResult(Body, kw_only=True):
    """A client's answer to CONSUME_MESSAGE_DIRECTLY(309)."""

    auto_commit: bool = written(True)
    consume_result: str | int = written("CR_SUCCESS")
    order: bool = written(False)
    remark: str | None = None
    spent_time_mills: int = written(0)

    def __post_init__(self) -> None:
        self.consume_result = enum_name(self.consume_result, CONSUME_RESULTS)  # Go answers the ordinal


# --------------------------------------------------------------------------------------------------- high availability


class HaClientInfo(Body, kw_only=True):
    activated: bool | None = None
    last_read_timestamp: int = written(0)
    last_write_timestamp: int = written(0)
    master_addr: str | None = None
    master_flush_offset: int = written(0)
    max_offset: int = written(0)
    transferred_byte_in_second: int = written(0)


class HaConnectionInfo(Body, kw_only=True):
    addr: str
    diff: int = written(0)
    in_sync: bool = written(False)
    silent_millis: int | None = None  # since its last report; Apache's masters do not say
    slave_ack_offset: int = written(0)
    transfer_from_where: int = written(0)
    transferred_byte_in_second: int = written(0)


class HaRuntimeInfo(Body, kw_only=True):
    """Answer to GET_BROKER_HA_STATUS(907)."""

    ha_client_runtime_info: HaClientInfo = msgspec.field(default_factory=HaClientInfo)
    ha_connection_info: list[HaConnectionInfo] = msgspec.field(default_factory=new_list)
    in_sync_slave_nums: int = written(0)
    master: bool = written(True)
    master_commit_log_max_offset: int = written(0)
