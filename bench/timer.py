"""`contrailmq bench timer`: messages that arrive later. What they cost, how late they are, how much memory they take.

costs    CPU time per message of each stage, on a clock that stands still, as the least of many short rounds. The
         baseline is a plain put (append and dispatch) of the same messages into the same store in the same rounds.
load     the broker's services on a real loop and a real clock: so many timers a second come in, with delays of two to
         four seconds, and go out. The messages and the moments at which they are sent are made up beforehand: a sender
         that falls behind sends later and moves no delivery time. Late is the store time of the delivered copy less the
         time that was asked for, to the millisecond. Then the same by a clock of CPU time, on which programs beside
         this one take none of its core; waiting for the disk costs nothing there.
levels   so many messages of level 1, sent as fast as the store takes them; late is against each one's own time. Also
         by CPU time.
memory   so many pending timers, spread over three days: what the process that took them in grew by, without the pages
         of the mapped log, which the kernel takes back when it wants; and all of a new process that has opened them.

Does not show: sockets, clients and the send handler; disks other than this one. Figures that hang on the machine's
speed have the loop beside them: the promises are for a machine whose empty loop takes about 20 ns a turn.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from bench.machine import loop_ns
from contrailmq.broker.config import BrokerConfig
from contrailmq.broker.delayed.delay import DelayService
from contrailmq.broker.delayed.timers import PORTION, TimerService
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.supervision import Service, Supervisor
from contrailmq.cli.bench_clients import surroundings
from contrailmq.cli.serving import GC_THRESHOLD, settle_memory
from contrailmq.message import SystemTopic, encode_host, encode_properties, tags_code
from contrailmq.store import Drive, ManualClock, MessageStore, StoreConfig
from contrailmq.store.timer import TimerStore
from contrailmq.wire.transport import new_event_loop

_TOPIC: Final = "Bench"
_HOST: Final = encode_host("127.0.0.1", 10911)
_TAG: Final = "TagA"
_START_MS: Final = 1_700_000_000_000
_ROUND: Final = 4_000  # messages of a round of `costs`
_TICK_MS: Final = 1000
_WAKEUP: Final = 256  # messages that a broker takes in, of several connections, before its other work has its turn
_DAY_MS: Final = 86_400_000
_DUE: Final = struct.Struct(">q")  # the time that was asked for, as the first bytes of a body
_STORE_TIME_AND_DUE: Final = struct.Struct(">56xq24xq")  # of a record with IPv4 hosts


@dataclass(frozen=True, slots=True)
class Settings:
    """One run."""

    rounds: int
    rate: int
    seconds: float
    due: int
    pending: int
    body_bytes: int
    directory: Path | None


def measure_timer(settings: Settings) -> dict[str, object]:
    """Settings first, then the figures, each under a name that says its unit and what is promised."""
    told = surroundings() | {
        "settings": f"body {settings.body_bytes} bytes, ASYNC_FLUSH, timerPrecisionMs {_TICK_MS}",
        "empty loop, ns a turn, before": loop_ns(),
    }
    with tempfile.TemporaryDirectory(dir=settings.directory) as root, _collecting_as_a_broker():
        told |= _costs(Path(root) / "costs", settings)
        told |= _under_load(Path(root) / "load", settings)
        told |= _under_load_by_cpu_time(Path(root) / "load-cpu", settings)
        told |= _levels(Path(root) / "levels", settings)
        told |= _levels_by_cpu_time(Path(root) / "levels-cpu", settings)
        if settings.pending:
            told |= _memory(Path(root) / "memory", settings)
    told["empty loop, ns a turn, after"] = loop_ns()
    return told


@contextmanager
def _collecting_as_a_broker() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(GC_THRESHOLD, 20, 20)
    try:
        yield
    finally:
        gc.set_threshold(*before)


# --------------------------------------------------------------------------------------------------------------- costs


def _costs(path: Path, settings: Settings) -> dict[str, object]:
    clock = ManualClock(_START_MS)
    store = MessageStore(_config(path), clock=clock, drive=Drive.LOOP).open()
    timer = TimerStore(store, store.files, _AtOnce())
    timer.open(clock.now_ms())
    best: dict[str, float] = {}
    try:
        for _ in range(settings.rounds):
            now_ms = clock.now_ms()
            messages = [_message(number, now_ms + 5000 + number % 5 * 1000, settings) for number in range(_ROUND)]
            steps: list[tuple[str, Callable[[], None]]] = [
                ("plain append", lambda found=messages: _append_all(store, _TOPIC, found)),  # type: ignore[misc]
                ("plain dispatch", lambda: _dispatch(store)),
                ("append", lambda found=messages: _append_all(store, SystemTopic.TIMER, found)),  # type: ignore[misc]
                ("dispatch", lambda: _dispatch(store)),
                ("onto the wheel", lambda: _turn(timer, clock)),
                ("off the wheel", lambda: _turn(timer, clock)),
                ("dispatch of copies", lambda: _dispatch(store)),
            ]
            for name, step in steps:
                if name == "off the wheel":
                    clock.advance(20_000)
                best[name] = min(best.get(name, float("inf")), _cpu_us(step, _ROUND))
            timer.flush(clock.now_ms())
        assert timer.stats.delivered == settings.rounds * _ROUND
    finally:
        timer.crash()
        store.abandon()
    plain = best["plain append"] + best["plain dispatch"]
    taken_in = best["append"] + best["dispatch"] + best["onto the wheel"]
    out = best["off the wheel"] + best["dispatch of copies"]
    told: dict[str, object] = {f"cost: {name}, us CPU / message": round(value, 1) for name, value in best.items()}
    return told | {
        "cost: plain put (baseline), us CPU / message": round(plain, 1),
        "cost: in, us CPU / message": round(taken_in, 1),
        "cost: out, us CPU / message": round(out, 1),
        "cost: in, multiple of a plain put": round(taken_in / plain, 2),
        "cost: out, multiple of a plain put": round(out / plain, 2),
        "cost: in and out, messages / s of one core": round(1e6 / (taken_in + out)),
    }


def _turn(timer: TimerStore, clock: ManualClock) -> None:
    while timer.tick(clock.now_ms(), PORTION):
        pass


def _dispatch(store: MessageStore) -> None:
    store.dispatch()


class _AtOnce(Executor):
    """Work of the workers, counted where it is measured."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        future.set_result(fn(*args, **kwargs))
        return future


