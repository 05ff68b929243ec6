"""One pop, and what is said of its messages afterwards: done, keep it longer, give up.

A pop asks one broker for messages of a topic, of all its queues unless one is named, and of the group's retry topic of
it. What comes is invisible to others of the group until its time is over. The broker names where each pop began to read
and which offsets it gave; message and strings together make the *handle*, which every later request shows:

    acknowledge     200051, or 200151 for many    it is done: nobody gets it again
    change          200053                        others get it in so many seconds from now; the handle is a new one
    bury            36 to level -1, then 200051   a dead letter, then done: in this order nothing is lost
    has_messages    200054                        would a pop find something? Waits, and takes nothing

Times are this process's own clock (`pop_clock.py`). Brokers are told no birth time (0): Apache's refuses pops of a
client whose clock is behind its own.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from contrailmq.client.consuming.pop_clock import PopClock
from contrailmq.client.consuming.subscription import TAG, Subscription
from contrailmq.client.errors import ReceiptExpiredError, number
from contrailmq.client.records import PoppedMessage, decode_records
from contrailmq.client.transport.instance import ClientInstance
from contrailmq.message import RETRY_PREFIX, MessageQueue, Property, pop_retry_mark, pop_retry_topic, pop_retry_topic_v2
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import RemoteProtocolError, ResponseError
from contrailmq.wire.header import Command, ExtValue
from contrailmq.wire.pop_records import BatchAckBody, BatchAckEntry
from contrailmq.wire.pop_strings import ACKED_BITS_MAX, BATCH_MAX, PopHandle, encode_bits

_log = logging.getLogger("contrailmq.client.consumer")

ANY_QUEUE: Final = -1
BATCH_COUNT_MAX: Final = BATCH_MAX  # brokers refuse more messages in one pop
ACKED_AT_ONCE_MAX: Final = 1024  # entries of one batch acknowledgement; our brokers take 4,096
_NOTHING: Final = (ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND)
_BORN_NOW: Final = 0
_INIT_FIRST, _INIT_LAST = 0, 1
_TO_DEAD_LETTERS: Final = -1


@dataclass(slots=True)
class PopRequest:
    """What to ask for. A pop with the `attempt_id` of an ordered pop whose answer was lost gets the same messages."""

    queue: MessageQueue  # queue id -1: all queues of the broker
    subscription: Subscription
    max_count: int
    invisible_s: float
    poll_s: float
    timeout_s: float
    is_from_first: bool = False
    is_ordered: bool = False
    attempt_id: str | None = None


@dataclass(slots=True)
class Popped:
    """A pop's answer. `unwanted` passed the broker's filter by their hash only: they are to be acknowledged."""

    messages: list[PoppedMessage]
    unwanted: list[PoppedMessage]
    damaged: int = 0
    is_refused: bool = False  # the broker holds as many pops as it may


async def pop(instance: ClientInstance, group: str, request: PopRequest, clock: PopClock) -> Popped:
    """Ask the master. Raises ResponseError for answers that are not about the queues' content."""
    queue = request.queue
    address = await instance.find_master(queue.broker_name, queue.topic)
    sent_s = instance.loop.time()
    answer = await instance.call(
        address,
        RequestCode.POP_MESSAGE,
        _pop_ext(group, request),
        timeout_s=request.timeout_s,
        accept=(ResponseCode.SUCCESS, ResponseCode.POLLING_FULL, *_NOTHING),
    )
    popped_s = clock.popped_at(number(answer.ext, "popTime"), sent_s=sent_s, received_s=instance.loop.time())
    if answer.code != ResponseCode.SUCCESS:
        return Popped([], [], is_refused=answer.code == ResponseCode.POLLING_FULL)
    return read_answer(answer, group, request, popped_s=popped_s)


def _pop_ext(group: str, request: PopRequest) -> dict[str, ExtValue]:
    queue, subscription = request.queue, request.subscription
    ext: dict[str, ExtValue] = {
        "consumerGroup": group,
        "topic": queue.topic,
        "queueId": queue.queue_id,
        "maxMsgNums": min(request.max_count, BATCH_COUNT_MAX),
        "invisibleTime": milliseconds(request.invisible_s),
        "pollTime": milliseconds(request.poll_s),
        "bornTime": _BORN_NOW,
        "initMode": _INIT_FIRST if request.is_from_first else _INIT_LAST,
        "expType": subscription.expression_type,
        "exp": subscription.expression,
        "order": "true" if request.is_ordered else "false",
        "bname": queue.broker_name,
    }
    if request.attempt_id is not None:
        ext["attemptId"] = request.attempt_id
    return ext


