"""Escape: a slave that stands in for its master hands what is due to masters of other groups.

A slave's log takes no messages, so a delayed message that is due, or a half message that nobody can end here, is sent
to a master of another group which has the message's topic: consumers of the topic read it there. It keeps its body, its
keys and its id. A half message is sent as one, so that the other master asks its producer.

Services offer their messages in order, again and again, until the other broker has them (`hand_over`). What is offered
is sent at once, up to IN_FLIGHT_MAX at a time, and remembered by its place in the log until its service has heard that
it arrived. A send that fails is tried again after PAUSE_MS, with another broker where there is one; a send that timed
out may have been stored and is then there twice. Nothing is passed over, whatever the reason (RocketMQ's timers give up
after a few tries: #7923, #7927): while nobody takes them the services stand still, a line a minute says why, and the
messages wait for the master.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from contrailmq.broker.cluster.master_log import Asking
from contrailmq.broker.node import BrokerNode
from contrailmq.message import (
    ContrailError,
    MessageError,
    Property,
    StoredMessage,
    SysFlag,
    SystemTopic,
    encode_properties,
)
from contrailmq.wire.admin_requests import GetRouteInfo
from contrailmq.wire.bodies import TopicRouteData, decode_body
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import WireError
from contrailmq.wire.requests import SendMessage

log = logging.getLogger("contrailmq.broker")

IN_FLIGHT_MAX: Final = 64
SEND_TIMEOUT_S: Final = 3.0  # as in RocketMQ's EscapeBridge
ROUTE_MS: Final = 5_000  # how long an answer of the NameServers is good
PAUSE_MS: Final = 1_000  # before messages of a topic are tried again, and before a broker that failed is
REMIND_MS: Final = 60_000
PERM_WRITE: Final = 2

# The last three: stored, and less safe than the other broker's settings ask for. Once more would be twice.
_STORED: Final = frozenset(
    (
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    )
)
_OF_WAITING: Final = (Property.REAL_TOPIC, Property.REAL_QUEUE_ID, Property.WAIT, Property.CRC32)
_OF_DELAY: Final = (
    Property.DELAY,
    Property.TRANSACTION_PREPARED,
    Property.TIMER_DELAY_SECONDS,
    Property.TIMER_DELAY_MS,
    Property.TIMER_DELIVER_MS,
    Property.TIMER_OUT_MS,
    Property.TIMER_ENQUEUE_MS,
    Property.TIMER_DEQUEUE_MS,
    Property.TIMER_ROLL_TIMES,
)
_OF_HALF: Final = (Property.TRANSACTION_PREPARED_QUEUE_OFFSET, Property.TRANSACTION_CHECK_TIMES)


class EscapeError(ContrailError):
    """No other broker takes a message now. The text says why."""


class Target(NamedTuple):
    """A queue of another group."""

    address: str
    queue_id: int


class Outgoing(NamedTuple):
    """A message as it is sent elsewhere."""

    topic: str
    group: str
    properties: str
    sys_flag: int
    message: StoredMessage


def outgoing(message: StoredMessage, deliver_ms: int, *, inner_group: str) -> Outgoing | None:
    """What becomes of a message that waits; None when it does not say where it belongs, as then it belongs nowhere.

    `deliver_ms` is when it is due, 0 for one that is. WAIT goes: the other broker acknowledges it as it does others.
    """
    properties = dict(message.properties)
    topic = properties.get(Property.REAL_TOPIC, "")
    is_half = message.topic == SystemTopic.HALF
    for name in (*_OF_WAITING, *(_OF_HALF if is_half else _OF_DELAY)):
        properties.pop(name, None)
    sys_flag = message.sys_flag & ~(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6 | SysFlag.TRANSACTION_MASK)
    if is_half:
        properties[Property.TRANSACTION_PREPARED] = "true"
        sys_flag |= SysFlag.TRANSACTION_PREPARED
    if deliver_ms:
        properties[Property.TIMER_DELIVER_MS] = str(deliver_ms)
    try:
        text = encode_properties(properties).decode()
    except (MessageError, UnicodeDecodeError):
        return None
    group = properties.get(Property.PRODUCER_GROUP) or inner_group
    return Outgoing(topic, group, text, sys_flag, message) if topic and topic != SystemTopic.HALF else None


class Escape:
    """Owner: BrokerServer. Runs on the loop's thread."""

    def __init__(self, node: BrokerNode, client: Asking) -> None:
        self._node = node
        self._client = client
        config = node.config
        self._inner_group = f"InnerProducerGroup_{config.broker_name}_{config.broker_id}"
        self._sending: dict[int, asyncio.Task[None]] = {}  # by the place of the message in our log
        self._arrived: set[int] = set()
        self._pauses: dict[str, int] = {}  # topic or address -> until when it is left alone
        self._routes: dict[str, tuple[int, list[Target]]] = {}  # topic -> when it was asked for, queues
        self._turn = 0
        self._is_closed = True
        self.escaped = 0
        self._stuck: dict[str, str] = {}  # topic -> why its messages wait
        self._told_ms: int | None = None  # when a line said so last
        self._is_told = False

    # --- for the services

    def hand_over(self, messages: Sequence[tuple[StoredMessage, int]]) -> int:
        """How many of these, from the first on, another group has; the others are on their way from now on.

        Each comes with the time at which it is due there, 0 for one that is due.
        """
        first_missing = len(messages)
        for index, (message, deliver_ms) in enumerate(messages):
            place = message.physical_offset
            if place not in self._arrived and (place in self._sending or not self._try_begin(message, deliver_ms)):
                first_missing = min(first_missing, index)
        for message, _ in messages[:first_missing]:
            self._arrived.discard(message.physical_offset)
        return first_missing

    # --- life

    def open(self) -> None:
        self._is_closed = False

    def close(self) -> None:
        """Begin nothing any more; what has arrived can still be heard of."""
        self._is_closed = True

    async def settled(self) -> None:
        """Return when nothing is on its way."""
        while self._sending:
            await asyncio.wait(list(self._sending.values()))

    def forget(self) -> None:
        """Give up what is on its way, and forget what has arrived: it is not known here any more whether it did."""
        self.close()
        for task in self._sending.values():
            task.cancel()
        self._sending.clear()
        self._arrived.clear()
        self._pauses.clear()
        self._routes.clear()
        self._stuck.clear()
        self._is_told = False

    def figures(self) -> dict[str, str]:
        """Lines for GET_BROKER_RUNTIME_INFO."""
        return {"escaped": str(self.escaped), "escapeStandstill": self.standstill}

    # --- sending

    def _try_begin(self, message: StoredMessage, deliver_ms: int) -> bool:
        """Send a message if that may be now; True when nothing has to be sent."""
        if self._is_closed or len(self._sending) >= IN_FLIGHT_MAX:
            return False
        if not self._node.config.enable_remote_escape:
            self._stands_still("", "enableRemoteEscape=false: set it to true to have other groups deliver it")
            return False
        self._stuck.pop("", None)
        found = outgoing(message, deliver_ms, inner_group=self._inner_group)
        if found is None:
            log.error("waiting message %s does not say where it belongs: dropped", message.offset_message_id)
            return True
        if not self._is_paused(found.topic):
            task = asyncio.get_running_loop().create_task(self._send(found))
            self._sending[message.physical_offset] = task
            task.add_done_callback(lambda done: self._ended(message.physical_offset, done))
        return False

    def _ended(self, place: int, task: asyncio.Task[None]) -> None:
        if self._sending.get(place) is task:
            del self._sending[place]
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("a message was not handed over, and is tried again", exc_info=error)

    async def _send(self, found: Outgoing) -> None:
        try:
            await self._send_once(found)
        except (EscapeError, WireError) as exc:
            self._pauses[found.topic] = self._node.monotonic_ms() + PAUSE_MS
            self._routes.pop(found.topic, None)
            self._stands_still(found.topic, str(exc))
        else:
            self._arrived.add(found.message.physical_offset)
            self.escaped += 1
            self._stuck.pop(found.topic, None)
            self._goes_on()

    async def _send_once(self, found: Outgoing) -> None:
        target = await self._target(found.topic)
        message = found.message
        header = SendMessage(
            producer_group=found.group,
            topic=found.topic,
            default_topic=SystemTopic.AUTO_CREATE,
            default_topic_queue_nums=self._node.config.default_topic_queue_nums,
            queue_id=target.queue_id,
            sys_flag=found.sys_flag,
            born_timestamp=message.born_time_ms,
            flag=message.flag,
            properties=found.properties,
            reconsume_times=message.reconsume_times,
            unit_mode=False,
            batch=False,
        )
        try:
            answer = await self._client.invoke(
                target.address, RequestCode.SEND_MESSAGE, header, message.stored_body, SEND_TIMEOUT_S
            )
        except WireError:
            self._pauses[target.address] = self._node.monotonic_ms() + PAUSE_MS
            raise
        if answer.code not in _STORED:
            self._pauses[target.address] = self._node.monotonic_ms() + PAUSE_MS
            raise EscapeError(
                f"broker {target.address} does not take a message of topic {found.topic}: {answer.code} {answer.remark}"
            )

    def _is_paused(self, key: str) -> bool:
        return self._node.monotonic_ms() < self._pauses.get(key, 0)

    # --- where to

    async def _target(self, topic: str) -> Target:
        """One queue after the other, and those of brokers that have just failed only when there are no others."""
        asked_ms, targets = self._routes.get(topic, (0, []))
        if not targets or self._node.monotonic_ms() - asked_ms >= ROUTE_MS:
            targets = await self._ask(topic)
            self._routes[topic] = (self._node.monotonic_ms(), targets)
        well = [target for target in targets if not self._is_paused(target.address)] or targets
        self._turn += 1
        return well[self._turn % len(well)]

    async def _ask(self, topic: str) -> list[Target]:
        """The writable queues of other groups' masters; EscapeError when there are none."""
        config, why = self._node.config, "no NameServer is set"
        for namesrv in config.namesrv_addresses:
            try:
                answer = await self._client.invoke(
                    namesrv, RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfo(topic=topic), b"", SEND_TIMEOUT_S
                )
            except WireError as exc:
                why = str(exc)
                continue
            if answer.code == ResponseCode.SUCCESS:
                targets = _targets(decode_body(answer.body, TopicRouteData), without=config.broker_name)
                if targets:
                    return targets
            why = f"create the topic there, or start the master of {config.broker_name}"
        raise EscapeError(f"no master of another group that takes messages of topic {topic} is known: {why}")

    # --- what is said

    @property
    def standstill(self) -> str:
        """Why messages wait; empty when none does."""
        return "; ".join(self._stuck.values())

    def _stands_still(self, topic: str, why: str) -> None:
        self._stuck[topic] = why
        now_ms = self._node.monotonic_ms()
        if self._told_ms is None or now_ms - self._told_ms >= REMIND_MS:
            self._told_ms, self._is_told = now_ms, True
            name = self._node.config.broker_name
            log.warning("slave %s stands in for its master, and what is due waits: %s", name, why)

    def _goes_on(self) -> None:
        if self._is_told and not self._stuck:
            self._is_told = False
            log.info("slave %s: what was due and waited goes to other groups", self._node.config.broker_name)


def _targets(route: TopicRouteData, *, without: str) -> list[Target]:
    masters = {data.broker_name: data.broker_addrs[0] for data in route.broker_datas if 0 in data.broker_addrs}
    return [
        Target(masters[queues.broker_name], queue_id)
        for queues in route.queue_datas
        if queues.perm & PERM_WRITE and queues.broker_name in masters and queues.broker_name != without
        for queue_id in range(queues.write_queue_nums)
    ]
