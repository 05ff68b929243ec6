"""Small files of our own beside the log: notes as JSON, with a checksum in front.

    file := crc:8 hexadecimal digits  notes:JSON

A torn or changed file counts as missing: its readers can do without.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final, TypeVar

import msgspec

from contrailmq.message.checksum import crc32
from contrailmq.store.files import Files

_CRC_BYTES: Final = 8
_Notes = TypeVar("_Notes")


def read_checked(files: Files, path: Path, kind: type[_Notes]) -> _Notes | None:
    """What a file that exists says; None when that cannot be believed."""
    descriptor = files.open(path, writable=False)
    try:
        data = files.pread(descriptor, files.size(descriptor), 0)
    finally:
        files.close(descriptor)
    body = data[_CRC_BYTES:]
    if data[:_CRC_BYTES] != _checksum(body):
        return None
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError:
        return None


def write_checked(files: Files, path: Path, notes: object, *, is_synced: bool = True) -> None:
    """Overwrite a file in place: callers give a temporary name and rename it."""
    body = msgspec.json.encode(notes)
    descriptor = files.open(path, create=True)
    try:
        files.truncate(descriptor, 0)
        files.pwrite(descriptor, _checksum(body) + body, 0)
        if is_synced:
            files.sync(descriptor)
    finally:
        files.close(descriptor)


def replace_checked(files: Files, path: Path, notes: object) -> None:
    """Put a durable file in the place of the old one: a crash leaves one of the two, whole."""
    beside = path.with_name(path.name + ".new")
    write_checked(files, beside, notes)
    files.rename(beside, path)
    files.sync_directory(path.parent)


def _checksum(body: bytes) -> bytes:
    return f"{crc32(body):08x}".encode()
