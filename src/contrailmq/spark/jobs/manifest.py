"""The manifest of an archive: which files belong to it, and up to where their sources were read.

    <archive>/topic=Orders/date=2026-11-15/<name>.parquet         data, written by tasks under names never used twice
    <archive>/_manifest/00000000000000000007.json                 commit 7: files it added, offsets and batches after it

One commit is one file that appears whole or not at all (written aside, synced, linked under the next number). Offsets
and files are in the same commit, so they cannot disagree: that is what makes an archive exactly-once. Two writers meet
at the link: one of them fails with `ArchiveBusyError` and has changed nothing. A lock keeps them apart before that.

A file that no commit lists is the leaving of a failed attempt; readers ignore it and the next writer removes it. Since
that deletes data if a commit was lost, it is done with care: only files with names of our own making are removed;
commits are numbered from 1 without a gap, and a gap is an error; and data without any commit is an error too, unless
`_manifest/.begun` is there, which a first run makes before its first file and removes after its first commit.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple

from contrailmq.message import ContrailError
from contrailmq.spark.disk_errors import cause, remedy

_VERSION: Final = 1
_FOLDER: Final = "_manifest"  # Spark ignores names that begin with an underscore
_BEGUN: Final = ".begun"
_COMMIT_NAME: Final = re.compile(r"([0-9]{20})\.json")
_DATA_NAME: Final = re.compile(r"[0-9a-f]{16}\.parquet")  # as data_name makes them


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
    checkpoints: dict[str, str] = field(default_factory=dict)  # streaming query -> its checkpoint within the archive

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
        commits = [_read_commit(self._path(number)) for number in range(1, self._newest() + 1)]
        if not commits:
            return ArchiveState()
        return replace(commits[-1], files=tuple(file for commit in commits for file in commit.files))

    def head(self) -> ArchiveState:
        """The state after the newest commit without its files: one small file to read, however long the history."""
        newest = self._newest()
        return replace(_read_commit(self._path(newest)), files=()) if newest else ArchiveState()

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:020d}.json"

    def _newest(self) -> int:
        """The number of the newest commit, 0 without any. A commit missing before it is an error."""
        names = os.listdir(self._folder) if self._folder.is_dir() else []
        numbers = {int(found[1]) for found in map(_COMMIT_NAME.fullmatch, names) if found} - {0}
        newest = max(numbers, default=0)
        if len(numbers) < newest:
            # A listing may pass over a name that appears meanwhile: only a look at the file itself tells.
            lost = next((n for n in range(1, newest) if n not in numbers and not self._path(n).exists()), None)
            if lost is not None:
                raise ArchiveError(
                    f"{self._path(lost)} is missing, though there is a commit {newest}: restore it from a backup; "
                    "nothing was deleted, the data files that it lists are still there"
                )
        return newest

    def check_commits(self) -> None:
        """Refuse data files without any commit, unless a first run that was cut short left them.

        The order matters beside a writer at its first run: its mark is there before its data, its commit before the
        mark goes.
        """
        if self._newest():
            return
        count = sum(1 for _ in self._data_files())
        if count and not (self._folder / _BEGUN).exists() and not self._newest():
            raise ArchiveError(
                f"{self.archive} holds {count} data files, but {self._folder} has no commit: restore it from a backup, "
                "or give another directory; nothing was deleted"
            )

    def check_archive(self) -> None:
        """Refuse what is no archive: it would read as an empty one."""
        self.check_commits()
        if not self._folder.is_dir():
            raise ArchiveError(
                f"{self.archive} is no archive, {self._what_it_is()}: name the directory that `archive` wrote to"
            )

    def _what_it_is(self) -> str:
        """What is found in place of an archive."""
        if not self.archive.exists():
            return "there is no such directory"
        if not self.archive.is_dir():
            return "it is a file"
        return "it is a store" if (self.archive / "commitlog").is_dir() else f"it has no {_FOLDER}"

    def _data_files(self) -> Iterator[Path]:
        """Files below the archive with names of our own making, whether a commit lists them or not."""
        found = self.archive.glob("topic=*/date=*/*.parquet")
        return (path for path in found if _DATA_NAME.fullmatch(path.name) and path.is_file())

    def commit(
        self,
        before: ArchiveState,
        files: Sequence[ArchivedFile],
        *,
        offsets: dict[str, int] | None = None,
        batches: dict[str, int] | None = None,
        topics: dict[str, list[str] | None] | None = None,
        checkpoints: dict[str, str] | None = None,
    ) -> ArchiveState:
        """Add one commit on top of `before`. When it returns, the commit is on disk."""
        after = ArchiveState(
            before.version + 1,
            {**before.offsets, **(offsets or {})},
            {**before.batches, **(batches or {})},
            topics={**before.topics, **(topics or {})},
            checkpoints={**before.checkpoints, **(checkpoints or {})},
        )
        text = json.dumps(
            {
                "version": _VERSION,
                "offsets": dict(sorted(after.offsets.items())),
                "batches": dict(sorted(after.batches.items())),
                "topics": dict(sorted(after.topics.items())),
                "checkpoints": dict(sorted(after.checkpoints.items())),
                "files": [list(file) for file in files],
            }
        )
        make_folder(self._folder)
        newest = self._path(after.version)
        with explained(newest), tempfile.NamedTemporaryFile("w", dir=self._folder, prefix=".commit-") as part:
            part.write(text)
            part.flush()
            os.fsync(part.fileno())
            try:
                os.link(part.name, newest)
            except FileExistsError:
                raise ArchiveBusyError(
                    f"{self.archive}: commit {after.version} was made by another writer meanwhile; run again"
                ) from None
        sync_folder(self._folder)
        return after

    @contextmanager
    def writing(self) -> Iterator[ArchiveState]:
        """Hold the archive for writing, alone. Gives its head."""
        self.check_commits()
        make_folder(self._folder)
        with open(self._folder / ".lock", "w") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ArchiveBusyError(f"{self.archive} is being written by another process; wait for it") from None
            head, begun = self.head(), self._folder / _BEGUN
            if not head.version:
                begun.touch()
                sync_folder(self._folder)
            yield head
            begun.unlink(missing_ok=True)

    def remove_leavings(self) -> list[Path]:
        """Delete data files of ours that no commit lists. Only for a writer that holds the archive."""
        listed = {self.archive / file.path for file in self.load().files}
        left = [path for path in self._data_files() if path not in listed]
        for path in left:
            path.unlink()
        return left

    def paths(self) -> list[str]:
        """Every file of the archive, in commit order."""
        return [str(self.archive / file.path) for file in self.load().files]


def data_name() -> str:
    """A new name for a data file: random, so no attempt writes over another's, and of a form that tells it is ours."""
    return f"{secrets.token_hex(8)}.parquet"


