"""The vectorised decoder against what Apache's own classes say, and against the plain decoder of one record."""

from __future__ import annotations

import hashlib
import itertools
import random
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import contrailmq
from contrailmq.client.blocking.raw import RawPull
from contrailmq.client.results import PullStatus
from contrailmq.message import Message, MessageQueue, SysFlag, decode_properties, encode_host, encode_properties
from contrailmq.message.batch import BatchPart, encode_batch
from contrailmq.message.codec import decode_record, encode_blank, encode_record
from contrailmq.spark.columns import View, choose_view
from contrailmq.spark.decoding.decode import Decoder, Selection
from contrailmq.spark.decoding.dispatched import Dispatcher
from contrailmq.spark.decoding.log_plan import LogSettings, plan_parts, read_part
from contrailmq.spark.decoding.property_table import AlikeProperties, PropertyTable, parse_properties
from contrailmq.spark.decoding.scan import BadStretch, CorruptLogError, Range, scan_buffer
from contrailmq.spark.decoding.slices import only_slice
from contrailmq.spark.decoding.store_files import confirmed_end, log_files
from contrailmq.spark.sources.topic_plan import QueueRange, TopicSettings
from contrailmq.spark.sources.topic_pulls import read_range, split_records
from contrailmq.store import MessageStore, StoreConfig
from how_many import examples
from spark.conftest import STORES, expected
from spark.test_rocketmq_source import FakeBroker

ALL = Selection(with_system_topics=True)


def rows_of(store: str, **given_settings: Any) -> list[dict[str, Any]]:
    chosen = LogSettings(**{"selection": ALL, **given_settings})
    parts = plan_parts(store, log_files(store)[0].base, confirmed_end(store), chosen)
    return [row for part in parts for batch in read_part(part, chosen) for row in batch.to_pylist()]


def as_java_says(row: dict[str, Any]) -> dict[str, Any]:
    """A row in the names of expected.json, as far as both have the fact."""
    return {
        "topic": row["topic"],
        "queueId": row["queueId"],
        "queueOffset": row["queueOffset"],
        "commitLogOffset": row["physicalOffset"],
        "sysFlag": row["sysFlag"],
        "flag": row["flag"],
        "bornTimestamp": round(row["bornTimestamp"].timestamp() * 1000),
        "storeTimestamp": round(row["storeTimestamp"].timestamp() * 1000),
        "bodySha256": hashlib.sha256(row["body"]).hexdigest(),
        "properties": dict(row["properties"]),
        "reconsumeTimes": row["reconsumeTimes"],
        "id": row["msgId"],
        "bornHost": host_bytes(row["bornHost"]),
        "storeHost": host_bytes(row["storeHost"]),
    }


def host_bytes(text: str) -> bytes:
    ip, _, port = text.rpartition(":")
    return encode_host(ip.strip("[]"), int(port))


def java_facts(message: dict[str, Any]) -> dict[str, Any]:
    facts = {name: value for name, value in message.items() if name in as_java_says_names}
    facts["id"] = message["uniqKey"] or message["msgId"]
    facts["bornHost"], facts["storeHost"] = host_bytes(message["bornHost"]), host_bytes(message["storeHost"])
    return facts


as_java_says_names = {
    *("topic", "queueId", "queueOffset", "commitLogOffset", "sysFlag", "flag", "bornTimestamp", "storeTimestamp"),
    *("bodySha256", "properties", "reconsumeTimes"),
}


@pytest.mark.parametrize(
    ("name", "range_bytes"),
    [*((name, size) for name in STORES if name != "torn-mid" for size in (64 << 20, 20_000)), ("direct", 333)],
)
def test_every_row_equals_what_java_says(golden_store: Callable[[str], str], name: str, range_bytes: int) -> None:
    """Also when the log is cut into ranges at arbitrary bytes: 333 is about one record."""
    rows = [row for row in rows_of(golden_store(name), range_bytes=range_bytes) if row["sysFlag"] & 12 not in (4, 12)]
    java = expected(name)
    assert confirmed_end(golden_store(name)) == java["maxPhyOffset"]
    assert [as_java_says(row) for row in rows] == [java_facts(message) for message in java["messages"]]


