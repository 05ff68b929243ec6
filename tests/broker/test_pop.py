"""POP: what is handed out, acknowledged, kept longer, and comes again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path
from typing import NoReturn

import pytest

from broker.harness import Link, send_fields
from broker.pop_bench import POP, PopBench, Popped, popped
from contrailmq.store import StoreIOError
from contrailmq.wire.header import Command
from contrailmq.wire.pop_strings import encode_bits


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


@pytest.mark.parametrize(
    "error", [OSError(5, "Input/output error"), StoreIOError("reading", Path("x"), OSError(5, "x"))]
)
@pytest.mark.parametrize("is_cold", [False, True])
def test_a_message_whose_reading_failed_comes_again_when_it_can_be_read(
    bench: PopBench, caplog: pytest.LogCaptureFixture, error: Exception, is_cold: bool
) -> None:
    """A read error of a moment (read-error alone, seed 1 of two minutes): nobody looked at the message any more."""

    read, lookup, resident = bench.store.read_units, bench.store.lookup_sound, bench.store.is_resident

    def fail(*_args: object) -> NoReturn:
        raise error

    def read_others(topic: str, *args: int) -> list[tuple[int, int, int]]:
        return fail() if topic == "T" else read(topic, *args)

    send(bench, "a")
    bench.popped(invisibleTime=1000)
    if is_cold:
        bench.store.lookup_sound, bench.store.is_resident = fail, lambda place: False
    else:
        bench.store.read_units = read_others
    bench.passes(1100)
    wait(bench.pop.reviving._reading.values())
    bench.passes(5000, step_ms=100)
    wait(bench.pop.reviving._reading.values())
    bench.store.read_units, bench.store.lookup_sound, bench.store.is_resident = read, lookup, resident
    assert "messages whose invisible time is over stay where they are" in caplog.text
    bench.passes(10_000, step_ms=100)
    (again,) = bench.popped()
    assert (again.body, again.message.reconsume_times) == (b"a", 1)


def test_an_error_of_ours_leaves_a_message_in_flight_too(bench: PopBench) -> None:
    """The supervisor tells it; what was looked at meanwhile is due again."""
    read = bench.store.read_units

    def fail(topic: str, *args: int) -> list[tuple[int, int, int]]:
        if topic == "T":
            raise ZeroDivisionError
        return read(topic, *args)

    send(bench, "a")
    bench.popped(invisibleTime=1000)
    bench.store.read_units = fail
    with pytest.raises(ZeroDivisionError):
        bench.passes(2000)
    bench.store.read_units = read
    bench.passes(3000)
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


def test_a_batch_acknowledgement_takes_messages_of_several_queues(bench: PopBench) -> None:
    send(bench, "a", "b", "c")
    send(bench, "d", queue=1)
    found = bench.popped()
    entries = [
        {"b": encode_bits(bits), "c": "g", "it": 10_000, "pt": found[0].handle.pop_time_ms, "q": queue, "r": "0",
         "rq": found[0].handle.revive_queue, "so": 0, "t": "T"}
        for queue, bits in ((0, (0, 2, 9)), (1, (0,)))
    ]  # fmt: skip
    assert bench.ask(200151, None, json.dumps({"acks": entries, "brokerName": "b"}).encode()).code == 0
    bench.passes(11_000)
    assert bodies(bench.popped()) == ["b"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"", 208),
        (b"{", 29),
        (b'{"acks":[{"b":"***","c":"g","t":"T"}]}', 29),
        (b'{"acks":[{"b":"%s","c":"g","t":"T"}]}' % (b"A" * 4096), 29),
        (b'{"acks":{"x":1}}', 29),
    ],
)
def test_a_batch_acknowledgement_that_is_none_is_refused(bench: PopBench, body: bytes, code: int) -> None:
    send(bench, "a")
    assert bench.ask(200151, None, body).code == code


@pytest.mark.parametrize(
    "handle",
    ["", "1 2 3", "a b c d e f g h", "0 1 2 3 0 b", f"{'9' * 30} 1 2 3 0 b 0 0", "0 1 10000 5 0 b 0 0", "\0" * 100],
)
def test_a_forged_handle_acknowledges_nothing(bench: PopBench, handle: str) -> None:
    send(bench, "a")
    (message,) = bench.popped()
    assert bench.ack(message, extraInfo=handle).code in (0, 1)
    assert bench.change(message, 60_000, extraInfo=handle).code in (1, 208)
    assert bench.ack(message, group="another").code == 0
    bench.passes(11_000)
    assert bodies(bench.popped()) == ["a"]


@pytest.mark.parametrize("invisible_ms", [-1, 400 * 86_400_000, 2**63 - 1])
def test_an_invisible_time_that_cannot_be_kept_is_refused(bench: PopBench, invisible_ms: int) -> None:
    send(bench, "a")
    assert bench.ask_pop(invisibleTime=invisible_ms).code == 29
    (message,) = bench.popped()
    assert bench.change(message, invisible_ms).code == 1
    bench.ack(message)
    bench.passes(11_000)
    assert bench.popped() == []


def test_an_invisible_time_of_nothing_brings_the_message_again_at_once(bench: PopBench) -> None:
    send(bench, "a")
    assert bodies(bench.popped(invisibleTime=0)) == ["a"]
    bench.passes(100)
    assert bodies(bench.popped()) == ["a"]


def test_a_message_comes_again_when_the_last_millisecond_of_its_time_is_over(bench: PopBench) -> None:
    """Its consumer reads the wall clock, whose milliseconds begin at other moments than those of steady time: it saw
    messages one too early."""
    send(bench, "a")
    bench.popped(invisibleTime=1000)
    bench.passes(1000, step_ms=1)
    assert bench.popped() == []
    bench.passes(1, step_ms=1)
    assert bodies(bench.popped()) == ["a"]


def test_a_message_of_a_topic_that_was_made_again_is_not_taken_for_one_in_flight(bench: PopBench) -> None:
    """RocketMQ #8479, #7724."""
    send(bench, "a")
    bench.popped()
    assert bench.ask(215, {"topic": "T"}).code == 0
    send(bench, "other")
    bench.passes(11_000)
    assert bodies(bench.popped()) == ["other"]
    assert bench.popped() == []
    assert (bench.pop.reviving.revived, bench.pop.reviving.given_up) == (0, 0)


