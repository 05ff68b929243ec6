"""The index against the log, for verify: every entry in the order of the log, with its time, and both headers' ends.

The entries of all index files are in log order, so they are read along with the records: those of a record must be
its unique key, its keys and its tag (a missing tag is not a finding: Apache before 5.5 entered none), and an entry
between two records points at nothing. Times of entries are whole seconds from the begin time in their file's header,
which is the store time of the file's first record; the first entry alone counts from the end of the file before it
(IndexFile.putKey). A query with a time range relies on all of them.

Records before the first entry of the index are one finding together: its first file is missing, or it was turned on
later.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from contrailmq.message import java_hash
from contrailmq.message.record import RecordView
from contrailmq.store.base.findings import VerifyReport
from contrailmq.store.index.index_file import IndexFile, seconds_since, stored_hash
from contrailmq.store.queues.derivation import IndexKeys
from contrailmq.store.queues.queue_state import TAG_KIND

_NOWHERE: Final = 2**63  # after every record


class _Entry(NamedTuple):
    key_hash: int
    physical_offset: int
    seconds: int
    number: int  # of its unit, from 1
    file: IndexFile


class IndexChecker:
    """Takes the records of the log in order, then `finish`."""

    def __init__(
        self,
        index_files: Sequence[IndexFile],
        report: VerifyReport,
        *,
        log_min: int,
        in_flight_ms: int | None = None,
    ) -> None:
        """`in_flight_ms`: the store is in use, and entries of records from after this time may be on their way."""
        self._report = report
        self._log_min = log_min
        self._in_flight_ms = in_flight_ms
        self._growing = index_files[-1] if index_files and in_flight_ms is not None else None
        self._entered_to = max((file.end_offset for file in index_files if file.entries), default=0)
        for index_file in index_files:
            fault = index_file.fault(units_checked_max=2**31) if index_file is not self._growing else None
            if fault is not None:
                report.add("index", index_file.path.name, None, fault)
        self._prefixes: dict[str, int] = {}
        self._file: IndexFile | None = None  # of the entry compared last
        self._begin_ms = 0  # from which the entries of that file count
        self._end_ms: int | None = 0 if not log_min else None  # of the file before; None where it was cleaned away
        # Records with keys before the index begins
        self._first_entry = next((file.begin_offset for file in index_files if file.entries), _NOWHERE)
        self._before = -1
        self._before_keys = 0
        self._entries = _entries(index_files)
        self._entry = self._read()
        while self._entry is not None and self._entry.physical_offset < log_min:
            if self._entry.number == self._entry.file.entries:
                self._end_ms = self._entry.file.end_time_ms
            self._entry = self._read()  # cleaned away

    def take(self, record: RecordView, keys: IndexKeys | None) -> None:
        """Compare the entries of one record."""
        physical_offset, store_time_ms = record.physical_offset, record.store_time_ms
        while self._entry is not None and self._entry.physical_offset < physical_offset:
            self._orphan()
        found: set[int] = set()
        while self._entry is not None and self._entry.physical_offset == physical_offset:
            found.add(self._entry.key_hash)
            self._report.index_entries += 1
            self._check_time(self._entry, store_time_ms)
            self._entry = self._read()
        expected, tag = self._expected(record.topic_name, keys)
        missing = len(expected - found)
        if missing and self._is_in_flight(physical_offset, store_time_ms):
            return
        if missing and physical_offset < self._first_entry:
            self._before = physical_offset if self._before < 0 else self._before
            self._before_keys += missing
            self._end_ms = None  # of the file that is not there
        elif missing:
            said = f"{_counted(missing, 'key', 'keys')} of this record: missing"
            self._report.add("index", "", physical_offset, said)
        foreign = len(found - expected - tag)
        if foreign:
            said = f"{_counted(foreign, 'entry', 'entries')} of this record: not its keys"
            self._report.add("index", "", physical_offset, said)

    def pass_over(self, begin: int, end: int) -> None:
        """Entries of records that were damaged and moved aside from [begin, end) are not findings."""
        while self._entry is not None and self._entry.physical_offset < begin:
            self._orphan()
        while self._entry is not None and self._entry.physical_offset < end:
            self._report.index_entries += 1
            self._leave_entry()

    def _is_in_flight(self, physical_offset: int, store_time_ms: int) -> bool:
        if self._in_flight_ms is None:
            return False
        return physical_offset >= self._entered_to and store_time_ms > self._in_flight_ms

    def finish(self) -> None:
        """What no record of the log belongs to, and what comes before the index."""
        while self._entry is not None:
            self._orphan()
        if self._before_keys:
            begin = f"begins at {self._first_entry}" if self._first_entry < _NOWHERE else "is empty"
            problem = (
                f"the index {begin}: it lacks {_counted(self._before_keys, 'key', 'keys')} of the records before, from "
                "here on (its first file was removed, or it was turned on later); `store rebuild` makes it whole"
            )
            self._report.add("index", "", self._before, problem)

    def _check_time(self, entry: _Entry, store_time_ms: int) -> None:
        file, where = entry.file, entry.file.path.name
        if file is not self._file:
            self._file, self._begin_ms = file, file.begin_time_ms
        expected: int | None = seconds_since(self._begin_ms, store_time_ms)
        if entry.number == 1:
            expected = None if self._end_ms is None else seconds_since(self._end_ms, store_time_ms)
            self._begin_ms = store_time_ms
            if file.begin_time_ms != store_time_ms:
                said = f"its header begins at time {file.begin_time_ms}, its first record was stored at {store_time_ms}"
                self._report.add("index", where, entry.physical_offset, said)
        if expected is not None and entry.seconds != expected:
            said = f"unit {entry.number} stands at {entry.seconds} s, its record's store time gives {expected} s"
            self._report.add("index", where, entry.physical_offset, said)
        if entry.number == file.entries:
            self._end_ms = store_time_ms
            if file.end_time_ms != store_time_ms and file is not self._growing:
                said = f"its header ends at time {file.end_time_ms}, its last record was stored at {store_time_ms}"
                self._report.add("index", where, entry.physical_offset, said)

    def _expected(self, topic: str, due: IndexKeys | None) -> tuple[set[int], set[int]]:
        if due is None:
            return set(), set()
        prefix = self._prefixes.get(topic)
        if prefix is None:
            prefix = self._prefixes[topic] = java_hash(topic + "#")
        keys = [due.unique_key or "", *(due.keys or "").split(" ")]
        hashes = {java_hash(key, seed=prefix) for key in keys if key}
        tag = {java_hash(f"{topic}#{TAG_KIND}#{due.tags}")} if due.tags else set()
        return {stored_hash(number) for number in hashes}, {stored_hash(number) for number in tag}

    def _orphan(self) -> None:
        assert self._entry is not None
        self._report.index_entries += 1
        where = self._entry.file.path.name
        self._report.add("index", where, self._entry.physical_offset, "an entry points here, where no record begins")
        self._leave_entry()

    def _leave_entry(self) -> None:
        """Continue after an entry without a record, and so without its time."""
        assert self._entry is not None
        if self._entry.number == self._entry.file.entries:
            self._end_ms = None
        self._entry = self._read()

    def _read(self) -> _Entry | None:
        """The next entry of all."""
        entry = next(self._entries, None)
        if entry is not None and entry.number == 1 and entry.file.begin_offset != entry.physical_offset:
            said = f"its header begins at offset {entry.file.begin_offset}, its first unit at {entry.physical_offset}"
            self._report.add("index", entry.file.path.name, entry.physical_offset, said)
        return entry


def _entries(index_files: Sequence[IndexFile]) -> Iterator[_Entry]:
    for index_file in index_files:
        for number, (key_hash, physical_offset, seconds) in enumerate(index_file.scan(), 1):
            yield _Entry(key_hash, physical_offset, seconds, number, index_file)


def _counted(count: int, noun: str, plural: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count:,} {plural}"
