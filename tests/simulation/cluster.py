"""Our servers and clients in a world: the code of production, above simulated files, threads, clocks and sockets.

    with Cluster(seed=7) as cluster:
        cluster.start_name_server()
        cluster.start_broker("b0")
        producer = cluster.start_client("p0", produce)
        cluster.world.run_for(600)

Every process has a host of its own. Brokers keep their name, port and disk over restarts.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Final, Self

from contrailmq.broker.config import read_configs
from contrailmq.broker.server import BrokerServer
from contrailmq.namesrv import NameServer, NamesrvConfig
from simulation import patches
from simulation.disks import Disk, SimulatedFiles
from simulation.network import Host, Network
from simulation.nodes import Node
from simulation.world import World

NAMESRV_PORT: Final = 9876
BROKER_PORT: Final = 10_911
START_S: Final = 60.0  # virtual seconds
MEMORY_FILES: Final = Path("/dev/shm")  # where there is such a place: syncs and removals cost nothing there

SMALL_FILES: Final[dict[str, object]] = {
    "mapped_file_size_commit_log": 256 * 1024,
    "mapped_file_size_consume_queue": 20 * 1000,
    "max_hash_slot_num": 1_000,
    "max_index_num": 4_000,
}


class Cluster:
    """A world with a network, a directory for its disks, and names for its members."""

    def __init__(self, seed: int, *, flush: str = "SYNC_FLUSH", keep_trace: bool = False) -> None:
        self.world = World(seed, keep_trace=keep_trace)
        self.network = Network(self.world)
        self.settings: dict[str, str] = {"flushDiskType": flush}
        self.disks: dict[str, Disk] = {}
        self.servers: dict[str, BrokerServer | NameServer] = {}
        self._hosts: dict[str, Host] = {}
        self._undo = contextlib.ExitStack()
        self._path = Path()

    def __enter__(self) -> Self:
        place = MEMORY_FILES if MEMORY_FILES.is_dir() and os.access(MEMORY_FILES, os.W_OK) else None
        self._path = Path(tempfile.mkdtemp(prefix="contrailmq-simulation-", dir=place)).resolve()
        self._undo.callback(shutil.rmtree, self._path, ignore_errors=True)
        self._undo.callback(self._close_disks)
        self._undo.enter_context(patches.installed(self.world))
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    # --- members

    @property
    def namesrv(self) -> str:
        return f"{self.host('namesrv').address}:{NAMESRV_PORT}"

    def host(self, name: str) -> Host:
        if name not in self._hosts:
            self._hosts[name] = self.network.add_host(name)
        return self._hosts[name]

    def disk(self, name: str) -> Disk:
        if name not in self.disks:
            self.disks[name] = Disk(self.world, self.host(name), self._path / name)
        return self.disks[name]

    def node(self, name: str) -> Node:
        return self.world.nodes[name]

    def start_name_server(self, name: str = "namesrv") -> Node:
        async def serve(node: Node) -> None:
            home = str(self.disk(name).path)
            config = NamesrvConfig(bind_address="0.0.0.0", listen_port=NAMESRV_PORT, rocketmq_home=home)
            server = NameServer(config)
            await server.start()
            self.servers[name] = server
            await asyncio.Event().wait()

        return self._start(name, serve)

    def start_broker(self, name: str, **settings: str) -> Node:
        """Start it, or start it again; it is registered when this returns."""

        async def serve(node: Node) -> None:
            properties = {
                "brokerName": name,
                "brokerIP1": node.host.address,
                "listenPort": str(BROKER_PORT),
                "enableFastListenPort": "false",
                "namesrvAddr": self.namesrv,
            }
            path = self.disk(name).path / "store"
            config, store_config, _ = read_configs(properties | self.settings | settings, path=path, **SMALL_FILES)
            server = BrokerServer(config, store_config, files=SimulatedFiles(self.disk(name)))
            await server.start()
            self.servers[name] = server
            await server.failed.wait()

        return self._start(name, serve)

    def start_client(self, name: str, main: Callable[[Node], Coroutine[object, object, object]]) -> Node:
        return Node(self.network, name, self.host(name)).start(main)

    def stop(self, name: str) -> None:
        """A clean stop, as on SIGTERM."""
        node, server = self.node(name), self.servers.pop(name)
        node.run(server.stop())
        node.kill()

    def _start(self, name: str, serve: Callable[[Node], Coroutine[object, object, object]]) -> Node:
        host = self.host(name)
        if not host.is_up:
            host.come_up()
        self.servers.pop(name, None)
        node = Node(self.network, name, host, self.disk(name)).start(serve)
        if not self.world.run_until(lambda: name in self.servers or not node.is_alive, within_s=START_S):
            raise TimeoutError(f"{name} did not start within {START_S:g} virtual seconds")
        if node.error is not None:
            raise node.error
        return node

    # --- what a run left

    def digest(self, name: str) -> str:
        """A hash of every file on a disk, with its name."""
        found = hashlib.blake2b(digest_size=16)
        root = self.disk(name).path
        for path in sorted(root.rglob("*")):
            found.update(str(path.relative_to(root)).encode() + b"\0")
            if path.is_file():
                found.update(path.read_bytes())
        return found.hexdigest()

    def _close_disks(self) -> None:
        for disk in self.disks.values():
            disk.close()
