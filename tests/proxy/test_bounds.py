"""A proxy process under clients that ask and do not read: its memory is bounded, and others are served meanwhile.

Idle streams and held receives by their thousands are in test_bad_input.py. Here are streams that are opened, asked of
and never read, and HTTP/2 whose frames are right one by one and an abuse together. Short counts in `make test`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final, NamedTuple

import grpc
import pytest

from contrailmq.message import Message
from contrailmq.proxy.protocol import SERVICE, v2
from contrailmq.proxy.statuses import Code
from contrailmq.testing import LocalCluster
from how_many import examples
from proxy.calling import Caller, message, topic
from proxy.test_bad_input import HTTP2, SETTINGS, proxy_process, resident_mb
from proxy.test_consuming import acknowledge, filled, gathered, seconds

WAIT_S: Final = 300
CALLS: Final = 50  # of another client, while one misbehaves
BODY: Final = b"x" * 50_000
# The peer's window stays as it was at first, so a server can send 64 KiB to somebody who does not read.
CHANNEL: Final = (("grpc.http2.bdp_probe", 0), ("grpc.use_local_subchannel_pool", 1))


def beside_a_proxy(cluster: LocalCluster, work: Callable[[str, int], Awaitable[None]]) -> None:
    with proxy_process(cluster.namesrv) as (address, pid):
        asyncio.run(asyncio.wait_for(work(address, pid), WAIT_S))


async def served(address: str) -> None:
    """Another client's calls go on."""
    async with grpc.aio.insecure_channel(address, CHANNEL) as channel:
        caller = Caller(channel, "well-behaved")
        for _ in range(CALLS):
            answer = await caller.call("SendMessage", messages=[message("plain")])
            assert answer.status.code == Code.OK, answer


def unread(channel: grpc.aio.Channel, name: str, group: str) -> Any:
    """A receive whose answer nobody reads."""
    request = v2.ReceiveMessageRequest(
        group=topic(group),
        message_queue=v2.MessageQueue(topic=topic(name), id=-1),
        filter_expression=v2.FilterExpression(type=1, expression="*"),
        batch_size=4,
        invisible_duration=seconds(300),
    )
    ask = channel.unary_stream(f"/{SERVICE}/ReceiveMessage", v2.ReceiveMessageRequest.SerializeToString)
    return ask(request, metadata=(("x-mq-client-id", "unread"),))


def test_receives_that_nobody_reads_hold_little_and_their_messages_come_back_with_the_connection_s_end(
    cluster: LocalCluster,
) -> None:
    """They would be invisible for five minutes; what was not written is given back."""
    count = examples(400)
    filled(cluster, "unread", *(Message("unread", BODY, keys=str(number)) for number in range(4 * count)))

    async def work(address: str, pid: int) -> None:
        await served(address)
        before_mb = resident_mb(pid)
        channels = [grpc.aio.insecure_channel(address, CHANNEL) for _ in range(8)]
        calls = [unread(channels[number % 8], "unread", "unreaders") for number in range(count)]
        await asyncio.gather(*(call.initial_metadata() for call in calls))
        await served(address)
        kb_each = (resident_mb(pid) - before_mb) * 1e3 / count
        print(f"proxy: {count} receives that nobody reads, {kb_each:.0f} kB each of 200 kB of bodies")
        assert kb_each < 2000
        for channel in channels:
            await channel.close()
        async with grpc.aio.insecure_channel(address) as channel:
            caller = Caller(channel, "next")
            seen: set[str] = set()
            while len(seen) < count:  # most of them: the first ones of each connection were on their way
                for one in await gathered(caller, "unread", "unreaders", 1):
                    system = one.system_properties
                    assert await acknowledge(caller, "unread", "unreaders", system.receipt_handle) == [Code.OK]
                    seen.update(system.keys)

    beside_a_proxy(cluster, work)


