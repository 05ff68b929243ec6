"""The HA port of a master: who comes in, and the bytes that go to each slave.

Everything runs on one loop and nothing waits: a slave's socket takes blocks until it is full, and goes on when it has
room again. Bodies are slices of the mapped log, not copies; what is not in memory is read by a worker, one block at a
time, so that a slave far behind keeps nobody from being served. Of one connection at most UNSENT_BYTES and a block are
in memory, however slowly its slave reads.

Time comes with `tick`, ten times a second: heartbeats, silent peers, the bytes of the next second (flow control).
`push` is called when the log has grown.

Who may come in is asked of `admit` (for a broker: the members of its group, broker/cluster/replication.py), before a
byte is read. Whatever a peer does wrong closes its connection; the log has one line a minute for each kind of wrong.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Final, NamedTuple, Protocol, cast

from contrailmq.store.replication.acknowledged import Acknowledged
from contrailmq.store.replication.feed import Feed, LogSource
from contrailmq.store.replication.stream import BLOCK_BYTES_MAX, ReplicationError, encode_head

_log = logging.getLogger(__name__)

CONNECTIONS_MAX: Final = 128  # of slaves, and of whoever knocks
UNSENT_BYTES: Final = BLOCK_BYTES_MAX  # of one connection, before it is sent no more
TURN_BYTES: Final = 1024 * 1024  # to one slave, before others have their turn: a third of a millisecond on a loopback
JOINED_BYTES: Final = 64 * 1024  # up to here a copy costs less than a second call of send
COMPLAINT_MS: Final = 60_000


class Listening(Protocol):
    """What listens, until it is told not to."""

    def close(self) -> None: ...


Listen = Callable[[Callable[[], asyncio.Protocol]], Awaitable[Listening]]  # makes a protocol of each connection
Admit = Callable[[str], Awaitable[str]]  # of a host: why it may not come in, nothing when it may


class SlaveStatus(NamedTuple):
    """One slave, as its master sees it."""

    address: str
    connected_ms: int  # for how long
    acknowledged: int  # where its log ends, by its own report
    silent_ms: int  # since that report
    next_offset: int  # what it is sent next
    lag_bytes: int
    is_in_sync: bool  # closer than haMaxGapNotInSync, and not silent
    bytes_per_second: int


class ReplicationServer:
    """Owner: the broker. Runs on the loop's thread. `on_report` is called after a report, and when a slave is gone."""

    def __init__(
        self,
        source: LogSource,
        *,
        admit: Admit,
        slaves_at: Callable[[str], int],
        worker: Executor,
        monotonic_ms: Callable[[], int],
        on_report: Callable[[], None] = lambda: None,
    ) -> None:
        self.source = source
        self.acknowledged = Acknowledged(slaves_at)
        self.worker = worker
        self.monotonic_ms = monotonic_ms
        self.on_report = on_report
        self._admit = admit
        self._complaints = Complaints(monotonic_ms)
        self._connections: dict[SlaveConnection, None] = {}  # in the order in which they came
        self._entering: set[asyncio.Task[None]] = set()
        self._listening: list[Listening] = []
        self._progress = asyncio.Event()

    # --- life

    async def start(self, listen: Listen) -> None:
        """Listen; called once for each address."""
        self._listening.append(await listen(lambda: SlaveConnection(self)))

    async def drain(self, within_s: float) -> None:
        """Before a stop: give slaves that follow a moment to report all that there is."""
        end = self.source.log_max_offset
        try:
            async with asyncio.timeout(within_s):
                while any(one.feed.is_fed and one.feed.acknowledged < end for one in self._connections):
                    self._progress.clear()
                    self.push()
                    await self._progress.wait()
        except TimeoutError:
            behind = [one.address for one in self._connections if one.feed.acknowledged < end]
            _log.warning("stopping before %s reported the end of the log, offset %d", ", ".join(behind), end)

    def close(self) -> None:
        """Nobody comes in any more, and nobody stays."""
        for listening in self._listening:
            listening.close()
        self._listening.clear()
        for task in self._entering:
            task.cancel()
        for connection in list(self._connections):
            connection.close()

    # --- called by the broker

    @property
    def is_followed(self) -> bool:
        """Whether somebody is connected."""
        return bool(self._connections)

    def push(self) -> None:
        """The log has grown."""
        for connection in list(self._connections):
            connection.push()

    def tick(self) -> None:
        now_ms = self.monotonic_ms()
        for connection in list(self._connections):
            connection.tick(now_ms)
        self._complaints.tell()

    def members_changed(self) -> None:
        """`slaves_at` may say something else now."""
        self.acknowledged.recount()
        self.on_report()

    def hosts(self) -> set[str]:
        """From where slaves are connected."""
        return {connection.host for connection in self._connections if connection.is_admitted}

    def in_sync(self) -> int:
        """How many slaves are closer than haMaxGapNotInSync, and not silent."""
        gap_end = self.source.log_max_offset - self.source.config.ha_max_gap_not_in_sync
        return self.acknowledged.count(max(gap_end + 1, 0))

    def status(self) -> list[SlaveStatus]:
        """Of those that have reported: who never did is no slave yet."""
        now_ms, end = self.monotonic_ms(), self.source.log_max_offset
        return [connection.status(now_ms, end) for connection in self._connections if connection.feed.is_fed]

    # --- called by connections

    def came(self, connection: SlaveConnection) -> None:
        if len(self._connections) >= CONNECTIONS_MAX:
            self.complain("too many connections on the HA port", f"{connection.address}: {CONNECTIONS_MAX} are open")
            connection.close()
            return
        self._connections[connection] = None
        task = asyncio.get_running_loop().create_task(self._enter(connection))
        self._entering.add(task)
        task.add_done_callback(self._entering.discard)

    async def _enter(self, connection: SlaveConnection) -> None:
        try:
            reason = await self._admit(connection.host)
        except BaseException:  # a fault of ours, or a stop: nobody is let in by it
            connection.close()
            raise
        if reason:
            self.complain("a peer was not let in on the HA port", f"{connection.address}: {reason}")
            connection.close()
        else:
            connection.admitted()

    def reported(self, connection: SlaveConnection) -> None:
        self.acknowledged.note(connection, connection.host, connection.feed.acknowledged)
        self._progress.set()
        self.on_report()

    def fell_silent(self, connection: SlaveConnection) -> None:
        if self.acknowledged.drop(connection):
            _log.warning("slave %s has sent no report for a while: it does not count until it does", connection.address)
            self.on_report()

    def left(self, connection: SlaveConnection) -> None:
        self._connections.pop(connection, None)
        self.acknowledged.drop(connection)
        self._progress.set()
        self.on_report()

    def complain(self, what: str, why: str) -> None:
        self._complaints.about(what, why)


