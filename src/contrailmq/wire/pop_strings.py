"""The strings of POP: handles of messages in flight, and what an answer says of its messages.

    handle          := start SP pop_time SP invisible_time SP revive_queue SP mark SP broker [SP queue [SP offset ..]]
    startOffsetInfo := entry (";" entry)*          entry := mark SP queue SP start
    msgOffsetInfo   := entry (";" entry)*          entry := mark SP queue SP offset ("," offset)*
    orderCountInfo  := entry (";" entry)*          entry := mark SP queue SP n | mark SP "qo" queue "%" offset SP n
    mark            := 0 of a topic, 1 of a retry topic `%RETRY%group_topic`, 2 of one `%RETRY%group+topic`

`start` is where the pop began to read, not the first message's offset. A client joins the strings to the handle of each
message, so a queue may be named only once in an answer. The bits of a batch acknowledgement are java.util.BitSet's
bytes: bit n is offset start + n.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

ORDERED_QUEUE: Final = 999  # the revive queue in a handle of a FIFO pop
BATCH_MAX: Final = 32  # messages of one pop: the bits of a Java int
ACKED_BITS_MAX: Final = 4096  # of one entry of a batch acknowledgement; a pop has 32, with gaps where a filter left out
_PARTS_MIN: Final = 6
_LONG_MAX: Final = 2**63


class PopHandle(NamedTuple):
    """What a client shows to acknowledge a message, or to keep it longer."""

    start_offset: int
    pop_time_ms: int
    invisible_ms: int
    revive_queue: int
    mark: str
    broker_name: str
    queue_id: int
    offset: int

    @property
    def is_ordered(self) -> bool:
        return self.revive_queue == ORDERED_QUEUE

    def encode(self) -> str:
        return " ".join(map(str, self))

    @classmethod
    def decode(cls, text: str) -> PopHandle:
        """ValueError if it is not a handle. Queue and offset may be missing: requests name them as well (-1)."""
        parts = text.split(" ")
        if len(parts) < _PARTS_MIN:
            raise ValueError(f"the handle {text[:64]!r} has {len(parts)} parts: at least {_PARTS_MIN} are needed")
        numbers = [_number(part) for part in (*parts[:4], *parts[6:8])]
        start, pop_time_ms, invisible_ms, revive_queue = numbers[:4]
        queue_id, offset = (*numbers[4:], -1, -1)[:2]
        return cls(start, pop_time_ms, invisible_ms, revive_queue, parts[4], parts[5], queue_id, offset)


def _number(text: str) -> int:
    if text.isascii() and text.isdigit() and len(text) < 19:  # nearly all of them, and 0.5 us less
        return int(text)
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= 19) or not -_LONG_MAX <= int(text) < _LONG_MAX:
        raise ValueError(f"{text[:32]!r} in a handle: a whole number of 64 bits is needed")
    return int(text)


def start_entry(mark: str, queue_id: int, start_offset: int) -> str:
    return f"{mark} {queue_id} {start_offset}"


def offsets_entry(mark: str, queue_id: int, offsets: Iterable[int]) -> str:
    return f"{mark} {queue_id} {','.join(map(str, offsets))}"


def count_entries(mark: str, queue_id: int, offsets: Sequence[int], earlier: dict[int, int]) -> list[str]:
    """How often messages of a FIFO pop were delivered before: each that was, and what holds for all of the queue."""
    entries = [f"{mark} qo{queue_id}%{offset} {count}" for offset, count in earlier.items()]
    least = min((earlier.get(offset, 0) for offset in offsets), default=0)
    return [*entries, f"{mark} {queue_id} {least}"]


def join_entries(entries: Iterable[str]) -> str:
    return ";".join(entries)


def decode_bits(text: str) -> list[int]:
    """The numbers of the bits that are set. ValueError if it is not base64, or too long."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as exc:
        raise ValueError(f"the bits of a batch acknowledgement are not base64: {exc}") from exc
    if len(data) * 8 > ACKED_BITS_MAX:
        raise ValueError(f"{len(data) * 8} bits in a batch acknowledgement, the limit is {ACKED_BITS_MAX}")
    bits = int.from_bytes(data, "little")
    return [number for number in range(bits.bit_length()) if bits >> number & 1]


def encode_bits(numbers: Iterable[int]) -> str:
    bits = sum(1 << number for number in set(numbers))
    return base64.b64encode(bits.to_bytes((bits.bit_length() + 7) // 8, "little")).decode()
