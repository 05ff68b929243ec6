"""What a master does before it serves, with enableSlaveActingMaster: it learns how far its slaves have come without it.

While it was gone the lowest slave delivered in its place (acting.py), and consumers committed their offsets there. So
the master listens, but registers nowhere and refuses clients, until it has done this with every slave that the
NameServers list:

    1  announce itself (906): the slave ends its part, and follows
    2  wait until the slave follows this master's log: its log is then a part of this one, or it would not
    3  ask how far it has come: delay levels (45), offsets of consumers and of transactions (43), timers (60)

Of each position the furthest counts: what lies before it was done by somebody. RocketMQ goes by the tables' versions,
which move with every 200th or 500th change, and so repeats the changes since.

A slave that cannot be reached is asked again until the NameServers have forgotten it. One that answers and does not
follow within FOLLOW_S (its log has what this one has lost, or is another) is not asked how far it has come: its
positions are of another log. A line says so. Without slaves, or with skipPreOnline=true, a master serves at once. While
no NameServer answers it waits, as nobody could say whether a slave stands in for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from contrailmq._faults import LastingFault
from contrailmq.broker.cluster.acting import group_members
from contrailmq.broker.cluster.master_log import Asking
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.state import config_files
from contrailmq.broker.state.offsets import OffsetTable
from contrailmq.message import ContrailError
from contrailmq.store import TimerCheckpoint, decode_checkpoint
from contrailmq.wire.admin_requests import ExchangeHaInfo
from contrailmq.wire.bodies import KVTable, decode_body, loads_fastjson
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import WireError
from contrailmq.wire.header import Command, Fields

log = logging.getLogger("contrailmq.broker")

AGAIN_S: Final = 1.0
ASK_TIMEOUT_S: Final = 5.0
FOLLOW_S: Final = 10.0
POLL_S: Final = 0.05
# What others may ask of a master that is not online: what a slave needs to follow it, and an operator to see it.
SERVED: Final = frozenset(
    {
        RequestCode.GET_BROKER_RUNTIME_INFO,
        RequestCode.VIEW_MESSAGE_BY_ID,
        RequestCode.EXCHANGE_BROKER_HA_INFO,
        RequestCode.GET_BROKER_HA_STATUS,
        RequestCode.GET_BROKER_CONFIG,
    }
)


class NotReadyError(ContrailError):
    """A slave could not be asked; the text says why."""


@dataclass(slots=True)
class Progress:
    """How far slaves have come: the furthest of all that were asked."""

    levels: dict[int, int] = field(default_factory=dict)
    offsets: dict[tuple[str, int], int] = field(default_factory=dict)  # (topic@group, queue) -> offset
    timers: TimerCheckpoint = field(default_factory=TimerCheckpoint)

    def take(self, levels: dict[int, int], offsets: dict[tuple[str, int], int], timers: TimerCheckpoint) -> None:
        for level, offset in levels.items():
            self.levels[level] = max(offset, self.levels.get(level, 0))
        for place, offset in offsets.items():
            self.offsets[place] = max(offset, self.offsets.get(place, 0))
        if timers.read_time_ms > self.timers.read_time_ms:
            self.timers = timers


class PreOnline:
    """Owner: BrokerServer, for the time until its master is online."""

    def __init__(
        self, node: BrokerNode, client: Asking, *, ha_address: Callable[[], str], connected: Callable[[], set[str]]
    ) -> None:
        """`connected` are the hosts that follow the log now."""
        self._node = node
        self._client = client
        self._ha_address, self._connected = ha_address, connected
        self._fault = LastingFault(
            log, f"master {node.config.broker_name} is not online", level=logging.WARNING, remind_s=60.0
        )

    async def run(self) -> Progress:
        """Returns when every slave was asked."""
        progress = Progress()
        done: set[int] = set()
        while True:
            members = await group_members(self._node.config, self._client)
            left = None if members is None else sorted(members.keys() - done - {0})
            if not left and left is not None:
                self._fault.is_over("every slave was asked")
                return progress
            if members is None or left is None:
                self._fault.goes_on("no NameServer answers, and nobody else knows its slaves")
            else:
                try:
                    await self._ask(left[0], members[left[0]], progress)
                    done.add(left[0])
                    continue
                except (NotReadyError, WireError) as exc:
                    self._fault.goes_on(f"slave {left[0]} at {members[left[0]]}: {exc}; asking again")
            await asyncio.sleep(AGAIN_S)

    async def _ask(self, broker_id: int, address: str, progress: Progress) -> None:
        node = self._node
        header = ExchangeHaInfo(
            master_ha_address=self._ha_address(),
            master_flush_offset=node.store.durable_offset,
            master_address=node.address,
        )
        await self._invoke(address, RequestCode.EXCHANGE_BROKER_HA_INFO, header)
        if not await self._is_followed_by(address):
            log.error(
                "slave %d at %s does not follow this master within %g s, its log says why: how far it has come without "
                "this master is not taken over, and what it has delivered may be delivered again",
                broker_id,
                address,
                FOLLOW_S,
            )
            return
        levels = _levels(await self._invoke(address, RequestCode.GET_ALL_DELAY_OFFSET))
        offsets = _offsets(await self._invoke(address, RequestCode.GET_ALL_CONSUMER_OFFSET), node.now_ms)
        timers = TimerCheckpoint()
        if node.store.config.timer_wheel_enable:
            timers = decode_checkpoint((await self._invoke(address, RequestCode.GET_TIMER_CHECK_POINT)).body)
        progress.take(levels, offsets, timers)
        log.info("slave %d at %s was asked how far it has come", broker_id, address)

    async def _is_followed_by(self, address: str) -> bool:
        """By its own account; RocketMQ's slaves give none, and a connection from their host has to do."""
        try:
            async with asyncio.timeout(FOLLOW_S):
                while True:
                    answer = await self._invoke(address, RequestCode.GET_BROKER_RUNTIME_INFO)
                    said = decode_body(answer.body, KVTable).table
                    follows = said.get("haIsFollowing")
                    if follows is None and address.rpartition(":")[0] in self._connected():
                        return True
                    if follows == "true" and said.get("haMasterAddress") == self._ha_address():
                        return True
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            return False

    async def _invoke(self, address: str, code: RequestCode, header: Fields | None = None) -> Command:
        answer = await self._client.invoke(address, code, header, b"", ASK_TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS:
            raise NotReadyError(f"{code.name} was answered {answer.code}: {answer.remark or 'no reason'}")
        return answer


def _levels(answer: Command) -> dict[int, int]:
    try:
        table = config_files.parse(answer.body.decode()) if answer.body else {}
        levels = table.get("offsetTable") or {}
        if not isinstance(levels, dict):
            raise NotReadyError("its delay offsets are not a table")
        return {int(level): config_files.whole_number(offset) for level, offset in levels.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise NotReadyError(f"its delay offsets cannot be read: {exc}") from exc


def _offsets(answer: Command, now_ms: Callable[[], int]) -> dict[tuple[str, int], int]:
    table = OffsetTable(now_ms=now_ms)
    try:
        data = loads_fastjson(answer.body, is_trusted=True)
        if not isinstance(data, dict):
            raise NotReadyError("its consumer offsets are not a table")
        table.read(data)
    except (ValueError, KeyError, TypeError, AttributeError) as exc:
        raise NotReadyError(f"its consumer offsets cannot be read: {exc}") from exc
    return table.whole()
