"""The life of a client: created, running, shut down; each step once.

created --start--> running --shutdown--> shut down
created --start fails--> failed            (may be started again: nothing is left behind)

A client belongs to the event loop that it was started on. On another loop its
sockets and futures would hang or break silently, so every call checks the loop and raises an error.
"""

from __future__ import annotations

import asyncio
import enum

from contrailmq.client.errors import ClientStateError

_loop_here = asyncio._get_running_loop  # None where there is no loop; the public one raises then. Asked by every send.


class State(enum.Enum):
    CREATED = "not started"
    STARTING = "starting"
    RUNNING = "running"
    FAILED = "failed to start"
    SHUT_DOWN = "shut down"


class Life:
    """The state of one client. `name` says in errors which client it was."""

    __slots__ = ("_loop", "_name", "state")

    def __init__(self, name: str) -> None:
        self._name = name
        self.state = State.CREATED
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def is_running(self) -> bool:
        return self.state is State.RUNNING

    def begin(self) -> None:
        if self.state not in (State.CREATED, State.FAILED):
            raise ClientStateError(
                f"{self._name} is {self.state.value}: start it once, and make a new one after shutdown"
            )
        self.state = State.STARTING
        self._loop = asyncio.get_running_loop()

    def check_running(self) -> None:
        if self.state is not State.RUNNING:
            remedy = "make a new one" if self.state is State.SHUT_DOWN else "use `with`, or call start() first"
            raise ClientStateError(f"{self._name} is {self.state.value}: {remedy}")
        if self._loop is not None and _loop_here() is not self._loop:
            check_loop(self._name, self._loop)

    def end(self) -> bool:
        """Whether there is something to shut down. Twice, or before the start, is silently nothing."""
        was_running = self.state is State.RUNNING
        if was_running and self._loop is not None:
            check_loop(self._name, self._loop)
        self.state = State.SHUT_DOWN
        return was_running


def check_loop(name: str, loop: asyncio.AbstractEventLoop) -> None:
    """Raise ClientStateError on another running loop than the client's, and when the client's is closed.

    A thread without a loop may ask: listeners in threads read their client's properties.
    """
    here = _loop_here()
    if here is loop:
        return
    if loop.is_closed():
        raise ClientStateError(
            f"{name} was started on an event loop that is closed now: start, use and shut down within one "
            "asyncio.run, or use the blocking clients"
        )
    if here is not None:
        raise ClientStateError(
            f"{name} was started on another event loop than this one: make a client on each loop, hand the call over "
            "with asyncio.run_coroutine_threadsafe, or use the blocking clients"
        )
