"""The master's half of replication in a broker: the HA port, who may use it, and what waits for slaves.

Who may use it. A slave of the classic protocol says neither its name nor a password, so its address decides:

    let in   a slave of this group, as NameServers list it (the address that it tells clients: brokerIP1)
             an address or a network of haAllowList (a slave whose HA connections come from elsewhere, a backup)
             127.0.0.1 and ::1, where no NameServer is configured: then nobody can say who the slaves are
    counted  as many connections of a host as slaves are registered there; one of a host that is in haAllowList alone,
             but none of this machine's loopback, unless no NameServer is configured: acknowledged.py says why

An address that is not known makes us ask the NameServers, at most once a second: a slave connects a moment after it has
registered. A host that was known counts for as long as it stays connected: a NameServer that starts anew knows nobody
for a while, and its slaves have not gone anywhere.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import ssl
from collections import Counter, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import Final

from contrailmq.broker.node import BrokerNode
from contrailmq.store import Durations, Listen, Listening, ReplicationServer, SlaveStatus
from contrailmq.wire.bodies import ClusterInfo, decode_body
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import WireError
from contrailmq.wire.listener import bind
from contrailmq.wire.transport import RemotingClient, split_address

log = logging.getLogger("contrailmq.broker")

ASK_MS: Final = 5_000  # how often the members are asked for anyway
ASK_AGAIN_MS: Final = 1_000  # and at most, for the sake of a peer that is not known
ASK_TIMEOUT_S: Final = 3.0
HANDSHAKE_S: Final = 10.0  # as for clients (wire/listener.py)
# What a master gathers before it sends, where nobody waits for slaves. A block for each wakeup costs both sides more
# than its bytes: a system call and a report for a few messages.
GATHER_S: Final = 0.002
TIMED_MAX: Final = 1024  # wakeups whose way to a slave is timed at once; while a slave is further behind, none is added


class GroupMembers:
    """The slaves of this broker's group, by the hosts that they are at. Owner: MasterReplication."""

    def __init__(self, node: BrokerNode, client: RemotingClient) -> None:
        self._node = node
        self._client = client
        self._slaves: Counter[str] = Counter()  # by IP address
        self._asked_ms: int | None = None
        self._asking: asyncio.Task[None] | None = None
        self.connected: Callable[[], set[str]] = set  # hosts that are connected now
        self.on_change: Callable[[], None] = lambda: None

    def slaves_at(self, host: str) -> int:
        """How many slaves a host counts for."""
        registered = self._slaves[host]
        if registered:
            return registered
        has_namesrv = bool(self._node.config.namesrv_addresses)
        if _is_loopback(host):
            return 0 if has_namesrv else 1
        return 1 if self._is_allowed(host) else 0

    async def admit(self, host: str) -> str:
        """Why a peer may not come in; nothing when it may."""
        node = self._node
        if node.is_slave:
            return (
                f"this broker, {node.config.broker_name} with brokerId {node.config.broker_id}, is a slave itself: "
                "slaves follow the master and not each other; give this one the master's HA address"
            )
        if self._is_known(host):
            return ""
        if not node.config.namesrv_addresses:
            return (
                f"{host} is not of this machine, and no NameServer is configured that could list it as a slave: "
                "set namesrvAddr, or name it in haAllowList"
            )
        await self._ask_soon()
        if self._is_known(host):
            return ""
        known = ", ".join(sorted(self._slaves)) or "none"
        return (
            f"no slave of {node.config.broker_name} is registered at {host} (known: {known}): start the slave with the "
            "same brokerName and namesrvAddr, check its brokerIP1, or name the address in haAllowList"
        )

    def _is_known(self, host: str) -> bool:
        if self._slaves[host] or self._is_allowed(host):
            return True
        return not self._node.config.namesrv_addresses and _is_loopback(host)

    def _is_allowed(self, host: str) -> bool:
        try:
            address = ipaddress.ip_address(host.partition("%")[0])
        except ValueError:
            return False
        return any(address in network for network in self._node.config.ha_allowed_networks)

    # --- asking

    async def run(self) -> None:
        """Ask now and then, for ever."""
        while True:
            await self.ask()
            await asyncio.sleep(ASK_MS / 1000)

    async def _ask_soon(self) -> None:
        """Ask, a second after the last time at the earliest; all who wait share one question."""
        if self._asking is None:
            self._asking = asyncio.ensure_future(self._ask_again())
        await asyncio.shield(self._asking)

    async def _ask_again(self) -> None:
        try:
            if self._asked_ms is not None:
                passed_ms = self._node.monotonic_ms() - self._asked_ms
                await asyncio.sleep(max(ASK_AGAIN_MS - passed_ms, 0) / 1000)
            await self.ask()
        finally:
            self._asking = None

    def cancel(self) -> None:
        """Ask nobody any more."""
        if self._asking is not None:
            self._asking.cancel()

    async def ask(self) -> None:
        """What the NameServers say; one that does not answer says nothing new."""
        self._asked_ms = self._node.monotonic_ms()
        found = await asyncio.gather(*map(self._registered, self._node.config.namesrv_addresses))
        if all(slaves is None for slaves in found):
            return
        now: Counter[str] = Counter()
        for slaves in found:
            now |= slaves or Counter()
        for host in self.connected():
            now[host] = max(now[host], self._slaves[host])
        now = +now  # without zeros
        if now != self._slaves:
            log.info("slaves of %s are registered at: %s", self._node.config.broker_name, _text(now) or "none")
            self._slaves = now
            self.on_change()

    async def _registered(self, namesrv: str) -> Counter[str] | None:
        """Slaves by host, None when it did not answer. (GET_BROKER_CLUSTER_INFO: every RocketMQ NameServer has it.)"""
        config = self._node.config
        try:
            answer = await self._client.invoke(
                namesrv, RequestCode.GET_BROKER_CLUSTER_INFO, None, b"", timeout_s=ASK_TIMEOUT_S
            )
            if answer.code != ResponseCode.SUCCESS:
                return None
            group = decode_body(answer.body, ClusterInfo).broker_addr_table.get(config.broker_name)
        except WireError:
            return None
        slaves: Counter[str] = Counter()
        for broker_id, address in (group.broker_addrs if group is not None else {}).items():
            if broker_id != 0:
                slaves.update(await _addresses_of(address))
        return slaves


