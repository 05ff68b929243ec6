"""A store whose files changed behind its back: what the ledger remembers must never hide a message.

The ledger lets a start skip what it vouches for. Here the log under it is cut and written again, the directory is
restored from an older copy, another program appends, topics are deleted and made again: each time every message of the
log is in its queue, found by its key, and verify finds nothing.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from contrailmq.message import Message
from contrailmq.message.codec import decode_record, encode_record
from contrailmq.store import MessageStore, StoreConfig, StoreView, verify_store
from contrailmq.store.base.errors import CorruptStoreError, StoreClosedError, StoreError, StoreIOError
from contrailmq.store.recovery.queue_ledger import LEDGER_NAME

SIZES = {
    "mapped_file_size_commit_log": 16_384,
    "mapped_file_size_consume_queue": 2_000,
    "max_hash_slot_num": 100,
    "max_index_num": 1_000,
}


def config_at(root: Path) -> StoreConfig:
    return StoreConfig(root, **SIZES)  # type: ignore[arg-type]


def fill(store: MessageStore, topic: str, count: int, first: int = 0) -> None:
    for number in range(first, first + count):
        assert (
            store.put(Message(topic, b"%s-%d" % (topic.encode(), number), keys=[f"{topic}{number}"])).physical_offset
            >= 0
        )


def bodies(store: MessageStore, topic: str) -> list[bytes]:
    low, high = store.min_offset(topic, 0), store.max_offset(topic, 0)
    found: list[bytes] = []
    while low < high:
        messages = store.get(topic, 0, low)
        found += [message.body for message in messages]
        low = messages.next_offset
    return found


def numbered(topic: str, count: int, first: int = 0) -> list[bytes]:
    return [b"%s-%d" % (topic.encode(), number) for number in range(first, first + count)]


def findings(root: Path) -> list[object]:
    with StoreView(config_at(root)) as view:
        return list(verify_store(view).findings)


def cut_log(root: Path, offset: int) -> None:
    """As a power cut that took everything from `offset` on."""
    size = SIZES["mapped_file_size_commit_log"]
    for path in (root / "commitlog").iterdir():
        keep = min(max(offset - int(path.name), 0), size)
        path.write_bytes(path.read_bytes()[:keep] + bytes(size - keep))


@pytest.mark.parametrize("exits", [("kill", "kill"), ("kill", "clean"), ("clean", "kill")])
def test_messages_after_a_power_cut_that_took_what_the_ledger_knew_are_not_skipped(
    exits: tuple[str, str], tmp_path: Path
) -> None:
    store = MessageStore(config_at(tmp_path)).open()
    fill(store, "Lost", 5)
    end = store.log_max_offset
    fill(store, "Lost", 20, first=5)
    store.close()
    if exits[0] == "kill":
        (tmp_path / "abort").write_text("1")
    cut_log(tmp_path, end)
    store = MessageStore(config_at(tmp_path)).open()
    assert bodies(store, "Lost") == numbered("Lost", 5)
    fill(store, "New", 6)
    assert store.log_max_offset < 25 * 200
    if exits[1] == "kill":
        store.abandon()
    else:
        store.close()
    with MessageStore(config_at(tmp_path)) as again:
        assert bodies(again, "New") == numbered("New", 6)
        assert bodies(again, "Lost") == numbered("Lost", 5)
        assert [message.body for message in again.query("New", "New3")] == [b"New-3"]
    assert findings(tmp_path) == []


@pytest.mark.parametrize("exit_kind", ["clean", "kill"])
def test_an_older_copy_with_a_newer_ledger_serves_what_its_own_log_has(exit_kind: str, tmp_path: Path) -> None:
    root, old = tmp_path / "store", tmp_path / "old"
    with MessageStore(config_at(root)) as store:
        fill(store, "A", 10)
    shutil.copytree(root, old)
    with MessageStore(config_at(root)) as store:
        fill(store, "A", 50, first=10)
        fill(store, "B", 10)
    ledger = (root / LEDGER_NAME).read_bytes()
    for name in ("commitlog", "consumequeue", "index"):
        shutil.rmtree(root / name)
        shutil.copytree(old / name, root / name)
    store = MessageStore(config_at(root)).open()
    assert bodies(store, "A") == numbered("A", 10)
    fill(store, "C", 30)
    if exit_kind == "clean":
        store.close()
    else:
        store.abandon()
    (root / LEDGER_NAME).write_bytes(ledger)  # and once more, now with other records in the places that it knows
    with MessageStore(config_at(root)) as store:
        assert bodies(store, "A") == numbered("A", 10)
        assert bodies(store, "C") == numbered("C", 30)
    assert findings(root) == []


def test_what_another_program_appended_and_left_undispatched_is_dispatched(tmp_path: Path) -> None:
    """Records over several files behind the ledger's newest one; the queues know the last of them only."""
    with MessageStore(config_at(tmp_path)) as store:
        fill(store, "A", 10)
    saved = {name: (tmp_path / name).read_bytes() for name in (LEDGER_NAME, "checkpoint")}
    with MessageStore(config_at(tmp_path)) as store:
        fill(store, "B", 300)
        fill(store, "A", 1, first=10)
        assert store.log_max_offset > 3 * SIZES["mapped_file_size_commit_log"]
    for name, data in saved.items():
        (tmp_path / name).write_bytes(data)
    shutil.rmtree(tmp_path / "consumequeue" / "B")
    shutil.rmtree(tmp_path / "index")
    with MessageStore(config_at(tmp_path)) as store:
        assert store.recovery.walked_from > 0
        assert bodies(store, "B") == numbered("B", 300)
        assert bodies(store, "A") == numbered("A", 11)
        assert len(store.query("B", "B7")) == 1
    assert findings(tmp_path) == []


