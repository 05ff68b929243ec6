"""How far clients may fill a table: any client can create topics and groups by a send, a pull or a heartbeat.

All entries of the table count. Operators may create more. Retry and dead-letter topics of an existing group do not
ask here: the limit of groups bounds them.
"""

from __future__ import annotations

import logging
from typing import Final

from contrailmq.message import ContrailError

log = logging.getLogger("contrailmq.broker")

DEFAULT_MAX: Final = 50_000  # each is saved with all others at every change: 50,000 topics are a file of 10 MB
_SHOWN: Final = 128


class ClientBoundError(ContrailError):
    """Clients may create no more of these; nothing was created."""


class ClientBound:
    """The bound of one table. Owner: the table."""

    def __init__(self, what: str, setting: str) -> None:
        self._what = what
        self._setting = setting
        self._is_told = False
        self.count_max = DEFAULT_MAX
        self.refused = 0

    def check(self, name: str, count: int) -> None:
        """ClientBoundError when the table is full, for a client. The log has it once, until there was room again."""
        if count < self.count_max:
            self._is_told = False
            return
        self.refused += 1
        text = (
            f"{self._what} {name[:_SHOWN]} is not created: this broker has {count} {self._what}s, and clients may "
            f"create no more than {self._setting}={self.count_max}: create it with an admin tool, delete {self._what}s "
            f"that nobody uses, or raise {self._setting}"
        )
        if not self._is_told:
            self._is_told = True
            log.warning("%s; reported once until there is room", text)
        raise ClientBoundError(text)
