"""Messages, names, properties, hashes, ids and compressions, against the vectors of the format sheets."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import contrailmq
from contrailmq.message import (
    Compression,
    Host,
    Message,
    MessageError,
    MessageQueue,
    Property,
    StoredMessage,
    SysFlag,
    check_group,
    check_message,
    check_topic,
    compress,
    create_unique_id,
    create_unique_ids,
    decode_host,
    decode_properties,
    decompress,
    dlq_topic,
    encode_host,
    encode_properties,
    is_system_topic,
    java_hash,
    java_hash_of_id,
    offset_message_id,
    parse_offset_message_id,
    parse_unique_id,
    retry_topic,
    tags_code,
    text_wants_durable,
    wants_durable,
)
from contrailmq.message.codec import body_crc

# ------------------------------------------------------------------------------------------------------------- hashes


@pytest.mark.parametrize(
    ("text", "hashed"),
    [
        ("TagA", 2598919),
        ("TagB", 2598920),
        ("", 0),
        ("*", 42),
        ("\u4e2d\u6587", 646394),
        ("\U0001f600", 1772899),
        ("polygenelubricants", -2147483648),
        ("TopicTest#KEY1", -1656969516),
    ],
)
def test_java_hash_equals_java(text: str, hashed: int) -> None:
    assert java_hash(text) == hashed
    assert java_hash_of_id(text) == hashed


@given(st.text(max_size=700), st.text(max_size=300))
def test_a_hash_continues_from_the_hash_of_what_stands_before(first: str, second: str) -> None:
    def plain(text: str) -> int:
        hashed = 0
        data = text.encode("utf-16-be", "surrogatepass")
        for i in range(0, len(data), 2):
            hashed = (31 * hashed + int.from_bytes(data[i : i + 2], "big")) & 0xFFFFFFFF
        return hashed - 2**32 if hashed >= 2**31 else hashed

    assert java_hash(first + second) == plain(first + second)
    assert java_hash(second, seed=java_hash(first)) == plain(first + second)
    assert java_hash_of_id(second, seed=java_hash(first)) == plain(first + second)
    identity = "".join(chr(ord("0") + ord(character) % 31) for character in second)
    assert java_hash_of_id(identity, seed=java_hash(first)) == plain(first + identity)


def test_no_tag_has_code_zero() -> None:
    assert (tags_code(None), tags_code(""), tags_code("TagA")) == (0, 0, 2598919)


@pytest.mark.parametrize(
    ("body", "crc"),
    [(b"123456789", 1274296614), (b"Hello RocketMQ", 1774740973), (b"a", 1756872259), (b"hello", 907060870), (b"", 0)],
)
def test_body_checksum_equals_java(body: bytes, crc: int) -> None:
    assert body_crc(body) == crc


# ---------------------------------------------------------------------------------------------------------------- ids


@pytest.mark.parametrize(
    ("ip", "port", "offset", "text"),
    [
        ("127.0.0.1", 10911, 0, "7F00000100002A9F0000000000000000"),
        ("192.168.1.10", 10911, 1073741824, "C0A8010A00002A9F0000000040000000"),
        ("10.0.0.2", 10911, 1000, "0A00000200002A9F00000000000003E8"),
        ("fe80::1", 10911, 0x1D6, "FE80000000000000000000000000000100002A9F00000000000001D6"),
    ],
)
def test_offset_message_ids_both_ways(ip: str, port: int, offset: int, text: str) -> None:
    assert offset_message_id(encode_host(ip, port), offset) == text
    assert parse_offset_message_id(text) == (ip, port, offset)
    assert decode_host(encode_host(ip, port)) == Host(ip, port)


def test_a_negative_offset_goes_through_a_message_id_and_a_larger_one_is_refused() -> None:
    host = encode_host("127.0.0.1", 10911)
    assert offset_message_id(host, -1) == "7F00000100002A9FFFFFFFFFFFFFFFFF"
    assert parse_offset_message_id("7F00000100002A9FFFFFFFFFFFFFFFFF") == ("127.0.0.1", 10911, -1)
    with pytest.raises(MessageError) as caught:
        offset_message_id(host, 2**63)
    assert caught.value.field == "physical_offset"


def test_a_stored_message_of_a_negative_offset_has_its_id_and_its_text() -> None:
    host = encode_host("127.0.0.1", 10911)
    message = StoredMessage("T", b"x", b"", 92, 0, 0, 0, 0, 0, -2, 0, 0, host, 0, host, 0, 0)
    assert message.message_id == message.offset_message_id == "7F00000100002A9FFFFFFFFFFFFFFFFE"
    assert "7F00000100002A9FFFFFFFFFFFFFFFFE" in repr(message)


@pytest.mark.parametrize(
    ("ip", "port", "field"),
    [("nonsense", 1, "host"), ("::zz", 1, "host"), ("a\0b", 1, "host"), (None, 1, "host"),
     ("127.0.0.1", -1, "port"), ("127.0.0.1", 65_536, "port"), ("127.0.0.1", "80", "port")],
)  # fmt: skip
def test_what_is_no_address_is_refused_by_field(ip: str, port: int, field: str) -> None:
    with pytest.raises(MessageError) as caught:
        encode_host(ip, port)
    assert caught.value.field == field


@pytest.mark.parametrize("size", [0, 7, 9, 21])
def test_a_host_of_another_length_is_refused_with_its_size(size: int) -> None:
    with pytest.raises(MessageError, match=f"{size} bytes") as caught:
        decode_host(bytes(size))
    assert (caught.value.field, caught.value.size) == ("host", size)


@pytest.mark.parametrize("text", ["", "7F", "zz" * 16, "7F" * 17])
def test_what_is_no_message_id_is_refused(text: str) -> None:
    with pytest.raises(MessageError, match="32 or 56 hex digits"):
        parse_offset_message_id(text)
    with pytest.raises(MessageError, match="32 or 56 hex digits"):
        parse_unique_id(text)


def test_a_unique_id_says_who_made_it_and_when() -> None:
    before = time.time_ns() // 1_000_000
    text = create_unique_id()
    after = time.time_ns() // 1_000_000
    parts = parse_unique_id(text)
    assert len(text) == 32
    assert text == text.upper()
    assert parts.pid == os.getpid() & 0xFFFF
    assert before <= parts.created_ms <= after


def test_an_id_of_late_last_month_is_dated_there() -> None:
    """The id counts from the first of the month; read on the first, a large count can only be last month's."""
    first = datetime(2026, 3, 1).timestamp()
    made = datetime(2026, 2, 27, 12).timestamp()
    since = int((made - datetime(2026, 2, 1).timestamp()) * 1000)
    text = f"7F0000010001AABBCCDD{since:08X}0001"
    assert parse_unique_id(text, now_ms=int(first * 1000) + 5).created_ms == int(made * 1000)


