"""The JSON files under `store/config`, in the reference's form: tab-indented, the previous version beside it as `.bak`.

A table is saved by writing a new file, syncing it and renaming it over the old one, so a crash leaves the old version
or the new one. Loading falls back to `.bak`, and says so, when the file is missing, empty or cannot be used. Java
writes integer keys without quotes (`{0:12}`), which is not JSON: reading takes both forms, writing quotes them, which
Java reads as well.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

import msgspec

from contrailmq.message import ContrailError

log = logging.getLogger("contrailmq.broker")

T = TypeVar("T")

_STRING_OR_BARE_KEY: Final = re.compile(r'"(?:[^"\\]|\\.)*"|(?P<before>[{,]\s*)(?P<key>-?[0-9]+)(?=\s*:)')

Json = dict[str, object]
_quote: Final = json.encoder.encode_basestring


class ConfigFileError(ContrailError):
    """Neither the file nor its backup can be read; starting with an empty table would forget topics or offsets."""


class EmptyFileError(ConfigFileError):
    """The file and its backup, as far as they are there, are empty: a power cut took what nobody had synced."""


class TableSaveError(ContrailError, OSError):
    """A table could not be saved. The change is in effect meanwhile, and the saver tries again."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(
            f"{path} cannot be saved: {error.strerror or error}: make room or mend the directory; "
            "what changed is in effect, and is saved as soon as that works"
        )


class DataVersion:
    """Three numbers that change together: peers compare them to learn whether a table moved."""

    __slots__ = ("counter", "state_version", "timestamp")

    def __init__(self, *, timestamp: int, counter: int = 0, state_version: int = 0) -> None:
        self.timestamp = timestamp
        self.counter = counter
        self.state_version = state_version

    def advance(self, now_ms: int) -> None:
        self.timestamp = now_ms
        self.counter += 1

    @property
    def parts(self) -> tuple[int, int, int]:
        """To compare: all three decide, as in the reference (DataVersion.equals)."""
        return self.counter, self.state_version, self.timestamp

    def to_json(self) -> Json:
        return {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}

    def read(self, data: object) -> None:
        """Take over what a file or a master said; 4.x has no stateVersion, or no version at all."""
        if isinstance(data, dict):
            parts = [whole_number(data.get(key, 0)) for key in ("counter", "stateVersion", "timestamp")]
            self.counter, self.state_version, self.timestamp = parts


def load(path: Path, read: Callable[[Json], T]) -> T | None:
    """What `read` makes of the file, else of its `.bak`; None when there is neither, ConfigFileError when both are bad,
    EmptyFileError when all that is wrong with them is that they are empty.

    `read` takes all or nothing: it raises ValueError, TypeError or a ContrailError before it changes anything.
    """
    problems = []
    is_empty = True
    for candidate in (path, path.with_name(path.name + ".bak")):
        try:
            text = candidate.read_text("utf-8")
            if not text.strip(" \t\r\n\0"):
                problems.append(f"{candidate}: empty")
                continue
            result = read(parse(text))
        except FileNotFoundError:
            continue
        except (OSError, ValueError, TypeError, OverflowError, RecursionError, ContrailError) as exc:
            problems.append(f"{candidate}: {exc}")
            is_empty = False
            continue
        if problems:
            log.warning("%s; its previous version is taken: %s", problems[0], candidate)
        return result
    if problems:
        kind = EmptyFileError if is_empty else ConfigFileError
        raise kind("; ".join(problems) + ": mend the file, or remove it to start with an empty table")
    return None


def entries(data: Json, key: str) -> dict[str, Json]:
    """The objects of a table in a file, by name; none if there is no such table, ValueError if it is not a table."""
    table = data.get(key)
    if table is None:
        return {}
    if not isinstance(table, dict):
        raise ValueError(f"{key} must be an object and is a {type(table).__name__}")
    for name, entry in table.items():
        if not isinstance(entry, dict):
            raise ValueError(f"{name[:64]!r} in {key} must be an object and is a {type(entry).__name__}")
    return table


def whole_number(value: object) -> int:
    """A number of a file, with or without quotes; ValueError if it is not a number."""
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise ValueError(f"{value!r} where a whole number is needed")
    return int(value)


def parse(text: str) -> Json:
    """A JSON object, integer keys with or without quotes."""
    data = json.loads(_STRING_OR_BARE_KEY.sub(_quoted, text))
    if not isinstance(data, dict):
        raise ValueError(f"expected an object, found {type(data).__name__}")
    return data


def pretty(data: Json) -> str:
    """What json.dumps(data, indent="\t") writes, in a fifth of its time: the C encoder of `json` does not indent."""
    return _pretty(data, "\n")


def pretty_entry(name: str, value: object) -> str:
    """One entry of a table inside of a file, for `pretty_with_entries`: it may be kept as long as it is true."""
    margin = "\n\t\t"
    return f"{margin}{_quote(name)}:{_pretty(value, margin)}"


def pretty_with_entries(data: Json, name: str, entries: list[str]) -> str:
    """`pretty` of `data` with its empty table `name` filled: 6,000 topics in 2 ms instead of 100."""
    if not entries:
        return pretty(data)
    empty = f"{_quote(name)}:{{}}"
    before, found, after = pretty(data).partition(empty)
    assert found, name
    return before + empty[:-1] + ",".join(entries) + "\n\t}" + after


def _pretty(value: object, margin: str) -> str:
    if isinstance(value, str):
        return _quote(value)
    if value is True or value is False:
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    inner = margin + "\t"
    if isinstance(value, dict):
        if not value:
            return "{}"
        parts = [f"{inner}{_quote(str(key))}:{_pretty(entry, inner)}" for key, entry in value.items()]
        return "{" + ",".join(parts) + margin + "}"
    if isinstance(value, list | tuple):
        return "[" + ",".join([inner + _pretty(entry, inner) for entry in value]) + margin + "]" if value else "[]"
    return json.dumps(value)


def compact(data: object) -> bytes:
    return msgspec.json.encode(data)


def with_entries(data: Json, name: str, entries: list[bytes]) -> bytes:
    """`data` with its empty table `name` filled: for tables whose entries were made JSON a few at a time."""
    empty = b"%b:{}" % compact(name)
    before, found, after = compact(data).partition(empty)
    assert found, name
    return before + empty[:-1] + b",".join(entries) + b"}" + after


def save(path: Path, text: str) -> None:
    """Replace the file atomically and keep the old version as `.bak`; TableSaveError when the disk refuses.

    Blocks on the disk: call it off the loop.
    """
    try:
        _replace(path, text)
    except OSError as exc:
        raise TableSaveError(path, exc) from exc


def _replace(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(path.name + ".tmp")
    with open(fresh, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        backup = path.with_name(path.name + ".bak")
        previous = backup.with_name(backup.name + ".tmp")
        previous.unlink(missing_ok=True)
        os.link(path, previous)
        os.replace(previous, backup)
        previous.unlink(missing_ok=True)  # where `.bak` is this very file already, rename(2) leaves both names
    os.replace(fresh, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def _quoted(match: re.Match[str]) -> str:
    key = match.group("key")
    return match.group() if key is None else f'{match.group("before")}"{key}"'
