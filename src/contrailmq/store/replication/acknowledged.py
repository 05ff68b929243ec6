"""How many slaves have the log up to some offset. Counting alone: no clock, no sockets.

The classic protocol gives a slave no name. All that a master knows of a connection is the address that it comes from,
and of the group, which slaves are registered, with their addresses. So, for each remote host:

    counted := the k furthest reports of the connections from there        k := how many slaves are known to be there

Two connections of one slave (a new one beside one that the network has cut and nobody has closed) count once, and two
slaves on one host count as two. What cannot be told apart is two slaves on one host, of which one is connected twice
and the other is gone: for as long as the dead connection lives (haHousekeepingInterval at most), that is two. Whoever
must not have that gives each slave its own address.

An unknown host counts for nothing. A report counts only while its connection lives: who is gone may have lost its disk.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

NOWHERE: Final = -1  # what nobody has reached


class Acknowledged:
    """The newest report of every connection. Owner: the server of the HA port; runs on its loop's thread."""

    def __init__(self, slaves_at: Callable[[str], int]) -> None:
        """`slaves_at` says how many slaves of the group are known to be at a host."""
        self._slaves_at = slaves_at
        self._reports: dict[Hashable, tuple[str, int]] = {}  # connection -> (host, offset)
        self._counted: list[int] = []  # furthest first

    def note(self, connection: Hashable, host: str, offset: int) -> None:
        """A connection from this host reports that its slave's log ends here. The newest report counts."""
        self._reports[connection] = (host, offset)
        self.recount()

    def drop(self, connection: Hashable) -> bool:
        """The connection is over, or its slave silent; False when it did not count anyway."""
        if self._reports.pop(connection, None) is None:
            return False
        self.recount()
        return True

    def recount(self) -> None:
        """The members of the group may have changed."""
        hosts: dict[str, list[int]] = {}
        for host, offset in self._reports.values():
            hosts.setdefault(host, []).append(offset)
        self._counted = sorted(
            (
                offset
                for host, offsets in hosts.items()
                for offset in sorted(offsets, reverse=True)[: self._slaves_at(host)]
            ),
            reverse=True,
        )

    @property
    def furthest(self) -> int:
        """RocketMQ's push2SlaveMaxOffset: what at least one slave has; NOWHERE without one."""
        return self.reached_by(1)

    def reached_by(self, slaves: int) -> int:
        """The offset up to which at least so many slaves have the log; NOWHERE when there are fewer."""
        assert slaves > 0
        return self._counted[slaves - 1] if slaves <= len(self._counted) else NOWHERE

    def count(self, offset: int) -> int:
        """How many slaves have the log up to this offset, at least."""
        return sum(reached >= offset for reached in self._counted)
