"""Half messages and their ends over a `QueueReader`, with many on their way: for writers that commit rows together.

A half message is stored where nobody consumes, and its answer says where (`HalfPlace`). An end names that place. A
broker of RocketMQ takes one half message or one end with a request. Ours takes many; another answers such a request
with REQUEST_CODE_NOT_SUPPORTED, and has done nothing.
"""

from __future__ import annotations

import enum
import struct
import time
from collections.abc import Sequence
from typing import Final, NamedTuple

from contrailmq.client.blocking.raw import Posted, QueueReader
from contrailmq.client.blocking.raw_connection import Pieces
from contrailmq.client.errors import number
from contrailmq.message import MessageQueue, Property, SysFlag, parse_offset_message_id
from contrailmq.message.batch import BatchPart
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import ResponseError
from contrailmq.wire.header import Command, ExtValue

ENDS_MAX: Final = 256  # what our broker takes with one request
_END: Final = struct.Struct(">qq")  # physical offset, offset among the half messages
STORED: Final = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)


class End(enum.IntEnum):
    """What becomes of a half message."""

    COMMIT = 8
    ROLLBACK = 12


class HalfPlace(NamedTuple):
    """A half message: the queue it is meant for, its id, and where it waits."""

    queue: MessageQueue
    unique_key: str
    half_offset: int
    physical_offset: int


def post_half(client: QueueReader, queue: MessageQueue, part: BatchPart, *, group: str) -> Posted:
    """Send a half message, whose properties say that it is one (TRAN_MSG) and who answers for it (PGROUP)."""
    ext = _send_ext(queue, group, flag=part.flag, properties=part.properties.decode(), is_batch=False)
    return client.post(queue, RequestCode.SEND_MESSAGE_V2, ext, part.body)


def half_place(client: QueueReader, posted: Posted, queue: MessageQueue, unique_key: str) -> HalfPlace:
    """Wait until a half message is stored. It may have been also when this raises."""
    answer = checked(client.answer(posted), posted)
    _, _, physical_offset = parse_offset_message_id(answer.ext["msgId"])
    return HalfPlace(queue, unique_key, number(answer.ext, "queueOffset"), physical_offset)


def post_half_batch(client: QueueReader, queue: MessageQueue, body: Pieces, *, group: str) -> Posted:
    """Send a packed batch (`message/batch.py`), each part of which is a half message."""
    ext = _send_ext(queue, group, flag=0, properties=f"{Property.WAIT}\x01true\x02", is_batch=True)
    return client.post(queue, RequestCode.SEND_HALF_BATCH, ext, body)


def half_places(
    client: QueueReader, posted: Posted, queue: MessageQueue, unique_keys: Sequence[str]
) -> list[HalfPlace] | None:
    """Wait until a batch of half messages is stored; None if the broker takes none."""
    answer = client.answer(posted)
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return None
    answer = checked(answer, posted)
    first = number(answer.ext, "queueOffset")
    places = [int(text[-16:], 16) for text in answer.ext["msgId"].split(",")]
    return [
        HalfPlace(queue, key, first + index, physical_offset)
        for index, (key, physical_offset) in enumerate(zip(unique_keys, places, strict=True))
    ]


def post_end(client: QueueReader, place: HalfPlace, how: End, *, group: str) -> Posted:
    """Send an end. It counts also after the time for which the half message is not asked about."""
    ext: dict[str, ExtValue] = {
        "topic": place.queue.topic,
        "producerGroup": group,
        "tranStateTableOffset": place.half_offset,
        "commitLogOffset": place.physical_offset,
        "commitOrRollback": int(how),
        "fromTransactionCheck": "true",  # or a broker refuses ends that come after CHECK_IMMUNITY_TIME_IN_SECONDS
        "msgId": place.unique_key,
        "transactionId": place.unique_key,
        "bname": place.queue.broker_name,
    }
    return client.post(place.queue, RequestCode.END_TRANSACTION, ext)


def post_ends(client: QueueReader, places: Sequence[HalfPlace], how: End, *, group: str) -> Posted:
    """Send the ends of up to ENDS_MAX half messages of one topic and broker."""
    queue = places[0].queue
    ext: dict[str, ExtValue] = {
        "topic": queue.topic,
        "producerGroup": group,
        "commitOrRollback": int(how),
        "bname": queue.broker_name,
    }
    body = b"".join([_END.pack(place.physical_offset, place.half_offset) for place in places])
    return client.post(queue, RequestCode.END_TRANSACTIONS, ext, body)


def ends_refused(client: QueueReader, posted: Posted, places: Sequence[HalfPlace]) -> list[HalfPlace] | None:
    """Wait for the answer to many ends: those that were refused; None if the broker takes only single ones."""
    answer = client.answer(posted)
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
        return None
    verdicts = confirmed(answer, posted).body
    return [place for place, verdict in zip(places, verdicts, strict=True) if verdict]


def checked(answer: Command, posted: Posted) -> Command:
    """The answer, if it says that something was stored."""
    return _if_in(STORED, answer, posted)


def confirmed(answer: Command, posted: Posted) -> Command:
    """The answer to an end, if it was carried out: SLAVE_NOT_AVAILABLE is also what a slave says that ends nothing."""
    return _if_in(frozenset({ResponseCode.SUCCESS}), answer, posted)


def _if_in(codes: frozenset[ResponseCode], answer: Command, posted: Posted) -> Command:
    if answer.code not in codes:
        raise ResponseError(answer.code, answer.remark, request_code=posted.code, address=posted.address)
    return answer


def _send_ext(queue: MessageQueue, group: str, *, flag: int, properties: str, is_batch: bool) -> dict[str, ExtValue]:
    return {
        "a": group,
        "b": queue.topic,
        "c": "TBW102",
        "d": 4,
        "e": queue.queue_id,
        "f": 0 if is_batch else int(SysFlag.TRANSACTION_PREPARED),
        "g": time.time_ns() // 1_000_000,
        "h": flag,
        "i": properties,
        "j": 0,
        "k": "false",
        "m": "true" if is_batch else "false",
        "n": queue.broker_name,
    }
