"""The gRPC port with grpcio's client, and calls written by hand where that client does not go."""

from __future__ import annotations

import asyncio
import gzip
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import grpc
import pytest

from contrailmq.proxy.rpc import calls as calls_module
from contrailmq.proxy.rpc.calls import BOTH_STREAM, SERVER_STREAM, UNARY, Call, CallConnection, Calls, Method
from contrailmq.proxy.rpc.framing import CallError, Status, packed
from contrailmq.proxy.rpc.port import CallPort
from contrailmq.wire.errors import ListenError
from contrailmq.wire.http2.frames import DATA, HEADERS, PREFACE, RST_STREAM, WINDOW_UPDATE, frame
from contrailmq.wire.http2.hpack import HeaderDecoder, indexed, literal
from contrailmq.wire.http2.sending import STREAM_WINDOW
from contrailmq.wire.ration import Ration
from contrailmq.wire.tls import ServerTls, server_tls
from contrailmq.wire.transport import new_event_loop
from waiting_for import until_async
from wire.http2.ends import Raw, Transport

CERTS: Final = Path(__file__).parents[2] / "wire" / "certs"
FREE: Final = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))
LOCAL: Final = (("grpc.use_local_subchannel_pool", 1),)


class Handlers:
    """What the paths do. `held` waits until it is cancelled."""

    def __init__(self) -> None:
        self.begun = self.cancelled = 0
        self.contexts: list[Call] = []
        self.release = asyncio.Event()
        self.taken: list[bytes] = []

    async def echo(self, request: bytes, context: Call) -> bytes:
        self.contexts.append(context)
        return request

    async def held(self, request: bytes, context: Call) -> bytes:
        self.begun += 1
        self.contexts.append(context)
        try:
            await asyncio.Event().wait()
        finally:
            self.cancelled += 1
        return b""

    async def aborted(self, request: bytes, context: Call) -> None:
        await context.write(b"first")
        await context.abort(Status.INVALID_ARGUMENT, "5% of ä\n")

    async def wrong(self, request: bytes, context: Call) -> bytes:
        raise ValueError("wrong")

    async def nothing(self, request: bytes, context: Call) -> None:
        return

    async def many(self, request: bytes, context: Call) -> None:
        for number in range(int(request)):
            await context.write(b"%d" % number)

    async def both(self, requests: AsyncIterator[bytes], context: Call) -> None:
        async for request in requests:
            self.taken.append(request)
            await context.write(request)

    async def unread(self, requests: AsyncIterator[bytes], context: Call) -> None:
        await self.release.wait()
        async for request in requests:
            self.taken.append(request)

    def methods(self) -> dict[str, Method]:
        kinds = {"many": SERVER_STREAM, "aborted": SERVER_STREAM, "nothing": SERVER_STREAM, "both": BOTH_STREAM}
        names = ("echo", "held", "aborted", "wrong", "nothing", "many", "both", "unread")
        return {
            f"/t.T/{name}": Method(
                name,
                BOTH_STREAM if name == "unread" else kinds.get(name, UNARY),
                read=bytes,
                write=bytes,
                call=getattr(self, name),
                failed=lambda error: b"failed: " + str(error).encode(),
            )
            for name in names
        }


class Serving:
    def __init__(self, handlers: Handlers, port: CallPort, served: Counter[str]) -> None:
        self.handlers, self.port, self.served = handlers, port, served
        self.address = f"127.0.0.1:{port.port}"


@asynccontextmanager
async def serving(*, tls: ServerTls | None = None, drain_s: float = 0.0) -> AsyncIterator[Serving]:
    handlers, served = Handlers(), Counter[str]()
    port = CallPort(handlers.methods(), served, host="127.0.0.1", tls=tls)
    await port.start()
    try:
        yield Serving(handlers, port, served)
    finally:
        await port.close(drain_s)


def run(main: Coroutine[None, None, None]) -> None:
    with asyncio.Runner() as runner:
        runner.run(asyncio.wait_for(main, 120))


def unary(channel: grpc.aio.Channel, name: str) -> Any:
    return channel.unary_unary(f"/t.T/{name}")


