"""Inner batches and the queues of their topics (queue.type=BatchCQ): written, read, lost, cleaned, checked, rebuilt."""

from __future__ import annotations

import os
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contrailmq.message import Message, SysFlag, encode_properties, java_hash
from contrailmq.message.batch import encode_batch, split_batch
from contrailmq.store import Boundary, Drive, Files, GetStatus, ManualClock, MessageStore, PutStatus, StoreConfig
from contrailmq.store.tools.read_only import StoreView
from contrailmq.store.tools.rebuild import rebuild_store
from contrailmq.store.tools.verify import verify_store

SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": 16 * 1024,
    "mapped_file_size_consume_queue": 400,
    "mapper_file_size_batch_consume_queue": 46 * 4,
    "max_hash_slot_num": 50,
    "max_index_num": 120,
}
TOPICS = frozenset({"Batch"})


class AfterReboot(Files):
    """Files of a machine that was started again: what was not synced may be gone."""

    def boot_id(self) -> str:
        return "another"


QUEUE = "batchconsumequeue/Batch/0"


def batch_store(root: Path, clock: ManualClock | None = None, **settings: Any) -> MessageStore:
    return MessageStore(StoreConfig(root, **(SMALL | settings)), clock=clock, batch_topics=TOPICS)


def messages(first: int, count: int) -> list[Message]:
    return [Message("Batch", b"body %d" % number, tags="paid") for number in range(first, first + count)]


def fill(store: MessageStore, sizes: list[int]) -> None:
    first = store.max_offset("Batch", 0)
    for size in sizes:
        assert store.put_inner_batch("Batch", messages(first, size)).status is PutStatus.PUT_OK
        first += size


def bodies(store: MessageStore, offset: int = 0) -> list[bytes]:
    found: list[bytes] = []
    while True:
        got = store.get("Batch", 0, offset)
        if got.status is not GetStatus.FOUND:
            return found
        found += [message.body for message in got]
        offset = got.next_offset


def numbered(begin: int, end: int) -> list[bytes]:
    return [b"body %d" % number for number in range(begin, end)]


def units_on_disk(root: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((root / QUEUE).iterdir())).rstrip(b"\0")


def findings(root: Path) -> list[str]:
    with StoreView(StoreConfig(root, **SMALL)) as view:
        return [f"{finding.where}: {finding.problem}" for finding in verify_store(view).findings]


def test_messages_of_an_inner_batch_get_offsets_in_a_row_and_are_read_one_by_one(tmp_path: Path) -> None:
    with batch_store(tmp_path) as store:
        first = store.put_inner_batch("Batch", messages(0, 3))
        second = store.put_inner_batch("Batch", messages(3, 2))
        assert (first.queue_offset, second.queue_offset, store.max_offset("Batch", 0)) == (0, 3, 5)
        got = store.get("Batch", 0, 0)
        assert [(message.queue_offset, message.body, message.tags) for message in got] == [
            (number, b"body %d" % number, "paid") for number in range(5)
        ]
        assert (got.next_offset, got.min_offset, got.max_offset) == (5, 0, 5)
        assert store.queues() == {("Batch", 0): (0, 5)}
        record = store.lookup(first.physical_offset)
        assert record is not None
        assert (record.properties["INNER_NUM"], record.properties["INNER_BASE"]) == ("3", "0")
        assert record.sys_flag & SysFlag.INNER_BATCH
        assert [part.body for part in split_batch(record.body)] == numbered(0, 3)


def test_the_queue_holds_46_bytes_for_each_record(tmp_path: Path) -> None:
    with batch_store(tmp_path, clock := ManualClock()) as store:
        one = store.put_inner_batch("Batch", messages(0, 3))
        clock.advance(7)
        two = store.put(Message("Batch", b"alone"))
        assert two.queue_offset == 3
    code = java_hash("paid")
    assert units_on_disk(tmp_path)[:46] == struct.pack(
        ">qiqqqhii", one.physical_offset, one.size_bytes, code, one.store_time_ms, 0, 3, -1, 0
    )
    unit = struct.pack(">qiqqqhii", two.physical_offset, two.size_bytes, 0, one.store_time_ms + 7, 3, 1, -1, 0)
    assert units_on_disk(tmp_path)[46:] == unit.rstrip(b"\0")
    assert not (tmp_path / "consumequeue/Batch").exists()
    assert {path.stat().st_size for path in (tmp_path / QUEUE).iterdir()} == {46 * 4}