# ---------------------------------------------------------------------------------------------------------------- load


class _Broker:
    """A broker's store and services on a loop, without its ports."""

    def __init__(self, path: Path, loop: asyncio.AbstractEventLoop) -> None:
        self.store = MessageStore(_config(path), drive=Drive.LOOP).open()
        config, _ = BrokerConfig.from_properties({"brokerName": "bench"})
        self.node = BrokerNode(
            config, self.store, clock=self.store.clock, call_soon=loop.call_soon, address=("127.0.0.1", 10_911)
        )
        self.node.load()
        self._worker, self._readers = ThreadPoolExecutor(1), ThreadPoolExecutor(4)
        self.timers = TimerService(self.node, self._worker, self._readers)
        self.delay = DelayService(self.node, self._worker, self._readers)
        self.supervisor = Supervisor(self.store.store_clock.look, lambda name: loop.stop())
        self.supervisor.add(self.timers)
        self.supervisor.add(self.delay)

    async def stop(self) -> None:
        self.node.dispatch_now()
        await self.supervisor.stop()
        self._worker.shutdown()
        self._readers.shutdown()
        self.store.close()


def _under_load(path: Path, settings: Settings) -> dict[str, object]:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_load(path, settings))


async def _load(path: Path, settings: Settings) -> dict[str, object]:
    broker = _Broker(path, asyncio.get_running_loop())
    store, rate = broker.store, settings.rate
    first_ms, messages = _planned(broker.node.now_ms, settings)
    settle_memory()
    await asyncio.sleep(max(first_ms - broker.node.now_ms(), 0) / 1000)
    sent, began, cpu = 0, time.monotonic(), time.process_time()
    longest_ms = 0.0
    while sent < len(messages):
        due = min(int((time.monotonic() - began) * rate) + 1, sent + _WAKEUP, len(messages))
        is_behind = due == sent + _WAKEUP
        if due > sent:
            _append_all(store, SystemTopic.TIMER, messages[sent:due])
            broker.node.after_append()
            sent = due
        asked = time.monotonic()
        await asyncio.sleep(0 if is_behind else 0.002)
        longest_ms = max(longest_ms, (time.monotonic() - asked) * 1000)
    sending_s, cpu_s = time.monotonic() - began, time.process_time() - cpu
    pending = broker.timers.timer.behind_messages()
    await _arrival(store, sent)
    drained_s = time.monotonic() - began
    figures = _rates_and_lateness("load", store, first_ms, sending_s, settings)
    await broker.stop()
    gc.unfreeze()
    return figures | {
        "load: not on the wheel when sending ended, messages": pending,
        "load: all delivered after, s": round(drained_s, 1),
        "load: share of a core while sending, %": round(cpu_s / sending_s * 100),
        "load: longest wait for the loop, ms": round(longest_ms),
    }


