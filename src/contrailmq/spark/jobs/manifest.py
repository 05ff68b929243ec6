"""The manifest of an archive: which files belong to it, and how far their sources were read.

    <archive>/date=2026-11-15/<name>.parquet         data of all topics, written by tasks under names never used twice
    <archive>/_manifest/00000000000000000007.json    commit 7: files it added, offsets and batches after it

A commit is one file that appears whole or not at all (written aside, synced, linked). Files and offsets are in the same
commit, so the archive is exactly-once. A lock keeps two writers apart. Where the lock does not reach, the link does:
one writer fails with `ArchiveBusyError`. Just before the link a writer checks that its lock and files still exist.
Files that no commit lists are leftovers of failed attempts. The next writer removes those with names of our making,
unless commits have a gap, or data is there without any commit and without `_manifest/.begun`: these are errors. What is
read from a commit is checked: types, paths inside the archive, and positions that are never lost or lower.

Upkeep (upkeep.py) replaces files: its commit is whole, it lists every file that counts from then on, and those that
were replaced and wait to be vacuumed. Older archives have a directory for each topic; they stay so until compacted.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import secrets
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Annotated, Final, Literal, NamedTuple, TextIO

import msgspec

from contrailmq.message import ContrailError
from contrailmq.spark.runtime.disk_errors import cause, remedy

_VERSION: Final = 2
_VERSIONS_READ: Final = (1, 2)  # version 1 knows one layout, by topic, and no removed files
_FOLDER: Final = "_manifest"  # Spark ignores names that begin with an underscore
_BEGUN: Final = ".begun"
_LOCK: Final = ".lock"
_UPKEEP: Final = ".upkeep"  # locked by the job that replaces files; holds the beginning of the names of its files
_TOKEN: Final = re.compile(r"[0-9a-f]{8}")
_WAIT_S: Final = 600.0  # for another writer while upkeep is at work, which holds the archive for moments only
_LOOK_S: Final = 0.02
_UPKEEP_TRIES: Final = 50  # a writer that looks whether upkeep is at work takes its lock for a moment
_COMMIT_NAME: Final = re.compile(r"([0-9]{20})\.json")
_PART_NAME: Final = re.compile(r"\.commit-[0-9a-z_]+")  # a commit before its link, also as tempfile names it
_UNREADABLE: Final = {  # what is in a commit's place when reading fails so
    errno.EISDIR: "it is a directory",
    errno.ENOENT: "it is a link to nothing",
    errno.ELOOP: "it is a link to itself",
    errno.EIO: "the disk cannot read it",
}
_DATA_NAME: Final = re.compile(r"[0-9a-f]{16}\.parquet")  # as data_name makes them
_NAMED_MAX: Final = 10  # files that an error names


class ArchiveError(ContrailError):
    """An archive cannot be used as asked."""


class ArchiveBusyError(ArchiveError):
    """Another writer works on the archive."""

    retriable = True


Layout = Literal["packed", "topics"]  # all topics of a day in one directory, or each in its own


class ArchivedFile(NamedTuple):
    """One Parquet file of the archive. `path` is relative to the archive; `topic` is empty in a packed archive."""

    path: str
    topic: str
    date: str
    rows: int
    size_bytes: int


class RemovedFile(NamedTuple):
    """A file that was replaced or expired at a time; it stays for those who still read it, until it is vacuumed."""

    path: str
    time_ms: int


@dataclass(frozen=True, slots=True)
class ArchiveState:
    """What all commits so far add up to."""

    version: int = 0
    offsets: dict[str, int] = field(default_factory=dict)  # source -> next position to read
    batches: dict[str, int] = field(default_factory=dict)  # streaming query -> its newest batch in the archive
    files: tuple[ArchivedFile, ...] = ()
    topics: dict[str, list[str] | None] = field(default_factory=dict)  # source -> topics chosen from it; None: all
    checkpoints: dict[str, str] = field(default_factory=dict)  # streaming query -> its checkpoint within the archive
    names: dict[str, str] = field(default_factory=dict)  # source -> the brokerName of its rows
    layout: Layout = "packed"
    expired_before_ms: int = 0  # rows stored before were dropped by `expire`
    removed: tuple[RemovedFile, ...] = ()
    is_whole: bool = False  # of a commit: it lists every file, not only new ones
    has_same_rows: bool = False  # of a commit: it replaced files by others with the same rows

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)

    def changes_to(self, later: ArchiveState) -> tuple[list[ArchivedFile], list[ArchivedFile]]:
        """Files that a later state has beyond this one's, and those of this one that it has no more."""
        ours, theirs = set(self.files), set(later.files)
        return [file for file in later.files if file not in ours], [file for file in self.files if file not in theirs]