@pytest.mark.parametrize(
    ("topic", "sys_flag", "count", "reason"),
    [
        ("Plain", SysFlag.INNER_BATCH, "2", "queue.type=BatchCQ"),
        ("Batch", 0, "2", "INNER_NUM is set"),
        ("Batch", SysFlag.INNER_BATCH, "0", "INNER_NUM is '0'"),
        ("Batch", SysFlag.INNER_BATCH, "32768", "INNER_NUM is '32768'"),
        ("Batch", SysFlag.INNER_BATCH, "x", "INNER_NUM is 'x'"),
        ("Batch", SysFlag.INNER_BATCH, "", "INNER_NUM is 'missing'"),
    ],
)
def test_what_is_no_inner_batch_is_refused(topic: str, sys_flag: int, count: str, reason: str, tmp_path: Path) -> None:
    properties = encode_properties({"INNER_NUM": count}) if count else b""
    with batch_store(tmp_path) as store:
        refused = store.append(topic, 0, b"x", properties, tags_code=0, keys=None, unique_key=None, sys_flag=sys_flag)
        assert refused.status is PutStatus.MESSAGE_ILLEGAL
        assert reason in refused.reason
        assert store.log_max_offset == 0


@pytest.mark.parametrize("topic", ["Batch", "Plain"])
@pytest.mark.parametrize(
    "parts",
    [
        [(0, b"x" * 40, b"INNER_NUM\x013\x02INNER_BASE\x0170\x02")],
        [(0, b"x" * 40, b"INNER_NUM\x013\x02"), (0, b"y", b"")],
        [(0, b"x", b"")],
    ],
)
def test_parts_under_the_bit_of_inner_batches_are_refused_and_move_no_offset(
    parts: list[tuple[int, bytes, bytes]], topic: str, tmp_path: Path
) -> None:
    """INNER_BASE is the log's: a queue that took 70 from a sender passed over what came afterwards."""
    with batch_store(tmp_path) as store:
        refused = store.append_batch(topic, 0, encode_batch(parts), sys_flag=SysFlag.INNER_BATCH)
        assert refused.status is PutStatus.MESSAGE_ILLEGAL
        assert "sysFlag 0x80" in refused.reason
        assert store.log_max_offset == 0
        assert store.append_batch(topic, 0, encode_batch([(0, b"body 0", b"")])).queue_offset == 0
        assert store.put(Message(topic, b"body 1")).queue_offset == 1
        assert [message.body for message in store.get(topic, 0, 0)] == numbered(0, 2)


def test_a_read_from_the_middle_of_a_batch_gives_the_rest_of_it(tmp_path: Path) -> None:
    with batch_store(tmp_path) as store:
        fill(store, [4, 4, 4])
        assert [message.body for message in store.get("Batch", 0, 6)] == numbered(6, 12)
        found = store.get_slices("Batch", 0, 6, 32)
        assert (len(found.slices), found.count, found.next_offset) == (2, 8, 12)
        found.release()
        assert store.get("Batch", 0, 12).status is GetStatus.OFFSET_OVERFLOW_ONE
        assert store.get("Batch", 0, 13).next_offset == 12


def test_limits_count_messages_and_the_first_batch_is_always_given(tmp_path: Path) -> None:
    with batch_store(tmp_path) as store:
        fill(store, [4, 4, 4])
        assert len(store.get("Batch", 0, 0, 2)) == 4
        assert len(store.get("Batch", 0, 0, 8)) == 8
        assert len(store.get("Batch", 0, 0, 11)) == 8
        assert len(store.get("Batch", 0, 0, 32, max_bytes=100)) == 4


def test_a_batch_is_filtered_by_its_first_messages_tag(tmp_path: Path) -> None:
    class Paid:
        def match_unit(self, tags_code: int, ext: object) -> bool:
            return tags_code == java_hash("paid")

        def match_record(self, record: memoryview) -> bool:
            return True

    with batch_store(tmp_path) as store:
        fill(store, [2])
        store.put(Message("Batch", b"other", tags="sent"))
        fill(store, [2])
        got = store.get("Batch", 0, 0, filter=Paid())
        assert [message.queue_offset for message in got] == [0, 1, 3, 4]
        assert got.next_offset == 5


