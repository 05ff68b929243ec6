"""Saving the tables: one thread writes, the loop only hands over text.

`mark` notes that a file is out of date, `save` writes everything that is marked and returns when it is on disk. Text
is made on the loop, where nothing changes under it; writing, syncing and renaming happen in the worker. Saves do not
overlap.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from contrailmq.broker import config_files

log = logging.getLogger("contrailmq.broker")


class TableSaver:
    """Owner: BrokerServer."""

    def __init__(self, directory: Path, snapshots: Mapping[str, Callable[[], str]], worker: ThreadPoolExecutor) -> None:
        self._directory = directory
        self._snapshots = dict(snapshots)
        self._worker = worker
        self._marked: set[str] = set()
        self._lock = asyncio.Lock()

    def add(self, name: str, snapshot: Callable[[], str]) -> None:
        """One more file to look after."""
        self._snapshots[name] = snapshot

    def mark(self, name: str) -> None:
        assert name in self._snapshots
        self._marked.add(name)

    async def save(self, *names: str) -> None:
        """Write the marked files and those named; OSError when the disk refuses, and they stay marked."""
        for name in names:
            self.mark(name)
        async with self._lock:
            marked, self._marked = self._marked, set()
            texts = {name: self._snapshots[name]() for name in marked}
            try:
                await asyncio.get_running_loop().run_in_executor(self._worker, self._write, texts)
            except OSError:
                self._marked |= marked
                raise

    def save_all_now(self) -> None:
        """Write every file from this thread: the last act of a broker that stops."""
        self._marked.clear()
        self._write({name: snapshot() for name, snapshot in self._snapshots.items()})

    def _write(self, texts: Mapping[str, str]) -> None:
        for name, text in texts.items():
            config_files.save(self._directory / name, text)
