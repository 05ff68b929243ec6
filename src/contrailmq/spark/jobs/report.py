"""`report`: what a store holds and how it flows: traffic, sizes, latencies, lag, retries, delays.

Only headers and properties are read, never bodies. A range of the log becomes counts (`Counts`) that add up, whichever
engine made them; the report is drawn from the sum. Sizes and latencies (born to stored) are kept as histograms with 16
steps to the octave, so a percentile is at most 4.5 % above the true value and memory does not grow with the log.

Traffic is counted by the second if all of it is within ten minutes, so that a short log has a shape too, and otherwise
by the minute.
"""

from __future__ import annotations

import logging
import socket
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from contrailmq.message import DLQ_PREFIX, RETRY_PREFIX, ContrailError, Property, SysFlag, SystemTopic, is_system_topic
from contrailmq.spark.decoding.log_plan import LogPart, LogSettings, plan_parts, read_records
from contrailmq.spark.decoding.property_table import parse_properties
from contrailmq.spark.decoding.queue_units import queue_files, read_units
from contrailmq.spark.decoding.records import Int, Records
from contrailmq.spark.decoding.slices import map_values, take_slices, text_column
from contrailmq.spark.decoding.store_files import confirmed_end, find_stores, log_files
from contrailmq.spark.runtime.engine import Engine, Progress
from contrailmq.wire.fastjson import loads_fastjson

_T = TypeVar("_T")

MINUTE_MS: Final = 60_000
_SECOND_MS: Final = 1000
_SECONDS_SPAN_MS: Final = 10 * MINUTE_MS  # a longer one is counted by the minute
_STEPS: Final = 16  # histogram steps to the octave
_STEP_OF_0: Final = -1  # below all others: 1 has the step 0
_HOSTS_MAX: Final = 200
_KINDS: Final = ("queue", "tag", "host")
_log: Final = logging.getLogger(__name__)


_ADDED: Final = ("messages", "log_bytes", "tags", "hosts", "sizes", "latencies")
_ADDED_BY_TIME: Final = ("traffic", "traffic_bytes", "over_time")


class Span(NamedTuple):
    """From the first time to the last; of no record, from the end of all times to 0."""

    first_ms: int = 2**63 - 1
    last_ms: int = 0

    @property
    def step_ms(self) -> int:
        """What times are cut to."""
        return _SECOND_MS if self.last_ms - self.first_ms < _SECONDS_SPAN_MS else MINUTE_MS

    def joined(self, other: Span) -> Span:
        return Span(min(self.first_ms, other.first_ms), max(self.last_ms, other.last_ms))


@dataclass(slots=True)
class Counts:
    """Sums over records; two of them add up. Times are those of storing, in ms, cut to whole seconds or minutes."""

    messages: Counter[tuple[str, str, int]] = field(default_factory=Counter)  # (store, topic, queue)
    log_bytes: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    tags: Counter[tuple[str, str]] = field(default_factory=Counter)  # (topic, tag)
    hosts: Counter[tuple[str, str]] = field(default_factory=Counter)  # (topic, born host's IP)
    traffic: Counter[tuple[str, int]] = field(default_factory=Counter)  # (topic, time)
    traffic_bytes: Counter[tuple[str, int]] = field(default_factory=Counter)
    # (queue, tag or host; topic; its number, text or IP; a queue's store, else nothing; time)
    over_time: Counter[tuple[str, str, str, str, int]] = field(default_factory=Counter)
    sizes: Counter[tuple[str, int]] = field(default_factory=Counter)  # (topic, step)
    latencies: Counter[tuple[str, int]] = field(default_factory=Counter)
    ends: dict[tuple[str, str, int], int] = field(default_factory=dict)  # (store, topic, queue) -> next offset
    span: Span = field(default_factory=Span)

    def add(self, other: Counts) -> None:
        span = self.span.joined(other.span)
        for name in _ADDED:
            getattr(self, name).update(getattr(other, name))
        for name in _ADDED_BY_TIME:
            mine, theirs = (
                getattr(counts, name)
                if counts.span.step_ms == span.step_ms
                else _cut(getattr(counts, name), span.step_ms)
                for counts in (self, other)
            )
            mine.update(theirs)
            setattr(self, name, mine)
        self.span = span
        for key, end in other.ends.items():
            self.ends[key] = max(end, self.ends.get(key, 0))


