"""Light queues (LMQ): a message in further queues besides its own, stored only once.

    INNER_MULTI_DISPATCH      names of light queues, given by the sender: %LMQ%a,%LMQ%b
    INNER_MULTI_QUEUE_OFFSET  the message's offset in each of them, given by the log under the put lock

A light queue is a consume queue (topic %LMQ%..., queue 0) with the physical offset and tags code of the message's own
queue. They are on with enableLmq and enableMultiDispatch; existing ones are read, compared and mended in any case.
Messages of %RETRY%, rmq_sys_ and SCHEDULE_TOPIC_XXXX topics go to none. An offset from a sender is never stored, since
a queue would believe it: a single message loses it, and a batch whose parts name light queues is refused. So is a name
that does not begin with %LMQ%: Apache's dispatch fails on it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from contrailmq.message import (
    LONG_TOPIC_BYTES_MAX,
    RETRY_PREFIX,
    Property,
    SystemTopic,
    decode_properties,
    encode_properties,
    names_directory,
)
from contrailmq.message.property_text import key_of, without

LIGHT_PREFIX: Final = "%LMQ%"
LIGHT_QUEUE_ID: Final = 0
LIGHT_MARK: Final = key_of(Property.INNER_MULTI_DISPATCH)  # in the properties of such a message
_OFFSETS: Final = Property.INNER_MULTI_QUEUE_OFFSET.encode()
_OWN_ONLY: Final = (RETRY_PREFIX, "rmq_sys_")
_OFFSET_DIGITS_MAX: Final = 18  # of a number that fits into 64 bits


def light_names(topic: str, properties: Mapping[str, str]) -> list[str]:
    """The names that a sender gave; empty when there are none or the topic has no light queues."""
    names = properties.get(Property.INNER_MULTI_DISPATCH, "")
    if not names.strip() or topic.startswith(_OWN_ONLY) or topic == SystemTopic.SCHEDULE:
        return []
    return names.split(",")


def names_light_queue(name: str) -> bool:
    return name.startswith(LIGHT_PREFIX) and names_directory(name) and len(name.encode()) <= LONG_TOPIC_BYTES_MAX


def with_offsets(properties: Mapping[str, str], offsets: Sequence[int]) -> bytes:
    """The properties with the offsets; without WAIT, which RocketMQ drops when it writes them again."""
    kept = {name: value for name, value in properties.items() if name != Property.WAIT}
    kept[Property.INNER_MULTI_QUEUE_OFFSET] = ",".join(map(str, offsets))
    return encode_properties(kept)


def without_offsets(properties: bytes) -> bytes:
    """The properties without offsets that a sender gave."""
    return without(properties, (_OFFSETS,)) if _OFFSETS in properties else properties


def light_units(topic: str, properties: bytes | Mapping[str, str]) -> list[tuple[str, int]]:
    """(light queue, offset in it) of a stored message; empty unless both lists fit each other."""
    known = decode_properties(properties) if isinstance(properties, bytes) else properties
    names, offsets = light_names(topic, known), known.get(Property.INNER_MULTI_QUEUE_OFFSET, "").split(",")
    if len(names) != len(offsets):
        return []
    return [
        (name, int(offset))
        for name, offset in zip(names, offsets, strict=True)
        if names_light_queue(name) and offset.isascii() and offset.isdigit() and len(offset) <= _OFFSET_DIGITS_MAX
    ]
