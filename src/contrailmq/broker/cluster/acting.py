"""A slave that stands in for a master that is gone (enableSlaveActingMaster), and gives way when it returns.

    every brokerHeartbeatInterval       a sign of life to the NameServers, which forget who is silent for
                                        brokerNotActiveTimeoutMillis: a master that hangs is noticed too
    every syncBrokerMemberGroupPeriod   a slave asks who is alive, and at once when a NameServer says that the lowest id
                                        has changed (905)
    whenever that changes               the duty is decided anew (state/duty.py), and the services begin again with it

The lowest slave of a group without a master delivers what is due, through other groups (escape.py). NameServers with
supportActingMaster=true show it to clients as the master, to read from, to commit to, and to lock queues at.

A master that returns announces itself before it serves (906, pre_online.py). The slave then ends its part: it finishes
the tick of the timers that it is in, waits for what is on its way, and saves how far it has come. Only then it answers,
so that what the master asks for next is the whole truth. It follows that master's log, and leaves the delivering to it
for YIELD_MS at least, and for as long as it follows: the master registers when it has heard from every slave.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Final, Protocol

from contrailmq.broker.cluster.escape import Escape
from contrailmq.broker.cluster.master_log import Asking
from contrailmq.broker.config import BrokerConfig
from contrailmq.broker.handlers import Handlers, success
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.state.duty import Duty, Seen, duty_of_slave
from contrailmq.wire.admin_requests import BrokerHeartbeat, BrokerMemberGroupRequest, ExchangeHaInfo
from contrailmq.wire.bodies import BrokerMemberGroupBody, decode_body
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import WireError
from contrailmq.wire.header import Command
from contrailmq.wire.peer import Peer
from contrailmq.wire.transport import Connection, RemotingClient

log = logging.getLogger("contrailmq.broker")

YIELD_MS: Final = 10_000  # what a master that has announced itself gets to have this slave follow it
END_S: Final = 2.5  # for the end of a part: RocketMQ's masters wait 3 s for the answer
SLOT_POLL_S: Final = 0.02
ASK_TIMEOUT_S: Final = 3.0


class Master(Protocol):
    """What a slave follows: LogFollowing."""

    @property
    def is_heard(self) -> bool: ...
    def announced(self, address: str, ha_address: str) -> None: ...


class Delivers(Protocol):
    """The timers: how a part is ended between two ticks of theirs."""

    def end_soon(self) -> None: ...
    @property
    def is_in_slot(self) -> bool: ...


class Acting:
    """Owner: BrokerServer. `change` stops the services, and starts them with another duty."""

    def __init__(
        self,
        node: BrokerNode,
        client: RemotingClient,
        escape: Escape,
        timers: Delivers,
        *,
        change: Callable[[Duty], None],
        take_in: Callable[[], None],
        look_again: Callable[[], None],
        ha_address: Callable[[], str],
    ) -> None:
        """`take_in` has the services hear of what has arrived, `look_again` has NameServers asked for the master."""
        self._node = node
        self._client = client
        self._escape = escape
        self._timers = timers
        self._change, self._take_in, self._look_again, self._ha_address = change, take_in, look_again, ha_address
        self._members: dict[int, str] = {}
        self._yielded_until_ms = 0
        self._is_due = asyncio.Event()
        self._changing = asyncio.Lock()
        self.master: Master | None = None  # what a slave follows
        if node.config.enable_slave_acting_master:
            client.register(RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, self._min_id_changed)

    def register(self, handlers: Handlers) -> None:
        handlers.register_slow(RequestCode.EXCHANGE_BROKER_HA_INFO, self.exchange)

    def figures(self) -> dict[str, str]:
        """Lines for GET_BROKER_RUNTIME_INFO."""
        is_acting = self._node.duty is Duty.ESCAPE
        return {"isActingMaster": str(is_acting).lower()} | (self._escape.figures() if is_acting else {})

    # --- for ever

    async def beat(self) -> None:
        """Signs of life; one that cannot leave now is not kept."""
        config = self._node.config
        while True:
            for namesrv in config.namesrv_addresses:
                connection = self._client.ready(namesrv)
                if connection is not None:
                    connection.oneway(RequestCode.BROKER_HEARTBEAT, self._sign())
            await asyncio.sleep(config.broker_heartbeat_interval / 1000)

    def _sign(self) -> BrokerHeartbeat:
        config = self._node.config
        return BrokerHeartbeat(
            cluster_name=config.broker_cluster_name,
            broker_addr=self._node.address,
            broker_name=config.broker_name,
            broker_id=config.broker_id,
        )

    async def watch(self) -> None:
        """A slave looks at its group."""
        while True:
            await self.look()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._node.config.sync_broker_member_group_period / 1000):
                    await self._is_due.wait()
            self._is_due.clear()

    async def look(self) -> None:
        members = await group_members(self._node.config, self._client)
        if members is not None:  # else what was known counts
            if (0 in members) != (0 in self._members):
                self._look_again()
            self._members = members | {self._node.config.broker_id: self._node.address}
        await self._decide()

    def _min_id_changed(self, connection: Connection, command: Command) -> None:
        """NOTIFY_MIN_BROKER_ID_CHANGE (905): look, and believe what is seen."""
        self._is_due.set()

    # --- the part of a master

    async def _decide(self) -> None:
        async with self._changing:
            node, master = self._node, self.master
            seen = Seen(
                self._members,
                follows_master=master is not None and master.is_heard,
                has_yielded=node.monotonic_ms() < self._yielded_until_ms,
            )
            duty = duty_of_slave(node.config.broker_id, seen, may_act=node.config.enable_slave_acting_master)
            if duty is not node.duty:
                await self.end_part()
                self._change(duty)
                self._tell()

    def _tell(self) -> None:
        config = self._node.config
        if self._node.duty is Duty.ESCAPE:
            others = ", ".join(f"{id_} at {address}" for id_, address in sorted(self._members.items()))
            log.warning(
                "%s has lost its master, and brokerId %d is its lowest slave (alive: %s): it hands what is due to "
                "other groups",
                config.broker_name,
                config.broker_id,
                others,
            )
        else:
            log.info("slave %s leaves what is due to its master, or to a lower slave", config.broker_name)

    async def end_part(self) -> None:
        """What was begun is finished, as far as it can be in a moment, and the services have heard of it."""
        if self._node.duty is not Duty.ESCAPE:
            return
        self._timers.end_soon()
        with contextlib.suppress(TimeoutError):  # what does not arrive by then may be repeated by the master
            async with asyncio.timeout(END_S):
                while self._timers.is_in_slot:  # noqa: ASYNC110 - the wheel turns by ticks
                    await asyncio.sleep(SLOT_POLL_S)
                self._escape.close()
                await self._escape.settled()
        self._escape.close()
        self._take_in()

    # --- a master that returns

    async def exchange(self, connection: Peer, command: Command) -> bytes | None:
        """EXCHANGE_BROKER_HA_INFO (906): a master announces itself to its slave, or a slave asks its master."""
        header = command.header(ExchangeHaInfo)
        node = self._node
        if not node.is_slave:
            return success(
                command,
                ExchangeHaInfo(
                    master_ha_address=self._ha_address(),
                    master_flush_offset=node.store.durable_offset,
                    master_address=node.address,
                ),
            )
        if header.master_ha_address and self.master is not None and node.config.enable_slave_acting_master:
            log.info("master %s of this slave announces itself", header.master_address)
            self._yielded_until_ms = node.monotonic_ms() + YIELD_MS
            await self._decide()
            self.master.announced(header.master_address or "", header.master_ha_address)
        return success(command, ExchangeHaInfo())


async def group_members(config: BrokerConfig, client: Asking) -> dict[int, str] | None:
    """Id -> address of all that a NameServer lists (901); None when no NameServer answers.

    A master that any of them knows is one: two NameServers differ for a moment after every change.
    """
    found: dict[int, str] | None = None
    header = BrokerMemberGroupRequest(cluster_name=config.broker_cluster_name, broker_name=config.broker_name)
    for namesrv in config.namesrv_addresses:
        try:
            answer = await client.invoke(
                namesrv, RequestCode.GET_BROKER_MEMBER_GROUP, header, b"", timeout_s=ASK_TIMEOUT_S
            )
            if answer.code != ResponseCode.SUCCESS:
                continue
            group = decode_body(answer.body, BrokerMemberGroupBody).broker_member_group
        except WireError:
            continue
        found = (group.broker_addrs if group is not None else {}) | (found or {})
    return found
