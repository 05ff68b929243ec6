"""What users send (`Message`) and what the log holds (`StoredMessage`)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from contrailmq.message.compression import SysFlag, decompress
from contrailmq.message.errors import MessageError
from contrailmq.message.identity import Host, decode_host, offset_message_id
from contrailmq.message.names import check_topic
from contrailmq.message.properties import RESERVED_PROPERTIES, Property, decode_properties

BODY_BYTES_MAX: Final = 4 * 1024 * 1024  # RocketMQ's default maxMessageSize, on clients and brokers


class MessageQueue(NamedTuple):
    """One queue of a topic on one broker group. Sorts as RocketMQ's rebalance sorts: topic, broker, queue id."""

    topic: str
    broker_name: str
    queue_id: int


class Message:
    """A message to send.

    `tags` is one tag that filters select by; `keys` are business keys the broker indexes. `delay_level` is one of the
    broker's levels (1 to 18 by default), `delay` seconds or a timedelta, `deliver_at` epoch milliseconds or an aware
    datetime; give at most one of the three. `properties` are the user's own; reserved names are refused. A message with
    a `priority` (from 0) goes to the queue of that number, and of topics with message.type=PRIORITY brokers pop the
    highest first.

        Message("Orders", b"...", tags="paid", keys=["o-17"], properties={"region": "eu"})
    """

    __slots__ = ("body", "flag", "properties", "topic")

    def __init__(
        self,
        topic: str,
        body: bytes,
        *,
        tags: str | None = None,
        keys: str | Iterable[str] = (),
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        delay_level: int = 0,
        delay: float | timedelta | None = None,
        deliver_at: int | datetime | None = None,
        wait_store_ok: bool = True,
        sharding_key: str | None = None,
        priority: int | None = None,
    ) -> None:
        self.topic, self.body, self.flag = topic, body, flag
        own = self.properties = {} if properties is None else _user_properties(properties)
        if tags:
            own[Property.TAGS] = tags
        if keys:
            own[Property.KEYS] = keys if isinstance(keys, str) else _joined_keys(keys)
        own[Property.WAIT] = "true" if wait_store_ok else "false"
        if sharding_key is not None:
            own[Property.SHARDING_KEY] = sharding_key
        if priority is not None:
            own[Property.PRIORITY] = _checked_priority(priority)
        if delay_level or delay is not None or deliver_at is not None:
            own.update(_delay_properties(delay_level, delay, deliver_at))

    @property
    def tags(self) -> str | None:
        return self.properties.get(Property.TAGS)

    @property
    def keys(self) -> list[str]:
        return self.properties.get(Property.KEYS, "").split()

    @property
    def delay_level(self) -> int:
        return int(self.properties.get(Property.DELAY, 0))

    @property
    def unique_key(self) -> str | None:
        return self.properties.get(Property.UNIQUE_KEY)

    def __repr__(self) -> str:
        return f"Message(topic={self.topic!r}, {len(self.body)} bytes, properties={self.properties!r})"


def as_body(body: object) -> bytes:
    """Any buffer as bytes. Raises `MessageError` for anything else, such as text."""
    if isinstance(body, bytes | bytearray | memoryview):
        return bytes(body)
    raise MessageError(f"the body is {type(body).__name__}, not bytes: encode it first", field="body")


def check_message(message: Message, *, body_bytes_max: int = BODY_BYTES_MAX) -> None:
    """What a producer checks before it sends: names, an existing body within the limit."""
    check_topic(message.topic)
    if not isinstance(message.body, bytes | bytearray | memoryview):
        raise MessageError(f"the body is {type(message.body).__name__}, not bytes: encode it first", field="body")
    if not message.body:
        raise MessageError(
            "the body is empty: RocketMQ's clients refuse that, send at least one byte", field="body", size=0
        )
    if len(message.body) > body_bytes_max:
        raise MessageError(
            f"the body has {len(message.body)} bytes, the limit is {body_bytes_max}: split it or raise maxMessageSize",
            field="body",
            size=len(message.body),
            limit=body_bytes_max,
        )


def _user_properties(properties: Mapping[str, str]) -> dict[str, str]:
    try:
        own = dict(properties)
    except (TypeError, ValueError):
        raise MessageError(
            f"properties is of type {type(properties).__name__}: give a mapping of text to text", field="properties"
        ) from None
    for name, value in own.items():
        if not isinstance(name, str):
            raise MessageError(
                f"a property's name is {name!r}, of type {type(name).__name__}: names are text", field="properties"
            )
        field = f"properties[{name[:64]}]"
        if name in RESERVED_PROPERTIES:
            raise MessageError(f"property {name!r} is RocketMQ's own: choose another name", field=field)
        if not isinstance(value, str):
            raise MessageError(f"property {name!r} is of type {type(value).__name__}: values are text", field=field)
        if not name.strip() or not value.strip():
            raise MessageError(
                f"property {name!r} has a blank name or value: readers drop such a property", field=field
            )
    return own


def _checked_priority(priority: int) -> str:
    if isinstance(priority, bool) or not isinstance(priority, int) or not 0 <= priority < 2**31:
        raise MessageError(f"the priority is {priority!r}: it is a whole number from 0 to 2147483647", field="priority")
    return str(priority)


