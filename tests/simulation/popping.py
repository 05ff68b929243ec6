"""The POP consumers of a trial: requests of our client's transport, as a consumer makes them.

A life of a consumer pops each broker in turn and waits at it for a while. What it gets it acknowledges one by one or in
one batch; some it keeps longer first, some it fails on: it does nothing, and they come again. Members of the FIFO group
take their pops with an attempt id, which they keep until an answer comes. Whoever hears no answer to a change does not
know how long it has a message, and says nothing of it any more.
"""

from __future__ import annotations

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from contrailmq import aio
from contrailmq.message import ContrailError, Property, StoredMessage, pop_retry_topic
from contrailmq.message.codec import decode_record
from contrailmq.wire.bodies import encode_body
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.header import Command
from contrailmq.wire.pop_records import BatchAckBody, BatchAckEntry
from contrailmq.wire.pop_requests import (
    AckMessage,
    ChangeInvisibleTime,
    ChangeInvisibleTimeResponse,
    PopMessage,
    PopMessageResponse,
)
from contrailmq.wire.pop_strings import PopHandle, encode_bits
from contrailmq.wire.transport import RemotingClient
from simulation.history import LINERS, Delivery, History, Place, Popped, Queue
from simulation.nodes import Node

INVISIBLE_S: Final = (3.0, 6.0)
POLL_MS: Final = 4_000
TIMEOUT_S: Final = 6.0
ANSWER_S: Final = 3.0
CLOCK_SHARE: Final = 0.9  # of an invisible time, that surely passes: a broker's clock may run 5% fast
FAIL_ODDS: Final = 0.1
LONGER_ODDS: Final = 0.2
IDLE_ODDS: Final = 0.1  # that a member rests: messages wait then, and are popped together
IDLE_S: Final = (2.0, 8.0)
BATCH_ODDS: Final = 0.3
AGAIN_S: Final = 1.0
ROUTES_S: Final = 10.0


class Taken(NamedTuple):
    """A message that this consumer has."""

    popped: Popped
    handle: PopHandle
    stored_topic: str


