"""`python -m bench grpc`: SendMessage, ReceiveMessage and AckMessage on the gRPC port of our broker, beside Apache's
broker with its proxy in local mode, and beside empty handlers of our gRPC server and of grpcio's, in turns in one run.

64 workers on four connections send one message of 1 KiB after the other; then they receive batches of 1 and of 16 and
acknowledge each message by a call of its own. Every round of receives has a group of its own, which begins at the first
message. CPU and memory are those of the process that holds the gRPC port: broker and proxy in one at both, and at ours
the NameServer too.

The load is a program of ours in Go (grpc_load/): `ghz` calls an answer good by gRPC's own status, which RocketMQ's
servers leave at OK, and cannot acknowledge what it received. The empty handlers (grpc_floor.py) show the part of gRPC:
their figures are the best that ours could have, if neither broker nor proxy cost anything.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from bench import compare
from bench.apache_programs import cpu_seconds
from bench.grpc_floor import BODY_BYTES
from bench.mixed import Figures, NotDelivered, Settings
from contrailmq import Admin, Producer
from contrailmq.message import Message
from contrailmq.proxy.protocol import Wire, v2

VERSION: Final = "5.5.0"
OURS: Final = (
    f"{Path(sys.executable).parent / 'contrailmq'} up --store {{store}} --namesrv-port {{namesrv_port}} "
    "--broker-port {broker_port} --grpc-port {grpc_port} --no-console"
)
CONNECTIONS: Final = 4
WORKERS: Final = 64
BATCHES: Final = (1, 16)
SEND_TOPIC, RECEIVE_TOPIC = "bench_grpc_send", "bench_grpc"
QUEUES: Final = 8
FILL_BATCH: Final = 32
INVISIBLE_S: Final = 60
POLL_S: Final = 5
FLOORS: Final = {"empty handler": "ours", "grpcio's": "grpcio"}
PRODUCER, SIMPLE_CONSUMER = 1, 3
_MODULES: Final = ("proxy", "namesrv")
_POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>bench</groupId><artifactId>bench</artifactId><version>1</version><dependencies>{}</dependencies></project>"""
_DEPENDENCY: Final = (
    "<dependency><groupId>org.apache.rocketmq</groupId><artifactId>rocketmq-{}</artifactId><version>{}</version>"
    "</dependency>"
)
_groups = itertools.count()


