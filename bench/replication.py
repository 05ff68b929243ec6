"""`python -m bench replication`: a master with a slave, ours beside Apache's, in turns in one run.

Four parts, with messages of 1 KiB and asynchronous flush; each is told when it is done:

    memory         resident MB of a slave that has nothing to do
    async          what a slave costs: the rate of sends to a master alone and to one with a slave, CPU of both
    sync           SYNC_MASTER with inSyncReplicas=2: rate, p50 and p99 of sends that wait for the slave
    catch-up       a slave that was away while its master's log grew: how fast it gets what it lacks, until its log has
                   it and until its queues and index have it too; and the rate of producers meanwhile

All brokers of both systems run at once, and those that are not under load are idle. On two cores the load generator,
master and slave share what there is: the CPU per message says what replication costs, the rates what is left here.
"""

from __future__ import annotations

import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Final, NamedTuple

from bench import compare
from bench.groups import Group, Server, apache_command, ours_command
from bench.mixed import VERSION, Figures, build_load, run_load

PARTS: Final = ("memory", "async", "catch-up", "sync")  # in this order: the last one starts the brokers again
SHAPES: Final = ((64, 1), (16, 32))  # connections x requests in flight
BODY_BYTES: Final = 1024
CATCH_UP_S: Final = 120.0  # then it is given up
WATCH_S: Final = 0.2  # between two looks at a catch-up: a broker's answer takes milliseconds that it then has not
BESIDE_S: Final = 1.0  # of each load beside a catch-up: short, because that takes a few seconds
SYNC: Final = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": 2}


class Settings(NamedTuple):
    lib: Path
    rounds: int = 2
    seconds: float = 3.0
    warm_seconds: float = 4.0
    settle_seconds: float = 5.0
    mebibytes: int = 2048  # of the log that a slave catches up with
    with_apache: bool = True
    directory: Path | None = None
    parts: Collection[str] = PARTS


def measure_replication(
    settings: Settings, theirs: Callable[[Path], Group] | None = None
) -> Iterator[dict[str, object]]:
    """Part by part, name -> ours / Apache's (ratio); `theirs` makes another group in a directory, not Apache's."""
    with tempfile.TemporaryDirectory(dir=settings.directory) as temporary, ExitStack() as stack:
        work = Path(temporary)
        build_load("load", work / "load")
        groups = [stack.enter_context(Group("ours", work / "ours", ours_command))]
        if theirs is not None:
            groups.append(stack.enter_context(theirs(work / "theirs")))
        elif settings.with_apache:
            compare.fetch_apache(VERSION, settings.lib)
            command = apache_command(settings.lib, work / "apache")
            groups.append(stack.enter_context(Group("apache", work / "apache", command)))
        time.sleep(settings.settle_seconds)
        bench = _Bench(work / "load", settings, groups)
        yield {"rounds": f"{settings.rounds} of {settings.seconds:g} s, in turns; {BODY_BYTES} bytes a body"}
        measure = {
            "memory": bench.memory,
            "async": bench.asynchronous,
            "catch-up": bench.catch_up,
            "sync": bench.synchronous,
        }
        for part in PARTS:
            if part in settings.parts:
                yield measure[part]()