def test_messages_of_any_size_go_both_ways() -> None:
    async def main() -> None:
        async with serving() as it, grpc.aio.insecure_channel(it.address, FREE) as channel:
            for size in (0, 1, 1000, 16_379, 16_380, 65_536, 5_000_000, 40_000_000):
                data = (b"0123456789abcdef" * (size // 16 + 1))[:size]
                assert await unary(channel, "echo")(data) == data
            assert await asyncio.gather(*(unary(channel, "echo")(b"%d" % one) for one in range(300))) == [
                b"%d" % one for one in range(300)
            ]
            assert it.served["echo"] == 308

    run(main())


def test_streams_both_ways() -> None:
    async def main() -> None:
        async with serving() as it, grpc.aio.insecure_channel(it.address, FREE) as channel:
            got = [one async for one in channel.unary_stream("/t.T/many")(b"1000")]
            assert got == [b"%d" % one for one in range(1000)]
            assert [one async for one in channel.unary_stream("/t.T/nothing")(b"")] == []
            stream = channel.stream_stream("/t.T/both")()
            for size in (0, 10, 100_000, 3_000_000):
                await stream.write(b"x" * size)
                assert await stream.read() == b"x" * size
            await stream.done_writing()
            assert await stream.read() is grpc.aio.EOF
            assert await stream.code() is grpc.StatusCode.OK

    run(main())


def test_compressed_requests_are_unpacked() -> None:
    async def main() -> None:
        async with serving() as it:
            async with grpc.aio.insecure_channel(it.address, LOCAL, grpc.Compression.Gzip) as channel:
                assert await unary(channel, "echo")(b"abc" * 10_000) == b"abc" * 10_000
            async with grpc.aio.insecure_channel(it.address, LOCAL, grpc.Compression.Deflate) as channel:
                with pytest.raises(grpc.aio.AioRpcError, match="deflate.*identity and gzip") as refused:
                    await unary(channel, "echo")(b"abc" * 10_000)
                assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED

    run(main())


def test_how_calls_end_that_do_not_end_well() -> None:
    async def main() -> None:
        async with serving() as it, grpc.aio.insecure_channel(it.address) as channel:
            with pytest.raises(grpc.aio.AioRpcError, match="no method /t.T/other") as unknown:
                await unary(channel, "other")(b"")
            assert unknown.value.code() is grpc.StatusCode.UNIMPLEMENTED
            assert await unary(channel, "wrong")(b"") == b"failed: wrong"
            aborted = channel.unary_stream("/t.T/aborted")(b"")
            assert await aborted.read() == b"first"
            with pytest.raises(grpc.aio.AioRpcError):
                await aborted.read()
            assert await aborted.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert await aborted.details() == "5% of ä\n"

    run(main())


def test_a_message_above_the_limit_ends_its_call_only() -> None:
    async def main() -> None:
        handlers = Handlers()
        methods = handlers.methods()
        methods["/t.T/echo"].bytes_max = 100_000
        port = CallPort(methods, Counter(), host="127.0.0.1")
        await port.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port.port}", FREE) as channel:
            assert len(await unary(channel, "echo")(b"x" * 100_000)) == 100_000
            with pytest.raises(grpc.aio.AioRpcError, match="100001 bytes, the limit is 100000") as refused:
                await unary(channel, "echo")(b"x" * 100_001)
            assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
            assert len(await unary(channel, "echo")(b"x" * 99_999)) == 99_999
        await port.close(0)

    run(main())


def test_what_a_handler_knows_of_its_client() -> None:
    async def main() -> None:
        async with serving() as it, grpc.aio.insecure_channel(it.address) as channel:
            said = (("x-mq-client-id", "me"), ("x-raw-bin", b"\0\xff"))
            await unary(channel, "echo")(b"", metadata=said, timeout=30)
            [context] = it.handlers.contexts
            assert context.metadata("x-mq-client-id") == "me"
            assert context.metadata("x-none") == ""
            assert set(said) <= set(context.invocation_metadata())
            assert context.peer().startswith("ipv4:127.0.0.1:")
            left_s = context.time_remaining()
            assert left_s is not None
            assert 0 < left_s <= 30
            await unary(channel, "echo")(b"")
            assert it.handlers.contexts[1].time_remaining() is None

    run(main())


@pytest.mark.parametrize("way", ["the call is cancelled", "the connection ends", "the server stops"])
def test_a_handler_that_waits_is_cancelled_when(way: str) -> None:
    async def main() -> None:
        handlers = Handlers()
        port = CallPort(handlers.methods(), Counter(), host="127.0.0.1")
        await port.start()
        channel = grpc.aio.insecure_channel(f"127.0.0.1:{port.port}", LOCAL)
        call = unary(channel, "held")(b"")
        await until_async(lambda: handlers.begun == 1)
        if way == "the call is cancelled":
            call.cancel()
            await until_async(lambda: handlers.cancelled == 1)
            assert await unary(channel, "echo")(b"goes on") == b"goes on"
        elif way == "the connection ends":
            await channel.close()
        await port.close(0)
        await until_async(lambda: handlers.cancelled == 1)
        if way == "the server stops":
            with pytest.raises(grpc.aio.AioRpcError, match="drain time is over") as ended:
                await call
            assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
        await channel.close()
        assert not port.connections

    run(main())


def test_a_stop_waits_for_what_is_under_way() -> None:
    async def main() -> None:
        handlers = Handlers()
        port = CallPort(handlers.methods(), Counter(), host="127.0.0.1")
        await port.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port.port}", LOCAL) as channel:
            stream = channel.stream_stream("/t.T/both")()
            await stream.write(b"first")
            assert await stream.read() == b"first"
            stopping = asyncio.create_task(port.close(60))
            await until_async(lambda: not port._listeners)
            await stream.write(b"second")
            assert await stream.read() == b"second"
            assert not stopping.done()
            await stream.done_writing()
            assert await stream.read() is grpc.aio.EOF
            await stopping

    run(main())