@pytest.mark.parametrize("loss", ["nothing", "ledger", "queue", "both"])
@pytest.mark.parametrize("exit_kind", ["clean", "kill"])
def test_a_topic_that_was_deleted_and_made_again_keeps_its_new_messages(
    exit_kind: str, loss: str, tmp_path: Path
) -> None:
    store = MessageStore(config_at(tmp_path)).open()
    fill(store, "T", 10)
    store.tick()
    store.delete_topics(["T"])
    fill(store, "T", 4, first=100)
    if exit_kind == "clean":
        store.close()
        assert findings(tmp_path) == []
    else:
        store.abandon()
    if loss in ("ledger", "both"):
        (tmp_path / LEDGER_NAME).unlink(missing_ok=True)
    if loss in ("queue", "both"):
        shutil.rmtree(tmp_path / "consumequeue", ignore_errors=True)
    with MessageStore(config_at(tmp_path)) as again:
        assert again.queues() == {("T", 0): (0, 4)}
        assert bodies(again, "T") == numbered("T", 4, first=100)
    assert findings(tmp_path) == []


def test_verify_does_not_miss_the_queues_of_a_deleted_topic(tmp_path: Path) -> None:
    with MessageStore(config_at(tmp_path)) as store:
        fill(store, "Gone", 10)
        fill(store, "Stays", 3)
        store.delete_topics(["Gone"])
    assert findings(tmp_path) == []
    shutil.rmtree(tmp_path / "consumequeue" / "Stays")
    assert len(findings(tmp_path)) == 3


@pytest.mark.parametrize("topic", ["../../escaped", "a/b", "..", ".", "a\0b", "\ud800"])
def test_a_topic_that_is_no_file_name_is_refused(topic: str, tmp_path: Path) -> None:
    root = tmp_path / "deep" / "store"
    with MessageStore(config_at(root)) as store:
        result = store.put(Message(topic, b"x"))
        assert "cannot name a directory" in result.reason
        assert store.log_max_offset == 0
        fill(store, "T", 1)
        store.tick()
    assert sorted(path.name for path in tmp_path.rglob("*") if path.is_dir() and path.parent != root) == [
        "0", "T", "deep", "store"
    ]  # fmt: skip


