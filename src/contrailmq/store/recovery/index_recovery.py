"""Which index files cannot be trusted at a start, beyond what each of them shows itself (index_file.py).

Four questions, cheapest first. Everything from the first doubtful file on is removed and entered again from the log:

* Is a file missing that the ledger names?
* Do the files leave out a message? Each must begin with the first message with a key after the file before, the first
  one with the first such message of the log. This reads one record per file and needs no ledger.
* Does a file match its checksum in the ledger, taken when it was full or at a clean close? The newest half a gigabyte
  is compared now, the others when a query first reaches them. An older ledger still covers full files.
* Without a ledger, and if both are small: does every record have its entries, with the right times, and no others?
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from contrailmq.message.codec import Kind, check_record
from contrailmq.message.record import RecordView, view_record
from contrailmq.store.base.findings import Finding, VerifyReport
from contrailmq.store.index.index_file import DAMAGED, IndexFile
from contrailmq.store.index.index_service import IndexService
from contrailmq.store.index.verify_index import IndexChecker
from contrailmq.store.queues.derivation import index_keys
from contrailmq.store.recovery.log_walk import LogFile, walk
from contrailmq.store.recovery.queue_ledger import Ledger

KEYLESS_BYTES_MAX: Final = 1 << 30  # of the log, walked over for one index file


def remove_doubtful(
    index: IndexService,
    log_files: Sequence[LogFile],
    *,
    ledger: Ledger | None,
    old_ledger: Ledger | None,
    bytes_max: int,
) -> list[str]:
    """Remove the index files that cannot be right, and those behind them; the reasons.

    `ledger` is believed; `old_ledger` may be of an older state of this log. At most `bytes_max` are read for checksums,
    the newest file in any case.
    """
    reasons = _missing(index, log_files, ledger, old_ledger)
    reasons += _leaving_out(index, log_files, ledger)
    if old_ledger is not None:
        reasons += _changed(index, old_ledger, bytes_max, is_believed=ledger is not None)
    return reasons


def remove_contradicting(index: IndexService, log_files: Sequence[LogFile]) -> list[str]:
    """Compare all entries with the log, by headers; remove the first file that contradicts it and those behind it."""
    index_files = [file for file in index.index_files if file.entries]
    if not index_files:
        return []
    report = VerifyReport("")
    sink = _CheckerSink(IndexChecker(index_files, report, log_min=log_files[0].base), index.end_offset)
    for file in log_files:
        if file.base <= index.end_offset:
            walk(file, sink, check_body_crc=False)
    sink.checker.finish()
    for index_file in index_files:
        index_file.forget_pages()
    first = min(report.findings, key=lambda finding: _file_of(index_files, finding), default=None)
    if first is None:
        return []
    name = _file_of(index_files, first)
    index.remove_from(name)
    return [f"index file {name} contradicts the log: at {first.offset}, {first.problem}"]


def _file_of(index_files: Sequence[IndexFile], finding: Finding) -> str:
    if finding.where or finding.offset is None:
        return finding.where
    offset = finding.offset
    return next((file.path.name for file in index_files if offset <= file.end_offset), index_files[-1].path.name)


class _CheckerSink:
    """Hands the records of a walk, as far as the index goes, to a checker."""

    def __init__(self, checker: IndexChecker, end_offset: int) -> None:
        self.checker = checker
        self._end_offset = end_offset

    def take(self, record: RecordView, /) -> None:
        if record.physical_offset <= self._end_offset:
            self.checker.take(record, index_keys(record))


def _missing(
    index: IndexService, log_files: Sequence[LogFile], ledger: Ledger | None, old_ledger: Ledger | None
) -> list[str]:
    """Apache removes the file it was filling after a crash, and enters again only what its recovery walks."""
    present = {file.path.name for file in index.index_files}
    missing = [
        entry.name
        for entry in (old_ledger.index if old_ledger is not None else ())
        if entry.name not in present and (ledger is not None or entry.end_offset >= log_files[0].base)
    ]
    if missing:
        index.remove_from(missing[0])
    return [f"index file {name} is missing" for name in missing]


def _leaving_out(index: IndexService, log_files: Sequence[LogFile], ledger: Ledger | None) -> list[str]:
    known = [entry.name for entry in ledger.index] if ledger is not None else []
    vouched = set(zip(["", *known], known, strict=False))  # follow each other, the ledger says
    before: IndexFile | None = None
    for file in index.index_files:
        if not file.entries:
            continue
        name = file.path.name
        if (before.path.name if before is not None else "", name) not in vouched:
            left_out = _first_keyed(log_files, before.end_offset if before is not None else -1, file.begin_offset)
            if left_out >= 0:
                index.remove_from(name)
                return [
                    f"index file {name} begins with the message at {file.begin_offset}, "
                    f"and the one at {left_out} is in no file before it"
                ]
        before = file
    return []


def _first_keyed(log_files: Sequence[LogFile], after: int, below: int) -> int:
    """The first record with a key behind the one at `after` and before the one at `below`; -1 when there is none."""
    offset, skips = max(after, log_files[0].base), after >= log_files[0].base
    stop = min(below, offset + KEYLESS_BYTES_MAX)
    for file in log_files:
        end = file.base + file.size_bytes
        while file.base <= offset < min(end, stop):
            position = offset - file.base
            verdict = check_record(
                file.mapping, position, limit=file.size_bytes, physical_offset=offset, check_body_crc=False
            )
            if verdict.kind is not Kind.WHOLE:  # a BLANK, or a hole that costs the rest of its file
                offset = end
                break
            keys = index_keys(view_record(file.mapping, position))
            if keys is not None and not skips and (keys.unique_key or (keys.keys or "").strip(" ")):
                return offset
            skips = False
            offset += verdict.size_bytes
        if offset < file.base:  # files are missing in between
            return -1
    return -1


def _changed(index: IndexService, ledger: Ledger, bytes_max: int, *, is_believed: bool) -> list[str]:
    known = {entry.name: entry for entry in ledger.index}
    changed = reason = ""
    left = bytes_max
    for file in reversed(index.index_files):
        entry = known.get(file.path.name)
        if entry is None or not entry.units or (file.is_restored and entry.checksum != DAMAGED):
            continue
        cause = ""
        if entry.checksum == DAMAGED:
            cause = "was found damaged"
        elif not is_believed and not (file.is_full and entry.units == file.count):
            continue
        elif entry.units != file.count:
            cause = f"has {file.entries} entries, it had {entry.units - 1}"
        elif left > 0:
            left -= file.used_bytes
            if file.compute_checksum() != entry.checksum:
                cause = "is not what was written: its checksum differs"
        elif is_believed:
            file.is_doubtful = True
        if cause:
            changed, reason = file.path.name, cause
        elif is_believed:
            file.checksum, file.checksum_count = entry.checksum, entry.units
    if not changed:
        return []
    index.remove_from(changed)
    return [f"index file {changed} {reason}"]
