"""Copies of records: the same messages as decoding and appending them would make, all or nothing, in order."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contrailmq.message import Property, SystemTopic, decode_properties, encode_host, encode_properties, tags_code
from contrailmq.message.codec import Kind, check_record
from contrailmq.store import Drive, Files, ManualClock, MessageStore, StoreConfig, encode_record
from contrailmq.store.base.status import Copy
from contrailmq.store.log.copying import Copier
from how_many import examples

HOST = encode_host("10.0.0.7", 4711)
WAITING = SystemTopic.SCHEDULE
PROPERTIES = {"TAGS": "t", "KEYS": "k1 k2", "UNIQ_KEY": "U", "REAL_TOPIC": "T", "REAL_QID": "3", "x": "y"}


class Disk(Files):
    """Nothing is synced, and writes fail while `is_full`."""

    is_full = False

    def sync(self, descriptor: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass

    def pwrite(self, descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().pwrite(descriptor, data, position)


def make(path: Path, *, flush: str = "ASYNC_FLUSH", files: Files | None = None, size: int = 65_536) -> MessageStore:
    config = StoreConfig(
        path, mapped_file_size_commit_log=size, max_hash_slot_num=100, max_index_num=400, flush_disk_type=flush
    )
    return MessageStore(config, files=files or Disk(), clock=ManualClock(), drive=Drive.LOOP).open()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    made = make(tmp_path)
    yield made
    made.close()


def put(store: MessageStore, body: bytes = b"body", topic: str = WAITING, queue_id: int = 0, **more: int) -> None:
    code = tags_code("t")
    result = store.append(
        topic, queue_id, body, encode_properties(PROPERTIES), tags_code=code, keys="k1 k2", unique_key="U", flag=5,
        born_time_ms=77, born_host=HOST, store_host=HOST, reconsume_times=2, prepared_transaction_offset=9, **more,
    )  # fmt: skip
    assert result.status.is_stored, result


def copies_of(store: MessageStore, count: int) -> list[Copy]:
    store.dispatch()
    found = store.get_slices(WAITING, 0, 0, count)
    copies, places = Copier(WAITING).copies(found.slices, [b"added\x01z\x02"] * len(found.slices))
    assert [queue_offset for queue_offset, _ in places] == list(range(len(found.slices)))
    found.release()
    return copies


def test_a_copy_is_the_message_in_its_real_topic_and_keeps_all_else(store: MessageStore) -> None:
    put(store, b"first", "T", 3)
    put(store, b"original", sys_flag=8)
    assert store.append_copies(copies_of(store, 1)) == 1
    store.dispatch()
    _, message = store.get("T", 3, 0)
    assert (message.topic, message.queue_id, message.queue_offset, message.stored_body) == ("T", 3, 1, b"original")
    assert message.properties == PROPERTIES | {"added": "z"}
    assert (message.flag, message.sys_flag, message.born_time_ms, message.born_host_bytes) == (5, 8, 77, HOST)
    assert (message.reconsume_times, message.prepared_transaction_offset) == (2, 9)
    assert message.store_time_ms == store.clock.now_ms()
    record = store.read_record(message.physical_offset, message.size_bytes)
    assert record is not None
    assert check_record(record, physical_offset=message.physical_offset, check_body_crc=True).kind is Kind.WHOLE
    assert next(iter(store.query("T", "k2"))).physical_offset == message.physical_offset
    assert store.read_units("T", 3, 1, 1)[0][2] == tags_code("t")


def test_copies_end_before_a_queue_that_is_new_and_before_a_file_that_is_full(store: MessageStore) -> None:
    for number in range(10):
        put(store, b"%d" % number + bytes(9000))
    copies = copies_of(store, 10)
    assert store.append_copies(copies) == 0  # nobody has written to T/3 yet
    put(store, b"opens the queue", "T", 3)
    file_bytes, end = 65_536, store.log_max_offset
    fits = (file_bytes - 8 - end % file_bytes) // (len(copies[0].head_and_body) + 100)
    assert 0 < fits < 10
    assert store.append_copies(copies) == fits
    put(store, b"rolls to the next file" + bytes(9000), "T", 3)
    assert store.append_copies(copies[fits:]) > 0
    store.dispatch()
    offsets = [message.queue_offset for message in store.get("T", 3, 0, 32)]
    assert offsets == list(range(len(offsets)))


def test_copies_that_the_disk_does_not_take_use_up_no_queue_offset(tmp_path: Path) -> None:
    """Under SYNC_FLUSH the log is written by calls, and a full disk is an errno."""
    disk = Disk()
    store = make(tmp_path, flush="SYNC_FLUSH", files=disk)
    put(store, b"opens the queue", "T", 3)
    for number in range(3):
        put(store, b"%d" % number)
    store.flush()
    copies = copies_of(store, 3)
    end = store.log_max_offset
    disk.is_full = True
    assert store.append_copies(copies) == 0
    assert store.log_max_offset == end
    disk.is_full = False
    assert store.append_copies(copies) == 3
    store.flush()
    store.dispatch()
    assert [m.queue_offset for m in store.get("T", 3, 0)] == [0, 1, 2, 3]
    store.close()


def test_copies_survive_a_kill_and_are_found_by_recovery(tmp_path: Path) -> None:
    store = make(tmp_path)
    put(store, b"opens the queue", "T", 3)
    for number in range(5):
        put(store, b"%d" % number)
    assert store.append_copies(copies_of(store, 5)) == 5
    store.abandon()  # not dispatched
    again = make(tmp_path)
    assert [m.stored_body for m in again.get("T", 3, 1)] == [b"%d" % number for number in range(5)]
    again.close()


def test_a_closed_store_copies_nothing(tmp_path: Path) -> None:
    store = make(tmp_path)
    put(store, b"opens the queue", "T", 3)
    put(store)
    copies = copies_of(store, 1)
    store.close()
    assert store.append_copies(copies) == 0


# --------------------------------------------------------------------------------------------------------- properties

names = st.sampled_from(["TAGS", "KEYS", "UNIQ_KEY", "REAL_TOPIC", "REAL_QID", "XTAGS", "A", "T", ""])
values = st.sampled_from(["", "v", "1", "TAGS", "\u00e9", "a\x01TAGS\x01b", "12"])
strings = st.lists(st.tuples(names, values), max_size=7).map(
    lambda pairs: "".join(f"{name}\x01{value}\x02" for name, value in pairs)
)


@settings(max_examples=examples(300), deadline=None, derandomize=True, database=None)
@given(
    strings, st.sampled_from(["", "\x02", "TAGS", "TAGS\x02", "TAGS\x01", "TAGS\x01last\x02"]), st.binary(max_size=30)
)
def test_a_copy_has_what_decoding_would_have_found_or_is_left_to_it(text: str, rest: str, body: bytes) -> None:
    """Equal names, empty values, names that end in others, pieces without a value, and values that look like names."""
    text += rest
    record = memoryview(
        encode_record(
            WAITING, body, text.encode(), queue_id=0, queue_offset=4, physical_offset=8, born_host=HOST,
            store_host=HOST, born_time_ms=1, store_time_ms=2,
        )
    )  # fmt: skip
    properties = decode_properties(text)
    copies, places = Copier(WAITING).copies([record] * 3)
    assert places == [(4, 8)] * len(copies)
    if not copies:
        queue_id = properties.get(Property.REAL_QUEUE_ID, "")
        assert text[-1:] != "\x02" or Property.REAL_TOPIC not in properties or not queue_id.isdigit()
        return
    assert copies == [copies[0]] * 3
    copy = copies[0]
    assert (copy.topic, copy.queue_id) == (properties["REAL_TOPIC"], int(properties["REAL_QID"]))
    assert (copy.tags, copy.keys, copy.unique_key) == tuple(map(properties.get, ("TAGS", "KEYS", "UNIQ_KEY")))
    assert copy.tags_code == tags_code(properties.get("TAGS"))
    assert copy.properties == text.encode()
    assert bytes(copy.head_and_body[88:]) == body


REAL = b"REAL_TOPIC\x01T\x02REAL_QID\x013\x02"


@pytest.mark.parametrize("before", [0, 3], ids=["first", "after others"])
@pytest.mark.parametrize(
    ("properties", "topic", "born_host", "cut"),
    [
        (b"a\x01b\x02", WAITING, HOST, 0),
        (b"REAL_TOPIC\x01T\x02", WAITING, HOST, 0),
        (b"REAL_TOPIC\x01T\x02REAL_QID\x01-3\x02", WAITING, HOST, 0),
        (REAL[:-1], WAITING, HOST, 0),
        (REAL + b"__CRC32#\x010123456789\x02", WAITING, HOST, 0),
        (REAL, "Other", HOST, 0),
        (REAL, WAITING, encode_host("2001:db8::1", 1), 0),
        (REAL, WAITING, HOST, 1),
        (REAL, WAITING, HOST, 60),
    ],
    ids=["no place", "no queue", "no number", "no end", "checksum", "topic", "IPv6", "cut off", "no head"],
)
def test_copies_end_before_a_record_that_is_not_of_the_usual_form(
    properties: bytes, topic: str, born_host: bytes, cut: int, before: int
) -> None:
    fields = {"queue_id": 0, "queue_offset": 4, "physical_offset": 8, "born_time_ms": 0, "store_time_ms": 0}
    usual = memoryview(encode_record(WAITING, b"b", REAL, born_host=HOST, store_host=HOST, **fields))
    odd = memoryview(encode_record(topic, b"b", properties, born_host=born_host, store_host=HOST, **fields))
    copies, places = Copier(WAITING).copies([*[usual] * before, odd[: len(odd) - cut], usual])
    assert [(copy.topic, copy.queue_id) for copy in copies] == [("T", 3)] * before
    assert places == [(4, 8)] * before


def test_messages_with_other_names_are_copied_each_by_its_own() -> None:
    fields = {"queue_id": 0, "queue_offset": 4, "physical_offset": 8, "born_time_ms": 0, "store_time_ms": 0}
    texts = [b"x%d\x01y\x02" % number + REAL + b"KEYS\x01k%d\x02" % number for number in range(12)]
    records = [encode_record(WAITING, b"b", text, born_host=HOST, store_host=HOST, **fields) for text in texts * 4]
    copies, _ = Copier(WAITING).copies(map(memoryview, records))
    assert [copy.keys for copy in copies] == [f"k{number}" for number in range(12)] * 4
    assert [copy.properties for copy in copies] == texts * 4


def test_a_record_with_an_unwanted_property_is_left_to_decoding() -> None:
    fields = {"queue_id": 0, "queue_offset": 4, "physical_offset": 8, "born_time_ms": 0, "store_time_ms": 0}
    texts = [REAL, REAL, REAL, REAL + b"Bad\x01x\x02", REAL]
    records = [encode_record(WAITING, b"b", text, born_host=HOST, store_host=HOST, **fields) for text in texts]
    assert len(Copier(WAITING, unwanted=("Bad",)).copies(map(memoryview, records))[0]) == 3
    assert len(Copier(WAITING).copies(map(memoryview, records))[0]) == 5
