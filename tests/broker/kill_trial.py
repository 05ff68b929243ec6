"""A broker process under every kind of traffic, killed with SIGKILL at random moments, also while it starts.

    PYTHONPATH=tests python -m broker.kill_trial [--kills 100] [--modes sync,pool-async] [--seed 1]
                                                 [--at-once 2] [--minutes 60]

Exits with 1 when a rule was broken, and says which. `--minutes` ends the kills of a mode early, as a broken rule: there
were too few. After each restart what was acknowledged is read at its place, and
what groups committed is asked; in the end everything that waited must arrive, and all topics are read from the first
message on. kill_load.py has the clients, kill_verdict.py the rules.

Modes run in processes of their own, `--at-once` of them together. A hundred kills take about four minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path
from typing import Final

from broker.kill_load import KINDS, LEVELS, ORDERED, TASKS, WORKERS, Load
from broker.kill_verdict import Judge, Kill, Stored, Sweep, Verdict, table
from contrailmq.client.blocking.raw import QueueReader
from contrailmq.message import dlq_topic
from contrailmq.testing import LocalCluster
from contrailmq.testing.members import ClusterError

MODES: Final[dict[str, dict[str, object]]] = {
    "sync": {"flushDiskType": "SYNC_FLUSH"},
    "async": {"flushDiskType": "ASYNC_FLUSH"},
    "pool-sync": {"flushDiskType": "SYNC_FLUSH", "transientStorePoolEnable": True},
    "pool-async": {"flushDiskType": "ASYNC_FLUSH", "transientStorePoolEnable": True},
}
# docs/store.md: with the write buffer pool a kill takes what was not committed, unless the put waited for the disk.
POOL_MAY_LOSE: Final = {"pool-sync": ("unwaited",), "pool-async": KINDS}
SETTINGS: Final[dict[str, object]] = {
    "messageDelayLevel": LEVELS,
    "defaultTopicQueueNums": 2,
    "transactionTimeOut": 1000,
    "transactionCheckInterval": 500,
    "transactionCheckMax": 1000,  # 15 would be over before a producer is connected again
}
SEED: Final = 20261118
DRAIN_S: Final = 180.0  # for what waits to arrive in the end; a bound for a machine that is busy
TRAFFIC_S: Final = 20.0
AT_START: Final = 0.25  # of the starts are killed before they end
SHORT: Final = 0.25  # of the lives end at once, before anything but the commits was compared


class Trial:
    """One broker over many lives."""

    def __init__(self, mode: str, directory: Path, *, seed: int, say: Callable[[str], None]) -> None:
        self._random = random.Random(f"{mode} {seed}")
        self._say = say
        self._path = directory / "broker-0"
        self._cluster = LocalCluster(store=directory, processes=True, config=SETTINGS | MODES[mode])
        self.verdict = Verdict(mode)
        self._pool_may_lose = POOL_MAY_LOSE.get(mode, ())
        self._pause = threading.Event()  # nobody sets it

    def run(self, kills: int, *, minutes_max: float = 60.0) -> Verdict:
        end_s = time.monotonic() + minutes_max * 60
        with self._cluster:
            load = Load(self._cluster.namesrv, lambda: self._cluster.broker_addresses[0], kills=kills)
            judge = Judge(load.diary, self.verdict, pool_may_lose=self._pool_may_lose)
            with contextlib.closing(load):
                load.start()
                while len(self.verdict.kills) < kills and time.monotonic() < end_s:
                    self._live_and_die(load, judge, kills)
                load.stop_sending()
                self._drain(judge)
                copies = self._read_all()
            assert load.failure is None, load.failure
        judge.conclude(copies, self._path)
        self.verdict.break_rule("too few kills in the time given", range(kills - len(self.verdict.kills)))
        return self.verdict

    # --- kills

    def _live_and_die(self, load: Load, judge: Judge, kills: int) -> None:
        if self.verdict.full_lives and self._random.random() < SHORT:
            self._pause.wait(self._random.uniform(0, 0.15))
        else:
            self._await_traffic(load)
            self._pause.wait(self._random.uniform(0.0, 1.0))
        last = self._kill()
        judge.note_kill()
        note_time_ms = self._note_time_ms()
        while len(self.verdict.kills) < kills and self._random.random() < AT_START:
            self._kill_while_starting()
        self._cluster.restart_broker()
        address = self._cluster.broker_addresses[0]
        judge.look_at_commits(address, last, note_time_ms)
        load.begin_life()
        if self._random.random() >= SHORT:
            judge.look_after_restart(address)
        self._tell(load)

    def _await_traffic(self, load: Load) -> None:
        """Until something of each kind was acknowledged in this life: on a busy machine clients are late."""
        before = self._counts(load)
        end_s = time.monotonic() + TRAFFIC_S
        while time.monotonic() < end_s:
            if all(now > then for now, then in zip(self._counts(load), before, strict=True)):
                self.verdict.full_lives += 1
                return
            self._pause.wait(0.02)

    def _counts(self, load: Load) -> list[int]:
        return [len(load.diary.acknowledged[kind]) for kind in KINDS]

    def _kill(self) -> Kill:
        process_id = self._cluster.broker_process_id()
        decided_ms, decided_s = time.time_ns() // 1_000_000, time.monotonic()
        os.kill(process_id, signal.SIGKILL)
        self._cluster.kill_broker()  # returns when it is gone
        kill = Kill(decided_ms, time.time_ns() // 1_000_000, decided_s)
        self.verdict.kills.append(kill)
        return kill

    def _kill_while_starting(self) -> None:
        """Somewhere in the first half second, which a start takes on a quiet machine."""
        with ThreadPoolExecutor(1) as starter:
            start: Future[None] = starter.submit(self._cluster.restart_broker)
            self._pause.wait(self._random.uniform(0.05, 0.8))
            while not self._is_spawned():
                self._pause.wait(0.01)
            decided_ms, decided_s = time.time_ns() // 1_000_000, time.monotonic()
            os.kill(self._cluster.broker_process_id(), signal.SIGKILL)
            with contextlib.suppress(ClusterError):  # it did not start: what else
                start.result()
        self._cluster.kill_broker()
        self.verdict.kills.append(Kill(decided_ms, time.time_ns() // 1_000_000, decided_s))
        self.verdict.kills_while_starting += 1

    def _is_spawned(self) -> bool:
        try:
            return bool(self._cluster.broker_process_id())
        except AssertionError:
            return False

    def _note_time_ms(self) -> float:
        """When the killed broker wrote its last note of commits."""
        files = (self._path / "config").glob("offsets.journal.*")
        return max((path.stat().st_mtime_ns / 1e6 for path in files), default=0.0)

    def _tell(self, load: Load) -> None:
        verdict = self.verdict
        acknowledged = sum(map(len, load.diary.acknowledged.values()))
        oldest_ms = max((commit.age_ms for commit in verdict.lost_commits), default=0)
        self._say(
            f"{verdict.mode}: {len(verdict.kills)} kills, {acknowledged} acknowledged, {len(verdict.unreachable)} "
            f"unreachable, {len(verdict.taken_by_pool)} taken by the pool, {len(verdict.lost_commits)} commits lost, "
            f"the oldest {oldest_ms:.0f} ms"
        )

    # --- the end

    def _drain(self, judge: Judge) -> None:
        """Until what waits has arrived, at most DRAIN_S: the verdict says then what is missing."""
        end_s = time.monotonic() + DRAIN_S
        sweep = Sweep(self._cluster.namesrv)
        missing = judge.awaited(sweep.copies)
        while missing and time.monotonic() < end_s:
            self._say(f"{self.verdict.mode}: {len(missing)} are awaited")
            self._pause.wait(1.0)
            sweep.read(topic for topic in self._topics() if topic in judge.topics_of(missing) | {dlq_topic(WORKERS)})
            missing = judge.awaited(sweep.copies)

    def _read_all(self) -> dict[str, list[Stored]]:
        sweep = Sweep(self._cluster.namesrv)
        sweep.read(self._topics())
        return sweep.copies

    def _topics(self) -> list[str]:
        own = {TASKS, ORDERED, dlq_topic(WORKERS)}
        with QueueReader(namesrv=self._cluster.namesrv) as reader:
            return [topic for topic in reader.topics() if topic in own or topic.partition("-")[0] in KINDS]


def run(mode: str, kills: int, seed: int, minutes_max: float) -> Verdict:
    """A trial in a directory of its own, told of on standard error."""
    logging.getLogger("contrailmq").setLevel(logging.CRITICAL)  # clients tell of every kill
    with tempfile.TemporaryDirectory(prefix="contrailmq-kills-", ignore_cleanup_errors=True) as directory:

        def say(line: str) -> None:
            print(line, file=sys.stderr, flush=True)

        verdict = Trial(mode, Path(directory), seed=seed, say=say).run(kills, minutes_max=minutes_max)
        say("\n".join([table([verdict]), *verdict.broken]))
        return verdict


def run_all(modes: Sequence[str], kills: int, *, seed: int, at_once: int, minutes_max: float = 60.0) -> list[Verdict]:
    """A trial of each mode, some of them together, each in a process of its own."""
    with ProcessPoolExecutor(at_once, max_tasks_per_child=1) as trials:
        under_way = [trials.submit(run, mode, kills, seed, minutes_max) for mode in modes]
        return [trial.result() for trial in under_way]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--minutes", type=float, default=60.0)
    asked = parser.parse_args()
    verdicts = run_all(
        asked.modes.split(","), asked.kills, seed=asked.seed, at_once=asked.at_once, minutes_max=asked.minutes
    )
    print(table(verdicts))
    for verdict in verdicts:
        for line in verdict.broken:
            print(f"{verdict.mode}: BROKEN: {line}")
    return int(any(verdict.broken for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
