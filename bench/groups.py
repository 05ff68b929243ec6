"""A NameServer, a master alone, and a master with its slave: ours or Apache's, as processes of their own.

Both systems get the same settings of RocketMQ's, and are stopped and started one by one. What a broker has (where its
log ends, what its queues lack) is asked of it over the ordinary port, so that both are measured by the same means.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Final

from bench import compare
from bench.apache_programs import cpu_seconds
from bench.mixed import NotDelivered
from contrailmq import Admin
from contrailmq.wire.errors import WireError

START_S: Final = 90.0  # of a JVM, on a busy machine
STOP_S: Final = 30.0
LOOK_S: Final = 0.05
LOG_FILE_BYTES: Final = 128 << 20  # a slave that begins empty gets the newest file alone
JAVA: Final = [
    "java",
    "--add-opens",
    "java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens",
    "java.base/java.nio=ALL-UNNAMED",
]

Settings = Mapping[str, object]
Command = Callable[[str, Path], list[str]]  # of "namesrv" or "broker", and its properties file


def ours_command(kind: str, file: Path) -> list[str]:
    return [str(Path(sys.executable).parent / "contrailmq"), kind, "-c", str(file)]


def apache_command(lib: Path, home: Path) -> Command:
    main = {"namesrv": "namesrv.NamesrvStartup", "broker": "broker.BrokerStartup"}
    heap = {"namesrv": ["-Xmx256m"], "broker": ["-Xms1g", "-Xmx1g"]}

    def command(kind: str, file: Path) -> list[str]:
        options = [*heap[kind], *JAVA[1:], f"-Duser.home={home}", "-cp", f"{lib}/*"]
        return [JAVA[0], *options, f"org.apache.rocketmq.{main[kind]}", "-c", str(file)]

    return command


@dataclass
class Server:
    """One process and the file of its settings."""

    kind: str
    name: str
    home: Path
    command: Command
    settings: Settings
    port: int = field(default_factory=compare.free_port)
    process: subprocess.Popen[bytes] | None = None
    pid: int = 0  # of the one that listens

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def store(self) -> Path:
        return self.home / f"store-{self.name}"

    def start(self, more: Settings | None = None) -> None:
        values: dict[str, object] = {"listenPort": self.port, **self.settings, **(more or {})}
        file = self.home / f"{self.name}.conf"
        file.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        environment = os.environ | {"ROCKETMQ_HOME": str(self.home), "HOME": str(self.home)}
        with (self.home / f"{self.name}.log").open("ab") as out:
            self.process = subprocess.Popen(
                self.command(self.kind, file), stdout=out, stderr=subprocess.STDOUT, env=environment
            )
        compare.wait_for_port(self.port, START_S)
        self.pid = compare.listener(compare.process_tree(self.process.pid), self.port)

    def stop(self, sign: signal.Signals = signal.SIGTERM) -> None:
        if self.process is None:
            return
        self.process.send_signal(sign)
        try:
            self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process = None

    def cpu_s(self) -> float:
        return cpu_seconds(self.pid)

    def resident_mb(self) -> float:
        return compare.resident_mb([self.pid])


@dataclass(frozen=True)
class Place:
    """How far a broker is."""

    log_end: int
    readable_end: int  # its queues and its index have what is before


class Group:
    """The brokers of one system, under a NameServer of its own."""

    def __init__(self, name: str, home: Path, command: Command) -> None:
        self.name = name
        home.mkdir(parents=True)
        (home / "conf").mkdir()
        self.namesrv = Server("namesrv", "namesrv", home, command, {"kvConfigPath": home / "kv.json"})
        common: dict[str, object] = {
            "brokerClusterName": "DefaultCluster",
            "brokerIP1": "127.0.0.1",
            "namesrvAddr": self.namesrv.address,
            "autoCreateTopicEnable": "true",
            "mappedFileSizeCommitLog": LOG_FILE_BYTES,
            "flushDiskType": "ASYNC_FLUSH",
        }

        def broker(name: str, group: str, broker_id: int, role: str) -> Server:
            store = home / f"store-{name}"
            own: dict[str, object] = {
                "brokerName": group,
                "brokerId": broker_id,
                "brokerRole": role,
                "haListenPort": compare.free_port(),
                "storePathRootDir": store,
                "storePathCommitLog": store / "commitlog",
            }
            return Server("broker", name, home, command, common | own)

        self.alone = broker("alone", "bench-alone", 0, "ASYNC_MASTER")
        self.master = broker("master", "bench-pair", 0, "ASYNC_MASTER")
        self.slave = broker("slave", "bench-pair", 1, "SLAVE")
        self.admin = Admin(namesrv=self.namesrv.address)
        self._running = ExitStack()

    def __enter__(self) -> Group:
        with ExitStack() as starting:
            for server in (self.namesrv, self.alone, self.master, self.slave):
                starting.callback(server.stop)
                server.start()
            starting.enter_context(self.admin)
            self.await_slave()
            self._running = starting.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()

    def restart_pair(self, more: Settings) -> None:
        self.slave.stop()
        self.master.stop()
        self.master.start(more)
        self.slave.start()
        self.await_slave()

    def place(self, server: Server) -> Place:
        figures = self.admin.broker_stats(server.address)
        end = int(figures["commitLogMaxOffset"])
        return Place(end, end - int(figures["dispatchBehindBytes"]))

    def await_slave(self) -> None:
        """Until the slave is connected, and its queues have all that the master's log has."""
        self.until(lambda: bool(self.admin.ha_status(self.master.address).ha_connection_info), "a slave is connected")
        self.until(lambda: self.place(self.slave).readable_end >= self.place(self.master).log_end, "the slave has all")

    def until(self, fact: Callable[[], bool], what: str, seconds: float = START_S, *, look_s: float = LOOK_S) -> None:
        """A broker that answers with an error, or not at all, is asked again: Apache's does while its log begins."""
        deadline = time.monotonic() + seconds
        while True:
            error = ""
            try:
                if fact():
                    return
            except WireError as exc:
                error = f"; the last answer: {exc}"
            if time.monotonic() > deadline:
                file = self.slave.home / f"{self.slave.name}.log"
                logs = file.read_text()[-1000:] if file.exists() else "none"
                raise NotDelivered(
                    f"{self.name}: waited {seconds:g} s until {what}{error}; the slave's last lines:\n{logs}"
                )
            time.sleep(look_s)

    def keep_slaves_store(self) -> Path:
        """A copy of the stopped slave's store as it is now."""
        kept = self.slave.store.with_name("kept")
        subprocess.run(["cp", "-a", "--sparse=always", str(self.slave.store), str(kept)], check=True)
        return kept

    def put_back(self, kept: Path) -> None:
        shutil.rmtree(self.slave.store)
        kept.rename(self.slave.store)
