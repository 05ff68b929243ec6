"""The asyncio server and client of the protocol: dialling, TLS, idle and graceful close.

What happens on one connection is `connection.Connection`, accepting is `listener`; here is only what surrounds them.
Works on any asyncio loop; `new_event_loop` gives uvloop where it is installed (2 to 3 times the throughput), asyncio's
own elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

from contrailmq.message.addresses import split_host_port
from contrailmq.wire.codes import ResponseCode
from contrailmq.wire.connection import (
    DEFAULT_LIMITS,
    SERVER_LIMITS,
    Connection,
    Handler,
    Limits,
    as_protocol,
)
from contrailmq.wire.errors import ConnectError, ConnectionClosedError, ListenError, WireError
from contrailmq.wire.frame import encode_response
from contrailmq.wire.header import Command, Fields, to_ext
from contrailmq.wire.joined import join
from contrailmq.wire.listener import OWN_DESCRIPTORS, Listener, bind, raise_limit
from contrailmq.wire.peer_warnings import peer_warnings
from contrailmq.wire.ration import Ration
from contrailmq.wire.tls import ServerTls

__all__ = ["Connection", "Handler", "Limits", "RemotingClient", "RemotingServer", "new_event_loop", "not_supported"]

UNFINISHED_BYTES_MAX: Final = 256 * 1024 * 1024  # of all connections: sixteen frames of the largest size

SignHook = Callable[[int, dict[str, str], bytes], None]
ClientHandler = Callable[[Connection, Command], bytes | Awaitable[bytes | None] | None]


# In the environment of a server that another process runs: its standard input is a pipe that nobody writes to, and that
# ends with its parent, however that ends. A child that is left alone by `kill -9` would keep its port and its store.
ENDS_WITH_STDIN: Final = "_CONTRAILMQ_ENDS_WITH_STDIN"


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's loop when it can be imported (it has no build for Windows), asyncio's otherwise."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def not_supported(request: Command) -> bytes:
    """The answer to a code that nobody serves; Java's text, which tools show to users."""
    code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    return encode_response(request, code, remark=f" request type {request.code} not supported")


def _refuse_plain(connection: Connection, commands: list[Command]) -> None:
    """Say why before closing: a connection that only ends tells nobody what to change."""
    remark = (
        "this port takes TLS only (tls.server.mode=enforcing): connect with TLS, by tls.enable=true of brokers, slaves "
        "and RocketMQ's clients, tls= of Python clients, --tls of contrailmq admin"
    )
    peer_warnings.warn("plain connection refused", f"{connection.address}: {remark}")
    for command in commands:
        if not command.is_oneway:
            connection.reply(encode_response(command, ResponseCode.NO_PERMISSION, remark=remark))
    connection.close("it is plain, and TLS is enforced")


