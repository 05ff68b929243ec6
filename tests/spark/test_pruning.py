"""Options that leave rows out before they are read: the rows are those of a plain read that is filtered afterwards.

Stores are generated: what is put into a log is known, and what each read must give follows from it, not from a reader.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import StringType, StructField, StructType

from contrailmq.message import SysFlag, SystemTopic, encode_host, java_hash
from contrailmq.message.batch import encode_batch
from contrailmq.message.codec import encode_blank, encode_record
from contrailmq.spark.columns import COLUMNS, OptionError
from contrailmq.spark.decoding import record_times
from contrailmq.spark.decoding.decode import Selection
from contrailmq.spark.decoding.index_shape import IndexShape, index_paths
from contrailmq.spark.decoding.log_plan import LogSettings, plan_parts, read_part
from contrailmq.spark.decoding.queue_units import all_queues
from contrailmq.spark.decoding.store_files import confirmed_end
from contrailmq.spark.jobs.rebuild import rebuild
from contrailmq.spark.runtime.engine import LocalEngine
from contrailmq.spark.sources.commitlog import CommitLogSource
from how_many import IS_LONG, examples
from spark.conftest import expected

ONE = LocalEngine(workers=1)
ALL_COLUMNS = StructType([StructField(name, StringType()) for name in COLUMNS])
HOST = encode_host("10.0.0.1", 1)
FILE_BYTES = 8192
RANGE = {"rangeBytes": "4096"}
BATCHES = "Batches"
TOPICS = ["T", "U", BATCHES, SystemTopic.SCHEDULE]
TAGS = [None, "a", "Aa", "BB", "aa", "TAGS", "x y"]  # Aa and BB have one hash
KEYS = [None, "k1", "k2", "k1 k2", " k2  k3", "k12", "Aa", "BB"]
START_MS = 1_700_000_000_000
assert java_hash("Aa") == java_hash("BB")


class Put(NamedTuple):
    """A message of the log, and where it is; messages of a batch are in one place."""

    topic: str
    queue_id: int
    tag: str | None
    keys: str | None
    time_ms: int
    queue_offset: int = -1
    place: int = -1

    @property
    def row(self) -> tuple[int, int]:
        return self.place, self.queue_offset


class Record(NamedTuple):
    topic: str
    queue_id: int
    messages: list[tuple[str | None, str | None]]  # tag and keys: several for a batch
    step_ms: int
    body_bytes: int


def properties(tag: str | None, keys: str | None, number: int) -> bytes:
    named = {"TAGS": tag, "KEYS": keys, "UNIQ_KEY": f"{number:032X}", "MYTAGS": "a", "KEYS2": "k1"}
    return "".join(f"{name}\x01{value}\x02" for name, value in named.items() if value is not None).encode()


def write_log(root: Path, given_records: list[Record]) -> list[Put]:
    """Log files of records, each with its queue offsets, and what was put into them."""
    folder = root / "commitlog"
    folder.mkdir()
    offsets: dict[tuple[str, int], int] = {}
    put: list[Put] = []
    data, base, time_ms = bytearray(), 0, START_MS

    def close_file() -> None:
        (folder / f"{base:020d}").write_bytes(
            bytes(data + encode_blank(FILE_BYTES - len(data))).ljust(FILE_BYTES, b"\0")
        )

    for number, record in enumerate(given_records):
        time_ms += record.step_ms
        is_batch = record.topic == BATCHES
        (tag, keys), *_ = record.messages
        body, text, flags = b"x" * record.body_bytes, properties(tag, keys, number), 0
        if is_batch:
            body = encode_batch((0, b"m", properties(*one, number)) for one in record.messages)
            text += f"INNER_NUM\x01{len(record.messages)}\x02".encode()
            flags = SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP
        if record.topic == SystemTopic.SCHEDULE:
            text += b"DELAY\x011\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02"
        for _ in range(2):
            first = offsets.setdefault((record.topic, record.queue_id), 0)
            encoded = encode_record(
                record.topic, body, text, queue_id=record.queue_id, queue_offset=first,
                physical_offset=base + len(data), born_host=HOST, store_host=HOST, born_time_ms=5,
                store_time_ms=time_ms, sys_flag=flags,
            )  # fmt: skip
            if len(data) + len(encoded) + 8 <= FILE_BYTES:
                break
            close_file()
            data, base = bytearray(), base + FILE_BYTES
        messages = record.messages if is_batch else record.messages[:1]
        put += (
            Put(record.topic, record.queue_id, *one, time_ms, first + at, base + len(data))
            for at, one in enumerate(messages)
        )
        offsets[record.topic, record.queue_id] = first + len(messages)
        data += encoded
    close_file()
    return put


def make_store(root: Path, given_records: list[Record], shape: IndexShape) -> list[Put]:
    """A store with queues and index, as a broker would leave it."""
    put = write_log(root, given_records)
    (root / "batchconsumequeue" / BATCHES / "0").mkdir(parents=True)
    rebuild(str(root), ONE, index_shape=shape, queue_file_bytes=400)
    return put


def rows(store: str, **options: str) -> list[tuple[int, int]]:
    """Place and queue offset of every row of a batch read, without Spark around it."""
    source = CommitLogSource({"path": store, "columns": "physicalOffset,queueOffset", **RANGE, **options})
    reader = source.reader(StructType([StructField(name, StringType()) for name in ("physicalOffset", "queueOffset")]))
    batches = [batch for part in reader.partitions() for batch in reader.read(part)]
    return [(row["physicalOffset"], row["queueOffset"]) for batch in batches for row in batch.to_pylist()]


def is_meant(put: Put, options: dict[str, str]) -> bool:
    """What a filter on the columns of a plain read would say."""
    has_system = options.get("includeSystemTopics") == "true"
    return (
        (put.topic in options["topics"].split(",") if "topics" in options else has_system or put.topic in TOPICS[:3])
        and ("tags" not in options or put.tag in json.loads(options["tags"]))
        and ("keys" not in options or any(key in options["keys"].split(",") for key in (put.keys or "").split(" ")))
        and ("queueId" not in options or str(put.queue_id) in options["queueId"].split(","))
        and put.time_ms >= int(options.get("startingTimestamp", 0))
        and put.time_ms < int(options.get("endingTimestamp", 2**62))
    )


def list_of(values: list[Any]) -> st.SearchStrategy[list[Any]]:
    return st.lists(st.sampled_from(values), min_size=1, max_size=2, unique=True)


records = st.builds(
    Record,
    st.sampled_from(["T", "T", "T", "U", BATCHES, SystemTopic.SCHEDULE]),
    st.integers(0, 1),
    st.lists(st.tuples(st.sampled_from(TAGS), st.sampled_from(KEYS)), min_size=1, max_size=3),
    st.sampled_from([0, 0, 0, 1, 1000, 60_000, 3_600_000, -1, -1000, -1_800_000]),
    st.sampled_from([1, 100, 900]),
)
choices = st.fixed_dictionaries(
    {},
    optional={
        "topics": list_of(TOPICS).map(",".join),
        "tags": list_of(TAGS[1:]).map(json.dumps),
        "keys": list_of(["k1", "k2", "k3", "k12", "Aa", "none"]).map(",".join),
        "includeSystemTopics": st.just("true"),
    },
)
damages = st.sampled_from(["none", "none", "no index", "an index file is gone", "a queue is gone", "cleaned"])


@settings(max_examples=examples(60), deadline=None)
@given(
    st.lists(records, min_size=1, max_size=60),
    choices,
    st.tuples(st.booleans(), st.booleans(), st.integers(0, 59), st.integers(0, 59)),
    st.lists(st.integers(0, 1), max_size=1),
    damages,
)
@example([Record("T", 0, [("Aa", "k1 k2")], 0, 900)] * 40, {"topics": "T", "keys": "k2"}, (False,) * 4, [], "none")
def test_pruned_rows_are_those_of_a_plain_read_filtered_afterwards(
    given_records: list[Record], chosen: dict[str, str], times: tuple[bool, bool, int, int], ids: list[int], damage: str
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        put = make_store(root, given_records, IndexShape(10, 24))
        options = dict(chosen)
        for name, is_given, number in zip(("startingTimestamp", "endingTimestamp"), times[:2], times[2:], strict=True):
            if is_given:
                options[name] = str(put[number % len(put)].time_ms)
        if all(times[:2]) and int(options["endingTimestamp"]) <= int(options["startingTimestamp"]):
            options["endingTimestamp"] = str(int(options["startingTimestamp"]) + 1)
        put = harm(root, damage, put)
        chooses = Selection(
            topics=frozenset(options["topics"].split(",")) if "topics" in options else None,
            with_system_topics="includeSystemTopics" in options,
        )
        # An id that no queue of the store has is refused, which another test is about.
        held = {queue_id for topic, queue_id in all_queues(folder) if chooses.wants_topic(topic)}
        if ids and set(ids) <= held:
            options["queueId"] = ",".join(map(str, ids))
        wanted = [one.row for one in put if is_meant(one, options)]
        plans = ["auto", "log"] + ["queue"] * bool({"topics", "tags", "queueId"} & options.keys())
        for plan in plans:
            assert rows(folder, plan=plan, **options) == wanted, plan


def harm(root: Path, damage: str, put: list[Put]) -> list[Put]:
    """What may happen to a store; what is left of the messages."""
    if damage == "no index":
        shutil.rmtree(root / "index")
    elif damage == "an index file is gone":
        paths = index_paths(str(root))
        for path in paths[len(paths) // 2 :][:1]:
            path.unlink()
    elif damage == "a queue is gone":
        shutil.rmtree(root / "consumequeue" / "T" / "0", ignore_errors=True)
    elif damage == "cleaned":
        first, *others = sorted((root / "commitlog").iterdir())
        if others:
            first.unlink()
            return [one for one in put if one.place >= FILE_BYTES]
    return put


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Put]]:
    """300 messages, one a second; a key of its own for each, and one for every hundredth."""
    root = tmp_path_factory.mktemp("large")
    given_records = [
        Record(
            "T", number % 2, [("rare" if number % 100 == 7 else "often", f"id-{number} h-{number // 100}")], 1000, 200
        )
        for number in range(300)
    ]
    return str(root), make_store(root, given_records, IndexShape(50, 300))


def parts_of(store: str, **choice: Any) -> list[Any]:
    return plan_parts(store, 0, confirmed_end(store), LogSettings(selection=Selection(**choice), range_bytes=4096))


def test_a_key_is_found_by_the_index_in_one_range(large: tuple[str, list[Put]]) -> None:
    store, put = large
    parts = parts_of(store, topics=frozenset({"T"}), keys=frozenset({"id-250"}))
    told = [part for part in parts if part.places is not None]
    assert [place for part in told for place in part.places if place == put[250].place] == [put[250].place]
    assert len(parts) < len(parts_of(store, topics=frozenset({"T"}))) // 2
    assert rows(store, topics="T", keys="id-250", plan="index") == [put[250].row]


def test_a_second_is_a_small_part_of_the_log(large: tuple[str, list[Put]]) -> None:
    store, put = large
    parts = parts_of(store, begin_ms=put[100].time_ms, end_ms=put[101].time_ms)
    assert [(part.range.start, part.range.stop) for part in parts] == [(put[100].place, put[101].place)]


def test_looks_find_a_second_of_a_long_range_and_a_clock_that_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Few looks at records, as at a range of megabytes. The clock goes back by an hour in the middle, and stays so."""
    monkeypatch.setattr(record_times, "WALKED_BYTES", 0)
    steps = [100] * 150 + [-3_600_000] + [100] * 149
    put = write_log(tmp_path, [Record("T", 0, [("a", None)], step, 50) for step in steps])
    log_bytes = confirmed_end(str(tmp_path))
    for first, last in ((20, 25), (100, 101), (148, 150), (149, 152), (200, 230), (298, 299)):
        begin_ms, end_ms = put[first].time_ms, put[last].time_ms
        begin_ms, end_ms = min(begin_ms, end_ms), max(begin_ms, end_ms)
        chosen = LogSettings(selection=Selection(begin_ms=begin_ms, end_ms=end_ms))
        parts = plan_parts(str(tmp_path), 0, log_bytes, chosen)
        found = [
            place
            for part in parts
            for batch in read_part(part, chosen)
            for place in batch.column("physicalOffset").to_pylist()
        ]
        assert found == [one.place for one in put if begin_ms <= one.time_ms < end_ms]
        if last - first < 10 and end_ms - begin_ms < 10_000:
            assert sum(part.range.stop - part.range.start for part in parts) < log_bytes / 2


