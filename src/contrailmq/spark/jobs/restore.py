"""`restore`: messages of an archive as a new store directory, which a broker serves (ours or Apache's).

Every message keeps its queue offset and store time. Where the archive kept the records (`archive --keep-records`), they
come back byte for byte at their old places in the log, so message ids still lead to them. The placeholders of `store
repair` fill the gaps, and a broker passes over these. If one chosen row has no record of its own, records are made of
the rows and stand one after the other in a new log, in their old order: same message, other place.

The store is built beside its name and gets it at the end, so no broker starts with half of it. The archive is read
twice, first for places and sizes; what is held in memory is sixteen bytes for each message, and a day's rows of some
topics at a time.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from contrailmq.message import SysFlag, encode_properties
from contrailmq.message.checksum import crc32
from contrailmq.message.codec import (
    BLANK_BYTES,
    CRC_PROPERTY_BYTES,
    encode_blank,
    encode_crc_property,
    encode_record,
)
from contrailmq.message.identity import encode_address
from contrailmq.message.record import PHYSICAL_OFFSET_AT
from contrailmq.spark.columns import RECORD_COLUMN
from contrailmq.spark.decoding.decode import QueueKey, Selection
from contrailmq.spark.jobs.archive_rows import archived_tables
from contrailmq.spark.jobs.manifest import ArchiveError, Manifest, make_folder, sync_folder
from contrailmq.spark.jobs.rebuild import rebuild
from contrailmq.spark.runtime.disk_errors import cause, remedy
from contrailmq.spark.runtime.engine import Engine, LocalEngine, Progress
from contrailmq.store.queues.placeholder import PLACEHOLDER_BYTES_MIN, placeholders

LOG_FILE_BYTES: Final = 1 << 30  # mappedFileSizeCommitLog of a broker that sets none
_PARTLY_BYTES: Final = 4096  # of a placeholder's head and end that are written; the zeros between stay a hole
_CRC_PROPERTY: Final = b"__CRC32#\x01"
_COMPRESSION: Final = SysFlag.COMPRESSED | 0x700  # the bit, and which compression it is
_READ_AND_WRITE: Final = 6
_FAR_MS: Final = 2**63 - 1
_OPEN_MAX: Final = 64  # log files at once
_NEW_NAME: Final = "{}.restoring"

Places = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RestoreResult:
    """What the new store holds. `has_old_places` says that records are byte for byte where they were.

    `in_no_queue` of the messages belong to a topic that was deleted and made again later: its queues hold what came
    then, from offset 0 on, and no broker serves the others.
    """

    messages: int
    topics: int
    queues: int
    has_old_places: bool
    log_begin: int
    log_end: int
    in_no_queue: int


class _Plan(NamedTuple):
    """Where each chosen row goes, in the order in which the archive gives them."""

    places: Places
    sizes: Places
    queues: frozenset[QueueKey]
    has_old_places: bool


def restore(
    source: str,
    target: str,
    engine: Engine | None = None,
    *,
    selection: Selection | None = None,
    broker_name: str | None = None,
    log_file_bytes: int = LOG_FILE_BYTES,
    on_progress: Progress | None = None,
) -> RestoreResult:
    """Write chosen messages of an archive into a new store directory `target`, of the broker `broker_name` if several.

    `log_file_bytes` is the size of the log's files: that of the store that was archived, if records keep their places.
    """
    chosen = Selection() if selection is None else selection
    Manifest(source).check_archive()
    place = Path(target)
    if place.exists() and (not place.is_dir() or any(place.iterdir())):
        raise ArchiveError(f"{target} is not an empty directory: name a new one, a store is not added to")
    plan = _plan(source, chosen, broker_name, log_file_bytes)
    if not len(plan.places):
        raise ArchiveError(
            f"{source} holds no message of this choice: check topics, times and offsets; nothing was made"
        )
    new = place.with_name(_NEW_NAME.format(place.name))
    if new.exists():
        shutil.rmtree(new)  # of a run that was killed
    with _removed_after_error(new):
        make_folder(new / "commitlog")
        _write_log(source, chosen, broker_name, plan, new / "commitlog", log_file_bytes)
        _write_topics(new, plan.queues)
        built = rebuild(str(new), LocalEngine(1) if engine is None else engine, on_progress=on_progress)
    if place.exists():
        place.rmdir()
    new.rename(place)
    sync_folder(place.parent)
    begin, end = int(plan.places.min()), int((plan.places + plan.sizes).max())
    topics = len({topic for topic, _ in plan.queues})
    count = len(plan.places)
    return RestoreResult(
        count, topics, len(plan.queues), plan.has_old_places, begin, end, in_no_queue=count - built.units
    )


@contextmanager
def _removed_after_error(new: Path) -> Iterator[None]:
    """A store that is not complete goes, as it may fill the disk. The system's error often names no file."""
    try:
        yield
    except BaseException as exc:
        shutil.rmtree(new, ignore_errors=True)
        if not isinstance(exc, OSError) or not str(exc.filename or new).startswith(str(new)):
            raise
        raise ArchiveError(
            f"{exc.filename or new} cannot be written: {cause(exc)}; no store was made: {remedy(exc)}, then run again"
        ) from exc


