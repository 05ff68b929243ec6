"""The record codec on its own: vectors of the format sheet, bad input, torn and flipped bytes, arbitrary bytes."""

from __future__ import annotations

import struct
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contrailmq.message import (
    Compression,
    MessageError,
    Property,
    SysFlag,
    compress,
    decode_properties,
    encode_host,
    encode_properties,
)
from contrailmq.message.codec import (
    BLANK_MAGIC,
    MAGIC_V1,
    MAGIC_V2,
    BatchPart,
    CorruptRecordError,
    Kind,
    Scan,
    check_record,
    decode_record,
    encode_batch,
    encode_blank,
    encode_crc_property,
    encode_record,
    scan_records,
    split_batch,
    unwrap_inner_batch,
)
from contrailmq.message.record import view_record
from how_many import examples

V4 = encode_host("127.0.0.1", 10911)
V6 = encode_host("fd00::1234", 10911)

SHEET_RECORD = bytes.fromhex(
    "00000084daa320a769c865ed0000000300000000000000000000000700000000"
    "000003e8000000000000018bcfe568007f0000010000d4310000018bcfe5687b"
    "7f00000100002a9f0000000000000000000000000000000e48656c6c6f20526f"
    "636b65744d5109546f706963546573740012544147530154616741024b455953"
    "016b3102"
)
WIRE_RECORD = bytes.fromhex(
    "00000065daa320a758932aac0000000000000000000000000000000500000000000003e800000000"
    "0000018bcfe568000a0000010000d4310000018bcfe568010a00000200002a9f00000000"
    "00000000000000000000000268690154000754414753014102"
)


def record(
    *,
    topic: str = "TopicTest",
    body: bytes = b"Hello RocketMQ",
    properties: bytes = b"TAGS\x01TagA\x02",
    born_host: bytes = V4,
    store_host: bytes = V4,
    physical_offset: int = 0,
    sys_flag: int = 0,
    with_record_crc: bool = False,
    long_topics: bool = True,
    queue_offset: int = 7,
) -> bytes:
    return encode_record(
        topic,
        body,
        properties,
        queue_id=3,
        queue_offset=queue_offset,
        physical_offset=physical_offset,
        born_host=born_host,
        store_host=store_host,
        born_time_ms=1_700_000_000_000,
        store_time_ms=1_700_000_000_123,
        sys_flag=sys_flag,
        with_record_crc=with_record_crc,
        long_topics=long_topics,
    )


KINDS = {
    "v1-ipv4": record(),
    "v1-born-ipv6": record(born_host=V6),
    "v1-store-ipv6": record(store_host=V6),
    "v1-both-ipv6": record(born_host=V6, store_host=V6),
    "v2-long-topic": record(topic="%RETRY%" + "g" * 150),
    "v1-empty-body": record(body=b""),
    "v1-no-properties": record(properties=b""),
    "v1-record-crc": record(with_record_crc=True),
}


# ------------------------------------------------------------------------------------------------------------ vectors


def test_the_record_of_the_format_sheet_encodes_to_its_bytes() -> None:
    assert (
        encode_record(
            "TopicTest",
            b"Hello RocketMQ",
            encode_properties({Property.TAGS: "TagA", Property.KEYS: "k1"}),
            queue_id=3,
            queue_offset=7,
            physical_offset=1000,
            born_host=encode_host("127.0.0.1", 54321),
            store_host=V4,
            born_time_ms=1_700_000_000_000,
            store_time_ms=1_700_000_000_123,
        )
        == SHEET_RECORD
    )


def test_the_record_of_the_wire_sheet_decodes_to_its_values() -> None:
    message = decode_record(WIRE_RECORD)
    assert (message.topic, message.body, message.tags) == ("T", b"hi", "A")
    assert (message.queue_id, message.flag, message.queue_offset, message.physical_offset) == (0, 0, 5, 1000)
    assert (message.born_time_ms, str(message.born_host)) == (1_700_000_000_000, "10.0.0.1:54321")
    assert (message.store_time_ms, str(message.store_host)) == (1_700_000_000_001, "10.0.0.2:10911")
    assert message.size_bytes == len(WIRE_RECORD) == 101
    assert message.offset_message_id == "0A00000200002A9F00000000000003E8"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("before", [0, 7])
