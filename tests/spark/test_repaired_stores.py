"""Stores that `store repair` mended, and others that need an explanation: the jobs agree with the store's own tools."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from contrailmq import Producer
from contrailmq.cli import app
from contrailmq.message import Message
from contrailmq.spark.decoding.decode import Selection
from contrailmq.spark.decoding.index_shape import IndexShape
from contrailmq.spark.decoding.log_plan import LogSettings, plan_parts, read_part
from contrailmq.spark.decoding.store_files import confirmed_end, find_stores
from contrailmq.spark.jobs.archive import archive
from contrailmq.spark.jobs.rebuild import rebuild
from contrailmq.spark.jobs.report import report
from contrailmq.spark.jobs.swap import RebuildError
from contrailmq.spark.jobs.verify import verify
from contrailmq.spark.runtime.engine import LocalEngine
from contrailmq.store import MessageStore, StoreConfig, StoreView, rebuild_store, repair_store, verify_store
from contrailmq.testing import LocalCluster

ONE = LocalEngine(workers=1)
FILE_BYTES = 16 * 1024
SMALL: dict[str, Any] = {
    "mapped_file_size_commit_log": FILE_BYTES,
    "mapped_file_size_consume_queue": 400,
    "max_hash_slot_num": 50,
    "max_index_num": 120,
}
SHAPE = IndexShape(50, 120)
COUNT = 90  # messages of 500 bytes and more: three files and a part of a fourth
Places = list[tuple[int, int]]  # physical offset and size
Queues = dict[tuple[str, int], tuple[int, bytes]]


def body(number: int) -> bytes:
    return b"%03d" % number * 150


def fill(root: Path) -> Places:
    with MessageStore(StoreConfig(root, **SMALL)) as store:
        for number in range(COUNT):
            store.put(Message("T", body(number), tags="t", keys=[f"k{number}"]), queue_id=number % 3)
        return [store.read_units("T", number % 3, number // 3, 1)[0][:2] for number in range(COUNT)]


def garble(root: Path, begin: int, data: bytes) -> None:
    for at, byte in enumerate(data, begin):
        with (root / "commitlog" / f"{at // FILE_BYTES * FILE_BYTES:020d}").open("r+b") as file:
            file.seek(at % FILE_BYTES)
            file.write(bytes((byte,)))


def one(root: Path, places: Places) -> set[int]:
    garble(root, places[10][0] + 200, b"!")
    return {10}


def several(root: Path, places: Places) -> set[int]:
    garble(root, places[10][0] + 50, b"\x55" * (places[14][0] - places[10][0]))
    return {10, 11, 12, 13, 14}


def first(root: Path, places: Places) -> set[int]:
    garble(root, 0, b"\x11" * 100)
    return {0}


def first_of_each(root: Path, places: Places) -> set[int]:
    garble(root, 0, b"\x11" * places[3][0])
    return {0, 1, 2}


def last_of_each(root: Path, places: Places) -> set[int]:
    for number in (87, 88, 89):
        garble(root, places[number][0] + 200, b"!")
    return {87, 88, 89}


def first_in_a_queue_file(root: Path, places: Places) -> set[int]:
    """A file of a queue holds 20 units."""
    garble(root, places[60][0] + 200, b"!")
    return {60}


def a_whole_log_file(root: Path, places: Places) -> set[int]:
    garble(root, FILE_BYTES, bytes(FILE_BYTES))
    return {number for number, (offset, _) in enumerate(places) if FILE_BYTES <= offset < 2 * FILE_BYTES}


DAMAGES: list[Callable[[Path, Places], set[int]]] = [
    one, several, first, first_of_each, last_of_each, first_in_a_queue_file, a_whole_log_file
]  # fmt: skip
damages = pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)


def repaired(root: Path, damage: Callable[[Path, Places], set[int]]) -> set[int]:
    lost = damage(root, fill(root))
    assert repair_store(StoreConfig(root)).messages_lost == len(lost)
    return lost


def queues_of(root: Path) -> Queues:
    """By queue: the offset behind its last unit, and its units from the log's beginning on."""
    with StoreView(StoreConfig(root)) as view:
        return {
            (queue.topic, queue.queue_id): (
                queue.max_offset,
                queue.read_units(queue.min_offset, queue.max_offset - queue.min_offset),
            )
            for queue in view.queues
        }


def own_findings(root: Path) -> list[object]:
    with StoreView(StoreConfig(root, max_hash_slot_num=50, max_index_num=120)) as view:
        return list(verify_store(view).findings)


def rebuilt_both_ways(root: Path) -> tuple[Queues, Queues]:
    """What `store rebuild` makes of a store, and what `pipeline rebuild` does."""
    other = root.with_name(f"{root.name}-other")
    shutil.copytree(root, other)
    rebuild_store(StoreConfig(other, **SMALL))
    rebuild(str(root), ONE, range_bytes=5_000, index_shape=SHAPE, queue_file_bytes=400)
    return queues_of(other), queues_of(root)


