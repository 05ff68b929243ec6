"""BrokerConfig: the broker's half of RocketMQ's broker.conf, with RocketMQ's keys and defaults.

A properties file is shared by broker and store: keys of the store go to `StoreConfig`, the rest is read here. Every
field is RocketMQ's key in snake case. Where we deliberately differ from RocketMQ's default, the difference stands in
DIFFERENCES with its reason, is shown by `-p`, and nowhere else. Keys that RocketMQ has and that mean nothing here are
in `foreign_settings`; any other unknown key is a warning that names the nearest known one.
"""

from __future__ import annotations

import dataclasses
import difflib
import ipaddress
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from contrailmq.broker.foreign_settings import PROMISES, named_in_one_line, why_without_effect
from contrailmq.broker.state.client_bound import DEFAULT_MAX
from contrailmq.message import ContrailError, MessageError, check_group
from contrailmq.message.addresses import check_dialled, check_host_form, is_ip, without_brackets
from contrailmq.metrics.settings import (
    DEFAULT_PORT,
    LIMIT,
    ExporterKind,
    ExportSettings,
    MetricsSettingError,
    exporter_kind,
    label_pairs,
    otlp_target,
    pairs,
)
from contrailmq.store import StoreConfig, rocketmq_key
from contrailmq.wire.promises import broken_promises
from contrailmq.wire.tls import KEYS as TLS_KEYS

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# key -> (RocketMQ's default, ours, why)
DIFFERENCES: Final[Mapping[str, tuple[str, str, str]]] = {
    "enablePropertyFilter": (
        "false",
        "true",
        "SQL92 subscriptions work without a setting; filters are compiled and cheap",
    ),
    "haTransferBatchSize": (
        "32768",
        "262144",
        "slaves of any version take larger blocks, and fewer of them cost less",
    ),
    "metricsPromExporterHost": (
        "empty: brokerIP1",
        "127.0.0.1",
        "names of topics and groups are not for everybody; empty means brokerIP1 here too",
    ),
    "transactionOpBatchInterval": (
        "3000",
        "100",
        "producers are asked again about the rollbacks of the last 200 ms before a crash, not of 3 s",
    ),
}


class BrokerConfigError(ContrailError):
    """A setting is unusable; names the key, the value and what is allowed."""

    def __init__(self, key: str, value: object, remedy: str) -> None:
        super().__init__(f"broker setting {key}={value!r}: {remedy}")
        self.key = key


