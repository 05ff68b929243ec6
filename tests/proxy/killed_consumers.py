"""Consumers in a process of its own, which test_kills.py kills: over remoting, and by gRPC through a proxy.

    python -m proxy.killed_consumers PLAN

PLAN is a JSON object: `seed`, `namesrv`, `proxy` (gRPC), `remoting` (the proxy's remoting port) and `consumers`, a list
of [name, way, topic, group]. Each consumer receives, acknowledges, keeps messages longer, lets them go, and fails. What
it does is a line of the output, written before the act where the act is a request, so that a kill hides nothing:

    got NAME POPPED_MS UNTIL_MS QUEUE:BODY:ATTEMPT ...   a receive's answer, which may be empty
    changing BODY MS UNTIL_MS                            its time is changed now; it ends then at the latest
    trying BODY MS                                       an acknowledgement is sent now
    acked BODY MS                                        it was confirmed, within the invisible time

POPPED_MS is when the broker handed the messages out, and not before the receive was sent. Times are the wall clock's,
which handles go by. A line on standard input ends all failing; its end ends the process.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import time
import uuid
from typing import Any, Final, NamedTuple, Protocol

import grpc
import msgspec

from contrailmq import aio
from contrailmq.client.records import PoppedMessage
from contrailmq.client.results import ConsumeFromWhere
from contrailmq.message import ContrailError
from contrailmq.proxy.handles import parse_handle
from contrailmq.proxy.protocol import v2
from contrailmq.proxy.statuses import Code
from proxy.calling import Caller, topic
from proxy.test_consuming import SECOND, seconds

FIFO_TOPIC: Final = "ordered"
QUEUES: Final = 4  # of each topic
INVISIBLE_S: Final = {"remoting": 3, "proxied": 3, "grpc": 10}  # 10 s is the least that gRPC takes
POLL_S: Final = {"remoting": 1.0, "proxied": 1.0, "grpc": 5.0}  # and 5 s
PAUSE_S: Final = 0.05  # after an error: the server may be gone
ANSWER_S: Final = 3.0
# A client finds a server that came back at once; gRPC's own pause grows to two minutes.
CHANNEL: Final = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 300),
)


class Plan(msgspec.Struct):
    seed: int
    namesrv: str
    proxy: str
    remoting: str
    consumers: list[tuple[str, str, str, str]]


class Refused(Exception):
    """A status that is not OK."""


class Delivery(NamedTuple):
    """A message that is with its consumer until a time; `receipt` is what its own way acknowledges by."""

    body: str
    queue: int
    attempt: int
    popped_ms: int
    until_ms: int
    receipt: Any


class Way(Protocol):
    """How a consumer asks. Errors are ContrailError, gRPC's, and Refused."""

    async def receive(self, count: int) -> list[Delivery]: ...

    async def acknowledge(self, one: Delivery) -> None: ...

    async def change(self, one: Delivery, after_s: int) -> Delivery: ...


class ByRemoting:
    """Our SimpleConsumer."""

    def __init__(self, consumer: aio.SimpleConsumer, way: str) -> None:
        self._consumer, self._way = consumer, way

    async def receive(self, count: int) -> list[Delivery]:
        found = await self._consumer.receive(count, INVISIBLE_S[self._way], POLL_S[self._way])
        return [_popped(one) for one in found if isinstance(one, PoppedMessage)]

    async def acknowledge(self, one: Delivery) -> None:
        await self._consumer.ack(one.receipt)

    async def change(self, one: Delivery, after_s: int) -> Delivery:
        await self._consumer.change_invisible_duration(one.receipt, after_s)
        return _popped(one.receipt)


def _popped(one: PoppedMessage) -> Delivery:
    handle = one.handle
    until_ms = handle.pop_time_ms + handle.invisible_ms
    return Delivery(one.body.decode(), one.queue_id, one.reconsume_times, handle.pop_time_ms, until_ms, one)


class ByGrpc:
    """A bare gRPC client, which does what the official ones do: FIFO groups ask queue by queue."""

    def __init__(self, caller: Caller, topic_name: str, group: str, *, is_fifo: bool) -> None:
        self._caller, self._topic, self._group, self._is_fifo = caller, topic_name, group, is_fifo
        self._queue = 0
        self._attempts: dict[int, str] = {}  # by queue: of a receive whose answer did not come

    async def receive(self, count: int) -> list[Delivery]:
        self._queue = (self._queue + 1) % QUEUES if self._is_fifo else -1
        attempt = self._attempts.setdefault(self._queue, uuid.uuid4().hex)
        parts = await self._caller.stream(
            "ReceiveMessage",
            timeout_s=POLL_S["grpc"] + ANSWER_S,
            group=topic(self._group),
            message_queue=v2.MessageQueue(topic=topic(self._topic), id=self._queue),
            filter_expression=v2.FilterExpression(type=1, expression="*"),
            batch_size=count,
            invisible_duration=seconds(INVISIBLE_S["grpc"]),
            long_polling_timeout=seconds(int(POLL_S["grpc"])),
            attempt_id=attempt,
        )
        del self._attempts[self._queue]
        if parts[0].status.code == Code.MESSAGE_NOT_FOUND:
            return []
        _check(parts[0])
        return [_received(part.message) for part in parts if part.WhichOneof("content") == "message"]

    async def acknowledge(self, one: Delivery) -> None:
        entry = v2.AckMessageEntry(message_id="id", receipt_handle=one.receipt)
        _check(await self._ask("AckMessage", entries=[entry]))

    async def change(self, one: Delivery, after_s: int) -> Delivery:
        answer = await self._ask(
            "ChangeInvisibleDuration",
            receipt_handle=one.receipt,
            invisible_duration=SECOND(seconds=after_s),
            message_id="id",
        )
        _check(answer)
        handle = parse_handle(answer.receipt_handle)
        return one._replace(receipt=handle.text, until_ms=handle.visible_ms)

    async def _ask(self, name: str, **fields: Any) -> Any:
        group, own = topic(self._group), topic(self._topic)
        return await self._caller.call(name, timeout_s=ANSWER_S, group=group, topic=own, **fields)


