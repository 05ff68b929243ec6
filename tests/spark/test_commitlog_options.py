"""Options of `commitlog`: each has an effect or is refused, in batch and as a stream. No Spark session is needed."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StringType, StructField, StructType

from contrailmq.message import encode_host
from contrailmq.message.codec import encode_blank, encode_record
from contrailmq.spark.columns import COLUMNS, OptionError
from contrailmq.spark.decoding.decode import Selection
from contrailmq.spark.decoding.log_plan import LogPart, LogSettings, plan_parts, read_part
from contrailmq.spark.decoding.store_files import StoreFilesError, confirmed_end, log_files
from contrailmq.spark.sources.commitlog import CommitLogSource
from spark.conftest import expected, unpack

ALL_COLUMNS = StructType([StructField(name, StringType()) for name in COLUMNS])


def rows(store: str, **options: str) -> list[dict[str, Any]]:
    """What a batch read gives, without Spark around it."""
    source = CommitLogSource({"path": store, **options})
    names = source.schema().replace("map<string,string>", "map").split(", ")
    reader = source.reader(StructType([StructField(name.split(" ")[0], StringType()) for name in names]))
    return [row for part in reader.partitions() for batch in reader.read(part) for row in batch.to_pylist()]


def java(topic: str) -> list[dict[str, Any]]:
    return [message for message in expected("clean")["messages"] if message["topic"] == topic]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"maxBytesPerTrigger": "9"}, "option maxBytesPerTrigger has no effect on a batch read"),
        ({"startingOffsets": "latest"}, "latest, where a batch would find nothing"),
        ({"startingOffsets": '{"T": {"0": -1}}'}, r"-1 \(latest\) for T/0, where nothing would be read"),
        ({"startingOffsets": '{"T": {"0": -3}}'}, "has -3 for T/0"),
        ({"endingOffsets": '{"T": {"0": -2}}'}, r"-2 \(earliest\) for T/0, where nothing would be read"),
        ({"endingOffsets": "earliest"}, "takes latest or offsets as JSON"),
        ({"startingOffsetsByTimestamp": '{"T": {"0": -1}}'}, "milliseconds since 1970"),
        ({"startingOffsets": '{"T": {"broker-a": {"0": 3}}}'}, "names broker 'broker-a' for T"),
        ({"topics": "Orders", "endingOffsets": '{"Ordres": {"0": 3}}'}, "'Ordres', which is not among the topics"),
        ({"topics": "A", "subscribe": "B"}, "options topics and subscribe mean the same and differ"),
        ({"plan": "queue"}, "name them as topics"),
        ({"plan": "queue", "topics": "T", "restoreRealTopic": "true"}, "real topic, use log"),
        ({"columnStyle": "kafka", "columns": "topic"}, "fixed columns"),
        ({"emit": "portions"}, "is for streams"),
        ({"rangeBytes": "1"}, "the least is 4096"),
        ({"minPartitions": "-1"}, "the least is 0"),
    ],
)
def test_a_batch_refuses_what_would_do_nothing_or_mean_nothing(options: dict[str, str], text: str) -> None:
    with pytest.raises(OptionError, match=text):
        CommitLogSource({"path": "/x", **options}).reader(ALL_COLUMNS)


@pytest.mark.parametrize("name", ["endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"])
def test_a_stream_has_no_end(name: str) -> None:
    with pytest.raises(OptionError, match=f"option {name} has no effect on a stream"):
        CommitLogSource({"path": "/x", name: "5"}).streamReader(ALL_COLUMNS)


def test_a_path_is_required() -> None:
    with pytest.raises(OptionError, match="option path is missing"):
        CommitLogSource({}).reader(ALL_COLUMNS)


def test_a_stream_begins_at_the_first_record_or_at_the_end(golden_store: Callable[[str], str]) -> None:
    store = golden_store("clean")

    def begins(**options: str) -> int:
        stream = CommitLogSource({"path": store, **options}).streamReader(ALL_COLUMNS)
        found: int = stream.initialOffset()["stores"][store]
        return found

    assert begins() == begins(startingOffsets="earliest") == 0
    assert begins(startingOffsets="latest") == confirmed_end(store)
    assert begins(startingOffsets="latest", startingTimestamp="5") == 0  # a time counts more


def test_a_stream_is_cut_into_as_many_parts_as_are_wanted(golden_store: Callable[[str], str]) -> None:
    store = golden_store("clean")
    counts = []
    for wanted in ("0", "20"):
        stream = CommitLogSource({"path": store, "minPartitions": wanted}).streamReader(ALL_COLUMNS)
        start = stream.initialOffset()
        counts.append(len(stream.partitions(start, stream.latestOffset(start, ReadAllAvailable()))))
    assert counts[0] == len(log_files(store))
    assert counts[1] >= 20


def test_wanting_few_partitions_makes_none_larger_than_a_range(golden_store: Callable[[str], str]) -> None:
    source = CommitLogSource({"path": golden_store("clean"), "minPartitions": "1", "rangeBytes": "20000"})
    assert len(source.reader(ALL_COLUMNS).partitions()) > 20


def test_offsets_name_a_broker_only_where_the_log_was_given_its_name(golden_store: Callable[[str], str]) -> None:
    bounds = json.dumps({"GoldenOrder": {"broker-x": {"1": 5}}})
    found = rows(golden_store("clean"), topics="GoldenOrder", brokerName="broker-x", endingOffsets=bounds)
    wanted = [m for m in java("GoldenOrder") if m["queueId"] != 1 or m["queueOffset"] < 5]
    assert [row["physicalOffset"] for row in found] == [m["commitLogOffset"] for m in wanted]
    assert {row["brokerName"] for row in found} == {"broker-x"}


def test_decompress_and_crc_are_what_they_say(tmp_path: Path, golden_store: Callable[[str], str]) -> None:
    store = golden_store("clean")
    packed = [m["commitLogOffset"] for m in expected("clean")["messages"] if m["sysFlag"] & 1]
    assert packed
    columns = {"columns": "physicalOffset,body", "includeSystemTopics": "true"}
    plain = {row["physicalOffset"]: row["body"] for row in rows(store, **columns)}
    stored = {row["physicalOffset"]: row["body"] for row in rows(store, decompress="false", **columns)}
    assert [place for place in plain if plain[place] != stored[place]] == packed
    broken = unpack("clean", tmp_path)
    victim = java("GoldenOrder")[3]
    with open(log_files(broken)[0].path, "r+b") as file:
        assert victim["commitLogOffset"] < log_files(broken)[0].size_bytes
        file.seek(victim["commitLogOffset"] + 88)
        byte = file.read(1)[0]
        file.seek(victim["commitLogOffset"] + 88)
        file.write(bytes([byte ^ 1]))
    with pytest.raises(Exception, match="a body that fails its CRC"):
        rows(broken, **columns)
    assert len(rows(broken, onCorrupt="skip", **columns)) == len(plain) - 1
    assert len(rows(broken, checkCrc="false", **columns)) == len(plain)


def test_small_batches_hold_the_same_rows(golden_store: Callable[[str], str]) -> None:
    source = CommitLogSource({"path": golden_store("clean"), "batchBytes": "4096"})
    reader = source.reader(ALL_COLUMNS)
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    assert len(batches) > 50
    assert sum(batch.num_rows for batch in batches) == len(rows(golden_store("clean")))


def test_many_stores_by_list_and_by_glob(tmp_path: Path) -> None:
    stores = [unpack("clean", tmp_path / name) for name in ("a", "b")]
    one = len(rows(stores[0]))
    assert len(rows(",".join(stores))) == len(rows(f"{tmp_path}/*/store")) == 2 * one
    assert len(rows(f"{stores[0]},{stores[0]}")) == one  # the same store twice is one store


def parts_of(store: str, **settings: Any) -> tuple[list[LogPart], LogSettings]:
    chosen = LogSettings(**settings)
    return plan_parts(store, 0, confirmed_end(store), chosen), chosen


@pytest.mark.parametrize("plan", ["auto", "queue", "log"])
def test_an_open_store_whose_queues_lag_is_read_whole(golden_store: Callable[[str], str], plan: str) -> None:
    """Killed with its file abort in place: the queues lack the end of the log."""
    store = golden_store("kill9-lag")
    assert Path(store, "abort").exists()
    everything = rows(store)
    topics = {row["topic"] for row in everything}
    found = [row for topic in sorted(topics) for row in rows(store, topics=topic, plan=plan)]
    assert len(found) == 1394
    assert sorted(row["physicalOffset"] for row in found) == [row["physicalOffset"] for row in everything]


@pytest.mark.parametrize("from_queues", [False, True])
def test_a_file_deleted_after_planning_is_loss_unless_allowed(tmp_path: Path, from_queues: bool) -> None:
    store = unpack("clean", tmp_path)
    topics = {"topics": "GoldenOrder", "plan": "queue"} if from_queues else {}
    source = CommitLogSource({"path": store, **topics})
    reader = source.reader(ALL_COLUMNS)
    planned = reader.partitions()
    Path(planned[0].part.range.path).unlink()
    with pytest.raises(StoreFilesError, match="deleted meanwhile; run again, or set failOnDataLoss=false"):
        list(reader.read(planned[0]))
    allowed = CommitLogSource({"path": store, "failOnDataLoss": "false", **topics}).reader(ALL_COLUMNS)
    assert list(allowed.read(planned[0])) == []


def test_a_host_that_does_not_see_the_store_says_who_saw_what(tmp_path: Path) -> None:
    """Also when loss is allowed: a directory that is not there at all is a mount that is missing."""
    store = unpack("clean", tmp_path)
    parts, settings = parts_of(store, fail_on_data_loss=False)
    part = replace(parts[0], planned_on="driver-host")
    Path(store).rename(tmp_path / "elsewhere")
    with pytest.raises(StoreFilesError) as raised:
        list(read_part(part, settings))
    text = str(raised.value)
    assert f"host {socket.gethostname()} cannot read {part.range.path}" in text
    assert "host driver-host planned to read" in text
    assert f"{store}/commitlog is not there on this host" in text


def test_a_clock_that_was_set_back_hides_no_row(tmp_path: Path) -> None:
    """File 0 ends an hour and 10 s after its start; file 1 begins 5 s before that end, file 2 two hours later.

    File 3 begins a minute after file 2, and its second record was stored with that one's.
    """
    folder, hour = tmp_path / "commitlog", 3_600_000
    folder.mkdir()
    host = encode_host("10.0.0.1", 1)
    late = 3 * hour
    for number, times in enumerate(
        ([0, hour + 10_000], [hour + 5_000, hour + 20_000], [late, late + 1], [late + 60_000, late + 2])
    ):
        data, base = bytearray(), number * 4096
        for time_ms in times:
            data += encode_record(
                "T",
                b"x",
                b"",
                queue_id=0,
                queue_offset=0,
                physical_offset=base + len(data),
                born_host=host,
                store_host=host,
                born_time_ms=time_ms,
                store_time_ms=time_ms,
            )
        data += encode_blank(4096 - len(data))
        (folder / f"{base:020d}").write_bytes(bytes(data).ljust(4096, b"\0"))

    def places(**options: str) -> list[tuple[int, int]]:
        found = rows(str(tmp_path), columns="physicalOffset", **options)
        return [divmod(row["physicalOffset"], 4096) for row in found]

    second = places()[1][1]
    assert places(startingTimestamp=str(hour + 8_000)) == [
        (0, second),
        (1, second),
        *((number, place) for number in (2, 3) for place in (0, second)),
    ]
    assert places(startingTimestamp=str(late), endingTimestamp=str(late + 30_000)) == [(2, 0), (2, second), (3, second)]
    assert places(endingTimestamp=str(hour + 5_001)) == [(0, 0), (1, 0)]
    parts, _ = parts_of(str(tmp_path), selection=Selection(begin_ms=2 * hour))
    assert [part.range.base for part in parts] == [2 * 4096, 3 * 4096]  # what ended before is not read
