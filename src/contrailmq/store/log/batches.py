"""The parts of a client's batch, and the drafts of their records; see CommitLog.append_batch.

One pass cuts the batch into parts and finds in their properties what a put and dispatch ask for. A batch has a thousand
parts, so little is made of each.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from librt.strings import read_i16_be, read_i32_be

from contrailmq.message import Property
from contrailmq.message.batch import BATCH_PART_BYTES_MIN, bad_batch
from contrailmq.message.property_text import Keys, closed, key_of
from contrailmq.store.queues.keys import note_spans
from contrailmq.store.queues.queue_state import Draft, QueueState

_FLAG_AT: Final = 12  # in a part, see message/batch.py
_BODY_BYTES_AT: Final = 16
_BODY_AT: Final = 20

_INNER: Final = b"INNER_"  # with which the names of inner batches and light queues begin
_KEYS: Final = Keys(
    (*map(key_of, (Property.KEYS, Property.UNIQUE_KEY, Property.TAGS, Property.DELAY)), _INNER)
)  # in the order in which their spans are taken

Part = tuple[int, bytes, bytes, int, list[int]]
"""flag, body, properties with their last separator, tags code, key hashes (keys.py)"""


class Parts(NamedTuple):
    """A batch that was taken apart."""

    all: list[Part]
    is_delayed: bool  # a part asks for a delay
    suspects: list[int]  # what these may, all may: those larger than any before them, and any with a name of _INNER


def read_parts(batch: bytes, state: QueueState) -> Parts:
    """Take a client's batch for this queue apart. Raises `MessageError` where a length does not fit.

    Properties are as `decode_properties` has them: of equal names the last one counts, and an empty value is none.
    Where clients left out the last separator it is added: what ends in it never looks like a lost write.
    """
    parts: list[Part] = []
    suspects: list[int] = []
    body_bytes_max = properties_bytes_max = size_max = -1
    is_delayed = False
    position, end = 0, len(batch)
    while position < end:
        if end - position < BATCH_PART_BYTES_MIN:
            raise bad_batch(len(parts), f"{end - position} bytes are left, a part needs {BATCH_PART_BYTES_MIN}")
        size: int = read_i32_be(batch, position)
        body_bytes: int = read_i32_be(batch, position + _BODY_BYTES_AT)
        body_end = position + _BODY_AT + body_bytes
        begin = body_end + 2
        if body_bytes < 0 or begin > end:
            raise bad_batch(len(parts), f"its body of {body_bytes} bytes does not fit into the batch's {end}")
        properties_bytes: int = read_i16_be(batch, body_end)
        following = begin + properties_bytes
        if properties_bytes < 0 or following > end or following - position != size:
            raise bad_batch(len(parts), f"its parts have {following - position} bytes, its size says {size}")
        spans = _KEYS.find_spans(batch, begin, following)
        keys_at, keys_end, unique_at, unique_end, tags_at, tags_end, delay_at, delay_end, _, inner_end = spans
        code, hashes = note_spans(state, batch, (unique_at, unique_end), (keys_at, keys_end), (tags_at, tags_end))
        properties = closed(batch[begin:following])
        properties_bytes = len(properties)
        if (
            inner_end
            or body_bytes > body_bytes_max
            or properties_bytes > properties_bytes_max
            or body_bytes + properties_bytes > size_max
        ):
            suspects.append(len(parts))
            body_bytes_max = max(body_bytes_max, body_bytes)
            properties_bytes_max = max(properties_bytes_max, properties_bytes)
            size_max = max(size_max, body_bytes + properties_bytes)
        is_delayed = is_delayed or (delay_end > 0 and _asks_delay(batch[delay_at:delay_end]))
        flag: int = read_i32_be(batch, position + _FLAG_AT)
        parts.append((flag, batch[position + _BODY_AT : body_end], properties, code, hashes))
        position = following
    return Parts(parts, is_delayed, suspects)


def drafts_of(parts: list[Part], state: QueueState, sys_flag: int) -> list[Draft]:
    """Of plain records of the parts."""
    overhead_bytes = state.overhead_bytes
    return [
        (state, overhead_bytes + len(body) + len(properties), 1, code, hashes, sys_flag, properties)
        for _, body, properties, code, hashes in parts
    ]


def _asks_delay(value: bytes) -> bool:
    """Whether a part asks for a delay level; a value that is not a number counts as one, and the batch is refused."""
    try:
        return int(str(value, "utf-8", "replace")) > 0
    except ValueError:
        return True
