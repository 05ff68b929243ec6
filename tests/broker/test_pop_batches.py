"""POP of topics with queue.type=BatchCQ: a message is in flight by itself, also inside a client's batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.pop_bench import PopBench, Popped
from broker.test_pop import bodies, send, stored
from broker.test_pop_fifo import pop
from broker.test_pop_restarts import again, drained
from contrailmq.broker.state.topics import Topic
from contrailmq.message import Message
from contrailmq.message.inner_batch import unwrapped


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[PopBench]:
    made = PopBench(tmp_path)
    made.node.topics.put(Topic("T", read_queues=1, write_queues=1, attributes={"queue.type": "BatchCQ"}))
    yield made
    made.close()


def send_batch(bench: PopBench, *texts: str) -> None:
    bench.store.put_inner_batch("T", [Message("T", text.encode(), tags="t") for text in texts])
    bench.settle()
    assert len(bench.store.read_units("T", 0, 0, 2)) == 1, "one record"


def parts(found: list[Popped]) -> list[Popped]:
    """Each message with a handle of its own, as clients take an inner batch apart."""
    return [
        Popped(message, one.handle._replace(offset=message.queue_offset), one.stored_topic)
        for one in found
        for message in unwrapped(one.message)
    ]


def test_what_was_not_acknowledged_comes_again(bench: PopBench) -> None:
    send(bench, "a", "b", "c")
    first = bench.popped(invisibleTime=1000)
    bench.ack(first[1])
    bench.passes(1100)
    found = bench.popped()
    assert [(one.body, one.message.reconsume_times) for one in found] == [(b"a", 1), (b"c", 1)]


def test_what_never_is_acknowledged_becomes_a_dead_letter(bench: PopBench) -> None:
    send(bench, "a")
    for _ in range(30):
        bench.popped(invisibleTime=1000)
        bench.passes(1100, step_ms=100)
    assert [dead.body for dead in bench.store.get("%DLQ%g", 0, 0, 32)] == [b"a"]


@pytest.mark.parametrize("acked", [(), (0,), (1,), (2,), (0, 1), (1, 2), (0, 1, 2)])
@pytest.mark.parametrize("is_killed", [False, True])
def test_messages_of_a_batch_are_acknowledged_and_come_again_one_by_one(
    bench: PopBench, tmp_path: Path, acked: tuple[int, ...], is_killed: bool
) -> None:
    send_batch(bench, "a", "b", "c")
    first = parts(bench.popped(invisibleTime=2000))
    assert bodies(first) == ["a", "b", "c"]
    assert bench.pop.in_flight.messages == 3
    for number in acked:
        assert bench.ack(first[number]).code == 0
    fresh = again(tmp_path, bench) if is_killed else bench
    fresh.passes(2100)
    found = fresh.popped()
    assert bodies(found) == [text for number, text in enumerate("abc") if number not in acked]
    assert all(one.message.reconsume_times == 1 and one.message.properties["TAGS"] == "t" for one in found)
    for one in found:
        fresh.ack(stored(one))
    assert drained(fresh, 10_000) == []
    if is_killed:
        fresh.close()


def test_a_fifo_queue_waits_for_all_of_a_batch_and_buries_what_fails(bench: PopBench) -> None:
    send_batch(bench, "a", "b")
    send(bench, "c")
    first, _ = parts(pop(bench, count=1, invisible_ms=1000))
    bench.ack(first)
    bench.passes(1100)
    assert bodies(parts(pop(bench, count=1, invisible_ms=1000))) == ["b"]
    for _ in range(20):
        bench.passes(1100, step_ms=100)
        found = parts(pop(bench, count=1, invisible_ms=1000))
        if bodies(found) == ["c"]:
            break
    assert bodies(found) == ["c"]
    assert [dead.body for dead in bench.store.get("%DLQ%g", 0, 0, 32)] == [b"b"]
