"""Framing: lies about lengths, chunking, limits, reply templates."""

from __future__ import annotations

import struct

import pytest

from contrailmq.wire.errors import LocalProtocolError, RemoteProtocolError
from contrailmq.wire.frame import (
    ANSWERED_HEADER_BYTES_MAX,
    FRAME_BYTES_MAX,
    LARGE_BYTES,
    FrameParser,
    ReplyTemplate,
    encode_request,
    encode_response,
    escape,
)
from contrailmq.wire.header import BINARY, JSON, Command

FRAME = encode_request(105, {"topic": "TopicTest"}, b"body", opaque=7)


def words(length: int, word: int) -> bytes:
    return struct.pack(">iI", length, word)


BAD_FRAMES = {
    "length zero": words(0, 0),
    "length below the header word": words(3, 0),
    "length negative": words(-1, 0),
    "length most negative": words(-(2**31), 0),
    "length above the limit": words(FRAME_BYTES_MAX - 3, 10),
    "length huge": words(2**31 - 1, 0),
    "header longer than the frame": words(10, 7) + b"x" * 6,
    "header length all ones": words(100, 0xFFFFFF),
    "serialize type 2": words(6, 2 << 24 | 2) + b"{}",
    "serialize type 255": words(6, 255 << 24 | 2) + b"{}",
    "header is not JSON": words(7, 3) + b"abc",
    "header is empty": words(4, 0),
    "header is cut JSON": words(12, 8) + b'{"code":',
    "TLS on a plain port": bytes.fromhex("160301020001000001fc0303"),
    "HTTP": b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    "HAProxy": b"PROXY TCP4 10.0.0.1 10.0.0.2 1 2\r\n",
}


def drip(parser: FrameParser, data: bytes) -> None:
    for position in range(len(data)):
        assert parser.feed(data[position : position + 1]) == []


