"""The world: virtual time, one source of chance, and the order in which everything happens.

A world is a heap of events, (virtual time, number, action, arguments). The next event is taken, time jumps to it, the
action runs, and nothing else runs meanwhile: no real clock, no real thread and no real socket has a say. What happens
is a function of the seed, so a run can be repeated, and two runs can be compared by their `trace`, a running hash of
every event.

Code that blocks lives in fibers. A fiber is a greenlet: a stack of its own that runs until it has to wait, then gives
control back to the hub (`run`), which resumes it when its event comes. Each belongs to a node, a simulated process.
A node that is paused has its wakeups held back; one that is dead is never resumed.

Code takes no virtual time by itself. Each turn of an event loop costs some microseconds, drawn from the seed, and so
does each wakeup of a fiber: that shuffles who comes first, and keeps loops that poll from standing still in time.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import random
from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

import greenlet

if TYPE_CHECKING:
    from simulation.nodes import Node

SECOND_NS: Final = 1_000_000_000
MILLISECOND_NS: Final = 1_000_000
MICROSECOND_NS: Final = 1_000
EPOCH_NS: Final = 1_790_000_000 * SECOND_NS  # the wall clock when a world begins: a day in September 2026
WAKE_NS_MAX: Final = 40 * MICROSECOND_NS  # how late a thread that was woken may run
NOTED_MAX: Final = 2_000
GRANTS_MAX: Final = 20
REST_GRID_NS: Final = 5 * SECOND_NS  # where waits end while the world rests
REST_WAIT_NS_MIN: Final = 10 * MILLISECOND_NS  # shorter ones end in time
EVENTS_AT_ONCE_MAX: Final = 200_000  # within one virtual second: more is a loop that spins

Action = Callable[..., object]


class SimulationError(Exception):
    """The simulation itself cannot go on: a spin, a deadlock of all, a call that it does not know."""


class Fiber:
    """A thread of a node. `token` counts its waits, so that a wakeup for an earlier wait is ignored."""

    __slots__ = ("greenlet", "ident", "name", "node", "noted", "owner", "token")

    def __init__(self, node: Node, name: str, ident: int, body: Callable[[], None], hub: greenlet.greenlet) -> None:
        self.node, self.name, self.ident, self.token = node, name, ident, 0
        self.noted = f"{node.name}/{name}"
        self.owner: object = None  # the thread object that stands for it
        self.greenlet = greenlet.greenlet(lambda _is_woken: body(), hub)  # where control goes when it ends


class World:
    """One simulation. `running` is the fiber that has control; None in the hub, where events and tests run."""

    def __init__(self, seed: int, *, keep_trace: bool = False) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.now_ns = 0
        self.running: Fiber | None = None
        self.is_over = False
        self.is_resting = False  # waits end on a coarse grid; see loop.py
        self.grants_left = 0  # how many locks a fiber that unwinds still gets though others hold them
        self.events = 0
        self.lines: list[str] | None = [] if keep_trace else None  # the trace in words, to find where two runs part
        self.nodes: dict[str, Node] = {}
        self._heap: list[tuple[int, int, Action, tuple[object, ...]]] = []
        self._number = 0
        self._idents = 0
        self._hub = greenlet.getcurrent()
        self._hash = hashlib.blake2b(digest_size=16)
        self._noted: list[object] = []  # times and what happened then, in turn, not hashed yet
        self._fibers: list[Fiber] = []
        self._looked_ns, self._next_look = -SECOND_NS, EVENTS_AT_ONCE_MAX  # when, and at which event again

    # --- events

    @property
    def now_s(self) -> float:
        return self.now_ns / SECOND_NS

    @property
    def trace(self) -> str:
        """The hash of everything that happened so far."""
        self._hash_noted()
        return self._hash.hexdigest()

    def note(self, what: str) -> None:
        """Something happened that a repetition must repeat."""
        noted = self._noted
        noted.append(self.now_ns)
        noted.append(what)
        if len(noted) >= NOTED_MAX:
            self._hash_noted()
        if self.lines is not None:
            self.lines.append(f"{self.now_ns} {what}\n")

    def _hash_noted(self) -> None:
        self._hash.update("\n".join(map(str, (*self._noted, ""))).encode())
        self._noted.clear()

    def after(self, delay_ns: int, action: Action, *arguments: object) -> None:
        self._number += 1
        heappush(self._heap, (self.now_ns + delay_ns if delay_ns > 0 else self.now_ns, self._number, action, arguments))

    def run_until(self, is_reached: Callable[[], bool], *, within_s: float) -> bool:
        """Let things happen until this is so, or so much virtual time has passed (False)."""
        end_ns = self.now_ns + round(within_s * SECOND_NS)
        while not is_reached():
            if not self._heap or self._heap[0][0] > end_ns:
                self.now_ns = end_ns
                return is_reached()
            self._step()
        return True

    def run_for(self, seconds: float) -> None:
        end_ns = self.now_ns + round(seconds * SECOND_NS)
        while self._heap and self._heap[0][0] <= end_ns:
            self._step()
        self.now_ns = end_ns

    def _step(self) -> None:
        assert self.running is None, "only the hub moves time"
        self.now_ns, _, action, arguments = heappop(self._heap)
        self.events += 1
        if self.events >= self._next_look:
            self._look_for_spins()
        action(*arguments)

    def _look_for_spins(self) -> None:
        if self.now_ns - self._looked_ns < SECOND_NS:
            second = self.now_ns // SECOND_NS
            raise SimulationError(f"{EVENTS_AT_ONCE_MAX} events by virtual second {second}: something spins")
        self._looked_ns, self._next_look = self.now_ns, self.events + EVENTS_AT_ONCE_MAX

    # --- fibers

    def spawn(self, node: Node, name: str, body: Callable[[], None]) -> Fiber:
        """A new thread of a node; it runs a moment later."""
        self._idents += 1
        fiber = Fiber(node, name, self._idents, body, self._hub)
        self._fibers.append(fiber)
        self.wake(fiber)
        return fiber

    def count_fibers(self, node: Node) -> int:
        return sum(fiber.node is node and not fiber.greenlet.dead for fiber in self._fibers)

    def park(self, timeout_ns: int | None = None) -> bool:
        """Have the running fiber wait until `wake` (True), or for so long (False)."""
        fiber = self.running
        if self.is_over:
            raise greenlet.GreenletExit
        if fiber is None:
            raise SimulationError("the hub cannot wait: this call blocks and was made outside of every node")
        fiber.token += 1
        if timeout_ns is not None:
            self.after(timeout_ns, self._resume, fiber, fiber.token, False)
        loop = asyncio._get_running_loop()
        asyncio._set_running_loop(None)
        try:
            return bool(self._hub.switch())
        finally:
            asyncio._set_running_loop(loop)

    def wake(self, fiber: Fiber) -> None:
        """End a fiber's wait, a moment from now."""
        self.after(1 + int(self.random.random() * WAKE_NS_MAX), self._resume, fiber, fiber.token, True)

    def is_drawn(self, odds: int) -> bool:
        """True in one of so many calls."""
        return self.random.random() * odds < 1

    def rested_ns(self, delay_ns: int) -> int:
        """While the world rests, how long a thread waits that wanted to wait for so long."""
        if not self.is_resting or delay_ns < REST_WAIT_NS_MIN:
            return delay_ns
        return -(-(self.now_ns + delay_ns) // REST_GRID_NS) * REST_GRID_NS - self.now_ns

    def pass_turn(self, delay_ns: int) -> None:
        """Have the others run: the running fiber goes on after so long."""
        self.park(delay_ns)

    def _resume(self, fiber: Fiber, token: int, is_woken: bool) -> None:
        node = fiber.node
        if fiber.token != token or not node.is_alive or fiber.greenlet.dead:
            return
        if node.is_paused:
            node.held.append(lambda: self._resume(fiber, token, is_woken))
            return
        fiber.token += 1  # whatever else would end this wait comes too late
        self.note(fiber.noted)
        self.running = fiber
        try:
            fiber.greenlet.switch(is_woken)
        finally:
            self.running = None

    # --- the end

    def end(self) -> None:
        """Unwind every fiber. Nothing that they do on their way out reaches anybody."""
        self.is_over = True
        self._heap.clear()
        for fiber in self._fibers:
            for _ in range(10):  # one that catches everything and waits again is told again
                if fiber.greenlet.dead or not fiber.greenlet:
                    break
                self.running, self.grants_left = fiber, GRANTS_MAX
                with contextlib.suppress(BaseException):
                    fiber.greenlet.throw(greenlet.GreenletExit)
                self.running = None
        self._fibers.clear()

    def grant_at_the_end(self) -> None:
        """Whoever unwinds may need a lock to tidy up, and gets it; one that never comes to an end is told again."""
        if self.running is not None:
            self.grants_left -= 1
            if self.grants_left < 0:
                raise greenlet.GreenletExit

    @contextlib.contextmanager
    def in_hub(self) -> Iterator[None]:
        """Act as nobody in particular, for what the kernel or the operator does while a fiber runs."""
        before, self.running = self.running, None
        try:
            yield
        finally:
            self.running = before
