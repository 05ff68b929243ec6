"""A master's HA port on a real loopback socket, and a slave that says and reads exactly what a test wants."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Self

from contrailmq.store import Drive, ManualClock, MessageStore, StoreConfig
from contrailmq.store.replication.serving import Listening, ReplicationServer
from waiting_for import LIMIT_S

FILE_BYTES = 64 * 1024
HEAD = struct.Struct(">qi")


def opened(path: Path, **settings: object) -> MessageStore:
    """A store with small files, driven by a loop (here: by the test)."""
    sizes = {"mapped_file_size_commit_log": FILE_BYTES, "max_hash_slot_num": 100, "max_index_num": 400}
    return MessageStore(StoreConfig(path, **(sizes | settings)), drive=Drive.LOOP).open()


def append(store: MessageStore, body: bytes = b"x" * 100, *, queue_id: int = 0) -> int:
    """One message; where its record ends."""
    result = store.append("T", queue_id, body, b"", tags_code=0, keys=None, unique_key=None)
    assert result.status.is_stored
    return result.physical_offset + result.size_bytes


class Master:
    """The server, its port, and the time that its ticks see."""

    def __init__(self, store: MessageStore, *, refusal: Callable[[str], str], slaves: int) -> None:
        self.store = store
        self.clock = ManualClock()
        self.workers = ThreadPoolExecutor(1)
        self.reports = asyncio.Queue[int]()
        self.refusal = refusal
        self.slaves: list[Slave] = []

        async def admit(host: str) -> str:
            return self.refusal(host)

        self.server = ReplicationServer(
            store,
            admit=admit,
            slaves_at=lambda host: slaves,
            worker=self.workers,
            monotonic_ms=self.clock.monotonic_ms,
            on_report=lambda: self.reports.put_nowait(self.server.acknowledged.furthest),
        )

    async def listen(self) -> None:
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]

        async def listen(factory: Callable[[], asyncio.Protocol]) -> Listening:
            return await asyncio.get_running_loop().create_server(factory, sock=self.socket)

        await self.server.start(listen)

    async def reported(self, offset: int) -> None:
        """Until the furthest slave is there, by its own report."""
        while await asyncio.wait_for(self.reports.get(), LIMIT_S) != offset:
            pass

    def later(self, ms: int) -> None:
        self.clock.advance(ms)
        self.server.tick()

    async def slave(self) -> Slave:
        slave = Slave(*await asyncio.open_connection("127.0.0.1", self.port))
        self.slaves.append(slave)
        return slave


class Slave:
    """One connection to the HA port, by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    def report(self, *offsets: int) -> Self:
        self.writer.write(b"".join(offset.to_bytes(8, "big", signed=True) for offset in offsets))
        return self

    async def block(self) -> tuple[int, bytes]:
        """The next one: offset and body; a heartbeat has none."""
        async with asyncio.timeout(LIMIT_S):
            offset, size = HEAD.unpack(await self.reader.readexactly(HEAD.size))
            return offset, await self.reader.readexactly(size)

    async def log_until(self, begin: int, end: int) -> bytes:
        """All that comes up to an offset, reported block by block, as Apache's slave does."""
        log = bytearray()
        while begin + len(log) < end:
            offset, body = await self.block()
            assert offset == begin + len(log), "a block that does not continue the log"
            log += body
            self.report(offset + len(body))
        return bytes(log)

    async def is_closed(self) -> bool:
        """Once the master has closed the connection; what it sent before is passed over."""
        with contextlib.suppress(ConnectionError):
            async with asyncio.timeout(LIMIT_S):
                while await self.reader.read(65_536):
                    pass
        return True

    def close(self) -> None:
        self.writer.close()


@contextlib.asynccontextmanager
async def serving(
    store: MessageStore, *, refusal: Callable[[str], str] = lambda host: "", slaves: int = 1
) -> AsyncIterator[Master]:
    master = Master(store, refusal=refusal, slaves=slaves)
    await master.listen()
    try:
        yield master
    finally:
        master.server.close()
        for slave in master.slaves:
            slave.close()
            with contextlib.suppress(ConnectionError):
                await slave.writer.wait_closed()
        master.workers.shutdown()
