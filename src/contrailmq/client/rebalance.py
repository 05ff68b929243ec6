"""Which queues of a topic belong to which consumer of a group.

Nobody assigns queues centrally: every member asks for the same two lists (the topic's queues and the group's client
ids), sorts them alike and computes its own share with the same strategy. As long as the lists agree, the shares are
disjoint and complete; while they disagree (a member joins), a queue may have two readers for a moment, which is one of
the reasons why delivery is at least once.

So a strategy here must be the same function as in every other RocketMQ client: a Java and a Python member of one group
share queues. The vectors in the tests come from the Java client.
"""

from __future__ import annotations

import bisect
import hashlib
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from contrailmq.client.errors import ClientConfigError
from contrailmq.message import ContrailError, MessageQueue

VIRTUAL_NODES_PER_CLIENT: Final = 10  # the Java client's default; all members must use the same number


class AllocationStrategy(Protocol):
    """Computes one member's share. Both lists arrive sorted; the result is part of `queues`."""

    @property
    def name(self) -> str: ...

    def allocate(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]: ...


def allocate(
    strategy: AllocationStrategy, *, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
) -> list[MessageQueue]:
    """The share of `client_id`; empty when the broker does not list it yet.

    The checks that are common to all strategies, and the sorting that makes all members agree, live here.
    """
    if not client_id:
        raise ClientConfigError("rebalance needs the own client id, which is empty")
    if not queues or not client_ids:
        raise ClientConfigError(f"rebalance needs queues and client ids: got {len(queues)} and {len(client_ids)}")
    if client_id not in client_ids:
        return []
    try:
        share = list(strategy.allocate(client_id, sorted(queues), sorted(client_ids)))
    except ContrailError:
        raise
    except Exception as exc:  # the application's own strategy: the queues stay as they are
        raise ClientConfigError(f"strategy {strategy!r} raised {exc!r}: mend it, all members need its answer") from exc
    wrong = [queue for queue in share if not isinstance(queue, MessageQueue)]
    if wrong:
        raise ClientConfigError(f"strategy {strategy!r} gave {wrong[0]!r}: a share is a list of MessageQueue")
    return share


class AverageStrategy:
    """`AVG`, the default: consecutive runs of equal length, the first ones longer by one."""

    name = "AVG"

    def allocate(self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        index, count = client_ids.index(client_id), len(client_ids)
        rest = len(queues) % count
        if len(queues) <= count:
            size = 1
        else:
            size = len(queues) // count + (1 if index < rest else 0)
        start = index * size if index < rest else index * size + rest
        return list(queues[start : start + size])


class AverageByCircleStrategy:
    """`AVG_BY_CIRCLE`: dealt out one by one, like cards."""

    name = "AVG_BY_CIRCLE"

    def allocate(self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        return list(queues[client_ids.index(client_id) :: len(client_ids)])


class ConfigStrategy:
    """`CONFIG`: a fixed list, whatever the group looks like."""

    name = "CONFIG"

    def __init__(self, queues: Sequence[MessageQueue]) -> None:
        self._queues = list(queues)

    def allocate(self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        return list(self._queues)


class MachineRoomStrategy:
    """`MACHINE_ROOM`: only queues of brokers named `room@name` in the given rooms."""

    name = "MACHINE_ROOM"

    def __init__(self, rooms: Sequence[str]) -> None:
        self._rooms = frozenset(rooms)

    def allocate(self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        mine = [queue for queue in queues if self._is_near(queue.broker_name)]
        index, count = client_ids.index(client_id), len(client_ids)
        each, rest = divmod(len(mine), count)
        share = mine[index * each : (index + 1) * each]
        if index < rest:
            share.append(mine[each * count + index])
        return share

    def _is_near(self, broker_name: str) -> bool:
        parts = broker_name.split("@")
        return len(parts) == 2 and parts[0] in self._rooms


class MachineRoomNearbyStrategy:
    """`MACHINE_ROOM_NEARBY-<inner>`: my room's queues among my room's clients; orphan rooms among everybody."""

    def __init__(
        self,
        inner: AllocationStrategy,
        *,
        broker_room: Callable[[MessageQueue], str],
        client_room: Callable[[str], str],
    ) -> None:
        self._inner = inner
        self._broker_room = broker_room
        self._client_room = client_room

    @property
    def name(self) -> str:
        return f"MACHINE_ROOM_NEARBY-{self._inner.name}"

    def allocate(self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        queues_of: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            queues_of.setdefault(_room(self._broker_room(queue), f"broker {queue.broker_name!r}"), []).append(queue)
        clients_of: dict[str, list[str]] = {}
        for client in client_ids:
            clients_of.setdefault(_room(self._client_room(client), f"client {client!r}"), []).append(client)
        own_room = _room(self._client_room(client_id), f"client {client_id!r}")
        share: list[MessageQueue] = []
        if own_room in queues_of:
            share += self._inner.allocate(client_id, queues_of[own_room], clients_of[own_room])
        for room in sorted(queues_of):
            if room not in clients_of:
                share += self._inner.allocate(client_id, queues_of[room], client_ids)
        return share


class ConsistentHashStrategy:
    """`CONSISTENT_HASH`: a ring of virtual nodes, so that a joining member moves few queues."""

    name = "CONSISTENT_HASH"

    def __init__(
        self, *, virtual_nodes: int = VIRTUAL_NODES_PER_CLIENT, hash_function: Callable[[str], int] | None = None
    ) -> None:
        if virtual_nodes < 0:
            raise ClientConfigError(f"virtual_nodes must not be negative, got {virtual_nodes}")
        self._virtual_nodes = virtual_nodes
        self._hash = hash_function or ring_hash

    def allocate(self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> list[MessageQueue]:
        owner_at = {self._hash(f"{client}-{k}"): client for client in client_ids for k in range(self._virtual_nodes)}
        ring = sorted(owner_at)
        if not ring:
            return []
        return [queue for queue in queues if owner_at[self._node_of(ring, queue)] == client_id]

    def _node_of(self, ring: list[int], queue: MessageQueue) -> int:
        # The key is the Java class's toString, which therefore is part of the protocol between members.
        key = f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
        return ring[bisect.bisect_left(ring, self._hash(key)) % len(ring)]


def ring_hash(text: str) -> int:
    """First four bytes of MD5, big-endian, unsigned."""
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


def _room(name: str, whose: str) -> str:
    if not name:
        raise ClientConfigError(f"the machine room of {whose} is empty: the resolver must name one for everybody")
    return name