class Manifest:
    """Reads and extends the manifest of one archive directory."""

    def __init__(self, archive: str | Path) -> None:
        self.archive = Path(archive)
        self._folder = self.archive / _FOLDER
        self._lock: int | None = None  # descriptor of the lock file while the archive is held

    def load(self) -> ArchiveState:
        """The state after the newest commit, with every file."""
        state = self.at(self._newest())
        self._check_held(state.files)
        return state

    def newest(self) -> ArchiveState:
        """As `load`, but its files may be gone."""
        return self.at(self._newest())

    def at(self, version: int) -> ArchiveState:
        """The state after a commit. Its files may be gone since."""
        commits: list[ArchiveState] = []
        for number in range(version, 0, -1):
            commits.insert(0, _read_commit(self._path(number)))
            if commits[0].is_whole:
                break
        if not commits:
            return ArchiveState()
        for before, after in pairwise(commits):
            self._check_step(before, after)
        files = tuple(file for commit in commits for file in commit.files)
        return replace(commits[-1], files=files, removed=commits[0].removed)

    def commit_of(self, version: int) -> ArchiveState:
        """One commit alone: the state after it, with the files that it added."""
        return _read_commit(self._path(version))

    def has_same_rows_since(self, version: int) -> bool:
        """Whether every commit after this one only replaced files by others with the same rows."""
        return all(_read_commit(self._path(number)).has_same_rows for number in range(version + 1, self._newest() + 1))

    def version_with(self, files: int) -> int:
        """The commit after which so many files were listed: tables of older versions know no more of it."""
        listed = 0
        for number in range(1, self._newest() + 1):
            if listed == files:
                return number - 1
            commit = _read_commit(self._path(number))
            if commit.is_whole:
                break
            listed += len(commit.files)
        if listed == files:
            return self._newest()
        raise ArchiveError(
            f"{self.archive}: a table lists {files} files of the archive, and no commit had so many: remove the table "
            "(_delta_log or _iceberg), and publish it again"
        )

    def lost(self, files: Sequence[ArchivedFile]) -> list[ArchivedFile]:
        """Those of the files that are gone or have another size."""
        return [file for file in files if _size(self.archive / file.path) != file.size_bytes]

    def _check_held(self, files: Sequence[ArchivedFile]) -> None:
        """Refuse an archive that lacks files of its commits: what they held would be missing without a word.

        Whoever cleans directories by another list than ours removes them: VACUUM of a Delta table that was made
        elsewhere over the same files, or a hand.
        """
        lost = self.lost(files)
        if lost:
            sizes = {file.path: _size(self.archive / file.path) for file in lost[:_NAMED_MAX]}
            named = ", ".join(f"{path} ({'gone' if size is None else f'{size} bytes'})" for path, size in sizes.items())
            more = f" and {len(lost) - _NAMED_MAX} more" if len(lost) > _NAMED_MAX else ""
            raise ArchiveError(
                f"{self.archive} lacks {len(lost)} of its {len(files)} files, or has them with other sizes; they held "
                f"{sum(file.rows for file in lost)} messages: {named}{more}; restore them from a backup, or "
                "from the store with `contrailmq pipeline archive --repair`; was the directory cleaned by something "
                "else (VACUUM of a Delta table)?"
            )

    def head(self) -> ArchiveState:
        """The state after the newest commit without its files: two small files to read, however long the history."""
        newest = self._newest()
        if not newest:
            return ArchiveState()
        head = _read_commit(self._path(newest))
        if newest > 1:
            self._check_step(_read_commit(self._path(newest - 1)), head)
        return replace(head, files=(), removed=())

    def _check_step(self, before: ArchiveState, after: ArchiveState) -> None:
        """Refuse a commit that lost a position of the one before it, or has a lower one.

        Sources may go: a store that was known by another name (a link) is entered under its own by a run that also
        reads on. So one that is gone is an error only if nothing was read on.
        """
        path = self._path(after.version)
        for kind, old, new in (
            ("offsets", before.offsets, after.offsets),
            ("batches", before.batches, after.batches),
        ):
            for source, position in old.items():
                if new.get(source, position) < position:
                    raise _damaged(path, f"its {kind} have {source} at {new[source]}, before it was at {position}")
            gone = sorted(old.keys() - new.keys())
            if gone and (kind == "batches" or new.items() <= old.items()):
                raise _damaged(path, f"its {kind} lack {gone[0]}, before it was at {old[gone[0]]}")

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
        """Refuse a directory that is not an archive: it would read as an empty one."""
        self.check_commits()
        if not self._folder.is_dir():
            raise ArchiveError(
                f"{self.archive} is not an archive, {self._what_it_is()}: name the directory that `archive` wrote to"
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
        for pattern in ("date=*/*.parquet", "topic=*/date=*/*.parquet"):
            found = self.archive.glob(pattern)
            yield from (path for path in found if is_data_name(path.name) and path.is_file())

    def commit(
        self,
        before: ArchiveState,
        files: Sequence[ArchivedFile],
        *,
        offsets: dict[str, int] | None = None,
        batches: dict[str, int] | None = None,
        topics: dict[str, list[str] | None] | None = None,
        checkpoints: dict[str, str] | None = None,
        names: dict[str, str] | None = None,
    ) -> ArchiveState:
        """Add one commit on top of `before`. When it returns, the commit is on disk.

        Every file must be there with its size, and the lock must be held still if it was taken; else nothing is
        committed.
        """
        after = ArchiveState(
            before.version + 1,
            {**before.offsets, **(offsets or {})},
            {**before.batches, **(batches or {})},
            topics={**before.topics, **(topics or {})},
            checkpoints={**before.checkpoints, **(checkpoints or {})},
            names={**before.names, **(names or {})},
            layout=before.layout,
            expired_before_ms=before.expired_before_ms,
            files=tuple(files),
        )
        self.write(after, files)
        return replace(after, files=())

    def replace_files(
        self,
        before: ArchiveState,
        gone: Collection[str],
        files: Sequence[ArchivedFile],
        *,
        has_same_rows: bool,
        layout: Layout | None = None,
        expired_before_ms: int = 0,
        removed: Sequence[RemovedFile] | None = None,
    ) -> ArchiveState:
        """Add a whole commit on top of `before`, which has all its files: without those that are gone, with new ones.

        Those that are gone wait to be vacuumed. `removed` are all that wait after it, where some wait no more.
        """
        now_ms = time.time_ns() // 1_000_000
        left = [file for file in before.files if file.path not in gone]
        waiting = [*before.removed, *(RemovedFile(path, now_ms) for path in sorted(gone))]
        after = replace(
            before,
            version=before.version + 1,
            files=(*left, *files),
            layout=layout or before.layout,
            expired_before_ms=max(before.expired_before_ms, expired_before_ms),
            removed=tuple(waiting if removed is None else removed),
            is_whole=True,
            has_same_rows=has_same_rows,
        )
        self.write(after, files)
        return after

    def write(self, after: ArchiveState, new: Sequence[ArchivedFile]) -> None:
        """Make a commit that lists the state's files, of which these are new."""
        files, text = new, _commit_text(after)
        make_folder(self._folder)
        part = self._folder / f".commit-{secrets.token_hex(8)}"
        try:
            with explained(self._path(after.version)):
                with open(part, "x") as file:
                    file.write(text)
                    file.flush()
                    os.fsync(file.fileno())
                self._check_lock()
                self._check_files(files)
                self._link(part, after.version)
        finally:
            with suppress(OSError):  # the commit does not depend on it; the next writer removes it
                part.unlink()
        sync_folder(self._folder)

    def _link(self, part: Path, number: int) -> None:
        """Give a commit its name, unless another writer was faster."""
        try:
            os.link(part, self._path(number))
        except FileExistsError:
            raise ArchiveBusyError(
                f"{self.archive}: commit {number} was made by another writer meanwhile; run again"
            ) from None
        except FileNotFoundError:
            raise ArchiveBusyError(
                f"{part} was removed by another writer before it became commit {number}: nothing was committed; let "
                "one writer work at a time, then run again"
            ) from None

    def _check_lock(self) -> None:
        """Refuse to go on when the lock taken is not the archive's any more: others get past it."""
        if self._lock is None:
            return
        path, ours = self._folder / _LOCK, os.fstat(self._lock)
        try:
            is_ours = os.path.samestat(ours, path.stat())
        except FileNotFoundError:
            is_ours = False
        if not is_ours:
            raise ArchiveBusyError(
                f"{path} was removed while this writer held it, another may be at work: nothing was committed; leave "
                "the file where it is, let one writer work at a time, then run again"
            )

    def _check_files(self, files: Sequence[ArchivedFile]) -> None:
        """Refuse to commit files that are not as they were written."""
        lost = self.lost(files)
        if lost:
            size = _size(self.archive / lost[0].path)
            raise ArchiveBusyError(
                f"{self.archive}: {len(lost)} of {len(files)} files to commit were removed or changed after they were "
                f"written, the first is {lost[0].path} ({'gone' if size is None else f'{size} bytes'}, written were "
                f"{lost[0].size_bytes}): nothing was committed; let one writer work at a time, then run again"
            )

    @contextmanager
    def writing(self) -> Iterator[ArchiveState]:
        """Hold the archive for writing, alone. Gives its head."""
        with self.held():
            head, begun = self.head(), self._folder / _BEGUN
            if not head.version:
                begun.touch()
                sync_folder(self._folder)
            yield head
            if self._path(1).exists():
                begun.unlink(missing_ok=True)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep writers out. While upkeep is at work, wait for another writer: one of the two holds it for moments."""
        self.check_commits()
        make_folder(self._folder)
        with open(self._folder / _LOCK, "w") as lock:
            give_up_s = time.monotonic() + _WAIT_S
            while not _is_locked_by_us(lock):
                if not self._token() or time.monotonic() > give_up_s:
                    raise ArchiveBusyError(f"{self.archive} is being written by another process; wait for it")
                time.sleep(_LOOK_S)
            self._lock = lock.fileno()
            try:
                self._check_lock()  # somebody may have removed the file between its opening and its locking
                yield
            finally:
                self._lock = None

    @contextmanager
    def upkeep(self) -> Iterator[str]:
        """Be the only job that replaces files; writers go on meanwhile. Gives what the names of its files begin with.

        After an error its files are removed; after a kill the next writer removes them.
        """
        self.check_archive()
        token = secrets.token_hex(4)
        with open(self._folder / _UPKEEP, "a+") as lock:
            for _ in range(_UPKEEP_TRIES):
                if _is_locked_by_us(lock):
                    break
                time.sleep(_LOOK_S)
            else:
                raise ArchiveBusyError(
                    f"{self.archive} is being compacted, expired, vacuumed or repaired by another process; wait for it"
                )
            with explained(self._folder / _UPKEEP):
                os.ftruncate(lock.fileno(), 0)
                _write_whole(lock.fileno(), token.encode())
            try:
                yield token
            except BaseException:  # one that is interrupted leaves no files either
                with suppress(ArchiveError, OSError):  # the error tells more; the next writer removes them
                    self._remove_unlisted([path for path in self._data_files() if path.name.startswith(token)])
                raise

    def _token(self) -> str:
        """What the names of the files of running upkeep begin with; empty while none runs."""
        try:
            with open(self._folder / _UPKEEP) as lock:
                if _is_locked_by_us(lock):
                    return ""
                found = _TOKEN.match(lock.read())
                return found[0] if found else "-"  # it begins just now and has no file yet
        except FileNotFoundError:
            return ""

    def remove_leavings(self) -> list[Path]:
        """Delete data files of ours that no commit lists, and commits that never got their name.

        Only for a writer that holds the archive. Files of running upkeep stay: it cannot commit meanwhile.
        """
        self._check_held(self.newest().files)
        found = list(self._data_files())
        token = self._token() or "-"  # asked after the files were found: what began later is not among them
        left = self._remove_unlisted([path for path in found if not path.name.startswith(token)])
        parts = [path for path in self._folder.iterdir() if _PART_NAME.fullmatch(path.name) and path.is_file()]
        for path in parts:
            path.unlink()
        return left + parts

    def _remove_unlisted(self, paths: Sequence[Path]) -> list[Path]:
        """Delete those of the data files that neither count nor wait to be vacuumed."""
        state = self.newest()
        listed = {file.path for file in state.files} | {file.path for file in state.removed}
        left = [path for path in paths if str(path.relative_to(self.archive)) not in listed]
        for path in left:
            path.unlink()
        return left

    def paths(self) -> list[str]:
        """Every file of the archive, in commit order."""
        return [str(self.archive / file.path) for file in self.load().files]


def data_name(token: str = "") -> str:
    """A new name for a data file: random, so no attempt writes over another's, and of a form that shows it is ours."""
    return f"{token}{secrets.token_hex(8)[len(token) :]}.parquet"


def is_data_name(name: str) -> bool:
    """Whether a file's name is of our making."""
    return _DATA_NAME.fullmatch(name) is not None


def _is_locked_by_us(lock: TextIO) -> bool:
    """Take a lock, unless another has it."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _commit_text(state: ArchiveState) -> str:
    """A commit as in its file."""
    return json.dumps(
        {
            "version": _VERSION,
            "offsets": dict(sorted(state.offsets.items())),
            "batches": dict(sorted(state.batches.items())),
            "topics": dict(sorted(state.topics.items())),
            "checkpoints": dict(sorted(state.checkpoints.items())),
            "names": dict(sorted(state.names.items())),
            "layout": state.layout,
            "expired_before_ms": state.expired_before_ms,
            "is_whole": state.is_whole,
            "has_same_rows": state.has_same_rows,
            "removed": [list(file) for file in state.removed],
            "files": [list(file) for file in state.files],
        }
    )


def _size(path: Path) -> int | None:
    """A file's bytes, None without the file."""
    try:
        return path.stat().st_size
    except (FileNotFoundError, NotADirectoryError):
        return None


_Position = Annotated[int, msgspec.Meta(ge=0)]


class _Versioned(msgspec.Struct):
    """What can be read of a commit of any version."""

    version: int


class _Commit(msgspec.Struct):
    """A commit as in its file. Older ones have no topics, no checkpoints and no names, then nothing of upkeep."""

    offsets: dict[str, _Position]
    batches: dict[str, _Position]
    files: list[ArchivedFile]
    topics: dict[str, list[str] | None] = {}
    checkpoints: dict[str, str] = {}
    names: dict[str, str] = {}
    layout: Layout = "topics"
    expired_before_ms: _Position = 0
    is_whole: bool = False
    has_same_rows: bool = False
    removed: list[RemovedFile] = []

    def fault(self) -> str | None:
        """What cannot be true of a commit, though its types are right."""
        for name in [*(file.path for file in self.files), *(file.path for file in self.removed)]:
            path = PurePosixPath(name)
            if path.is_absolute() or ".." in path.parts or not path.parts:
                return f"the file {name!r} is not in the archive"
        for file in self.files:
            if file.rows < 0 or file.size_bytes < 0:
                return f"the file {file.path!r} has {file.rows} rows and {file.size_bytes} bytes"
        unread = sorted(self.topics.keys() - self.offsets.keys()) + sorted(
            self.checkpoints.keys() - self.batches.keys()
        )
        if unread:
            return f"it does not say how far {unread[0]} was read"
        if self.files and not self.offsets and not self.batches:
            return f"it lists {len(self.files)} files, but not how far their source was read"
        return None


def _read_commit(path: Path) -> ArchiveState:
    """A commit as the state after it, with the files that it added."""
    try:
        content = path.read_bytes()
    except OSError as exc:
        if exc.errno not in _UNREADABLE:
            raise
        raise _damaged(path, _UNREADABLE[exc.errno]) from exc
    try:
        version = msgspec.json.decode(content, type=_Versioned).version
        if version not in _VERSIONS_READ:
            raise ArchiveError(f"{path} has version {version}, this program knows {_VERSION}: update it")
        commit = msgspec.json.decode(content, type=_Commit)
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise _damaged(path, f"its {len(content)} bytes are not a commit ({exc})") from exc
    fault = commit.fault()
    if fault is not None:
        raise _damaged(path, fault)
    return ArchiveState(
        int(path.stem),
        commit.offsets,
        commit.batches,
        tuple(commit.files),
        commit.topics,
        commit.checkpoints,
        commit.names,
        commit.layout,
        commit.expired_before_ms,
        tuple(commit.removed),
        commit.is_whole,
        commit.has_same_rows,
    )


def _damaged(path: Path, what: str) -> ArchiveError:
    return ArchiveError(f"{path} is damaged: {what}; restore it from a backup, nothing was deleted")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Say of a write before its commit which file failed and what to do: the system's error often names no file."""
    try:
        yield
    except OSError as exc:
        raise ArchiveError(
            f"{path} cannot be written: {cause(exc)}; nothing was committed: {remedy(exc)}, then run again"
        ) from exc


def _write_whole(descriptor: int, data: bytes) -> None:
    """Unlike a file object, which would try what failed once more when it is closed, and raise without a name."""
    while data:
        data = data[os.write(descriptor, data) :]


def make_folder(folder: Path) -> None:
    """Make a directory and those above it, as far as there are none, each with a name that is durable."""
    if not folder.is_dir():
        make_folder(folder.parent)
        try:
            folder.mkdir(exist_ok=True)  # another task may have been faster
        except FileExistsError as exc:
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder)) from exc
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
