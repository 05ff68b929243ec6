"""The bytes of the HA port: what Apache's master and slave exchanged, and whatever else may arrive."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrailmq.store.replication.stream import (
    ACCEPTED_BYTES_MAX,
    BLOCK_BYTES_MAX,
    HEAD_BYTES,
    REPORT_BYTES,
    BlockReader,
    Piece,
    ReplicationError,
    ReportReader,
    encode_head,
    encode_report,
)

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[2] / "golden" / "wire" / "ha-001.json").read_text())


def golden_stream(direction: str) -> list[bytes]:
    return [bytes.fromhex(event["hex"]) for event in GOLDEN["events"] if event["direction"] == direction]


FROM_SLAVE = golden_stream("slave -> master")
FROM_MASTER = golden_stream("master -> slave")
REPORTS: list[int] = GOLDEN["slave_reports"]
BLOCKS: list[list[int]] = GOLDEN["master_frames_offset_length"]


def blocks_of(pieces: list[Piece]) -> list[tuple[int, bytes]]:
    """Pieces with those that continue each other joined: what was sent, however it was cut."""
    blocks: list[tuple[int, bytes]] = []
    for offset, body in pieces:
        if body and blocks and blocks[-1][1] and blocks[-1][0] + len(blocks[-1][1]) == offset:
            blocks[-1] = (blocks[-1][0], blocks[-1][1] + bytes(body))
        else:
            blocks.append((offset, bytes(body)))
    return blocks


def cut(data: bytes, places: list[int]) -> list[bytes]:
    ends = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[begin:end] for begin, end in pairwise(ends)]


def test_the_reports_of_apaches_slave() -> None:
    reader = ReportReader()
    assert [report for data in FROM_SLAVE for report in reader.feed(data)] == REPORTS
    assert b"".join(map(encode_report, REPORTS)) == b"".join(FROM_SLAVE)


def test_the_blocks_of_apaches_master() -> None:
    """Heartbeats are empty pieces; bodies together are the log, from its beginning on, without a gap."""
    reader = BlockReader()
    pieces = [piece for data in FROM_MASTER for piece in reader.feed(data)]
    assert [piece.offset for piece in pieces if not piece.body] == [offset for offset, size in BLOCKS if not size]
    log = b"".join(bytes(piece.body) for piece in pieces)
    assert len(log) == sum(size for _, size in BLOCKS)
    assert REPORTS[-1] == len(log) - BLOCKS[-1][1]  # the recording ends before the last report
    assert reader.is_between_blocks
    stream, begin = bytearray(), 0
    for offset, size in BLOCKS:
        stream += encode_head(offset, size) + log[begin : begin + size]
        begin += size
    assert stream == b"".join(FROM_MASTER)


@given(st.lists(st.integers(0, 2**63 - 1), max_size=20), st.lists(st.integers(0, 200), max_size=30))
def test_reports_are_the_same_however_they_are_cut(reports: list[int], places: list[int]) -> None:
    reader = ReportReader()
    parts = cut(b"".join(map(encode_report, reports)), places)
    assert [report for part in parts for report in reader.feed(part)] == reports


@given(
    st.lists(st.tuples(st.integers(0, 2**63 - 100), st.binary(max_size=40)), max_size=12),
    st.lists(st.integers(0, 700), max_size=30),
)
def test_blocks_are_the_same_however_they_are_cut(blocks: list[tuple[int, bytes]], places: list[int]) -> None:
    data = b"".join(encode_head(offset, len(body)) + body for offset, body in blocks)
    whole, parts = BlockReader(), BlockReader()
    pieces = [(piece.offset, bytes(piece.body)) for part in cut(data, places) for piece in parts.feed(part)]
    together = [Piece(offset, memoryview(body)) for offset, body in pieces]
    assert blocks_of(together) == blocks_of(whole.feed(data))
    assert [(offset, bytes(body)) for offset, body in BlockReader().feed(data)] == blocks
    assert parts.is_between_blocks


def test_a_block_that_came_in_part_is_not_between_blocks() -> None:
    reader = BlockReader()
    reader.feed(encode_head(7, 3)[:5])
    assert not reader.is_between_blocks
    assert reader.feed(encode_head(7, 3)[5:] + b"ab") == [(7, b"ab")]
    assert not reader.is_between_blocks
    assert reader.feed(b"c") == [(9, b"c")]
    assert reader.is_between_blocks


def test_a_body_is_handed_on_without_a_copy() -> None:
    data = bytearray(encode_head(0, 4) + b"abcd")
    (piece,) = BlockReader().feed(memoryview(data))
    data[-1:] = b"X"
    assert piece.body == b"abcX"


def test_a_report_before_the_beginning_is_refused() -> None:
    with pytest.raises(ReplicationError, match="offset -1: .*0 or more"):
        ReportReader().feed(bytes(REPORT_BYTES) + b"\xff" * REPORT_BYTES)


@pytest.mark.parametrize(
    ("offset", "size", "shown"),
    [
        (-1, 10, "10 bytes at offset -1"),
        (0, -5, "-5 bytes at offset 0"),
        (8, ACCEPTED_BYTES_MAX + 1, f"{ACCEPTED_BYTES_MAX + 1} bytes at offset 8"),
    ],
)
def test_a_head_that_no_master_sends_is_refused(offset: int, size: int, shown: str) -> None:
    head = offset.to_bytes(8, "big", signed=True) + size.to_bytes(4, "big", signed=True)
    with pytest.raises(ReplicationError, match=f"{shown}: .*is this the HA port"):
        BlockReader().feed(head)


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """What is refused is an error of ours, and what is kept is less than a report or a head."""
    try:
        assert len(ReportReader().feed(data)) == len(data) // REPORT_BYTES
    except ReplicationError as exc:
        assert "report" in str(exc)
    try:
        pieces = BlockReader(64).feed(data)
        assert sum(HEAD_BYTES + len(body) for _, body in pieces) >= len(data) - HEAD_BYTES
    except ReplicationError as exc:
        assert "block" in str(exc)


def test_a_block_of_ours_fits_into_the_buffer_of_apaches_slave() -> None:
    """DefaultHAClient has 4 MiB and starts over when they are full: a block must fit behind another."""
    assert 2 * (HEAD_BYTES + BLOCK_BYTES_MAX) <= 4 * 1024 * 1024