async def has_messages(
    instance: ClientInstance,
    group: str,
    queue: MessageQueue,
    subscription: Subscription,
    *,
    poll_s: float,
    is_ordered: bool,
) -> bool:
    """Whether a pop of the queue would find something, waiting for it if need be."""
    address = await instance.find_master(queue.broker_name, queue.topic)
    ext: dict[str, ExtValue] = {
        "consumerGroup": group,
        "topic": queue.topic,
        "queueId": queue.queue_id,
        "pollTime": milliseconds(poll_s),
        "bornTime": _BORN_NOW,
        "order": "true" if is_ordered else "false",
        "expType": subscription.expression_type,
        "exp": subscription.expression,
        "bname": queue.broker_name,
    }
    timeout_s = poll_s + instance.options.request_timeout_s
    answer = await instance.call(address, RequestCode.NOTIFICATION, ext, timeout_s=timeout_s)
    return answer.ext.get("hasMsg") == "true"


# ---------------------------------------------------------------------------------------------- what an answer says


def read_answer(answer: Command, group: str, request: PopRequest, *, popped_s: float) -> Popped:
    """The messages with their handles, of which the subscription's exact tags want some: brokers compare hashes only.

    Raises RemoteProtocolError where a message has no place in the answer's strings: nobody could acknowledge it.
    """
    ext, queue = answer.ext, request.queue
    invisible_ms = number(ext, "invisibleTime")
    blank = PopHandle(0, number(ext, "popTime"), invisible_ms, number(ext, "reviveQid"), "0", queue.broker_name, 0, 0)
    starts = {key: int(value) for key, value in _entries(ext.get("startOffsetInfo", ""))}
    counts = {key: int(value) for key, value in _entries(ext.get("orderCountInfo", ""))}
    faults: list[str] = []
    messages = decode_records(PoppedMessage, answer.body, broker_name=queue.broker_name, on_damage=faults.append)
    for fault in faults:
        text = "broker %s gave a damaged record of %s, which is left out: %s"
        _log.error(text, queue.broker_name, queue.topic, fault)
    found: tuple[list[PoppedMessage], list[PoppedMessage]] = [], []
    tags = request.subscription.tags if request.subscription.expression_type == TAG else frozenset[str]()
    for message in messages:
        message.visible_at_s = popped_s + invisible_ms / 1000
        message.handle = handle = _handle(message, blank, starts)
        message.asked_topic = queue.topic
        message.stored_topic = stored_topic(queue.topic, group, handle.mark)
        if request.is_ordered:
            _count_deliveries(message, counts)
        is_wanted = not tags or message.properties.get(Property.TAGS) in tags
        found[not is_wanted].append(message)
    return Popped(*found, len(faults))


def _handle(message: PoppedMessage, blank: PopHandle, starts: dict[tuple[str, str], int]) -> PopHandle:
    """What the broker wrote into a message of the retry topic, else made of where the pop began in its queue."""
    written = message.properties.get(Property.POP_CHECKPOINT)
    try:
        if written:
            return PopHandle.decode(written)
        mark, offset = pop_retry_mark(message.topic), message.queue_offset
        start = starts[mark, str(message.queue_id)] if starts else offset
    except (KeyError, ValueError) as exc:
        raise RemoteProtocolError(
            f"broker {blank.broker_name} gave {message!r} without a handle ({exc}): it comes again when its invisible "
            "time is over"
        ) from exc
    return blank._replace(start_offset=start, mark=mark, queue_id=message.queue_id, offset=offset)


def _count_deliveries(message: PoppedMessage, counts: dict[tuple[str, str], int]) -> None:
    """A message of an ordered pop is delivered again in its place: how often is not in its record."""
    mark, queue_id = message.handle.mark, message.queue_id
    times = counts.get((mark, f"qo{queue_id}%{message.queue_offset}"), counts.get((mark, str(queue_id)), 0))
    if times > 0:
        message.reconsume_times = times


def stored_topic(topic: str, group: str, mark: str) -> str:
    """Where a message of the topic is stored."""
    if mark == "0" or topic.startswith(RETRY_PREFIX):
        return topic
    return pop_retry_topic_v2(group, topic) if mark == "2" else pop_retry_topic(group, topic)


def _entries(text: str) -> list[tuple[tuple[str, str], str]]:
    """`mark queue value;...`."""
    entries = []
    for part in filter(None, text.split(";")):
        fields = part.split(" ")
        if len(fields) != 3 or not fields[2].lstrip("-").isdecimal():
            raise RemoteProtocolError(
                f"the broker's answer to a pop has the entry {part[:80]!r}: three parts are needed"
            )
        entries.append(((fields[0], fields[1]), fields[2]))
    return entries


# ------------------------------------------------------------------------------------------- what is said of messages


def check_live(message: PoppedMessage, now_s: float) -> None:
    """Raise ReceiptExpiredError when another consumer may have it by now."""
    if now_s >= message.visible_at_s:
        raise ReceiptExpiredError(message, late_s=now_s - message.visible_at_s)


