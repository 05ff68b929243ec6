"""ROOT/store.clock: how the next process must read the store times.

Apache's store has no such file and ignores it. It holds the stretches of the log (store_clock.py), and what the next
process needs to go on measuring: by how much steady time is ahead of the machine's own clock, and the wall clock ahead
of steady time. It is written when a store is opened and closed and when the wall clock was set: a few hundred bytes.

A new stretch is noted before the first record of it is stored, without a sync, so a kill keeps it; housekeeping makes
it durable within a second. Without a valid file, store times are taken as they are.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from contrailmq.store.base.checked_json import read_checked, write_checked
from contrailmq.store.files import Files

FILE_NAME: Final = "store.clock"
RUNNING: Final = -1


class Stretch(NamedTuple):
    """A part of the log, from `log_offset` on, and the times at which it began."""

    log_offset: int
    steady_ms: int
    store_ms: int
    ahead_ms: int  # wall time - steady time
    pace: int  # steady milliseconds for each of store time


class Doubt(NamedTuple):
    """A jump forward, and when it was noticed."""

    steady_ms: int
    size_ms: int


class ClockNotes(msgspec.Struct, frozen=True):
    """All times are of the steady time of the process that wrote them."""

    boot_id: str  # of the machine's clock; empty: nobody can compare with it
    boot_base_ms: int  # steady time - the machine's clock
    ahead_ms: int  # wall time - steady time, as of the newest look
    stretches: tuple[Stretch, ...]
    doubts: tuple[Doubt, ...] = ()
    is_moved: bool = False  # steady time was given another start, and the timer wheel has still to follow
    log_end: int = RUNNING  # of a store that was closed: what comes after it was stored by others


class ClockFile:
    """Owner: StoreClock. `note` belongs to whoever holds the log's lock, `keep` to one other thread."""

    def __init__(self, files: Files, root: Path) -> None:
        self.path = root / FILE_NAME
        self._files = files
        self._turn = threading.Lock()  # held for a rename at most
        self._notes: ClockNotes | None = None
        self._number = self._kept = 0  # of the newest notes, of those that are durable

    def load(self) -> ClockNotes | None:
        """What the last process left; None when there is nothing that can be believed."""
        notes = read_checked(self._files, self.path, ClockNotes) if self._files.is_file(self.path) else None
        return notes if notes is not None and notes.stretches else None

    def note(self, notes: ClockNotes) -> None:
        """Survives a kill; `keep` makes it durable. OSError: `keep` will try again."""
        self._notes = notes
        self._number += 1
        beside = self._write(".tmp", is_synced=False)
        with self._turn:
            self._files.rename(beside, self.path)

    def keep(self) -> None:
        """Make the newest notes durable. Blocks."""
        number = self._number
        if number == self._kept:
            return
        beside = self._write(".new", is_synced=True)
        with self._turn:
            if number != self._number:
                return  # newer ones are there, and have their turn in the next round
            self._files.rename(beside, self.path)
        self._files.sync_directory(self.path.parent)
        self._kept = number

    def _write(self, ending: str, *, is_synced: bool) -> Path:
        beside = self.path.with_name(self.path.name + ending)
        write_checked(self._files, beside, self._notes, is_synced=is_synced)
        return beside