class Server(compare.System):
    """One of the four; `process_id` is that of who holds the gRPC port."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.grpc_port = compare.free_port()

    @property
    def namesrv(self) -> str:
        return f"127.0.0.1:{self.namesrv_port}"

    @property
    def process_id(self) -> int:
        return compare.listener(self.pids(), self.grpc_port)

    @property
    def resident_mb(self) -> float:
        return compare.resident_mb([self.process_id])


class Shape(NamedTuple):
    """What a round does: a batch of 0 sends."""

    batch: int
    seconds: float
    messages: int


def measure_grpc(settings: Settings, *, messages: int) -> dict[str, object]:
    """Name -> ours / Apache's (ratio), and the empty handlers'."""
    figures: dict[str, object] = {
        "load": f"{WORKERS} workers on {CONNECTIONS} connections, {BODY_BYTES} bytes",
        "rounds": f"{settings.rounds} of {settings.seconds:g} s, in turns",
    }
    with tempfile.TemporaryDirectory(dir=settings.directory) as temporary, ExitStack() as stack:
        work = Path(temporary)
        load = build_load(work / "grpc_load")
        two = stack.enter_context(_both(settings, work))
        figures["memory MB, idle"] = _memory(two)
        for server in two:
            _fill(server, messages)
        for batch in (0, *BATCHES):
            floors = [stack.enter_context(_stopped(Server(name))) for name in FLOORS]
            for floor in floors:
                start_floor(floor, max(batch, 1), work)
            four = (*two, *floors)
            for server in four:
                _round(load, server, Shape(batch, settings.warm_seconds, messages))
            taken: dict[str, list[Figures]] = {server.name: [] for server in four}
            for number in range(settings.rounds):
                for server in four if number % 2 else four[::-1]:
                    taken[server.name].append(_round(load, server, Shape(batch, settings.seconds, messages)))
            what = f"receive {batch} + ack" if batch else "send"
            figures |= {f"{what}: {name}": line for name, line in compared(list(taken.values())).items()}
        figures["memory MB, after"] = _memory(two)
    return figures


def _memory(two: Sequence[Server]) -> str:
    ours, theirs = (server.resident_mb for server in two)
    return f"{ours:.0f} / {theirs:.0f} ({ours / theirs:.2f})"


def compared(four: list[list[Figures]]) -> dict[str, str]:
    """Medians of ours, Apache's and the empty handlers'."""
    lines: dict[str, str] = {}
    for name in four[0][0]:
        ours, theirs, *floors = (statistics.median(one[name] for one in side) for side in four)
        ratio = f" ({ours / theirs:.2f})" if theirs else ""
        empty = ", ".join(f"{floor} {figure:.4g}" for floor, figure in zip(FLOORS, floors, strict=True))
        lines[name] = f"{ours:.4g} / {theirs:.4g}{ratio}, {empty}"
    return lines


# ---------------------------------------------------------------------------------------------------------- the load


def build_load(target: Path) -> Path:
    if shutil.which("go") is None:
        raise NotDelivered("the load is a Go program, and no go is on PATH: install Go 1.22 or newer")
    source = Path(__file__).parent / "grpc_load"
    done = subprocess.run(["go", "build", "-o", str(target), "."], cwd=source, capture_output=True, text=True)
    if done.returncode:
        raise NotDelivered(f"grpc_load could not be built: {done.stderr.strip()[-500:]}")
    return target


def _round(load: Path, server: Server, shape: Shape) -> Figures:
    arguments, requests = _receiving(_group(server), shape) if shape.batch else _sending()
    command = [str(load), f"127.0.0.1:{server.grpc_port}", str(CONNECTIONS), str(WORKERS), str(shape.seconds)]
    process_id = server.process_id
    cpu_s = cpu_seconds(process_id)
    lines = "".join(request.SerializeToString().hex() + "\n" for request in requests)
    done = subprocess.run([*command, *arguments], input=lines, capture_output=True, text=True)
    cpu_s = cpu_seconds(process_id) - cpu_s
    if done.returncode:
        raise NotDelivered(f"{server.name}: no figures: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return per_call(json.loads(done.stdout), cpu_s)


def per_call(said: Figures, cpu_s: float) -> Figures:
    calls = sum(said[name] for name in said if name.endswith(" calls"))
    count = said["sent"] or said["acked"]
    if not count:
        raise NotDelivered("nothing was sent, or received: more --messages are needed")
    times = {name: said[name] for name in sorted(said) if name.endswith(" ms")}
    return {
        "messages/s": count / said["seconds"],
        **times,
        "server CPU us/call": cpu_s / calls * 1e6,
        "server CPU us/message": cpu_s / count * 1e6,
        "cores of the load": said["generator_cpu_s"] / said["seconds"],
    }


def _sending() -> tuple[list[str], list[Wire]]:
    topic = v2.Resource(name=SEND_TOPIC)
    message = v2.Message(topic=topic, body=b"x" * BODY_BYTES)
    system = message.system_properties
    system.message_id, system.body_encoding, system.message_type = "01" + "A" * 32, 1, 1
    system.born_timestamp.FromMilliseconds(int(time.time() * 1000))
    system.born_host = "127.0.0.1"
    settings = v2.Settings(client_type=PRODUCER, publishing=v2.Publishing(topics=[topic]))
    return ["send"], [v2.TelemetryCommand(settings=settings), v2.SendMessageRequest(messages=[message])]


def _group(server: Server) -> str:
    """A new one. Apache's proxy takes no settings of a group that the broker does not know."""
    name = f"bench_grpc_{next(_groups)}"
    if server.name not in FLOORS:
        with Admin(namesrv=server.namesrv) as admin:
            admin.create_group(name)
            # A new group begins at the end once the topic's first message has left the memory.
            for queue in admin.queues(RECEIVE_TOPIC):
                admin.set_offset(name, queue, 0)
    return name


def _receiving(group_name: str, shape: Shape) -> tuple[list[str], list[Wire]]:
    topic, group = v2.Resource(name=RECEIVE_TOPIC), v2.Resource(name=group_name)
    everything = v2.FilterExpression(type=1, expression="*")
    wanted = v2.SubscriptionEntry(topic=topic, expression=everything)
    settings = v2.Settings(
        client_type=SIMPLE_CONSUMER, subscription=v2.Subscription(group=group, subscriptions=[wanted])
    )
    receive = v2.ReceiveMessageRequest(
        group=group,
        message_queue=v2.MessageQueue(topic=topic, id=-1),
        filter_expression=everything,
        batch_size=shape.batch,
    )
    receive.invisible_duration.FromSeconds(INVISIBLE_S)
    receive.long_polling_timeout.FromSeconds(POLL_S)
    prefix = v2.AckMessageRequest(group=group, topic=topic)
    # Nobody is to wait for a message at the end: what all workers may still be asking for is left there.
    limit = max(shape.messages - WORKERS * shape.batch, 1)
    return ["receive", str(limit)], [v2.TelemetryCommand(settings=settings), receive, prefix]


