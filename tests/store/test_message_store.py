"""The facade: life, putting, reading, statuses."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from plain_store import GOLDEN, GOLDEN_STORES, unpack_golden

from contrailmq.message import Message, SysFlag, encode_host, encode_properties
from contrailmq.message.codec import BatchPart, Kind, check_record, encode_batch, encode_record
from contrailmq.store import (
    Boundary,
    Drive,
    GetStatus,
    ManualClock,
    MessageStore,
    PutStatus,
    StoreConfig,
    StoreError,
)
from contrailmq.store.base.errors import CorruptStoreError, StoreClosedError, StoreConfigError, StoreLockedError
from contrailmq.store.base.status import Arrival

FILE_BYTES = 16 * 1024
SMALL: dict[str, object] = {
    "mapped_file_size_commit_log": FILE_BYTES,
    "mapped_file_size_consume_queue": 400,
    "max_hash_slot_num": 50,
    "max_index_num": 120,
}


def config_at(path: Path, **settings: object) -> StoreConfig:
    return StoreConfig(path, **(SMALL | settings))


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[MessageStore]:
    with MessageStore(config_at(tmp_path / "store"), clock=clock) as opened:
        yield opened


def append(store: MessageStore, topic: str = "T", queue_id: int = 0, body: bytes = b"x", **more: Any) -> Any:
    known: dict[str, Any] = {"tags_code": 0, "keys": None, "unique_key": None}
    return store.append(topic, queue_id, body, more.pop("properties", b""), **(known | more))


# --- Apache's stores


@pytest.mark.parametrize("name", GOLDEN_STORES)
def test_every_message_and_answer_of_a_golden_store_is_apaches(name: str, tmp_path: Path) -> None:
    expected = json.loads((GOLDEN / f"{name}.expected.json").read_text())
    with MessageStore(StoreConfig(unpack_golden(name, tmp_path))) as store:
        assert (store.log_min_offset, store.log_max_offset) == (expected["minPhyOffset"], expected["maxPhyOffset"])
        ranges = {(queue["topic"], queue["queueId"]): queue for queue in expected["queues"]}
        assert store.queues() == {key: (queue["minOffset"], queue["maxOffset"]) for key, queue in ranges.items()}
        for wanted in expected["messages"]:
            found = store.get(wanted["topic"], wanted["queueId"], wanted["queueOffset"], 1)[0]
            assert found.physical_offset == wanted["commitLogOffset"]
            assert found.offset_message_id == wanted["msgId"]
            assert found.properties == wanted["properties"]
            assert hashlib.sha256(found.body).hexdigest() == wanted["bodySha256"]
            assert store.lookup(found.physical_offset) is not None
        for asked in expected["offsetByTime"]:
            for boundary in Boundary:
                answer = store.offset_at(asked["topic"], asked["queueId"], asked["timestamp"], boundary)
                assert answer == asked[boundary.value.lower()]
        for asked in expected["queryByKey"]:
            hits = store.query(asked["topic"], asked["key"], asked["maxNum"], asked["begin"], asked["end"])
            assert [hit.physical_offset for hit in hits] == asked["commitLogOffsets"][::-1]  # newest first


@pytest.mark.parametrize("name", GOLDEN_STORES)
def test_a_golden_store_goes_on_where_apache_stopped(name: str, tmp_path: Path) -> None:
    root = unpack_golden(name, tmp_path)
    with MessageStore(StoreConfig(root)) as store:
        before = store.queues()
        topic, queue_id = next(iter(before))
        end = store.log_max_offset
        put = store.put(Message(topic, b"ours", keys="k"), queue_id)
        assert put.queue_offset == before[topic, queue_id][1]
        assert put.physical_offset >= end
    with MessageStore(StoreConfig(root)) as store:
        assert store.recovery.was_clean_exit
        assert store.recovery.cut_bytes == 0
        assert [m.body for m in store.get(topic, queue_id, put.queue_offset)] == [b"ours"]


# --- put and get


def test_a_put_message_comes_back_as_it_was(store: MessageStore) -> None:
    message = Message("Orders", b"body", tags="paid", keys=["o-17", "o-18"], properties={"region": "eu"}, flag=7)
    put = store.put(message, queue_id=3)
    assert put.status is PutStatus.PUT_OK
    (found,) = store.get("Orders", 3, 0)
    assert (found.topic, found.body, found.tags, found.keys, found.flag) == (
        "Orders", b"body", "paid", ["o-17", "o-18"], 7,
    )  # fmt: skip
    assert found.message_id == put.message_id
    assert found.offset_message_id == put.offset_message_id
    assert found.properties["region"] == "eu"
    assert [hit.queue_offset for hit in store.query("Orders", "o-18")] == [0]
    assert [hit.queue_offset for hit in store.query("Orders", put.message_id)] == [0]
    assert store.query("Orders", "o-1") == []
    again = store.lookup(put.physical_offset)
    assert again is not None
    assert again.queue_id == 3
    assert store.lookup(put.physical_offset + 1) is None
    assert store.lookup(-1) is None


def test_queue_offsets_count_up_per_queue_and_go_on_after_a_restart(tmp_path: Path) -> None:
    for round_number in range(3):
        with MessageStore(config_at(tmp_path)) as store:
            for queue_id in (0, 1):
                assert store.put(Message("T", b"x"), queue_id).queue_offset == round_number
    with MessageStore(config_at(tmp_path)) as store:
        assert store.queues() == {("T", 0): (0, 3), ("T", 1): (0, 3)}


def test_put_many_answers_for_each_message_and_refuses_only_the_bad_one(store: MessageStore) -> None:
    results = store.put_many([Message("T", b"a"), Message("T", bytes(FILE_BYTES)), Message("T", b"b")])
    assert [result.status for result in results] == [
        PutStatus.PUT_OK, PutStatus.MESSAGE_ILLEGAL, PutStatus.PUT_OK,
    ]  # fmt: skip
    assert [message.body for message in store.get("T", 0, 0)] == [b"a", b"b"]


def test_the_log_rolls_over_with_a_blank_and_nothing_is_lost(store: MessageStore) -> None:
    bodies = [bytes([n % 256]) * (100 + n * 7 % 900) for n in range(200)]
    for body in bodies:
        assert store.put(Message("T", body)).status is PutStatus.PUT_OK
    found: list[bytes] = []
    offset = 0
    while (page := store.get("T", 0, offset)).status is GetStatus.FOUND:
        found += [message.body for message in page]
        offset = page.next_offset
    assert found == bodies
    assert store.log_max_offset > 5 * FILE_BYTES


@pytest.mark.parametrize("spare", [7, 8, 9, 91 + 7, 91 + 8, 91 + 9])
def test_a_record_must_leave_eight_bytes_in_its_file(spare: int, store: MessageStore) -> None:
    """The first record leaves `spare` bytes; the second has 92 and needs 100 to stay in the file."""
    size = FILE_BYTES - spare
    first = append(store, body=bytes(size - 92))
    if spare < 8:
        assert first.status is PutStatus.MESSAGE_ILLEGAL
        assert str(size) in first.reason
        assert str(FILE_BYTES - 8) in first.reason
        return
    assert first.size_bytes == size
    second = append(store, body=b"")
    assert second.physical_offset == (size if spare >= 92 + 8 else FILE_BYTES)
    if second.physical_offset == FILE_BYTES:
        verdict = check_record(store.read_log(0, FILE_BYTES) or b"", size)
        assert (verdict.kind, verdict.size_bytes) == (Kind.BLANK, spare)


def test_prepared_and_rolled_back_records_take_no_queue_offset_and_enter_no_queue(store: MessageStore) -> None:
    kinds = [0, SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_ROLLBACK, SysFlag.TRANSACTION_COMMIT]
    offsets = [append(store, sys_flag=kind).queue_offset for kind in kinds]
    store.dispatch()
    assert offsets == [0, 0, 0, 1]
    assert store.max_offset("T", 0) == 2


def test_store_times_never_go_back_even_if_the_clock_does(store: MessageStore, clock: ManualClock) -> None:
    first = append(store).store_time_ms
    clock.set_wall(first - 60_000)
    store.tick()
    assert append(store).store_time_ms == first
    clock.advance(1000)
    assert append(store).store_time_ms == first + 500  # at half its pace, until the wall clock has caught up
    clock.set_wall(first + 5000)
    store.tick()
    assert append(store).store_time_ms == first + 5000


def test_ipv6_hosts_long_retry_topics_and_record_checksums_are_stored_as_asked(tmp_path: Path) -> None:
    topic = "%RETRY%" + "g" * 200
    host = encode_host("2001:db8::1", 9)
    with MessageStore(config_at(tmp_path, enabled_append_prop_crc=True, force_verify_prop_crc=True)) as store:
        result = append(store, topic, properties=b"a\x01b\x02__CRC32#\x011234567890\x02", born_host=host)
        assert result.status is PutStatus.PUT_OK
        store.dispatch()
        (found,) = store.get(topic, 0, 0)
        assert found.born_host.ip == "2001:db8::1"
        assert found.size_bytes == result.size_bytes
        record = store.read_record(result.physical_offset)
        assert record is not None
        assert check_record(record, check_record_crc=True).kind is Kind.WHOLE
    with MessageStore(config_at(tmp_path)) as store:
        assert store.recovery.cut_bytes == 0


# --- refusals, in RocketMQ's order


@pytest.mark.parametrize(
    ("topic", "body_bytes", "properties_bytes", "status"),
    [
        ("t" * 127, 1, 0, PutStatus.PUT_OK),
        ("t" * 128, 1, 0, PutStatus.MESSAGE_ILLEGAL),
        ("%RETRY%" + "t" * 248, 1, 0, PutStatus.PUT_OK),
        ("%RETRY%" + "t" * 249, 1, 0, PutStatus.MESSAGE_ILLEGAL),
        ("", 1, 0, PutStatus.MESSAGE_ILLEGAL),
        ("t", 1, 32_767, PutStatus.PUT_OK),
        ("t", 1, 32_768, PutStatus.PROPERTIES_SIZE_EXCEEDED),
        ("t", 100_001, 32_768, PutStatus.PROPERTIES_SIZE_EXCEEDED),
        ("t", 100_000, 0, PutStatus.PUT_OK),
        ("t", 100_001, 0, PutStatus.MESSAGE_ILLEGAL),
    ],
)
def test_limits_are_checked_in_the_references_order(
    topic: str, body_bytes: int, properties_bytes: int, status: PutStatus, tmp_path: Path
) -> None:
    settings = config_at(tmp_path, mapped_file_size_commit_log=1 << 20, max_message_size=100_000)
    with MessageStore(settings) as store:
        result = append(store, topic, body=bytes(body_bytes), properties=b"p" * properties_bytes)
        assert result.status is status
        assert bool(result.reason) == (status is not PutStatus.PUT_OK)
        assert store.log_max_offset == (result.size_bytes if status is PutStatus.PUT_OK else 0)


def test_a_number_that_does_not_fit_is_refused_and_leaves_the_log_usable(store: MessageStore) -> None:
    assert append(store, flag=2**31).status is PutStatus.MESSAGE_ILLEGAL
    assert append(store).physical_offset == 0


def test_a_closed_store_refuses_and_says_so(tmp_path: Path) -> None:
    store = MessageStore(config_at(tmp_path))
    assert append(store).status is PutStatus.SERVICE_NOT_AVAILABLE
    with pytest.raises(StoreClosedError, match="not open"):
        store.put(Message("T", b"x"))
    with store:
        assert store.writable
    assert not store.writable
    with pytest.raises(StoreClosedError):
        store.put(Message("T", b"x"))
    with pytest.raises(StoreClosedError):
        store.get("T", 0, 0)


def test_a_batch_is_written_whole_into_one_file(store: MessageStore) -> None:
    append(store, body=bytes(FILE_BYTES - 2000))
    parts = [BatchPart(n, b"b" * 500, encode_properties({"KEYS": f"k{n}"})) for n in range(5)]
    result = store.append_batch("T", 0, encode_batch(parts))
    assert result.physical_offsets[0] == FILE_BYTES
    assert result.queue_offset == 1
    store.dispatch()
    found = store.get("T", 0, 1)
    assert [m.physical_offset for m in found] == list(result.physical_offsets)
    assert [m.flag for m in found] == [0, 1, 2, 3, 4]
    assert len({m.store_time_ms for m in found}) == 1
    assert [m.queue_offset for m in store.query("T", "k3")] == [4]


@pytest.mark.parametrize(
    ("parts", "sys_flag"),
    [
        ([], 0),
        ([BatchPart(0, b"x", b"DELAY\x013\x02")], 0),
        ([BatchPart(0, b"x", b"DELAY\x01soon\x02")], 0),
        ([BatchPart(0, b"x", b"")], SysFlag.TRANSACTION_PREPARED),
        ([BatchPart(0, bytes(9000), b"")] * 2, 0),
        ([BatchPart(0, b"x", b"")], 2**31),
    ],
)
def test_a_batch_that_breaks_a_rule_leaves_nothing(parts: list[BatchPart], sys_flag: int, store: MessageStore) -> None:
    assert store.append_batch("T", 0, encode_batch(parts), sys_flag=sys_flag).status is PutStatus.MESSAGE_ILLEGAL
    assert append(store)[1:4] == (0, 93, 0)


@pytest.mark.parametrize("host", ["10.0.0.9", "fe80::9"])
def test_the_records_of_a_batch_have_the_bytes_of_the_codec(host: str, store: MessageStore) -> None:
    """The codec is held against Java's records; a batch of plain ones is packed by another hand."""
    append(store)
    parts = [BatchPart(n, b"b" * n, encode_properties({"KEYS": f"k{n}", "DELAY": "0"})) for n in range(40)]
    born_host, store_host = encode_host(host, 1), encode_host("10.0.0.1", 2)
    result = store.append_batch(
        "T", 0, encode_batch(parts), sys_flag=SysFlag.BORN_HOST_V6 if ":" in host else 0, born_time_ms=77,
        born_host=born_host, store_host=store_host, reconsume_times=3,
    )  # fmt: skip
    assert result.status is PutStatus.PUT_OK
    for index, (part, place) in enumerate(zip(parts, result.physical_offsets, strict=True)):
        expected = encode_record(
            "T", part.body, part.properties, queue_id=0, queue_offset=1 + index, physical_offset=place,
            born_host=born_host, store_host=store_host, born_time_ms=77, store_time_ms=result.store_time_ms,
            flag=part.flag, sys_flag=SysFlag.BORN_HOST_V6 if ":" in host else 0, reconsume_times=3,
        )  # fmt: skip
        assert store.read_record(place) == expected


