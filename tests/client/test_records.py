"""Pulled bytes become the messages that were stored."""

from __future__ import annotations

import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrailmq.client.consuming.pulling import read_answer
from contrailmq.client.consuming.subscription import make_subscription
from contrailmq.client.errors import ClientError
from contrailmq.client.records import decode_messages
from contrailmq.message import SysFlag, encode_host, encode_properties
from contrailmq.message.codec import encode_record
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.frame import FrameParser, encode_request, encode_response

from .messages import record


@given(
    body=st.binary(max_size=300),
    topic=st.text("abcXYZ_%", min_size=1, max_size=200),
    properties=st.dictionaries(st.text("abc", min_size=1), st.text("xyzé", min_size=1), max_size=4),
    is_v6=st.booleans(),
    numbers=st.tuples(*[st.integers(0, 2**31 - 1)] * 4),
)
def test_every_field_of_a_record_comes_back(
    body: bytes, topic: str, properties: dict[str, str], is_v6: bool, numbers: tuple[int, int, int, int]
) -> None:
    host = encode_host("::1" if is_v6 else "10.0.0.1", 10911)
    data = encode_record(
        topic,
        body,
        encode_properties(properties),
        queue_id=numbers[0],
        queue_offset=numbers[1],
        physical_offset=numbers[2],
        born_host=host,
        store_host=encode_host("10.0.0.2", 1),
        born_time_ms=5,
        store_time_ms=6,
        reconsume_times=numbers[3],
    )
    (message,) = decode_messages(bytes(data))
    assert (message.topic, message.body, message.properties) == (topic, body, properties)
    assert (message.queue_id, message.queue_offset, message.physical_offset, message.reconsume_times) == numbers
    assert (message.born_time_ms, message.store_time_ms) == (5, 6)
    assert message.born_host == ("::1" if is_v6 else "10.0.0.1", 10911)
    assert message.store_host == ("10.0.0.2", 1)
    assert (message.size_bytes, message.body_crc) == (len(data), zlib.crc32(body) & 0x7FFFFFFF if body else 0)
    assert bool(message.sys_flag & SysFlag.BORN_HOST_V6) is is_v6


def test_an_answer_of_many_records_is_cut_at_their_sizes() -> None:
    data = b"".join(record(offset, b"x" * offset) for offset in range(5))
    messages = decode_messages(data, broker_name="b", min_offset=1, max_offset=9)
    assert [m.queue_offset for m in messages] == [0, 1, 2, 3, 4]
    assert [len(m.body) for m in messages] == [0, 1, 2, 3, 4]
    assert {(m.broker_name, m.min_offset, m.max_offset) for m in messages} == {("b", 1, 9)}


@pytest.mark.parametrize("cut", [1, 50, 87, 90])
def test_an_answer_that_is_cut_is_an_error_with_the_place(cut: int) -> None:
    data = record(0) + record(1)
    with pytest.raises(ClientError, match="no record at byte"):
        decode_messages(data[: len(record(0)) + cut])


@given(st.binary(max_size=200))
def test_any_bytes_are_decoded_or_refused(data: bytes) -> None:
    """What is decoded covers the answer to its last byte: nothing is skipped, and nothing read twice."""
    try:
        messages = decode_messages(data)
    except ClientError:
        return
    assert sum(message.size_bytes for message in messages) == len(data)


def test_of_tags_with_one_hash_only_the_wanted_one_is_kept() -> None:
    """`Aa` and `BB` hash alike, and brokers compare hashes: the client must look."""
    request = FrameParser().feed(encode_request(RequestCode.PULL_MESSAGE, {}, opaque=1))[0]
    body = record(0, b"Aa", properties={"TAGS": "Aa"}) + record(1, b"BB", properties={"TAGS": "BB"})
    ext = {"nextBeginOffset": "2", "minOffset": "0", "maxOffset": "2", "suggestWhichBrokerId": "0"}
    answer = FrameParser().feed(encode_response(request, 0, ext, body))[0]
    pulled = read_answer(answer, "broker-a", make_subscription("Orders", "Aa", version=1))
    assert [message.body for message in pulled.messages] == [b"Aa"]
    assert pulled.next_offset == 2