def _read_commit(path: Path) -> ArchiveState:
    """A commit as the state after it, with the files that it added."""
    content = path.read_bytes()
    try:
        commit = json.loads(content)
        if commit["version"] != _VERSION:
            raise ArchiveError(f"{path} has version {commit['version']}, this program knows {_VERSION}: update it")
        return ArchiveState(
            int(path.stem),
            {source: int(offset) for source, offset in commit["offsets"].items()},
            {query: int(batch) for query, batch in commit["batches"].items()},
            tuple(ArchivedFile(*entry) for entry in commit["files"]),
            dict(commit.get("topics", {})),
            dict(commit.get("checkpoints", {})),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as exc:
        raise ArchiveError(
            f"{path} is damaged: its {len(content)} bytes are no commit ({type(exc).__name__}: {exc}); "
            "restore it from a backup, nothing was deleted"
        ) from exc


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Say of a write before its commit which file failed and what to do: the system's error often names no file."""
    try:
        yield
    except OSError as exc:
        raise ArchiveError(
            f"{path} cannot be written: {cause(exc)}; nothing was committed: {remedy(exc)}, then run again"
        ) from exc


def make_folder(folder: Path) -> None:
    """Make a directory and those above it, as far as there are none, each with a name that is durable."""
    if not folder.is_dir():
        if folder.exists():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
        make_folder(folder.parent)
        folder.mkdir(exist_ok=True)  # another task may have been faster
        sync_folder(folder.parent)


def sync_folder(folder: Path) -> None:
    """Make names in a directory durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as exc:
        exc.filename = str(folder)
        raise
    finally:
        os.close(descriptor)
