"""`contrailmq namesrv` as a process: killed, told to stop, and asked in odd ways over real sockets."""

from __future__ import annotations

import json
import random
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from contrailmq.wire.codes import RequestCode as Code
from contrailmq.wire.frame import FrameParser, encode_request
from contrailmq.wire.header import Command

from .test_server import ext, registration

WAIT_S = 120.0


@contextmanager
def namesrv(home: Path) -> Iterator[tuple[subprocess.Popen[str], socket.socket]]:
    """The process, and a connection to it; killed at the end if it has not ended."""
    command = [sys.executable, "-m", "contrailmq", "namesrv", "-n", "127.0.0.1:0", "--set", f"rocketmqHome={home}"]
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={"PYTHONPATH": ":".join(sys.path), "PATH": "/usr/bin:/bin"},
    ) as process:
        assert process.stdout is not None
        try:
            ready = process.stdout.readline().split()
            assert ready[:2] == ["ready", "namesrv"], ready
            host, _, port = ready[2].rpartition(":")
            with socket.create_connection((host, int(port)), WAIT_S) as sock:
                yield process, sock
        finally:
            process.kill()
            process.wait(WAIT_S)


def answers_from(sock: socket.socket) -> Iterator[Command]:
    """As they come, until the end of the stream; a reset is an OSError."""
    parser = FrameParser()
    while data := sock.recv(65536):
        yield from parser.feed(data)


def put(number: int) -> bytes:
    return encode_request(Code.PUT_KV_CONFIG, {"namespace": "n", "key": f"k{number}", "value": "v"}, opaque=number)


def test_what_was_answered_survives_a_kill_whenever_it_comes(tmp_path: Path) -> None:
    """Four processes on one home, each killed while it saves; the answered keys of all of them are there afterwards."""
    dice, answered, asked = random.Random(20_240_229), set[int](), 0
    for _ in range(4):
        with namesrv(tmp_path) as (process, sock):
            sock.sendall(b"".join(put(number) for number in range(asked, asked + 300)))
            asked += 300
            enough = dice.randrange(1, 150)
            for count, answer in enumerate(answers_from(sock), 1):
                assert answer.code == 0
                answered.add(answer.opaque)
                if count >= enough:
                    break
            process.send_signal(signal.SIGKILL)
            process.wait(WAIT_S)
            json.loads((tmp_path / "namesrv" / "kvConfig.json").read_text())  # whole, at whatever moment
    with namesrv(tmp_path) as (_process, sock):
        sock.sendall(encode_request(Code.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"}, opaque=1))
        kept = json.loads(next(answers_from(sock)).body)["table"]
    assert {f"k{number}" for number in answered} <= kept.keys()
    assert len(answered) >= 4


@pytest.mark.parametrize("before", [0, 1, 150])
def test_a_process_that_is_told_to_stop_answers_what_had_arrived_and_says_goodbye(before: int, tmp_path: Path) -> None:
    """Told before the first answer is read, in the midst of them, and near their end."""
    requests = [
        encode_request(Code.REGISTER_BROKER, ext(), registration("T", "U"), opaque=0),
        *(put(opaque) for opaque in range(1, 100)),
        *(encode_request(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}, opaque=opaque) for opaque in range(100, 200)),
    ]
    with namesrv(tmp_path) as (process, sock):
        sock.sendall(b"".join(requests))
        stream = answers_from(sock)
        answers = [next(stream) for _ in range(before)]
        process.send_signal(signal.SIGTERM)
        answers += stream
        sock.close()
        assert process.wait(WAIT_S) == 0
    assert sorted(answer.opaque for answer in answers) == list(range(200))
    assert {answer.code for answer in answers} <= {0, 2}
    saved = json.loads((tmp_path / "namesrv" / "kvConfig.json").read_text())["configTable"]["n"]
    assert {f"k{one.opaque}" for one in answers if 1 <= one.opaque < 100 and one.code == 0} <= saved.keys()


def test_a_drip_of_single_bytes_and_a_half_closed_peer_are_answered(tmp_path: Path) -> None:
    with namesrv(tmp_path) as (_process, sock):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in put(1) + encode_request(Code.GET_BROKER_CLUSTER_INFO, opaque=2):
            sock.sendall(bytes([byte]))
        sock.shutdown(socket.SHUT_WR)  # the answer to the first needs a file to be written: it comes after our end
        answers = sorted((answer.opaque, answer.code) for answer in answers_from(sock))
    assert answers == [(1, 0), (2, 0)]


def test_a_process_without_a_descriptor_left_serves_who_is_there_and_stops(tmp_path: Path) -> None:
    with namesrv(tmp_path) as (process, sock):
        stream = answers_from(sock)
        sock.sendall(encode_request(Code.GET_BROKER_CLUSTER_INFO, opaque=1))
        assert next(stream).opaque == 1
        open_count = len(list(Path(f"/proc/{process.pid}/fd").iterdir()))
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (open_count, open_count))
        crowd = [socket.create_connection(sock.getpeername(), WAIT_S) for _ in range(20)]
        sock.sendall(put(2))
        refused = next(stream)
        assert (refused.code, "Too many open files" in str(refused.remark)) == (1, True)
        process.send_signal(signal.SIGTERM)
        assert list(stream) == []
        for peer in crowd:
            peer.close()
        sock.close()
        assert process.wait(WAIT_S) == 0