def _under_load_by_cpu_time(path: Path, settings: Settings) -> dict[str, object]:
    broker = _BrokerByCpuTime(path)
    store, clock = broker.store, broker.clock
    first_ms, messages = _planned(clock.now_ms, settings)
    settle_memory()
    clock.wait_until(first_ms)
    sent, sending_s = 0, 0.0
    while store.max_offset(_TOPIC, 0) < len(messages):
        now_ms = clock.now_ms()
        due = min((now_ms - first_ms) * settings.rate // 1000 + 1, sent + _WAKEUP, len(messages))
        if due > sent:
            _append_all(store, SystemTopic.TIMER, messages[sent:due])
            broker.node.after_append()
            sent, sending_s = due, (now_ms - first_ms) / 1000
        broker.turn()
    figures = _rates_and_lateness("load by CPU time", store, first_ms, sending_s, settings)
    broker.stop()
    gc.unfreeze()
    return figures


class _BrokerByCpuTime:
    """As `_Broker`, on a loop of its own: a turn calls the services that are due, then what they left to be called."""

    def __init__(self, path: Path) -> None:
        self.clock = _CpuClock()
        self.store = MessageStore(_config(path), clock=self.clock, drive=Drive.LOOP).open()
        self._calls: list[Callable[[], None]] = []
        config, _ = BrokerConfig.from_properties({"brokerName": "bench"})
        self.node = BrokerNode(
            config, self.store, clock=self.clock, call_soon=self._calls.append, address=("127.0.0.1", 10_911)
        )
        self._services: list[Service] = [service(self.node, _AtOnce(), _AtOnce()) for service in _SERVICES]
        self._due_ms = [0] * len(self._services)
        for service in self._services:
            service.start()

    def turn(self) -> None:
        now_ms = self.clock.now_ms()
        is_idle = not self._calls
        for index, service in enumerate(self._services):
            if self._due_ms[index] <= now_ms:
                service.tick(now_ms)
                self._due_ms[index] = now_ms + service.interval_ms
                is_idle = False
        if is_idle:
            self.clock.wait_until(now_ms + 1)
        calls = self._calls.copy()
        self._calls.clear()
        for call in calls:
            call()

    def stop(self) -> None:
        for service in self._services:
            service.stop()
        self.store.close()


_SERVICES: Final = (TimerService, DelayService)


class _CpuClock:
    """Goes on with the CPU time of this process, and by what it would have waited.

    The kernel is asked at every 16th call: a call takes 1 us on some machines, and each put calls twice.
    """

    def __init__(self) -> None:
        self._waited_ms = _START_MS
        self._now_ms = 0
        self._calls = 0
        self._look()

    def slept_ms(self) -> int:
        return 0

    def boot_id(self) -> str:
        return ""

    def _look(self) -> None:
        self._now_ms = self._waited_ms + time.process_time_ns() // 1_000_000

    def now_ms(self) -> int:
        self._calls += 1
        if not self._calls & 15:
            self._look()
        return self._now_ms

    monotonic_ms = now_ms

    def wait_until(self, time_ms: int) -> None:
        self._look()
        self._waited_ms += max(time_ms - self._now_ms, 0)
        self._look()


def _rates_and_lateness(
    name: str, store: MessageStore, first_ms: int, sending_s: float, settings: Settings
) -> dict[str, object]:
    sent = int(settings.rate * settings.seconds)
    late = _lateness(store)
    out_per_s = _steady_rate([stored_ms for stored_ms, _ in _delivered(store)], first_ms, settings)
    return {
        f"{name}: asked for, messages / s": settings.rate,
        f"{name}: in, messages / s (>= 20000)": round(sent / max(sending_s, 0.001)),
        f"{name}: out, messages / s (>= 20000)": round(out_per_s),
        f"{name}: late, p50, ms": _percentile(late, 50),
        f"{name}: late, p99, ms (<= 1000)": _percentile(late, 99),
        f"{name}: late, most, ms": max(late, default=-1),
        f"{name}: early, messages (0)": sum(value < 0 for value in late),
        f"{name}: missing or repeated, messages (0)": abs(len(late) - sent),
    }


def _planned(now_ms: Callable[[], int], settings: Settings) -> tuple[int, list[_Made]]:
    """When sending begins, and what is sent: one every 1 / rate seconds, due two to four seconds later."""
    making_ms = 1000
    while True:
        first_ms, source = now_ms() + making_ms, random.Random(1)
        messages = [
            _message(number, first_ms + number * 1000 // settings.rate + source.randrange(2000, 4000), settings)
            for number in range(int(settings.rate * settings.seconds))
        ]
        if now_ms() <= first_ms:
            return first_ms, messages
        making_ms *= 2  # it has begun meanwhile: once more


def _steady_rate(stored_ms: list[int], first_ms: int, settings: Settings) -> float:
    """Copies per second of the ticks in which as many are due as are sent; of all, when there are no such ticks."""
    begin_ms = (first_ms + 4000) // _TICK_MS * _TICK_MS + 2 * _TICK_MS
    end_ms = (first_ms + int(settings.seconds * 1000) + 2000) // _TICK_MS * _TICK_MS
    if begin_ms >= end_ms:
        begin_ms, end_ms = min(stored_ms), max(stored_ms) + 1
    return sum(begin_ms <= value < end_ms for value in stored_ms) / (end_ms - begin_ms) * 1000


async def _arrival(store: MessageStore, count: int) -> None:
    """Until so many messages are in their topic, or for two minutes."""
    for _ in range(1200):
        if store.max_offset(_TOPIC, 0) >= count:
            return
        await asyncio.sleep(0.1)


def _lateness(store: MessageStore) -> list[int]:
    """Of every message of the topic, in ms."""
    return [stored_ms - due_ms for stored_ms, due_ms in _delivered(store)]


def _delivered(store: MessageStore) -> Iterator[tuple[int, int]]:
    offset = 0
    while offset < store.max_offset(_TOPIC, 0):
        found = store.get_slices(_TOPIC, 0, offset, 1000, bulk_bytes=4 << 20)
        for record in found.slices:
            yield _STORE_TIME_AND_DUE.unpack_from(record)
        offset = found.next_offset
        found.release()


# -------------------------------------------------------------------------------------------------------------- levels


def _levels(path: Path, settings: Settings) -> dict[str, object]:
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(_level_load(path, settings))


async def _level_load(path: Path, settings: Settings) -> dict[str, object]:
    broker = _Broker(path, asyncio.get_running_loop())
    sending_ms = _send_levels(broker.store, broker.node, settings)
    await _arrival(broker.store, settings.due)
    late = _lateness(broker.store)
    await broker.stop()
    return _level_figures("levels", late, sending_ms, settings)


def _levels_by_cpu_time(path: Path, settings: Settings) -> dict[str, object]:
    broker = _BrokerByCpuTime(path)
    sending_ms = _send_levels(broker.store, broker.node, settings)
    while broker.store.max_offset(_TOPIC, 0) < settings.due:
        broker.turn()
    late = _lateness(broker.store)
    broker.stop()
    return _level_figures("levels by CPU time", late, sending_ms, settings)


def _send_levels(store: MessageStore, node: BrokerNode, settings: Settings) -> int:
    """In a row; how long that took, in ms."""
    began_ms = node.now_ms()
    properties = {"DELAY": "1", "REAL_TOPIC": _TOPIC, "REAL_QID": "0", "TAGS": _TAG}
    for number in range(settings.due):
        due_ms = store.store_clock.steady_ms() + 1000  # what a level goes by: it may differ from the wall clock by 1 ms
        encoded = encode_properties(properties | {"UNIQ_KEY": _unique_key(number)})
        body = _DUE.pack(due_ms).ljust(settings.body_bytes, b"\0")
        _append(store, SystemTopic.SCHEDULE, (body, encoded, _unique_key(number), None))
    node.after_append()
    return node.now_ms() - began_ms


def _level_figures(name: str, late: list[int], sending_ms: int, settings: Settings) -> dict[str, object]:
    return {
        f"{name}: due, messages": settings.due,
        f"{name}: due within, ms": sending_ms,
        f"{name}: late, p50, ms": _percentile(late, 50),
        f"{name}: late, p99, ms (<= 100)": _percentile(late, 99),
        f"{name}: early, messages (0)": sum(value < 0 for value in late),
        f"{name}: missing or repeated, messages (0)": abs(len(late) - settings.due),
    }


# -------------------------------------------------------------------------------------------------------------- memory

_FILL: Final = "fill"
_OPEN: Final = "open"


def _memory(path: Path, settings: Settings) -> dict[str, object]:
    grew_mb, resident_mb = _in_new_process(_FILL, path, settings)
    opened_mb, opened_all_mb = _in_new_process(_OPEN, path, settings)
    return {
        "memory: pending timers": settings.pending,
        "memory: taking them in, growth without mapped files, MB (<= 150)": round(grew_mb, 1),
        "memory: taking them in, resident with the mapped log, MB": round(resident_mb, 1),
        "memory: opened by a new process, growth without mapped files, MB": round(opened_mb, 1),
        "memory: opened by a new process, all that is resident, MB (<= 150)": round(opened_all_mb, 1),
    }


def _in_new_process(work: str, path: Path, settings: Settings) -> tuple[float, float]:
    command = [sys.executable, "-m", __name__, work, str(path), str(settings.pending), str(settings.body_bytes)]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(entry for entry in sys.path if entry)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    grew, resident = done.stdout.split()
    return float(grew), float(resident)


def _measure_memory(work: str, path: Path, pending: int, body_bytes: int) -> tuple[float, float]:
    """(growth of anonymous memory, resident memory) in MB, of this process."""
    settings = Settings(0, 0, 0.0, 0, pending, body_bytes, None)
    before_mb = _status_mb("RssAnon")
    clock = ManualClock(_START_MS)
    with MessageStore(_config(path), clock=clock, drive=Drive.LOOP) as store, _opened_timer(store, clock) as timer:
        if work == _FILL:
            _fill(store, timer, clock, settings)
        timer.tick(clock.now_ms(), PORTION)
        assert timer.metrics.total == pending, (timer.metrics.total, pending)
        gc.collect()
        return _status_mb("RssAnon") - before_mb, _status_mb("VmRSS")


def _fill(store: MessageStore, timer: TimerStore, clock: ManualClock, settings: Settings) -> None:
    source = random.Random(2)
    for number in range(settings.pending):
        due_ms = clock.now_ms() + source.randrange(1, 3 * _DAY_MS)
        _append(store, SystemTopic.TIMER, _message(number, due_ms, settings))
        if number % 1000 == 999:
            store.dispatch()
            _turn(timer, clock)
            if timer.wheel.changed_count > 10_000:
                timer.flush(clock.now_ms())
    store.dispatch()
    _turn(timer, clock)


@contextmanager
def _opened_timer(store: MessageStore, clock: ManualClock) -> Iterator[TimerStore]:
    timer = TimerStore(store, store.files, _AtOnce())
    timer.open(clock.now_ms())
    yield timer
    timer.close(clock.now_ms())


def _status_mb(name: str) -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1000 for line in lines if line.startswith(f"{name}:"))


# -------------------------------------------------------------------------------------------------------------- shared

_Made = tuple[bytes, bytes, str, str | None]  # body, properties, unique key, keys


def _config(path: Path) -> StoreConfig:
    return StoreConfig(path, mapped_file_size_commit_log=256 << 20, max_hash_slot_num=500_000, max_index_num=2_000_000)


def _unique_key(number: int) -> str:
    return f"7F0000010001AABBCCDD{number:012X}"


def _message(number: int, due_ms: int, settings: Settings) -> _Made:
    """As the broker stores it when a producer has asked for this time."""
    unique_key, keys = _unique_key(number), f"order-{number}"
    text = (
        f"UNIQ_KEY\x01{unique_key}\x02WAIT\x01true\x02TAGS\x01{_TAG}\x02KEYS\x01{keys}\x02TIMER_DELIVER_MS\x01{due_ms}\x02"
        f"TIMER_OUT_MS\x01{(due_ms - 1) // _TICK_MS * _TICK_MS}\x02REAL_TOPIC\x01{_TOPIC}\x02REAL_QID\x010\x02"
    )
    return _DUE.pack(due_ms).ljust(settings.body_bytes, b"\0"), text.encode(), unique_key, keys


def _append(store: MessageStore, topic: str, made: _Made) -> None:
    body, properties, unique_key, keys = made
    result = store.append(
        topic, 0, body, properties, tags_code=_CODE, keys=keys, unique_key=unique_key, born_host=_HOST, store_host=_HOST
    )
    assert result.status.is_stored, result


_CODE: Final = tags_code(_TAG)


def _append_all(store: MessageStore, topic: str, messages: Sequence[_Made]) -> None:
    for made in messages:
        _append(store, topic, made)


def _percentile(values: list[int], percent: int) -> int:
    ordered = sorted(values)
    return ordered[min(len(ordered) * percent // 100, len(ordered) - 1)] if ordered else -1


def _cpu_us(work: Callable[[], None], count: int) -> float:
    start = time.process_time()
    work()
    return (time.process_time() - start) / count * 1e6


if __name__ == "__main__":
    print(*_measure_memory(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])))
