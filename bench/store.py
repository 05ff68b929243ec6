"""What `contrailmq bench store` and `bench recover` measure.

CPU figures count the whole process, worker threads included. They are taken in short pieces and the best piece counts:
what another process takes from the machine is not the store's. Since CPU microseconds say as much about the machine as
about the store, two figures go with them: the turn of an empty loop, and the bare path (pack a record, copy it into a
mapping, pack its queue unit), which no store written in this language could beat.

Latencies of SYNC_FLUSH are compared with a bare write of 4 KiB and fdatasync into a file that was written before, on
the same disk, one after the other in turn: a disk shared with others changes by the second. What this does not show:
other machines, other disks, and a broker's sockets. Resident memory is that of a new process which opens the store,
above what its interpreter took before the first import.
"""

from __future__ import annotations

import gc
import mmap
import os
import statistics
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from bench.machine import loop_ns
from contrailmq.cli.bench_clients import surroundings
from contrailmq.message import Message, encode_properties, tags_code
from contrailmq.message.checksum import crc32
from contrailmq.store import Drive, MessageStore, StoreConfig

_LOG_FILE_BYTES: Final = 256 << 20
_SYNC_LOG_FILE_BYTES: Final = 8 << 20  # the next file is written ahead: with a large one that is all one would measure
_WRITERS: Final = 64
_EACH_LEAST: Final = 128  # puts of each writer: the first dozens are those of threads that are still starting
_MANY_QUEUES: Final = 10_000
_FLAT_ROUNDS: Final = 5  # the best of them counts: both sides are short, and the machine has other work
_TOPIC_QUEUES: Final = 8
_QUEUE_MESSAGES: Final = 4
_STARTS: Final = 5  # the best of them counts
_OPENINGS: Final = 5  # of a log that is not large; the best of them counts
_BARE_BYTES: Final = 4 << 20
_BARE_HEAD: Final = struct.Struct(">iiiiiqqiq8sq8siqi")  # of a record, up to its body
_BARE_UNIT: Final = struct.Struct(">qiq")
_HOST: Final = bytes(8)
_PROPERTIES: Final = b"KEYS\x01order-1\x02WAIT\x01true\x02"


class Figure(NamedTuple):
    """`promise` is what we state about it, in the same unit; empty where nothing is stated."""

    name: str
    value: float
    unit: str
    promise: str = ""

    @property
    def is_missed(self) -> bool:
        """Is the value not what is promised? A promise with a condition is not judged."""
        direction, _, limit = self.promise.partition(" ")
        if not limit or " " in limit:
            return False
        return self.value > float(limit) if direction == "<=" else self.value < float(limit)


def measure_store(
    *, count: int, body_bytes: int, queue_count: int, sync_count: int, directory: Path | None
) -> dict[str, object]:
    messages = [Message("Bench", bytes(body_bytes), tags="TagA", keys=f"order-{n}") for n in range(min(count, 1000))]
    figures: list[Figure] = []
    with tempfile.TemporaryDirectory(dir=directory) as root:
        with MessageStore(_config(Path(root) / "embedded")) as store:
            figures += _embedded(store, messages, count, queue_count)
        store = MessageStore(_config(Path(root) / "flat")).open()
        figures += _flat(store, messages, count)
        store.abandon()  # closing would make and sync 10,000 directories
        with MessageStore(_config(Path(root) / "loop"), drive=Drive.LOOP) as store:
            figures += _by_loop(store, bytes(body_bytes), count, queue_count)
        small = {"mapped_file_size_commit_log": _SYNC_LOG_FILE_BYTES, "flush_disk_type": "SYNC_FLUSH"}
        with MessageStore(_config(Path(root) / "sync").replaced(**small)) as store:
            figures += _synced(store, messages, sync_count, Path(root) / "bare")
    settings: dict[str, object] = {
        "count": count, "body_bytes": body_bytes, "queues": queue_count, "sync_count": sync_count,
        "mappedFileSizeCommitLog": _LOG_FILE_BYTES,
    }  # fmt: skip
    return _told(settings, figures)