def _rows(source: str, selection: Selection, broker_name: str | None) -> Iterator[pa.Table]:
    """Chosen rows of one broker. Queues of two brokers have the same offsets: no store could hold both."""
    for table in archived_tables(source, selection):
        if broker_name is not None:
            table = table.filter(pc.equal(table["brokerName"], broker_name))
        if len(table):
            yield table


def _plan(source: str, selection: Selection, broker_name: str | None, file_bytes: int) -> _Plan:
    """Read what is chosen once, for its queues, places and sizes."""
    old: list[Places] = []
    offsets: list[Places] = []
    sizes: list[Places] = []
    queues: set[QueueKey] = set()
    names: set[str | None] = set()
    is_kept = True
    for table in _rows(source, selection, broker_name):
        names.update(table["brokerName"].unique().to_pylist())
        if len(names) > 1:
            told = ", ".join(sorted(name or "without a name" for name in names))
            raise ArchiveError(f"{source} holds messages of several brokers ({told}): choose one with --broker-name")
        pairs = table.select(["topic", "queueId"]).group_by(["topic", "queueId"]).aggregate([]).to_pylist()
        queues.update((pair["topic"], pair["queueId"]) for pair in pairs)
        is_kept = is_kept and not table[RECORD_COLUMN].null_count
        old.append(table["physicalOffset"].to_numpy())
        offsets.append(table["queueOffset"].to_numpy())
        lengths = [len(record) for record in _records(table)]
        sizes.append(np.array(lengths, dtype=np.int64))
    if not old:
        return _Plan(np.empty(0, np.int64), np.empty(0, np.int64), frozenset(), is_kept)
    places, lengths_all = np.concatenate(old), np.concatenate(sizes)
    if is_kept:
        _check_places(places, lengths_all, file_bytes)
        return _Plan(places, lengths_all, frozenset(queues), True)
    order = np.lexsort((np.concatenate(offsets), places))
    return _Plan(_new_places(lengths_all, order, file_bytes), lengths_all, frozenset(queues), False)


def _check_places(places: Places, sizes: Places, file_bytes: int) -> None:
    """Refuse a size of files in which a record would cross a border, and records in one another's place."""
    ends = places + sizes
    crossing = places // file_bytes != (ends + BLANK_BYTES - 1) // file_bytes
    if crossing.any():
        first = int(places[crossing].min())
        raise ArchiveError(
            f"the record at {first} does not fit into a log file of {file_bytes} bytes: the archived store had files "
            "of another size, give it with --log-file-bytes (mappedFileSizeCommitLog of its broker)"
        )
    order = np.argsort(places)
    overlaps = ends[order][:-1] > places[order][1:]
    if overlaps.any():
        first = int(places[order][1:][overlaps].min())
        raise ArchiveError(
            f"two records of the archive have the place {first}: they are of two stores; choose topics, times or a "
            "broker so that those of one are left"
        )


