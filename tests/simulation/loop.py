"""asyncio's own selector event loop, with a selector that waits in virtual time.

Everything above the selector and the sockets is CPython's code: callbacks, tasks, transports, TLS. Only a turn of the
loop and its heap of timers are ours: they do what CPython's do, with less work for each turn. The loop's time is its
node's monotonic clock. Tasks and futures get numbers for hashes, because sets of them (`asyncio.wait`, our own) would
otherwise be walked in the order of their memory addresses.

A broker wakes a hundred times a second for this and that, and in a rest finds nothing to do. So while the world rests,
timers of a node end together, every five seconds; those of a patient node end together at other times too, more often.
They are late then as in a process on a busy machine, never early.
"""

from __future__ import annotations

import asyncio
import selectors
from asyncio import events
from asyncio.selector_events import BaseSelectorEventLoop
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context
from functools import partial
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Any, Final

from simulation.world import MICROSECOND_NS, REST_GRID_NS, REST_WAIT_NS_MIN, SECOND_NS, Fiber

if TYPE_CHECKING:
    from simulation.nodes import Node
    from simulation.sockets import Socket

TURN_NS_MAX: Final = 200 * MICROSECOND_NS  # what some turns of a loop cost
TURNS_AT_ONCE: Final = 6  # at most so many turns of a loop that has work go by before other threads run
REST_GRID_S, REST_TIMER_S_MIN = REST_GRID_NS / SECOND_NS, REST_WAIT_NS_MIN / SECOND_NS
GRID_S: Final = 0.05  # where timers of a patient node end
RESOLUTION_S: Final = 1e-9
DEFAULT_WORKERS: Final = 8
_LOOP: Any = BaseSelectorEventLoop  # its private methods are in no stub