def test_unique_ids_do_not_repeat_in_a_process() -> None:
    ids = [create_unique_id() for _ in range(10_000)] + create_unique_ids(10_000)
    assert len(set(ids)) == 20_000
    assert {len(text) for text in ids} == {32}


@pytest.mark.parametrize("count", [0, 1, 4_097, 65_536, 70_000, 200_000])
def test_any_number_of_unique_ids_at_once_differ(count: int) -> None:
    ids = create_unique_ids(count)
    assert len(ids) == len(set(ids)) == count


def test_a_forked_child_makes_other_ids() -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, create_unique_id()[:20].encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 100).decode() != create_unique_id()[:20]
    os.close(reader)
    os.close(writer)


# --------------------------------------------------------------------------------------------------------- properties


@pytest.mark.parametrize(
    ("data", "properties"),
    [
        (b"", {}),
        (b"a\x01b\x02", {"a": "b"}),
        (b"a\x01b\x02c\x01d", {"a": "b", "c": "d"}),  # no last separator: 4.9.1 to 5.1.4
        (b"a\x01b\x02a\x01c\x02", {"a": "c"}),  # the last of two wins
        (b"a\x01\x02\x01b\x02ab\x02c\x01d\x02", {"c": "d"}),  # no value, no name, neither
        (b"a\x01b\x01c\x02", {"a": "b\x01c"}),  # the first 0x01 divides
        (b"\x02\x02a\x01b\x02\x02", {"a": "b"}),
        ("k\x01\u4e2d\u6587\x02".encode(), {"k": "\u4e2d\u6587"}),
        (b"k\x01\xff\xfe\x02", {"k": "\ufffd\ufffd"}),  # bad UTF-8 does not hide a record
    ],
)
def test_property_strings_decode_as_javas_reader_does(data: bytes, properties: dict[str, str]) -> None:
    assert decode_properties(data) == properties


