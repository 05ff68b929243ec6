"""POP's strings and bodies, held against values that Apache's programs wrote or that follow from its classes."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

from contrailmq.message import pop_origin_topic, pop_retry_mark, pop_retry_topic, pop_retry_topic_v2
from contrailmq.wire.pop_records import AckBody, CheckpointBody, decode_ack_body, decode_checkpoint_body
from contrailmq.wire.pop_strings import (
    PopHandle,
    count_entries,
    decode_bits,
    encode_bits,
    join_entries,
    offsets_entry,
    start_entry,
)

GOLDEN = Path(__file__).parents[1] / "golden"
STORES = ["store-5.5.0-pop-pending", "store-5.5.0-pop-pending-kill9"]

HANDLES = {
    "100 1700000000000 60000 5 0 broker-a 3 103": (100, 1700000000000, 60000, 5, "0", "broker-a", 3, 103),
    "7 1700000000000 60000 5 1 broker-a 0 7": (7, 1700000000000, 60000, 5, "1", "broker-a", 0, 7),
    "100 1700000000000 60000 999 0 broker-a 3 100": (100, 1700000000000, 60000, 999, "0", "broker-a", 3, 100),
}


@pytest.mark.parametrize(("text", "parts"), HANDLES.items())
def test_handles_both_ways(text: str, parts: tuple[object, ...]) -> None:
    handle = PopHandle.decode(text)
    assert tuple(handle) == parts
    assert handle.encode() == text
    assert handle.is_ordered == (parts[3] == 999)


def test_a_handle_may_be_longer_or_shorter() -> None:
    """A proxy adds the place in the log; requests name queue and offset themselves."""
    assert PopHandle.decode("100 1 2 5 0 b 3 103 52428800").offset == 103
    assert PopHandle.decode("100 1 2 5 0 b")[6:] == (-1, -1)


@pytest.mark.parametrize(
    "text",
    ["", "1 2 3", "1 2 3 4 5", "a 1 2 5 0 b", "1 2 3 x 0 b", "1 2 3 4 0 b q", f"{2**63} 1 2 3 0 b", "1 2 ٣ 4 0 b"],
)
def test_what_is_not_a_handle_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="handle"):
        PopHandle.decode(text)


def test_what_an_answer_says_of_its_messages() -> None:
    assert join_entries([start_entry("0", 3, 100), start_entry("1", 0, 7)]) == "0 3 100;1 0 7"
    assert (
        join_entries([offsets_entry("0", 3, (100, 101, 103)), offsets_entry("1", 0, (7,))]) == "0 3 100,101,103;1 0 7"
    )
    assert join_entries([]) == ""


@pytest.mark.parametrize(
    ("offsets", "earlier", "text"),
    [
        ([1, 2, 3], {}, "0 0 0"),
        ([1, 2, 3], {1: 1, 2: 1, 3: 1}, "0 qo0%1 1;0 qo0%2 1;0 qo0%3 1;0 0 1"),
        ([2, 3], {2: 2, 3: 2}, "0 qo0%2 2;0 qo0%3 2;0 0 2"),
        ([3, 4], {3: 3}, "0 qo0%3 3;0 0 0"),
    ],
)
def test_how_often_messages_of_a_fifo_queue_were_delivered(
    offsets: list[int], earlier: dict[int, int], text: str
) -> None:
    assert join_entries(count_entries("0", 0, offsets, earlier)) == text


@pytest.mark.parametrize(
    ("numbers", "text"),
    [([0, 3], "CQ=="), ([0], "AQ=="), ([0, 2], "BQ=="), (range(8), "/w=="), ([0, 9], "AQI="), ([31], "AAAAgA==")],
)
def test_the_bits_of_a_batch_acknowledgement(numbers: list[int], text: str) -> None:
    assert encode_bits(numbers) == text
    assert decode_bits(text) == list(numbers)


def test_names_of_retry_topics() -> None:
    assert pop_retry_topic("GID_a", "TopicTest") == "%RETRY%GID_a_TopicTest"
    assert pop_retry_topic_v2("GID_a", "TopicTest") == "%RETRY%GID_a+TopicTest"
    assert [pop_retry_mark(name) for name in ("T", "%RETRY%g_T", "%RETRY%g+T", "T+x")] == ["0", "1", "2", "0"]
    assert [pop_origin_topic(name, "g") for name in ("T", "%RETRY%g_T", "%RETRY%g+T")] == ["T", "T", "T"]


@pytest.mark.parametrize("store", STORES)
def test_checkpoints_and_acknowledgements_are_java_s_byte_for_byte(store: str) -> None:
    found = json.loads((GOLDEN / f"{store}.pop.json").read_text())["revive_records"]
    kinds = {"ck": 0, "ack": 0, "bAck": 0}
    for record in found:
        body = record["body"].encode()
        decoded: CheckpointBody | AckBody | None = (
            decode_checkpoint_body(body) if record["tag"] == "ck" else decode_ack_body(body)
        )
        assert msgspec.json.encode(decoded) == body
        kinds[record["tag"]] += 1
    assert all(kinds.values())


def test_long_names_and_old_checkpoints_are_read() -> None:
    ack = decode_ack_body(
        b'{"ackOffset":103,"startOffset":100,"consumerGroup":"GID_a","topic":"T","queueId":3,"popTime":17,"x":1}'
    )
    assert ack is not None
    assert (ack.offset, ack.start_offset, ack.group, ack.topic, ack.queue_id, ack.pop_time_ms) == (
        103, 100, "GID_a", "T", 3, 17,
    )  # fmt: skip
    old = decode_checkpoint_body(b'{"so":5,"n":3,"t":"T","c":"g","pt":1,"it":2,"q":0,"bm":0}')
    assert old is not None
    assert old.offsets == (5, 6, 7)


@pytest.mark.parametrize("data", [b"", b"[]", b"{", b'{"so":"x"}', b'{"so":1.5}', b"\xff"])
def test_what_is_not_a_record_of_pop_is_none(data: bytes) -> None:
    assert decode_checkpoint_body(data) is None
