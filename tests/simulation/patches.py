"""How unchanged code comes to live in a world: what the process offers is ours, for the duration.

Only doors of the operating system are replaced, in the modules of the standard library that everybody reaches them
through: time, chance, locks and threads, sockets, process ids, and syncs of files. The rest of the standard library
runs as it is: `threading.Condition` and `Event`, `queue`, `concurrent.futures` and asyncio find our locks under the
names that they look up. Names that were bound when a module was imported are looked for in our own modules and
exchanged: locks, and defaults of parameters such as `clock_s=time.monotonic`.

Globals of our modules that a real process would have for itself (the prefix of message ids, open stores) begin anew
with each world.

Modules compiled with mypyc call some of this by address and cannot be exchanged, so they are refused.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread as executor_threads
import contextlib
import fcntl
import gc
import itertools
import logging
import os
import queue
import random
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from types import FunctionType, ModuleType
from typing import Any, Final

from simulation import disks, sockets, threads
from simulation.loop import NumberedTask
from simulation.threads import Clockwork, Lock
from simulation.world import EPOCH_NS, SECOND_NS, SimulationError, World

_REAL_LOCK: Final = type(threading.Lock())
_PACKAGE: Final = "contrailmq"
# Their private names are in no stub.
_queue: Any = queue
_tasks: Any = asyncio.tasks
_executors: Any = executor_threads


@contextlib.contextmanager
def installed(world: World) -> Iterator[None]:
    """Everything that runs meanwhile, in this OS thread, lives in this world."""
    _refuse_compiled()
    Clockwork.world = world
    was_collecting = gc.isenabled()
    gc.disable()  # when finalizers run would depend on what ran before in this process
    with contextlib.ExitStack() as undo:
        undo.callback(gc.enable if was_collecting else gc.disable)
        undo.callback(random.setstate, random.getstate())
        for owner, name, value in _replacements(world):
            undo.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        random.seed(world.random.getrandbits(64))
        _renew_globals(undo)
        undo.callback(_forget_threads)
        undo.callback(_sweep)
        undo.callback(world.end)  # first of all: the unwinding still happens in this world
        yield


def _replacements(world: World) -> Iterator[tuple[object, str, object]]:
    times = _times(world)
    exchanged: dict[object, object] = {getattr(time, name): function for name, function in times.items()}
    for name, function in times.items():
        yield time, name, function

    def urandom(size: int) -> bytes:
        return world.random.randbytes(size)

    def getpid() -> int:
        running = world.running
        return real_pid if running is None else running.node.process_id

    real_pid = os.getpid()
    yield os, "urandom", urandom
    yield os, "getpid", getpid
    yield os, "fsync", disks.fsync_in(world, os.fsync)
    yield random, "_urandom", urandom
    yield random, "Random", _seeded_random(world)
    yield threading, "Lock", Lock
    yield threading, "_allocate_lock", Lock
    yield threading, "RLock", threads.RLock
    yield threading, "Thread", threads.Thread
    yield threading, "get_ident", threads.get_ident
    yield threading, "current_thread", threads.current_thread
    yield threading, "_time", times["monotonic"]
    yield queue, "SimpleQueue", _queue._PySimpleQueue
    yield socket, "socket", sockets.Socket
    yield fcntl, "ioctl", sockets.unread_in(world, fcntl.ioctl)
    yield socket, "getaddrinfo", sockets.getaddrinfo
    yield socket, "gethostname", lambda: world.running.node.host.name if world.running else "hub"
    # No two processes share it: one that is killed while it has it must not hold up the others.
    yield executor_threads, "_global_shutdown_lock", contextlib.nullcontext()
    yield from _bound_at_import(exchanged)


def _times(world: World) -> dict[str, Callable[..., object]]:
    def monotonic_ns() -> int:
        running = world.running
        return world.now_ns if running is None else running.node.clock.monotonic_ns()

    def time_ns() -> int:
        running = world.running
        return EPOCH_NS + world.now_ns if running is None else running.node.clock.wall_ns()

    def sleep(seconds: float) -> None:
        running = world.running
        if running is None:
            raise SimulationError("the hub cannot sleep: use World.run_for")
        world.park(running.node.clock.world_ns(round(seconds * SECOND_NS)))

    return {
        "monotonic": lambda: monotonic_ns() / SECOND_NS,
        "monotonic_ns": monotonic_ns,
        "perf_counter": lambda: monotonic_ns() / SECOND_NS,
        "perf_counter_ns": monotonic_ns,
        "time": lambda: time_ns() / SECOND_NS,
        "time_ns": time_ns,
        "clock_gettime_ns": lambda which: time_ns() if which == time.CLOCK_REALTIME else monotonic_ns(),
        "sleep": sleep,
    }


def _seeded_random(world: World) -> type[random.Random]:
    class SeededRandom(random.Random):
        """Without a seed, one of the world's."""

        def __init__(self, x: object = None) -> None:
            super().__init__(world.random.getrandbits(64) if x is None else x)

    return SeededRandom