def test_tags_and_offsets_are_sought_in_the_queues(large: tuple[str, list[Put]]) -> None:
    from contrailmq.spark.sources.pruned import pruned_log

    store, put = large
    assert rows(store, tags="rare", plan="queue") == [put[number].row for number in (7, 107, 207)]
    chosen = LogSettings(selection=Selection(tags=frozenset({"rare"})), range_bytes=4096)
    parts = plan_parts(store, 0, confirmed_end(store), chosen)
    text = pruned_log([store], parts, chosen, confirmed_end(store))
    assert text.startswith(f"commitlog {store}: 0.0 MB of 0.1 MB; tags rare along the queues")


@pytest.mark.parametrize("name", ["clean", "kill9-lag", "kill9", "direct"])
def test_rows_of_java_stores_are_those_that_java_says(name: str, golden_store: Callable[[str], str]) -> None:
    store = golden_store(name)
    plain = set(rows(store))
    messages = [m for m in expected(name)["messages"] if (m["commitLogOffset"], m["queueOffset"]) in plain]
    assert len(messages) > 40

    def java(is_wanted: Callable[[dict[str, Any]], bool]) -> list[tuple[int, int]]:
        return sorted((m["commitLogOffset"], m["queueOffset"]) for m in messages if is_wanted(m))

    tried = 8 if IS_LONG else 2  # of tags, keys and queues
    tags = sorted({m["properties"]["TAGS"] for m in messages if m["properties"].get("TAGS")})[:tried]
    for tag in tags:
        assert rows(store, tags=json.dumps([tag])) == java(lambda m, tag=tag: m["properties"].get("TAGS") == tag)
    keyed = [m for m in messages if m["properties"].get("KEYS")]
    for message in keyed[:: max(1, -(-len(keyed) // tried))]:
        key, topic = message["properties"]["KEYS"].split(" ")[0], message["topic"]
        found = rows(store, topics=topic, keys=key)
        assert found == java(
            lambda m, key=key, topic=topic: m["topic"] == topic and key in m["properties"].get("KEYS", "").split(" ")
        )
        assert found
    ids = sorted({m["queueId"] for m in messages})[:tried]
    for queue_id in ids:
        assert rows(store, queueId=str(queue_id)) == java(lambda m, queue_id=queue_id: m["queueId"] == queue_id)
    times = sorted(m["storeTimestamp"] for m in messages)
    low, high = times[len(times) // 3], times[len(times) // 2]
    assert rows(store, startingTimestamp=str(low), endingTimestamp=str(high)) == java(
        lambda m: low <= m["storeTimestamp"] < high
    )


def test_a_stream_keeps_its_partitions_whatever_the_index_says(large: tuple[str, list[Put]]) -> None:
    store, put = large
    options = {"path": store, "topics": "T", "keys": "id-250", **RANGE}
    stream = CommitLogSource(options).streamReader(ALL_COLUMNS)
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadAllAvailable())
    planned = stream.partitions(start, end)
    found = [row for part in planned for batch in stream.read(part) for row in batch.to_pylist()]
    assert [(row["physicalOffset"], row["queueOffset"]) for row in found] == [put[250].row]
    without = CommitLogSource({**options, "plan": "log"}).streamReader(ALL_COLUMNS)
    assert len(planned) == len(without.partitions(start, end))
    assert sum(part.part.is_empty for part in planned) > len(planned) // 2


def test_a_place_of_the_index_that_holds_no_record_has_the_range_read(large: tuple[str, list[Put]]) -> None:
    store, put = large
    chosen = LogSettings(selection=Selection(keys=frozenset({"id-250"})), range_bytes=4096)
    (part,) = [part for part in plan_parts(store, 0, confirmed_end(store), chosen)
               if part.range.start <= put[250].place < part.range.stop]  # fmt: skip
    wrong = replace(part, places=(put[250].place + 1,))
    found = [row for batch in read_part(wrong, chosen) for row in batch.to_pylist()]
    assert [row["physicalOffset"] for row in found] == [put[250].place]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"queueId": "1,x"}, "option queueId has 'x': it takes whole numbers"),
        ({"queueId": "7"}, "option queueId names 7, which no topic to be read has in .*: there are 0, 1"),
        ({"tags": ""}, "option tags is empty: name at least one"),
        ({"tags": '["a"'}, "option tags is not a list as JSON"),
        ({"tags": '["a", 1]'}, "it takes one text or more, none of them empty"),
        ({"keys": "a b"}, "option keys has 'a b': a space separates two keys"),
        ({"plan": "index"}, "name them as keys"),
        ({"plan": "index", "keys": "k"}, "no topics are named"),
        ({"plan": "index", "keys": "k", "topics": BATCHES}, "it has one key a batch"),
        ({"startingTimestamp": "-5"}, "option startingTimestamp is -5: the least is 0"),
        ({"endingTimestamp": str(10**18)}, "option endingTimestamp is 10{18}: it takes milliseconds since 1970"),
        (
            {"endingOffsetsByTimestamp": '{"T": {"0": 1700000000000000}}'},
            "has 1700000000000000 for T/0: it takes milli",
        ),
        ({"startingTimestamp": "9", "endingTimestamp": "9"}, "endingTimestamp is 9, not after startingTimestamp, 9"),
    ],
)
def test_options_that_mean_nothing_are_refused(
    large: tuple[str, list[Put]], options: dict[str, str], text: str
) -> None:
    with pytest.raises(OptionError, match=text):
        rows(large[0], **options)


def test_a_store_without_an_index_says_that_its_log_is_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put = write_log(tmp_path, [Record("T", 0, [("a", f"k{number}")], 1, 50) for number in range(9)])
    assert rows(str(tmp_path), topics="T", keys="k3") == [put[3].row]
    assert "the keys are sought by reading its log: it has no index files" in caplog.text
    with pytest.raises(OptionError, match="plan is index, which does not do for .*no index files.*leave plan out"):
        rows(str(tmp_path), topics="T", keys="k3", plan="index")


def test_a_store_with_nothing_but_batches_is_rebuilt_and_read(tmp_path: Path) -> None:
    """Its consume queues are none at all, which a count of their units must survive."""
    put = make_store(tmp_path, [Record(BATCHES, 0, [("a", "k1"), ("b", "k2")], 1, 1)] * 3, IndexShape(10, 24))
    assert rows(str(tmp_path), tags="b", keys="k2") == [one.row for one in put if one.tag == "b"]
