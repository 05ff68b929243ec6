"""FIFO pops: order, blocking, attempts, and what a kill leaves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.pop_bench import PopBench, Popped
from broker.test_pop import bodies, send
from contrailmq.wire.codes import ResponseCode


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[PopBench]:
    made = PopBench(tmp_path)
    yield made
    made.close()


def pop(bench: PopBench, attempt: str = "", count: int = 2, invisible_ms: int = 5000) -> list[Popped]:
    more = {"attemptId": attempt} if attempt else {}
    return bench.popped(order="true", maxMsgNums=count, invisibleTime=invisible_ms, **more)


def test_a_queue_waits_for_its_batch_and_goes_on_in_order(bench: PopBench) -> None:
    send(bench, *"abcd")
    a, b = pop(bench)
    assert pop(bench) == []
    bench.ack(b)
    assert pop(bench) == []
    bench.ack(a)
    assert bodies(pop(bench)) == ["c", "d"]


def test_a_queue_waits_until_the_last_millisecond_of_the_time_is_over(bench: PopBench) -> None:
    send(bench, "a")
    pop(bench, invisible_ms=1000)
    bench.clock.advance(1000)
    assert pop(bench) == []
    bench.clock.advance(1)
    assert bodies(pop(bench)) == ["a"]


def test_a_message_that_a_queue_waits_for_becomes_a_dead_letter_after_its_attempts(bench: PopBench) -> None:
    send(bench, *"abc")
    deliveries = 0
    for _ in range(40):
        found = pop(bench, count=1, invisible_ms=1000)
        if bodies(found) == ["b"]:
            break
        deliveries += len(found)
        bench.passes(1100, step_ms=100)
    assert deliveries == 17
    (dead,) = bench.store.get("%DLQ%g", 0, 0, 32)
    assert (dead.body, dead.properties["DLQ_ORIGIN_TOPIC"]) == (b"a", "T")
    assert bench.node.offsets.query("g", "T", 0) == 1


def test_after_a_kill_the_same_queue_waits_for_the_same_messages(tmp_path: Path) -> None:
    bench = PopBench(tmp_path)
    bench.node.offset_journal.open()
    send(bench, *"abcd")
    a, b = pop(bench, attempt="one")
    bench.ack(a)
    bench.change(b, 20_000)
    bench.kill()
    bench.clock.advance(100)
    bench = PopBench(tmp_path, clock=bench.clock)
    assert pop(bench) == []
    bench.passes(19_000, step_ms=500)
    assert pop(bench) == []
    bench.passes(1500, step_ms=500)
    assert bodies(pop(bench, count=3)) == ["b", "c", "d"]
    bench.close()


@pytest.mark.parametrize("jump_ms", [3_600_000, -3_600_000], ids=["+1h", "-1h"])
@pytest.mark.parametrize("is_changed", [False, True], ids=["popped", "kept longer"])
def test_a_queue_waits_as_long_as_was_asked_whatever_is_done_to_the_wall_clock(
    bench: PopBench, jump_ms: int, *, is_changed: bool
) -> None:
    """Seed 42 of one minute: after a jump back by an hour a FIFO group got nothing more."""
    send(bench, *"abcd")
    a, b = pop(bench)
    if is_changed:
        bench.ack(a)
        bench.change(b, 5000)
    bench.clock.set_wall(bench.clock.now_ms() + jump_ms)
    bench.passes(4950)
    assert pop(bench) == []
    bench.passes(100)
    assert bodies(pop(bench)) == (["b", "c"] if is_changed else ["a", "b"])


def test_after_a_jump_back_and_a_kill_a_queue_waits_no_longer_than_its_time_once_more(tmp_path: Path) -> None:
    bench = PopBench(tmp_path)
    bench.node.offset_journal.open()
    send(bench, *"ab")
    pop(bench)
    bench.clock.set_wall(bench.clock.now_ms() - 3_600_000)
    bench.kill()
    bench = PopBench(tmp_path, clock=bench.clock)
    bench.passes(5050)
    assert bodies(pop(bench)) == ["a", "b"]
    bench.close()


def test_a_waiting_pop_is_told_when_its_queue_is_free(bench: PopBench) -> None:
    send(bench, *"abcd")
    a, b = pop(bench)
    assert bench.tell(200050, bench.pop_fields(order="true", pollTime=10_000, maxMsgNums=2)) == []
    bench.ask(200051, a.ack_fields("g"))
    sent = bench.tell(200051, b.ack_fields("g"), settle=False)
    bench.settle()
    answers = sent + bench.link.take()
    assert [answer.ext.get("msgOffsetInfo") for answer in answers] == [None, "0 0 2,3"]


def test_a_pop_that_nobody_waits_for_any_more_makes_no_acknowledgement_of_its_attempt_void(bench: PopBench) -> None:
    """Seed 330 of ten minutes: a member asked again while its first pop was still held, and got the batch. Then the
    first one was served too, and acknowledgements of what the member had were answered with success and forgotten."""
    send(bench, *"abc")
    pop(bench, invisible_ms=1000)
    held = bench.pop_fields(order="true", pollTime=4000, maxMsgNums=3, invisibleTime=5000, attemptId="one")
    assert bench.tell(200050, held) == []
    bench.clock.advance(1001)
    messages = pop(bench, attempt="one", count=3)
    assert bodies(messages) == ["a", "b", "c"]
    bench.passes(4000)
    (late,) = bench.link.take()
    assert late.ext["msgOffsetInfo"] == "0 0 0,1,2"
    for message in messages:
        assert bench.ack(message).code == 0
    assert bench.node.offsets.query("g", "T", 0) == 3


@pytest.mark.parametrize("second", [1, 2, 3])
@pytest.mark.parametrize("acked", [(), (0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_what_either_answer_to_an_attempt_gave_stays_with_its_consumer(
    bench: PopBench, second: int, acked: tuple[int, ...]
) -> None:
    """Whatever was acknowledged between the two, and however few messages the second one asked for."""
    send(bench, *"abc")
    messages = pop(bench, attempt="one", count=3)
    for index in acked:
        bench.ack(messages[index])
    bench.clock.advance(10)
    pop(bench, attempt="one", count=second, invisible_ms=1000)
    bench.passes(4900)
    assert bodies(pop(bench, attempt="other", count=3)) == []
    for index in {0, 1, 2} - {*acked}:
        bench.ack(messages[index])
    assert bench.node.offsets.query("g", "T", 0) == 3


def test_another_attempt_makes_the_handles_of_the_one_before_void(bench: PopBench) -> None:
    send(bench, *"ab")
    old = pop(bench, attempt="one")
    pop(bench, attempt="one")
    bench.passes(5100)
    new = pop(bench, attempt="two")
    bench.ack(old[0])
    bench.passes(5100)
    assert bodies(new) == bodies(pop(bench, attempt="three")) == ["a", "b"]


def test_an_earlier_answer_to_an_attempt_may_keep_its_messages_longer_and_takes_them_from_nobody(
    bench: PopBench,
) -> None:
    """A proxy gives back what it could not write to a stream that broke; the consumer has asked again by then."""
    send(bench, *"a")
    (earlier,) = pop(bench, attempt="one")
    bench.clock.advance(10)
    (newest,) = pop(bench, attempt="one")
    bench.change(earlier, 0)
    bench.passes(4900)
    assert pop(bench, attempt="two") == []
    bench.change(earlier, 5000)
    bench.passes(4900)
    assert pop(bench, attempt="two") == []
    bench.change(newest, 0)
    bench.passes(50)
    assert bodies(pop(bench, attempt="two")) == ["a"]


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "stopped"])
def test_handles_of_both_answers_to_an_attempt_count_after_a_restart(tmp_path: Path, *, is_killed: bool) -> None:
    bench = PopBench(tmp_path)
    bench.node.offset_journal.open()
    send(bench, *"abcd")
    earlier = pop(bench, attempt="one")
    bench.clock.advance(10)
    newest = pop(bench, attempt="one", count=3, invisible_ms=1000)
    if is_killed:
        bench.kill()
    else:
        bench.close()
    bench = PopBench(tmp_path, clock=bench.clock)
    bench.passes(4900)
    assert pop(bench) == []
    for message in (earlier[0], earlier[1], newest[2]):
        bench.ack(message)
    assert bodies(pop(bench)) == ["d"]
    bench.close()


def test_an_offset_that_was_set_by_hand_leaves_no_message_out_for_an_attempt(bench: PopBench) -> None:
    send(bench, *"abcdef")
    for message in pop(bench, attempt="zero"):
        bench.ack(message)
    pop(bench, attempt="one", count=3)
    bench.node.commit_offset("g", "T", 0, 0)
    (first,) = pop(bench, attempt="one", count=1)
    bench.ack(first)
    assert bodies(pop(bench, attempt="two", count=6)) == ["b", "c", "d", "e", "f"]


def test_a_reset_forgets_the_batch(bench: PopBench) -> None:
    """RocketMQ #9369, #10229."""
    send(bench, *"abcd")
    pop(bench)
    fields = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true", "queueId": "0", "offset": "3"}
    assert bench.ask(222, fields).code == 0
    assert bodies(pop(bench)) == ["d"]


@pytest.mark.parametrize("invisible_ms", [-1, 3 * 24 * 3600 * 1000 + 1, 10**18, 2**63 - 1])
def test_an_invisible_time_out_of_bounds_is_refused(bench: PopBench, invisible_ms: int) -> None:
    """It would hold the queue for as long, over restarts too."""
    send(bench, "a", "b")
    a, _ = pop(bench, invisible_ms=1000)
    assert bench.change(a, invisible_ms).code == ResponseCode.SYSTEM_ERROR
    bench.passes(1100)
    assert bodies(pop(bench)) == ["a", "b"]
