"""Who stands in this broker's place: a live broker of the same name and id is never replaced unasked.

A NameServer keeps one address for each brokerName and brokerId, and a registration from another address replaces it:
clients then go to the newcomer, whose log does not hold their messages. So each registration asks first
(GET_BROKER_CLUSTER_INFO, which every RocketMQ NameServer serves) whether the place is taken, and by whom. An address
that takes a connection is alive, also when it says nothing more: a process that hangs may go on at any time. One that
does not is dead and may be replaced, as after a move to another machine. An address that leads back to this process (it
has a new brokerIP1) is not a stranger. Nor is a broker that has another name or id by now: a NameServer keeps the place
of a master that lost power for two minutes, and within them it may be back, as the slave of its follower.

`takeover=true` skips the question. The one that was replaced meets its follower at its own next registration, and stays
away while that one lives.
"""

from __future__ import annotations

import asyncio
from typing import Final

from contrailmq.broker.node import BrokerNode
from contrailmq.message import ContrailError
from contrailmq.wire.bodies import ClusterInfo, KVTable, decode_body
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import RemoteProtocolError, WireError
from contrailmq.wire.header import Command
from contrailmq.wire.properties import parse_properties
from contrailmq.wire.transport import RemotingClient, split_address

ALIVE_S: Final = 1.0  # how long a stranger may take for a connection, and again for an answer


class NameTakenError(ContrailError):
    """A live broker of this name and id is registered at another address. Nothing was registered."""

    def __init__(self, *, name: str, broker_id: int, own: str, other: str, namesrv: str) -> None:
        super().__init__(
            f"broker {name} with brokerId {broker_id} at {other} is registered with NameServer {namesrv} and answers: "
            f"this one, at {own}, would take its clients away; give this one another brokerName (or brokerId, for a "
            "slave), stop the other one, or take its place with --takeover (takeover=true)"
        )
        self.other = other


class NameGuard:
    """Asks NameServers and strangers. Owner: Registration."""

    def __init__(self, node: BrokerNode, client: RemotingClient) -> None:
        self._node = node
        self._client = client

    async def conflict(self, namesrv: str) -> NameTakenError | None:
        """What stands against registering with this NameServer. WireError when it does not answer."""
        config, own = self._node.config, self._node.address
        if config.takeover:
            return None
        timeout_s = config.register_broker_timeout_mills / 1000
        answer = await self._client.invoke(namesrv, RequestCode.GET_BROKER_CLUSTER_INFO, None, b"", timeout_s)
        if answer.code == ResponseCode.NO_PERMISSION:  # one that takes TLS only, for instance: it says why
            raise RemoteProtocolError(f"it answered {answer.code}: {answer.remark or 'no reason'}")
        if answer.code != ResponseCode.SUCCESS:
            return None  # a NameServer that tells nobody; its answer to the registration will say more
        group = decode_body(answer.body, ClusterInfo).broker_addr_table.get(config.broker_name)
        other = group.broker_addrs.get(config.broker_id) if group is not None else None
        if other is None or other == own or not await self._is_stranger(other):
            return None
        return NameTakenError(
            name=config.broker_name, broker_id=config.broker_id, own=own, other=other, namesrv=namesrv
        )

    async def _is_stranger(self, address: str) -> bool:
        """Whether somebody lives there, and not this process."""
        try:
            async with asyncio.timeout(ALIVE_S):
                _, writer = await asyncio.open_connection(*split_address(address))
            writer.close()
        except (OSError, WireError):  # a TimeoutError is an OSError
            return False
        try:
            async with asyncio.timeout(3 * ALIVE_S):
                answer = await self._client.invoke(
                    address, RequestCode.GET_BROKER_RUNTIME_INFO, None, b"", timeout_s=ALIVE_S
                )
                began = decode_body(answer.body, KVTable).table.get("bootTimestamp") if answer.body else None
                if began == str(self._node.store.stats.boot_time_ms):
                    return False
                answer = await self._client.invoke(address, RequestCode.GET_BROKER_CONFIG, None, b"", timeout_s=ALIVE_S)
        except (WireError, TimeoutError):
            return True
        finally:
            self._client.disconnect(address)
        return self._has_this_place(answer)

    def _has_this_place(self, answer: Command) -> bool:
        """Whether a broker has this one's name and id, or does not say which it has."""
        if answer.code != ResponseCode.SUCCESS:
            return True
        config, said = self._node.config, parse_properties(answer.body.decode("utf-8", "replace"))
        own = (config.broker_name, str(config.broker_id))
        return (said.get("brokerName", own[0]), said.get("brokerId", own[1])) == own
