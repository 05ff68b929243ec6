"""What unfinished frames of all connections take together is bounded; honest senders wait and are served."""

from __future__ import annotations

import asyncio
import socket

import pytest

from contrailmq.wire import ration as ration_module
from contrailmq.wire.connection import Connection, Limits
from contrailmq.wire.frame import FRAME_BYTES_MAX, FrameParser, encode_request, encode_response
from contrailmq.wire.header import Command
from contrailmq.wire.ration import FREE_BYTES, GRACE_S, PATIENCE_S, RATE_BYTES_S, Ration
from contrailmq.wire.transport import RemotingServer

from .peers import WAIT_S, Counting, Run, connected, turns_until

MIB = 1024 * 1024


def large(opaque: int) -> bytes:
    return encode_request(10, None, b"x" * (FRAME_BYTES_MAX - 4096), opaque=opaque)


def acknowledge(connection: Connection, commands: list[Command]) -> None:
    for command in commands:
        connection.reply(encode_response(command))


class FakeReader:
    """A connection as the ration sees it."""

    def __init__(self, host: str = "10.0.0.1") -> None:
        self.host = host
        self.is_going = False
        self.cut_for = ""

    def go_on(self) -> None:
        self.is_going = True

    def cut(self, cause: str) -> None:
        self.cut_for = cause


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def test_frames_have_their_share_in_the_order_of_asking() -> None:
    async def main() -> None:
        ration = Ration(32 * MIB)
        first, second, third, fourth = readers = [FakeReader() for _ in range(4)]
        assert ration.hold(first, 1000, 16 * MIB)
        assert ration.hold(second, 1000, 16 * MIB)
        assert not ration.hold(third, 1000, 16 * MIB)
        assert not ration.hold(fourth, 1000, MIB)
        assert ration.hold(first, 15 * MIB, 16 * MIB)  # it has its share
        ration.drop(second)
        assert [reader.is_going for reader in readers] == [False, False, True, False]
        ration.drop(first)
        assert [reader.is_going for reader in readers] == [False, False, True, True]
        for reader in readers:
            ration.drop(reader)
        assert (ration.shared_bytes, ration.loose_bytes, ration.waiting_count) == (0, 0, 0)

    asyncio.run(main())


def test_a_reader_whose_frame_is_whole_asks_anew_for_the_next_behind_those_who_wait() -> None:
    async def main() -> None:
        ration = Ration(16 * MIB)
        first, second = FakeReader(), FakeReader()
        assert ration.hold(first, 1000, 16 * MIB)
        assert not ration.hold(second, 1000, 16 * MIB)
        assert not ration.hold(first, 1000, 16 * MIB, is_next=True)
        assert second.is_going
        ration.drop(second)
        assert first.is_going

    asyncio.run(main())


def test_a_host_that_has_less_of_the_ration_comes_before_the_crowd_of_another() -> None:
    async def main() -> None:
        ration = Ration(32 * MIB)
        crowd = [FakeReader("10.0.0.66") for _ in range(20)]
        assert [ration.hold(reader, 9, 16 * MIB) for reader in crowd] == [True, True] + [False] * 18
        honest = FakeReader("10.0.0.1")
        assert not ration.hold(honest, 1000, MIB)
        ration.drop(crowd[1])
        assert honest.is_going
        assert not any(reader.is_going for reader in crowd)  # 15 MiB are left, and the next of them asks for 16
        ration.drop(honest)
        assert [reader.is_going for reader in crowd[2:4]] == [True, False]

    asyncio.run(main())


