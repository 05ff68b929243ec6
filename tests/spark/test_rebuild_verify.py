"""Rebuilding queues and index from the log, and finding what is wrong with a store, on golden stores."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from contrailmq.cli import app
from contrailmq.message import Message, encode_host, java_hash
from contrailmq.message.codec import encode_record
from contrailmq.spark.decoding.dispatched import Dispatcher, java_hashes, numbered
from contrailmq.spark.decoding.index_shape import IndexShape
from contrailmq.spark.decoding.records import stable_order
from contrailmq.spark.decoding.scan import CorruptLogError
from contrailmq.spark.jobs import rebuild as job
from contrailmq.spark.jobs.rebuild import rebuild, remove_old
from contrailmq.spark.jobs.swap import RebuildError, is_in_use
from contrailmq.spark.jobs.verify import Finding, findings_table, verify
from contrailmq.spark.runtime.engine import LocalEngine
from contrailmq.spark.sources.topic_pulls import split_records
from contrailmq.store import MessageStore, StoreConfig, repair_store
from how_many import examples
from lock_holder import in_use_by_another
from spark.conftest import unpack

ONE = LocalEngine(workers=1)
SHAPES = {"direct": IndexShape(50, 120), "direct-crc": IndexShape(50, 120)}


def files_below(folder: str) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes() for path in sorted(Path(folder).rglob("*")) if path.is_file()
    }


@pytest.mark.parametrize("name", ["clean", "kill9-recovered", "direct", "direct-crc"])
def test_rebuilt_queues_and_index_equal_the_brokers_own_bytes(
    tmp_path: Path, golden_store: Callable[[str], str], name: str
) -> None:
    """Index files bear the time of their making as a name; their contents are compared in order.

    The last index file of a store that a broker recovered was made anew by that recovery and differs in its header.
    """
    store = unpack(name, tmp_path)
    shutil.rmtree(Path(store, "consumequeue"))
    shutil.rmtree(Path(store, "index"))
    size = os.stat(next(Path(golden_store(name), "consumequeue").rglob("0" * 20))).st_size
    shape = SHAPES.get(name, IndexShape(100, 400))
    rebuild(store, ONE, queue_file_bytes=size, index_shape=shape, range_bytes=20_000)
    assert files_below(f"{store}/consumequeue") == files_below(f"{golden_store(name)}/consumequeue")
    rebuilt, golden = (list(files_below(f"{path}/index").values()) for path in (store, golden_store(name)))
    known = len(golden) - (name == "kill9-recovered")
    assert (len(rebuilt), rebuilt[:known]) == (len(golden), golden[:known])


def test_a_lagging_store_is_whole_after_a_rebuild_and_the_old_files_stay(tmp_path: Path, pool: LocalEngine) -> None:
    store = unpack("kill9-lag", tmp_path)
    assert {finding.kind for finding in verify(store, ONE)} == {"no-unit", "no-index-entry"}
    result = rebuild(store, pool, range_bytes=200_000)
    assert (result.units, result.gaps) == (1395, 0)
    assert verify(store, ONE, range_bytes=50_000) == []
    assert len(result.old) == 2
    remove_old(result)
    assert not [name for name in os.listdir(store) if "before-rebuild" in name]


def test_a_dry_run_changes_nothing(tmp_path: Path) -> None:
    store = unpack("kill9-lag", tmp_path)
    before = files_below(store)
    assert rebuild(store, ONE, dry_run=True).units == 1395
    assert files_below(store) == before


def test_files_that_do_not_hold_what_was_written_replace_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = unpack("clean", tmp_path)
    before, write = files_below(store), job._write_queue

    def flip(runs: list[job.Run], folder: Path, file_bytes: int) -> int:
        gaps = write(runs, folder, file_bytes)
        first = min(folder.iterdir())
        data = first.read_bytes()
        first.write_bytes(data[:-1] + b"x" if runs[0].topic == "GoldenOrder" else data)
        return gaps

    monkeypatch.setattr(job, "_write_queue", flip)
    with pytest.raises(RebuildError, match="GoldenOrder/. was read back otherwise .* nothing was replaced"):
        rebuild(store, ONE)
    assert files_below(store) == before


def test_units_at_another_place_than_their_offsets_replace_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every unit is there, but one too late."""
    store = unpack("clean", tmp_path)
    before, make = files_below(store), job._queue_bytes

    def shift(runs: list[job.Run], file_bytes: int) -> Iterator[bytes]:
        yield job.pre_blank(1)
        yield from make(runs, file_bytes)

    monkeypatch.setattr(job, "_queue_bytes", shift)
    with pytest.raises(RebuildError, match="was read back otherwise than its records say"):
        rebuild(store, ONE)
    assert files_below(store) == before


def test_a_damaged_log_is_not_rebuilt_from(tmp_path: Path) -> None:
    store = unpack("clean", tmp_path)
    with open(f"{store}/commitlog/{0:020d}", "r+b") as log:
        log.seek(267 + 4)
        log.write(b"????")
    before = files_below(store)
    with pytest.raises(CorruptLogError, match="physical offset 267 "):
        rebuild(store, ONE)
    assert files_below(store) == before


