"""The load of `contrailmq bench namesrv`: a process that asks one NameServer for routes over many connections.

    python -m bench.namesrv_load 127.0.0.1:9876 --seconds 5 --connections 64 --depth 8 --topics 1000

Every connection keeps `depth` requests on their way. Requests are made in advance and answers only counted, by their
lengths, so that the generator costs a fraction of what a server does; it prints its own CPU time, which tells whether
it was the bottleneck. The first answer of each connection is decoded and must be the route that was asked for.
"""

from __future__ import annotations

import argparse
import json
import select
import socket
import struct
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Final

from contrailmq.wire.bodies import TopicRouteData, decode_body
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.frame import FrameParser, encode_request
from contrailmq.wire.transport import split_address

_LENGTH: Final = struct.Struct(">i")
_READ_BYTES: Final = 256 * 1024
_SILENCE_S: Final = 30.0


class LoadError(Exception):
    """The server did not answer as it should; the figures would mean nothing."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one run of the generator saw."""

    answers: int
    seconds: float
    generator_cpu_s: float


def topic_name(number: int) -> str:
    return f"bench-topic-{number:05d}"


class _Line:
    """One connection: how many answers it waits for, and the bytes of an answer that is not whole yet."""

    __slots__ = ("is_proven", "rest", "sock", "turn")

    def __init__(self, sock: socket.socket, turn: int) -> None:
        self.sock, self.turn, self.rest, self.is_proven = sock, turn, b"", False


def run(address: str, *, connections: int, depth: int, topics: int, seconds: float) -> Load:
    """Ask for `seconds`, starting when every connection is open."""
    assert depth <= topics
    requests = [
        encode_request(
            RequestCode.GET_ROUTEINFO_BY_TOPIC,
            {"topic": topic_name(number), "acceptStandardJsonOnly": "true"},
            opaque=number,
        )
        for number in range(topics)
    ]
    lines: dict[int, _Line] = {}
    poll = select.epoll()
    for number in range(connections):
        sock = socket.create_connection(split_address(address), timeout=_SILENCE_S)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        lines[sock.fileno()] = _Line(sock, number * topics // connections)
        poll.register(sock.fileno(), select.EPOLLIN)
    begin, cpu = time.monotonic(), time.process_time()
    for line in lines.values():
        _ask(line, requests, depth)
    answers = _pump(poll, lines, requests, end=begin + seconds)
    load = Load(answers, time.monotonic() - begin, time.process_time() - cpu)
    poll.close()
    for line in lines.values():
        line.sock.close()
    return load


def _pump(poll: select.epoll, lines: dict[int, _Line], requests: Sequence[bytes], *, end: float) -> int:
    """Count answers and ask as many again, until the time is over."""
    answers = 0
    while time.monotonic() < end:
        ready = poll.poll(_SILENCE_S)
        if not ready:
            raise LoadError(f"no answer on any of {len(lines)} connections for {_SILENCE_S:g} s")
        for descriptor, _event in ready:
            line = lines[descriptor]
            data = line.sock.recv(_READ_BYTES)
            if not data:
                raise LoadError("the server closed a connection")
            if line.rest:
                data = line.rest + data
            if not line.is_proven:
                _prove(line, data)
            count, position = _count_frames(data)
            line.rest = data[position:]
            if count:
                answers += count
                _ask(line, requests, count)
    return answers


def _count_frames(data: bytes) -> tuple[int, int]:
    """How many whole frames `data` starts with, and where they end."""
    count, position, size = 0, 0, len(data)
    while size - position >= 4:
        end = position + 4 + _LENGTH.unpack_from(data, position)[0]
        if end > size:
            break
        count, position = count + 1, end
    return count, position


def _ask(line: _Line, requests: Sequence[bytes], count: int) -> None:
    start = line.turn % len(requests)
    line.turn += count
    batch = requests[start : start + count]
    missing = count - len(batch)  # at the end of the list, go on from its start
    line.sock.sendall(b"".join([*batch, *requests[:missing]] if missing else batch))


def _prove(line: _Line, data: bytes) -> None:
    commands = FrameParser().feed(data)
    if commands:
        first = commands[0]
        if first.code != 0 or not decode_body(first.body, TopicRouteData).queue_datas:
            raise LoadError(f"the first answer has code {first.code}, remark {first.remark}: no route")
        line.is_proven = True


def main() -> None:
    """The command: prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("address")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--connections", type=int, default=64)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--topics", type=int, default=1000)
    given = parser.parse_args()
    load = run(
        given.address,
        connections=given.connections,
        depth=given.depth,
        topics=given.topics,
        seconds=given.seconds,
    )
    print(json.dumps(asdict(load)))


if __name__ == "__main__":
    main()
