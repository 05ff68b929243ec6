"""What is checked before a POP request is served, in the reference's order and with its codes."""

from __future__ import annotations

from typing import Final

from contrailmq.broker.filters import SQL92, SqlError, Subscription, parse_subscription
from contrailmq.broker.handlers import Refused
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.state.groups import Group
from contrailmq.broker.state.topics import Topic
from contrailmq.wire.codes import ResponseCode
from contrailmq.wire.header import Fields
from contrailmq.wire.peer import Peer

HELP: Final = "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
PARSED_MAX: Final = 1024
PARSED_CHARS_MAX: Final = 256 * 1024
LATE_MS: Final = 500  # a request that is older than its own polling time by this was given up by its client


class Checks:
    """Owner: the loop."""

    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self._parsed: dict[tuple[str, str, str], Subscription] = {}
        self._parsed_chars = 0

    def serving(self, what: str, ext: Fields) -> None:
        """This broker hands out messages and has a timer."""
        node = self._node
        if node.is_slave:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"this broker is a slave (brokerId {node.config.broker_id}): {what} at its master",
                ext,
            )
        if not node.config.is_readable:
            raise Refused(ResponseCode.NO_PERMISSION, f"the broker[{self._host}] {what} is forbidden", ext)

    def pop_allowed(self, max_count: int, ext: Fields) -> None:
        if max_count > 32:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"the broker[{self._host}] pop message's num is greater than 32",
                ext,
            )
        if not self._node.store.config.timer_wheel_enable:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"the broker[{self._host}] pop message is forbidden because timerWheelEnable is false",
                ext,
            )

    def in_time(self, born_time_ms: int, poll_ms: int, ext: Fields) -> None:
        if self._node.now_ms() - born_time_ms - poll_ms > LATE_MS:
            raise Refused(
                ResponseCode.POLLING_TIMEOUT, f"the broker[{self._host}] pop message is timeout too much", ext
            )

    def topic_to_ack(self, name: str, queue_id: int, connection: Peer, ext: Fields | None) -> Topic:
        topic = self._topic(name, ext)
        if not 0 <= queue_id < topic.read_queues:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, _illegal_queue(topic, queue_id, connection), ext)
        return topic

    def readable(
        self, topic_name: str, group_name: str, queue_id: int, connection: Peer, ext: Fields
    ) -> tuple[Topic, Group]:
        """Topic and group of a request that reads; a negative queue means all."""
        topic = self._topic(topic_name, ext)
        if not topic.is_readable:
            raise Refused(ResponseCode.NO_PERMISSION, f"the topic[{topic_name}] peeking message is forbidden", ext)
        if queue_id >= topic.read_queues:
            raise Refused(ResponseCode.INVALID_PARAMETER, _illegal_queue(topic, queue_id, connection), ext)
        group = self._node.group_to_read(group_name)
        if group is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{group_name[:64]}] does not exist, {HELP}",
                ext,
            )
        if not group.consume_enable:
            raise Refused(ResponseCode.NO_PERMISSION, f"subscription group no permission, {group.name}", ext)
        if self._node.groups.is_forbidden(group.name, topic.name):
            raise Refused(ResponseCode.NO_PERMISSION, f"group {group.name} may not read topic {topic.name}", ext)
        return topic, group

    def subscription(self, topic: str, expression: str | None, kind: str | None, ext: Fields) -> Subscription | None:
        """None: everything is wanted. The request decides, whatever heartbeats said."""
        if not expression or expression == "*":
            return None
        key = (topic, expression, kind or "")
        known = self._parsed.get(key)
        if known is not None:
            return known
        if kind == SQL92 and not self._node.config.enable_property_filter:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, "the broker does not filter by SQL92: enablePropertyFilter=false", ext
            )
        try:
            known = parse_subscription(topic, expression, kind or None)
        except SqlError as exc:
            raise Refused(
                ResponseCode.SUBSCRIPTION_PARSE_FAILED, f"parse the consumer's subscription failed: {exc}", ext
            ) from None
        size = len(topic) + len(expression)
        if len(self._parsed) >= PARSED_MAX or self._parsed_chars + size > PARSED_CHARS_MAX:
            self._parsed.clear()
            self._parsed_chars = 0
        self._parsed[key] = known
        self._parsed_chars += size
        return known

    def _topic(self, name: str, ext: Fields | None) -> Topic:
        topic = self._node.topic_to_read(name)
        if topic is None:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST, f"topic[{name[:128]}] not exist, apply first please! {HELP}", ext
            )
        return topic

    @property
    def _host(self) -> str:
        return self._node.address.rpartition(":")[0]


def _illegal_queue(topic: Topic, queue_id: int, connection: Peer) -> str:
    return (
        f"queueId[{queue_id}] is illegal, topic:[{topic.name}] topicConfig.readQueueNums:[{topic.read_queues}] "
        f"consumer:[/{connection.address}]"
    )
