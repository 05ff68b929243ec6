"""A process with few descriptors that writes to many queues, closes, and reads everything back from a new start.

Usage: many_queues.py DIR QUEUES DESCRIPTORS. Prints the most descriptors it saw in use; fails when a message is wrong.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

from contrailmq.message import Message
from contrailmq.store import MessageStore, StoreConfig


def config_at(path: Path) -> StoreConfig:
    return StoreConfig(
        path,
        mapped_file_size_commit_log=4 << 20,
        mapped_file_size_consume_queue=2000,
        max_hash_slot_num=500,
        max_index_num=100_000,
    )


def open_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def check(store: MessageStore, queues: int) -> None:
    assert len(store.queues()) == queues
    for number in range(queues):
        topic, queue_id = f"T{number // 8}", number % 8
        found = [message.body for message in store.get(topic, queue_id, 0)]
        assert found == [b"first %d" % number, b"second %d" % number], (topic, queue_id, found)


def main() -> None:
    path, queues, descriptors = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
    most = 0
    store = MessageStore(config_at(path)).open()
    for turn in ("first", "second"):
        for number in range(queues):
            store.put(Message(f"T{number // 8}", f"{turn} {number}".encode()), number % 8)
        store._queues.write_pending(1)  # what housekeeping does in time
        most = max(most, open_descriptors())
    check(store, queues)
    store.close()
    with MessageStore(config_at(path)) as again:
        check(again, queues)
        most = max(most, open_descriptors())
    print(most)


if __name__ == "__main__":
    main()
