"""The procedure of docs/migration.md, run from there: each section's commands, in order, in one shell.

`mqbroker`, `mqadmin` and `mqshutdown` are Apache's own programs, started as its scripts start them. Around each section
every queue's messages and every group's offsets are compared.
"""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from apache import ROOT, Apache, facts

from contrailmq import Admin, Message, Producer, SendStatus
from contrailmq.client.blocking.raw import QueueReader
from contrailmq.client.records import decode_messages
from contrailmq.message import ContrailError, MessageQueue
from contrailmq.wire.admin_bodies import SubscriptionGroupConfig
from free_ports import free_port

pytestmark = pytest.mark.program("Apache's broker", "5.5.0")

GUIDE = ROOT / "docs" / "migration.md"
BROKER_MAIN = "org.apache.rocketmq.broker.BrokerStartup"
STEP_S = 600.0  # on a machine that is very busy
TOPIC, QUEUES = "Shop", 4
SIZES = {"mappedFileSizeCommitLog": 16 << 20, "mappedFileSizeTimerLog": 1 << 20, "maxHashSlotNum": 5000}
SIZES |= {"maxIndexNum": 20000}

Stored = dict[MessageQueue, list[tuple[int, str, bytes]]]  # (offset, id, body)
Offsets = dict[tuple[str, MessageQueue], int]


