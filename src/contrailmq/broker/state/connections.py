"""Who is connected: producers and consumers by group, kept alive by heartbeats.

Membership is per connection: a client whose connection closes is gone at once, one that is silent for 120 s is
dropped. Every change of a consumer group's members or of its set of topics is reported as a group name, and the caller
notifies the members (code 40); this module sends nothing itself. A subscription is parsed, and an SQL92 filter
compiled, once per version.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from contrailmq.broker.filters import Subscription
from contrailmq.wire.peer import Peer

SILENCE_MS: Final = 120_000  # channelExpiredTimeout
CONSUME_TYPES: Final = ("CONSUME_ACTIVELY", "CONSUME_PASSIVELY", "CONSUME_POP")
MESSAGE_MODELS: Final = ("BROADCASTING", "CLUSTERING")
BROADCASTING: Final = "BROADCASTING"


@dataclass(slots=True)
class Client:
    """One client instance on one connection."""

    connection: Peer
    client_id: str
    language: str
    version: int
    seen_ms: int

    @property
    def address(self) -> str:
        host, port = self.connection.peer
        return f"{host}:{port}"


@dataclass(slots=True)
class ConsumerGroup:
    """The live side of a consumer group."""

    name: str
    consume_type: str = "CONSUME_PASSIVELY"
    message_model: str = "CLUSTERING"
    from_where: str = "CONSUME_FROM_LAST_OFFSET"
    members: dict[Peer, Client] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)
    fingerprint: int = 0

    def client_ids(self) -> list[str]:
        return list(dict.fromkeys(client.client_id for client in self.members.values()))

    def find(self, client_id: str) -> Client | None:
        for client in self.members.values():
            if client.client_id == client_id:
                return client
        return None


class ClientTable:
    """Every producer and consumer of one broker. Owner: the loop; time comes in as `now_ms`, monotonic."""

    def __init__(self, silence_ms: int = SILENCE_MS) -> None:
        self.silence_ms = silence_ms
        self._consumers: dict[str, ConsumerGroup] = {}
        self._producers: dict[str, dict[Peer, Client]] = {}
        self._groups_of: dict[Peer, tuple[set[str], set[str]]] = {}  # connection -> (consumer groups, producer groups)
        self._turn = 0

    # --- consumers

    def consumer_group(self, group: str) -> ConsumerGroup | None:
        return self._consumers.get(group)

    def consumer_groups(self) -> list[ConsumerGroup]:
        return list(self._consumers.values())

    def groups_subscribed_to(self, topic: str) -> set[str]:
        return {group.name for group in self._consumers.values() if topic in group.subscriptions}

    def subscription(self, group: str, topic: str) -> Subscription | None:
        live = self._consumers.get(group)
        return None if live is None else live.subscriptions.get(topic)

    def register_consumer(
        self,
        group: str,
        client: Client,
        *,
        consume_type: str,
        message_model: str,
        from_where: str,
        subscriptions: Iterable[Subscription] | None,
    ) -> bool:
        """Take a heartbeat. True when the members or the topics changed, so that all must rebalance.

        `subscriptions=None` keeps the known ones (heartbeat V2 without them). A lower version never replaces a higher.
        """
        live = self._consumers.get(group)
        if live is None:
            live = self._consumers[group] = ConsumerGroup(group)
        live.consume_type, live.message_model, live.from_where = consume_type, message_model, from_where
        has_joined = self._join(live, client)
        if subscriptions is None:
            return has_joined
        return self._subscribe(live, subscriptions) or has_joined

    def unregister_consumer(self, group: str, connection: Peer) -> bool:
        """Forget one member; True when it was one."""
        live = self._consumers.get(group)
        if live is None or live.members.pop(connection, None) is None:
            return False
        consumer_groups, _ = self._groups_of.get(connection, (set(), set()))
        consumer_groups.discard(group)
        if not live.members:
            del self._consumers[group]
        return True

    # --- producers

    def register_producer(self, group: str, client: Client) -> None:
        clients = self._producers.setdefault(group, {})
        clients[client.connection] = client
        self._groups_of.setdefault(client.connection, (set(), set()))[1].add(group)

    def unregister_producer(self, group: str, connection: Peer) -> None:
        clients = self._producers.get(group)
        if clients is None or clients.pop(connection, None) is None:
            return
        if not clients:
            del self._producers[group]
        self._groups_of.get(connection, (set(), set()))[1].discard(group)

    def producers(self, group: str) -> list[Client]:
        return list(self._producers.get(group, {}).values())

    def producer_groups(self) -> dict[str, list[Client]]:
        return {group: list(clients.values()) for group, clients in self._producers.items()}

    def next_producer(self, group: str) -> Client | None:
        """A live producer of the group, in turn; None when there is none."""
        clients = [client for client in self._producers.get(group, {}).values() if client.connection.is_open]
        if not clients:
            return None
        self._turn += 1
        return clients[self._turn % len(clients)]

    def find_producer(self, client_id: str) -> Client | None:
        """A live producer with this client id, whatever its group (request-reply)."""
        for clients in self._producers.values():
            for client in clients.values():
                if client.client_id == client_id and client.connection.is_open:
                    return client
        return None

    # --- leaving

    def drop_connection(self, connection: Peer) -> list[str]:
        """Forget everything of a closed connection; returns the consumer groups that lost a member."""
        consumer_groups, producer_groups = self._groups_of.pop(connection, (set(), set()))
        for group in sorted(producer_groups):
            self.unregister_producer(group, connection)
        return [group for group in sorted(consumer_groups) if self.unregister_consumer(group, connection)]

    def expire(self, now_ms: int) -> tuple[list[Peer], list[str]]:
        """Drop clients silent for too long; returns their connections, to be closed, and the groups that changed."""
        silent: dict[Peer, None] = {}
        changed: list[str] = []
        for group in list(self._consumers.values()):
            for connection, client in list(group.members.items()):
                if now_ms - client.seen_ms > self.silence_ms:
                    silent[connection] = None
                    if self.unregister_consumer(group.name, connection):
                        changed.append(group.name)
        for name, clients in list(self._producers.items()):
            for connection, client in list(clients.items()):
                if now_ms - client.seen_ms > self.silence_ms:
                    silent[connection] = None
                    self.unregister_producer(name, connection)
        return list(silent), list(dict.fromkeys(changed))

    def _join(self, live: ConsumerGroup, client: Client) -> bool:
        known = live.members.get(client.connection)
        live.members[client.connection] = client
        self._groups_of.setdefault(client.connection, (set(), set()))[0].add(live.name)
        return known is None or known.client_id != client.client_id

    def _subscribe(self, live: ConsumerGroup, subscriptions: Iterable[Subscription]) -> bool:
        wanted = {subscription.topic: subscription for subscription in subscriptions}
        has_changed = wanted.keys() != live.subscriptions.keys()
        for topic, subscription in wanted.items():
            known = live.subscriptions.get(topic)
            if known is not None and known.version >= subscription.version:
                wanted[topic] = known
        live.subscriptions = wanted
        return has_changed
