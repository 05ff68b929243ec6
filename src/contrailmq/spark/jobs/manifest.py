"""The manifest of an archive: which files belong to it, and up to where their sources were read.

    <archive>/topic=Orders/date=2026-11-15/<name>.parquet         data, written by tasks under names never used twice
    <archive>/_manifest/00000000000000000007.json                 commit 7: files it added, offsets and batches after it

One commit is one file that appears whole or not at all (written aside, synced, linked under the next number). Offsets
and files are in the same commit, so they cannot disagree: that is what makes an archive exactly-once. A file that no
commit lists is the leaving of a failed attempt; readers ignore it and the next writer removes it. Two writers meet at
the link: one of them fails with `ArchiveBusyError` and has changed nothing. A lock keeps them apart before that.
"""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from contrailmq.message import ContrailError

_VERSION: Final = 1
_FOLDER: Final = "_manifest"  # Spark ignores names that begin with an underscore


class ArchiveError(ContrailError):
    """An archive cannot be used as asked."""


class ArchiveBusyError(ArchiveError):
    """Another writer works on the archive."""

    retriable = True


class ArchivedFile(NamedTuple):
    """One Parquet file of the archive. `path` is relative to the archive."""

    path: str
    topic: str
    date: str
    rows: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """What all commits so far add up to."""

    version: int = 0
    offsets: dict[str, int] = field(default_factory=dict)  # source -> next position to read
    batches: dict[str, int] = field(default_factory=dict)  # streaming query -> its newest batch in the archive
    files: tuple[ArchivedFile, ...] = ()
    topics: dict[str, list[str] | None] = field(default_factory=dict)  # source -> topics chosen from it; None: all

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


class Manifest:
    """Reads and extends the manifest of one archive directory."""

    def __init__(self, archive: str | Path) -> None:
        self.archive = Path(archive)
        self._folder = self.archive / _FOLDER

    def load(self) -> ArchiveState:
        """The state after the newest commit, with every file."""
        files: list[ArchivedFile] = []
        for path in sorted(self._folder.glob("*.json")):
            files.extend(ArchivedFile(*entry) for entry in _read_commit(path)["files"])
        return replace(self.head(), files=tuple(files))

    def head(self) -> ArchiveState:
        """The state after the newest commit without its files: one small file to read, however long the history."""
        newest = max(self._folder.glob("*.json"), default=None)
        if newest is None:
            return ArchiveState()
        commit = _read_commit(newest)
        return ArchiveState(int(newest.stem), commit["offsets"], commit["batches"], topics=commit.get("topics", {}))

    def commit(
        self,
        before: ArchiveState,
        files: Sequence[ArchivedFile],
        *,
        offsets: dict[str, int] | None = None,
        batches: dict[str, int] | None = None,
        topics: dict[str, list[str] | None] | None = None,
    ) -> ArchiveState:
        """Add one commit on top of `before`. When it returns, the commit is on disk."""
        after = ArchiveState(
            before.version + 1,
            {**before.offsets, **(offsets or {})},
            {**before.batches, **(batches or {})},
            topics={**before.topics, **(topics or {})},
        )
        text = json.dumps(
            {
                "version": _VERSION,
                "offsets": dict(sorted(after.offsets.items())),
                "batches": dict(sorted(after.batches.items())),
                "topics": dict(sorted(after.topics.items())),
                "files": [list(file) for file in files],
            }
        )
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=self._folder, prefix=".commit-") as part:
            part.write(text)
            part.flush()
            os.fsync(part.fileno())
            try:
                os.link(part.name, self._folder / f"{after.version:020d}.json")
            except FileExistsError:
                raise ArchiveBusyError(
                    f"{self.archive}: commit {after.version} was made by another writer meanwhile; run again"
                ) from None
        sync_folder(self._folder)
        return after

    @contextmanager
    def writing(self) -> Iterator[ArchiveState]:
        """Hold the archive for writing, alone. Gives its head."""
        self._folder.mkdir(parents=True, exist_ok=True)
        with open(self._folder / ".lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ArchiveBusyError(f"{self.archive} is being written by another process; wait for it") from None
            yield self.head()

    def remove_leavings(self) -> list[Path]:
        """Delete data files that no commit lists. Only for a writer that holds the archive."""
        listed = {self.archive / file.path for file in self.load().files}
        left = [path for path in self.archive.glob("topic=*/date=*/*") if path not in listed]
        for path in left:
            path.unlink()
        return left

    def paths(self) -> list[str]:
        """Every file of the archive, in commit order."""
        return [str(self.archive / file.path) for file in self.load().files]


def _read_commit(path: Path) -> dict[str, Any]:
    commit: dict[str, Any] = json.loads(path.read_text())
    if commit.get("version") != _VERSION:
        raise ArchiveError(f"{path} has version {commit.get('version')}, this program knows {_VERSION}: update it")
    return commit


def sync_folder(folder: Path) -> None:
    """Make names in a directory durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
