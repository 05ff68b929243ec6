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

A copy that cannot begin or must not go on is a CopyError (exit code 2), one whose broker went away an InterruptedCopy
(exit code 1). The HA protocol has no words for a refusal: the broker hangs up. Who was dialled is asked afterwards, at
the port below and at the port itself. (Not before: to an HA port a request is a slave with an impossible log.)

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
from contrailmq.message.addresses import check_dialled, split_host_port

if TYPE_CHECKING:
    from contrailmq.store import Following, MessageStore, StoreConfig
    from contrailmq.wire.transport import RemotingClient

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
    """The copy cannot begin, or must not go on; what was copied before stays."""


class InterruptedCopy(CopyError):
    """The broker went away. All that came whole is kept, and the same command goes on with it."""


class Source:
    """A broker to copy from, and what its ordinary port says of its log."""

    def __init__(self, address: str) -> None:
        try:
            check_dialled(address)
            self.host, self.port = split_host_port(address)
        except ValueError as exc:
            raise CopyError(
                f"--from {address}: HOST:HAPORT is needed (the HA port is the listenPort + 1): {exc}"
            ) from None
        self.sizes: dict[str, object] = {}  # of its files, as far as it said
        self.begin = 0
        self.end = -1  # it did not say
        self._settings: dict[str, str] = {}
        self._figures: dict[str, str] = {}

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    async def ask(self) -> None:
        """Learn what there is to learn; a broker that does not answer there says nothing."""
        from contrailmq.wire.bodies import KVTable, decode_body
        from contrailmq.wire.codes import RequestCode
        from contrailmq.wire.errors import WireError
        from contrailmq.wire.transport import RemotingClient

        address, client = f"{self.host}:{self.port - 1}", RemotingClient()
        try:
            self._settings = said = await _settings_of(client, address)
            self.sizes = {name: int(said[key]) for name, key in _SIZES.items() if key in said}
            answer = await client.invoke(address, RequestCode.GET_BROKER_RUNTIME_INFO, timeout_s=ASK_S)
            self._figures = figures = decode_body(answer.body, KVTable).table
            self.begin, self.end = max(0, int(figures["commitLogMinOffset"])), int(figures["commitLogMaxOffset"])
        except (WireError, KeyError, ValueError):
            return
        finally:
            await client.close()

    def why_nothing_came(self, happened: str, *, here: str, begin: int) -> str:
        """Who was dialled, as far as it can be found out, and what to do. A copy at address `here` asked for the log
        from offset `begin` on, and this happened."""
        if self._settings.get("haListenPort") == str(self.port):
            if self._settings.get("brokerRole") == "SLAVE":
                master = self._figures.get("haMasterAddress")
                remedy = f"copy from its master, --from {master}" if master else "give the HA port of its master"
                return f"{self} is the HA port of a slave, and a slave of ours feeds nobody: {remedy}"
        elif other := self.other_server():
            return other
        lacks = f", or its log does not have offset {begin}, where the copy goes on" if begin else ""
        return (
            f"{self} {happened}: is it the HA port of a master (listenPort + 1)? A broker of ours feeds its own slaves "
            f"and the addresses in its haAllowList: name {here} there{lacks}. The broker's log says why"
        )

    def is_listening(self) -> bool:
        """Whether somebody still is."""
        try:
            socket.create_connection((self.host, self.port), CONNECT_S).close()
        except OSError:
            return False
        return True

    def other_server(self) -> str:
        """What listens instead of an HA port, if that answers requests."""
        return asyncio.run(self._other_server())

    async def _other_server(self) -> str:
        from contrailmq.wire.errors import WireError
        from contrailmq.wire.transport import RemotingClient

        client = RemotingClient()
        try:
            said = await _settings_of(client, str(self))
        except WireError:
            return ""
        finally:
            await client.close()
        if "brokerName" not in said:
            return f"{self} answers requests, but is no broker: give a broker's HA port (its listenPort + 1)"
        ha_port = said.get("haListenPort", "0")
        remedy = f"--from {self.host}:{ha_port}" if ha_port != "0" else "its haListenPort says which"
        name = said["brokerName"]
        return f"{self} is the ordinary port of broker {name}, and the log comes from its HA port: {remedy}"