def commands(section: str) -> list[str]:
    """The blocks of a section of the guide."""
    text = GUIDE.read_text()
    found = re.search(rf"^## {re.escape(section)}\n(.*?)(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"docs/migration.md has no section {section!r}"
    blocks = re.findall(r"^```sh\n(.*?)^```", found[1], re.MULTILINE | re.DOTALL)
    assert blocks, f"section {section!r} has no commands"
    return blocks


class Shell:
    """One bash, as an operator would have open: it stops at the first command that fails."""

    def __init__(self, work: Path, rocketmq: Apache, names: Mapping[str, object]) -> None:
        self.work, self.output = work, work / "shell.txt"
        tools = work / "bin"
        tools.mkdir(parents=True)
        java = rocketmq.java
        for tool, line in {
            "contrailmq": f'exec {shlex.quote(sys.executable)} -m contrailmq "$@"',
            "mqbroker": f'exec {shlex.join(java(BROKER_MAIN, heap="768m", archive="broker"))} "$@"',
            "mqadmin": f'exec {shlex.join(java("org.apache.rocketmq.tools.command.MQAdminStartup"))} "$@"',
            "mqshutdown": 'pkill -f "BrokerStartup -c $CONF"',
        }.items():
            (tools / tool).write_text(f"#!/bin/sh\n{line}\n")
            (tools / tool).chmod(0o755)
        environment = rocketmq.environment() | {name: str(value) for name, value in names.items()}
        environment["PATH"] = f"{tools}:{environment['PATH']}"
        environment["PYTHONPATH"] = str(ROOT / "src")
        with self.output.open("wb") as out:
            self.bash = subprocess.Popen(
                ["bash", "-eu", "-o", "pipefail"], stdin=subprocess.PIPE, stdout=out, stderr=out, cwd=work,
                env=environment, text=True,
            )  # fmt: skip
        self._done = 0
        self._tell("trap 'kill $(jobs -p) 2> /dev/null; wait' EXIT")

    def _tell(self, lines: str) -> None:
        assert self.bash.stdin is not None
        self.bash.stdin.write(lines + "\n")
        self.bash.stdin.flush()

    def run(self, block: str) -> None:
        self._done += 1
        mark = f"@@done {self._done}"
        self._tell(f"{block}\necho {shlex.quote(mark)}")
        deadline = time.monotonic() + STEP_S
        while mark not in self.output.read_text():
            assert self.bash.poll() is None, f"it failed:\n{block}\n{self._shown()}"
            assert time.monotonic() < deadline, f"not done in {STEP_S:g} s:\n{block}\n{self._shown()}"
            time.sleep(0.1)

    def _shown(self) -> str:
        logs = sorted(self.work.glob("*.log"))
        return self.output.read_text()[-3000:] + "".join(f"\n{log.name}:\n{log.read_text()[-1500:]}" for log in logs)

    def close(self) -> None:
        """What it started ends with it, each by the signal that ends it cleanly."""
        if self.bash.poll() is None:
            assert self.bash.stdin is not None
            self.bash.stdin.close()
            try:
                self.bash.wait(60)
            except subprocess.TimeoutExpired:
                self.bash.send_signal(signal.SIGKILL)
                self.bash.wait()


@contextmanager
def operator(rocketmq: Apache, work: Path, namesrv: str, **names: object) -> Iterator[Shell]:
    """A shell beside a running broker-a of Apache's, whose file and directory CONF and STORE name."""
    port, ha_port, store = free_port(), free_port(), work / "apache"
    conf = work / "broker.conf"
    values = {
        "brokerClusterName": "DefaultCluster", "brokerName": "broker-a", "brokerId": 0, "brokerIP1": "127.0.0.1",
        "listenPort": port, "haListenPort": ha_port, "storePathRootDir": store,
        "storePathCommitLog": store / "commitlog", "registerNameServerPeriod": 10_000, **SIZES,
    }  # fmt: skip
    conf.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    given = {
        "CONF": conf, "STORE": store, "BROKER": "broker-a", "NAMESRV": namesrv, "OLD_HA": f"127.0.0.1:{ha_port}",
    }  # fmt: skip
    shell = Shell(work, rocketmq, given | names)
    try:
        shell.run('mqbroker -c "$CONF" -n "$NAMESRV" > first.log 2>&1 &')
        shell.run('until grep -q "boot success" first.log; do sleep 0.2; done')
        yield shell
    finally:
        shell.close()


def stored(namesrv: str) -> Stored:
    """Every message of every queue of the topic, on every broker."""
    found: Stored = {}
    with Admin(namesrv=namesrv) as admin:
        queues = admin.queues(TOPIC)
    with QueueReader(namesrv=namesrv, group="audit") as reader:
        for queue in queues:
            messages, end = found.setdefault(queue, []), reader.max_offset(queue)
            while len(messages) < end:
                pull = reader.pull(queue, len(messages), wait_s=5.0)
                assert pull.body, (queue, len(messages), end)
                messages += [(one.queue_offset, one.message_id, one.body) for one in decode_messages(pull.body)]
            assert [offset for offset, _, _ in messages] == list(range(end))
    return found


def offsets(namesrv: str, *groups: str) -> Offsets:
    with Admin(namesrv=namesrv) as admin:
        rows = [(group, row) for group in groups for row in admin.progress(group, TOPIC)]
    return {(group, row.queue): row.consumer_offset for group, row in rows}


def bodies(found: Stored) -> list[bytes]:
    return [body for messages in found.values() for _, _, body in messages]


class Sender:
    """A producer in a thread of its own that goes on; what it was told is stored, by body."""

    def __init__(self, namesrv: str, prefix: str) -> None:
        self.prefix = prefix.encode()
        self.acknowledged: list[bytes] = []
        self.refused = 0
        self._namesrv, self._stop = namesrv, threading.Event()
        self._thread = threading.Thread(target=self._send)

    def __enter__(self) -> Sender:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _send(self) -> None:
        with Producer("shop", namesrv=self._namesrv, poll_namesrv_interval_s=1.0, retry_times=0) as producer:
            while not self._stop.wait(0.02):
                body = b"%b: %d" % (self.prefix, len(self.acknowledged) + self.refused)
                try:
                    if producer.send(Message(TOPIC, body)).status is SendStatus.OK:
                        self.acknowledged.append(body)
                except ContrailError:
                    self.refused += 1


def prepare(namesrv: str, count: int) -> None:
    """A topic with messages; group billing, which is offline, has read some of each queue."""
    with Admin(namesrv=namesrv) as admin:
        admin.create_topic(TOPIC, queues=QUEUES)
        admin.create_group(SubscriptionGroupConfig(group_name="billing"))
        with Producer("first", namesrv=namesrv) as producer:
            for number in range(count):
                producer.send(Message(TOPIC, b"first %d" % number, keys=f"k{number}"))
        for place, queue in enumerate(admin.queues(TOPIC)):
            admin.set_offset("billing", queue, 1 + place)


def heard(rocketmq: Apache, group: str, count: int) -> set[bytes]:
    return {fact[5].encode() for fact in facts(rocketmq.client("heard", group, str(count)), "got")}


def test_a_stopped_directory_is_taken_over_and_given_back(rocketmq: Apache, tmp_path: Path) -> None:
    with rocketmq.namesrv() as namesrv, operator(rocketmq, tmp_path, namesrv.address) as shell:
        address = namesrv.address
        prepare(address, 200)
        with Producer("later", namesrv=address) as producer:
            producer.send(Message(TOPIC, b"delayed over the change", delay_level=4))  # 30 s
        rocketmq.client("listen", address, "java", TOPIC)
        assert len(heard(rocketmq, "java", 200)) == 200
        rocketmq.client("leave", "java")
        expected = 200
        for turn, section in enumerate(("Take over a stopped directory", "Give the directory back")):
            before, positions = stored(address), offsets(address, "billing", "java")
            for block in commands(section):
                shell.run(block)
            after = stored(address)
            for queue, messages in before.items():  # what waited may have come since
                assert after[queue][: len(messages)] == messages, (section, queue)
            assert offsets(address, "billing", "java") == positions, section
            assert {place for (group, _), place in positions.items() if group == "billing"} == {1, 2, 3, 4}
            with Producer("more", namesrv=address) as producer:
                for number in range(50):
                    assert producer.send(Message(TOPIC, b"turn %d: %d" % (turn, number))).status is SendStatus.OK
            expected += 50
        rocketmq.client("listen", address, "java", TOPIC)
        assert len(heard(rocketmq, "java", expected + 1 - 200)) == expected + 1 - 200, "what it had not read, once"
        rocketmq.client("leave", "java")
        assert bodies(stored(address)).count(b"delayed over the change") == 1
        assert len(bodies(stored(address))) == expected + 1


@pytest.mark.xdist_group("a running cluster is migrated")
def test_a_broker_of_a_running_cluster_is_replaced_and_apaches_comes_back(rocketmq: Apache, tmp_path: Path) -> None:
    """broker-b is Apache's throughout: once broker-a is replaced, both kinds serve one cluster."""
    new_port, new_ha = free_port(), f"127.0.0.1:{free_port()}"
    names = {
        "NEW_STORE": tmp_path / "ours", "BACK_STORE": tmp_path / "back", "BACK_HOST": "127.0.0.1",
        "NEW_PORT": new_port, "NEW_HA": new_ha, "ROUTE_SECONDS": 15, "TABLES_SECONDS": 130,
    }  # fmt: skip
    with (
        rocketmq.namesrv() as namesrv,
        rocketmq.broker(namesrv.address, name="broker-b", **SIZES),
        operator(rocketmq, tmp_path, namesrv.address, **names) as shell,
    ):
        address = namesrv.address
        prepare(address, 400)
        rocketmq.client("listen", address, "always", TOPIC)
        told = {b"first %d" % number for number in range(400)}
        for section in ("Replace a broker while the cluster runs", "Back, while the cluster runs"):
            positions = offsets(address, "billing")
            with Sender(address, section) as sender:
                for block in commands(section):
                    shell.run(block)
                _await_growth(address, {"broker-a", "broker-b"})
            told |= set(sender.acknowledged)
            assert len(told) > 500, (section, sender.refused)
            kept = Counter(bodies(stored(address)))
            lost = told - set(kept)
            assert not lost, (section, sorted(lost)[:5], len(lost), sender.refused)
            assert max(kept.values()) == 1, (section, kept.most_common(3))
            assert offsets(address, "billing") == positions, section
            assert told <= heard(rocketmq, "always", len(kept)), f"{section}: Java's consumer went on"
        rocketmq.client("leave", "always")


def _await_growth(namesrv: str, brokers: set[str]) -> None:
    """Return once each of these brokers takes messages: producers' routes are up to a second old."""
    deadline = time.monotonic() + STEP_S
    with Admin(namesrv=namesrv) as admin, QueueReader(namesrv=namesrv, group="audit") as reader:
        begin: dict[MessageQueue, int] = {}
        while True:
            queues = admin.queues(TOPIC)
            ends = {queue: reader.max_offset(queue) for queue in queues}
            begin = {queue: begin.get(queue, end) for queue, end in ends.items()}
            grown = {queue.broker_name for queue in queues if ends[queue] > begin[queue]}
            if grown == brokers:
                return
            assert time.monotonic() < deadline, f"messages go to {grown} alone"
            time.sleep(0.5)
