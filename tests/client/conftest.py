"""A NameServer and a broker in a thread of this process, for the clients' end-to-end tests."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import TypeVar

import pytest

from contrailmq.broker.config import BrokerConfig
from contrailmq.broker.server import BrokerServer
from contrailmq.namesrv.config import NamesrvConfig
from contrailmq.namesrv.server import NameServer
from contrailmq.store.config import StoreConfig
from contrailmq.wire.transport import new_event_loop

T = TypeVar("T")


class Cluster:
    """`namesrv` is its address. Brokers can be stopped and started again on the same port."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._loop = new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="test-cluster", daemon=True)
        self._thread.start()
        self._server = self.run(self._make(self._name_server))
        self._broker: BrokerServer | None = None
        self._port = 0
        self.run(self._server.start())
        self.namesrv = self._server.address
        self.start_broker()

    def run(self, work: Coroutine[object, object, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(30)

    def start_broker(self) -> None:
        self._broker = self.run(self._make(self._new_broker))
        self.run(self._broker.start())
        self._port = self._broker.port

    def stop_broker(self) -> None:
        assert self._broker is not None
        self.run(self._broker.stop())
        self._broker = None

    @property
    def broker_address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def close(self) -> None:
        if self._broker is not None:
            self.stop_broker()
        self.run(self._server.stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _make(self, build: Callable[[], T]) -> T:
        return build()

    def _name_server(self) -> NameServer:
        return NameServer(NamesrvConfig(listen_port=0, bind_address="127.0.0.1"))

    def _new_broker(self) -> BrokerServer:
        config = BrokerConfig(
            broker_name="broker-a",
            broker_ip1="127.0.0.1",
            bind_address="127.0.0.1",
            listen_port=self._port,
            namesrv_addr=self.namesrv,
            is_vip_channel_enabled=False,
        )
        store = StoreConfig(self._path / "store", mapped_file_size_commit_log=16 * 1024 * 1024)
        return BrokerServer(config, store)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Shared by tests that use topics and groups of their own and leave the servers alone."""
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    yield made
    made.close()


@pytest.fixture
def own_cluster(tmp_path: Path) -> Iterator[Cluster]:
    """For tests that stop servers."""
    made = Cluster(tmp_path)
    yield made
    made.close()
