"""Who is subscribed to which lite topics, and which of them have messages for him.

A client belongs to one group, which is bound to one parent topic. Lite topics are called by the names of their light
queues. A client's `ready` holds, oldest first, those that may have messages for its group. It may hold too many: a pop
looks at each and drops those that have none. It never lacks one that nobody has in flight, since each event (a
message, a batch that is done or due again, a subscription) goes to all clients of the group.

A group with the attribute lite.sub.wildcard is subscribed to all lite topics of its parent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from contrailmq.broker.state.lite_names import parent_and_lite
from contrailmq.wire.peer import Peer

NOBODY: Final[dict[str, LiteClient]] = {}


class LiteClient:
    """One consumer, by its client id."""

    __slots__ = (
        "attempt_id", "attempted", "connection", "consumed_ms", "group", "id", "is_wildcard", "parent", "popped_ms",
        "queues", "ready", "seen_ms",
    )  # fmt: skip

    def __init__(self, client_id: str, group: str, parent: str, connection: Peer, *, is_wildcard: bool) -> None:
        self.id = client_id
        self.group = group
        self.parent = parent
        self.connection = connection  # of the proxy that it is connected to
        self.is_wildcard = is_wildcard
        self.queues: set[str] = set()
        self.ready: dict[str, None] = {}
        self.seen_ms = 0  # monotonic
        self.popped_ms = self.consumed_ms = 0
        self.attempt_id = ""  # of its newest pop, and what that gave
        self.attempted: list[str] = []


class Registry:
    """Owner: LiteService."""

    def __init__(self) -> None:
        self.clients: dict[str, LiteClient] = {}
        self.count = 0  # of subscriptions: two clients with one lite topic are two
        self._of_queue: dict[str, dict[str, dict[str, LiteClient]]] = {}  # queue -> group -> client id
        self._of_parent: dict[str, dict[str, dict[str, LiteClient]]] = {}  # parent -> wildcard group -> client id

    def __len__(self) -> int:
        """Of queues, for the store: whether anybody is to be told of any."""
        return len(self._of_queue) + len(self._of_parent)

    def __contains__(self, queue: object) -> bool:
        """Whether somebody is to be told of messages of a (topic, queue)."""
        assert isinstance(queue, tuple)
        if queue[0] in self._of_queue:
            return True
        found = parent_and_lite(queue[0]) if self._of_parent else None
        return found is not None and found[0] in self._of_parent

    def groups(self, queue: str) -> list[str]:
        """Those with a subscriber of a lite topic."""
        found = parent_and_lite(queue) if self._of_parent else None
        wild = () if found is None else self._of_parent.get(found[0], ())
        return [*self._of_queue.get(queue, ()), *wild]

    def members(self, queue: str, group: str) -> dict[str, LiteClient]:
        """The clients of a group that take its messages; who was woken last stands last."""
        members = self._of_queue.get(queue, {}).get(group)
        if members is not None or not self._of_parent:
            return NOBODY if members is None else members
        found = parent_and_lite(queue)
        return NOBODY if found is None else self._of_parent.get(found[0], {}).get(group, NOBODY)

    def subscribers(self, queue: str) -> Iterator[LiteClient]:
        for group in self.groups(queue):
            yield from self.members(queue, group).values()

    def of_group(self, group: str) -> list[LiteClient]:
        return [client for client in self.clients.values() if client.group == group]

    # --- changes

    def join(self, client: LiteClient) -> None:
        assert client.id not in self.clients
        self.clients[client.id] = client
        if client.is_wildcard:
            self._of_parent.setdefault(client.parent, {}).setdefault(client.group, {})[client.id] = client
            self.count += 1

    def add(self, client: LiteClient, queue: str) -> bool:
        """False when it has it already."""
        if queue in client.queues:
            return False
        client.queues.add(queue)
        self._of_queue.setdefault(queue, {}).setdefault(client.group, {})[client.id] = client
        self.count += 1
        return True

    def remove(self, client: LiteClient, queue: str) -> bool:
        if queue not in client.queues:
            return False
        client.queues.discard(queue)
        client.ready.pop(queue, None)
        _take_out(self._of_queue, queue, client)
        self.count -= 1
        return True

    def leave(self, client: LiteClient) -> None:
        for queue in list(client.queues):
            self.remove(client, queue)
        if client.is_wildcard:
            _take_out(self._of_parent, client.parent, client)
            self.count -= 1
        client.ready.clear()
        del self.clients[client.id]

    def forget(self, queues: Collection[str]) -> None:
        """These are gone; their subscribers are not told, and have them again when they say all of theirs."""
        for queue in queues:
            for client in list(self.subscribers(queue)):
                client.ready.pop(queue, None)
                self.remove(client, queue)


def _take_out(table: dict[str, dict[str, dict[str, LiteClient]]], name: str, client: LiteClient) -> None:
    groups = table[name]
    members = groups[client.group]
    del members[client.id]
    if not members:
        del groups[client.group]
        if not groups:
            del table[name]