def _new_places(sizes: Places, order: Places, file_bytes: int) -> Places:
    """Places one after the other, in this order; what does not fit into a file begins the next.

    The first is not 0: an empty unit of a queue points there, and Apache's broker must see that the log begins later.
    """
    places = np.empty(len(sizes), np.int64)
    position = file_bytes
    for row in order.tolist():
        size = int(sizes[row])
        if position % file_bytes + size + BLANK_BYTES > file_bytes:
            position = (position // file_bytes + 1) * file_bytes
        if size + BLANK_BYTES > file_bytes:
            raise ArchiveError(
                f"a record of {size} bytes does not fit into a log file of {file_bytes}: give a larger one"
            )
        places[row] = position
        position += size
    return places


def _records(table: pa.Table) -> Iterator[bytes]:
    """The record of each row: as it was in the log, or made of the row, with the old place in it."""
    kept = table[RECORD_COLUMN]
    if not kept.null_count:
        for record in kept:
            yield record.as_py()
        return
    for row in table.to_pylist():
        yield row[RECORD_COLUMN] or _made_of(row)


def _made_of(row: dict[str, Any]) -> bytes:
    """A record of a row. Its body is stored as it was read, without compression."""
    return encode_record(
        row["topic"],
        row["body"],
        encode_properties(dict(row["properties"])),
        queue_id=row["queueId"],
        queue_offset=row["queueOffset"],
        physical_offset=row["physicalOffset"],
        born_host=encode_address(row["bornHost"]),
        store_host=encode_address(row["storeHost"]),
        born_time_ms=_ms(row["bornTimestamp"]),
        store_time_ms=_ms(row["storeTimestamp"]),
        flag=row["flag"],
        sys_flag=row["sysFlag"] & ~_COMPRESSION,
        reconsume_times=row["reconsumeTimes"],
        body_bytes_max=max(1, len(row["body"])),
    )


def _ms(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


def _moved(record: bytes, place: int) -> bytes:
    """A record for another place of the log: its own word of it, and the checksum of all if it has one."""
    end = PHYSICAL_OFFSET_AT + 8
    moved = record[:PHYSICAL_OFFSET_AT] + place.to_bytes(8, "big") + record[end:]
    front = moved[:-CRC_PROPERTY_BYTES]
    if not moved[len(front) :].startswith(_CRC_PROPERTY):
        return moved
    return front + encode_crc_property(crc32(front) & 0x7FFFFFFF)


def _write_log(
    source: str, selection: Selection, broker_name: str | None, plan: _Plan, folder: Path, file_bytes: int
) -> None:
    """Write every record at its place, then what fills the gaps; each file is durable."""
    files, places, time_ms = _LogFiles(folder, file_bytes), iter(plan.places.tolist()), _FAR_MS
    try:
        for table in _rows(source, selection, broker_name):
            time_ms = min(time_ms, _ms(pc.min(table["storeTimestamp"]).as_py()))
            for record in _records(table):
                place = next(places)
                files.write(place, record if plan.has_old_places else _moved(record, place))
        _fill_gaps(files, plan, file_bytes, max(1, time_ms))
    finally:
        files.close()


def _fill_gaps(files: _LogFiles, plan: _Plan, file_bytes: int, time_ms: int) -> None:
    """Make a chain of records of the log: placeholders in gaps, and a filler to the end of each file but the last."""
    order = np.argsort(plan.places)
    begins, ends = plan.places[order], (plan.places + plan.sizes)[order]
    position = int(begins[0]) // file_bytes * file_bytes
    # A gap is before a record that does not begin where the one before it ends.
    gaps = np.flatnonzero(np.concatenate([[position], ends[:-1]]) != begins)
    for gap in gaps.tolist():
        position = position if gap == 0 else int(ends[gap - 1])
        while position // file_bytes < int(begins[gap]) // file_bytes:
            if position % file_bytes == 0:  # each file begins with a record: recovery asks its first one for the time
                files.fill(position, position + PLACEHOLDER_BYTES_MIN, time_ms)
                position += PLACEHOLDER_BYTES_MIN
            next_file = (position // file_bytes + 1) * file_bytes
            files.write(position, encode_blank(next_file - position))
            position = next_file
        files.fill(position, int(begins[gap]), time_ms)


class _LogFiles:
    """The files of a new log, opened when first written to, all of one size; what nobody writes is a hole."""

    def __init__(self, folder: Path, file_bytes: int) -> None:
        self._folder, self._file_bytes = folder, file_bytes
        self._open: dict[int, int] = {}  # base -> descriptor

    def write(self, place: int, data: bytes) -> None:
        base = place // self._file_bytes * self._file_bytes
        if base not in self._open:
            if len(self._open) == _OPEN_MAX:
                self._sync()
            path = self._folder / f"{base:020d}"
            self._open[base] = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
            os.ftruncate(self._open[base], self._file_bytes)
        position, left = place - base, memoryview(data)
        while left:  # a disk that has no room for all takes a part first, and tells why with the next
            done = os.pwrite(self._open[base], left, position)
            position, left = position + done, left[done:]

    def fill(self, begin: int, end: int, time_ms: int) -> None:
        """Placeholders from one place to another; of large ones the zeros are left out."""
        for record in placeholders(begin, end, [], store_time_ms=time_ms, ends_file=False):
            if len(record) <= 2 * _PARTLY_BYTES:
                self.write(begin, record)
            else:
                self.write(begin, record[:_PARTLY_BYTES])
                self.write(begin + len(record) - _PARTLY_BYTES, record[-_PARTLY_BYTES:])
            begin += len(record)

    def close(self) -> None:
        self._sync()
        sync_folder(self._folder)

    def _sync(self) -> None:
        while self._open:
            _, descriptor = self._open.popitem()
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)


def _write_topics(store: Path, queues: frozenset[QueueKey]) -> None:
    """The table of topics as a broker keeps it: Apache's serves no topic that it does not list."""
    counts: dict[str, int] = {}
    for topic, queue_id in queues:
        counts[topic] = max(counts.get(topic, 0), queue_id + 1)
    table = {
        topic: {
            "attributes": {},
            "order": False,
            "perm": _READ_AND_WRITE,
            "readQueueNums": count,
            "topicFilterType": "SINGLE_TAG",
            "topicName": topic,
            "topicSysFlag": 0,
            "writeQueueNums": count,
        }
        for topic, count in sorted(counts.items())
    }
    version = {"counter": 1, "stateVersion": 0, "timestamp": 1}
    make_folder(store / "config")
    with open(store / "config" / "topics.json", "x", encoding="utf-8") as file:
        json.dump({"dataVersion": version, "topicConfigTable": table}, file)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(store / "config")
