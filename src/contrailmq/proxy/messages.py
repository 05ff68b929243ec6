"""Messages both ways: from a client's protobuf to what a broker stores, and from a record to protobuf.

A body that a client compressed with gzip is stored plain: RocketMQ's flag for a compressed body means zlib, and a
consumer over remoting could not read it.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import re
import zlib
from functools import lru_cache
from typing import Final

from contrailmq.client.records import ReceivedMessage
from contrailmq.message import Property
from contrailmq.message.identity import decode_host
from contrailmq.message.properties import RESERVED_PROPERTIES, encode_properties, natural_number
from contrailmq.proxy.clock import now_ms
from contrailmq.proxy.cluster import DELAY, FIFO, LITE, NORMAL, PRIORITY, TRANSACTION
from contrailmq.proxy.protocol import Wire, v2
from contrailmq.proxy.statuses import Code, Refused

BODY_BYTES_MAX: Final = 4 * 1024 * 1024
USER_PROPERTIES_MAX: Final = 128
PROPERTIES_BYTES_MAX: Final = 16 * 1024
MESSAGE_GROUP_BYTES: Final = 64  # fewer
DELAY_MS_MAX: Final = 86_400_000
RECOVERY_S_MAX: Final = 3600
PRIORITY_MAX: Final = 2**31 - 1  # what the field holds
ATTEMPT_MAX: Final = 2**31 - 1  # likewise
INT64_MAX: Final = 2**63 - 1
TIME_MS_MIN: Final = -62_135_596_800_000  # the years 1 to 9999, which a timestamp of protobuf may say
TIME_MS_MAX: Final = 253_402_300_799_999
IDENTITY: Final = 1
GZIP: Final = 2
CRC32, MD5, SHA1 = 1, 2, 3
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_DELAYS: Final = frozenset(
    (Property.DELAY, Property.TIMER_DELIVER_MS, Property.TIMER_DELAY_MS, Property.TIMER_DELAY_SECONDS)
)


def ms_of(time: Wire) -> int:
    """Milliseconds of a timestamp or duration of a client. `ToMilliseconds` raises where it is out of its range."""
    milliseconds: int = time.seconds * 1000 + time.nanos // 1_000_000
    return min(max(milliseconds, -INT64_MAX - 1), INT64_MAX)


def has_control(text: str) -> bool:
    return _CONTROL.search(text) is not None


# --- from a client


def check_sent(message: Wire) -> None:
    """Refused with the first thing that is wrong with a message, in the order of the reference."""
    system = message.system_properties
    body_bytes = len(message.body)  # once: each look copies it
    if not body_bytes:
        raise Refused(Code.MESSAGE_BODY_EMPTY, "the message has no body")
    if body_bytes > BODY_BYTES_MAX:
        raise Refused(Code.MESSAGE_BODY_TOO_LARGE, f"the body has {body_bytes} bytes, at most {BODY_BYTES_MAX}")
    _check_properties(message)
    if system.HasField("tag") and (not system.tag.strip() or "|" in system.tag or has_control(system.tag)):
        raise Refused(Code.ILLEGAL_MESSAGE_TAG, f"tag {system.tag!r} is blank or has | or control characters")
    for key in system.keys:
        if (key and not key.strip()) or has_control(key):
            raise Refused(Code.ILLEGAL_MESSAGE_KEY, f"key {key!r} is blank or has control characters")
    if not system.message_id.strip():
        raise Refused(Code.ILLEGAL_MESSAGE_ID, "the message has no id: clients make one")
    if system.HasField("message_group"):
        _check_message_group(system.message_group)
    if system.HasField("delivery_timestamp"):
        wait_ms = ms_of(system.delivery_timestamp) - now_ms()
        if wait_ms > DELAY_MS_MAX:
            raise Refused(
                Code.ILLEGAL_DELIVERY_TIME, f"delivery is {wait_ms} ms away, at most {DELAY_MS_MAX} (a day) are allowed"
            )
    if system.HasField("priority") and system.priority < 0:
        raise Refused(Code.BAD_REQUEST, f"priority {system.priority} is below 0, which is the lowest")
    if system.HasField("orphaned_transaction_recovery_duration"):
        seconds = system.orphaned_transaction_recovery_duration.seconds
        if seconds > RECOVERY_S_MAX:
            raise Refused(Code.BAD_REQUEST, f"the recovery of a transaction may wait {RECOVERY_S_MAX} s, not {seconds}")


def _check_properties(message: Wire) -> None:
    system, own = message.system_properties, message.user_properties
    if not own and not system.tag and not system.keys:
        return  # most messages: what follows takes 2 us
    if len(own) > USER_PROPERTIES_MAX:
        raise Refused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE, f"{len(own)} properties, at most {USER_PROPERTIES_MAX} are allowed"
        )
    size = sum(len(text.encode()) for text in (*own, *own.values(), system.tag, *system.keys))
    if size > PROPERTIES_BYTES_MAX:
        raise Refused(
            Code.MESSAGE_PROPERTIES_TOO_LARGE, f"the properties have {size} bytes, at most {PROPERTIES_BYTES_MAX}"
        )
    for key, value in own.items():
        if not key.strip() or has_control(key) or key in RESERVED_PROPERTIES:
            raise Refused(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY, f"property {key!r} is blank, reserved or has control characters"
            )
        if "\1" in value or "\2" in value:
            raise Refused(
                Code.ILLEGAL_MESSAGE_PROPERTY_KEY,
                f"the value of property {key!r} has a separator, \\x01 or \\x02",
            )


def _check_message_group(group: str) -> None:
    size = len(group.encode())
    if not group.strip() or has_control(group) or size >= MESSAGE_GROUP_BYTES:
        raise Refused(
            Code.ILLEGAL_MESSAGE_GROUP,
            f"message group {group[:MESSAGE_GROUP_BYTES]!r} of {size} bytes is blank, has control characters or is not "
            f"shorter than {MESSAGE_GROUP_BYTES}",
        )


def type_of(message: Wire) -> int:
    """The type of a sent message; one that says none gets it from what it holds."""
    system = message.system_properties
    if system.message_type:
        return int(system.message_type)
    if system.HasField("message_group"):
        return FIFO
    if system.HasField("priority"):
        return PRIORITY
    if system.HasField("delivery_timestamp"):
        return DELAY
    return LITE if system.lite_topic else NORMAL


def body_of(message: Wire) -> bytes:
    """The body as it is stored. Refused when it is not the one that its digest was made of."""
    body, system = bytes(message.body), message.system_properties
    if system.HasField("body_digest") and system.body_digest.type:
        found = digest(body, system.body_digest.type)
        if found.lstrip("0").lower() != system.body_digest.checksum.lstrip("0").lower():
            raise Refused(
                Code.MESSAGE_CORRUPTED,
                f"the body's checksum is {found}, the message says {system.body_digest.checksum[:64]!r}: send it again",
            )
    if system.body_encoding != GZIP:
        return body
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(body)) as packed:
            plain = packed.read(BODY_BYTES_MAX + 1)
    except (OSError, EOFError, zlib.error) as exc:
        raise Refused(Code.MESSAGE_CORRUPTED, f"the body is said to be gzip and is not: {exc}") from None
    if len(plain) > BODY_BYTES_MAX:
        raise Refused(Code.MESSAGE_BODY_TOO_LARGE, f"the body has over {BODY_BYTES_MAX} bytes when it is unpacked")
    return plain


def digest(body: bytes, kind: int) -> str:
    if kind == MD5:
        return hashlib.md5(body, usedforsecurity=False).hexdigest().upper()
    if kind == SHA1:
        return hashlib.sha1(body, usedforsecurity=False).hexdigest().upper()
    return f"{zlib.crc32(body):X}"


def stored_properties(message: Wire, kind: int, peer: str) -> str:
    """The properties of a sent message of that type as a broker stores them."""
    system, own = message.system_properties, message.user_properties
    properties = dict(own) if own else {}  # to copy an empty map of protobuf takes 0.7 us
    properties[Property.UNIQUE_KEY] = system.message_id
    if system.HasField("tag"):
        properties[Property.TAGS] = system.tag
    if keys := [key for key in system.keys if key]:
        properties[Property.KEYS] = " ".join(keys)
    if kind == TRANSACTION:
        properties[Property.TRANSACTION_PREPARED] = "true"
        if system.HasField("orphaned_transaction_recovery_duration"):
            seconds = system.orphaned_transaction_recovery_duration.seconds
            properties[Property.CHECK_IMMUNITY_SECONDS] = str(seconds)
    if system.HasField("delivery_timestamp"):
        properties[Property.TIMER_DELIVER_MS] = str(ms_of(system.delivery_timestamp))
    properties[Property.RECONSUME_TIME] = str(system.delivery_attempt)
    properties[Property.PRODUCER_GROUP] = message.topic.name
    if system.HasField("message_group"):
        properties[Property.SHARDING_KEY] = system.message_group
    if system.lite_topic:
        properties[Property.LITE_TOPIC] = system.lite_topic
    if system.HasField("priority"):
        properties[Property.PRIORITY] = str(system.priority)
    if system.HasField("trace_context"):
        properties[Property.TRACE_CONTEXT] = system.trace_context
    properties[Property.BORN_HOST] = system.born_host or peer
    if system.HasField("born_timestamp"):
        properties[Property.BORN_TIMESTAMP] = str(ms_of(system.born_timestamp))
    return encode_properties(properties).decode()


# --- to a client


def delivered(stored: ReceivedMessage, topic: str) -> Wire:
    """A record as clients get it, without what only a receive knows. `topic` was asked for: retries are hidden."""
    made = v2.Message()
    deliver(stored, topic, made)
    return made


def deliver(stored: ReceivedMessage, topic: str, made: Wire) -> None:
    """The same, into an empty message that is part of an answer: a message that is put into one is copied."""
    properties, body = stored.properties, stored.body
    made.body = body
    made.topic.name = topic
    system = made.system_properties
    for name, value in properties.items():
        if name not in RESERVED_PROPERTIES:
            made.user_properties[name] = value
    if Property.TAGS in properties:
        system.tag = properties[Property.TAGS]
    if keys := properties.get(Property.KEYS):
        system.keys.extend(keys.split())
    system.message_id = stored.message_id
    # Not CRC-32: clients disagree about its leading zeros, and drop the message as corrupted.
    system.body_digest.type, system.body_digest.checksum = MD5, digest(body, MD5)
    system.body_encoding = IDENTITY
    system.message_type = _stored_type(properties)
    born_ms = natural_number(properties.get(Property.BORN_TIMESTAMP, ""))
    if born_ms is None or born_ms > TIME_MS_MAX:
        born_ms = stored.born_time_ms
    set_time(system.born_timestamp, born_ms)
    system.born_host = properties.get(Property.BORN_HOST) or _host_text(stored.born_host_bytes)
    set_time(system.store_timestamp, stored.store_time_ms)
    system.store_host = _host_text(stored.store_host_bytes)
    system.queue_id, system.queue_offset = stored.queue_id, stored.queue_offset
    system.delivery_attempt = min(stored.reconsume_times, ATTEMPT_MAX - 1) + 1
    if Property.SHARDING_KEY in properties:
        system.message_group = properties[Property.SHARDING_KEY]
    if Property.LITE_TOPIC in properties:
        system.lite_topic = properties[Property.LITE_TOPIC]
    if (priority := natural_number(properties.get(Property.PRIORITY, ""))) is not None:
        system.priority = min(priority, PRIORITY_MAX)
    if Property.TRACE_CONTEXT in properties:
        system.trace_context = properties[Property.TRACE_CONTEXT]
    if (deliver_ms := natural_number(properties.get(Property.TIMER_DELIVER_MS, ""))) is not None:
        set_time(system.delivery_timestamp, deliver_ms)
    if origin := properties.get(Property.DLQ_ORIGIN_TOPIC):
        system.dead_letter_queue.topic = origin
        system.dead_letter_queue.message_id = properties.get(Property.DLQ_ORIGIN_MESSAGE_ID, "")


def set_time(time: Wire, milliseconds: int) -> None:
    """`FromMilliseconds` of a timestamp, or of a duration above 0, without its four calls in Python.

    Times are anybody's numbers. Clients refuse a message with one before the year 1 or after 9999: it gets the nearest.
    """
    milliseconds = min(max(milliseconds, TIME_MS_MIN), TIME_MS_MAX)
    time.seconds, time.nanos = milliseconds // 1000, milliseconds % 1000 * 1_000_000


def _host_text_of(host: bytes) -> str:
    return str(decode_host(host))


_host_text: Final = lru_cache(maxsize=4096)(_host_text_of)  # there are few, and decoding one takes 1 us


def _stored_type(properties: dict[str, str]) -> int:
    if properties.get(Property.TRANSACTION_PREPARED) == "true":
        return TRANSACTION
    if not _DELAYS.isdisjoint(properties):
        return DELAY
    if Property.SHARDING_KEY in properties:
        return FIFO
    if Property.PRIORITY in properties:
        return PRIORITY
    return LITE if Property.LITE_TOPIC in properties else NORMAL
