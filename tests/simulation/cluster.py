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
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Final, Self

from contrailmq.broker.config import read_configs
from contrailmq.broker.server import BrokerServer
from contrailmq.namesrv import NameServer, NamesrvConfig
from contrailmq.store.config import StoreConfig
from contrailmq.store.truncating import truncate_store
from simulation import patches
from simulation.disks import Disk, SimulatedFiles
from simulation.faults import group_of
from simulation.network import Host, Network
from simulation.nodes import Node
from simulation.stores import Left, read_store
from simulation.world import World

NAMESRV_PORT: Final = 9876
BROKER_PORT: Final = 10_911
START_S: Final = 60.0  # virtual seconds
RECORD_HEAD_BYTES_MAX: Final = 128
MEMORY_FILES: Final = Path("/dev/shm")  # where there is such a place: syncs and removals cost nothing there

# Waits that a trial sits through, shorter than production's, so that more of its virtual time has something in it.
SHORT_WAITS: Final = {
    "messageDelayLevel": "1s 2s 4s 7s 10s 15s 20s",
    "transactionCheckInterval": "4000",
    "transactionCheckMax": "100",  # more time than heartbeats take to make a producer known again, as by default
    "channelExpiredTimeout": "30000",
    "recallMessageEnable": "true",
    "syncFlushTimeout": "2000",  # below the 3 s of producers, who then hear of it
    "cleanFileForciblyEnable": "false",  # a full disk would take the oldest log files, whatever was promised
}
ROLLING: Final = {"timerRollWindowSlot": "3"}  # slots of a second: timers of 6 and 12 seconds roll
SMALL_FILES: Final[dict[str, int]] = {
    "mapped_file_size_commit_log": 64 * 1024,
    "mapped_file_size_consume_queue": 20 * 50,
    "mapper_file_size_batch_consume_queue": 46 * 20,
    "mapped_file_size_timer_log": 64 * 1024,
    "max_hash_slot_num": 1_000,
    "max_index_num": 500,
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
        self.broker_names: tuple[str, ...] = ()
        self.is_preemptive = False  # threads of brokers interleave wherever they take a lock or touch a file
        self.is_patient = False  # timers of processes that start from now on end on a grid
        self._store_configs: dict[str, StoreConfig] = {}
        self._undo = contextlib.ExitStack()
        self.path = Path()  # of this run alone

    def __enter__(self) -> Self:
        place = MEMORY_FILES if MEMORY_FILES.is_dir() and os.access(MEMORY_FILES, os.W_OK) else None
        self.path = Path(tempfile.mkdtemp(prefix="contrailmq-simulation-", dir=place)).resolve()
        self._undo.callback(shutil.rmtree, self.path, ignore_errors=True)
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
            self.disks[name] = Disk(self.world, self.host(name), self.path / name)
        return self.disks[name]

    def node(self, name: str) -> Node:
        return self.world.nodes[name]

    def start_name_server(self, name: str = "namesrv") -> Node:
        return self._started(name, self.launch_name_server(name))

    def start_broker(self, name: str, **settings: str) -> Node:
        """Start it, or start it again; it is registered when this returns."""
        return self._started(name, self.launch_broker(name, **settings))

    def launch_name_server(self, name: str = "namesrv") -> Node:
        async def serve(node: Node) -> None:
            home = str(self.disk(name).path)
            config = NamesrvConfig(
                bind_address="0.0.0.0", listen_port=NAMESRV_PORT, rocketmq_home=home, support_acting_master=True
            )
            server = NameServer(config)
            await server.start()
            self.servers[name] = server
            await asyncio.Event().wait()

        return self._launch(name, serve)

    def launch_broker(self, name: str, **settings: str) -> Node:
        """Begin to start it; `servers` has it when it serves."""

        async def serve(node: Node) -> None:
            properties = {
                "brokerName": name,
                "brokerIP1": node.host.address,
                "listenPort": str(BROKER_PORT),
                "enableFastListenPort": "false",
                "namesrvAddr": self.namesrv,
            }
            node.is_preemptive = self.is_preemptive
            path = self.disk(name).path / "store"
            config, store_config, _ = read_configs(properties | self.settings | settings, path=path, **SMALL_FILES)
            self._store_configs[name] = store_config
            server = BrokerServer(config, store_config, files=SimulatedFiles(self.disk(name)))
            await server.start()
            self.servers[name] = server
            await server.failed.wait()

        return self._launch(name, serve)

    def start_client(self, name: str, main: Callable[[Node], Coroutine[object, object, object]]) -> Node:
        node = Node(self.network, name, self.host(name))
        node.is_patient = self.is_patient
        return node.start(main)

    def truncate_log(self, name: str, at: int) -> Node:
        """`contrailmq store truncate` on the disk of a broker that is stopped; the process ends when it is done."""
        files, config = SimulatedFiles(self.disk(name)), self._store_configs[name]

        async def truncate(node: Node) -> None:
            await asyncio.to_thread(truncate_store, config, at, files=files)

        return self._launch(name, truncate)

    def stop(self, name: str) -> None:
        """A clean stop, as on SIGTERM."""
        node, server = self.node(name), self.servers.pop(name)
        node.run(server.stop())
        node.kill()

    def _launch(self, name: str, serve: Callable[[Node], Coroutine[object, object, object]]) -> Node:
        host = self.host(name)
        if not host.is_up:
            host.come_up()
        self.servers.pop(name, None)
        node = Node(self.network, name, host, self.disk(name))
        node.is_patient = self.is_patient
        return node.start(serve)

    def _started(self, name: str, node: Node) -> Node:
        if not self.world.run_until(lambda: name in self.servers or not node.is_alive, within_s=START_S):
            raise TimeoutError(f"{name} did not start within {START_S:g} virtual seconds")
        if node.error is not None:
            raise node.error
        return node

    # --- disks

    def flip(self, name: str, physical_offset: int, body: bytes, chance: random.Random) -> bool:
        """Turn a bit of a message's body in the log; False where the log does not hold it there."""
        config = self._store_configs[name]
        file_bytes = config.mapped_file_size_commit_log
        base = physical_offset - physical_offset % file_bytes
        path = config.commit_log_paths[0] / f"{base:020d}"
        if not path.exists():
            return False
        record = path.read_bytes()[physical_offset - base :]
        at = record.find(body, 0, RECORD_HEAD_BYTES_MAX + len(body))
        if at < 0:
            return False  # compressed, or of a log that a power cut has shortened
        self.disk(name).flip(path, physical_offset - base + at + chance.randrange(len(body)), 1 << chance.randrange(8))
        return True

    # --- what a run left

    def read_store(self, name: str) -> Left:
        """What the files of a broker that was stopped hold."""
        return read_store(group_of(name), self._store_configs[name])

    def digest(self, name: str) -> str:
        """A hash of every file on a disk, with its name."""
        return self.disk(name).digest()

    def _close_disks(self) -> None:
        for disk in self.disks.values():
            disk.close()
