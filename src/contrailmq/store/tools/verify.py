"""Checks that everything in a store fits together. For `contrailmq store verify`; changes nothing.

One walk over the log, with checksums, compares both ways: each record that belongs in a queue has exactly its unit at
its offset, and each unit its record; index entries likewise (verify_index.py). A unit with the address of an extension
needs that extension, after the one before, with the record's tags code and store time; its bitmap cannot be checked.
Memory holds one block of units per queue. A unit below the log's minimum is fine: its message was cleaned away.

In a store in use these are in flight and not findings: what changes at the end of the log while it is looked at; units
missing after the checkpoint's place at the start of the run; keys missing after the index's last entry then; and what
belongs to files or queues that were removed since.
"""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterator
from typing import Final

from contrailmq.message import SysFlag
from contrailmq.message.codec import Kind
from contrailmq.message.record import RecordView
from contrailmq.store.base.findings import FINDINGS_LISTED_MAX, VerifyReport
from contrailmq.store.delay_levels import DelayLevels
from contrailmq.store.index.verify_index import IndexChecker
from contrailmq.store.queues.batch_consume_queue import BatchConsumeQueue, BatchUnit
from contrailmq.store.queues.consume_queue import ConsumeQueue
from contrailmq.store.queues.consume_queue_ext import ExtUnit, is_ext_address, real_offset
from contrailmq.store.queues.derivation import Derivation, Due
from contrailmq.store.queues.light_queues import LIGHT_QUEUE_ID
from contrailmq.store.queues.placeholder import is_placeholder
from contrailmq.store.queues.queue_unit import UNIT_BYTES, begins_again, pack_unit
from contrailmq.store.recovery.log_walk import Unheard, WalkEnd, next_record, walk
from contrailmq.store.tools.read_only import ReadOnlyLogFile, StoreView

_BLOCK_UNITS: Final = 4_096
_PROGRESS_RECORDS: Final = 4_096
_BEYOND: Final = 2**63
_APPEND_S_MAX: Final = 0.3  # that a record takes to be written, with its pages on a slow disk

Progress = Callable[[int, int], None]  # bytes of the log done, bytes in all


def verify_store(view: StoreView, on_progress: Progress | None = None) -> VerifyReport:
    """Walk everything and report what does not fit."""
    report = VerifyReport(str(view.config.path), owner_pid=view.owner_pid)
    for problem in view.problems:
        part, _, text = problem.partition(": ")
        report.add(part, "", None, text)
    for queue in view.damaged_queues:
        report.add("queue", f"{queue.topic}/{queue.queue_id}", None, queue.reason)
    if not view.was_clean_exit:
        report.add("store", "abort", None, "it was not closed cleanly: open it once, so that it is recovered")
    checker = _Checker(view, report, on_progress)
    _walk_log(view, report, checker)
    checker.finish()
    return report


def _walk_log(view: StoreView, report: VerifyReport, checker: _Checker) -> None:
    """Every file, over its holes; each of them, and data past the end of the log, is a finding."""
    ended = False
    for number, file in enumerate(view.log_files):
        end = walk(file, checker, check_body_crc=True)
        while end.verdict.kind is not Kind.BLANK:
            following = next_record(file, end.position, file.size_bytes)
            if following < 0:
                break
            begin, end = end.position, walk(file, checker, position=end.position, check_body_crc=True)
            if end.position > begin:
                continue  # a live store wrote on meanwhile
            problem = f"damaged up to {file.base + following}, where records follow: {end.verdict.reason}"
            report.add("log", file.path.name, file.base + end.position, problem)
            end = walk(file, checker, position=following, check_body_crc=True)
        kind, is_last = end.verdict.kind, number + 1 == len(view.log_files)
        if view.owner_pid and kind is not Kind.BLANK and _is_moving(file, end):
            report.log_max_offset = file.base + end.position
            return
        if end.records or kind is Kind.BLANK:
            report.log_max_offset = file.base + end.position
            if ended:
                report.add("log", file.path.name, file.base, "there are records past the end of the log")
        if kind in (Kind.TORN, Kind.CORRUPT):
            report.add("log", file.path.name, file.base + end.position, end.verdict.reason)
        elif kind is Kind.NOTHING and any(file.mapping[end.position : end.position + (1 << 20)]):
            report.add("log", file.path.name, file.base + end.position, "there are bytes past the end of the log")
        ended = ended or (kind is not Kind.BLANK and not is_last)