def test_small_frames_need_no_share_and_the_oldest_is_cut_when_there_are_too_many() -> None:
    """Not the one that came last: those who never end their frames would lock out everybody else."""
    ration = Ration(16 * MIB)
    readers = [FakeReader() for _ in range(66)]
    for reader in readers[:64]:
        assert ration.hold(reader, FREE_BYTES // 2, FREE_BYTES)
    assert ration.hold(readers[1], 1, FREE_BYTES, is_next=True)  # its first was whole: now the youngest
    for reader in readers[:64]:
        assert ration.hold(reader, FREE_BYTES, FREE_BYTES)
    assert ration.loose_bytes == 16 * MIB
    assert ration.hold(readers[64], 1, 8)
    assert readers[0].cut_for.startswith("small and waiting unfinished frames of all connections hold 16777217 bytes")
    assert ration.hold(readers[65], FREE_BYTES, FREE_BYTES)
    assert [bool(reader.cut_for) for reader in readers] == [True, False, True] + [False] * 63
    assert ration.loose_bytes == 16 * MIB - FREE_BYTES + 1
    ration.drop(readers[64])
    assert ration.loose_bytes == 16 * MIB - FREE_BYTES


def test_a_reader_whose_own_frame_is_the_oldest_is_told_to_stop() -> None:
    ration = Ration(16 * MIB)
    alone = FakeReader()
    assert not ration.hold(alone, 16 * MIB + 1, 8)
    assert alone.cut_for
    assert ration.loose_bytes == 0


@pytest.mark.parametrize(
    ("age_s", "held_bytes", "is_late"),
    [
        (GRACE_S, 9, False),
        (GRACE_S + 1, 9, True),  # begun and left
        (GRACE_S + 1, RATE_BYTES_S, False),
        (GRACE_S + 10, 10 * RATE_BYTES_S - 1, True),
        (GRACE_S + 10, 10 * RATE_BYTES_S, False),
        (PATIENCE_S, 15 * MIB, True),
    ],
)
def test_a_frame_that_comes_too_slowly_is_cut_while_others_wait(age_s: float, held_bytes: int, is_late: bool) -> None:
    async def main() -> None:
        clock = Clock()
        ration = Ration(32 * MIB, clock=clock)
        slow, younger, waiting = FakeReader(), FakeReader(), FakeReader()
        assert ration.hold(slow, 9, 16 * MIB)
        clock.now_s += age_s
        assert ration.hold(slow, held_bytes, 16 * MIB)
        assert ration.hold(younger, 9, 16 * MIB)
        ration._end_late()
        assert not slow.cut_for  # nobody waits
        assert not ration.hold(waiting, 9, 16 * MIB)
        ration._end_late()  # what the timer calls
        assert waiting.is_going is is_late
        assert slow.cut_for == (
            f"{held_bytes} of a frame's 16777216 bytes came in {age_s:.0f} s, and 1 others wait for their share of "
            "33554432 bytes: send faster, or less at once"
            if is_late
            else ""
        )
        assert not younger.cut_for

    asyncio.run(main())


def test_a_timer_looks_after_those_who_keep_others_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ration_module, "CHECK_S", 0.0)

    async def main() -> None:
        clock = Clock()
        ration = Ration(16 * MIB, clock=clock)
        slow, waiting = FakeReader(), FakeReader()
        assert ration.hold(slow, 9, 16 * MIB)
        assert not ration.hold(waiting, 9, 16 * MIB)
        for _ in range(100):
            await asyncio.sleep(0)
        assert not waiting.is_going
        clock.now_s += GRACE_S + 1
        await turns_until(lambda: waiting.is_going)
        assert slow.cut_for

    asyncio.run(main())


def test_a_sender_of_frame_after_frame_of_one_size_is_not_taken_for_a_slow_one(run: Run) -> None:
    """Its reads end within frames, always: the ration never sees it with nothing unfinished."""

    async def main() -> None:
        clock = Clock()
        counting = Counting(acknowledge)
        ration = Ration(FRAME_BYTES_MAX, clock=clock)
        connection, transport = connected(counting, ration=ration)
        waiting = FakeReader("10.0.0.66")
        frame = encode_request(10, None, b"x" * MIB, opaque=1)
        connection.data_received(frame[:-1])
        for number in range(1, 40):
            clock.now_s += 1.0
            assert ration.hold(waiting, 9, FRAME_BYTES_MAX, is_next=True) is False
            connection.data_received(frame[-1:] + frame[:-1])
            assert len(counting.opaques) == number
            assert waiting.is_going  # it came first
            assert not transport.is_reading
            waiting.is_going = False
            ration.drop(waiting)
            assert transport.is_reading
            ration._end_late()
        assert not transport.is_aborted

    run(main())


def held_bytes(server: RemotingServer) -> int:
    return sum(connection._parser.buffered_bytes for connection in server.connections)