def test_a_store_in_use_is_left_alone(tmp_path: Path) -> None:
    store = unpack("clean", tmp_path)
    with in_use_by_another(store):
        with pytest.raises(RebuildError, match="in use"):
            rebuild(store, ONE)
        assert is_in_use(store)
        shutil.rmtree(Path(store, "consumequeue", "GoldenOrder"))  # as if the broker had not written them yet
        words = ["pipeline", "verify", "--store", store, "--engine", "local"]
        told = CliRunner().invoke(app, words)
        assert (told.exit_code, "may not be damage" in told.output) == (1, True), told.output
    assert not is_in_use(store)
    assert "may not be damage" not in CliRunner().invoke(app, words).output


@pytest.mark.parametrize("name", ["clean", "kill9-recovered", "direct", "direct-crc"])
def test_sound_stores_have_no_findings(golden_store: Callable[[str], str], name: str) -> None:
    assert verify(golden_store(name), ONE, index_shape=SHAPES.get(name), range_bytes=25_000) == []


def test_a_torn_record_shows_in_every_place_that_knew_it(golden_store: Callable[[str], str], pool: LocalEngine) -> None:
    findings = verify(golden_store("torn-mid"), pool, range_bytes=150_000)
    at_the_record = {finding.kind for finding in findings if finding.physical_offset == 606629}
    assert at_the_record == {"corrupt", "stray-unit", "stray-index-entry"}
    assert "queue-gap" in {finding.kind for finding in findings}
    assert findings_table(findings).num_rows == len(findings)


def damaged(tmp_path: Path, path: str, offset: int, data: bytes) -> list[Finding]:
    store = unpack("clean", tmp_path)
    with open(f"{store}/{path}", "r+b") as file:
        file.seek(offset)
        file.write(data)
    return verify(store, ONE)


def test_a_wrong_unit_is_told_with_both_sayings(tmp_path: Path) -> None:
    findings = damaged(tmp_path, f"consumequeue/GoldenOrder/2/{0:020d}", 20 * 3 + 12, b"\x00" * 8)
    assert [(f.kind, f.topic, f.queue_id, f.queue_offset) for f in findings] == [("wrong-unit", "GoldenOrder", 2, 3)]
    assert "tags code" in findings[0].detail


@pytest.mark.parametrize("range_bytes", [1, 64 << 20], ids=["across ranges", "in one range"])
def test_a_queue_offset_that_comes_again_is_a_repeat_and_one_left_out_a_gap(tmp_path: Path, range_bytes: int) -> None:
    log, places, host = b"", list[int](), encode_host("10.0.0.1", 1)
    for queue_offset in (0, 1, 1, 2, 3, 2, 5):
        places.append(len(log))
        log += encode_record(
            "T", b"body", b"", queue_id=3, queue_offset=queue_offset, physical_offset=len(log), born_host=host,
            store_host=host, born_time_ms=1, store_time_ms=1,
        )  # fmt: skip
    Path(tmp_path, "commitlog").mkdir()
    Path(tmp_path, "commitlog", "0" * 20).write_bytes(log + bytes(5000))
    store = str(tmp_path)
    found = verify(store, ONE, range_bytes=range_bytes)
    assert [finding for finding in found if finding.kind.startswith("queue-")] == [
        Finding("queue-repeat", store, "T", 3, 1, places[2], 1, "queue offset 1 follows 1"),
        Finding("queue-repeat", store, "T", 3, 2, places[5], 2, "queue offset 2 follows 3"),
        Finding("queue-gap", store, "T", 3, 5, places[6], 2, "queue offset 5 follows 2"),
    ]


def index_name(store: Path, number: int) -> str:
    return sorted(path.name for path in (store / "index").iterdir())[number]


@pytest.mark.parametrize(
    ("position", "rows"),
    [(40 + 100 * 4 + 7 * 20 + 13, 1), (40 + 100 * 4 + 20 + 13, 1), (14, 1), (6, 399)],
    ids=["seconds of a unit", "seconds of the first unit", "end time in the header", "begin time"],
)
def test_times_of_the_index_are_held_against_the_records(tmp_path: Path, position: int, rows: int) -> None:
    name = index_name(Path(unpack("clean", tmp_path / "names")), 0)
    findings = damaged(tmp_path, f"index/{name}", position, b"\x55")
    assert {finding.kind for finding in findings} == {"wrong-index-time"}
    assert findings[0].rows == rows


def test_a_missing_first_index_file_is_told(tmp_path: Path) -> None:
    store = unpack("clean", tmp_path)
    Path(store, "index", index_name(Path(store), 0)).unlink()
    assert {finding.kind for finding in verify(store, ONE)} == {"no-index-entry"}


def test_a_unit_that_points_astray_is_told_both_ways(tmp_path: Path) -> None:
    findings = damaged(tmp_path, f"consumequeue/GoldenOrder/2/{0:020d}", 20 * 11, (500_001).to_bytes(8, "big"))
    assert {f.kind for f in findings} == {"stray-unit", "no-unit"}