class _Bench:
    def __init__(self, load: Path, settings: Settings, groups: list[Group]) -> None:
        self._load = load
        self._settings = settings
        self._groups = groups
        self._is_warm = False

    def send(self, group: Group, master: Server, shape: tuple[int, int], seconds: float) -> Figures:
        place = ["send", "127.0.0.1", str(master.port), "LoadTopic", "4"]
        numbers = [*map(str, shape), str(BODY_BYTES), str(seconds)]
        return run_load(group.name, [str(self._load), *place, *numbers, "json", str(master.pid)])

    def memory(self) -> dict[str, object]:
        return {"idle slave, resident MB": beside([group.slave.resident_mb() for group in self._groups])}

    def _warm(self) -> None:
        """Once, before the first part that sends."""
        if self._is_warm:
            return
        self._is_warm = True
        for group in self._groups:
            for master in (group.alone, group.master):
                self.send(group, master, SHAPES[0], self._settings.warm_seconds)
            group.await_slave()

    # --- asynchronous

    def asynchronous(self) -> dict[str, object]:
        self._warm()
        found: dict[str, object] = {}
        for shape in SHAPES:
            rounds: dict[str, list[Figures]] = {group.name: [] for group in self._groups}
            for number in range(self._settings.rounds):
                for group in self._in_turns(number):
                    rounds[group.name].append(self._with_and_without(group, shape))
            name = "async {} x {}".format(*shape)
            sides = [rounds[group.name] for group in self._groups]
            found |= {
                f"{name}, sends/s, no slave": beside(_medians(sides, "alone_per_s")),
                f"{name}, sends/s, a slave": beside(_medians(sides, "pair_per_s")),
                f"{name}, the slave's cost to the rate, %": beside(_medians(sides, "cost_percent"), is_ratio=False),
                f"{name}, CPU us a message, master without": beside(_medians(sides, "alone_cpu_us")),
                f"{name}, CPU us a message, master with": beside(_medians(sides, "pair_cpu_us")),
                f"{name}, CPU us a message, slave": beside(_medians(sides, "slave_cpu_us")),
            }
        return found

    def _with_and_without(self, group: Group, shape: tuple[int, int]) -> Figures:
        seconds = self._settings.seconds
        alone = self.send(group, group.alone, shape, seconds)
        before_s = group.slave.cpu_s()
        pair = self.send(group, group.master, shape, seconds)
        group.await_slave()
        slave_s = group.slave.cpu_s() - before_s
        return {
            "alone_per_s": alone["messages_per_s"],
            "pair_per_s": pair["messages_per_s"],
            "cost_percent": 100 * (1 - pair["messages_per_s"] / alone["messages_per_s"]),
            "alone_cpu_us": alone["broker_cpu_us_per_message"],
            "pair_cpu_us": pair["broker_cpu_us_per_message"],
            "slave_cpu_us": slave_s * 1e6 / (pair["messages_per_s"] * seconds),
        }

    # --- synchronous

    def synchronous(self) -> dict[str, object]:
        self._warm()
        for group in self._groups:
            group.restart_pair(SYNC)
            self.send(group, group.master, SHAPES[0], self._settings.warm_seconds)
        found: dict[str, object] = {}
        for shape in SHAPES:
            rounds: dict[str, list[Figures]] = {group.name: [] for group in self._groups}
            for number in range(self._settings.rounds):
                for group in self._in_turns(number):
                    before_s = group.slave.cpu_s()
                    figures = self.send(group, group.master, shape, self._settings.seconds)
                    sent = figures["messages_per_s"] * self._settings.seconds
                    figures["slave_cpu_us"] = (group.slave.cpu_s() - before_s) * 1e6 / max(sent, 1)
                    rounds[group.name].append(figures)
            name = "sync {} x {}".format(*shape)
            sides = [rounds[group.name] for group in self._groups]
            found |= {
                f"{name}, sends/s": beside(_medians(sides, "messages_per_s")),
                f"{name}, p50 us": beside(_medians(sides, "p50_us")),
                f"{name}, p99 us": beside(_medians(sides, "p99_us")),
                f"{name}, CPU us a message, master": beside(_medians(sides, "broker_cpu_us_per_message")),
                f"{name}, CPU us a message, slave": beside(_medians(sides, "slave_cpu_us")),
                f"{name}, not acknowledged": beside(
                    [sum(one["errors"] for one in side) for side in sides], is_ratio=False
                ),
            }
        return found

    # --- catch-up

    def catch_up(self) -> dict[str, object]:
        self._warm()
        sides = [self._catch_up(group) for group in self._groups]
        names = {
            "catch-up, MB": "mb",
            "catch-up, MB/s until the log has it": "log_mb_per_s",
            "catch-up, MB/s until queues and index have it": "readable_mb_per_s",
            "catch-up, CPU us of the slave a KB": "slave_cpu_us",
            "catch-up beside producers, MB/s": "beside_mb_per_s",
            "producers before the catch-up, sends/s": "before_per_s",
            "producers beside the catch-up, sends/s": "beside_per_s",
            "producers are slowed by, %": "slowed_percent",
        }
        return {
            name: beside([side[key] for side in sides], is_ratio=key != "slowed_percent") for name, key in names.items()
        }

    def _catch_up(self, group: Group) -> Figures:
        """One slave, twice from the same state: with an idle master, then beside producers."""
        group.await_slave()
        group.slave.stop()
        begin = group.place(group.master).log_end
        before: list[float] = []
        while group.place(group.master).log_end < begin + (self._settings.mebibytes << 20):
            before.append(self.send(group, group.master, SHAPES[1], self._settings.seconds)["messages_per_s"])
        kept = group.keep_slaves_store()
        idle = self._follow(group, begin)
        group.slave.stop()
        group.put_back(kept)
        rates: list[float] = []
        beside = self._follow(group, begin, producers=rates)
        rate = statistics.median(rates) if rates else 0.0
        return {
            "mb": idle.mb,
            "log_mb_per_s": idle.log_mb_per_s,
            "readable_mb_per_s": idle.readable_mb_per_s,
            "slave_cpu_us": idle.cpu_us_a_kb,
            "beside_mb_per_s": beside.log_mb_per_s,
            "before_per_s": statistics.median(before),
            "beside_per_s": rate,
            "slowed_percent": 100 * (1 - rate / statistics.median(before)),
        }

    def _follow(self, group: Group, begin: int, *, producers: list[float] | None = None) -> _Followed:
        """Start the slave and wait until it has all that the master has now; `producers` takes the rates of those that
        send meanwhile."""
        end = group.place(group.master).log_end
        group.slave.start()
        watch = _Watch(group, begin, end)
        watch.start()
        while producers is not None and watch.is_alive():
            rate = self.send(group, group.master, SHAPES[1], BESIDE_S)["messages_per_s"]
            if watch.has_begun:
                producers.append(rate)
        watch.join()
        return watch.followed()

    def _in_turns(self, number: int) -> list[Group]:
        return self._groups if number % 2 else self._groups[::-1]


