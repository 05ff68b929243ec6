"""How many messages of each topic wait, for people and dashboards: `config/timermetrics`, `config/transactionMetrics`.

    {"dataVersion": {"counter": 34, "stateVersion": 0, "timestamp": ...},
     "timingCount": {"Orders": {"count": 26, "timeStamp": ...}}}

The counts are bookkeeping beside the wheel, saved with each flush. A crash may leave them off by what happened since;
`TimerStore.recount` counts the wheel itself and sets them right (timerEnableCheckMetrics).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from contrailmq.store.files import Files


class TopicCounts:
    """Counts per topic. `field` names them in the file: timingCount or transactionCount. Owner: who counts."""

    def __init__(self, field: str, now_ms: int = 0) -> None:
        self._field = field
        self._counts: dict[str, int] = {}
        self._times_ms: dict[str, int] = {}
        self.added: dict[str, int] = {}  # since this process began
        self.removed: dict[str, int] = {}
        self.counter = 0
        self.state_version = 0
        self.timestamp = now_ms

    def add(self, topic: str, change: int, now_ms: int) -> None:
        self._counts[topic] = self._counts.get(topic, 0) + change
        moved = self.added if change > 0 else self.removed
        moved[topic] = moved.get(topic, 0) + abs(change)
        self._times_ms[topic] = now_ms
        self.counter += 1
        self.timestamp = now_ms

    def replace(self, counts: Mapping[str, int], now_ms: int) -> None:
        """Take counted values; topics without timers stay listed with zero."""
        self._counts = dict.fromkeys(self._counts, 0) | dict(counts)
        self._times_ms = {topic: self._times_ms.get(topic, now_ms) for topic in self._counts}
        self.counter += 1
        self.timestamp = now_ms

    @property
    def version(self) -> tuple[int, int, int]:
        """Peers compare it to learn whether the counts moved."""
        return self.counter, self.state_version, self.timestamp

    @property
    def counts(self) -> dict[str, int]:
        """Pending timers per topic; never negative."""
        return {topic: max(count, 0) for topic, count in self._counts.items()}

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def to_json(self) -> str:
        version = {"counter": self.counter, "stateVersion": self.state_version, "timestamp": self.timestamp}
        counts = {topic: {"count": count, "timeStamp": self._times_ms[topic]} for topic, count in self._counts.items()}
        return json.dumps({"dataVersion": version, self._field: counts}, separators=(",", ":"))

    def read_json(self, text: str) -> None:
        """Take over a file's (or a master's) values. ValueError, and nothing changes, when it is not of this form."""
        try:
            data = json.loads(text)
            counts = {
                str(topic): (int(entry["count"]), int(entry.get("timeStamp", 0)))
                for topic, entry in data[self._field].items()
                if isinstance(entry, dict) and "count" in entry
            }
            version = data.get("dataVersion") or {}
            parts = [int(version.get(key, 0)) for key in ("counter", "stateVersion", "timestamp")]
        except (KeyError, TypeError, AttributeError, OverflowError, RecursionError) as exc:
            raise ValueError(f"not an object with a {self._field} of counts") from exc
        self.counter, self.state_version, self.timestamp = parts
        self._counts = {topic: count for topic, (count, _) in counts.items()}
        self._times_ms = {topic: time_ms for topic, (_, time_ms) in counts.items()}

    def load(self, path: Path) -> bool:
        """From the file, else from its `.bak`; False when neither can be read: the counts then start from zero."""
        for candidate in (path, path.with_name(path.name + ".bak")):
            try:
                self.read_json(candidate.read_text("utf-8"))
            except (OSError, ValueError):
                continue
            return True
        return False


def save_text(files: Files, path: Path, text: str) -> None:
    """Replace the file, keep the old one as `.bak`. Atomic, not synced: the counts can be counted again."""
    fresh = path.with_name(path.name + ".tmp")
    descriptor = files.open(fresh, create=True)
    try:
        files.truncate(descriptor, 0)
        files.pwrite(descriptor, text.encode(), 0)
    finally:
        files.close(descriptor)
    if files.exists(path):
        files.rename(path, path.with_name(path.name + ".bak"))
    files.rename(fresh, path)