def _is_moving(file: ReadOnlyLogFile, end: WalkEnd) -> bool:
    """Whether somebody writes where a walk ended: it ends elsewhere a moment later, or for another reason."""
    time.sleep(_APPEND_S_MAX)
    again = walk(file, Unheard(), position=end.position, check_body_crc=True)
    return again.records > 0 or again.verdict.kind is not end.verdict.kind


class _Findings:
    """What is wrong with one queue, of either kind, while it is read along with the log."""

    __slots__ = ("findings", "findings_count", "next_offset", "units")

    def __init__(self) -> None:
        self.findings: list[tuple[int, str]] = []
        self.findings_count = 0
        self.next_offset = -1  # after the newest message that the log has of it
        self.units = 0  # that stand in it, so far

    def find(self, queue_offset: int, problem: str) -> None:
        self.findings_count += 1
        if len(self.findings) < FINDINGS_LISTED_MAX:
            self.findings.append((queue_offset, problem))

    def meet(self, queue_offset: int) -> None:
        """The log has a message with this offset. What was wrong in a life before does not matter."""
        if begins_again(queue_offset, self.next_offset):
            self.findings.clear()
            self.findings_count = self.next_offset = 0

    def tell(self, report: VerifyReport, topic: str, queue_id: int) -> None:
        for offset, problem in self.findings:
            report.add("queue", f"{topic}/{queue_id}", offset, problem)
        report.findings_count += self.findings_count - len(self.findings)
        report.units += self.units


class _Cursor(_Findings):
    """One ordinary queue's units."""

    __slots__ = ("block", "block_first", "extension", "queue")

    def __init__(self, queue: ConsumeQueue | None) -> None:
        super().__init__()
        self.queue = queue
        self.extension = -(2**63) - 1  # address of the newest
        self.block = b""
        self.block_first = 0

    def unit(self, queue_offset: int) -> bytes:
        """The 20 bytes at an offset; fewer where the queue has none."""
        position = (queue_offset - self.block_first) * UNIT_BYTES
        if not 0 <= position < len(self.block):
            if self.queue is None:
                return b""
            self.block = self.queue.read_units(queue_offset, _BLOCK_UNITS)
            self.block_first = queue_offset
            position = 0
        return self.block[position : position + UNIT_BYTES]


class _BatchCursor(_Findings):
    """One batch queue's units. `unit` is the current one, None after the last."""

    __slots__ = ("_units", "queue", "unit")

    def __init__(self, queue: BatchConsumeQueue | None, log_min: int) -> None:
        super().__init__()
        self.queue = queue
        self._units = iter(()) if queue is None else queue.scan(queue.first)
        self.advance()
        while self.unit is not None and self.unit.physical_offset < log_min:
            self.advance()  # cleaned away

    def advance(self) -> None:
        self.unit = next(self._units, None)

    def before(self, physical_offset: int) -> Iterator[BatchUnit]:
        """Pass over the units of records below a place of the log."""
        while self.unit is not None and self.unit.physical_offset < physical_offset:
            yield self.unit
            self.advance()