def test_groups_whose_retry_topics_have_one_name_get_their_own_messages(bench: PopBench) -> None:
    """RocketMQ #7543: `%RETRY%g_a_t` is that of (g_a, t) and of (g, a_t)."""
    send(bench, "one", topic="t")
    send(bench, "two", topic="a_t")
    assert bodies(bench.popped("t", "g_a")) + bodies(bench.popped("a_t", "g")) == ["one", "two"]
    bench.passes(10_100)
    assert bodies(bench.popped("t", "g_a")) == ["one"]
    assert bodies(bench.popped("a_t", "g")) == ["two"]


def test_retry_topics_of_the_second_kind(tmp_path: Path) -> None:
    bench = PopBench(tmp_path, settings={"enableRetryTopicV2": "true"})
    send(bench, "a")
    bench.popped()
    bench.begin = 51  # odd: not the old kind
    bench.passes(10_100)
    answer = bench.ask_pop()
    (again,) = popped(answer, "b")
    assert (answer.ext["startOffsetInfo"], again.handle.mark, again.message.topic) == ("2 0 0", "2", "T")
    assert bench.node.topics.get("%RETRY%g+T") is not None
    again.stored_topic = "%RETRY%g+T"
    bench.ack(again)
    bench.passes(11_000)
    assert bench.popped() == []
    bench.close()