def measure_recovery(*, log_bytes: int, body_bytes: int, queue_count: int, directory: Path | None) -> dict[str, object]:
    with tempfile.TemporaryDirectory(dir=directory) as root:
        config = _config(Path(root) / "store")
        store = MessageStore(config).open()
        body = bytes(body_bytes)
        count = min(500, log_bytes // body_bytes)
        batch = [Message("Bench", body, tags="TagA", keys=f"order-{n}") for n in range(count)]
        while store.log_max_offset < log_bytes:
            store.put_many(batch, queue_id=store.log_max_offset % 4)
        store.abandon()
        turns = range(_OPENINGS if log_bytes <= _LOG_FILE_BYTES else 1)
        bare_s = min(_bare_walk_s(config) for _ in turns)
        killed = [_opening(config, clean=False) for _ in turns]
        MessageStore(config).open().close()
        clean = [_opening(config, clean=True) for _ in turns]
        resident = _resident_bytes(config)
    size = killed[0].log_bytes
    killed_s, killed_cpu_s = min(one.elapsed_s for one in killed), min(one.cpu_s for one in killed)
    figures = [
        Figure("bare walk: unpack each head, check each body, by CPU time", size / bare_s / 1e9, "GB/s"),
        Figure("recovery after a kill, with body checksums", size / killed_s / 1e9, "GB/s", ">= 0.4"),
        Figure("  by CPU time", size / killed_cpu_s / 1e9, "GB/s"),
        Figure("  as a multiple of the bare walk, by CPU time", killed_cpu_s / bare_s, "x"),
        Figure("open after a kill", killed_s * 1000, "ms"),
        Figure("open after a clean exit", min(one.elapsed_s for one in clean) * 1000, "ms"),
        Figure("resident memory above the interpreter, opened and idle", resident / 1e6, "MB", "<= 60"),
    ]
    settings: dict[str, object] = {"log_bytes": size, "body_bytes": body_bytes}
    if queue_count:
        settings |= {"queues": queue_count, "messages in each queue": _QUEUE_MESSAGES}
        figures += _many_queues(queue_count, directory)
    return _told(settings, figures)


def _many_queues(queue_count: int, directory: Path | None) -> list[Figure]:
    """A clean start with many queues, in turn with what no start can leave out: to open each queue and read a unit."""
    message = [Message(f"Topic{number // _TOPIC_QUEUES}", bytes(100), tags="TagA") for number in range(queue_count)]
    with tempfile.TemporaryDirectory(dir=directory) as root:
        config = _config(Path(root) / "store")
        with MessageStore(config) as store:
            for _ in range(_QUEUE_MESSAGES):
                for number in range(queue_count):
                    store.put(message[number], number % _TOPIC_QUEUES)
        del message
        bare, starts = [], []
        for _ in range(_STARTS):
            gc.collect()  # what the last turn left is not this one's
            bare.append(_bare_start(config))
            starts.append(_opening(config, clean=True))
    bare_s, start_s = min(one.elapsed_s for one in bare), min(one.elapsed_s for one in starts)
    bare_cpu_s, start_cpu_s = min(one.cpu_s for one in bare), min(one.cpu_s for one in starts)
    what = f"clean start with {queue_count} queues"
    return [
        Figure(f"bare {what}: open each file, read one unit", bare_s, "s"),
        Figure("  CPU time of the bare one", bare_cpu_s, "s"),
        Figure(what, start_s, "s", "<= 3" if queue_count >= 20_000 else "<= 3 with 20,000"),
        Figure("  CPU time of the start", start_cpu_s, "s"),
        Figure("  CPU time a queue", start_cpu_s / queue_count * 1e6, "us"),
        Figure("  as a multiple of the bare start, by CPU time", start_cpu_s / bare_cpu_s, "x"),
    ]


def _bare_start(config: StoreConfig) -> _Opening:
    start, start_cpu = time.perf_counter(), time.process_time()
    root = str(config.consume_queue_path)
    for topic in os.listdir(root):
        for queue in os.listdir(f"{root}/{topic}"):
            descriptor = os.open(f"{root}/{topic}/{queue}/{0:020d}", os.O_RDONLY)
            os.pread(descriptor, _BARE_UNIT.size, 0)
            os.close(descriptor)
    return _Opening(time.perf_counter() - start, time.process_time() - start_cpu, 0)


def _config(path: Path, **settings: object) -> StoreConfig:
    return StoreConfig(
        path,
        mapped_file_size_commit_log=_LOG_FILE_BYTES,
        max_hash_slot_num=500_000,
        max_index_num=2_000_000,
        **settings,
    )


def _embedded(store: MessageStore, messages: list[Message], count: int, queue_count: int) -> list[Figure]:
    piece = len(messages)

    def put() -> None:
        for number, message in enumerate(messages):
            store.put(message, number % queue_count)

    def put_many() -> None:
        for start in range(0, piece, 100):
            store.put_many(messages[start : start + 100], start // 100 % queue_count)

    def get() -> None:
        for number in range(100):
            store.get_slices("Bench", 0, number, 32).release()

    pieces = max(1, count // piece)
    for _ in range(-(-140 * queue_count // piece)):  # enough to read
        put()
    bare_us = _best_cpu_us(_bare_path(messages), piece, pieces)
    put_us = _best_cpu_us(put, piece, pieces)
    many_us = _best_cpu_us(put_many, piece, pieces)
    return [
        Figure("bare path: pack a record, copy it, pack its unit", bare_us, "us CPU / message"),
        Figure("put, one by one, async flush, dispatch and index", put_us, "us CPU / message", "<= 12"),
        Figure("  put as a multiple of the bare path", put_us / bare_us, "x"),
        Figure("put_many of 100", many_us, "us CPU / message", "<= 8"),
        Figure("  put_many as a multiple of the bare path", many_us / bare_us, "x"),
        Figure("get of 32 as slices", _best_cpu_us(get, 100, pieces), "us CPU / call", "<= 25"),
    ]


def _bare_path(messages: list[Message]) -> Callable[[], None]:
    """What is left of a put when nothing is checked, kept, indexed or shared: the floor on this machine."""
    target = mmap.mmap(-1, _BARE_BYTES)
    properties = [encode_properties(message.properties) for message in messages]

    def work() -> None:
        position = 0
        for number, message in enumerate(messages):
            body, extra = message.body, properties[number]
            size = 88 + len(body) + 8 + len(extra)
            if position + size > _BARE_BYTES:
                position = 0
            head = _BARE_HEAD.pack(
                size, 0, crc32(body) & 0x7FFFFFFF, 0, 0, number, position, 0, 0, _HOST, 0, _HOST, 0, 0, len(body)
            )
            target[position : position + size] = b"".join((head, body, b"\x05Bench", b"\0\0", extra))
            _BARE_UNIT.pack(position, size, 0)
            position += size

    return work


def _flat(store: MessageStore, messages: list[Message], count: int) -> list[Figure]:
    """What a put costs when messages go to one queue, and to many in turn."""
    step = max(1, min(count, 5_000))

    def put(queue_count: int, start: int) -> Callable[[], None]:
        def work() -> None:
            for number in range(start, start + step):
                store.put(messages[number % len(messages)], number % queue_count)

        return work

    for queue_id in range(_MANY_QUEUES):
        store.put(messages[0], queue_id)
    store.dispatch()
    one = many = float("inf")
    for turn in range(_FLAT_ROUNDS):
        one = min(one, _cpu_us(put(1, 0), step))
        many = min(many, _cpu_us(put(_MANY_QUEUES, turn * step), step))
    return [
        Figure("put to 1 queue", one, "us CPU / message"),
        Figure(f"put to {_MANY_QUEUES} queues in turn", many, "us CPU / message"),
        Figure("  as a multiple of one queue", many / one, "x", "<= 1.5"),
    ]


def _resident_bytes(config: StoreConfig) -> int:
    """How much a process grows when it opens a store and leaves it alone."""
    program = (
        "import os, sys\n"
        "page = os.sysconf('SC_PAGE_SIZE')\n"
        "resident = lambda: int(open('/proc/self/statm').read().split()[1]) * page\n"
        "before = resident()\n"
        "from contrailmq.store import MessageStore, StoreConfig\n"
        "names = ('mapped_file_size_commit_log', 'max_hash_slot_num', 'max_index_num')\n"
        "sizes = dict(zip(names, map(int, sys.argv[2:])))\n"
        "with MessageStore(StoreConfig(sys.argv[1], **sizes)) as store:\n"
        "    store.tick()\n"
        "    print(resident() - before)\n"
    )
    sizes = (config.mapped_file_size_commit_log, config.max_hash_slot_num, config.max_index_num)
    command = [sys.executable, "-c", program, str(config.path), *map(str, sizes)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return int(done.stdout)


def _by_loop(store: MessageStore, body: bytes, count: int, queue_count: int) -> list[Figure]:
    append, code = store.append, tags_code(None)
    piece = min(count, 1000)

    def put() -> None:
        for number in range(piece):
            append("Bench", number % queue_count, body, _PROPERTIES, tags_code=code, keys="order-1", unique_key=None)

    append_us = dispatch_us = float("inf")
    for _ in range(max(1, count // piece)):
        append_us = min(append_us, _cpu_us(put, piece))
        dispatch_us = min(dispatch_us, _cpu_us(store.dispatch, piece))
    return [
        Figure("append", append_us, "us CPU / message", "<= 4"),
        Figure("dispatch, a unit and one key", dispatch_us, "us CPU / message", "<= 4"),
    ]


def _synced(store: MessageStore, messages: list[Message], count: int, bare: Path) -> list[Figure]:
    store.put(messages[0])
    one_us, bare_us = _alone(store, messages, count, bare)
    syncs = store.flush_count
    each = max(_EACH_LEAST, count // _WRITERS)
    together = threading.Barrier(_WRITERS)

    def write() -> None:
        together.wait()
        for number in range(each):
            store.put(messages[number % len(messages)])

    writers = [threading.Thread(target=write) for _ in range(_WRITERS)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    shared = each * _WRITERS / max(1, store.flush_count - syncs)
    return [
        Figure("bare 4 KiB write + fdatasync, p50", bare_us, "us"),
        Figure("sync flush, 1 writer, p50", one_us, "us"),
        Figure("  as a multiple of the bare one", one_us / bare_us, "x", "<= 1.5"),
        Figure(f"sync flush, {_WRITERS} writers", shared, "messages / sync", ">= 20"),
    ]


def _alone(store: MessageStore, messages: list[Message], count: int, bare: Path) -> tuple[float, float]:
    """Medians of a put, and of a bare 4 KiB write and fdatasync at ascending places of a file written before."""
    page = bytes(4096)
    puts, bares = [], []
    descriptor = os.open(bare, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        os.pwrite(descriptor, bytes(4096 * count), 0)
        os.fsync(descriptor)
        for number in range(count):
            start = time.perf_counter()
            os.pwrite(descriptor, page, number * 4096)
            os.fdatasync(descriptor)
            between = time.perf_counter()
            store.put(messages[number % len(messages)])
            puts.append(time.perf_counter() - between)
            bares.append(between - start)
    finally:
        os.close(descriptor)
    return statistics.median(puts) * 1e6, statistics.median(bares) * 1e6


class _Opening(NamedTuple):
    elapsed_s: float
    cpu_s: float
    log_bytes: int


def _opening(config: StoreConfig, *, clean: bool) -> _Opening:
    """Open a store, and leave it as it was left before."""
    start, start_cpu = time.perf_counter(), time.process_time()
    store = MessageStore(config).open()
    opening = _Opening(time.perf_counter() - start, time.process_time() - start_cpu, store.log_max_offset)
    assert store.recovery.was_clean_exit is clean
    if clean:
        store.close()
    else:
        store.abandon()
    return opening


def _bare_walk_s(config: StoreConfig) -> float:
    """CPU seconds of what no recovery with checksums can leave out."""
    unpack, start = _BARE_HEAD.unpack_from, time.process_time()
    for path in sorted((config.path / "commitlog").iterdir()):
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as log:
            position = 0
            while position + _BARE_HEAD.size <= len(log):
                size, _, crc, *_, body_bytes = unpack(log, position)
                body = position + _BARE_HEAD.size
                if size <= 0 or crc32(log[body : body + body_bytes]) & 0x7FFFFFFF != crc:
                    break
                position += size
    return time.process_time() - start


def _cpu_us(work: Callable[[], object], count: int) -> float:
    start = time.process_time()
    work()
    return (time.process_time() - start) / count * 1e6


def _best_cpu_us(work: Callable[[], object], count: int, pieces: int) -> float:
    """Of the best of several pieces of `count` each."""
    return min(_cpu_us(work, count) for _ in range(pieces))


def _told(settings: dict[str, object], figures: list[Figure]) -> dict[str, object]:
    """Settings first, then the figures, each under a name that says its unit and what is promised; then what missed."""
    told = surroundings() | {"empty loop, ns a turn": loop_ns()} | settings
    for figure in figures:
        promise = f" ({figure.promise})" if figure.promise else ""
        told[f"{figure.name}, {figure.unit}{promise}"] = round(figure.value, 2)
    missed = [
        f"{figure.name.strip()}: {figure.value:.2f}, not {figure.promise} {figure.unit}"
        for figure in figures
        if figure.is_missed
    ]
    told["MISSED" if missed else "missed"] = missed or "no target"
    return told
