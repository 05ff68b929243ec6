"""Topics with priorities, as Apache's SendMessageProcessor and PopMessageProcessor treat them since 5.4."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.pop_bench import PopBench
from contrailmq.message import Message, MessageError

QUEUES = 8
PRIORITY = "_SYS_MSG_PRIORITY_"


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[PopBench]:
    made = PopBench(tmp_path)
    create(made, "P", "PRIORITY")
    yield made
    made.close()


def create(bench: PopBench, topic: str, kind: str) -> None:
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES),
        "perm": "6", "topicFilterType": "SINGLE_TAG", "order": "false", "attributes": f"+message.type={kind}",
    }  # fmt: skip
    answer = bench.ask(17, fields)
    assert answer.code == 0, answer.remark


def sent_to(bench: PopBench, body: bytes = b"x", *, queue: int = 1, topic: str = "P", **properties: str) -> int:
    answer = bench.send(topic, body, e=queue, properties=properties)
    assert answer.code == 0, answer.remark
    return int(answer.ext["queueId"])


@pytest.mark.parametrize(("priority", "queue"), [("0", 0), ("3", 3), ("7", 7), ("8", 7), ("2147483647", 7), ("+2", 2)])
def test_a_message_goes_to_the_queue_of_its_priority_and_too_high_ones_to_the_last(
    bench: PopBench, priority: str, queue: int
) -> None:
    assert sent_to(bench, **{PRIORITY: priority}) == queue


@pytest.mark.parametrize("priority", ["-1", "high", "2147483648", "1.5", "9" * 400, "٣"])
def test_what_is_no_priority_changes_nothing(bench: PopBench, priority: str) -> None:
    assert sent_to(bench, queue=5, **{PRIORITY: priority}) == 5


@pytest.mark.parametrize("other", [{"__SHARDINGKEY": "k"}, {"DELAY": "1"}, {"TIMER_DELAY_SEC": "5"}])
def test_a_message_of_another_type_loses_its_priority(bench: PopBench, other: dict[str, str]) -> None:
    assert sent_to(bench, queue=5, **{PRIORITY: "3"}, **other) == 5
    if "__SHARDINGKEY" in other:
        (message,) = bench.popped(topic="P")
        assert PRIORITY not in message.message.properties


def test_a_topic_of_another_type_places_them_too(bench: PopBench) -> None:
    create(bench, "N", "NORMAL")
    assert sent_to(bench, topic="N", **{PRIORITY: "6"}) == 6


def popped_queues(bench: PopBench, count: int, **other: object) -> list[int]:
    return [
        message.message.queue_id for _ in range(count) for message in bench.popped(topic="P", maxMsgNums=1, **other)
    ]


@pytest.mark.parametrize("begin", [0, 50, 99])
def test_pops_take_the_highest_priority_first(bench: PopBench, begin: int) -> None:
    bench.begin = begin
    for priority in (3, 0, 7, 5, 7):
        sent_to(bench, **{PRIORITY: str(priority)})
    assert popped_queues(bench, 5) == [7, 7, 5, 3, 0]


def test_zero_is_the_highest_with_priority_order_asc_false(tmp_path: Path) -> None:
    bench = PopBench(tmp_path, settings={"priorityOrderAsc": "false"})
    create(bench, "P", "PRIORITY")
    for priority in (3, 0, 7):
        sent_to(bench, **{PRIORITY: str(priority)})
    assert popped_queues(bench, 3) == [0, 3, 7]
    bench.close()


def test_a_group_without_priorities_begins_anywhere(bench: PopBench) -> None:
    bench.popped(topic="P")
    group = json.dumps(
        {"groupName": "g", "consumeEnable": True, "retryMaxTimes": 16, "attributes": {"+priority.factor": "0"}}
    )
    assert bench.ask(200, {}, group.encode()).code == 0
    for priority in (3, 0, 7):
        sent_to(bench, **{PRIORITY: str(priority)})
    bench.begin = 2  # the retry topic first, then queue 2, 3, ..
    assert popped_queues(bench, 3) == [3, 7, 0]


@pytest.mark.parametrize(("probability", "first"), [(0, 7), (100, 0)])
def test_messages_that_come_again_are_the_last_or_the_first(tmp_path: Path, probability: int, first: int) -> None:
    """popFromRetryProbabilityForPriority: 0 unless it is set."""
    bench = PopBench(tmp_path, settings={"popFromRetryProbabilityForPriority": str(probability)})
    create(bench, "P", "PRIORITY")
    sent_to(bench, b"again", **{PRIORITY: "7"})
    bench.popped(topic="P")
    bench.passes(10_100)
    sent_to(bench, b"new", **{PRIORITY: "7"})
    bodies = [message.body for _ in range(2) for message in bench.popped(topic="P", maxMsgNums=1)]
    assert bodies == ([b"new", b"again"] if first == 7 else [b"again", b"new"])
    bench.close()


@pytest.mark.parametrize("wrong", [-1, 2**31, True, "3", 1.5])
def test_a_client_refuses_what_is_no_priority(wrong: object) -> None:
    assert Message("P", b"x", priority=3).properties[PRIORITY] == "3"
    with pytest.raises(MessageError, match="priority"):
        Message("P", b"x", priority=wrong)  # type: ignore[arg-type]
