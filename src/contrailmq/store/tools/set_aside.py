"""ROOT/damaged/: the bytes that `store repair` replaces in the log, and what was known of them.

    <begin, 20 digits>-<end, 20 digits>.bin     the bytes of one range as they were
    damaged.jsonl                               a line for each: its place, file, sha256, time, and the messages lost

Everything is synced, names included, when `set_aside` returns. Doing it again changes nothing; if a range has other
bytes by then (a repair was killed while it wrote), they get a name of their own, with -2, -3 and so on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from mmap import mmap
from pathlib import Path
from typing import Final

import msgspec

from contrailmq.store.files import Files
from contrailmq.store.queues.placeholder import LostMessage

DIRECTORY: Final = "damaged"
LIST_NAME: Final = "damaged.jsonl"
_CHUNK_BYTES: Final = 1 << 20


class _Named(msgspec.Struct):
    """What is read of a line of the list."""

    file: str


def set_aside(
    root: Path,
    files: Files,
    *,
    begin: int,
    data: tuple[mmap, int, int],
    reason: str,
    lost: Sequence[LostMessage],
    time_ms: int,
) -> Path:
    """Keep the bytes `data` (a mapping, from, to) of the range that begins at `begin`; the file that has them."""
    directory = root / DIRECTORY
    files.make_directory(directory)
    mapping, start, stop = data
    end = begin + stop - start
    digest = hashlib.sha256()
    for at in range(start, stop, _CHUNK_BYTES):
        digest.update(mapping[at : min(at + _CHUNK_BYTES, stop)])
    checksum = digest.hexdigest()
    path = _place(directory, f"{begin:020d}-{end:020d}", checksum, files)
    if not files.exists(path):
        _write(path, mapping, start, stop, files)
    line = {
        "begin": begin,
        "end": end,
        "file": path.name,
        "sha256": checksum,
        "reason": reason,
        "time_ms": time_ms,
        "lost": [message._asdict() for message in lost],
    }
    _append_line(directory / LIST_NAME, line, files)
    files.sync_directory(directory)
    return path


def _place(directory: Path, name: str, checksum: str, files: Files) -> Path:
    """The file that has these bytes already, or the first free name."""
    path, number = directory / f"{name}.bin", 1
    while files.exists(path) and _checksum(path, files) != checksum:
        number += 1
        path = directory / f"{name}-{number}.bin"
    return path


def _checksum(path: Path, files: Files) -> str:
    digest, at = hashlib.sha256(), 0
    descriptor = files.open(path, writable=False)
    try:
        while chunk := files.pread(descriptor, _CHUNK_BYTES, at):
            digest.update(chunk)
            at += len(chunk)
    finally:
        files.close(descriptor)
    return digest.hexdigest()


def _write(path: Path, mapping: mmap, start: int, stop: int, files: Files) -> None:
    """Under another name until it is whole and synced."""
    unfinished = path.with_suffix(".part")
    descriptor = files.open(unfinished, create=True)
    try:
        files.truncate(descriptor, 0)
        for at in range(start, stop, _CHUNK_BYTES):
            files.pwrite(descriptor, mapping[at : min(at + _CHUNK_BYTES, stop)], at - start)
        files.sync(descriptor)
    finally:
        files.close(descriptor)
    files.rename(unfinished, path)
    files.sync_directory(path.parent)


def _append_line(path: Path, line: dict[str, object], files: Files) -> None:
    """Unless the list has it. A line that a crash cut short is ended first."""
    descriptor = files.open(path, create=True)
    try:
        size_bytes = files.size(descriptor)
        known = files.pread(descriptor, size_bytes, 0)
        if any(_file_named_in(one) == line["file"] for one in known.split(b"\n")):
            files.sync(descriptor)
            return
        text = msgspec.json.encode(line) + b"\n"
        files.pwrite(descriptor, b"\n" + text if known and not known.endswith(b"\n") else text, size_bytes)
        files.sync(descriptor)
    finally:
        files.close(descriptor)


def _file_named_in(line: bytes) -> str | None:
    """None for a line that a crash cut short."""
    try:
        return msgspec.json.decode(line, type=_Named).file
    except msgspec.DecodeError:
        return None
