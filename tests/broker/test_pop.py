"""POP: what is handed out, acknowledged, kept longer, and comes again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.harness import Link
from broker.pop_bench import PopBench, Popped


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[PopBench]:
    made = PopBench(tmp_path)
    yield made
    made.close()


def send(bench: PopBench, *bodies: str, topic: str = "T", queue: int = 0, **properties: str) -> None:
    for body in bodies:
        assert bench.send(topic, body.encode(), e=queue, properties=properties).code == 0


def bodies(found: list[Popped]) -> list[str]:
    return [message.body.decode() for message in found]


def stored(message: Popped, group: str = "g") -> Popped:
    """A message of the retry topic under the name that it is stored in, as Java's client acknowledges it."""
    if message.handle.mark == "1":
        message.stored_topic = f"%RETRY%{group}_{message.message.topic}"
    return message


def test_a_message_is_handed_out_once_and_comes_again_when_its_time_is_over(bench: PopBench) -> None:
    send(bench, "a")
    assert bodies(bench.popped()) == ["a"]
    assert bench.popped() == []
    bench.passes(9_900)
    assert bench.popped() == []
    bench.passes(150)
    (again,) = bench.popped()
    assert (again.body, again.message.reconsume_times, again.message.topic) == (b"a", 1, "T")


def test_an_acknowledged_message_does_not_come_again(bench: PopBench) -> None:
    send(bench, "a", "b")
    a, b = bench.popped()
    assert bench.ack(a).code == 0
    assert bench.ack(a).code == 0
    bench.passes(11_000)
    (again,) = bench.popped()
    assert again.body == b.body
    assert bench.ack(stored(again)).code == 0
    bench.passes(20_000)
    assert bench.popped() == []
    assert (bench.pop.in_flight.messages, bench.pop.in_flight.checkpoints) == (0, 0)


def test_a_change_of_the_invisible_time_moves_the_time_and_makes_the_old_handle_useless(bench: PopBench) -> None:
    send(bench, "a", "b")
    _, b = bench.popped()
    longer = b.changed(bench.change(b, 30_000))
    assert bench.ack(b).code == 0  # the old handle: it has no effect
    bench.passes(11_000)
    assert bodies(bench.popped()) == ["a"]
    bench.passes(19_200)
    assert bodies(bench.popped(invisibleTime=60_000)) == ["a", "b"]
    assert bench.change(longer, 1000).code == 208
    assert bench.pop.reviving.revived == 3


def test_the_new_handle_acknowledges_also_with_the_start_of_the_old_batch(bench: PopBench) -> None:
    """RocketMQ #9583."""
    send(bench, "a", "b")
    _, b = bench.popped()
    longer = b.changed(bench.change(b, 30_000))
    longer.handle = longer.handle._replace(start_offset=0)
    bench.ack(longer)
    bench.passes(40_000)
    assert bodies(bench.popped()) == ["a"]


def test_what_is_never_acknowledged_becomes_a_dead_letter(bench: PopBench) -> None:
    send(bench, "a")
    deliveries = 0
    for _ in range(30):
        deliveries += len(bench.popped(invisibleTime=1000))
        bench.passes(1100, step_ms=100)
    assert deliveries == 17  # retryMaxTimes is 16
    (dead,) = bench.store.get("%DLQ%g", 0, 0, 32)
    assert (dead.body, dead.properties["DLQ_ORIGIN_TOPIC"], dead.properties["RETRY_TOPIC"]) == (b"a", "T", "T")
    assert (bench.pop.in_flight.messages, bench.pop.reviving.dead) == (0, 1)


def test_a_waiting_pop_is_woken_by_an_arrival_and_answered_when_its_time_is_over(bench: PopBench) -> None:
    send(bench, "old")
    bench.popped()
    link = Link()
    assert bench.tell(200050, bench.pop_fields(pollTime=5000), link=link) == []
    assert bench.ask(200055, {"consumerGroup": "g", "topic": "T", "queueId": "-1"}).ext["pollingNum"] == "1"
    send(bench, "new", queue=2)
    (answer,) = link.take()
    assert (answer.code, answer.remark, answer.ext["msgOffsetInfo"]) == (0, "FOUND", "0 2 0")
    bench.tell(200050, bench.pop_fields(pollTime=5000), link=link)
    bench.passes(4900)
    assert link.take() == []
    bench.passes(80)
    (answer,) = link.take()
    assert (answer.code, answer.remark) == (210, "NO_MESSAGE_IN_QUEUE")


def test_a_message_that_comes_again_wakes_a_waiting_pop_of_its_group_alone(bench: PopBench) -> None:
    """RocketMQ #9632."""
    send(bench, "a")
    bench.popped(invisibleTime=3000)
    bench.popped(group="other", invisibleTime=60_000)
    mine, theirs = Link(), Link(40_001)
    bench.tell(200050, bench.pop_fields(pollTime=15_000), link=mine)
    bench.tell(200050, bench.pop_fields(group="other", pollTime=15_000), link=theirs)
    bench.passes(3100)
    (answer,) = mine.take()
    assert answer.ext["msgOffsetInfo"] == "1 0 0"
    assert theirs.take() == []


def test_a_pop_with_a_tag_goes_over_what_it_does_not_want(bench: PopBench) -> None:
    for number in range(10):
        send(bench, f"m{number}", TAGS="even" if number % 2 == 0 else "odd")
    answer = bench.ask_pop(exp="even", maxMsgNums=3)
    assert (answer.ext["msgOffsetInfo"], answer.ext["restNum"]) == ("0 0 0,2,4", "5")
    assert bench.ask_pop(exp="other").code == 210
    assert bench.node.offsets.query("g", "T", 0) == 0  # the checkpoint is not on the disk yet
    bench.store.flush()
    bench.turn()
    assert bench.node.offsets.query("g", "T", 0) == 10


def test_no_more_is_in_flight_than_memory_is_meant_for(tmp_path: Path) -> None:
    bench = PopBench(tmp_path, settings={"popCkMaxBufferSize": "3"})
    send(bench, *(str(number) for number in range(5)))
    first = [bench.popped(maxMsgNums=1) for _ in range(3)]
    full = bench.ask_pop(maxMsgNums=1)
    assert (full.code, full.ext["restNum"]) == (210, "2")
    bench.ack(first[0][0])
    assert bodies(bench.popped(maxMsgNums=1)) == ["3"]
    bench.close()
