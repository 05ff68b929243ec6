"""The pool of the local engine when something fails: a task, one of its processes, the process that made it."""

from __future__ import annotations

import multiprocessing
import os
import selectors
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import contrailmq
import contrailmq.spark.runtime.engine
from contrailmq.cli import app, pipeline_running
from contrailmq.spark.jobs import verify
from contrailmq.spark.runtime.engine import LocalEngine, WorkerDiedError

TASKS = 40
FILES = 3000  # that a task writes: more than is done before a failed one's error arrives
DEADLINE_S = 60.0


@pytest.fixture
def engine() -> Iterator[LocalEngine]:
    made = LocalEngine(workers=2)
    yield made
    made.close()


def square(number: int) -> int:
    return number * number


def fail_beside_a_writer(work: tuple[int, str]) -> None:
    """The first task fails as soon as the second is about to write many files."""
    number, folder = work
    if number:
        with open(f"{folder}/pipe", "wb", buffering=0) as pipe:
            pipe.write(b"go")
        for name in range(FILES):
            Path(folder, str(name)).touch()
    else:
        with open(f"{folder}/pipe", "rb", buffering=0) as pipe:
            pipe.read(1)
        raise ValueError("the first task failed")


def test_an_error_goes_on_when_no_task_runs_any_more(engine: LocalEngine, tmp_path: Path) -> None:
    """What a task still wrote would be in the way of a caller that removes the folder, and hide the error."""
    folder = tmp_path / "written"
    folder.mkdir()
    os.mkfifo(folder / "pipe")
    with pytest.raises(ValueError, match="the first task failed"):
        list(engine.run(fail_beside_a_writer, [(0, str(folder)), (1, str(folder))]))
    assert len(list(folder.iterdir())) == FILES + 1
    shutil.rmtree(folder)
    assert list(engine.run(square, range(TASKS))) == [number * number for number in range(TASKS)]


def wait_at_the_gate(work: tuple[int, str]) -> None:
    """Every task says that it began; the first one fails, the others wait until the gate is opened."""
    number, folder = work
    Path(folder, f"began-{number}").touch()
    if not number:
        raise ValueError("the first task failed")
    with open(f"{folder}/gate", "rb", buffering=0) as gate:
        gate.read(1)


def test_after_an_error_no_further_task_begins(
    engine: LocalEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "gate")
    wait = contrailmq.spark.runtime.engine.wait
    with open(os.open(tmp_path / "gate", os.O_RDWR), "wb", buffering=0) as gate:

        def open_gate_and_wait(tasks: list[Any]) -> object:
            gate.write(b"g" * TASKS)
            return wait(tasks)

        monkeypatch.setattr(contrailmq.spark.runtime.engine, "wait", open_gate_and_wait)
        with pytest.raises(ValueError, match="the first task failed"):
            list(engine.run(wait_at_the_gate, [(number, str(tmp_path)) for number in range(TASKS)]))
    began = {int(path.name.partition("-")[2]) for path in tmp_path.glob("began-*")}
    assert began == set(range(len(began)))
    assert len(began) < TASKS


def die(_work: object) -> None:
    assert multiprocessing.parent_process() is not None, "this is no process of a pool"
    os.kill(os.getpid(), signal.SIGKILL)


def die_at_three(number: int) -> int:
    if number == 3:
        die(number)
    return number


def test_a_process_that_dies_is_told_and_the_next_run_has_a_new_pool(engine: LocalEngine) -> None:
    with pytest.raises(
        WorkerDiedError, match=r"one of the 2 processes .* was killed.*memory.*workers=1.*--engine spark"
    ):
        list(engine.run(die_at_three, range(TASKS)))
    assert list(engine.run(square, range(TASKS))) == [number * number for number in range(TASKS)]


def test_a_command_whose_worker_dies_says_so_and_found_nothing(
    golden_store: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1 would mean that `verify` found damage."""
    monkeypatch.setattr(pipeline_running, "_POOL_BYTES_MIN", 0)
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    monkeypatch.setattr(verify, "_check_part", die)
    done = CliRunner().invoke(app, ["pipeline", "verify", "--store", golden_store("clean"), "--engine", "local"])
    assert done.exit_code == 2, done.output
    assert done.stderr.startswith("error: one of the 2 processes of the local engine was killed")
    assert "Traceback" not in done.output


MAIN = """
import sys
import kernel
from contrailmq.spark.runtime.engine import LocalEngine

if __name__ == "__main__":
    engine = LocalEngine(workers=2)
    print(*engine.run(kernel.meet, [(sys.argv[1], "rb"), (sys.argv[1], "wb")]), flush=True)
    sys.stdin.read()
"""
# Either end of a pipe opens when the other does, so each task has a process of its own.
KERNEL = """
import os

def meet(work):
    path, mode = work
    open(path, mode).close()
    return os.getpid()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="other systems cannot wait for processes that are no children")
def test_the_processes_of_a_pool_end_with_the_process_that_made_it(tmp_path: Path) -> None:
    """It is killed, so it ends nothing itself. The server that forked them ends after them."""
    (tmp_path / "kernel.py").write_text(KERNEL)
    (tmp_path / "main.py").write_text(MAIN)
    os.mkfifo(tmp_path / "pipe")
    with (
        subprocess.Popen(
            [sys.executable, str(tmp_path / "main.py"), str(tmp_path / "pipe")],
            env={**os.environ, "PYTHONPATH": str(Path(contrailmq.__file__).parents[1])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as maker,
        ExitStack() as opened,
    ):
        assert maker.stdout is not None
        workers = [int(word) for word in maker.stdout.readline().split()]
        server = int(Path(f"/proc/{workers[0]}/stat").read_text().rpartition(")")[2].split()[1])
        assert len({*workers, server, maker.pid}) == 4
        running = {os.pidfd_open(pid): pid for pid in (*workers, server)}
        ends = opened.enter_context(selectors.DefaultSelector())  # which takes numbers above 1,023 too
        for handle in running:
            opened.callback(os.close, handle)
            ends.register(handle, selectors.EVENT_READ)
        maker.kill()
        deadline_s = time.monotonic() + DEADLINE_S
        while running:
            ended = [key.fd for key, _ in ends.select(max(0.0, deadline_s - time.monotonic()))]
            if not ended:
                for handle in running:
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                pytest.fail(f"{DEADLINE_S:g} s after {maker.pid} was killed {list(running.values())} still ran")
            for handle in ended:
                ends.unregister(handle)
                del running[handle]