async def _settings_of(client: RemotingClient, address: str) -> dict[str, str]:
    """What a broker is set to; empty when it does not say. WireError: nobody answers there."""
    from contrailmq.wire.codes import RequestCode
    from contrailmq.wire.properties import SettingsError, parse_properties

    answer = await client.invoke(address, RequestCode.GET_BROKER_CONFIG, timeout_s=ASK_S)
    try:
        return parse_properties(bytes(answer.body).decode("utf-8", "replace"))
    except SettingsError:
        return {}


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
        _check_place(store, source, until)
        try:
            _Copy(store, source, until, follows, show, stop).run()
        finally:
            store.flush()
            store.dispatch()
        return store.replica.end


def _check_place(store: MessageStore, source: Source, until: int | None) -> None:
    end = store.replica.end
    if end and until is not None and until < end:
        raise CopyError(
            f"the copy ends at offset {end} already, behind --until {until}: nothing was copied. Give {end} or more, "
            f"or cut the copy first (`contrailmq store truncate {store.config.path} --at OFFSET`)"
        )
    if end and source.end >= 0 and not source.begin <= end <= source.end:
        raise CopyError(
            f"the copy ends at offset {end}, the log of {source} has {source.begin} to {source.end}: copy into an "
            "empty directory"
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
            raise CopyError(f"{source} cannot be reached: {exc}; is it the HA port (listenPort + 1)?") from exc
        with link:
            self._stop.link = link
            here = str(link.getsockname()[0])
            try:
                self._take(link, following)
            except ConnectionError as exc:
                raise self._hung_up(following, here) from exc
            except TimeoutError as exc:
                raise self._fell_silent(following, here) from exc
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
                raise ConnectionError
            if data:
                known_end = following.master_end
                following.receive(data)
                if following.is_compared or following.master_end > known_end:
                    heard_s = now_s
                self._store.dispatch()
            elif following.is_compared and self._has_all(following):
                return
            elif now_s - heard_s > SILENCE_S:
                raise TimeoutError
            if now_s - reported_s > HEARTBEAT_S:
                # The same again: a later offset would acknowledge messages, and a backup is nobody's slave.
                reported_s = now_s
                link.sendall(hello)
            self._show(self._store.replica.end, max(self._source.end, following.master_end, self._until or 0))

    def _has_all(self, following: Following) -> bool:
        """Whether the copy may end when nothing comes. Where nothing ever came, the ordinary port must have said so."""
        is_known = self._source.end >= 0 or following.received_bytes > 0
        has_all = is_known and self._store.replica.end >= self._source.end
        return has_all and self._until is None and not self._follows

    def _is_done(self, following: Following) -> bool:
        """Whether a signal came, all before `until` did, or a record that was stored after the copy began."""
        if self._stop.is_asked:
            return True
        if self._until is not None:
            return max(self._store.replica.end, following.master_end) >= self._until
        return not self._follows and self._store.replica.newest_time_ms > self._began_ms

    def _hung_up(self, following: Following, here: str) -> CopyError:
        if not following.received_bytes:
            return self._nothing_came("closed the connection before it sent anything", here)
        if self._source.is_listening():
            return self._interrupted(f"{self._source} closed the connection, and its log says why", " to go on")
        return self._interrupted(f"the broker at {self._source} has stopped", ", once it is back, to go on")

    def _fell_silent(self, following: Following, here: str) -> CopyError:
        if not following.received_bytes:
            if not self._store.replica.end:
                return self._nothing_came(f"sent nothing for {SILENCE_S:g} s", here)
            if other := self._source.other_server():
                return CopyError(other)
        if following.is_compared:
            return self._interrupted(f"nothing came from {self._source} for {SILENCE_S:g} s", " to go on")
        begin, end = following.uncompared
        return CopyError(
            f"{self._source} has not sent its log from offset {begin} to {end}, which is the last record here, within "
            f"{SILENCE_S:g} s: it has lost or deleted it, or has another history. Nothing was written: copy into a new "
            "directory, or cut off what it does not have (`contrailmq store truncate DIR --at OFFSET`)"
        )

    def _nothing_came(self, happened: str, here: str) -> CopyError:
        return CopyError(self._source.why_nothing_came(happened, here=here, begin=self._store.replica.end))

    def _interrupted(self, why: str, remedy: str) -> InterruptedCopy:
        end = self._store.replica.end
        return InterruptedCopy(f"the copy stopped at offset {end}: {why}. Run the same command again{remedy}")
