"""A process that puts messages until it is killed, and says on stdout which ones were acknowledged.

Usage: kill_writer.py DIR MODE ROUND. Each line is `number queue_offset committed`, where so many puts had reached the
file and not only the write buffer before the line was written; a line is written in one call. What put
`number` of a round is, and where it goes, `planned` says: most are messages of an ordinary topic, some inner batches or
single messages of a batch topic (queue.type=BatchCQ), and in mode `light` many are in light queues as well.
"""

from __future__ import annotations

import bisect
import os
import random
import sys
from pathlib import Path
from typing import NamedTuple

from contrailmq.message import Message
from contrailmq.store import MessageStore, StoreConfig
from contrailmq.store.base.status import PutResult

MODES: dict[str, dict[str, object]] = {
    "sync": {"flush_disk_type": "SYNC_FLUSH"},
    "async": {},
    "pool": {"transient_store_pool_enable": True, "commit_interval_commit_log": 5},
    "light": {"enable_lmq": True, "enable_multi_dispatch": True},
}
BATCH_TOPICS = frozenset({"Batch"})
QUEUES = (("T", 0), ("T", 1), ("T", 2), ("Batch", 0), ("Batch", 1))


class Planned(NamedTuple):
    """One put: an inner batch when there are several bodies, or `is_batch` says so."""

    topic: str
    queue_id: int
    bodies: list[bytes]
    is_batch: bool
    light: tuple[str, ...]


def opened(path: Path, mode: str) -> MessageStore:
    config = StoreConfig(
        path,
        mapped_file_size_commit_log=256 * 1024,
        mapped_file_size_consume_queue=4000,
        mapper_file_size_batch_consume_queue=46 * 80,
        max_hash_slot_num=500,
        max_index_num=2000,
        **MODES[mode],
    )
    return MessageStore(config, batch_topics=BATCH_TOPICS).open()


def planned(mode: str, round_number: int, number: int) -> Planned:
    """What put `number` of a round is; any byte of it can be checked afterwards."""
    rng = random.Random(round_number * 1_000_003 + number)
    kind = number % 8
    count = rng.randint(1, 6) if kind == 5 else 1
    names = [(), ("%LMQ%all",), ("%LMQ%all", "%LMQ%some")][number % 3] if mode == "light" and kind < 5 else ()
    bodies = [b"%d %d " % (number, part) + rng.randbytes(rng.randint(1, 1500 // count)) for part in range(count)]
    if kind < 5:
        return Planned("T", number % 3, bodies, False, names)
    return Planned("Batch", rng.randrange(2), bodies, kind == 5, names)


def key_of(round_number: int, number: int) -> str:
    return f"r{round_number}-{number}"


def put(store: MessageStore, mode: str, round_number: int, number: int) -> PutResult:
    plan = planned(mode, round_number, number)
    messages = [Message(plan.topic, body, keys=key_of(round_number, number)) for body in plan.bodies]
    if plan.is_batch:
        return store.put_inner_batch(plan.topic, messages, plan.queue_id)
    if plan.light:
        messages[0].properties["INNER_MULTI_DISPATCH"] = ",".join(plan.light)
    return store.put(messages[0], plan.queue_id)


def main() -> None:
    path, mode, round_number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    store = opened(path, mode)
    os.write(1, b"ready\n")
    ends: list[int] = []  # of the records
    while True:
        number = len(ends)
        result = put(store, mode, round_number, number)
        ends.append(result.physical_offset + result.size_bytes)
        committed = bisect.bisect_right(ends, store.confirm_offset)
        os.write(1, b"%d %d %d\n" % (number, result.queue_offset, committed))


if __name__ == "__main__":
    main()
