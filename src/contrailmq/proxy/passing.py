"""One remoting client of the proxy, and its own connections to the brokers behind it.

Each client has a connection of its own to each broker that it needs. So brokers see every client as if it had dialled
them: members of groups, check-backs of transactions, locks and notices work as they are, and nothing of them is kept
here. A request goes on as the bytes that came, and so does its answer: of both only the header is read. No numbers are
exchanged for that, since answers find their client by the connection. What a broker asks of its client gets a number of
this connection's, because several brokers may ask under one.

What a client sends stays in its order: while a broker is being dialled, later requests wait behind the earlier.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
import struct
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple, cast

from contrailmq.message import ContrailError
from contrailmq.proxy.brokers import WAYS, Brokers, NotPassed, Way
from contrailmq.wire.codes import ResponseCode
from contrailmq.wire.connection import Connection
from contrailmq.wire.errors import ConnectError, RemoteProtocolError
from contrailmq.wire.frame import FrameParser, encode_response
from contrailmq.wire.header import FLAG_RESPONSE, Command
from contrailmq.wire.transport import split_address

_log = logging.getLogger("contrailmq.proxy")

CONNECT_S: Final = 3.0
ANSWER_S: Final = 120.0  # of a broker; the longest held request takes less
ASKED_S: Final = 15.0  # of a client that a broker asks: admins wait ten
UNSENT_BYTES_MAX: Final = 32 * 1024 * 1024  # to a broker that does not read
WAITING_MAX: Final = 1024  # requests of one client behind a broker that is being dialled
_PREFIX: Final = struct.Struct(">iI")


class _Asked(NamedTuple):
    """A request that went to a broker. Its answer goes to the client, or to who waits for it here."""

    command: Command  # without its body
    deadline_s: float
    future: asyncio.Future[Command] | None


class Upstream(asyncio.Protocol):
    """The connection of one client to one broker."""

    def __init__(self, client: Connection, name: str, address: str) -> None:
        self._client, self.name, self.address = client, name, address
        self._loop = asyncio.get_running_loop()
        self._parser = FrameParser()
        self._transport: asyncio.Transport | None = None
        self._asked: dict[int, _Asked] = {}
        self._resuming: asyncio.Task[None] | None = None
        self._asking: set[asyncio.Task[None]] = set()

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def pass_on(self, command: Command, future: asyncio.Future[Command] | None = None) -> None:
        """Send it as it came; its answer goes back, or to `future`."""
        assert self._transport is not None
        if self._transport.get_write_buffer_size() > UNSENT_BYTES_MAX:
            raise NotPassed(
                ResponseCode.SYSTEM_BUSY, f"broker {self.name} at {self.address} takes no requests now: try again later"
            )
        if not command.is_oneway:
            light = Command(code=command.code, opaque=command.opaque, serialize_type=command.serialize_type)
            self._asked[command.opaque] = _Asked(light, self._loop.time() + ANSWER_S, future)
        self._transport.write(frame_of(command))

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        for task in (*self._asking, *([self._resuming] if self._resuming is not None else [])):
            task.cancel()

    def expire(self, now_s: float) -> None:
        """Answer what the broker has not answered for too long."""
        while self._asked and next(iter(self._asked.values())).deadline_s <= now_s:
            asked = self._asked.pop(next(iter(self._asked)))
            self._fail(asked, f"broker {self.name} at {self.address} has not answered for {ANSWER_S:g} s")

    # --- called by the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if not self._client.is_open:
            self._transport.close()

    def data_received(self, data: bytes) -> None:
        try:
            commands = self._parser.feed(data)
        except RemoteProtocolError as exc:
            _log.warning("broker %s at %s broke the protocol: %s", self.name, self.address, exc)
            self.close()
            return
        for command in commands:
            if not command.flag & FLAG_RESPONSE:
                self._ask(command)
                continue
            asked = self._asked.pop(command.opaque, None)
            if asked is None:
                continue  # late
            if asked.future is None:
                self._client.reply(frame_of(command))
            elif not asked.future.done():
                asked.future.set_result(command)
        if not self._client.is_writable and self._resuming is None and self._transport is not None:
            self._transport.pause_reading()
            self._resuming = self._loop.create_task(self._resume())

    def connection_lost(self, exc: Exception | None) -> None:
        cause = f"broker {self.name} at {self.address} ended the connection before it answered: try again"
        for asked in self._asked.values():
            self._fail(asked, cause)
        self._asked.clear()

    # ---

    async def _resume(self) -> None:
        """The client reads again."""
        try:
            await self._client.writable()
        except ContrailError:
            self.close()
            return
        self._resuming = None
        if self.is_open and self._transport is not None:
            self._transport.resume_reading()

    def _fail(self, asked: _Asked, text: str) -> None:
        if asked.future is None:
            self._client.reply(encode_response(asked.command, ResponseCode.SERVICE_NOT_AVAILABLE, remark=text))
        elif not asked.future.done():
            asked.future.set_exception(NotPassed(ResponseCode.SERVICE_NOT_AVAILABLE, text))

    def _ask(self, command: Command) -> None:
        """What the broker asks of its client. With the broker's name: the client knows one address only."""
        ext = {"bname": self.name} | command.ext
        try:
            if command.is_oneway:
                self._client.oneway(command.code, ext, command.body, command.remark)
                return
            answering = self._client.invoke(command.code, ext, command.body, ASKED_S)
        except ContrailError as exc:
            _log.info("a broker's question did not reach client %s: %s", self._client.address, exc)
            return
        task = self._loop.create_task(self._answer(command, answering))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _answer(self, command: Command, answering: asyncio.Future[Command]) -> None:
        try:
            answer = await answering
        except ContrailError as exc:
            _log.info("client %s did not answer a broker's question: %s", self._client.address, exc)
            return
        if self.is_open and self._transport is not None:
            self._transport.write(encode_response(command, answer.code, answer.ext, answer.body, answer.remark))


