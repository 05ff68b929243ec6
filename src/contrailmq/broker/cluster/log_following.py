"""How a slave gets its master's log: find the master, make sure that both have one history, follow, begin again.

The HA address is `haMasterAddress`, or what the NameServers say in their answer to each registration; while there is
none they are asked every second. On each connection, before its first report, the slave asks its master, over the
ordinary port:

    where does your log begin and end?   ours must end between the two
    which record is at ... ?             our last one must be there, byte for byte

The HA protocol has no such question. Without it a slave that is ahead of a master that has lost its newest messages
(killed before a flush) would wait until the master's log has grown past its own end, and go on with other messages
behind those that nobody else has. A slave that is refused takes nothing, keeps serving reads, and says once what is
wrong, with both offsets and the remedy. A master that does not answer the questions is not followed.

The NameServers name the port to ask. A slave that has `haMasterAddress` gives them FIND_MS to do so; then it asks the
port below that one, which is the broker's own unless somebody has set haListenPort. When nobody answers there, only an
empty slave follows: it has no history yet.

Then: report, take, report again (following.py), until the connection ends or the master is silent for
haHousekeepingInterval. The pause before the next try grows from 0.1 s to 5 s. A slave that is far behind takes the log
first, and makes queues and index of it when it has caught up or the master pauses (log_first.py).
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

from contrailmq._faults import LastingFault
from contrailmq.broker.cluster.master_link import BUFFER_BYTES, MasterLink, open_link
from contrailmq.broker.cluster.master_log import Asking, UnlikeError, check_history
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.state.log_first import BEHIND_BYTES
from contrailmq.message.addresses import split_host_port
from contrailmq.message.record import read_store_time
from contrailmq.store import Following, StoreError
from contrailmq.wire.admin_bodies import HaClientInfo
from contrailmq.wire.errors import WireError

log = logging.getLogger("contrailmq.broker")

LOOK_AGAIN_S: Final = 1.0  # for a master, while none is known
FIND_MS: Final = 5000  # what the NameServers have to name the master, before somebody reads that none did
CONNECT_TIMEOUT_S: Final = 5.0
PAUSE_S_MIN: Final = 0.1
PAUSE_S_MAX: Final = 5.0

Connect = Callable[[str, int], Awaitable[MasterLink]]


class Lag(NamedTuple):
    """How far a slave is behind, as far as it knows: nothing is known of a master that cannot be reached."""

    is_following: bool
    bytes: int
    milliseconds: int


class LogFollowing:
    """Owner: BrokerServer. `master_told` is called with what the NameServers say, `durable` when the log was synced."""

    def __init__(
        self, node: BrokerNode, client: Asking, *, look_again: Callable[[], None], connect: Connect = open_link
    ) -> None:
        """`look_again` has the NameServers asked for the master before their turn."""
        self._node = node
        self._store = node.store
        self._client = client
        self._look_again = look_again
        self._connect = connect
        self._master = self._told_ha = ""
        self._is_answered = False  # by a NameServer, which may know no master
        self._is_missed = False  # the NameServers knew no master when they were last asked
        self._is_news = asyncio.Event()
        self._following: Following | None = None
        self._link: MasterLink | None = None
        self._last_report_ms = self.last_read_ms = 0
        self._second_ms = self._second_bytes = self._bytes_per_second = 0  # the second that is counted, and the last
        self._master_end = 0
        self._pause_s = PAUSE_S_MIN
        name = node.config.broker_name
        self._fault = LastingFault(
            log,
            f"slave {name} does not follow its master's log",
            mended=f"slave {name} follows its master's log",
            level=logging.WARNING,
        )

    # --- what others say

    def master_told(self, address: str, ha_address: str) -> None:
        """Follow this master from now on; an empty address: the NameServers know none. A connection stays until it
        ends by itself: a NameServer that has lost a master says nothing about its log."""
        self._is_answered = True
        if address == self._node.address:
            address = ha_address = ""  # this broker's own entry, from before its role changed
        is_back, self._is_missed = self._is_missed and bool(address), not address
        if (address, ha_address) != (self._master, self._told_ha) and address:
            self._master, self._told_ha = address, ha_address
            self._is_news.set()
            if self._link is not None:
                self._link.close()  # another machine is the master now
        elif is_back:
            self._is_news.set()  # at its old address: the next try must not wait for its turn

    def announced(self, address: str, ha_address: str) -> None:
        """A master has come back and waits to be followed: not after the pause that its absence has led to."""
        self.master_told(address, ha_address)
        self._pause_s = PAUSE_S_MIN
        self._is_news.set()

    @property
    def is_following(self) -> bool:
        return self._following is not None

    @property
    def is_heard(self) -> bool:
        """Whether the master it follows gives signs of life. One that hangs is silent while its connection stays, and
        is given up by NameServers long before haHousekeepingInterval: two heartbeats that did not come say as much."""
        silence_ms = max(
            self._node.config.broker_not_active_timeout_millis, 2 * self._store.config.ha_send_heartbeat_interval
        )
        return self.is_following and self._node.monotonic_ms() - self.last_read_ms < silence_ms

    def durable(self, offset: int) -> None:
        """The log was synced up to here: under SYNC_FLUSH that is what the master waits for."""
        if offset >= 0 and self._following is not None and self._link is not None:
            self._send(self._following.report())

    @property
    def address(self) -> str:
        """Of the master's HA port; empty when nobody knows it."""
        return self._store.config.ha_master_address or self._told_ha

    @property
    def lag(self) -> Lag:
        end = self._store.replica.end
        behind = max(0, self._master_end - end)
        last = self._store.replica.last_record_offset
        behind_ms = 0
        if behind and last >= 0 and (record := self._store.read_record(last)) is not None:
            behind_ms = max(0, self._node.now_ms() - read_store_time(record))
        return Lag(self._following is not None, behind, behind_ms)

    def figures(self) -> dict[str, str]:
        """Lines for GET_BROKER_RUNTIME_INFO. A slave that never heard of its master's log does not know its lag."""
        lag = self.lag
        table = {"haMasterAddress": self.address, "haIsFollowing": str(lag.is_following).lower()}
        if lag.is_following or self._master_end:
            table |= {"haLagBytes": str(lag.bytes), "haLagMillis": str(lag.milliseconds)}
        return table

    def status(self) -> HaClientInfo:
        """A slave's part of GET_BROKER_HA_STATUS."""
        self._count(0)
        return HaClientInfo(
            activated=self.is_following,
            last_read_timestamp=self._wall_ms(self.last_read_ms),
            last_write_timestamp=self._wall_ms(self._last_report_ms),
            master_addr=self.address or None,
            max_offset=self._store.log_max_offset,
            transferred_byte_in_second=self._bytes_per_second,
        )

    def _wall_ms(self, monotonic_ms: int) -> int:
        """0 for what never was."""
        return monotonic_ms and self._node.now_ms() - (self._node.monotonic_ms() - monotonic_ms)

    def _count(self, size_bytes: int) -> None:
        now_ms = self._node.monotonic_ms()
        if (passed_ms := now_ms - self._second_ms) >= 1000:
            self._bytes_per_second = self._second_bytes * 1000 // passed_ms
            self._second_ms, self._second_bytes = now_ms, 0
        self._second_bytes += size_bytes

    # --- following

    async def run(self) -> None:
        """Follow for ever; the caller cancels it."""
        began_ms = self._node.monotonic_ms()
        while True:
            self._is_news.clear()
            is_early = self._node.monotonic_ms() - began_ms < FIND_MS
            if not self.address or (is_early and self._awaits_answer):
                if not is_early:
                    self._fault.goes_on(_NO_ADDRESS, kind=_NO_ADDRESS)
                self._look_again()
                await self._pause(LOOK_AGAIN_S)
                continue
            try:
                await self._follow()
            except UnlikeError as exc:
                self._fault.goes_on(exc, kind=_DIGITS.sub("", str(exc)))
                self._pause_s = PAUSE_S_MAX
            except (OSError, EOFError, TimeoutError, WireError, StoreError) as exc:
                kind = type(exc).__name__ if isinstance(exc, StoreError) else "unreachable"
                self._fault.goes_on(f"{self.address}: {exc or type(exc).__name__}; trying again", kind=kind)
                self._look_again()
            await self._pause(self._pause_s)
            self._pause_s = min(self._pause_s * 2, PAUSE_S_MAX)

    @property
    def _awaits_answer(self) -> bool:
        return bool(self._node.config.namesrv_addresses) and not self._is_answered

    async def _pause(self, seconds: float) -> None:
        """Wait, but not when another master is named."""
        try:
            async with asyncio.timeout(seconds):
                await self._is_news.wait()
        except TimeoutError:
            pass  # the usual case

    async def _follow(self) -> None:
        """One connection, to its end."""
        try:
            host, port = split_host_port(self.address)
        except ValueError as exc:  # haMasterAddress was checked at the start
            problem = f"the NameServers give {self.address!r} as its HA address: {exc}; correct the master's brokerIP2"
            raise UnlikeError(problem) from exc
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            link = await self._connect(host, port)
        try:
            # Asked only now: a master that answers, loses power and takes the connection with another log afterwards
            # would be followed. One that answers after the connection was made is the one behind it, or it has ended.
            await self._check_master(f"{host}:{port - 1}")
            await self._follow_on(link)
        finally:
            link.close()

    async def _follow_on(self, link: MasterLink) -> None:
        """The master has our history: report where ours ends, and take what follows."""
        if self._store.config.is_sync_flush:
            await asyncio.get_running_loop().run_in_executor(None, self._store.flush)
        following = Following(self._store)
        try:
            self._following, self._link = following, link
            self.last_read_ms = self._node.monotonic_ms()
            self._send(following.hello())
            await self._take(link, following)
        finally:
            self._following = self._link = None
            self._node.log_first.is_catching_up = False
            following.ended()
            if self._store.replica.end > self._store.dispatched_offset:  # whole records, with wrong bytes after them
                self._node.after_append(wants_flush=self._store.config.is_sync_flush)

    async def _take(self, link: MasterLink, following: Following) -> None:
        config, node = self._store.config, self._node
        while True:
            if node.log_first.is_catching_up and not link.has_come:  # the master is the slower one
                node.log_first.is_catching_up = False
                node.log_first.go_on()
            now_ms = node.monotonic_ms()
            silent_ms = now_ms - self.last_read_ms
            if silent_ms >= config.ha_housekeeping_interval:
                raise EOFError(f"the master is silent for {silent_ms} ms (haHousekeepingInterval)")
            if now_ms - self._last_report_ms >= config.ha_send_heartbeat_interval:
                self._send(following.heartbeat())
            wait_ms = min(
                config.ha_housekeeping_interval - silent_ms,
                max(1, self._last_report_ms + config.ha_send_heartbeat_interval - now_ms),
            )
            try:
                async with asyncio.timeout(wait_ms / 1000):
                    data = await link.read()
            except TimeoutError:
                continue
            if not data:
                raise EOFError("the master closed the connection")
            self.last_read_ms = node.monotonic_ms()
            self._count(len(data))
            grown = following.receive(data)
            self._master_end = max(self._master_end, following.master_end)
            if grown or self._store.replica.end >= self._master_end:  # a heartbeat alone says nothing of our log
                self._well()
            node.log_first.is_catching_up = self._is_far_behind(len(data))
            if grown:
                node.after_append(wants_flush=config.is_sync_flush)
                self._send(following.report())
                await asyncio.sleep(0)  # dispatch, and whoever else waits, before the next portion

    def _is_far_behind(self, came_bytes: int) -> bool:
        """Whether to take more of the log before what has come is dispatched: it lacks much of what the master has
        named, or half a buffer came at once."""
        return self._master_end - self._store.replica.end > BEHIND_BYTES or came_bytes >= BUFFER_BYTES // 2

    def _send(self, report: bytes) -> None:
        if report and self._link is not None:
            self._last_report_ms = self._node.monotonic_ms()
            self._link.write(report)

    def _well(self) -> None:
        self._pause_s = PAUSE_S_MIN
        if self._fault.is_on:
            self._fault.is_over(f"{self.address}, and has it up to offset {self._store.replica.end}")

    # --- one history?

    async def _check_master(self, neighbour: str) -> None:
        """UnlikeError, WireError: it is not to be followed."""
        if self._master:
            await self._check_history(self._master)
        else:
            await self._check_neighbour(neighbour)

    async def _check_neighbour(self, master: str) -> None:
        """As `_check_history`, of the broker that should be beside the HA port; an empty slave may do without."""
        try:
            await self._check_history(master)
        except WireError as exc:
            if self._store.replica.end:
                raise UnlikeError(
                    f"this slave's log ends at offset {self._store.replica.end}, and nobody says whether the master at "
                    f"{self.address} has the same history: no NameServer names its ordinary port, and at {master}, the "
                    f"port below, {exc}. Start the master, or set namesrvAddr on both brokers (the NameServer then "
                    "names the master's address), or haListenPort of the master to its listenPort + 1"
                ) from exc

    async def _check_history(self, master: str) -> None:
        self._master_end = await check_history(self._client, self._store, master)


_DIGITS: Final = re.compile(r"\d+")  # reasons that differ in their numbers alone are of one kind
_NO_ADDRESS: Final = (
    "no NameServer knows the HA address of a master of this name: start the master (brokerId=0), or set "
    "haMasterAddress; asking again every second"
)