# --- reading


def test_an_offset_outside_the_queue_gets_rocketmqs_answer(store: MessageStore) -> None:
    assert store.get("none", 0, 5).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
    for _ in range(3):
        store.put(Message("T", b"x"))
    for offset, status, following in [
        (-1, GetStatus.OFFSET_TOO_SMALL, 0),
        (3, GetStatus.OFFSET_OVERFLOW_ONE, 3),
        (4, GetStatus.OFFSET_OVERFLOW_BADLY, 3),
        (2, GetStatus.FOUND, 3),
    ]:
        result = store.get("T", 0, offset)
        assert (result.status, result.next_offset, result.min_offset, result.max_offset) == (status, following, 0, 3)


def test_one_answer_holds_what_the_limits_allow_and_at_least_one_message(tmp_path: Path) -> None:
    settings = config_at(tmp_path, mapped_file_size_consume_queue=20_000, max_transfer_bytes_on_message_in_memory=3000)
    with MessageStore(settings) as store:
        for _ in range(50):
            store.put(Message("S", b"s"))
            store.put(Message("L", bytes(2000)))
            store.put(Message("M", bytes(4000)))
        assert len(store.get("S", 0, 0, 10)) == 10
        assert len(store.get("S", 0, 0, 50)) == 3000 // store.get("S", 0, 0, 1)[0].size_bytes
        assert len(store.get("L", 0, 0)) == 1
        assert len(store.get("M", 0, 0)) == 1  # larger than the limit: given alone
        assert len(store.get("S", 0, 0, max_bytes=1)) == 1