@pytest.mark.parametrize("range_bytes", [64 << 20, 9_999])
def test_damage_below_the_confirmed_end_is_reported_with_its_position(
    golden_store: Callable[[str], str], range_bytes: int
) -> None:
    with pytest.raises(CorruptLogError, match="606629") as caught:
        rows_of(golden_store("torn-mid"), range_bytes=range_bytes)
    assert (caught.value.start, caught.value.stop) == (606629, 606970)
    rows = rows_of(golden_store("torn-mid"), skip_corrupt=True, range_bytes=range_bytes)
    java = expected("torn-mid")
    before = [row for row in rows if row["physicalOffset"] < 606629]
    assert [as_java_says(row) for row in before] == [java_facts(message) for message in java["messages"]]
    assert len(rows) - len(before) == 8  # good records behind the damage, which a recovery would cut


@pytest.mark.parametrize("topic", ["GoldenPlain", "GoldenLarge", "GoldenBulk"])
def test_planning_from_the_queues_gives_the_same_rows(golden_store: Callable[[str], str], topic: str) -> None:
    chosen = Selection(topics=frozenset([topic]))
    store = golden_store("clean")
    from_log = rows_of(store, selection=chosen, plan="log", range_bytes=5000)
    assert from_log
    assert rows_of(store, selection=chosen, plan="queue", range_bytes=5000) == from_log
    assert rows_of(store, selection=chosen, plan="queue") == from_log


@pytest.fixture(scope="module")
def mixed_store(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[tuple[str, bytes]]]:
    """A stretch of A alone, one of A and B in turns, one of B alone; and what was put, in order."""
    folder = str(tmp_path_factory.mktemp("mixed") / "store")
    put = [("A" if n < 700 or (n < 900 and n % 2) else "B", b"%d" % n * (1 + n % 7)) for n in range(1600)]
    with MessageStore(StoreConfig(folder, mapped_file_size_commit_log=64 * 1024)) as store:
        for number, (topic, body) in enumerate(put):
            store.put(Message(topic, body, tags="t"), queue_id=number % 2)
    return folder, put


@pytest.mark.parametrize("topics", ["A", "B", "AB"])
@pytest.mark.parametrize("range_bytes", [3_000, 64 << 20])
def test_rows_from_the_queues_are_those_that_were_put(
    mixed_store: tuple[str, list[tuple[str, bytes]]], topics: str, range_bytes: int
) -> None:
    """In files that hold other topics, too, and in those that do not; with few and with many places to look for."""
    store, put = mixed_store
    chosen = LogSettings(selection=Selection(topics=frozenset(topics)), plan="queue", range_bytes=range_bytes)
    parts = plan_parts(store, 0, confirmed_end(store), chosen)
    assert all(part.wanted is not None for part in parts)
    found = [row for part in parts for batch in read_part(part, chosen) for row in batch.to_pylist()]
    assert [(row["topic"], row["body"]) for row in found] == [pair for pair in put if pair[0] in topics]


@given(st.lists(st.binary(max_size=20), min_size=1, max_size=5), st.binary(max_size=9))
def test_one_value_of_all_slices_is_found_and_only_then(values: list[bytes], behind: bytes) -> None:
    data = np.frombuffer(b"".join(values) + behind, np.uint8)
    ends = np.cumsum([len(value) for value in values])
    starts = np.concatenate([[0], ends[:-1]])
    found = only_slice(data, starts, ends - starts)
    has_room = starts[-1] + 8 <= len(data)
    assert found == (values[0] if has_room and set(values) == {values[0]} else None)


def test_queues_that_lag_behind_the_log_lose_no_row(golden_store: Callable[[str], str]) -> None:
    topics = frozenset(row["topic"] for row in rows_of(golden_store("kill9-lag")))
    rows = rows_of(golden_store("kill9-lag"), selection=Selection(topics=topics))
    assert len(rows) == 1395


def test_system_topics_and_unfinished_transactions_are_left_out_by_default(golden_store: Callable[[str], str]) -> None:
    rows = rows_of(golden_store("clean"), selection=Selection())
    topics = {row["topic"] for row in rows}
    assert "GoldenTx" in topics
    assert not topics & {"SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer"}
    assert len(rows_of(golden_store("direct"), selection=Selection())) == 51
    assert len(rows_of(golden_store("direct"))) == 61