def test_a_record_seen_in_place_says_what_the_decoded_message_says(kind: type, before: int) -> None:
    buffer = kind(bytes(before) + SHEET_RECORD + b"more")
    view, message = view_record(buffer, before), decode_record(SHEET_RECORD)
    assert (view.topic_name, view.queue_id, view.queue_offset) == (
        message.topic,
        message.queue_id,
        message.queue_offset,
    )
    assert (view.physical_offset, view.size_bytes, view.store_time_ms) == (1000, 132, 1_700_000_000_123)
    assert (view.body, view.body_crc, view.sys_flag) == (message.stored_body, message.body_crc, message.sys_flag)
    assert view.prepared_transaction_offset == message.prepared_transaction_offset
    assert (view.find(b"TAGS\x01"), view.find(b"KEYS\x01"), view.find(b"UNIQ_KEY\x01")) == ("TagA", "k1", None)
    assert decode_properties(view.properties) == message.properties


def test_crc_property_digits_are_written_least_significant_first() -> None:
    assert encode_crc_property(1485523934) == b"__CRC32#\x014393255841\x02"
    assert encode_crc_property(7) == b"__CRC32#\x017000000000\x02"


def test_properties_without_a_last_separator_get_one_before_the_crc_property() -> None:
    """Otherwise the last value would swallow the checksum's name, and the reader find neither."""
    data = record(properties=b"TAGS\x01TagA", with_record_crc=True)
    assert decode_record(data).encoded_properties.startswith(b"TAGS\x01TagA\x02__CRC32#\x01")
    assert decode_record(data).tags == "TagA"
    assert check_record(data, check_record_crc=True).kind is Kind.WHOLE


def test_ipv6_hosts_set_their_bits_and_lengths() -> None:
    message = decode_record(KINDS["v1-both-ipv6"])
    assert message.sys_flag == SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
    assert str(message.born_host) == "[fd00::1234]:10911"
    assert len(message.offset_message_id) == 56


def test_a_topic_over_127_bytes_takes_the_second_magic() -> None:
    message = decode_record(KINDS["v2-long-topic"])
    assert message.magic == MAGIC_V2
    assert len(message.topic) == 157


def test_a_blank_says_how_many_bytes_are_left_in_the_file() -> None:
    assert encode_blank(9) == struct.pack(">ii", 9, BLANK_MAGIC)
    verdict = check_record(encode_blank(9) + b"?", 0)
    assert (verdict.kind, verdict.size_bytes) == (Kind.BLANK, 9)


# ---------------------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("change", "field", "size", "limit"),
    [
        ({"body": bytes(4 * 1024 * 1024 + 1)}, "body", 4_194_305, 4_194_304),
        ({"topic": "t" * 128, "long_topics": False}, "topic", 128, 127),
        ({"topic": "t" * 256}, "topic", 256, 255),
        ({"topic": ""}, "topic", 0, 1),
        ({"born_host": V4[:7]}, "born_host", 7, 8),
        ({"store_host": b""}, "store_host", 0, 8),
        ({"store_host": V4 + b"\0"}, "store_host", 9, 8),
        ({"born_host": V6 + b"\0"}, "born_host", 21, 20),
        ({"sys_flag": SysFlag.BORN_HOST_V6}, "born_host", 8, 20),
        ({"sys_flag": SysFlag.STORE_HOST_V6, "born_host": V6}, "store_host", 8, 20),
        ({"properties": b"k\x01" + b"v" * 32_765 + b"\x02"}, "properties", 32_768, 32_767),
        ({"properties": b"k\x01" + b"v" * 32_764 + b"\x02", "with_record_crc": True}, "properties", 32_787, 32_767),
    ],
    ids=[
        "body",
        "topic-v1",
        "topic-v2",
        "topic-empty",
        "born-host-short",
        "store-host-empty",
        "store-host-between",
        "born-host-long",
        "born-flag-without-ipv6",
        "store-flag-without-ipv6",
        "properties",
        "properties-with-crc",
    ],
)
def test_what_does_not_fit_is_refused_with_field_size_and_limit(
    change: dict[str, object], field: str, size: int, limit: int
) -> None:
    with pytest.raises(MessageError) as caught:
        record(**change)  # type: ignore[arg-type]
    assert (caught.value.field, caught.value.size, caught.value.limit) == (field, size, limit)
    assert str(size) in str(caught.value)
    assert str(limit) in str(caught.value)


