"""Which index files cannot be believed at a start, beyond what each of them shows by itself (index.py).

Three questions, cheapest first; everything from the first doubtful file on is removed and entered again from the log:

* Is a file gone that the ledger names?
* Do the files leave out a message? Each begins with the first message with a key behind the last one of the file before
  it, and the first file with the first such message of the log. One record is read for each file; this finds what was
  deleted also where no ledger knew of it. (Messages without any key are walked over, up to a gigabyte of them.)
* Does a file hold what the ledger says was written, by its checksum? Taken when a file is full and at a clean close,
  compared as long as no entry was added since: it notices a flipped bit that leaves the file's structure alone, as in
  the times. The newest half a gigabyte is compared, a second of cold reads; `store verify` reads everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from contrailmq.message import SysFlag
from contrailmq.store.index import INDEX_CHECKSUM_BYTES_MAX, IndexService
from contrailmq.store.index_file import IndexFile
from contrailmq.store.log_walk import LogFile
from contrailmq.store.queue_ledger import Ledger
from contrailmq.store.record import Kind, check_record, read_facts

KEYLESS_BYTES_MAX: Final = 1 << 30  # of the log, walked over for one index file


def remove_doubtful(
    index: IndexService, log_files: Sequence[LogFile], *, ledger: Ledger | None, old_ledger: Ledger | None
) -> list[str]:
    """Remove the index files that cannot be right, and those behind them; the reasons.

    `ledger` is believed; `old_ledger` may be of an older state of this log.
    """
    reasons = _missing(index, log_files, ledger, old_ledger)
    reasons += _leaving_out(index, log_files, ledger)
    if ledger is not None:
        reasons += _changed(index, ledger)
    return reasons


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
            facts = read_facts(file.mapping, position)
            is_entered = facts.sys_flag & SysFlag.TRANSACTION_MASK != SysFlag.TRANSACTION_ROLLBACK
            if is_entered and not skips and (facts.unique_key or (facts.keys or "").strip(" ")):
                return offset
            skips = False
            offset += verdict.size_bytes
        if offset < file.base:  # files are missing in between
            return -1
    return -1


def _changed(index: IndexService, ledger: Ledger) -> list[str]:
    known = {entry.name: entry for entry in ledger.index}
    left = INDEX_CHECKSUM_BYTES_MAX
    changed = ""
    for file in reversed(index.index_files):
        entry = known.get(file.path.name)
        if entry is None or entry.checksum < 0 or entry.units != file.count:
            continue
        if file.used_bytes <= left:
            left -= file.used_bytes
            if file.compute_checksum() != entry.checksum:
                changed = file.path.name
                continue
        file.checksum, file.checksum_count = entry.checksum, entry.units
    if not changed:
        return []
    index.remove_from(changed)
    return [f"index file {changed} is not what was written: its checksum differs"]
