"""A store directory goes both ways: Apache's DefaultMessageStore opens what we wrote, also after a crash."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from apache import ROOT, Apache

from contrailmq import Message
from contrailmq.store import MessageStore, StoreConfig, StoreView, verify_store

pytestmark = pytest.mark.program("Apache's broker", "5.5.0")

SIZES = {
    "mapped_file_size_commit_log": 128 * 1024,
    "mapped_file_size_consume_queue": 1200,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
}
JAVA_SIZES = ["maxHashSlotNum=100", "maxIndexNum=400"]

WRITER = """
import sys
from contrailmq import Message
from contrailmq.store import MessageStore, StoreConfig, StoreView, verify_store
store = MessageStore(StoreConfig(sys.argv[1], flush_disk_type="SYNC_FLUSH", **{sizes}))
store.open()
number = 0
while True:
    put = store.put(Message("Crash", b"body-%d" % number, tags="t", keys=[f"k{{number}}"]), queue_id=number % 3)
    print(put.physical_offset, flush=True)
    number += 1
"""


def dump(rocketmq: Apache, store: Path, target: Path) -> dict[str, Any]:
    rocketmq.run("StoreDump", str(store), str(target), *JAVA_SIZES)
    loaded: dict[str, Any] = json.loads(target.read_text())
    return loaded


def as_dumped(
    store: MessageStore,
) -> tuple[dict[int, tuple[str, int, int, dict[str, str]]], dict[str, tuple[int, int]]]:
    messages = {}
    queues = {}
    for (topic, queue_id), (low, high) in store.queues().items():
        queues[f"{topic}-{queue_id}"] = (low, high)
        offset = low
        while offset < high:
            found = store.get(topic, queue_id=queue_id, offset=offset, max_count=32)
            for m in found:
                messages[m.physical_offset] = (m.topic, m.queue_id, m.queue_offset, m.properties)
            offset = found.next_offset
    return messages, queues


def compare(told: dict[str, Any], store: MessageStore) -> int:
    messages, queues = as_dumped(store)
    assert {
        m["commitLogOffset"]: (m["topic"], m["queueId"], m["queueOffset"], m["properties"]) for m in told["messages"]
    } == messages
    assert {f"{q['topic']}-{q['queueId']}": (q["minOffset"], q["maxOffset"]) for q in told["queues"]} == queues
    return len(messages)


def test_java_opens_a_store_that_we_closed(rocketmq: Apache, tmp_path: Path) -> None:
    config = StoreConfig(tmp_path / "store", **SIZES)  # type: ignore[arg-type]
    with MessageStore(config) as store:
        for i in range(1200):
            store.put(
                Message(f"Topic{i % 3}", b"x" * (i % 700), tags=f"t{i % 5}", keys=[f"key-{i % 50}"]), queue_id=i % 4
            )
    told = dump(rocketmq, tmp_path / "store", tmp_path / "dump.json")
    assert not told["abortFileFound"]
    with MessageStore(config) as store:
        assert compare(told, store) == 1200
        for i in range(0, 50, 7):
            java = next(
                (
                    q["commitLogOffsets"]
                    for q in told["queryByKey"]
                    if q["key"] == f"key-{i}" and q["topic"] == "Topic0"
                ),
                None,
            )
            if java is not None:
                found = store.query("Topic0", key=f"key-{i}", max_count=32, begin_ms=0, end_ms=2**63 - 1)
                assert {m.physical_offset for m in found} == set(java)


def test_java_recovers_a_store_whose_writer_was_killed(rocketmq: Apache, tmp_path: Path) -> None:
    path = tmp_path / "store"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER.format(sizes=SIZES), str(path)],
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
    )
    assert writer.stdout is not None
    acknowledged = [int(writer.stdout.readline()) for _ in range(800)]
    writer.send_signal(signal.SIGKILL)
    acknowledged += [int(line) for line in writer.stdout.read().splitlines() if line.isdigit()]
    writer.wait()
    told = dump(rocketmq, path, tmp_path / "dump.json")
    assert told["abortFileFound"]
    assert set(acknowledged) <= {m["commitLogOffset"] for m in told["messages"]}
    with MessageStore(StoreConfig(path, **SIZES)) as store:  # type: ignore[arg-type]
        assert compare(told, store) >= 800


@pytest.mark.parametrize("ours", ["close", "kill"])
@pytest.mark.parametrize("theirs", ["close", "halt"])
def test_what_java_appended_to_our_store_is_all_there_when_we_open_it_again(
    ours: str, theirs: str, rocketmq: Apache, tmp_path: Path
) -> None:
    """The ledger of our last run lies beside what Java changed since; it may not hide or invent anything."""
    path = tmp_path / "store"
    config = StoreConfig(path, **SIZES)  # type: ignore[arg-type]
    store = MessageStore(config).open()
    for i in range(600):
        store.put(Message("Ours", b"ours-%d" % i, tags="t", keys=[f"ours-{i}"]), queue_id=i % 2)
    store.tick()
    if ours == "close":
        store.close()
    else:
        store.abandon()
    for turn, runs in enumerate((["Ours=50", "Theirs=900"], ["Late=20"], ["Ours=3"])):
        told = rocketmq.run("StorePut", str(path), theirs, *runs)
        written = [int(word[3:]) for word in told.split() if word.startswith("at:")]
        assert len(written) == sum(int(run.partition("=")[2]) for run in runs)
        with MessageStore(config) as store:
            messages, _ = as_dumped(store)
            assert set(written) <= set(messages), f"turn {turn}"
            for offset in written[:: max(1, len(written) // 20)]:
                found = store.lookup(offset)
                assert found is not None
                assert offset in {m.physical_offset for m in store.query(found.topic, found.keys[0])}
            assert len(store.query("Ours", "ours-0")) == 1
            ranges = store.queues()
        assert ranges["Ours", 0][0] == 0
        with StoreView(config) as view:
            assert verify_store(view).findings == [], f"turn {turn}"
    with MessageStore(config) as store:
        assert store.queues()["Ours", 0] == (0, 300 + 25 + 2)
        assert store.queues()["Theirs", 1] == (0, 450)
        assert store.queues()["Late", 0] == (0, 10)


def test_java_makes_our_light_queues_again_to_the_byte(rocketmq: Apache, tmp_path: Path) -> None:
    path = tmp_path / "store"
    config = StoreConfig(path, enable_lmq=True, enable_multi_dispatch=True, **SIZES)  # type: ignore[arg-type]
    with MessageStore(config) as store:
        for i in range(300):
            message = Message("Parent", b"x" * (i % 300), tags=f"t{i % 3}", keys=[f"key-{i}"])
            if i % 5:
                message.properties["INNER_MULTI_DISPATCH"] = "%LMQ%all" if i % 2 else "%LMQ%all,%LMQ%even"
            store.put(message, queue_id=i % 3)
        assert store.max_offset("%LMQ%all", 0) == 240
    root = path / "consumequeue"
    before = {file.relative_to(root): file.read_bytes() for file in root.rglob("*") if file.is_file()}
    shutil.rmtree(root)
    (path / "checkpoint").unlink()
    (path / "abort").touch()
    on = ["enableLmq=true", "enableMultiDispatch=true", "mappedFileSizeConsumeQueue=1200"]
    rocketmq.run("StoreDump", str(path), str(tmp_path / "dump.json"), *JAVA_SIZES, *on)
    assert {file.relative_to(root): file.read_bytes() for file in root.rglob("*") if file.is_file()} == before
    with MessageStore(config) as store:
        assert (store.recovery.units_corrected, store.recovery.units_cut) == (0, 0)
        assert store.queues()["%LMQ%even", 0] == (0, 120)


def batch_config(path: Path) -> StoreConfig:
    return StoreConfig(path, mapper_file_size_batch_consume_queue=46 * 8, **SIZES)  # type: ignore[arg-type]


def batch_units(path: Path) -> bytes:
    files = sorted((path / "batchconsumequeue/Batch/0").iterdir())
    return b"".join(file.read_bytes() for file in files).rstrip(b"\0")


def told_lines(told: str, kind: str) -> list[str]:
    return [line[len(kind) :] for line in told.splitlines() if line.startswith(kind)]


def test_inner_batches_of_either_store_are_read_by_the_other(rocketmq: Apache, tmp_path: Path) -> None:
    """In turns, in one directory; then the queue's bytes are made anew from Java's log."""
    path, number = tmp_path / "store", 0
    for turn in range(3):
        with MessageStore(batch_config(path), batch_topics={"Batch"}) as store:
            assert store.max_offset("Batch", 0) == number
            found = [message for offset in range(0, number, 3) for message in store.get("Batch", 0, offset)]
            assert {(message.queue_offset, message.body) for message in found} == {
                (offset, b"body %d" % offset) for offset in range(number)
            }, turn
            for size in (1, 4, 2):
                bodies = [b"body %d" % (number + place) for place in range(size)]
                put = store.put_inner_batch("Batch", [Message("Batch", body, tags="t") for body in bodies])
                assert put.queue_offset == number
                number += size
            assert store.put(Message("Batch", b"body %d" % number)).queue_offset == number
            number += 1
        told = rocketmq.run("InnerBatch", str(path), "3", "0", "5")
        assert told_lines(told, "put:") == [str(number), str(number + 3), str(number + 4)]
        number += 9
        assert told_lines(told, "queue:") == [f"0 {number}"]
        assert told_lines(told, "get:") == [f"{offset} body {offset}" for offset in range(number)]
    units = batch_units(path)
    shutil.rmtree(path / "batchconsumequeue")
    with MessageStore(batch_config(path), batch_topics={"Batch"}) as store:
        assert store.max_offset("Batch", 0) == number
    assert batch_units(path) == units