def _cut(counter: Counter[Any], step_ms: int) -> Counter[Any]:
    """Sums by keys that end with a time, the times cut to steps."""
    sums: Counter[Any] = Counter()
    for (*names, time_ms), number in counter.items():
        sums[*names, time_ms - time_ms % step_ms] += number
    return sums


class TopicReport(NamedTuple):
    """One topic's traffic. Sizes are of bodies in bytes, latencies from born to stored in ms."""

    topic: str
    queues: int
    messages: int
    log_bytes: int
    size_p50: int
    size_p99: int
    latency_p50_ms: int
    latency_p99_ms: int
    first_minute_ms: int
    last_minute_ms: int


class GroupLag(NamedTuple):
    """How far a group is behind on a topic, in messages."""

    group: str
    topic: str
    lag: int


class DelayBacklog(NamedTuple):
    """Messages that wait for a delay level (or for their time: level 0)."""

    level: int
    waiting: int


@dataclass(frozen=True, slots=True)
class Report:
    """A store's report, ready to be shown."""

    stores: list[str]
    messages: int
    log_bytes: int
    topics: list[TopicReport]
    queues: list[tuple[str, int, int, int, str]]  # topic, queue, messages, bytes, store
    tags: list[tuple[str, str, int]]
    hosts: list[tuple[str, str, int]]
    step_ms: int  # of the times below: a second for a log of ten minutes at most, else a minute
    traffic: list[tuple[str, int, int, int]]  # topic, time in ms, messages, bytes
    # queue, tag or host -> topic, value, time in ms, messages, a queue's store (tags and hosts are of all stores)
    over_time: dict[str, list[tuple[str, str, int, int, str]]]
    lags: list[GroupLag]
    retries: list[tuple[str, str, int]]  # kind (retry or dlq), group, messages
    delays: list[DelayBacklog]

    def to_json(self) -> dict[str, Any]:
        """Plain values for a JSON document."""
        return {
            "stores": self.stores,
            "messages": self.messages,
            "log_bytes": self.log_bytes,
            "topics": [row._asdict() for row in self.topics],
            "queues": [
                dict(zip(("topic", "queue_id", "messages", "log_bytes", "store"), row, strict=True))
                for row in self.queues
            ],
            "tags": [dict(zip(("topic", "tag", "messages"), row, strict=True)) for row in self.tags],
            "hosts": [dict(zip(("topic", "host", "messages"), row, strict=True)) for row in self.hosts],
            "minutes": [
                dict(zip(("topic", "time_ms", "messages", "log_bytes"), row, strict=True)) for row in self.minutes
            ],
            **{f"{kind}_minutes": self._minutes_of(kind) for kind in _KINDS},
            "lags": [row._asdict() for row in self.lags],
            "retries": [dict(zip(("kind", "group", "messages"), row, strict=True)) for row in self.retries],
            "delays": [row._asdict() for row in self.delays],
        }

    @property
    def minutes(self) -> list[tuple[str, int, int, int]]:
        """Topic, minute in ms, messages, bytes."""
        messages = _cut(Counter({(topic, time_ms): number for topic, time_ms, number, _ in self.traffic}), MINUTE_MS)
        log_bytes = _cut(Counter({(topic, time_ms): size for topic, time_ms, _, size in self.traffic}), MINUTE_MS)
        return [(*key, number, log_bytes[key]) for key, number in messages.items()]

    def _minutes_of(self, kind: str) -> list[dict[str, Any]]:
        times = Counter({(topic, value, store, at): number for topic, value, at, number, store in self.over_time[kind]})
        return [
            {"topic": topic, kind: value, "time_ms": time_ms, "messages": number} | ({"store": store} if store else {})
            for (topic, value, store, time_ms), number in _cut(times, MINUTE_MS).items()
        ]


def report(
    stores: str,
    engine: Engine,
    *,
    settings: LogSettings | None = None,
    on_progress: Progress | None = None,
) -> Report:
    """Measure stores (a path, comma list or glob)."""
    chosen = LogSettings(check_crc=False, skip_corrupt=True) if settings is None else settings
    found = find_stores(stores)
    work = [
        _Work(part, chosen, store)
        for store in found
        for part in plan_parts(store, _begin(store), confirmed_end(store, skips_damage=chosen.skip_corrupt), chosen)
    ]
    total = Counts()
    for counts in engine.run(_measure_part, work, on_progress):
        total.add(counts)
    return summarise(found, total)