def _received(one: Any) -> Delivery:
    system = one.system_properties
    handle = parse_handle(system.receipt_handle)
    attempt = system.delivery_attempt - 1
    return Delivery(
        one.body.decode(), handle.queue_id, attempt, handle.pop_time_ms, handle.visible_ms, system.receipt_handle
    )


def _check(answer: Any) -> None:
    if answer.status.code != Code.OK:
        raise Refused(answer.status.message)


class Mood:
    """Of all consumers here: whether they fail."""

    is_failing = True


class Consumer:
    def __init__(self, name: str, way: Way, source: random.Random, mood: Mood, *, is_fifo: bool) -> None:
        self._name, self._way, self._random, self._mood, self._is_fifo = name, way, source, mood, is_fifo

    async def work(self) -> None:
        while True:
            try:
                await self._round()
            except (ContrailError, grpc.aio.AioRpcError, Refused):
                await asyncio.sleep(PAUSE_S)

    async def _round(self) -> None:
        began_ms = _now_ms()
        found = await self._way.receive(self._random.choice((1, 4, 16, 32)))
        popped_ms = max(began_ms, min((one.popped_ms for one in found), default=0))
        until_ms = min((one.until_ms for one in found), default=0)
        _tell("got", self._name, popped_ms, until_ms, *(f"{one.queue}:{one.body}:{one.attempt}" for one in found))
        for place, one in enumerate(found):
            if not await self._finish(one) and self._is_fifo:
                for other in found[place + 1 :]:
                    await self._change(other, 0)
                return

    async def _finish(self, one: Delivery) -> bool:
        """Whether it is acknowledged. A FIFO consumer goes no further in its batch after one that is not."""
        chance = self._random.random() if self._mood.is_failing else 1.0
        if chance < 0.05:
            return False  # it fails: the message comes again at the end of its time
        if chance < 0.15:
            await self._change(one, 0)  # it fails, and says so
            return False
        if chance < 0.3:
            one = await self._change(one, self._random.choice((2, 4)))
            if chance < 0.18:
                return False  # kept longer, and then it fails
        if _now_ms() >= one.until_ms:
            return False  # it took too long
        _tell("trying", one.body, _now_ms())
        await self._way.acknowledge(one)
        confirmed_ms = _now_ms()
        if confirmed_ms < one.until_ms:
            _tell("acked", one.body, confirmed_ms)
        return True

    async def _change(self, one: Delivery, after_s: int) -> Delivery:
        _tell("changing", one.body, _now_ms(), _now_ms() + 1000 * (after_s + int(ANSWER_S)))  # its answer may be lost
        return await self._way.change(one, after_s)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _tell(*words: object) -> None:
    os.write(1, (" ".join(map(str, words)) + "\n").encode())


async def _way_of(plan: Plan, name: str, way: str, topic_name: str, group: str) -> Way:
    is_fifo = topic_name == FIFO_TOPIC
    own_name = f"{name}-{os.getpid()}"
    if way == "grpc":
        channel = grpc.aio.insecure_channel(plan.proxy, CHANNEL)
        return ByGrpc(Caller(channel, own_name), topic_name, group, is_fifo=is_fifo)
    while True:
        consumer = aio.SimpleConsumer(
            group,
            namesrv=plan.namesrv if way == "remoting" else plan.remoting,
            orderly=is_fifo,
            from_where=ConsumeFromWhere.FIRST_OFFSET,
            request_timeout_s=ANSWER_S,
            instance_name=own_name,
        )
        consumer.subscribe(topic_name)
        try:
            await consumer.start()
            return ByRemoting(consumer, way)
        except ContrailError:  # one that failed to start is not started again: another takes its place
            await asyncio.sleep(PAUSE_S)


async def main(plan: Plan) -> None:
    orders, mood = asyncio.StreamReader(), Mood()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(orders), sys.stdin)

    async def consume(number: int, name: str, way: str, topic_name: str, group: str) -> None:
        made = await _way_of(plan, name, way, topic_name, group)
        source = random.Random(plan.seed * 100 + number)
        await Consumer(name, made, source, mood, is_fifo=topic_name == FIFO_TOPIC).work()

    async with asyncio.TaskGroup() as tasks:
        for number, one in enumerate(plan.consumers):
            tasks.create_task(consume(number, *one))
        if await orders.readline():
            mood.is_failing = False
            await orders.read()
        os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(msgspec.json.decode(sys.argv[1], type=Plan)))
