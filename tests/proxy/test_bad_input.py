"""What no client should do: it is refused by its code, or ends the one connection that did it, and bounds hold."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from contrailmq import Admin
from contrailmq.message import Message
from contrailmq.proxy.handles import parse_handle
from contrailmq.proxy.protocol import SERVICE, v2
from contrailmq.proxy.statuses import Code
from contrailmq.testing import LocalCluster
from how_many import IS_LONG
from proxy.calling import Caller, caller_of, message, topic
from proxy.test_consuming import acknowledge, filled, gathered, receive, seconds


def run(cluster: LocalCluster, work: Callable[[Caller], Awaitable[None]]) -> None:
    async def main() -> None:
        async with caller_of(cluster.namesrv) as caller:
            await work(caller)

    asyncio.run(asyncio.wait_for(main(), 120))


def test_a_handle_that_is_not_the_group_s_own_acknowledges_nothing(cluster: LocalCluster) -> None:
    """Forged, of another group, expired: the message stays with who received it, and comes again."""
    filled(cluster, "bad-handles", Message("bad-handles", b"kept"))

    async def work(caller: Caller) -> None:
        [got] = await gathered(caller, "bad-handles", "owner", 1)
        given = got.system_properties.receipt_handle
        real = parse_handle(given)
        forged = real._replace(queue_offset=real.queue_offset + 1000, start_offset=real.start_offset + 1000).text
        expired = real._replace(pop_time_ms=1).text
        for handle in (forged, expired, "", " ".join("9" * 30 for _ in range(9)), "\0" * 9):
            assert await acknowledge(caller, "bad-handles", "owner", handle) != [Code.OK], handle
        await acknowledge(caller, "bad-handles", "another", given)
        answer = await caller.call(
            "ChangeInvisibleDuration",
            group=topic("owner"),
            topic=topic("bad-handles"),
            receipt_handle=given,
            invisible_duration=seconds(0),
            message_id="id",
        )
        assert answer.status.code == Code.OK, answer
        [again] = await gathered(caller, "bad-handles", "owner", 1)
        assert again.body == b"kept"

    run(cluster, work)


def test_a_handle_of_an_unknown_broker_says_so(cluster: LocalCluster) -> None:
    async def work(caller: Caller) -> None:
        filled_handle = "0 9999999999999 60000 0 0 broker-z 0 0 0"
        answer = await caller.call(
            "AckMessage",
            group=topic("readers"),
            topic=topic("plain"),
            entries=[v2.AckMessageEntry(message_id="x", receipt_handle=filled_handle)] * 2,
        )
        assert answer.status.code == Code.PROXY_TIMEOUT
        assert "broker-z" in answer.status.message

    run(cluster, work)


def test_a_handle_of_a_deleted_topic_is_refused(cluster: LocalCluster) -> None:
    filled(cluster, "bad-deleted", Message("bad-deleted", b"gone"))

    async def work(caller: Caller) -> None:
        [got] = await gathered(caller, "bad-deleted", "late", 1)

        def delete() -> None:
            with Admin(namesrv=cluster.namesrv) as admin:
                admin.delete_topic("bad-deleted")

        await asyncio.get_running_loop().run_in_executor(None, delete)
        assert await acknowledge(caller, "bad-deleted", "late", got.system_properties.receipt_handle) != [Code.OK]

    run(cluster, work)


@pytest.mark.parametrize("invisible_s", [0, 9, 12 * 3600 + 1, 300_000_000_000])
def test_no_receive_hides_messages_for_no_time_or_for_ever(cluster: LocalCluster, invisible_s: int) -> None:
    async def work(caller: Caller) -> None:
        queue = v2.MessageQueue(topic=topic("plain"), id=-1)
        [answer] = await caller.stream(
            "ReceiveMessage",
            group=topic("readers"),
            message_queue=queue,
            batch_size=1,
            invisible_duration=seconds(invisible_s),
        )
        assert answer.status.code == Code.ILLEGAL_INVISIBLE_TIME

    run(cluster, work)


def test_properties_beyond_their_number_and_size_are_refused(cluster: LocalCluster) -> None:
    async def work(caller: Caller) -> None:
        many, large = message("plain"), message("plain")
        for number in range(129):
            many.user_properties[f"p{number}"] = "x"
        large.user_properties["p"] = "x" * 16_384
        for one in (many, large):
            answer = await caller.call("SendMessage", messages=[one])
            assert answer.status.code == Code.MESSAGE_PROPERTIES_TOO_LARGE

    run(cluster, work)


async def _sent_raw(channel: grpc.aio.Channel, method: str, data: bytes) -> object:
    """The status in the answer, or that of gRPC."""
    ask = channel.unary_unary(f"/{SERVICE}/{method}")
    try:
        answer = await ask(data, metadata=(("x-mq-client-id", "raw"),), timeout=10)
    except grpc.aio.AioRpcError as exc:
        return exc.code()
    return v2.SendMessageResponse.FromString(answer).status.code


HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
SETTINGS = b"\0\0\0\4\0\0\0\0\0"
ABUSES = {
    "no HTTP/2": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "a frame larger than it may be": HTTP2 + SETTINGS + b"\xff\xff\xff\0\0\0\0\0\1",
    "headers that cannot be unpacked": HTTP2 + SETTINGS + b"\0\0\4\1\4\0\0\0\1\xff\xff\xff\xff",
    "a header block that never ends": HTTP2 + SETTINGS + b"\0\0\1\1\0\0\0\0\1\x82" + b"\0\0\0\0\0\0\0\0\3",
    "data on no stream": HTTP2 + SETTINGS + b"\0\0\4\0\1\0\0\0\0abcd",
    "a window beyond its end": HTTP2 + SETTINGS + b"\0\0\4\x08\0\0\0\0\0\x7f\xff\xff\xff" * 2,
    "a frame of remoting": b'\0\0\0\x10\0\0\0\x0c{"code":105}',
}


def test_what_is_no_protobuf_or_no_http_2_ends_its_own_call_or_connection_only(cluster: LocalCluster) -> None:
    async def main() -> None:
        async with caller_of(cluster.namesrv) as caller:
            channel = caller.channel
            stream = caller.telemetry()
            await stream.write(v2.TelemetryCommand(settings=v2.Settings(publishing=v2.Publishing())))
            await stream.read()
            for data in (b"\xff" * 100, b"\x0a\xff\xff\xff\xff\x0f", b"\x0a\x03abc" + b"\x0b" * 200):
                assert await _sent_raw(channel, "SendMessage", data) == Code.BAD_REQUEST
            assert await _sent_raw(channel, "NoSuchCall", b"") is grpc.StatusCode.UNIMPLEMENTED
            host, port = caller.address.rsplit(":", 1)
            for data in ABUSES.values():
                _, writer = await asyncio.open_connection(host, int(port))
                writer.write(data)
                await writer.drain()
                writer.close()
            await stream.write(v2.TelemetryCommand(settings=v2.Settings(publishing=v2.Publishing())))
            assert (await stream.read()).status.code == Code.OK, "the stream of another client goes on"

    asyncio.run(asyncio.wait_for(main(), 240))


@contextmanager
def proxy_process(namesrv: str) -> Iterator[tuple[str, int]]:
    """(address, process id): memory is that of the proxy alone."""
    command = [sys.executable, "-m", "contrailmq", "proxy", "-n", namesrv, "--port", "0", "--no-remoting"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[-1], process.pid
    finally:
        process.terminate()
        process.wait(60)
        process.stdout.close()


def resident_mb(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def _load_is_bounded(cluster: LocalCluster, streams: int, receives: int) -> None:
    """Streams that are opened and never read, and receives that wait: each costs little."""

    async def main(address: str, pid: int) -> None:
        before_mb = resident_mb(pid)
        channels = [grpc.aio.insecure_channel(address, (("grpc.use_local_subchannel_pool", 1),)) for _ in range(8)]
        open_streams = []
        for number in range(streams):
            stream = Caller(channels[number % 8], f"idle-{number}").telemetry()
            publishing = v2.Publishing(topics=[topic("plain")])
            await stream.write(v2.TelemetryCommand(settings=v2.Settings(client_type=1, publishing=publishing)))
            open_streams.append(stream)
        await asyncio.gather(*(stream.read() for stream in open_streams))
        after_streams_mb = resident_mb(pid)
        callers = [Caller(channel, "holding") for channel in channels]  # a connection takes 4,096 calls at a time
        held = [
            asyncio.ensure_future(
                receive(
                    callers[number % 8],
                    "held",
                    f"holders-{number % 50}",
                    long_polling_timeout=seconds(20),
                    timeout_s=60,
                )
            )
            for number in range(receives)
        ]
        first = await asyncio.gather(*held)
        after_mb = resident_mb(pid)
        assert all(got == [] for got in first)
        kb_a_stream = (after_streams_mb - before_mb) * 1e3 / streams
        kb_a_receive = (after_mb - after_streams_mb) * 1e3 / receives
        print(
            f"proxy: {before_mb:.0f} MB; {streams} idle streams {after_streams_mb:.0f} MB, {kb_a_stream:.0f} kB each; "
            f"{receives} held receives {after_mb:.0f} MB, {kb_a_receive:.0f} kB each"
        )
        assert kb_a_stream < 150
        assert kb_a_receive < 100
        for channel in channels:
            await channel.close()

    with Admin(namesrv=cluster.namesrv) as admin:
        admin.create_topic("held", queues=1)
    with proxy_process(cluster.namesrv) as (address, pid):
        asyncio.run(asyncio.wait_for(main(address, pid), 600))


def test_idle_streams_and_held_receives_take_bounded_memory(cluster: LocalCluster) -> None:
    """2,000 and 10,000 of them in make test-long."""
    _load_is_bounded(cluster, *((2000, 10_000) if IS_LONG else (200, 1000)))