class _Work(NamedTuple):
    part: LogPart
    settings: LogSettings
    store: str


def _begin(store: str) -> int:
    files = log_files(store)
    return files[0].base if files else 0


def _measure_part(work: _Work) -> Counts:
    counts = Counts()
    for records in read_records(work.part, work.settings):
        kind = records.sys_flag & SysFlag.TRANSACTION_MASK
        queued = (kind != SysFlag.TRANSACTION_PREPARED) & (kind != SysFlag.TRANSACTION_ROLLBACK)
        counts.add(_measure(records.select(queued), work.store))
    return counts


def _measure(records: Records, store: str) -> Counts:
    """Counts of one block, each by one pass over columns of small integers."""
    counts = Counts()
    if not len(records):
        return counts
    buffer = pa.py_buffer(records.data)
    topics = text_column(take_slices(buffer, records.topic_start, records.topic_bytes)).dictionary_encode()
    names, topic = topics.dictionary.to_pylist(), topics.indices.to_numpy().astype(np.int64)
    properties = parse_properties(take_slices(buffer, records.properties_start, records.properties_bytes))
    tags = properties.column(Property.TAGS).fill_null("").dictionary_encode()
    hosts = map_values(take_slices(buffer, *_ip_only(records)), _ip_text).dictionary_encode()
    counts.span = Span(int(records.store_time_ms.min()), int(records.store_time_ms.max()))
    step_ms = counts.span.step_ms
    first_ms = counts.span.first_ms // step_ms * step_ms
    step = (records.store_time_ms - first_ms) // step_ms
    for by_queue, weight in ((counts.messages, None), (counts.log_bytes, records.size)):
        found = Counter[tuple[str, int]]()
        _count(found, names, topic, records.queue_id, weight)
        by_queue.update({(store, name, queue_id): total for (name, queue_id), total in found.items()})
    for counter, weight in ((counts.traffic, None), (counts.traffic_bytes, records.size)):
        found = Counter[tuple[str, int]]()
        _count(found, names, topic, step, weight)
        counter.update({(name, first_ms + number * step_ms): total for (name, number), total in found.items()})
    _count(counts.sizes, names, topic, _step(records.body_bytes), None)
    _count(counts.latencies, names, topic, _step(records.store_time_ms - records.born_time_ms), None)
    for encoded, named in ((tags, counts.tags), (hosts, counts.hosts)):
        values, found = encoded.dictionary.to_pylist(), Counter[tuple[str, int]]()
        _count(found, names, topic, encoded.indices.to_numpy().astype(np.int64), None)
        named.update({(name, values[code]): number for (name, code), number in found.items()})
    queues, queue = np.unique(records.queue_id, return_inverse=True)
    for kind, texts, codes, of in (
        ("queue", [str(number) for number in queues.tolist()], queue, store),
        ("tag", tags.dictionary.to_pylist(), tags.indices.to_numpy(), ""),
        ("host", hosts.dictionary.to_pylist(), hosts.indices.to_numpy(), ""),
    ):
        found = Counter[tuple[str, int]]()
        _count(found, names, topic, codes.astype(np.int64) + step * len(texts), None)
        for (name, place), number in found.items():
            later, code = divmod(place, len(texts))
            counts.over_time[kind, name, texts[code], of, first_ms + later * step_ms] += number
    order = np.lexsort((records.queue_offset, records.queue_id, topic))
    for at in order.tolist() if len(order) < 64 else _last_of_each(topic[order], records.queue_id[order], order):
        key = (store, names[topic[at]], int(records.queue_id[at]))
        counts.ends[key] = max(counts.ends.get(key, 0), int(records.queue_offset[at]) + 1)
    return counts


def _last_of_each(topic: Int, queue_id: Int, order: Int) -> list[int]:
    is_last = np.concatenate([(topic[1:] != topic[:-1]) | (queue_id[1:] != queue_id[:-1]), [True]])
    last: list[int] = order[is_last].tolist()
    return last