def _joined_keys(keys: Iterable[str]) -> str:
    try:
        parts = list(keys)
    except TypeError:
        raise MessageError(
            f"keys is {keys!r}, of type {type(keys).__name__}: give text or several texts", field="keys"
        ) from None
    for key in parts:
        if not isinstance(key, str):
            raise MessageError(f"key {key!r} is of type {type(key).__name__}: keys are text", field="keys")
        if " " in key or not key:
            raise MessageError(f"key {key!r} is empty or holds a space: a space separates keys", field="keys")
    return " ".join(parts)


def _delay_properties(
    level: int, delay: float | timedelta | None, deliver_at: int | datetime | None
) -> Iterable[tuple[str, str]]:
    if bool(level) + (delay is not None) + (deliver_at is not None) > 1:
        raise MessageError("give one of delay_level, delay and deliver_at, not several", field="delay")
    if level:
        if not isinstance(level, int):
            raise MessageError(f"delay_level is {level!r}: give a whole number from 1 on", field="delay_level")
        if level < 0:
            raise MessageError(f"delay_level is {level}: levels count from 1", field="delay_level", size=level)
        return [(Property.DELAY, str(level))]
    if delay is not None:
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        if not isinstance(seconds, int | float) or not math.isfinite(seconds * 1000):
            raise MessageError(f"delay is {delay!r}: give a finite number of seconds or a timedelta", field="delay")
        if seconds < 0:
            raise MessageError(f"delay is {seconds} s: it cannot be negative", field="delay")
        return [(Property.TIMER_DELAY_MS, str(round(seconds * 1000)))]
    if isinstance(deliver_at, datetime):
        if deliver_at.tzinfo is None:
            raise MessageError(
                "deliver_at has no time zone: pass an aware datetime or epoch milliseconds", field="deliver_at"
            )
        deliver_at = round(deliver_at.timestamp() * 1000)
    if not isinstance(deliver_at, int):
        raise MessageError(
            f"deliver_at is {deliver_at!r}: give epoch milliseconds as a whole number, or an aware datetime",
            field="deliver_at",
        )
    return [(Property.TIMER_DELIVER_MS, str(deliver_at))]


class StoredMessage:
    """A record of the log. Immutable by convention; body and properties are decoded when first asked for.

    `stored_body` and `encoded_properties` are the bytes on disk; `body` is decompressed. `message_id` is the unique id
    that the sender knows (the offset id where the sender gave none).
    """

    __slots__ = (
        "_body",
        "_properties",
        "body_crc",
        "born_host_bytes",
        "born_time_ms",
        "encoded_properties",
        "flag",
        "magic",
        "physical_offset",
        "prepared_transaction_offset",
        "queue_id",
        "queue_offset",
        "reconsume_times",
        "size_bytes",
        "store_host_bytes",
        "store_time_ms",
        "stored_body",
        "sys_flag",
        "topic",
    )

    def __init__(
        self,
        topic: str,
        stored_body: bytes,
        encoded_properties: bytes,
        size_bytes: int,
        magic: int,
        body_crc: int,
        queue_id: int,
        flag: int,
        queue_offset: int,
        physical_offset: int,
        sys_flag: int,
        born_time_ms: int,
        born_host_bytes: bytes,
        store_time_ms: int,
        store_host_bytes: bytes,
        reconsume_times: int,
        prepared_transaction_offset: int,
    ) -> None:
        self.topic = topic
        self.stored_body = stored_body
        self.encoded_properties = encoded_properties
        self.size_bytes = size_bytes
        self.magic = magic
        self.body_crc = body_crc
        self.queue_id = queue_id
        self.flag = flag
        self.queue_offset = queue_offset
        self.physical_offset = physical_offset
        self.sys_flag = sys_flag
        self.born_time_ms = born_time_ms
        self.born_host_bytes = born_host_bytes
        self.store_time_ms = store_time_ms
        self.store_host_bytes = store_host_bytes
        self.reconsume_times = reconsume_times
        self.prepared_transaction_offset = prepared_transaction_offset
        self._body: bytes | None = None
        self._properties: dict[str, str] | None = None

    @property
    def body(self) -> bytes:
        if self._body is None:
            self._body = decompress(self.stored_body, self.sys_flag)
        return self._body

    @property
    def properties(self) -> dict[str, str]:
        if self._properties is None:
            self._properties = decode_properties(self.encoded_properties)
        return self._properties

    @property
    def tags(self) -> str | None:
        return self.properties.get(Property.TAGS)

    @property
    def keys(self) -> list[str]:
        return self.properties.get(Property.KEYS, "").split()

    @property
    def born_host(self) -> Host:
        return decode_host(self.born_host_bytes)

    @property
    def store_host(self) -> Host:
        return decode_host(self.store_host_bytes)

    @property
    def message_id(self) -> str:
        return self.properties.get(Property.UNIQUE_KEY) or self.offset_message_id

    @property
    def offset_message_id(self) -> str:
        return offset_message_id(self.store_host_bytes, self.physical_offset)

    @property
    def transaction_type(self) -> int:
        return self.sys_flag & SysFlag.TRANSACTION_MASK

    def __repr__(self) -> str:
        return (
            f"StoredMessage(topic={self.topic!r}, queue_id={self.queue_id}, queue_offset={self.queue_offset}, "
            f"physical_offset={self.physical_offset}, size_bytes={self.size_bytes}, message_id={self.message_id!r})"
        )