class OnlyTag:
    def __init__(self, code: int, *, with_body: bytes = b"") -> None:
        self.code = code
        self.with_body = with_body

    def match_unit(self, tags_code: int, ext: object) -> bool:
        return tags_code == self.code

    def match_record(self, record: memoryview) -> bool:
        return self.with_body in bytes(record)


def test_a_filter_passes_over_units_and_records_and_moves_the_reader_on(tmp_path: Path) -> None:
    from contrailmq.message import tags_code

    with MessageStore(config_at(tmp_path, mapped_file_size_consume_queue=20_000)) as store:
        for number in range(60):
            store.put(Message("T", b"body%d" % number, tags="ab"[number % 2]))
        found = store.get("T", 0, 0, filter=OnlyTag(tags_code("b")))
        assert [m.body for m in found] == [b"body%d" % n for n in range(1, 60, 2)]
        assert found.next_offset == 60
        nothing = store.get("T", 0, 0, filter=OnlyTag(tags_code("c")))
        assert (nothing.status, nothing.next_offset) == (GetStatus.NO_MATCHED_MESSAGE, 60)
        both = store.get("T", 0, 0, filter=OnlyTag(tags_code("b"), with_body=b"body7"))
        assert [m.body for m in both] == [b"body7"]
        cold = store.get_slices_cold("T", 0, 0, 32, filter=OnlyTag(tags_code("b")))
        assert cold.count == 30 or cold.count == 8  # 8: were the log larger than memory
        assert not store.is_cold("T", 0, 0)


