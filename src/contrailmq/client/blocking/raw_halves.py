"""Half messages and their ends over a `QueueReader`, with many on their way: for writers that commit rows together.

A half message is stored where nobody consumes, and its answer says where (`HalfPlace`). An end names that place. Both
are requests of their own with an answer each: a broker of RocketMQ takes no batch of them.
"""

from __future__ import annotations

import enum
import time
from typing import Final, NamedTuple

from contrailmq.client.blocking.raw import Posted, QueueReader
from contrailmq.client.errors import number
from contrailmq.message import MessageQueue, SysFlag, parse_offset_message_id
from contrailmq.message.batch import BatchPart
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import ResponseError
from contrailmq.wire.header import Command, ExtValue

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
    ext: dict[str, ExtValue] = {
        "a": group,
        "b": queue.topic,
        "c": "TBW102",
        "d": 4,
        "e": queue.queue_id,
        "f": int(SysFlag.TRANSACTION_PREPARED),
        "g": time.time_ns() // 1_000_000,
        "h": part.flag,
        "i": part.properties.decode(),
        "j": 0,
        "k": "false",
        "m": "false",
        "n": queue.broker_name,
    }
    return client.post(queue, RequestCode.SEND_MESSAGE_V2, ext, part.body)


def half_place(client: QueueReader, posted: Posted, queue: MessageQueue, unique_key: str) -> HalfPlace:
    """Wait until a half message is stored. It may have been also when this raises."""
    answer = checked(client.answer(posted), posted)
    _, _, physical_offset = parse_offset_message_id(answer.ext["msgId"])
    return HalfPlace(queue, unique_key, number(answer.ext, "queueOffset"), physical_offset)


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


def checked(answer: Command, posted: Posted) -> Command:
    """The answer, if it says that something was stored."""
    if answer.code not in STORED:
        raise ResponseError(answer.code, answer.remark, request_code=posted.code, address=posted.address)
    return answer
