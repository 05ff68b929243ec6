"""A slave's log: a byte copy of its master's, which grows by whole, checked records alone.

Masters cut their log into blocks anywhere. `append` writes what arrives to the very place in the file where it belongs,
and then looks at it there: the end of the log moves over every record that is whole and sound, and over the BLANK that
closes a file once all of it has come. What follows is the begin of a record. It lies in the file behind the end, where
nobody reads, and the next bytes continue it. So whatever the store does with a log (flush, dispatch, cleaning,
recovery) needs to know nothing of replication: the log ends at a record's border at any moment, a slave reports no half
record, and one that was killed in the middle of a record cuts it like any torn one and asks for it again.

A record is sound when it says its own place in the log, its parts fit its size, and its checksum is right. Anything
else ends the connection: it is damage in the master's file, another history than ours, or files of another size.

Queue offsets are those that the records carry: dispatch reads them from the log (dispatch.py).
"""

from __future__ import annotations

from collections.abc import Callable
from mmap import mmap
from typing import Final

from contrailmq.message.codec import BLANK_BYTES, BLANK_MAGIC, Kind, check_record
from contrailmq.message.record import (
    MAGIC_V1,
    MAGIC_V2,
    RECORD_BYTES_MIN,
    SIZE_AND_MAGIC,
    read_store_time,
)
from contrailmq.message.record_runs import sound_run
from contrailmq.store.config import StoreConfig
from contrailmq.store.log.commit_log import CommitLog
from contrailmq.store.log.mapped_file import MappedFile
from contrailmq.store.replication.stream import ReplicationError

_ERASE_BYTES: Final = 1 << 20  # at once
BLOCK_BYTES: Final = 256 * 1024  # judged at a time: they are still in the processor's cache