def test_offsets_and_times_can_be_looked_up_by_batch(tmp_path: Path) -> None:
    with batch_store(tmp_path, clock := ManualClock(1_000_000)) as store:
        for _ in range(3):
            fill(store, [5])
            clock.advance(1000)
        assert [store.offset_at("Batch", 0, time) for time in (0, 1_000_000, 1_000_001, 1_002_000, 1_002_001)] == [
            0, 0, 5, 10, 15,
        ]  # fmt: skip
        assert [store.offset_at("Batch", 0, time, Boundary.UPPER) for time in (0, 1_000_999, 1_009_999)] == [0, 0, 10]
        assert [store.store_time_at("Batch", 0, offset) for offset in (4, 5, 15)] == [1_000_000, 1_001_000, -1]
        assert store.earliest_time("Batch", 0) == 1_000_000


@pytest.mark.parametrize("leave", [MessageStore.close, MessageStore.abandon])
def test_batches_and_offsets_go_on_after_a_close_and_a_kill(
    leave: Callable[[MessageStore], None], tmp_path: Path
) -> None:
    for turn in range(3):
        store = batch_store(tmp_path).open()
        assert bodies(store) == numbered(0, turn * 9)
        fill(store, [2, 3, 4])
        store.dispatch()
        leave(store)
    with batch_store(tmp_path) as store:
        assert bodies(store) == numbered(0, 27)
    assert findings(tmp_path) == []


def test_a_store_knows_its_batch_topics_by_their_queues(tmp_path: Path) -> None:
    with batch_store(tmp_path) as store:
        fill(store, [3])
    with MessageStore(StoreConfig(tmp_path, **SMALL)) as store:
        fill(store, [2])
        assert bodies(store) == numbered(0, 5)


def delete(queue: Path) -> None:
    shutil.rmtree(queue.parent)


def cut(queue: Path) -> None:
    last = sorted(queue.iterdir())[-1]
    last.unlink()


def flip(queue: Path) -> None:
    first = sorted(queue.iterdir())[0]
    data = bytearray(first.read_bytes())
    data[46 + 35] ^= 1  # the base offset of the second unit
    first.write_bytes(data)


@pytest.mark.parametrize("leave", [MessageStore.close, MessageStore.abandon])
@pytest.mark.parametrize("damage", [delete, cut, flip])
def test_a_damaged_batch_queue_is_made_anew_from_the_log(
    damage: Callable[[Path], None], leave: Callable[[MessageStore], None], tmp_path: Path
) -> None:
    store = batch_store(tmp_path).open()
    fill(store, [1, 2, 3, 4, 5, 6])
    store.tick()
    store.put(Message("Orders", b"x"))
    store._housekeeping.persist()
    leave(store)
    whole = units_on_disk(tmp_path)
    damage(tmp_path / QUEUE)
    with batch_store(tmp_path) as store:
        assert bodies(store) == numbered(0, 21)
        assert len(store.get("Orders", 0, 0)) == 1
    assert units_on_disk(tmp_path) == whole


def test_a_batch_torn_at_the_end_of_the_log_is_cut_from_its_queue(tmp_path: Path) -> None:
    store = batch_store(tmp_path).open()
    fill(store, [3, 3])
    torn = store.put_inner_batch("Batch", messages(6, 3))
    store.dispatch()
    store._housekeeping.persist()
    store.abandon()
    log = tmp_path / "commitlog" / ("0" * 20)
    data = bytearray(log.read_bytes())
    data[torn.physical_offset + 100] ^= 1  # in the body
    log.write_bytes(data)
    with batch_store(tmp_path) as store:
        assert store.recovery.physical_offset_max == torn.physical_offset
        assert store.max_offset("Batch", 0) == 6
        fill(store, [1])
        assert bodies(store) == numbered(0, 7)


