"""One pull: the request, and what its answer means."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Final

from contrailmq.client.consuming.subscription import TAG, Subscription
from contrailmq.client.records import ReceivedMessage, decode_messages
from contrailmq.client.results import PullStatus
from contrailmq.client.transport.instance import ClientInstance
from contrailmq.client.transport.routes import MASTER_ID
from contrailmq.message import MessageQueue, Property
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import RemoteProtocolError, ResponseError
from contrailmq.wire.header import Command, ExtValue

_log = logging.getLogger(__name__)

FLAG_COMMIT_OFFSET: Final = 1
FLAG_SUSPEND: Final = 2
FLAG_SUBSCRIPTION: Final = 4
FLAG_LITE_PULL: Final = 16

SUSPEND_PUSH_S: Final = 15.0
SUSPEND_LITE_S: Final = 20.0
NO_MASTER_PAUSE_S: Final = 1.0
PULL_TIMEOUT_S: Final = 30.0  # must exceed the suspend time, or every idle queue times out

_STATUS: Final = {
    int(ResponseCode.SUCCESS): PullStatus.FOUND,
    int(ResponseCode.PULL_NOT_FOUND): PullStatus.NO_NEW_MESSAGE,
    int(ResponseCode.PULL_RETRY_IMMEDIATELY): PullStatus.NO_MATCHED_MESSAGE,
    int(ResponseCode.PULL_OFFSET_MOVED): PullStatus.OFFSET_ILLEGAL,
}


@dataclass(slots=True)
class Pulled:
    """A pull's answer. `messages` are those that the subscription wants; `damaged` records were left out."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_id: int
    messages: list[ReceivedMessage]
    damaged: int = 0


@dataclass(slots=True)
class PullRequest:
    """What to ask for. `commit_offset` rides along, so that pulling also commits."""

    queue: MessageQueue
    offset: int
    subscription: Subscription
    max_count: int
    max_bytes: int
    commit_offset: int = 0
    suspend_s: float = SUSPEND_PUSH_S
    broker_id: int = MASTER_ID
    is_lite: bool = False
    carries_subscription: bool = False
    timeout_s: float = PULL_TIMEOUT_S


async def pull(instance: ClientInstance, group: str, request: PullRequest) -> Pulled:
    """Ask the suggested replica. Raises ResponseError for answers that are not about the queue's content."""
    queue = request.queue
    address, broker_id = await instance.find_reader(queue.broker_name, queue.topic, suggested_id=request.broker_id)
    code = RequestCode.LITE_PULL_MESSAGE if request.is_lite else RequestCode.PULL_MESSAGE
    ext = _ext(group, request, is_slave=broker_id != MASTER_ID)
    answer = await instance.remoting.invoke(address, code, ext, b"", timeout_s=request.timeout_s)
    if answer.code not in _STATUS:
        raise ResponseError(answer.code, answer.remark, request_code=code, address=address)
    pulled = read_answer(answer, queue.broker_name, request.subscription)
    is_sent_on = pulled.status is PullStatus.NO_MATCHED_MESSAGE and pulled.next_offset == request.offset
    if is_sent_on and instance.master_address(queue.broker_name) in (None, address):
        await _look_for_master(instance, queue, address)
    return pulled


async def _look_for_master(instance: ClientInstance, queue: MessageQueue, asked: str) -> None:
    """A slave has no more and sends us to a master that has just come back: our route lacks it, or calls this slave the
    master, which stood in for it (enableSlaveActingMaster).

    The route is asked for at once. Until it is known the slave would send us on again, thousands of times a second.
    """
    await instance.refresh_route(queue.topic)
    if instance.master_address(queue.broker_name) in (None, asked):
        await asyncio.sleep(NO_MASTER_PAUSE_S)


def read_answer(answer: Command, broker_name: str, subscription: Subscription) -> Pulled:
    """Decode, and keep what the subscription's exact tags want: brokers compare 32-bit hashes only."""
    ext = answer.ext
    try:
        next_offset, min_offset, max_offset = (int(ext[k]) for k in ("nextBeginOffset", "minOffset", "maxOffset"))
        suggested_id = int(ext.get("suggestWhichBrokerId", MASTER_ID))
    except (KeyError, ValueError) as exc:
        raise RemoteProtocolError(f"the broker's answer to a pull lacks or garbles {exc}: {ext}") from exc
    status = _STATUS[answer.code]
    messages: list[ReceivedMessage] = []
    faults: list[str] = []
    if status is PullStatus.FOUND:
        messages = decode_messages(
            answer.body,
            broker_name=broker_name,
            min_offset=min_offset,
            max_offset=max_offset,
            on_damage=faults.append,
        )
        for fault in faults:
            text = "broker %s gave a damaged record of %s before queue offset %d, which is left out: %s"
            _log.error(text, broker_name, subscription.topic, next_offset, fault)
        if subscription.tags and subscription.expression_type == TAG:
            wanted = subscription.tags
            messages = [message for message in messages if message.properties.get(Property.TAGS) in wanted]
    return Pulled(status, next_offset, min_offset, max_offset, suggested_id, messages, len(faults))


def _ext(group: str, request: PullRequest, *, is_slave: bool) -> dict[str, ExtValue]:
    flags = 0
    if request.commit_offset > 0 and not is_slave:
        flags |= FLAG_COMMIT_OFFSET
    if request.is_lite:
        flags |= FLAG_LITE_PULL
    subscription = request.subscription
    return pull_ext(
        group,
        request.queue,
        request.offset,
        flags=flags,
        max_count=request.max_count,
        max_bytes=request.max_bytes,
        commit_offset=request.commit_offset if flags & FLAG_COMMIT_OFFSET else 0,
        suspend_s=request.suspend_s,
        version=subscription.version,
        expression_type=subscription.expression_type,
        expression=subscription.expression if request.carries_subscription else None,
    )


def pull_ext(
    group: str,
    queue: MessageQueue,
    offset: int,
    *,
    flags: int,
    max_count: int,
    max_bytes: int,
    commit_offset: int,
    suspend_s: float,
    version: int,
    expression_type: str,
    expression: str | None,
) -> dict[str, ExtValue]:
    """The fields of a pull. `expression` is None when the broker knows the subscription from heartbeats.

    Whatever a client asks for, brokers of the protocol give at most 32 messages and 256 KiB, and of what is on their
    disk a quarter of that. Our brokers give up to `max_count` and `max_bytes` to who says maxTransferBytes; others
    ignore the field. So an answer with fewer messages says nothing about how many there are.
    """
    if suspend_s > 0:
        flags |= FLAG_SUSPEND
    if expression is not None:
        flags |= FLAG_SUBSCRIPTION
    ext: dict[str, ExtValue] = {
        "consumerGroup": group,
        "topic": queue.topic,
        "queueId": queue.queue_id,
        "queueOffset": offset,
        "maxMsgNums": max_count,
        "sysFlag": flags,
        "commitOffset": commit_offset,
        "suspendTimeoutMillis": round(suspend_s * 1000),
        "subVersion": version,
        "expressionType": expression_type,
        "maxMsgBytes": max_bytes,
        "maxTransferBytes": max_bytes,
        "bname": queue.broker_name,
    }
    if expression is not None:
        ext["subscription"] = expression
    return ext
