"""Saves the tables: the loop takes snapshots, one worker thread writes them.

`mark` notes that a file is out of date. `save` writes everything marked and returns when it is on disk; `when_saved`
calls back then. All changes made before a save began share that save, and saves do not overlap. Files are written in
the order in which they were named, so that a prohibition is on disk before anything relies on it (deleted_topics.py).
A file that must not be newer than another (`after`) is written with that one, or not at all.
Encoding (0.1 s for 6,000 topics), writing, syncing and renaming happen in the worker.

On a full or unwritable disk consumers continue. Unwritten files stay marked and are tried again every second, and the
log reports when this began and ended. Consumers get unsaved progress again after a kill, so offsets are saved soon
after a change, as often as that is cheap (`SavePause`), and never later than flushConsumerOffsetInterval.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import Executor
from pathlib import Path
from typing import Final

from contrailmq._faults import LastingFault
from contrailmq.broker.state import config_files
from contrailmq.broker.state.config_files import TableSaveError

log = logging.getLogger("contrailmq.broker")

Saved = Callable[[TableSaveError | None], None]
Snapshot = Callable[[], Callable[[], str]]  # takes the values as of now; what it returns makes the text, in any thread

SOONEST_S: Final = 0.1  # with a save of up to 9 ms, 20 times that, and the save itself: 200 ms
RETRY_S: Final = 1.0  # between two tries to write what the disk refused
SHARE: Final = 20  # a save that takes t is followed by a pause of 20 t: one part in twenty of a thread and of the disk


class SavePause:
    """How long to wait before the next save: proportional to what the last one cost, within bounds."""

    def __init__(self) -> None:
        self._cost_s = 0.0

    def note(self, cost_s: float) -> None:
        self._cost_s = cost_s

    def seconds(self, longest_s: float) -> float:
        return min(longest_s, max(SOONEST_S, self._cost_s * SHARE))


class TableSaver:
    """Owner: BrokerServer."""

    def __init__(
        self,
        directory: Path,
        snapshots: Mapping[str, Snapshot],
        worker: Executor,
        *,
        lost_reason: Callable[[], str] = lambda: "",
    ) -> None:
        """`lost_reason` says why the directory is not ours to write to any more, if it is not."""
        self._directory = directory
        self._lost_reason = lost_reason
        self._snapshots = dict(snapshots)
        self._worker = worker
        self._after: dict[str, str] = {}
        self._marked: set[str] = set()
        self._waiting: dict[str, list[Saved]] = {}  # for the next save of a file
        self._lock = asyncio.Lock()
        self._is_due = asyncio.Event()
        self._fault = LastingFault(log, "broker tables")

    def add(self, name: str, snapshot: Snapshot, *, after: str | None = None) -> None:
        """One more file to look after; `after` is one that is never older than it on the disk."""
        self._snapshots[name] = snapshot
        if after is not None:
            assert after in self._snapshots
            self._after[name] = after

    def mark(self, name: str) -> None:
        assert name in self._snapshots
        self._marked.add(name)

    def mark_soon(self, name: str) -> None:
        """Mark, and have `run` write it."""
        self.mark(name)
        self._is_due.set()

    def when_saved(self, name: str, call: Saved) -> None:
        """Have the file written, and call once: when it is on disk as it is now, or with the error that kept it off."""
        self._waiting.setdefault(name, []).append(call)
        self.mark_soon(name)

    async def run(self) -> None:
        """Write what is marked for `run`, and again what could not be written. For ever."""
        while True:
            await self._is_due.wait()
            self._is_due.clear()
            try:
                await self.save()
            except TableSaveError:  # logged, and due again
                await asyncio.sleep(RETRY_S)

    async def save(self, *names: str) -> None:
        """Write the marked files and those named; TableSaveError when the disk refuses, and `run` tries again."""
        for name in names:
            self.mark(name)
        async with self._lock:
            marked, self._marked = self._marked | {self._after.get(name, name) for name in self._marked}, set()
            waiting = {name: self._waiting.pop(name, []) for name in sorted(marked)}
            texts = {name: snapshot() for name, snapshot in self._snapshots.items() if name in marked}
            errors = await asyncio.get_running_loop().run_in_executor(self._worker, self._write, texts)
            self._marked |= errors.keys()
            for name, calls in waiting.items():
                for call in calls:
                    call(errors.get(name))
            if errors:
                self._is_due.set()
                error = next(iter(errors.values()))
                self._fault.goes_on(error)
                raise error
            if texts:
                self._fault.is_over(f"those in {self._directory} are saved again")

    def save_all_now(self) -> None:
        """Write every file from this thread: the last act of a broker that stops."""
        self._marked.clear()
        errors = self._write({name: snapshot() for name, snapshot in self._snapshots.items()})
        if errors:
            raise next(iter(errors.values()))

    def _write(self, texts: Mapping[str, Callable[[], str]]) -> dict[str, TableSaveError]:
        """Each of them, whatever becomes of the others; the errors."""
        if reason := self._lost_reason():
            return dict.fromkeys(texts, TableSaveError(self._directory, OSError(errno.ESTALE, reason)))
        errors: dict[str, TableSaveError] = {}
        for name, text in texts.items():
            if (before := errors.get(self._after.get(name, ""))) is not None:
                errors[name] = before
                continue
            try:
                config_files.save(self._directory / name, text())
            except TableSaveError as exc:
                errors[name] = exc
        return errors