@pytest.mark.parametrize(
    ("text", "waits"),
    [
        ("", True),
        ("WAIT\x01true\x02", True),
        ("WAIT\x01false\x02", False),
        ("WAIT\x01false", False),
        ("TAGS\x01a\x02WAIT\x01false\x02KEYS\x01k\x02", False),
        ("NOWAIT\x01false\x02", True),
        ("XWAIT\x01false\x02WAIT\x01true\x02", True),
        ("WAIT\x01falsely\x02", True),
        ("WAIT\x01False\x02", True),
        ("WAIT\x01false\x02WAIT\x01true\x02", True),
        ("WAIT\x01true\x02WAIT\x01false\x02", False),
        ("WAIT\x01false\x02WAIT\x01\x02", False),
        ("note\x01WAIT\x01false\x02", True),
    ],
)
def test_a_sender_does_not_wait_for_the_disk_only_when_the_last_wait_is_exactly_false(text: str, waits: bool) -> None:
    assert text_wants_durable(text) is waits
    assert wants_durable(decode_properties(text)) is waits


@given(
    st.lists(
        st.sampled_from(
            ["WAIT", "NOWAIT", "WAITS", "W", "note", "false", "falsely", "true", "", "\x01", "\x01", "\x02", "\x02"]
        )
    ).map("".join)
)
def test_a_property_string_says_of_waiting_what_its_map_says(text: str) -> None:
    assert text_wants_durable(text) is (decode_properties(text).get("WAIT") != "false")


def test_properties_encode_in_order_with_a_last_separator() -> None:
    assert encode_properties({"b": "2", "a": "1"}) == b"b\x012\x02a\x011\x02"


@pytest.mark.parametrize("properties", [{"a\x01": "b"}, {"a": "b\x02"}, {"a\x02b": "c"}, {"a": "\x01"}])
def test_a_separator_in_a_property_is_refused_by_name(properties: dict[str, str]) -> None:
    with pytest.raises(MessageError, match="separator") as caught:
        encode_properties(properties)
    assert caught.value.field.startswith("properties[a")


def test_no_properties_are_no_bytes_and_a_value_that_is_no_text_is_refused_by_name() -> None:
    assert encode_properties({}) == b""
    with pytest.raises(MessageError, match="'retries' is 3") as caught:
        encode_properties({"a": "1", "retries": 3})  # type: ignore[dict-item]
    assert caught.value.field == "properties[retries]"


@pytest.mark.parametrize("properties", [{"a": "half \ud83d"}, {"half \udc00": "v"}])
def test_properties_that_utf8_has_not_are_refused(properties: dict[str, str]) -> None:
    with pytest.raises(MessageError, match="half of a character") as caught:
        encode_properties(properties)
    assert caught.value.field == "properties"


def test_properties_over_the_limit_are_refused_with_the_size() -> None:
    assert len(encode_properties({"k": "v" * 32_764})) == 32_767
    with pytest.raises(MessageError, match="32768 bytes, the limit is 32767"):
        encode_properties({"k": "v" * 32_765})


