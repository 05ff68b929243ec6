"""Attributes of topics and groups, and requests to change them.

A change names what it does: `+message.type=FIFO` sets, `-message.type` removes. mqadmin sends one topic's changes as
text, joined by commas, and those of a list, or of a group, as an object (`{"+message.type":"FIFO"}`). Attributes that
decide how a queue's files are written cannot change once the topic exists: its messages would become unreadable.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from contrailmq.message import ContrailError

LONG_MAX: Final = 2**63 - 1
LITE_MINUTES_MAX: Final = 30 * 24 * 60  # a lite topic without messages goes after a month at the latest
_DIGITS_MAX: Final = 19  # of a 64-bit number


class AttributeChangeError(ContrailError):
    """An attribute cannot be changed as asked; names it and what is allowed."""


@dataclass(frozen=True, slots=True)
class Attribute:
    """What one attribute may be: one of `values`, else a whole number from `low` to `high`, else any text."""

    values: frozenset[str] | None = None
    low: int | None = None
    high: int = LONG_MAX
    is_changeable: bool = True

    def check(self, name: str, value: str) -> None:
        if self.values is not None:
            if value not in self.values:
                raise AttributeChangeError(f"attribute {name}={value!r}: use {', '.join(sorted(self.values))}")
        elif self.low is not None and not self.low <= _number(name, value) <= self.high:
            raise AttributeChangeError(f"attribute {name}={value}: {self.low} to {self.high} are allowed")


TOPIC_ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    "queue.type": Attribute(frozenset(("BatchCQ", "SimpleCQ")), is_changeable=False),
    "cleanup.policy": Attribute(frozenset(("DELETE", "COMPACTION")), is_changeable=False),
    "message.type": Attribute(
        frozenset(("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION", "MIXED", "PRIORITY", "LITE"))
    ),
    "reserve.time": Attribute(low=-1),
    "lite.topic.expiration": Attribute(low=-1, high=LITE_MINUTES_MAX),
}
GROUP_ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    "priority.factor": Attribute(low=0, high=100),
    "lite.bind.topic": Attribute(),
    "lite.sub.model": Attribute(frozenset(("Shared", "Exclusive"))),
    "lite.sub.reset.offset.exclusive": Attribute(frozenset(("true", "false"))),
    "lite.sub.reset.offset.unsubscribe": Attribute(frozenset(("true", "false"))),
    "lite.sub.client.quota": Attribute(low=-1),
    "lite.sub.client.max.event.cnt": Attribute(low=10),
    "lite.sub.wildcard": Attribute(),
}


def read_changes(text: str) -> dict[str, str]:
    """`+message.type=FIFO,-reserve.time` as an object: the sign stays with the name."""
    changes: dict[str, str] = {}
    for piece in filter(None, (part.strip() for part in text.split(","))):
        name, has_value, value = piece.partition("=")
        if (name[:1] == "+") != bool(has_value):
            raise AttributeChangeError(f"attribute {piece!r}: write +name=value to set or -name to remove")
        changes[name] = value
    return changes


def altered(
    current: Mapping[str, str], changes: Mapping[str, str], *, known: Mapping[str, Attribute], is_new: bool
) -> dict[str, str]:
    """The attributes after the changes, or AttributeChangeError and nothing is changed."""
    result = dict(current)
    for change, value in changes.items():
        sign, name = change[:1], change[1:]
        if current.get(change) == value:
            continue  # a tool sends back what it was shown
        if sign not in ("+", "-"):
            raise AttributeChangeError(f"attribute {change!r}: write +name=value to set or -name to remove")
        attribute = known.get(name)
        if attribute is None:
            raise AttributeChangeError(f"attribute {name!r} is not known: use {', '.join(known)}")
        if is_new and sign == "-":
            raise AttributeChangeError(f"attribute {name!r} cannot be removed from what does not exist yet")
        if sign == "+":
            attribute.check(name, value)
        wanted = value if sign == "+" else None
        if not is_new and not attribute.is_changeable and wanted != result.get(name):
            now = result.get(name, "not set")
            raise AttributeChangeError(
                f"attribute {name} is {now} and cannot be changed: delete the topic and create it again"
            )
        if wanted is None:
            result.pop(name, None)
        else:
            result[name] = wanted
    return result


def _number(name: str, value: str) -> int:
    digits = value.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > _DIGITS_MAX:
        raise AttributeChangeError(f"attribute {name}={value[:64]!r}: a whole number is needed")
    return int(value)
