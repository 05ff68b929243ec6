"""Broker, proxy and consumers are killed (SIGKILL) again and again while ten consumers of one group receive,
acknowledge, keep messages longer, let them go and fail: five SimpleConsumers over remoting, two of them through the
proxy, and five gRPC clients of the proxy. Three more consume a FIFO topic.

Rules: a message whose acknowledgement was confirmed before its invisible time was over is not handed out again. Every
other comes again, not before its time is over, until somebody acknowledges it; none is lost. Of a FIFO topic a message
is handed out when all of its message group before it were acknowledged, or are before it in the same batch. (Consumers
of it go no further in a batch after a message that failed: a FIFO queue is read again from its first open message on,
`docs/pop.md`.)

All servers and consumers are processes (killed_consumers.py). Three kills in `make test`, one of each kind; 100 under
CONTRAILMQ_LONG=1. A kill comes after a number of answers, not after a time, so the machine's pace changes nothing.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from itertools import pairwise
from pathlib import Path

import grpc
import msgspec
import pytest

from contrailmq import Admin
from contrailmq.testing import LocalCluster
from contrailmq.wire.admin_bodies import SubscriptionGroupConfig
from free_ports import free_port
from how_many import IS_LONG
from proxy.calling import Caller, message
from proxy.killed_consumers import CHANNEL, FIFO_TOPIC, QUEUES, Plan

KILLS = 100 if IS_LONG else 3
SEED = int(os.environ.get("CONTRAILMQ_SEED", "0")) or random.SystemRandom().randrange(1, 1 << 30)
GUARD_S = 1200.0
ANSWERS_BETWEEN_KILLS = 40
BACKLOG = {"plain": 200, FIFO_TOPIC: 60}  # that producers stop at
MESSAGE_GROUPS = 8
# Each process dies with all of its consumers: [name, way, topic, group].
PROCESSES = (
    (
        ("s1", "remoting", "plain", "g"), ("s2", "remoting", "plain", "g"), ("c1", "grpc", "plain", "g"),
        ("c2", "grpc", "plain", "g"), ("fs", "remoting", FIFO_TOPIC, "f"),
    ),
    (
        ("s3", "remoting", "plain", "g"), ("p1", "proxied", "plain", "g"), ("c3", "grpc", "plain", "g"),
        ("fc", "grpc", FIFO_TOPIC, "f"),
    ),
    (
        ("p2", "proxied", "plain", "g"), ("c4", "grpc", "plain", "g"), ("c5", "grpc", "plain", "g"),
        ("fp", "proxied", FIFO_TOPIC, "f"),
    ),
)  # fmt: skip


class Record:
    """What was seen, and which of the rules it breaks. Lines of several processes come in any order.

    A body is `m7`, or `G3-7` for the seventh of message group G3.
    """

    def __init__(self) -> None:
        self.sent: set[str] = set()
        self.tried: dict[str, int] = {}  # body -> when the first acknowledgement of it was sent
        self.acked: dict[str, int] = {}  # body -> when the first was confirmed in time
        self.handed_out: defaultdict[str, list[tuple[int, int]]] = defaultdict(list)  # body -> when, and until when
        self.changed: defaultdict[str, list[int]] = defaultdict(list)  # body -> when its time was
        self.batches: list[tuple[int, list[str]]] = []  # of FIFO: (when, bodies of one queue)
        self.until_ms = 0  # the last handle ends
        self.empty_since: dict[str, int] = {}  # consumer -> when its last empty receive began
        self.counts: Counter[str] = Counter()

    @property
    def missing(self) -> set[str]:
        return self.sent - self.acked.keys() - self.tried.keys()

    def open_of(self, topic: str) -> int:
        return sum(("-" in body) == (topic == FIFO_TOPIC) for body in self.missing)

    def note(self, line: str) -> None:
        kind, *words = line.split()
        if kind == "got":
            self._got(words[0], int(words[1]), int(words[2]), words[3:])
        elif kind == "changing":
            self.changed[words[0]].append(int(words[1]))
            self.until_ms = max(self.until_ms, int(words[2]))
        else:
            times = {"trying": self.tried, "acked": self.acked}[kind]
            times[words[0]] = min(times.get(words[0], int(words[1])), int(words[1]))

    def _got(self, name: str, popped_ms: int, until_ms: int, found: list[str]) -> None:
        self.until_ms = max(self.until_ms, until_ms)
        if not found:
            self.empty_since[name] = popped_ms
            return
        self.counts["answers"] += 1
        by_queue: defaultdict[str, list[str]] = defaultdict(list)
        for one in found:
            queue, body, attempt = one.split(":")
            self.counts["deliveries"] += 1
            self.counts["again"] += attempt != "0"
            self.handed_out[body].append((popped_ms, until_ms))
            if "-" in body:
                by_queue[queue].append(body)
        self.batches += [(popped_ms, batch) for batch in by_queue.values()]

    def repeated(self) -> list[str]:
        """Of what is known so far: a line that is still to be read adds to it, and takes nothing back."""
        said = []
        for body, confirmed_ms in self.acked.items():
            late_ms = max(self.handed_out.get(body, [(0, 0)]))[0] - confirmed_ms
            if late_ms > 0:
                said.append(f"{body} was handed out {late_ms} ms after its acknowledgement was confirmed")
        return said

    def wrong(self) -> list[str]:
        """What breaks a rule, when every line was read: a change or an acknowledgement may be in one of the last."""
        said = self.repeated()
        for body, times in self.handed_out.items():
            said += self._too_early(body, sorted(times))
        for popped_ms, batch in self.batches:
            said += [f"{late} in {batch}" for late in self._out_of_order(popped_ms, batch)]
        return said

    def _too_early(self, body: str, times: list[tuple[int, int]]) -> list[str]:
        said = []
        for (popped_ms, until_ms), (again_ms, _) in pairwise(times):
            is_changed = any(popped_ms <= at_ms <= again_ms for at_ms in self.changed[body])
            if again_ms < until_ms and not is_changed:
                said.append(f"{body} was handed out {until_ms - again_ms} ms before its invisible time was over")
        return said

    def _out_of_order(self, popped_ms: int, batch: list[str]) -> list[str]:
        said = []
        for place, body in enumerate(batch):
            group, number = body.split("-")
            for before in (f"{group}-{other}" for other in range(int(number))):
                is_done = self.tried.get(before, popped_ms + 1) <= popped_ms
                if before in self.sent and not is_done and before not in batch[:place]:
                    said.append(f"{body} was handed out before {before}, which nobody had acknowledged")
        return said


class Trial:
    def __init__(self, cluster: LocalCluster, record: Record) -> None:
        self.cluster, self.record, self.random = cluster, record, random.Random(SEED)
        self.changed = asyncio.Event()
        self.ports = free_port(), free_port()
        self.proxy: asyncio.subprocess.Process | None = None
        self.consumers: list[asyncio.subprocess.Process] = []
        self.listening: set[asyncio.Task[None]] = set()
        self.is_draining = False
        self.lives = 0

    async def run(self) -> None:
        """TimeoutError or AssertionError when a message stays away, or a rule is broken."""
        producers: list[asyncio.Task[None]] = []
        try:
            await self.start_proxy()
            for number in range(len(PROCESSES)):
                self.consumers.append(await self.start_consumers(number))
            producers = [asyncio.create_task(self.produce(kind)) for kind in BACKLOG]
            await self.until(lambda: all(self.record.open_of(kind) for kind in BACKLOG))
            for kill in self.kinds():
                await self.after_answers(self.random.randrange(ANSWERS_BETWEEN_KILLS))
                await kill()
                assert not (repeated := self.record.repeated()), repeated[:3]
            self.is_draining = True
            await asyncio.gather(*producers)
            for one in self.consumers:
                assert one.stdin is not None
                one.stdin.write(b"\n")
            await self.until(lambda: not self.record.missing or self.record.repeated() != [])
            await self.until(self.is_quiet)  # what is acknowledged must not come again now either
        finally:
            for task in producers:
                task.cancel()
            await self.end()

    def kinds(self) -> list[Callable[[], Awaitable[None]]]:
        """Each kind as often as the others, in an order by chance."""
        all_of_them = (self.kill_broker, self.kill_proxy, self.kill_consumers)
        kinds = [all_of_them[number % 3] for number in range(KILLS)]
        self.random.shuffle(kinds)
        return kinds

    def is_quiet(self) -> bool:
        """Every handle has ended, and after that every consumer has found nothing."""
        names = [one[0] for process in PROCESSES for one in process]
        return all(self.record.empty_since.get(name, 0) > self.record.until_ms for name in names)

    async def until(self, holds: Callable[[], bool]) -> None:
        while not holds():
            self.changed.clear()
            await self.changed.wait()

    async def after_answers(self, count: int) -> None:
        wanted = self.record.counts["answers"] + count
        await self.until(lambda: self.record.counts["answers"] >= wanted)

    # --- kills

    async def kill_broker(self) -> None:
        await asyncio.to_thread(self.cluster.kill_broker)
        await asyncio.to_thread(self.cluster.restart_broker)

    async def kill_proxy(self) -> None:
        assert self.proxy is not None
        self.proxy.kill()
        await self.proxy.wait()
        await self.start_proxy()

    async def kill_consumers(self) -> None:
        number = self.random.randrange(len(PROCESSES))
        self.consumers[number].kill()
        await self.consumers[number].wait()
        self.consumers[number] = await self.start_consumers(number)

    # --- processes

    async def start_proxy(self) -> None:
        grpc_port, remoting_port = self.ports
        self.proxy = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "contrailmq", "proxy", "-n", self.cluster.namesrv,
            "--port", str(grpc_port), "--remoting-port", str(remoting_port),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        assert self.proxy.stdout is not None
        assert (await self.proxy.stdout.readline()).startswith(b"ready proxy")

    async def start_consumers(self, number: int) -> asyncio.subprocess.Process:
        self.lives += 1
        grpc_port, remoting_port = self.ports
        plan = Plan(
            SEED + self.lives,
            self.cluster.namesrv,
            f"127.0.0.1:{grpc_port}",
            f"127.0.0.1:{remoting_port}",
            list(PROCESSES[number]),
        )
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "proxy.killed_consumers", msgspec.json.encode(plan).decode(),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, cwd=Path(__file__).parents[1],
        )  # fmt: skip
        task = asyncio.create_task(self.listen(process))
        self.listening.add(task)
        return process

    async def listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdout is not None
        async for line in process.stdout:
            if line.endswith(b"\n"):  # the last one may be half written
                self.record.note(line.decode())
                self.changed.set()
        code = await process.wait()
        assert code in (0, -signal.SIGKILL), f"consumers ended with {code}"

    async def end(self) -> None:
        for process in (*self.consumers, *([self.proxy] if self.proxy is not None else [])):
            if process.returncode is None:  # consumers may have ended by themselves, which `listen` reports
                process.kill()
            await process.wait()
        await asyncio.gather(*self.listening)

    # --- producers: through the proxy, since a FIFO topic's queues are chosen there

    async def produce(self, topic: str) -> None:
        """A send whose answer did not come may be stored or not: nothing is expected of that number."""
        async with grpc.aio.insecure_channel(f"127.0.0.1:{self.ports[0]}", CHANNEL) as channel:
            caller, number = Caller(channel, f"producer-{topic}"), 0
            while not self.is_draining:
                await self.until(lambda: self.record.open_of(topic) < BACKLOG[topic] or self.is_draining)
                if topic == FIFO_TOPIC:
                    group = f"G{number % MESSAGE_GROUPS}"
                    body, more = f"{group}-{number // MESSAGE_GROUPS}", {"message_type": 2, "message_group": group}
                else:
                    body, more = f"m{number}", {}
                number += 1
                try:
                    answer = await caller.call(
                        "SendMessage", timeout_s=3, messages=[message(topic, body.encode(), **more)]
                    )
                except grpc.aio.AioRpcError:
                    await channel.channel_ready()
                    continue
                if answer.status.code == 20000:
                    self.record.sent.add(body)
                    self.changed.set()


def test_kills_of_broker_proxy_and_consumers_lose_nothing_and_repeat_nothing_that_was_acknowledged(
    tmp_path: Path,
) -> None:
    with LocalCluster(store=tmp_path, processes=True) as cluster:
        with Admin(namesrv=cluster.namesrv) as admin:
            admin.create_topic("plain", queues=QUEUES)
            admin.create_topic(FIFO_TOPIC, queues=QUEUES, attributes={"message.type": "FIFO"})
            admin.create_group("g")
            admin.create_group(SubscriptionGroupConfig(group_name="f", consume_message_orderly=True))
        record = Record()
        try:
            asyncio.run(asyncio.wait_for(Trial(cluster, record).run(), GUARD_S))
        except (TimeoutError, AssertionError) as exc:
            pytest.fail(f"seed {SEED}: {exc!r}; {_told(record)}")
    print(f"seed {SEED}: {KILLS} kills, {_told(record)}")
    assert not (wrong := record.wrong()), f"seed {SEED}: {_told(record)}: {wrong[:5]}"
    assert not record.missing, f"seed {SEED}: {_told(record)}: lost {sorted(record.missing)[:5]}"
    assert len(record.acked) > len(record.sent) // 2, _told(record)
    assert record.counts["again"] > 0, _told(record)


def _told(record: Record) -> str:
    counts = record.counts
    return (
        f"{len(record.sent)} sent, {counts['deliveries']} deliveries, {counts['again']} of them again, "
        f"{len(record.acked)} acknowledgements confirmed in time, {len(record.missing)} missing"
    )
