"""POP when a topic or a group is deleted and made again: nothing of the old life counts in the new one."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from broker.harness import Link
from broker.pop_bench import POP, PopBench, Popped
from broker.test_pop import bodies, send

NEW_TOPIC = {
    "topic": "T", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6",
    "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
}  # fmt: skip
OLD = [f"old{number}" for number in range(6)]
NEW = [f"new{number}" for number in range(8)]
HOUR_MS = 3_600_000


class Slow(Executor):
    """Reads when it is told to."""

    def __init__(self) -> None:
        self._given: list[tuple[Future[Any], Any]] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._given.append((future, lambda: fn(*args, **kwargs)))
        return future

    def read(self) -> None:
        """Only what was given up to now."""
        given, self._given = self._given, []
        for future, work in given:
            future.set_result(work())


def made(path: Path) -> PopBench:
    bench = PopBench(path)
    bench.node.offset_journal.open()
    assert bench.ask(17, NEW_TOPIC).code == 0
    return bench


def make_again(bench: PopBench) -> None:
    delete(bench)
    assert bench.ask(17, NEW_TOPIC).code == 0


def delete(bench: PopBench) -> None:
    bench.clock.advance(10)
    assert bench.ask(215, {"topic": "T"}).code == 0
    bench.clock.advance(10)


def delete_group(bench: PopBench, *, with_offsets: bool) -> None:
    fields = {"groupName": "g", "cleanOffset": "true" if with_offsets else "false"}
    bench.clock.advance(10)
    assert bench.ask(207, fields).code == 0
    bench.clock.advance(10)


def picture(path: Path) -> Path:
    return path / "store" / "config" / "pop.json"


def again(path: Path, bench: PopBench, how: str) -> PopBench:
    """A broker after another: `how` says how that ended, and which picture it left."""
    if "kill" in how:
        bench.kill()
    else:
        bench.close()
    if "no picture" in how:
        picture(path).unlink(missing_ok=True)
    bench.clock.advance(200)
    fresh = PopBench(path, clock=bench.clock)
    fresh.node.offset_journal.open()
    return fresh


def fifo(bench: PopBench, count: int = 32) -> list[Popped]:
    return bench.popped(order="true", invisibleTime=HOUR_MS, maxMsgNums=count)


ENDS = ["stop", "stop, no picture", "kill", "kill, no picture"]


@pytest.mark.parametrize("how", [*ENDS, "no restart"])
@pytest.mark.parametrize("is_popped_anew", [False, True], ids=["untouched", "popped anew"])
def test_a_topic_that_is_made_again_is_popped_from_its_first_message(
    tmp_path: Path, how: str, *, is_popped_anew: bool
) -> None:
    bench = made(tmp_path)
    send(bench, *OLD)
    assert bodies(bench.popped(invisibleTime=HOUR_MS)) == OLD
    bench.passes(6000)  # the committed offset follows, and a picture is due
    bench.run(bench.saver.save())
    make_again(bench)
    send(bench, *NEW)
    first = bench.popped(invisibleTime=HOUR_MS, maxMsgNums=2) if is_popped_anew else []
    if how != "no restart":
        bench = again(tmp_path, bench, how)
    assert bodies(first) + bodies(bench.popped()) == NEW
    assert bench.pop.in_flight.messages == len(NEW)
    bench.close()


def test_a_picture_of_before_the_deletion_says_nothing_of_the_new_topic(tmp_path: Path) -> None:
    """The kill came after the file of offsets and before the picture."""
    bench = made(tmp_path)
    send(bench, *OLD)
    assert bodies(bench.popped(invisibleTime=HOUR_MS)) == OLD
    bench.passes(6000)
    bench.run(bench.saver.save("pop.json"))
    kept = picture(tmp_path).read_bytes()
    make_again(bench)
    send(bench, *NEW)
    bench.kill()
    picture(tmp_path).write_bytes(kept)
    bench = PopBench(tmp_path, clock=bench.clock)
    assert bodies(bench.popped()) == NEW
    assert bench.pop.in_flight.messages == len(NEW)
    bench.close()


@pytest.mark.parametrize("how", ENDS)
def test_what_the_timer_delivered_after_the_deletion_is_of_the_old_life_too(tmp_path: Path, how: str) -> None:
    """The timer copies the checkpoint to the revive log shortly before its messages are due."""
    bench = made(tmp_path)
    send(bench, *OLD)
    assert bodies(bench.popped(invisibleTime=4000)) == OLD
    make_again(bench)
    bench.passes(3500)
    assert sum(bench.store.max_offset(bench.pop.log.topic, number) for number in range(8)) == 1
    send(bench, *NEW)
    bench = again(tmp_path, bench, how)
    assert bench.pop.in_flight.messages == 0
    assert bodies(bench.popped()) == NEW
    bench.close()


@pytest.mark.parametrize("how", ["no restart", *ENDS])
def test_an_old_handle_keeps_no_message_of_the_new_topic(tmp_path: Path, how: str) -> None:
    bench = made(tmp_path)
    send(bench, "old")
    (old,) = bench.popped(invisibleTime=HOUR_MS)
    make_again(bench)
    send(bench, "new")
    if how != "no restart":
        bench = again(tmp_path, bench, how)
    assert bench.change(old, 1000).code == 208
    assert bench.ack(old).code == 0
    assert bodies(bench.popped(invisibleTime=HOUR_MS)) == ["new"]
    bench.passes(3000)
    assert bench.popped() == []
    assert (bench.pop.in_flight.messages, bench.pop.reviving.revived) == (1, 0)
    bench.close()


@pytest.mark.parametrize("how", ["no restart", *ENDS])
@pytest.mark.parametrize("is_popped_anew", [False, True], ids=["untouched", "popped anew"])
def test_fifo_acknowledgements_of_the_old_life_move_nothing_in_the_new_one(
    tmp_path: Path, how: str, *, is_popped_anew: bool
) -> None:
    bench = made(tmp_path)
    send(bench, "old0", "old1")
    old = fifo(bench)
    assert bodies(old) == ["old0", "old1"]
    make_again(bench)
    send(bench, *NEW)
    if is_popped_anew:
        assert bodies(fifo(bench)) == NEW
    if how != "no restart":
        bench = again(tmp_path, bench, how)
    assert [bench.ack(message).code for message in old] == [0, 0]
    assert [bench.change(message, 1000).code for message in old] == [0, 0]
    assert bench.node.offsets.query("g", "T", 0) in (None, 0)
    bench.passes(1500)
    assert bodies(fifo(bench)) == ([] if is_popped_anew else NEW)
    bench.close()


@pytest.mark.parametrize("how", ["no restart", *ENDS])
def test_a_fifo_batch_of_the_old_life_blocks_nothing_in_the_new_one(tmp_path: Path, how: str) -> None:
    bench = made(tmp_path)
    send(bench, *OLD)
    assert bodies(fifo(bench)) == OLD
    make_again(bench)
    send(bench, *NEW)
    if how != "no restart":
        bench = again(tmp_path, bench, how)
    assert bodies(fifo(bench)) == NEW
    bench.close()


def test_what_a_worker_read_of_a_topic_that_was_deleted_meanwhile_is_not_handed_out(tmp_path: Path) -> None:
    bench = made(tmp_path)
    send(bench, *OLD)
    slow = Slow()
    bench.pop.popping._cold._workers = slow
    warm = bench.store.get_slices_warm
    bench.store.get_slices_warm = lambda *args, **fields: None  # type: ignore[method-assign]
    link = Link(port=40_001)
    assert bench.tell(POP, bench.pop_fields(), link=link) == []
    make_again(bench)
    send(bench, *NEW)
    slow.read()
    bench.run(link.replied(1))
    (answer,) = link.take()
    assert answer.code == 210, "nothing was found"
    assert bench.pop.in_flight.messages == 0
    bench.store.get_slices_warm = warm  # type: ignore[method-assign]
    assert bodies(bench.popped()) == NEW
    bench.close()


@pytest.mark.parametrize("is_made_again", [False, True])
@pytest.mark.parametrize("how", ["no restart", "stop", "kill"])
def test_a_group_that_is_deleted_with_its_offsets_begins_anew(tmp_path: Path, how: str, is_made_again: bool) -> None:
    bench = made(tmp_path)
    send(bench, *OLD)
    assert bodies(bench.popped(invisibleTime=HOUR_MS, maxMsgNums=4)) == OLD[:4]
    bench.passes(6000)
    delete_group(bench, with_offsets=True)
    if is_made_again:
        bench.node.group_to_read("g")
    if how != "no restart":
        bench = again(tmp_path, bench, how)
    assert bench.pop.in_flight.messages == 0
    assert bodies(bench.popped()) == OLD
    bench.close()


def test_under_sync_flush_no_checkpoint_of_a_deleted_group_comes_back(tmp_path: Path) -> None:
    """Its queue has the checkpoint only when the disk does, maybe after the picture that forgets it."""
    bench = made(tmp_path)
    send(bench, *OLD)
    assert bodies(bench.popped(invisibleTime=HOUR_MS)) == OLD
    delete_group(bench, with_offsets=True)
    bench.node.group_to_read("g")
    known = picture(tmp_path).read_text()
    bench.kill()
    timer_end = int(known.split('"timer_offset":')[1].split(",")[0])
    assert timer_end == 1
    picture(tmp_path).write_text(known.replace('"timer_offset":1', '"timer_offset":0'))
    bench = PopBench(tmp_path, clock=bench.clock)
    assert bench.pop.in_flight.messages == 0
    assert bodies(bench.popped()) == OLD
    bench.close()


def test_a_group_that_is_deleted_without_its_offsets_goes_on(tmp_path: Path) -> None:
    bench = made(tmp_path)
    send(bench, *OLD)
    assert bodies(bench.popped(invisibleTime=5000, maxMsgNums=4)) == OLD[:4]
    bench.store.flush()
    bench.turn()
    delete_group(bench, with_offsets=False)
    assert bodies(bench.popped(invisibleTime=HOUR_MS)) == OLD[4:]
    bench.passes(5100)
    assert sorted(bodies(bench.popped())) == OLD[:4]
    bench.close()


def test_a_fifo_batch_of_a_group_that_was_deleted_with_its_offsets_counts_no_more(tmp_path: Path) -> None:
    bench = made(tmp_path)
    send(bench, *OLD)
    old = fifo(bench, count=2)
    delete_group(bench, with_offsets=True)
    bench.node.group_to_read("g")
    assert [bench.ack(message).code for message in old] == [0, 0]
    assert bodies(fifo(bench)) == OLD
    bench.close()


# --- retry topics


def with_retries(path: Path, **settings: str) -> PopBench:
    """A message waits in a retry topic of each kind."""
    bench = PopBench(path, settings=settings)
    bench.node.offset_journal.open()
    assert bench.ask(17, NEW_TOPIC).code == 0
    for is_v2 in (False, True):
        bench.config.enable_retry_topic_v2 = is_v2
        send(bench, "old")
        assert len(bench.popped(invisibleTime=1000, maxMsgNums=1)) == 1
        bench.passes(1100)
    assert {"%RETRY%g_T", "%RETRY%g+T"} <= {topic.name for topic in bench.node.topics}
    return bench


def of_both_kinds(bench: PopBench) -> list[str]:
    """A pop looks into one of the two retry topics."""
    bench.config.enable_retry_topic_v2 = True
    found = []
    for bench.begin in (50, 51):
        found += bodies(bench.popped())
    return found


@pytest.mark.parametrize("how", ["no restart", *ENDS])
def test_what_waits_in_the_retry_topics_goes_with_the_topic(tmp_path: Path, how: str) -> None:
    bench = with_retries(tmp_path)
    make_again(bench)
    assert not {"%RETRY%g_T", "%RETRY%g+T"} & {topic.name for topic in bench.node.topics}
    send(bench, "new")
    if how != "no restart":
        bench = again(tmp_path, bench, how)
    assert of_both_kinds(bench) == ["new"]
    bench.close()


def test_a_setting_has_retry_topics_stay(tmp_path: Path) -> None:
    bench = with_retries(tmp_path, clearRetryTopicWhenDeleteTopic="false")
    make_again(bench)
    assert of_both_kinds(bench) == ["old", "old"]
    bench.close()


def test_a_retry_topic_that_another_topic_has_too_stays(tmp_path: Path) -> None:
    """`%RETRY%g_a_t` is that of (g_a, t) and of (g, a_t)."""
    bench = PopBench(tmp_path)
    send(bench, "one", topic="t")
    send(bench, "two", topic="a_t")
    assert bodies(bench.popped("t", "g_a")) + bodies(bench.popped("a_t", "g")) == ["one", "two"]
    bench.passes(10_100)
    assert bench.ask(215, {"topic": "t"}).code == 0
    assert bodies(bench.popped("a_t", "g")) == ["two"]
    bench.close()


def test_a_groups_own_retry_topic_stays(tmp_path: Path) -> None:
    """`%RETRY%g_T` is also where group g_T gets again what it pulled."""
    bench = with_retries(tmp_path)
    bench.node.group_to_read("g_T")
    delete(bench)
    names = {topic.name for topic in bench.node.topics}
    assert "%RETRY%g_T" in names
    assert "%RETRY%g+T" not in names
    bench.close()
