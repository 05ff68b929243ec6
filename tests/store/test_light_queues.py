"""Light queues: one record in several queues, with offsets of its own in each, through crashes and rebuilds."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from contrailmq.message import Message, decode_properties
from contrailmq.message.batch import encode_batch
from contrailmq.store import MessageStore, PutStatus, StoreConfig
from contrailmq.store.base.status import Arrival
from contrailmq.store.queues.light_queues import light_units
from contrailmq.store.tools.read_only import StoreView
from contrailmq.store.tools.rebuild import rebuild_store
from contrailmq.store.tools.verify import verify_store

COUNT = 60


def config_at(path: Path, **settings: object) -> StoreConfig:
    given: dict[str, Any] = {"enable_lmq": True, "enable_multi_dispatch": True} | settings
    return StoreConfig(
        path,
        mapped_file_size_commit_log=16 * 1024,
        mapped_file_size_consume_queue=400,
        max_hash_slot_num=50,
        max_index_num=1000,
        **given,
    )


def message(number: int, names: str, topic: str = "Parent") -> Message:
    made = Message(topic, b"body %d" % number, tags=("a", "b", None)[number % 3], keys=f"k{number}")
    if names:
        made.properties["INNER_MULTI_DISPATCH"] = names
    return made


def fill(store: MessageStore) -> dict[str, list[bytes]]:
    """Bodies by light queue: every message goes to %LMQ%all, some to %LMQ%even as well, some nowhere else."""
    expected: dict[str, list[bytes]] = {"%LMQ%all": [], "%LMQ%even": []}
    for number in range(COUNT):
        names = "" if number % 7 == 3 else "%LMQ%even,%LMQ%all" if number % 2 == 0 else "%LMQ%all"
        assert store.put(message(number, names), number % 2).status is PutStatus.PUT_OK
        for name in filter(None, names.split(",")):
            expected[name].append(b"body %d" % number)
    return expected


def bodies(store: MessageStore, topic: str) -> list[bytes]:
    found: list[bytes] = []
    while batch := store.get(topic, 0, len(found), 32):
        found += [stored.body for stored in batch]
    return found


def queue_files(path: Path) -> dict[str, bytes]:
    root = path / "consumequeue"
    return {str(file.relative_to(root)): file.read_bytes() for file in sorted(root.rglob("*")) if file.is_file()}


def findings(path: Path) -> list[str]:
    with StoreView(config_at(path)) as view:
        return [str(finding) for finding in verify_store(view).findings]


def test_a_message_is_in_its_own_queue_and_in_each_light_queue(tmp_path: Path) -> None:
    with MessageStore(config_at(tmp_path)) as store:
        expected = fill(store)
        for name, wanted in expected.items():
            assert bodies(store, name) == wanted
            assert store.queues()[name, 0] == (0, len(wanted))
        assert len(bodies(store, "Parent")) == COUNT / 2
        assert store.log_max_offset < COUNT * 300  # stored once
    assert findings(tmp_path) == []


def test_the_offsets_are_in_the_record_and_a_refused_message_uses_none_up(tmp_path: Path) -> None:
    with MessageStore(config_at(tmp_path, max_lmq_consume_queue_num=2)) as store:
        store.put(message(0, "%LMQ%a"))
        put = store.put(message(1, "%LMQ%b,%LMQ%a"))
        stored = store.lookup(put.physical_offset)
        assert stored is not None
        assert stored.properties["INNER_MULTI_QUEUE_OFFSET"] == "0,1"
        assert "WAIT" not in stored.properties  # as RocketMQ writes it
        full = store.put(message(2, "%LMQ%a,%LMQ%c"))
        assert full.status is PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED
        assert "3 light queues, the limit is 2" in full.reason
        for names in ("Other", "%LMQ%a,", "%LMQ%a/b", "%LMQ%a,%LMQ%a", "%LMQ%" + "x" * 251):
            refused = store.put(message(3, names))
            assert refused.status is PutStatus.MESSAGE_ILLEGAL, names
            assert "INNER_MULTI_DISPATCH" in refused.reason
        assert store.put_many([message(4, ""), message(5, "%LMQ%a")])[1].status is PutStatus.PUT_OK
        assert bodies(store, "%LMQ%a") == [b"body 0", b"body 1", b"body 5"]


@pytest.mark.parametrize(
    ("is_on", "properties"),
    [
        (True, b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02INNER_MULTI_QUEUE_OFFSET\x0150\x02"),
        (True, b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02"),
        (False, b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02INNER_MULTI_QUEUE_OFFSET\x0150\x02"),
    ],
)
def test_a_part_of_a_batch_that_names_a_light_queue_keeps_all_out(
    is_on: bool, properties: bytes, tmp_path: Path
) -> None:
    """Believed, its offset would hide what goes to that queue afterwards; with none, it would miss the queue itself."""
    with MessageStore(config_at(tmp_path, enable_lmq=is_on)) as store:
        refused = store.append_batch("Parent", 0, encode_batch([(0, b"large" * 20, b""), (0, b"x", properties)]))
        assert refused.status is PutStatus.MESSAGE_ILLEGAL
        assert "part 1 of the batch names light queues (INNER_MULTI_DISPATCH='%LMQ%a')" in refused.reason
        assert store.log_max_offset == 0
    with MessageStore(config_at(tmp_path)) as store:
        assert [store.put(message(number, "%LMQ%a")).queue_offset for number in range(2)] == [0, 1]
        assert bodies(store, "%LMQ%a") == [b"body 0", b"body 1"]


def test_a_batch_with_names_of_light_queues_is_stored_where_nobody_gives_or_claims_offsets(tmp_path: Path) -> None:
    with MessageStore(config_at(tmp_path, enable_lmq=False)) as store:
        batch = encode_batch([(0, b"x", b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02")])
        assert store.append_batch("Parent", 0, batch).status is PutStatus.PUT_OK
        assert list(store.queues()) == [("Parent", 0)]


@pytest.mark.parametrize("is_on", [True, False])
@pytest.mark.parametrize("is_one_of_many", [True, False])
def test_an_offset_in_a_light_queue_that_a_sender_gives_is_dropped(
    is_one_of_many: bool, is_on: bool, tmp_path: Path
) -> None:
    with MessageStore(config_at(tmp_path)) as store:
        store.put(message(0, "%LMQ%a"))
    store = MessageStore(config_at(tmp_path, enable_lmq=is_on)).open()
    store.put(Message("Parent", b"first"))
    forged = Message("Parent", b"forged", properties={"x": "y"})
    forged.properties |= {"INNER_MULTI_DISPATCH": "%LMQ%a", "INNER_MULTI_QUEUE_OFFSET": "50"}
    put = store.put_many([Message("Parent", b"before"), forged])[1] if is_one_of_many else store.put(forged)
    assert put.status is PutStatus.PUT_OK
    stored = store.lookup(put.physical_offset)
    assert stored is not None
    assert stored.properties["x"] == "y"
    assert stored.properties.get("INNER_MULTI_QUEUE_OFFSET") == ("1" if is_on else None)
    store.abandon()
    with MessageStore(config_at(tmp_path)) as store:
        store.put(message(1, "%LMQ%a"))
        assert bodies(store, "%LMQ%a") == [b"body 0", *([b"forged"] if is_on else []), b"body 1"]


@pytest.mark.parametrize("topic", ["%RETRY%group", "rmq_sys_X", "SCHEDULE_TOPIC_XXXX"])
def test_retries_and_system_topics_have_no_light_queues(topic: str, tmp_path: Path) -> None:
    with MessageStore(config_at(tmp_path)) as store:
        assert store.put(message(1, "%LMQ%a", topic)).status is PutStatus.PUT_OK
        assert list(store.queues()) == [(topic, 0)]


@pytest.mark.parametrize("missing", ["enable_lmq", "enable_multi_dispatch"])
def test_without_both_settings_the_property_is_only_stored(missing: str, tmp_path: Path) -> None:
    with MessageStore(config_at(tmp_path, **{missing: False})) as store:
        put = store.put(message(1, "%LMQ%a"))
        assert list(store.queues()) == [("Parent", 0)]
        stored = store.lookup(put.physical_offset)
        assert stored is not None
        assert "INNER_MULTI_QUEUE_OFFSET" not in stored.properties


def test_whoever_waits_at_a_light_queue_hears_of_its_messages(tmp_path: Path) -> None:
    heard: list[tuple[str, int, int]] = []
    with MessageStore(config_at(tmp_path)) as store:

        def note(arrival: Arrival) -> None:
            heard.append((arrival.topic, arrival.queue_id, arrival.queue_offset))

        store.add_arrival_listener(note, queues={("%LMQ%a", 0)})
        store.put(message(1, "%LMQ%a,%LMQ%b"), 5)
        store.put(message(2, "%LMQ%b"), 5)
        store.put(message(3, "%LMQ%a"), 5)
    assert heard == [("%LMQ%a", 0, 0), ("%LMQ%a", 0, 1)]


@pytest.mark.parametrize("is_on", [True, False])
@pytest.mark.parametrize("exit_kind", ["clean", "killed"])
def test_light_queues_survive_every_exit_and_go_on(exit_kind: str, is_on: bool, tmp_path: Path) -> None:
    store = MessageStore(config_at(tmp_path)).open()
    expected = fill(store)
    assert bodies(store, "%LMQ%all") == expected["%LMQ%all"]
    store._queues.write_pending(1)
    store.close() if exit_kind == "clean" else store.abandon()
    (tmp_path / "queues.ledger").unlink()  # as after Apache's broker: everything is compared
    with MessageStore(config_at(tmp_path, enable_lmq=is_on)) as store:
        assert (store.recovery.units_corrected, store.recovery.units_cut) == (0, 0)
        assert store.recovery.queues_rebuilt == ()
        for name, wanted in expected.items():
            assert bodies(store, name) == wanted
        if is_on:
            store.put(message(COUNT, "%LMQ%all"))
            assert bodies(store, "%LMQ%all") == [*expected["%LMQ%all"], b"body 60"]
    assert findings(tmp_path) == []


@pytest.mark.parametrize("lost", ["%LMQ%all", "%LMQ%even", ""])
def test_light_queues_that_were_deleted_or_damaged_are_made_again_to_the_byte(lost: str, tmp_path: Path) -> None:
    with MessageStore(config_at(tmp_path)) as store:
        fill(store)
    before = queue_files(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue" / lost)
    with MessageStore(config_at(tmp_path)):
        pass
    assert queue_files(tmp_path) == before
    file = tmp_path / "consumequeue" / "%LMQ%all" / "0" / f"{0:020d}"
    data = bytearray(file.read_bytes())
    data[43] ^= 4
    file.write_bytes(data)
    assert any("%LMQ%all" in finding for finding in findings(tmp_path))
    rebuild_store(config_at(tmp_path))
    assert queue_files(tmp_path) == before


def test_a_log_without_facts_is_dispatched_to_light_queues_too(tmp_path: Path) -> None:
    """What a slave does: the master's bytes are in its log, and it learns everything from them."""
    with MessageStore(config_at(tmp_path / "master")) as master:
        expected = fill(master)
        log, end = (tmp_path / "master" / "commitlog" / f"{0:020d}").read_bytes(), master.log_max_offset
        assert end <= 16 * 1024
    with MessageStore(config_at(tmp_path / "slave", broker_role="SLAVE")) as slave:
        assert slave.replica.append(0, log[:end]) == end
        slave.dispatch()
        for name, wanted in expected.items():
            assert bodies(slave, name) == wanted


@pytest.mark.parametrize(
    ("names", "offsets", "units"),
    [
        ("%LMQ%a,%LMQ%b", "3,4", [("%LMQ%a", 3), ("%LMQ%b", 4)]),
        ("%LMQ%a,%LMQ%b", "3", []),
        ("%LMQ%a,Other", "3,4", [("%LMQ%a", 3)]),
        ("%LMQ%a", "-1", []),
        ("%LMQ%a", "9" * 30, []),
        ("%LMQ%../x", "1", []),
        (" ", "1", []),
    ],
)
def test_lists_that_do_not_fit_or_lead_out_of_the_store_give_no_units(
    names: str, offsets: str, units: list[tuple[str, int]]
) -> None:
    properties = f"INNER_MULTI_DISPATCH\x01{names}\x02INNER_MULTI_QUEUE_OFFSET\x01{offsets}\x02".encode()
    assert light_units("T", properties) == units
    assert light_units("T", decode_properties(properties)) == units