def test_real_topic_and_queue_of_parked_messages_come_back_on_request(golden_store: Callable[[str], str]) -> None:
    store = golden_store("clean")
    parked = [
        row
        for row in rows_of(store)
        if row["topic"] in ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer")
    ]
    restored = rows_of(store, selection=Selection(with_system_topics=True, restore_real_topic=True))
    by_offset = {row["physicalOffset"]: row for row in restored}
    assert parked
    for row in parked:
        properties = dict(row["properties"])
        assert by_offset[row["physicalOffset"]]["topic"] == properties["REAL_TOPIC"]
        assert by_offset[row["physicalOffset"]]["queueId"] == int(properties["REAL_QID"])
    delayed = rows_of(store, selection=Selection(topics=frozenset(["GoldenDelay"]), restore_real_topic=True))
    assert len(delayed) > len(rows_of(store, selection=Selection(topics=frozenset(["GoldenDelay"]))))


def test_offset_and_time_ranges_are_half_open(golden_store: Callable[[str], str]) -> None:
    store = golden_store("clean")
    key = ("GoldenBulk", 0)
    bulk = [r for r in rows_of(store) if (r["topic"], r["queueId"]) == key]
    chosen = Selection(topics=frozenset(["GoldenBulk"]), starting_offsets={key: 3}, ending_offsets={key: 7})
    rows = [r for r in rows_of(store, selection=chosen) if r["queueId"] == 0]
    assert rows == bulk[3:7]
    begin, end = (round(bulk[at]["storeTimestamp"].timestamp() * 1000) for at in (5, 50))
    within = rows_of(store, selection=Selection(with_system_topics=True, begin_ms=begin, end_ms=end))
    assert within == [r for r in rows_of(store) if begin <= round(r["storeTimestamp"].timestamp() * 1000) < end]


def test_only_chosen_columns_are_made_in_the_given_order(golden_store: Callable[[str], str]) -> None:
    view = choose_view("queueOffset, TOPIC", None, None)
    assert list(rows_of(golden_store("clean"), view=view)[0]) == ["queueOffset", "topic"]
    assert "properties" not in choose_view(None, "none").columns
    raw = rows_of(golden_store("clean"), view=choose_view("properties", "string"))[0]["properties"]
    whole = rows_of(golden_store("clean"))[0]["properties"]
    assert decode_properties(raw) == dict(whole)


def test_kafka_style_has_kafkas_columns(golden_store: Callable[[str], str]) -> None:
    rows = rows_of(golden_store("clean"), view=choose_view(style="kafka"), selection=Selection())
    native = rows_of(golden_store("clean"), selection=Selection())
    assert list(rows[0]) == ["key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"]
    assert [row["value"] for row in rows] == [row["body"] for row in native]
    assert {h["key"]: h["value"].decode() for h in rows[0]["headers"]} == dict(native[0]["properties"])


PIECES = st.lists(
    st.sampled_from(["TAGS", "KEYS", "a", "b", "", "\x01", "\x02", "\x00", "é", "😀", "value", "x=y", " "]), max_size=12
)


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(PIECES, max_size=6))
def test_properties_parse_as_the_plain_decoder_parses_them(rows: list[list[str]]) -> None:
    """Empty names and values, missing last separators, repeated names, 0x01 inside values, rows without any."""
    raw = ["".join(pieces).encode() for pieces in rows]
    table = parse_properties(pa.array(raw, pa.binary()))
    assert [dict(row) for row in table.maps().to_pylist()] == [decode_properties(data) for data in raw]
    assert table.column("TAGS").to_pylist() == [decode_properties(data).get("TAGS") for data in raw]


@given(
    st.lists(st.text("abcdeé", min_size=1, max_size=20), min_size=1, max_size=5, unique=True),
    st.lists(st.lists(st.text("xyz", min_size=1, max_size=12), min_size=5, max_size=5), min_size=1, max_size=8),
    st.integers(0, 20),
)
@settings(max_examples=examples(150), deadline=None)
def test_rows_of_the_same_names_parse_the_same_by_their_places(
    names: list[str], values: list[list[str]], odd: int
) -> None:
    """One row of some blocks has a name that differs in its last letter: then every name is looked at."""
    rows = [dict(zip(names, row, strict=False)) for row in values]
    if odd < len(rows):
        last = names[-1]
        rows[odd] = {(name if name != last else f"{last[:-1]}f"): value for name, value in rows[odd].items()}
    table = parse_properties(pa.array([encode_properties(row) for row in rows], pa.binary()))
    assert [dict(row) for row in table.maps().to_pylist()] == rows
    for name in {*names, *rows[-1], "none"}:
        assert table.column(name).to_pylist() == [row.get(name) for row in rows]
    assert not table.width or all(list(row) == list(rows[0]) for row in rows)


