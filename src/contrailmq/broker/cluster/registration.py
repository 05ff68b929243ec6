"""Registration with NameServers: each of them hears this broker's topics, again and again.

At the start, every 30 s, and at once when a topic changes: whoever made a topic is answered when its route can be asked
for, as in the reference. The whole table is sent each time (a NameServer refuses a
first registration with a single topic, and a full one is never wrong). NameServers that cannot be reached are logged
when they go and when they come back, and never delay the others. What they answer tells ordered topics, and tells a
slave its master: the first one, in the order of namesrvAddr, that knows a master is believed. Those that know none say
that it is gone only when they all do; those that do not answer say nothing. A live broker of the same name and id is
not replaced (see `takeover`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from contrailmq._faults import LastingFault
from contrailmq.broker.cluster.takeover import NameGuard, NameTakenError
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.turns import in_turns
from contrailmq.wire.admin_requests import BrokerIdentity, RegisterBroker, RegisterBrokerResponse
from contrailmq.wire.bodies import (
    DataVersion,
    KVTable,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigWrapper,
    decode_body,
    encode_body,
)
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import WireError
from contrailmq.wire.transport import RemotingClient

log = logging.getLogger("contrailmq.broker")

PERIOD_MS_MIN: Final = 10_000
PERIOD_MS_MAX: Final = 60_000
UNREGISTER_TIMEOUT_S: Final = 3.0
RECONNECT_S: Final = 1.0
ANSWER_WAIT_S: Final = 1.0  # how long a request that made a topic may wait for the NameServers

_AWAY: Final = "away"
_TAKEN: Final = "taken"


class Registration:
    """Owner: BrokerServer."""

    def __init__(
        self,
        node: BrokerNode,
        client: RemotingClient,
        *,
        ha_address: str,
    ) -> None:
        self._node = node
        self._client = client
        self.ha_address = ha_address  # what slaves are told
        self._master_told: Callable[[str, str], None] | None = None
        self._guard = NameGuard(node, client)
        self._faults: dict[str, LastingFault] = {}  # by NameServer
        self._missed: dict[str, str] = {}  # NameServer -> why this broker is not registered there; "" where it is
        self._why: dict[str, str] = {}  # the same, as a sentence
        self._body: tuple[tuple[int, ...], bytes] | None = None  # (what it was made of, the last one)
        self._is_due = asyncio.Event()
        self._waiting: list[Callable[[], None]] = []
        self._rounds: set[asyncio.Future[int]] = set()
        self._asked: set[str] = set()  # those whose answer is still awaited
        self._behind: set[str] = set()  # of these, those who must be told again
        self._is_leaving = False
        self.is_held_back = False  # register nowhere: a master that is not online yet

    def missed(self) -> dict[str, str]:
        """The NameServers that do not know this broker, and why."""
        addresses = [address for address in self._node.config.namesrv_addresses if self._missed.get(address) != ""]
        return {address: self._why.get(address, "it has not answered yet") for address in addresses}

    def follow(self, master_told: Callable[[str, str], None]) -> None:
        """Call with (address, HA address) of the master after each registration; both empty when none is known."""
        self._master_told = master_told

    @property
    def period_s(self) -> float:
        period_ms = self._node.config.register_name_server_period
        return min(max(period_ms, PERIOD_MS_MIN), PERIOD_MS_MAX) / 1000

    def register_soon(self) -> None:
        """A topic changed: do not wait for the next round."""
        self._is_due.set()

    async def run(self) -> None:
        """Register for ever; the caller cancels it."""
        while True:
            try:
                async with asyncio.timeout(self.period_s):
                    await self._is_due.wait()
            except TimeoutError:
                pass  # the period is over: the usual case
            self._is_due.clear()
            await self._round()

    def cancel(self) -> None:
        """Give up the rounds that still wait for a NameServer."""
        for round_ in self._rounds:
            round_.cancel()

    async def keep_connected(self) -> None:
        """Register again as soon as a NameServer that went away is back: it may have forgotten us. For ever."""
        while True:
            await asyncio.sleep(RECONNECT_S)
            away = [address for address in self._node.config.namesrv_addresses if self._client.ready(address) is None]
            await asyncio.gather(*map(self._reconnect, away))

    async def _reconnect(self, address: str) -> None:
        try:
            await self._client.connect(address)
        except WireError as exc:
            if self._missed.get(address) == "":  # the next round, which would tell it, may be half a minute away
                self._note(address, _AWAY, str(exc))
        else:
            self.register_soon()

    def when_registered(self, call: Callable[[], None]) -> None:
        """Call when the NameServers have heard of what changed up to now, or after ANSWER_WAIT_S at the latest."""
        if not self._node.config.namesrv_addresses:
            call()
            return
        self._waiting.append(call)
        self._is_due.set()

    async def _round(self) -> None:
        """Tell everybody, and those who wait for it after ANSWER_WAIT_S at the latest.

        A NameServer that hangs is waited for elsewhere: the next round must not wait for it.
        """
        waiting, self._waiting = self._waiting, []
        round_ = asyncio.ensure_future(self.register_all())
        self._rounds.add(round_)
        try:
            await asyncio.wait({round_}, timeout=ANSWER_WAIT_S)
        finally:
            for call in waiting:
                call()
        for done in [done for done in self._rounds if done.done()]:
            self._rounds.remove(done)
            if not done.cancelled():
                done.result()

    async def register_all(self) -> int:
        """Tell every NameServer; returns how many took it."""
        addresses = self._node.config.namesrv_addresses
        if not addresses or self._is_leaving or self.is_held_back:
            return 0
        body = await self.body()
        free = [address for address in addresses if address not in self._asked]
        self._behind.update(address for address in addresses if address in self._asked)
        if not free or self._is_leaving:
            return 0
        results = await asyncio.gather(*(self._register_in_turn(address, body) for address in free))
        answers = [answer for answer in results if answer is not None]
        if answers and self._master_told is not None:
            masters = [(answer.master_addr, answer.ha_server_addr or "") for answer in answers if answer.master_addr]
            self._master_told(*(masters[0] if masters else ("", "")))
        return len(answers)

    async def check_name(self, within_s: float) -> None:
        """NameTakenError when a NameServer that answers in time knows a live broker in this one's place."""
        questions = [asyncio.ensure_future(self._conflict(a)) for a in self._node.config.namesrv_addresses]
        if not questions:
            return
        try:
            await asyncio.wait(questions, timeout=within_s)
        finally:
            for question in questions:
                question.cancel()
        for question in questions:
            if question.done() and not question.cancelled() and (conflict := question.result()) is not None:
                raise conflict

    async def _conflict(self, address: str) -> NameTakenError | None:
        try:
            return await self._guard.conflict(address)
        except WireError:
            return None  # it is asked again before a registration

    async def unregister_all(self) -> None:
        self._is_leaving = True
        self.cancel()
        if self.is_held_back:
            return
        mine = [address for address in self._node.config.namesrv_addresses if self._missed.get(address) != _TAKEN]
        await asyncio.gather(*map(self._unregister, mine))

    async def body(self) -> bytes:
        """Every topic with its permissions, limited by what the broker itself may do. Made again when that changed."""
        node = self._node
        version = node.topics.version
        permission = node.config.broker_permission
        state = (*version.parts, permission)
        if self._body is not None and self._body[0] == state:
            return self._body[1]
        data_version = DataVersion(
            counter=version.counter, state_version=version.state_version, timestamp=version.timestamp
        )
        table = {}
        async for topic in in_turns(list(node.topics)):
            perm = topic.perm
            if not (node.config.is_writable and node.config.is_readable):
                perm = topic.perm & permission
            table[topic.name] = TopicConfig(
                topic_name=topic.name,
                read_queue_nums=topic.read_queues,
                write_queue_nums=topic.write_queues,
                perm=perm,
                topic_filter_type=topic.filter_type,
                topic_sys_flag=topic.sys_flag,
                order=topic.order,
                attributes=dict(topic.attributes),
            )
        wrapper = TopicConfigWrapper(
            data_version=data_version,
            mapping_data_version=DataVersion(timestamp=node.started_ms),
            topic_config_table=table,
            topic_queue_mapping_detail_map={},
            topic_queue_mapping_info_map={},
        )
        body = encode_body(RegisterBrokerBody(topic_config_serialize_wrapper=wrapper))
        self._body = (state, body)
        return body

    async def _register_in_turn(self, address: str, body: bytes) -> RegisterBrokerResponse | None:
        """One at a time to each; what changed while it was awaited is told when it is over."""
        self._asked.add(address)
        try:
            return await self._register(address, body)
        finally:
            self._asked.discard(address)  # two rounds may have found it free before either began to ask
            if address in self._behind:
                self._behind.remove(address)
                self.register_soon()

    async def _register(self, address: str, body: bytes) -> RegisterBrokerResponse | None:
        """What the NameServer answers; None when it did not take it."""
        config = self._node.config
        header = RegisterBroker(
            broker_name=config.broker_name,
            broker_addr=self._node.address,
            cluster_name=config.broker_cluster_name,
            ha_server_addr=self.ha_address,
            broker_id=config.broker_id,
            enable_acting_master=config.enable_slave_acting_master,
            heartbeat_timeout_millis=(
                config.broker_not_active_timeout_millis if config.enable_slave_acting_master else None
            ),
            compressed=False,
        )
        try:
            conflict = await self._guard.conflict(address)
            if conflict is not None:
                self._note(address, _TAKEN, str(conflict))
                return None
            answer = await self._client.invoke(
                address, RequestCode.REGISTER_BROKER, header, body, config.register_broker_timeout_mills / 1000
            )
        except WireError as exc:
            self._note(address, _AWAY, str(exc))
            return None
        if answer.code != ResponseCode.SUCCESS:
            self._note(address, _AWAY, f"it answered {answer.code}: {answer.remark or 'no reason'}")
            return None
        self._note(address, "", "")
        self._learn_order(answer.body)
        return answer.header(RegisterBrokerResponse)

    def _learn_order(self, body: bytes) -> None:
        """Which topics are ordered; a slave has that from its master."""
        if body and not self._node.is_slave:
            try:
                self._node.topics.set_order_topics(decode_body(body, KVTable).table)
            except WireError as exc:
                log.warning("the NameServer's order topics cannot be read: %s", exc)

    def _note(self, address: str, missed: str, why: str) -> None:
        """Say it when it changes and hourly, not every 30 s."""
        before, self._missed[address] = self._missed.get(address), missed
        self._why[address] = why
        if missed:
            if before != missed:
                level = logging.ERROR if missed == _TAKEN else logging.WARNING
                self._faults[address] = LastingFault(log, f"not registered with NameServer {address}", level=level)
            self._faults[address].goes_on(f"{why}; trying again every {self.period_s:g} s")
        elif before:
            self._faults[address].is_over(f"registered with NameServer {address} as {self._node.address}")
        elif before is None:
            log.info("registered with NameServer %s as %s", address, self._node.address)

    async def _unregister(self, address: str) -> None:
        config = self._node.config
        header = BrokerIdentity(
            broker_name=config.broker_name,
            broker_addr=self._node.address,
            cluster_name=config.broker_cluster_name,
            broker_id=config.broker_id,
        )
        try:
            await self._client.invoke(address, RequestCode.UNREGISTER_BROKER, header, b"", UNREGISTER_TIMEOUT_S)
        except WireError as exc:
            log.info("not unregistered from NameServer %s: %s", address, exc)