class RemotingServer:
    """Listens on one port and hands every wakeup's requests to `handler(connection, commands)`.

    The handler runs on the loop, must not block, and answers with `connection.reply`, now or later. An exception that
    it lets escape ends that connection and is logged by the loop.
    """

    def __init__(
        self,
        handler: Handler,
        *,
        host: str = "0.0.0.0",
        port: int = 0,
        tls: ServerTls | None = None,
        idle_seconds: float = 120.0,
        limits: Limits = SERVER_LIMITS,
        ration: Ration | None = None,
        reserved_descriptors: int = OWN_DESCRIPTORS,
        on_connect: Callable[[Connection], None] | None = None,
        on_disconnect: Callable[[Connection], None] | None = None,
    ) -> None:
        self._handler, self._host, self._port, self._tls = handler, host, port, tls
        self._idle_s, self._limits, self._reserve = idle_seconds, limits, reserved_descriptors
        self._ration = ration or Ration(UNFINISHED_BYTES_MAX)
        self._on_connect, self._on_disconnect = on_connect, on_disconnect
        self._listeners: list[Listener] = []
        self._sweeper: asyncio.TimerHandle | None = None
        self._emptied: asyncio.Event | None = None  # there while the server stops
        self.connections: set[Connection] = set()

    @property
    def port(self) -> int:
        """The port that is listened on; the real one when 0 was asked for."""
        return self._port

    @property
    def address(self) -> str:
        return f"[{self._host}]:{self._port}" if ":" in self._host else f"{self._host}:{self._port}"

    @property
    def refused(self) -> int:
        """Connections that were closed at once, for lack of descriptors."""
        return sum(listener.refused for listener in self._listeners)

    async def start(self) -> None:
        """Listen. ConnectError when the address cannot be bound."""
        raise_limit()
        try:
            sockets = await bind(self._host, self._port)
        except OSError as exc:
            raise ListenError(self.address, exc.strerror or str(exc)) from exc
        self._port = int(sockets[0].getsockname()[1])
        self._listeners = [
            Listener(listening, self._connection, self._tls, reserve=self._reserve, refusing=self._refusing_connection)
            for listening in sockets
        ]
        self._schedule_sweep(asyncio.get_running_loop())

    async def close(self, drain_seconds: float = 3.0) -> None:
        """Accept nothing new, answer what was accepted for at most `drain_seconds`, then close every connection."""
        loop = asyncio.get_running_loop()
        end_s = loop.time() + drain_seconds
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._emptied = asyncio.Event()
        for connection in list(self.connections):
            connection.drain()
        listeners, self._listeners = self._listeners, []  # a second call has nothing left to do
        await asyncio.gather(*(listener.close(drain_seconds) for listener in listeners))
        if self.connections:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._emptied.wait(), end_s - loop.time())
        for connection in list(self.connections):
            connection.abort("the server stops and its drain time is over")

    def join(self, client: Connection, address: str) -> None:
        """Serve a client of this loop without a socket; `address` is ours, as it knows it."""
        if self._emptied is not None:
            raise ConnectError(address, "the server stops")
        here = split_address(address)
        join(client, self._connection(), client_at=(here[0], 0), server_at=here)

    def close_idle(self, now_s: float) -> int:
        """Close the connections that were silent for the idle time; returns how many."""
        return sum(connection.close_if_idle(now_s, self._idle_s) for connection in list(self.connections))

    def _connection(self) -> Connection:
        return Connection(self._handler, limits=self._limits, ration=self._ration, on_open=self._opened)

    def _refusing_connection(self) -> Connection:
        return Connection(_refuse_plain, limits=self._limits, ration=self._ration, on_open=self._opened)

    def _opened(self, connection: Connection) -> None:
        self.connections.add(connection)
        connection.on_close.append(self._closed)
        if self._on_connect is not None:
            self._on_connect(connection)
        if self._emptied is not None:  # it came when we stopped; what came with its handshake is handed over first
            asyncio.get_running_loop().call_soon(connection.drain)

    def _closed(self, connection: Connection) -> None:
        self.connections.discard(connection)
        if self._on_disconnect is not None:
            self._on_disconnect(connection)
        if self._emptied is not None and not self.connections:
            self._emptied.set()

    def _schedule_sweep(self, loop: asyncio.AbstractEventLoop) -> None:
        def sweep() -> None:
            self.close_idle(loop.time())
            peer_warnings.tell()
            self._schedule_sweep(loop)

        self._sweeper = loop.call_later(self._idle_s / 4, sweep)