def test_rows_of_one_producer_are_parsed_by_their_places() -> None:
    raw = [encode_properties({"TAGS": "t", "CONTRAIL_DEDUP_KEY": "k", "UNIQ_KEY": "u", "WAIT": "true"})] * 3
    assert parse_properties(pa.array(raw, pa.binary())).width == 4
    assert parse_properties(pa.array([*raw, b""], pa.binary())).width == 0


ALIKE = encode_properties({"KEYS": "order-7", "UNIQ_KEY": "0A01", "TAGS": "paid"})


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, len(ALIKE) - 1), st.sampled_from(b"\x00\x01\x02xyK\xc3\xa9")), max_size=3)
    ),
    st.booleans(),
)
@settings(max_examples=examples(300), deadline=None)
def test_rows_of_one_length_parse_the_same_whatever_byte_differs(
    changes: list[list[tuple[int, int]]], cut: bool
) -> None:
    """Bytes of names, values and separators are changed: some blocks are matrices, others must not be taken for one."""
    rows = []
    for changed in changes:
        row = bytearray(ALIKE[:-1] if cut else ALIKE)
        for at, byte in changed:
            row[min(at, len(row) - 1)] = byte
        rows.append(bytes(row))
    table = parse_properties(pa.array(rows, pa.binary()))
    expected = [decode_properties(row) for row in rows]
    assert [dict(row) for row in table.maps().to_pylist()] == expected
    for name in ("KEYS", "UNIQ_KEY", "TAGS", "none"):
        assert table.column(name).to_pylist() == [row.get(name) for row in expected]


def test_rows_whose_values_alone_differ_are_a_matrix() -> None:
    rows = [ALIKE, ALIKE.replace(b"order-7", b"order-8"), ALIKE.replace(b"paid", "né!".encode())]
    assert isinstance(parse_properties(pa.array(rows, pa.binary())), AlikeProperties)
    for other in (
        b"",
        ALIKE + b"a\x01b\x02",
        ALIKE.replace(b"KEYS", b"KEYT"),
        ALIKE.replace(b"order-7", b"order\x027"),
    ):
        assert isinstance(parse_properties(pa.array([*rows, other], pa.binary())), PropertyTable)


def make_log(random_state: random.Random, count: int) -> tuple[bytes, int]:
    """Random records from a base that is not 0: all header shapes, odd bodies, bodies that hold magics and records."""
    base = random_state.choice([0, 1 << 30, 123 * 4096])
    data = bytearray()
    for number in range(count):
        born = encode_host(random_state.choice(["10.0.0.1", "fd00::1"]), 1234)
        store = encode_host(random_state.choice(["10.0.0.2", "fd00::2"]), 10911)
        body = random_state.choice([b"", b"x" * number, b"\xda\xa3\x20\xa7" * 5, bytes(data[-200:]), bytes(2000)])
        record = encode_record(
            topic=random_state.choice(["T", "Orders", "%RETRY%" + "g" * 200]),
            body=body,
            properties=random_state.choice([b"", b"TAGS\x01a\x02", b"KEYS\x01k 1\x02UNIQ_KEY\x01U%d" % number]),
            queue_id=number % 3,
            queue_offset=number,
            physical_offset=base + len(data),
            born_time_ms=1_700_000_000_000 + number,
            born_host=born,
            store_time_ms=1_700_000_000_500 + number,
            store_host=store,
        )
        data += record
    data += encode_blank(500)
    data += bytes(500 - 8)
    return bytes(data), base


def make_log_of_runs(random_state: random.Random, runs: int) -> tuple[bytes, int]:
    """Stretches of records of one size, some long enough to be stepped over at once, some of a single record."""
    base = 1 << 20
    data = bytearray()
    for run in range(runs):
        body_bytes = random_state.randrange(1, 300)
        for number in range(random_state.choice([1, 2, 17, 18, 40, 90])):
            body = random_state.randbytes(body_bytes)
            data += encode_record(
                "T",
                body,
                b"",
                queue_id=run,
                queue_offset=number,
                physical_offset=base + len(data),
                born_time_ms=1_700_000_000_000,
                born_host=encode_host("10.0.0.1", 1234),
                store_time_ms=1_700_000_000_500,
                store_host=encode_host("10.0.0.2", 10911),
            )
    data += encode_blank(500)
    data += bytes(500 - 8)
    return bytes(data), base


