"""ROOT/truncate.to: a cut of the log that was decided and may not be done yet. ROOT/truncate.done: one that is.

`contrailmq store truncate` writes and syncs the file before it touches anything else. Every later opening of the store,
whatever became of the first try, cuts the log there before it looks at it: the file that holds the place is zeroed from
there to its end, and later files go, newest first. (Apache's store moves its positions and leaves the bytes, so that a
crash brings them back: #10666.) The timer's wheel and log go as well and are rebuilt from the log. Recovery then cuts
queues and index as after any loss. The file gets its other name only when all of that is on disk.

A broker keeps positions in the queues beside the store: of consumers, of delay levels. Those of a slave may be beyond
the end of its queues, as its master's are, but not after a cut: other messages will stand there. Whoever cut the log
(`--resync`, or an operator by hand), `truncate.done` tells the next broker, which sets its positions back, saves them,
and removes it.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Final

import msgspec

from contrailmq.store.base.checked_json import read_checked, replace_checked
from contrailmq.store.base.errors import CorruptStoreError
from contrailmq.store.base.store_lock import remove_tree
from contrailmq.store.files import Files
from contrailmq.store.log.mapped_file import MappedFile
from contrailmq.store.log.mapped_file_queue import MappedFileQueue

_log = logging.getLogger(__name__)

NAME: Final = "truncate.to"
DONE: Final = "truncate.done"
_CHUNK: Final = bytes(1 << 20)
_TIMER_PARTS: Final = ("timerwheel", "timerlog")


class _Decision(msgspec.Struct):
    at: int


def decide_truncation(root: Path, files: Files, at: int) -> None:
    """From here on the log ends at `at`, whatever happens. The caller has the store's lock, and opens the store."""
    replace_checked(files, root / NAME, _Decision(at))


def decided_truncation(root: Path, files: Files) -> int | None:
    """Where the log is to end; None when nothing was decided."""
    path = root / NAME
    if not files.exists(path):
        return None
    decision = read_checked(files, path, _Decision)
    if decision is None:
        raise CorruptStoreError(path, "says where the log is to be cut, and is damaged: remove it, and truncate again")
    return decision.at


def truncate_log(root: Path, files: Files, log_files: MappedFileQueue, at: int) -> None:
    """Before anything else is loaded."""
    _log.warning("store %s: the log is cut at offset %d, as was asked for", root, at)
    erase_from(files, log_files, at)
    for name in _TIMER_PARTS:
        path = root / name
        if files.exists(path):
            if files.is_file(path):
                files.unlink(path)
            else:
                remove_tree(path, files)
    files.sync_directory(root)


def erase_from(files: Files, log_files: MappedFileQueue, at: int) -> None:
    """Nothing of the log is left behind that place; a crash on the way leaves all of it, or less."""
    for file in log_files.files:
        if file.base <= at < file.end:
            _erase(files, file, at - file.base)
    log_files.truncate_dirty_files(at)


def truncation_done(root: Path, files: Files) -> None:
    """Log, queues and index are cut, on the disk. What was kept beside them is not."""
    files.rename(root / NAME, root / DONE)
    files.sync_directory(root)


def is_cut(root: Path, files: Files) -> bool:
    """Whether the log was cut, and positions that were saved before may be beyond the end of the queues."""
    return files.exists(root / DONE)


def positions_set_back(root: Path, files: Files) -> None:
    """No position is beyond the end of its queue any more, on the disk."""
    files.unlink(root / DONE)
    files.sync_directory(root)


def _erase(files: Files, file: MappedFile, position: int) -> None:
    """Zero a file from a position to its end, where it is not zero yet (Apache's files may have no blocks there)."""
    for begin in range(position, file.size_bytes, len(_CHUNK)):
        size_bytes = min(len(_CHUNK), file.size_bytes - begin)
        if file.mapping[begin : begin + size_bytes] != _CHUNK[:size_bytes]:
            files.pwrite(file.descriptor, _CHUNK[:size_bytes], begin)
    files.sync(file.descriptor)
