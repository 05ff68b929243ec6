"""Settings of the clients: names, defaults, ranges.

Each client takes its settings as keyword arguments; the TypedDicts give them to the type checker and the frozen
dataclasses hold them with defaults and refuse values outside their range. Defaults are RocketMQ 5.x's, in seconds and
bytes where Java has milliseconds and mebibytes. Times that users think of as one number end in `_s`.
"""

from __future__ import annotations

import os
import ssl
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypedDict

from contrailmq.client.errors import ClientConfigError
from contrailmq.client.fault_tolerance import LADDER_5X, LatencyLadder
from contrailmq.client.hooks import ClientHooks
from contrailmq.client.offset_store import local_offset_directory
from contrailmq.client.rebalance import AllocationStrategy, AverageStrategy
from contrailmq.client.results import ConsumeFromWhere, MessageModel
from contrailmq.message import BODY_BYTES_MAX, Compression, MessageQueue, create_unique_id, parse_unique_id
from contrailmq.wire.acl import AclCredentials
from contrailmq.wire.frame import FRAME_BYTES_MAX
from contrailmq.wire.properties import environment_settings
from contrailmq.wire.tls import KEYS as TLS_KEYS
from contrailmq.wire.tls import client_tls

DEFAULT_INSTANCE: Final = "DEFAULT"


class ClientSettings(TypedDict, total=False):
    """What every client takes."""

    namespace: str
    credentials: AclCredentials | None
    tls: ssl.SSLContext | bool | None
    tls_server_name: str | None
    instance_name: str
    client_ip: str
    unit_name: str
    request_timeout_s: float
    poll_namesrv_interval_s: float
    heartbeat_interval_s: float
    hooks: ClientHooks | None
    trace: bool
    trace_topic: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    """The settings that every client has.

    `tls` is an `ssl.SSLContext` (with CA, client certificate and so on), or True for the system's CAs; None asks the
    environment (CONTRAILMQ_TLS_ENABLE, CONTRAILMQ_TLS_CLIENT_TRUST_CERT_PATH and so on), False is plain. `credentials`
    sign every request (RocketMQ's ACL). Clients with the same `instance_name` in one loop share connections, routes
    and heartbeats; without one each has its own.
    """

    namesrv: str | None = None
    namespace: str = ""
    credentials: AclCredentials | None = None
    tls: ssl.SSLContext | bool | None = None
    tls_server_name: str | None = None
    instance_name: str = ""
    client_ip: str = ""
    unit_name: str = ""
    request_timeout_s: float = 3.0
    poll_namesrv_interval_s: float = 30.0
    heartbeat_interval_s: float = 30.0
    hooks: ClientHooks | None = None
    trace: bool = False
    trace_topic: str | None = None

    def __post_init__(self) -> None:
        for name in ("request_timeout_s", "poll_namesrv_interval_s", "heartbeat_interval_s"):
            check_range(name, getattr(self, name), 0.001, 86_400)

    def client_id(self, *, keep_default_name: bool = False) -> str:
        """`ip@instance`: unique for each client unless a name is given or wanted (broadcasting keeps its own)."""
        address = self.client_ip or parse_unique_id(create_unique_id()).ip
        name = self.instance_name
        if not name:
            name = DEFAULT_INSTANCE if keep_default_name else f"{os.getpid()}#{time.monotonic_ns()}"
        return f"{address}@{name}@{self.unit_name}" if self.unit_name else f"{address}@{name}"

    def ssl_context(self) -> ssl.SSLContext | None:
        if self.tls is True:
            return ssl.create_default_context()
        if self.tls is None:
            return client_tls(environment_settings(os.environ, TLS_KEYS))
        return self.tls or None