def test_a_number_outside_its_field_is_refused_not_wrapped() -> None:
    with pytest.raises(MessageError, match="queue_offset=9223372036854775808"):
        record(queue_offset=2**63)


@pytest.mark.parametrize("topic", ["half \ud83d", None, 5])
def test_a_topic_that_utf8_has_not_is_refused(topic: str) -> None:
    with pytest.raises(MessageError) as caught:
        record(topic=topic)
    assert caught.value.field == "topic"


def test_a_flag_outside_its_field_is_refused_in_a_batch() -> None:
    with pytest.raises(MessageError, match="1099511627776") as caught:
        encode_batch([BatchPart(2**40, b"x", b"")])
    assert caught.value.field == "flag"


def test_a_position_outside_every_buffer_is_no_record() -> None:
    with pytest.raises(CorruptRecordError):
        decode_record(SHEET_RECORD, 2**70)


@pytest.mark.parametrize("size", [32_766, 32_767])
def test_properties_up_to_the_limit_are_stored(size: int) -> None:
    properties = b"k\x01" + b"v" * (size - 3) + b"\x02"
    assert decode_record(record(properties=properties)).encoded_properties == properties


# -------------------------------------------------------------------------------------------------- torn and flipped


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_cut_or_zeroed_from_any_byte_on_is_never_whole(kind: str) -> None:
    whole = KINDS[kind]
    for length in range(len(whole)):
        cut, zeroed = whole[:length], whole[:length] + bytes(len(whole) - length)
        assert check_record(cut).kind in (Kind.NOTHING, Kind.TORN)
        if zeroed != whole:
            assert check_record(zeroed).kind is not Kind.WHOLE


# Which bits of a record are covered by which rule. The body checksum does not cover the header: these fields can flip
# unnoticed, in RocketMQ as here. The record checksum property covers everything.
UNCHECKED_HEAD = {
    "body_crc of an empty body": range(8, 12),
    "queue_id": range(12, 16),
    "flag": range(16, 20),
    "queue_offset": range(20, 28),
    "sys_flag": range(36, 40),
    "born_time": range(40, 48),
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_flipped_bit_that_a_rule_covers_is_detected(kind: str) -> None:
    whole = KINDS[kind]
    message = decode_record(whole)
    body_start = len(whole) - len(message.encoded_properties) - 2 - len(message.topic.encode())
    body_start -= (1 if message.magic == MAGIC_V1 else 2) + len(message.stored_body)
    must_be_found = {*range(8), *range(28, 36), *range(body_start - 4, body_start + len(message.stored_body))}
    if message.stored_body:
        must_be_found |= set(range(8, 12))
    if kind == "v1-record-crc":
        must_be_found = set(range(len(whole)))
    missed: set[int] = set()
    for bit in range(len(whole) * 8):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << (bit % 8)
        verdict = check_record(
            flipped, physical_offset=message.physical_offset, check_record_crc=kind == "v1-record-crc"
        )
        if verdict.kind is Kind.WHOLE:
            missed.add(bit // 8)
    assert not missed & must_be_found
    unchecked = {place for places in UNCHECKED_HEAD.values() for place in places}
    tail = set(range(body_start + len(message.stored_body), len(whole)))  # topic and properties
    rest_of_head = set(range(48, body_start - 4))  # hosts, store time, reconsume times, prepared offset
    assert missed <= unchecked | tail | rest_of_head


def test_a_record_that_lies_elsewhere_than_it_says_is_corrupt() -> None:
    """Bytes of an older, longer log that line up with the end of a truncated one (trap 8 of the format)."""
    old = record(physical_offset=4096)
    assert check_record(old, physical_offset=4096).kind is Kind.WHOLE
    verdict = check_record(old, physical_offset=8192)
    assert verdict.kind is Kind.CORRUPT
    assert "4096" in verdict.reason
    assert "8192" in verdict.reason


@pytest.mark.parametrize("kind", ["v1-ipv4", "v2-long-topic", "v1-both-ipv6"])
def test_a_walk_ends_at_a_record_of_another_place(kind: str) -> None:
    """On the fast path and on the slow one: records at 0 and elsewhere, in a buffer that begins at 4096."""
    here = record(physical_offset=4096)
    data = here + KINDS[kind] + here
    scan = scan_records(data, 0, len(data), base_offset=4096)
    assert (scan.positions, scan.position, scan.verdict.kind) == ([0], len(here), Kind.CORRUPT)
    assert str(4096 + len(here)) in scan.verdict.reason
    assert len(scan_records(data, 0, len(data), base_offset=None).positions) == 3


def test_a_first_magic_takes_topics_up_to_127_bytes_only() -> None:
    """The length is a signed byte: 128 and more are negative to Java. The same bytes, judged, walked."""
    for length, kind in ((127, Kind.WHOLE), (128, Kind.CORRUPT), (200, Kind.CORRUPT)):
        second = record(topic="t" * 127)
        data = bytearray(second[:-140] + bytes([length]) + b"t" * length + second[-12:])
        data[:4] = len(data).to_bytes(4, "big")
        assert check_record(data).kind is kind
        assert scan_records(data, 0, len(data), base_offset=None).sizes == ([len(data)] if kind is Kind.WHOLE else [])


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", Kind.NOTHING),
        (bytes(7), Kind.NOTHING),
        (bytes(4096), Kind.NOTHING),
        (b"\x00\x00\x00\x84", Kind.TORN),
        (struct.pack(">ii", 0, MAGIC_V1) + bytes(100), Kind.CORRUPT),
        (struct.pack(">ii", -5, MAGIC_V1) + bytes(100), Kind.CORRUPT),
        (struct.pack(">ii", 2**31 - 1, MAGIC_V1) + bytes(100), Kind.TORN),
        (struct.pack(">ii", 200, BLANK_MAGIC) + bytes(100), Kind.CORRUPT),
        (struct.pack(">ii", 4, BLANK_MAGIC) + bytes(100), Kind.CORRUPT),
        (struct.pack(">ii", 100, 0x12345678) + bytes(100), Kind.CORRUPT),
    ],
)
def test_what_is_no_record_gets_its_verdict(data: bytes, kind: Kind) -> None:
    verdict = check_record(data)
    assert verdict.kind is kind
    assert verdict.reason


