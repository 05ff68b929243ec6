"""What a consumer far behind costs the producers: latency of sends while another client reads evicted log files.

The old part of the log is written, the broker restarted (what it never touched is not mapped, so the kernel can drop
it), and the files are evicted with POSIX_FADV_DONTNEED. Then producers send, first alone, which is the baseline, then
beside a consumer that reads the old messages from the beginning, for the first time and so from the disk. A third part
of the round repeats that with the files in memory: what is left of the difference is the consumer's share of the CPU.
Every round begins with a restart. Broker, producers and consumer are processes of their own.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import statistics
import tempfile
import time
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path
from typing import Final

import contrailmq.aio as aio
from contrailmq import Message, Producer
from contrailmq.client.blocking.raw import QueueReader
from contrailmq.testing import LocalCluster
from contrailmq.wire.transport import new_event_loop

OLD_TOPIC: Final = "Bench_old"
OLD_BODY_BYTES: Final = 8192
BATCH: Final = 32
IN_FLIGHT: Final = 16
PULL_COUNT: Final = 32


def measure_cold(*, mebibytes: int, rounds: int, seconds: float, directory: Path | None) -> dict[str, object]:
    """Medians over the rounds of the producers' p50 and p99."""
    parts: dict[str, list[tuple[float, float]]] = {"alone": [], "cold consumer": [], "warm consumer": []}
    read_bytes = {"cold consumer": 0, "warm consumer": 0}
    with (
        tempfile.TemporaryDirectory(dir=directory) as root,
        LocalCluster(store=root, processes=True, config={"mappedFileSizeCommitLog": 64 << 20}) as cluster,
    ):
        _fill(cluster.namesrv, mebibytes << 20)
        for _ in range(rounds):
            cluster.stop_broker()
            evicted = _evict(Path(root))
            cluster.restart_broker()
            _latencies(cluster.namesrv, 0.5)
            parts["alone"].append(_latencies(cluster.namesrv, seconds))
            for part in ("cold consumer", "warm consumer"):
                with _Consumer(cluster.namesrv) as consumer:
                    parts[part].append(_latencies(cluster.namesrv, seconds))
                read_bytes[part] += consumer.read_bytes
                _read_through(Path(root))
    figures: dict[str, object] = {
        "old log, MiB": mebibytes,
        "evicted for each round, MiB": evicted >> 20,
        "rounds": rounds,
        "sends in flight": IN_FLIGHT,
    }
    medians = {
        part: [statistics.median(column) for column in zip(*values, strict=True)] for part, values in parts.items()
    }
    for part, (p50_us, p99_us) in medians.items():
        figures[f"send {part}, p50 / p99 us"] = f"{p50_us:.0f} / {p99_us:.0f}"
    for part, size in read_bytes.items():
        figures[f"{part}, MB/s read"] = round(size / rounds / seconds / 1e6, 1)
        figures[f"p99 beside the {part} / alone"] = round(medians[part][1] / medians["alone"][1], 2)
    return figures


def _fill(namesrv: str, log_bytes: int) -> None:
    body = b"x" * OLD_BODY_BYTES
    with Producer("bench", namesrv=namesrv) as producer:
        for _ in range(log_bytes // OLD_BODY_BYTES // BATCH):
            producer.send_batch([Message(OLD_TOPIC, body) for _ in range(BATCH)])


def _log_files(root: Path) -> list[Path]:
    return sorted(path for path in root.rglob("commitlog/*") if path.name.isdigit())


def _evict(root: Path) -> int:
    """Ask the kernel to forget the log's pages; how many bytes were named."""
    total = 0
    for path in _log_files(root):
        descriptor = os.open(path, os.O_RDWR)
        try:
            os.fsync(descriptor)  # a dirty page stays
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            total += os.fstat(descriptor).st_size
        finally:
            os.close(descriptor)
    return total


def _read_through(root: Path) -> None:
    for path in _log_files(root):
        with path.open("rb", buffering=0) as file:
            while file.read(1 << 20):
                pass


def _latencies(namesrv: str, seconds: float) -> tuple[float, float]:
    """(p50, p99) in microseconds of sends that keep `IN_FLIGHT` on their way for a while."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        taken_us = sorted(runner.run(_send_for(namesrv, seconds)))
    return taken_us[len(taken_us) // 2], taken_us[len(taken_us) * 99 // 100]


async def _send_for(namesrv: str, seconds: float) -> list[float]:
    taken_us: list[float] = []
    async with aio.Producer("bench", namesrv=namesrv) as producer:
        await producer.send(Message("Bench_new", b"first"))
        end_s = time.perf_counter() + seconds

        async def work() -> None:
            while (began_s := time.perf_counter()) < end_s:
                await producer.send(Message("Bench_new", b"x" * 1024))
                taken_us.append((time.perf_counter() - began_s) * 1e6)

        await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
    return taken_us


class _Consumer:
    """A process that reads the old topic from the beginning, as fast as the broker answers."""

    def __init__(self, namesrv: str) -> None:
        context = multiprocessing.get_context("spawn")
        self._read: Synchronized[int] = context.Value("q", 0)
        self._process = context.Process(target=_consume, args=(namesrv, self._read), daemon=True)
        self.read_bytes = 0

    def __enter__(self) -> _Consumer:
        self._process.start()
        while not self._read.value and self._process.is_alive():  # it imports for a while
            time.sleep(0.001)
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.join()
        self.read_bytes = self._read.value


def _consume(namesrv: str, read: Synchronized[int]) -> None:
    with QueueReader(namesrv=namesrv, group="bench_old") as reader:
        while True:
            for queue in reader.queues(OLD_TOPIC):
                offset, end = 0, reader.max_offset(queue)
                while offset < end:
                    pulled = reader.pull(queue, offset, max_count=PULL_COUNT, max_bytes=256 * 1024)
                    offset = max(pulled.next_offset, offset + 1)
                    read.value += len(pulled.body)
