"""Opening a store: where does the log really end, and do queues and index agree with it?

A start may find anything: a clean close, a killed process (the page cache survived), a power cut (pages of any file
are missing), files that someone deleted or damaged. Queues and index are derived from the log, so recovery has two
jobs, done in one pass where possible.

1. **Find the end of the log.** Walk record by record, with checksums, from a file that is certainly good: after a clean
   exit the file with the newest record that any queue knows, after a crash the last file whose first record was stored
   before the checkpoint's time. The first thing that is not a whole record ends the log, and what follows is cut: it
   was never acknowledged as flushed, and nothing may be served after a hole. A BLANK that closes the last file is cut
   too, and writing resumes there, as in Apache's store.

   Some of the log was surely written: up to what the ledger knows, if it was written at a clean exit or in this run of
   the machine; up to the checkpoint's time; and after a clean exit or a kill, up to the last whole record. A hole there
   is damage. If whole records follow, the walk continues with them, queues keep their units, readers skip the hole
   (damage.py), and the report names it.

2. **Make queues and index agree with it** (reconcile.py). Every record of the walk is compared with its unit, which
   also mends a flipped one. If the part before the walk is in doubt, it is walked too, by headers only:

   - a queue's files cannot be right, its last unit contradicts the log, or it differs from the ledger
     (queue_ledger.py): these queues are compared, over the whole log;
   - there is no valid ledger (Apache's broker wrote the store) and the log is small: all queues are compared;
   - the index ends before the walk begins, or its files cannot be right (index_recovery.py): it is fed from there on.

   Queue files beyond `StartBounds` are compared when they are first read. If recovery itself reads one and it
   is wrong, the run starts again with that queue among the damaged ones.

The report says what was found, what was cut and why. Recovery is idempotent: after a crash in the middle of it, the
next run gives the same store.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from contrailmq.message import is_system_topic
from contrailmq.message.codec import Kind, check_record
from contrailmq.message.record import RECORD_BYTES_MIN, head_struct, read_store_time
from contrailmq.store.base.errors import CorruptStoreError
from contrailmq.store.config import START_BOUNDS, StartBounds
from contrailmq.store.delay_levels import DelayLevels
from contrailmq.store.index.index_service import IndexService
from contrailmq.store.queues.batch_queue_table import BatchEntry
from contrailmq.store.queues.consume_queue import DAMAGED, ConsumeQueue
from contrailmq.store.queues.consume_queue_table import ConsumeQueueTable, DamagedQueue
from contrailmq.store.queues.light_queues import LIGHT_PREFIX
from contrailmq.store.queues.queue_unit import UNIT_BYTES
from contrailmq.store.recovery.checkpoint import CheckpointValues
from contrailmq.store.recovery.index_recovery import remove_contradicting, remove_doubtful
from contrailmq.store.recovery.log_walk import Hole, LogFile, WalkEnd, next_record, walk, walk_over
from contrailmq.store.recovery.queue_ledger import Ledger, LedgerEntry
from contrailmq.store.recovery.reconcile import BatchSink, Reconciler
from contrailmq.store.recovery.recovery_text import recovery_text

_log = logging.getLogger(__name__)

_LOOK_BEHIND_BYTES: Final = 8 << 20  # how far past the end to look for bytes that were cut: two of the largest records
_place_in: Final = head_struct("size", "queue_id", "queue_offset", "physical_offset").unpack_from
_ZEROS: Final = bytes(1 << 18)


def load_index(
    index: IndexService,
    checkpoint: CheckpointValues,
    ledger: Ledger | None,
    log_files: Sequence[LogFile],
    *,
    was_clean_exit: bool,
    boot_id: str,
) -> list[str]:
    """Load the index as far as the last exit lets us trust it; the reasons for what had to go.

    After a crash of the machine only files that were flushed when full can be trusted (the checkpoint's index time).
    After a crash of the process alone everything that it wrote is still in the page cache: the same run of the machine
    (the ledger's boot id) means that nothing is lost, but for a put that may have been in the middle. Apache removes
    the file in both cases and forgets the keys of older messages.
    """
    if was_clean_exit:
        return index.load()
    if ledger is not None and boot_id and ledger.boot_id == boot_id and ledger.is_current(checkpoint, log_files):
        return index.load(killed_with={entry.name: entry.units for entry in ledger.index})
    return index.load(trusted_end_time_ms=checkpoint.index_msg_time_ms)


class RecoverableLog(Protocol):
    """The commit log as recovery needs it; MappedFileQueue is one."""

    @property
    def files(self) -> Sequence[LogFile]: ...
    def truncate_dirty_files(self, offset: int, /) -> int: ...


@dataclass(frozen=True, slots=True)
class RecoveryReport:
    """What opening found and did. Offsets are physical; `reason` is empty when nothing was cut."""

    was_clean_exit: bool
    physical_offset_min: int
    physical_offset_max: int
    walked_from: int  # where the walk with checksums began
    records_walked: int
    last_store_time_ms: int
    cut_bytes: int = 0  # from the end of the log to the last byte behind it that is not zero
    cut_files: int = 0
    reason: str = ""
    holes: tuple[Hole, ...] = ()  # damaged parts of what was walked with checksums, with whole records behind them
    units_added: int = 0  # queue units that the log had and the queues lacked
    units_corrected: int = 0  # units that contradicted the log
    units_cut: int = 0  # units without a record
    queues_rebuilt: tuple[DamagedQueue, ...] = ()
    index_rebuilt: tuple[str, ...] = ()  # why index files were removed
    index_entries_added: int = 0
    trusted_bytes: int = 0  # of queues and index that nothing vouches for and that were not compared with the log
    is_vouched_for: bool = False  # there is a ledger of this log, written in this run of the machine
    is_new: bool = False  # nothing was there yet

    @property
    def found_damage(self) -> bool:
        return bool(self.cut_bytes or self.units_corrected or self.queues_rebuilt or self.holes)


def recover(
    log: RecoverableLog,
    queues: ConsumeQueueTable,
    index: IndexService | None,
    *,
    checkpoint: CheckpointValues,
    ledger: Ledger | None,
    was_clean_exit: bool,
    delay_levels: DelayLevels,
    damaged: Sequence[DamagedQueue] = (),
    index_damage: Sequence[str] = (),
    boot_id: str = "",
    check_body_crc: bool = True,
    check_record_crc: bool = False,
    bounds: StartBounds = START_BOUNDS,
) -> RecoveryReport:
    """Run after `load` of log, queues and index (the reasons they gave are `damaged` and `index_damage`).

    On return the log is cut, queues and index agree with it, and every queue's `min_offset` and `max_offset` are
    right. Nothing is synced here: the store flushes and writes the checkpoint afterwards.
    """
    began_s = time.monotonic()
    run = _Recovery(log, queues, index, checkpoint, ledger, was_clean_exit, delay_levels)
    run.check_body_crc = check_body_crc
    run.check_record_crc = check_record_crc
    run.boot_id = boot_id
    run.bounds = bounds
    while True:
        try:
            report = run.run(list(damaged), list(index_damage))
            break
        except CorruptStoreError:  # a queue file beyond the bounds was read, and it is not what was written
            if not run.distrust_damaged():
                raise
    if report.trusted_bytes:
        _log.warning(
            "%d bytes of queues and index were not checked: there is no ledger of this log, and it is too large to "
            "compare them with it now; `contrailmq store verify DIR` does",
            report.trusted_bytes,
        )
    if report.is_new:
        _log.info("the store is new: its log is empty")
        return report
    level = logging.WARNING if report.found_damage else logging.INFO
    _log.log(level, "recovered the store: %s", recovery_text(report, seconds=time.monotonic() - began_s))
    return report


def recovered_end(
    log: RecoverableLog,
    queues: ConsumeQueueTable,
    *,
    checkpoint: CheckpointValues,
    ledger: Ledger | None,
    was_clean_exit: bool,
    delay_levels: DelayLevels,
    boot_id: str,
) -> tuple[int, str]:
    """Where `recover` would end the log, and what it finds there. Nothing is changed."""
    run = _Recovery(log, queues, None, checkpoint, ledger, was_clean_exit, delay_levels)
    run.boot_id = boot_id
    nobody = Reconciler(queues, None, delay_levels, scope=frozenset(), queues_from=2**63)
    end, _, walked = run._walk_to_end(nobody, run._first_file())
    return end, walked.verdict.reason or walked.verdict.kind.value


class _Recovery:
    """State of one run; see the module's text for the plan."""

    def __init__(
        self,
        log: RecoverableLog,
        queues: ConsumeQueueTable,
        index: IndexService | None,
        checkpoint: CheckpointValues,
        ledger: Ledger | None,
        was_clean_exit: bool,
        delay_levels: DelayLevels,
    ) -> None:
        self.log = log
        self.queues = queues
        self.index = index
        self.checkpoint = checkpoint
        self.old_ledger = ledger  # believed or not: index files that it names and that are gone left a hole
        self.ledger = ledger if ledger is not None and ledger.is_current(checkpoint, log.files) else None
        self.was_clean_exit = was_clean_exit
        self.delay_levels = delay_levels
        self.files = list(log.files)
        self.check_body_crc = True
        self.check_record_crc = False
        self.boot_id = ""  # empty: unknown
        self.bounds = START_BOUNDS
        self.distrusted: set[tuple[str, int]] = set()  # queues that were found damaged on the way
        self.units_added = self.units_corrected = self.units_cut = 0
        self.holes: list[Hole] = []

    def distrust_damaged(self) -> bool:
        """Have the next run make those queues again that a read found damaged; False when there are none."""
        damaged = [queue for queue in self.queues if DAMAGED in {checksum for checksum, _ in queue.doubts.values()}]
        self.distrusted |= {(queue.topic, queue.queue_id) for queue in damaged}
        return bool(damaged)

    def run(self, damaged: list[DamagedQueue], index_damage: list[str]) -> RecoveryReport:
        """Recover. Whatever a run that failed has done, this one does again."""
        self._begin_again()
        if not self.files:
            return self._without_log()
        log_min = self.files[0].base
        first = self._first_file()
        walk_from = self.files[first].base
        is_full = self.ledger is None and (walk_from == log_min or walk_from - log_min <= self.bounds.walk_bytes)
        damaged += self._doubtful_queues(walk_from) + self._changed_queues(is_full=is_full)
        index_damage += self._doubtful_index(is_full=is_full)
        entries_before = self.index.entries if self.index is not None else 0
        index_from = self._index_from(log_min, walk_from, was_cut=bool(index_damage))
        # What the ledger vouches for, and its checksums confirmed, need not be compared again.
        queues_from = self.ledger.physical_offset + 1 if self.ledger is not None else 0
        sink = Reconciler(self.queues, self.index, self.delay_levels, queues_from=queues_from, index_from=index_from)
        compared_from = log_min if is_full else self._compared_from(max(log_min, queues_from), walk_from)
        if compared_from < walk_from:
            self._walk_before(sink, first, min(compared_from, index_from))
        elif index_from < walk_from:
            feeder = Reconciler(self.queues, self.index, self.delay_levels, scope=frozenset(), index_from=index_from)
            self._walk_before(feeder, first, index_from)
        end, ended_in, walked = self._walk_to_end(sink, first)
        sink.finish(compared_from, self.holes)
        self._count(sink)
        self.units_cut += self.queues.truncate_physical(end)
        if is_full:
            sink.set_minimums()
        else:
            self._rebuild_damaged(damaged, sink.gaps, end)
        if walked.last_offset >= 0:
            self.queues.last_physical_offset = walked.last_offset
            self.queues.last_store_time_ms = walked.store_time_ms
        cut_bytes, reason = self._behind_the_end(end, ended_in, walked)
        cut_files = self.log.truncate_dirty_files(end)
        self._refeed_index(end, index_damage)
        self._restore_empty_queues(end)
        self._recover_batches(end)
        self.queues.correct_min_offsets(log_min)
        return RecoveryReport(
            was_clean_exit=self.was_clean_exit,
            physical_offset_min=log_min,
            physical_offset_max=end,
            walked_from=walk_from,
            records_walked=walked.records,
            last_store_time_ms=walked.store_time_ms,
            cut_bytes=cut_bytes,
            cut_files=cut_files,
            reason=reason,
            holes=tuple(self.holes),
            units_added=self.units_added,
            units_corrected=self.units_corrected,
            units_cut=self.units_cut,
            queues_rebuilt=tuple(damaged),
            index_rebuilt=tuple(index_damage),
            index_entries_added=max(0, self.index.entries - entries_before) if self.index is not None else 0,
            trusted_bytes=self._trusted_bytes(is_full=is_full),
            is_vouched_for=self.ledger is not None and self.ledger.boot_id == self.boot_id and not cut_bytes,
        )

    def _begin_again(self) -> None:
        self.checksum_bytes_left = self.bounds.queue_bytes
        self.holes = []
        for queue in self.queues:
            queue.doubts.clear()
            queue.remove_strays()

    # --- where to begin

    def _first_file(self) -> int:
        """The file at which the walk with checksums begins."""
        newest = self.queues.physical_max
        for number in range(len(self.files) - 1, 0, -1):
            file = self.files[number]
            if check_record(file.mapping, 0, limit=file.size_bytes, physical_offset=file.base).kind is not Kind.WHOLE:
                continue
            store_time_ms = read_store_time(file.mapping, 0)
            if store_time_ms == 0:
                continue
            if file.base <= newest if self.was_clean_exit else store_time_ms <= self._trusted_time_ms():
                return number
        return 0

    def _trusted_time_ms(self) -> int:
        return self.checkpoint.synced_ms

    def _doubtful_queues(self, walk_from: int) -> list[DamagedQueue]:
        """Queues whose content below the walk cannot be right."""
        doubtful: list[DamagedQueue] = []
        log_min = self.files[0].base
        vouched: set[ConsumeQueue] = (
            set()
        )  # exactly what the ledger says: their units were compared with the log before
        # Backwards: the last ones that were loaded are still open.
        for entry in reversed(self.ledger.queues) if self.ledger is not None else ():
            queue = self.queues.get(entry.topic, entry.queue_id)
            if queue is not None and queue.is_as_written(entry.min_offset, entry.max_offset, entry.files):
                vouched.add(queue)
                continue
            reason = self._missing_from(entry)
            if reason:
                doubtful.append(DamagedQueue(entry.topic, entry.queue_id, reason))
            elif queue is not None and queue.doubts and self.ledger is not None and self.ledger.log_min == log_min:
                # As it was found then: a search now would read, and compare, files all over the queue.
                queue.min_offset, queue.first_physical = max(queue.min_offset, entry.min_offset), log_min
        doubtful += [
            DamagedQueue(queue.topic, queue.queue_id, "its last unit contradicts the log")
            for queue in self.queues
            if queue not in vouched
            and queue.max_offset > queue.min_offset
            and not self._last_unit_agrees(queue, walk_from)
        ]
        return doubtful

    def _last_unit_agrees(self, queue: ConsumeQueue, walk_from: int) -> bool:
        """Whether the record that the last unit points at is that message; units inside the walk are left to it."""
        unit = queue.loaded_last
        if unit is None:
            return False
        if unit.is_pre_blank:
            return True
        physical_offset = unit.physical_offset
        if not self.was_clean_exit and physical_offset >= walk_from:
            return True
        if physical_offset < self.files[0].base:
            return True  # cleaned away
        file = self._file_at(physical_offset)
        if file is None:
            return False
        position = physical_offset - file.base
        if position + RECORD_BYTES_MIN > file.size_bytes:
            return False
        size_bytes, queue_id, queue_offset, own_offset = _place_in(file.mapping, position)
        is_that_record = size_bytes == unit.size_bytes and own_offset == physical_offset
        # The record of a light queue's unit names its own queue; the walk compares light queues as well.
        is_that_message = is_that_record and (
            queue.topic.startswith(LIGHT_PREFIX)
            or (queue_id == queue.queue_id and queue_offset == queue.max_offset - 1)
        )
        if is_that_message or physical_offset > self._surely_written_to():
            return is_that_message
        verdict = check_record(file.mapping, position, limit=file.size_bytes, physical_offset=physical_offset)
        return verdict.kind is not Kind.WHOLE  # it was there: the record is damaged, and not the unit

    def _missing_from(self, entry: LedgerEntry) -> str:
        """What the ledger knows of a queue and the queue does not have; empty when all is there."""
        if entry.max_offset == 0:
            return ""
        queue = self.queues.get(entry.topic, entry.queue_id)
        if queue is None:
            return f"it is missing; it held {entry.max_offset} units"
        if queue.min_offset > entry.min_offset:
            return f"it begins at {queue.min_offset}; it held units from {entry.min_offset} on"
        if queue.max_offset < entry.max_offset:
            return f"it ends at {queue.max_offset}; it held {entry.max_offset} units"
        return self._changed_file(queue, entry)

    def _changed_file(self, queue: ConsumeQueue, entry: LedgerEntry) -> str:
        """Which file of a queue is not what the ledger says, newest first; those beyond the bound are left in doubt."""
        if (queue.topic, queue.queue_id) in self.distrusted:
            return "some of its units are not those that were written"
        for base, checksum in reversed(entry.files):
            if base not in queue.bases:
                continue
            is_bad = checksum == DAMAGED
            # What the broker's own services read is in no doubt: they would end at the error.
            if not is_bad and (self.checksum_bytes_left > 0 or is_system_topic(queue.topic)):
                self.checksum_bytes_left -= min(queue.file_bytes, queue.max_offset * UNIT_BYTES - base)
                is_bad = not queue.check_file(base, checksum, entry.max_offset)
            elif not is_bad:
                queue.doubt(base, checksum, entry.max_offset)
            if is_bad:
                queue.doubts.clear()
                return f"the units in file {base} are not those that were written"
        return ""

    def _changed_queues(self, *, is_full: bool) -> list[DamagedQueue]:
        """Where nothing else is known: a ledger of an older state of the log still says what full files held."""
        changed: list[DamagedQueue] = []
        if self.ledger is not None or self.old_ledger is None or is_full:
            return changed
        for entry in self.old_ledger.queues:
            queue = self.queues.get(entry.topic, entry.queue_id)
            if queue is None or self.checksum_bytes_left <= 0:
                continue
            end = min(entry.max_offset, queue.max_offset) * UNIT_BYTES
            full = [(base, checksum) for base, checksum in entry.files if base + queue.file_bytes <= end]
            reason = self._changed_file(queue, entry._replace(files=full))
            if reason:
                changed.append(DamagedQueue(entry.topic, entry.queue_id, reason))
            queue.doubts.clear()  # beyond the bound: it may be another queue of this name by now
        return changed

    def _doubtful_index(self, *, is_full: bool) -> list[str]:
        if self.index is None:
            return []
        reasons = remove_doubtful(
            self.index,
            self.files,
            ledger=self.ledger,
            old_ledger=self.old_ledger,
            bytes_max=self.bounds.index_bytes,
        )
        if is_full and self.index.entries <= self.bounds.index_entries:
            reasons += remove_contradicting(self.index, self.files)
        return reasons

    def _trusted_bytes(self, *, is_full: bool) -> int:
        """What nobody vouches for: there was no ledger, and more than a start compares."""
        if self.ledger is not None:
            return 0
        index_files = self.index.index_files if self.index is not None else []
        is_index_compared = is_full and sum(file.entries for file in index_files) <= self.bounds.index_entries
        in_index = 0 if is_index_compared else sum(file.used_bytes for file in index_files if not file.is_vouched_for)
        in_queues = 0 if is_full else sum(queue.max_offset - queue.min_offset for queue in self.queues) * UNIT_BYTES
        return in_index + in_queues

    def _index_from(self, log_min: int, walk_from: int, *, was_cut: bool) -> int:
        """From which record on the index has to be fed."""
        if self.index is None:
            return walk_from
        end_offset = self.index.end_offset
        if end_offset < log_min:
            return log_min
        if self.was_clean_exit and self.ledger is not None and self.ledger.index_end_offset == end_offset:
            return max(end_offset + 1, min(walk_from, self.ledger.physical_offset + 1))
        # The newest record may have some of its keys in a file that is gone: enter it again, unless nothing is missing.
        return end_offset + 1 if self.was_clean_exit and self.ledger is None and not was_cut else end_offset

    def _compared_from(self, vouched_to: int, walk_from: int) -> int:
        """From where on units are compared, when not over the whole log."""
        if self.ledger is not None and vouched_to < walk_from <= vouched_to + self.bounds.walk_bytes:
            return vouched_to  # another program appended behind the ledger's back: compare what it dispatched
        return max(walk_from, vouched_to)

    # --- walking

    def _walk_before(self, sink: Reconciler, first: int, begin: int) -> None:
        """By headers, from the file of `begin` up to the checked part. A hole there is old, and never cuts the log."""
        for file in self.files[:first]:
            if file.base + file.size_bytes > begin:
                for hole in walk_over(file, sink, expects=sink.expects):
                    _log.error("log file %d has a hole from %d to %d: %s", file.base, *hole)

    def _walk_to_end(self, sink: Reconciler, first: int) -> tuple[int, LogFile, WalkEnd]:
        """With checksums, to the end of the log: (its offset, the file it is in, what is there)."""
        records = store_time_ms = position = 0
        last_offset = -1
        number = first
        while True:
            file = self.files[number]
            end = walk(
                file,
                sink,
                position=position,
                check_body_crc=self.check_body_crc,
                check_record_crc=self.check_record_crc,
                take_from=sink.take_from,
                expects=sink.expects,
            )
            if end.records:
                records += end.records
                last_offset, store_time_ms = end.last_offset, end.store_time_ms
            is_last = number + 1 == len(self.files)
            if end.verdict.kind is Kind.BLANK and not is_last:
                # A blank with a file behind it is only the end of its file; a gap between files is reported by the
                # log's own check and walked over, as Apache does.
                number, position = number + 1, 0
                continue
            beyond = self._beyond_hole(number, end, store_time_ms)
            if beyond is None:
                total = WalkEnd(end.position, end.verdict, records, last_offset, store_time_ms)
                return file.base + end.position, file, total
            # Where only a body is damaged, the header still says which queue offset is taken.
            hole_end = beyond[1] if beyond[0] == number else file.size_bytes
            walk(file, sink, position=end.position, limit=hole_end, check_body_crc=False)
            number, position = beyond

    def _beyond_hole(self, number: int, end: WalkEnd, time_ms: int) -> tuple[int, int] | None:
        """Where the log goes on after a place that was surely written; None when its end is here.

        `time_ms` is the store time of the newest record before it.
        """
        file, begin = self.files[number], end.position
        if end.verdict.kind is Kind.BLANK:
            return None
        look_to = begin
        if file.base + begin <= self._surely_written_to() or time_ms < self._trusted_time_ms():
            look_to = file.size_bytes
        elif self._is_all_there:  # nearly always nothing follows: no reason to look through a gigabyte of zeros
            look_to = min(begin + _LOOK_BEHIND_BYTES, file.size_bytes)
        position = next_record(file, begin, look_to) if look_to > begin else -1
        if position >= 0:
            beyond = number, position
        elif look_to == file.size_bytes and number + 1 < len(self.files):
            beyond = number + 1, 0
        else:
            return None
        if not self._was_written(*beyond, after_ms=time_ms):
            return None
        there = self.files[beyond[0]].base + beyond[1]
        hole = Hole(file.base + begin, there, end.verdict.reason)
        self.holes.append(hole)
        _log.error(
            "the log is damaged from %d to %d: %s; what follows is kept; restore the file from a copy",
            *hole,
        )
        return beyond

    def _was_written(self, number: int, position: int, *, after_ms: int) -> bool:
        """Whether a place was part of this log. Other programs leave old bytes past an end where they cut the log: such
        a record is older than those before it."""
        file = self.files[number]
        if file.base + position <= self._surely_written_to():
            return True
        verdict = check_record(file.mapping, position, limit=file.size_bytes, physical_offset=file.base + position)
        if verdict.kind is not Kind.WHOLE:
            return verdict.kind is Kind.BLANK and self._is_all_there
        time_ms = read_store_time(file.mapping, position)
        return after_ms <= time_ms and (self._is_all_there or time_ms <= self._trusted_time_ms())

    @property
    def _is_all_there(self) -> bool:
        """Whatever the last process wrote is still there: it synced all of it and closed the store, or was killed in
        this run of the machine."""
        return self.was_clean_exit or (
            self.boot_id != "" and self.old_ledger is not None and self.old_ledger.boot_id == self.boot_id
        )

    def _surely_written_to(self) -> int:
        """The newest record that was in the log, whatever stands there now; -1 when a crash may have kept it out."""
        if self.ledger is not None and self._is_all_there:
            return self.ledger.physical_offset
        return -1

    def _rebuild_damaged(self, damaged: list[DamagedQueue], gaps: set[tuple[str, int]], end: int) -> None:
        known = {(queue.topic, queue.queue_id) for queue in damaged}
        damaged += [DamagedQueue(*key, "units before the checkpoint are missing") for key in sorted(gaps - known)]
        self._rebuild(known | gaps, end)

    def _rebuild(self, scope: set[tuple[str, int]], end: int) -> None:
        """Compare some queues over the whole log."""
        if not scope:
            return
        sink = Reconciler(self.queues, None, self.delay_levels, scope=scope)
        for file in self.files:
            if file.base < end:
                walk_over(file, sink, limit=min(file.size_bytes, end - file.base))
        sink.finish(self.files[0].base, self.holes)
        sink.set_minimums()
        self._count(sink)

    def _refeed_index(self, end: int, reasons: list[str]) -> None:
        """The log was cut below what the index knows: its last files go, their records are entered again."""
        if self.index is None or self.index.end_offset < end:
            return
        reasons.append(f"it pointed at {self.index.end_offset}, past the end of the log at {end}")
        self.index.truncate_physical(end)
        begin = max(self.index.end_offset, self.files[0].base)
        sink = Reconciler(self.queues, self.index, self.delay_levels, scope=frozenset(), index_from=begin)
        for file in self.files:
            if file.base + file.size_bytes > begin and file.base < end:
                walk_over(file, sink, limit=min(file.size_bytes, end - file.base))

    # --- afterwards

    def _behind_the_end(self, end: int, file: LogFile, walked: WalkEnd) -> tuple[int, str]:
        """Erase what lies past the end; how much that was, to the last byte that is not zero, and why."""
        cut_bytes = _erase(file, end - file.base)
        for later in self.files:
            if later.base > end:  # these go as a whole
                cut_bytes += len(later.mapping[:_LOOK_BEHIND_BYTES].rstrip(b"\0"))
        if not cut_bytes:
            return 0, ""
        reason = walked.verdict.reason
        if walked.verdict.kind is Kind.BLANK:
            reason = "the last file was closed by a blank: writing resumes in its place"
        return cut_bytes, f"at {end}: {walked.verdict.kind.value}, {reason}"

    def _restore_empty_queues(self, end: int) -> None:
        """A queue whose messages are all gone still must not give out an offset twice."""
        for entry in self.ledger.queues if self.ledger is not None else ():
            queue = self.queues.get(entry.topic, entry.queue_id)
            is_empty = queue is None or queue.max_offset == queue.min_offset == 0
            following = self._following(entry, end)
            if is_empty and following and not self.queues.batches.holds(entry.topic):
                queue = self.queues.find_or_create(entry.topic, entry.queue_id)
                queue.start_at(following)
                self.queues.mark_dirty(queue)

    def _following(self, entry: LedgerEntry | BatchEntry, end: int) -> int:
        """The next offset of a queue that is empty now. If the log lost what the ledger knew, it lost all of these."""
        return entry.max_offset if self._has_mark(end) else entry.min_offset

    def _has_mark(self, end: int) -> bool:
        """Whether the ledger's newest record is in the log, which ends there."""
        return self.ledger is not None and self.ledger.physical_offset < end

    def _recover_batches(self, end: int) -> None:
        """Batch queues: believed as far as the ledger is, else made again; then what the log has more."""
        batches = self.queues.batches
        entries = self.ledger.batches if self.ledger is not None else []
        if not (len(batches) or entries or batches.was_seen):
            return
        begin = self.files[0].base
        if self.ledger is not None and self._has_mark(end) and not batches.is_mixed and batches.agrees_with(entries):
            batches.keep_only(entries)
            begin = max(begin, self.ledger.physical_offset)
        else:
            batches.reset()
        sink = BatchSink(batches, begin=begin)
        for file in self.files:
            if file.base + file.size_bytes > begin and file.base < end:
                limit, position = min(file.size_bytes, end - file.base), max(0, begin - file.base)
                walk_over(file, sink, position=position, limit=limit)
        batches.keep_maximums([entry._replace(max_offset=self._following(entry, end)) for entry in entries])

    def _without_log(self) -> RecoveryReport:
        """No log, no messages: whatever queues and index say is about a log that is gone."""
        count = len(self.queues)
        self.queues.destroy()
        reasons: list[str] = []
        if self.index is not None and self.index.entries:
            self.index.truncate_physical(0)
            reasons.append("the log is gone")
        return RecoveryReport(
            was_clean_exit=self.was_clean_exit,
            physical_offset_min=0,
            physical_offset_max=0,
            walked_from=0,
            records_walked=0,
            last_store_time_ms=0,
            reason=f"there is no log: {count} queues were removed" if count else "",
            index_rebuilt=tuple(reasons),
            is_new=self.was_clean_exit and self.old_ledger is None and not count and not reasons,
        )

    def _file_at(self, physical_offset: int) -> LogFile | None:
        first = self.files[0]
        number = (physical_offset - first.base) // first.size_bytes
        if 0 <= number < len(self.files) and self.files[number].base == first.base + number * first.size_bytes:
            return self.files[number]
        return next((f for f in self.files if f.base <= physical_offset < f.base + f.size_bytes), None)

    def _count(self, sink: Reconciler) -> None:
        self.units_added += sink.units_added
        self.units_corrected += sink.units_corrected
        self.units_cut += sink.units_cut


def _erase(file: LogFile, position: int) -> int:
    """Zero a file from `position` on; how many bytes up to the last one that was not zero.

    Apache leaves them. A later record of the same size as the one that was cut would then be followed by the old
    record after it, whole and at its right offset, and the next recovery would bring that one back.
    """
    look_to = min(position + _LOOK_BEHIND_BYTES, file.size_bytes)
    if all(
        _ZEROS.startswith(file.mapping[start : min(start + len(_ZEROS), look_to)])
        for start in range(position, look_to, len(_ZEROS))
    ):  # nearly always, and quicker to see than where it ends
        return 0
    cut_bytes = 0
    for start in range(position, file.size_bytes, _LOOK_BEHIND_BYTES):
        data = file.mapping[start : min(start + _LOOK_BEHIND_BYTES, file.size_bytes)]
        used = len(data.rstrip(b"\0"))
        if used:
            file.mapping[start : start + used] = bytes(used)
            cut_bytes = start + used - position
    return cut_bytes