# ----------------------------------------------------------------------------------------------------- arbitrary bytes

noise = st.binary(max_size=300)
spoiled = st.builds(
    lambda whole, place, value: whole[: place % len(whole)] + value + whole[place % len(whole) + len(value) :],
    st.sampled_from(sorted(KINDS.values())),
    st.integers(0, 10_000),
    st.binary(min_size=1, max_size=8),
)


@settings(max_examples=examples(2_000), deadline=None)
@given(st.one_of(noise, spoiled, st.builds(bytes.__add__, spoiled, noise)), st.integers(0, 40))
def test_any_bytes_get_a_verdict_and_decode_or_fail_within_the_error_tree(data: bytes, position: int) -> None:
    verdict = check_record(data, position)
    assert isinstance(verdict.kind, Kind)
    try:
        message = decode_record(data, position)
    except CorruptRecordError as error:
        assert error.verdict.reason
    else:
        assert message.size_bytes <= len(data) - position
    if verdict.kind is Kind.WHOLE:
        assert decode_record(data, position).size_bytes == verdict.size_bytes
        assert view_record(data, position).size_bytes == verdict.size_bytes


@settings(max_examples=examples(500), deadline=None)
@given(st.lists(st.one_of(st.sampled_from(sorted(KINDS.values())), spoiled, noise), max_size=6))
def test_the_fast_walk_agrees_with_judging_record_by_record(pieces: list[bytes]) -> None:
    data = b"".join(pieces)
    fast = scan_records(data, 0, len(data), base_offset=None)
    assert fast == plain_scan(data)


def plain_scan(data: bytes) -> Scan:
    positions, sizes, position = [], [], 0
    while (verdict := check_record(data, position)).kind is Kind.WHOLE:
        positions.append(position)
        sizes.append(verdict.size_bytes)
        position += verdict.size_bytes
    return Scan(positions, sizes, position, verdict)


