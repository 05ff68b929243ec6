"""Replay after a bug: a consumer handled the messages of an hour wrongly; send that hour again to a topic of its own.

    python examples/spark/replay_after_a_bug.py     # a broker of its own, and its last hour
    python examples/spark/replay_after_a_bug.py contrailmq-data/broker-a 127.0.0.1:9876 Orders \\
        2026-11-15T12:00 2026-11-15T13:00

The times are UTC; the store is the directory of a broker, which may be running, and needs no Spark session here.
Each queue keeps its order, and every message says where it came from: REPLAY_TOPIC, REPLAY_QUEUE_ID, REPLAY_OFFSET and
REPLAY_TIME_MS. Run twice, the messages carry the same CONTRAIL_DEDUP_KEY, so a consumer can drop the repeats.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

from contrailmq.client.blocking.raw import QueueReader
from contrailmq.spark.decoding.decode import Selection
from contrailmq.spark.jobs.replay import ReplayResult, replay


def run(source: str, namesrv: str, topic: str, since: str, until: str) -> ReplayResult:
    """Send the messages of a topic that were stored between two times (UTC) to `<topic>_replayed`."""
    begin, end = (round(datetime.fromisoformat(t).replace(tzinfo=UTC).timestamp() * 1000) for t in (since, until))
    hour = Selection(topics=frozenset([topic]), begin_ms=begin, end_ms=end)
    return replay(source, f"{topic}_replayed", namesrv, selection=hour, per_second=5000)


def main() -> None:
    from samples import own_cluster

    if len(sys.argv) == 6:
        print(run(*sys.argv[1:6]))
        return
    if len(sys.argv) != 1:
        sys.exit("give a store, a NameServer, a topic, a begin and an end, or nothing at all")
    with own_cluster("Orders", [f"order {number}" for number in range(5)]) as (namesrv, store):
        now = datetime.now(UTC).replace(tzinfo=None)
        print(run(store, namesrv, "Orders", str(now - timedelta(hours=1)), str(now + timedelta(hours=1))))
        with QueueReader(namesrv=namesrv) as reader:
            ends = {queue: reader.max_offset(queue) for queue in reader.queues("Orders_replayed")}
        print(f"topic Orders_replayed now has {sum(ends.values())} messages")


if __name__ == "__main__":
    main()