def test_many_senders_of_the_largest_frames_are_all_served_within_the_bound(run: Run) -> None:
    """Twenty peers begin a frame of 16 MB at once, as the first hundred bytes of it; later they send the rest."""

    async def main() -> None:
        counting = Counting(acknowledge)
        ration = Ration(2 * FRAME_BYTES_MAX)
        server = RemotingServer(counting, host="127.0.0.1", ration=ration)
        await server.start()
        frames = [large(number) for number in range(20)]
        peers = [socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) for _ in frames]
        for peer, frame in zip(peers, frames, strict=True):
            peer.sendall(frame[:100])
        await turns_until(lambda: ration.waiting_count == 18)

        def finish(peer: socket.socket, frame: bytes) -> int:
            peer.sendall(frame[100:])
            parser = FrameParser()
            while not (answers := parser.feed(peer.recv(MIB))):
                pass
            return answers[0].opaque

        sending = [asyncio.ensure_future(asyncio.to_thread(finish, *each)) for each in zip(peers, frames, strict=True)]
        peak_bytes = 0
        while not all(future.done() for future in sending):
            peak_bytes = max(peak_bytes, held_bytes(server))
            await asyncio.sleep(0)
        assert sorted([await future for future in sending]) == list(range(20))
        assert sorted(counting.opaques) == list(range(20))
        assert FRAME_BYTES_MAX < peak_bytes < 2 * FRAME_BYTES_MAX + 20 * FREE_BYTES
        assert (ration.shared_bytes, ration.loose_bytes, ration.waiting_count) == (0, 0, 0)
        for peer in peers:
            peer.close()
        await server.close(drain_seconds=0.0)

    run(main())


def test_a_connection_that_ends_gives_its_share_back(run: Run) -> None:
    async def main() -> None:
        counting = Counting(acknowledge)
        ration = Ration(FRAME_BYTES_MAX)
        server = RemotingServer(counting, host="127.0.0.1", ration=ration)
        await server.start()
        frame = large(1)
        quitter = socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S)
        quitter.sendall(frame[:1000])
        await turns_until(lambda: ration.shared_bytes > 0)
        with socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) as peer:
            sending = asyncio.ensure_future(asyncio.to_thread(peer.sendall, frame))
            await turns_until(lambda: ration.waiting_count == 1)
            quitter.close()
            await sending
            await turns_until(lambda: counting.opaques == [1])
        await server.close(drain_seconds=0.0)
        assert (ration.shared_bytes, ration.loose_bytes, ration.waiting_count) == (0, 0, 0)

    run(main())


def test_a_server_that_stops_waits_for_whole_frames_that_have_no_share_and_not_for_others(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixty that would have their share one after the other, each for `linger_s`, would take longer than `run` lets."""
    monkeypatch.setattr(ration_module, "FREE_BYTES", 1000)  # so that a frame which needs a share fits into a socket

    async def main() -> None:
        counting = Counting(acknowledge)
        ration = Ration(FRAME_BYTES_MAX)
        server = RemotingServer(counting, host="127.0.0.1", limits=Limits(linger_s=0.2), ration=ration)
        await server.start()
        peers = [socket.create_connection(("127.0.0.1", server.port), timeout=WAIT_S) for _ in range(62)]
        stalled, *waiting, whole = peers
        begin = large(1)[:2000]
        stalled.sendall(begin[:1000])
        await turns_until(lambda: ration.shared_bytes > 0)
        for peer in waiting:
            peer.sendall(begin[:1000])
        await turns_until(lambda: ration.waiting_count == 60)
        for peer in waiting:
            peer.sendall(begin[1000:])  # stays unread
        frame = encode_request(10, None, b"x" * 9000, opaque=3)
        whole.sendall(frame[:1000])
        await turns_until(lambda: ration.waiting_count == 61)
        whole.sendall(frame[1000:])
        await server.close(drain_seconds=2 * WAIT_S)
        assert counting.opaques == [3]
        assert [answer.opaque for answer in FrameParser().feed(whole.recv(MIB))] == [3]
        assert (ration.shared_bytes, ration.loose_bytes, ration.waiting_count) == (0, 0, 0)
        for peer in peers:
            peer.close()

    run(main())