class PopConsumer:
    """One member of a group, as long as its process lives. `may_fail` says whether it may fail on purpose."""

    def __init__(
        self,
        node: Node,
        group: str,
        topic: str,
        *,
        namesrv: str,
        history: History,
        chance: random.Random,
        may_fail: Callable[[], bool],
    ) -> None:
        self._node, self._group, self._topic, self._namesrv = node, group, topic, namesrv
        self._history, self._chance, self._may_fail = history, chance, may_fail
        self._is_fifo = group == LINERS
        self._attempts = 0
        self._client = RemotingClient()

    async def run(self) -> None:
        """For ever: one task for each broker that is known."""
        tasks: dict[str, asyncio.Task[None]] = {}
        async with aio.Admin(namesrv=self._namesrv) as admin:
            while True:
                try:
                    masters = await admin.masters()
                except ContrailError:
                    masters = {}
                for name, address in masters.items():
                    if f"{name} {address}" not in tasks:
                        for key in [key for key in tasks if key.startswith(f"{name} ")]:
                            tasks.pop(key).cancel()  # another process is the master now
                        tasks[f"{name} {address}"] = asyncio.create_task(self._pop_for_ever(name, address))
                await asyncio.sleep(ROUTES_S)

    async def _pop_for_ever(self, broker: str, address: str) -> None:
        attempt_id = None
        while True:
            if self._is_fifo and attempt_id is None:
                self._attempts += 1
                attempt_id = f"{self._node.name} {self._node.process_id} {self._attempts}"
            try:
                taken = await self._pop(broker, address, attempt_id)
                attempt_id = None
                if taken:
                    await asyncio.sleep(self._chance.expovariate(20.0))
                    await self._finish(address, taken)
                    if self._chance.random() < IDLE_ODDS and self._may_fail():
                        await asyncio.sleep(self._chance.uniform(*IDLE_S))
            except ContrailError as exc:
                self._node.world.note(f"pop: {type(exc).__name__}")
                await asyncio.sleep(AGAIN_S)

    async def _pop(self, broker: str, address: str, attempt_id: str | None) -> list[Taken]:
        asked_s, invisible_s = self._node.world.now_s, self._chance.choice(INVISIBLE_S)
        header = PopMessage(
            consumer_group=self._group,
            topic=self._topic,
            queue_id=-1,
            max_msg_nums=self._chance.choice((1, 4, 16)),
            invisible_time=round(invisible_s * 1000),
            poll_time=POLL_MS,
            init_mode=0,
            order=self._is_fifo,
            attempt_id=attempt_id,
        )
        answer = await self._client.invoke(address, RequestCode.POP_MESSAGE, header, b"", TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS:
            if answer.code != ResponseCode.POLLING_TIMEOUT:
                await asyncio.sleep(AGAIN_S)
            return []
        until_s = asked_s + CLOCK_SHARE * invisible_s
        return [self._note(broker, one, handle, asked_s, until_s) for one, handle in _opened(broker, answer)]

    def _note(self, broker: str, message: StoredMessage, handle: PopHandle, asked_s: float, until_s: float) -> Taken:
        now_s, is_first = self._node.world.now_s, handle.mark == "0"
        place = Place(Queue(message.topic, broker, message.queue_id), message.queue_offset) if is_first else None
        member = f"{self._node.name}-{self._node.process_id}"
        properties = dict(message.properties)
        told = message.topic, message.flag, message.reconsume_times
        self._history.deliver(
            Delivery(now_s, self._group, member, message.body, properties, place, *told, is_success=False)
        )
        popped = Popped(
            self._group,
            message.body,
            broker,
            place,
            asked_s=asked_s,
            at_s=now_s,
            pop_time_ms=handle.pop_time_ms,
            attempt=message.reconsume_times,
            until_s=until_s,
        )
        self._history.pops.deliveries.append(popped)
        return Taken(popped, handle, message.topic if is_first else pop_retry_topic(self._group, message.topic))

    # --- what becomes of messages

    async def _finish(self, address: str, taken: Sequence[Taken]) -> None:
        kept = []
        for one in taken:
            if self._fails(one.popped.body):
                if self._is_fifo:
                    break  # who works in order goes no further
                continue
            changed = await self._keep_longer(address, one) if self._chance.random() < LONGER_ODDS else one
            if changed is one or (changed is not None and not self._fails(one.popped.body)):
                kept.append(changed)
        if kept and self._chance.random() < BATCH_ODDS:
            await self._acknowledge_together(address, kept)
            return
        for one in kept:
            await self._acknowledge(address, one)

    def _fails(self, body: bytes) -> bool:
        sent = self._history.sent.get(body)
        if sent is not None and sent.is_poison and not self._is_fifo:
            return True
        return self._may_fail() and self._chance.random() < FAIL_ODDS

    async def _keep_longer(self, address: str, one: Taken) -> Taken | None:
        """None: it is not known how long it is ours. In a FIFO queue a change that comes when somebody else has the
        message is answered with success and has no effect, as in RocketMQ (ChangeInvisibleTimeProcessor)."""
        longer_s, asked_s, was_until_s = self._chance.choice(INVISIBLE_S), self._node.world.now_s, one.popped.until_s
        one.popped.until_s = one.popped.asked_s  # until it is known, nothing is promised
        header = ChangeInvisibleTime(
            consumer_group=self._group,
            topic=one.stored_topic,
            queue_id=one.handle.queue_id,
            extra_info=one.handle.encode(),
            offset=one.handle.offset,
            invisible_time=round(longer_s * 1000),
        )
        answer = await self._client.invoke(address, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header, b"", ANSWER_S)
        if answer.code != ResponseCode.SUCCESS:
            return None
        if not self._is_fifo or self._node.world.now_s < was_until_s:
            one.popped.until_s = asked_s + CLOCK_SHARE * longer_s
        if self._is_fifo:
            return one
        fields = answer.header(ChangeInvisibleTimeResponse)
        handle = one.handle._replace(
            start_offset=one.handle.offset,
            pop_time_ms=fields.pop_time,
            invisible_ms=fields.invisible_time,
            revive_queue=fields.revive_qid,
        )
        return one._replace(handle=handle)

    async def _acknowledge(self, address: str, one: Taken) -> None:
        self._history.pops.acknowledging(one.popped, self._node.world.now_s)
        header = AckMessage(
            consumer_group=self._group,
            topic=one.stored_topic,
            queue_id=one.handle.queue_id,
            extra_info=one.handle.encode(),
            offset=one.handle.offset,
        )
        answer = await self._client.invoke(address, RequestCode.ACK_MESSAGE, header, b"", ANSWER_S)
        self._was_answered(answer, [one])

    async def _acknowledge_together(self, address: str, kept: Sequence[Taken]) -> None:
        entries: dict[tuple[object, ...], list[Taken]] = defaultdict(list)
        for one in kept:
            handle = one.handle
            entries[(*handle[:5], handle.queue_id)].append(one)
            self._history.pops.acknowledging(one.popped, self._node.world.now_s)
        body = BatchAckBody(
            acks=[
                BatchAckEntry(
                    bits=encode_bits(one.handle.offset - together[0].handle.start_offset for one in together),
                    group=self._group,
                    invisible_ms=together[0].handle.invisible_ms,
                    pop_time_ms=together[0].handle.pop_time_ms,
                    queue_id=together[0].handle.queue_id,
                    mark=together[0].handle.mark,
                    revive_queue=together[0].handle.revive_queue,
                    start_offset=together[0].handle.start_offset,
                    topic=self._topic,
                )
                for together in entries.values()
            ],
            broker_name=kept[0].handle.broker_name,
        )
        answer = await self._client.invoke(address, RequestCode.BATCH_ACK_MESSAGE, None, encode_body(body), ANSWER_S)
        self._was_answered(answer, kept)

    def _was_answered(self, answer: Command, acknowledged: Sequence[Taken]) -> None:
        now_s = self._node.world.now_s
        for one in acknowledged:
            if answer.code == ResponseCode.SUCCESS and now_s < one.popped.until_s:
                one.popped.confirmed_s = now_s
                self._history.pops.confirmed += 1


def _opened(broker: str, answer: Command) -> list[tuple[StoredMessage, PopHandle]]:
    """The messages of an answer, with their handles."""
    fields = answer.header(PopMessageResponse)
    starts = {}
    for entry in (fields.start_offset_info or "").split(";"):
        mark, queue_id, start = entry.split(" ")
        starts[mark, int(queue_id)] = int(start)
    found, view = [], memoryview(answer.body)
    while view:
        message = decode_record(view)
        view = view[message.size_bytes :]
        own = message.properties.get(Property.POP_CHECKPOINT)
        handle = PopHandle(
            starts.get(("0", message.queue_id), 0),
            fields.pop_time,
            fields.invisible_time,
            fields.revive_qid,
            "0",
            broker,
            message.queue_id,
            message.queue_offset,
        )
        found.append((message, PopHandle.decode(own) if own else handle))
    return found
