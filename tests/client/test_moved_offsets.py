"""A broker that says of an offset that its queue is shorter, or is to be read from elsewhere."""

from __future__ import annotations

import asyncio

import pytest

import contrailmq.aio as aio
from contrailmq import ConsumeFromWhere, StoredMessage
from contrailmq.wire.bodies import ConsumerList, encode_body
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.frame import encode_response
from contrailmq.wire.header import Command

from .fake_peer import FakePeer, name_server, route_to
from .messages import record
from .waiting import MovedLoop, everybody_rests

CLIENT_IP = "10.1.1.1"
READ = 4  # messages that the first pull brings, from 0 on


class Broker:
    """Gives READ messages, answers the next pull with another offset, and then gives what is asked for."""

    def __init__(self, *, moved_to: int, end: int) -> None:
        self.committed = 0
        self.committed_first: int | None = None  # after it has sent the consumer elsewhere
        self._moved_to, self._end = moved_to, end
        self._has_moved = False

    def __call__(self, request: Command) -> bytes | None:
        if request.code == RequestCode.GET_CONSUMER_LIST_BY_GROUP:
            return encode_response(request, body=encode_body(ConsumerList(consumer_id_list=[f"{CLIENT_IP}@moved"])))
        if request.code == RequestCode.QUERY_CONSUMER_OFFSET:
            return encode_response(request, 0, {"offset": str(self.committed)})
        if request.code == RequestCode.UPDATE_CONSUMER_OFFSET:
            self.committed = int(request.ext["commitOffset"])
            if self._has_moved and self.committed_first is None:
                self.committed_first = self.committed
            return encode_response(request)
        if request.code in (RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ):
            return encode_response(request, body=_locked(request))
        if request.code == RequestCode.PULL_MESSAGE and request.ext["topic"] == "T":
            return self._pulled(request)
        return None

    def _pulled(self, request: Command) -> bytes | None:
        offset = int(request.ext["queueOffset"])
        ext = {"minOffset": "0", "maxOffset": str(self._end)}
        if offset == READ and not self._has_moved:
            self._has_moved = True
            return encode_response(
                request, ResponseCode.PULL_OFFSET_MOVED, ext | {"nextBeginOffset": str(self._moved_to)}
            )
        if offset >= READ:
            return None
        bodies = b"".join(record(at, b"%d" % at, topic="T") for at in range(offset, READ))
        return encode_response(request, 0, ext | {"nextBeginOffset": str(READ)}, bodies)


def _locked(request: Command) -> bytes:
    asked = request.body.partition(b'"mqSet":')[2].rpartition(b"]")[0] + b"]"
    return b'{"lockOKMQSet":' + asked + b"}"


@pytest.mark.parametrize("orderly", [False, True])
@pytest.mark.parametrize(
    ("moved_to", "end", "goes_on_at"),
    [
        pytest.param(3, 3, 1, id="the queue is shorter than what was read of it"),
        pytest.param(0, 3, 0, id="it is shorter still"),
        pytest.param(3, 9, 3, id="somebody has reset the group"),
        pytest.param(9, 9, 9, id="somebody has reset the group to the end"),
    ],
)
def test_a_consumer_that_is_moved_passes_over_nothing_that_its_listener_still_has(
    moved_to: int, end: int, goes_on_at: int, orderly: bool
) -> None:
    """The listener is done with the first message, and holds the second (seed 20 of the simulation)."""

    async def work() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, MovedLoop)
        seen: list[int] = []
        script = Broker(moved_to=moved_to, end=end)

        async def listen(messages: list[StoredMessage]) -> None:
            (message,) = messages
            if message.queue_offset == 1 and seen.count(1) == 0:
                seen.append(1)
                await asyncio.Event().wait()
            seen.append(message.queue_offset)

        async with (
            FakePeer(script) as broker,
            name_server(lambda _: route_to(("a", broker.address))) as namesrv,
        ):
            consumer = aio.PushConsumer(
                "g",
                namesrv=namesrv.address,
                client_ip=CLIENT_IP,
                instance_name="moved",
                orderly=orderly,
                from_where=ConsumeFromWhere.FIRST_OFFSET,
                consume_threads=1,
                shutdown_wait_s=0.0,
            )
            consumer.subscribe("T")
            consumer.listen(listen)
            async with consumer:
                while script.committed_first is None:
                    loop.now_s += 0.5
                    await everybody_rests()
        assert script.committed_first == goes_on_at

    with asyncio.Runner(loop_factory=MovedLoop) as runner:
        runner.run(work())