def _fill(server: Server, messages: int) -> None:
    with Admin(namesrv=server.namesrv) as admin:
        for name in (SEND_TOPIC, RECEIVE_TOPIC):
            admin.create_topic(name, queues=QUEUES, attributes={"message.type": "NORMAL"})
    with Producer("bench", namesrv=server.namesrv, send_timeout_s=30.0) as producer:
        for _ in range(-(-messages // FILL_BATCH)):
            producer.send_batch([Message(RECEIVE_TOPIC, b"x" * BODY_BYTES) for _ in range(FILL_BATCH)])


# -------------------------------------------------------------------------------------------------------- the servers


@contextmanager
def _both(settings: Settings, work: Path) -> Iterator[tuple[Server, Server]]:
    """Ours and Apache's, started and settled."""
    with ExitStack() as stack:
        ours = stack.enter_context(_stopped(Server("ours")))
        start_ours(ours, settings.ours, work)
        theirs = stack.enter_context(_stopped(Server("apache" if settings.other is None else "other")))
        if settings.other is None:
            start_apache(theirs, settings.lib, work)
        else:
            start_ours(theirs, settings.other, work)
        time.sleep(settings.settle_seconds)
        yield ours, theirs


@contextmanager
def _stopped(server: Server) -> Iterator[Server]:
    """In the end, also if it did not start."""
    try:
        yield server
    finally:
        server.stop()


def start_floor(server: Server, batch: int, work: Path) -> None:
    which = FLOORS[server.name]
    command = [sys.executable, "-m", "bench.grpc_floor", str(server.grpc_port), str(batch), which]
    server.start(command, server.grpc_port, work / f"floor-{which}-{batch}.log")


def start_ours(server: Server, template: str, work: Path) -> None:
    folder = work / server.name
    folder.mkdir()
    command = template.format(
        store=folder / "store",
        namesrv_port=server.namesrv_port,
        broker_port=server.port,
        grpc_port=server.grpc_port,
    )
    server.start(shlex.split(command), server.grpc_port, folder / "log.txt")


def start_apache(server: Server, lib: Path, work: Path) -> None:
    """A NameServer, and a broker with its proxy in one process, as Apache's proxy in local mode starts it."""
    fetch_proxy(lib)
    folder = work / server.name
    (folder / "conf").mkdir(parents=True)
    broker = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": 0,
        "brokerIP1": "127.0.0.1",
        "listenPort": server.port,
        "haListenPort": compare.free_port(),
        "namesrvAddr": server.namesrv,
        "storePathRootDir": folder / "store",
        "storePathCommitLog": folder / "store" / "commitlog",
    }
    proxy = {
        "rocketMQClusterName": "DefaultCluster",
        "proxyMode": "LOCAL",
        "namesrvAddr": server.namesrv,
        "grpcServerPort": server.grpc_port,
        "remotingListenPort": compare.free_port(),
        "localServeAddr": "127.0.0.1",
    }
    (folder / "namesrv.conf").write_text(f"listenPort={server.namesrv_port}\n")
    (folder / "broker.conf").write_text("".join(f"{key}={value}\n" for key, value in broker.items()))
    (folder / "proxy.json").write_text(json.dumps(proxy))
    home = {"ROCKETMQ_HOME": str(folder), "RMQ_PROXY_HOME": str(folder), "HOME": str(folder)}
    java = [f"-Duser.home={folder}", "-cp", f"{lib}/*"]
    opens = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in ("sun.nio.ch", "java.nio")]
    settings = ["-pm", "LOCAL", "-pc", str(folder / "proxy.json"), "-bc", str(folder / "broker.conf")]
    names = ["org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(folder / "namesrv.conf")]
    environment = os.environ | home
    server.start(["java", "-Xmx256m", *java, *names], server.namesrv_port, folder / "namesrv.log", environment)
    command = ["java", "-Xms2g", "-Xmx2g", *opens, *java, "org.apache.rocketmq.proxy.ProxyStartup", *settings]
    server.start(command, server.grpc_port, folder / "proxy.log", environment)


def fetch_proxy(lib: Path) -> None:
    """Apache's proxy, broker and NameServer, through Maven, unless they are there."""
    if list(lib.glob(f"rocketmq-proxy-{VERSION}.jar")):
        return
    lib.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        Path(work, "pom.xml").write_text(_POM.format("".join(_DEPENDENCY.format(one, VERSION) for one in _MODULES)))
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]
        subprocess.run([*command, f"-DoutputDirectory={lib}"], cwd=work, check=True)
