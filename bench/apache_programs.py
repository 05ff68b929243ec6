"""`python -m bench apache-programs`: Apache's own benchmark programs against our broker and Apache's, in turns.

The programs are org.apache.rocketmq.example.benchmark's, from the released jars, each run a process of its own with
Apache's Java client: one connection, and ROCKETMQ's binary headers in the producers (the transactional one and the
consumer use JSON). Once they have run for ten seconds they print a line every second, over the last nine. The best line
of a run counts: a JVM is slow until it has compiled what it runs, and a backlog ends. The broker's CPU is that of the
same nine seconds. What the consumer reads is a backlog that `load.c` writes before.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from bench import compare
from bench.mixed import Figures, NotDelivered, Settings, both_brokers, build_load, by_turns, run_load

_PACKAGE: Final = "org.apache.rocketmq.example.benchmark"
_WINDOW_S: Final = 9.0  # what a line of a program is about: ten snapshots, a second apart
_REPORT: Final = ("-ri", "1000")
_START_S: Final = 90.0  # a JVM, a route and a topic, on a busy machine
_LOOK_S: Final = 0.05
_BACKLOG_BODY_BYTES: Final = 128
_NAMED_NUMBER: Final = re.compile(r"([A-Za-z][\w() ]*):\s*([\d.]+|NaN)")


class Program(NamedTuple):
    """One of Apache's programs, and under which names its line has what we compare."""

    name: str
    arguments: tuple[str, ...]
    rate: str
    response_ms: str
    failures: tuple[str, ...]
    reads_backlog: bool = False


PROGRAMS: Final = (
    Program("Producer", ("-w", "64", "-s", "1024"), "Send TPS", "Average RT(ms)", ("Send Failed", "Response Failed")),
    Program(
        "BatchProducer",
        ("-w", "64", "-s", "1024", "-b", "16"),
        "Send MPS",
        "Average RT(ms)",
        ("Send Failed", "Send Message Failed"),
    ),
    Program(
        "TransactionProducer",
        ("-w", "32", "-s", "2048"),
        "Send TPS",
        "AVG RT(ms)",
        ("Send Failed", "UnexpectedCheck", "DuplicatedCheck"),
    ),
    Program("Consumer", ("-w", "20"), "Consume TPS", "AVG(S2C) RT(ms)", ("Consume Fail",), reads_backlog=True),
)


def measure_programs(
    settings: Settings, *, programs: tuple[Program, ...], backlog_seconds: float, java_options: str = "-Xms1g -Xmx1g"
) -> dict[str, object]:
    """Name -> ours / the other's (ratio), for each program."""
    figures: dict[str, object] = {"rounds": f"{settings.rounds}, in turns"}
    compare.fetch_apache("5.5.0", settings.lib)
    with (
        tempfile.TemporaryDirectory(dir=settings.directory) as temporary,
        both_brokers(settings, Path(temporary)) as two,
    ):
        work = Path(temporary)
        build_load("load", work / "load")
        java = ["java", *java_options.split(), f"-Duser.home={work}", "-cp", f"{settings.lib}/*"]

        def drive(system: compare.System, program: Program, topic: str) -> Figures:
            if program.reads_backlog:
                _write_backlog(work / "load", system, topic, backlog_seconds)
            return _run(java, system, program, topic, settings.seconds, work / "program.log")

        for program in programs:
            # Each round has a topic of its own: a consumer finds only its own backlog.
            topics = {system.name: iter(_topics(program)) for system in two}
            rounds = by_turns(two, settings.rounds, lambda one: drive(one, program, next(topics[one.name])))  # noqa: B023
            figures |= {f"{program.name}: {name}": line for name, line in compared(*rounds.values()).items()}
    return figures


def _topics(program: Program) -> Iterator[str]:
    number = 0
    while True:
        number += 1
        yield f"Benchmark{program.name}{number}"


def _write_backlog(load: Path, system: compare.System, topic: str, seconds: float) -> None:
    shape = ["send", "127.0.0.1", str(system.port), topic, "4", "16", "32", str(_BACKLOG_BODY_BYTES)]
    run_load(system.name, [str(load), *shape, str(seconds), "binary"])


def _run(java: list[str], system: compare.System, program: Program, topic: str, seconds: float, log: Path) -> Figures:
    broker = compare.listener(system.pids(), system.port)
    command = [*java, f"{_PACKAGE}.{program.name}", "-n", f"127.0.0.1:{system.namesrv_port}", "-t", topic]
    with _running([*command, *_REPORT, *program.arguments], log):
        seen = list(_lines(system.name, program, broker, seconds, log))
    best = max(seen, key=lambda one: one.figures[program.rate])
    rate = best.figures[program.rate]
    return {
        "per_s": rate,
        "response_ms": best.figures[program.response_ms],
        "cpu_us": best.cpu_s * 1e6 / (rate * _WINDOW_S),
        "failures": sum(seen[-1].figures[name] for name in program.failures),
    }


@contextmanager
def _running(command: list[str], log: Path) -> Iterator[None]:
    """The program, until the caller has what it wants: none of them ends by itself."""
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.kill()
        process.wait()


class Line(NamedTuple):
    figures: Mapping[str, float]
    cpu_s: float  # of the broker in the seconds that the line is about


def _lines(name: str, program: Program, broker: int, seconds: float, log: Path) -> Iterator[Line]:
    """The lines with messages that the program prints in some seconds, counted from the first of them."""
    spent: deque[tuple[float, float]] = deque()  # (when, CPU of the broker so far), a window of them
    count, end_s = 0, time.monotonic() + _START_S
    while (now_s := time.monotonic()) < end_s:
        spent.append((now_s, cpu_seconds(broker)))
        while spent[0][0] < now_s - _WINDOW_S:
            spent.popleft()
        whole = log.read_text().rpartition("\n")[0].splitlines()  # the last line may be half written
        lines = [found for line in whole if (found := parse_line(line)).get(program.rate)]
        if lines and not count:
            end_s = now_s + seconds
        for figures in lines[count:]:
            yield Line(figures, spent[-1][1] - spent[0][1])
        count = len(lines)
        time.sleep(_LOOK_S)
    if not count:
        said = "\n".join(log.read_text().splitlines()[-5:])
        raise NotDelivered(f"{name}: {program.name} printed no figures in {_START_S:.0f} s; its last lines:\n{said}")


def parse_line(line: str) -> dict[str, float]:
    """The numbers of a line such as `Current Time: ... | Send TPS: 812 | Max RT(ms): 40`; none of other lines."""
    if not line.startswith("Current Time:"):
        return {}
    return {name.strip(): float(number) for name, number in _NAMED_NUMBER.findall(line)}


def cpu_seconds(pid: int) -> float:
    user, system = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def compared(ours: list[Figures], theirs: list[Figures]) -> dict[str, str]:
    lines: dict[str, str] = {}
    for name, key in (("messages/s", "per_s"), ("response ms", "response_ms"), ("CPU us a message", "cpu_us")):
        mine, other = (statistics.median(one[key] for one in side) for side in (ours, theirs))
        ratio = f" ({mine / other:.2f})" if other else ""
        lines[name] = f"{mine:.5g} / {other:.5g}{ratio}"
    lines["failures"] = " / ".join(f"{sum(one['failures'] for one in side):.0f}" for side in (ours, theirs))
    return lines
