"""Where the figures of a broker's instruments come from: state that is counted anyway.

`BrokerFigures.table()` is the one list of instruments and sources, for the Prometheus page and for OTLP. Everything
runs on the loop. A source is a generator over a copy of what it looks at (see `Measured`). Nothing here is called
while messages are sent or pulled: what they cost is a few additions in state/statistics.py and state/latencies.py.
"""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from typing import Final

from contrailmq._version import __version__
from contrailmq.broker.config import keys
from contrailmq.broker.delayed.delay import DelayService
from contrailmq.broker.delayed.timers import TimerService
from contrailmq.broker.handlers import UNKNOWN, Handlers
from contrailmq.broker.metrics import instruments as our
from contrailmq.broker.metrics.lag import Behind, LagSurvey
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.state.connections import CONSUME_TYPES
from contrailmq.broker.state.duty import Duty
from contrailmq.broker.state.latencies import BOUNDS_MS, ONEWAY, LatencyKey
from contrailmq.broker.state.statistics import KINDS, Spread
from contrailmq.broker.transactions.halves import TransactionService
from contrailmq.message import RETRY_PREFIX, is_system_group, is_system_topic
from contrailmq.metrics import Distribution, Instrument, Measured, Series
from contrailmq.metrics.process import cpu_s, open_descriptors, resident_bytes
from contrailmq.store import Durations, SlaveStatus
from contrailmq.wire.codes import RequestCode, ResponseCode, version_name
from contrailmq.wire.peer_warnings import peer_warnings

_DISK: Final = ("local", "disk")
_MODES: Final = dict(zip(CONSUME_TYPES, ("pull", "push", "pop"), strict=True))
_REQUESTS: Final = {code.value: code.name.lower() for code in RequestCode} | {UNKNOWN: "unknown"}
_RESPONSES: Final = {code.value: code.name.lower() for code in ResponseCode}
# RocketMQ's processors, each with a queue of requests. There is one loop here: most have none.
PROCESSORS: Final = (
    "send", "async_put", "pull", "ack", "query_message", "client_manager", "heartbeat", "lite_pull", "transaction",
    "consumer_manager", "admin", "reply",
)  # fmt: skip
_TOPIC_CREATION: Final = (RequestCode.UPDATE_AND_CREATE_TOPIC, RequestCode.UPDATE_AND_CREATE_TOPIC_LIST)
_GROUP_CREATION: Final = (
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
)  # fmt: skip


