"""Many seeds: run them, tell how it goes, and shorten one that fails.

    python -m simulation.runs [--seeds N] [--first SEED] [--minutes M] [--jobs J] [--save FILE]
    python -m simulation.runs --planted [NAME ...] [--seeds N]        how many seeds it takes to find each planted bug

`make simulate SEEDS=N` is the first of them, with a process for each core.

A seed that fails is printed with its faults and what was wrong, then faults and clients are left out one by one as long
as it still fails; what is left is printed as a test.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from simulation.faults import Plan, draw
from simulation.planted import BY_NAME, PLANTED, Planted, planted
from simulation.trial import CLIENTS, Trial, Verdict, plan_of

SHRINKING_TRIES_MAX: Final = 40


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


def run_one(seed: int, minutes: float, bug: Planted | None = None) -> tuple[Result, Verdict]:
    began_s = time.process_time()
    if bug is None:
        verdict = Trial(plan_of(seed, minutes)).run()
    else:
        with planted(bug):
            verdict = Trial(plan_for(bug, seed, minutes), is_hasty=True).run()
    cpu_s, history = time.process_time() - began_s, verdict.history
    kinds = [fault.kind for fault in verdict.plan.faults]
    counts = len(history.acknowledged), len(history.refused), len(history.deliveries)
    return Result(seed, verdict.plan.flush, kinds, *counts, verdict.problems, verdict.virtual_s, cpu_s), verdict


def plan_for(bug: Planted, seed: int, minutes: float) -> Plan:
    """With the kinds of faults that the bug takes, if it takes any: without cuts nobody looks for a missing sync."""
    return draw(seed, minutes, clients=CLIENTS, kinds=bug.kinds) if bug.kinds else plan_of(seed, minutes)


# --- shrinking


def shrink(plan: Plan, tries: int = SHRINKING_TRIES_MAX) -> Plan:
    """A shorter plan that fails as well: without faults, then clients, that it does not need."""
    for leave_out in (_without_faults, _without_clients):
        is_shorter = True
        while is_shorter and tries > 0:
            is_shorter = False
            for shorter in leave_out(plan):
                tries -= 1
                if Trial(shorter).run().problems:
                    plan, is_shorter = shorter, True
                    break
                if tries <= 0:
                    break
    return plan


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
    options = f"is_preemptive={plan.is_preemptive}, pace={plan.pace}"
    return (
        f"def test_seed_{plan.seed}() -> None:\n    faults = {faults}\n    plan = Plan({rest}, {options})\n"
        "    assert Trial(plan).run().problems == []\n"
    )


# --- the program


def main() -> None:
    parser = argparse.ArgumentParser(description="Simulate clusters under faults, one for each seed.")
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1.0, help="virtual minutes of faults in each")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--save", type=Path, help="a file that results are added to, a line of JSON each")
    parser.add_argument("--planted", nargs="*", help="find planted bugs: those of these names, or all")
    options = parser.parse_args()
    if options.planted is not None:
        sys.exit(_find_planted([BY_NAME[name] for name in options.planted] or PLANTED, options))
    seeds = [(seed, options.minutes) for seed in range(options.first, options.first + options.seeds)]
    failed, injected, virtual_s, cpu_s = [], Counter[str](), 0.0, 0.0
    began_s = time.monotonic()
    for result in _results(seeds, options.jobs):
        _save(options.save, result._asdict())
        _print(result)
        injected.update(result.faults)
        virtual_s, cpu_s = virtual_s + result.virtual_s, cpu_s + result.cpu_s
        if result.problems:
            failed.append(result.seed)
            plan = plan_of(result.seed, options.minutes)
            print("\n".join(["  faults:", *map(str, plan.faults)]), flush=True)
            print(as_test(shrink(plan)), flush=True)
    print(f"{options.seeds} seeds, {len(failed)} failed {failed}; faults: {dict(sorted(injected.items()))}")
    print(
        f"{virtual_s:.0f} virtual s in {time.monotonic() - began_s:.0f} s ({cpu_s:.0f} s CPU): {virtual_s / cpu_s:.0f}x"
    )
    sys.exit(bool(failed))


def _results(seeds: list[tuple[int, float]], jobs: int) -> Iterator[Result]:
    if jobs <= 1:
        yield from map(_run_quietly, seeds)
    else:
        with multiprocessing.get_context("spawn").Pool(jobs, maxtasksperchild=20) as pool:
            yield from pool.imap_unordered(_run_quietly, seeds)


def _run_quietly(seed: tuple[int, float]) -> Result:
    return run_one(*seed)[0]


def _print(result: Result) -> None:
    counts = f"{result.acknowledged} acknowledged, {result.refused} refused, {result.deliveries} delivered"
    kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(Counter(result.faults).items())) or "no faults"
    speed = f"{result.virtual_s / result.cpu_s:.0f}x"
    print(
        f"seed {result.seed}: {result.flush}, {kinds}; {counts}; {len(result.problems)} problems, {speed}", flush=True
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
    if path is not None:
        with path.open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
