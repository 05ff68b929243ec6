"""What producers and consumers of one client id share: connections, routes, heartbeats.

RocketMQ identifies a client by its id; brokers count one id as one member. So everything that speaks in the name of an
id lives in one `ClientInstance`, and producers and consumers are its members. By default each gets an id of its own;
with the same `instance_name` they share. The last member that leaves stops the instance.

Three loops run here. Routes of all topics in use are asked for every 30 s. Topics that somebody subscribed to and that
have no route yet are asked for every second, and members learn of a changed route at once: the reference leaves
its users waiting 20 to 30 s for a topic that was just created. Heartbeats go out every 30 s, when a member asks, and
when a broker says that it does not know us.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from contrailmq.client.errors import BrokerNotFoundError, ClientStateError, NoRouteError
from contrailmq.client.records import ReceivedMessage
from contrailmq.client.settings import ClientOptions
from contrailmq.client.transport.name_servers import NameServers
from contrailmq.client.transport.routes import MASTER_ID, TopicRoute, default_topic_route, parse_route, read_address
from contrailmq.client.transport.server_requests import register_handlers
from contrailmq.client.transport.waiting import is_being_cancelled, set_within
from contrailmq.message import RETRY_PREFIX, ContrailError, MessageQueue, StoredMessage
from contrailmq.wire.admin_bodies import ConsumeMessageDirectlyResult, ConsumerRunningInfo
from contrailmq.wire.bodies import ConsumerData, HeartbeatData, ProducerData, encode_body
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import ResponseError
from contrailmq.wire.header import Command, Fields
from contrailmq.wire.transport import RemotingClient

_log = logging.getLogger("contrailmq.client")

MISSING_ROUTE_POLL_S: Final = 1.0
MISSING_ROUTE_WARN_S: Final = 10.0  # a new topic's route takes a second or two: one that is still missing is a mistake
REFRESH_GAP_S: Final = 1.0  # of refreshes that failed requests ask for


TransactionCheck = Callable[[ReceivedMessage, dict[str, str], str], None]  # message, ext fields, broker's address


class Member(Protocol):
    """A producer or consumer as its instance sees it."""

    group: str

    def topics(self) -> set[str]:
        """Topics whose routes must be kept fresh."""
        ...

    def subscribed_topics(self) -> set[str]:
        """Topics whose route must be found soon, because messages wait there."""
        ...

    def route_changed(self, topic: str, route: TopicRoute) -> None: ...


class ConsumerMember(Member, Protocol):
    """What brokers learn of a consumer and may ask of it."""

    def heartbeat(self) -> ConsumerData: ...

    def request_rebalance(self) -> None: ...

    async def reset_offsets(self, topic: str, offsets: Mapping[MessageQueue, int]) -> None: ...

    def offsets_of(self, topic: str) -> dict[MessageQueue, int]: ...

    def running_info(self) -> ConsumerRunningInfo: ...

    async def consume_directly(self, message: ReceivedMessage) -> ConsumeMessageDirectlyResult: ...


class ClientInstance:
    """One client id on one event loop. Get it with `acquire`, leave it with `release`."""

    def __init__(self, client_id: str, options: ClientOptions) -> None:
        self.client_id = client_id
        self.options = options
        self.loop = asyncio.get_running_loop()
        self.remoting = RemotingClient(
            tls=options.ssl_context(),
            tls_server_name=options.tls_server_name,
            sign=options.credentials,
            on_connect=self._connected,
        )
        self.name_servers = NameServers(self.remoting, options.namesrv)
        self.routes: dict[str, TopicRoute] = {}
        self.broker_addresses: dict[str, dict[int, str]] = {}
        self.producers: dict[str, Member] = {}
        self.consumers: dict[str, ConsumerMember] = {}
        self.replies: dict[str, asyncio.Future[StoredMessage]] = {}  # by correlation id
        self.transaction_checks: dict[str, TransactionCheck] = {}  # by producer group
        self._tasks: set[asyncio.Task[None]] = set()
        self._route_calls: dict[str, asyncio.Task[TopicRoute]] = {}
        self._last_refresh_s: dict[str, float] = {}
        self._refusing: set[str] = set()  # brokers that answered the last heartbeat with an error
        self._missing: dict[str, _MissingTopic] = {}  # subscribed to, and without a route
        self._heartbeat_wanted = asyncio.Event()
        self._owners = 0

    # Life.
    @classmethod
    def acquire(cls, client_id: str, options: ClientOptions) -> ClientInstance:
        """The instance of this id on the running loop, made when there is none."""
        key = _key(client_id, options)
        instance = _instances.get(key)
        if instance is None:
            instance = _instances[key] = cls(client_id, options)
            instance._start()
        instance._owners += 1
        return instance

    async def release(self) -> None:
        """The last owner closes everything: loops stopped, connections closed."""
        self._owners -= 1
        if self._owners > 0:
            return
        _instances.pop(_key(self.client_id, self.options), None)
        tasks = [*self._tasks, *self._route_calls.values()]
        for task in tasks:
            task.cancel()
        try:
            await asyncio.gather(*tasks, return_exceptions=True)
        finally:  # also when it was cancelled
            await self.remoting.close()

    def _start(self) -> None:
        register_handlers(self)
        self.spawn(self._keep_routes_fresh(), "routes")
        self.spawn(self._find_missing_routes(), "missing-routes")
        self.spawn(self._keep_heartbeats(), "heartbeats")

    def spawn(self, work: Coroutine[object, object, None], name: str) -> asyncio.Task[None]:
        """A background task that ends with the instance at the latest."""
        task = self.loop.create_task(work, name=f"contrailmq-{name}-{self.client_id}")
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            _log.error("%s ended by an error of ours, please report it", task.get_name(), exc_info=task.exception())

    # Members.
    def join_producer(self, member: Member) -> None:
        self._check_new(self.producers.get(member.group), member.group)
        self.producers[member.group] = member

    def join_consumer(self, member: ConsumerMember) -> None:
        self._check_new(self.consumers.get(member.group), member.group)
        self.consumers[member.group] = member

    async def leave_producer(self, member: Member) -> None:
        if self.producers.pop(member.group, None) is not None:
            await self._unregister("producerGroup", member.group)

    async def leave_consumer(self, member: ConsumerMember) -> None:
        if self.consumers.pop(member.group, None) is not None:
            await self._unregister("consumerGroup", member.group)

    def _check_new(self, known: Member | None, group: str) -> None:
        if known is not None:
            raise ClientStateError(
                f"group {group!r} already has a member in client {self.client_id}: use another instance_name"
            )

    async def _unregister(self, key: str, group: str) -> None:
        """Tell the brokers that the member is gone, so that others take over at once."""
        ext = {"clientID": self.client_id, key: group}
        calls = [
            self.call(address, RequestCode.UNREGISTER_CLIENT, ext)
            for addresses in self.broker_addresses.values()
            for address in addresses.values()
        ]
        for result in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(result, ContrailError):
                _log.info("a broker did not learn that group %s left: %s", group, result)

    # Requests.
    async def call(
        self,
        address: str,
        code: RequestCode,
        ext: Fields,
        body: bytes = b"",
        *,
        timeout_s: float | None = None,
        accept: tuple[int, ...] = (0,),
    ) -> Command:
        """A request whose answer must have one of the accepted codes, else ResponseError."""
        wait_s = self.options.request_timeout_s if timeout_s is None else timeout_s
        answer = await self.remoting.invoke(address, code, ext, body, timeout_s=wait_s)
        if answer.code not in accept:
            raise ResponseError(answer.code, answer.remark, request_code=code, address=address)
        return answer

    def master_address(self, broker_name: str) -> str | None:
        return self.broker_addresses.get(broker_name, {}).get(MASTER_ID)

    async def find_master(self, broker_name: str, topic: str) -> str:
        """The master's address, asking for the route once when it is not known."""
        address = self.master_address(broker_name)
        if address is None:
            await self.refresh_route(topic)
            address = self.master_address(broker_name)
        if address is None:
            raise BrokerNotFoundError(broker_name)
        return address

    async def find_reader(self, broker_name: str, topic: str, *, suggested_id: int = MASTER_ID) -> tuple[str, int]:
        """Address and id of a replica to read from."""
        found = read_address(self.broker_addresses.get(broker_name, {}), suggested_id)
        if found is None:
            await self.refresh_route(topic)
            found = read_address(self.broker_addresses.get(broker_name, {}), suggested_id)
        if found is None:
            raise BrokerNotFoundError(broker_name)
        return found

    # Routes.
    async def route(self, topic: str) -> TopicRoute:
        """The cached route, else the NameServer's. Raises NoRouteError."""
        known = self.routes.get(topic)
        return known if known is not None else await self.refresh_route(topic)

    async def refresh_route(self, topic: str) -> TopicRoute:
        """Ask the NameServer; callers who ask at the same time share one request."""
        call = self._route_calls.get(topic)
        if call is None:
            call = self._route_calls[topic] = self.loop.create_task(self._fetch_and_apply(topic))
            call.add_done_callback(lambda done: self._route_asked(topic, done))
        try:
            return await asyncio.shield(call)
        except asyncio.CancelledError:
            if not call.cancelled() or is_being_cancelled():
                raise
            raise ClientStateError(f"the client was shut down while the route of {topic!r} was asked for") from None

    def _route_asked(self, topic: str, call: asyncio.Task[TopicRoute]) -> None:
        """Waiters get the error. If there are none any more, asyncio must not report it as never retrieved."""
        self._route_calls.pop(topic, None)
        if not call.cancelled():
            call.exception()

    async def default_route(self, default_topic: str, topic: str, *, queues_max: int) -> TopicRoute:
        """The template topic's route, in place of a topic that the broker will create on the first send."""
        try:
            template = await self.fetch_route(default_topic)
        except NoRouteError:
            raise NoRouteError(
                topic,
                namesrv=self.name_servers.text,
                remedy="create the topic, or set autoCreateTopicEnable=true at the broker",
            ) from None
        route = default_topic_route(template, queues_max=queues_max)
        self._learn_addresses(route)
        return route

    async def fetch_route(self, topic: str) -> TopicRoute:
        ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
        answer = await self.name_servers.invoke(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, ext, timeout_s=self.options.request_timeout_s
        )
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            raise NoRouteError(topic, namesrv=self.name_servers.text, remedy="create the topic, or check its name")
        if answer.code != 0:
            raise ResponseError(answer.code, answer.remark, request_code=RequestCode.GET_ROUTEINFO_BY_TOPIC)
        return parse_route(answer.body)

    def refresh_soon(self, topic: str) -> None:
        """A request failed: the route may be stale. At most one refresh a second and topic."""
        now_s = self.loop.time()
        if now_s - self._last_refresh_s.get(topic, 0.0) >= REFRESH_GAP_S:
            self._last_refresh_s[topic] = now_s
            self.spawn(self._refresh_quietly(topic), "refresh")

    async def _fetch_and_apply(self, topic: str) -> TopicRoute:
        route = await self.fetch_route(topic)
        self._learn_addresses(route)
        if self.routes.get(topic) != route:
            self.routes[topic] = route
            for member in [*self.producers.values(), *self.consumers.values()]:
                if topic in member.topics():
                    member.route_changed(topic, route)
        return route

    def _learn_addresses(self, route: TopicRoute) -> None:
        for broker in route.brokers:
            known = self.broker_addresses.get(broker.name)
            self.broker_addresses[broker.name] = dict(broker.addresses)
            if known is None or any(address not in known.values() for address in broker.addresses.values()):
                self.heartbeat_soon()

    async def _refresh_quietly(self, topic: str) -> None:
        try:
            await self.refresh_route(topic)
        except ContrailError as exc:
            _log.info("the route of topic %s stays as it was: %s", topic, exc)

    def _topics(self) -> set[str]:
        members = [*self.producers.values(), *self.consumers.values()]
        return set().union(*(member.topics() for member in members)) if members else set()

    async def _keep_routes_fresh(self) -> None:
        while True:
            await asyncio.sleep(self.options.poll_namesrv_interval_s)
            for topic in sorted(self._topics()):
                await self._refresh_quietly(topic)
            self._forget_offline_brokers()

    async def _find_missing_routes(self) -> None:
        while True:
            wanted = set().union(*(member.subscribed_topics() for member in self.consumers.values()))
            for topic in sorted(wanted - self.routes.keys()):
                try:
                    await self.refresh_route(topic)
                except ContrailError as exc:  # expected while it does not exist: asked again in a second
                    self._still_missing(topic, exc)
            for topic in [topic for topic in self._missing if topic not in wanted or topic in self.routes]:
                missing = self._missing.pop(topic)
                if missing.is_told and topic in self.routes:
                    _log.info("topic %s is there now: its messages are consumed", topic)
            await asyncio.sleep(MISSING_ROUTE_POLL_S)

    def _still_missing(self, topic: str, cause: ContrailError) -> None:
        """Say it once: a consumer of a topic whose name was misspelt waits in silence for ever."""
        missing = self._missing.setdefault(topic, _MissingTopic(self.loop.time()))
        since_s = self.loop.time() - missing.since_s
        if missing.is_told or since_s < MISSING_ROUTE_WARN_S or topic.startswith(RETRY_PREFIX):
            return
        missing.is_told = True
        groups = ", ".join(sorted(group for group, member in self.consumers.items() if topic in member.topics()))
        what = "does not exist: create it (contrailmq admin topic create), or check its name"
        if not isinstance(cause, NoRouteError):
            what = f"has no route: {cause}"
        text = "topic %s, which group %s subscribed to %.0f s ago, %s; NameServer %s is asked for it every second"
        _log.warning(text, topic, groups, since_s, what, self.name_servers.text)

    def _forget_offline_brokers(self) -> None:
        known = {broker.name for route in self.routes.values() for broker in route.brokers}
        for name in self.broker_addresses.keys() - known:
            del self.broker_addresses[name]

    # Heartbeats.
    def _connected(self, address: str) -> None:
        """A broker that restarted knows us no more: tell it at once."""
        if any(address in replicas.values() for replicas in self.broker_addresses.values()):
            self.heartbeat_soon()

    def heartbeat_soon(self) -> None:
        self._heartbeat_wanted.set()

    async def send_heartbeats(self) -> None:
        """To every replica of every broker when somebody consumes, else to the masters."""
        if not self.producers and not self.consumers:
            return
        body = encode_body(self.heartbeat_body())
        addresses = [
            address
            for replicas in self.broker_addresses.values()
            for id_, address in replicas.items()
            if self.consumers or id_ == MASTER_ID
        ]
        calls = [self.call(address, RequestCode.HEART_BEAT, {}, body) for address in addresses]
        for address, result in zip(addresses, await asyncio.gather(*calls, return_exceptions=True), strict=True):
            if isinstance(result, ContrailError):
                self._heartbeat_failed(address, result)
            elif isinstance(result, BaseException):
                raise result
            else:
                self._refusing.discard(address)

    def _heartbeat_failed(self, address: str, cause: ContrailError) -> None:
        """A broker that says no gives this client's groups nothing to consume: warned of once, until it says yes."""
        is_news = isinstance(cause, ResponseError) and address not in self._refusing
        if is_news:
            self._refusing.add(address)
        _log.log(logging.WARNING if is_news else logging.INFO, "heartbeat to %s failed: %s", address, cause)

    def heartbeat_body(self) -> HeartbeatData:
        return HeartbeatData(
            client_id=self.client_id,
            consumer_data_set=[member.heartbeat() for member in self.consumers.values()],
            producer_data_set=[ProducerData(group_name=group) for group in self.producers],
        )

    async def _keep_heartbeats(self) -> None:
        while True:
            await set_within(self._heartbeat_wanted, self.options.heartbeat_interval_s)
            self._heartbeat_wanted.clear()
            await self.send_heartbeats()


@dataclass(slots=True)
class _MissingTopic:
    """Since when it is looked for, and whether that was said."""

    since_s: float
    is_told: bool = False


_Key = tuple[asyncio.AbstractEventLoop, str, str]
_instances: dict[_Key, ClientInstance] = {}


def _key(client_id: str, options: ClientOptions) -> _Key:
    """Clients of two clusters never share, also when their ids are the same (broadcasting ones have a fixed name)."""
    return asyncio.get_running_loop(), client_id, options.namesrv or os.environ.get("NAMESRV_ADDR") or ""
