"""Consumer offsets: how far each group has read each queue, and offsets that an operator has reset.

The table is keyed `topic@group`, then by queue, as in `consumerOffset.json`. Any committed value is accepted,
also a smaller one; `BrokerNode.commit_offset` makes sure that none is beyond the end of its queue.

A server-side reset stores the new offset beside the table. Until the group's next pull of that queue, commits are
acknowledged but ignored (a consumer still works on the old messages and must not undo the reset), and a query returns
the reset offset. That pull removes it.

The file of a slave has one key more, `committedHere`: offsets of the table that groups committed at this slave and that
its master does not have yet. It is in the same file as the table, so that no crash can part the two; RocketMQ and
masters of ours ignore it, and leave it out when they save. That of a master has the key `journaled`: the place of the
first entry of the journal (offset_journal.py) that is newer than the file. RocketMQ ignores that one too.

Pull offsets (what was last asked for, for lag figures only) live in a second table, saved with the first like the
reference does.

`setByHand` in the file says where the log ended when an operator set an offset (ours, RocketMQ ignores it). What the
log has from before that place is no hint any more at where a group of POP goes on (pop/recovery.py). A place beyond the
end of the log, after a power failure, becomes that end; one that the log does not hold any more is dropped
(`fit_set_by_hand`). Slaves have what their master has.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from itertools import islice
from pathlib import Path
from typing import Final

from contrailmq.broker.state import config_files
from contrailmq.broker.state.config_files import DataVersion, Json, whole_number
from contrailmq.store import EntryPlace

OFFSETS_FILE: Final = "consumerOffset.json"
SEPARATOR: Final = "@"
REMOVED: Final = -1  # in place of a queue: see OffsetTable.changes
_COMMITTED_HERE: Final = "committedHere"
_JOURNALED: Final = "journaled"
_SET_BY_HAND: Final = "setByHand"
PULLS_PER_VERSION: Final = 500  # commits between two data versions (consumerOffsetUpdateVersionStep)

_Table = dict[str, dict[int, int]]


class OffsetTable:
    """Owner: the loop."""

    def __init__(self, *, now_ms: Callable[[], int]) -> None:
        self._now_ms = now_ms
        self._offsets: _Table = {}
        self._pull_offsets: _Table = {}
        self._resets: _Table = {}
        self._set_by_hand: _Table = {}  # where the log ended then
        self._commits = 0
        self.is_dirty = False
        # Of the committed offsets, by key and queue; queue -1 says that the key is gone. The journal takes them away;
        # on a slave, the hand-over to its master does.
        self.changes: dict[tuple[str, int], int] = {}
        self.version = DataVersion(timestamp=now_ms())
        self.on_group_removed: Callable[[str], None] = lambda group: None
        self.journaled: EntryPlace | None = None  # entries of the journal before this place are in the table

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Record what the group has consumed; ignored while a reset waits to be noticed."""
        key = f"{topic}@{group}"
        if self._resets and queue_id in self._resets.get(key, ()):
            return
        queues = self._offsets.get(key)
        if queues is None:
            queues = self._offsets[key] = {}
        if queues.get(queue_id) == offset:
            return
        queues[queue_id] = self.changes[key, queue_id] = offset
        self._touched()

    def set_back(self, end_of: Callable[[str, int], int]) -> int:
        """Offsets beyond the end of their queue become the end, `end_of(topic, queue_id)`; how many did.

        For a start: a power failure may take the end of the log and leave the table. The next messages stand where the
        lost ones stood, and a group that stayed behind them would never get them.
        """
        moved = 0
        for (key, queue_id), offset in self.whole().items():
            topic, _, group = key.partition(SEPARATOR)
            end = end_of(topic, queue_id)
            if offset > end:
                self.commit(group, topic, queue_id, end)
                moved += 1
        return moved

    def set_back_of_slave(self, end_of: Callable[[str, int], int]) -> int:
        """The same; the master is told only of queues of which it was to be told before."""
        here = set(self.changes)
        moved = self.set_back(end_of)
        self.changes = {place: offset for place, offset in self.changes.items() if place in here}
        return moved

    def note_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        key = f"{topic}@{group}"
        queues = self._pull_offsets.get(key)
        if queues is None:
            queues = self._pull_offsets[key] = {}
        queues[queue_id] = offset

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """The reset offset when one waits, else the committed one, else None."""
        key = f"{topic}@{group}"
        if self._resets:
            reset = self._resets.get(key, {}).get(queue_id)
            if reset is not None:
                return reset
        queues = self._offsets.get(key)
        return None if queues is None else queues.get(queue_id)

    def query_pull(self, group: str, topic: str, queue_id: int) -> int | None:
        return self._pull_offsets.get(f"{topic}@{group}", {}).get(queue_id)

    def queues(self, group: str, topic: str) -> dict[int, int]:
        return dict(self._offsets.get(f"{topic}@{group}", {}))

    def pulled(self, group: str, topic: str) -> dict[int, int]:
        """What was last asked for, by queue."""
        return dict(self._pull_offsets.get(f"{topic}@{group}", {}))

    def __len__(self) -> int:
        """Pairs of group and topic that have committed something."""
        return len(self._offsets)

    def keys(self, count_max: int) -> list[str]:
        """`topic@group` of the first so many."""
        return list(islice(self._offsets, count_max))

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Make the group's next pull of the queue start at `offset`."""
        key = f"{topic}@{group}"
        self._offsets.setdefault(key, {})[queue_id] = self.changes[key, queue_id] = offset
        self._resets.setdefault(key, {})[queue_id] = offset
        self._touched()

    @property
    def has_resets(self) -> bool:
        return bool(self._resets)

    def take_reset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The offset that a pull must be moved to, once; None when there is no reset."""
        if not self._resets:
            return None
        key = f"{topic}@{group}"
        waiting = self._resets.get(key)
        if waiting is None:
            return None
        offset = waiting.pop(queue_id, None)
        if not waiting:
            del self._resets[key]
        return offset

    def note_set_by_hand(self, group: str, topic: str, queue_id: int, *, log_end: int) -> None:
        """An operator has set the offset, where the log ends there."""
        self._set_by_hand.setdefault(f"{topic}@{group}", {})[queue_id] = log_end
        self.is_dirty = True

    def set_by_hand_at(self, key: str, queue_id: int) -> int:
        """Where the log ended when an operator set the offset; 0 if nobody did."""
        return self._set_by_hand.get(key, {}).get(queue_id, 0)

    def all_set_by_hand(self) -> list[tuple[str, int, int]]:
        """Key, queue, and where the log ended."""
        return [(key, queue_id, end) for key, queues in self._set_by_hand.items() for queue_id, end in queues.items()]

    def fit_set_by_hand(self, log_min: int, log_end: int) -> bool:
        """Drop or move back what is outside of the log; whether any was beyond its end."""
        known = self.all_set_by_hand()
        self._set_by_hand = {}
        for key, queue_id, end in known:
            if end > log_min:
                self._set_by_hand.setdefault(key, {})[queue_id] = min(end, log_end)
        return any(end > log_end for _, _, end in known)

    def clone(self, source: str, destination: str, topic: str) -> None:
        queues = self._offsets.get(f"{topic}@{source}")
        if queues is not None:
            key = f"{topic}@{destination}"
            self._offsets[key] = dict(queues)
            self.changes |= {(key, queue_id): offset for queue_id, offset in queues.items()}
            self._touched()

    def stored(self, key: str, queue_id: int) -> int | None:
        """The committed offset, whatever was reset."""
        return self._offsets.get(key, {}).get(queue_id)

    def whole(self) -> dict[tuple[str, int], int]:
        """Every committed offset, by key and queue."""
        return {(key, queue_id): offset for key, queues in self._offsets.items() for queue_id, offset in queues.items()}

    def groups_of_topic(self, topic: str) -> set[str]:
        prefix = topic + SEPARATOR
        return {key[len(prefix) :] for key in self._offsets if key.startswith(prefix)}

    def topics_of_group(self, group: str) -> set[str]:
        suffix = SEPARATOR + group
        return {key[: -len(suffix)] for key in self._offsets if key.endswith(suffix)}

    def min_offsets(self, topic: str, *, without_groups: Iterable[str]) -> dict[int, int]:
        """The smallest offset of each queue over all groups but some (code 308)."""
        skipped = set(without_groups)
        result: dict[int, int] = {}
        for group in self.groups_of_topic(topic) - skipped:
            for queue_id, offset in self._offsets[f"{topic}@{group}"].items():
                result[queue_id] = min(offset, result.get(queue_id, offset))
        return result

    def remove_group(self, group: str) -> None:
        self._remove(lambda key: key.endswith(SEPARATOR + group))
        self.on_group_removed(group)

    def remove_topic(self, topic: str) -> None:
        self._remove(lambda key: key.startswith(topic + SEPARATOR))

    def remove_topics(self, topics: Container[str]) -> bool:
        """Forget where groups stand in these; False when they stood nowhere."""
        return self._remove(lambda key: key.partition(SEPARATOR)[0] in topics)

    # --- files and peers

    def to_json(self) -> Json:
        return self.snapshot()()

    def snapshot(self) -> Callable[[], Json]:
        """What makes the JSON form of the table as it is now, in any thread and whatever changes later."""
        version = self.version.to_json()
        offsets, pulls, by_hand = (
            {key: dict(queues) for key, queues in table.items()}
            for table in (self._offsets, self._pull_offsets, self._set_by_hand)
        )
        return lambda: {
            "dataVersion": version,
            "offsetTable": _to_json(offsets),
            "pullOffsetTable": _to_json(pulls),
            **({_SET_BY_HAND: _to_json(by_hand)} if by_hand else {}),
        }

    def snapshot_of_master(self) -> Callable[[], Json]:
        """As `snapshot`, with how much of the journal it has."""
        table, journaled = self.snapshot(), self.journaled
        return table if journaled is None else lambda: table() | {_JOURNALED: list(journaled)}

    def snapshot_of_slave(self) -> Callable[[], Json]:
        """As `snapshot`, with what the master does not have yet."""
        table = self.snapshot()
        here: _Table = {}
        for (key, queue_id), offset in self.changes.items():
            if queue_id != REMOVED:
                here.setdefault(key, {})[queue_id] = offset
        return lambda: table() | ({_COMMITTED_HERE: _to_json(here)} if here else {})

    def load(self, path: Path) -> None:
        config_files.load(path, self.read)

    def load_of_slave(self, path: Path) -> None:
        config_files.load(path, self._read_of_slave)

    def _read_of_slave(self, data: Json) -> None:
        here = _from_json(data, _COMMITTED_HERE) if _COMMITTED_HERE in data else {}
        self.read(data)
        self.changes = {(key, queue_id): offset for key, queues in here.items() for queue_id, offset in queues.items()}

    def read(self, data: Json) -> None:
        """Replace the table by what a file or a master says; 4.x has neither version nor pull offsets."""
        offsets, pull_offsets = _from_json(data, "offsetTable"), _from_json(data, "pullOffsetTable")
        by_hand, journaled = _from_json(data, _SET_BY_HAND), _place_from_json(data)
        self.version.read(data.get("dataVersion"))
        self._offsets, self._pull_offsets, self._set_by_hand = offsets, pull_offsets, by_hand
        self.journaled = journaled

    def take_over(self, other: OffsetTable) -> bool:
        """A slave's table becomes its master's, also where a group is gone; False when it is that already.

        The values are compared: the version moves only with every 500th commit.
        """
        is_same = self._offsets == other._offsets and self._pull_offsets == other._pull_offsets
        is_same = is_same and self._set_by_hand == other._set_by_hand
        if is_same and self.version.parts == other.version.parts:
            return False
        self._offsets, self._pull_offsets, self.version = other._offsets, other._pull_offsets, other.version
        self._set_by_hand = other._set_by_hand
        return True

    def _remove(self, is_gone: Callable[[str], bool]) -> bool:
        """Whether there was any."""
        tables = (self._offsets, self._pull_offsets, self._resets, self._set_by_hand)
        doomed = [(table, key) for table in tables for key in table if is_gone(key)]
        for table, key in doomed:
            del table[key]
        gone = {key for table, key in doomed if table is self._offsets}
        if gone:
            self.changes = {place: offset for place, offset in self.changes.items() if place[0] not in gone}
            self.changes |= {(key, REMOVED): 0 for key in gone}
        if doomed:
            self._touched()
        return bool(doomed)

    def _touched(self) -> None:
        self.is_dirty = True
        self._commits += 1
        if self._commits % PULLS_PER_VERSION == 0:
            self.version.advance(self._now_ms())


def _to_json(table: _Table) -> Json:
    return {key: {str(queue_id): offset for queue_id, offset in queues.items()} for key, queues in table.items()}


def _place_from_json(data: Json) -> EntryPlace | None:
    place = data.get(_JOURNALED)
    if place is None:
        return None
    if not isinstance(place, list) or len(place) != len(EntryPlace._fields):
        raise ValueError(f"{_JOURNALED} must be two numbers and is {place!r}")
    return EntryPlace(*map(whole_number, place))


def _from_json(data: Json, key: str) -> _Table:
    return {
        name: {int(queue_id): whole_number(offset) for queue_id, offset in queues.items()}
        for name, queues in config_files.entries(data, key).items()
    }
