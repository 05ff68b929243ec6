"""Replay after a bug: a consumer handled the messages of an hour wrongly; send that hour again to a topic of its own.

    python examples/spark/replay_after_a_bug.py /data/store 127.0.0.1:9876 Orders 2026-11-15T12:00 2026-11-15T13:00

Each queue keeps its order, and every message says where it came from: REPLAY_TOPIC, REPLAY_QUEUE_ID, REPLAY_OFFSET and
REPLAY_TIME_MS. Run twice, the messages carry the same CONTRAIL_DEDUP_KEY, so a consumer can drop the repeats.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime

from contrailmq.spark.decode import Selection
from contrailmq.spark.jobs.replay import ReplayResult, replay


def run(source: str, namesrv: str, topic: str, since: str, until: str) -> ReplayResult:
    """Send the messages of a topic that were stored between two times (UTC) to `<topic>_replayed`."""
    begin, end = (round(datetime.fromisoformat(t).replace(tzinfo=UTC).timestamp() * 1000) for t in (since, until))
    hour = Selection(topics=frozenset([topic]), begin_ms=begin, end_ms=end)
    return replay(source, f"{topic}_replayed", namesrv, selection=hour, per_second=5000)


if __name__ == "__main__":
    print(run(*sys.argv[1:6]))
