"""The world itself, under the smallest programs that there are."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from simulation.disks import Disk, Loss, SimulatedFiles
from simulation.echo import EchoWorld, trace_of
from simulation.memory import bytes_held_by
from simulation.nodes import Node

TESTS = Path(__file__).resolve().parents[1]


def test_one_seed_gives_one_trace_and_another_seed_another() -> None:
    first = trace_of(7)
    assert trace_of(7) == first
    assert trace_of(8) != first


def test_a_process_with_other_hashes_repeats_the_trace_of_a_seed() -> None:
    def of_process(hash_seed: str) -> str:
        environment = os.environ | {"PYTHONPATH": f"{TESTS}:{TESTS.parent / 'src'}", "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-m", "simulation.echo", "7"]
        return subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout.strip()

    assert of_process("1") == of_process("2") == trace_of(7)


def test_no_real_time_passes() -> None:
    began_s = time.perf_counter()
    with EchoWorld(1) as echo:
        assert echo.heard_within(900.0) == pytest.approx(895, abs=10)
        assert echo.world.now_s >= 900
    assert time.perf_counter() - began_s < 450  # half of it, on a machine however busy


def test_the_real_doors_are_back_afterwards() -> None:
    doors = (time.monotonic, time.sleep, threading.Lock, threading.Thread, socket.socket, os.getpid, os.fsync)
    with EchoWorld(1) as echo:
        echo.world.run_for(1)
        assert time.sleep is not doors[1]
    assert (time.monotonic, time.sleep, threading.Lock, threading.Thread, socket.socket, os.getpid, os.fsync) == doors


def test_a_killed_process_hangs_up_and_its_port_refuses() -> None:
    with EchoWorld(2) as echo:
        assert echo.heard_within(5) >= 4
        echo.server.kill()
        assert echo.heard_within(5) <= 1
        assert set(echo.caller.errors) <= {"EOFError", "ConnectionResetError", "ConnectionRefusedError"}
        assert "ConnectionRefusedError" in echo.caller.errors
        echo.start_server()
        assert echo.heard_within(5) >= 3


def test_a_machine_without_power_says_nothing_and_resets_what_it_does_not_know_when_it_is_back() -> None:
    with EchoWorld(3) as echo:
        echo.heard_within(5)
        echo.server.cut_power()
        assert echo.heard_within(30) <= 1
        assert echo.caller.errors == []  # half-open: the caller waits for an answer
        echo.server_host.come_up()
        echo.start_server()
        assert echo.heard_within(10) >= 5
        assert echo.caller.errors[:1] == ["ConnectionResetError"]


def test_a_one_way_partition_holds_answers_back_and_loses_none() -> None:
    with EchoWorld(4) as echo:
        echo.heard_within(5)
        answers = echo.network.link(echo.server_host, echo.caller_host)
        answers.cut()
        assert echo.heard_within(60) <= 1
        answers.mend()
        assert echo.heard_within(5) >= 3
        assert echo.caller.errors == []
        assert [line for _, line in echo.caller.heard] == [b"%d\n" % n for n in range(1, len(echo.caller.heard) + 1)]


def test_a_paused_process_answers_when_it_goes_on() -> None:
    with EchoWorld(5) as echo:
        echo.heard_within(5)
        echo.server.pause()
        assert echo.heard_within(60) <= 1
        echo.server.resume()
        assert echo.heard_within(5) >= 3
        assert echo.caller.errors == []


def test_connections_that_are_reset_are_dialled_again() -> None:
    with EchoWorld(6) as echo:
        echo.heard_within(5)
        assert echo.network.reset_connections(echo.server_host, echo.caller_host) == 1
        assert echo.heard_within(10) >= 7
        assert echo.caller.errors == ["ConnectionResetError"]


def test_clocks_jump_and_drift_and_timers_follow_the_monotonic_one() -> None:
    async def slept(node: Node) -> tuple[float, float]:
        wall_s, monotonic_s = time.time(), time.monotonic()
        await asyncio.sleep(100)
        return time.time() - wall_s, time.monotonic() - monotonic_s

    with EchoWorld(9) as echo:
        node = Node(echo.network, "sleeper", echo.caller_host).start(slept)
        node.clock.set_rate(2_000_000)
        echo.world.run_for(10)
        node.clock.jump(-3600)
        began_s = echo.world.now_s - 10
        assert echo.world.run_until(lambda: node.is_done, within_s=100)
        assert echo.world.now_s - began_s == pytest.approx(50, abs=0.01)  # the clock runs twice as fast
        assert node.result == pytest.approx((100 - 3600, 100), abs=0.01)


def test_threads_of_a_node_exclude_each_other_and_wait() -> None:
    async def count(node: Node) -> tuple[int, int]:
        lock, total, inside, most = threading.Lock(), 0, 0, 0

        def work() -> None:
            nonlocal total, inside, most
            for _ in range(50):
                with lock:
                    inside += 1
                    most = max(most, inside)
                    seen = total
                    time.sleep(0.001)
                    total = seen + 1
                    inside -= 1

        node.is_preemptive = True
        await asyncio.gather(*(asyncio.to_thread(work) for _ in range(4)))
        return total, most

    with EchoWorld(10) as echo:
        node = Node(echo.network, "counter", echo.caller_host).start(count)
        assert echo.world.run_until(lambda: node.is_done, within_s=10)
        assert node.result == (200, 1)


def test_a_wait_for_the_last_fraction_of_a_nanosecond_lets_time_pass() -> None:
    """What is left of a deadline, by subtraction: a loop that waits for it would else find the same time for ever."""

    async def waited(node: Node) -> float:
        def work() -> float:
            lock = threading.Lock()
            lock.acquire()
            before_s = time.monotonic()
            for _ in range(1000):
                assert not lock.acquire(timeout=3e-10)
            return time.monotonic() - before_s

        return await asyncio.to_thread(work)

    with EchoWorld(11) as echo:
        node = Node(echo.network, "waiter", echo.caller_host).start(waited)
        assert echo.world.run_until(lambda: node.is_done, within_s=10)
        assert node.result == pytest.approx(1e-6, rel=0.5)


@pytest.mark.parametrize(
    ("steps", "is_written", "survives"),
    [(1, False, False), (2, True, False), (3, True, False), (4, True, True), (5, True, True)],
)
def test_a_process_is_stopped_before_or_after_a_step_with_a_file(
    tmp_path: Path, steps: int, is_written: bool, survives: bool
) -> None:
    """Its write, then its sync: before the one, after it, before the other, after it, and never."""
    with EchoWorld(6) as echo:
        host = echo.network.add_host("writer")
        disk = Disk(echo.world, host, tmp_path / "writer")
        disk.loss = Loss.EVERYTHING
        path, done = disk.path / "file", []
        path.write_bytes(b"old")
        disk.sync_everything()
        left = iter(range(steps - 1, -1, -1))
        disk.trap = lambda relative: relative == Path("file") and next(left) == 0

        async def main(_node: Node) -> None:
            files = SimulatedFiles(disk)
            descriptor = files.open(path)
            files.pwrite(descriptor, b"new", 0)
            files.sync(descriptor)
            done.append(True)

        node = Node(echo.network, "writer", host, disk).start(main)
        echo.world.run_for(1)
        assert (disk.trap is None, bool(done)) == (steps < 5, steps == 5)
        assert path.read_bytes() == (b"new" if is_written else b"old")
        node.cut_power()
        if not done:  # else it has ended by itself, with its disk as it is
            assert path.read_bytes() == (b"new" if survives else b"old")


def test_the_memory_of_a_process_is_what_its_objects_lead_to_and_nothing_of_the_simulation() -> None:
    class Owner:
        def __init__(self, *things: object) -> None:
            self.things = things

    few = bytes_held_by(Owner())
    kept = [bytes(50_000), {"more": [bytearray(30_000)]}]
    with EchoWorld(1) as echo:
        assert 80_000 < bytes_held_by(Owner(*kept)) - few < 81_000
        assert bytes_held_by(Owner(kept, kept)) == bytes_held_by(Owner(kept, Owner))  # once; and no class
        assert bytes_held_by(Owner(echo.world, echo.server, bytes_held_by, asyncio)) - few < 1_000