@pytest.mark.parametrize("data", BAD_FRAMES.values(), ids=BAD_FRAMES.keys())
def test_a_frame_that_lies_is_refused_whole_or_in_drops(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        FrameParser().feed(data)
    parser = FrameParser()
    with pytest.raises(RemoteProtocolError):
        drip(parser, data)
    with pytest.raises(RemoteProtocolError):
        parser.feed(FRAME)


@pytest.mark.parametrize("data", BAD_FRAMES.values(), ids=BAD_FRAMES.keys())
def test_commands_before_a_violation_are_handed_out_first(data: bytes) -> None:
    parser = FrameParser()
    commands = parser.feed(FRAME + FRAME + data)
    assert [command.opaque for command in commands] == [7, 7]
    assert parser.error is not None
    with pytest.raises(RemoteProtocolError):
        parser.feed(b"")


def test_a_lie_about_the_length_is_told_after_four_bytes() -> None:
    with pytest.raises(RemoteProtocolError, match="above the limit"):
        FrameParser().feed(b"\x7f\xff\xff\xff")


LARGE_STREAM = [
    encode_request(105, {"topic": "small"}, b"x", opaque=1),
    encode_request(103, {"brokerName": "first"}, bytes(range(256)) * 5000, opaque=2),
    encode_request(103, {"brokerName": "second"}, b"y" * (LARGE_BYTES + 1), opaque=3, serialize_type=BINARY),
    encode_request(105, {"topic": "between"}, b"", opaque=4),
    encode_request(103, {"brokerName": "third", "long": "z" * 100_000}, b"z" * LARGE_BYTES, opaque=5),
    encode_request(105, {"topic": "last"}, b"end", opaque=6),
]


@pytest.mark.parametrize("commands_max", [1, 512])
@pytest.mark.parametrize("step", [999, 65_536, 262_144, LARGE_BYTES, LARGE_BYTES + 5, 3_000_000])
def test_large_frames_in_any_chunking_give_the_same_commands(step: int, commands_max: int) -> None:
    stream, parser = b"".join(LARGE_STREAM), FrameParser(commands_max=commands_max)
    got: list[Command] = []
    for start in range(0, len(stream), step):
        got += parser.feed(stream[start : start + step])
        while parser.has_more:
            got += parser.feed(b"")
    [whole] = zip(*(FrameParser().feed(frame) for frame in LARGE_STREAM), strict=True)
    assert [command.opaque for command in got] == [1, 2, 3, 4, 5, 6]
    for command, expected in zip(got, whole, strict=True):
        assert (command.code, command.ext, command.body) == (expected.code, expected.ext, expected.body)
        assert command.serialize_type == expected.serialize_type
        assert type(command.body) is bytes
    assert parser.buffered_bytes == 0


@pytest.mark.parametrize("step", [1, 7, 999, 65_536, LARGE_BYTES + 5])
@pytest.mark.parametrize("bytes_min", [0, 50, 65_536, LARGE_BYTES])
def test_who_takes_frames_that_have_begun_gets_the_same_commands(step: int, bytes_min: int) -> None:
    frames = [encode_request(105, {"topic": "T"}, b"x" * (97 * number), opaque=number) for number in range(8)]
    frames = frames if step < 999 else [*frames, *LARGE_STREAM]
    stream, parser, position = b"".join(frames), FrameParser(), 0
    got: list[Command] = []
    taken = 0
    while position < len(stream):
        got += parser.feed(stream[position : position + step])
        position += step
        begun = parser.take_begun(bytes_min)
        if begun is not None:
            command, came, missing = begun
            assert missing > 0
            command.body = came + stream[position : position + missing]
            got.append(command)
            position += missing
            taken += 1
    expected = [command for frame in frames for command in FrameParser().feed(frame)]
    assert [(c.code, c.opaque, c.ext, c.body) for c in got] == [(c.code, c.opaque, c.ext, c.body) for c in expected]
    assert parser.buffered_bytes == 0
    assert taken == 0 or max(map(len, frames)) >= bytes_min
    assert taken > 0 or bytes_min > 0 or step > LARGE_BYTES


def test_a_frame_that_has_begun_with_a_broken_header_is_refused() -> None:
    header = b'{"code":103,'
    parser = FrameParser()
    assert parser.feed(words(4 + len(header) + 100, len(header)) + header + b"x") == []
    with pytest.raises(RemoteProtocolError, match="not a JSON header"):
        parser.take_begun(0)
    with pytest.raises(RemoteProtocolError, match="not a JSON header"):
        parser.feed(b"x")


def test_a_large_frame_with_a_broken_header_is_refused_in_chunks_too() -> None:
    header = b'{"code":103,'
    frame = words(4 + len(header) + 2 * LARGE_BYTES, len(header)) + header + bytes(2 * LARGE_BYTES)
    parser = FrameParser()
    assert parser.feed(FRAME + frame[:-1])[0].opaque == 7
    with pytest.raises(RemoteProtocolError, match="not a JSON header"):
        parser.feed(frame[-1:])
    with pytest.raises(RemoteProtocolError):
        parser.feed(FRAME)


@pytest.mark.parametrize("step", [1, 2, 3, 7, 8, 9, 64, 1000])
def test_many_frames_in_any_chunking_give_the_same_commands(step: int) -> None:
    frames = [encode_request(code, {"topic": f"T{code}"}, b"x" * code, opaque=code) for code in range(60)]
    stream = b"".join(frames)
    parser = FrameParser()
    commands: list[Command] = []
    for position in range(0, len(stream), step):
        commands += parser.feed(stream[position : position + step])
    assert [(c.code, c.ext["topic"], len(c.body)) for c in commands] == [(n, f"T{n}", n) for n in range(60)]
    assert parser.buffered_bytes == 0


def test_the_largest_frame_passes_and_one_byte_more_does_not() -> None:
    empty = len(encode_request(1, {}, b"", opaque=1))
    largest = encode_request(1, {}, bytes(FRAME_BYTES_MAX - empty), opaque=1)
    assert len(largest) == FRAME_BYTES_MAX
    [command] = FrameParser().feed(largest)
    assert len(command.body) == FRAME_BYTES_MAX - empty
    with pytest.raises(LocalProtocolError, match="exceeds the limit"):
        encode_request(1, {}, bytes(FRAME_BYTES_MAX - empty + 1), opaque=1)
    longer = struct.pack(">i", len(largest) - 3) + largest[4:]
    with pytest.raises(RemoteProtocolError):
        FrameParser().feed(longer)


@pytest.mark.parametrize("serialize_type", [JSON, BINARY])
@pytest.mark.parametrize("body", [b"body", bytes(2 * LARGE_BYTES)], ids=["small body", "large body"])
def test_a_header_above_the_parsers_limit_gives_what_an_answer_needs_and_the_stream_goes_on(
    serialize_type: int, body: bytes
) -> None:
    frame = encode_request(10, {"a": "x" * 2000}, body, opaque=7, is_oneway=True, serialize_type=serialize_type)
    assert len(FrameParser().feed(frame)) == 1
    for feed in (whole, in_halves):
        parser = FrameParser(header_bytes_max=1024)
        [next_one] = feed(parser, frame + FRAME)
        assert (next_one.opaque, next_one.body) == (FrameParser().feed(FRAME)[0].opaque, b"body")
        [(command, size_bytes)] = parser.too_long
        assert (command.code, command.opaque, command.flag, command.body) == (10, 7, 2, b"")
        assert 2000 < size_bytes < 2200
        assert command.serialize_type == serialize_type


def whole(parser: FrameParser, data: bytes) -> list[Command]:
    return parser.feed(data)


def in_halves(parser: FrameParser, data: bytes) -> list[Command]:
    return parser.feed(data[: len(data) // 2]) + parser.feed(data[len(data) // 2 :])


@pytest.mark.parametrize("header", [b"{" * 2000, b"[1]" + b" " * 2000, b"\xff" * 2000])
def test_a_header_above_the_parsers_limit_that_is_none_breaks_the_stream(header: bytes) -> None:
    parser = FrameParser(header_bytes_max=1024)
    with pytest.raises(RemoteProtocolError, match="header length 200"):
        parser.feed(struct.pack(">ii", 4 + len(header), len(header)) + header)
    with pytest.raises(RemoteProtocolError, match="serialize type 2 is unknown"):
        FrameParser(header_bytes_max=1024).feed(struct.pack(">iI", 4 + 2000, 2 << 24 | 2000) + b"x" * 2000)


def test_a_header_that_is_too_long_to_be_looked_at_breaks_the_stream_as_soon_as_it_says_so() -> None:
    size_bytes = ANSWERED_HEADER_BYTES_MAX + 1
    assert FrameParser(header_bytes_max=1024).feed(struct.pack(">ii", 3 + size_bytes, size_bytes - 1)) == []
    with pytest.raises(RemoteProtocolError, match=f"header length {size_bytes} is above the limit of 1024"):
        FrameParser(header_bytes_max=1024).feed(struct.pack(">ii", 4 + size_bytes, size_bytes))


def test_an_unfinished_frame_is_all_that_is_kept() -> None:
    parser = FrameParser()
    parser.feed(FRAME * 100 + FRAME[:-1])
    assert parser.buffered_bytes == len(FRAME) - 1
    [command] = parser.feed(FRAME[-1:])
    assert command.body == b"body"
    assert parser.buffered_bytes == 0


def test_a_response_answers_in_the_serialize_type_of_its_request() -> None:
    for serialize_type in (JSON, BINARY):
        [request] = FrameParser().feed(encode_request(105, {"topic": "T"}, opaque=-3, serialize_type=serialize_type))
        [answer] = FrameParser().feed(encode_response(request, 17, {"a": "b"}, b"body", "no such topic"))
        assert (answer.serialize_type, answer.opaque, answer.code) == (serialize_type, -3, 17)
        assert (answer.is_response, answer.is_oneway) == (True, False)
        assert (answer.ext, answer.body, answer.remark) == ({"a": "b"}, b"body", "no such topic")
        assert (answer.language, answer.version) == ("PYTHON", 479)


def test_a_response_to_a_oneway_request_does_not_carry_the_oneway_bit() -> None:
    [request] = FrameParser().feed(encode_request(15, opaque=1, is_oneway=True))
    assert request.is_oneway
    [answer] = FrameParser().feed(encode_response(request))
    assert answer.flag == 1


@pytest.mark.parametrize("serialize_type", [JSON, BINARY])
def test_a_template_gives_what_the_plain_encoder_gives(serialize_type: int) -> None:
    template = ReplyTemplate(
        {"queueId": int, "transactionId": bytes, "queueOffset": int}, {"TRACE_ON": "true", "MSG_REGION": "100%"}
    )
    [request] = FrameParser().feed(encode_request(310, opaque=99, serialize_type=serialize_type))
    odd = 'id"\\\x01 ü'
    data = template.render(request, (3, escape(odd), 2**40), body_bytes=4) + b"tail"
    [answer] = FrameParser().feed(data)
    assert answer.ext == {
        "queueId": "3",
        "transactionId": odd,
        "queueOffset": str(2**40),
        "TRACE_ON": "true",
        "MSG_REGION": "100%",
    }
    assert (answer.opaque, answer.code, answer.body, answer.flag) == (99, 0, b"tail", 1)


def test_a_template_without_fields_is_the_smallest_success() -> None:
    [request] = FrameParser().feed(FRAME)
    assert ReplyTemplate({}).render(request, ()) == encode_response(request)
