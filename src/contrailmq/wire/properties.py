"""Settings the way RocketMQ has them: Java properties files, and the one order in which sources win.

    flag  >  environment (ours)  >  file  >  environment (RocketMQ's)  >  default

`read_properties` reads a file, `environment_settings` and `rocketmq_settings` what the environment says, `merge`
combines them. A
`Settings` subclass (a dataclass in snake case) takes the merged text: types are checked, values out of place are errors
that name the key, and a key that nobody knows is a warning that names the nearest one that exists.

Our names in the environment are CONTRAILMQ_ and the key in capitals, so `listenPort` is CONTRAILMQ_LISTEN_PORT and
`tls.enable` CONTRAILMQ_TLS_ENABLE. RocketMQ's own, NAMESRV_ADDR and ROCKETMQ_HOME, are defaults there (the initial
values of BrokerConfig's fields, which a file and then the command line replace), so a file beats them here too.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, TypeVar

from contrailmq.message import ContrailError

__all__ = [
    "Settings",
    "SettingsError",
    "camel_case",
    "environment_settings",
    "format_properties",
    "is_setting",
    "merge",
    "outdone_by_file",
    "parse_properties",
    "read_properties",
    "rocketmq_settings",
    "unknown_key",
]

ENVIRONMENT_PREFIX: Final = "CONTRAILMQ_"
_ROCKETMQ_NAMES: Final = {"NAMESRV_ADDR": "namesrvAddr", "ROCKETMQ_HOME": "rocketmqHome"}


class SettingsError(ContrailError):
    """A setting cannot be used; the text names the key, the value and what is allowed."""


def read_properties(path: str | Path) -> dict[str, str]:
    """The keys and values of a properties file. SettingsError when it cannot be read."""
    try:
        text = Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise SettingsError(f"settings file {path} cannot be read: {exc}") from exc
    return parse_properties(text)


_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_UNESCAPE: Final = re.compile(r"\\(?:u([0-9a-fA-F]{4})|(.))", re.DOTALL)
_SPLIT: Final = re.compile(r"((?:[^\\=:\s]|\\.)*)\s*[=:]?\s*(.*)", re.DOTALL)


def parse_properties(text: str) -> dict[str, str]:
    """Java's format: `key=value`, `key: value` or `key value`, comments with # or !, lines that end in \\ go on."""
    found: dict[str, str] = {}
    for line in _logical_lines(text):
        match = _SPLIT.match(line)
        assert match is not None  # every part of the pattern may be empty
        key, value = match.groups()
        found[_unescape(key)] = _unescape(_without_trailing_spaces(value))
    return found


def _without_trailing_spaces(text: str) -> str:
    """The text without the spaces at its end, but for one that is escaped."""
    kept = text.rstrip()
    is_escaped = (len(kept) - len(kept.rstrip("\\"))) % 2 == 1
    return text[: len(kept) + 1] if is_escaped else kept


def _logical_lines(text: str) -> Iterable[str]:
    pending = ""
    for raw in re.split(r"\r\n|\r|\n", text):
        line = raw.lstrip()
        if not pending and (not line or line[0] in "#!"):
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending += line[:-1]
            continue
        yield pending + line
        pending = ""
    if pending:
        yield pending


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text

    def replace(match: re.Match[str]) -> str:
        code, character = match.groups()
        return chr(int(code, 16)) if code else _ESCAPES.get(character, character)

    units = _UNESCAPE.sub(replace, text).encode("utf-16-le", "surrogatepass")  # as Java has them
    try:
        return units.decode("utf-16-le")
    except UnicodeDecodeError as exc:
        raise SettingsError(
            f"setting {text[:80]!r}: \\ud800 to \\udfff come in pairs, and here is half of one"
        ) from exc


def format_properties(values: Mapping[str, str]) -> str:
    """`key=value` lines, sorted, escaped so that Java's Properties and `parse_properties` give the same back."""
    return "".join(f"{_escape(key, is_key=True)}={_escape(values[key])}\n" for key in sorted(values))


_WRITTEN: Final = {character: f"\\{name}" for name, character in _ESCAPES.items()}
_ESCAPED: Final = re.compile(r"[\\\t\n\r\f]")  # Java escapes = : # ! in values too, and reads them as they are
_ESCAPED_IN_KEYS: Final = re.compile(r"[\\=:#!\t\n\r\f ]")


def _escape(text: str, *, is_key: bool = False) -> str:
    pattern = _ESCAPED_IN_KEYS if is_key else _ESCAPED
    written = pattern.sub(lambda match: _WRITTEN.get(match[0], "\\" + match[0]), text)
    if not is_key and written != written.strip():  # a reader drops spaces at the ends
        inside = written.strip()
        start = written.index(inside) if inside else len(written)
        before, after = written[:start], written[start + len(inside) :]
        written = _as_codes(before) + inside + _as_codes(after)
    return written


