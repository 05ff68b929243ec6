"""`make wheels`: a compiled wheel and a pure one, each tried in an empty environment: start a broker, send, receive.

The compiled wheel takes the modules that lie compiled beside the sources, if they are of just these sources; they cost
as much as all the rest. CONTRAILMQ_REUSE=0 compiles them again.

python tools/wheels.py DIRECTORY [compiled|pure]...
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import venv
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[1]
PURE: Final = "CONTRAILMQ_PURE"
REUSE: Final = "CONTRAILMQ_REUSE"
KINDS: Final = {"compiled": "hot modules: compiled (", "pure": "hot modules: plain Python"}
SECONDS_MAX: Final = 900  # for one command

# Runs where the source tree is not on the path, with a broker that is a process of its own.
TRIAL: Final = """
import contrailmq, subprocess, sys
from contrailmq import ConsumeFromWhere, LitePullConsumer, Message, Producer, SendStatus

assert not contrailmq.__file__.startswith(sys.argv[1]), contrailmq.__file__
ports = ["--namesrv-port", "0", "--broker-port", "0"]
command = [sys.executable, "-m", "contrailmq", "up", "--no-console", "--store", "data", *ports]
command += ["--log-level", "error"]
with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
    try:
        ready = server.stdout.readline().split()
        assert ready[:2] == ["ready", "namesrv"], ready
        with Producer("trial", namesrv=ready[2]) as producer:
            assert producer.send(Message("Trial", b"one bicycle")).status is SendStatus.OK
        with LitePullConsumer("trial", namesrv=ready[2], from_where=ConsumeFromWhere.FIRST_OFFSET) as consumer:
            consumer.subscribe("Trial")
            assert [message.body for message in consumer.poll(timeout=30)] == [b"one bicycle"]
    finally:
        server.terminate()
assert server.returncode == 0, server.returncode
"""


def run(command: list[str], **environment: str) -> str:
    """Standard output. pip's own settings stay; ours do not reach into the environment that is tried."""
    inherited = {name: value for name, value in os.environ.items() if name not in (PURE, "PYTHONPATH")}
    done = subprocess.run(
        command,
        env=inherited | environment,
        stdout=subprocess.PIPE,
        text=True,
        timeout=SECONDS_MAX,
        cwd=environment.get("PWD"),
    )
    if done.returncode:
        sys.exit(f"{' '.join(command)[:300]} ended with {done.returncode}:\n{done.stdout}")
    return done.stdout


def build(kind: str, folder: Path) -> Path:
    with tempfile.TemporaryDirectory() as made:
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps"]
        run(
            [*pip, "--wheel-dir", made, str(ROOT)],
            **({PURE: "1"} if kind == "pure" else {REUSE: os.environ.get(REUSE, "1")}),
        )
        (wheel,) = Path(made).glob("*.whl")
        is_pure = wheel.name.endswith("-py3-none-any.whl")
        if is_pure != (kind == "pure"):
            sys.exit(f"{wheel.name} is not a {kind} wheel: make compile says why")
        folder.mkdir(parents=True, exist_ok=True)
        kept = folder / wheel.name
        kept.write_bytes(wheel.read_bytes())
    return kept


def attempt(kind: str, wheel: Path) -> str:
    """Install it alone and use it; what it says of itself."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "venv")
        venv.create(home, with_pip=True)
        python = str(home / "bin" / "python")
        pip = [python, "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
        run([*pip, "--constraint", str(ROOT / "constraints.txt"), str(wheel)])
        run([python, "-c", TRIAL, str(ROOT)], PWD=folder)
        version = run([str(home / "bin" / "contrailmq"), "--version"], PWD=folder)
    if KINDS[kind] not in version:
        sys.exit(f"the {kind} wheel says of itself: {version}")
    return version


def main(folder: str, *kinds: str) -> None:
    for kind in kinds or KINDS:
        wheel = build(kind, Path(folder).absolute())
        print(f"{wheel.name}: {' / '.join(attempt(kind, wheel).splitlines())}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
