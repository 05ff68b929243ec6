"""Who is connected: settings, telemetry streams, and when a client counts as gone.

A client sends its settings on a Telemetry stream and gets them back with what the server decides. One that takes
messages to renew is known here too, before it has said any. It is gone when it says so (NotifyClientTermination), or
when neither its stream nor a heartbeat, nor another call of a consumer, was there for GONE_S.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from contrailmq.client.transport.routes import TopicRoute
from contrailmq.message import ContrailError
from contrailmq.proxy.cluster import Cluster, Group
from contrailmq.proxy.consuming import BATCH_MAX
from contrailmq.proxy.lite_messages import LITE_CONSUMERS, LITE_TOPIC_BYTES_MAX, check_bound
from contrailmq.proxy.messages import BODY_BYTES_MAX, delivered
from contrailmq.proxy.producing import half_of
from contrailmq.proxy.protocol import Wire, v2
from contrailmq.proxy.statuses import Code, Refused, status

_log = logging.getLogger("contrailmq.proxy")

GONE_S: Final = 15.0  # heartbeats come every 10 s
SCAN_S: Final = 5.0
CLIENTS_MAX: Final = 20_000
COMMANDS_MAX: Final = 256  # that wait for a client that does not read; a transaction is asked about again
SETTINGS_BYTES_MAX: Final = 1024 * 1024  # they are kept; 1,000 topics with filters have room
TOPICS_MAX: Final = 1_000  # of one client's settings
RELAY_S: Final = 5.0  # for the answer to a command
SEND_ATTEMPTS: Final = 3
POLLING_S: Final = 20
BACKOFF_S: Final = (1, 5, 10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


@dataclass(slots=True)
class Client:
    id: str
    settings: Wire = None
    commands: asyncio.Queue[Wire] | None = None  # of its newest stream
    seen_s: float = 0.0
    topics: set[str] = field(default_factory=set)  # that it may be asked about transactions of
    asked: dict[str, asyncio.Future[Wire]] = field(default_factory=dict)  # by nonce


class _TopicProducer:
    """The members of one topic, as brokers know them: the reference's producer group is the topic's name."""

    def __init__(self, topic: str) -> None:
        self.group = topic

    def topics(self) -> set[str]:
        return {self.group}

    def subscribed_topics(self) -> set[str]:
        return set()

    def route_changed(self, topic: str, route: TopicRoute) -> None:
        """Nothing hangs on it: sends ask for the route."""


class Clients:
    def __init__(self, cluster: Cluster, *, gone: Callable[[str], Awaitable[None]]) -> None:
        self._cluster = cluster
        self._gone = gone
        self.on_settled: Callable[[Client], None] = lambda client: None  # its settings were taken
        self.on_gone: Callable[[str], None] = lambda client_id: None
        self._loop = asyncio.get_running_loop()
        self._clients: dict[str, Client] = {}
        self._producers: dict[str, tuple[_TopicProducer, dict[str, None]]] = {}  # topic -> ids of its producers

    def __len__(self) -> int:
        return len(self._clients)

    def find(self, client_id: str) -> Client | None:
        """Each look is for a call of the client's: it lives."""
        client = self._clients.get(client_id)
        if client is not None:
            client.seen_s = self._loop.time()
        return client

    def known(self, client_id: str) -> Client:
        """The client of a stream, or of messages that are renewed, new or not."""
        client = self.find(client_id)
        if client is None:
            if len(self._clients) >= CLIENTS_MAX:
                raise Refused(Code.TOO_MANY_REQUESTS, f"{len(self._clients)} clients are connected: try again later")
            client = self._clients[client_id] = Client(client_id, seen_s=self._loop.time())
        return client

    async def settle(self, client: Client, settings: Wire) -> Wire:
        """Take a client's settings; the answer is what it must work with."""
        if (size_bytes := settings.ByteSize()) > SETTINGS_BYTES_MAX:
            raise Refused(Code.BAD_REQUEST, f"settings of {size_bytes} bytes, the limit is {SETTINGS_BYTES_MAX}")
        kind = settings.WhichOneof("pub_sub")
        if kind is None:
            raise Refused(Code.BAD_REQUEST, "the settings are neither a producer's nor a consumer's")
        made = type(settings)()
        made.CopyFrom(settings)
        if kind == "publishing":
            self._settle_producer(client, made)
        else:
            await self._settle_consumer(made)
        made.metric.on = False
        client.settings = made
        if self._clients.get(client.id) is client:
            self.on_settled(client)
        return v2.TelemetryCommand(status=status(Code.OK), settings=made)

    def _settle_producer(self, client: Client, made: Wire) -> None:
        made.publishing.max_body_size = BODY_BYTES_MAX
        made.publishing.validate_message_type = True
        made.backoff_policy.max_attempts = SEND_ATTEMPTS
        backoff = made.backoff_policy.exponential_backoff
        backoff.initial.FromMilliseconds(10)
        backoff.max.FromMilliseconds(1000)
        backoff.multiplier = 2
        topics = {topic.name for topic in made.publishing.topics[:TOPICS_MAX] if topic.name}
        for topic in topics - client.topics:
            self._join(client, topic)
        for topic in client.topics - topics:
            self._leave(client, topic)
        client.topics = topics

    async def _settle_consumer(self, made: Wire) -> None:
        subscription = made.subscription
        topics = [entry.topic.name for entry in subscription.subscriptions[:TOPICS_MAX]]
        group = await self._cluster.group(subscription.group.name, topics)
        if made.client_type in LITE_CONSUMERS:
            for topic in topics[:1]:
                check_bound(group, topic)
            subscription.lite_subscription_quota = max(group.lite_quota, 0)
            subscription.max_lite_topic_size = LITE_TOPIC_BYTES_MAX
        elif group.lite_parent:
            raise Refused(
                Code.ILLEGAL_CONSUMER_GROUP,
                f"lite group must use LITE mode: {group.name} reads lite topics of {group.lite_parent}; choose another "
                "group for the topic itself",
            )
        subscription.fifo = group.is_fifo
        subscription.receive_batch_size = BATCH_MAX
        subscription.long_polling_timeout.FromSeconds(POLLING_S)
        _back_off(made.backoff_policy, group)

    def _join(self, client: Client, topic: str) -> None:
        """Brokers ask the producers of a topic about transactions that nobody ended."""
        instance = self._cluster.instance
        if topic not in self._producers:
            member = _TopicProducer(topic)
            self._producers[topic] = member, {}
            instance.join_producer(member)
            instance.transaction_checks[topic] = lambda message, ext, address: self._check(topic, message, ext, address)
            instance.heartbeat_soon()
        self._producers[topic][1][client.id] = None

    def _leave(self, client: Client, topic: str) -> None:
        member, ids = self._producers[topic]
        ids.pop(client.id, None)
        if not ids:
            del self._producers[topic]
            self._cluster.instance.transaction_checks.pop(topic, None)
            self._cluster.instance.spawn(self._cluster.instance.leave_producer(member), "leave")

    def _check(self, topic: str, message: Wire, ext: dict[str, str], address: str) -> None:
        """A broker asks about a half message: one producer of its topic is asked, each in turn."""
        ids = self._producers[topic][1] if topic in self._producers else {}
        for client_id in list(ids):
            ids[client_id] = ids.pop(client_id)  # the next question goes to another one
            client = self._clients.get(client_id)
            if client is None or client.commands is None or client.commands.full():
                continue
            command = v2.TelemetryCommand()
            asked = command.recover_orphaned_transaction_command
            asked.message.CopyFrom(delivered(message, topic))
            broker = ext.get("bname") or self._cluster.broker_at(address)
            asked.transaction_id = half_of(ext, broker, message.properties).text
            client.commands.put_nowait(command)
            return
        _log.info("a transaction check of topic %s found no producer that listens: the broker will ask again", topic)

    async def ask(self, client_id: str, command: Wire, nonce: str) -> Wire:
        """What a client answers to a command with that nonce. Refused when it is not here, or says nothing."""
        client = self._clients.get(client_id)
        if client is None or client.commands is None or client.commands.full():
            raise Refused(Code.PROXY_TIMEOUT, f"client {client_id} has no stream here that takes commands")
        client.asked[nonce] = self._loop.create_future()
        client.commands.put_nowait(command)
        try:
            return await asyncio.wait_for(client.asked[nonce], RELAY_S)
        except TimeoutError:
            raise Refused(Code.PROXY_TIMEOUT, f"client {client_id} has not answered within {RELAY_S:g} s") from None
        finally:
            client.asked.pop(nonce, None)

    def answered(self, client: Client, command: Wire) -> None:
        """Its answer; one that nobody waits for is dropped."""
        waiting = client.asked.get(getattr(command, command.WhichOneof("command")).nonce)
        if waiting is not None and not waiting.done():
            waiting.set_result(command)

    def settings_of(self, client_id: str, group: str) -> Wire:
        """The settings of a consumer of that group that is here; else None."""
        client = self._clients.get(client_id)
        if client is None or client.settings is None or client.settings.subscription.group.name != group:
            return None
        return client.settings

    async def forget(self, client_id: str) -> None:
        client = self._clients.pop(client_id, None)
        if client is not None:
            self.on_gone(client_id)
            for topic in client.topics:
                self._leave(client, topic)
        await self._gone(client_id)

    async def run(self) -> None:
        """Let go of clients that are gone."""
        while True:
            await asyncio.sleep(SCAN_S)
            silent_since = self._loop.time() - GONE_S
            for client in self._clients.values():
                if client.commands is None and client.seen_s < silent_since:
                    self._cluster.instance.spawn(self._forget_silent(client.id), "forget")

    async def _forget_silent(self, client_id: str) -> None:
        """Apart from the others: a broker that does not answer holds up those alone who have its messages."""
        try:
            await self.forget(client_id)
        except ContrailError as exc:
            _log.warning("client %s is gone, but not all that it held is given back: %s", client_id, exc)


def _back_off(policy: Wire, group: Group) -> None:
    policy.max_attempts = group.attempts_max
    if group.policy == "EXPONENTIAL":
        backoff = policy.exponential_backoff
        backoff.initial.FromSeconds(5)
        backoff.max.FromSeconds(7200)
        backoff.multiplier = 2
        return
    policy.customized_backoff.ClearField("next")
    for seconds in BACKOFF_S:
        policy.customized_backoff.next.add().FromSeconds(seconds)
