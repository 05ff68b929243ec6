"""Options of the sources and the sink: texts from Spark to typed values, with errors that name option and remedy.

Spark hands over a case-insensitive map whose values are all text. An option that nobody reads is an error, not a
warning: a mistyped `endingOfsets` would otherwise silently read too much. So is one that has no effect where it
is given (`endingOffsets` of a stream), and an offset for a queue that is not read.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

from contrailmq.spark.columns import OptionError

OffsetsJson = dict[str, dict[str, dict[int, int]]]  # topic -> broker name ("" for any) -> queue id -> offset
EARLIEST: Final = -2  # in offsets given as JSON, as in Kafka's connector
LATEST: Final = -1
ANY_BROKER: Final = ""
TIME_MS_MAX: Final = 253_402_300_799_999  # the end of the year 9999; microseconds of our time are beyond
_TOO_LATE: Final = f"it takes milliseconds since 1970, and the most is {TIME_MS_MAX}"
# Spark's own options, which it hands to sources and sinks as well.
_SPARKS_OWN: Final = (
    "checkpointLocation",
    "queryName",
    "asyncProgressTrackingEnabled",
    "asyncProgressTrackingCheckpointIntervalMs",
)
_JOBS_OWN: Final = ("emit",)  # set by archive_stream (portions.py): no hint offers it to users


class Options:
    """Option texts by name, whatever the case. Reading is by typed methods; unknown names raise at construction."""

    def __init__(self, given: Mapping[str, str], *, known: Collection[str], passed_through: str = "") -> None:
        by_lower = {name.lower(): name for name in (*known, *_SPARKS_OWN)}
        self._texts: dict[str, str] = {}
        self.passed: dict[str, str] = {}
        for key, value in given.items():
            lower = key.lower()
            if passed_through and lower.startswith(passed_through):
                self.passed[key[len(passed_through) :]] = value
                continue
            name = by_lower.get(lower)
            if name is None:
                shown = sorted(set(known).difference(_JOBS_OWN))
                close = difflib.get_close_matches(lower, by_lower.keys() - _JOBS_OWN, n=1)
                hint = f": did you mean {by_lower[close[0]]}?" if close else f"; known are {', '.join(shown)}"
                raise OptionError(f"unknown option {key!r}{hint}")
            self._texts[name] = str(value)

    def refuse(self, names: Collection[str], where: str) -> None:
        """Raise when one of these options is given: it would do nothing here."""
        for name in names:
            if name in self._texts:
                raise OptionError(f"option {name} has no effect {where}: leave it out")

    def text(self, name: str, default: str | None = None) -> str | None:
        return self._texts.get(name, default)

    def required(self, *names: str) -> str:
        """The value under one of several equal names."""
        name = self._one_of(names)
        if name is None or not self._texts[name].strip():
            raise OptionError(f"option {names[0]} is missing" + (f" (or {', '.join(names[1:])})" if names[1:] else ""))
        return self._texts[name]

    def flag(self, name: str, *, default: bool) -> bool:
        text = self._texts.get(name, str(default)).lower()
        if text not in ("true", "false"):
            raise OptionError(f"option {name} is {text!r}: it takes true or false")
        return text == "true"

    def number(self, name: str, default: int, *, least: int = 0) -> int:
        text = self._texts.get(name, str(default))
        try:
            value = int(text)
        except ValueError:
            raise OptionError(f"option {name} is {text!r}: it takes a whole number") from None
        if value < least:
            raise OptionError(f"option {name} is {value}: the least is {least}")
        return value

    def time_ms(self, name: str) -> int:
        """Milliseconds since 1970."""
        value = self.number(name, 0)
        if value > TIME_MS_MAX:
            raise OptionError(f"option {name} is {value}: {_TOO_LATE}")
        return value

    def choice(self, name: str, *allowed: str) -> str:
        """One of the allowed words; the first is the default."""
        text = self._texts.get(name, allowed[0]).lower()
        if text not in allowed:
            raise OptionError(f"option {name} is {text!r}: it takes {' or '.join(allowed)}")
        return text

    def names(self, *aliases: str) -> list[str] | None:
        """A comma list under one of several equal option names."""
        alias = self._one_of(aliases)
        if alias is None:
            return None
        found = [part.strip() for part in self._texts[alias].split(",") if part.strip()]
        if not found:
            raise OptionError(f"option {alias} is empty: name at least one")
        return found

    def texts(self, name: str) -> frozenset[str] | None:
        """A comma list, or a JSON list of texts, whose texts may hold commas."""
        text = self._texts.get(name)
        if text is None:
            return None
        if not text.lstrip().startswith("["):
            return frozenset(self.names(name) or ())
        try:
            found = json.loads(text)
        except ValueError as exc:
            raise OptionError(f'option {name} is not a list as JSON, ["a", "b"]: {text[:80]!r} ({exc})') from exc
        if not found or not all(isinstance(value, str) and value for value in found):
            raise OptionError(f"option {name} is {text[:80]!r}: it takes one text or more, none of them empty")
        return frozenset(found)

    def numbers(self, name: str) -> frozenset[int] | None:
        """A comma list of whole numbers from 0 on."""
        found = self.names(name)
        for text in found or ():
            if not (text.isascii() and text.isdecimal()):
                raise OptionError(f"option {name} has {text!r}: it takes whole numbers, such as 0,3")
        return None if found is None else frozenset(map(int, found))

    def _one_of(self, names: tuple[str, ...]) -> str | None:
        """The one of several equal names that is given. Two that say different things are an error."""
        given = [name for name in names if name in self._texts]
        if len({self._texts[name] for name in given}) > 1:
            raise OptionError(f"options {' and '.join(given)} mean the same and differ: give one of them")
        return given[0] if given else None


PRUNING_OPTIONS: Final = ("tags", "keys", "queueId")


class Pruning(NamedTuple):
    """Which rows a read is for; None for all. A message has several keys, and one that is wanted is enough."""

    tags: frozenset[str] | None = None
    keys: frozenset[str] | None = None
    queue_ids: frozenset[int] | None = None


def parse_pruning(options: Options) -> Pruning:
    """The options that both sources have."""
    found = Pruning(options.texts("tags"), options.texts("keys"), options.numbers("queueId"))
    for key in sorted(found.keys or ()):
        if " " in key:
            raise OptionError(f"option keys has {key!r}: a space separates two keys of a message, name each by itself")
    return found


def parse_offsets(text: str, option: str) -> OffsetsJson:
    """Offsets from `{"topic": {"broker": {"0": 23}}}`; the broker level may be left out where a store has one."""
    try:
        tree = json.loads(text)
        found: OffsetsJson = {}
        for topic, brokers in tree.items():
            if all(not isinstance(value, dict) for value in brokers.values()):
                brokers = {ANY_BROKER: brokers}
            found[topic] = {
                broker: {int(queue): _whole(offset) for queue, offset in queues.items()}
                for broker, queues in brokers.items()
            }
    except (ValueError, AttributeError, TypeError) as exc:
        raise OptionError(
            f'option {option} is not offsets as JSON, {{"topic": {{"broker": {{"0": 23}}}}}}: {text[:80]!r} ({exc})'
        ) from exc
    return found


def _whole(value: object) -> int:
    """An offset or a time from JSON. 1.5 and true are refused."""
    if isinstance(value, bool | float) or not isinstance(value, int | str):
        raise TypeError(f"{value!r} is not a whole number")
    return int(value)


def check_offsets(found: OffsetsJson, option: str, *, refused: int | None) -> None:
    """Refuse numbers that are not offsets, and the code (-2 or -1) at which nothing could be read."""
    for topic, queue_id, offset in _each(found):
        if offset < EARLIEST:
            raise OptionError(
                f"option {option} has {offset} for {topic}/{queue_id}: it takes offsets, {EARLIEST} (earliest) or "
                f"{LATEST} (latest)"
            )
        if offset == refused:
            word = "latest" if offset == LATEST else "earliest"
            raise OptionError(
                f"option {option} has {offset} ({word}) for {topic}/{queue_id}, where nothing would be read: give the "
                "offset itself"
            )


def check_times(found: OffsetsJson, option: str) -> None:
    """Refuse times before 1970 (offsets such as -1 mean nothing among times) and after 9999."""
    for topic, queue_id, time_ms in _each(found):
        if time_ms < 0:
            raise OptionError(f"option {option} has {time_ms} for {topic}/{queue_id}: it takes milliseconds since 1970")
        if time_ms > TIME_MS_MAX:
            raise OptionError(f"option {option} has {time_ms} for {topic}/{queue_id}: {_TOO_LATE}")


def _each(found: OffsetsJson) -> Iterator[tuple[str, int, int]]:
    for topic, brokers in found.items():
        for queues in brokers.values():
            for queue_id, value in queues.items():
                yield topic, queue_id, value
