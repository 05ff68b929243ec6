"""Extensions of consume queue units: room for a filter bitmap (ROOT/consumequeue_ext/, with enableConsumeQueueExt).

    unit := size:i16  tags_code:i64  store_time:i64  bitmap_length:i16  bitmap        (big-endian; size = 20 + bitmap)
    end  := -1:i16                                    (the rest of the file is unused; 4 bytes are always kept free)

A queue unit whose tags code is at most EXT_ADDRESS_MAX holds the address of such a unit instead: its place in the
queue's extension files plus the smallest 64-bit number. Tag hashes are 32-bit numbers, so the two never meet.

Extensions only speed up filtering. Nothing here is synced or has a checksum, so what cannot be read means "no
extension", which readers take as "may match" (as ConsumeQueueExt does). A code that does not match is confirmed by the
record, because after a power cut or a flipped bit the extension may be wrong.
"""

from __future__ import annotations

import struct
import threading
from pathlib import Path
from typing import Final, NamedTuple

from contrailmq.store.files import Files
from contrailmq.store.queues.descriptors import DescriptorCache, file_base

_HEAD: Final = struct.Struct(">hqqh")
_SIZE: Final = struct.Struct(">h")
HEAD_BYTES: Final = 20
END_BYTES: Final = 4
UNIT_BYTES_MAX: Final = 2**15 - 1
END_MARK: Final = _SIZE.pack(-1)
EXT_ADDRESS_MAX: Final = -(2**31) - 1  # what is greater is a tags code
_ADDRESS_BASE: Final = -(2**63)
assert _HEAD.size == HEAD_BYTES


class ExtUnit(NamedTuple):
    """What a queue knows of a message beyond its 20 bytes."""

    tags_code: int
    store_time_ms: int
    bit_map: bytes

    @property
    def size_bytes(self) -> int:
        return HEAD_BYTES + len(self.bit_map)


def is_ext_address(tags_code: int) -> bool:
    return tags_code <= EXT_ADDRESS_MAX


def ext_address(real_offset: int) -> int:
    assert 0 <= real_offset <= EXT_ADDRESS_MAX - _ADDRESS_BASE
    return real_offset + _ADDRESS_BASE


def real_offset(address: int) -> int:
    assert is_ext_address(address)
    return address - _ADDRESS_BASE


class ConsumeQueueExt:
    """Extension units of one queue. One thread puts, any thread reads."""

    def __init__(self, directory: Path, *, file_bytes: int, files: Files, descriptors: DescriptorCache) -> None:
        self.directory = directory
        self.where = str(directory)
        self.file_bytes = file_bytes
        self._files = files
        self._descriptors = descriptors
        self._lock = threading.Lock()
        self.bases: list[int] = []
        self.end = 0  # real offset at which the next unit goes

    def put(self, unit: ExtUnit) -> int | None:
        """The address of the unit, or None when it is too large for a file (the queue then keeps the plain code)."""
        size_bytes = unit.size_bytes
        if size_bytes > min(UNIT_BYTES_MAX, self.file_bytes - END_BYTES):
            return None
        with self._lock:
            position = self.end % self.file_bytes
            if self.bases and self.end >= self.bases[-1] + self.file_bytes:
                position = 0
            elif self.bases and size_bytes > self.file_bytes - position - END_BYTES:
                self._descriptors.pwrite(self.where, self.bases[-1], END_MARK, position)
                self.end = self.bases[-1] + self.file_bytes
                position = 0
            base = self.end - position
            if not self.bases or base > self.bases[-1]:
                if not self.bases:
                    self._files.make_directory(self.directory)
                self._descriptors.create(self.where, base, self.file_bytes)
                self.bases.append(base)
            head = _HEAD.pack(size_bytes, unit.tags_code, unit.store_time_ms, len(unit.bit_map))
            self._descriptors.pwrite(self.where, base, head + unit.bit_map, position)
            address = ext_address(self.end)
            self.end += size_bytes
        return address

    def get(self, address: int) -> ExtUnit | None:
        """The unit at an address, or None when nothing readable is there."""
        offset = real_offset(address)
        position = offset % self.file_bytes
        base = offset - position
        with self._lock:
            if offset >= self.end or base not in self.bases:
                return None
            head = self._descriptors.pread(self.where, base, HEAD_BYTES, position)
            if len(head) < HEAD_BYTES:
                return None
            size_bytes, tags_code, store_time_ms, length = _HEAD.unpack(head)
            if length < 0 or size_bytes != HEAD_BYTES + length or position + size_bytes > self.file_bytes:
                return None
            bit_map = self._descriptors.pread(self.where, base, length, position + HEAD_BYTES) if length else b""
        return ExtUnit(tags_code, store_time_ms, bit_map)

    def load(self) -> None:
        """Find the files. The end is after the last readable unit of the last file that has one."""
        names = (file_base(path.name) for path in self._files.list_directory(self.directory))
        self.bases = sorted(base for base in names if base is not None and base % self.file_bytes == 0)
        self.end = self.bases[0] if self.bases else 0
        for base in self.bases:
            self.end = base + self._end_of(base)

    def delete_below(self, address: int) -> int:
        """Remove files that end below the first address still in use; how many."""
        deleted = 0
        with self._lock:
            while len(self.bases) > 1 and self.bases[0] + self.file_bytes <= real_offset(address):
                self._descriptors.unlink(self.where, self.bases.pop(0))
                deleted += 1
        return deleted

    def destroy(self) -> None:
        with self._lock:
            for base in self.bases:
                self._descriptors.unlink(self.where, base)
            self.bases.clear()
            self.end = 0
            self._files.remove_directory_if_empty(self.directory)

    def _end_of(self, base: int) -> int:
        """Position after the last unit of a file, found by going from size to size."""
        position = 0
        while position + HEAD_BYTES <= self.file_bytes:
            data = self._descriptors.pread(self.where, base, 2, position)
            if len(data) < 2 or _SIZE.unpack(data)[0] < HEAD_BYTES:
                break
            position += _SIZE.unpack(data)[0]
        return position


class ConsumeQueueExtTable:
    """The extensions of all queues, made when a queue first needs one."""

    def __init__(self, root: Path, *, file_bytes: int, files: Files, descriptors: DescriptorCache) -> None:
        self.root = root
        self._file_bytes = file_bytes
        self._files = files
        self._descriptors = descriptors
        self._queues: dict[tuple[str, int], ConsumeQueueExt] = {}

    def queue(self, topic: str, queue_id: int) -> ConsumeQueueExt:
        extension = self._queues.get((topic, queue_id))
        if extension is None:
            extension = self._queues[topic, queue_id] = ConsumeQueueExt(
                self.root / topic / str(queue_id),
                file_bytes=self._file_bytes,
                files=self._files,
                descriptors=self._descriptors,
            )
            extension.load()
        return extension

    def put(self, topic: str, queue_id: int, tags_code: int, store_time_ms: int, bit_map: bytes) -> int:
        """What the queue's unit has to hold: an address, or the plain code when there is no room for a unit."""
        address = self.queue(topic, queue_id).put(ExtUnit(tags_code, store_time_ms, bit_map))
        return tags_code if address is None else address

    def get(self, topic: str, queue_id: int, address: int) -> ExtUnit | None:
        return self.queue(topic, queue_id).get(address)

    def delete(self, topic: str, queue_id: int) -> None:
        self.queue(topic, queue_id).destroy()
        del self._queues[topic, queue_id]
