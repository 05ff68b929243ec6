"""`contrailmq store copy --from HOST:HAPORT DIR`: a copy of a running broker's log, without a stop, over its HA port.

To the broker, ours or RocketMQ's, this is a slave. The directory is a store: a broker opens it (a master that takes its
messages, or a slave that goes on from there), `store verify` checks it, and the same command goes on where it stopped.

What the stream does not say is asked at the broker's ordinary port, which is the one below the HA port: how large its
log files are and where its log begins. The protocol gives an empty slave the last file alone. To get all of a log that
begins at 0, the copy asks for offset 1 and has the byte before it: the highest of the first record's size, which is 0
in every record below 16 MiB. (A record is checked as a whole before it counts.)

A copy that goes on asks for its last record again and compares it: behind another history nothing is written.

`--until OFFSET` is the last place that the copy may reach: it ends with the last record that ends there or before.

SIGINT and SIGTERM end the copy between two portions, and the store is closed as a broker closes its own.

The tables (topics, groups, offsets of consumers) are not in the log. A broker makes topics for the messages that it
finds; groups begin as new ones do.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from contrailmq.message import ContrailError

if TYPE_CHECKING:
    from contrailmq.store import Following, MessageStore, StoreConfig

IDLE_S: Final = 1.0  # without anything new the copy has all there is
CONNECT_S: Final = 10.0
HEARTBEAT_S: Final = 3.0
SILENCE_S: Final = 20.0
READ_BYTES: Final = 1 << 20
ASK_S: Final = 3.0

_SIZES: Final = {
    "mapped_file_size_commit_log": "mappedFileSizeCommitLog",
    "mapped_file_size_consume_queue": "mappedFileSizeConsumeQueue",
    "max_hash_slot_num": "maxHashSlotNum",
    "max_index_num": "maxIndexNum",
}

_Show = Callable[[int, int], None]  # bytes so far, and of how many as far as is known


class CopyError(ContrailError):
    """The copy cannot go on; what was copied stays, and the same command goes on with it."""


class Source:
    """A broker to copy from, and what its ordinary port says of its log."""

    def __init__(self, address: str) -> None:
        self.host, _, port = address.rpartition(":")
        if not self.host or not port.isdigit():
            raise CopyError(f"--from {address}: HOST:HAPORT is needed (the HA port is the listenPort + 1)")
        self.port = int(port)
        self.sizes: dict[str, object] = {}  # of its files, as far as it said
        self.begin = 0
        self.end = -1  # it did not say

    async def ask(self) -> None:
        """Learn what there is to learn; a broker that does not answer there says nothing."""
        from contrailmq.wire.bodies import KVTable, decode_body
        from contrailmq.wire.codes import RequestCode
        from contrailmq.wire.errors import WireError
        from contrailmq.wire.properties import parse_properties
        from contrailmq.wire.transport import RemotingClient

        address, client = f"{self.host}:{self.port - 1}", RemotingClient()
        try:
            answer = await client.invoke(address, RequestCode.GET_BROKER_CONFIG, timeout_s=ASK_S)
            said = parse_properties(bytes(answer.body).decode("utf-8", "replace"))
            self.sizes = {name: int(said[key]) for name, key in _SIZES.items() if key in said}
            answer = await client.invoke(address, RequestCode.GET_BROKER_RUNTIME_INFO, timeout_s=ASK_S)
            figures = decode_body(answer.body, KVTable).table
            self.begin, self.end = max(0, int(figures["commitLogMinOffset"])), int(figures["commitLogMaxOffset"])
        except (WireError, KeyError, ValueError):
            return
        finally:
            await client.close()


class _Stop:
    """What a signal asks for. Owner: the main thread."""

    def __init__(self) -> None:
        self.is_asked = False
        self.link: socket.socket | None = None  # that somebody waits at

    @contextlib.contextmanager
    def on_signals(self) -> Iterator[None]:
        """SIGINT and SIGTERM end the copy inside; a second signal does what it does elsewhere."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        def ask(_number: int, _frame: object) -> None:
            restore()
            self.is_asked = True
            if self.link is not None:
                self.link.shutdown(socket.SHUT_RD)

        for number in before:
            signal.signal(number, ask)
        try:
            yield
        finally:
            restore()


