"""`contrailmq up --print-config`: the files start the cluster that `up` would run, and never replace others."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

from contrailmq import Admin, Message, Producer, SendStatus
from contrailmq.cli import app
from free_ports import free_port
from waiting_for import LIMIT_S, until

PROGRAM = Path(sys.executable).with_name("contrailmq")
SMALL = ("mappedFileSizeCommitLog=1048576", "maxHashSlotNum=1000", "maxIndexNum=4000")
STOP_S = 60.0


def written(tmp_path: Path, *flags: str) -> tuple[int, str, Path]:
    files = tmp_path / "files"
    command = ["up", "--store", str(tmp_path / "store"), "--print-config", str(files), *flags]
    done = CliRunner().invoke(app, command)
    return done.exit_code, done.output, files


def test_no_port_is_looked_at_while_nothing_is_started(tmp_path: Path) -> None:
    """The files are the same whatever listens on this machine now: they may be for another time or another one."""
    code, said, files = written(tmp_path)
    assert code == 0, said
    free = {file.name: file.read_text() for file in files.iterdir()}
    assert "metricsPromExporterPort=5557" in free["broker-a.conf"].splitlines()
    with ExitStack() as held:
        for port in (5556, 5557):
            with suppress(OSError):  # a page of metrics of this machine holds it as well
                held.enter_context(socket.create_server(("127.0.0.1", port)))
        code, said, again = written(tmp_path / "again", "--store", str(tmp_path / "store"))
    assert code == 0, said
    assert said.split() == [str(again / name) for name in ("namesrv.conf", "broker-a.conf", "start.sh")]
    assert {file.name: file.read_text().replace(str(again), str(files)) for file in again.iterdir()} == free


@pytest.mark.parametrize(
    ("flags", "ports"),
    [((), ["8081", "8082", "0", "0"]), (("--grpc-port", "18081"), ["18081", "18082", "0", "0"]),
     (("--no-grpc",), ["0", "0", "0", "0"])],
    ids=["usual", "named", "none"],
)  # fmt: skip
def test_masters_have_a_port_of_grpc_each(tmp_path: Path, flags: tuple[str, ...], ports: list[str]) -> None:
    code, said, files = written(tmp_path, "--brokers", "2", "--slaves", "1", *flags)
    assert code == 0, said
    names = ("broker-a", "broker-b", "broker-a-slave-1", "broker-b-slave-1")
    lines = [(files / f"{name}.conf").read_text().splitlines() for name in names]
    assert [line.partition("=")[2] for one in lines for line in one if line.startswith("grpcServerPort=")] == ports


@pytest.mark.servers
def test_what_was_written_starts_serves_and_stops(tmp_path: Path) -> None:
    """A master that waits for its slave: a send that is acknowledged shows that all three found each other."""
    namesrv = f"127.0.0.1:{free_port()}"
    broker_port = free_port()
    while broker_port != (slave := free_port()) - 10:
        broker_port = slave
    waits = [part for text in (*SMALL, "brokerRole=SYNC_MASTER", "inSyncReplicas=2") for part in ("--set", text)]
    ports = ["--namesrv-port", namesrv.rpartition(":")[2], "--broker-port", str(broker_port)]
    off = ["--set", "metricsExporterType=DISABLE", "--no-console", "--no-grpc"]
    code, said, files = written(tmp_path, "--slaves", "1", *ports, *waits, *off)
    names = ["namesrv.conf", "broker-a.conf", "broker-a-slave-1.conf", "start.sh"]
    assert (code, said.split()) == (0, [str(files / name) for name in names])
    assert not (tmp_path / "store").exists(), "nothing was started"
    with (tmp_path / "errors").open("w") as errors:
        process = subprocess.Popen(
            [str(files / "start.sh")],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env=os.environ | {"CONTRAILMQ": str(PROGRAM)},
            start_new_session=True,
        )
    try:
        assert process.stdout is not None
        ready = sorted(process.stdout.readline().split()[1] for _ in range(3))
        assert ready == ["broker", "broker", "namesrv"], (tmp_path / "errors").read_text()
        with Admin(namesrv=namesrv) as admin:
            until(lambda: admin.broker_stats(f"127.0.0.1:{slave}").get("haIsFollowing") == "true", "the slave follows")
        with Producer("shop", namesrv=namesrv) as producer:
            assert producer.send(Message("Orders", b"one"), timeout=LIMIT_S).status is SendStatus.OK
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_S) == 0, (tmp_path / "errors").read_text()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        assert process.stdout is not None
        process.stdout.close()
    for name in ("broker-a", "broker-a-slave-1"):
        assert not (tmp_path / "store" / name / "abort").exists(), f"{name} stopped cleanly"


def test_files_that_are_there_are_not_replaced(tmp_path: Path) -> None:
    assert written(tmp_path)[0] == 0
    (tmp_path / "files" / "broker-a.conf").write_text("edited")
    code, said, files = written(tmp_path)
    assert (code, "exists and may have been edited" in said) == (1, True)
    assert (files / "broker-a.conf").read_text() == "edited"


@pytest.mark.parametrize(
    ("flag", "remedy"),
    [(["--broker-port", "0"], "leave out"), (["--resync"], "contrailmq broker -c"), (["--takeover"], "for one start")],
)
def test_what_a_file_cannot_hold_is_refused(tmp_path: Path, flag: list[str], remedy: str) -> None:
    code, said, files = written(tmp_path, *flag)
    assert (code, remedy in said, files.exists()) == (1, True, False)


def test_every_broker_has_ports_of_its_own_and_the_files_name_the_name_server(tmp_path: Path) -> None:
    code, _, files = written(
        tmp_path, "--brokers", "3", "--slaves", "2", "--listen", "0.0.0.0", "--set", "brokerIP1=10.0.0.5"
    )
    assert code == 0
    brokers = [path.read_text().splitlines() for path in sorted(files.glob("broker-*.conf"))]
    ports = [line for lines in brokers for line in lines if line.startswith("listenPort=")]
    assert sorted(ports) == [f"listenPort={10_911 + 10 * number}" for number in range(9)]
    assert all("namesrvAddr=10.0.0.5:9876" in lines for lines in brokers)
    assert (files / "start.sh").read_text().count("broker -c") == 9
