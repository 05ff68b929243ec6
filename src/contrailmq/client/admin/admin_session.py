"""The connection of an administrator: finds brokers, asks one or all of them.

An administrator is not a member of any group. It needs only routes and connections, so it shares a client instance's.
It starts with its first call; close it with `shutdown`, or use `async with`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Self, Unpack

from contrailmq.client.errors import BrokerNotFoundError, ClientError, did_you_mean
from contrailmq.client.life import check_loop
from contrailmq.client.namespace import wrap
from contrailmq.client.settings import ClientOptions, ClientSettings
from contrailmq.client.transport.instance import ClientInstance
from contrailmq.client.transport.routes import MASTER_ID, TopicRoute
from contrailmq.message import MessageQueue
from contrailmq.wire.bodies import ClusterInfo, decode_body
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.errors import ResponseError
from contrailmq.wire.header import Command, ExtValue

ADMIN_TIMEOUT_S: Final = 6.0  # Java's timeout of administration calls
NAMESRV_TIMEOUT_S: Final = 3.0  # a NameServer answers from memory: who waits longer waits in vain
NAMES_SHOWN: Final = 8


class AdminSession:
    """What all parts of `Admin` stand on."""

    def __init__(self, *, namesrv: str | None = None, **settings: Unpack[ClientSettings]) -> None:
        settings.setdefault("request_timeout_s", ADMIN_TIMEOUT_S)
        self.options = ClientOptions(namesrv=namesrv, **settings)
        self._instance: ClientInstance | None = None
        self._stand_ins: dict[str, str] = {}

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.shutdown()

    async def start(self) -> None:
        """Optional: the first call starts too."""
        self._connected()

    async def shutdown(self) -> None:
        if self._instance is not None:
            instance, self._instance = self._connected(), None
            await instance.release()

    def _connected(self) -> ClientInstance:
        if self._instance is None:
            self._instance = ClientInstance.acquire(self.options.client_id(), self.options)
        check_loop("this Admin", self._instance.loop)
        return self._instance

    @property
    def _namesrv_timeout_s(self) -> float:
        return min(NAMESRV_TIMEOUT_S, self.options.request_timeout_s)

    def _name(self, name: str) -> str:
        return wrap(self.options.namespace, name)

    async def cluster(self) -> ClusterInfo:
        """Clusters, their brokers and the brokers' addresses."""
        return decode_body((await self._ask_namesrv(RequestCode.GET_BROKER_CLUSTER_INFO)).body, ClusterInfo)

    async def route(self, topic: str) -> TopicRoute:
        """The topic's brokers and queues, fresh from the NameServer."""
        return await self._connected().refresh_route(self._name(topic))

    async def masters(self, *, broker: str | None = None, cluster: str | None = None) -> dict[str, str]:
        """Addresses of the masters by broker name: of one broker, one cluster, or all."""
        groups = await self._brokers(broker, cluster)
        found = {name: ids[MASTER_ID] for name, ids in groups.items() if MASTER_ID in ids}
        if not found:
            raise BrokerNotFoundError(", ".join(groups))
        return found

    async def slaves_asked(self) -> dict[str, str]:
        """Addresses of slaves that were asked in place of their masters so far, by broker name.

        A slave lacks what its master took last, and knows topics, groups and offsets as of its last copy of them.
        """
        return dict(self._stand_ins)

    async def _readable(self, *, broker: str | None = None) -> dict[str, str]:
        """Whom to ask what slaves know too: the masters, and while one is away its slave with the lowest id."""
        return self._readers(await self._brokers(broker, None))

    def _readers(self, groups: Mapping[str, Mapping[int, str]]) -> dict[str, str]:
        found = {name: (min(ids), ids[min(ids)]) for name, ids in groups.items() if ids}
        self._stand_ins |= {name: address for name, (id_, address) in found.items() if id_ != MASTER_ID}
        return {name: address for name, (_, address) in found.items()}

    async def _brokers(self, broker: str | None, cluster: str | None) -> dict[str, dict[int, str]]:
        """Addresses by broker name and id; BrokerNotFoundError when there are none."""
        info = await self.cluster()
        wanted = set(info.broker_addr_table)
        if cluster is not None:
            wanted &= set(info.cluster_addr_table.get(cluster, []))
        if broker is not None:
            wanted &= {broker}
        table = info.broker_addr_table
        found = {name: table[name].broker_addrs for name in sorted(wanted) if table[name].broker_addrs}
        if not found:
            _require_known("cluster", cluster, info.cluster_addr_table)
            _require_known("broker", broker, table)
            raise BrokerNotFoundError(broker or "", cluster=cluster or "")
        return found

    # Requests.
    async def _ask(
        self,
        address: str,
        code: RequestCode,
        ext: dict[str, ExtValue] | None = None,
        body: bytes = b"",
        *,
        accept: tuple[int, ...] = (0,),
    ) -> Command:
        return await self._connected().call(address, code, ext or {}, body, accept=accept)

    async def _ask_namesrv(
        self, code: RequestCode, ext: dict[str, ExtValue] | None = None, body: bytes = b""
    ) -> Command:
        instance = self._connected()
        answer = await instance.name_servers.invoke(code, ext or {}, timeout_s=self._namesrv_timeout_s, body=body)
        return _checked(answer, code)

    async def _tell_namesrvs(self, code: RequestCode, ext: dict[str, ExtValue], body: bytes = b"") -> None:
        """To each NameServer: they do not talk to each other."""
        instance = self._connected()
        answers = await instance.name_servers.invoke_each(code, ext, timeout_s=self._namesrv_timeout_s, body=body)
        for answer in answers:
            _checked(answer, code)

    async def _queue_master(self, queue: MessageQueue) -> str:
        return await self._connected().find_master(queue.broker_name, self._name(queue.topic))

    async def _queue_reader(self, queue: MessageQueue) -> str:
        name = queue.broker_name
        address, id_ = await self._connected().find_reader(name, self._name(queue.topic))
        if id_ != MASTER_ID:
            self._stand_ins[name] = address
        return address

    async def _topic_readers(self, topic: str) -> dict[str, str]:
        """As `_readable`, of the brokers that have the topic."""
        return self._readers({broker.name: broker.addresses for broker in (await self.route(topic)).brokers})


def _require_known(what: str, name: str | None, known: Iterable[str]) -> None:
    """A mistyped name is another fault than a broker that is away."""
    names = sorted(known)
    if name is not None and names and name not in names:
        hint = did_you_mean(name, names) or f": it has {', '.join(names[:NAMES_SHOWN])}"
        raise ClientError(f"no {what} {name} is registered at the NameServer{hint}")


def _checked(answer: Command, code: RequestCode) -> Command:
    if answer.code != 0:
        raise ResponseError(answer.code, answer.remark, request_code=code)
    return answer
