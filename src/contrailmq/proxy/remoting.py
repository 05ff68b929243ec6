"""Remoting clients through the proxy: one address in front of a cluster (`remotingListenPort`).

Clients take it for NameServer and broker. Routes are the cluster's, with this port in place of the brokers' addresses;
requests go on to the broker that is meant (`brokers`), over connections of that client (`passing`). Requests of
administrators are refused: they are for one broker each, and have nothing to name it by.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Coroutine
from typing import Final

from contrailmq.client.transport.instance import ClientInstance
from contrailmq.message import ContrailError
from contrailmq.proxy.asking import ASKED, Asking
from contrailmq.proxy.brokers import WAYS, Brokers
from contrailmq.proxy.passing import Session
from contrailmq.wire.bodies import ClusterInfo, TopicRouteData, decode_body, encode_body
from contrailmq.wire.codes import RequestCode, ResponseCode, request_name
from contrailmq.wire.connection import Connection
from contrailmq.wire.frame import encode_response
from contrailmq.wire.header import Command
from contrailmq.wire.tls import ServerTls
from contrailmq.wire.transport import RemotingServer

_log = logging.getLogger("contrailmq.proxy")

LOOK_S: Final = 10.0  # how often answers that never came are looked for
ROUTES: Final = (RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO)
_SESSION: Final = "session"


class RemotingProxy:
    """`await start()`, `await close()`."""

    def __init__(
        self,
        instance: ClientInstance,
        *,
        asking: Asking,
        host: str,
        port: int,
        advertised: str = "",
        tls: ServerTls | None = None,
        client_tls: ssl.SSLContext | None = None,
    ) -> None:
        """`advertised` is the host:port that routes lead to; without it, the address that the client came to."""
        self._instance, self._advertised, self._client_tls = instance, advertised, client_tls
        self._asking = asking
        self._brokers = Brokers(instance)
        self._server = RemotingServer(self._handle, host=host, port=port, tls=tls, on_disconnect=_gone)
        self._tasks: set[asyncio.Task[None]] = set()
        self.passed = 0  # requests

    async def start(self) -> None:
        """Listen. ListenError when the port cannot be had."""
        await self._server.start()
        self._spawn(self._look())

    async def close(self, drain_s: float) -> None:
        await self._server.close(drain_s)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    @property
    def address(self) -> str:
        return self._server.address

    @property
    def connections(self) -> int:
        return len(self._server.connections)

    def _handle(self, connection: Connection, commands: list[Command]) -> None:
        session = connection.attributes.get(_SESSION)
        if not isinstance(session, Session):
            session = connection.attributes[_SESSION] = Session(connection, self._brokers, self._client_tls)
        for command in commands:
            if command.code in WAYS:
                self.passed += 1
                session.take(command)
            elif command.code in ASKED:
                self._spawn(self._asking.answer(connection, command))
            elif command.code in ROUTES:
                self._spawn(self._route(connection, command))
            elif not command.is_oneway:
                text = (
                    f"the proxy does not pass {request_name(command.code)} on: it serves producers and consumers; ask "
                    "the NameServer or the broker itself"
                )
                connection.reply(encode_response(command, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=text))

    async def _route(self, connection: Connection, command: Command) -> None:
        """The NameServer's answer, with our address for every broker."""
        try:
            timeout_s = self._instance.options.request_timeout_s
            ext = command.ext | {"acceptStandardJsonOnly": "true"}
            answer = await self._instance.name_servers.invoke(RequestCode(command.code), ext, timeout_s=timeout_s)
            if answer.code != ResponseCode.SUCCESS:
                connection.reply(encode_response(command, answer.code, answer.ext, answer.body, answer.remark))
                return
            here = self._advertised or connection.own_address
            connection.reply(encode_response(command, 0, answer.ext, _leading_here(command.code, answer.body, here)))
        except ContrailError as exc:
            connection.reply(encode_response(command, ResponseCode.SYSTEM_ERROR, remark=str(exc)))

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(LOOK_S)
            now_s = asyncio.get_running_loop().time()
            for connection in list(self._server.connections):
                session = connection.attributes.get(_SESSION)
                if isinstance(session, Session):
                    session.expire(now_s)

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _gone(connection: Connection) -> None:
    session = connection.attributes.get(_SESSION)
    if isinstance(session, Session):
        session.close()


def _leading_here(code: int, body: bytes, here: str) -> bytes:
    if code == RequestCode.GET_BROKER_CLUSTER_INFO:
        cluster = decode_body(body, ClusterInfo)
        for data in cluster.broker_addr_table.values():
            data.broker_addrs = {0: here}
        return encode_body(cluster)
    route = decode_body(body, TopicRouteData)
    for data in route.broker_datas:
        data.broker_addrs = {0: here}
    return encode_body(route)