def test_a_change_within_the_millisecond_of_the_pop_does_not_end_the_message(bench: PopBench) -> None:
    """RocketMQ #10276: the old and the new checkpoint must not have one name."""
    send(bench, "a")
    (message,) = bench.popped()
    longer = message.changed(bench.change(message, 10_000))
    assert longer.handle.pop_time_ms > message.handle.pop_time_ms
    bench.passes(10_100)
    assert bodies(bench.popped()) == ["a"]


def test_a_slave_hands_out_nothing(tmp_path: Path) -> None:
    bench = PopBench(tmp_path, settings={"brokerId": "1"}, broker_role="SLAVE")
    answer = bench.ask_pop()
    assert (answer.code, "slave" in answer.remark) == (1, True)
    bench.close()


def test_who_waits_is_answered_when_the_topic_is_deleted(bench: PopBench) -> None:
    send(bench, "a")
    bench.popped()
    link = Link()
    bench.tell(200050, bench.pop_fields(pollTime=60_000), link=link)
    bench.ask(215, {"topic": "T"})
    bench.passes(1100)
    (answer,) = link.take()
    assert answer.code == 17


def test_a_reset_moves_the_next_pop(bench: PopBench) -> None:
    send(bench, *"abcd")
    for message in bench.popped():
        bench.ack(message)
    fields = {"topic": "T", "group": "g", "timestamp": "0", "isForce": "true", "queueId": "0", "offset": "2"}
    assert bench.ask(222, fields).code == 0
    assert bodies(bench.popped()) == ["c", "d"]


def test_answers_wait_for_the_disk_under_synchronous_flush(tmp_path: Path) -> None:
    """Also those of an acknowledgement that repeats one which is not on the disk yet."""
    bench = PopBench(tmp_path, flush_disk_type="SYNC_FLUSH")

    def durable() -> list[Command]:
        bench.store.flush()
        bench.node.durable(bench.store.durable_offset)
        bench.settle()
        return bench.link.take()

    assert bench.tell(310, send_fields("T"), b"a") == []
    assert [answer.code for answer in durable()] == [0]
    assert bench.tell(200050, bench.pop_fields()) == []
    (message,) = popped(durable()[0], "b")
    assert bench.tell(200051, message.ack_fields("g")) == []
    repeated = bench.tell(200051, message.ack_fields("g"), settle=False)  # at once if the disk was quicker
    assert [answer.code for answer in repeated + durable()] == [0, 0]
    assert [answer.code for answer in bench.tell(200051, message.ack_fields("g"))] == [0]
    bench.close()


def test_a_pop_finds_what_the_same_wakeup_sent_and_dispatches_only_where_its_queue_has_ended(bench: PopBench) -> None:
    send(bench, "a", "b")
    bench.begin, link = 0, Link()
    one = bench.pop_fields(maxMsgNums=1)
    first = bench.popped(maxMsgNums=1)
    late = [bench.command(310, send_fields(e=0), b"c"), bench.command(POP, one)]
    bench.handlers.handle(link, late)
    assert bench.store.max_offset("T", 0) == 2  # there was a message for this pop
    bench.handlers.handle(link, [bench.command(POP, one)])
    _, *answers = link.take()
    later = [message for answer in answers for message in popped(answer, bench.config.broker_name)]
    assert bodies(first + later) == ["a", "b", "c"]


def test_a_group_that_begins_at_the_end_passes_over_what_the_same_wakeup_sent_before(tmp_path: Path) -> None:
    bench = PopBench(tmp_path, settings={"initPopOffsetByCheckMsgInMem": "false"})
    send(bench, "a", "b")
    link = Link()
    pop = bench.command(POP, bench.pop_fields(initMode=1))
    bench.handlers.handle(link, [bench.command(310, send_fields(e=0), b"c"), pop])
    _, answer = link.take()
    assert bodies(popped(answer, bench.config.broker_name)) == ["c"]  # the newest, as Apache's broker does
    bench.close()
