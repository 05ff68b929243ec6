"""Random bytes, and good frames with random damage: a command or RemoteProtocolError, never anything else.

Hypothesis makes them all. `make test` feeds 10^5, `make test-long` 10^6, and 2 * 10^5 steered by coverage where atheris
is installed (`pip install contrailmq[fuzz]`; it has wheels for Linux only). The count is printed.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from contrailmq.wire.bodies import HeartbeatData, RegisterBrokerBody, TopicRouteData
from contrailmq.wire.errors import RemoteProtocolError
from contrailmq.wire.fastjson import decode_body, loads_fastjson
from contrailmq.wire.frame import FrameParser, encode_request
from contrailmq.wire.header import BINARY, JSON, Command

from .headers_by_code import REQUEST_HEADERS

LONG = 10 if os.environ.get("CONTRAILMQ_LONG") else 1
DAMAGED_FRAMES = 1_000_000 if os.environ.get("CONTRAILMQ_LONG") else 25_000
FRAMES_PER_EXAMPLE = 250  # an example of Hypothesis's costs a millisecond, a frame a tenth of one
DICE_BYTES = 14  # for one frame: which, where it is cut, and 96 bits of damage
JSON_LIKE = b'0123456789-+.eE"{}[]:,\\ truefalsn'
COVERAGE_RUNS = 200_000
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


def feed(data: bytes, cuts: list[int]) -> int:
    """Parse in pieces; returns how many commands came of it."""
    parser, commands = FrameParser(), 0
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    try:
        for start, end in itertools.pairwise(edges):
            for command in parser.feed(data[start:end]):
                use(command)
                commands += 1
    except RemoteProtocolError:
        assert parser.error is not None
    assert parser.buffered_bytes <= len(data)
    return commands


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


def good_frames() -> list[bytes]:
    """Every request, as JSON and where it has one in its binary form."""
    return [
        encode_request(code, dict.fromkeys(kind.__struct_encode_fields__, "1"), b"{}", opaque=code, serialize_type=form)
        for code, kind in REQUEST_HEADERS.items()
        for form in (JSON, BINARY)
        if form == JSON or code <= 0x7FFF
    ]


def damaged(frame: bytes, dice: int) -> bytes:
    """Up to three places overwritten, cut out or doubled, all ruled by 96 random bits."""
    for _ in range(1 + dice % 3):
        dice >>= 2
        position, span, value = (dice >> 13) % (len(frame) + 1), 1 + (dice >> 10) % 8, dice & 255
        match dice >> 8 & 3:
            case 0:
                frame = frame[:position] + bytes((value,)) + frame[position + 1 :]
            case 1:
                frame = frame[:position] + JSON_LIKE[value % 32 : value % 32 + 1] + frame[position + 1 :]
            case 2:
                frame = frame[:position] + frame[position + span :]
            case _:
                frame = frame[: position + span] + frame[position:]
        dice >>= 28
    return frame


def with_true_lengths(frame: bytes) -> bytes:
    """The same with lengths that fit, so that its damage reaches the decoders of headers. The body is two bytes."""
    header_bytes = max(0, len(frame) - 10)
    return struct.pack(">iI", len(frame) - 4, frame[4] << 24 | header_bytes) + frame[8:] if len(frame) >= 8 else frame


def test_good_frames_with_random_damage_never_raise_anything_else(capsys: pytest.CaptureFixture[str]) -> None:
    """Each followed by a good frame and fed in two pieces. Every bit that rules them is Hypothesis's, so it shrinks."""
    frames = good_frames()
    fed = parsed = 0

    @settings(FUZZ, max_examples=DAMAGED_FRAMES // FRAMES_PER_EXAMPLE)
    @given(st.binary(min_size=FRAMES_PER_EXAMPLE * DICE_BYTES, max_size=FRAMES_PER_EXAMPLE * DICE_BYTES))
    def feed_damaged(dice: bytes) -> None:
        nonlocal fed, parsed
        for start in range(0, len(dice), DICE_BYTES):
            which = int.from_bytes(dice[start : start + 2], "big")
            bits = int.from_bytes(dice[start + 2 : start + DICE_BYTES], "big")
            frame = frames[which % len(frames)]
            data = damaged(frame, bits)
            data = (with_true_lengths(data) if which & 0x8000 else data) + frame
            try:
                parsed += feed(data, [bits & 511])
            except Exception:
                note(f"frame {which % len(frames)}, bits {bits:#x}: {data.hex()}")
                raise
            fed += 1

    feed_damaged()
    with capsys.disabled():
        print(f" {fed} damaged frames by Hypothesis, {parsed} commands came of them ", end="")
    assert fed >= DAMAGED_FRAMES
    assert parsed > DAMAGED_FRAMES // 4  # the damage is small enough to reach beyond lengths and syntax


@pytest.mark.long
def test_inputs_steered_by_coverage_never_raise_anything_else(tmp_path: Path) -> None:
    """atheris ends its process, so it has one of its own: `fuzz_target.py`."""
    pytest.importorskip("atheris", reason="pip install contrailmq[fuzz]")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    for number, frame in enumerate(good_frames()):
        (corpus / f"{number}.frame").write_bytes(frame)
    target = Path(__file__).with_name("fuzz_target.py")
    command = [sys.executable, target, f"-runs={COVERAGE_RUNS}", "-seed=1", f"-artifact_prefix={tmp_path}/", corpus]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": ":".join(sys.path)})
    assert done.returncode == 0, done.stderr[-4000:]
    assert f"Done {COVERAGE_RUNS} runs" in done.stderr


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
