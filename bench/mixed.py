"""`python -m bench mixed`: many topics, sizes, properties and groups at once, ours beside Apache's broker in turns.

The load is `mixed.c`, a process of its own: 64 topics of 8 queues, bodies of 0.1 to 16 KiB (log-uniform), 0 to 12
properties with varying names, keys in half of the messages, three groups that tail every queue with long polls while
producers send, and one that reads an older log from its beginning. It prints figures only if the broker delivered what
it acknowledged, by count and checksum, so a figure here is a verified one.

Both brokers run at once with their defaults, and the one that is not under load is idle. A message counts as moved when
it is sent or delivered: CPU is given for one moved message, because a broker that lets the group behind read more does
more. Instead of Apache's broker the other side can be a second command of ours, to see what one change is worth.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from bench import compare
from contrailmq.message import ContrailError

Figures = dict[str, float]

HERE: Final = Path(__file__).parent
VERSION: Final = "5.5.0"
SETTLE_S: Final = 8.0  # registration, first files, the JVM's own start
OURS: Final = (
    f"{Path(sys.executable).parent / 'contrailmq'} up --store {{store}} --namesrv-port {{namesrv_port}} "
    "--broker-port {broker_port} --no-console"
)
_MORE_IS_BETTER: Final = {
    "sends/s": "sends_per_s",
    "group 1 that tails, messages/s": "tail_1_messages_per_s",
    "group 2 that tails, messages/s": "tail_2_messages_per_s",
    "group 3 that tails, messages/s": "tail_3_messages_per_s",
    "group 1 that tails, pulls/s": "tail_1_pulls_per_s",
    "group behind, messages/s": "behind_messages_per_s",
    "group behind, pulls/s": "behind_pulls_per_s",
    "all messages moved/s": "moved_per_s",
}
_LESS_IS_BETTER: Final = {
    "CPU us of the broker a message moved": "cpu_us_per_moved",
    "send, p50 us": "send_p50_us",
    "send, p99 us": "send_p99_us",
    "sent to received by a group that tails, p50 us": "tail_p50_us",
    "sent to received by a group that tails, p99 us": "tail_p99_us",
    "pull of the group behind, p50 us": "behind_p50_us",
    "pull of the group behind, p99 us": "behind_p99_us",
}


class Settings(NamedTuple):
    lib: Path
    ours: str = OURS
    other: str | None = None  # a command like `ours`, instead of Apache's broker
    forms: tuple[str, ...] = ("json",)
    rounds: int = 3
    seconds: float = 6.0
    warm_seconds: float = 6.0
    settle_seconds: float = SETTLE_S
    mebibytes: int = 512
    directory: Path | None = None


class NotDelivered(ContrailError):
    """A broker did not do what the load asked for; the text is the load generator's."""


def measure_mixed(settings: Settings) -> dict[str, object]:
    """Name -> ours / the other's (ratio), for each form of headers."""
    with (
        tempfile.TemporaryDirectory(dir=settings.directory) as temporary,
        both_brokers(settings, Path(temporary)) as two,
    ):
        load = Path(temporary, "mixed")
        build_load("mixed", load)
        states = {system.name: Path(temporary, f"state-{system.name}") for system in two}
        brokers = {system.name: compare.listener(system.pids(), system.port) for system in two}

        def drive(system: compare.System, what: str, amount: float, form: str) -> Figures:
            target = [what, "127.0.0.1", str(system.port), str(states[system.name])]
            return run_load(system.name, [str(load), *target, form, str(amount), str(brokers[system.name])])

        for system in two:
            drive(system, "fill", settings.mebibytes, settings.forms[0])
        figures: dict[str, object] = {
            "load": f"64 topics x 8 queues, older log of {settings.mebibytes} MiB",
            "rounds": f"{settings.rounds} of {settings.seconds:g} s, in turns",
        }
        for form in settings.forms:
            for system in two:
                drive(system, "run", settings.warm_seconds, form)
            rounds = by_turns(two, settings.rounds, lambda system: drive(system, "run", settings.seconds, form))  # noqa: B023
            figures |= {f"{form}: {name}": line for name, line in compared(*rounds.values()).items()}
        return figures


@contextmanager
def both_brokers(settings: Settings, work: Path) -> Iterator[tuple[compare.System, compare.System]]:
    """Ours and the other one with a NameServer each, started and settled."""
    started: list[compare.System] = []
    try:
        started.append(compare.start_ours(settings.ours, work / "ours")[0])
        if settings.other is None:
            compare.fetch_apache(VERSION, settings.lib)
            started.append(compare.start_apache(VERSION, settings.lib, work / "apache", False)[0])
        else:
            started.append(compare.start_ours(settings.other, work / "other")[0])
            started[-1].name = "other"
        time.sleep(settings.settle_seconds)
        yield started[0], started[1]
    finally:
        for system in started:
            system.stop()


def build_load(name: str, target: Path) -> None:
    source = HERE / f"{name}.c"
    subprocess.run(["cc", "-O2", "-D_GNU_SOURCE", "-o", str(target), str(source), "-lm"], check=True)


def run_load(name: str, command: list[str]) -> Figures:
    """The figures that a load generator printed; it prints none of a broker that did not deliver what it took."""
    done = subprocess.run(command, capture_output=True, text=True)
    if not done.stdout:
        raise NotDelivered(f"{name}: no figures: {done.stderr.strip() or f'exit code {done.returncode}'}")
    found: Figures = json.loads(done.stdout)
    return found


def by_turns(
    two: tuple[compare.System, compare.System], rounds: int, measure: Callable[[compare.System], Figures]
) -> dict[str, list[Figures]]:
    """Every round measures both, each first in every second round."""
    taken: dict[str, list[Figures]] = {system.name: [] for system in two}
    for number in range(rounds):
        for system in two if number % 2 else two[::-1]:
            taken[system.name].append(measure(system))
    return taken


def compared(ours: list[Figures], theirs: list[Figures]) -> dict[str, str]:
    """Medians of both and their ratio; what was refused or verified, as sums."""
    lines: dict[str, str] = {}
    for name, key in (_MORE_IS_BETTER | _LESS_IS_BETTER).items():
        mine, other = (statistics.median(one[key] for one in side) for side in (ours, theirs))
        ratio = f" ({mine / other:.2f})" if other else ""
        lines[name] = f"{_short(mine)} / {_short(other)}{ratio}"
    rounds = (
        f"{a['moved_per_s'] / b['moved_per_s']:.2f}" for a, b in zip(ours, theirs, strict=True) if b["moved_per_s"]
    )
    lines["all messages moved/s, ratio of each round"] = " ".join(rounds)
    for name, key in (("sends refused", "refused"), ("messages verified by count and checksum", "verified")):
        lines[name] = " / ".join(f"{sum(one[key] for one in side):.0f}" for side in (ours, theirs))
    cores = [statistics.median(one["generator_cores"] for one in side) for side in (ours, theirs)]
    lines["cores that the load generator used"] = " / ".join(f"{one:.2f}" for one in cores)
    return lines


def _short(value: float) -> str:
    return f"{value:.1f}" if value < 100 else f"{value:.0f}"
