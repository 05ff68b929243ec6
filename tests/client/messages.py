"""Received messages for tests that need no broker."""

from __future__ import annotations

from contrailmq.client.records import ReceivedMessage, decode_messages
from contrailmq.message import encode_host, encode_properties
from contrailmq.message.codec import encode_record


def record(
    offset: int = 0,
    body: bytes = b"body",
    *,
    topic: str = "Orders",
    queue_id: int = 0,
    properties: dict[str, str] | None = None,
    reconsume_times: int = 0,
    born_time_ms: int = 1,
) -> bytes:
    return bytes(
        encode_record(
            topic=topic,
            queue_id=queue_id,
            body=body,
            properties=encode_properties(properties or {}),
            queue_offset=offset,
            physical_offset=offset * 100,
            born_time_ms=born_time_ms,
            born_host=encode_host("127.0.0.1", 1),
            store_time_ms=2,
            store_host=encode_host("127.0.0.1", 10911),
            reconsume_times=reconsume_times,
        )
    )


def received(
    offset: int = 0,
    body: bytes = b"body",
    *,
    topic: str = "Orders",
    properties: dict[str, str] | None = None,
    reconsume_times: int = 0,
    born_time_ms: int = 1,
) -> ReceivedMessage:
    told = {"reconsume_times": reconsume_times, "born_time_ms": born_time_ms}
    data = record(offset, body, topic=topic, properties=properties, **told)
    return decode_messages(data, broker_name="broker-a")[0]
