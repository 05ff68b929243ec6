"""A scripted NameServer and brokers, for the rules that a healthy cluster never shows."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Self

from contrailmq.wire.bodies import BrokerData, QueueData, TopicRouteData, encode_route
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.connection import Connection
from contrailmq.wire.frame import encode_response
from contrailmq.wire.header import Command
from contrailmq.wire.tls import ServerTls
from contrailmq.wire.transport import RemotingServer
from free_ports import free_port

Script = Callable[[Command], bytes | None]  # None: no answer


def stored(request: Command, code: int = 0) -> bytes:
    """A broker's acknowledgement."""
    ext = {"msgId": "7F00000100002A9F0000000000000064", "queueId": request.ext["e"], "queueOffset": "5"}
    return encode_response(request, code, ext)


def refused(code: int, remark: str = "scripted") -> Script:
    return lambda request: encode_response(request, code, remark=remark)


class FakePeer:
    """One server that answers by script and remembers what it was asked."""

    def __init__(self, script: Script, *, tls: ServerTls | None = None, port: int = 0) -> None:
        self.script = script
        self.requests: list[Command] = []
        self._arrivals: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)
        self._left = asyncio.Event()
        self._server = RemotingServer(
            self._serve, host="127.0.0.1", port=port, tls=tls, on_disconnect=lambda _connection: self._left.set()
        )

    async def __aenter__(self) -> Self:
        await self._server.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.close(drain_seconds=0.0)

    @property
    def address(self) -> str:
        return self._server.address

    def asked(self, code: RequestCode) -> list[Command]:
        return [request for request in self.requests if request.code == code]

    async def wait_for(self, code: RequestCode) -> None:
        """Until it was asked, since the start or since `hang_up`."""
        await self._arrivals[code].wait()

    async def wait_for_any(self, *codes: RequestCode) -> None:
        waiting = [asyncio.ensure_future(self.wait_for(code)) for code in codes]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()

    def tell(self, code: RequestCode, ext: dict[str, str], body: bytes = b"") -> None:
        """A request of its own that wants no answer, to every client."""
        for connection in self._server.connections:
            connection.oneway(code, ext, body)

    async def ask(self, code: RequestCode, ext: dict[str, str], body: bytes = b"") -> Command:
        """A request of its own, to the one client there is."""
        (connection,) = self._server.connections
        return await connection.invoke(code, ext, body)

    def hang_up(self) -> None:
        """End every connection, as a restart does, and forget who asked what before."""
        for connection in list(self._server.connections):
            connection.abort("scripted")
        self._arrivals.clear()

    async def closed(self) -> None:
        """Until no connection is left; for right after `hang_up`."""
        while self._server.connections:
            self._left.clear()
            await self._left.wait()

    def _serve(self, connection: Connection, commands: list[Command]) -> None:
        for command in commands:
            self.requests.append(command)
            self._arrivals[command.code].set()
            answer = self._usual(command) if command.code in _USUAL else self.script(command)
            if answer is not None and not command.is_oneway:
                connection.reply(answer)
            elif not command.is_oneway:
                connection.forget()

    def _usual(self, command: Command) -> bytes:
        return encode_response(command)


_USUAL = (RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT)


def name_server(
    route: Callable[[str], TopicRouteData | None], *, tls: ServerTls | None = None, port: int = 0
) -> FakePeer:
    """Answers route requests; None is "no such topic"."""

    def script(request: Command) -> bytes:
        found = route(request.ext["topic"])
        if found is None:
            return encode_response(request, 17, remark="no route")
        return encode_response(request, body=encode_route(found, is_standard=True))

    return FakePeer(script, tls=tls, port=port)


def route_to(*brokers: tuple[str, str], queues: int = 1) -> TopicRouteData:
    """(name, address of the master) pairs."""
    return TopicRouteData(
        broker_datas=[
            BrokerData(broker_name=name, broker_addrs={0: address}, cluster="c") for name, address in brokers
        ],
        queue_datas=[
            QueueData(broker_name=name, read_queue_nums=queues, write_queue_nums=queues) for name, _ in brokers
        ],
    )


def nothing_listens() -> str:
    """An address that refuses connections."""
    return f"127.0.0.1:{free_port()}"
