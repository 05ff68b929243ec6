"""`config/offsets.journal`: what groups committed since consumerOffset.json was saved (see store/base/journal.py).

    payload := JSON of [["topic@group", queue_id, offset], ...]      queue_id -1: the group has no offset in the topic

Saving the table waits for the disk twice, so on a slow disk it may be seconds old when the process is killed. Changes
therefore go here too, with one `pwrite` and no sync: before a commit is answered, and twenty times a second for
offsets that came with pulls. It costs 5 us, and 0.2 us per queue. The first entry of a run is the whole table.

Before the table is saved, what the journal holds is synced (`sync`). A power failure may keep the begin of the journal
and lose the rest; groups would else go back behind a table that was saved long after. Nobody could tell that from a
reset, and what was acknowledged by POP would come again. For the same reason the saved table says which entries it has
(`journaled`, a key that only we know): a disk may refuse an entry and take the table. A journal that ends before that
place does not count.

At the next start the journal's last entry for a queue counts, but at most the end of the queue: a power failure may
take the end of the log and leave the journal, or the table. Removed offsets stay removed. A table that was written long
after the journal, by Apache's broker or an operator, counts alone. A broker that stops leaves the journal empty.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from contrailmq.broker.state.config_files import ConfigFileError, TableSaveError
from contrailmq.broker.state.offsets import OFFSETS_FILE, REMOVED, SEPARATOR, OffsetTable
from contrailmq.store import RUN_BYTES_MAX, CopyPlace, EntryPlace, Files, Journal, Run

log = logging.getLogger("contrailmq.broker")

FILE_NAME: Final = "offsets.journal"
NOTE_MS: Final = 50  # a kill takes what pulls committed since the last note: less than 200 ms, if the loop is late too
OTHERS_MS: Final = 10_000  # a file that is newer than the journal by more than a save ever takes is somebody else's
_TABLES: Final = 4  # as many times the whole table may a run be long, if that is more than RUN_BYTES_MAX
_NO_WITNESS: Final = CopyPlace(0, 0)  # the ends of the queues say what counts

_Change = tuple[str, int, int]


class OffsetJournal:
    """Owner: the loop."""

    def __init__(self, files: Files, directory: Path, table: OffsetTable) -> None:
        self._files = files
        self._journal = Journal(files, directory / FILE_NAME)
        self._directory = directory
        self._table = table
        self._table_bytes = 0
        self._is_open = False
        self._is_whole_due = True

    def recover(self, end_of: Callable[[str, int], int], save: Callable[[], None]) -> int:
        """Bring the table, as its file has it, to what was committed later, and save it; how many queues.

        `end_of(topic, queue_id)` is the end of a queue. A journal whose table cannot be saved stays as it is.
        ConfigFileError: a journal that counts cannot be read.
        """
        has_journal = bool(self._paths())
        is_overtaken = has_journal and self._is_overtaken()
        runs = self._journal.open() if has_journal else []
        if self._journal.unread is not None and not is_overtaken:
            raise ConfigFileError(
                f"{self._directory / FILE_NAME}.* cannot be read: {self._journal.unread}; groups would get again what "
                f"they committed since {OFFSETS_FILE} was saved. Mend the disk or the files' rights, or delete them if "
                "that may be"
            )
        if runs and self._table.journaled is not None:
            is_overtaken |= EntryPlace(self._journal.newest_run, len(runs[0])) < self._table.journaled
        try:
            moved = 0 if is_overtaken or not runs else self._catch_up(runs[0], end_of)
            moved += self._table.set_back(end_of)
            if moved:
                save()
            self._journal.clear()
        finally:
            self._journal.close()
        return moved

    def _catch_up(self, run: Run, end_of: Callable[[str, int], int]) -> int:
        moved = 0
        for (key, queue_id), offset in _last_ones(run).items():
            topic, _, group = key.partition(SEPARATOR)
            offset = min(offset, end_of(topic, queue_id))
            if offset != self._table.stored(key, queue_id):
                self._table.commit(group, topic, queue_id, offset)
                moved += 1
        return moved

    def open(self) -> None:
        """From now on `note` writes."""
        journaled = self._table.journaled
        self._journal.open(after_run=0 if journaled is None else journaled.run)
        self._is_open = True

    def note(self) -> None:
        """Write down what has changed since the last call."""
        changes = self._table.changes
        if not self._is_open or not (changes or self._is_whole_due):
            return
        if self._journal.run_bytes > max(RUN_BYTES_MAX, _TABLES * self._table_bytes):
            self._journal.restart()
            self._is_whole_due = True
        told = self._table.whole() if self._is_whole_due else changes
        payload = msgspec.json.encode([(key, queue_id, offset) for (key, queue_id), offset in told.items()])
        self._table_bytes = len(payload) if self._is_whole_due else self._table_bytes
        if self._journal.append(_NO_WITNESS, payload):
            changes.clear()
            self._is_whole_due = False
        elif self._journal.run_bytes:  # nobody knows what of it is there: the next entry begins another run
            self._journal.restart()
            self._is_whole_due = True

    def note_for_save(self) -> None:
        """Before a snapshot of the table: note what has changed, and have the table say how much is noted."""
        self.note()
        if self._is_open:
            self._table.journaled = self._journal.place

    def sync(self) -> None:
        """Make durable what was noted so far; TableSaveError when the disk refuses. Blocks: call it off the loop."""
        try:
            self._journal.sync()
        except OSError as exc:
            raise TableSaveError(self._directory / FILE_NAME, exc) from exc

    def clear(self) -> None:
        """The table was saved: forget everything."""
        self._journal.clear()
        self._table.changes.clear()
        self._is_whole_due = True

    def close(self) -> None:
        """Let go of the files as they are, as a killed process does."""
        self._is_open = False
        self._journal.close()

    def _paths(self) -> list[Path]:
        return list(self._directory.glob(FILE_NAME + ".*"))

    def _is_overtaken(self) -> bool:
        """Whether the file was written so long after the journal that it is not this broker's any more."""
        written_ms = max(self._files.mtime_ms(path) for path in self._paths())
        file = self._directory / OFFSETS_FILE
        return self._files.exists(file) and self._files.mtime_ms(file) > written_ms + OTHERS_MS


def _last_ones(run: Run) -> dict[tuple[str, int], int]:
    """What a run says in the end, without what was removed."""
    found: dict[tuple[str, int], int] = {}
    for entry in run:
        for key, queue_id, offset in msgspec.json.decode(entry.payload, type=list[_Change]):
            if queue_id == REMOVED:
                found = {place: known for place, known in found.items() if place[0] != key}
            else:
                found[key, queue_id] = offset
    return found
