"""`contrailmq up --slaves 1`: a broker that dies is started again, and the others go on meanwhile."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrailmq import Admin, Message, Producer, SendStatus
from waiting_for import until

pytestmark = pytest.mark.servers

SMALL = ("mappedFileSizeCommitLog=1048576", "maxHashSlotNum=1000", "maxIndexNum=4000")


@contextlib.contextmanager
def up(store: Path, *more: str) -> Iterator[tuple[subprocess.Popen[str], list[str]]]:
    """The process, and the words of its line `ready`; what it logs goes to the file `errors`."""
    settings = [part for text in (*SMALL, *more) for part in ("--set", text)]
    flags = ("--store", str(store), "--slaves", "1", "--namesrv-port", "0", "--broker-port", "0", *settings)
    with (store / "errors").open("w") as errors:
        process = subprocess.Popen(
            [sys.executable, "-m", "contrailmq", "up", "--no-console", *flags],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    assert process.stdout is not None
    try:
        yield process, process.stdout.readline().split()
        process.send_signal(signal.SIGTERM)
        assert process.wait(120) == 0, (store / "errors").read_text()
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        process.stdout.close()


def process_of(store: Path, name: str) -> int:
    try:
        return int((store / name / "abort").read_text())
    except (OSError, ValueError):
        return 0  # it is being started


@contextlib.contextmanager
def taken_beside(address: str) -> Iterator[None]:
    """Somebody else has the ports that a broker at this address would ask for if it had been told the address."""
    host, _, port = address.partition(":")
    with contextlib.ExitStack() as held:
        for distance in (-2, 1):
            with contextlib.suppress(OSError):  # somebody has it already
                held.enter_context(socket.create_server((host, int(port) + distance)))
        yield


def is_following(address: str, namesrv: str) -> bool:
    with contextlib.suppress(Exception), Admin(namesrv=namesrv) as admin:
        return admin.broker_stats(address).get("haIsFollowing") == "true"
    return False


def test_a_dead_slave_and_a_dead_master_come_back_and_the_rest_goes_on(tmp_path: Path) -> None:
    said = (tmp_path / "errors").read_text
    with up(tmp_path, "brokerRole=SYNC_MASTER", "inSyncReplicas=2") as (process, ready):
        assert ready[0] == "ready", (tmp_path / "errors").read_text()
        namesrv, master, slave = ready[2], ready[4], ready[5]
        addresses = {"broker-a-slave-1": slave, "broker-a": master}
        assert is_following(slave, namesrv), "ready means that the slave follows"
        with Producer("shop", namesrv=namesrv) as producer:
            assert producer.send(Message("Orders", b"one")).status is SendStatus.OK
        for name, address in addresses.items():
            killed = process_of(tmp_path, name)
            with taken_beside(address):
                os.kill(killed, signal.SIGKILL)
                until(lambda: process_of(tmp_path, name) not in (0, killed), f"{name} runs again", seen=said)  # noqa: B023
                until(lambda: is_following(slave, namesrv), "the slave follows again", seen=said)
            assert process.poll() is None
        with Producer("shop", namesrv=namesrv) as producer:
            until(
                lambda: producer.send(Message("Orders", b"two")).status is SendStatus.OK, "two copies again", seen=said
            )
    for name in addresses:
        assert said().count(f"broker {name} ended by itself with signal 9: it is started again in 1 s") == 1, said()
    assert not (tmp_path / "broker-a" / "abort").exists(), "the stores were not closed"


def test_a_slave_that_cannot_follow_is_named_before_ready(tmp_path: Path) -> None:
    """Nobody listens at the address that it is told to follow."""
    with up(tmp_path, "haMasterAddress=127.0.0.1:1") as (_, ready):
        assert ready[0] == "ready", (tmp_path / "errors").read_text()
    assert "broker-a-slave-1: no copy of the master's log is made after 10 s" in (tmp_path / "errors").read_text()