def _modules() -> list[ModuleType]:
    names = sorted(name for name in sys.modules if name == _PACKAGE or name.startswith(f"{_PACKAGE}."))
    return [sys.modules[name] for name in names]


def _bound_at_import(exchanged: dict[object, object]) -> Iterator[tuple[object, str, object]]:
    """Locks in globals, and functions of `time` in defaults of parameters and in globals."""
    for module in _modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, _REAL_LOCK):
                yield module, name, Lock()
            elif callable(value) and not isinstance(value, type) and _is_among(value, exchanged):
                yield module, name, exchanged[value]
            for function in _functions_of(value, module):
                defaults = function.__defaults__ or ()
                if any(_is_among(default, exchanged) for default in defaults):
                    changed = tuple(exchanged[one] if _is_among(one, exchanged) else one for one in defaults)
                    yield function, "__defaults__", changed


def _is_among(value: object, exchanged: dict[object, object]) -> bool:
    return type(value).__name__ == "builtin_function_or_method" and value in exchanged


def _functions_of(value: object, module: ModuleType) -> list[FunctionType]:
    if isinstance(value, FunctionType) and value.__module__ == module.__name__:
        return [value]
    if isinstance(value, type) and value.__module__ == module.__name__:
        return [entry for entry in vars(value).values() if isinstance(entry, FunctionType)]
    return []


def _renew_globals(undo: contextlib.ExitStack) -> None:
    """What a process has for itself. A name that is gone from a module raises here, and is to be looked after."""
    from contrailmq.client.producing import trace
    from contrailmq.client.transport import instance
    from contrailmq.message import identity
    from contrailmq.store.base import store_lock
    from contrailmq.wire import connection, peer_warnings

    def renew(owner: object, name: str, value: object) -> None:
        undo.callback(setattr, owner, name, getattr(owner, name))
        setattr(owner, name, value)

    renew(identity, "_counter", itertools.count())
    renew(identity, "_unique_prefix", "0A000001" + "0000" + "00000000")
    renew(identity, "_head_ms", 0)
    renew(trace, "_numbers", itertools.count())
    renew(instance, "_instances", {})
    renew(peer_warnings.peer_warnings, "_clock_s", time.monotonic)
    renew(peer_warnings.peer_warnings, "_periods", {})
    undo.callback(store_lock._open_here.update, set(store_lock._open_here))
    undo.callback(store_lock._open_here.clear)
    store_lock._open_here.clear()
    numbers = itertools.count(1)

    def number_of(self: object) -> int:
        known = vars(self).get("_simulation_number")
        if known is None:
            known = vars(self)["_simulation_number"] = next(numbers)
        return int(known)

    undo.callback(setattr, connection.Connection, "__hash__", object.__hash__)
    connection.Connection.__hash__ = number_of
    undo.callback(logging.disable, logging.root.manager.disable)
    logging.disable(logging.CRITICAL)


def _refuse_compiled() -> None:
    for module in _modules():
        if str(getattr(module, "__file__", "") or "").endswith(".so"):
            raise SimulationError(f"{module.__name__} is compiled, which cannot be simulated: set CONTRAILMQ_PURE=1")


def _sweep() -> None:
    """Close the coroutines that nobody will run any more, and forget what they refer to; what they say is ignored."""
    hook, sys.unraisablehook = sys.unraisablehook, lambda _: None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for task in [task for task in _tasks._all_tasks if isinstance(task, NumberedTask)]:
                setattr(task, "_log_destroy_pending", False)  # noqa: B010  it is in no stub
                with contextlib.suppress(BaseException):
                    task.get_coro().close()
            gc.collect()
    finally:
        sys.unraisablehook = hook


def _forget_threads() -> None:
    """Executors leave their threads in a table that Python joins at its exit."""
    for thread in [thread for thread in _executors._threads_queues if isinstance(thread, threads.Thread)]:
        del _executors._threads_queues[thread]