def _tls(mode: str, **more: str) -> ServerTls:
    files = {"certPath": str(CERTS / "server.pem"), "keyPath": str(CERTS / "server.key"), "mode": mode}
    made = server_tls({f"tls.server.{key}": value for key, value in (files | more).items()})
    assert made is not None
    return made


def _credentials(**given: bytes) -> grpc.ChannelCredentials:
    return grpc.ssl_channel_credentials((CERTS / "ca.pem").read_bytes(), **given)


NAMED: Final = (("grpc.ssl_target_name_override", "server"), *LOCAL)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, new_event_loop], ids=["asyncio", "uvloop"])
def test_one_port_takes_tls_and_plain(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """grpcio's client, in a thread, since it brings a loop of its own."""

    def ask(address: str) -> list[bytes]:
        with grpc.insecure_channel(address, LOCAL) as plain, grpc.secure_channel(address, _credentials(), NAMED) as tls:
            return [channel.unary_unary("/t.T/echo")(b"x" * 300_000, timeout=60) for channel in (plain, tls)]

    async def main() -> None:
        async with serving(tls=_tls("permissive")) as it:
            got = await asyncio.get_running_loop().run_in_executor(None, ask, it.address)
            assert got == [b"x" * 300_000] * 2

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(asyncio.wait_for(main(), 120))


def test_where_tls_is_enforced_plain_calls_are_told_so() -> None:
    async def main() -> None:
        async with serving(tls=_tls("enforcing")) as it:
            async with grpc.aio.secure_channel(it.address, _credentials(), NAMED) as channel:
                assert await unary(channel, "echo")(b"x") == b"x"
            _, writer = await asyncio.open_connection(*it.address.split(":"))
            reader = _
            writer.write(PREFACE + frame(4, 0, 0))
            assert b"this port takes TLS only" in await reader.read()
            writer.close()

    run(main())


def test_where_certificates_are_needed_clients_without_one_are_refused() -> None:
    async def main() -> None:
        tls = _tls("enforcing", trustCertPath=str(CERTS / "ca.pem"), **{"need.client.auth": "require"})
        own = {
            "private_key": (CERTS / "client.key").read_bytes(),
            "certificate_chain": (CERTS / "client.pem").read_bytes(),
        }
        async with serving(tls=tls) as it:
            async with grpc.aio.secure_channel(it.address, _credentials(**own), NAMED) as channel:
                assert await unary(channel, "echo")(b"x") == b"x"
            async with grpc.aio.secure_channel(it.address, _credentials(), NAMED) as channel:
                with pytest.raises(grpc.aio.AioRpcError):
                    await unary(channel, "echo")(b"x", timeout=20)

    run(main())


def test_http_1_on_the_port_gets_an_answer() -> None:
    async def main() -> None:
        async with serving() as it:
            reader, writer = await asyncio.open_connection(*it.address.split(":"))
            writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 426 Upgrade Required\r\n")
            writer.close()

    run(main())


def test_a_port_that_is_taken_is_an_error_with_its_number() -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            number = taken.getsockname()[1]
            with pytest.raises(ListenError, match=str(number)):
                await CallPort({}, Counter(), host="127.0.0.1", port=number).start()

    run(main())


# -------------------------------------------------------------------------------------------------- written by hand


class ByHand(Raw):
    def __init__(self, handlers: Handlers, ration: Ration | None = None) -> None:
        self.calls = Calls(handlers.methods(), Counter())
        if ration is not None:
            self.calls.ration = ration
        self.connection = CallConnection(self.calls)
        self.transport = Transport()
        self.connection.connection_made(self.transport)
        self.begin()

    def open(self, name: str, stream_id: int = 1, *, flags: int = 4, **said: str) -> None:
        block = indexed(3) + indexed(6) + literal(":path", f"/t.T/{name}")
        fields = {"content-type": "application/grpc"} | {key.replace("_", "-"): value for key, value in said.items()}
        self.feed(frame(HEADERS, flags, stream_id, block + b"".join(map(literal, fields, fields.values()))))

    def data(self, data: bytes, stream_id: int = 1, *, flags: int = 1) -> None:
        for start in range(0, max(len(data), 1), 16_384):
            part = data[start : start + 16_384]
            self.feed(frame(DATA, flags if start + 16_384 >= len(data) else 0, stream_id, part))

    def status(self, stream_id: int = 1) -> tuple[str, str]:
        """HTTP's and gRPC's of a call that has ended."""
        said: dict[str, str] = {}
        for kind, _, number, payload in self.frames():
            if (kind, number) == (HEADERS, stream_id):
                said |= {field.name: field.value for field in HeaderDecoder().decode(payload)}
        return said[":status"], said["grpc-status"]


def by_hand(work: Callable[[ByHand, Handlers], Coroutine[None, None, None]]) -> None:
    async def main() -> None:
        handlers = Handlers()
        await work(ByHand(handlers), handlers)

    run(main())


def test_a_time_limit_ends_a_call_that_is_under_way_and_cancels_its_handler() -> None:
    async def work(client: ByHand, handlers: Handlers) -> None:
        client.open("held", grpc_timeout="20m")
        client.data(packed(b""))
        client.open("echo", 3, grpc_timeout="10S")
        await until_async(lambda: handlers.cancelled == 1)
        assert client.status() == ("200", "4")
        client.data(packed(b"x"), 3)
        assert client.status(3) == ("200", "0")
        assert not client.calls.waiting

    by_hand(work)


def test_a_request_that_does_not_come_within_its_time_limit_ends_too() -> None:
    async def work(client: ByHand, handlers: Handlers) -> None:
        client.open("echo", grpc_timeout="10m")
        client.data(packed(b"x" * 100)[:50], flags=0)
        await until_async(lambda: not client.connection.streams)
        assert client.status() == ("200", "4")

    by_hand(work)


BAD_REQUESTS: Final = {
    "no message": ({}, b"", ("200", "12")),
    "two messages": ({}, packed(b"a") + packed(b"b"), ("200", "12")),
    "half a message": ({}, packed(b"abc")[:6], ("200", "13")),
    "a prefix that is none": ({}, b"\x07\0\0\0\0", ("200", "13")),
    "compressed without a word": ({}, b"\x01\0\0\0\1x", ("200", "13")),
    "compressed by something else": ({"grpc_encoding": "zstd"}, packed(b"a"), ("200", "12")),
    "no gzip": ({"grpc_encoding": "gzip"}, b"\x01\0\0\0\1x", ("200", "13")),
    "a bomb": (
        {"grpc_encoding": "gzip"},
        b"\x01" + packed(gzip.compress(bytes(20_000_000)))[1:],
        ("200", "8"),
    ),
    "too long a message": ({}, b"\0\xff\xff\xff\xff", ("200", "8")),
    "a time limit that is none": ({"grpc_timeout": "soon"}, packed(b""), ("200", "13")),
    "another content type": ({"content_type": "text/html"}, packed(b""), ("415", "2")),
    "a longer content type": ({"content_type": "application/grpcx"}, packed(b""), ("415", "2")),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_a_bad_request_ends_its_call_only(name: str) -> None:
    said, data, wanted = BAD_REQUESTS[name]

    async def work(client: ByHand, handlers: Handlers) -> None:
        client.open("echo", **said)
        client.data(data)
        assert client.status() == wanted
        client.open("echo", 3, content_type="application/grpc+proto")
        client.data(packed(b"fine"), 3)
        assert client.status(3) == ("200", "0")

    by_hand(work)


def test_a_get_is_told_so() -> None:
    async def work(client: ByHand, handlers: Handlers) -> None:
        client.feed(frame(HEADERS, 5, 1, indexed(2) + indexed(6) + literal(":path", "/t.T/echo")))
        assert client.status() == ("405", "2")

    by_hand(work)


def test_a_plain_call_is_answered_within_the_read_that_brought_it() -> None:
    async def work(client: ByHand, handlers: Handlers) -> None:
        client.open("echo")
        before = client.transport.writes
        client.data(packed(b"hello"))
        assert client.transport.writes == before + 1
        assert [one[:3] for one in client.frames()] == [(HEADERS, 4, 1), (DATA, 0, 1), (HEADERS, 5, 1)]
        assert not client.connection.streams

    by_hand(work)


def test_requests_of_a_stream_that_nobody_reads_are_not_let_in() -> None:
    """Each end of a window is kept: what comes without leave would end the connection."""

    async def work(client: ByHand, handlers: Handlers) -> None:
        client.open("unread")
        left, sent = STREAM_WINDOW, 0
        message = packed(b"x" * 9_995)  # 10,000 bytes
        while left >= len(message):
            client.data(message, flags=0)
            left, sent = left - len(message), sent + 1
            left += sum(int.from_bytes(one[3], "big") for one in client.frames() if one[:3] == (WINDOW_UPDATE, 0, 1))
        assert sent <= 2 * STREAM_WINDOW // len(message), "no more is let in"
        handlers.release.set()
        await until_async(lambda: len(handlers.taken) == sent)
        left += sum(int.from_bytes(one[3], "big") for one in client.frames() if one[:3] == (WINDOW_UPDATE, 0, 1))
        assert left > STREAM_WINDOW // 2, "the window is open again"

    by_hand(work)


def test_a_large_request_waits_for_its_share_of_the_memory() -> None:
    async def main() -> None:
        ration = Ration(0)  # its least, 16 MiB
        client = ByHand(Handlers(), ration)
        size = 12 * 1024 * 1024
        prefix = b"\0" + size.to_bytes(4, "big")

        def granted(stream_id: int) -> int:
            return sum(
                int.from_bytes(one[3], "big")
                for one in client.frames()
                if one[0] == WINDOW_UPDATE and one[2] == stream_id
            )

        client.open("echo")
        client.data(prefix, flags=0)
        assert granted(1) == size - (STREAM_WINDOW - 5)
        client.open("echo", 3)
        client.data(prefix, 3, flags=0)
        assert granted(3) == 0, "the first has it"
        client.feed(frame(RST_STREAM, 0, 1, b"\0\0\0\x08"))
        assert granted(3) == size - (STREAM_WINDOW - 5)
        client.data(b"y" * size, 3)
        assert ration.shared_bytes == ration.loose_bytes == 0
        assert client.calls.served["echo"] == 1

    run(main())


def test_a_broken_stream_ends_a_handler_that_writes(caplog: pytest.LogCaptureFixture) -> None:
    async def work(client: ByHand, handlers: Handlers) -> None:
        client.open("many")
        client.feed(frame(4, 0, 0, b"\0\4\0\0\0\0"))  # it reads nothing
        client.data(packed(b"1000"))
        [call] = client.connection.streams.values()
        assert len(client.calls.waiting) == 1
        client.feed(frame(RST_STREAM, 0, 1, b"\0\0\0\x08"))
        await until_async(lambda: not client.calls.waiting)
        assert isinstance(call, Call)
        with pytest.raises(calls_module.StreamBroken):
            call.write(b"more")
        assert not caplog.messages

    by_hand(work)


def test_a_status_in_place_of_an_answer() -> None:
    async def main() -> None:
        handlers = Handlers()
        client = ByHand(handlers)
        client.calls.methods["/t.T/wrong"].failed = lambda error: CallError(Status.INTERNAL, str(error))
        client.open("wrong")
        client.data(packed(b""))
        assert client.status() == ("200", "13")

    run(main())
