"""`contrailmq console` and the console of `contrailmq up`, as commands: what they print, and how they end."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import contrailmq

pytestmark = pytest.mark.servers

# Python runs a module of this name at its start; it hides what `pip install contrailmq` does not bring.
HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "nicegui":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Hidden())
"""


def environment(*more: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTEST_CURRENT_TEST", "NAMESRV_ADDR")}
    paths = [*map(str, more), str(Path(contrailmq.__file__).parents[1])]
    return kept | {"PYTHONPATH": os.pathsep.join(paths), "COLUMNS": "200"}


def up(tmp_path: Path, *flags: str, hidden: bool = False) -> tuple[subprocess.Popen[str], str]:
    if hidden:
        (tmp_path / "sitecustomize.py").write_text(HIDE)
    ports = ("--namesrv-port", "0", "--broker-port", "0", "--set", "mappedFileSizeCommitLog=1048576")
    process = subprocess.Popen(
        [sys.executable, "-m", "contrailmq", "up", "--store", str(tmp_path / "data"), *ports, *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(*([tmp_path] if hidden else [])),
    )
    assert process.stdout is not None
    return process, process.stdout.readline()


def ended(process: subprocess.Popen[str]) -> str:
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    return errors


def children(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def memory_mb(pid: int) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def test_up_has_a_console_in_a_process_of_its_own_that_ends_with_it(tmp_path: Path) -> None:
    pytest.importorskip("nicegui")
    process, ready = up(tmp_path, "--console-port", "0")
    try:
        words = ready.split()
        assert words[-2] == "console", ready
        with urllib.request.urlopen(words[-1]) as answer:
            assert b"Overview" in answer.read()
        (console,) = children(process.pid)
        assert memory_mb(process.pid) + memory_mb(console) <= 200
    finally:
        errors = ended(process)
    assert "Traceback" not in errors
    assert not Path(f"/proc/{console}").exists()


def test_a_console_that_is_killed_is_missed_and_the_broker_goes_on(tmp_path: Path) -> None:
    pytest.importorskip("nicegui")
    process, ready = up(tmp_path, "--console-port", "0")
    try:
        (console,) = children(process.pid)
        os.kill(console, signal.SIGKILL)
        assert process.stderr is not None
        said = next(line for line in process.stderr if "the web console ended" in line)
        assert f"contrailmq console -n {ready.split()[2]}" in said
        from contrailmq import Message, Producer, SendStatus

        with Producer("shop", namesrv=ready.split()[2]) as producer:
            assert producer.send(Message("Orders", b"x")).status is SendStatus.OK
    finally:
        ended(process)


def test_a_port_that_is_taken_is_said_and_the_broker_runs(tmp_path: Path) -> None:
    pytest.importorskip("nicegui")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process, ready = up(tmp_path, "--console-port", str(port))
        try:
            assert ready.startswith("ready namesrv ")
            assert " console " not in ready
        finally:
            errors = ended(process)
    assert f"the console cannot listen on 127.0.0.1 port {port}: Address already in use; choose another" in errors


def test_without_the_extra_up_says_in_one_line_how_to_get_it(tmp_path: Path) -> None:
    process, ready = up(tmp_path, hidden=True)
    try:
        assert ready.startswith("ready namesrv ")
        assert " console " not in ready
    finally:
        errors = ended(process)
    (line,) = (line for line in errors.splitlines() if "web console" in line)
    assert "pip install 'contrailmq[console]'" in line


def run(tmp_path: Path, *arguments: str, more: tuple[Path, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "contrailmq", "console", *arguments],
        env=environment(*more),
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "error: no NameServer address: add -n host:9876 or set NAMESRV_ADDR"),
        (("-n", "x:1", "--listen", "0.0.0.0"), "error: the console would be open to everybody who reaches 0.0.0.0"),
        (("-n", "x:1", "--password-file", "none"), "error: the password file none cannot be read"),
    ],
)
def test_what_is_wrong_is_one_line_and_exit_code_1(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    done = run(tmp_path, *arguments)
    (line,) = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (1, "")
    assert line.startswith(said)


def test_the_command_without_the_extra_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(HIDE)
    done = run(tmp_path, "-n", "127.0.0.1:1", more=(tmp_path,))
    assert done.returncode == 1
    assert done.stderr == "error: this needs nicegui, which is not installed: pip install 'contrailmq[console]'\n"