class RemotingClient:
    """Connections to many addresses, one each, dialled when first needed and again after they ended.

    `sign` is called with (code, ext, body) before a request is encoded and may add ext fields (see `acl`). Requests
    that a server sends to us go to the functions given to `register`; other codes are answered as not supported.
    `tls_server_name` is the name that certificates are checked against, in place of the address that was dialled.
    `on_connect` gets the address of every connection that was opened.
    """

    def __init__(
        self,
        *,
        tls: ssl.SSLContext | None = None,
        sign: SignHook | None = None,
        tls_server_name: str | None = None,
        connect_timeout_s: float = 3.0,
        limits: Limits = DEFAULT_LIMITS,
        on_connect: Callable[[str], None] | None = None,
    ) -> None:
        self._tls, self._sign, self._connect_timeout_s, self._limits = tls, sign, connect_timeout_s, limits
        self._tls_server_name, self._on_connect = tls_server_name, on_connect
        self._connections: dict[str, Connection] = {}
        self._dialling: dict[str, asyncio.Task[Connection]] = {}
        self._here: dict[str, Callable[[Connection], None]] = {}
        self._handlers: dict[int, ClientHandler] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def invoke(
        self, address: str, code: int, ext: Fields | None = None, body: bytes = b"", timeout_s: float = 3.0
    ) -> Command:
        """The answer to one request, whatever its response code. `timeout_s` covers waiting for the answer."""
        connection = self._connections.get(address)
        if connection is None or not connection.is_open:
            connection = await self.connect(address)
        if not connection.is_writable:
            await connection.writable()
        return await connection.invoke(code, self._signed(code, ext, body), body, timeout_s)

    async def oneway(
        self, address: str, code: int, ext: Fields | None = None, body: bytes = b"", remark: str | None = None
    ) -> None:
        """Send without an answer; returns when the bytes are queued on an open connection."""
        connection = await self.connect(address)
        await connection.writable()
        connection.oneway(code, self._signed(code, ext, body), body, remark)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    @property
    def is_plain(self) -> bool:
        """Neither TLS nor signatures."""
        return self._tls is None and self._sign is None

    def ready(self, address: str) -> Connection | None:
        """The connection to the address when it can be written to now and requests are not signed; never waits.

        For callers who encode frames themselves: see `Connection.invoke_frame`.
        """
        connection = self._connections.get(address)
        if self._sign is not None or connection is None or not connection.is_open or not connection.is_writable:
            return None
        return connection

    def register(self, code: int, handler: ClientHandler) -> None:
        """Serve requests of this code that servers send to us; the handler returns a response frame or None."""
        self._handlers[code] = handler

    async def connect(self, address: str) -> Connection:
        """The open connection to `host:port`; dials when there is none. Callers at the same time share one attempt."""
        connection = self._connections.get(address)
        if connection is not None and connection.is_open:
            return connection
        if self._is_closed:
            raise ConnectionClosedError(address, "this client is closed")
        task = self._dialling.get(address)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._dial(address))
            self._dialling[address] = task
            task.add_done_callback(lambda done: self._dialled(address, done))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            caller = asyncio.current_task()
            if not task.cancelled() or (caller is not None and caller.cancelling()):
                raise  # the caller itself was cancelled
            raise ConnectionClosedError(address, "this client is closed") from None

    def serve_here(self, address: str, join: Callable[[Connection], None]) -> None:
        """That server runs on this loop: `join` (see `RemotingServer.join`) connects to it, in place of a socket."""
        self._here[address] = join

    def disconnect(self, address: str) -> None:
        """Close the connection to one address, if there is one."""
        connection = self._connections.pop(address, None)
        if connection is not None:
            connection.close()

    def close_idle(self, now_s: float, idle_s: float = 120.0) -> int:
        """Close the connections that were silent for `idle_s`; returns how many."""
        return sum(connection.close_if_idle(now_s, idle_s) for connection in list(self._connections.values()))

    async def close(self) -> None:
        """Close every connection; requests that wait end with ConnectionClosedError."""
        self._is_closed = True
        for task in [*self._dialling.values(), *self._tasks]:
            task.cancel()
        closing = [connection for connection in self._connections.values() if connection.is_open]
        if not closing:
            return
        ended = asyncio.Event()
        left = set(closing)

        def gone(connection: Connection) -> None:
            left.discard(connection)
            if not left:
                ended.set()

        for connection in closing:
            connection.on_close.append(gone)
            connection.close("the client was closed")
        await ended.wait()

    def _signed(self, code: int, ext: Fields | None, body: bytes) -> Fields | None:
        if self._sign is None:
            return ext
        fields = to_ext(ext) if ext is not None else {}
        self._sign(code, fields, body)
        return fields

    async def _dial(self, address: str) -> Connection:
        connection = Connection(self._requested, limits=self._limits)
        if (join := self._here.get(address)) is not None:
            join(connection)
        else:
            await self._dial_out(connection, address)
        self._connections[address] = connection
        connection.on_close.append(lambda gone: self._forget(address, gone))
        if self._on_connect is not None:
            self._on_connect(address)
        return connection

    async def _dial_out(self, connection: Connection, address: str) -> None:
        host, port = split_address(address)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_timeout_s):
                await loop.create_connection(
                    as_protocol(lambda: connection),
                    host,
                    port,
                    ssl=self._tls,
                    server_hostname=self._tls_server_name if self._tls is not None else None,
                    ssl_shutdown_timeout=self._limits.stuck_s if self._tls is not None else None,
                )
        except TimeoutError as exc:
            raise ConnectError(address, f"no connection within {self._connect_timeout_s:g} s") from exc
        except (OSError, ssl.SSLError) as exc:
            raise ConnectError(address, dial_failure(exc, is_tls=self._tls is not None)) from exc

    def _dialled(self, address: str, done: asyncio.Task[Connection]) -> None:
        self._dialling.pop(address, None)
        if not done.cancelled():
            done.exception()  # seen: every waiter has it through the shield; none may be left

    def _forget(self, address: str, connection: Connection) -> None:
        if self._connections.get(address) is connection:
            del self._connections[address]

    def _requested(self, connection: Connection, commands: list[Command]) -> None:
        for command in commands:
            handler = self._handlers.get(command.code)
            if handler is None:
                self._answer(connection, command, not_supported(command))
                continue
            try:
                result = handler(connection, command)
            except WireError as exc:
                result = encode_response(command, ResponseCode.SYSTEM_ERROR, remark=str(exc))
            if inspect.isawaitable(result):
                task = asyncio.get_running_loop().create_task(self._answer_later(connection, command, result))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            else:
                self._answer(connection, command, result)

    async def _answer_later(self, connection: Connection, command: Command, result: Awaitable[bytes | None]) -> None:
        try:
            answer = await result
        except WireError as exc:
            answer = encode_response(command, ResponseCode.SYSTEM_ERROR, remark=str(exc))
        self._answer(connection, command, answer)

    def _answer(self, connection: Connection, command: Command, answer: bytes | None) -> None:
        if command.is_oneway:
            return
        if answer is None:
            connection.forget()
        else:
            connection.reply(answer)


