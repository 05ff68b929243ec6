"""Key-value settings by namespace, kept in `kvConfig.json`. ORDER_TOPIC_CONFIG is the one namespace with a meaning.

The table is plain memory; a caller that changed it writes `to_json()` with `save`, in a worker thread, before it
answers. Saving never leaves a half-written file: a new file is written and synced, the old one becomes `.bak`, the new
one takes its place. Loading uses `.bak` if the file is missing or broken, and logs it.

Settings that were changed while the server runs are saved the same way, into the properties file that it was started
with. Its other settings stay; its comments stay only in `.bak`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from contrailmq.message import ContrailError
from contrailmq.wire.errors import RemoteProtocolError
from contrailmq.wire.fastjson import Body, decode_body, encode_body, new_dict
from contrailmq.wire.properties import format_properties, read_properties

__all__ = ["ORDER_TOPIC_CONFIG", "KvConfig", "KvConfigError", "load", "save", "save_settings"]

_log = logging.getLogger(__name__)

ORDER_TOPIC_CONFIG: Final = "ORDER_TOPIC_CONFIG"
TABLE_BYTES_MAX: Final = 4 * 1024 * 1024  # as JSON: every change writes the whole, which takes the loop 10 ms then
_ENTRY_BYTES: Final = 100  # what a key, or a namespace, takes besides its text


class KvConfigError(ContrailError):
    """The file cannot be read or written; the text says which and why."""


class _File(Body, kw_only=True):
    config_table: dict[str, dict[str, str]] = msgspec.field(default_factory=new_dict)


class KvConfig:
    """namespace -> key -> value. Owned by the NameServer's loop."""

    def __init__(self, table: dict[str, dict[str, str]] | None = None) -> None:
        self._table = table or {}
        self.size_bytes = sum(
            _size_bytes(name) + sum(_size_bytes(key, value) for key, value in entries.items())
            for name, entries in self._table.items()
        )

    def put(self, namespace: str, key: str, value: str) -> None:
        """KvConfigError, and nothing is changed, when the table would grow beyond TABLE_BYTES_MAX."""
        added_bytes = _size_bytes(key, value) + (0 if namespace in self._table else _size_bytes(namespace))
        old = self.get(namespace, key)
        if old is not None:
            added_bytes -= _size_bytes(key, old)
        if added_bytes > 0 and self.size_bytes + added_bytes > TABLE_BYTES_MAX:
            raise KvConfigError(
                f"key {key[:80]!r} needs {added_bytes} bytes more and the table has {self.size_bytes}, the limit is "
                f"{TABLE_BYTES_MAX}: delete keys that nobody needs"
            )
        self._table.setdefault(namespace, {})[key] = value
        self.size_bytes += added_bytes

    def get(self, namespace: str, key: str) -> str | None:
        return self._table.get(namespace, {}).get(key)

    def delete(self, namespace: str, key: str) -> None:
        """Forget a key; a namespace stays, empty, as in RocketMQ."""
        old = self._table.get(namespace, {}).pop(key, None)
        if old is not None:
            self.size_bytes -= _size_bytes(key, old)

    def namespace(self, name: str) -> dict[str, str] | None:
        return self._table.get(name)

    def to_json(self) -> bytes:
        return msgspec.json.format(encode_body(_File(config_table=self._table)), indent=2)


def _size_bytes(*texts: str) -> int:
    """As JSON, where a control character takes six bytes. Texts come from JSON, so they have no lone surrogates."""
    return _ENTRY_BYTES + sum(len(msgspec.json.encode(text)) for text in texts)


def load(path: Path) -> KvConfig:
    """What the file holds, else its `.bak`; empty when there is neither. KvConfigError when none can be read.

    A file that cannot be read is put aside as `.broken` when its `.bak` can: the next save would make it the `.bak`.
    """
    problems = []
    for candidate in (path, path.with_name(path.name + ".bak")):
        try:
            found = KvConfig(decode_body(candidate.read_bytes(), _File).config_table)
        except FileNotFoundError:
            continue
        except (OSError, RemoteProtocolError) as exc:
            problems.append(f"{candidate}: {exc}")
            continue
        if problems:
            aside = path.with_name(path.name + ".broken")
            os.replace(path, aside)
            _log.warning("%s; it is now %s, and the older %s serves", problems[0], aside, candidate)
        return found
    if problems:
        raise KvConfigError("; ".join(problems) + "; mend the file, or remove it to start without these settings")
    return KvConfig()


def save(path: Path, data: bytes) -> None:
    """Write `data` durably in place of the file. Blocks: call it in a worker thread."""
    fresh = _own(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(fresh, "wb") as file:
            if path.exists():  # it may hold a password, and be for one user's eyes
                os.fchmod(file.fileno(), stat.S_IMODE(path.stat().st_mode))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        if path.exists():
            _keep(path)
        os.replace(fresh, path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as exc:
        with contextlib.suppress(OSError):
            fresh.unlink()  # half of it may be what fills the disk
        raise KvConfigError(f"{path} cannot be written: {exc}; the change is in memory only") from exc


def save_settings(path: Path, changes: Mapping[str, str]) -> None:
    """Put these keys into a properties file, durably. Blocks: call it in a worker thread."""
    said = read_properties(path) if path.exists() else {}
    save(path, format_properties({**said, **changes}).encode())


def _own(path: Path) -> Path:
    """A name for this process: where two share a home the last one wins, but neither breaks the other's file."""
    return path.with_name(f"{path.name}.{os.getpid()}.tmp")


def _keep(path: Path) -> None:
    """Give the file the name `.bak` too. It keeps its own until the new one takes it: there is always one."""
    second, backup = _own(path.with_name(path.name + ".bak")), path.with_name(path.name + ".bak")
    with contextlib.suppress(FileNotFoundError):
        second.unlink()
    try:
        os.link(path, second)
    except OSError:  # a file system without links: then there is none for a moment, and loading takes `.bak`
        os.replace(path, backup)
        return
    os.replace(second, backup)
    second.unlink(missing_ok=True)  # where `.bak` is this very file already, rename(2) leaves both names
