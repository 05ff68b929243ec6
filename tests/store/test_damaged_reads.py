"""What a read does when the log was damaged behind the store's back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from contrailmq.message import Message
from contrailmq.store import MessageStore, StoreConfig, StoreView, verify_store
from contrailmq.store.base.errors import CorruptStoreError

SMALL = {"mapped_file_size_commit_log": 64 * 1024, "max_hash_slot_num": 50, "max_index_num": 500}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    with MessageStore(StoreConfig(tmp_path, **SMALL)) as opened:
        for number in range(10):
            opened.put(Message("T", b"%d" % number * 50, keys=["k", f"k{number}"]), queue_id=3)
        yield opened


def place_of(store: MessageStore, offset: int) -> int:
    return store.read_units("T", 3, offset, 1)[0][0]


def overwrite(store: MessageStore, offset: int, position: int, data: bytes) -> None:
    where = place_of(store, offset) + position
    with (store.config.path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(where)
        file.write(data)


@pytest.mark.parametrize(
    "read",
    [
        lambda store: store.get("T", 3, 0),
        lambda store: store.get("T", 3, 6, 1),
        lambda store: store.lookup(place_of(store, 6)),
        lambda store: store.query("T", "k6"),
        lambda store: store.query("T", "k"),
    ],
    ids=["get", "get alone", "lookup", "query", "query several"],
)
def test_a_body_that_does_not_match_its_checksum_is_named_and_not_given(
    read: Callable[[MessageStore], object], store: MessageStore
) -> None:
    read(store)
    overwrite(store, 6, 88 + 20, b"!")
    with pytest.raises(CorruptStoreError) as damaged:
        read(store)
    place = place_of(store, 6)
    assert f"T/3: the body of the message at queue offset 6, physical offset {place}, does not match" in str(
        damaged.value
    )
    assert "restore the log file from a copy" in str(damaged.value)
    assert [message.queue_offset for message in store.get("T", 3, 7)] == [7, 8, 9]


def test_slices_go_out_as_they_stand_and_what_a_broker_decodes_does_not(store: MessageStore) -> None:
    """Their readers have the checksum; one damaged record must not hold up those behind it."""
    overwrite(store, 6, 88 + 20, b"!")
    found = store.get_slices("T", 3, 0, 32)
    assert found.count == 10
    found.release()
    found = store.get_slices_sound("T", 3, 0, 32)
    assert (found.count, found.damaged, found.next_offset) == (9, 1, 10)
    found.release()
    assert store.lookup_sound(place_of(store, 6)) is None
    assert store.read_record(place_of(store, 6)) is None
    assert store.read_record(place_of(store, 7)) is not None
    assert [message.queue_offset for message in store.query_sound("T", "k")] == [9, 8, 7, 5, 4, 3, 2, 1, 0]
    (place,) = store.damaged_places()
    assert (place.physical_offset, place.topic, place.queue_id, place.queue_offset) == (place_of(store, 6), "T", 3, 6)
    assert "its body has the checksum 0x" in place.reason


def test_a_view_of_one_record_is_of_what_was_stored_there_and_of_nothing_else(store: MessageStore) -> None:
    places = [place_of(store, number) for number in range(10)]
    for number, place in enumerate(places):
        seen, told = store.view_sound(place), store.lookup(place)
        assert seen is not None
        assert told is not None
        assert (seen.topic_name, seen.queue_id, seen.queue_offset, seen.physical_offset) == ("T", 3, number, place)
        assert (seen.body, seen.properties, seen.size_bytes) == (told.body, told.encoded_properties, told.size_bytes)
    for nowhere in (-1, places[0] + 1, places[1] - 1, store.log_max_offset, store.log_max_offset - 4, 2**62):
        assert store.view_sound(nowhere) is None
    assert store.damaged_places() == []
    overwrite(store, 6, 88 + 20, b"!")
    assert store.view_sound(places[6]) is None
    assert [place.queue_offset for place in store.damaged_places()] == [6]
    overwrite(store, 7, 28, (places[7] + 1).to_bytes(8, "big"))  # it says that it lies elsewhere
    assert store.view_sound(places[7]) is None
    assert store.view_sound(places[8]) is not None


def test_a_record_whose_lengths_cannot_be_is_named_by_its_place(store: MessageStore) -> None:
    overwrite(store, 6, 84, b"\x7f\xff\xff\xff")
    with pytest.raises(CorruptStoreError) as damaged:
        store.get("T", 3, 0)
    place = place_of(store, 6)
    assert f"record 7 of 10, which says that it is queue offset 6 at physical offset {place}, is damaged" in str(
        damaged.value
    )
    assert "at 0" not in str(damaged.value)


def test_verify_names_each_damaged_range_and_the_messages_in_it(store: MessageStore) -> None:
    places = [place_of(store, offset) for offset in range(10)]
    overwrite(store, 2, 88 + 20, b"!")
    overwrite(store, 5, 40, bytes(200))  # the rest of this record and the head of the next one
    store.close()
    with StoreView(store.config) as view:
        report = verify_store(view)
    log = [(finding.offset, finding.problem) for finding in report.findings if finding.part == "log"]
    assert [offset for offset, _ in log] == [places[2], places[5]]
    assert f"damaged up to {places[3]}, where records follow: body checksum differs" in log[0][1]
    assert f"damaged up to {places[7]}, where records follow: " in log[1][1]
    lost = [(finding.where, finding.offset) for finding in report.findings if finding.part == "queue"]
    assert lost == [("T/3", 2), ("T/3", 5), ("T/3", 6)]