def test_cold_reads_give_the_same_bytes_as_warm_ones(store: MessageStore) -> None:
    for number in range(40):
        store.put(Message("T", b"%d" % number * 50))
    warm, cold = store.get_slices("T", 0, 3, 10), store.get_slices_cold("T", 0, 3, 10)
    assert [bytes(view) for view in warm.slices] == [bytes(view) for view in cold.slices]
    assert (warm.status, warm.next_offset, warm.size_bytes) == (cold.status, cold.next_offset, cold.size_bytes)


def test_arrivals_are_told_in_log_order_after_the_message_can_be_read(tmp_path: Path) -> None:
    with MessageStore(config_at(tmp_path), drive=Drive.LOOP) as store:
        seen: list[tuple[str, int, int]] = []

        def listener(arrival: Arrival) -> None:
            assert store.max_offset(arrival.topic, arrival.queue_id) > arrival.queue_offset
            seen.append((arrival.topic, arrival.queue_id, arrival.queue_offset))

        store.add_arrival_listener(listener)
        for topic, queue_id in [("A", 0), ("B", 1), ("A", 0)]:
            append(store, topic, queue_id)
        assert seen == []
        assert store.dispatch() == 3
        assert seen == [("A", 0, 0), ("B", 1, 0), ("A", 0, 1)]
        assert store.dispatch() == 0


