"""config/deletedTopics.json: which topics were deleted, and where the log ended then.

    {"deletedTopics": {"Orders": {"logEnd": 73400320, "isMadeAgain": false}}}

A deleted topic's records stay in the log until they expire, so its queues come back whenever queues are made from the
log: after a kill that came before their removal was on the disk, or when someone deleted the queue directory. Opening
adopts topics that only the queues know (adoption.py), and must not adopt these: every queue that ends before `logEnd`
is removed again, of a topic that was made again too. A delayed message or a retry that was waiting is still delivered,
behind `logEnd`, and brings nothing back either unless the topic was made again.

An entry is of use as long as the log holds such records, and is dropped with them. A power cut may take the end of the
log with which a topic was deleted; what is written there later was not deleted, so opening moves an entry back to the
end of the log that it finds.

The file is named to the saver before `topics.json`, and both are marked in one step of the loop: no crash finds a table
that lacks a topic without finding the entry as well. Apache's broker has no such file and ignores it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from contrailmq.broker.state import config_files
from contrailmq.broker.state.config_files import Json

DELETED_FILE: Final = "deletedTopics.json"
_KEY: Final = "deletedTopics"


class Deletion(NamedTuple):
    log_end: int
    is_made_again: bool = False


class DeletedTopics:
    """Owner: the node."""

    def __init__(self) -> None:
        self._deletions: dict[str, Deletion] = {}

    def note(self, name: str, *, log_end: int) -> None:
        self._deletions[name] = Deletion(log_end)

    def note_made_again(self, name: str) -> bool:
        """The topic exists; False when that changes nothing."""
        known = self._deletions.get(name)
        if known is None or known.is_made_again:
            return False
        self._deletions[name] = known._replace(is_made_again=True)
        return True

    def is_gone(self, name: str) -> bool:
        """Whether the topic was deleted, and not made again."""
        known = self._deletions.get(name)
        return known is not None and not known.is_made_again

    def gone(self) -> set[str]:
        """All that were deleted, and not made again."""
        return {name for name, known in self._deletions.items() if not known.is_made_again}

    def covers(self, name: str, *, newest_end: int) -> bool:
        """Whether the topic was deleted after its newest message, which ends there."""
        known = self._deletions.get(name)
        return known is not None and newest_end <= known.log_end

    def fit(self, log_min: int, log_end: int) -> bool:
        """Drop or move back what is outside of the log; whether there was any."""
        before = self._deletions
        self._deletions = {
            name: known._replace(log_end=min(known.log_end, log_end))
            for name, known in before.items()
            if known.log_end > log_min
        }
        return self._deletions != before

    def snapshot(self) -> Callable[[], Json]:
        deletions = dict(self._deletions)
        return lambda: {
            _KEY: {
                name: {"logEnd": known.log_end, "isMadeAgain": known.is_made_again} for name, known in deletions.items()
            }
        }

    def load(self, path: Path) -> None:
        config_files.load(path, self.read)

    def read(self, data: Json) -> None:
        self._deletions = {
            name: Deletion(config_files.whole_number(entry.get("logEnd")), entry.get("isMadeAgain") is True)
            for name, entry in config_files.entries(data, _KEY).items()
        }
