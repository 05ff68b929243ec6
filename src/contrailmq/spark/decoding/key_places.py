"""Where the messages with some keys are, by the index: places in the log, and which stretches it speaks for.

The index is only a shortcut, like the queues: what it does not speak for is walked. It speaks for the log from a file's
first entry to its last, because a broker enters records in the order of the log. It says nothing of what was stored
before and after that, of what lies between two files unless one follows the other record by record, of a file whose
chains are broken, and of messages in inner batches, of which only the first one's keys are entered. Two keys may share
a hash, so whoever reads a place compares the text.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Iterable
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Final, NamedTuple

from contrailmq.message import java_hash
from contrailmq.spark.decoding.due_units import batch_topics
from contrailmq.spark.decoding.index_shape import (
    HEADER,
    HEADER_BYTES,
    INDEX_ENTRY,
    INDEX_UNIT,
    SLOT,
    SLOT_BYTES,
    IndexShape,
    index_paths,
)
from contrailmq.spark.decoding.store_files import LogFile, log_files

_SIZE_BYTES: Final = 4


class KeyPlaces(NamedTuple):
    """Places of records that may have one of the keys, and the stretches of the log outside of which others may be."""

    places: list[int]
    covered: list[tuple[int, int]]

    def covers(self, start: int, stop: int) -> bool:
        return any(begin <= start and stop <= end for begin, end in self.covered)

    def between(self, start: int, stop: int) -> tuple[int, ...]:
        return tuple(self.places[bisect_left(self.places, start) : bisect_left(self.places, stop)])


def why_no_index(store: str, topics: Iterable[str], keys: Iterable[str]) -> str:
    """Why the index of a store does not tell where keys of these topics are; empty if it does."""
    if any("\ufffd" in key for key in keys):
        return "a key holds U+FFFD, which stands for bytes that are no text, and of those Java may make another hash"
    batches = sorted(batch_topics(store).intersection(topics))
    if batches:
        return f"of {batches[0]}, whose queues hold batches (queue.type=BatchCQ), it has one key a batch"
    if not index_paths(store):
        return "it has no index files: its broker runs with messageIndexEnable=false, or they were deleted"
    return "" if IndexShape.of_store(store) else "the number of slots in its index files is not known"


def find_key_places(store: str, topics: Iterable[str], keys: Iterable[str]) -> KeyPlaces:
    """Look every key of every topic up in all index files. `why_no_index` must have found nothing."""
    hashes = [_stored_hash(java_hash(f"{topic}#{key}")) for topic in topics for key in keys]
    shape, files = IndexShape.of_store(store), log_files(store)
    places: set[int] = set()
    covered: list[tuple[int, int]] = []
    for path in index_paths(store) if shape is not None else []:
        assert shape is not None
        found = _look_up(path, shape.slots, hashes)
        if found is None:
            continue
        begin, end, of_file = found
        places.update(of_file)
        if covered and _follows(files, covered[-1][1], begin):
            places.add(covered[-1][1])
            covered[-1] = (covered[-1][0], max(end, covered[-1][1]))
        else:
            # Other keys of the first record may be in the file before, which is gone.
            places.add(begin)
            covered.append((begin, end))
    return KeyPlaces(sorted(places), covered)


def _stored_hash(key_hash: int) -> int:
    return abs(key_hash) if key_hash != -(2**31) else 0  # as dispatched.py


def _look_up(path: Path, slots: int, hashes: list[int]) -> tuple[int, int, list[int]] | None:
    """The first and the last place that a file speaks for, and the places with one of the hashes.

    The last record itself may be in the middle of being entered. None if the file tells nothing, or what cannot be.
    """
    try:
        with open(path, "rb") as file:
            if os.fstat(file.fileno()).st_size <= HEADER_BYTES + slots * SLOT_BYTES:
                return None
            data = mmap(file.fileno(), 0, access=ACCESS_READ)
    except FileNotFoundError:  # a running broker deletes old files
        return None
    _, _, begin, end, _, following = HEADER.unpack_from(data)
    first_unit = HEADER_BYTES + slots * SLOT_BYTES
    if following <= 1 or first_unit + following * INDEX_UNIT.itemsize > len(data) or not 0 <= begin <= end:
        return None
    found: list[int] = []
    for key_hash in hashes:
        slot = key_hash % slots
        (number,) = SLOT.unpack_from(data, HEADER_BYTES + slot * SLOT_BYTES)
        before = 2**63 - 1
        while number:
            if not number > 0 or first_unit + (number + 1) * INDEX_UNIT.itemsize > len(data):
                return None
            unit_hash, place, _, previous = INDEX_ENTRY.unpack_from(data, first_unit + number * INDEX_UNIT.itemsize)
            if unit_hash % slots != slot or not 0 <= place <= before or not 0 <= previous < number:
                return None
            if unit_hash == key_hash:
                found.append(place)
            number, before = previous, place
    return begin, end, found


def _follows(files: list[LogFile], place: int, begin: int) -> bool:
    """Whether the record at a place is the one before `begin`, or that itself."""
    if place == begin:
        return True
    for file in files:
        if file.base <= place and place + _SIZE_BYTES <= file.base + file.size_bytes:
            try:
                with open(file.path, "rb", buffering=0) as opened:
                    size = SLOT.unpack(os.pread(opened.fileno(), _SIZE_BYTES, place - file.base))[0]
            except FileNotFoundError:
                return False
            return bool(place + size == begin)
    return False
