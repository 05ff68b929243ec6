"""ReceiveMessage, AckMessage, ChangeInvisibleDuration, ForwardMessageToDeadLetterQueue: consumption by POP.

A receive is one POP request to one broker. What it brought is checked here as the reference's proxy does: tags whose
hash collides are acknowledged in silence, and what was delivered often enough goes to the dead letters. Messages of a
consumer that renews are put down in `renewing.Renewals`, which prolongs them while the consumer lives.

Brokers are told no birth time (0) of a receive: one whose clock is ahead of ours would take it for late.
"""

from __future__ import annotations

import asyncio
from typing import Final, NamedTuple

from contrailmq.client.errors import number
from contrailmq.client.records import ReceivedMessage, decode_messages
from contrailmq.message import Property
from contrailmq.proxy.cluster import Cluster, Group
from contrailmq.proxy.handles import BrokerClocks, Handle, check_live, parse_handle
from contrailmq.proxy.lite_messages import popped_lite
from contrailmq.proxy.statuses import Code, Refused
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import RemoteProtocolError
from contrailmq.wire.header import Command

BATCH_MAX: Final = 32
POP_FROM_LATEST: Final = 1
BORN_NOW: Final = 0
ANY_QUEUE: Final = -1
REQUEST_S: Final = 3.0  # what a broker may take beyond the polling time
EMPTY: Final = (ResponseCode.POLLING_FULL, ResponseCode.POLLING_TIMEOUT, ResponseCode.PULL_NOT_FOUND)
SQL: Final = 2
TO_DEAD_LETTERS: Final = -1  # a delay level


class Received(NamedTuple):
    message: ReceivedMessage
    handle: Handle


class Wanted(NamedTuple):
    """One receive."""

    group: Group
    topic: str
    broker: str
    queue_id: int
    messages_max: int
    invisible_ms: int
    polling_ms: int
    filter_type: int
    expression: str
    attempt_id: str
    lite_client: str = ""  # of lite topics: whose subscriptions

    @property
    def is_by_tags(self) -> bool:
        return self.filter_type != SQL and self.expression not in ("", "*")


