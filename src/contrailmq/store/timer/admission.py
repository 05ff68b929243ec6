"""Which messages go onto the timer wheel, when they are due, and which are refused: pure functions of message and time.

A sender asks for a delay in seconds, in milliseconds, or for a time (TIMER_DELAY_SEC, TIMER_DELAY_MS,
TIMER_DELIVER_MS, in this order of precedence). The wheel works in ticks of `precision_ms`: a message due within a
tick belongs to the slot of the tick's begin, and one due exactly at a tick's begin to the slot before. TIMER_OUT_MS is
the slot's time. Within its slot a message is delivered at its own millisecond (due.py); Apache's broker delivers a slot
when its tick is over.

A delay that does not fit 64 bits counts as the longest and is refused as too long, not wrapped around into the past
(RocketMQ #10872).
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from contrailmq.message import Property, SystemTopic, natural_number
from contrailmq.store.base.status import PutStatus
from contrailmq.store.config import StoreConfig
from contrailmq.store.timer.wheel import SLOTS_TOTAL

PRECISIONS_MS: Final = (100, 200, 500, 1000)
_ROLL_WINDOW_MIN: Final = 3  # slots; a third of a window must be a slot at least

TIMER_REQUESTS: Final = (Property.TIMER_DELAY_SECONDS, Property.TIMER_DELAY_MS, Property.TIMER_DELIVER_MS)


@dataclass(frozen=True, slots=True)
class Scheduled:
    """The message waits on the wheel: its slot's time."""

    out_ms: int


@dataclass(frozen=True, slots=True)
class TimerRefusal:
    """The message is not taken. The text says why and what would help."""

    status: PutStatus
    reason: str


def effective_precision_ms(config: StoreConfig) -> int:
    """timerPrecisionMs, brought down to one of the values that the reference knows."""
    return PRECISIONS_MS[max(bisect.bisect_right(PRECISIONS_MS, config.timer_precision_ms) - 1, 0)]


def roll_window_slots(config: StoreConfig) -> int:
    """timerRollWindowSlot, or the reference's default where it does not fit the wheel."""
    slots = config.timer_roll_window_slot
    return slots if _ROLL_WINDOW_MIN <= slots <= SLOTS_TOTAL - 2 else 2 * 86_400


def wants_timer(topic: str, properties: Mapping[str, str]) -> bool:
    """Whether the wheel has to look at this message at all."""
    if topic == SystemTopic.TIMER or Property.TIMER_OUT_MS in properties:
        return False  # rolled or already delivered
    return any(name in properties for name in TIMER_REQUESTS)


def admit(properties: Mapping[str, str], now_ms: int, config: StoreConfig) -> Scheduled | TimerRefusal | None:
    """When the message is due. None: at once, it is an ordinary message."""
    deliver_ms = requested_time_ms(properties, now_ms)
    if isinstance(deliver_ms, TimerRefusal):
        return deliver_ms
    return admit_at(deliver_ms, now_ms, config, is_mark=Property.TIMER_DELETE_UNIQUE_KEY in properties)


def admit_at(
    deliver_ms: int, now_ms: int, config: StoreConfig, *, is_mark: bool = False
) -> Scheduled | TimerRefusal | None:
    """`admit` of one whose delivery time is known; `is_mark`: it recalls another."""
    if not config.timer_wheel_enable:
        return TimerRefusal(
            PutStatus.WHEEL_TIMER_NOT_ENABLE,
            "the message asks for a delivery time and the timer wheel is off: set timerWheelEnable=true",
        )
    if deliver_ms <= now_ms:
        if is_mark:
            return TimerRefusal(
                PutStatus.WHEEL_TIMER_MSG_ILLEGAL,
                f"the timer to recall was due {now_ms - deliver_ms} ms ago: it has been delivered",
            )
        return None
    if deliver_ms - now_ms > config.timer_max_delay_sec * 1000:
        return TimerRefusal(
            PutStatus.WHEEL_TIMER_MSG_ILLEGAL,
            f"a delay of {(deliver_ms - now_ms) // 1000} s is over the limit of {config.timer_max_delay_sec} s: "
            "deliver sooner or raise timerMaxDelaySec",
        )
    return Scheduled(slot_time_ms(deliver_ms, effective_precision_ms(config)))


def requested_time_ms(properties: Mapping[str, str], now_ms: int) -> int | TimerRefusal:
    """The delivery time that the properties ask for, in milliseconds since 1970."""
    for name in TIMER_REQUESTS:
        text = properties.get(name)
        if text is None:
            continue
        size = natural_number(text.removeprefix("-"))
        if size is None:
            return TimerRefusal(PutStatus.WHEEL_TIMER_MSG_ILLEGAL, f"{name} is {text[:32]!r}: a whole number is needed")
        value = -size if text.startswith("-") else size
        if name == Property.TIMER_DELAY_SECONDS:
            return now_ms + value * 1000
        return now_ms + value if name == Property.TIMER_DELAY_MS else value
    return now_ms


def slot_time_ms(deliver_ms: int, precision_ms: int) -> int:
    """The slot of a delivery time: its tick, or the one before if it is the begin of a tick."""
    return (deliver_ms - 1) // precision_ms * precision_ms


def rolled_slot_time_ms(out_ms: int, write_time_ms: int, *, window_ms: int, precision_ms: int) -> int:
    """Where a message waits that is due beyond the window: a window away, but a third of one before it is due at least.

    The last leg is then long enough for a recall and for a broker that was down. Apache's broker (TimerMessageStore.
    doEnqueue) takes half a window where the last leg would be short. Then a slave, which takes a message in later than
    its master, could have it in an earlier slot: what its master had not rolled yet counted there as rolled, and a
    promotion lost it. Here a later write never gives an earlier slot.
    """
    assert out_ms - write_time_ms >= window_ms
    third_ms = window_ms // precision_ms // 3 * precision_ms
    return min(write_time_ms + window_ms, (out_ms - third_ms) // precision_ms * precision_ms)
