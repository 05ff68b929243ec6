"""More connections than descriptors: who is connected is served, the others are told, and the store has its files.

Brokers and NameServers run as processes under `ulimit -n 256`; 300 peers connect and say nothing.
"""

from __future__ import annotations

import contextlib
import selectors
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrailmq.wire.codes import RequestCode
from contrailmq.wire.frame import FrameParser, encode_request
from contrailmq.wire.header import Command

WAIT_S = 120.0
LIMIT = 256
CROWD = 300
SETTINGS = [
    "listenPort=0", "bindAddress=127.0.0.1",
    "mappedFileSizeCommitLog=65536", "mappedFileSizeConsumeQueue=2000", "maxHashSlotNum=100", "maxIndexNum=400",
]  # fmt: skip


@contextlib.contextmanager
def serving(arguments: list[str], log: Path) -> Iterator[tuple[str, int]]:
    """A server under the limit, from its line `ready` to its stop, which must be in order."""
    command = ["sh", "-c", f'ulimit -n {LIMIT}; exec "$@"', "sh", sys.executable, "-m", "contrailmq", *arguments]
    environment = {"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"}
    with (
        log.open("w") as errors,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True, env=environment) as process,
    ):
        assert process.stdout is not None
        try:
            ready = process.stdout.readline().split()
            assert ready[:1] == ["ready"], log.read_text()
            host, _, port = ready[-1].rpartition(":")
            yield host, int(port)
            process.terminate()
            assert process.wait(WAIT_S) == 0
        finally:
            process.kill()


class Peer:
    """One that was connected before the others came."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.create_connection(address, WAIT_S)
        self._parser = FrameParser()

    def ask(self, code: int, fields: dict[str, object], body: bytes = b"") -> Command:
        self._socket.sendall(encode_request(code, {key: str(value) for key, value in fields.items()}, body, opaque=1))
        while True:
            data = self._socket.recv(65_536)
            assert data, "the server closed the connection"
            for answer in self._parser.feed(data):
                return answer

    def send(self, topic: str, queue_id: int) -> Command:
        fields = {"producerGroup": "G", "topic": topic, "defaultTopic": "TBW102", "defaultTopicQueueNums": 4}
        fields |= {"queueId": queue_id, "sysFlag": 0, "bornTimestamp": 1, "flag": 0, "properties": ""}
        return self.ask(RequestCode.SEND_MESSAGE, fields, b"x" * 1_000)

    def close(self) -> None:
        self._socket.close()


def refused(crowd: list[socket.socket], at_least: int) -> list[socket.socket]:
    """Those whose connection ended, once there are so many."""
    ended: list[socket.socket] = []
    with selectors.DefaultSelector() as selector:
        for sock in crowd:
            selector.register(sock, selectors.EVENT_READ)
        while len(ended) < at_least:
            ready = selector.select(WAIT_S)
            assert ready, f"{len(ended)} connections were refused"
            for key, _ in ready:
                selector.unregister(key.fileobj)
                ended.append(key.fileobj)  # type: ignore[arg-type]
    return ended


@pytest.fixture
def crowd() -> Iterator[list[socket.socket]]:
    made: list[socket.socket] = []
    yield made
    for sock in made:
        sock.close()


def lines_with(log: Path, text: str) -> list[str]:
    return [line for line in log.read_text().splitlines() if text in line]


def test_a_broker_keeps_the_files_that_it_needs_and_serves_who_is_connected(
    crowd: list[socket.socket], tmp_path: Path
) -> None:
    """The client sends to 40 new topics over 15 log files while 300 others hold what connections they got."""
    log = tmp_path / "log"
    settings = [f"--set={setting}" for setting in (*SETTINGS, f"storePathRootDir={tmp_path / 'store'}")]
    with serving(["broker", *settings], log) as address:
        peer = Peer(address)
        crowd += [socket.create_connection(address, WAIT_S) for _ in range(CROWD)]
        refused(crowd, CROWD - LIMIT // 2)
        answers = [peer.send(f"T{number % 40}", number % 4) for number in range(800)]
        assert {(answer.code, answer.remark) for answer in answers} == {(0, None)}
        assert len(lines_with(log, "no connections beyond these")) == 1
        assert lines_with(log, "taken again") == []
        while crowd:
            crowd.pop().close()
        while not lines_with(log, "taken again"):  # the ends of the others may come after our next beginnings
            with contextlib.closing(Peer(address)) as another, contextlib.suppress(AssertionError, OSError):
                assert another.send("T0", 0).code == 0
        assert len(lines_with(log, "no connections beyond these")) == 1
        peer.close()
    assert len(list((tmp_path / "store" / "commitlog").iterdir())) > 10
    assert len(lines_with(log, "connections are taken again: ")) == 1
    assert lines_with(log, "Traceback") == []


def test_a_name_server_does_the_same(crowd: list[socket.socket], tmp_path: Path) -> None:
    log = tmp_path / "log"
    with serving(["namesrv", "-n", "127.0.0.1:0", "--set", f"rocketmqHome={tmp_path}"], log) as address:
        peer = Peer(address)
        crowd += [socket.create_connection(address, WAIT_S) for _ in range(CROWD)]
        refused(crowd, CROWD - LIMIT)
        for number in range(20):  # each is a file that is written
            fields = {"namespace": "n", "key": f"k{number}", "value": "v"}
            assert peer.ask(RequestCode.PUT_KV_CONFIG, dict(fields)).code == 0
        assert len(lines_with(log, "no connections beyond these")) == 1
        peer.close()
