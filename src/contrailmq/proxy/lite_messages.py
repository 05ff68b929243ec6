"""Messages of lite topics both ways: what is wrong with a sent one, and what a POP_LITE answer holds.

A message of a lite topic has the place of its parent's queue in its record; the one that counts for its consumers is
the offset in the light queue, which its properties say. The handle holds that one, queue 0, and the lite topic.
"""

from __future__ import annotations

from typing import Final

from contrailmq.client.errors import number
from contrailmq.client.records import ReceivedMessage, decode_messages
from contrailmq.message import Property
from contrailmq.message.properties import natural_number
from contrailmq.proxy.cluster import LITE, Group
from contrailmq.proxy.handles import Handle
from contrailmq.proxy.protocol import Wire
from contrailmq.proxy.statuses import Code, Refused
from contrailmq.wire.errors import RemoteProtocolError
from contrailmq.wire.header import Command

LITE_CONSUMERS: Final = (5, 6)  # types of clients: LITE_PUSH_CONSUMER, LITE_SIMPLE_CONSUMER
LITE_TOPIC_BYTES_MAX: Final = 64
_LETTERS: Final = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")


def check_lite_topic(name: str) -> None:
    """Refused unless a lite topic may have that name."""
    if not name.strip():
        raise Refused(Code.ILLEGAL_LITE_TOPIC, "a lite topic has a name, not blanks")
    if (size := len(name.encode())) > LITE_TOPIC_BYTES_MAX:
        raise Refused(
            Code.ILLEGAL_LITE_TOPIC, f"a lite topic's name has {size} bytes, at most {LITE_TOPIC_BYTES_MAX} are allowed"
        )
    if not _LETTERS.issuperset(name):
        raise Refused(Code.ILLEGAL_LITE_TOPIC, f"lite topic {name!r}: use letters, digits, _ and - only")


def check_bound(group: Group, topic: str) -> None:
    if not group.lite_parent:
        raise Refused(
            Code.ILLEGAL_CONSUMER_GROUP,
            f"regular group cannot use LITE mode: {group.name} is not there, or has no attribute lite.bind.topic",
        )
    if group.lite_parent != topic:
        raise Refused(
            Code.ILLEGAL_TOPIC,
            f"lite group {group.name} is expected to bind topic {group.lite_parent} (lite.bind.topic), not {topic}",
        )


def check_lite_messages(messages: list[Wire], kind: int) -> None:
    """Of one request, of that type: LITE ones name one lite topic, others none."""
    names = {message.system_properties.lite_topic for message in messages}
    name = names.pop()
    if name:
        check_lite_topic(name)
    if bool(name) != (kind == LITE):
        raise Refused(
            Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
            f"a message of type {kind} names lite topic {name!r}: those of type LITE ({LITE}), and only they, name one",
        )
    if names:
        raise Refused(Code.BAD_REQUEST, f"one request goes to {len(names) + 1} lite topics: send its messages apart")


def with_lite_topic(handle: str, lite_topic: str) -> str:
    """A handle that does not say its lite topic, as those of RocketMQ's proxies, with the one that its client names."""
    return f"{handle} {lite_topic}" if lite_topic and handle.count(" ") == len(Handle._fields) - 2 else handle


def popped_lite(answer: Command, broker: str) -> list[tuple[ReceivedMessage, Handle]]:
    """The messages of a POP_LITE answer with their handles."""
    ext = answer.ext
    pop_time_ms, invisible_ms = number(ext, "popTime"), number(ext, "invisibleTime")
    messages = decode_messages(answer.body, broker_name=broker)
    counts = (ext.get("orderCountInfo") or "").split(";")
    found = []
    for at, message in enumerate(messages):
        properties = message.properties
        offset = natural_number(properties.get(Property.INNER_MULTI_QUEUE_OFFSET, ""))
        lite_topic = properties.get(Property.LITE_TOPIC, "")
        if offset is None or not lite_topic:
            raise RemoteProtocolError(f"broker {broker} gave message {message.message_id}, which is of no lite topic")
        message.queue_offset = offset
        if len(counts) == len(messages):
            # Apache's brokers say `0 qo0%7 1` where some of a batch came before, else `1`.
            message.reconsume_times = natural_number(counts[at].rpartition(" ")[2]) or 0
        revive_queue = number(ext, "reviveQid")
        handle = Handle(
            0, pop_time_ms, invisible_ms, revive_queue, "0", broker, 0, offset, message.physical_offset, lite_topic
        )
        found.append((message, handle))
    return found