def reference(data: bytes, base: int) -> list[tuple[int, str, bytes, str]]:
    rows, position = [], 0
    while data[position + 4 : position + 8] != bytes.fromhex("cbd43194"):
        message = decode_record(data, position)
        assert message.physical_offset == base + position
        rows.append((message.physical_offset, message.topic, message.body, message.message_id))
        position += message.size_bytes
    return rows


def scanned(
    data: bytes, base: int, cuts: list[int], *, block_bytes: int = 1000, block_rows: int = 20_000
) -> tuple[list[tuple[int, str, bytes, str]], list[BadStretch]]:
    decoder = Decoder(View(), ALL)
    rows, stretches = [], []
    edges = sorted({0, *cuts, len(data)})
    for start, stop in itertools.pairwise(edges):
        part = Range("log", base, base + start, base + stop, base + len(data), is_aligned=start == 0)
        for item in scan_buffer(data, part, check_crc=True, block_bytes=block_bytes, block_rows=block_rows):
            if isinstance(item, BadStretch):
                stretches.append(item)
            else:
                rows += [
                    (r["physicalOffset"], r["topic"], r["body"], r["msgId"]) for r in decoder.decode(item).to_pylist()
                ]
    return rows, stretches


@pytest.mark.parametrize("seed", range(12))
def test_any_cuts_of_any_log_give_every_record_once(seed: int) -> None:
    rng = random.Random(seed)
    data, base = make_log(rng, 60)
    for _ in range(4):
        cuts = [rng.randrange(len(data)) for _ in range(rng.randrange(30))]
        assert scanned(data, base, cuts) == (reference(data, base), [])


@pytest.mark.parametrize("seed", range(4))
def test_runs_of_records_of_one_size_are_cut_and_damaged_like_any_others(seed: int) -> None:
    rng = random.Random(seed)
    data, base = make_log_of_runs(rng, 12)
    whole = reference(data, base)
    for _ in range(3):
        cuts = [rng.randrange(len(data)) for _ in range(rng.randrange(6))]
        blocks = {"block_bytes": rng.choice([1000, 20_000, 1 << 20]), "block_rows": rng.choice([25, 20_000])}
        assert scanned(data, base, cuts, **blocks) == (whole, []), (seed, cuts, blocks)
        victim = rng.randrange(len(whole))
        begin = whole[victim][0] - base
        damaged = bytearray(data)
        damaged[begin + rng.choice([0, 2, 3, 4, 7, 28, 35])] ^= 1 << rng.randrange(8)
        rows, stretches = scanned(bytes(damaged), base, cuts, **blocks)
        assert rows == whole[:victim] + whole[victim + 1 :], (seed, victim, cuts, blocks)
        assert {stretch.start for stretch in stretches} == {base + begin}


@pytest.mark.parametrize("seed", range(12))
def test_a_flipped_byte_costs_one_record_and_is_reported_whatever_the_cuts(seed: int) -> None:
    """Any byte of size, magic, offset, lengths or body: all other records come through, and the damage is told."""
    rng = random.Random(seed)
    data, base = make_log(rng, 40)
    whole = reference(data, base)
    for _ in range(10):
        victim = rng.randrange(len(whole))
        begin = whole[victim][0] - base
        offset = begin + rng.choice([0, 1, 2, 3, 4, 7, 28, 35])
        damaged = bytearray(data)
        damaged[offset] ^= 1 << rng.randrange(8)
        cuts = [rng.randrange(len(data)) for _ in range(rng.randrange(20))]
        rows, stretches = scanned(bytes(damaged), base, cuts)
        assert rows == whole[:victim] + whole[victim + 1 :], (seed, victim, offset - begin, cuts)
        assert stretches
        assert {stretch.start for stretch in stretches} == {base + begin}


def test_the_kernels_need_no_pyspark() -> None:
    code = "import sys; sys.modules['pyspark'] = None; import contrailmq.spark.decoding.log_plan, contrailmq.spark"
    source = str(Path(contrailmq.__file__).parents[1])
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": source})