@dataclass(slots=True, kw_only=True)
class BrokerConfig:
    """Settings of one broker. Owner: BrokerServer; `update` changes it at run time."""

    # --- who and where
    broker_name: str = field(default_factory=socket.gethostname)
    broker_cluster_name: str = "DefaultCluster"
    broker_id: int = 0
    broker_ip1: str = ""  # "" : found, see advertised_address
    broker_ip2: str = ""
    listen_port: int = 10_911
    bind_address: str = "0.0.0.0"
    namesrv_addr: str = ""
    region_id: str = "DefaultRegion"
    broker_permission: int = 6
    is_vip_channel_enabled: bool = field(default=True, metadata={"key": "enableFastListenPort"})
    # --- registration
    register_name_server_period: int = 30_000
    register_broker_timeout_mills: int = 24_000
    # --- topics and groups
    auto_create_topic_enable: bool = True
    auto_create_subscription_group: bool = True
    config_black_list: str = "configBlackList;brokerConfigPath"  # never changed over the network
    default_topic_queue_nums: int = 8
    cluster_topic_enable: bool = True
    broker_topic_enable: bool = True
    trace_topic_enable: bool = False
    msg_trace_topic_name: str = "RMQ_SYS_TRACE_TOPIC"
    trace_on: bool = True
    # --- sending
    reject_transaction_message: bool = False
    store_reply_message_enable: bool = True
    start_accept_send_request_time_stamp: int = 0
    recall_message_enable: bool = False
    # --- pulling
    long_polling_enable: bool = True
    short_polling_time_mills: int = 1000
    lite_pull_message_enable: bool = True
    slave_read_enable: bool = False
    enable_property_filter: bool = True
    notify_consumer_ids_changed_enable: bool = True
    use_server_side_reset_offset: bool = True
    channel_expired_timeout: int = 120_000
    flush_consumer_offset_interval: int = 5000
    # --- POP
    pop_polling_size: int = 1024
    max_pop_polling_size: int = 100_000
    revive_queue_num: int = 8
    pop_from_retry_probability: int = 20
    pop_from_retry_probability_for_priority: int = 0
    priority_order_asc: bool = True
    enable_retry_topic_v2: bool = field(default=False, metadata={"key": "enableRetryTopicV2"})
    retrieve_message_from_pop_retry_topic_v1: bool = field(
        default=True, metadata={"key": "retrieveMessageFromPopRetryTopicV1"}
    )
    clear_retry_topic_when_delete_topic: bool = True
    pop_response_return_actual_retry_topic: bool = False
    init_pop_offset_by_check_msg_in_mem: bool = True
    pop_ck_max_buffer_size: int = 200_000
    pop_ck_offset_max_queue_size: int = 20_000
    enable_pop_message_threshold: bool = False
    pop_inflight_message_threshold: int = 10_000
    server_load_balancer_enable: bool = True
    default_message_request_mode: str = "PULL"
    default_pop_share_queue_num: int = -1
    # --- lite topics
    max_lite_subscription_count: int = 100_000
    lite_subscription_check_interval: int = 120_000
    lite_subscription_check_timeout_mills: int = 180_000
    lite_ttl_check_interval: int = 120_000
    min_lite_ttl: int = field(default=900_000, metadata={"key": "minLiteTTl"})
    # --- transactions
    transaction_time_out: int = 6000
    transaction_check_max: int = 15
    transaction_check_interval: int = 30_000
    transaction_op_msg_max_size: int = 4096
    transaction_op_batch_interval: int = 100
    # --- standing in for a master
    enable_slave_acting_master: bool = False
    enable_remote_escape: bool = False
    skip_pre_online: bool = False
    broker_heartbeat_interval: int = 1000
    broker_not_active_timeout_millis: int = 10_000
    sync_broker_member_group_period: int = 1000
    # --- metrics
    metrics_exporter_type: str = "DISABLE"
    metrics_prom_exporter_port: int = DEFAULT_PORT
    metrics_prom_exporter_host: str = "127.0.0.1"
    metrics_grpc_exporter_target: str = ""
    metrics_grpc_exporter_header: str = ""
    metric_grpc_exporter_time_out_in_mills: int = 3000
    metric_grpc_exporter_interval_in_mills: int = 60_000
    metrics_label: str = ""
    metrics_in_delta: bool = False
    metrics_otel_cardinality_limit: int = LIMIT
    enable_stats_metrics: bool = True
    enable_request_metrics: bool = True
    enable_connection_metrics: bool = True
    enable_lag_and_dlq_metrics: bool = True
    enable_transaction_metrics: bool = True
    enable_remoting_metrics: bool = True
    enable_message_store_metrics: bool = True
    # --- gRPC
    grpc_server_port: int = 0  # 0: none; RocketMQ has it in its proxy's settings, 8081 there
    # --- ContrailMQ's own
    allow_remote_config: str = ""  # keys of PROTECTED_KEYS that may be changed over the network; * for all
    allow_unsupported: bool = False  # start with settings that promise what is not there: `wire/promises.py`
    client_topics_max: int = DEFAULT_MAX  # clients may not create more, see `client_bound`
    client_groups_max: int = DEFAULT_MAX
    ha_tls: bool = False  # TLS on the HA port, between brokers of ours
    ha_allow_list: str = ""  # addresses and networks that may follow the log beside registered slaves
    resync: bool = False  # a slave cuts off at its start what its master does not have
    takeover: bool = False  # replace a live broker of the same name and id at another address
    server_channel_max_idle_time_seconds: int = 120
    held_pulls_max: int = 100_000
    unsent_bytes_max: int = 64 * 1024 * 1024  # a client that does not read its answers is cut off beyond this
    pull_bytes_max: int = 4 * 1024 * 1024  # of one answer, also to a client that asks for more with maxTransferBytes
    pull_count_max: int = 4096
    graceful_stop_ms: int = 5000

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> tuple[BrokerConfig, list[str]]:
        """The configuration and the warnings about keys that nobody knows or that have no effect.

        Raises BrokerConfigError for bad values, UnsupportedError for keys that promise what is not there.
        """
        config = cls()
        known = keys()
        store_keys = StoreConfig.known_keys()
        said = [broken_promises(properties, PROMISES), named_in_one_line(properties)]
        for key, text in properties.items():
            if key in known:
                config._set(known[key], text)
            elif key not in store_keys and key not in TLS_KEYS and not why_without_effect(key):
                said.append(_unknown(key, [*known, *store_keys, *TLS_KEYS, *(promise.key for promise in PROMISES)]))
        config.check()
        return config, [warning for warning in said if warning]

    def update(self, properties: Mapping[str, str]) -> None:
        """Change settings at run time: all of them, or none when one is bad."""
        known = keys()
        fresh = dataclasses.replace(self)
        for key, text in properties.items():
            if key not in known:
                reason = why_without_effect(key)
                raise BrokerConfigError(key, text, f"has no effect here: {reason}" if reason else _unknown(key, known))
            if key in FIXED_KEYS:
                raise BrokerConfigError(key, text, "cannot be changed while the broker runs: edit the file and restart")
            fresh._set(known[key], text)
        fresh.check()
        for spec in dataclasses.fields(self):
            setattr(self, spec.name, getattr(fresh, spec.name))

    @staticmethod
    def split(properties: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
        """The broker's own settings, and those of its store."""
        store_keys = StoreConfig.known_keys() - keys().keys()
        theirs = {key: text for key, text in properties.items() if key in store_keys}
        return {key: text for key, text in properties.items() if key not in theirs}, theirs

    def to_properties(self) -> dict[str, str]:
        """Every key with its effective value, in RocketMQ's spelling and order."""
        return {key: _text(getattr(self, name)) for key, name in sorted(keys().items())}

    def check(self) -> None:
        for spec in dataclasses.fields(self):
            name, value = spec.name, getattr(self, spec.name)
            low, high, meaning = _RANGES.get(name, _NOT_NEGATIVE)
            if isinstance(value, int) and not low <= value <= high:
                raise BrokerConfigError(_key(name), value, f"{low} to {high}{meaning}")
        for key, name in (("brokerName", self.broker_name), ("brokerClusterName", self.broker_cluster_name)):
            try:
                check_group(name.replace(".", "_"))
            except MessageError as exc:
                raise BrokerConfigError(key, name, str(exc)) from None
        if self.default_message_request_mode not in ("PULL", "POP"):
            raise BrokerConfigError("defaultMessageRequestMode", self.default_message_request_mode, "PULL or POP")
        self._check_addresses()
        try:
            self.ha_allowed_networks  # noqa: B018
        except ValueError as exc:
            remedy = f"addresses or networks joined by ',', such as 10.0.0.7,10.1.0.0/16: {exc}"
            raise BrokerConfigError("haAllowList", self.ha_allow_list, remedy) from None
        try:
            self.export_settings()
        except MetricsSettingError as exc:
            raise BrokerConfigError(exc.key, exc.value, exc.remedy) from None

    def _check_addresses(self) -> None:
        for address in self.namesrv_addresses:
            try:
                check_dialled(address)
            except ValueError as exc:
                remedy = f"host:port, several joined by ';'; {address} is none: {exc}"
                raise BrokerConfigError("namesrvAddr", self.namesrv_addr, remedy) from None
        if self.broker_ip1 and not is_ip(without_brackets(self.broker_ip1)):
            remedy = "an IP address without a port: no name, as it goes into records and message ids"
            raise BrokerConfigError("brokerIP1", self.broker_ip1, remedy)
        for name in ("broker_ip2", "bind_address", "metrics_prom_exporter_host"):
            host = getattr(self, name)
            try:
                if host:
                    check_host_form(without_brackets(host) if name == "broker_ip2" else host)
            except ValueError as exc:
                raise BrokerConfigError(_key(name), host, f"an IP address or a name, without a port: {exc}") from None
        if self.bind_address and not self.broker_ip1 and not is_ip(self.bind_address):
            remedy = "clients cannot be given a name: set brokerIP1, too, to the IP address that they reach"
            raise BrokerConfigError("bindAddress", self.bind_address, remedy)

    def export_settings(self, own_ip: str = "") -> ExportSettings:
        """How metrics are exported; MetricsSettingError says what cannot be. `own_ip` is where clients find it."""
        kind = exporter_kind(self.metrics_exporter_type)
        is_otlp = kind is ExporterKind.OTLP_GRPC
        return ExportSettings(
            kind=kind,
            host=self.metrics_prom_exporter_host or self.broker_ip1 or own_ip,
            port=self.metrics_prom_exporter_port,
            target=otlp_target(self.metrics_grpc_exporter_target) if is_otlp else "",
            headers=pairs("metricsGrpcExporterHeader", self.metrics_grpc_exporter_header),
            timeout_ms=self.metric_grpc_exporter_time_out_in_mills,
            interval_ms=self.metric_grpc_exporter_interval_in_mills,
            labels=label_pairs(self.metrics_label),
            is_delta=self.metrics_in_delta,
            limit=self.metrics_otel_cardinality_limit,
        )

    @property
    def namesrv_addresses(self) -> list[str]:
        return [part.strip() for part in self.namesrv_addr.replace(",", ";").split(";") if part.strip()]

    @property
    def ha_allowed_networks(self) -> list[Network]:
        """Of haAllowList; ValueError when one is none."""
        texts = self.ha_allow_list.replace(";", ",").split(",")
        return [ipaddress.ip_network(text.strip()) for text in texts if text.strip()]

    @property
    def is_writable(self) -> bool:
        return bool(self.broker_permission & 2)

    @property
    def is_readable(self) -> bool:
        return bool(self.broker_permission & 4)

    def _set(self, name: str, text: str) -> None:
        current = getattr(self, name)
        key = _key(name)
        if isinstance(current, bool):
            if text.lower() not in ("true", "false"):
                raise BrokerConfigError(key, text, "true or false")
            setattr(self, name, text.lower() == "true")
        elif isinstance(current, int):
            try:
                setattr(self, name, int(text))
            except ValueError:
                raise BrokerConfigError(key, text, "a whole number is needed") from None
        else:
            setattr(self, name, text)


_INT_MAX: Final = 2**31 - 1
_DAY_MS: Final = 24 * 3_600_000
MIB: Final = 1024 * 1024
_NOT_NEGATIVE: Final = (0, 2**63 - 1, "")  # numbers that are not named
# field -> (lowest, highest, what else to say). A pause of nothing would be a loop without one.
_RANGES: Final[Mapping[str, tuple[int, int, str]]] = {
    "listen_port": (0, 65_535, "; 0 takes a free port"),
    "broker_id": (0, 2**63 - 1, "; 0 for a master, above 0 for a slave"),
    "broker_permission": (0, 7, "; 2 write, 4 read"),
    "default_topic_queue_nums": (1, 65_536, ""),
    "register_name_server_period": (1, _DAY_MS, " ms"),
    "register_broker_timeout_mills": (1, _DAY_MS, " ms"),
    "short_polling_time_mills": (0, _DAY_MS, " ms"),
    "channel_expired_timeout": (1000, _DAY_MS, " ms"),
    "flush_consumer_offset_interval": (10, _DAY_MS, " ms"),
    "lite_subscription_check_interval": (10, _DAY_MS, " ms"),
    "lite_subscription_check_timeout_mills": (1000, _DAY_MS, " ms"),
    "lite_ttl_check_interval": (10, _DAY_MS, " ms"),
    "min_lite_ttl": (0, _DAY_MS, " ms"),
    "transaction_time_out": (0, _INT_MAX, " ms"),
    "transaction_check_max": (0, _INT_MAX, ""),
    "transaction_check_interval": (1, _INT_MAX, " ms"),
    "transaction_op_msg_max_size": (1, MIB, " bytes"),
    "transaction_op_batch_interval": (1, _DAY_MS, " ms"),
    "broker_heartbeat_interval": (10, _DAY_MS, " ms"),
    "broker_not_active_timeout_millis": (100, _DAY_MS, " ms"),
    "sync_broker_member_group_period": (10, _DAY_MS, " ms"),
    "revive_queue_num": (1, 998, "; 999 marks FIFO pops"),
    "pop_from_retry_probability": (0, 100, " of 100 pops"),
    "pop_from_retry_probability_for_priority": (0, 100, " of 100 pops"),
    "pop_ck_max_buffer_size": (1, 100_000_000, ""),
    "pop_ck_offset_max_queue_size": (1, 100_000_000, ""),
    "default_pop_share_queue_num": (-1, 65_536, "; -1 and 0: every client pops all queues"),
    "server_channel_max_idle_time_seconds": (1, _INT_MAX, " s"),
    "client_topics_max": (0, 100_000_000, ""),
    "client_groups_max": (0, 100_000_000, ""),
    "held_pulls_max": (0, 100_000_000, ""),
    "grpc_server_port": (0, 65_535, "; 0: no gRPC"),
    "metrics_prom_exporter_port": (0, 65_535, "; 0 takes a free port"),
    "metric_grpc_exporter_time_out_in_mills": (1, _DAY_MS, " ms"),
    "metric_grpc_exporter_interval_in_mills": (10, _DAY_MS, " ms"),
    "metrics_otel_cardinality_limit": (1, 1_000_000, " series of one instrument"),
    "unsent_bytes_max": (MIB, 2**40, " bytes"),
    "pull_bytes_max": (1, 12 * MIB, " bytes; an answer must fit in a frame of 16 MiB"),
    "pull_count_max": (1, _INT_MAX, ""),
    "graceful_stop_ms": (0, _DAY_MS, " ms"),
}

# What clients, files or peers rely on from the start on.
FIXED_KEYS: Final = frozenset(
    (
        "brokerName",
        "brokerClusterName",
        "brokerId",
        "brokerIP1",
        "brokerIP2",
        "listenPort",
        "bindAddress",
        "enableFastListenPort",
        "unsentBytesMax",
        "serverChannelMaxIdleTimeSeconds",
        "allowRemoteConfig",
        "allowUnsupported",
        "configBlackList",
        "reviveQueueNum",
        "enableSlaveActingMaster",
        "grpcServerPort",
        "haTls",
        "metricsExporterType",
        "metricsPromExporterPort",
        "metricsPromExporterHost",
        "metricsGrpcExporterTarget",
        "metricsGrpcExporterHeader",
        "metricGrpcExporterTimeOutInMills",
        "metricGrpcExporterIntervalInMills",
        "metricsLabel",
        "metricsInDelta",
        "metricsOtelCardinalityLimit",
        "resync",
        "takeover",
    )
)

# Where data goes and how long it stays, how soon it is durable, where brokers are found, who may do what.
PROTECTED_KEYS: Final = frozenset(
    """
    autoCreateSubscriptionGroup autoCreateTopicEnable brokerPermission clientGroupsMax clientTopicsMax haAllowList
    namesrvAddr
    rejectTransactionMessage
    cleanFileForciblyEnable cleanResourceInterval deleteFileBatchMax deleteWhen destroyMapedFileIntervalForcibly
    diskMaxUsedSpaceRatio diskSpaceCleanForciblyRatio diskSpaceWarningLevelRatio fileReservedTime
    redeleteHangedFileInterval
    commitCommitLogLeastPages commitCommitLogThoroughInterval flushCommitLogLeastPages flushCommitLogThoroughInterval
    flushConsumeQueueThoroughInterval
    """.split()  # noqa: SIM905 - as the guide lists them
)


def keys() -> dict[str, str]:
    """RocketMQ's key -> our field."""
    return {_key(spec.name): spec.name for spec in dataclasses.fields(BrokerConfig)}


def environment_keys() -> set[str]:
    """Keys that the environment may set: those that count here, and those that must not be ignored."""
    return {*keys(), *StoreConfig.known_keys(), *TLS_KEYS, *(promise.key for promise in PROMISES)}


def store_properties(config: StoreConfig) -> dict[str, str]:
    """The store's half, in RocketMQ's spelling."""
    values = {rocketmq_key(spec.name): _text(getattr(config, spec.name)) for spec in dataclasses.fields(config)}
    return values | {"storePathRootDir": str(config.path)}


def _key(name: str) -> str:
    odd = BrokerConfig.__dataclass_fields__[name].metadata.get("key")
    if odd:
        return str(odd)
    if name.startswith("broker_ip"):
        return "brokerIP" + name[-1]
    return re.sub(r"_([a-z0-9])", lambda match: match.group(1).upper(), name)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _unknown(key: str, known: Mapping[str, object] | list[str]) -> str:
    near = difflib.get_close_matches(key, list(known), 1)
    return f"setting {key} is not known" + (f": did you mean {near[0]}?" if near else " and has no effect")


def read_configs(
    properties: Mapping[str, str], *, path: str | Path | None = None, **store_settings: object
) -> tuple[BrokerConfig, StoreConfig, list[str]]:
    """Both halves of a broker.conf, and warnings about keys that nobody knows.

    `path` wins over storePathRootDir; `store_settings` are defaults for what the file does not say.
    """
    config, warnings = BrokerConfig.from_properties(properties)
    defaults = dict(store_settings)
    if config.listen_port:
        defaults.setdefault("ha_listen_port", config.listen_port + 1)
    known = {rocketmq_key(name): name for name in defaults}
    unsaid = {name: defaults[name] for key, name in known.items() if key not in properties}
    store_config = StoreConfig.from_properties(properties, path=path, **unsaid)
    return config, store_config.with_unused_keys(()), warnings  # which have named them