async def acknowledge(instance: ClientInstance, group: str, message: PoppedMessage) -> None:
    """It is done. On return the broker has put that down; the same acknowledgement twice is one."""
    await _ask(instance, message, RequestCode.ACK_MESSAGE, _ext(group, message))


async def acknowledge_all(instance: ClientInstance, group: str, messages: Sequence[PoppedMessage]) -> None:
    """Messages of one broker in one request. An error says nothing of any of them: acknowledge all again."""
    if len(messages) == 1:
        await acknowledge(instance, group, messages[0])
        return
    body = msgspec.json.encode(
        BatchAckBody(acks=batch_entries(group, messages), broker_name=messages[0].handle.broker_name)
    )
    address = await instance.find_master(messages[0].handle.broker_name, messages[0].asked_topic)
    ext: dict[str, ExtValue] = {"bname": messages[0].handle.broker_name}
    await instance.call(address, RequestCode.BATCH_ACK_MESSAGE, ext, body)


def batch_entries(group: str, messages: Iterable[PoppedMessage]) -> list[BatchAckEntry]:
    """An entry for the messages that one pop took from one queue."""
    bits: dict[tuple[str, PopHandle], list[int]] = {}
    for message in messages:
        handle = message.handle
        distance = handle.offset - handle.start_offset
        if not 0 <= distance < ACKED_BITS_MAX:
            # A filter left that many out before it: brokers find a message by the pop's time and its own offset.
            handle, distance = handle._replace(start_offset=handle.offset), 0
        bits.setdefault((message.stored_topic, handle._replace(offset=0)), []).append(distance)
    return [
        BatchAckEntry(
            bits=encode_bits(distances),
            group=group,
            invisible_ms=handle.invisible_ms,
            pop_time_ms=handle.pop_time_ms,
            queue_id=handle.queue_id,
            mark="0",  # of the name as it is given here, which is the stored one
            revive_queue=handle.revive_queue,
            start_offset=handle.start_offset,
            topic=topic,
        )
        for (topic, handle), distances in bits.items()
    ]


async def change(
    instance: ClientInstance, group: str, message: PoppedMessage, invisible_s: float, *, is_attempt: bool = True
) -> None:
    """Let others have it in `invisible_s` from now. The message gets the handle that counts from now on.

    Without `is_attempt` its coming again is not counted as a failure, by brokers that know of this (Apache's since
    5.4). Raises ReceiptExpiredError when the broker says that it is not in flight under its handle.
    """
    ext = _ext(group, message) | {"invisibleTime": milliseconds(invisible_s)}
    if not is_attempt:
        ext["suspend"] = "true"
    handle, sent_s = message.handle, instance.loop.time()
    try:
        answer = await _ask(instance, message, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext)
    except ResponseError as exc:
        if exc.code == ResponseCode.NO_MESSAGE:
            raise ReceiptExpiredError(message, late_s=None) from exc
        raise
    if number(answer.ext, "popTime") == 0:  # an ordered message that was acknowledged: brokers say it by zeros
        raise ReceiptExpiredError(message, late_s=None)
    message.handle = handle._replace(
        start_offset=handle.offset,
        pop_time_ms=number(answer.ext, "popTime"),
        invisible_ms=number(answer.ext, "invisibleTime"),
        revive_queue=number(answer.ext, "reviveQid"),
    )
    message.visible_at_s = sent_s + invisible_s


async def bury(instance: ClientInstance, group: str, message: PoppedMessage) -> None:
    """Make it a dead letter of the group, then acknowledge it."""
    ext: dict[str, ExtValue] = {
        "offset": message.physical_offset,
        "group": group,
        "delayLevel": _TO_DEAD_LETTERS,
        "originMsgId": message.message_id,
        "originTopic": message.stored_topic,
        "unitMode": "false",
        "maxReconsumeTimes": 0,
        "bname": message.handle.broker_name,
    }
    await _ask(instance, message, RequestCode.CONSUMER_SEND_MSG_BACK, ext)
    await acknowledge(instance, group, message)


def _ext(group: str, message: PoppedMessage) -> dict[str, ExtValue]:
    handle = message.handle
    return {
        "consumerGroup": group,
        "topic": message.stored_topic,
        "queueId": handle.queue_id,
        "extraInfo": handle.encode(),
        "offset": handle.offset,
        "bname": handle.broker_name,
    }


async def _ask(
    instance: ClientInstance, message: PoppedMessage, code: RequestCode, ext: dict[str, ExtValue]
) -> Command:
    address = await instance.find_master(message.handle.broker_name, message.asked_topic)
    return await instance.call(address, code, ext)


def milliseconds(seconds: float) -> int:
    return max(round(seconds * 1000), 0)