class _Checker:
    """Sink of the walk."""

    def __init__(self, view: StoreView, report: VerifyReport, on_progress: Progress | None) -> None:
        self._view = view
        self._report = report
        self._on_progress = on_progress
        levels, queues = DelayLevels(view.config.message_delay_level), view.queues
        self._derivation = Derivation(levels, queues.batches.holds, with_light_queues=queues.with_light_queues)
        self._cursors: dict[tuple[str, int], _Cursor] = {}
        self._batches: dict[tuple[str, int], _BatchCursor] = {}
        self._lost: list[tuple[int, int]] = []  # places of placeholders, ascending
        # Queues that the ledger would know if they had not been deleted on purpose
        ledger = view.ledger if view.ledger and view.ledger.is_current(view.checkpoint, view.log_files) else None
        self._ledger_to = ledger.physical_offset if ledger is not None else -1
        self._known: set[tuple[str, int]] = set()
        if ledger is not None:
            self._known.update((entry.topic, entry.queue_id) for entry in ledger.queues)
            self._known.update((entry.topic, entry.queue_id) for entry in ledger.batches)
        self._log_min = view.log_files[0].base if view.log_files else 0
        self._index: IndexChecker | None = None  # turned off, files of earlier days mean nothing
        if view.config.message_index_enable:
            in_flight_ms = view.checkpoint.index_msg_time_ms if view.owner_pid else None
            self._index = IndexChecker(view.index_files, report, log_min=self._log_min, in_flight_ms=in_flight_ms)
        self._queued_to = view.checkpoint.logics_physical_offset if view.owner_pid else 2**63

    def take(self, record: RecordView, /) -> None:
        self._report.records += 1
        sys_flag, physical_offset, store_time_ms = record.sys_flag, record.physical_offset, record.store_time_ms
        if is_placeholder(sys_flag):
            self._pass_over_lost(physical_offset, record.end)
            return
        if sys_flag & SysFlag.LOST:
            self._report.add("log", "", physical_offset, f"no message has the system flag {sys_flag:#x}")
        if self._on_progress is not None and self._report.records % _PROGRESS_RECORDS == 0:
            self._on_progress(physical_offset - self._log_min, self._view.log_bytes)
        derived = self._derivation.derive(record)
        if derived.batch is not None:
            if not self._view.is_of_an_ended_batch_topic(record):
                self._check_batch(record.topic_name, record.queue_id, derived.batch)
        elif derived.due is Due.UNIT:
            unit = pack_unit(physical_offset, record.size_bytes, derived.tags_code)
            self._check_unit(record.topic_name, record.queue_id, record.queue_offset, unit, store_time_ms)
            for light_queue, offset in derived.light:
                self._check_unit(light_queue, LIGHT_QUEUE_ID, offset, unit, store_time_ms)
        if self._index is not None:
            self._index.take(record, derived.keys)

    def _pass_over_lost(self, begin: int, end: int) -> None:
        """A placeholder of `store repair`: index and batch queues may still refer to what was there."""
        self._lost.append((begin, end))
        if self._index is not None:
            self._index.pass_over(begin, end)

    def _is_lost(self, physical_offset: int) -> bool:
        number = bisect_right(self._lost, (physical_offset, _BEYOND)) - 1
        return number >= 0 and physical_offset < self._lost[number][1]

    def finish(self) -> None:
        """What no record of the log belongs to."""
        if self._index is not None:
            self._index.finish()
        self._finish_batches()
        for queue in self._view.queues:
            cursor = self._cursors.setdefault((queue.topic, queue.queue_id), _Cursor(queue))
            seen_to = cursor.next_offset if cursor.next_offset >= 0 else queue.min_offset
            first = queue.offset_of_physical(self._log_min)
            _check_unclaimed(cursor, queue, max(seen_to, first), queue.max_offset)
        for cursors in (self._batches, self._cursors):
            for (topic, queue_id), found in cursors.items():
                found.tell(self._report, topic, queue_id)

    # --- queues

    def _check_unit(self, topic: str, queue_id: int, queue_offset: int, expected: bytes, store_time_ms: int) -> None:
        cursor = self._cursors.get((topic, queue_id))
        if cursor is None:
            cursor = self._cursors[topic, queue_id] = _Cursor(self._view.queues.get(topic, queue_id))
            if cursor.queue is not None:
                cursor.next_offset = min(cursor.queue.offset_of_physical(self._log_min), queue_offset)
        record = int.from_bytes(expected[:8], "big")
        if cursor.queue is None and record <= self._ledger_to and (topic, queue_id) not in self._known:
            return
        cursor.meet(queue_offset)
        if queue_offset < cursor.next_offset:
            cursor.find(queue_offset, "the log gives this offset to two records")
            return
        if cursor.queue is not None and queue_offset > cursor.next_offset:
            _check_unclaimed(cursor, cursor.queue, cursor.next_offset, queue_offset)
        cursor.next_offset = queue_offset + 1
        stands = cursor.unit(queue_offset)
        cursor.units += len(stands) == UNIT_BYTES
        if stands == expected:
            return
        problem: str | None = f"unit {stands.hex()} should be {expected.hex()}"
        if len(stands) < UNIT_BYTES:
            if self._is_in_flight(topic, queue_id, record):
                return
            problem = f"the unit of the record at {record} is missing"
        elif stands[:12] == expected[:12]:
            address, code = (int.from_bytes(unit[12:], "big", signed=True) for unit in (stands, expected))
            if is_ext_address(address):
                problem = self._extension_fault(cursor, topic, queue_id, address, ExtUnit(code, store_time_ms, b""))
        if problem is not None:
            cursor.find(queue_offset, problem)

    def _is_in_flight(self, topic: str, queue_id: int, record: int) -> bool:
        """Whether the unit of a record may be missing: not written yet, or gone on purpose since the run began."""
        if not self._view.owner_pid:
            return False
        if record >= self._queued_to:
            return True
        files, config = self._view.files, self._view.config
        holder = next((file for file in self._view.log_files if file.base <= record < file.end), None)
        if holder is not None and not files.exists(holder.path):
            return True
        places = (config.consume_queue_path, config.batch_queue_path)
        known = self._view.queues.get(topic, queue_id) or self._view.queues.batches.get(topic, queue_id)
        return known is not None and not any(files.exists(place / topic / str(queue_id)) for place in places)

    def _extension_fault(
        self, cursor: _Cursor, topic: str, queue_id: int, address: int, expected: ExtUnit
    ) -> str | None:
        """What is wrong with the extension at an address, if anything is; extensions of a queue follow each other."""
        table, place = self._view.queues.ext, real_offset(address)
        unit = table.get(topic, queue_id, address) if table is not None else None
        if unit is None:
            return f"its extension at {place} cannot be read"
        if address <= cursor.extension:
            return (
                f"its extension at {place} does not follow that of the unit before, at {real_offset(cursor.extension)}"
            )
        cursor.extension = address
        if unit[:2] != expected[:2]:
            return f"its extension at {place} says (tags code, store time) {unit[:2]}, its record {expected[:2]}"
        return None

    def _check_batch(self, topic: str, queue_id: int, expected: BatchUnit) -> None:
        cursor = self._batches.get((topic, queue_id))
        if cursor is None:
            cursor = self._batches[topic, queue_id] = _BatchCursor(
                self._view.queues.batches.get(topic, queue_id), self._log_min
            )
        record = expected.physical_offset
        if cursor.queue is None and record <= self._ledger_to and (topic, queue_id) not in self._known:
            return
        cursor.meet(expected.base_offset)
        cursor.next_offset = expected.following
        self._find_unclaimed(cursor, before=record)
        if cursor.unit is None or cursor.unit.physical_offset != record:
            if not self._is_in_flight(topic, queue_id, record):
                cursor.find(expected.base_offset, f"the unit of the record at {record} is missing")
            return
        cursor.units += 1
        if cursor.unit != expected:
            cursor.find(expected.base_offset, f"unit {tuple(cursor.unit)} should be {tuple(expected)}")
        cursor.advance()

    def _finish_batches(self) -> None:
        for queue in self._view.queues.batches:
            cursor = self._batches.setdefault((queue.topic, queue.queue_id), _BatchCursor(queue, self._log_min))
            self._find_unclaimed(cursor, before=_BEYOND)

    def _find_unclaimed(self, cursor: _BatchCursor, *, before: int) -> None:
        for unit in cursor.before(before):
            cursor.units += 1
            if not self._is_lost(unit.physical_offset):
                cursor.find(unit.base_offset, f"no record belongs to {unit}")


def _check_unclaimed(cursor: _Cursor, queue: ConsumeQueue, begin: int, end: int) -> None:
    """Units that no record of the log claims."""
    for offset, unit in queue.scan(begin, min(end, queue.max_offset)):
        if not unit.is_pre_blank:
            cursor.units += 1
            cursor.find(offset, f"no record belongs to {tuple(unit)}")