class _Followed(NamedTuple):
    mb: float
    log_mb_per_s: float
    readable_mb_per_s: float
    cpu_us_a_kb: float


class _Watch(threading.Thread):
    """Looks at a slave that catches up, from the first bytes that it got until it has all. (When it connects is not
    counted: Apache's try once in five seconds.)"""

    def __init__(self, group: Group, begin: int, end: int) -> None:
        super().__init__(daemon=True)
        self._group, self._begin, self._end = group, begin, end
        self._first = self._logged = self._readable = _Seen(0.0, 0, 0.0)
        self._error: Exception | None = None

    @property
    def has_begun(self) -> bool:
        return self._first.at_s > 0

    def run(self) -> None:
        try:
            self._group.until(self._is_over, "it has caught up", CATCH_UP_S, look_s=WATCH_S)
        except Exception as exc:  # noqa: BLE001 - raised in the thread that waits
            self._error = exc

    def _is_over(self) -> bool:
        place = self._group.place(self._group.slave)
        seen = _Seen(time.monotonic(), place.log_end, self._group.slave.cpu_s())
        if not self.has_begun:
            if place.log_end > self._begin:
                self._first = seen
            return False
        if place.log_end >= self._end and not self._logged.at_s:
            self._logged = seen
        if place.readable_end >= self._end:
            self._readable = seen
        return self._readable.at_s > 0

    def followed(self) -> _Followed:
        if self._error is not None:
            raise self._error
        mb = (self._end - self._first.log_end) / 1e6
        cpu_s = self._readable.cpu_s - self._first.cpu_s
        return _Followed(
            mb,
            mb / max(self._logged.at_s - self._first.at_s, WATCH_S),
            mb / max(self._readable.at_s - self._first.at_s, WATCH_S),
            cpu_s * 1e3 / max(mb, 1),
        )


class _Seen(NamedTuple):
    at_s: float
    log_end: int
    cpu_s: float


def _medians(sides: list[list[Figures]], key: str) -> list[float]:
    return [statistics.median(one[key] for one in side) for side in sides]


def beside(values: list[float], *, is_ratio: bool = True) -> str:
    """Ours, and Apache's where it was measured."""
    text = " / ".join(f"{value:.1f}" if abs(value) < 100 else f"{value:.0f}" for value in values)
    return f"{text} ({values[0] / values[1]:.2f})" if is_ratio and len(values) > 1 and values[1] else text