class BrokerFigures:
    """Owner: BrokerServer, which fills in what it alone has: `slaves`, `follow_lag`, `open_connections`, ..."""

    def __init__(
        self,
        node: BrokerNode,
        handlers: Handlers,
        *,
        readers: Executor,
        transactions: TransactionService,
        delay: DelayService,
        timers: TimerService,
    ) -> None:
        self._node, self._handlers = node, handlers
        self._transactions, self._delay, self._timers = transactions, delay, timers
        self.survey = LagSurvey(node, readers)
        self.loop_delays = Durations()
        self.replication_times: Callable[[], Durations] = Durations
        self.slaves: Callable[[], Sequence[SlaveStatus]] = tuple
        self.follow_figures: Callable[[], Mapping[str, str]] | None = None  # of a slave
        self.open_connections: Callable[[], int] = int
        self.refused_connections: Callable[[], int] = int

    async def prepare(self) -> None:
        """Before each page: what takes several turns of the loop."""
        if self._node.config.enable_lag_and_dlq_metrics and self._speaks_for_group():
            await self.survey.take(self._node.config.metrics_otel_cardinality_limit)

    def common_labels(self) -> dict[str, str]:
        config = self._node.config
        return {"cluster": config.broker_cluster_name, "node_type": "broker", "node_id": config.broker_name}

    def table(self) -> list[Measured]:
        """Every instrument with its source; a switch that is off leaves it without series."""
        sources = self._of_requests() | self._of_groups() | self._of_store() | self._of_timers() | self._of_ours()
        assert set(sources) == set(our.INSTRUMENTS)
        return [
            Measured(instrument, self._switched(instrument, self._of_group(instrument, sources[instrument])))
            for instrument in our.INSTRUMENTS
        ]

    def _of_group(self, instrument: Instrument, source: Callable[[], Series]) -> Callable[[], Series]:
        if instrument not in our.OF_GROUP:
            return source
        return lambda: source() if self._speaks_for_group() else ()

    def _switched(self, instrument: Instrument, source: Callable[[], Series]) -> Callable[[], Series]:
        if not instrument.setting:
            return source
        config, field = self._node.config, keys()[instrument.setting]
        return lambda: source() if getattr(config, field) else ()

    def _speaks_for_group(self) -> bool:
        """Whether this broker's view of what waits is the newest of its group.

        A slave that follows has its master's offsets from seconds ago. Boards add up what brokers say, so its master
        alone says it, as long as it is there.
        """
        return not self._node.is_slave or self._node.duty is not Duty.FOLLOW or not self._is_following()

    # --- RocketMQ's

    def _of_requests(self) -> dict[Instrument, Callable[[], Series]]:
        node, statistics = self._node, self._node.statistics
        puts, gets = statistics.puts, statistics.gets
        return {
            our.WATERMARK: self._watermarks,
            our.PERMISSION: lambda: _one(node.config.broker_permission),
            our.TOPICS: lambda: _one(len(node.topics)),
            our.GROUPS: lambda: _one(len(node.groups)),
            our.IN_MESSAGES: lambda: ((_put(*key), found.messages) for key, found in list(puts.items())),
            our.IN_BYTES: lambda: ((_put(*key), found.size_bytes) for key, found in list(puts.items())),
            our.SIZES: lambda: (
                (_put(*key), Distribution(tuple(found.size_counts), found.size_sum))
                for key, found in list(puts.items())
            ),
            our.OUT_MESSAGES: lambda: ((_get(*key), found.messages) for key, found in list(gets.items())),
            our.OUT_BYTES: lambda: ((_get(*key), found.size_bytes) for key, found in list(gets.items())),
            our.TOPIC_CREATION: lambda: self._creation(_TOPIC_CREATION),
            our.GROUP_CREATION: lambda: self._creation(_GROUP_CREATION),
            our.RPC_LATENCY: self._latencies,
            our.PRODUCERS: self._producers,
            our.CONSUMERS: self._consumers,
        }

    def _of_groups(self) -> dict[Instrument, Callable[[], Series]]:
        statistics, survey = self._node.statistics, self.survey
        return {
            our.LAG_MESSAGES: lambda: ((_behind(row), row.lag) for row in survey.rows),
            our.LAG_LATENCY: lambda: ((_behind(row), row.lag_ms) for row in survey.rows if row.lag_ms >= 0),
            our.INFLIGHT: lambda: ((_behind(row), row.inflight) for row in survey.rows),
            our.QUEUEING_LATENCY: lambda: (
                (_behind(row), row.queueing_ms) for row in survey.rows if row.queueing_ms >= 0
            ),
            our.READY: lambda: ((_behind(row), row.ready) for row in survey.rows),
            our.DEAD_LETTERS: lambda: (
                ((group, topic, _flag(is_system_group(group))), count)
                for (group, topic), count in list(statistics.dead_letters.items())
            ),
            our.COMMITS: lambda: _by_name(statistics.commits),
            our.ROLLBACKS: lambda: _by_name(statistics.rollbacks),
            our.HALVES: self._halves,
            our.FINISH_TIME: lambda: _spreads(statistics.finish_times, ()),
        }

    def _of_store(self) -> dict[Instrument, Callable[[], Series]]:
        store = self._node.store
        log_paths = store.config.commit_log_paths

        def used_bytes() -> int:
            return store.files.disk_usage(store.config.path).used_bytes

        def reserve_ms() -> int:
            earliest_ms = store.earliest_time()
            return max(self._node.now_ms() - earliest_ms, 0) if earliest_ms > 0 else 0

        return {
            our.STORAGE: lambda: [(_DISK, used_bytes())],
            our.FLUSH_BEHIND: lambda: [(_DISK, max(store.log_max_offset - store.durable_offset, 0))],
            our.DISPATCH_BEHIND: lambda: [(_DISK, max(store.log_max_offset - store.dispatched_offset, 0))],
            our.RESERVE_TIME: lambda: [(_DISK, reserve_ms())],
            our.WRITABLE: lambda: _one(int(not store.unwritable_reason)),
            our.DISK_USED: lambda: _one(store.files.disk_usage(log_paths[0]).used_ratio),
            our.DISK_FREE: lambda: _one(store.files.disk_usage(log_paths[0]).free_bytes),
            our.DISK_LIMIT: lambda: [
                (("clean",), store.config.disk_max_used_space_ratio / 100),
                (("refuse",), store.config.disk_space_warning_level_ratio / 100),
            ],
            our.DAMAGED: lambda: _one(store.reader.damage.count),
            our.LOG_END: lambda: _one(store.log_max_offset),
        }

    def _of_timers(self) -> dict[Instrument, Callable[[], Series]]:
        timers, statistics = self._timers, self._node.statistics
        return {
            our.TIMER_ENQUEUE_LAG: lambda: [(_DISK, timers.progress().not_taken_in)],
            our.TIMER_ENQUEUE_LATENCY: lambda: [(_DISK, timers.progress().taken_in_late_ms)],
            our.TIMER_DEQUEUE_LAG: lambda: [(_DISK, timers.progress().not_delivered)],
            our.TIMER_DEQUEUE_LATENCY: lambda: [(_DISK, timers.progress().delivered_late_ms)],
            our.TIMERS: lambda: _on_disk(timers.pending()),
            our.TIMERS_IN: lambda: _on_disk(timers.timer.metrics.added),
            our.TIMERS_OUT: lambda: _on_disk(timers.timer.metrics.removed),
            our.DELAYS: lambda: _spreads(statistics.delays, _DISK),
        }

    def _halves(self) -> Series:
        """A slave that does not stand in looks at no ends: it would count every half message ever."""
        return () if self._node.is_slave and self._node.duty is Duty.FOLLOW else _by_name(self._transactions.pending())

    def _watermarks(self) -> Series:
        node = self._node
        waiting = {"send": len(node.parked) + len(node.replicas), "admin": len(self._handlers)}
        return (((name,), waiting.get(name, 0)) for name in PROCESSORS)

    def _latencies(self) -> Iterator[tuple[tuple[str, ...], Distribution]]:
        for key, found in list(self._node.latencies.by_key.items()):
            counts = list(found.counts)
            rest = counts.pop()
            counts[-1] += rest  # the page has no bound of 5000
            is_oneway = key.response_code == ONEWAY
            labels = (
                "remoting",
                _REQUESTS.get(key.request_code, "unknown"),
                "success" if is_oneway else _RESPONSES.get(key.response_code, str(key.response_code)),
                _flag(key.is_long_polling),
                "oneway" if is_oneway else "success",
            )
            yield labels, Distribution(counts, found.sum_ms)

    def _creation(self, codes: Sequence[int]) -> Iterator[tuple[tuple[str, ...], Distribution]]:
        """Of requests that create: the same latencies, by other bounds. Topics of the system are refused."""
        by_status: dict[str, list[tuple[LatencyKey, list[int], int]]] = {}
        for key, found in list(self._node.latencies.by_key.items()):
            if key.request_code in codes:
                status = "success" if key.response_code in (0, ONEWAY) else "failure"
                by_status.setdefault(status, []).append((key, found.counts, found.sum_ms))
        for status, parts in by_status.items():
            counts = [0] * (len(our.CREATE_BOUNDS) + 1)
            for _, found_counts, _ in parts:
                for bucket, count in enumerate(found_counts):
                    bound = BOUNDS_MS[bucket] if bucket < len(BOUNDS_MS) else None
                    counts[_bucket(bound)] += count
            yield (status, "false"), Distribution(counts, sum(part[2] for part in parts))

    def _producers(self) -> Series:
        seen = {
            client.connection: (client.language, client.version)
            for clients in self._node.clients.producer_groups().values()
            for client in clients
        }
        counted = Counter(seen.values())
        return (
            ((language.lower(), version_name(version).lower(), "remoting"), count)
            for (language, version), count in counted.items()
        )

    def _consumers(self) -> Iterator[tuple[tuple[str, ...], int]]:
        for group in self._node.clients.consumer_groups():
            mode = _MODES.get(group.consume_type, "push")
            counted = Counter((client.language, client.version) for client in list(group.members.values()))
            for (language, version), count in counted.items():
                software = (language.lower(), version_name(version).lower())
                yield (group.name, *software, mode, "remoting", _flag(is_system_group(group.name))), count

    # --- ours

    def _of_ours(self) -> dict[Instrument, Callable[[], Series]]:
        node = self._node
        return {
            our.PUT_TIME: lambda: _durations(node.store.stats.put_times),
            our.FLUSH_TIME: lambda: _durations(node.store.flush_times),
            our.DISPATCH_TIME: lambda: _durations(node.dispatch_times),
            our.REPLICATION_TIME: lambda: _durations(self.replication_times()),
            our.LOOP_DELAY: lambda: _durations(self.loop_delays),
            our.LIMITS_HIT: self._limits_hit,
            our.PEER_FAULTS: lambda: _by_name(peer_warnings.counts),
            our.PUT_FAILURES: lambda: _one(node.statistics.put_failed),
            our.EMPTY_PULLS: lambda: _one(node.statistics.get_missed.value),
            our.HELD_PULLS: lambda: _one(len(node.held)),
            our.PARKED: lambda: [(("disk",), len(node.parked)), (("slaves",), len(node.replicas))],
            our.OPEN: lambda: _one(self.open_connections()),
            our.LEVELS: lambda: (((str(level),), count) for level, count in self._delay.pending().items()),
            our.SLAVE_LAG: lambda: (((slave.address,), slave.lag_bytes) for slave in self.slaves()),
            our.SLAVE_IN_SYNC: lambda: (((slave.address,), int(slave.is_in_sync)) for slave in self.slaves()),
            our.IN_SYNC: self._in_sync,
            our.FOLLOW_LAG: lambda: self._follow("haLagMillis", 1000),
            our.FOLLOWING: self._following,
            our.ROLE: self._role,
            our.INFO: lambda: [((__version__, platform.python_version()), 1)],
            our.STARTED: lambda: _one(node.started_ms / 1000),
            our.CPU: lambda: _one(cpu_s()),
            our.MEMORY: lambda: _one(resident_bytes()),
            our.DESCRIPTORS: lambda: _one(open_descriptors()),
            our.PAIRS_LEFT_OUT: lambda: _one(self.survey.left_out),
            our.PAGE_TIME: lambda: _one(self.survey.took_s),
        }

    def _limits_hit(self) -> Series:
        node = self._node
        hits = {
            "heldPullsMax": node.held.refused,
            "clientTopicsMax": node.topics.client_bound.refused,
            "clientGroupsMax": node.groups.client_bound.refused,
            "connections": self.refused_connections(),
            "slowRequests": self._handlers.busy_count,
        }
        return (((name,), count) for name, count in hits.items())

    def _in_sync(self) -> Series:
        return () if self._node.is_slave else _one(1 + self._node.replicas.slaves_in_sync())

    def _follow(self, key: str, divisor: int) -> Series:
        figures = self.follow_figures() if self.follow_figures is not None else {}
        return _one(int(figures[key]) / divisor) if key in figures else ()

    def _following(self) -> Series:
        return () if self.follow_figures is None else _one(int(self._is_following()))

    def _is_following(self) -> bool:
        return self.follow_figures is not None and self.follow_figures().get("haIsFollowing") == "true"

    def _role(self) -> Series:
        role = "slave" if self._node.is_slave else "master"
        if self._node.duty is Duty.ESCAPE:
            role = "acting"
        return (((name,), int(name == role)) for name in ("master", "slave", "acting"))