class ProducerSettings(ClientSettings, total=False):
    """Further settings of a producer."""

    send_timeout_s: float
    retry_times: int
    retry_another_broker_when_not_store_ok: bool
    max_message_bytes: int
    compress_over_bytes: int
    compression: Compression
    compress_level: int
    default_topic: str
    default_topic_queues: int
    send_latency_fault_enable: bool
    latency_ladder: LatencyLadder
    in_flight_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions(ClientOptions):
    """A producer's settings.

    `retry_times` counts tries after the first, all within `send_timeout_s`. `in_flight_max` bounds sends that wait for
    an answer: more callers wait their turn.
    """

    send_timeout_s: float = 3.0
    retry_times: int = 2
    retry_another_broker_when_not_store_ok: bool = False
    max_message_bytes: int = BODY_BYTES_MAX
    compress_over_bytes: int = 4096
    compression: Compression = Compression.ZLIB
    compress_level: int = 5
    default_topic: str = "TBW102"
    default_topic_queues: int = 4
    send_latency_fault_enable: bool = False
    latency_ladder: LatencyLadder = LADDER_5X
    in_flight_max: int = 65_535  # the permits of Java's transport

    def __post_init__(self) -> None:
        ClientOptions.__post_init__(self)
        check_range("send_timeout_s", self.send_timeout_s, 0.001, 3600)
        check_range("retry_times", self.retry_times, 0, 1000)
        check_range("compress_level", self.compress_level, 0, 22)
        check_range("default_topic_queues", self.default_topic_queues, 1, 65_535)
        check_range("in_flight_max", self.in_flight_max, 1, 65_535)
        check_range("max_message_bytes", self.max_message_bytes, 1, FRAME_BYTES_MAX)
        check_range("compress_over_bytes", self.compress_over_bytes, 0, 2**63 - 1)


class ConsumerSettings(ClientSettings, total=False):
    """Further settings of both kinds of consumer."""

    from_where: ConsumeFromWhere
    consume_timestamp_ms: int | None
    model: MessageModel
    strategy: AllocationStrategy
    rebalance_interval_s: float
    persist_offsets_interval_s: float
    pull_threshold_count: int
    pull_threshold_bytes: int
    max_span: int
    pull_batch_size: int
    pull_batch_bytes: int
    pull_retry_delay_s: float
    local_offset_dir: str | Path | None
    on_queues_changed: Callable[[str, list[MessageQueue], list[MessageQueue]], None] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions(ClientOptions):
    """What both kinds of consumer have. `on_queues_changed(topic, all_queues, own_queues)` sees each rebalance."""

    from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    consume_timestamp_ms: int | None = None  # None: half an hour before the start
    model: MessageModel = MessageModel.CLUSTERING
    strategy: AllocationStrategy = field(default_factory=AverageStrategy)
    rebalance_interval_s: float = 20.0
    persist_offsets_interval_s: float = 5.0
    pull_threshold_count: int = 1000
    pull_threshold_bytes: int = 100 * 1024 * 1024
    max_span: int = 2000
    pull_batch_size: int = 32
    pull_batch_bytes: int = 256 * 1024
    pull_retry_delay_s: float = 1.0
    local_offset_dir: str | Path | None = None
    on_queues_changed: Callable[[str, list[MessageQueue], list[MessageQueue]], None] | None = None

    def __post_init__(self) -> None:
        ClientOptions.__post_init__(self)
        for name in ("rebalance_interval_s", "persist_offsets_interval_s", "pull_retry_delay_s"):
            check_range(name, getattr(self, name), 0.001, 86_400)
        if self.consume_timestamp_ms is not None:
            check_range("consume_timestamp_ms", self.consume_timestamp_ms, 0, 2**63 - 1)
        check_range("pull_threshold_count", self.pull_threshold_count, 1, 65_535)
        check_range("pull_threshold_bytes", self.pull_threshold_bytes, 1, 1024**3)
        check_range("max_span", self.max_span, 1, 65_535)
        check_range("pull_batch_size", self.pull_batch_size, 1, 1024)
        check_range("pull_batch_bytes", self.pull_batch_bytes, 1, 16 * 1024 * 1024)

    @property
    def offset_directory(self) -> Path:
        return Path(self.local_offset_dir) if self.local_offset_dir is not None else local_offset_directory()


