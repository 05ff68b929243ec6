"""LocalCluster: NameServer and brokers on a loop in a thread of this process, with a blocking face.

Stores are temporary, with 16 MiB log files, unless a path is given. A broker that is killed loses what was not flushed
and comes back on the same port and store, as after a crash. With `processes=True` brokers are real processes and a
kill is a real SIGKILL. With `slaves=N` each broker is a master with N slaves, which serve reads when it is gone, and
any two of them can be cut off from each other (links.py).
"""

from __future__ import annotations

import asyncio
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeVar

from contrailmq.broker.server import BrokerServer
from contrailmq.namesrv import NameServer, NamesrvConfig
from contrailmq.testing.links import Links
from contrailmq.testing.members import ClusterError, Member, ProcessMember, ThreadlessMember, figures, with_free_ports
from contrailmq.wire.tls import client_tls, server_tls, with_client_side
from contrailmq.wire.transport import RemotingClient, new_event_loop

T = TypeVar("T")

HOST: Final = "127.0.0.1"
MIB: Final = 1 << 20
START_TIMEOUT_S: Final = 180.0  # on a machine that is very busy
POLL_S: Final = 0.02
SMALL_STORE: Final[dict[str, object]] = {
    "mapped_file_size_commit_log": 16 * MIB,
    "max_hash_slot_num": 50_000,
    "max_index_num": 200_000,
}


