"""`config/levels.journal`: how far each delay level was delivered, as of the last copies (see store/base/journal.py).

    payload := (level:i32  offset:i64  before:i64)*         `before` is the physical offset of message offset - 1

The queue of a level may have been rebuilt since (its topic deleted, its directory removed), and then the same offset
is another message's. So an offset counts only when the message before it is still the one that was delivered last.

An entry of 18 levels has 396 bytes, and a run of a megabyte holds 2,600 of them: some seconds of a broker that does
nothing else, and more than the write buffer pool holds back.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from contrailmq.message import SystemTopic
from contrailmq.store import RUN_BYTES_MAX, CopyPlace, Files, Journal, MessageStore, stands

FILE_NAME: Final = "levels.journal"
_LEVEL: Final = struct.Struct(">iqq")
LEVEL_BYTES: Final = 20
assert _LEVEL.size == LEVEL_BYTES


class LevelJournal:
    """Owner: DelayService."""

    def __init__(self, files: Files, store: MessageStore, directory: Path) -> None:
        self._store = store
        self._journal = Journal(files, directory / FILE_NAME)
        self._levels: dict[int, tuple[int, int]] = {}  # level -> its offset, the physical offset of the one before
        self.clear, self.close = self._journal.clear, self._journal.close

    def open(self) -> dict[int, int]:
        """Level -> offset, of those that are known to be true."""
        for run in self._journal.open():
            for entry in reversed(run):
                if stands(self._store, entry.copy):
                    return dict(self._true_ones(entry.payload))
        return {}

    def note(self, offsets: dict[int, int], copy: CopyPlace) -> None:
        """Every copy up to `copy` was made, and these are the offsets after the originals."""
        levels = self._levels
        for level, offset in offsets.items():
            if level not in levels or levels[level][0] != offset:
                levels[level] = offset, self._before(level, offset)
        payload = b"".join([_LEVEL.pack(level, *place) for level, place in levels.items() if level in offsets])
        if self._journal.run_bytes + len(payload) > RUN_BYTES_MAX:
            self._journal.restart()
        self._journal.append(copy, payload)

    def _true_ones(self, payload: bytes) -> Iterator[tuple[int, int]]:
        for level, offset, before in _LEVEL.iter_unpack(payload[: len(payload) // LEVEL_BYTES * LEVEL_BYTES]):
            if before >= 0 and before == self._before(level, offset):
                yield level, offset

    def _before(self, level: int, offset: int) -> int:
        """The physical offset of the last message before an offset; -1 when it is gone."""
        if offset <= self._store.min_offset(SystemTopic.SCHEDULE, level - 1):
            return -1
        units = self._store.read_units(SystemTopic.SCHEDULE, level - 1, offset - 1, 1)
        return units[0][0] if units else -1