class PushConsumerSettings(ConsumerSettings, total=False):
    """Further settings of a push consumer."""

    orderly: bool
    max_reconsume_times: int
    consume_threads: int
    consume_batch_size: int
    consume_timeout_s: float
    suspend_s: float
    auto_commit: bool
    shutdown_wait_s: float
    pop: bool
    invisible_duration_s: float
    pop_threshold: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PushConsumerOptions(ConsumerOptions):
    """A push consumer's settings.

    `max_reconsume_times` -1 means RocketMQ's own: 16 for concurrent listeners, no limit for orderly ones.
    `shutdown_wait_s` is how long shutdown waits for listeners that run (Java does not wait at all).

    With `pop` messages are popped: any member of the group gets any message, for `invisible_duration_s`, which is
    renewed while a listener has it, for `consume_timeout_s` at most. `pop_threshold` is how many messages of a topic
    and broker a member holds.
    """

    orderly: bool = False
    max_reconsume_times: int = 16
    consume_threads: int = 20
    consume_batch_size: int = 1
    consume_timeout_s: float = 15 * 60.0
    suspend_s: float = 1.0
    auto_commit: bool = True
    shutdown_wait_s: float = 30.0
    pop: bool = False
    invisible_duration_s: float = 60.0
    pop_threshold: int = 96

    def __post_init__(self) -> None:
        ConsumerOptions.__post_init__(self)
        check_range("consume_threads", self.consume_threads, 1, 1000)
        check_range("consume_batch_size", self.consume_batch_size, 1, 1024)
        check_range("max_reconsume_times", self.max_reconsume_times, -1, 2**31 - 1)
        check_range("suspend_s", self.suspend_s, 0.01, 30)
        check_range("consume_timeout_s", self.consume_timeout_s, 0.001, 365 * 86_400)
        check_range("shutdown_wait_s", self.shutdown_wait_s, 0, 86_400)
        check_range("invisible_duration_s", self.invisible_duration_s, 0.1, 12 * 3600)
        check_range("pop_threshold", self.pop_threshold, 1, 65_535)
        if self.pop:
            self._check_pop()

    def _check_pop(self) -> None:
        if self.model is MessageModel.BROADCASTING:
            raise ClientConfigError("pop and BROADCASTING exclude each other: a popped message is with one member")
        if not self.auto_commit:
            raise ClientConfigError(
                "pop and auto_commit=False exclude each other: messages are acknowledged one by one"
            )
        if self.from_where is ConsumeFromWhere.TIMESTAMP:
            raise ClientConfigError("POP begins at the first or the last offset: TIMESTAMP is for consumers of queues")


class LitePullConsumerSettings(ConsumerSettings, total=False):
    """Further settings of a lite pull consumer."""

    auto_commit: bool
    auto_commit_interval_s: float
    pull_threshold_all: int
    topic_metadata_interval_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LitePullConsumerOptions(ConsumerOptions):
    """A lite pull consumer's settings."""

    auto_commit: bool = True
    auto_commit_interval_s: float = 5.0
    pull_threshold_all: int = 10_000
    topic_metadata_interval_s: float = 30.0

    def __post_init__(self) -> None:
        ConsumerOptions.__post_init__(self)
        check_range("auto_commit_interval_s", self.auto_commit_interval_s, 1.0, 86_400)
        check_range("topic_metadata_interval_s", self.topic_metadata_interval_s, 0.001, 86_400)
        check_range("pull_threshold_all", self.pull_threshold_all, 1, 6_553_500)


class SimpleConsumerSettings(ClientSettings, total=False):
    """Further settings of a simple consumer."""

    from_where: ConsumeFromWhere
    orderly: bool
    max_reconsume_times: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SimpleConsumerOptions(ClientOptions):
    """A simple consumer's settings.

    With `orderly` a queue gives its next messages when those before are acknowledged. A message that came again more
    than `max_reconsume_times` times becomes a dead letter; -1 leaves that to the broker.
    """

    from_where: ConsumeFromWhere = ConsumeFromWhere.LAST_OFFSET
    orderly: bool = False
    max_reconsume_times: int = 16

    def __post_init__(self) -> None:
        ClientOptions.__post_init__(self)
        check_range("max_reconsume_times", self.max_reconsume_times, -1, 2**31 - 1)
        if self.from_where is ConsumeFromWhere.TIMESTAMP:
            raise ClientConfigError("POP begins at the first or the last offset: TIMESTAMP is for consumers of queues")


def check_range(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise ClientConfigError(f"{name} is {value}: it must be from {low} to {high}")