def log_with_inner_batches() -> bytes:
    """A plain record, an inner batch of three, a compressed one of two, one whose body is no batch, a plain record."""
    properties_of = [encode_properties({"TAGS": f"t{n}", "UNIQ_KEY": f"id{n}"}) for n in range(3)]
    parts = [BatchPart(n, b"part %d" % n, properties) for n, properties in enumerate(properties_of)]
    base = encode_properties({"INNER_BASE": "40", "INNER_NUM": "3", "TAGS": "outer"})
    packed = SysFlag.INNER_BATCH | SysFlag.COMPRESSED  # no kind means zlib
    data = bytearray()
    for offset, body, properties, sys_flag in (
        (7, b"plain", b"", 0),
        (40, encode_batch(parts), base, SysFlag.INNER_BATCH),
        (43, zlib.compress(encode_batch(parts[:2])), b"", packed),
        (45, b"?", b"", SysFlag.INNER_BATCH),
        (8, b"last", b"", 0),
    ):
        data += encode_record(
            "T",
            body,
            properties,
            queue_id=3,
            queue_offset=offset,
            physical_offset=len(data),
            born_time_ms=1,
            born_host=encode_host("10.0.0.1", 1),
            store_time_ms=2,
            store_host=encode_host("10.0.0.1", 2),
            sys_flag=sys_flag,
        )
    return bytes(data)


class OneAnswer(FakeBroker):
    """Gives the same bytes, whatever it is asked for."""

    def __init__(self, data: bytes, next_offset: int) -> None:
        super().__init__({})
        self.pulled = RawPull(PullStatus.FOUND, next_offset, 0, next_offset, data)

    def pull(self, queue: MessageQueue, offset: int, **limits: object) -> RawPull:  # type: ignore[override]
        return self.pulled


def test_messages_of_an_inner_batch_are_rows_of_their_own() -> None:
    data = log_with_inner_batches()
    part = Range("x", 0, 0, len(data), len(data), is_aligned=True)
    blocks = [item for item in scan_buffer(data, part, check_crc=True) if not isinstance(item, BadStretch)]
    rows = [row for block in blocks for row in Decoder(View()).decode(block).to_pylist()]
    assert [(row["queueOffset"], row["body"], row["tags"]) for row in rows] == [
        (7, b"plain", None),
        (40, b"part 0", "t0"),
        (41, b"part 1", "t1"),
        (42, b"part 2", "t2"),
        (43, b"part 0", "t0"),
        (44, b"part 1", "t1"),
        (45, b"?", None),
        (8, b"last", None),
    ]
    assert [row["msgId"] for row in rows[1:4]] == ["id0", "id1", "id2"]
    assert [row["flag"] for row in rows[1:4]] == [0, 1, 2]
    assert len({row["physicalOffset"] for row in rows[1:4]}) == 1
    middle = QueueRange(MessageQueue("T", "b", 3), 41, 44)
    (chosen,) = read_range(middle, TopicSettings("none:1"), OneAnswer(data, 44))  # type: ignore[arg-type]
    assert chosen.column("queueOffset").to_pylist() == [41, 42, 43]
    units, _ = Dispatcher().dispatch(split_records(data, "T"))
    assert units.queue_offset.tolist() == [7, 8]  # batches have queues of another kind


@pytest.mark.parametrize("properties", ["map", "string"])
@pytest.mark.parametrize("body_bytes", [10, 2000])
def test_a_batch_does_not_change_with_the_memory_that_it_was_decoded_from(
    tmp_path: Path, body_bytes: int, properties: str
) -> None:
    messages = [
        Message("T", bytes([number]) * (body_bytes + number % 3), tags=f"t{number}", keys=f"k{number * 7}", flag=number)
        for number in range(60)
    ]
    with MessageStore(StoreConfig(tmp_path, max_transfer_count_on_message_in_memory=100)) as store:
        store.put_many(messages)
        landing = bytearray().join(store.get_slices("T", 0, 0, 100, max_bytes=1 << 20).slices)
    decoder = Decoder(choose_view(None, properties, None), Selection(with_system_topics=True))
    batch = decoder.decode(split_records(memoryview(landing), "T"), "b")
    landing[:] = bytes(len(landing))
    rows = batch.to_pylist()
    assert [row["body"] for row in rows] == [message.body for message in messages]
    assert [(row["topic"], row["tags"], row["keys"], row["flag"]) for row in rows] == [
        ("T", f"t{number}", f"k{number * 7}", number) for number in range(60)
    ]
    assert {row["bornHost"].partition(":")[0] for row in rows} == {row["storeHost"].partition(":")[0] for row in rows}
    named = [dict(row["properties"]) if properties == "map" else row["properties"] for row in rows]
    assert all(f"k{number * 7}" in (row if isinstance(row, str) else row.values()) for number, row in enumerate(named))