@settings(max_examples=examples(300), deadline=None)
@given(
    topic=st.text(alphabet="abcXYZ09_-%|", min_size=1, max_size=255),
    body=st.binary(max_size=200),
    properties=st.dictionaries(st.text(min_size=1, max_size=9), st.text(min_size=1, max_size=9), max_size=5).filter(
        lambda p: Property.CRC32 not in p and not any(c in k + v for k, v in p.items() for c in "\x01\x02")
    ),
    born_host=st.sampled_from([V4, V6]),
    store_host=st.sampled_from([V4, V6]),
    with_record_crc=st.booleans(),
)
def test_what_is_encoded_decodes_to_itself(
    topic: str, body: bytes, properties: dict[str, str], born_host: bytes, store_host: bytes, with_record_crc: bool
) -> None:
    data = record(
        topic=topic,
        body=body,
        properties=encode_properties(properties),
        born_host=born_host,
        store_host=store_host,
        with_record_crc=with_record_crc,
    )
    assert check_record(data, physical_offset=0, check_record_crc=with_record_crc).kind is Kind.WHOLE
    message = decode_record(b"pad" + data + b"pad", 3)
    got = {k: v for k, v in message.properties.items() if k != Property.CRC32}
    assert (message.topic, message.body, got) == (topic, body, properties)
    assert message.body_crc == (zlib.crc32(body) & 0x7FFFFFFF if body else 0)


# ------------------------------------------------------------------------------------------------------------ batches

PARTS = [BatchPart(0, b"one", b"TAGS\x01A\x02"), BatchPart(-1, b"", b""), BatchPart(7, b"three", b"k\x01v")]


def test_a_batch_splits_into_the_parts_it_was_made_of() -> None:
    assert split_batch(encode_batch(PARTS)) == PARTS
    assert split_batch(b"") == []


def test_a_batch_part_is_laid_out_as_clients_write_it() -> None:
    expected = struct.pack(">iiiii", 30, 0, 0, 7, 5) + b"three" + struct.pack(">h", 3) + b"k\x01v"
    assert encode_batch(PARTS[2:]) == expected


def test_a_batch_cut_anywhere_but_between_parts_is_refused() -> None:
    batch = encode_batch(PARTS)
    borders = {0, *(len(encode_batch(PARTS[:n])) for n in (1, 2, 3))}
    for length in range(len(batch)):
        if length in borders:
            assert len(split_batch(batch[:length])) < 3
        else:
            with pytest.raises(MessageError, match="part [012] of the batch"):
                split_batch(batch[:length])


@settings(max_examples=examples(500), deadline=None)
@given(st.binary(max_size=120))
def test_any_bytes_as_a_batch_split_or_are_refused(data: bytes) -> None:
    try:
        parts = split_batch(data)
    except MessageError as error:
        assert error.field == "body"
    else:
        assert sum(22 + len(part.body) + len(part.properties) for part in parts) == len(data)


def test_an_inner_batch_unwraps_into_messages_with_their_own_offsets() -> None:
    properties = encode_properties({Property.INNER_NUM: "3", Property.INNER_BASE: "40"})
    outer = decode_record(record(body=encode_batch(PARTS), properties=properties, sys_flag=SysFlag.INNER_BATCH))
    inner = unwrap_inner_batch(outer)
    assert [(m.queue_offset, m.body, m.flag) for m in inner] == [(40, b"one", 0), (41, b"", -1), (42, b"three", 7)]
    assert inner[0].properties == decode_properties(PARTS[0].properties)


def test_an_inner_base_that_is_no_number_is_refused() -> None:
    properties = encode_properties({Property.INNER_NUM: "3", Property.INNER_BASE: "abc"})
    outer = decode_record(record(body=encode_batch(PARTS), properties=properties, sys_flag=SysFlag.INNER_BATCH))
    with pytest.raises(MessageError, match="'abc'") as caught:
        unwrap_inner_batch(outer)
    assert caught.value.field == "properties[INNER_BASE]"


def test_an_inner_batch_without_a_base_begins_at_the_records_own_offset() -> None:
    outer = decode_record(record(body=encode_batch(PARTS), sys_flag=SysFlag.INNER_BATCH, queue_offset=90))
    assert [message.queue_offset for message in unwrap_inner_batch(outer)] == [90, 91, 92]


def test_the_parts_of_an_inner_batch_are_neither_compressed_nor_batches_themselves() -> None:
    """The outer body was compressed as a whole; its parts are plain, and nobody may unwrap them again."""
    flags = SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP | SysFlag.COMPRESSED | Compression.ZLIB
    outer = decode_record(record(body=compress(encode_batch(PARTS), Compression.ZLIB), sys_flag=flags))
    inner = unwrap_inner_batch(outer)
    assert [message.body for message in inner] == [b"one", b"", b"three"]
    for message in inner:
        assert not message.sys_flag & (SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP | SysFlag.COMPRESSED)
        assert unwrap_inner_batch(message) == [message]
