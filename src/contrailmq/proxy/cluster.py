"""The cluster behind the proxy: routes, and what brokers say of topics and groups.

Everything is asked for over remoting, so any RocketMQ cluster will do. Answers are kept for REMEMBER_S: clients ask for
routes every 30 s and send their settings every five minutes, and sends must not cost a request more. Any master of a
topic may answer: one that stands still or is away costs NEXT_S. Where none answers, what was known goes on to count. An
orderly group must not be taken for another.
"""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from dataclasses import dataclass
from typing import Any, Final

from contrailmq.client.errors import BrokerNotFoundError
from contrailmq.client.settings import ClientOptions
from contrailmq.client.transport.instance import ClientInstance
from contrailmq.client.transport.routes import MASTER_ID, PERMISSION_READ, TopicRoute
from contrailmq.message import ContrailError, check_group, check_topic
from contrailmq.message.names import is_system_topic
from contrailmq.proxy.statuses import Code, Refused
from contrailmq.wire.admin_bodies import SubscriptionGroupConfig
from contrailmq.wire.bodies import TopicConfig, decode_body
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import WireError
from contrailmq.wire.header import Command, Fields

REMEMBER_S: Final = 20.0
NEXT_S: Final = 0.5  # without an answer for so long, the next master is asked as well
REMEMBERED_MAX: Final = 10_000  # topics, and groups: names come from clients

LITE_QUOTA: Final = 2000  # lite topics of one client, where its group does not say

MESSAGE_TYPES: Final = {"NORMAL": 1, "FIFO": 2, "DELAY": 3, "TRANSACTION": 4, "LITE": 5, "PRIORITY": 6}
NORMAL, FIFO, DELAY, TRANSACTION, LITE, PRIORITY = MESSAGE_TYPES.values()
MIXED: Final = (NORMAL, FIFO, DELAY, TRANSACTION)


@dataclass(frozen=True, slots=True)
class Group:
    """What a consumer group's settings mean for its members."""

    name: str
    is_fifo: bool = False
    retry_times: int = 16
    policy: str = "CUSTOMIZED"
    lite_parent: str = ""  # whose lite topics it reads
    lite_quota: int = LITE_QUOTA

    @property
    def attempts_max(self) -> int:
        return self.retry_times + 1