def test_a_unit_that_a_power_cut_brought_back_is_not_believed(tmp_path: Path) -> None:
    """The file of a queue that was made anew may be the old one again: what it has more than the ledger is not true."""
    store = batch_store(tmp_path).open()
    fill(store, [3])
    other = store.put(Message("Orders", b"no batch"))
    store.put(Message("Orders", b"the end"))
    store.dispatch()
    store._housekeeping.persist()
    store.abandon()
    old = struct.pack(">qiqqqhii", other.physical_offset, other.size_bytes, 0, 0, 3, 2, -1, 0)
    path = tmp_path / QUEUE / ("0" * 20)
    path.write_bytes(path.read_bytes()[:46] + old + bytes(46 * 2))
    with batch_store(tmp_path) as store:
        assert store.queues()["Batch", 0] == (0, 3)
        fill(store, [2])
        assert bodies(store) == numbered(0, 5)
    assert findings(tmp_path) == []


def test_a_unit_of_a_queue_that_was_empty_is_not_believed_either(tmp_path: Path) -> None:
    store = batch_store(tmp_path).open()
    fill(store, [3])
    store.dispatch()
    store._housekeeping.persist()
    old = (tmp_path / QUEUE / ("0" * 20)).read_bytes()
    assert store.delete_topics(["Batch"]) == 1
    queue = store._queues.batches.find_or_create("Batch", 0)
    queue.start_at(3)  # all of its messages are gone
    store.put(Message("Orders", b"the end"))
    store.dispatch()
    store._housekeeping.persist()
    store.abandon()
    (tmp_path / QUEUE).mkdir(parents=True)
    (tmp_path / QUEUE / ("0" * 20)).write_bytes(old)
    with batch_store(tmp_path) as store:
        assert store.queues()["Batch", 0] == (3, 3)


def test_offsets_begin_anew_where_a_power_cut_took_the_only_messages_of_a_queue(tmp_path: Path) -> None:
    """The ledger knows offsets that nobody has: the log has lost its end, the ledger's newest record too."""
    store = batch_store(tmp_path).open()
    store.put(Message("Orders", b"begin"))
    lost = store.put_inner_batch("Batch", messages(0, 3))
    store.put(Message("Single", b"lost too"))
    last = store.put(Message("Orders", b"the end"))
    store.dispatch()
    store._housekeeping.persist()
    store.abandon()
    log = tmp_path / "commitlog" / ("0" * 20)
    data = bytearray(log.read_bytes())
    data[lost.physical_offset : last.physical_offset] = bytes(last.physical_offset - lost.physical_offset)
    log.write_bytes(data)
    shutil.rmtree(tmp_path / "batchconsumequeue")
    shutil.rmtree(tmp_path / "consumequeue" / "Single")
    with MessageStore(StoreConfig(tmp_path, **SMALL), batch_topics=TOPICS, files=AfterReboot()) as store:
        assert store.recovery.physical_offset_max == lost.physical_offset
        assert store.put(Message("Single", b"first")).queue_offset == 0
        fill(store, [2])
        assert bodies(store) == numbered(0, 2)
    assert findings(tmp_path) == []