@damages
def test_a_repaired_store_has_no_findings(damage: Callable[[Path, Places], set[int]], tmp_path: Path) -> None:
    repaired(tmp_path, damage)
    assert own_findings(tmp_path) == []
    assert verify(str(tmp_path), ONE, index_shape=SHAPE) == []
    assert verify(str(tmp_path), ONE, index_shape=SHAPE, range_bytes=3_000) == []


@damages
def test_a_repaired_store_is_rebuilt_as_the_store_does(
    damage: Callable[[Path, Places], set[int]], tmp_path: Path
) -> None:
    lost = repaired(tmp_path / "store", damage)
    wanted, found = rebuilt_both_ways(tmp_path / "store")
    assert found == wanted
    assert own_findings(tmp_path / "store") == []
    assert verify(str(tmp_path / "store"), ONE, index_shape=SHAPE) == []
    with MessageStore(StoreConfig(tmp_path / "store", **SMALL)) as store:
        for number in range(COUNT):
            got = list(store.get("T", number % 3, number // 3, max_count=1))
            assert [message.body for message in got if message.queue_offset == number // 3] == (
                [] if number in lost else [body(number)]
            )
        assert [store.put(Message("T", b"new"), queue_id=queue_id).queue_offset for queue_id in range(3)] == [30] * 3


def made_anew(root: Path) -> None:
    """Ten messages, then the topic is deleted, then forty others. The first log file has messages of both."""
    with MessageStore(StoreConfig(root, **SMALL)) as store:
        for number in range(10):
            store.put(Message("T", body(number), keys=[f"k{number}"]), queue_id=0)
        store.delete_topics(["T"])
        for number in range(10, 50):
            store.put(Message("T", body(number), keys=[f"k{number}"]), queue_id=0)


def deleted(root: Path) -> None:
    with MessageStore(StoreConfig(root, **SMALL)) as store:
        for number in range(40):
            store.put(Message("TU"[number % 2], body(number), keys=[f"k{number}"]), queue_id=0)
        store.delete_topics(["U"])


def cleaned(root: Path) -> None:
    """The messages of U are gone with the first log file, and its queue stays."""
    with MessageStore(StoreConfig(root, **SMALL)) as store:
        for number in range(60):
            store.put(Message("U" if number < 7 else "T", body(number), keys=[f"k{number}"]), queue_id=0)
    (root / "commitlog" / f"{0:020d}").unlink()


def no_directory(root: Path) -> None:
    """A name that a store keeps no queue for."""
    with MessageStore(StoreConfig(root, **SMALL)) as store:
        for number in range(6):
            store.put(Message("T", body(number), keys=[f"k{number}"]), queue_id=0)
    record = (root / "commitlog" / f"{0:020d}").read_bytes()
    at = record.index(b"\x01T") + 1
    garble(root, at, b".")


OTHERS: list[Callable[[Path], None]] = [made_anew, deleted, cleaned, no_directory]
others = pytest.mark.parametrize("make", OTHERS, ids=lambda make: make.__name__)


@pytest.mark.parametrize("make", [made_anew, deleted, cleaned], ids=lambda make: make.__name__)
@pytest.mark.parametrize("range_bytes", [3_000, 1 << 20])
def test_what_explains_itself_is_no_finding(make: Callable[[Path], None], range_bytes: int, tmp_path: Path) -> None:
    make(tmp_path)
    assert own_findings(tmp_path) == []
    assert verify(str(tmp_path), ONE, index_shape=SHAPE, range_bytes=range_bytes) == []


@others
def test_other_stores_are_rebuilt_as_the_store_does(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "store")
    wanted, found = rebuilt_both_ways(tmp_path / "store")
    assert found == wanted


def test_a_gap_that_nothing_explains_is_still_told(tmp_path: Path) -> None:
    """One placeholder of queue 1 between the two records of queue 0 whose offsets do not follow each other."""
    places = fill(tmp_path)
    garble(tmp_path, places[31][0] + 200, b"!")
    repair_store(StoreConfig(tmp_path))
    garble(tmp_path, places[30][0] + 200, b"!")  # of queue 0, beside it
    kinds = {(one.kind, one.queue_id) for one in verify(str(tmp_path), ONE, index_shape=SHAPE)}
    assert ("queue-gap", 0) in kinds
    assert ("queue-gap", 1) not in kinds


def test_without_their_queues_lost_messages_still_leave_their_offsets_free(tmp_path: Path) -> None:
    """Repair cannot know what stood there: its placeholders have no queue offset."""
    store = tmp_path / "store"
    lost = several(store, fill(store))
    shutil.rmtree(store / "consumequeue")
    assert repair_store(StoreConfig(store)).messages_lost == 0
    wanted, found = rebuilt_both_ways(store)
    assert found == wanted
    assert (
        own_findings(store)
        == verify(str(store), ONE, index_shape=SHAPE)
        == verify(str(store), ONE, index_shape=SHAPE, range_bytes=700)
        == []
    )
    with MessageStore(StoreConfig(store, **SMALL)) as opened:
        assert [message.body for message in opened.get("T", 0, 5, max_count=1)] == [body(15)]
    assert 15 not in lost


@pytest.mark.parametrize("lost", [700, 1, 0, 1399])
def test_units_of_long_queues_are_found_past_empty_ones(lost: int, tmp_path: Path) -> None:
    """A queue of more than a thousand units is searched by halves, over files of 300 units."""
    config = SMALL | {"mapped_file_size_consume_queue": 6000}
    with MessageStore(StoreConfig(tmp_path, **config)) as store:
        for number in range(1400):
            store.put(Message("T", b"%d" % number), queue_id=0)
        places = [store.read_units("T", 0, number, 1)[0][:2] for number in range(1400)]
    for number in {lost, min(lost + 1, 1399), *range(600, 640), 900}:
        garble(tmp_path, places[number][0] + 88, b"!")
    repair_store(StoreConfig(tmp_path))
    assert own_findings(tmp_path) == []
    assert verify(str(tmp_path), ONE, index_shape=SHAPE, range_bytes=2_000) == []


@pytest.mark.parametrize("plan", ["log", "queue"])
@damages
def test_a_placeholder_is_never_a_row(damage: Callable[[Path, Places], set[int]], plan: str, tmp_path: Path) -> None:
    lost = repaired(tmp_path, damage)
    for selection in (Selection(topics=frozenset({"T"})), Selection(with_system_topics=True)):
        settings = LogSettings(selection=selection, plan=plan, range_bytes=4_000)
        end = confirmed_end(str(tmp_path))
        parts = plan_parts(str(tmp_path), 0, end, settings)
        rows = [row for part in parts for batch in read_part(part, settings) for row in batch.to_pylist()]
        assert [row["body"] for row in rows] == [body(number) for number in range(COUNT) if number not in lost]


def test_a_report_and_an_archive_of_a_repaired_store_hold_what_is_left(tmp_path: Path) -> None:
    """Its first record is a placeholder, which has no address: the archive's name for the store comes from the next."""
    store, target = tmp_path / "store", tmp_path / "archive"
    lost = repaired(store, first_of_each)
    done = report(str(store), ONE)
    assert (done.messages, [row.topic for row in done.topics]) == (COUNT - len(lost), ["T"])
    assert archive(str(store), str(target), ONE, settings=LogSettings()).rows == COUNT - len(lost)
    rows = [row for path in sorted(target.rglob("*.parquet")) for row in pq.read_table(path).to_pylist()]
    assert sorted(row["body"] for row in rows) == [body(number) for number in range(COUNT) if number not in lost]
    (name,) = {row["brokerName"] for row in rows}
    assert name.startswith(f"{rows[0]['storeHost']}@")


def test_light_queues_are_left_to_the_command_that_makes_them(tmp_path: Path) -> None:
    with MessageStore(StoreConfig(tmp_path, enable_lmq=True, enable_multi_dispatch=True, **SMALL)) as store:
        message = Message("T", b"x")
        message.properties["INNER_MULTI_DISPATCH"] = "%LMQ%one"
        store.put(message, queue_id=0)
    assert own_findings(tmp_path) == []
    assert verify(str(tmp_path), ONE, index_shape=SHAPE) == []
    with pytest.raises(RebuildError, match=r"light queues \(%LMQ%one\).*`contrailmq store rebuild`"):
        rebuild(str(tmp_path), ONE)


def test_delay_levels_that_a_broker_left_in_its_store_are_the_jobs_too(tmp_path: Path) -> None:
    """Its queues hold delivery times, which come from the levels: level 2 is three hours here and 5 s elsewhere."""
    with (
        LocalCluster(store=tmp_path, config={"messageDelayLevel": "1s 3h"}) as cluster,
        Producer("delaying", namesrv=cluster.namesrv) as producer,
    ):
        for _ in range(3):
            producer.send(Message("T", b"later", delay_level=2))
    (store,) = find_stores(str(tmp_path / "*"))
    assert (Path(store) / "config" / "store.properties").read_text() == "messageDelayLevel=1s 3h\n"
    assert verify(store, ONE) == []
    before = queues_of(Path(store))
    rebuild(store, ONE)
    assert queues_of(Path(store)) == before
    told = CliRunner().invoke(app, ["pipeline", "verify", "--store", store, "--engine", "local"])
    assert (told.exit_code, told.output) == (0, "findings: nothing\n")
    (Path(store) / "config" / "store.properties").unlink()
    assert {finding.kind for finding in verify(store, ONE)} == {"wrong-unit"}
