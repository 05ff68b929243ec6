"""How much a slave dispatches at a time: while it catches up with its master, the log comes first.

To be safe against the loss of the master, a message must be in the slave's log; queues and index can be made of that at
any time. They take most of what a message costs a slave. So while the master sends faster than the slave takes, nothing
is dispatched, and the slave is in sync again two to three times sooner. Nothing is lost by that: positions of groups
and deliveries wait for the queues (slave_sync.py), a stop dispatches the rest, and a start after a kill does.

What waits is bounded: beyond BACKLOG_BYTES_MAX as much is dispatched as comes. And it is dispatched in slices, between
which the loop does its other work.

A slave that keeps up dispatches each portion as it comes, and so does every broker that is no slave, in one go.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from contrailmq.store import MessageStore

BEHIND_BYTES: Final = 8 << 20  # of the log that the master has and we lack: beyond this a slave catches up
BACKLOG_BYTES_MAX: Final = 2 << 30  # ten seconds of dispatch, which a stop or a start after a kill must make up for
SLICE_BYTES: Final = 256 * 1024  # one or two milliseconds


class LogFirst:
    """Owner: BrokerNode of a slave; who follows the master says whether it catches up."""

    def __init__(
        self, store: MessageStore, later: Callable[[], None], *, backlog_bytes_max: int = BACKLOG_BYTES_MAX
    ) -> None:
        """`later` has the rest dispatched in another turn of the loop."""
        self.is_catching_up = False
        self.is_rest_due = False  # `later` was called, and its turn has not come
        self._store = store
        self._later = later
        self._backlog_bytes_max = backlog_bytes_max

    def dispatch(self) -> None:
        """This turn's share; the rest in later turns, if it can go on."""
        share = SLICE_BYTES
        if self.is_catching_up:
            share = self._backlog_bytes - self._backlog_bytes_max
        if share > 0 and self._store.dispatch(share):
            self.go_on()

    def go_on(self) -> None:
        """Have what is left dispatched, unless that is under way."""
        if not self.is_rest_due and self._backlog_bytes > 0:
            self.is_rest_due = True
            self._later()

    @property
    def _backlog_bytes(self) -> int:
        return self._store.replica.end - self._store.dispatched_offset