class SlaveConnection(asyncio.Protocol):
    """One connection of the HA port. Owner: the server."""

    def __init__(self, server: ReplicationServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._is_full = False  # the socket takes no more
        self._is_pushing = False  # a push is due in a moment, or a worker reads for it
        self._early = b""  # what it sent before it was let in; nothing more is read until then
        self._began_ms = server.monotonic_ms()
        self.feed = Feed(server.source, self._began_ms)
        self.host = ""
        self.address = "a peer"
        self.is_admitted = False

    # --- asyncio

    def connection_made(self, made: asyncio.BaseTransport) -> None:
        transport = self._transport = cast("asyncio.Transport", made)  # uvloop's own class is none of asyncio's
        peer = transport.get_extra_info("peername") or ("", 0)
        self.host = str(peer[0]).removeprefix("::ffff:")
        self.address = f"[{self.host}]:{peer[1]}" if ":" in self.host else f"{self.host}:{peer[1]}"
        transport.set_write_buffer_limits(high=UNSENT_BYTES)
        self._server.came(self)

    def data_received(self, data: bytes) -> None:
        if self._transport is None:
            return
        if not self.is_admitted:
            self._early += data
            self._transport.pause_reading()
            return
        was_fed = self.feed.is_fed
        try:
            has_report = self.feed.take(data, self._server.monotonic_ms())
        except ReplicationError as exc:
            self._fail(exc)
            return
        if has_report:
            self._server.reported(self)
        if has_report and not was_fed:
            _log.info("slave %s follows from offset %d on", self.address, self.feed.next_offset)
            self.push()  # a later report changes nothing about what is due

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self.push()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is not None and self.feed.is_fed:
            _log.info("slave %s is gone: %s", self.address, exc or "it closed the connection")
        self._transport = None
        self._server.left(self)

    # --- the server's

    def admitted(self) -> None:
        if self._transport is not None:
            self.is_admitted = True
            early, self._early = self._early, b""
            if early:
                self._transport.resume_reading()
                self.data_received(early)

    def tick(self, now_ms: int) -> None:
        try:
            self.feed.check_heard(now_ms)
        except ReplicationError as exc:
            self._fail(exc)
            return
        if self.feed.is_silent(now_ms):
            self._server.fell_silent(self)
        self.feed.look_at_the_clock(now_ms)
        self.push()
        if self._transport is not None and not self._is_full and self.feed.is_heartbeat_due(now_ms):
            self._transport.write(encode_head(self.feed.next_offset, 0))
            self.feed.sent(0, now_ms)

    def push(self) -> None:
        """Send what is due and fits."""
        if self._is_pushing or self._is_full or self._transport is None:
            return
        try:
            self._send_turn()
        except ReplicationError as exc:
            self._fail(exc)

    def close(self) -> None:
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()

    def status(self, now_ms: int, end: int) -> SlaveStatus:
        feed = self.feed
        lag_bytes = end - feed.acknowledged
        is_near = lag_bytes < self._server.source.config.ha_max_gap_not_in_sync
        return SlaveStatus(
            self.address,
            now_ms - self._began_ms,
            feed.acknowledged,
            now_ms - feed.heard_ms,
            feed.next_offset,
            lag_bytes,
            is_near and not feed.is_silent(now_ms),
            feed.bytes_per_second,
        )

    # --- sending

    def _send_turn(self) -> None:
        source, feed = self._server.source, self.feed
        left = TURN_BYTES
        while not self._is_full and (size := feed.size_due(self._server.monotonic_ms())):
            if left <= 0:
                self._is_pushing = True
                asyncio.get_running_loop().call_soon(self._next_turn)
                return
            if not source.is_resident(feed.next_offset):
                self._is_pushing = True
                reading = asyncio.get_running_loop().run_in_executor(
                    self._server.worker, source.read_cold, feed.next_offset, size
                )
                reading.add_done_callback(self._was_read)
                return
            self._send(source.read_log(feed.next_offset, size))
            left -= size

    def _next_turn(self) -> None:
        self._is_pushing = False
        self.push()

    def _was_read(self, reading: asyncio.Future[memoryview | None]) -> None:
        """The worker has the block; or the store is closed, or its disk failed."""
        self._is_pushing = False
        if self._transport is None or reading.cancelled():
            return
        try:
            self._send(reading.result())
        except Exception as exc:  # noqa: BLE001  whatever the store raises: this slave cannot be fed, others may be
            self._fail(exc)
            return
        self.push()

    def _send(self, body: memoryview | None) -> None:
        transport, feed = self._transport, self.feed
        assert transport is not None
        if not body:
            raise ReplicationError(
                f"it needs the log from offset {feed.next_offset} on, which cannot be read here: ours has "
                f"{self._server.source.log_min_offset} to {self._server.source.log_max_offset}"
            )
        head = encode_head(feed.next_offset, len(body))
        if len(body) <= JOINED_BYTES:
            transport.write(head + body)
        else:
            transport.writelines((head, body))  # one call of the kernel's, and one wakeup of the slave
        feed.sent(len(body), self._server.monotonic_ms())

    def _fail(self, error: Exception) -> None:
        if self._transport is not None:
            self._server.complain("a connection of the HA port was closed", f"{self.address}: {error}")
            self.close()


class Complaints:
    """What peers do wrong: one line a minute for each kind, with how many more there were. Owner: the server."""

    def __init__(self, monotonic_ms: Callable[[], int]) -> None:
        self._monotonic_ms = monotonic_ms
        self._told: dict[str, tuple[int, int]] = {}  # what -> (when, how many since)

    def about(self, what: str, why: str) -> None:
        """`what` is one of our own few texts."""
        now_ms = self._monotonic_ms()
        told_ms, count = self._told.get(what, (now_ms - COMPLAINT_MS, 0))
        if now_ms - told_ms < COMPLAINT_MS:
            self._told[what] = (told_ms, count + 1)
            return
        more = f" ({count} more since the last such line)" if count else ""
        _log.warning("%s: %s%s", what, why, more)
        self._told[what] = (now_ms, 0)

    def tell(self) -> None:
        """Say how many were left out, once their minute is over."""
        now_ms = self._monotonic_ms()
        for what, (told_ms, count) in list(self._told.items()):
            if now_ms - told_ms >= COMPLAINT_MS:
                if count:
                    _log.warning("%s: %d times more in the last minute", what, count)
                del self._told[what]
