"""From the NameServer's route of a topic to the queues that one may write and read.

A route lists, per broker name, how many queues there are and what is allowed, and per broker name the addresses of its
replicas by id (0 is the master). Writing needs a master; reading does not. Everything here is a value or a pure
function: the cache that holds routes belongs to the client instance.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from contrailmq.message import MessageQueue
from contrailmq.wire.bodies import TopicRouteData, decode_body
from contrailmq.wire.errors import RemoteProtocolError

MASTER_ID: Final = 0
PERMISSION_READ: Final = 4
PERMISSION_WRITE: Final = 2


@dataclass(frozen=True, slots=True, order=True)
class QueueGroup:
    """The queues of a topic on one broker name (RocketMQ's QueueData)."""

    broker_name: str
    read_queues: int
    write_queues: int
    permission: int
    topic_sys_flag: int = 0


@dataclass(frozen=True, slots=True)
class Broker:
    """One broker name with its replicas (RocketMQ's BrokerData)."""

    name: str
    cluster: str
    addresses: Mapping[int, str]


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """A topic's route. Equal routes have equal values whatever order the NameServer listed them in."""

    queue_groups: tuple[QueueGroup, ...]
    brokers: tuple[Broker, ...]
    order_conf: str = ""

    def broker(self, name: str) -> Broker | None:
        return next((broker for broker in self.brokers if broker.name == name), None)


def parse_route(body: bytes) -> TopicRoute:
    """From a TopicRouteData body, standard JSON or Java's. Raises RemoteProtocolError saying what is wrong with it."""
    data = decode_body(body, TopicRouteData)
    groups = (
        QueueGroup(item.broker_name, item.read_queue_nums, item.write_queue_nums, item.perm, item.topic_sys_flag)
        for item in data.queue_datas
    )
    brokers = (
        Broker(item.broker_name, item.cluster or "", dict(sorted(item.broker_addrs.items())))
        for item in data.broker_datas
    )
    return TopicRoute(
        tuple(sorted(groups)), tuple(sorted(brokers, key=lambda broker: broker.name)), data.order_topic_conf or ""
    )


def publish_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """The queues to send to: those of the order configuration exactly, else all writable ones that have a master."""
    if route.order_conf:
        queues = []
        for part in route.order_conf.split(";"):
            name, _, count = part.partition(":")
            if count and not count.strip().isdecimal():
                raise RemoteProtocolError(
                    f"the order configuration of topic {topic!r} is {route.order_conf!r}: it must be broker:queues;..."
                )
            queues += [MessageQueue(topic, name, queue_id) for queue_id in range(int(count or 0))]
        return queues
    queues = []
    for group in route.queue_groups:
        broker = route.broker(group.broker_name)
        if group.permission & PERMISSION_WRITE and broker is not None and MASTER_ID in broker.addresses:
            queues += [MessageQueue(topic, group.broker_name, queue_id) for queue_id in range(group.write_queues)]
    return queues


def subscribe_queues(topic: str, route: TopicRoute) -> list[MessageQueue]:
    """The queues to read, sorted; a broker without a master can still be read."""
    return sorted(
        MessageQueue(topic, group.broker_name, queue_id)
        for group in route.queue_groups
        if group.permission & PERMISSION_READ
        for queue_id in range(group.read_queues)
    )


def default_topic_route(route: TopicRoute, *, queues_max: int) -> TopicRoute:
    """The route of the template topic, cut to what auto-creation will make of it."""
    groups = tuple(
        QueueGroup(
            group.broker_name,
            min(queues_max, group.read_queues),
            min(queues_max, group.read_queues),
            group.permission,
            group.topic_sys_flag,
        )
        for group in route.queue_groups
    )
    return TopicRoute(groups, route.brokers, route.order_conf)


def read_address(addresses: Mapping[int, str], suggested_id: int) -> tuple[str, int] | None:
    """Where to pull: the suggested replica, the next one when a slave is gone, else any."""
    if suggested_id in addresses:
        return addresses[suggested_id], suggested_id
    if suggested_id != MASTER_ID and suggested_id + 1 in addresses:
        return addresses[suggested_id + 1], suggested_id + 1
    for id_, address in addresses.items():
        return address, id_
    return None
