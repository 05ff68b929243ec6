"""Locks and threads of simulated processes.

`Lock`, `RLock` and `Thread` stand in for `threading`'s; what the standard library builds on locks in plain Python
(Condition, Event, Semaphore, queues, executors) is used as it is and so becomes simulated too (`patches.py`). Waiting
is `World.park`. A lock that is given back goes to one of those who wait for it, drawn from the seed.

Now and then a thread that takes a free lock lets others run first: this is where threads of one process interleave, as
they would under a preemptive scheduler. Between two such points a thread is not interrupted.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from simulation.world import MICROSECOND_NS, SECOND_NS, Fiber, SimulationError, World

PREEMPTION_ODDS: Final = 16  # of so many times that a free lock is taken, others run first in one
PREEMPTION_NS_MAX: Final = 200 * MICROSECOND_NS


class Clockwork:
    """The world that locks and threads made from now on belong to; set by `patches.installed`."""

    world: World


def _world() -> World:
    return Clockwork.world


class _Waiter:
    __slots__ = ("fiber", "has_it")

    def __init__(self, fiber: Fiber) -> None:
        self.fiber = fiber
        self.has_it = False


class Lock:
    """threading.Lock."""

    def __init__(self) -> None:
        self._world = _world()
        self._is_locked = False
        self._waiters: list[_Waiter] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        world = self._world
        fiber = world.running
        if world.is_over:
            if self._is_locked and blocking:
                world.grant_at_the_end()
            taken, self._is_locked = not self._is_locked or blocking, True
            return taken
        if fiber is None:
            if self._is_locked and blocking:
                raise SimulationError("the hub would wait for a lock")
            taken, self._is_locked = not self._is_locked, True
            return taken
        if blocking and fiber.node.is_preemptive and not world.is_resting and world.is_drawn(PREEMPTION_ODDS):
            world.pass_turn(int(world.random.random() * PREEMPTION_NS_MAX))
        if not self._is_locked:
            self._is_locked = True
            return True
        if not blocking or timeout == 0:
            return False
        waiter = _Waiter(fiber)
        self._waiters.append(waiter)
        # The rest of a deadline may be less than a nanosecond: without any, who waits in a loop would wait for ever.
        wait_ns = fiber.node.clock.world_ns(max(1, round(timeout * SECOND_NS)))
        try:
            world.park(None if timeout < 0 else world.rested_ns(wait_ns))
        finally:
            if not waiter.has_it:
                with contextlib.suppress(ValueError):
                    self._waiters.remove(waiter)
        return waiter.has_it

    def release(self) -> None:
        if not self._is_locked:
            if self._world.is_over:
                return
            raise RuntimeError("release unlocked lock")
        waiting = [waiter for waiter in self._waiters if waiter.fiber.node.is_alive]
        if not waiting or self._world.is_over:
            self._is_locked = False
            return
        waiter = waiting[self._world.random.randrange(len(waiting))] if len(waiting) > 1 else waiting[0]
        self._waiters.remove(waiter)
        waiter.has_it = True
        self._world.wake(waiter.fiber)

    def locked(self) -> bool:
        return self._is_locked

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self._is_locked = False


class RLock:
    """threading.RLock, with the private doors that Condition goes through."""

    def __init__(self) -> None:
        self._block = Lock()
        self._owner = -1
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        me = get_ident()
        if self._owner == me:
            self._count += 1
            return True
        taken = self._block.acquire(blocking, timeout)
        if taken:
            self._owner, self._count = me, 1
        return taken

    def release(self) -> None:
        if self._owner != get_ident():
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if self._count == 0:
            self._owner = -1
            self._block.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _is_owned(self) -> bool:
        return self._owner == get_ident()

    def _release_save(self) -> tuple[int, int]:
        state = (self._count, self._owner)
        self._count, self._owner = 0, -1
        self._block.release()
        return state

    def _acquire_restore(self, state: tuple[int, int]) -> None:
        self._block.acquire()
        self._count, self._owner = state


class Thread:
    """threading.Thread, as far as it is used."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: Iterable[object] = (),
        kwargs: Mapping[str, object] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._world = _world()
        self._target, self._args, self._kwargs = target, tuple(args), dict(kwargs or {})
        self.name, self.daemon = name or "thread", bool(daemon)
        self._fiber: Fiber | None = None
        self._is_done = False
        self._joiners: list[Fiber] = []

    @property
    def ident(self) -> int | None:
        return None if self._fiber is None else self._fiber.ident

    native_id = ident

    def start(self) -> None:
        if self._fiber is not None:
            raise RuntimeError("threads can only be started once")
        running = self._world.running
        if running is None:
            raise SimulationError(f"thread {self.name} was started outside of every node")
        self._fiber = self._world.spawn(running.node, self.name, self._bootstrap)
        self._fiber.owner = self

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def is_alive(self) -> bool:
        return self._fiber is not None and not self._is_done

    def join(self, timeout: float | None = None) -> None:
        running = self._world.running
        if self._fiber is None:
            raise RuntimeError("cannot join thread before it is started")
        if self._is_done or self._world.is_over:
            return
        assert running is not None, "the hub cannot join a thread"
        self._joiners.append(running)
        self._world.park(None if timeout is None else running.node.clock.world_ns(round(timeout * SECOND_NS)))
        if running in self._joiners:
            self._joiners.remove(running)

    def _bootstrap(self) -> None:
        assert self._fiber is not None
        try:
            self.run()
        except Exception as exc:  # noqa: BLE001  as threading.excepthook: the thread ends, the process goes on
            self._fiber.node.failed_threads.append((self.name, exc))
            self._world.note(f"thread {self.name} failed: {exc!r}")
        finally:
            self._is_done = True
            if not self._world.is_over:
                for joiner in self._joiners:
                    self._world.wake(joiner)


class MainThread:
    """What `current_thread` says where no thread object was made: the fiber that a node began with, and the hub."""

    def __init__(self, name: str, ident: int) -> None:
        self.name, self.ident, self.daemon = name, ident, False
        self.native_id = ident

    def is_alive(self) -> bool:
        return True

    def join(self, timeout: float | None = None) -> None:
        raise SimulationError("the main thread of a node cannot be joined")


def get_ident() -> int:
    fiber = _world().running
    return 0 if fiber is None else fiber.ident


def current_thread() -> object:
    fiber = _world().running
    if fiber is None:
        return MainThread("hub", 0)
    if fiber.owner is None:
        fiber.owner = MainThread(fiber.name, fiber.ident)
    return fiber.owner
