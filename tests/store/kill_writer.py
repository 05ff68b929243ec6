"""A process that puts messages until it is killed, and says on stdout which ones were acknowledged.

Usage: kill_writer.py DIR MODE ROUND. Each line is `number queue_id queue_offset`; a line is written in one call.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

from contrailmq.message import Message
from contrailmq.store import MessageStore, StoreConfig

MODES: dict[str, dict[str, object]] = {
    "sync": {"flush_disk_type": "SYNC_FLUSH"},
    "async": {},
    "pool": {"transient_store_pool_enable": True, "commit_interval_commit_log": 5},
}


def config_at(path: Path, mode: str) -> StoreConfig:
    return StoreConfig(
        path,
        mapped_file_size_commit_log=256 * 1024,
        mapped_file_size_consume_queue=4000,
        max_hash_slot_num=500,
        max_index_num=2000,
        **MODES[mode],
    )


def body_of(round_number: int, number: int) -> bytes:
    """What message `number` of a round holds; any byte of it can be checked afterwards."""
    rng = random.Random(round_number * 1_000_003 + number)
    return rng.randbytes(rng.randint(1, 1500))


def main() -> None:
    path, mode, round_number = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    store = MessageStore(config_at(path, mode)).open()
    os.write(1, b"ready\n")
    number = 0
    while True:
        queue_id = number % 3
        keys = f"r{round_number}-{number}"
        put = store.put(Message("T", body_of(round_number, number), keys=keys), queue_id)
        os.write(1, b"%d %d %d\n" % (number, queue_id, put.queue_offset))
        number += 1


if __name__ == "__main__":
    main()
