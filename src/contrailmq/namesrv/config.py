"""Settings of a NameServer: RocketMQ's keys in snake case, with RocketMQ's defaults.

Keys that size Java's thread pools and buffers are known and shown but have no effect, so files written for Apache's
NameServer work; a start names such keys in one line. Keys for missing features refuse the start.

Every number has a range, checked wherever it comes from: a file, a flag, the environment, UPDATE_NAMESRV_CONFIG. What
says where files lie and which port is listened on is never changed while the server runs, whatever the black list says.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from contrailmq.metrics.settings import (
    DEFAULT_PORT,
    ExporterKind,
    ExportSettings,
    MetricsSettingError,
    exporter_kind,
    label_pairs,
    otlp_target,
    pairs,
)
from contrailmq.wire.promises import Promise, broken_promises, is_not_off
from contrailmq.wire.properties import Settings, SettingsError
from contrailmq.wire.tls import KEYS as TLS_KEYS

__all__ = ["NamesrvConfig"]

_INT_MAX: Final = 2**31 - 1  # Java's int
_DAY_SECONDS: Final = 86_400
_RANGES: Final = {  # other numbers: 0 to Java's largest int
    "listenPort": (0, 65_535),
    "metricsPromExporterPort": (0, 65_535),
    "metricGrpcExporterTimeOutInMills": (1, _INT_MAX),
    "metricGrpcExporterIntervalInMills": (10, _INT_MAX),
    "scanNotActiveBrokerInterval": (10, _INT_MAX),  # ms
    "serverChannelMaxIdleTimeSeconds": (1, _DAY_SECONDS),
    "shutdownWaitTimeSeconds": (0, 3_600),
    "waitSecondsForService": (0, _DAY_SECONDS),
}
_FIXED_KEYS: Final = frozenset(
    {
        "allowRemoteConfig",
        "allowUnsupported",
        "bindAddress",
        "configBlackList",
        "configStorePath",
        "enableControllerInNamesrv",
        "kvConfigPath",
        "listenPort",
        "metricGrpcExporterIntervalInMills",
        "metricGrpcExporterTimeOutInMills",
        "metricsExporterType",
        "metricsGrpcExporterHeader",
        "metricsGrpcExporterTarget",
        "metricsInDelta",
        "metricsLabel",
        "metricsPromExporterHost",
        "metricsPromExporterPort",
        "rocketmqHome",
    }
)
# What hides topics, or removes them.
PROTECTED_KEYS: Final = frozenset({"deleteTopicWithBrokerRegistration", "enableAllTopicList", "enableTopicList"})
PROMISES: Final = (
    Promise("enableControllerInNamesrv", is_not_off, "no controller elects masters yet"),
    *(
        Promise(key, is_not_off, "access control is not built yet: every client may do everything")
        for key in ("aclEnable", "authenticationEnabled", "authorizationEnabled")
    ),
)
# Keys that size Java's thread pools and buffers, and names that nobody reads.
_UNREAD: Final = """
    clientRequestThreadPoolNums clientRequestThreadPoolQueueCapacity clusterTest defaultThreadPoolNums
    defaultThreadPoolQueueCapacity enableShutdownGracefully productEnvName serverAsyncSemaphoreValue
    serverCallbackExecutorThreads serverNettyWorkerGroupEnable serverOnewaySemaphoreValue
    serverPooledByteBufAllocatorEnable serverSelectorThreads serverSocketBacklog serverSocketRcvBufSize
    serverSocketSndBufSize serverWorkerThreads unRegisterBrokerQueueCapacity useEpollNativeSelector
    writeBufferHighWaterMark writeBufferLowWaterMark
