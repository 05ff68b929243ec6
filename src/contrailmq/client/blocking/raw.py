"""A blocking reader and writer of queues without asyncio, for Spark executors, tools and scripts.

A `QueueReader` talks to any number of brokers, one connection each, one request at a time. Only batches, pulls, half
messages and their ends may be in flight meanwhile (`post_batch` and `batch_answer`, `post_pull` and `pull_answer`,
`post` and `answer`). It returns the records' bytes as they are in the log, and keeps no offsets. It is not thread-safe:
give each thread its own.

    with QueueReader(namesrv="127.0.0.1:9876") as reader:
        for queue in reader.queues("Orders"):
            pulled = reader.pull(queue, reader.min_offset(queue), max_count=1000)
            pulled.body                     # concatenated records
"""

from __future__ import annotations

import contextlib
import os
import ssl
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple, Self, TypedDict, Unpack

from contrailmq.client.blocking.raw_connection import Landing, Pieces, RawConnection
from contrailmq.client.consuming.pulling import pull_ext
from contrailmq.client.consuming.subscription import TAG
from contrailmq.client.errors import BrokerNotFoundError, NoNameServerError, NoRouteError, NotWritableError, number
from contrailmq.client.offset_store import NO_OFFSET
from contrailmq.client.producing.batch import pack_batch
from contrailmq.client.results import PullStatus
from contrailmq.client.transport.name_servers import parse_addresses
from contrailmq.client.transport.routes import (
    MASTER_ID,
    Broker,
    TopicRoute,
    default_topic_route,
    parse_route,
    publish_queues,
    read_address,
    subscribe_queues,
)
from contrailmq.message import ContrailError, Message, MessageQueue, Property, encode_properties
from contrailmq.wire.acl import AclCredentials
from contrailmq.wire.bodies import ClusterInfo, TopicList
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import (
    ConnectError,
    ConnectionClosedError,
    RemoteProtocolError,
    RequestTimeoutError,
    ResponseError,
)
from contrailmq.wire.fastjson import decode_body
from contrailmq.wire.header import Command, ExtValue

_STORED: Final = (
    int(ResponseCode.SUCCESS),
    int(ResponseCode.FLUSH_DISK_TIMEOUT),
    int(ResponseCode.SLAVE_NOT_AVAILABLE),
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT),
)
_PULL_STATUS: Final = {status.value: status for status in PullStatus}


class RawPull(NamedTuple):
    """A pull's answer with the records undecoded."""

    status: PullStatus
    next_offset: int
    min_offset: int
    max_offset: int
    body: bytes | memoryview  # the latter if it lies in a `Landing`


class RawSent(NamedTuple):
    """Where a batch went."""

    queue: MessageQueue
    queue_offset: int


class PostedBatch(NamedTuple):
    """A batch on its way."""

    queue: MessageQueue
    address: str
    connection: RawConnection
    opaque: int


class Posted(NamedTuple):
    """A request on its way."""

    code: RequestCode
    address: str
    connection: RawConnection
    opaque: int


class Asked(TypedDict, total=False):
    """What a pull may ask for besides its place."""

    max_count: int  # 1024; a broker gives fewer when its limits say so, and one of RocketMQ 32 at most
    max_bytes: int  # 4 MiB; a broker takes 256 KiB for anything less
    subscription: str  # "*"
    expression_type: str  # TAG; or SQL92
    wait_s: float  # 0: how long the broker waits for the first message


class PostedPull(NamedTuple):
    """A pull on its way."""

    address: str
    connection: RawConnection
    opaque: int | None  # None: the connection was lost
    ext: Mapping[str, ExtValue]
    timeout_s: float
    landing: Landing | None