class Cluster:
    """Asks NameServers and brokers. Used on one loop."""

    def __init__(self, options: ClientOptions, client_id: str) -> None:
        self.instance = ClientInstance.acquire(client_id, options)
        self._loop = asyncio.get_running_loop()
        self._routes_at: dict[str, float] = {}
        self._types: dict[str, tuple[float, tuple[int, ...]]] = {}
        self._groups: dict[str, tuple[float, Group]] = {}

    async def close(self) -> None:
        await self.instance.release()

    async def route(self, topic: str) -> TopicRoute:
        """Refused when the name is not one that clients may use, NoRouteError when nobody has the topic."""
        now_s = self._loop.time()
        known = self.instance.routes.get(topic)
        if known is not None and now_s - self._routes_at.get(topic, -REMEMBER_S) < REMEMBER_S:
            return known  # its name was checked when it was asked for
        _check(topic)
        route = await self.instance.refresh_route(topic)
        _bound(self._routes_at)
        self._routes_at[topic] = now_s
        return route

    async def message_types(self, topic: str) -> tuple[int, ...]:
        """Which types of messages a topic takes: its attribute `message.type`."""
        known = self._types.get(topic)
        if known is not None and self._loop.time() - known[0] < REMEMBER_S:
            return known[1]
        name = "NORMAL"
        try:
            answer = await self._ask_any(topic, RequestCode.GET_TOPIC_CONFIG, {"topic": topic})
        except WireError:
            if known is None:
                raise
            return known[1]
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            name = decode_body(answer.body, TopicConfig).attributes.get("message.type", name)
        types = MIXED if name == "MIXED" else (MESSAGE_TYPES.get(name, NORMAL),)
        _bound(self._types)
        self._types[topic] = self._loop.time(), types
        return types

    async def group(self, name: str, topics: list[str]) -> Group:
        """The settings of a group, as a broker of one of its topics has them; defaults when none does.

        The brokers' error when none can be reached and nothing is known of the group.
        """
        known = self._groups.get(name)
        if known is not None and self._loop.time() - known[0] < REMEMBER_S:
            return known[1]
        group, is_sure, problem = Group(name), False, None
        for topic in topics:
            try:
                answer = await self._ask_any(topic, RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, {"group": name})
            except WireError as exc:
                problem = exc
                continue
            except ContrailError:
                continue  # a topic that is not there yet: another one may be
            if answer is not None and answer.code == ResponseCode.SUCCESS:
                config = decode_body(answer.body, SubscriptionGroupConfig)
                policy = str(config.group_retry_policy.get("type", "CUSTOMIZED"))
                parent = config.attributes.get("lite.bind.topic", "")
                quota = _whole(config.attributes.get("lite.sub.client.quota", ""), LITE_QUOTA)
                group = Group(name, config.consume_message_orderly, config.retry_max_times, policy, parent, quota)
                is_sure = True
                break
        if is_sure:
            _bound(self._groups)
            self._groups[name] = self._loop.time(), group
        elif problem is not None:
            if known is None:
                raise problem
            return known[1]
        return group

    async def _ask_any(self, topic: str, code: RequestCode, ext: Fields) -> Command | None:
        """What one master that has the topic says: the first with success, else any. None when there is no master."""
        route = await self.route(topic)
        left = [broker.addresses[MASTER_ID] for broker in route.brokers if MASTER_ID in broker.addresses]
        under_way: set[asyncio.Task[Command]] = set()
        answer, problem = None, None
        try:
            while left or under_way:
                if left:
                    under_way.add(asyncio.create_task(self.instance.remoting.invoke(left.pop(0), code, ext)))
                wait_s = NEXT_S if left or answer is not None else None
                done, under_way = await asyncio.wait(under_way, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    try:
                        answer = task.result()
                    except WireError as exc:
                        problem = exc
                        continue
                    if answer.code == ResponseCode.SUCCESS:
                        return answer
                if not done and not left and answer is not None:
                    break
        finally:
            for task in under_way:
                task.cancel()
        if answer is None and problem is not None:
            raise problem
        return answer

    async def reader(self, topic: str, broker_name: str) -> tuple[str, str]:
        """Name and address of the master to receive from: the one that is named, else any that can be read."""
        route = await self.route(topic)
        readable = [group.broker_name for group in route.queue_groups if group.permission & PERMISSION_READ]
        if not readable:
            raise Refused(Code.FORBIDDEN, f"no readable queue: topic {topic} gives nobody the right to read")
        for name in (broker_name, *readable):
            broker = route.broker(name) if name in readable else None
            if broker is not None and MASTER_ID in broker.addresses:
                return name, broker.addresses[MASTER_ID]
        raise BrokerNotFoundError(broker_name or readable[0])

    async def master(self, broker_name: str, topic: str) -> str:
        return await self.instance.find_master(broker_name, topic)

    def broker_at(self, address: str) -> str:
        """Which broker has an address; empty when it is not known."""
        for name, addresses in self.instance.broker_addresses.items():
            if address in addresses.values():
                return name
        return ""


def _check(topic: str) -> None:
    try:
        check_topic(topic)
    except ContrailError as exc:
        raise Refused(Code.ILLEGAL_TOPIC, str(exc)) from None
    if is_system_topic(topic):
        raise Refused(Code.ILLEGAL_TOPIC, f"topic {topic} is the cluster's own: choose another")


def check_consumer_group(name: str) -> None:
    try:
        check_group(name)
    except ContrailError as exc:
        raise Refused(Code.ILLEGAL_CONSUMER_GROUP, str(exc)) from None


def _whole(text: str, default: int) -> int:
    return min(int(text), 2**31 - 1) if text.isascii() and text.removeprefix("-").isdigit() else default


def _bound(table: MutableMapping[str, Any]) -> None:
    if len(table) >= REMEMBERED_MAX:
        table.clear()