def _settings(size_bytes: int) -> Any:
    made = v2.Settings(client_type=1, publishing=v2.Publishing())
    for number in range(size_bytes // 1000):
        made.publishing.topics.add(name=f"{number:04d}" + "t" * 96, resource_namespace="n" * 900)
    return v2.TelemetryCommand(settings=made)


def test_settings_whose_answers_nobody_reads_are_not_taken_any_more(cluster: LocalCluster) -> None:
    large = _settings(500_000)

    async def work(address: str, pid: int) -> None:
        await served(address)
        before_mb = resident_mb(pid)

        async def flood(channel: grpc.aio.Channel) -> None:
            stream = Caller(channel, "flooding").telemetry()
            while True:
                await stream.write(large)

        async with grpc.aio.insecure_channel(address, CHANNEL) as channel:
            flooding = asyncio.create_task(flood(channel))
            await served(address)
            await served(address)
            grown_mb = resident_mb(pid) - before_mb
            assert not flooding.done()
            flooding.cancel()
        print(f"proxy: settings of 0.5 MB again and again, unread: {grown_mb:.0f} MB")
        assert grown_mb < 40

    beside_a_proxy(cluster, work)


def test_settings_beyond_their_size_end_the_stream(cluster: LocalCluster) -> None:
    async def work(address: str, pid: int) -> None:
        async with grpc.aio.insecure_channel(address, CHANNEL) as channel:
            stream = Caller(channel, "huge").telemetry()
            await stream.write(_settings(1_200_000))
            with pytest.raises(grpc.aio.AioRpcError, match="settings of 1.* bytes, the limit is 1048576"):
                await stream.read()
            assert await stream.code() is grpc.StatusCode.INVALID_ARGUMENT

    beside_a_proxy(cluster, work)


def _frame(kind: int, flags: int, stream: int, payload: bytes = b"") -> bytes:
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def _text(value: str) -> bytes:
    return bytes((len(value),)) + value.encode()


# HPACK: POST, http, then path, authority, content-type and te as literals that are not indexed.
HEADERS: Final = (
    b"\x83\x86\x04" + _text(f"/{SERVICE}/QueryRoute") + b"\x01" + _text("here")
    + b"\x0f\x10" + _text("application/grpc") + b"\x00" + _text("te") + _text("trailers")
)  # fmt: skip
DATA, OPENING, RESET, SETTING, PING, WINDOW = 0, 1, 3, 4, 6, 8


class Flood(NamedTuple):
    """Frames by their number, and what memory they may take: 4,096 calls of a connection are open at a time."""

    frames: Callable[[int], bytes]
    mb_max: int = 20


FLOODS: Final = {
    "pings": Flood(lambda number: _frame(PING, 0, 0, number.to_bytes(8, "big"))),
    "settings": Flood(lambda number: _frame(SETTING, 0, 0, b"\0\x04" + (65_535 + number % 9).to_bytes(4, "big"))),
    "windows": Flood(lambda number: _frame(WINDOW, 0, 0, b"\0\0\0\1")),
    "data of no bytes": Flood(lambda number: _frame(DATA, 0, 1) if number else _frame(OPENING, 4, 1, HEADERS)),
    "calls that are cancelled at once": Flood(
        lambda number: _frame(OPENING, 4, 2 * number + 1, HEADERS) + _frame(RESET, 0, 2 * number + 1, b"\0\0\0\x08"),
        130,
    ),
    "calls without a request": Flood(lambda number: _frame(OPENING, 4, 2 * number + 1, HEADERS), 130),
}


def test_a_flood_of_frames_takes_bounded_memory_and_nobody_else_s_calls(cluster: LocalCluster) -> None:
    """Its own connection may end; what the server says on it is not read."""
    count = examples(100_000)

    async def flood(address: str, frames: Callable[[int], bytes]) -> asyncio.StreamWriter:
        host, port = address.rsplit(":", 1)
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(HTTP2 + SETTINGS)
        with contextlib.suppress(OSError):  # the server ends it
            for first in range(0, count, 100):
                writer.write(b"".join(map(frames, range(first, first + 100))))
                await writer.drain()
        return writer

    async def work(address: str, pid: int) -> None:
        await served(address)
        for name, (frames, mb_max) in FLOODS.items():
            before_mb = resident_mb(pid)
            flooding = asyncio.create_task(flood(address, frames))
            await served(address)
            writer = await flooding
            await served(address)
            grown_mb = resident_mb(pid) - before_mb
            writer.transport.abort()
            print(f"proxy: {count} times {name}: {grown_mb:.1f} MB")
            assert grown_mb < mb_max, name

    beside_a_proxy(cluster, work)
