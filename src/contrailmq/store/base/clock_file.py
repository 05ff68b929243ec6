"""ROOT/store.clock: how the next process must read the store times.

Apache's store has no such file and ignores it. It holds the stretches of the log (store_clock.py), and what the next
process needs to go on measuring: by how much steady time is ahead of the machine's own clock, and the wall clock ahead
of steady time. It is written when a store is opened and closed and when the wall clock was set: a few hundred bytes.

A new stretch is noted before the first record of it is stored, without a sync, in `store.clock.note`, so a kill keeps
it and a power failure cannot take the older notes with it. In `store.clock` it is durable before a record of it is:
each flush of the log looks to that first, and housekeeping once a second. Of both the newer one counts that is valid;
without any, store times are taken as they are. A stop removes the note.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import structs

from contrailmq.store.base.checked_json import read_checked, replace_checked, write_checked
from contrailmq.store.files import Files

FILE_NAME: Final = "store.clock"
NOTE_NAME: Final = "store.clock.note"
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
    number: int = 0  # of the notes of this store, ascending


class ClockFile:
    """Owner: StoreClock. `note` belongs to whoever holds the log's lock, `keep` to any other thread."""

    def __init__(self, files: Files, root: Path) -> None:
        self.path = root / FILE_NAME
        self._note_path = root / NOTE_NAME
        self._files = files
        self._keeping = threading.Lock()  # held for a sync
        self._notes: ClockNotes | None = None  # the newest
        self._kept: ClockNotes | None = None  # what is durable

    def load(self) -> ClockNotes | None:
        """What the last process left; None when there is nothing that can be believed."""
        found = [read_checked(self._files, path, ClockNotes) for path in self._paths if self._files.is_file(path)]
        valid = [notes for notes in found if notes is not None and notes.stretches]
        self._notes = self._kept = max(valid, key=lambda notes: notes.number, default=None)
        return self._notes

    def note(self, notes: ClockNotes) -> None:
        """Survives a kill; `keep` makes it durable. OSError: `keep` will try again."""
        self._notes = notes = structs.replace(notes, number=self._notes.number + 1 if self._notes is not None else 1)
        beside = self._note_path.with_name(f"{NOTE_NAME}.tmp")
        write_checked(self._files, beside, notes, is_synced=False)
        self._files.rename(beside, self._note_path)

    def keep(self) -> None:
        """Make the newest notes durable. Blocks."""
        if self._kept is not self._notes:
            with self._keeping:
                while (notes := self._notes) is not self._kept:
                    replace_checked(self._files, self.path, notes)
                    self._kept = notes

    def end(self) -> None:
        """Nothing is noted any more. Makes the newest notes durable, alone."""
        self.keep()
        if self._files.exists(self._note_path):
            self._files.unlink(self._note_path)

    @property
    def _paths(self) -> tuple[Path, Path]:
        return self.path, self._note_path
