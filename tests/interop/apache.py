"""Apache RocketMQ's own programs, started from its released jars: NameServer, broker, mqadmin, Java clients.

The jars come from a folder named by ROCKETMQ_LIB, or through Maven by artifact name into `.interop/` of the checkout
(once). Our own Java programs are compiled there too, and Java keeps there what a NameServer, a broker and a client
load: a JVM that lives for seconds takes a third less CPU with such an archive. Every server listens on a free loopback
port and writes below a temporary directory. Nothing here is needed by `make test`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from free_ports import free_port

VERSION = "5.5.0"
ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / ".interop"
SOURCES = Path(__file__).resolve().parent / "java"
START_SECONDS = 240.0  # of a JVM, where many are busy

_OPENS = [
    f"--add-{kind}={target}=ALL-UNNAMED"
    for kind, target in (
        ("opens", "java.base/sun.nio.ch"),
        ("opens", "java.base/java.nio"),
        ("exports", "java.base/sun.nio.ch"),
        ("exports", "java.base/jdk.internal.ref"),
        ("opens", "java.base/jdk.internal.ref"),
    )
]
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>interop</groupId><artifactId>interop</artifactId><version>1</version><dependencies>{}</dependencies></project>"""
_DEPENDENCY = (
    "<dependency><groupId>org.apache.rocketmq</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"
)


Ready = Callable[[str], bool]


class Missing(Exception):
    """Why Apache's programs cannot run here."""


def find_jars(version: str = VERSION) -> Path:
    """The folder with the jars of a release; fetched through Maven when it is not there yet.

    ROCKETMQ_LIB has those of VERSION. Of another release there are a NameServer and a broker.
    """
    given = os.environ.get("ROCKETMQ_LIB") if version == VERSION else None
    if given:
        _need_java()
        if not any(Path(given).glob("rocketmq-broker-*.jar")):
            raise Missing(f"ROCKETMQ_LIB={given} holds no rocketmq-broker jar")
        return Path(given)
    modules = ("namesrv", "broker", *(("tools", "example") if version == VERSION else ()))
    return fetch_jars(f"rocketmq-{version}", [(f"rocketmq-{module}", version) for module in modules])


def fetch_jars(name: str, artifacts: Sequence[tuple[str, str]]) -> Path:
    """The folder `name` with these artifacts of Apache's and what they need, through Maven, once."""
    _need_java()
    lib = KEPT / name
    if (lib / "complete").exists():
        return lib
    if shutil.which("mvn") is None:
        raise Missing("mvn is not on PATH and ROCKETMQ_LIB is not set: install Maven, or point it to a folder of jars")
    lib.mkdir(parents=True, exist_ok=True)
    # Tests run in several processes: one of them fetches, the others wait for it.
    with (lib.parent / "fetching").open("w") as lock, tempfile.TemporaryDirectory() as work:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if (lib / "complete").exists():
            return lib
        dependencies = "".join(_DEPENDENCY.format(artifact, version) for artifact, version in artifacts)
        Path(work, "pom.xml").write_text(_POM.format(dependencies))
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]
        done = subprocess.run([*command, f"-DoutputDirectory={lib}"], cwd=work, capture_output=True, text=True)
        if done.returncode:
            raise Missing(f"Maven could not fetch {name}: {done.stdout[-500:]}")
        (lib / "complete").touch()
    return lib


def _need_java() -> None:
    for tool in ("java", "javac"):
        if shutil.which(tool) is None:
            raise Missing(f"{tool} is not on PATH: install a JDK (11 or newer)")


def _has_route(port: int) -> bool:
    """Whether the NameServer knows TBW102, the topic that every broker brings; a frame written by hand."""
    header = json.dumps({"code": 105, "opaque": 1, "flag": 0, "extFields": {"topic": "TBW102"}}).encode()
    with socket.create_connection(("127.0.0.1", port), 10) as connection, connection.makefile("rb") as answer:
        connection.sendall(struct.pack(">II", 4 + len(header), len(header)) + header)
        _, header_bytes = struct.unpack(">II", answer.read(8))
        return bool(json.loads(answer.read(header_bytes))["code"] == 0)