class LocalCluster:
    """A cluster for tests. Use it as a context manager, or call `start` and `stop`.

    `config` holds RocketMQ's keys for every broker: `LocalCluster(config={"flushDiskType": "SYNC_FLUSH"})`. Its `tls.*`
    keys are the NameServer's too.
    """

    def __init__(
        self,
        brokers: int = 1,
        *,
        slaves: int = 0,
        store: str | Path | None = None,
        config: Mapping[str, object] | None = None,
        processes: bool = False,
    ) -> None:
        assert brokers >= 1, "a cluster has at least one broker"
        assert slaves >= 0, "a broker has no slaves, or some"
        self._count = brokers
        self._slave_count = slaves
        self._given_store = store
        self._config = {key: _text(value) for key, value in (config or {}).items()}
        self._kind: type[Member] = ProcessMember if processes else ThreadlessMember
        self._members: list[Member] = []
        self._name_server: NameServer | None = None
        self._links: Links | None = None  # between masters and slaves, when there are slaves
        self._held_ports: list[socket.socket] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self.store_path = Path()

    # --- what users need

    @property
    def namesrv(self) -> str:
        """`127.0.0.1:port`, for every client's `namesrv=`."""
        assert self._name_server is not None, "the cluster is not running"
        return self._name_server.address

    @property
    def broker_addresses(self) -> list[str]:
        """Of all that run: the masters, then the slaves (`slave_index`)."""
        return [member.address for member in self._members]

    def slave_index(self, broker: int = 0, slave: int = 0) -> int:
        """By which number a slave of a broker is killed, stopped and restarted: `kill_broker(cluster.slave_index())`.

        Masters have the numbers from 0 on.
        """
        if not 0 <= broker < self._count:
            raise ClusterError(f"broker {broker} is none: there are {self._count} with slaves, numbered from 0 on")
        if not 0 <= slave < self._slave_count:
            raise ClusterError(f"slave {slave} is none: each broker has {self._slave_count}, numbered from 0 on")
        return self._count + broker * self._slave_count + slave

    def wait_until_replicated(self, timeout_s: float = START_TIMEOUT_S) -> None:
        """Return when every slave that runs has what its master has now; ClusterError when it takes longer.

        Of masters and slaves that are not running nothing is expected.
        """
        self._run(self._replicated(timeout_s), timeout_s + START_TIMEOUT_S)

    def kill_broker(self, index: int = 0) -> None:
        """End a broker without flushing or saying goodbye."""
        self._run(self._member(index).kill())

    def stop_broker(self, index: int = 0) -> None:
        """End a broker cleanly."""
        self._run(self._member(index).stop())

    def restart_broker(self, index: int = 0) -> None:
        """Start a broker again, on its port and with its store."""
        member = self._member(index)

        async def restart() -> None:
            await member.stop()
            await member.start()

        self._run(restart())

    def partition(self, one: int, other: int) -> None:
        """Cut the network between two members, masters or slaves: no byte passes between them until `heal`.

        As with a pulled cable nobody is told: their connections stay open and are silent. Both still reach the
        NameServer, clients reach both, and all other members reach each other. Needs `slaves`: masters of different
        brokers have nothing to say to each other.
        """
        self._check_pair(one, other)
        self._run(self._links_do(lambda links: links.cut(one, other)))

    def heal(self) -> None:
        """Undo every partition. What was on its way arrives, on connections that neither side has given up by now."""
        self._run(self._links_do(Links.join))

    def reset_connections(self, one: int, other: int) -> None:
        """End every connection between two members, as a firewall that has lost its memory; they make new ones."""
        self._check_pair(one, other)
        self._run(self._links_do(lambda links: links.reset(one, other)))

    def stop_name_server(self) -> None:
        """End the NameServer; clients and brokers go on with the routes they know."""
        assert self._name_server is not None, "the cluster is not running"
        self._run(self._name_server.stop())

    def restart_name_server(self) -> None:
        """A new NameServer on the same port; it knows nothing until brokers register again."""
        assert self._name_server is not None, "the cluster is not running"
        self.stop_name_server()
        port = int(self.namesrv.rpartition(":")[2])
        self._name_server = self._new_name_server(port)
        self._run(self._name_server.start())

    def broker(self, index: int = 0) -> BrokerServer:
        """The broker itself, when it lives in this process. Touch it from its own loop only."""
        member = self._member(index)
        assert isinstance(member, ThreadlessMember), "the broker is another process"
        return member.server

    def broker_process_id(self, index: int = 0) -> int:
        """Of a broker that is a process of its own: to measure it, or to send it signals."""
        member = self._member(index)
        assert isinstance(member, ProcessMember), "the broker lives in this process: use processes=True"
        return member.process_id

    # --- life

    def start(self) -> Self:
        self.store_path = Path(self._given_store or tempfile.mkdtemp(prefix="contrailmq-"))
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="contrailmq-cluster", daemon=True)
        self._thread.start()
        try:
            self._run(self._start())
        except BaseException:  # an interrupt too: what was started is stopped
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """Stop everything; a temporary store is removed. Idempotent."""
        if self._loop is None or self._thread is None:
            return
        try:
            self._run(self._stop())
        finally:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(START_TIMEOUT_S)
            self._loop.close()
            self._loop = self._thread = None
            if self._given_store is None:
                shutil.rmtree(self.store_path, ignore_errors=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    async def _start(self) -> None:
        self._name_server = self._new_name_server(self._hold_port())
        await self._name_server.start()
        if self._slave_count:
            self._links = self._new_links(self._name_server.address)
        for number in range(self._count):
            name = f"broker-{number}"
            self._members.append(await self._new_member(name, name, {}))
        for number in range(self._count):
            for broker_id in range(1, self._slave_count + 1):
                name = f"broker-{number}"
                as_slave = {"brokerRole": "SLAVE", "brokerId": str(broker_id)}
                self._members.append(await self._new_member(name, f"{name}-slave-{broker_id}", as_slave))
        masters, slaves = self._members[: self._count], self._members[self._count :]
        await asyncio.gather(*(member.start() for member in masters))
        await asyncio.gather(*(member.start() for member in slaves))
        if slaves:
            await self._replicated(START_TIMEOUT_S)  # they have found their masters

    async def _new_member(self, name: str, directory: str, role: dict[str, str]) -> Member:
        """The next one, not started; `role` is a slave's."""
        namesrv = self.namesrv if self._links is None else await self._links.namesrv_for(len(self._members))
        properties = {
            "brokerName": name,
            "bindAddress": HOST,
            "brokerIP1": HOST,
            "listenPort": "0",
            "namesrvAddr": namesrv,
        }
        said = with_client_side(properties | ({"slaveReadEnable": "true"} if role else {}) | self._config)
        if said["listenPort"] == "0" and said["bindAddress"] == HOST:
            said = with_free_ports(said) | {"listenPort": str(self._hold_port())}
        return self._kind(self.store_path / directory, said | role, store_settings=SMALL_STORE)

    def _hold_port(self) -> int:
        """A port that is the cluster's until it stops, also while the member that listens there is away.

        The system gives a port that is bound to nobody else. A bound one that does not listen refuses connections, and
        leaves the port to a server of ours, which says SO_REUSEADDR too.
        """
        held = socket.socket()
        self._held_ports.append(held)
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((HOST, 0))
        port: int = held.getsockname()[1]
        return port

    def _new_links(self, namesrv: str) -> Links:
        """A member that is told to speak TLS speaks it to its NameServer too, and here to the link in between."""
        as_member, as_server = client_tls(with_client_side(self._config)), server_tls(self._config)
        if as_member is None or as_server is None:
            return Links(namesrv, tls=None, namesrv_tls=None)
        return Links(namesrv, tls=as_server.context, namesrv_tls=as_member)

    async def _links_do(self, act: Callable[[Links], None]) -> None:
        """On the loop that carries what the links carry."""
        if self._links is not None:
            act(self._links)

    def _check_pair(self, one: int, other: int) -> None:
        if not self._slave_count:
            raise ClusterError("masters have no connections to each other: use LocalCluster(slaves=N)")
        if self._member(one) is self._member(other):
            raise ClusterError(f"a member cannot be cut off from itself, and {one} is the same as {other}")

    def _member(self, index: int) -> Member:
        """ClusterError when there is none of that number. (A negative one would name another member than it says.)"""
        count = len(self._members)
        if 0 <= index < count:
            return self._members[index]
        if not count:
            raise ClusterError(f"there is no broker {index}: the cluster is not running")
        slaves = f", the slaves from {self._count} on" if self._slave_count else ""
        raise ClusterError(
            f"there is no broker {index}: the cluster has {count}, with the numbers 0 to {count - 1}{slaves}"
        )

    async def _replicated(self, timeout_s: float) -> None:
        client = RemotingClient(tls=client_tls(with_client_side(self._config)))
        try:
            async with asyncio.timeout(timeout_s):
                for number, master in enumerate(self._members[: self._count]):
                    first = self._count + number * self._slave_count
                    if master.is_running:
                        end = await _log_end(client, master)
                        for slave in self._members[first : first + self._slave_count]:
                            await _wait_for_end(client, slave, end)
        except TimeoutError:
            raise ClusterError(
                f"not every slave had its master's log within {timeout_s:g} s: its log says why it does not follow"
            ) from None
        finally:
            await client.close()

    def _new_name_server(self, port: int) -> NameServer:
        home = self.store_path / "namesrv-home"
        has_acting = self._config.get("enableSlaveActingMaster", "").lower() == "true"
        config = NamesrvConfig(
            bind_address=HOST,
            listen_port=port,
            rocketmq_home=str(home),
            support_acting_master=has_acting,
            notify_min_broker_id_changed=has_acting,
        )
        return NameServer(config, tls=server_tls(self._config))

    async def _stop(self) -> None:
        await asyncio.gather(*(member.stop() for member in self._members))
        self._members.clear()
        if self._name_server is not None:
            await self._name_server.stop()
            self._name_server = None
        if self._links is not None:
            await self._links.close()
            self._links = None
        while self._held_ports:
            self._held_ports.pop().close()

    def _run(self, work: Coroutine[object, object, T], timeout_s: float = 2 * START_TIMEOUT_S) -> T:
        assert self._loop is not None, "the cluster is not running"
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout_s)


async def _log_end(client: RemotingClient, member: Member) -> int:
    return int((await figures(client, member))["commitLogMaxOffset"])


async def _wait_for_end(client: RemotingClient, slave: Member, end: int) -> None:
    """Until it follows, and its log is as long as that."""
    while slave.is_running:
        said = await figures(client, slave)
        if int(said["commitLogMaxOffset"]) >= end and said.get("haIsFollowing") == "true":
            return
        await asyncio.sleep(POLL_S)


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