class Session:
    """One client."""

    def __init__(self, client: Connection, brokers: Brokers, tls: ssl.SSLContext | None) -> None:
        self._client, self._brokers, self._tls = client, brokers, tls
        self._loop = asyncio.get_running_loop()
        self._upstreams: dict[str, Upstream] = {}
        self._later: deque[Command] = deque()
        self._passing: asyncio.Task[None] | None = None
        self._asking: set[asyncio.Task[None]] = set()

    def take(self, command: Command) -> None:
        """Pass a request on, now or in its turn."""
        if not self._later and WAYS[command.code] is not Way.EACH:
            known = self._brokers.known(command)
            upstream = self._upstreams.get(known[1]) if known is not None else None
            if upstream is not None and upstream.is_open:
                self._try(command, upstream.pass_on)
                return
        if len(self._later) >= WAITING_MAX:
            self._refuse(command, ResponseCode.SYSTEM_BUSY, f"{WAITING_MAX} requests wait for their broker: try later")
            return
        self._later.append(command)
        if self._passing is None:
            self._passing = self._loop.create_task(self._pass_later())

    def expire(self, now_s: float) -> None:
        for upstream in self._upstreams.values():
            upstream.expire(now_s)

    def close(self) -> None:
        """The client is gone: so are its connections."""
        for task in (*self._asking, *([self._passing] if self._passing is not None else [])):
            task.cancel()
        for upstream in self._upstreams.values():
            upstream.close()

    async def _pass_later(self) -> None:
        """In order; a heartbeat's answers are waited for apart, so that it holds up nobody."""
        while self._later:
            command = self._later[0]
            try:
                if WAYS[command.code] is Way.EACH:
                    await self._pass_to_each(command)
                else:
                    (await self._upstream(*await self._brokers.of(command))).pass_on(command)
            except ContrailError as exc:
                self._refuse(command, exc.code if isinstance(exc, NotPassed) else ResponseCode.SYSTEM_ERROR, str(exc))
            self._later.popleft()
        self._passing = None

    async def _pass_to_each(self, command: Command) -> None:
        answers: list[asyncio.Future[Command]] = []
        causes: list[ContrailError] = []
        for name, address in (await self._brokers.masters()).items():
            future: asyncio.Future[Command] = self._loop.create_future()
            try:
                (await self._upstream(name, address)).pass_on(command, future)
                answers.append(future)
            except ContrailError as exc:
                causes.append(exc)
        task = self._loop.create_task(self._answer_of_each(command, answers, causes))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _answer_of_each(
        self, command: Command, answers: list[asyncio.Future[Command]], causes: list[ContrailError]
    ) -> None:
        """A success if any says so: a broker that is away learns of the client later."""
        if command.is_oneway:
            return
        given = await asyncio.gather(*answers, return_exceptions=True)
        said = [answer for answer in given if isinstance(answer, Command)]
        best = min(said, key=lambda answer: answer.code != ResponseCode.SUCCESS, default=None)
        if best is not None:
            self._client.reply(frame_of(best))
            return
        reasons = [str(cause) for cause in (*causes, *given) if isinstance(cause, ContrailError)]
        self._refuse(command, ResponseCode.SYSTEM_ERROR, "; ".join(reasons) or "no broker is there")

    async def _upstream(self, name: str, address: str) -> Upstream:
        upstream = self._upstreams.get(address)
        if upstream is not None and upstream.is_open:
            return upstream
        upstream = Upstream(self._client, name, address)
        host, port = split_address(address)
        try:
            async with asyncio.timeout(CONNECT_S):
                server_hostname = "" if self._tls is not None else None
                await self._loop.create_connection(
                    lambda: upstream, host, port, ssl=self._tls, server_hostname=server_hostname
                )
        except (OSError, TimeoutError) as exc:
            self._brokers.forget()
            reason = str(exc) or f"no connection within {CONNECT_S:g} s"
            raise ConnectError(address, f"{reason} (broker {name})") from exc
        self._upstreams[address] = upstream
        return upstream

    def _try(self, command: Command, act: Callable[[Command], None]) -> None:
        try:
            act(command)
        except NotPassed as exc:
            self._refuse(command, exc.code, str(exc))

    def _refuse(self, command: Command, code: ResponseCode, text: str) -> None:
        if not command.is_oneway:
            self._client.reply(encode_response(command, code, remark=text))


def frame_of(command: Command) -> bytes:
    """The bytes that it came as."""
    header, body = command.raw_header, command.body
    return b"".join(
        (_PREFIX.pack(4 + len(header) + len(body), command.serialize_type << 24 | len(header)), header, body)
    )