def _count(counter: Counter[tuple[str, int]], names: list[str], topic: Int, value: Int, weight: Int | None) -> None:
    """Add up rows (or weights) by (topic, value)."""
    low = int(value.min())
    span = int(value.max()) - low + 1
    keys, inverse = np.unique(topic * span + (value - low), return_inverse=True)
    sums = np.bincount(inverse, weights=weight)
    for key, number in zip(keys.tolist(), sums.tolist(), strict=True):
        counter[names[key // span], key % span + low] += int(number)


def _step(values: Int) -> Int:
    """What values are counted as. Less than nothing is nothing: clocks of two hosts give negative latencies."""
    steps: Int = np.ceil(np.log2(np.maximum(values, 1)) * _STEPS).astype(np.int64)
    return np.where(values > 0, steps, _STEP_OF_0)


def _ip_only(records: Records) -> tuple[Int, Int]:
    start, size = records.born_hosts()
    return start, size - 4


def _ip_text(raw: bytes) -> str:
    return socket.inet_ntop(socket.AF_INET if len(raw) == 4 else socket.AF_INET6, raw)


def percentile(histogram: dict[int, int], share: float) -> int:
    """The upper bound of the step in which the share of all values is reached."""
    wanted, seen = share * sum(histogram.values()), 0
    for step in sorted(histogram):
        seen += histogram[step]
        if seen >= wanted:
            return 0 if step == _STEP_OF_0 else int(2 ** (step / _STEPS))
    return 0


def summarise(stores: list[str], counts: Counts) -> Report:
    """The report from counts and from what the stores' configuration says about groups and delays."""
    by_topic: dict[str, tuple[int, int, int]] = {}  # -> queues, messages, bytes
    for key, number in counts.messages.items():
        queues, messages, log_bytes = by_topic.get(key[1], (0, 0, 0))
        by_topic[key[1]] = (queues + 1, messages + number, log_bytes + counts.log_bytes[key])
    sizes, latencies = _by_topic(counts.sizes), _by_topic(counts.latencies)
    times = _by_topic(_cut(counts.traffic, MINUTE_MS))
    topics = [
        TopicReport(
            topic,
            *entry,
            percentile(sizes[topic], 0.5),
            percentile(sizes[topic], 0.99),
            percentile(latencies[topic], 0.5),
            percentile(latencies[topic], 0.99),
            min(times[topic]),
            max(times[topic]),
        )
        for topic, entry in sorted(by_topic.items(), key=lambda item: -item[1][1])
    ]
    retries = [
        (kind, topic.removeprefix(prefix), entry[1])
        for topic, entry in by_topic.items()
        for kind, prefix in (("retry", RETRY_PREFIX), ("dlq", DLQ_PREFIX))
        if topic.startswith(prefix)
    ]
    return Report(
        stores=stores,
        messages=sum(counts.messages.values()),
        log_bytes=sum(counts.log_bytes.values()),
        topics=topics,
        queues=[
            (topic, queue_id, counts.messages[store, topic, queue_id], counts.log_bytes[store, topic, queue_id], store)
            for topic, queue_id, store in sorted((topic, queue_id, store) for store, topic, queue_id in counts.messages)
        ],
        tags=[(t, tag, n) for (t, tag), n in counts.tags.most_common(_HOSTS_MAX) if tag],
        hosts=[(t, host, n) for (t, host), n in counts.hosts.most_common(_HOSTS_MAX)],
        step_ms=counts.span.step_ms,
        traffic=sorted((t, time_ms, n, counts.traffic_bytes[t, time_ms]) for (t, time_ms), n in counts.traffic.items()),
        over_time=_over_time(counts),
        lags=_add_lags(lag for store in stores for lag in read_lags(store, counts)),
        retries=sorted(retries, key=lambda row: -row[2]),
        delays=_add_delays(delay for store in stores for delay in read_delays(store)),
    )


def _over_time(counts: Counts) -> dict[str, list[tuple[str, str, int, int, str]]]:
    """Messages over time of the queues, tags and hosts that have most; rows without a tag are left out."""
    totals: dict[str, Counter[tuple[str, str, str]]] = {kind: Counter() for kind in _KINDS}
    for (kind, topic, value, store, _), number in counts.over_time.items():
        totals[kind][topic, value, store] += number
    shown = {kind: {name for name, _ in total.most_common(_HOSTS_MAX)} for kind, total in totals.items()}
    return {
        kind: sorted(
            (topic, value, time_ms, number, store)
            for (of, topic, value, store, time_ms), number in counts.over_time.items()
            if of == kind and value and (topic, value, store) in shown[kind]
        )
        for kind in _KINDS
    }


def _by_topic(counter: Counter[tuple[str, int]]) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for (topic, value), number in counter.items():
        found.setdefault(topic, {})[value] = number
    return found


def read_config(store: str, name: str, take: Callable[[dict[str, Any]], _T]) -> _T:
    """What `take` makes of a broker's configuration file (fastjson), or of its backup, or of an empty one.

    A report is of the log first: a file that cannot be read is named in a warning, and the rest is reported.
    """
    for path in (Path(store, "config", name), Path(store, "config", f"{name}.bak")):
        try:
            return take(_table(loads_fastjson(path.read_bytes(), is_trusted=True), "what it holds"))
        except FileNotFoundError:
            continue
        except (ContrailError, OSError, ValueError) as exc:
            _log.warning("%s is not what a broker writes: %s; it does not count here: mend or remove it", path, exc)
    return take({})


def _table(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{name} is {value!r:.60}, not an object")
    return value


def _whole(value: object) -> int:
    if isinstance(value, str) and value.isdecimal():
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r:.60} is not a whole number")
    return value


def _numbers(config: dict[str, Any], name: str) -> dict[int, int]:
    """A table from queues or levels to offsets."""
    return {_whole(key): _whole(offset) for key, offset in _table(config.get(name, {}), name).items()}


def _group_offsets(config: dict[str, Any]) -> dict[str, dict[int, int]]:
    """From topic@group to the offsets of queues."""
    table = _table(config.get("offsetTable", {}), "offsetTable")
    return {name: _numbers(table, name) for name in table}


def _timers(config: dict[str, Any]) -> int:
    entries = _table(config.get("timingCount", {}), "timingCount").values()
    return sum(_whole(entry.get("count", 0) if isinstance(entry, dict) else entry) for entry in entries)


def read_lags(store: str, counts: Counts) -> list[GroupLag]:
    """Lag of every group by the offsets that the broker saved, against the log's own ends."""
    lags = []
    for name, offsets in read_config(store, "consumerOffset.json", _group_offsets).items():
        topic, _, group = name.partition("@")
        if is_system_topic(topic):
            continue
        behind = sum(
            max(0, counts.ends.get((store, topic, queue_id), 0) - offset) for queue_id, offset in offsets.items()
        )
        lags.append(GroupLag(group, topic, behind))
    return lags


def _add_lags(lags: Iterable[GroupLag]) -> list[GroupLag]:
    """One row for each group and topic: a group reads a topic of several brokers as one. The largest comes first."""
    total: Counter[tuple[str, str]] = Counter()
    for group, topic, lag in lags:
        total[group, topic] += lag
    rows = [GroupLag(group, topic, lag) for (group, topic), lag in total.items()]
    return sorted(rows, key=lambda row: (-row.lag, row.group, row.topic))


def _add_delays(delays: Iterable[DelayBacklog]) -> list[DelayBacklog]:
    total: Counter[int] = Counter()
    for level, waiting in delays:
        total[level] += waiting
    return [DelayBacklog(level, total[level]) for level in sorted(total, key=lambda level: (level == 0, level))]


def read_delays(store: str) -> list[DelayBacklog]:
    """Messages waiting in delay levels, by the queues and the saved progress; timers by the saved counts."""
    done = read_config(store, "delayOffset.json", lambda config: _numbers(config, "offsetTable"))
    delays = []
    for queue in queue_files(store, [SystemTopic.SCHEDULE]):
        units = read_units(queue)
        end = int(units["queue_offset"][-1]) + 1 if len(units) else 0
        waiting = end - done.get(queue.queue_id + 1, 0)
        if waiting > 0:
            delays.append(DelayBacklog(queue.queue_id + 1, waiting))
    waiting = read_config(store, "timermetrics", _timers)
    return [*delays, DelayBacklog(0, waiting)] if waiting > 0 else delays