class QueueReader:
    """Reads, measures and fills queues. See the module's text."""

    def __init__(
        self,
        address: str | None = None,
        *,
        namesrv: str | None = None,
        group: str = "contrailmq_reader",
        timeout_s: float = 10.0,
        tls: ssl.SSLContext | None = None,
        tls_server_name: str | None = None,
        credentials: AclCredentials | None = None,
    ) -> None:
        """`address` is one broker for everything; without it, brokers are found through the NameServers."""
        self.group = group
        self._address = address
        self._namesrv = parse_addresses(namesrv or os.environ.get("NAMESRV_ADDR") or "")
        self._timeout_s = timeout_s
        self._tls, self._tls_server_name, self._credentials = tls, tls_server_name, credentials
        self._connections: dict[str, RawConnection] = {}
        self._routes: dict[str, TopicRoute] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()

    # Routes.
    def route(self, topic: str, *, is_fresh: bool = False) -> TopicRoute:
        """The topic's route, cached unless a fresh one is wanted."""
        if is_fresh or topic not in self._routes:
            self._routes[topic] = self._fetch_route(topic)
        return self._routes[topic]

    def topics(self) -> list[str]:
        """Every topic that the first answering NameServer knows, sorted."""
        address, answer = self._ask_namesrv(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {})
        body = _checked(answer, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, address).body
        return sorted(decode_body(body, TopicList).topic_list)

    def queues(self, topic: str) -> list[MessageQueue]:
        """The queues that can be read, sorted."""
        return subscribe_queues(topic, self.route(topic, is_fresh=True))

    def publish_queues(self, topic: str, *, default_topic: str = "TBW102", queues: int = 4) -> list[MessageQueue]:
        """One or more queues that can be written; for a topic that does not exist, those it gets when it is created."""
        try:
            route = self.route(topic)
        except NoRouteError:
            route = self._routes[topic] = default_topic_route(self.route(default_topic), queues_max=queues)
        found = publish_queues(topic, route)
        if not found:
            raise NotWritableError(topic, next((broker.name for broker in route.brokers), ""))
        return found

    def has_broker(self, broker_name: str) -> bool:
        """Whether a broker of this name is registered now."""
        return self._address is not None or broker_name in self.broker_names()

    def broker_names(self) -> list[str]:
        """The brokers that are registered now, sorted."""
        address, answer = self._ask_namesrv(RequestCode.GET_BROKER_CLUSTER_INFO, {})
        body = _checked(answer, RequestCode.GET_BROKER_CLUSTER_INFO, address).body
        return sorted(decode_body(body, ClusterInfo).broker_addr_table)

    def forget_routes(self) -> None:
        """Ask the NameServers again where topics are, when that is next needed."""
        self._routes.clear()

    def _fetch_route(self, topic: str) -> TopicRoute:
        ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
        address, answer = self._ask_namesrv(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            raise NoRouteError(topic, namesrv=address, remedy="create the topic, or check its name and its broker")
        return parse_route(_checked(answer, RequestCode.GET_ROUTEINFO_BY_TOPIC, address).body)

    def _ask_namesrv(self, code: RequestCode, ext: Mapping[str, ExtValue]) -> tuple[str, Command]:
        """The first NameServer that answers, and its answer."""
        if not self._namesrv:
            raise NoNameServerError("no NameServer address: pass namesrv='host:9876' or set NAMESRV_ADDR")
        last: ContrailError | None = None
        for address in self._namesrv:
            try:
                return address, self._invoke(address, code, ext)
            except (ConnectError, ConnectionClosedError, RequestTimeoutError) as exc:
                last = exc
        raise NoNameServerError(f"none of the NameServers {';'.join(self._namesrv)} answered: {last}") from last

    # Reading.
    def pull(self, queue: MessageQueue, offset: int, **asked: Unpack[Asked]) -> RawPull:
        """Records from `offset` on, undecoded: see `Asked`.

        Tags are compared by hash only: a caller that filters by tag must compare the text again.
        """
        return self.pull_answer(self.post_pull(queue, offset, **asked))

    def post_pull(
        self, queue: MessageQueue, offset: int, *, landing: Landing | None = None, **asked: Unpack[Asked]
    ) -> PostedPull:
        """Ask as `pull` does without waiting for the answer, which `pull_answer` gives. With a landing, the records are
        there; unless they are kept, they are good until an answer that lands there is waited for."""
        wait_s = asked.get("wait_s", 0.0)
        ext = pull_ext(
            self.group,
            queue,
            offset,
            flags=0,
            max_count=asked.get("max_count", 1024),
            max_bytes=asked.get("max_bytes", 4 * 1024 * 1024),
            commit_offset=0,
            suspend_s=wait_s,
            version=0,
            expression_type=asked.get("expression_type", TAG),
            expression=asked.get("subscription", "*"),
        )
        address = self._reader_address(queue)
        connection = self._connection(address)
        opaque, timeout_s = None, self._timeout_s + wait_s
        with contextlib.suppress(ConnectionClosedError), self._forgotten(address, connection):
            opaque = connection.post(RequestCode.PULL_MESSAGE, ext, timeout_s=timeout_s, landing=landing)
        return PostedPull(address, connection, opaque, ext, timeout_s, landing)

    def pull_answer(self, posted: PostedPull) -> RawPull:
        """Wait for what a posted pull brings. When its connection is lost, the broker is asked again, once."""
        code, answer = RequestCode.PULL_MESSAGE, None
        if posted.opaque is not None:
            with contextlib.suppress(ConnectionClosedError), self._forgotten(posted.address, posted.connection):
                answer = posted.connection.answer(posted.opaque, code, timeout_s=posted.timeout_s)
        if answer is None:
            answer = self._invoke(posted.address, code, posted.ext, timeout_s=posted.timeout_s, landing=posted.landing)
        status = _PULL_STATUS.get(answer.code)
        if status is None:
            raise ResponseError(answer.code, answer.remark, request_code=code, address=posted.address)
        low, high, following = (number(answer.ext, name) for name in ("minOffset", "maxOffset", "nextBeginOffset"))
        return RawPull(status, following, low, high, answer.body if posted.landing is None else posted.landing.body)

    def abandon(self, posted: PostedPull) -> None:
        """Nobody will ask for what this pull brings: megabytes may be on their way, so its connection is closed."""
        self._drop(posted.address, posted.connection)

    def min_offset(self, queue: MessageQueue) -> int:
        return self._offset(queue, RequestCode.GET_MIN_OFFSET)

    def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message will get."""
        return self._offset(queue, RequestCode.GET_MAX_OFFSET)

    def search_offset(self, queue: MessageQueue, time_ms: int) -> int:
        """The first message that was stored at or after the time; the maximum when there is none."""
        return self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, timestamp=time_ms)

    def consumer_offset(self, queue: MessageQueue, group: str | None = None) -> int:
        """The group's stored offset, -1 when there is none."""
        ext = {**_queue_ext(queue), "consumerGroup": group or self.group, "setZeroIfNotFound": "false"}
        address = self._reader_address(queue)
        answer = self._invoke(address, RequestCode.QUERY_CONSUMER_OFFSET, ext)
        if answer.code == ResponseCode.QUERY_NOT_FOUND:
            return NO_OFFSET
        return number(_checked(answer, RequestCode.QUERY_CONSUMER_OFFSET, address).ext, "offset")

    def update_consumer_offset(self, queue: MessageQueue, offset: int, group: str | None = None) -> None:
        ext = {**_queue_ext(queue), "consumerGroup": group or self.group, "commitOffset": offset}
        self._call(self._reader_address(queue), RequestCode.UPDATE_CONSUMER_OFFSET, ext)

    # Writing.
    def send_batch(self, messages: Sequence[Message], queue: MessageQueue, *, producer_group: str = "") -> RawSent:
        """Send messages of one topic to one queue in one request; one try."""
        body, _ = pack_batch(messages)
        return self.batch_answer(self.post_batch(body, queue, producer_group=producer_group))

    def post_batch(self, body: bytes | Pieces, queue: MessageQueue, *, producer_group: str = "") -> PostedBatch:
        """Send a packed batch (`message/batch.py`) without waiting for its answer, which `batch_answer` gives.

        Batches to one broker are stored in the order in which they were posted.
        """
        ext: dict[str, ExtValue] = {
            "a": producer_group or self.group,
            "b": queue.topic,
            "c": "TBW102",
            "d": 4,
            "e": queue.queue_id,
            "f": 0,
            "g": time.time_ns() // 1_000_000,
            "h": 0,
            "i": encode_properties({Property.WAIT: "true"}).decode(),
            "j": 0,
            "k": "false",
            "m": "true",
            "n": queue.broker_name,
        }
        address = self._master_address(queue)
        connection = self._connection(address)
        with self._forgotten(address, connection):
            opaque = connection.post(RequestCode.SEND_BATCH_MESSAGE, ext, body, timeout_s=self._timeout_s)
        return PostedBatch(queue, address, connection, opaque)

    def is_answered(self, posted: PostedBatch) -> bool:
        """Whether `batch_answer` would not wait."""
        return posted.connection.is_answered(posted.opaque)

    def batch_answer(self, posted: PostedBatch) -> RawSent:
        """Wait until a posted batch is acknowledged. It may have been stored also when this raises."""
        code = RequestCode.SEND_BATCH_MESSAGE
        with self._forgotten(posted.address, posted.connection):
            answer = posted.connection.answer(posted.opaque, code, timeout_s=self._timeout_s)
        if answer.code not in _STORED:
            raise ResponseError(answer.code, answer.remark, request_code=code, address=posted.address)
        queue = posted.queue._replace(queue_id=number(answer.ext, "queueId"))
        return RawSent(queue, number(answer.ext, "queueOffset"))

    def post(
        self, queue: MessageQueue, code: RequestCode, ext: Mapping[str, ExtValue], body: bytes | Pieces = b""
    ) -> Posted:
        """Send a request to the queue's master without waiting for its answer, which `answer` gives."""
        address = self._master_address(queue)
        connection = self._connection(address)
        with self._forgotten(address, connection):
            return Posted(code, address, connection, connection.post(code, ext, body, timeout_s=self._timeout_s))

    def answer(self, posted: Posted) -> Command:
        """Wait for the answer, whatever its code. The request may have been carried out also when this raises."""
        with self._forgotten(posted.address, posted.connection):
            return posted.connection.answer(posted.opaque, posted.code, timeout_s=self._timeout_s)

    # Requests.
    def _offset(self, queue: MessageQueue, code: RequestCode, **more: int) -> int:
        return number(self._call(self._reader_address(queue), code, {**_queue_ext(queue), **more}).ext, "offset")

    def _call(self, address: str, code: RequestCode, ext: Mapping[str, ExtValue]) -> Command:
        return _checked(self._invoke(address, code, ext), code, address)

    def _invoke(
        self,
        address: str,
        code: RequestCode,
        ext: Mapping[str, ExtValue],
        body: bytes = b"",
        *,
        timeout_s: float | None = None,
        landing: Landing | None = None,
    ) -> Command:
        is_kept = address in self._connections
        connection = self._connection(address)
        try:
            with self._forgotten(address, connection):
                given_s = self._timeout_s if timeout_s is None else timeout_s
                return connection.invoke(code, ext, body, timeout_s=given_s, landing=landing)
        except ConnectionClosedError:
            if is_kept:
                # Servers close connections that were silent for two minutes: asked again on a new one, once. Batches do
                # not pass here: one may have been stored, so its sender decides.
                return self._invoke(address, code, ext, body, timeout_s=timeout_s, landing=landing)
            raise

    def _connection(self, address: str) -> RawConnection:
        connection = self._connections.get(address)
        if connection is None:
            connection = self._connections[address] = RawConnection(
                address,
                tls=self._tls,
                tls_server_name=self._tls_server_name,
                credentials=self._credentials,
            )
        return connection

    @contextlib.contextmanager
    def _forgotten(self, address: str, connection: RawConnection) -> Iterator[None]:
        """A connection that fails is closed and not used again."""
        try:
            yield
        except (ConnectionClosedError, RequestTimeoutError, RemoteProtocolError):
            if self._drop(address, connection):
                self._routes.clear()  # a broker may have moved
            raise

    def _drop(self, address: str, connection: RawConnection) -> bool:
        """Close a connection; whether it was the one in use."""
        connection.close()
        is_used = self._connections.get(address) is connection
        if is_used:
            del self._connections[address]
        return is_used

    def _broker(self, queue: MessageQueue) -> Broker | None:
        """Of the topic's route. NameServers know no topic whose brokers are all away: then the queue's broker is."""
        try:
            return self.route(queue.topic).broker(queue.broker_name)
        except NoRouteError as exc:
            if self.has_broker(queue.broker_name):
                raise
            raise BrokerNotFoundError(queue.broker_name) from exc

    def _reader_address(self, queue: MessageQueue) -> str:
        if self._address is not None:
            return self._address
        broker = self._broker(queue)
        found = read_address(broker.addresses, MASTER_ID) if broker is not None else None
        if found is None:
            raise BrokerNotFoundError(queue.broker_name)
        return found[0]

    def _master_address(self, queue: MessageQueue) -> str:
        if self._address is not None:
            return self._address
        broker = self._broker(queue)
        if broker is None or MASTER_ID not in broker.addresses:
            raise BrokerNotFoundError(queue.broker_name)
        return broker.addresses[MASTER_ID]


def _queue_ext(queue: MessageQueue) -> dict[str, ExtValue]:
    return {"topic": queue.topic, "queueId": queue.queue_id, "bname": queue.broker_name}


def _checked(answer: Command, code: RequestCode, address: str) -> Command:
    if answer.code != ResponseCode.SUCCESS:
        raise ResponseError(answer.code, answer.remark, request_code=code, address=address)
    return answer