_OTHER_NAME: Final = (62, 64)  # X509_V_ERR_HOSTNAME_MISMATCH and that of an IP address


def dial_failure(error: OSError, *, is_tls: bool) -> str:
    """What went wrong with a connection that was to be opened, and for TLS what to look at."""
    cause = error.strerror or str(error) or type(error).__name__
    if isinstance(error, ssl.SSLCertVerificationError) and error.verify_code in _OTHER_NAME:
        wanted = error.verify_message.partition("certificate is not valid for ")[2] or "this address"
        return (
            f"the server is another one, or its certificate is not for {wanted}: connect by a name that is in the "
            "certificate, or give one that is (--tls-server-name, tls_server_name of a client)"
        )
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{cause} ({error.verify_message}): trust the CA of the server's certificate (tls.client.trustCertPath)"
    is_reached = isinstance(error, ssl.SSLError | ConnectionResetError | ConnectionAbortedError)
    if is_tls and is_reached:
        return f"{cause}: no TLS there; does the server have a certificate (tls.server.certPath), or speak plain only?"
    return cause


def split_address(address: str) -> tuple[str, int]:
    """`host:port` or `[v6]:port` in its parts; ConnectError when it is neither."""
    try:
        return split_host_port(address)
    except ValueError as exc:
        raise ConnectError(address, str(exc)) from exc
