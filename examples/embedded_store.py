"""The store alone, in this process: no broker, no socket. Put, read, find by key and by time, crash-safe."""

from __future__ import annotations

import tempfile
from pathlib import Path

from contrailmq import Message
from contrailmq.store import MessageStore, StoreConfig, StoreView, inspect_store, verify_store

MIB = 1024 * 1024


def main() -> None:
    with tempfile.TemporaryDirectory() as directory:
        # Small files for a small example: the defaults are RocketMQ's, 1 GiB of log and 420 MB of index at a time.
        config = StoreConfig(
            Path(directory) / "store",
            flush_disk_type="SYNC_FLUSH",  # put returns when the message is on the disk
            mapped_file_size_commit_log=MIB,
            max_hash_slot_num=1000,
            max_index_num=4000,
        )
        with MessageStore(config) as store:
            result = store.put(Message("Orders", b"one bicycle", tags="paid", keys=["o-17"]))
            print(f"{result.status.name}: number {result.queue_offset} of its queue, at {result.physical_offset}")
            store.put_many([Message("Orders", b"bell %d" % number, keys=[f"b-{number}"]) for number in range(100)])

            page = store.get("Orders", 0, 0)
            print(f"read {len(page)} messages, {page[0].body!r} first; go on at {page.next_offset}")
            (found,) = store.query("Orders", "b-42")
            print(f"key b-42 is {found.body!r}")
            print(f"stored since then: from number {store.offset_at('Orders', 0, found.store_time_ms)} on")

        with MessageStore(config) as store:  # a second start finds everything
            print(f"opened again: {store.queues()}, {store.recovery.records_walked} records checked")

        with StoreView(config) as view:  # what `contrailmq store inspect` and `verify` do
            print(f"{inspect_store(view).messages} messages, sound: {verify_store(view).is_ok}")


if __name__ == "__main__":
    main()
