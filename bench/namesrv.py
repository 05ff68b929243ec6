"""`contrailmq bench namesrv`: GET_ROUTEINFO_BY_TOPIC against our NameServer, beside Apache's when its jars are given.

Both get the same broker with the same topics. The load comes from a process of its own (`namesrv_load.py`), to one
server at a time, in alternating rounds, so that whatever else the machine does falls on both; the first round warms up
and is not counted. Figures: requests a second (median round), CPU time of the server per request and resident memory
from /proc, and the time from starting the process to its first answer. At the end a broker with 95,000 topics comes and
goes while one connection asks for routes: the slowest answer is how long the server was busy with it at a stretch (and
whatever else the machine did). Does not show: TLS, several machines. Where the generator's share of a core is near
100 %, it was the bottleneck: give the server fewer connections' worth of work with a smaller `--depth`, or read the CPU
time instead.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from bench.namesrv_load import Load, LoadError, topic_name
from contrailmq.cli.bench_clients import surroundings
from contrailmq.wire.bodies import DataVersion, RegisterBrokerBody, TopicConfig, TopicConfigWrapper, encode_body
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.frame import FrameParser, encode_request
from contrailmq.wire.header import Command

_START_S: Final = 60.0
_LARGE_TOPICS: Final = 95_000  # nearly as many as a frame holds
_AFTERWARDS: Final = 300  # routes asked for after the large broker has gone
_JAVA_MAIN: Final = "org.apache.rocketmq.namesrv.NamesrvStartup"
_LOAD_MODULE: Final = "bench.namesrv_load"


@dataclass(frozen=True, slots=True)
class Settings:
    """One run: how much load, how often, against whom."""

    topics: int
    connections: int
    depth: int
    seconds: float
    rounds: int
    rocketmq_lib: Path | None
    java_options: str


@dataclass(slots=True)
class Server:
    """A NameServer process under test, and what its rounds gave."""

    name: str
    pid: int
    address: str
    start_s: float
    rates: list[float] = field(default_factory=list)
    cpu_us: list[float] = field(default_factory=list)
    generator_share: list[float] = field(default_factory=list)

    def cpu_s(self) -> float:
        """CPU time of the process so far, user and system."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident_mb(self) -> float:
        lines = Path(f"/proc/{self.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS:"))


def measure_namesrv(settings: Settings) -> dict[str, object]:
    """Run it; settings first, then each server's figures, then ours as a multiple of theirs."""
    if settings.rocketmq_lib is not None:
        _check_apache(settings.rocketmq_lib)
    with ExitStack() as stack:
        servers = [stack.enter_context(_ours())]
        if settings.rocketmq_lib is not None:
            servers.append(stack.enter_context(_apaches(settings.rocketmq_lib, settings.java_options)))
        for server in servers:
            stack.enter_context(_registered(server.address, settings.topics))
        for number in range(settings.rounds + 1):
            for server in servers if number % 2 else servers[::-1]:
                _round(server, settings, is_counted=number > 0)
        told = _told(settings, servers)
        for server in servers:
            told[f"{server.name}: slowest route while {_LARGE_TOPICS} topics come and go, ms"] = round(
                _longest_pause_ms(server.address), 1
            )
        return told


def _longest_pause_ms(address: str) -> float:
    """The slowest of the routes that are asked for, one by one, while a large broker registers and leaves."""
    body, fields = _registration("large-broker", "127.0.0.1:10921", [f"T{n}" for n in range(_LARGE_TOPICS)])
    frame = encode_request(RequestCode.REGISTER_BROKER, fields, body, opaque=1)
    request = encode_request(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic_name(0)}, opaque=2)
    host, _, port = address.rpartition(":")

    def come_and_go() -> int:
        with socket.create_connection((host, int(port)), timeout=60.0) as sock:
            return _asked(sock, frame).code

    longest_s, left = 0.0, _AFTERWARDS
    with socket.create_connection((host, int(port)), timeout=60.0) as sock, ThreadPoolExecutor(1) as worker:
        registering = worker.submit(come_and_go)
        while left:
            begin = time.perf_counter()
            _asked(sock, request)
            longest_s = max(longest_s, time.perf_counter() - begin)
            left -= registering.done()
        if registering.result() != 0:
            raise LoadError(f"registration of {_LARGE_TOPICS} topics refused: {registering.result()}")
    return longest_s * 1000


def _round(server: Server, settings: Settings, *, is_counted: bool) -> None:
    command = [sys.executable, "-m", _LOAD_MODULE, server.address]
    for name in ("seconds", "connections", "depth", "topics"):
        command += [f"--{name}", str(getattr(settings, name))]
    cpu_s = server.cpu_s()
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise LoadError(f"the load on {server.name} failed: {done.stderr.strip()[-500:]}")
    load = Load(**json.loads(done.stdout))
    if is_counted:
        server.rates.append(load.answers / load.seconds)
        server.cpu_us.append((server.cpu_s() - cpu_s) / load.answers * 1e6)
        server.generator_share.append(load.generator_cpu_s / load.seconds)


