"""A slave's connection: all bytes come, in order, however slowly they are taken; an end and a loss are told apart."""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from collections.abc import Awaitable, Callable

import pytest
import uvloop

from contrailmq.broker.cluster.master_link import BUFFER_BYTES, MasterLink, open_link

LOOPS = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])
Run = Callable[[Awaitable[None]], None]
Master = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def linked(master: Master, slave: Callable[[MasterLink], Awaitable[None]]) -> None:
    """A connection between the two, to its end."""
    over = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await master(reader, writer)
        finally:
            writer.close()
            over.set_result(None)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        link = await open_link("127.0.0.1", server.sockets[0].getsockname()[1])
        try:
            await slave(link)
        finally:
            link.close()
        await over


@LOOPS
def test_every_byte_comes_once_and_in_order_to_a_slow_reader(run: Run) -> None:
    """More than the buffer and the sockets hold, in pieces of all sizes."""
    sent = random.Random(3).randbytes(9 * BUFFER_BYTES + 12_345)

    async def master(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        rng, at = random.Random(4), 0
        while at < len(sent):
            size = rng.choice([1, 12, 4000, BUFFER_BYTES, 3 * BUFFER_BYTES])
            writer.write(sent[at : at + size])
            await writer.drain()
            at += size

    async def slave(link: MasterLink) -> None:
        got = bytearray()
        while data := await link.read():
            assert len(data) <= BUFFER_BYTES
            got += data
            for _ in range(len(got) % 5):
                await asyncio.sleep(0)
        assert bytes(got) == sent

    run(linked(master, slave))


@LOOPS
def test_reports_arrive_and_a_read_that_was_given_up_takes_nothing(run: Run) -> None:
    async def master(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(8) == b"report 1"
        writer.write(b"block")
        assert await reader.read() == b""

    async def slave(link: MasterLink) -> None:
        waiting = asyncio.ensure_future(link.read())
        await asyncio.sleep(0)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        link.write(b"report 1")
        assert bytes(await link.read()) == b"block"

    run(linked(master, slave))


@LOOPS
def test_a_lost_connection_is_an_error_and_a_closed_one_an_end(run: Run) -> None:
    async def resets(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    async def is_lost(link: MasterLink) -> None:
        link.write(b"x")
        with pytest.raises(ConnectionResetError):
            await link.read()

    async def closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.write(b"the last bytes")

    async def is_over(link: MasterLink) -> None:
        link.write(b"x")
        got = b""
        while data := await link.read():
            got += bytes(data)
        assert got == b"the last bytes"
        assert not await link.read()

    run(linked(resets, is_lost))
    run(linked(closes, is_over))
