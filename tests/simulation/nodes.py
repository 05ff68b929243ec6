"""Simulated processes, with clocks of their own.

A node runs one coroutine on an event loop of its own, on a host of the network, and may have a disk. It is killed (its
threads never run again, the kernel closes its sockets), loses its power (its host falls silent, and the disk forgets
what was not synced), is paused (the kernel goes on for it, it does not), or its coroutine ends by itself. A restart is
a new node of the same name on the same host and disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Final

from simulation.loop import SimulatedLoop
from simulation.world import EPOCH_NS, SECOND_NS, World

if TYPE_CHECKING:
    from simulation.disks import Disk
    from simulation.network import Host, Network
    from simulation.sockets import Socket

FIRST_PROCESS_ID: Final = 1000
FIRST_DESCRIPTOR: Final = 10
RATE_MILLION: Final = 1_000_000


class NodeClock:
    """A node's two clocks. `rate_ppm` is how fast they run beside the world's: 1,000,000 is true."""

    def __init__(self, world: World, *, offset_ns: int = 0, rate_ppm: int = RATE_MILLION) -> None:
        self._world = world
        self._offset_ns = offset_ns
        self._rate_ppm = rate_ppm
        self._since_ns, self._base_ns = world.now_ns, world.now_ns + SECOND_NS

    def monotonic_ns(self) -> int:
        if self._rate_ppm == RATE_MILLION:
            return self._world.now_ns + self._base_ns - self._since_ns
        return self._base_ns + (self._world.now_ns - self._since_ns) * self._rate_ppm // RATE_MILLION

    def wall_ns(self) -> int:
        return EPOCH_NS + self._offset_ns + self.monotonic_ns()

    def jump(self, seconds: float) -> None:
        """Step the wall clock, as an operator or NTP may."""
        self._offset_ns += round(seconds * SECOND_NS)

    def set_rate(self, rate_ppm: int) -> None:
        self._base_ns, self._since_ns = self.monotonic_ns(), self._world.now_ns
        self._rate_ppm = rate_ppm

    def world_ns(self, own_ns: int) -> int:
        """How much time passes in the world while so much passes here; rounded up, so that a timer is never early."""
        if self._rate_ppm == RATE_MILLION:
            return own_ns
        return -(-own_ns * RATE_MILLION // self._rate_ppm)


class Node:
    """One process. `result` is what its coroutine returned, `error` what it raised."""

    def __init__(self, network: Network, name: str, host: Host, disk: Disk | None = None) -> None:
        world = self.world = network.world
        self.network, self.name, self.host, self.disk = network, name, host, disk
        self.clock = NodeClock(world, offset_ns=host.clock_offset_ns, rate_ppm=host.clock_rate_ppm)
        self.process_id = FIRST_PROCESS_ID + network.next_number()
        self.is_alive = True
        self.is_done = False
        self.is_paused = False
        self.is_preemptive = False
        self.is_patient = False  # its timers end on a grid; see loop.py
        self.held: list[Callable[[], None]] = []  # wakeups that came while it was paused
        self.failed_threads: list[tuple[str, BaseException]] = []
        self.complaints: list[str] = []  # what its loop told its exception handler
        self.result: object = None
        self.error: BaseException | None = None
        self.loop: SimulatedLoop | None = None
        self.sockets: dict[int, Socket] = {}  # by descriptor
        world.nodes[name] = self

    def start(self, main: Callable[[Node], Coroutine[object, object, object]]) -> Node:
        """Run `main(node)` from now on."""
        self.world.spawn(self, "main", lambda: self._run(main))
        return self

    def call(self, function: Callable[..., object], *arguments: object) -> None:
        """Have the node's loop call this, a moment from now."""
        assert self.loop is not None, f"{self.name} has not begun"
        self.loop.call_soon_threadsafe(function, *arguments)

    def run(self, work: Coroutine[object, object, object], *, within_s: float = 60.0) -> object:
        """The result of a coroutine that runs on the node's loop; for tests, in the hub."""
        ended: list[asyncio.Task[object]] = []

        def begin() -> None:
            assert self.loop is not None
            self.loop.create_task(work).add_done_callback(ended.append)

        self.call(begin)
        if not self.world.run_until(lambda: bool(ended) or not self.is_alive, within_s=within_s) or not ended:
            raise TimeoutError(f"{self.name} did not finish within {within_s:g} virtual seconds")
        return ended[0].result()

    def spawn(self, work: Coroutine[object, object, object], *, then: Callable[[], None]) -> None:
        """Run a coroutine on the node's loop, and call this in the hub when it is done, however it ended."""

        def done(task: asyncio.Task[object]) -> None:
            if not task.cancelled():
                task.exception()
            self.world.after(0, then)

        def begin() -> None:
            assert self.loop is not None
            self.loop.create_task(work).add_done_callback(done)

        self.call(begin)

    def kill(self) -> None:
        """SIGKILL: what was written stays written, peers see their connections end."""
        if self.is_alive:
            self.world.note(f"kill {self.name}")
            self._die()
            for sock in list(self.sockets.values()):
                sock.process_died()

    def cut_power(self) -> None:
        """The machine is gone without a word; its disk keeps what was synced and, of the rest, what the dice say."""
        if self.is_alive:
            self.world.note(f"cut {self.name}")
            self._die()
            self.host.go_down()
            if self.disk is not None:
                self.disk.cut_power()

    def pause(self) -> None:
        """SIGSTOP."""
        self.world.note(f"pause {self.name}")
        self.is_paused = True

    def resume(self) -> None:
        """SIGCONT."""
        self.world.note(f"resume {self.name}")
        self.is_paused = False
        held, self.held = self.held, []
        for wakeup in held:
            self.world.after(0, wakeup)

    def free_descriptor(self) -> int:
        descriptor = FIRST_DESCRIPTOR
        while descriptor in self.sockets:
            descriptor += 1
        return descriptor

    def _run(self, main: Callable[[Node], Coroutine[object, object, object]]) -> None:
        self.loop = loop = SimulatedLoop(self)
        try:
            self.result = loop.run_until_complete(main(self))
        except Exception as exc:  # noqa: BLE001  it is kept for whoever looks
            self.error = exc
            self.world.note(f"{self.name} failed: {type(exc).__name__}")
        if not self.world.is_over:
            self.is_done = True
            self.world.note(f"{self.name} ended")
            with self.world.in_hub():
                self.kill()

    def _die(self) -> None:
        self.is_alive = False
        if self.disk is not None:
            self.disk.owner_died()