class Consuming:
    """What consumers ask for. Keeps nothing but the brokers' clocks: handles say all else."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._loop = asyncio.get_running_loop()
        self.clocks = BrokerClocks()

    async def receive(self, wanted: Wanted) -> list[Received]:
        """Messages, invisible for others from now on; empty when none came within the polling time."""
        name, address = await self._cluster.reader(wanted.topic, wanted.broker)
        is_fifo = wanted.group.is_fifo
        ext: dict[str, str | int] = {
            "consumerGroup": wanted.group.name,
            "topic": wanted.topic,
            "queueId": wanted.queue_id if is_fifo else ANY_QUEUE,
            "maxMsgNums": wanted.messages_max,
            "invisibleTime": wanted.invisible_ms,
            "pollTime": wanted.polling_ms,
            "bornTime": BORN_NOW,
            "initMode": POP_FROM_LATEST,
            "expType": "SQL92" if wanted.filter_type == SQL else "TAG",
            "exp": wanted.expression or "*",
            "order": "true" if is_fifo else "false",
            "bname": name,
        }
        if wanted.lite_client:
            ext |= {"clientId": wanted.lite_client, "maxMsgNum": wanted.messages_max}
        if wanted.attempt_id:
            ext["attemptId"] = wanted.attempt_id
        sent_s = self._loop.time()
        answer = await self._cluster.instance.call(
            address,
            RequestCode.POP_LITE_MESSAGE if wanted.lite_client else RequestCode.POP_MESSAGE,
            ext,
            timeout_s=wanted.polling_ms / 1000 + REQUEST_S,
            accept=(ResponseCode.SUCCESS, *EMPTY),
        )
        if answer.code == ResponseCode.POLLING_FULL:
            raise Refused(Code.TOO_MANY_REQUESTS, f"broker {name} holds as many receives as it may: try again soon")
        if answer.code != ResponseCode.SUCCESS:
            return []
        self.clocks.popped(name, number(answer.ext, "popTime"), sent_s=sent_s, received_s=self._loop.time())
        found = [Received(*one) for one in popped_lite(answer, name)] if wanted.lite_client else popped(answer, name)
        return await self._sift(wanted, found)

    async def _sift(self, wanted: Wanted, found: list[Received]) -> list[Received]:
        tags = {tag.strip() for tag in wanted.expression.split("||")} if wanted.is_by_tags else None
        kept = []
        for one in found:
            if tags is not None and one.message.properties.get(Property.TAGS) not in tags:
                await self.acknowledge(wanted.group.name, wanted.topic, one.handle)
            elif one.message.reconsume_times >= wanted.group.attempts_max:
                await self.forward(wanted.group.name, wanted.topic, one.handle, one.message.message_id)
            else:
                kept.append(one)
        return kept

    async def acknowledge(self, group: str, topic: str, handle: Handle) -> None:
        """The message is done. Confirmed by the broker, else an error."""
        await self._ask(handle, topic, RequestCode.ACK_MESSAGE, self._ext(group, topic, handle))

    async def change(
        self,
        group: str,
        topic: str,
        handle: Handle,
        invisible_ms: int,
        *,
        timeout_s: float | None = None,
        suspends: bool = False,
    ) -> Handle:
        """Let others have it in `invisible_ms` from now; the handle that counts from now on. Who suspends does not
        count this delivery as an attempt."""
        ext = self._ext(group, topic, handle) | {"invisibleTime": invisible_ms}
        if suspends:
            ext["suspend"] = "true"
        answer = await self._ask(handle, topic, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, ext, timeout_s=timeout_s)
        return handle._replace(
            start_offset=handle.queue_offset,
            pop_time_ms=number(answer.ext, "popTime"),
            invisible_ms=number(answer.ext, "invisibleTime"),
            revive_queue=number(answer.ext, "reviveQid"),
        )

    async def forward(self, group: str, topic: str, handle: Handle, message_id: str) -> None:
        """Store it with the dead letters of the group, then acknowledge: in this order nothing is lost."""
        if handle.log_offset < 0:
            raise Refused(Code.INVALID_RECEIPT_HANDLE, "the handle lacks the log offset: receive the message again")
        ext: dict[str, str | int] = {
            "offset": handle.log_offset,
            "group": group,
            "delayLevel": TO_DEAD_LETTERS,
            "originMsgId": message_id,
            "originTopic": handle.stored_topic(topic, group),
            "maxReconsumeTimes": 0,
            "unitMode": "false",
            "bname": handle.broker,
        }
        await self._ask(handle, topic, RequestCode.CONSUMER_SEND_MSG_BACK, ext)
        await self.acknowledge(group, topic, handle)

    def live_handle(self, text: str) -> Handle:
        handle = parse_handle(text)
        self.check_live(handle)
        return handle

    def check_live(self, handle: Handle) -> None:
        check_live(handle, self.clocks.now_ms(handle.broker))

    def _ext(self, group: str, topic: str, handle: Handle) -> dict[str, str | int]:
        ext: dict[str, str | int] = {
            "consumerGroup": group,
            "topic": handle.stored_topic(topic, group),
            "queueId": handle.queue_id,
            "extraInfo": handle.extra_info,
            "offset": handle.queue_offset,
            "bname": handle.broker,
        }
        return ext | {"liteTopic": handle.lite_topic} if handle.lite_topic else ext

    async def _ask(
        self,
        handle: Handle,
        topic: str,
        code: RequestCode,
        ext: dict[str, str | int],
        *,
        timeout_s: float | None = None,
    ) -> Command:
        await self._cluster.route(topic)
        master = await self._cluster.master(handle.broker, topic)
        return await self._cluster.instance.call(master, code, ext, timeout_s=timeout_s)


def popped(answer: Command, broker: str) -> list[Received]:
    """The messages of a POP answer with their handles."""
    ext = answer.ext
    pop_time_ms, invisible_ms = number(ext, "popTime"), number(ext, "invisibleTime")
    revive_queue = number(ext, "reviveQid")
    starts = {key: int(value) for key, value in _entries(ext.get("startOffsetInfo", ""))}
    counts = dict(_entries(ext.get("orderCountInfo", "")))
    received = []
    for message in decode_messages(answer.body, broker_name=broker):
        checkpoint = message.properties.get(Property.POP_CHECKPOINT)
        if checkpoint:
            handle = parse_handle(checkpoint)._replace(log_offset=message.physical_offset)
        else:
            key = ("0", str(message.queue_id))
            start = starts.get(key, message.queue_offset)
            handle = Handle(
                start,
                pop_time_ms,
                invisible_ms,
                revive_queue,
                "0",
                broker,
                message.queue_id,
                message.queue_offset,
                message.physical_offset,
            )
            times = counts.get(("0", f"qo{message.queue_id}%{message.queue_offset}")) or counts.get(key)
            if times is not None:
                message.reconsume_times = int(times)
        received.append(Received(message, handle))
    return received


def _entries(text: str) -> list[tuple[tuple[str, str], str]]:
    """`mark queue value;...`."""
    entries = []
    for part in filter(None, text.split(";")):
        fields = part.split(" ")
        if len(fields) != 3 or not fields[2].lstrip("-").isdecimal():
            raise RemoteProtocolError(f"the broker's POP answer has the entry {part[:80]!r}: three parts are needed")
        entries.append(((fields[0], fields[1]), fields[2]))
    return entries
