"""config/deletedTopics.json: which topics were deleted, and where the log ended then.

    {"deletedTopics": {"Orders": {"logEnd": 73400320, "isMadeAgain": false}}}

A deleted topic's records stay in the log until they expire, so rebuilding queues from the log brings its queues back.
Opening must not adopt those (adoption.py): it removes every queue that ends before `logEnd`, also of a topic that was
created again. A waiting delayed message or retry is still delivered, after `logEnd`; it does not bring the topic back.
An entry is dropped when the log no longer holds such records. If a power cut took the end of the log, opening moves the
entry back to the end that it finds: what is written there later was not deleted. The file is saved before
`topics.json`, so no crash leaves a table without the topic and without the entry. Apache's broker ignores the file.

A slave has its master's entries, and removes the same queues when its log has come to `logEnd`: they come with the
topics (cluster/slave_sync.py). RocketMQ's masters do not tell of deletions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from contrailmq.broker.state import config_files
from contrailmq.broker.state.config_files import Json

DELETED_FILE: Final = "deletedTopics.json"
DELETED_KEY: Final = "deletedTopics"


class Deletion(NamedTuple):
    log_end: int
    is_made_again: bool = False


class DeletedTopics:
    """Owner: the node."""

    def __init__(self) -> None:
        self._deletions: dict[str, Deletion] = {}
        # The node calls it when their queues are gone.
        self.on_deleted: Callable[[Sequence[str]], None] = lambda names: None

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
        """Whether the topic was deleted and not created again."""
        known = self._deletions.get(name)
        return known is not None and not known.is_made_again

    def gone(self) -> set[str]:
        """All that were deleted and not created again."""
        return {name for name, known in self._deletions.items() if not known.is_made_again}

    def log_ends(self) -> dict[str, int]:
        """Where the log ended when each of them was deleted: what lies before that is not theirs any more."""
        return {name: known.log_end for name, known in self._deletions.items()}

    def follow(self, masters: DeletedTopics, *, reached: int) -> dict[str, int]:
        """Of a slave: have what its master has, as far as the log came that far; where the log ended for the new ones.

        Only the master knows whether a topic was made again: here all count as that, so that a slave started as a
        master adopts what came after the deletion.
        """
        before = self._deletions
        self._deletions = {
            name: Deletion(theirs.log_end, is_made_again=True) if theirs.log_end <= reached else before[name]
            for name, theirs in masters._deletions.items()
            if theirs.log_end <= reached or name in before
        }
        return {name: end for name, (end, _) in self._deletions.items() if before.get(name, (-1,))[0] != end}

    def beyond(self, reached: int) -> bool:
        """Whether a topic was deleted where the log has not come to."""
        return any(known.log_end > reached for known in self._deletions.values())

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
            DELETED_KEY: {
                name: {"logEnd": known.log_end, "isMadeAgain": known.is_made_again} for name, known in deletions.items()
            }
        }

    def load(self, path: Path) -> None:
        config_files.load(path, self.read)

    def read(self, data: Json) -> None:
        self._deletions = {
            name: Deletion(config_files.whole_number(entry.get("logEnd")), entry.get("isMadeAgain") is True)
            for name, entry in config_files.entries(data, DELETED_KEY).items()
        }