# -------------------------------------------------------------------------------------------------------------- names


@pytest.mark.parametrize("topic", ["T", "a-b_C|%9", "x" * 127, "%RETRY%" + "g" * 248, dlq_topic("g" * 120)])
def test_legal_topics_pass(topic: str) -> None:
    assert check_topic(topic) is None


@pytest.mark.parametrize(
    ("topic", "text"),
    [
        ("", "blank"),
        ("  ", "blank"),
        ("a b", "' '"),
        ("a/b.c", "'./'"),
        ("\u4e2d", "forbidden"),
        ("x\n", "forbidden"),
        ("x" * 128, "128 characters, the limit is 127"),
        ("%RETRY%" + "g" * 249, "256 characters, the limit is 255"),
    ],
)
def test_illegal_topics_are_refused_with_the_reason(topic: str, text: str) -> None:
    with pytest.raises(MessageError, match=text):
        check_topic(topic)


@pytest.mark.parametrize("name", [None, 5, b"T"])
def test_a_name_that_is_no_text_is_refused_by_field(name: str) -> None:
    for field, check in (("topic", check_topic), ("group", check_group)):
        with pytest.raises(MessageError, match=f"the {field} name is .*, of type ") as caught:
            check(name)
        assert caught.value.field == field


def test_groups_have_their_own_limit() -> None:
    check_group("g" * 255)
    with pytest.raises(MessageError, match="256 characters, the limit is 255"):
        check_group("g" * 256)


def test_system_topics_are_known_by_name_and_prefix() -> None:
    assert is_system_topic("SCHEDULE_TOPIC_XXXX")
    assert is_system_topic("rmq_sys_anything")
    assert not is_system_topic("Orders")
    assert not is_system_topic(retry_topic("g"))


# ----------------------------------------------------------------------------------------------------------- messages


def test_a_message_keeps_its_attributes_as_properties() -> None:
    message = Message("Orders", b"x", tags="paid", keys=["o-17", "c-4"], properties={"region": "eu"}, delay_level=3)
    assert message.properties == {
        "region": "eu",
        Property.TAGS: "paid",
        Property.KEYS: "o-17 c-4",
        Property.WAIT: "true",
        Property.DELAY: "3",
    }
    assert (message.tags, message.keys, message.delay_level) == ("paid", ["o-17", "c-4"], 3)


@pytest.mark.parametrize(
    ("arguments", "name", "value"),
    [
        ({"delay": 1.5}, Property.TIMER_DELAY_MS, "1500"),
        ({"delay": timedelta(minutes=1)}, Property.TIMER_DELAY_MS, "60000"),
        ({"deliver_at": 1_700_000_000_000}, Property.TIMER_DELIVER_MS, "1700000000000"),
        ({"deliver_at": datetime(2023, 11, 14, 22, 13, 20, tzinfo=UTC)}, Property.TIMER_DELIVER_MS, "1700000000000"),
        ({"wait_store_ok": False}, Property.WAIT, "false"),
        ({"sharding_key": "s"}, Property.SHARDING_KEY, "s"),
    ],
)
def test_times_and_switches_become_properties(arguments: dict[str, object], name: str, value: str) -> None:
    assert Message("T", b"x", **arguments).properties[name] == value  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"properties": {"UNIQ_KEY": "x"}}, "properties[UNIQ_KEY]"),
        ({"properties": {"a": ""}}, "properties[a]"),
        ({"properties": {" ": "v"}}, "properties[ ]"),
        ({"keys": ["a b"]}, "keys"),
        ({"delay_level": 1, "delay": 3}, "delay"),
        ({"delay_level": -1}, "delay_level"),
        ({"delay": -1}, "delay"),
        ({"deliver_at": datetime(2023, 1, 1)}, "deliver_at"),
        ({"deliver_at": "soon"}, "deliver_at"),
        ({"deliver_at": float("nan")}, "deliver_at"),
        ({"delay": float("nan")}, "delay"),
        ({"delay": float("inf")}, "delay"),
        ({"delay": 1e308}, "delay"),
        ({"delay": "5"}, "delay"),
        ({"delay_level": "3"}, "delay_level"),
        ({"keys": [5]}, "keys"),
        ({"keys": 5}, "keys"),
        ({"properties": {5: "a"}}, "properties"),
        ({"properties": {"a": 5}}, "properties[a]"),
        ({"properties": 5}, "properties"),
    ],
)
def test_a_message_that_breaks_a_rule_is_refused_by_field(arguments: dict[str, object], field: str) -> None:
    with pytest.raises(MessageError) as caught:
        Message("T", b"x", **arguments)  # type: ignore[arg-type]
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (Message("T", b""), "body is empty"),
        (Message("T", bytes(4_194_305)), "4194305 bytes, the limit is 4194304"),
        (Message("a b", b"x"), "forbidden"),
        (Message(5, b"x"), "topic name is 5, of type int"),  # type: ignore[arg-type]
        (Message("T", "text"), "str, not bytes"),  # type: ignore[arg-type]
    ],
)
def test_what_no_client_sends_is_refused_before_it_is_sent(message: Message, text: str) -> None:
    with pytest.raises(MessageError, match=text):
        check_message(message)