def test_a_slave_that_differs_is_told_with_the_place(tmp_path: Path, golden_store: Callable[[str], str]) -> None:
    slave = unpack("clean", tmp_path)
    assert verify(golden_store("clean"), ONE, slave=slave) == []
    with open(f"{slave}/commitlog/{131072:020d}", "r+b") as log:
        log.seek(1000)
        byte = log.read(1)
        log.seek(1000)
        log.write(bytes([byte[0] ^ 1]))
    findings = verify(golden_store("clean"), ONE, slave=slave)
    assert [(f.kind, f.physical_offset, f.rows) for f in findings] == [("slave-differs", 131072 + 1000, 1)]


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.text(max_size=40), st.integers(-(2**31), 2**31 - 1)), max_size=20))
def test_hashes_of_a_column_equal_java_hashes_of_its_values(pairs: list[tuple[str, int]]) -> None:
    pairs = [(text.encode("utf-8", "ignore").decode(), seed) for text, seed in pairs]
    texts = pa.array([text for text, _ in pairs], pa.string())
    found = java_hashes(texts, np.array([seed for _, seed in pairs], dtype=np.int64))
    assert found.tolist() == [java_hash(text, seed=seed) for text, seed in pairs]


@pytest.mark.parametrize(
    ("level", "delay_ms"),
    [("1", 1_000), ("2", 120_000), ("99", 120_000), ("02", 120_000), ("9" * 5_000, 120_000)]
    + [(text, None) for text in ("0", "-1", "+1", "x", "1.5", "\u0662", "\u00b2", "", " 1")],
)
def test_the_level_of_a_waiting_message_is_read_by_the_rule_of_the_store(level: str, delay_ms: int | None) -> None:
    """A text that names no level leaves the tag's code; digits of other scripts are not read."""
    properties = f"DELAY\x01{level}\x02TAGS\x01a\x02".encode()
    host = encode_host("10.0.0.1", 1)
    record = encode_record(
        "SCHEDULE_TOPIC_XXXX", b"", properties, queue_id=1, queue_offset=5, physical_offset=0, born_host=host,
        store_host=host, born_time_ms=0, store_time_ms=1_000_000,
    )  # fmt: skip
    units, _ = Dispatcher("1s 2m").dispatch(split_records(record, "SCHEDULE_TOPIC_XXXX"))
    assert units.tags_code.tolist() == [ord("a") if delay_ms is None else 1_000_000 + delay_ms]


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(0, 2**34), max_size=80), st.integers(0, 34))
def test_sorting_by_sixteen_bits_is_a_stable_sort(values: list[int], bits: int) -> None:
    """Few bits make equal values, whose order must stay."""
    given_values = np.array(values, dtype=np.int64) & ((1 << bits) - 1)
    assert stable_order(given_values).tolist() == np.argsort(given_values, kind="stable").tolist()


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from([0, 1, 7, 2**31 - 1, -1])), max_size=30))
def test_queues_are_numbered_in_order_whatever_their_ids(pairs: list[tuple[int, int]]) -> None:
    """Ids that are huge or negative do not fit a table of counters."""
    codes, ids = (np.array([pair[at] for pair in pairs], dtype=np.int64) for at in (0, 1))
    queues, numbers = numbered(codes, ids)
    assert queues == sorted(set(pairs))
    assert [queues[number] for number in numbers.tolist()] == pairs


def test_a_repaired_store_keeps_the_offsets_of_lost_messages_and_has_no_findings(tmp_path: Path) -> None:
    """A placeholder of `store repair` holds the place of a message that is gone: later ones must not move to it."""
    config = StoreConfig(tmp_path, mapped_file_size_commit_log=65_536, mapped_file_size_consume_queue=400)
    with MessageStore(config) as store:
        for number in range(12):
            store.put(Message("T", b"%02d" % number * 50, tags="t", keys=[f"k{number}"]), queue_id=number % 2)
        lost_at, lost_bytes, _ = store.read_units("T", 0, 3, 1)[0]
    with (tmp_path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(lost_at + lost_bytes // 2)
        file.write(b"?")
    assert len(repair_store(config).ranges) == 1
    before = {name: data for name, data in files_below(str(tmp_path)).items() if name.startswith("consumequeue/")}
    shape = IndexShape.of_store(str(tmp_path))
    assert [finding.kind for finding in verify(str(tmp_path), ONE) if finding.kind.startswith(("queue", "wrong"))] == []
    result = rebuild(str(tmp_path), ONE, queue_file_bytes=400, index_shape=shape)
    assert result.gaps == 0
    after = {name: data for name, data in files_below(str(tmp_path)).items() if name.startswith("consumequeue/")}
    assert after == before
    assert verify(str(tmp_path), ONE) == []
    with MessageStore(config) as store:
        before_it, behind_it = store.get("T", 0, 0, 32), store.get("T", 0, 4, 32)
    assert [message.body[:2] for message in before_it] == [b"00", b"02", b"04"]
    assert [message.body[:2] for message in behind_it] == [b"08", b"10"]
