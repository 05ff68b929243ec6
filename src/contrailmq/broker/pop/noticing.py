"""Questions that take nothing: NOTIFICATION (200054), POLLING_INFO (200055), PEEK_MESSAGE (200052).

A notification says whether a pop would find something, and waits for that if it may. PEEK gives messages that a pop
would give next and leaves them where they are: no filter, no checkpoint.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Final

from contrailmq.broker.handlers import Handlers, answer_later
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.pop.acking import NO_REMARK
from contrailmq.broker.pop.checks import Checks
from contrailmq.broker.pop.orders import OrderTable
from contrailmq.broker.pop.popping import FOUND, NOTHING
from contrailmq.broker.pop.positions import Positions
from contrailmq.broker.pop.waiting import ALL_QUEUES, EARLY_MS, Waiter, Waiters
from contrailmq.message import RETRY_PREFIX, pop_retry_topic, pop_retry_topic_v2
from contrailmq.store import GetStatus
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.frame import encode_response
from contrailmq.wire.header import Command
from contrailmq.wire.peer import Peer
from contrailmq.wire.pop_requests import (
    Notification,
    NotificationResponse,
    PeekMessage,
    PollingInfo,
    PollingInfoResponse,
    PopMessageResponse,
)

FROM_FIRST: Final = 0
PEEK_MAX: Final = 32


class Noticing:
    def __init__(
        self,
        node: BrokerNode,
        *,
        checks: Checks,
        positions: Positions,
        orders: OrderTable,
        waiters: Waiters,
        notified: Waiters,
    ) -> None:
        self._node = node
        self._checks = checks
        self._positions = positions
        self._orders = orders
        self._waiters = waiters
        self._notified = notified
        self.random: Callable[[int], int] = random.Random().randrange

    def register(self, handlers: Handlers) -> None:
        handlers.register(RequestCode.NOTIFICATION, self.notification)
        handlers.register(RequestCode.POLLING_INFO, self.polling_info)
        handlers.register(RequestCode.PEEK_MESSAGE, self.peek)

    def has_messages(self, topic: str, group: str, queue_id: int) -> bool:
        """Whether any of these queues, or of the group's retry topics, has messages after the group's position."""
        return any(self._behind(name, group, number) > 0 for name, number in self._queues(topic, group, queue_id))

    # --- notification

    def notification(self, connection: Peer, command: Command) -> bytes | None:
        header = command.header(Notification)
        if header.born_time <= 0:
            header.born_time = self._node.now_ms()
        self._checks.serving("notification", NotificationResponse())
        return self._notify(connection, command, header)

    def _notify(self, connection: Peer, command: Command, header: Notification) -> bytes | None:
        node, fields = self._node, NotificationResponse()
        topic, group = self._checks.readable(header.topic, header.consumer_group, header.queue_id, connection, fields)
        subscription = self._checks.subscription(header.topic, header.exp, header.exp_type, fields)
        node.dispatch_now()
        fields.has_msg = self._is_there(header, topic.name, group.name)
        remaining_ms = header.born_time + header.poll_time - node.now_ms() - EARLY_MS
        if fields.has_msg or header.poll_time <= 0 or remaining_ms <= 0 or not node.is_accepting:
            return encode_response(command, ResponseCode.SUCCESS, fields, remark=NO_REMARK)
        waiter = Waiter(
            (topic.name, group.name, max(header.queue_id, ALL_QUEUES)),
            deadline_ms=node.monotonic_ms() + min(remaining_ms, header.poll_time),
            connection=connection,
            resume=lambda: answer_later(connection, command, lambda: self._notify(connection, command, header)),
            filter=None if subscription is None else subscription.filter,
            is_heavy=subscription is not None and subscription.is_heavy,
        )
        if self._notified.try_hold(waiter):
            return None
        fields.polling_full = True
        return encode_response(command, ResponseCode.SUCCESS, fields, remark=NO_REMARK)

    def _is_there(self, header: Notification, topic: str, group: str) -> bool:
        if not header.order:
            return self.has_messages(topic, group, header.queue_id)
        return any(
            self._behind(topic, group, number) > 0
            and not self._orders.is_blocked((topic, group, number), header.attempt_id)
            for number in self._own_queues(topic, header.queue_id)
        )

    # --- the others

    def polling_info(self, connection: Peer, command: Command) -> bytes | None:
        header = command.header(PollingInfo)
        fields = PollingInfoResponse()
        self._checks.serving("polling info", fields)
        self._checks.readable(header.topic, header.consumer_group, header.queue_id, connection, fields)
        fields.polling_num = self._waiters.count((header.topic, header.consumer_group, header.queue_id))
        return encode_response(command, ResponseCode.SUCCESS, fields, remark=NO_REMARK)

    def peek(self, connection: Peer, command: Command) -> bytes | None:
        header = command.header(PeekMessage)
        fields = PopMessageResponse()
        self._checks.serving("peek message", fields)
        topic, group = self._checks.readable(header.topic, header.consumer_group, header.queue_id, connection, fields)
        self._node.dispatch_now()
        body, wanted = b"", min(max(header.max_msg_nums, 1), PEEK_MAX)
        rest = 0
        for name, number in self._queues(topic.name, group.name, header.queue_id):
            rest += self._behind(name, group.name, number)
            if wanted > 0 and len(body) < self._node.config.pull_bytes_max:
                found, count = self._first(name, group.name, number, wanted)
                body += found
                wanted -= count
        fields.rest_num = rest
        if not body:
            return encode_response(command, ResponseCode.PULL_NOT_FOUND, fields, remark=NOTHING)
        return encode_response(command, ResponseCode.SUCCESS, fields, body, FOUND)

    def _first(self, topic: str, group: str, queue_id: int, count: int) -> tuple[bytes, int]:
        offset = self._positions.current((topic, group, queue_id), FROM_FIRST)
        result = self._node.store.get_slices_sound(
            topic, queue_id, offset, count, max_bytes=self._node.config.pull_bytes_max
        )
        try:
            return (b"".join(result.slices), result.count) if result.status is GetStatus.FOUND else (b"", 0)
        finally:
            result.release()

    # --- queues

    def _queues(self, topic: str, group: str, queue_id: int) -> Iterator[tuple[str, int]]:
        """As a pop goes through them."""
        own = [(topic, number) for number in self._own_queues(topic, queue_id)]
        retry = [] if topic.startswith(RETRY_PREFIX) else list(self._retry_queues(topic, group))
        yield from retry + own if self.random(5) == 0 else own + retry

    def _own_queues(self, topic: str, queue_id: int) -> list[int]:
        if queue_id >= 0:
            return [queue_id]
        known = self._node.topic_to_read(topic)
        queues = 0 if known is None else known.read_queues
        begin = self.random(100)
        return [(begin + number) % queues for number in range(queues)]

    def _retry_queues(self, topic: str, group: str) -> Iterator[tuple[str, int]]:
        for name in (pop_retry_topic_v2(group, topic), pop_retry_topic(group, topic)):
            known = self._node.topics.get(name)
            if known is not None:
                yield from ((name, number) for number in range(known.read_queues))

    def _behind(self, topic: str, group: str, queue_id: int) -> int:
        position = self._positions.current((topic, group, queue_id), FROM_FIRST)
        return max(self._node.store.max_offset(topic, queue_id) - position, 0)
