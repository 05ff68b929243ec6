"""Random bytes, and good frames with random damage: a command or RemoteProtocolError, never anything else.

`make test` feeds about 3 * 10^4 of them, `make test-long` ten times that.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import struct

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contrailmq.wire.bodies import HeartbeatData, RegisterBrokerBody, TopicRouteData
from contrailmq.wire.errors import RemoteProtocolError
from contrailmq.wire.fastjson import decode_body, loads_fastjson
from contrailmq.wire.frame import FrameParser, encode_request
from contrailmq.wire.header import BINARY, JSON, Command
from contrailmq.wire.requests import REQUEST_HEADERS

LONG = 10 if os.environ.get("CONTRAILMQ_LONG") else 1
ROUNDS = 300  # by about 100 request codes: 3 * 10^4 damaged frames
FUZZ = settings(
    max_examples=150 * LONG, deadline=None, database=None, suppress_health_check=list(HealthCheck), derandomize=True
)


def use(command: Command) -> None:
    """Touch everything lazy; only RemoteProtocolError may come of it."""
    assert isinstance(command.code, int)
    with contextlib.suppress(RemoteProtocolError):
        assert all(isinstance(value, str) for value in command.ext.values())
    kind = REQUEST_HEADERS.get(command.code)
    if kind is not None:
        with contextlib.suppress(RemoteProtocolError):
            command.header(kind)


def feed(data: bytes, cuts: list[int]) -> None:
    parser = FrameParser()
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    try:
        for start, end in itertools.pairwise(edges):
            for command in parser.feed(data[start:end]):
                use(command)
    except RemoteProtocolError:
        assert parser.error is not None
    assert parser.buffered_bytes <= len(data)


@FUZZ
@given(st.binary(max_size=400), st.lists(st.integers(0, 400), max_size=5))
def test_random_bytes_never_raise_anything_else(data: bytes, cuts: list[int]) -> None:
    feed(data, cuts)


@FUZZ
@given(st.binary(max_size=300), st.binary(max_size=50), st.sampled_from([0, 1, 2, 200]))
def test_random_headers_in_a_true_frame_never_raise_anything_else(header: bytes, body: bytes, kind: int) -> None:
    feed(struct.pack(">iI", 4 + len(header) + len(body), kind << 24 | len(header)) + header + body, [])


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
members = st.sampled_from(
    ["code", "opaque", "flag", "language", "version", "remark", "extFields", "body", "_ext", "raw_header"]
)


@FUZZ
@given(st.dictionaries(members, json_values, max_size=8), st.sampled_from(sorted(REQUEST_HEADERS)))
def test_json_of_any_shape_never_raises_anything_else(header: dict[str, object], code: int) -> None:
    import json

    header.setdefault("code", code)
    text = json.dumps(header).encode()
    feed(struct.pack(">iI", 4 + len(text), len(text)) + text, [])


@FUZZ
@given(
    st.sampled_from(sorted(code for code in REQUEST_HEADERS if code < 0x7FFF)),
    st.dictionaries(st.text(max_size=10), st.text(min_size=1, max_size=20), max_size=6),
    st.binary(max_size=100),
    st.integers(-(2**31), 2**31 - 1),
    st.sampled_from([JSON, BINARY]),
)
def test_what_we_write_we_read(code: int, ext: dict[str, str], body: bytes, opaque: int, kind: int) -> None:
    frame = encode_request(code, ext, body, opaque=opaque, serialize_type=kind)
    [command] = FrameParser().feed(frame)
    assert (command.code, command.ext, command.body, command.opaque) == (code, ext, body, opaque)


def test_good_frames_with_random_damage_never_raise_anything_else() -> None:
    """ROUNDS rounds over every request code: bytes flipped, cut, doubled; also fed in two pieces."""
    generator = random.Random(20_091_225)
    frames = [
        encode_request(code, dict.fromkeys(kind.__struct_encode_fields__, "1"), b"body", opaque=code)
        for code, kind in REQUEST_HEADERS.items()
    ]
    for _round in range(ROUNDS * LONG):
        for frame in frames:
            damaged = bytearray(frame)
            for _ in range(generator.randint(1, 4)):
                position = generator.randrange(len(damaged))
                match generator.randrange(3):
                    case 0:
                        damaged[position] = generator.randrange(256)
                    case 1:
                        del damaged[position : position + generator.randint(1, 8)]
                    case _:
                        damaged[position:position] = damaged[position : position + generator.randint(1, 8)]
                if not damaged:
                    break
            feed(bytes(damaged) + frame, [generator.randrange(1, 400)])


fastjson_like = st.lists(
    st.sampled_from(
        [b"{", b"}", b"[", b"]", b":", b",", b'"a"', b"'b'", b"0", b"name", b"true", b"1.5", b'"\\"', b"\\", b" ", b'"']
    ),
    max_size=40,
).map(b"".join)


@FUZZ
@given(fastjson_like | st.binary(max_size=100))
def test_random_bodies_never_raise_anything_else(data: bytes) -> None:
    for kind in (TopicRouteData, HeartbeatData, RegisterBrokerBody):
        with contextlib.suppress(RemoteProtocolError):
            decode_body(data, kind)
    with contextlib.suppress(RemoteProtocolError):
        loads_fastjson(data)