def test_a_topic_in_a_foreign_log_never_leads_out_of_the_store(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with MessageStore(config_at(root)) as store:
        fill(store, "T", 2)
        end = store.log_max_offset
        like = decode_record(store.read_record(0) or b"")
    foreign = encode_record(
        "../../out", b"body", b"KEYS\x01k\x02", queue_id=0, queue_offset=0, physical_offset=end,
        born_host=like.born_host_bytes, store_host=like.store_host_bytes, born_time_ms=like.born_time_ms,
        store_time_ms=like.store_time_ms,
    )  # fmt: skip
    path = root / "commitlog" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[end : end + len(foreign)] = foreign
    path.write_bytes(data)
    with MessageStore(config_at(root)) as store:
        assert store.queues() == {("T", 0): (0, 2)}
        assert store.log_max_offset == end + len(foreign)
    assert not (tmp_path / "out").exists()


def test_a_put_that_an_exception_ended_does_not_hold_up_the_next(tmp_path: Path) -> None:
    with MessageStore(config_at(tmp_path)) as store:
        log = store._log
        log.lock_since_ms = store.clock.now_ms() - 60_000  # left by a put that Ctrl-C ended a minute ago
        assert store.put(Message("T", b"x")).reason == ""


@pytest.mark.parametrize("body", [bytearray(b"body"), memoryview(b"body"), memoryview(b"body").cast("h")])
def test_a_body_may_be_any_buffer(body: bytes, tmp_path: Path) -> None:
    with MessageStore(config_at(tmp_path)) as store:
        store.put(Message("T", body))
        assert bodies(store, "T") == [b"body"]


def test_a_hole_in_the_log_hides_no_message_before_or_after_it(tmp_path: Path) -> None:
    with MessageStore(config_at(tmp_path)) as store:
        fill(store, "T", 400)
    files = sorted((tmp_path / "commitlog").iterdir())
    assert len(files) > 3
    files[1].unlink()
    shutil.rmtree(tmp_path / "consumequeue")
    (tmp_path / LEDGER_NAME).unlink()
    seen = []
    for _ in range(2):
        with MessageStore(config_at(tmp_path)) as store:
            seen.append(bodies(store, "T"))
    assert seen[0] == seen[1]
    assert seen[0][0] == b"T-0"
    assert seen[0][-1] == b"T-399"
    assert len(seen[0]) > 150


@pytest.mark.parametrize("exit_kind", ["clean", "kill"])
def test_rubbish_behind_the_last_unit_never_becomes_one(exit_kind: str, tmp_path: Path) -> None:
    with MessageStore(config_at(tmp_path)) as store:
        fill(store, "T", 10)
    path = tmp_path / "consumequeue" / "T" / "0" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[200:260] = b"\xff" * 20 + bytes(7) + b"\x11" + bytes(3) + b"\x22" + bytes(8) + b"\x01" * 20
    path.write_bytes(data)
    store = MessageStore(config_at(tmp_path)).open()
    fill(store, "T", 1, first=10)
    store.tick()
    if exit_kind == "clean":
        store.close()
    else:
        store.abandon()
    assert not any(path.read_bytes()[220:])
    with MessageStore(config_at(tmp_path)) as again:
        assert not again.recovery.found_damage
        assert bodies(again, "T") == numbered("T", 11)


def test_an_index_file_out_of_order_is_removed_and_its_keys_are_entered_again(tmp_path: Path) -> None:
    with MessageStore(config_at(tmp_path)) as store:
        fill(store, "T", 30)
    first = next((tmp_path / "index").iterdir())
    (tmp_path / "index" / f"{int(first.name) + 1:017d}").write_bytes(first.read_bytes())
    with MessageStore(config_at(tmp_path)) as store:
        assert len(store.recovery.index_rebuilt) == 1
        assert [message.body for message in store.query("T", "T7")] == [b"T-7"]
    assert findings(tmp_path) == []


def test_a_damaged_record_is_named_with_its_queue_and_never_served(tmp_path: Path) -> None:
    with MessageStore(config_at(tmp_path)) as store:
        fill(store, "T", 300)
        place = store.read_units("T", 0, 3, 1)[0][0]
    path = tmp_path / "commitlog" / ("0" * 20)
    data = bytearray(path.read_bytes())
    data[place : place + 60] = bytes(60)
    path.write_bytes(data)
    with MessageStore(config_at(tmp_path)) as store:
        assert [message.body for message in store.get("T", 0, 0, 3)] == numbered("T", 3)
        with pytest.raises(CorruptStoreError, match="T/0 from offset 3"):
            store.get("T", 0, 3)
        assert store.get("T", 0, 4, 1)[0].body == b"T-4"


def test_a_garbled_index_of_a_killed_store_is_made_again(tmp_path: Path) -> None:
    store = MessageStore(config_at(tmp_path)).open()
    fill(store, "T", 5)
    store.close()
    (tmp_path / "abort").write_text("1")
    path = next((tmp_path / "index").iterdir())
    data = bytearray(path.read_bytes())
    data[40:440] = b"\x7f\x01\x02\x03" * 100  # every slot
    path.write_bytes(data)
    with MessageStore(config_at(tmp_path)) as again:
        assert [message.body for message in again.query("T", "T3")] == [b"T-3"]
    assert findings(tmp_path) == []


def test_a_closed_store_neither_answers_nor_writes_nor_opens_again(tmp_path: Path) -> None:
    store = MessageStore(config_at(tmp_path))
    uses = (lambda: store.query("T", "T0"), lambda: store.lookup(0), lambda: store.get("T", 0, 0), store.tick)
    for use in uses:
        with pytest.raises(StoreClosedError, match="not open"):
            use()
    with store:
        fill(store, "T", 1)
        for use in uses:
            use()
    for use in uses:
        with pytest.raises(StoreClosedError, match="not open"):
            use()
    with pytest.raises(StoreError, match="make a new MessageStore"):
        store.open()


@pytest.mark.parametrize("name", ["", "index", "consumequeue", "commitlog"])
def test_a_file_where_a_directory_belongs_is_an_error_of_ours(name: str, tmp_path: Path) -> None:
    root = tmp_path / "store"
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).write_text("not a directory")
    with pytest.raises(StoreIOError, match="Not a directory|File exists"):
        MessageStore(config_at(root)).open()
