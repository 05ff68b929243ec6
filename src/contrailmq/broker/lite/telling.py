"""Events: a lite topic may have messages for a group now. Its clients are told, and one that waits is woken.

A batch in flight blocks its lite topic for the group. It is free again when the last of the batch is acknowledged, or
when all that is open is due again: `_due` has these times, in steady time, and a tick looks at them.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from typing import Final

from contrailmq.broker.lite.registry import LiteClient, Registry
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.pop.orders import OrderTable, Place
from contrailmq.broker.pop.positions import FROM_LAST, Positions
from contrailmq.broker.pop.waiting import ALL_QUEUES, Key, Waiters
from contrailmq.broker.state.lite_names import PREFIX, QUEUE_ID
from contrailmq.store import Arrival

DUE_MAX: Final = 1000  # that are looked at in one tick


def waiting_key(client_id: str) -> Key:
    return (client_id, "", ALL_QUEUES)


class Telling:
    """Owner: LiteService."""

    def __init__(
        self, node: BrokerNode, registry: Registry, orders: OrderTable, positions: Positions, waiters: Waiters
    ) -> None:
        self._node = node
        self._registry = registry
        self._orders = orders
        self._positions = positions
        self._waiters = waiters
        self._arrivals: list[tuple[str, int]] = []
        self._due: list[tuple[int, Place]] = []
        node.store.add_arrival_listener(self._arrived, queues=registry)

    @property
    def waits(self) -> bool:
        return bool(self._due)

    # --- messages

    def _arrived(self, arrival: Arrival) -> None:
        """Called while the queues are written: what it wakes reads them afterwards."""
        if not self._arrivals:
            self._node.call_soon(self._tell)
        self._arrivals.append((arrival.topic, arrival.queue_offset))

    def _tell(self) -> None:
        arrivals, self._arrivals = self._arrivals, []
        first: dict[str, int] = {}
        for queue, offset in arrivals:
            first.setdefault(queue, offset)
        for queue, offset in first.items():
            for group in self._registry.groups(queue):
                self._begin(queue, group, offset)
                self.tell(queue, group)

    def _begin(self, queue: str, group: str, offset: int) -> None:
        """A subscribed group without a position begins with this message at the latest: it misses none from now on."""
        place = (queue, group, QUEUE_ID)
        known = self._node.offsets.stored(f"{queue}@{group}", QUEUE_ID)
        if known is None:
            begin = min(self._positions.current(place, FROM_LAST), offset)
            self._node.offsets.commit(group, queue, QUEUE_ID, begin)
        elif known > self._node.store.max_offset(queue, QUEUE_ID):  # it was cleaned away, and begins anew
            self._node.offsets.commit(group, queue, QUEUE_ID, max(self._node.store.min_offset(queue, QUEUE_ID), 0))
            self._orders.drop(place)

    def has_messages(self, place: Place) -> bool:
        queue, group, _ = place
        end = self._node.store.max_offset(queue, QUEUE_ID)
        position = self._node.offsets.query(group, queue, QUEUE_ID)
        return end > 0 if position is None else end > position

    # --- clients

    def tell(self, queue: str, group: str) -> None:
        """The group's lite topic may have messages."""
        place = (queue, group, QUEUE_ID)
        members = self._registry.members(queue, group)
        if not members or self._orders.is_blocked(place, None):
            return  # it is told when it is free
        for client in members.values():
            client.ready[queue] = None
        for client_id in members:
            if self._waiters.wake(waiting_key(client_id)):
                members[client_id] = members.pop(client_id)
                return

    def tell_client(self, client: LiteClient, queues: Iterable[str]) -> None:
        """The client has these from now on, or an administrator wants it to look at them."""
        for queue in queues:
            place = (queue, client.group, QUEUE_ID)
            if self.has_messages(place) and not self._orders.is_blocked(place, None):
                client.ready[queue] = None
        if client.ready:
            self._waiters.wake(waiting_key(client.id))

    def freed(self, place: Place) -> None:
        """Nothing of it is in flight any more, or what is open is due again."""
        if self.has_messages(place):
            self.tell(place[0], place[1])

    # --- time

    def due_at(self, place: Place, steady_ms: int) -> None:
        heapq.heappush(self._due, (steady_ms, place))

    def load(self) -> None:
        """What an earlier run had in flight."""
        self._due = [
            (max((order.steady_ms[offset] for offset in order.open_offsets()), default=0), place)
            for place in self._orders.places()
            if place[0].startswith(PREFIX) and (order := self._orders.get(place)) is not None
        ]
        heapq.heapify(self._due)

    def tick(self, steady_ms: int) -> None:
        for _ in range(DUE_MAX):
            if not self._due or self._due[0][0] >= steady_ms:
                return
            _, place = heapq.heappop(self._due)
            if not self._orders.is_blocked(place, None):
                self.freed(place)