class Replica:
    """The end of a slave's log. Owner: whoever follows the master; one thread at a time."""

    def __init__(
        self, config: StoreConfig, log: CommitLog, check_usable: Callable[[], None], last_record: Callable[[], int]
    ) -> None:
        """`check_usable` raises a StoreError when nothing may be written; `last_record` is of what opening found."""
        self._log = log
        self._file_bytes = config.mapped_file_size_commit_log
        self._check_record_crc = config.check_crc_on_recover and config.force_verify_prop_crc
        self._check_usable = check_usable
        self._found_last_record = last_record
        self._last_record = -1
        self._unfinished_bytes = 0  # of a record, behind the end of the log

    @property
    def end(self) -> int:
        """The end of the log, at a record's border: what a slave reports, unless it has to be durable first."""
        return self._log.files.wrote_offset

    @property
    def received_end(self) -> int:
        """The end of what has come: the next bytes must begin here."""
        return self.end + self._unfinished_bytes

    @property
    def last_record_offset(self) -> int:
        """Where the newest record of the log begins; -1 when there is none. For a comparison with the master's."""
        return self._last_record if self._last_record >= 0 else self._found_last_record()

    @property
    def newest_time_ms(self) -> int:
        """When the newest record was stored, by the master's clock; 0 when there is none."""
        return self._log.last_time_ms

    def append(self, at: int, data: bytes | memoryview) -> int:
        """Take a master's bytes, which begin at `at` in its log; by how many bytes the log has grown.

        ReplicationError when they cannot follow what is here: the log is then as before, without them. StoreError
        when the store cannot take them now (a full disk), or any more (a failed sync).
        """
        self._check_usable()
        log = self._log
        with log.lock:
            self._check_place(at, len(data))
            if not data:
                return 0
            file = log.file_of_replica(at)
            begin = at - file.base
            file.target[begin : begin + len(data)] = data
            self._unfinished_bytes += len(data)
            before = file.wrote
            try:
                self._take_sound(file, begin + len(data))
            except ReplicationError:
                self._erase_unfinished()
                raise
            return file.wrote - before

    def drop_unfinished(self) -> None:
        """The connection is over: forget the begin of a record whose rest may never come, on the disk too."""
        with self._log.lock:
            self._erase_unfinished()

    def _check_place(self, at: int, size_bytes: int) -> None:
        files = self._log.files
        room = self._file_bytes - at % self._file_bytes
        if size_bytes > room:
            raise self._other_sizes(f"a block of {size_bytes} bytes at offset {at} crosses the end of a file")
        if files.last is None:
            if at % self._file_bytes:
                raise self._other_sizes(f"the first bytes of an empty slave are those at offset {at}")
        elif at != self.received_end:
            raise ReplicationError(
                f"the master sent its log from offset {at} on, ours goes on at {self.received_end}: nothing was taken"
            )

    def _other_sizes(self, what: str) -> ReplicationError:
        return ReplicationError(
            f"{what}, and our log files have {self._file_bytes} bytes: give the slave the mappedFileSizeCommitLog of "
            "its master, and an empty directory if it has files of another size"
        )

    def _take_sound(self, file: MappedFile, received: int) -> None:
        """Move the end of the log over what is whole, up to the position `received` of the file."""
        mapping, base, position, last = file.mapping, file.base, file.wrote, -1
        try:
            while True:
                block = self._whole_begin(mapping, position, received)
                if block:
                    passed, newest = sound_run(block, base + position)
                    last = position + newest if newest >= 0 else last
                    position += passed
                size_bytes, is_record = self._whole_at(file, position, received)
                if not size_bytes:
                    break
                last = position if is_record else last
                position += size_bytes
        finally:
            if position > file.wrote:
                self._unfinished_bytes -= position - file.wrote
                if last >= 0:
                    self._last_record = base + last
                self._log.count_replicated(file, position, read_store_time(mapping, last) if last >= 0 else 0)

    def _whole_begin(self, mapping: mmap, position: int, received: int) -> bytes:
        """What has come, or the first of it, if it begins with a whole record that needs no checksum of its own.

        A record of megabytes comes in many pieces, and is not copied again with each of them.
        """
        end = min(received, position + BLOCK_BYTES)
        if self._check_record_crc or end - position < RECORD_BYTES_MIN:
            return b""
        size_bytes, _ = SIZE_AND_MAGIC.unpack_from(mapping, position)
        return mapping[position:end] if size_bytes <= end - position else b""

    def _whole_at(self, file: MappedFile, position: int, received: int) -> tuple[int, bool]:
        """The size of what is whole and sound at a position, and whether it is a record (else the file's BLANK);
        0 while it has not come whole."""
        offset, left, room = file.base + position, received - position, file.size_bytes - position
        if left < BLANK_BYTES:
            return 0, False
        size_bytes, magic = SIZE_AND_MAGIC.unpack_from(file.mapping, position)
        if magic == BLANK_MAGIC:
            if size_bytes != room:
                raise self._other_sizes(f"the master's file that ends {size_bytes} bytes behind offset {offset}")
            return size_bytes if left >= room else 0, False
        if magic not in (MAGIC_V1, MAGIC_V2) or size_bytes < RECORD_BYTES_MIN:
            raise _unsound(offset, f"magic {magic & 0xFFFFFFFF:#010x}, size {size_bytes}: that is no record")
        if size_bytes > room - BLANK_BYTES and size_bytes != room:
            raise self._other_sizes(f"a record of {size_bytes} bytes at offset {offset} crosses the end of a file")
        if size_bytes > left:
            return 0, True
        verdict = check_record(
            file.mapping,
            position,
            limit=received,
            physical_offset=offset,
            check_record_crc=self._check_record_crc,
            check_zero_tail=False,  # these bytes came by TCP: no sector of them was lost
        )
        if verdict.kind is not Kind.WHOLE:
            raise _unsound(offset, verdict.reason)
        return size_bytes, True

    def _erase_unfinished(self) -> None:
        """A later record must not be followed by what is left of this one."""
        file = self._log.files.last
        if file is not None and self._unfinished_bytes:
            end = file.wrote + self._unfinished_bytes
            for begin in range(file.wrote, end, _ERASE_BYTES):
                file.target[begin : min(begin + _ERASE_BYTES, end)] = bytes(min(_ERASE_BYTES, end - begin))
        self._unfinished_bytes = 0


def _unsound(offset: int, reason: str) -> ReplicationError:
    return ReplicationError(
        f"what the master sent for offset {offset} is not sound ({reason}): nothing of it was taken. Either its log is "
        "damaged there (`contrailmq store verify` on the master's directory says so, `store repair` mends it), or this "
        "slave's log is not a copy of it (`contrailmq store truncate`, or an empty directory)"
    )