def test_queues_sort_by_topic_broker_and_number() -> None:
    queues = [
        MessageQueue("T", "b", 2),
        MessageQueue("T", "a", 10),
        MessageQueue("S", "z", 0),
        MessageQueue("T", "b", 1),
    ]
    assert sorted(queues) == [queues[2], queues[1], queues[3], queues[0]]


# -------------------------------------------------------------------------------------------------------- compression


@pytest.mark.parametrize("kind", list(Compression))
def test_each_compression_comes_back(kind: Compression) -> None:
    body = b"contrail " * 1000
    packed = compress(body, kind)
    assert len(packed) < len(body) // 5
    assert decompress(packed, SysFlag.COMPRESSED | kind) == body
    assert decompress(packed, kind) == packed  # the kind says nothing while the flag is clear


@pytest.mark.parametrize("kind", list(Compression))
def test_a_compressed_body_that_is_cut_or_garbage_is_an_error_of_ours(kind: Compression) -> None:
    packed = compress(b"contrail " * 1000, kind)
    for data in (packed[: len(packed) // 2], b"garbage", b""):
        with pytest.raises(MessageError) as caught:
            decompress(data, SysFlag.COMPRESSED | kind)
        assert caught.value.field == "body"


def test_an_unknown_compression_is_named() -> None:
    with pytest.raises(MessageError, match="0x400"):
        decompress(b"x", SysFlag.COMPRESSED | 0x400)


@pytest.mark.parametrize("kind", list(Compression))
def test_a_compression_bomb_is_refused_before_it_fills_memory(kind: Compression) -> None:
    """Half a gigabyte of zeros packs into a few kilobytes; the peak stays near the limit, far below the whole."""
    code = (
        "import resource, sys\n"
        "from contrailmq.message import Compression, MessageError, compress, decompress\n"
        f"kind = Compression({int(kind)})\n"
        "packed = open(sys.argv[1], 'rb').read()\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n"
        "    decompress(packed, 1 | kind)\n"
        "except MessageError as error:\n"
        "    assert error.field == 'body', error\n"
        "else:\n"
        "    sys.exit('it was unfolded')\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)\n"
    )
    with tempfile.NamedTemporaryFile() as file:
        file.write(compress(bytes(600 * 1024 * 1024), kind, 1))
        file.flush()
        done = subprocess.run(
            [sys.executable, "-c", code, file.name],
            capture_output=True,
            text=True,
            env=os.environ | {"PYTHONPATH": str(Path(contrailmq.__file__).parents[1])},
        )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2 * 256 + 100  # MiB: the pieces and their join
