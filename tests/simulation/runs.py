"""Many seeds: run them, tell how it goes, and shorten those that fail.

    python -m simulation.runs [--seeds N] [--first SEED] [--minutes M] [--jobs J] [--save FILE] [--resume] [--brief]
    python -m simulation.runs --each [KIND ...] [--seeds N]           each kind of fault alone, with both ways to flush
    python -m simulation.runs --planted [NAME ...] [--seeds N]        how many seeds it takes to find each planted bug
    python -m simulation.runs --bug NAME ...                          as the first, with this planted bug: see one fail

`make simulate SEEDS=N` is the first of them, with a process for each core. A run of many hours is saved and, after an
interruption, goes on with the seeds that the file lacks and those that failed: they may have been mended.

Each seed is printed with the beginning of its digest, a hash of all that happened: two runs of a seed have the same.

A seed that fails is printed with its faults and what was wrong. When all seeds are done, faults and clients of the
first ones that failed are left out one by one as long as they still fail; what is left is printed as a test. The exit
code is 1 then.

With several processes, each trial and each shortening runs in one of its own, never in the one that leads: a trial puts
its clock, its locks and its process ids in the place of the real ones, and the threads that lead the others would find
them there.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import math
import multiprocessing
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from simulation.faults import ALL_KINDS, GROUP_KINDS, KINDS, PLAN_VERSION, Plan, draw, draw_group
from simulation.planted import BY_NAME, PLANTED, Planted, planted
from simulation.trial import CLIENTS, Trial, Verdict, plan_of

SHRINKING_TRIES_MAX: Final = 40
SHRUNK_MAX: Final = 5  # of the seeds that fail; each takes as long as forty
SEEDS_AT_ONCE: Final = 200  # then the processes are new ones
_OF_A_CASE: Final = re.compile(r"'[^']*'|\b[a-z]?[\d.]+(-\d)?\b|\[[^\]]*\]| of \d+ bytes")
BRIEF_EVERY: Final = 50  # seeds between two lines of progress


class Alone(NamedTuple):
    """A seed whose faults are all of one kind."""

    kind: str
    flush: str
    has_slaves: bool
    seed: int
    minutes: float


class Result(NamedTuple):
    """Of one seed, as it is saved and added up."""

    seed: int
    flush: str
    faults: list[str]  # kinds
    acknowledged: int
    refused: int
    deliveries: int
    problems: list[str]
    virtual_s: float
    cpu_s: float
    minutes: float
    plans: int = PLAN_VERSION
    digest: str = ""  # of everything that happened: the same in every run of a seed
    slaves: int = 0
    alone: str = ""  # the one kind of fault that the plan was drawn with


def run_one(seed: int, minutes: float, bug: Planted | None = None) -> tuple[Result, Verdict]:
    began_s = time.process_time()
    if bug is None:
        verdict = _judged(plan_of(seed, minutes))
    else:
        with planted(bug):
            verdict = _judged(plan_for(bug, seed, minutes), is_hasty=True)
    return _result_of(verdict, time.process_time() - began_s), verdict


def _result_of(verdict: Verdict, cpu_s: float) -> Result:
    plan, history = verdict.plan, verdict.history
    kinds = [fault.kind for fault in plan.faults]
    counts = len(history.acknowledged), len(history.refused), len(history.deliveries)
    result = Result(plan.seed, plan.flush, kinds, *counts, verdict.problems, verdict.virtual_s, cpu_s, plan.minutes)
    return result._replace(digest=verdict.digest(), slaves=len(plan.slaves))


def plan_for(bug: Planted | None, seed: int, minutes: float) -> Plan:
    """With the kinds of faults that the bug takes, if it takes any: without cuts nobody looks for a missing sync."""
    if bug and bug.has_slaves:
        plan = draw_group(seed, minutes, clients=CLIENTS, kinds=bug.kinds)
    elif bug and bug.kinds:
        plan = draw(seed, minutes, clients=CLIENTS, kinds=bug.kinds)
    else:
        plan = plan_of(seed, minutes)
    if bug is None:
        return plan
    flush = bug.flush or plan.flush
    return replace(
        plan, flush=flush, acts=plan.acts or bug.acts, pops=plan.pops or bug.pops, rolls=plan.rolls or bug.rolls
    )


def _judged(plan: Plan, *, is_hasty: bool = False) -> Verdict:
    """The verdict on a plan. A trial that cannot go on has failed, and the seeds after it are run all the same."""
    trial = Trial(plan, is_hasty=is_hasty)
    try:
        return trial.run()
    except Exception as exc:  # noqa: BLE001  whatever it is, it is the verdict
        trial.verdict.problems.append(f"the trial broke off: {exc!r}")
        return trial.verdict


# --- shrinking


def shrink(plan: Plan, tries: int = SHRINKING_TRIES_MAX) -> Plan:
    """A shorter plan that fails in the same way: without faults, then clients, that it does not need."""
    shapes = _shapes(_judged(plan).problems)
    for leave_out in (_without_faults, _without_clients):
        is_shorter = True
        while is_shorter and tries > 0:
            is_shorter = False
            for shorter in leave_out(plan):
                tries -= 1
                if shapes & _shapes(_judged(shorter).problems):
                    plan, is_shorter = shorter, True
                    break
                if tries <= 0:
                    break
    return plan


def _shapes(problems: Iterable[str]) -> set[str]:
    """What was wrong, without the names and numbers of the case: another failure is not the one to be shortened."""
    return {_OF_A_CASE.sub("_", sentence) for sentence in problems}


def _without_faults(plan: Plan) -> Iterator[Plan]:
    """Half of them first, then one by one."""
    faults = plan.faults
    if len(faults) > 2:
        half = len(faults) // 2
        yield replace(plan, faults=faults[:half])
        yield replace(plan, faults=faults[half:])
    for number in range(len(faults)):
        yield replace(plan, faults=faults[:number] + faults[number + 1 :])


def _without_clients(plan: Plan) -> Iterator[Plan]:
    for name in plan.clients:
        if name != "p1":  # which makes the topics
            yield replace(plan, clients=tuple(one for one in plan.clients if one != name))


def as_test(plan: Plan) -> str:
    """The text of a test that runs this plan."""
    faults = "".join(f"\n        {fault!r}," for fault in plan.faults)
    faults = f"({faults}\n    )" if faults else "()"
    rest = f"{plan.seed}, {plan.minutes!r}, {plan.flush!r}, faults, {plan.clients!r}"
    options = f"is_preemptive={plan.is_preemptive}, pace={plan.pace}, rebalance_s={plan.rebalance_s}"
    options += f", bursts={plan.bursts!r}, pops={plan.pops}, rolls={plan.rolls}, page={plan.page}"
    if plan.slaves:
        options += f", brokers={plan.brokers!r}, slaves={plan.slaves!r}, role={plan.role!r}"
        options += f", in_sync={plan.in_sync}, block_bytes={plan.block_bytes}, acts={plan.acts}"
    return (
        f"def test_seed_{plan.seed}() -> None:\n    faults = {faults}\n    plan = Plan({rest}, {options})\n"
        "    assert Trial(plan).run().problems == []\n"
    )


# --- the program


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulate clusters under faults, one for each seed.")
    parser.add_argument("--seeds", type=_count, default=10, help="how many")
    parser.add_argument("--first", type=int, default=1, help="the first one")
    parser.add_argument("--minutes", type=_minutes, default=10.0, help="virtual minutes of each, faults included")
    parser.add_argument("--jobs", type=_count, default=1, help="processes")
    parser.add_argument("--save", type=Path, help="a file that results are added to, a line of JSON each")
    parser.add_argument("--resume", action="store_true", help="leave out the seeds that passed and are saved")
    parser.add_argument(
        "--brief", action="store_true", help=f"a line for each {BRIEF_EVERY} seeds, and those that fail"
    )
    names = {"choices": ALL_KINDS, "metavar": "KIND", "nargs": "*"}
    parser.add_argument("--each", **names, help="each kind of fault by itself: those of these names, or all")
    names = {"choices": BY_NAME, "metavar": "NAME", "nargs": "*"}
    parser.add_argument("--planted", **names, help="find planted bugs: those of these names, or all")
    parser.add_argument("--bug", choices=BY_NAME, metavar="NAME", help="run the seeds with this planted bug")
    parser.add_argument("--tries", type=int, default=SHRINKING_TRIES_MAX, help="to make a schedule that fails shorter")
    options = parser.parse_args()
    if options.bug and options.save:
        parser.error("--bug shows how a failing seed looks, which is no result to --save: leave one of them out")
    if options.resume and not options.save:
        parser.error("--resume goes on with a run that was saved: name its file with --save")
    if options.save:
        if not options.save.resolve().parent.is_dir():
            parser.error(f"--save {options.save}: make its directory first")
        _origin()  # before somebody changes the sources
    try:
        sys.exit(min(1, _chosen(options)))
    except KeyboardInterrupt:
        sys.exit("interrupted" + (f"; with --resume it goes on with {options.save}" if options.save else ""))


def _chosen(options: argparse.Namespace) -> int:
    """What was asked for; how many failed."""
    if options.planted is not None:
        return _find_planted([BY_NAME[name] for name in options.planted] or PLANTED, options)
    if options.each is not None:
        return _run_each(options.each or ALL_KINDS, options)
    return _run_seeds(options)


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is less than one")
    return number


def _minutes(text: str) -> float:
    minutes = float(text)
    if not 0 < minutes < math.inf:
        raise argparse.ArgumentTypeError(f"{text} minutes are no time")
    return minutes


def _run_seeds(options: argparse.Namespace) -> int:
    """How many failed."""
    done = _saved(options.save, options.minutes) if options.resume else []
    numbers = set(range(options.first, options.first + options.seeds)) - {result.seed for result in done}
    failed, total = list[int](), _Total(options.seeds, len(done))
    if done:
        print(f"{len(done)} seeds of {options.save} passed already", flush=True)
    seeds = [(seed, options.minutes, options.bug) for seed in sorted(numbers)]
    for result in _in_processes(_run_quietly, seeds, options.jobs):
        _save(options.save, result._asdict())
        total.add(result)
        if not options.brief or result.problems:
            _print(result)
        elif total.count % BRIEF_EVERY == 0:
            print(total.progress(len(failed)), flush=True)
        if result.problems:
            failed.append(result.seed)
            faults = _plan_with(options.bug, result.seed, options.minutes).faults
            print("\n".join(["  faults:", *map(str, faults)]), flush=True)
    print(f"{options.seeds} seeds, {len(failed)} failed {failed}; faults: {dict(sorted(total.faults.items()))}")
    print(total.speed(), flush=True)
    _shorten(failed, options)
    return len(failed)


def _run_each(kinds: Iterable[str], options: argparse.Namespace) -> int:
    """Seeds of each kind of fault alone, with both ways to flush, without slaves and with them; how many failed."""
    done = _saved(options.save, options.minutes, are_alone=True) if options.resume else []
    known = {Alone(one.alone, one.flush, bool(one.slaves), one.seed, one.minutes) for one in done}
    cases = [
        Alone(kind, flush, has_slaves, seed, options.minutes)
        for seed in range(options.first, options.first + options.seeds)
        for kind in kinds
        for flush in ("SYNC_FLUSH", "ASYNC_FLUSH")
        for has_slaves in (False, True)
        if kind in (GROUP_KINDS if has_slaves else KINDS)
    ]
    failed, total = 0, _Total(len(cases), len(done))
    for result in _in_processes(_run_alone, [case for case in cases if case not in known], options.jobs):
        _save(options.save, result._asdict())
        total.add(result)
        _print(result)
        failed += bool(result.problems)
    print(f"{len(cases)} cases, {failed} failed; {total.speed()}", flush=True)
    return failed


def _shorten(failed: list[int], options: argparse.Namespace) -> None:
    """Print the first seeds that failed as tests, as short as possible."""
    chosen = [(seed, options.minutes, options.bug, options.tries) for seed in sorted(failed)[:SHRUNK_MAX]]
    if chosen:
        print(
            f"making {len(chosen)} of {len(failed)} schedules shorter, for tests/simulation/test_trial.py", flush=True
        )
    for text in _in_processes(_shrink_quietly, chosen, options.jobs):
        print(text, flush=True)


class _Total:
    """What a run has done so far. `before` seeds were done by an earlier one."""

    def __init__(self, seeds: int, before: int) -> None:
        self._seeds, self._before, self._began_s = seeds, before, time.monotonic()
        self.count, self._virtual_s, self._cpu_s = 0, 0.0, 0.0
        self.faults: Counter[str] = Counter()

    def add(self, result: Result) -> None:
        self.count += 1
        self._virtual_s, self._cpu_s = self._virtual_s + result.virtual_s, self._cpu_s + result.cpu_s
        self.faults.update(result.faults)

    def progress(self, failed: int) -> str:
        left = self._seeds - self._before - self.count
        left_min = (time.monotonic() - self._began_s) / self.count * left / 60
        done = f"{self._before + self.count:,} of {self._seeds:,} seeds, {failed} failed"
        return f"{done}; {sum(self.faults.values()):,} faults; about {left_min:.0f} min left; {self.speed()}"

    def speed(self) -> str:
        times = f"{self._virtual_s:.0f} virtual s in {time.monotonic() - self._began_s:.0f} s ({self._cpu_s:.0f} s CPU)"
        return f"{times}: {self._virtual_s / max(self._cpu_s, 1e-9):.0f}x"


def _saved(path: Path | None, minutes: float, *, are_alone: bool = False) -> list[Result]:
    """The results of an earlier run of the same plans."""
    if path is None or not path.exists():
        return []
    lines = [line for line in _lines(path) if "planted" not in line and line.get("plans") == PLAN_VERSION]
    found = [Result(**{name: line[name] for name in Result._fields if name in line}) for line in lines]
    found = [one for one in found if one.minutes == minutes and bool(one.alone) == are_alone]
    newest = {(one.seed, one.alone, one.flush, bool(one.slaves)): one for one in found}
    return [one for one in newest.values() if not one.problems]


def _lines(path: Path) -> list[dict[str, Any]]:
    """Those that are whole. Who ends a run while it writes a line leaves a part of it, which is cut off."""
    text, found = path.read_text(), []
    whole, newline, part = text.rpartition("\n")
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            found.append(json.loads(line))
        except ValueError:
            sys.exit(f"{path}, line {number}: no result of a run is {line[:40]!r}; name another file")
    if found and part:
        path.write_text(whole + newline)
    return found


A = TypeVar("A", bound=tuple[Any, ...])
R = TypeVar("R")


def _in_processes(work: Callable[[A], R], given: list[A], jobs: int) -> Iterator[R]:
    """What the work comes to, as it gets done. A process that dies ends the run (BrokenProcessPool)."""
    if jobs <= 1:
        yield from map(work, given)
        return
    for start in range(0, len(given), SEEDS_AT_ONCE):
        with contextlib.ExitStack() as undo:
            processes = ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn"))
            undo.callback(processes.shutdown, cancel_futures=True)
            for done in as_completed([processes.submit(work, one) for one in given[start : start + SEEDS_AT_ONCE]]):
                yield done.result()


def _run_quietly(seed: tuple[int, float, str | None]) -> Result:
    number, minutes, bug = seed
    return run_one(number, minutes, BY_NAME[bug] if bug else None)[0]


def _run_alone(case: Alone) -> Result:
    began_s = time.process_time()
    drawn = (draw_group if case.has_slaves else draw)(case.seed, case.minutes, clients=CLIENTS, kinds=(case.kind,))
    verdict = _judged(replace(drawn, flush=case.flush))
    return _result_of(verdict, time.process_time() - began_s)._replace(alone=case.kind)


def _shrink_quietly(seed: tuple[int, float, str | None, int]) -> str:
    number, minutes, bug, tries = seed
    with planted(BY_NAME[bug]) if bug else contextlib.nullcontext():
        return as_test(shrink(_plan_with(bug, number, minutes), tries))


def _plan_with(bug: str | None, seed: int, minutes: float) -> Plan:
    return plan_for(BY_NAME[bug] if bug else None, seed, minutes)


def _print(result: Result) -> None:
    counts = f"{result.acknowledged} acknowledged, {result.refused} refused, {result.deliveries} delivered"
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(result.faults).items())) or "no faults"
    speed = f"{result.virtual_s / max(result.cpu_s, 1e-9):.0f}x"
    print(
        f"seed {result.seed}: {result.flush}, {kinds}; {counts}; {len(result.problems)} problems, {speed}, "
        f"{result.digest[:12]}",
        flush=True,
    )
    for sentence in result.problems[:10]:
        print(f"    {sentence}", flush=True)


def _find_planted(bugs: Iterable[Planted], options: argparse.Namespace) -> int:
    missed = 0
    for bug in bugs:
        found = None
        for seed in range(options.first, options.first + options.seeds):
            result, _ = run_one(seed, options.minutes, bug)
            if result.problems:
                found = result
                break
        seeds = 0 if found is None else found.seed - options.first + 1
        said = "" if found is None else found.problems[0]
        print(f"{bug.name}: {f'seed {seeds}' if found else 'MISSED'} {said}", flush=True)
        _save(options.save, {"planted": bug.name, "first": options.first, "seeds": seeds, "said": said})
        missed += found is None
    return missed


def _save(path: Path | None, line: dict[str, Any]) -> None:
    """With the commit that the package is at, and the day."""
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps(line | _origin()) + "\n")


@functools.cache
def _origin() -> dict[str, str]:
    """Of the sources as they were when the run began; empty where they are no checkout."""
    git = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--abbrev=9", "--dirty", "--exclude=*"]
    try:
        commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    except FileNotFoundError:
        commit = ""
    return {"commit": commit, "date": f"{datetime.now(UTC):%Y-%m-%d}"}


if __name__ == "__main__":
    main()