def _told(settings: Settings, servers: Sequence[Server]) -> dict[str, object]:
    told = surroundings() | {
        "settings": f"{settings.topics} topics, {settings.connections} connections, {settings.depth} requests each on "
        f"their way, {settings.rounds} rounds of {settings.seconds:g} s",
    }
    if settings.rocketmq_lib is not None:
        told["java options"] = settings.java_options
    for server in servers:
        told |= {
            f"{server.name}: requests/s, median": round(statistics.median(server.rates)),
            f"{server.name}: requests/s, rounds": " ".join(f"{rate:.0f}" for rate in server.rates),
            f"{server.name}: CPU us/request": round(statistics.median(server.cpu_us), 2),
            f"{server.name}: generator's share of a core": f"{statistics.median(server.generator_share):.0%}",
            f"{server.name}: resident MB": round(server.resident_mb(), 1),
            f"{server.name}: start to first answer, s": round(server.start_s, 2),
        }
    if len(servers) == 2:
        ours, theirs = servers
        rate = statistics.median(ours.rates) / statistics.median(theirs.rates)
        cpu = statistics.median(ours.cpu_us) / statistics.median(theirs.cpu_us)
        told["requests/s, ours to theirs (>= 1.5)"] = round(rate, 2)
        told["CPU per request, ours to theirs"] = round(cpu, 2)
        told["resident memory, ours to theirs (<= 0.25)"] = round(ours.resident_mb() / theirs.resident_mb(), 2)
    return told


# ------------------------------------------------------------------------------------------------------------- servers


@contextmanager
def _ours() -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="contrailmq-bench-") as home:
        port = _free_port()
        command = [sys.executable, "-m", "contrailmq", "namesrv", "-n", f"127.0.0.1:{port}"]
        with _process("contrailmq", [*command, "--set", f"rocketmqHome={home}"], port, {}) as server:
            yield server


def _check_apache(lib: Path) -> None:
    if not any(lib.glob("rocketmq-namesrv-*.jar")):
        raise LoadError(f"{lib} holds no rocketmq-namesrv jar: give the lib folder of an Apache RocketMQ release")
    if shutil.which("java") is None:
        raise LoadError("java is not on PATH: install a JDK (11 or newer)")


@contextmanager
def _apaches(lib: Path, options: str) -> Iterator[Server]:
    with tempfile.TemporaryDirectory(prefix="contrailmq-bench-") as home:
        port, settings = _free_port(), Path(home, "namesrv.properties")
        settings.write_text(f"listenPort={port}\nbindAddress=127.0.0.1\n")
        command = ["java", *options.split(), f"-Duser.home={home}", "-cp", f"{lib}/*", _JAVA_MAIN, "-c", str(settings)]
        with _process("apache", command, port, {"ROCKETMQ_HOME": home, "HOME": home}) as server:
            yield server


@contextmanager
def _process(name: str, command: list[str], port: int, environment: dict[str, str]) -> Iterator[Server]:
    """Start, wait for the first answer, stop on leaving."""
    begin = time.monotonic()
    with tempfile.TemporaryFile() as log:
        process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env={**os.environ, **environment})
        try:
            while not _answers(port):
                if process.poll() is not None or time.monotonic() - begin > _START_S:
                    log.seek(0)
                    raise LoadError(f"{name} did not start: {log.read()[-500:].decode(errors='replace')}")
                time.sleep(0.002)
            yield Server(name, process.pid, f"127.0.0.1:{port}", time.monotonic() - begin)
        finally:
            process.terminate()
            process.wait()


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5.0) as sock:
            return _asked(sock, encode_request(RequestCode.GET_BROKER_CLUSTER_INFO, opaque=1)).code == 0
    except OSError:
        return False


@contextmanager
def _registered(address: str, topics: int) -> Iterator[None]:
    """One broker with all the topics; it stays known while its connection is open."""
    body, fields = _registration("bench-broker", "127.0.0.1:10911", [topic_name(number) for number in range(topics)])
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30.0) as sock:
        answer = _asked(sock, encode_request(RequestCode.REGISTER_BROKER, fields, body, opaque=1))
        if answer.code != 0:
            raise LoadError(f"registration refused: {answer.code} {answer.remark}")
        yield


def _registration(name: str, address: str, topics: Sequence[str]) -> tuple[bytes, dict[str, str]]:
    """Body and fields of REGISTER_BROKER."""
    table = {topic: TopicConfig(topic_name=topic) for topic in topics}
    wrapper = TopicConfigWrapper(data_version=DataVersion(counter=1), topic_config_table=table)
    fields = {"brokerName": name, "brokerAddr": address, "clusterName": "BenchCluster"}
    fields |= {"brokerId": "0", "haServerAddr": "127.0.0.1:10912", "compressed": "false"}
    return encode_body(RegisterBrokerBody(topic_config_serialize_wrapper=wrapper)), fields


def _asked(sock: socket.socket, request: bytes) -> Command:
    parser = FrameParser()
    sock.sendall(request)
    while data := sock.recv(65536):
        for command in parser.feed(data):
            return command
    raise ConnectionError("the server closed the connection")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
