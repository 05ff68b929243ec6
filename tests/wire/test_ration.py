"""What unfinished frames of all connections take together is bounded; honest senders wait and are served."""

from __future__ import annotations

import asyncio
import socket

import pytest

from contrailmq.wire import ration as ration_module
from contrailmq.wire.connection import Connection
from contrailmq.wire.frame import FRAME_BYTES_MAX, FrameParser, encode_request, encode_response
from contrailmq.wire.header import Command
from contrailmq.wire.ration import FREE_BYTES, PATIENCE_S, Ration
from contrailmq.wire.transport import RemotingServer

from .peers import WAIT_S, Counting, Run, turns_until

MIB = 1024 * 1024


def large(opaque: int) -> bytes:
    return encode_request(10, None, b"x" * (FRAME_BYTES_MAX - 4096), opaque=opaque)


def acknowledge(connection: Connection, commands: list[Command]) -> None:
    for command in commands:
        connection.reply(encode_response(command))


class FakeReader:
    """A connection as the ration sees it."""

    def __init__(self) -> None:
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
        assert not ration.hold(first, 1000, 15 * MIB)  # another size: another frame
        assert second.is_going
        ration.drop(second)
        assert first.is_going

    asyncio.run(main())


def test_small_frames_need_no_share_and_are_counted() -> None:
    ration = Ration(16 * MIB)
    readers = [FakeReader() for _ in range(65)]
    for reader in readers[:64]:
        assert ration.hold(reader, FREE_BYTES, FREE_BYTES)
    assert ration.loose_bytes == 16 * MIB
    assert not ration.hold(readers[64], 1, 8)
    assert readers[64].cut_for.startswith("small and waiting unfinished frames of all connections hold 16777217 bytes")
    assert ration.loose_bytes == 16 * MIB
    ration.drop(readers[0])
    assert ration.hold(readers[64], 1, 8)


def test_the_oldest_unfinished_frame_is_cut_when_its_time_is_over_and_others_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        clock = Clock()
        ration = Ration(32 * MIB, clock=clock)
        oldest, younger, waiting = FakeReader(), FakeReader(), FakeReader()
        assert ration.hold(oldest, 1000, 16 * MIB)
        clock.now_s += PATIENCE_S
        assert ration.hold(younger, 1000, 16 * MIB)
        ration._end_oldest()
        assert not oldest.cut_for  # nobody waits
        monkeypatch.setattr(ration_module, "PATIENCE_S", 0.0)  # the timer comes at once
        assert not ration.hold(waiting, 1000, 16 * MIB)
        monkeypatch.setattr(ration_module, "PATIENCE_S", PATIENCE_S)
        await turns_until(lambda: waiting.is_going)
        assert oldest.cut_for == (
            "a frame of 16777216 bytes was not whole after 30 s, and 1 others wait for their share of 33554432 bytes: "
            "send faster, or less at once"
        )
        assert not younger.cut_for

    asyncio.run(main())


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
