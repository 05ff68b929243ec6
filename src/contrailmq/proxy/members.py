"""gRPC consumers as members of their groups, at the broker in whose process the proxy runs.

That is what RocketMQ's proxy does in local mode, where both share one ConsumerManager; brokers that a proxy stands in
front of do not learn of its consumers, here as there. A broker knows one client a connection, so each consumer has one
of its own in memory (`wire/joined.py`), which speaks in its name:

    34  HEART_BEAT                    every BEAT_S, and soon after new settings
    307, 309                          asked of the client (`asking`)
    40  NOTIFY_CONSUMER_IDS_CHANGED   nothing is done: POP has no queues to share out
    220 RESET_CONSUMER_CLIENT_OFFSET  a warning: who pops has no offset to move, and by default brokers reset themselves
    others                            not supported

When a consumer is gone its connection is closed, which takes the member away. Calls of clients never wait for this, nor
fail by it. What changes within GATHER_S goes to the broker at once: each change of a group is told to all its members,
so a restart of many consumers must be one change or few.

A member takes about 10 kB (2,000 that are idle). A heartbeat costs the loop some 0.14 ms every BEAT_S.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from contrailmq.client.transport.waiting import set_within
from contrailmq.message import ContrailError
from contrailmq.proxy.asking import ASKED, Asking
from contrailmq.proxy.clients import Client, Clients
from contrailmq.proxy.cluster import Cluster
from contrailmq.proxy.describing import Speaker, consumer_data, speaker
from contrailmq.wire.bodies import ConsumerData, HeartbeatData, encode_body
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.connection import Connection
from contrailmq.wire.errors import ResponseError
from contrailmq.wire.frame import encode_request
from contrailmq.wire.header import Command
from contrailmq.wire.peer_warnings import peer_warnings
from contrailmq.wire.transport import not_supported

_log = logging.getLogger("contrailmq.proxy")

BEAT_S: Final = 30.0  # as remoting clients; brokers drop who is silent for 120 s
LOOK_S: Final = 1.0  # how often members are looked for whose heartbeat is due, or whose connection has ended
GATHER_S: Final = 0.05
REQUEST_S: Final = 3.0
TOGETHER: Final = 50  # heartbeats under way: 10 ms of the broker's work, then others have their turn


@dataclass(slots=True)
class _Member:
    client_id: str
    speaker: Speaker
    data: ConsumerData
    version_ms: int  # of its subscriptions: since when it wants what it wants
    due_s: float = 0.0
    connection: Connection | None = None
    has_failed: bool = False  # its last heartbeat

    @property
    def is_connected(self) -> bool:
        return self.connection is not None and self.connection.is_open


class Members:
    """`start()`, `close()`. Owner of the connections; used on one loop."""

    def __init__(
        self, clients: Clients, cluster: Cluster, asking: Asking, address: str, join: Callable[[Connection], None]
    ) -> None:
        """`join` connects to the broker of this process, which has that address."""
        self._cluster, self._asking, self._address, self._join = cluster, asking, address, join
        self._loop = asyncio.get_running_loop()
        self._members: dict[str, _Member] = {}
        self._left: list[Connection] = []  # to be closed
        self._changed = asyncio.Event()
        self._work: asyncio.Task[None] | None = None
        clients.on_settled, clients.on_gone = self.settled, self.gone

    def __len__(self) -> int:
        return len(self._members)

    def start(self) -> None:
        self._work = self._cluster.instance.spawn(self._run(), "members")

    def close(self) -> None:
        """The broker sees all members leave."""
        if self._work is not None:
            self._work.cancel()
        for client_id in list(self._members):
            self.gone(client_id)
        self._let_go()

    def settled(self, client: Client) -> None:
        """A client has said its settings, new or again."""
        settings = client.settings
        if settings.WhichOneof("pub_sub") != "subscription" or not settings.subscription.group.name:
            self.gone(client.id)
            return
        known, who = self._members.get(client.id), speaker(settings)
        now_ms = time.time_ns() // 1_000_000
        if known is None:
            self._members[client.id] = _Member(client.id, who, consumer_data(settings, version_ms=now_ms), now_ms)
            self._changed.set()
            return
        if (known.speaker, known.data) == (who, consumer_data(settings, version_ms=known.version_ms)):
            return
        was_of = known.data.group_name
        known.version_ms = max(now_ms, known.version_ms + 1)
        known.speaker, known.data, known.due_s = who, consumer_data(settings, version_ms=known.version_ms), 0.0
        if known.data.group_name != was_of:
            self._hang_up(known)
        self._changed.set()

    def gone(self, client_id: str) -> None:
        member = self._members.pop(client_id, None)
        if member is not None:
            self._hang_up(member)
            self._changed.set()

    def _hang_up(self, member: _Member) -> None:
        if member.connection is not None:
            self._left.append(member.connection)
            member.connection = None

    def _let_go(self) -> None:
        left, self._left = self._left, []
        for connection in left:
            connection.close("its consumer has left")

    async def _run(self) -> None:
        while True:
            if await set_within(self._changed, LOOK_S):
                await asyncio.sleep(GATHER_S)
            self._changed.clear()
            self._let_go()
            await self._beat()

    async def _beat(self) -> None:
        now_s = self._loop.time()
        due = [member for member in self._members.values() if member.due_s <= now_s or not member.is_connected]
        for at in range(0, len(due), TOGETHER):
            some = due[at : at + TOGETHER]
            results = await asyncio.gather(*map(self._heartbeat, some), return_exceptions=True)
            self._note(list(zip(some, results, strict=True)))

    def _note(self, beats: list[tuple[_Member, BaseException | None]]) -> None:
        """Those whose connection ended are tried again in LOOK_S, others in BEAT_S. It is news once a member."""
        failures: list[ContrailError] = []
        level = logging.DEBUG
        for member, result in beats:
            if isinstance(result, ContrailError):
                failures.append(result)
                level = level if member.has_failed else logging.WARNING
            elif result is not None:
                raise result
            member.has_failed = result is not None
        if failures:
            text = "%d of %d heartbeats of gRPC consumers failed, and are tried again: %s"
            _log.log(level, text, len(failures), len(beats), failures[0])

    async def _heartbeat(self, member: _Member) -> None:
        if self._members.get(member.client_id) is not member:
            return  # it left while others had their turn
        member.due_s = self._loop.time() + BEAT_S
        connection = member.connection
        if connection is None or not connection.is_open:
            connection = Connection(self._asked)
            self._join(connection)
            member.connection = connection
        body = encode_body(HeartbeatData(client_id=member.client_id, consumer_data_set=[member.data]))
        code, ext, (language, version) = RequestCode.HEART_BEAT, dict[str, str](), member.speaker
        if (sign := self._cluster.instance.options.credentials) is not None:
            sign(code, ext, body)
        answer = await connection.invoke_frame(
            code,
            lambda opaque: encode_request(code, ext, body, opaque=opaque, language=language, version=version),
            REQUEST_S,
        )
        if answer.code != 0:
            raise ResponseError(answer.code, answer.remark, request_code=code, address=self._address)

    def _asked(self, connection: Connection, commands: list[Command]) -> None:
        for command in commands:
            if command.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
                group = command.ext.get("group", "")
                remedy = "reset it with useServerSideResetOffset=true at the broker"
                peer_warnings.warn("reset of a group that pops", f"group {group[:64]} has gRPC consumers: {remedy}")
            if command.is_oneway:
                continue
            if command.code in ASKED:
                self._cluster.instance.spawn(self._asking.answer(connection, command), "asked")
            else:
                connection.reply(not_supported(command))
