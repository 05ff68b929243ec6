"""Routes that change while clients run, and how much a push consumer takes in, on a clock that the tests move."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

import contrailmq.aio as aio
from contrailmq import ConsumeFromWhere, Message, StoredMessage
from contrailmq.wire.bodies import ConsumerList, encode_body
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.frame import encode_response
from contrailmq.wire.header import Command

from .fake_peer import FakePeer, name_server, route_to, stored
from .messages import record
from .waiting import MovedLoop, everybody_rests

CLIENT_IP = "10.1.1.1"
BODY = b"x" * 1000
SPREAD = 100  # a filter leaves one message of so many


def run(work: Callable[[MovedLoop], Awaitable[None]]) -> None:
    async def on_moved_clock() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, MovedLoop)
        await work(loop)

    with asyncio.Runner(loop_factory=MovedLoop) as runner:
        runner.run(on_moved_clock())


def group_broker(request: Command, *, step: int = 1) -> bytes | None:
    """A member, no stored offsets, and one message for each pull of the topic."""
    if request.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
        return encode_response(request, body=encode_body(ConsumerList(consumer_id_list=[f"{CLIENT_IP}@flow"])))
    if request.code == RequestCode.QUERY_CONSUMER_OFFSET:
        return encode_response(request, ResponseCode.QUERY_NOT_FOUND)
    if request.code == RequestCode.UPDATE_CONSUMER_OFFSET:
        return encode_response(request)
    if request.code == RequestCode.PULL_MESSAGE and request.ext["topic"] == "T":
        offset = int(request.ext["queueOffset"])
        ext = {"nextBeginOffset": str(offset + step), "minOffset": "0", "maxOffset": "1000000"}
        return encode_response(request, 0, ext, record(offset, BODY, topic="T"))
    return None


def consumer_of(namesrv: str, **settings: int) -> aio.PushConsumer:
    return aio.PushConsumer(
        "g",
        namesrv=namesrv,
        client_ip=CLIENT_IP,
        instance_name="flow",
        from_where=ConsumeFromWhere.FIRST_OFFSET,
        rebalance_interval_s=80_000.0,
        **settings,  # type: ignore[arg-type]
    )


async def pass_seconds(loop: MovedLoop, seconds: float) -> None:
    end_s = loop.now_s + seconds
    while loop.now_s < end_s:
        loop.now_s += 0.5
        await everybody_rests()


def test_a_changed_route_is_seen_within_half_a_minute_and_its_queues_are_taken_at_once() -> None:
    queues = 1

    async def work(loop: MovedLoop) -> None:
        nonlocal queues
        async with (
            FakePeer(lambda request: None if request.code == 11 else group_broker(request)) as broker,
            name_server(lambda _: route_to(("a", broker.address), queues=queues)) as namesrv,
        ):
            consumer = consumer_of(namesrv.address)
            consumer.subscribe("T")
            consumer.listen(lambda _: None)
            async with consumer:
                await pass_seconds(loop, 2)
                assert [queue.queue_id for queue in consumer.queues] == [0]
                queues = 3
                await pass_seconds(loop, 31)
                assert [queue.queue_id for queue in consumer.queues] == [0, 1, 2]

    run(work)


def test_a_broker_that_left_the_routes_is_sent_nothing_and_no_heartbeats() -> None:
    async def work(loop: MovedLoop) -> None:
        async with FakePeer(stored) as stays, FakePeer(stored) as leaves:
            everybody = [("a", stays.address), ("b", leaves.address)]
            async with (
                name_server(lambda _: route_to(*everybody)) as namesrv,
                aio.Producer("g", namesrv=namesrv.address) as producer,
            ):
                await asyncio.gather(*(producer.send(Message("T", b"x")) for _ in range(4)))
                await pass_seconds(loop, 31)
                assert [len(peer.asked(RequestCode.SEND_MESSAGE_V2)) for peer in (stays, leaves)] == [2, 2]
                assert leaves.asked(RequestCode.HEART_BEAT)
                everybody.pop()
                await pass_seconds(loop, 31)
                stays.requests.clear()
                leaves.requests.clear()
                await asyncio.gather(*(producer.send(Message("T", b"x")) for _ in range(4)))
                await pass_seconds(loop, 61)
                assert len(stays.asked(RequestCode.SEND_MESSAGE_V2)) == 4
                assert stays.asked(RequestCode.HEART_BEAT)
                assert leaves.requests == []

    run(work)


@pytest.mark.parametrize(
    ("settings", "step", "held"),
    [
        ({"pull_threshold_count": 10}, 1, 11),
        ({"pull_threshold_bytes": 5 * len(BODY)}, 1, 6),
        ({"max_span": 7 * SPREAD}, SPREAD, 9),
    ],
    ids=["count", "bytes", "span"],
)
def test_pulling_rests_when_the_cache_is_full_and_goes_on_when_there_is_room(
    settings: dict[str, int], step: int, held: int
) -> None:
    async def work(loop: MovedLoop) -> None:
        release = asyncio.Event()
        consumed, wanted = 0, 2.0 * held

        async def listen(messages: list[StoredMessage]) -> None:
            nonlocal consumed
            await release.wait()
            consumed += len(messages)
            if consumed >= wanted:
                release.clear()

        async with (
            FakePeer(lambda request: group_broker(request, step=step)) as broker,
            name_server(lambda _: route_to(("a", broker.address))) as namesrv,
        ):
            consumer = consumer_of(namesrv.address, **settings)
            consumer.subscribe("T")
            consumer.listen(listen)
            async with consumer:
                await pass_seconds(loop, 5)
                assert pulled(broker) == held
                release.set()
                await pass_seconds(loop, 5)
                assert consumed >= 2 * held
                assert pulled(broker) <= consumed + held + 1
                wanted = float("inf")
                release.set()

    run(work)


def pulled(broker: FakePeer) -> int:
    return len([request for request in broker.asked(RequestCode.PULL_MESSAGE) if request.ext["topic"] == "T"])
