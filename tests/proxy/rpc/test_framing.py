"""Messages, time limits and statuses as gRPC writes them."""

from __future__ import annotations

import gzip
import random
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contrailmq.proxy.rpc.framing import (
    UNPACKED_BYTES_MAX,
    CallError,
    MessageReader,
    Status,
    error_block,
    metadata_of,
    packed,
    seconds_of,
    trailers,
    unpacked,
)
from contrailmq.wire.http2.hpack import Field, HeaderDecoder
from how_many import examples


@settings(max_examples=examples(500), deadline=None)
@given(messages=st.lists(st.binary(max_size=300), max_size=8), seed=st.integers(0, 1 << 20))
def test_messages_come_out_as_they_went_in_however_they_are_cut(messages: list[bytes], seed: int) -> None:
    random_, data = random.Random(seed), b"".join(map(packed, messages))
    reader, found, at = MessageReader(1000), [], 0
    while at < len(data):
        size = random_.choice((1, 3, 5, 50, 1000))
        found += [
            part.message for part in reader.feed(b"zz" + data[at : at + size] + b"z", 2, 2 + len(data[at : at + size]))
        ]
        at += size
    assert found == messages
    assert (reader.held_bytes, reader.wanted_bytes) == (0, 0)


def test_a_message_beyond_the_limit_is_refused_by_its_prefix() -> None:
    reader = MessageReader(1000)
    assert reader.feed(packed(b"x" * 1000), 0, 1005)[0].message == b"x" * 1000
    with pytest.raises(CallError, match="1001 bytes, the limit is 1000") as refused:
        reader.feed(struct.pack(">BI", 0, 1001), 0, 5)
    assert refused.value.status is Status.RESOURCE_EXHAUSTED


def test_a_first_byte_that_gRPC_does_not_have_is_refused() -> None:
    with pytest.raises(CallError, match="begins with 2"):
        MessageReader(1000).feed(b"\x02\0\0\0\0", 0, 5)


def test_gzip_is_unpacked_and_a_bomb_is_not() -> None:
    assert unpacked(gzip.compress(b"abc" * 100)) == b"abc" * 100
    assert len(unpacked(gzip.compress(bytes(UNPACKED_BYTES_MAX)))) == UNPACKED_BYTES_MAX
    with pytest.raises(CallError, match=f"larger than {UNPACKED_BYTES_MAX}") as refused:
        unpacked(gzip.compress(bytes(UNPACKED_BYTES_MAX + 1)))
    assert refused.value.status is Status.RESOURCE_EXHAUSTED
    for data in (b"no gzip", gzip.compress(b"abc" * 100)[:-9], b""):
        with pytest.raises(CallError) as refused:
            unpacked(data)
        assert refused.value.status is Status.INTERNAL


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1H", 3600), ("2M", 120), ("3S", 3), ("250m", 0.25), ("500000u", 0.5), ("1000n", 1e-6), ("99999999S", 99999999)],
)
def test_time_limits(text: str, seconds: float) -> None:
    assert seconds_of(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "S", "5", "5s", "-1S", "1.5S", "999999999S", "٣S"])
def test_time_limits_that_are_none(text: str) -> None:
    with pytest.raises(CallError, match="grpc-timeout"):
        seconds_of(text)


def test_texts_of_a_status_are_percent_encoded() -> None:
    fields = HeaderDecoder().decode(trailers(Status.INTERNAL, "5% ä\n~"))
    assert [(field.name, field.value) for field in fields] == [
        ("grpc-status", "13"),
        ("grpc-message", "5%25 %C3%A4%0A~"),
    ]
    long = HeaderDecoder().decode(error_block(200, Status.UNIMPLEMENTED, "x" * 5000))
    assert long[-1].value == "x" * 5000
    assert ("grpc-accept-encoding", "identity,gzip") in [(field.name, field.value) for field in long]


def test_metadata_has_what_the_client_said_and_not_the_protocol_s() -> None:
    said = [(":path", "/a"), ("te", "trailers"), ("grpc-timeout", "1S"), ("content-type", "x"), ("x-mq", "y")]
    fields = [Field(*pair) for pair in [*said, ("a-bin", "AAEC"), ("b-bin", "AAE="), ("c-bin", "AA,AAE")]]
    assert metadata_of(fields) == [
        ("x-mq", "y"), ("a-bin", b"\0\1\2"), ("b-bin", b"\0\1"), ("c-bin", b"\0"), ("c-bin", b"\0\1"),
    ]  # fmt: skip
    with pytest.raises(CallError, match="no base64"):
        metadata_of([Field("a-bin", "*")])