def _as_codes(text: str) -> str:
    return "".join(f"\\u{ord(character):04x}" for character in text)


def environment_settings(environ: Mapping[str, str], keys: Iterable[str]) -> dict[str, str]:
    """What our names in the environment say about `keys` (in camel case)."""
    names = {key: environment_name(key) for key in keys}
    return {key: environ[name] for key, name in names.items() if name in environ}


def rocketmq_settings(environ: Mapping[str, str], keys: Iterable[str]) -> dict[str, str]:
    """What RocketMQ's own names in the environment say about `keys`."""
    known = set(keys)
    return {key: environ[name] for name, key in _ROCKETMQ_NAMES.items() if key in known and environ.get(name)}


def environment_name(key: str) -> str:
    """The variable of the environment that sets `key`."""
    return ENVIRONMENT_PREFIX + _snake_case(key).upper().replace(".", "_")


def is_setting(name: str) -> bool:
    """Whether a variable of the environment may be a setting."""
    return name in _ROCKETMQ_NAMES or name.startswith(ENVIRONMENT_PREFIX)


def merge(
    *,
    flags: Mapping[str, str],
    environment: Mapping[str, str],
    file: Mapping[str, str],
    rocketmq: Mapping[str, str],
) -> dict[str, str]:
    """The sources as one, each before the next: flags, our environment, the file, RocketMQ's environment."""
    return {**rocketmq, **file, **environment, **flags}


def outdone_by_file(
    merged: Mapping[str, str], *, file: Mapping[str, str], rocketmq: Mapping[str, str], path: str | Path
) -> list[str]:
    """Warnings about variables of RocketMQ's that do not count because the file says something else."""
    return [
        f"{key} is {file[key]!r} as {path} says, and not {rocketmq[key]!r} as {name} of the environment says: as in "
        f"RocketMQ the file counts. Remove the key from the file, or unset {name}"
        for name, key in _ROCKETMQ_NAMES.items()
        if key in rocketmq and key in file and merged[key] == file[key] != rocketmq[key]
    ]


def camel_case(name: str) -> str:
    """`listen_port` -> `listenPort`."""
    first, *rest = name.split("_")
    return first + "".join(part.capitalize() for part in rest)


def _snake_case(key: str) -> str:
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", key).lower()


def unknown_key(key: str, known: Iterable[str]) -> str:
    """The warning about a key that nobody knows, with the nearest one that exists."""
    near = difflib.get_close_matches(key, list(known), n=1, cutoff=0.6)
    return f"unknown setting {key} is ignored" + (f": did you mean {near[0]}?" if near else "")


S = TypeVar("S", bound="Settings")


class Settings:
    """Base of a dataclass whose fields are RocketMQ's keys in snake case: str, int, float or bool with defaults."""

    @classmethod
    def keys(cls) -> dict[str, str]:
        """Key in camel case -> name of the field."""
        return {camel_case(field.name): field.name for field in _fields(cls)}

    @classmethod
    def from_properties(cls: type[S], properties: Mapping[str, str]) -> tuple[S, list[str]]:
        """The settings and the warnings about keys that are not known; `tls.*` keys are for the `tls` module."""
        keys = cls.keys()
        values = {keys[key]: _typed(cls, key, keys[key], text) for key, text in properties.items() if key in keys}
        return cls(**values), [
            unknown_key(key, keys) for key in properties if key not in keys and not key.startswith(("tls.", "useTLS"))
        ]

    def updated(self: S, properties: Mapping[str, str]) -> S:
        """A copy with these keys changed; unknown keys are left out, as Java's update of a running server does."""
        keys = self.keys()
        changes = {
            keys[key]: _typed(type(self), key, keys[key], text) for key, text in properties.items() if key in keys
        }
        current = {field.name: getattr(self, field.name) for field in _fields(type(self))}
        return type(self)(**{**current, **changes})

    def to_properties(self) -> dict[str, str]:
        """Every key with its value as text."""
        return {key: _text(getattr(self, name)) for key, name in self.keys().items()}


def _fields(kind: type) -> tuple[dataclasses.Field[object], ...]:
    assert dataclasses.is_dataclass(kind)
    return dataclasses.fields(kind)


def _typed(kind: type, key: str, name: str, text: str) -> object:
    default = next(field for field in _fields(kind) if field.name == name).default
    try:
        if isinstance(default, bool):
            return _boolean(text)
        if isinstance(default, int):
            return int(text)
        if isinstance(default, float):
            return float(text)
    except ValueError as exc:
        wanted = {bool: "true or false", int: "a whole number", float: "a number"}[type(default)]
        raise SettingsError(f"setting {key} is {text!r}: it takes {wanted}") from exc
    return text


def _boolean(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered not in ("true", "false"):
        raise ValueError(text)
    return lowered == "true"


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
