"""`verify`: checks a store against itself, and a slave's log against its master's. Reports, never repairs.

- The log: chain, parts and CRCs of records, missing bytes (`corrupt`); queue offsets (`queue-gap`, `queue-repeat`).
- Queues both ways: a record without a unit (`no-unit`), a unit without a record (`stray-unit`) or that differs from
  its record (`wrong-unit`).
- The index both ways (`no-index-entry`, `stray-index-entry`), its times (`wrong-index-time`), and files whose size does
  not show their shape (`index-shape`). An index that is wholly missing is one `no-index-entry`.

The rules are those of `contrailmq store verify`, which alone checks extensions, light and batch queues. Not findings:
what placeholders of `store repair` keep, records of a deleted topic, and records of a recreated topic from before its
offsets restarted. Findings of one kind in one queue and range are one row with a count.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from contrailmq.spark.decoding.dispatched import Dispatcher, IndexEntries, Units
from contrailmq.spark.decoding.due_units import batch_topics, chosen, due_units, lost_records
from contrailmq.spark.decoding.index_shape import IndexShape, index_paths
from contrailmq.spark.decoding.log_plan import LogPart, LogSettings, plan_parts, scan_part
from contrailmq.spark.decoding.queue_units import QueueFiles, queue_files_under, read_units, units_between
from contrailmq.spark.decoding.records import Int, Mask, Records, stable_order
from contrailmq.spark.decoding.scan import BadStretch, Range
from contrailmq.spark.decoding.store_files import confirmed_end, delay_levels, log_files, store_root
from contrailmq.spark.jobs.index_files import IndexUnits, has_index, read_index
from contrailmq.spark.runtime.engine import Engine, Progress
from contrailmq.store.base.errors import StoreError
from contrailmq.store.files import Files
from contrailmq.store.queues.light_queues import LIGHT_PREFIX
from contrailmq.store.recovery.checkpoint import read_checkpoint
from contrailmq.store.recovery.queue_ledger import read_ledger
from contrailmq.store.tools.read_only import ReadOnlyLogFile

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_ANY_QUEUE: Final = ("", -1)
_EXT_ADDRESS_MAX: Final = -2147483649  # a tags code at or below is an address in the queue's extension file


class Finding(NamedTuple):
    """One thing that is wrong. `physical_offset` is where it begins; `rows` how many share it."""

    kind: str
    store: str
    topic: str | None
    queue_id: int | None
    queue_offset: int | None
    physical_offset: int
    rows: int
    detail: str


FINDING_SCHEMA: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("store", pa.string()),
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("physical_offset", pa.int64()),
        ("rows", pa.int64()),
        ("detail", pa.string()),
    ]
)


class _Work(NamedTuple):
    store: str
    part: LogPart
    queues: str  # directory that holds the consume queues
    levels: str
    check_crc: bool
    log_begin: int
    index_shape: IndexShape | None  # None: leave the index out
    elsewhere: Elsewhere


class Elsewhere(NamedTuple):
    """Records of which no unit is due in a consume queue: of batch topics, and of queues that were deleted."""

    batches: frozenset[str]
    known: frozenset[tuple[str, int]]  # queues that there were when the ledger was written
    known_to: int  # the newest record that it refers to


class _Queued(NamedTuple):
    """A record of a queue: its queue offset and its place in the log."""

    offset: int
    place: int


class _Checked(NamedTuple):
    """What one range of the log gave. First and last record of each queue are compared with those of other ranges."""

    findings: list[Finding]
    steps: list[tuple[tuple[str, int], _Queued, _Queued]]  # of a queue: records that do not follow each other
    edges: dict[tuple[str, int], tuple[_Queued, _Queued]]
    lost: dict[tuple[str, int], list[_Queued]]  # placeholders; those that know no queue are of `_ANY_QUEUE`


def verify(
    store: str,
    engine: Engine,
    *,
    slave: str | None = None,
    levels: str | None = None,
    index_shape: IndexShape | None = None,
    range_bytes: int = LogSettings().range_bytes,
    on_progress: Progress | None = None,
) -> list[Finding]:
    """Everything that is wrong with a store (and, given a slave's store, where its log differs). Empty means sound.

    `levels` is the broker's messageDelayLevel, by default what it left in the store (config/store.properties).
    """
    levels = levels or delay_levels(store)
    end = confirmed_end(store)
    shape = index_shape or IndexShape.of_store(store)
    begin = next((file.base for file in log_files(store)), 0)
    has_files = bool(index_paths(store))
    is_compared = shape is not None and (has_index(store, shape) or not has_files)
    elsewhere = _elsewhere(store)
    work = [
        _Work(
            store,
            part,
            f"{store}/consumequeue",
            levels,
            True,
            begin,
            shape if is_compared else None,
            elsewhere,
        )
        for part in _parts(store, end, range_bytes)
    ]
    findings = _checked(engine, work, on_progress)
    if not has_files:
        findings = _as_one_missing_index(store, findings)
    elif shape is None or not is_compared:
        findings.append(_unknown_shape(store))
    else:
        findings.extend(_entries_behind(store, shape, end))
    if slave is not None:
        findings.extend(compare_logs(store, slave, engine, range_bytes=range_bytes))
    return findings


def _unknown_shape(store: str) -> Finding:
    paths = index_paths(store)
    detail = (
        f"{paths[0]} has {paths[0].stat().st_size} bytes, and neither they nor its header say how many slots it has: "
        "the index was not compared"
    )
    return Finding("index-shape", store, None, None, None, 0, len(paths), detail)


def _as_one_missing_index(store: str, findings: list[Finding]) -> list[Finding]:
    """The findings with those of keys that no index holds joined: each range of the log has one."""
    missing = [finding for finding in findings if finding.kind == "no-index-entry"]
    if not missing:
        return findings
    detail = "keys of records, and the store has no index file: "
    if _had_index(store):
        detail += "it had an index once, which is gone; rebuild makes it again"
    else:
        detail += "its index is gone and rebuild makes it again, or its broker writes none (messageIndexEnable=false)"
    rows = sum(finding.rows for finding in missing)
    joined = missing[0]._replace(rows=rows, detail=detail)
    return [finding for finding in findings if finding.kind != "no-index-entry"] + [joined]


def _had_index(store: str) -> bool:
    """Did a broker write an index here? Its directory comes with its first file, its time when a file is full."""
    if Path(store, "index").is_dir():
        return True
    checkpoint = Path(store, "checkpoint")
    try:
        return checkpoint.is_file() and read_checkpoint(checkpoint, Files()).index_msg_time_ms > 0
    except OSError:
        return False  # an unreadable file is not a sign of an index; the finding says that it may be either


def findings_frame(spark: SparkSession, findings: list[Finding]) -> DataFrame:
    """Findings as a DataFrame, also none."""
    return spark.createDataFrame(findings_table(findings))


def findings_table(findings: list[Finding]) -> pa.Table:
    """Findings as an Arrow table."""
    return pa.Table.from_pylist([finding._asdict() for finding in findings], schema=FINDING_SCHEMA)


def _parts(store: str, end: int, range_bytes: int) -> list[LogPart]:
    files = log_files(store)
    settings = LogSettings(range_bytes=range_bytes, plan="log")
    return plan_parts(store, files[0].base, end, settings) if files else []


def _elsewhere(store: str) -> Elsewhere:
    """What the store itself says; no ledger, or one of another log, says nothing of queues that were deleted."""
    root, files = Path(store_root(store)), Files()
    nothing = Elsewhere(batch_topics(str(root)), frozenset(), -1)
    try:
        ledger, checkpoint = read_ledger(root, files), read_checkpoint(root / "checkpoint", files)
        if ledger is None:
            return nothing
        log = [ReadOnlyLogFile(Path(file.path), file.base, file.size_bytes, files) for file in log_files(store)]
        is_current = ledger.is_current(checkpoint, log)
    except (StoreError, OSError):
        return nothing  # an unreadable file does not mean that a queue was deleted
    for file in log:
        files.unmap(file.mapping)
    known = frozenset((entry.topic, entry.queue_id) for entry in ledger.queues)
    return nothing._replace(known=known, known_to=ledger.physical_offset) if is_current else nothing


def _checked(engine: Engine, work: list[_Work], on_progress: Progress | None) -> list[Finding]:
    """Run the checks and join the ranges: queue offsets must go on from one range to the next."""
    found: list[Finding] = []
    last: dict[tuple[str, int], _Queued] = {}
    lost: dict[tuple[str, int], list[_Queued]] = {}
    made_anew: dict[tuple[str | None, int | None], int] = {}  # where in the log a queue began again
    for piece, result in zip(work, engine.run(_check_part, work, on_progress), strict=True):
        found += result.findings
        for queue, placeholders in result.lost.items():
            lost.setdefault(queue, []).extend(placeholders)
        between = [(queue, last[queue], first) for queue, (first, _) in result.edges.items() if queue in last]
        for queue, before, after in [*result.steps, *between]:
            if after.offset == 0:
                made_anew[queue] = after.place
            elif after.offset != before.offset + 1 and not _is_explained(queue, before, after, lost):
                found.append(_step(piece.store, *queue, before.offset, after.offset, after.place))
        last |= {queue: newest for queue, (_, newest) in result.edges.items()}
    return [one for one in found if one.physical_offset >= made_anew.get((one.topic, one.queue_id), 0)]


def _is_explained(
    queue: tuple[str, int], before: _Queued, after: _Queued, lost: dict[tuple[str, int], list[_Queued]]
) -> bool:
    """Whether placeholders between two records of a queue have the offsets that are missing between them."""
    if after.offset <= before.offset:
        return False
    known, unknown = (
        [one.offset for one in lost.get(key, ()) if before.place < one.place < after.place]
        for key in (queue, _ANY_QUEUE)
    )
    return bool(unknown) or set(range(before.offset + 1, after.offset)) <= set(known)


def _step(store: str, topic: str, queue_id: int, before: int, after: int, physical: int) -> Finding:
    kind = "queue-gap" if after > before + 1 else "queue-repeat"
    detail = f"queue offset {after} follows {before}"
    return Finding(kind, store, topic, queue_id, after, physical, abs(after - before - 1), detail)


def _check_part(work: _Work) -> _Checked:
    """Everything about one range of the log."""
    findings: list[Finding] = []
    dispatcher = Dispatcher(work.levels)
    units: list[Units] = []
    entries: list[IndexEntries] = []
    lost: dict[tuple[str, int], list[_Queued]] = {}
    span = _Span(work.part.range)
    for item in scan_part(work.part, check_crc=work.check_crc):
        span.take(item)
        if isinstance(item, BadStretch):
            detail = f"{item.stop - item.start} bytes: {item.reason}"
            findings.append(Finding("corrupt", work.store, None, None, None, item.start, 1, detail))
        else:
            due, due_entries = dispatcher.due(item)
            queued, is_lost = due_units(item, due, work.elsewhere.batches)
            _note_lost(lost, item, chosen(queued, is_lost))
            units.append(chosen(queued, ~is_lost) if is_lost.any() else queued)
            if work.index_shape is not None:
                entries.append(due_entries())
    by_queue = _by_queue(units)
    steps, edges = [], {}
    for queue, rows in by_queue.items():
        breaks = np.flatnonzero(np.diff(rows[:, 0]) != 1).tolist()
        steps += [(queue, _queued(rows[at]), _queued(rows[at + 1])) for at in breaks]
        edges[queue] = (_queued(rows[0]), _queued(rows[-1]))
    findings.extend(_compare_queues(work, by_queue))
    if work.index_shape is not None:
        findings.extend(_compare_index(work, work.index_shape, entries, span))
    return _Checked(findings, steps, edges, lost)


class _Span:
    """Which index entries a range answers for: from its first record to the end of its last, which may be beyond it.

    So what points into a placeholder is judged where that is known.
    """

    def __init__(self, part: Range) -> None:
        self.start, self.stop = part.start, part.stop
        self.lost: list[tuple[int, int]] = []
        self._is_begun = part.is_aligned

    def take(self, item: Records | BadStretch) -> None:
        if isinstance(item, BadStretch):
            self._is_begun = True
            return
        if not self._is_begun:
            self.start, self._is_begun = int(item.physical_offset[0]), True
        self.stop = max(self.stop, int(item.physical_offset[-1] + item.size[-1]))
        gone = lost_records(item)
        self.lost += zip(gone.physical_offset.tolist(), (gone.physical_offset + gone.size).tolist(), strict=True)

    def is_lost(self, places: Int) -> Mask:
        found = np.zeros(len(places), dtype=np.bool_)
        for begin, end in self.lost:
            found |= (places >= begin) & (places < end)
        return found


def _note_lost(lost: dict[tuple[str, int], list[_Queued]], records: Records, known: Units) -> None:
    """The placeholders of a block: those that keep a place in a queue, and those that could have any."""
    for number, offset, place in zip(
        known.queue.tolist(), known.queue_offset.tolist(), known.physical_offset.tolist(), strict=True
    ):
        lost.setdefault(known.queues[number], []).append(_Queued(offset, place))
    gone = lost_records(records)
    unknown = gone.physical_offset[gone.queue_offset < 0].tolist()
    if unknown:
        lost.setdefault(_ANY_QUEUE, []).extend(_Queued(-1, place) for place in unknown)


def _queued(row: Int) -> _Queued:
    return _Queued(int(row[0]), int(row[1]))


def _by_queue(blocks: list[Units]) -> dict[tuple[str, int], Int]:
    """Due units of a range by queue: rows of queue offset, physical offset, size, tags code, in log order."""
    found: dict[tuple[str, int], list[Int]] = {}
    for block in blocks:
        rows = np.stack([block.queue_offset, block.physical_offset, block.size, block.tags_code], axis=1)
        order = stable_order(block.queue)
        bounds = np.searchsorted(block.queue[order], np.arange(len(block.queues) + 1))
        for number, key in enumerate(block.queues):
            if bounds[number] < bounds[number + 1]:
                found.setdefault(key, []).append(rows[order[bounds[number] : bounds[number + 1]]])
    return {key: np.concatenate(parts) for key, parts in found.items()}


def _compare_queues(work: _Work, due: dict[tuple[str, int], Int]) -> Iterator[Finding]:
    start, stop = work.part.range.start, work.part.range.stop
    on_disk = {(queue.topic, queue.queue_id): queue for queue in queue_files_under(work.queues)}
    for topic, queue_id in sorted(due.keys() | on_disk.keys()):
        if topic.startswith(LIGHT_PREFIX):
            continue
        rows = due.get((topic, queue_id), np.empty((0, 4), np.int64))
        rows = _after_the_last_beginning(rows)
        if (topic, queue_id) not in on_disk and (topic, queue_id) not in work.elsewhere.known:
            rows = rows[rows[:, 1] > work.elsewhere.known_to]  # the others' queue was deleted
        queue = on_disk.get((topic, queue_id), QueueFiles(topic, queue_id, ()))
        units = read_units(queue, *units_between(queue, start, stop))
        if np.array_equal(units["physical_offset"], rows[:, 1]):  # as nearly always: nothing stray, nothing missing
            yield from _compare_units(work, queue, rows, units)
            continue
        is_stray = ~np.isin(units["physical_offset"], rows[:, 1])
        if is_stray.any():
            first = units[int(np.argmax(is_stray))]
            detail = "units that point to no record of this queue"
            place = (int(first["queue_offset"]), int(first["physical_offset"]))
            yield _of_queue(work, "stray-unit", queue, place, int(is_stray.sum()), detail)
        is_missing = ~np.isin(rows[:, 1], units["physical_offset"])
        if is_missing.any():
            row = rows[int(np.argmax(is_missing))]
            detail = "records that are not in their consume queue"
            yield _of_queue(work, "no-unit", queue, (int(row[0]), int(row[1])), int(is_missing.sum()), detail)
        yield from _compare_units(work, queue, rows[~is_missing], units[~is_stray])


def _after_the_last_beginning(rows: Int) -> Int:
    """The rows from where offsets begin at zero for the last time: a topic that is made again has its own messages."""
    begins = np.flatnonzero(rows[:, 0] == 0)
    return rows[begins[-1] :] if len(begins) and begins[-1] else rows


def _compare_units(work: _Work, queue: QueueFiles, rows: Int, units: np.ndarray) -> Iterator[Finding]:
    """Units and records that point to the same places: do they say the same?"""
    repeats = len(units) - len(rows)
    if repeats:
        place = (int(units["queue_offset"][0]), int(units["physical_offset"][0]))
        yield _of_queue(work, "stray-unit", queue, place, abs(repeats), "units that point to a record more than once")
        return
    is_extended = units["tags_code"] <= _EXT_ADDRESS_MAX
    wrong = (
        (units["queue_offset"] != rows[:, 0])
        | (units["size"] != rows[:, 2])
        | ((units["tags_code"] != rows[:, 3]) & ~is_extended)
    )
    if wrong.any():
        at = int(np.argmax(wrong))
        said = tuple(int(units[name][at]) for name in ("queue_offset", "size", "tags_code"))
        detail = f"unit says (queue offset, size, tags code) {said}, record {tuple(rows[at, [0, 2, 3]].tolist())}"
        yield _of_queue(work, "wrong-unit", queue, (int(rows[at, 0]), int(rows[at, 1])), int(wrong.sum()), detail)


def _of_queue(work: _Work, kind: str, queue: QueueFiles, place: tuple[int, int], count: int, detail: str) -> Finding:
    """A finding of a queue; `place` is (queue offset, physical offset)."""
    return Finding(kind, work.store, queue.topic, queue.queue_id, *place, count, detail)


def _compare_index(work: _Work, shape: IndexShape, blocks: list[IndexEntries], span: _Span) -> Iterator[Finding]:
    empty = np.empty(0, np.int64)
    places = np.concatenate([block.physical_offset for block in blocks] or [empty])
    hashes = np.concatenate([block.key_hash for block in blocks] or [empty])
    times = np.concatenate([block.store_time_ms for block in blocks] or [empty])
    is_tag = np.concatenate([block.is_tag for block in blocks] or [np.empty(0, np.bool_)])
    found = list(read_index(work.store, shape.slots, span.start, span.stop))
    found_places = np.concatenate([units.physical_offset for units in found] or [empty])
    found_hashes = np.concatenate([units.key_hash for units in found] or [empty])
    known = np.unique(np.concatenate([places, found_places]))
    due = np.searchsorted(known, places) * 2**31 + hashes
    present = np.searchsorted(known, found_places) * 2**31 + found_hashes
    missing = ~np.isin(due, present) & ~is_tag  # RocketMQ before 5.5 entered no tags
    stray = ~np.isin(present, due) & ~span.is_lost(found_places)
    for kind, lacking, where, detail in (
        ("no-index-entry", missing, places, "keys of records that the index does not hold"),
        ("stray-index-entry", stray, found_places, "index entries whose record has no such key"),
    ):
        if lacking.any():
            place = int(where[int(np.argmax(lacking))])
            yield Finding(kind, work.store, None, None, None, place, int(lacking.sum()), detail)
    for units in found:
        yield from _compare_times(work, units, places, times)


def _entries_behind(store: str, shape: IndexShape, end: int) -> Iterator[Finding]:
    """Index entries that point to where no record is: at or after the end of the log.

    A running broker went on meanwhile. It writes the index after the log, so the record of a good entry is in the log
    when the entry is read, and below an end that is looked up after that.
    """
    behind = [units.physical_offset for units in read_index(store, shape.slots, end, 2**63 - 1)]
    places = np.concatenate([np.empty(0, np.int64), *behind])
    if not len(places):
        return
    end = max(end, confirmed_end(store))
    stray = places[places >= end]
    if len(stray):
        detail = f"index entries that point past the last record: the log ends at {end}"
        yield Finding("stray-index-entry", store, None, None, None, int(stray[0]), len(stray), detail)


def _compare_times(work: _Work, units: IndexUnits, places: Int, times: Int) -> Iterator[Finding]:
    """Entries of one file whose record is in this range: their seconds, and the header at the file's two ends."""
    if not len(places):
        return
    at = np.minimum(np.searchsorted(places, units.physical_offset), len(places) - 1)
    is_known = places[at] == units.physical_offset
    stored = times[at]
    wrong = units.seconds != units.seconds_due(stored)
    if units.end_before_ms is None and work.log_begin > 0:
        wrong &= units.number > 1  # it counts from a file that was cleaned away
    wrong |= (units.number == 1) & (stored != units.begin_time_ms)
    wrong |= (units.number == units.entries) & (stored != units.end_time_ms)
    wrong &= is_known
    if wrong.any():
        place = int(units.physical_offset[int(np.argmax(wrong))])
        detail = f"entries of {units.path} whose time, or whose header's, is not that of their record"
        yield Finding("wrong-index-time", work.store, None, None, None, place, int(wrong.sum()), detail)


def compare_logs(
    master: str, slave: str, engine: Engine, *, range_bytes: int = LogSettings().range_bytes
) -> Iterator[Finding]:
    """Where a slave's log differs from its master's, as far as both reach."""
    ends = {store: confirmed_end(store) for store in (master, slave)}
    begin = max((file.base for store in (master, slave) for file in log_files(store)[:1]), default=0)
    parts = plan_parts(master, begin, max(begin, min(ends.values())), LogSettings(range_bytes=range_bytes))
    work = [(part.range, slave) for part in parts if not part.range.is_missing]
    for finding in engine.run(_compare_bytes, work):
        if finding is not None:
            yield finding
    if ends[slave] > ends[master]:
        detail = f"the slave's log goes to {ends[slave]}, its master's to {ends[master]}"
        yield Finding("slave-ahead", slave, None, None, None, ends[master], 1, detail)


def _compare_bytes(work: tuple[Range, str]) -> Finding | None:
    part, slave = work
    ours = np.fromfile(part.path, dtype=np.uint8, count=part.stop - part.start, offset=part.start - part.base)
    theirs = np.zeros_like(ours)
    for file in log_files(slave):
        low, high = max(part.start, file.base), min(part.stop, file.base + file.size_bytes)
        if low < high:
            theirs[low - part.start : high - part.start] = np.fromfile(
                file.path, dtype=np.uint8, count=high - low, offset=low - file.base
            )
    differing = np.flatnonzero(ours != theirs)
    if not len(differing):
        return None
    place = part.start + int(differing[0])
    return Finding(
        "slave-differs", slave, None, None, None, place, len(differing), "bytes that the master has otherwise"
    )
