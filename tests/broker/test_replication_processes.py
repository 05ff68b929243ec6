"""A SYNC_MASTER and its slave as processes: partitions, kills, a slave that hangs, has no room or a wrong clock."""

from __future__ import annotations

import os
import random
import signal
import threading
from pathlib import Path

import pytest

from replica_trial import Trial, trial

pytestmark = [pytest.mark.servers, pytest.mark.kills]

DEEP_EVERY = 25  # rounds, and the slave's files are compared with a rebuild


def pause(seconds: float) -> None:
    """How long a fault lasts."""
    threading.Event().wait(seconds)


def run_rounds(made: Trial, path: Path, seed: int, faults: list[str]) -> None:
    for number, fault in enumerate(faults):
        rng = random.Random(f"{seed} {number}")
        made.load.wait_for(rng.randrange(1, 80))
        done = STRIKES[fault](made, rng)
        try:
            made.check(rng)
        except BaseException:  # also a run that is stopped: it says where it was
            print(f"round {number} of seed {seed}: {done}")
            raise
        if number % DEEP_EVERY == DEEP_EVERY - 1:
            made.check_files(path / "rebuilt")


def new_seed() -> int:
    """CONTRAILMQ_SEED, or any."""
    seed = int(os.environ.get("CONTRAILMQ_SEED") or random.randrange(2**32))
    print(f"seed {seed}: CONTRAILMQ_SEED={seed} chooses the same faults again")
    return seed


def partition(made: Trial, rng: random.Random) -> str:
    """Short ones are a pause, after longer ones both sides have given up; sometimes somebody dies meanwhile."""
    cluster, seconds = made.cluster, rng.choice([0.0, 0.2, 0.8, 2.0, 2.5])
    death = rng.choice(["", "", "", "slave killed", "slave stopped", "connections reset"])
    cluster.partition(0, made.slave)
    pause(seconds / 2)
    if death == "connections reset":
        cluster.reset_connections(0, made.slave)
    elif death:
        (cluster.kill_broker if death == "slave killed" else cluster.stop_broker)(made.slave)
        cluster.restart_broker(made.slave)
    pause(seconds / 2)
    cluster.heal()
    return f"partition of {seconds} s, {death or 'nobody died'}"


def kill(made: Trial, rng: random.Random) -> str:
    """Who is killed first is gone while the other still works; either may be back first."""
    members = {"master": 0, "slave": made.slave}
    killed = rng.choice([["slave"], ["master"], ["slave", "master"], ["master", "slave"]])
    for name in killed:
        made.cluster.kill_broker(members[name])
        pause(rng.choice([0.0, 0.05]))
    back = rng.sample(killed, len(killed))
    for name in back:
        made.cluster.restart_broker(members[name])
    return f"killed {killed}, back {back}"


def hang(made: Trial, rng: random.Random) -> str:
    """A slave that gets no processor: its kernel takes bytes, and nobody reports them."""
    process_id, seconds = made.cluster.broker_process_id(made.slave), rng.choice([0.1, 0.5, 1.2, 2.5])
    os.kill(process_id, signal.SIGSTOP)
    pause(seconds)
    os.kill(process_id, signal.SIGCONT)
    return f"stood still for {seconds} s"


def fill_up(made: Trial, rng: random.Random) -> str:
    """A slave that gets no next file, until a send has waited for it in vain."""
    is_killed = rng.random() < 0.3
    full = Path(os.environ["OF_SLAVES"]) / "full"
    full.touch()
    made.load.wait_for_timeout()
    if is_killed:
        made.cluster.kill_broker(made.slave)
    full.unlink()
    if is_killed:
        made.cluster.restart_broker(made.slave)
    return f"full, {'killed' if is_killed else 'alive'}"


def jump(made: Trial, rng: random.Random) -> str:
    """A slave whose clock is set while it runs, or while it is gone."""
    ahead_s, death = rng.choice([3600, -3600]), rng.choice(["", "killed", "stopped"])
    if death:
        (made.cluster.kill_broker if death == "killed" else made.cluster.stop_broker)(made.slave)
    (Path(os.environ["OF_SLAVES"]) / "ahead").write_text(str(ahead_s))
    if death:
        made.cluster.restart_broker(made.slave)
    return f"{ahead_s} s ahead, {death or 'alive'}"


STRIKES = {"partition": partition, "kill": kill, "hang": hang, "full disk": fill_up, "clock": jump}

# Python runs this in each process that has it on its path. It is about slaves alone, whose directory says that they
# are: their wall clock is ahead by what one file says, and their disk has no room while another file exists.
OF_SLAVES = """
import errno, os, sys, time
_folder = os.environ["OF_SLAVES"]
_true_ns, _allocate, _pwrite = time.time_ns, os.posix_fallocate, os.pwrite
def _is_slave():
    return any("-slave-" in argument for argument in getattr(sys, "argv", ()))
def _ahead_ns():
    with open(os.path.join(_folder, "ahead")) as file:
        return int(file.read() or 0) * 1_000_000_000 if _is_slave() else 0
def _check_room():
    if os.path.exists(os.path.join(_folder, "full")) and _is_slave():
        raise OSError(errno.ENOSPC, "No space left on device")
def _allocated(descriptor, offset, size):
    _check_room()
    _allocate(descriptor, offset, size)
def _written(descriptor, data, offset):
    _check_room()
    return _pwrite(descriptor, data, offset)
time.time_ns = lambda: _true_ns() + _ahead_ns()
time.time = lambda: time.time_ns() / 1e9
os.posix_fallocate, os.pwrite = _allocated, _written
"""


@pytest.fixture(autouse=True)
def of_slaves(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "of-slaves"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(OF_SLAVES)
    (folder / "ahead").write_text("0")
    others = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(folder), *([others] if others else [])]))
    monkeypatch.setenv("OF_SLAVES", str(folder))


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_every_fault_in_turn_loses_nothing_that_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush: str
) -> None:
    seed = new_seed()
    with trial(tmp_path, monkeypatch, flushDiskType=flush) as made:
        run_rounds(made, tmp_path, seed, random.Random(seed).sample(list(STRIKES), len(STRIKES)))


@pytest.mark.long
@pytest.mark.parametrize(
    ("fault", "rounds"), [("partition", 200), ("kill", 200), ("hang", 30), ("full disk", 30), ("clock", 30)]
)
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_one_fault_again_and_again_loses_nothing_that_was_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flush: str, fault: str, rounds: int
) -> None:
    seed = new_seed()
    with trial(tmp_path, monkeypatch, flushDiskType=flush) as made:
        run_rounds(made, tmp_path, seed, [fault] * rounds)
