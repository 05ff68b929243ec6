"""What to do with a half message that nobody has ended yet: a table of rules, and nothing else.

    given up   asked about transactionCheckMax times, or older than the log keeps messages
    too young  born less than transactionTimeOut ago: those after it are younger still, so the round ends here
    immune     the sender asked for more time (CHECK_IMMUNITY_TIME_IN_SECONDS) and it is not over: put back unasked, so
               that it does not hold up those after it
    check      put back with one more check counted, and its producer group is asked

A birth in the future (a client's clock that is fast) does not make a message young: it is checked.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple

from contrailmq.message import Property, StoredMessage, natural_number

CLOCK_SET: Final = (
    "TRAN_CLOCK_SET_MS"  # ours alone: by how much the birth is of another clock than the copy's store time
)


class Decision(enum.Enum):
    GIVE_UP = "give up"
    STOP = "too young"
    PUT_BACK = "immune"
    CHECK = "check"


class CheckLimits(NamedTuple):
    """transactionTimeOut, transactionCheckMax, fileReservedTime."""

    timeout_ms: int
    checks_max: int
    keep_ms: int


def decide(message: StoredMessage, *, age_ms: int, limits: CheckLimits) -> Decision:
    if check_times(message.properties) >= limits.checks_max or age_ms > limits.keep_ms:
        return Decision.GIVE_UP
    immunity_ms = immunity_of(message.properties)
    if immunity_ms is not None:
        return Decision.PUT_BACK if age_ms < immunity_ms else Decision.CHECK
    return Decision.STOP if 0 <= age_ms < limits.timeout_ms else Decision.CHECK


def check_times(properties: Mapping[str, str]) -> int:
    """How often the producers were asked about this message."""
    return natural_number(properties.get(Property.TRANSACTION_CHECK_TIMES, "")) or 0


def clock_set_ms(properties: Mapping[str, str]) -> int:
    """By how much the wall clock was ahead of that of this copy, when the first one was stored."""
    text = properties.get(CLOCK_SET, "")
    size_ms = natural_number(text.removeprefix("-")) or 0
    return -size_ms if text.startswith("-") else size_ms


def immunity_of(properties: Mapping[str, str]) -> int | None:
    """The time in ms that the sender asked for before the first check; None when it did not, or not readably."""
    seconds = natural_number(properties.get(Property.CHECK_IMMUNITY_SECONDS, ""))
    return None if seconds is None else seconds * 1000


def is_too_late_to_end(properties: Mapping[str, str], *, age_ms: int, timeout_ms: int) -> bool:
    """Whether a producer's own end comes when the broker has begun to ask: the answer to that counts (code 604)."""
    immunity_ms = immunity_of(properties)
    return immunity_ms is not None and age_ms > max(immunity_ms, timeout_ms)
