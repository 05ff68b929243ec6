"""Pulled bytes: the client's fast decoder agrees with the store's careful one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrailmq.client.errors import ClientError
from contrailmq.client.records import decode_messages
from contrailmq.message import SysFlag, encode_host, encode_properties
from contrailmq.store.record import decode_record, encode_record

from .messages import record

FIELDS = (
    "topic", "body", "properties", "queue_id", "queue_offset", "physical_offset", "size_bytes", "flag", "sys_flag",
    "born_time_ms", "born_host", "store_time_ms", "store_host", "body_crc", "reconsume_times",
    "prepared_transaction_offset", "message_id", "offset_message_id",
)  # fmt: skip


@given(
    body=st.binary(max_size=300),
    topic=st.text("abcXYZ_%", min_size=1, max_size=200),
    properties=st.dictionaries(st.text("abc", min_size=1), st.text("xyzé", min_size=1), max_size=4),
    is_v6=st.booleans(),
    numbers=st.tuples(*[st.integers(0, 2**31 - 1)] * 4),
)
def test_both_decoders_agree_on_every_field(
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
    mine, theirs = decode_messages(bytes(data))[0], decode_record(data)
    for field in FIELDS:
        assert getattr(mine, field) == getattr(theirs, field), field
    assert bool(mine.sys_flag & SysFlag.BORN_HOST_V6) is is_v6


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
    try:
        decode_messages(data)
    except ClientError:
        return
