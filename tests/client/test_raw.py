"""The blocking reader on the wire: bodies of any size in any chunks, pulls on their way, connections that end."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from contrailmq.client.blocking.raw import QueueReader
from contrailmq.client.blocking.raw_connection import RECEIVE_BYTES, Landing, RawConnection
from contrailmq.client.results import PullStatus
from contrailmq.message import MessageQueue
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.errors import ConnectionClosedError, RemoteProtocolError, RequestTimeoutError
from contrailmq.wire.frame import FrameParser, encode_response
from contrailmq.wire.header import Command

Q = MessageQueue("T", "b", 0)
LIMIT = (socket.SOL_SOCKET, socket.SO_RCVTIMEO)
SMALL, LARGE = b"small" * 3, bytes(range(256)) * 4096  # 1 MiB
Serve = Callable[[socket.socket, Iterator[Command]], None]


@contextmanager
def peer(*serves: Serve) -> Iterator[str]:
    """A server that handles one connection after the other, each by its own script, and then closes it."""
    failures: list[BaseException] = []

    def requests(connection: socket.socket) -> Iterator[Command]:
        parser = FrameParser()
        while data := connection.recv(65536):
            yield from parser.feed(data)

    def run() -> None:
        try:
            for serve in serves:
                connection, _ = listening.accept()
                with connection:
                    serve(connection, requests(connection))
        except (OSError, StopIteration) as exc:
            failures.append(exc)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=run)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join(120)
        assert not thread.is_alive()
    assert failures == []


def found(request: Command, body: bytes, *, next_offset: int | None = None) -> bytes:
    following = int(request.ext["queueOffset"]) + 1 if next_offset is None else next_offset
    ext = {"minOffset": "0", "maxOffset": "100", "nextBeginOffset": str(following), "suggestWhichBrokerId": "0"}
    return encode_response(request, 0, ext, body)


def in_chunks(step: int) -> Serve:
    """Every pull is answered, by a large body where its offset is odd, in chunks that end anywhere."""

    def serve(connection: socket.socket, requests: Iterator[Command]) -> None:
        for request in requests:
            frame = found(request, LARGE if int(request.ext["queueOffset"]) % 2 else SMALL)
            for start in range(0, len(frame), step):
                connection.sendall(frame[start : start + step])

    return serve


@pytest.mark.parametrize("has_landing", [True, False])
@pytest.mark.parametrize("step", [777, RECEIVE_BYTES - 1, RECEIVE_BYTES + 1, 3 << 20])
def test_bodies_of_any_size_come_whole_in_any_chunks(step: int, has_landing: bool) -> None:
    with peer(in_chunks(step)) as address, QueueReader(address) as reader:
        landing = Landing() if has_landing else None
        for offset in range(6):
            pulled = reader.pull_answer(reader.post_pull(Q, offset, landing=landing))
            assert (pulled.status, pulled.next_offset) == (PullStatus.FOUND, offset + 1)
            assert pulled.body == (LARGE if offset % 2 else SMALL)
            assert isinstance(pulled.body, memoryview) == has_landing


def test_answers_that_are_kept_lie_behind_each_other_and_others_in_the_same_place() -> None:
    with peer(in_chunks(1 << 20)) as address, QueueReader(address) as reader:
        landing = Landing()
        for offset in range(4):
            reader.pull_answer(reader.post_pull(Q, offset, landing=landing))
            landing.keep()
        assert landing.kept == SMALL + LARGE + SMALL + LARGE
        landing.clear()
        assert landing.kept == b""
        first = reader.pull_answer(reader.post_pull(Q, 1, landing=landing)).body
        posted = reader.post_pull(Q, 3, landing=landing)
        assert first == LARGE  # until the next answer is waited for
        second = reader.pull_answer(posted).body
        assert isinstance(first, memoryview)
        assert isinstance(second, memoryview)
        assert first.obj is second.obj


def test_an_answer_that_came_before_all_others_were_cleared_is_kept_as_it_was() -> None:
    def serve(connection: socket.socket, requests: Iterator[Command]) -> None:
        for request in requests:
            connection.sendall(found(request, bytes([int(request.ext["queueOffset"])]) * 200_000))

    with peer(serve) as address, QueueReader(address) as reader:
        landing = Landing()
        reader.pull_answer(reader.post_pull(Q, 1, landing=landing))
        landing.keep()
        posted = reader.post_pull(Q, 2, landing=landing)
        reader.pull(Q, 9)  # receives the other on its way
        landing.clear()
        assert reader.pull_answer(posted).body == bytes([2]) * 200_000
        landing.keep()
        reader.pull_answer(reader.post_pull(Q, 3, landing=landing))
        landing.keep()
        assert landing.kept == bytes([2]) * 200_000 + bytes([3]) * 200_000


def test_pulls_on_their_way_are_answered_in_any_order_each_in_its_own_landing() -> None:
    def serve(connection: socket.socket, requests: Iterator[Command]) -> None:
        asked = [next(requests) for _ in range(3)]
        for request in reversed(asked):
            connection.sendall(found(request, b"%d" % int(request.ext["queueOffset"]) * 300_000))

    with peer(serve) as address, QueueReader(address) as reader:
        posted = [reader.post_pull(Q, offset, landing=Landing()) for offset in (4, 5, 6)]
        assert [reader.pull_answer(each).body for each in posted] == [b"4" * 300_000, b"5" * 300_000, b"6" * 300_000]


def test_a_pull_whose_connection_ends_in_its_body_is_asked_again_once() -> None:
    def ends_in_the_middle(connection: socket.socket, requests: Iterator[Command]) -> None:
        connection.sendall(found(next(requests), LARGE)[:500_000])

    with peer(ends_in_the_middle, in_chunks(1 << 20)) as address, QueueReader(address) as reader:
        landing = Landing()
        assert reader.pull_answer(reader.post_pull(Q, 1, landing=landing)).body == LARGE
    with (
        peer(ends_in_the_middle, ends_in_the_middle) as address,
        QueueReader(address) as reader,
        pytest.raises(ConnectionClosedError, match="the peer closed it"),
    ):
        reader.pull(Q, 1)


def test_a_pull_that_is_abandoned_is_not_received_and_the_next_one_has_a_new_connection() -> None:
    left: list[bool] = []

    def never_read(connection: socket.socket, requests: Iterator[Command]) -> None:
        next(requests)
        left.append(not connection.recv(1))

    with peer(never_read, in_chunks(1 << 20)) as address, QueueReader(address) as reader:
        reader.abandon(reader.post_pull(Q, 1))
        assert reader.pull(Q, 2).body == SMALL
    assert left == [True]


@pytest.mark.parametrize("body", [SMALL, LARGE])
def test_the_first_of_two_answers_counts_and_answers_to_nobody_are_passed_over(body: bytes) -> None:
    """In one piece and by themselves; the second has another body and another next offset."""

    def serve(connection: socket.socket, requests: Iterator[Command]) -> None:
        first = next(requests)
        unasked = Command(first.code, opaque=first.opaque + 1000)
        others = [found(first, other, next_offset=80) for other in (b"other", LARGE)]
        connection.sendall(b"".join((found(unasked, LARGE, next_offset=70), found(first, body), *others)))
        connection.sendall(found(next(requests), b"next"))

    with peer(serve) as address, QueueReader(address) as reader:
        landing = Landing()
        pulled = reader.pull_answer(reader.post_pull(Q, 3, landing=landing))
        assert (pulled.next_offset, bytes(pulled.body)) == (4, body)
        assert reader.pull(Q, 4).body == b"next"


def test_a_stream_that_breaks_behind_an_answer_gives_the_answer_and_then_the_reason() -> None:
    ended, was_in_time = threading.Event(), list[bool]()

    def serve(connection: socket.socket, requests: Iterator[Command]) -> None:
        first, _second = next(requests), next(requests)
        connection.sendall(found(first, SMALL) + b"HTTP/1.1 400 Bad Request\r\n")
        was_in_time.append(ended.wait(120))  # it stays open: whoever waits for more waits in vain

    with peer(serve) as address, QueueReader(address, timeout_s=60) as reader:
        posted = [reader.post_pull(Q, offset) for offset in (1, 2)]
        assert reader.pull_answer(posted[0]).body == SMALL
        with pytest.raises(RemoteProtocolError, match=f"^{address}: .*check that a RocketMQ server listens there"):
            reader.pull_answer(posted[1])
        ended.set()
    assert was_in_time == [True]


def test_a_peer_that_stops_in_the_middle_of_a_body_is_given_up_before_it_goes_on() -> None:
    ended, was_in_time = threading.Event(), list[bool]()

    def half(connection: socket.socket, requests: Iterator[Command]) -> None:
        connection.sendall(found(next(requests), LARGE)[:300_000])
        was_in_time.append(ended.wait(120))

    with peer(half) as address, QueueReader(address, timeout_s=0.2) as reader:
        with pytest.raises(RequestTimeoutError, match=r"0\.2"):
            reader.pull(Q, 1)
        assert reader._connections == {}
        ended.set()
    assert was_in_time == [True]


def test_a_large_answer_with_a_broken_header_ends_the_connection() -> None:
    def serve(connection: socket.socket, requests: Iterator[Command]) -> None:
        next(requests)
        header = b'{"code":0,'
        connection.sendall((4 + len(header) + 200_000).to_bytes(4, "big") + len(header).to_bytes(4, "big") + header)
        connection.sendall(bytes(100_000))

    with peer(serve) as address, QueueReader(address) as reader:
        with pytest.raises(RemoteProtocolError, match="not a JSON header"):
            reader.pull(Q, 1)
        assert reader._connections == {}


def test_a_connection_tells_without_waiting_whether_a_large_answer_is_there() -> None:
    half, rest = threading.Event(), threading.Event()

    def serve(connection: socket.socket, requests: Iterator[Command]) -> None:
        frame = found(next(requests), LARGE)
        connection.sendall(frame[:300_000])
        half.set()
        rest.wait(120)
        connection.sendall(frame[300_000:])

    with peer(serve) as address, QueueReader(address) as reader:
        posted = reader.post_pull(Q, 1)
        assert posted.opaque is not None
        assert half.wait(120)
        assert not any(posted.connection.is_answered(posted.opaque) for _ in range(50))
        rest.set()
        answer = posted.connection.answer(posted.opaque, RequestCode.PULL_MESSAGE, timeout_s=20)
        assert answer.body == LARGE


def post_many(reader: QueueReader) -> None:
    for _ in range(8):
        reader.post_batch(bytes(15 << 20), Q)


def test_a_peer_that_does_not_take_a_request_is_given_up_in_time() -> None:
    """More than the sockets of both sides hold: the time counts while it is sent, too."""
    ended = threading.Event()

    def deaf(connection: socket.socket, requests: Iterator[Command]) -> None:
        assert ended.wait(120)

    with peer(deaf) as address, QueueReader(address, timeout_s=0.2) as reader:
        with pytest.raises(RequestTimeoutError, match=r"0\.2"):
            post_many(reader)
        ended.set()


def test_an_answer_that_comes_in_drops_does_not_outlast_its_time() -> None:
    """Each drop is there long before the limit of one receive; the limit is of all of them."""
    ended = threading.Event()

    def drops(connection: socket.socket, requests: Iterator[Command]) -> None:
        frame = found(next(requests), LARGE)
        for number in range(2000):
            connection.sendall(frame[number : number + 1])
            if ended.wait(0.01):
                return

    with peer(drops) as address, QueueReader(address, timeout_s=0.3) as reader:
        with pytest.raises(RequestTimeoutError, match=r"0\.3"):
            reader.pull(Q, 1)
        ended.set()


def test_a_limit_of_one_request_is_not_that_of_the_next() -> None:
    """A short one first: the kernel keeps what it was told last."""
    limits: list[float] = []

    def serve(connection: socket.socket, requests: Iterator[Command]) -> None:
        for request in requests:
            connection.sendall(found(request, SMALL))

    with peer(serve) as address:
        connection = RawConnection(address)
        for timeout_s in (0.5, 20.0, 0.5, float("inf")):
            connection.invoke(RequestCode.PULL_MESSAGE, {"queueOffset": 1}, timeout_s=timeout_s)
            seconds, micros = struct.unpack("@ll", connection._socket.getsockopt(*LIMIT, 16))
            limits.append(seconds + micros / 1e6)
        connection.close()
    assert limits == [pytest.approx(0.5, abs=0.06), pytest.approx(20, abs=0.06), pytest.approx(0.5, abs=0.06), 31536000]