def copy_store(source: Source, config: StoreConfig, *, until: int | None, follows: bool, show: _Show) -> int:
    """Copy until `until`, or until all is there, or (follows) for ever; where the copy ends. StoreLockedError."""
    from contrailmq.store import Drive, MessageStore

    asyncio.run(source.ask())
    is_new = not any((config.path / "commitlog").glob("[0-9]*"))
    given = {name: size for name, size in source.sizes.items() if is_new and not getattr(config, name)}
    config = config.replaced(broker_role="SLAVE", **given)
    stop = _Stop()
    with stop.on_signals(), MessageStore(config, drive=Drive.LOOP) as store:
        _check_place(store, source)
        try:
            _Copy(store, source, until, follows, show, stop).run()
        finally:
            store.flush()
            store.dispatch()
        return store.replica.end


def _check_place(store: MessageStore, source: Source) -> None:
    end = store.replica.end
    if end and source.end >= 0 and not source.begin <= end <= source.end:
        raise CopyError(
            f"the copy ends at offset {end}, the log of {source.host}:{source.port} has {source.begin} to "
            f"{source.end}: copy into an empty directory"
        )


class _Copy:
    """One connection, to its end."""

    def __init__(
        self, store: MessageStore, source: Source, until: int | None, follows: bool, show: _Show, stop: _Stop
    ) -> None:
        self._stop = stop
        self._store = store
        self._source = source
        self._until = until
        self._follows = follows
        self._show = show
        self._began_ms = int(time.time() * 1000)

    def run(self) -> None:
        from contrailmq.store import Following

        source, following = self._source, Following(self._store, until=self._until)
        try:
            link = socket.create_connection((source.host, source.port), CONNECT_S)
        except OSError as exc:
            raise CopyError(
                f"{source.host}:{source.port} cannot be reached: {exc}; is it the HA port (listenPort + 1)?"
            ) from exc
        with link:
            self._stop.link = link
            try:
                self._take(link, following)
            except ConnectionError as exc:
                raise self._ended(str(exc)) from exc
            finally:
                self._stop.link = None
                following.ended()

    def _take(self, link: socket.socket, following: Following) -> None:
        self._store.flush()
        is_empty = self._source.end == 0 and not self._store.replica.end
        hello = following.hello() if is_empty else following.hello_from(self._source.begin)
        link.sendall(hello)
        link.settimeout(IDLE_S)
        heard_s = reported_s = time.monotonic()
        while not (following.is_compared and self._is_done(following)):
            now_s = time.monotonic()
            try:
                data = link.recv(READ_BYTES)
            except TimeoutError:
                data = None
            if self._stop.is_asked:
                return
            if data == b"":
                raise self._ended("the broker closed the connection")
            if data:
                known_end = following.master_end
                following.receive(data)
                if following.is_compared or following.master_end > known_end:
                    heard_s = now_s
                self._store.dispatch()
            elif following.is_compared and self._has_all:
                return
            elif now_s - heard_s > SILENCE_S:
                raise self._fell_silent(following)
            if now_s - reported_s > HEARTBEAT_S:
                # The same again: a later offset would acknowledge messages, and a backup is nobody's slave.
                reported_s = now_s
                link.sendall(hello)
            self._show(self._store.replica.end, max(self._source.end, following.master_end, self._until or 0))

    @property
    def _has_all(self) -> bool:
        """Whether the copy may end when nothing comes."""
        return self._store.replica.end >= self._source.end and self._until is None and not self._follows

    def _is_done(self, following: Following) -> bool:
        """Whether a signal came, all before `until` did, or a record that was stored after the copy began."""
        if self._stop.is_asked:
            return True
        if self._until is not None:
            return max(self._store.replica.end, following.master_end) >= self._until
        return not self._follows and self._store.replica.newest_time_ms > self._began_ms

    def _ended(self, why: str) -> CopyError:
        return CopyError(
            f"the copy stopped at offset {self._store.replica.end}: {why}. Run the same command again to go on. A "
            "broker of ours lets in its own slaves and the addresses in haAllowList"
        )

    def _fell_silent(self, following: Following) -> CopyError:
        if following.is_compared:
            return self._ended(f"nothing came for {SILENCE_S:g} s")
        begin, end = following.uncompared
        return CopyError(
            f"{self._source.host}:{self._source.port} has not sent its log from offset {begin} to {end}, which is the "
            f"last record here, within {SILENCE_S:g} s: it has lost or deleted it, or has another history. Nothing was "
            "written: copy into a new directory, or cut off what it does not have (`contrailmq store truncate DIR --at "
            "OFFSET`)"
        )
