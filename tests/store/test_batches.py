"""What is read of a batch is what decoding its parts says, and its records are those of single messages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from java_hashes import hashes_by_definition, java_string_hash

from contrailmq.message import MessageError, Property, SysFlag, decode_properties, tags_code
from contrailmq.message.batch import encode_batch
from contrailmq.message.codec import BatchPart
from contrailmq.store import ManualClock, MessageStore, PutStatus, StoreConfig
from contrailmq.store.log.batches import read_parts
from contrailmq.store.queues.queue_state import QueueState

NAMES = [b"UNIQ_KEY", b"TAGS", b"KEYS", b"DELAY", b"INNER_NUM", b"MYUNIQ_KEY", b"UNIQ_KEYS", b"a", b""]
VALUES = [
    b"",
    b"0",
    b"3",
    b"x",
    b"A1",
    b"one two",
    b" ",
    b"7F0000010B1A18B4AAC2000000000001",
    b"UNIQ_KEY",
    b"\xff",
    "é".encode(),
]
pieces = st.tuples(st.sampled_from(NAMES), st.sampled_from([b"\x01", b""]), st.sampled_from(VALUES)).map(b"".join)
properties = st.tuples(st.lists(pieces, max_size=5).map(b"\x02".join), st.sampled_from([b"\x02", b""])).map(b"".join)


@given(st.lists(properties, max_size=6))
@example([b"KEYS\x01 a  b \x02"])
@example([b"TAGS\x01x\x02TAGS\x01\x02"])
@example([b"INNER_NUM\x012\x02", b"INNER_BASE\x012"])
def test_what_is_read_of_parts_is_what_decoding_them_says(strings: list[bytes]) -> None:
    parts, is_delayed, suspects = read_parts(
        encode_batch((7, b"body", each) for each in strings), QueueState("T", 0, 0)
    )
    expected = [decode_properties(each) for each in strings]
    assert [(flag, body) for flag, body, _, _, _ in parts] == [(7, b"body")] * len(strings)
    assert [decode_properties(each) for _, _, each, _, _ in parts] == expected
    assert all(not each or each.endswith(b"\x02") for _, _, each, _, _ in parts)
    assert [code for _, _, _, code, _ in parts] == [tags_code(known.get(Property.TAGS)) for known in expected]
    assert [hashes for _, _, _, _, hashes in parts] == [hashes_by_definition("T", known) for known in expected]
    assert is_delayed == any(known.get(Property.DELAY) not in (None, "", "0") for known in expected)
    inner = {number for number, known in enumerate(expected) if {Property.INNER_NUM, Property.INNER_BASE} & set(known)}
    assert inner <= set(suspects)


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 40)), min_size=1, max_size=12))
@example([(40, 0), (0, 40), (39, 39)])
def test_what_the_suspects_may_all_parts_may(lengths: list[tuple[int, int]]) -> None:
    batch = encode_batch((0, bytes(body), b"a" * properties + b"\x02") for body, properties in lengths)
    parts, _, suspects = read_parts(batch, QueueState("T", 0, 0))
    for measure in (lambda part: len(part[1]), lambda part: len(part[2]), lambda part: len(part[1]) + len(part[2])):
        assert max(measure(parts[number]) for number in suspects) == max(map(measure, parts))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda batch: batch[:-1], "part 1 of the batch is malformed: its parts have"),
        (lambda batch: batch + b"\x00" * 21, "part 2 of the batch is malformed: 21 bytes are left"),
        (lambda batch: batch[:16] + b"\xff" * 4 + batch[20:], "part 0 of the batch is malformed: its body of -1"),
        (lambda batch: batch[:16] + b"\x7f" * 4 + batch[20:], "part 0 of the batch is malformed: its body of 21"),
        (lambda batch: batch[:24] + b"\xff\xff" + batch[26:], "part 0 of the batch is malformed: its parts have"),
        (lambda batch: b"\0\0\0\x1f" + batch[4:], "part 0 .*: its parts have 30 bytes, its size says 31"),
        (lambda batch: b"\0\0\0\x1d" + batch[4:], "part 0 .*: its parts have 30 bytes, its size says 29"),
        (lambda batch: batch[:46] + b"\0\0\0\x09" + batch[50:], "part 1 .*: its body of 9 bytes does not fit .* 60$"),
        (
            lambda batch: bytes(20) + b"\xff\xea",
            "part 0 .*: its parts have 0 bytes, its size says 0",
        ),  # would never end
    ],
)
def test_a_batch_with_a_wrong_length_is_refused_as_a_whole(
    change: Callable[[bytes], bytes], said: str, tmp_path: Path
) -> None:
    batch = encode_batch([(0, b"body", b"a\x01b\x02"), (0, b"body", b"a\x01b\x02")])
    with store_at(tmp_path) as store:
        with pytest.raises(MessageError, match=said):
            store.append_batch("T", 0, change(batch))
        assert store.append_batch("T", 0, batch).queue_offset == 0


@pytest.mark.parametrize(
    "around", [(b"TAGS\x01a\x02", b""), (b"", b"TAGS\x01a\x02"), (b"x\x01y\x02", b"TAGS\x01a\x02")]
)
def test_parts_that_differ_in_their_unique_key_alone_keep_their_own(around: tuple[bytes, bytes]) -> None:
    before, after = around
    batch = encode_batch((0, b"", before + b"UNIQ_KEY\x01%d\x02" % number + after) for number in range(3))
    found = read_parts(batch, QueueState("T", 0, 0)).all
    assert [hashes for _, _, _, _, hashes in found] == [
        [java_string_hash(f"T#{number}"), java_string_hash("T#T#a")] for number in range(3)
    ]


def store_at(path: Path) -> MessageStore:
    config = StoreConfig(path, mapped_file_size_commit_log=1 << 20, max_hash_slot_num=64, max_index_num=256)
    return MessageStore(config, clock=ManualClock())


def parts_of_many_kinds() -> list[BatchPart]:
    texts = [
        b"UNIQ_KEY\x01%032d\x02KEYS\x01one two\x02TAGS\x01a\x02",
        b"TAGS\x01b\x02x\x01y\x02UNIQ_KEY\x01%032d\x02",
        b"KEYS\x01first\x02KEYS\x01last\x02WAIT\x01true\x02UNIQ_KEY\x01%032d\x02",
        b"n\x01%032d\x02",
    ]
    return [BatchPart(number - 3, b"body" * (number + 1), texts[number % 4] % number) for number in range(60)]


def test_a_batch_is_stored_as_its_messages_would_be_one_by_one(tmp_path: Path) -> None:
    parts = parts_of_many_kinds()
    together, alone = store_at(tmp_path / "together").open(), store_at(tmp_path / "alone").open()
    result = together.append_batch("T", 1, encode_batch(parts), sys_flag=0, born_time_ms=77, reconsume_times=2)
    assert (result.status, result.queue_offset) == (PutStatus.PUT_OK, 0)
    places = []
    for part in parts:
        known = decode_properties(part.properties)
        put = alone.append(
            "T",
            1,
            part.body,
            part.properties,
            tags_code=tags_code(known.get(Property.TAGS)),
            keys=known.get(Property.KEYS),
            unique_key=known.get(Property.UNIQUE_KEY),
            tags=known.get(Property.TAGS),
            flag=part.flag,
            born_time_ms=77,
            reconsume_times=2,
        )
        places.append(put.physical_offset)
    assert list(result.physical_offsets) == places
    for store in (together, alone):
        assert store.dispatch() == len(parts)
        store.close()
    for name in ("commitlog", "consumequeue", "index"):
        one, other = (
            {
                path.name if name != "index" else "": path.read_bytes()
                for path in (folder / name).rglob("*")
                if path.is_file()
            }
            for folder in (tmp_path / "together", tmp_path / "alone")
        )
        assert one == other, name
        assert one, name


def test_a_part_without_its_last_separator_gets_it_and_the_others_stay(tmp_path: Path) -> None:
    parts = [BatchPart(0, b"1", b"a\x01b"), BatchPart(0, b"2", b""), BatchPart(0, b"3", b"c\x01d\x02")]
    with store_at(tmp_path) as store:
        assert store.append_batch("T", 0, encode_batch(parts)).status is PutStatus.PUT_OK
        store.dispatch()
        found = list(store.get("T", 0, 0))
        assert [(message.body, message.properties) for message in found] == [
            (b"1", {"a": "b"}),
            (b"2", {}),
            (b"3", {"c": "d"}),
        ]
    assert b"a\x01b\x02" in (tmp_path / "commitlog" / f"{0:020d}").read_bytes()


@pytest.mark.parametrize("bad", [b"DELAY\x013\x02", b"DELAY\x01x\x02", b"x\x01y\x02INNER_NUM\x012\x02"])
def test_one_part_that_may_not_be_in_a_batch_keeps_all_out(bad: bytes, tmp_path: Path) -> None:
    parts = [BatchPart(0, b"1" * 50, b"a\x01b\x02"), BatchPart(0, b"2", bad), BatchPart(0, b"3", b"")]
    with store_at(tmp_path) as store:
        assert store.append_batch("T", 0, encode_batch(parts)).status is PutStatus.MESSAGE_ILLEGAL
        assert store.dispatch() == 0
        assert store.append_batch("T", 0, encode_batch([parts[0], parts[2]])).queue_offset == 0


@pytest.mark.parametrize("level", [b"0", b"-1", b"3\x02DELAY\x010"])
def test_a_part_that_asks_for_no_delay_after_all_is_stored(level: bytes, tmp_path: Path) -> None:
    """The last of two levels counts, and one below 1 is none."""
    with store_at(tmp_path) as store:
        batch = encode_batch([(0, b"1", b"DELAY\x01" + level + b"\x02")])
        assert store.append_batch("T", 0, batch).status is PutStatus.PUT_OK


def test_a_separator_that_is_added_counts_for_the_limit_of_properties(tmp_path: Path) -> None:
    whole, without_separator = b"a\x01" + b"x" * 32_764 + b"\x02", b"a\x01" + b"x" * 32_765
    assert len(whole) == len(without_separator) == 32_767
    with store_at(tmp_path) as store:
        refused = store.append_batch("T", 0, encode_batch([(0, b"large", whole), (0, b"", without_separator)]))
        assert refused.status is PutStatus.PROPERTIES_SIZE_EXCEEDED
        assert "32768 bytes, the limit is 32767" in refused.reason
        assert store.append_batch("T", 0, encode_batch([(0, b"", whole)])).queue_offset == 0


def test_a_batch_larger_than_a_message_may_be_is_refused_though_its_parts_are_small(tmp_path: Path) -> None:
    config = StoreConfig(tmp_path, mapped_file_size_commit_log=1 << 20, max_message_size=1_000)
    parts = [(0, bytes(478), b"")] * 2
    with MessageStore(config, clock=ManualClock()) as store:
        assert store.append_batch("T", 0, encode_batch(parts)).status is PutStatus.PUT_OK  # 500 bytes each
        refused = store.append_batch("T", 0, encode_batch([*parts, (0, b"", b"")]))
        assert refused.status is PutStatus.MESSAGE_ILLEGAL
        assert "the batch has 1022 bytes, the limit is 1000 (maxMessageSize)" in refused.reason
        assert store.max_offset("T", 0) == 2


def test_dispatch_is_told_the_flag_of_a_batch(tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        store.append_batch("T", 0, encode_batch([(0, b"1", b""), (0, b"2", b"")]), sys_flag=SysFlag.COMPRESSED)
        assert [fact[7] for fact in store._log.facts] == [SysFlag.COMPRESSED] * 2


@pytest.mark.parametrize(
    "kind", [SysFlag.TRANSACTION_PREPARED, SysFlag.TRANSACTION_COMMIT, SysFlag.TRANSACTION_ROLLBACK]
)
def test_a_batch_is_no_part_of_a_transaction(kind: int, tmp_path: Path) -> None:
    with store_at(tmp_path) as store:
        refused = store.append_batch("T", 0, encode_batch([(0, b"1", b"")]), sys_flag=kind)
        assert refused.status is PutStatus.MESSAGE_ILLEGAL
        assert "no transaction" in refused.reason
        assert store.log_max_offset == 0