def _flag(is_so: bool) -> str:
    return "true" if is_so else "false"


def _put(topic: str, kind: int) -> tuple[str, ...]:
    return topic, KINDS[kind], _flag(is_system_topic(topic))


def _get(group: str, topic: str) -> tuple[str, ...]:
    is_system = is_system_topic(topic) or is_system_group(group)
    return topic, group, _flag(is_system), _flag(topic.startswith(RETRY_PREFIX))


def _behind(row: Behind) -> tuple[str, ...]:
    is_system = is_system_topic(row.topic) or is_system_group(row.group)
    return row.group, row.topic, _flag(row.is_retry), _flag(is_system)


def _one(value: float) -> Series:
    return [((), value)]


def _by_name(counts: Mapping[str, int]) -> Series:
    return (((name,), count) for name, count in list(counts.items()))


def _on_disk(counts: Mapping[str, int]) -> Series:
    return (((*_DISK, topic), count) for topic, count in list(counts.items()))


def _spreads(spreads: Mapping[str, Spread], before: tuple[str, ...]) -> Series:
    return (
        ((*before, topic), Distribution(tuple(spread.counts), spread.sum)) for topic, spread in list(spreads.items())
    )


def _durations(durations: Durations) -> Series:
    return [((), Distribution(tuple(durations.counts), durations.sum_us / 1_000_000))]


def _bucket(bound_ms: int | None) -> int:
    """Where a bucket of state/latencies.py belongs among CREATE_BOUNDS."""
    ends: Iterable[int] = our.CREATE_BOUNDS
    return sum(end < bound_ms for end in ends) if bound_ms is not None else len(our.CREATE_BOUNDS)