"""
WITHOUT_EFFECT: Final = frozenset(_UNREAD.split())


@dataclass(frozen=True, kw_only=True)
class NamesrvConfig(Settings):
    """See the module; `home` rules where files lie unless their paths are given."""

    bind_address: str = "0.0.0.0"
    listen_port: int = 9876
    rocketmq_home: str = ""  # absent: the user's home directory
    kv_config_path: str = ""  # absent: <home>/namesrv/kvConfig.json
    config_store_path: str = ""  # absent: <home>/namesrv/namesrv.properties
    config_black_list: str = "configBlackList;configStorePath;kvConfigPath"
    scan_not_active_broker_interval: int = 5000
    server_channel_max_idle_time_seconds: int = 120
    shutdown_wait_time_seconds: int = 30
    return_order_topic_config_to_broker: bool = True
    order_message_enable: bool = False
    support_acting_master: bool = False
    notify_min_broker_id_changed: bool = False
    enable_all_topic_list: bool = True
    enable_topic_list: bool = True
    need_wait_for_service: bool = False
    wait_seconds_for_service: int = 45
    delete_topic_with_broker_registration: bool = False
    enable_controller_in_namesrv: bool = False  # promises a controller: see PROMISES
    # ContrailMQ's own, with the names that RocketMQ's brokers have: its NameServers export nothing
    metrics_exporter_type: str = "DISABLE"
    metrics_prom_exporter_port: int = DEFAULT_PORT
    metrics_prom_exporter_host: str = "127.0.0.1"
    metrics_grpc_exporter_target: str = ""
    metrics_grpc_exporter_header: str = ""
    metric_grpc_exporter_time_out_in_mills: int = 3000
    metric_grpc_exporter_interval_in_mills: int = 60_000
    metrics_label: str = ""
    metrics_in_delta: bool = False
    allow_remote_config: str = ""  # ContrailMQ's own: see `wire/promises.py`
    allow_unsupported: bool = False  # ContrailMQ's own: see `wire/promises.py`

    # known and without effect: WITHOUT_EFFECT
    client_request_thread_pool_nums: int = 8
    client_request_thread_pool_queue_capacity: int = 50000
    cluster_test: bool = False
    default_thread_pool_nums: int = 16
    default_thread_pool_queue_capacity: int = 10000
    enable_shutdown_gracefully: bool = False
    product_env_name: str = "center"
    server_async_semaphore_value: int = 64
    server_callback_executor_threads: int = 0
    server_netty_worker_group_enable: bool = True
    server_oneway_semaphore_value: int = 256
    server_pooled_byte_buf_allocator_enable: bool = True
    server_selector_threads: int = 3
    server_socket_backlog: int = 1024
    server_socket_rcv_buf_size: int = 0
    server_socket_snd_buf_size: int = 0
    server_worker_threads: int = 8
    un_register_broker_queue_capacity: int = 3000
    use_epoll_native_selector: bool = False
    write_buffer_high_water_mark: int = 0
    write_buffer_low_water_mark: int = 0

    def __post_init__(self) -> None:
        for key, name in self.keys().items():
            value = getattr(self, name)
            if isinstance(value, int) and not isinstance(value, bool):
                least, most = _RANGES.get(key, (0, _INT_MAX))
                if not least <= value <= most:
                    shown = str(value) if abs(value) < 10**20 else f"a number of {value.bit_length()} bits"
                    raise SettingsError(f"setting {key} is {shown}: it takes {least} to {most}")
        try:
            self.export_settings()
        except MetricsSettingError as exc:
            raise SettingsError(f"setting {exc}") from None

    def export_settings(self) -> ExportSettings:
        """How metrics are exported; MetricsSettingError says what cannot be."""
        kind = exporter_kind(self.metrics_exporter_type)
        return ExportSettings(
            kind=kind,
            host=self.metrics_prom_exporter_host or self.bind_address,
            port=self.metrics_prom_exporter_port,
            target=otlp_target(self.metrics_grpc_exporter_target) if kind is ExporterKind.OTLP_GRPC else "",
            headers=pairs("metricsGrpcExporterHeader", self.metrics_grpc_exporter_header),
            timeout_ms=self.metric_grpc_exporter_time_out_in_mills,
            interval_ms=self.metric_grpc_exporter_interval_in_mills,
            labels=label_pairs(self.metrics_label),
            is_delta=self.metrics_in_delta,
        )

    @classmethod
    def from_properties(cls, properties: Mapping[str, str]) -> tuple[NamesrvConfig, list[str]]:
        """As `Settings` has it. UnsupportedError for keys that promise what is not there."""
        promised = {promise.key for promise in PROMISES} - cls.keys().keys()
        unused = sorted(WITHOUT_EFFECT & properties.keys())
        said = [
            broken_promises(properties, PROMISES),
            f"settings of RocketMQ's without effect here: {', '.join(unused)}" if unused else "",
        ]
        config, unknown = super().from_properties({k: v for k, v in properties.items() if k not in promised})
        return config, [warning for warning in (*said, *unknown) if warning]

    @classmethod
    def environment_keys(cls) -> set[str]:
        """Keys that the environment may set: those that count here, and those that must not be ignored."""
        return {*cls.keys(), *TLS_KEYS, *(promise.key for promise in PROMISES)}

    @property
    def home(self) -> Path:
        return Path(self.rocketmq_home or os.environ.get("ROCKETMQ_HOME") or Path.home())

    @property
    def kv_config_file(self) -> Path:
        return Path(self.kv_config_path) if self.kv_config_path else self.home / "namesrv" / "kvConfig.json"

    @property
    def config_file(self) -> Path:
        return Path(self.config_store_path) if self.config_store_path else self.home / "namesrv" / "namesrv.properties"

    @property
    def blocked_keys(self) -> frozenset[str]:
        """Keys that UPDATE_NAMESRV_CONFIG must not change."""
        return _FIXED_KEYS | {key.strip() for key in self.config_black_list.split(";") if key.strip()}