# --- life


def test_a_second_process_is_refused_with_the_owners_pid(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom contrailmq.store import MessageStore, StoreConfig\n"
        "from contrailmq.store.base.errors import StoreLockedError\n"
        "try:\n    MessageStore(StoreConfig(sys.argv[1])).open()\n"
        "except StoreLockedError as exc:\n    print(exc.owner_pid, exc)\n"
    )
    with MessageStore(config_at(tmp_path)):
        done = subprocess.run(
            [sys.executable, "-c", script, str(tmp_path)],
            capture_output=True, text=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        assert done.stdout.startswith(f"{os.getpid()} store {tmp_path} is in use by process {os.getpid()}"), done
        with pytest.raises(StoreLockedError) as caught:
            MessageStore(config_at(tmp_path)).open()
        assert caught.value.owner_pid == os.getpid()


def test_the_abort_file_is_there_exactly_while_the_store_is_open(tmp_path: Path) -> None:
    abort = tmp_path / "abort"
    with MessageStore(config_at(tmp_path)) as store:
        assert abort.read_text() == str(os.getpid())
        store.put(Message("T", b"x"))
    assert not abort.exists()
    store = MessageStore(config_at(tmp_path)).open()
    assert store.recovery.was_clean_exit
    store.abandon()
    assert abort.exists()
    with MessageStore(config_at(tmp_path)) as store:
        assert not store.recovery.was_clean_exit
        assert store.queues() == {("T", 0): (0, 1)}


def test_a_clean_close_leaves_no_unused_log_file(tmp_path: Path) -> None:
    with MessageStore(config_at(tmp_path)) as store:
        store.put(Message("T", b"x"))
    assert [path.name for path in (tmp_path / "commitlog").iterdir()] == ["0" * 20]


def test_a_log_file_of_odd_size_stops_the_start_and_names_the_file(tmp_path: Path) -> None:
    with MessageStore(config_at(tmp_path)) as store:
        store.put(Message("T", b"x"))
    with (tmp_path / "commitlog" / ("0" * 20)).open("ab") as file:
        file.write(b"!")
    with pytest.raises(CorruptStoreError, match=str(FILE_BYTES + 1)):
        MessageStore(config_at(tmp_path)).open()
    (tmp_path / "commitlog" / "stray").touch()
    with pytest.raises(StoreError, match="stray"):
        MessageStore(config_at(tmp_path, mapped_file_size_commit_log=FILE_BYTES + 1)).open()


def test_an_empty_last_log_file_is_removed(tmp_path: Path) -> None:
    with MessageStore(config_at(tmp_path)) as store:
        store.put(Message("T", b"x"))
    (tmp_path / "commitlog" / f"{FILE_BYTES:020d}").touch()
    with MessageStore(config_at(tmp_path)) as store:
        assert store.queues() == {("T", 0): (0, 1)}


def test_deleted_topics_start_again_at_zero(store: MessageStore) -> None:
    for topic in ("A", "B"):
        store.put(Message(topic, b"x"))
    assert store.delete_topics(["A"]) == 1
    assert store.queues() == {("B", 0): (0, 1)}
    assert store.put(Message("A", b"y")).queue_offset == 0


def test_the_write_buffer_pool_shows_only_what_was_committed(tmp_path: Path) -> None:
    settings = config_at(tmp_path, transient_store_pool_enable=True, commit_interval_commit_log=60_000)
    with MessageStore(settings, drive=Drive.LOOP) as store:
        for _ in range(100):
            assert append(store, body=bytes(300)).status is PutStatus.PUT_OK
        assert store.log_max_offset < 100 * 392
    with MessageStore(config_at(tmp_path)) as store:
        assert store.max_offset("T", 0) == 100


def test_sync_flush_with_the_pool_is_durable_and_readable_at_once(tmp_path: Path) -> None:
    with MessageStore(config_at(tmp_path, transient_store_pool_enable=True, flush_disk_type="SYNC_FLUSH")) as store:
        for number in range(80):
            put = store.put(Message("T", bytes(300)))
            assert store.durable_offset >= put.physical_offset + put.size_bytes
            assert store.max_offset("T", 0) == number + 1


def test_statistics_count_puts_gets_and_failures(store: MessageStore, clock: ManualClock) -> None:
    store.tick()
    for _ in range(20):
        store.put(Message("T", b"x"))
    store.put(Message("T" * 200, b"x"))
    store.get("T", 0, 0)
    store.get("T", 0, 99)
    clock.advance(10_000)
    store.tick()
    info = store.runtime_info()
    assert info["putMessageTimesTotal"] == "20"
    assert info["putMessageFailedTimes"] == "1"
    assert info["putTps"].startswith("2.0 ")
    assert store.stats.get_found_count == 1
    assert store.stats.get_missed_count == 1
    assert int(info["commitLogMaxOffset"]) == store.log_max_offset


def test_many_threads_put_and_read_at_once(tmp_path: Path) -> None:
    """Each writer's messages stay in its order; every queue offset is used once."""
    with MessageStore(config_at(tmp_path, mapped_file_size_consume_queue=20_000)) as store:
        failures: list[BaseException] = []

        def write(writer: int) -> None:
            for number in range(100):
                store.put(Message("T", b"%d %d" % (writer, number), keys=f"w{writer}-{number}"), writer % 2)

        def read(queue_id: int) -> None:
            try:
                offset = 0
                while offset < 300:
                    page = store.get("T", queue_id, offset)
                    assert [m.queue_offset for m in page] == list(range(offset, offset + len(page)))
                    offset += len(page)
            except AssertionError as exc:
                failures.append(exc)

        threads = [threading.Thread(target=write, args=(n,)) for n in range(6)]
        threads += [threading.Thread(target=read, args=(n,)) for n in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert failures == []
        for queue_id in (0, 1):
            bodies = [store.get("T", queue_id, offset, 1)[0].body.split() for offset in range(300)]
            for writer in range(queue_id, 6, 2):
                numbers = [int(number) for who, number in bodies if int(who) == writer]
                assert numbers == list(range(100))
        assert [m.body for m in store.query("T", "w3-77")] == [b"3 77"]


# --- settings


def test_settings_read_rocketmqs_names_texts_and_old_spellings(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(
        "# comment\nbrokerName = b\nmapedFileSizeCommitLog=1048576\nflushDiskType=SYNC_FLUSH\n"
        "transientStorePoolEnable=true\nuseReentrantLockWhenPutMessage=true\ndeleteWhen=04;16\n"
    )
    config = StoreConfig.from_properties(file, path=tmp_path)
    assert config.mapped_file_size_commit_log == 1 << 20
    assert config.is_sync_flush
    assert config.uses_write_buffer_pool
    assert config.delete_when == "04;16"
    assert config.unused_keys == ("useReentrantLockWhenPutMessage",)
    assert config.path == tmp_path


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("flush_disk_type", "SOMETIMES"),
        ("mapped_file_size_commit_log", "big"),
        ("max_message_size", 9),
        ("message_index_enable", "yes"),
        ("no_such_key", 1),
        ("store_type", "defaultRocksDB"),
    ],
)
def test_an_unusable_setting_names_key_and_value(name: str, value: object, tmp_path: Path) -> None:
    with pytest.raises(StoreConfigError) as caught:
        StoreConfig(tmp_path, **{name: value})
    assert repr(value) in str(caught.value)
