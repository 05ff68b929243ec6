"""A slave whose machine lost power: where its log may hold a record that is not what its master sent.

A disk writes sectors. A slave takes bytes as they come, so a sync may cover a part of a record, and a power failure the
sector with the rest of it, when later ones are written. Such a rest reads as zeros. In the body the checksum tells;
topic and properties have none. The master's log is whole, so the slave's ends before the first record that may have
lost some of them, and the slave asks for it again. A master keeps such a record, which nobody was told is stored: it
cannot be told from one whose properties have a zero there, and nobody could send that one again.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from contrailmq.message.codec import Kind, check_record
from contrailmq.message.record import RecordView, read_store_time
from contrailmq.store.files import Files
from contrailmq.store.log.mapped_file import MappedFile
from contrailmq.store.log.mapped_file_queue import MappedFileQueue
from contrailmq.store.recovery.log_walk import walk
from contrailmq.store.recovery.truncation import erase_from

_log = logging.getLogger(__name__)

SECTOR_BYTES: Final = 512
PROPERTIES_LENGTH_BYTES: Final = 2


def cut_torn_copies(root: Path, files: Files, log_files: MappedFileQueue, *, synced_ms: int) -> None:
    """Before recovery. What was stored up to `synced_ms` was synced."""
    place = first_doubtful(log_files.files, synced_ms=synced_ms)
    if place is None:
        return
    _log.warning(
        "store %s: after a power failure the record at offset %d may have lost some of its properties: the log of this "
        "slave ends there, and what follows comes from the master once more",
        root,
        place,
    )
    erase_from(files, log_files, place)


def first_doubtful(files: Sequence[MappedFile], *, synced_ms: int) -> int | None:
    """The first record that was stored later and may lack bytes of its topic or properties; None: there is none."""
    seeker = _Seeker(synced_ms)
    for file in files[_first_with_later(files, synced_ms) :]:
        end = walk(file, seeker, check_body_crc=False)
        if seeker.place is not None or end.verdict.kind is not Kind.BLANK:
            break
    return seeker.place


def _first_with_later(files: Sequence[MappedFile], synced_ms: int) -> int:
    for number in range(len(files) - 1, 0, -1):
        file = files[number]
        verdict = check_record(file.mapping, 0, limit=file.size_bytes, physical_offset=file.base)
        if verdict.kind is Kind.WHOLE and 0 < read_store_time(file.mapping, 0) <= synced_ms:
            return number
    return 0


class _Seeker:
    def __init__(self, synced_ms: int) -> None:
        self._synced_ms = synced_ms
        self.place: int | None = None

    def take(self, record: RecordView, /) -> None:
        is_synced = 0 < record.store_time_ms <= self._synced_ms
        if self.place is None and not is_synced and (not record.store_time_ms or _may_lack_bytes(record)):
            self.place = record.physical_offset


def _may_lack_bytes(record: RecordView) -> bool:
    """Whether zeros in topic or properties begin or end at a sector's border. The length between them is checked by
    every walk."""
    buffer, end = record.buffer, record.position + record.size_bytes
    properties = end - len(record.properties)
    topic_end = properties - PROPERTIES_LENGTH_BYTES
    for begin, stop in ((topic_end - len(record.topic), topic_end), (properties, end)):
        for border in range(begin // SECTOR_BYTES * SECTOR_BYTES, stop + 1, SECTOR_BYTES):
            if any(begin <= place < stop and not buffer[place] for place in (border - 1, border)):
                return True
    return False