class MasterReplication:
    """Serves the slaves of one broker, and lets sends wait for them. Owner: BrokerServer."""

    def __init__(self, node: BrokerNode, client: RemotingClient, worker: Executor) -> None:
        self._node = node
        self.members = GroupMembers(node, client)
        self.server = ReplicationServer(
            node.store,
            admit=self.members.admit,
            slaves_at=self.members.slaves_at,
            worker=worker,
            monotonic_ms=node.monotonic_ms,
            on_report=self._reported,
        )
        self.members.connected = self.server.hosts
        self.members.on_change = self.server.members_changed
        self.port = 0
        self._gathering: asyncio.TimerHandle | None = None
        self._sent: deque[tuple[int, int]] = deque()  # where the log ended, and when
        self.times = Durations()  # from the end of an append until a slave has it
        if not node.is_slave:
            node.on_log_grown = self._log_grown
            node.replicas.reached_by = self.server.acknowledged.reached_by
            node.replicas.slaves_in_sync = self.server.in_sync
            node.replicas.look()

    async def listen(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> None:
        """OSError when the address cannot be had."""
        sockets = await bind(host, port)
        self.port = int(sockets[0].getsockname()[1])
        for listening in sockets:
            await self.server.start(_listen_on(listening, tls))

    async def drain(self, within_s: float) -> None:
        """Before a stop: give slaves a moment to take the end of the log."""
        await self.server.drain(within_s)

    def close(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
        self.members.cancel()
        self.server.close()

    def _log_grown(self) -> None:
        """Send at once what sends wait for; else a moment later, with what comes until then."""
        if self.server.is_followed and len(self._sent) < TIMED_MAX:
            self._sent.append((self._node.store.log_max_offset, self._node.stopwatch_ns()))
        if self._node.store.config.waits_for_slaves:
            self.server.push()
        elif self._gathering is None and self.server.is_followed:
            self._gathering = asyncio.get_running_loop().call_later(GATHER_S, self._gathered)

    def _reported(self) -> None:
        """A slave has said how far it is, or is gone."""
        self._node.replicas.advanced()
        reached = self.server.acknowledged.furthest
        now_ns = self._node.stopwatch_ns() if self._sent else 0
        while self._sent and self._sent[0][0] <= reached:
            self.times.note((now_ns - self._sent.popleft()[1]) // 1000)
        if not self.server.is_followed:
            self._sent.clear()

    def _gathered(self) -> None:
        self._gathering = None
        self.server.push()

    def tick(self) -> None:
        self.server.tick()
        self._node.replicas.expire(self._node.monotonic_ms())

    def status(self) -> list[SlaveStatus]:
        return self.server.status()

    def warn_about_settings(self) -> None:
        """A master that waits for nobody although its settings sound like it says so once."""
        config = self._node.store.config
        if config.in_sync_replicas > 1 and not config.is_sync_master:
            log.warning(
                "inSyncReplicas=%d counts for brokerRole=SYNC_MASTER alone: with %s messages are acknowledged when "
                "this broker has them",
                config.in_sync_replicas,
                config.broker_role,
            )
        if config.is_sync_master and not self._node.replicas.is_awaited:
            log.warning(
                "brokerRole=SYNC_MASTER with inSyncReplicas=1 waits for no slave, as in RocketMQ 5: messages are "
                "acknowledged when this broker alone has them. Set inSyncReplicas=2 to wait for one slave"
            )


def _listen_on(listening: socket.socket, tls: ssl.SSLContext | None) -> Listen:
    async def listen(factory: Callable[[], asyncio.Protocol]) -> Listening:
        loop = asyncio.get_running_loop()
        within_s = HANDSHAKE_S if tls is not None else None
        return await loop.create_server(factory, sock=listening, ssl=tls, ssl_handshake_timeout=within_s)

    return listen


async def _addresses_of(address: str) -> Iterable[str]:
    """The IP addresses of a broker's host:port; none when its name is not known here."""
    try:
        host, port = split_address(address)
    except WireError:
        return ()
    try:
        ipaddress.ip_address(host)
    except ValueError:
        try:
            infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as exc:
            log.warning("slave %s has a name that cannot be resolved: %s", address, exc)
            return ()
        return sorted({str(info[4][0]) for info in infos})
    return (host,)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _text(slaves: Counter[str]) -> str:
    return ", ".join(f"{host} ({count})" if count > 1 else host for host, count in sorted(slaves.items()))