def test_cleaning_moves_the_minimum_and_offsets_are_never_given_out_twice(tmp_path: Path) -> None:
    with batch_store(tmp_path) as store:
        fill(store, [8] * 60)
        assert store.log_max_offset > 2 * 16 * 1024
    for path in (tmp_path / "commitlog").iterdir():
        os.utime(path, (0, 0))
    clock = ManualClock(time.time_ns() // 1_000_000)
    with batch_store(tmp_path, clock) as store:
        files = len(list((tmp_path / QUEUE).iterdir()))
        store.delete_expired_files_now()
        clock.advance(60_000)  # the first round comes after a minute
        store.tick()
        assert store.log_min_offset > 0
        lowest = store.min_offset("Batch", 0)
        assert lowest % 8 == 0
        assert 0 < lowest < 480
        assert len(list((tmp_path / QUEUE).iterdir())) < files
        assert bodies(store, lowest) == numbered(lowest, 480)
        assert store.get("Batch", 0, 0).next_offset == lowest
    shutil.rmtree(tmp_path / "batchconsumequeue")
    with batch_store(tmp_path) as store:
        assert (store.min_offset("Batch", 0), store.max_offset("Batch", 0)) == (lowest, 480)
        assert store.delete_topics(["Batch"]) == 1
        assert not (tmp_path / QUEUE).exists()
        assert store.put_inner_batch("Batch", messages(0, 2)).queue_offset == 0


def test_verify_names_a_unit_that_is_missing_wrong_or_too_many(tmp_path: Path) -> None:
    with batch_store(tmp_path) as store:
        fill(store, [1, 2, 3, 4, 5])
    assert findings(tmp_path) == []
    first = sorted((tmp_path / QUEUE).iterdir())[0]
    whole = first.read_bytes()
    first.write_bytes(whole[:58] + struct.pack(">q", 77) + whole[66:])  # the tag's code of the second one
    (wrong,) = [one for one in findings(tmp_path) if "should be" in one]
    assert wrong.startswith("Batch/0: unit (")
    first.write_bytes(whole[: 46 * 3] + bytes(46))
    assert any("is missing" in one for one in findings(tmp_path))
    first.write_bytes(whole)
    last = sorted((tmp_path / QUEUE).iterdir())[-1]
    extra = struct.pack(">qiqqqhii", 10_000, 100, 0, 1, 15, 1, -1, 0)
    last.write_bytes(last.read_bytes()[:46] + extra + bytes(92))
    assert [one.partition("(")[0] for one in findings(tmp_path)] == ["Batch/0: no record belongs to BatchUnit"]


def test_rebuild_makes_the_same_bytes(tmp_path: Path) -> None:
    with batch_store(tmp_path) as store:
        fill(store, [1, 2, 3, 4, 5])
        store.put(Message("Orders", b"x", keys="k"))
    whole = units_on_disk(tmp_path)
    flip(tmp_path / QUEUE)
    report = rebuild_store(StoreConfig(tmp_path, **SMALL))
    assert (report.queues, report.units) == (2, 6)
    assert units_on_disk(tmp_path) == whole
    assert findings(tmp_path) == []
    assert not (tmp_path / "rebuild.old").exists()
    with batch_store(tmp_path) as store:
        assert bodies(store) == numbered(0, 15)


def test_a_slave_makes_the_same_queue_from_the_masters_bytes(tmp_path: Path) -> None:
    with batch_store(tmp_path / "master") as master:
        fill(master, [1, 2, 3])
        log = master.read_log(0, master.log_max_offset)
        assert log is not None
        data = bytes(log)
        log.release()
    slave = MessageStore(
        StoreConfig(tmp_path / "slave", **SMALL, broker_role="SLAVE"), drive=Drive.LOOP, batch_topics=TOPICS
    ).open()
    heard: list[tuple[str, int]] = []
    slave.add_arrival_listener(lambda arrival: heard.append((arrival.topic, arrival.queue_offset)))
    assert slave.replica.append(0, data) == len(data)
    slave.dispatch()
    assert bodies(slave) == numbered(0, 6)
    assert heard == [("Batch", 0), ("Batch", 1), ("Batch", 3)]
    slave.close()
    assert units_on_disk(tmp_path / "slave") == units_on_disk(tmp_path / "master")


def test_listeners_hear_of_a_batch_once(tmp_path: Path) -> None:
    heard: list[tuple[int, int]] = []
    with batch_store(tmp_path) as store:
        store.add_arrival_listener(lambda arrival: heard.append((arrival.queue_offset, arrival.tags_code)))
        fill(store, [3, 2])
    assert heard == [(0, java_hash("paid")), (3, java_hash("paid"))]


def test_a_batch_from_a_client_is_stored_as_it_came(tmp_path: Path) -> None:
    body = encode_batch((number, b"m%d" % number, b"KEYS\x01k%d\x02" % number) for number in range(3))
    with batch_store(tmp_path) as store:
        properties = encode_properties({"INNER_NUM": "3", "UNIQ_KEY": "AB" * 16, "WAIT": "true"})
        put = store.append(
            "Batch", 0, body, properties, tags_code=0, keys=None, unique_key="AB" * 16, sys_flag=SysFlag.INNER_BATCH
        )
        assert (put.status, put.queue_offset) == (PutStatus.PUT_OK, 0)
        got = store.get("Batch", 0, 0)
        assert [(message.flag, message.body, message.keys) for message in got] == [
            (number, b"m%d" % number, [f"k{number}"]) for number in range(3)
        ]
        (found,) = store.query("Batch", "AB" * 16)
        assert found.stored_body == body
        assert "WAIT" not in found.properties
