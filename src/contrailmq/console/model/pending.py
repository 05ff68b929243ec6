"""What waits inside the brokers: timers by topic, delayed messages by level, and half messages with their age.

Timers are counted by the brokers (GET_TIMER_METRICS, which Apache's have too). Delay levels are counted by ours alone.
Half messages are read from their topic, from where the brokers' own group stands: an op message lists the offsets of
those that ended, so what no op names is open. No broker says when timers are due: that is not shown.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final

import msgspec

from contrailmq.console.model.asking import MASTER_ID, Asking, BrokerPlace, Seen
from contrailmq.message import ContrailError, MessageQueue, Property, SystemTopic, is_system_topic
from contrailmq.wire.codes import RequestCode

HALVES_LOOKED_AT_MAX: Final = 2000  # of one broker, from the oldest on
OPS_LOOKED_AT_MAX: Final = 2000
TRANSACTIONS_GROUP: Final = "CID_RMQ_SYS_TRANS"


@dataclass(frozen=True, slots=True)
class WaitingRow:
    kind: str  # timer, or delay level
    of: str  # the topic, or the level
    broker: str
    count: int


@dataclass(frozen=True, slots=True)
class HalfRow:
    topic: str
    message_id: str
    broker: str
    queue_offset: int
    born_time_ms: int  # it is stored anew each time that its producer is asked
    checked: int  # how often the producer was asked
    producer_group: str


@dataclass(frozen=True, slots=True)
class PendingSeen:
    waiting: list[WaitingRow]
    halves: list[HalfRow]
    is_cut: bool  # there may be more half messages


class _Count(msgspec.Struct):
    count: int = 0


class _TimerMetrics(msgspec.Struct, rename="camel"):
    timing_count: dict[str, _Count] = {}


class Pending:
    def __init__(self, asking: Asking) -> None:
        self._asking = asking

    async def seen(self) -> Seen[PendingSeen]:
        masters = [place for place in await self._asking.places() if place.broker_id == MASTER_ID]
        timers, delayed, halves = await asyncio.gather(
            self._asking.of_each(masters, self._timers_on),
            self._asking.of_each(masters, self._delayed_on),
            self._asking.of_each(masters, self._halves_on),
        )
        waiting = [row for found in (timers, delayed) for rows in found.value.values() for row in rows]
        open_ones = [row for rows, _ in halves.value.values() for row in rows]
        notes = dict.fromkeys((*timers.notes, *delayed.notes, *halves.notes))
        value = PendingSeen(
            sorted(waiting, key=lambda row: (row.kind, row.of, row.broker)),
            sorted(open_ones, key=lambda row: row.born_time_ms),
            any(is_cut for _, is_cut in halves.value.values()),
        )
        return Seen(value, tuple(notes))

    async def _timers_on(self, place: BrokerPlace) -> list[WaitingRow]:
        answer = await self._asking.ask_place(place, RequestCode.GET_TIMER_METRICS)
        try:
            counts = msgspec.json.decode(answer.body, type=_TimerMetrics).timing_count
        except msgspec.DecodeError as exc:
            raise ContrailError(f"what it says of its timers cannot be read: {exc}") from exc
        return [
            WaitingRow("timer", topic, place.name, item.count)
            for topic, item in counts.items()
            if item.count > 0 and not is_system_topic(topic)  # such as POP's own: one for each message handed out
        ]

    async def _delayed_on(self, place: BrokerPlace) -> list[WaitingRow]:
        figures = await self._asking.broker_stats(place.address)
        prefix = "delayPending_"
        return [
            WaitingRow("delay level", key.removeprefix(prefix), place.name, int(text))
            for key, text in figures.items()
            if key.startswith(prefix) and text.isdecimal() and int(text)
        ]

    async def _halves_on(self, place: BrokerPlace) -> tuple[list[HalfRow], bool]:
        halves = MessageQueue(SystemTopic.HALF, place.name, 0)
        ops = MessageQueue(SystemTopic.OP_HALF, place.name, 0)
        begin, end = await self._from_group(halves)
        if begin >= end:
            return [], False
        op_begin, op_end = await self._from_group(ops)
        ended: set[int] = set()
        for op in await self._asking.read_range(ops, op_begin, min(op_end, op_begin + OPS_LOOKED_AT_MAX)):
            parts = bytes(op.body).decode("ascii", "replace").split(",")
            ended |= {int(part) for part in parts if part.isascii() and part.isdecimal() and len(part) < 20}
        last = min(end, begin + HALVES_LOOKED_AT_MAX)
        found = await self._asking.read_range(halves, begin, last)
        rows = [
            HalfRow(
                topic=half.properties.get(Property.REAL_TOPIC, ""),
                message_id=half.message_id,
                broker=place.name,
                queue_offset=half.queue_offset,
                born_time_ms=half.born_time_ms,
                checked=_number(half.properties.get(Property.TRANSACTION_CHECK_TIMES, "0")),
                producer_group=half.properties.get(Property.PRODUCER_GROUP, ""),
            )
            for half in found
            if half.queue_offset not in ended
        ]
        return rows, last < end

    async def _from_group(self, queue: MessageQueue) -> tuple[int, int]:
        """From where the brokers' own group stands to the end."""
        at, begin, end = await asyncio.gather(
            self._asking.offset(TRANSACTIONS_GROUP, queue),
            self._asking.min_offset(queue),
            self._asking.max_offset(queue),
        )
        return max(at, begin, 0), end


def _number(text: str) -> int:
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 10 else 0