class SimulatedSelector(selectors.BaseSelector):
    """Waits for sockets of one node, for timers, and for `interrupt`. Only sockets that changed are looked at."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._keys: dict[int, selectors.SelectorKey] = {}
        self._watchers: dict[int, Callable[[], None]] = {}
        self._suspects: dict[int, None] = {}  # descriptors that may be ready, in the order in which they became so
        self._waiting: Fiber | None = None
        self._is_interrupted = False
        self._turns = 0  # since others could run

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = selectors.SelectorKey(self._socket(fileobj), self._number(fileobj), events, data)
        if key.fd in self._keys:
            raise KeyError(f"{fileobj!r} is already registered")
        self._keys[key.fd] = key
        watcher = self._watchers[key.fd] = partial(self._changed, key.fd)
        key.fileobj.watchers[watcher] = None
        self._suspects[key.fd] = None
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key = self._keys.pop(self._number(fileobj))
        key.fileobj.watchers.pop(self._watchers.pop(key.fd), None)
        self._suspects.pop(key.fd, None)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = self._keys[self._number(fileobj)]._replace(events=events, data=data)
        self._keys[key.fd] = key
        self._suspects[key.fd] = None
        return key

    def get_key(self, fileobj: Any) -> selectors.SelectorKey:
        return self._keys[self._number(fileobj)]

    def get_map(self) -> Mapping[Any, selectors.SelectorKey]:
        return self._keys

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        world, clock = self._node.world, self._node.clock
        if (timeout is not None and timeout <= 0) or self._is_interrupted or (self._suspects and self._ready()):
            self._turns += 1
            if self._turns >= TURNS_AT_ONCE:
                self._turns = int(world.random.random() * TURNS_AT_ONCE)
                world.pass_turn(1 + int(world.random.random() * TURN_NS_MAX))
        else:
            self._waiting = world.running
            timeout_ns = None if timeout is None else clock.world_ns(round(timeout * SECOND_NS)) + MICROSECOND_NS
            try:
                world.park(timeout_ns)
            finally:
                self._waiting = None
        self._is_interrupted = False
        return self._ready() if self._suspects else []

    def interrupt(self) -> None:
        self._is_interrupted = True
        self._awake()

    def close(self) -> None:
        for key in list(self._keys.values()):
            self.unregister(key.fd)

    def _changed(self, descriptor: int) -> None:
        """Nobody is woken for what nobody waits for: a sender learns of each segment that arrived."""
        if self._mask(self._keys[descriptor]):
            self._suspects[descriptor] = None
            self._awake()

    def _awake(self) -> None:
        if self._waiting is not None:
            fiber, self._waiting = self._waiting, None
            self._node.world.wake(fiber)

    def _ready(self) -> list[tuple[selectors.SelectorKey, int]]:
        found = []
        for descriptor in list(self._suspects):
            key = self._keys[descriptor]
            mask = self._mask(key)
            if mask:
                found.append((key, mask))
            else:
                del self._suspects[descriptor]
        return found

    def _mask(self, key: selectors.SelectorKey) -> int:
        """What a socket is ready for, of what was asked for."""
        _, _, events, _ = key
        sock: Any = key[0]
        mask = selectors.EVENT_READ if events & selectors.EVENT_READ and sock.is_readable else 0
        return mask | selectors.EVENT_WRITE if events & selectors.EVENT_WRITE and sock.is_writable else mask

    def _socket(self, fileobj: Any) -> Socket:
        return self._node.sockets[fileobj] if isinstance(fileobj, int) else fileobj

    def _number(self, fileobj: Any) -> int:
        number = fileobj if isinstance(fileobj, int) else fileobj.fileno()
        if number < 0:  # it was closed before it was unregistered, as asyncio may do
            for key in self._keys.values():
                if key.fileobj is fileobj:
                    return key.fd
            raise ValueError(f"Invalid file object: {fileobj!r}")
        return int(number)


class NumberedTask(asyncio.Task):
    """A task whose hash is the same in every run: a number, given when it is first asked for."""

    _number = 0

    def __hash__(self) -> int:
        loop: Any = self.get_loop()
        self._number = self._number or loop.next_number()
        return self._number


class NumberedFuture(asyncio.Future):
    """A future whose hash is the same in every run."""

    _number = 0

    def __hash__(self) -> int:
        loop: Any = self.get_loop()
        self._number = self._number or loop.next_number()
        return self._number


class SimulatedLoop(_LOOP):
    """The loop of one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._monotonic_ns = node.clock.monotonic_ns  # asked for three times in each turn
        self._numbers = 0
        self._phase_s = node.world.random.random() * REST_GRID_S
        self._selecting = SimulatedSelector(node)
        super().__init__(self._selecting)
        self._timers: list[tuple[float, int, asyncio.TimerHandle]] = []  # (when, number, handle)
        self._timer_number = 0
        self.set_task_factory(_numbered)
        self.set_exception_handler(self._complain)
        self.set_default_executor(ThreadPoolExecutor(DEFAULT_WORKERS, "asyncio"))

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def time(self) -> float:
        return self._monotonic_ns() / SECOND_NS

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Timers end on a grid while the world rests, and those of a patient node always do."""
        if self._node.world.is_resting:
            if when - self.time() >= REST_TIMER_S_MIN:
                when = self._phase_s - (self._phase_s - when) // REST_GRID_S * REST_GRID_S
        elif self._node.is_patient and when - self.time() >= GRID_S:
            when = self._phase_s - (self._phase_s - when) // GRID_S * GRID_S
        self._check_closed()
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        self._timer_number += 1
        heappush(self._timers, (when, self._timer_number, timer))
        return timer

    def create_future(self) -> asyncio.Future:
        return NumberedFuture(loop=self)

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        if self._node.world.is_over:
            return asyncio.Handle(callback, args, self, context)
        return super().call_soon_threadsafe(callback, *args, context=context)

    def run_forever(self) -> None:
        """As asyncio's, without the hooks for asynchronous generators: those are one set for all loops of a thread."""
        self._check_closed()
        self._check_running()
        self._thread_id = self._node.process_id
        events._set_running_loop(self)
        try:
            while True:
                self._run_once()
                if self._stopping:
                    break
        finally:
            self._stopping: bool = False
            self._thread_id = None
            events._set_running_loop(None)

    def _run_once(self) -> None:
        """A turn: look at the sockets or wait for them, then call what is ready, and the timers that have ended."""
        timers, ready = self._timers, self._ready
        while timers and timers[0][2]._cancelled:  # type: ignore[attr-defined]
            heappop(timers)
        timeout = 0.0 if ready or self._stopping else max(0.0, timers[0][0] - self.time()) if timers else None
        events = self._selecting.select(timeout)
        if events:
            self._process_events(events)
        end_s = self.time() + RESOLUTION_S
        while timers and timers[0][0] < end_s:
            ready.append(heappop(timers)[2])
        for _ in range(len(ready)):  # what these add is for the next turn
            handle = ready.popleft()
            if not handle._cancelled:
                handle._run()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is passed over when its time has come."""

    def __del__(self, _warn: object = None) -> None:
        """The loop of a killed process is never closed, and its executors belong to a world that is over."""

    def _make_self_pipe(self) -> None:
        return

    def _close_self_pipe(self) -> None:
        return

    def _write_to_self(self) -> None:
        self._selecting.interrupt()

    def _complain(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if not self._node.world.is_over:
            error = context.get("exception")
            self._node.complaints.append(f"{context.get('message')}: {error!r}")
            self._node.world.note(f"complaint {context.get('message')} {type(error).__name__}")


def _numbered(
    loop: asyncio.AbstractEventLoop, coro: Coroutine[Any, Any, Any], *, context: Context | None = None, **more: Any
) -> asyncio.Task:
    assert isinstance(loop, SimulatedLoop)
    return NumberedTask(coro, loop=loop, context=context, **more)
