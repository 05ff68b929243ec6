"""Whether a store may be used: not opened yet, open, closed, or come into this process by a fork.

Every public method of a store asks first (`while_open`), and again when it is done: files that are closed under a read
make it fail or answer with nothing, and both must say "closed". A closed store touches no file: its directory may be
another process's by now.

Fork. A child has a copy of the store's memory, and no lock, no threads, and no part in the parent's positions: the
parent would overwrite what it appended. So every store that was open is dead in the child, and its `close` does
nothing there. A forked child opens its own store, or hands messages to the parent.

Listeners. What they raise is logged and counted, and the store goes on.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Concatenate, Final, ParamSpec, Protocol, TypeVar

from contrailmq.store.base.errors import StoreClosedError, StoreError, StoreForkedError
from contrailmq.store.base.stats import StoreStats

_log = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


class StoreLife:
    """Whether one store is open, and which threads run its listeners. `MessageStore` changes it."""

    def __init__(
        self,
        path: Path,
        stats: StoreStats,
        on_fork: Callable[[], None],
        is_dispatching_here: Callable[[], bool],
    ) -> None:
        """`is_dispatching_here`: whether the calling thread may be in a listener that dispatch called directly."""
        self.is_open = self.was_opened = False
        self._path = path
        self._stats = stats
        self._on_fork = on_fork
        self._is_dispatching_here = is_dispatching_here
        self._owner_pid = 0  # of the process that opened it
        self._in_listeners: set[int] = set()  # threads that run a listener of ours

    def entered(self) -> None:
        """This process is about to open the store's files."""
        self.was_opened = True
        self._owner_pid = os.getpid()
        _open_stores.add(self)

    def left(self) -> None:
        """Closed, by this process."""
        self._owner_pid = 0
        _open_stores.discard(self)

    def forked(self) -> None:
        """We are a copy in a child of the process that opened the store."""
        self.is_open = False
        self._on_fork()

    def closed_error(self) -> StoreClosedError:
        if self._owner_pid not in (0, os.getpid()):
            return StoreForkedError(self._path, owner_pid=self._owner_pid)
        return StoreClosedError(self._path, was_open=self.was_opened)

    def check_open(self) -> None:
        if not self.is_open:
            raise self.closed_error()

    def check_not_closed(self) -> None:
        """For what may be set up before the store is opened."""
        if self.was_opened and not self.is_open:
            raise self.closed_error()

    def check_not_in_listener(self, what: str) -> None:
        if threading.get_ident() in self._in_listeners or self._is_dispatching_here():
            raise StoreError(
                f"store {self._path}: {what}() was called by a listener, and it would wait for the thread that "
                "runs the listener: let another thread call it"
            )

    def guarded(self, listener: Callable[P, None]) -> Callable[P, None]:
        """A listener whose errors are its own."""

        def tell(*args: P.args, **kwargs: P.kwargs) -> None:
            me = threading.get_ident()
            is_outermost = me not in self._in_listeners
            self._in_listeners.add(me)
            try:
                listener(*args, **kwargs)
            except Exception:  # noqa: BLE001 - logged and counted, and the store goes on
                note_listener_error(self._stats, listener)
            finally:
                if is_outermost:
                    self._in_listeners.discard(me)

        return tell


class _Living(Protocol):
    _life: StoreLife


S = TypeVar("S", bound=_Living)


def while_open(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """A method that raises StoreClosedError unless the store is open, from its beginning to its end."""

    @wraps(method)
    def guarded(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        life = self._life
        life.check_open()
        try:
            result = method(self, *args, **kwargs)
        except (ValueError, OSError) as exc:  # as of a mapping that was closed meanwhile
            if life.is_open:
                raise
            raise life.closed_error() from exc
        life.check_open()
        return result

    return guarded


def note_listener_error(stats: StoreStats, listener: object) -> None:
    """Call it where the error is being handled: the log gets its traceback."""
    stats.listener_error_count += 1
    _log.exception("a listener raised, and the store goes on without it: %r", listener)


_open_stores: Final[weakref.WeakSet[StoreLife]] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for store in list(_open_stores):
        store.forked()
    _open_stores.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)
