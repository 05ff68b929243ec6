"""Topics and groups on their way to the disk, and the answers that wait for them.

A send may create its topic, a heartbeat or a send-back its group. A sender relies on finding an acknowledged message
after a crash, and a message of an unknown topic is not found. So a topic that was created or changed is *pending* until
`topics.json` with it is durable and the NameServers know it. Until then all sends to it wait for their answer. A group
is pending until `subscriptionGroup.json` with it is durable.

One save serves everything that changed before it began. If the disk refuses it, the waiting senders get the error:
their message is stored, but its topic may not be. Later senders wait for the next try.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from contrailmq.broker.state.config_files import TableSaveError

Outcome = Callable[[TableSaveError | None], None]  # None: it is kept

TOPICS_FILE: Final = "topics.json"
GROUPS_FILE: Final = "subscriptionGroup.json"


class Pending:
    """One topic or group that is not kept yet: `conditions` must be met first."""

    __slots__ = ("_conditions", "_error", "_waiting")

    def __init__(self, conditions: int, done: Outcome) -> None:
        self._conditions = conditions
        self._error: TableSaveError | None = None
        self._waiting = [done]

    def then(self, call: Outcome) -> None:
        """Only before the last condition is met."""
        assert self._conditions
        self._waiting.append(call)

    def met(self, error: TableSaveError | None = None) -> None:
        self._error = self._error or error
        self._conditions -= 1
        if not self._conditions:
            for call in self._waiting:
                call(self._error)


class Keeping:
    """Owner: the node. Without a saver and NameServers (a test's broker) everything is kept at once."""

    def __init__(self) -> None:
        self.topics: dict[str, Pending] = {}
        self.groups: dict[str, Pending] = {}
        # Calls once the file with all that changed up to now is durable, or could not be written.
        self.when_saved: Callable[[str, Outcome], None] = _at_once
        # Calls once the NameServers have heard of all topics up to now.
        self.when_registered: Callable[[Callable[[], None]], None] = lambda call: call()

    def topic_changed(self, name: str) -> None:
        pending = self._hold(self.topics, name, TOPICS_FILE, conditions=2)
        self.when_registered(pending.met)

    def group_changed(self, name: str) -> None:
        self._hold(self.groups, name, GROUPS_FILE, conditions=1)

    def wait(self, topics: Iterable[str], groups: Iterable[str], call: Outcome) -> bool:
        """Call once, when all of these are kept or one cannot be; False, and no call, when none is pending."""
        found = [self.topics.get(name) for name in topics] + [self.groups.get(name) for name in groups]
        pending = list(dict.fromkeys(one for one in found if one is not None))
        if not pending:
            return False
        together = Pending(len(pending), call)
        for one in pending:
            one.then(together.met)
        return True

    async def kept(self, *topics: str) -> None:
        """Return when these topics are kept; TableSaveError when one cannot be."""
        outcome: asyncio.Future[TableSaveError | None] = asyncio.get_running_loop().create_future()
        if self.wait(topics, (), lambda error: None if outcome.done() else outcome.set_result(error)):
            error = await outcome
            if error is not None:
                raise error

    def _hold(self, table: dict[str, Pending], name: str, file: str, *, conditions: int) -> Pending:
        def done(error: TableSaveError | None) -> None:
            if table.get(name) is pending:
                del table[name]
                if error is not None:
                    self._hold(table, name, file, conditions=1)

        pending = table[name] = Pending(conditions, done)
        self.when_saved(file, pending.met)
        return pending


def _at_once(_file: str, call: Outcome) -> None:
    call(None)