class Program:
    """One Java server process: starts, waits for its port, stops on leaving the context."""

    def __init__(
        self, command: list[str], *, port: int, log: Path, env: Mapping[str, str], ready: Ready | None = None
    ) -> None:
        """Ready when the port accepts and `ready` says so of the output."""
        self.command, self.port, self.log, self.env, self.ready = command, port, log, dict(env), ready
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def __enter__(self) -> Program:
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(self.command, stdout=out, stderr=subprocess.STDOUT, env=self.env)
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"exit code {self.process.returncode}: {self.log.read_text()[-3000:]}")
            with socket.socket() as probe:
                is_open = probe.connect_ex(("127.0.0.1", self.port)) == 0
            if is_open and (self.ready is None or self.ready(self.log.read_text())):
                return self
            time.sleep(0.05)
        raise AssertionError(f"port {self.port} did not open in {START_SECONDS} s: {self.log.read_text()[-3000:]}")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self, sign: signal.Signals = signal.SIGTERM) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(sign)
            try:
                self.process.wait(60)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Apache:
    """Apache RocketMQ on this machine: `jars` is its release, `work` a directory for everything it writes."""

    def __init__(self, jars: Path, work: Path, sources: Sequence[Path] = ()) -> None:
        """`sources` are programs of ours that run beside Apache's."""
        self.jars, self.work = jars, work
        self._client: subprocess.Popen[str] | None = None
        (work / "conf").mkdir(parents=True, exist_ok=True)
        for name in ("namesrv", "broker"):  # what RocketMQ 4 refuses to start without
            (work / "conf" / f"logback_{name}.xml").write_text("<configuration/>\n")
        texts = [source.read_bytes() for source in sources]
        key = hashlib.sha256(b"\0".join([str(jars).encode(), VERSION.encode(), *texts])).hexdigest()[:16]
        self._kept = KEPT / f"java-{key}"
        self._kept.mkdir(parents=True, exist_ok=True)
        self._makes_archives = False
        # Tests run in several processes: one of them makes it, the others wait for it.
        with (KEPT / "making").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if sources and not self._programs.exists():
                self._compile(sources)
                self._make_archives()

    @property
    def _programs(self) -> Path:
        return self._kept / "programs.jar"

    def environment(self) -> dict[str, str]:
        return os.environ | {"ROCKETMQ_HOME": str(self.work), "HOME": str(self.work)}

    def java(self, *arguments: str, heap: str = "256m", archive: str = "client") -> list[str]:
        """A command; its classes come from the archive of a JVM that ran before, where there is one that fits."""
        home = f"-Duser.home={self.work}"
        path = f"{self.jars}/*:{self._programs}"
        wish = "ArchiveClassesAtExit" if self._makes_archives else "SharedArchiveFile"
        return [
            "java",
            f"-Xmx{heap}",
            "-XX:TieredStopAtLevel=1",
            "-XX:+UseSerialGC",
            f"-XX:{wish}={self._kept / archive}.jsa",
            "-Xlog:disable",
            home,
            "-Duser.timezone=UTC",
            *_OPENS,
            "-cp",
            path,
            *arguments,
        ]

    def namesrv(self) -> Program:
        port = free_port()
        conf = self.work / f"namesrv-{port}.conf"
        conf.write_text(f"listenPort={port}\nkvConfigPath={self.work}/kv-{port}.json\n")
        command = self.java("org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(conf), archive="namesrv")
        return Program(command, port=port, log=self.work / f"namesrv-{port}.log", env=self.environment())

    def broker(self, namesrv: str, *, store: Path | None = None, name: str = "broker-a", **settings: object) -> Program:
        """A broker over `store` (a fresh one by default); `settings` are RocketMQ's own keys.

        Apache's broker says "boot success" also when its first registration failed (a NameServer that was slow to
        answer); clients would find no route until the next one. So the NameServers are asked.
        """
        port = free_port()
        store = store or self.work / f"store-{port}"
        values: dict[str, object] = {
            "brokerClusterName": "DefaultCluster",
            "brokerName": name,
            "brokerId": 0,
            "brokerIP1": "127.0.0.1",
            "listenPort": port,
            "haListenPort": free_port(),
            "namesrvAddr": namesrv,
            "registerNameServerPeriod": 10_000,  # the shortest it takes: a first registration may be lost
            "storePathRootDir": store,
            "storePathCommitLog": store / "commitlog",
            "mappedFileSizeCommitLog": 16 * 1024 * 1024,
            "mappedFileSizeTimerLog": 1024 * 1024,
            "maxHashSlotNum": 5000,
            "maxIndexNum": 20000,
            "enablePropertyFilter": "true",
            **settings,
        }
        conf = self.work / f"broker-{port}.conf"
        conf.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
        command = self.java("org.apache.rocketmq.broker.BrokerStartup", "-c", str(conf), heap="768m", archive="broker")
        log = self.work / f"broker-{port}.log"
        ports = [int(address.rpartition(":")[2]) for address in namesrv.split(";")]
        return Program(
            command,
            port=port,
            log=log,
            env=self.environment(),
            ready=lambda text: "boot success" in text and all(map(_has_route, ports)),
        )

    def proxy(self, namesrv: str, port: int) -> Program:
        """Apache's proxy in cluster mode, gRPC on `port`, in front of the brokers of DefaultCluster."""
        jars = fetch_jars(f"rocketmq-proxy-{VERSION}", [("rocketmq-proxy", VERSION)])
        values = {
            "rocketMQClusterName": "DefaultCluster",
            "proxyMode": "CLUSTER",
            "namesrvAddr": namesrv,
            "grpcServerPort": port,
            "remotingListenPort": free_port(),
            "localServeAddr": "127.0.0.1",
        }
        conf = self.work / f"proxy-{port}.json"
        conf.write_text(json.dumps(values))
        command = ["java", "-Xmx512m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Duser.home={self.work}"]
        command += [*_OPENS, "-cp", f"{jars}/*", "org.apache.rocketmq.proxy.ProxyStartup", "-pc", str(conf)]
        return Program(command, port=port, log=self.work / f"proxy-{port}.log", env=self.environment())

    @contextmanager
    def cluster(self, **settings: object) -> Iterator[tuple[str, Program]]:
        """(NameServer address, broker) of one NameServer and one broker."""
        with self.namesrv() as namesrv, self.broker(namesrv.address, **settings) as broker:
            yield namesrv.address, broker

    def _compile(self, sources: Sequence[Path]) -> None:
        classes = self.work / "classes"
        command = ["javac", "-nowarn", "-cp", f"{self.jars}/*", "-d", str(classes), *map(str, sources)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        part = self._programs.with_suffix(".part")
        with zipfile.ZipFile(part, "w") as jar:
            for path in sorted(classes.rglob("*.class")):
                jar.write(path, path.relative_to(classes))
        part.replace(self._programs)

    def _make_archives(self) -> None:
        """Let a NameServer, a broker and a client work for once, and have Java keep what they loaded."""
        self._makes_archives = True
        with self.cluster() as (namesrv, _):
            self.client("produce", namesrv, "Classes", "4")
            self.client("consume", namesrv, "classes", "Classes", "*", "4", "concurrent")
            self.close()
        self._makes_archives = False
        self._client = None

    def run(self, main: str, *arguments: str, seconds: float = 180) -> str:
        """Run one of the compiled programs to its end; its standard output."""
        done = subprocess.run(
            self.java(main, *arguments), capture_output=True, text=True, timeout=seconds, env=self.environment()
        )
        shown = f"{main} {arguments} ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
        assert done.returncode == 0, shown
        return done.stdout

    def client(self, *command: str) -> str:
        """What Client.java prints for one command; it must succeed."""
        if self._client is None:
            with (self.work / "client.log").open("wb") as errors:
                self._client = subprocess.Popen(
                    self.java("Client"),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    env=self.environment(),
                )
        assert self._client.stdin is not None
        assert self._client.stdout is not None
        self._client.stdin.write("\t".join(command) + "\n")
        self._client.stdin.flush()
        lines: list[str] = []
        for line in self._client.stdout:
            if line.startswith("@@end"):
                assert line == "@@end\tok\n", f"{command}: {''.join(lines)[-3000:]}"
                return "".join(lines)
            lines.append(line)
        raise AssertionError(f"{command}: the Java process ended: {(self.work / 'client.log').read_text()[-3000:]}")

    def mqadmin(self, *command: str, namesrv: str) -> str:
        """What mqadmin prints for one command."""
        return self.client("mqadmin", *command, "-n", namesrv)

    def close(self) -> None:
        if self._client is not None:
            assert self._client.stdin is not None
            self._client.stdin.close()
            self._client.wait(60)


def our_broker(work: Path, namesrv: str, settings: Mapping[str, object]) -> Program:
    """A broker of ours as a process of its own."""
    port = free_port()
    values = {
        "brokerClusterName": "DefaultCluster",
        "brokerIP1": "127.0.0.1",
        "listenPort": port,
        "haListenPort": free_port(),
        "enableFastListenPort": "false",
        "namesrvAddr": namesrv,
        "mappedFileSizeCommitLog": 16 * 1024 * 1024,
        **settings,
    }
    conf = work / "ours.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, "-m", "contrailmq", "broker", "-c", str(conf)]
    return Program(
        command, port=port, log=work / "ours.log", env=environment, ready=lambda text: "\nready broker" in text
    )


def facts(output: str, kind: str) -> list[list[str]]:
    """The lines `kind TAB ...` that Client.java printed, split; logging of Apache's libraries is passed over."""
    return [line.split("\t")[1:] for line in output.splitlines() if line.startswith(kind + "\t")]
