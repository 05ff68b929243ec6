"""The gRPC port: connections plain or with TLS, as `tls.server.mode` says, from their first byte to a stop in order."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Final

from contrailmq.proxy.rpc.calls import CallConnection, Calls, Method
from contrailmq.wire.errors import ListenError
from contrailmq.wire.http2.connection import Connection
from contrailmq.wire.listener import Listener, bind, raise_limit
from contrailmq.wire.tls import ServerTls

__all__ = ["CallPort"]

CANCEL_S: Final = 1.0  # for handlers to give back what they hold, once they are cancelled
PLAIN_REFUSED: Final = "this port takes TLS only (tls.server.mode=enforcing): connect with TLS"


class CallPort:
    """`await start()`, `await close(drain_s)`."""

    def __init__(
        self,
        methods: dict[str, Method],
        served: dict[str, int],
        *,
        host: str,
        port: int = 0,
        tls: ServerTls | None = None,
    ) -> None:
        """`methods` by their paths; `served` counts their calls by their names."""
        self._calls = Calls(methods, served)
        self._host, self._tls = host, tls
        self.port = port
        self._listeners: list[Listener] = []
        self._emptied: asyncio.Event | None = None  # there while it stops
        self.connections: set[Connection] = set()

    async def start(self) -> None:
        """Listen. ListenError when the port cannot be had."""
        raise_limit()
        try:
            sockets = await bind(self._host.strip("[]"), self.port)
        except OSError as exc:
            raise ListenError(f"{self._host}:{self.port}", exc.strerror or str(exc)) from exc
        self.port = int(sockets[0].getsockname()[1])
        if self._tls is not None and self._tls.context is not None:
            self._tls.context.set_alpn_protocols(["h2"])
        self._listeners = [
            Listener(listening, self._connection, self._tls, refusing=self._refusing_connection)
            for listening in sockets
        ]

    async def close(self, drain_s: float) -> None:
        """Take no new calls, answer those that are under way for at most `drain_s`, end the others and close."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + drain_s
        self._emptied = asyncio.Event()
        listeners, self._listeners = self._listeners, []
        await asyncio.gather(*(listener.close(drain_s) for listener in listeners))
        for connection in list(self.connections):
            connection.drain("the server stops")
        await self._wait_for_the_end(end_s - loop.time())
        for connection in list(self.connections):
            if isinstance(connection, CallConnection):
                connection.end_calls("the server stops, and its drain time is over")
        end_s = loop.time() + CANCEL_S
        if self._calls.waiting:
            await _wait(self._calls.all_ended(), CANCEL_S)
        await self._wait_for_the_end(end_s - loop.time())
        for connection in list(self.connections):
            connection.abort("the server stops, and its client leaves what it is sent")

    async def _wait_for_the_end(self, within_s: float) -> None:
        if self._emptied is not None and self.connections:
            await _wait(self._emptied, within_s)

    def _connection(self) -> CallConnection:
        return CallConnection(self._calls, on_open=self._opened)

    def _refusing_connection(self) -> CallConnection:
        return CallConnection(self._calls, on_open=self._opened, refusal=PLAIN_REFUSED)

    def _opened(self, connection: Connection) -> None:
        self.connections.add(connection)
        connection.on_close.append(self._closed)
        if self._emptied is not None:
            asyncio.get_running_loop().call_soon(connection.drain, "the server stops")

    def _closed(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if self._emptied is not None and not self.connections:
            self._emptied.set()


async def _wait(event: asyncio.Event, within_s: float) -> None:
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(event.wait(), max(within_s, 0.0))
