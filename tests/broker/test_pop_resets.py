"""An operator sets where a group of POP goes on: by a reset (222), or by storing an offset (15) as no member of it.

What was answered holds, also after a kill or a power failure at that moment. Exactly the messages from there on come.
"""

from __future__ import annotations

import json
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from broker.harness import Link
from broker.pop_bench import PopBench, popped
from broker.test_pop import bodies, send
from broker.test_pop_restarts import again, drained
from contrailmq.broker.pop.revive_log import REVIVE_GROUP
from contrailmq.broker.state.offsets import OFFSETS_FILE, OffsetTable
from contrailmq.store import truncate_store
from contrailmq.wire.header import Command

RESET, SET = 222, 15
BOTH = pytest.mark.parametrize("code", [RESET, SET], ids=["reset", "set"])


def move(bench: PopBench, code: int, offset: int, *, group: str = "g", link: Link | None = None) -> Command:
    if code == RESET:
        fields = {"topic": "T", "group": group, "timestamp": 0, "isForce": True, "queueId": 0, "offset": offset}
    else:
        fields = {"topic": "T", "consumerGroup": group, "queueId": 0, "commitOffset": offset}
    answer = bench.ask(code, {name: str(value) for name, value in fields.items()}, link=link or Link(50_000))
    assert answer.code == 0, answer.remark
    return answer


def popped_and_acknowledged(bench: PopBench, *counts: int) -> None:
    for count in counts:
        found = bench.popped(maxMsgNums=count)
        assert len(found) == count
        for message in found:
            assert bench.ack(message).code == 0


def config(path: Path) -> Path:
    return path / "store" / "config"


def rest(bench: PopBench) -> list[str]:
    return bodies(drained(bench, 20_000))


# --- at once


@BOTH
def test_a_group_goes_on_where_it_was_set_also_if_that_is_its_committed_offset(tmp_path: Path, code: int) -> None:
    """The committed offset is half a second behind the group: setting it to the same number changed nothing."""
    bench = PopBench(tmp_path)
    send(bench, *"abcd")
    popped_and_acknowledged(bench, 2)
    assert bench.node.offsets.stored("T@g", 0) == 0
    move(bench, code, 0)
    bench.store.flush()
    bench.turn()
    assert rest(bench) == ["a", "b", "c", "d"]
    bench.close()


class Slow(Executor):
    """Its reads are done when a test says so."""

    def __init__(self) -> None:
        self.waiting: list[Any] = []

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, fn))
        return future

    def finish(self) -> None:
        for future, read in self.waiting:
            future.set_result(read())
        self.waiting.clear()


@BOTH
def test_what_a_worker_reads_when_a_group_is_set_back_is_dropped(tmp_path: Path, code: int) -> None:
    """It would move the group behind the messages that were asked for."""
    readers = Slow()
    bench = PopBench(tmp_path)
    send(bench, *"abcd")
    popped_and_acknowledged(bench, 2)
    bench.pop.popping._cold._workers = readers  # type: ignore[attr-defined]
    warm = bench.store.get_slices_warm
    bench.store.get_slices_warm = lambda *args, **fields: None  # type: ignore[method-assign,assignment]
    link = Link()
    assert bench.tell(200050, bench.pop_fields(maxMsgNums=1), link=link) == []
    bench.store.get_slices_warm = warm  # type: ignore[method-assign]
    move(bench, code, 0)

    async def finished() -> None:
        readers.finish()
        await link.replied(1)

    bench.run(finished())
    assert popped(link.take()[0], "b") == []
    assert rest(bench) == ["a", "b", "c", "d"]
    bench.close()


@BOTH
def test_a_fifo_batch_of_before_moves_the_group_no_more(tmp_path: Path, code: int) -> None:
    bench = PopBench(tmp_path)
    send(bench, *"abcd")
    batch = bench.popped(order="true", maxMsgNums=3)
    move(bench, code, 1)
    for message in batch:
        assert bench.ack(message).code == 0
    assert bodies(bench.popped(order="true")) == ["b", "c", "d"]
    bench.close()


def test_a_member_that_pulls_sets_no_offset_by_hand(tmp_path: Path) -> None:
    """Members commit what they have done. One that pulls in a group that pops must not bring back what is in flight."""
    bench = PopBench(tmp_path)
    send(bench, *"ab")
    bench.popped()
    member = Link(50_001)
    bench.heartbeat("T", link=member)
    move(bench, SET, 0, link=member)
    assert bench.popped() == []
    bench.close()


# --- after a kill


@BOTH
@pytest.mark.parametrize("picture", ["picture", "earlier picture", "log alone"])
@pytest.mark.parametrize("is_saved", [True, False], ids=["saved since", "not saved"])
@pytest.mark.parametrize("offset", [0, 1, 2, 4, 6])
def test_a_kill_undoes_nothing(tmp_path: Path, code: int, picture: str, is_saved: bool, offset: int) -> None:
    """To where the group began, to where a pop began, in the middle of one, to the end, forward. The offsets are saved
    before the picture: a kill in between leaves an earlier one."""
    bench = PopBench(tmp_path)
    send(bench, *"abcdef")
    popped_and_acknowledged(bench, 2, 2)
    if is_saved:
        bench.store.flush()
        bench.passes(6000)
    bench.run(bench.saver.save("pop.json"))
    file = config(tmp_path) / "pop.json"
    before = file.read_bytes()
    move(bench, code, offset)
    bench.kill()
    if picture == "earlier picture":
        file.write_bytes(before)
    elif picture == "log alone":
        file.unlink()
    bench = again(tmp_path, bench)
    assert rest(bench) == list("abcdef"[offset:])
    bench.close()


@BOTH
def test_a_clean_restart_undoes_nothing(tmp_path: Path, code: int) -> None:
    bench = PopBench(tmp_path)
    send(bench, *"abcd")
    popped_and_acknowledged(bench, 2, 2)
    move(bench, code, 0)
    bench.close()
    bench = PopBench(tmp_path, clock=bench.clock)
    assert rest(bench) == ["a", "b", "c", "d"]
    bench.close()


@BOTH
@pytest.mark.parametrize("keeps_picture", [True, False], ids=["picture", "log alone"])
def test_a_kill_after_some_were_popped_again_skips_none_and_repeats_none(
    tmp_path: Path, code: int, keeps_picture: bool
) -> None:
    """What the log has from before says that the group was further."""
    bench = PopBench(tmp_path)
    send(bench, *"abcdef")
    popped_and_acknowledged(bench, 2, 4)
    move(bench, code, 0)
    popped_and_acknowledged(bench, 1, 2)
    bench.kill()
    if not keeps_picture:
        (config(tmp_path) / "pop.json").unlink(missing_ok=True)
    bench = again(tmp_path, bench)
    assert rest(bench) == ["d", "e", "f"]
    bench.close()


@BOTH
def test_keeping_a_message_of_before_longer_moves_no_position(tmp_path: Path, code: int) -> None:
    """A change writes a checkpoint too, of a message that may lie before or behind the group."""
    bench = PopBench(tmp_path)
    send(bench, *"abcdef")
    *others, last = bench.popped()
    for message in others:
        bench.ack(message)
    move(bench, code, 0)
    assert bench.change(last, 15_000).code == 0
    popped_and_acknowledged(bench, 2)
    bench = again(tmp_path, bench)
    assert sorted(rest(bench)) == ["c", "d", "e", "f"]
    bench.close()


@BOTH
def test_a_fifo_queue_waits_for_no_batch_of_before_after_a_kill(tmp_path: Path, code: int) -> None:
    bench = PopBench(tmp_path)
    send(bench, *"abcd")
    batch = bench.popped(order="true", maxMsgNums=3)
    bench.run(bench.saver.save("consumerOrderInfo.json"))
    move(bench, code, 1)
    bench = again(tmp_path, bench)
    for message in batch:
        assert bench.ack(message).code == 0
    assert bodies(bench.popped(order="true")) == ["b", "c", "d"]
    bench.close()


# --- after worse


@BOTH
def test_a_power_failure_undoes_nothing(tmp_path: Path, code: int) -> None:
    """It takes the end of the log and with it the picture's worth; later records lie at the places of lost ones."""
    bench = PopBench(tmp_path)
    send(bench, *"abcdef")
    popped_and_acknowledged(bench, 2, 2)
    bench.store.flush()
    bench.turn()
    durable = bench.store.appended_offset
    popped_and_acknowledged(bench, 1)
    move(bench, code, 0)
    for path in config(tmp_path).glob("offsets.journal.*"):
        path.unlink()
    bench.kill()
    truncate_store(bench.store.config, durable)
    bench = again(tmp_path, bench)
    popped_and_acknowledged(bench, 3)
    assert bench.store.appended_offset > durable
    bench = again(tmp_path, bench)
    assert rest(bench) == ["d", "e", "f"]
    bench.close()


def test_a_power_failure_that_takes_the_end_of_the_orders_journal_brings_no_batch_back(tmp_path: Path) -> None:
    """The file is saved without the batch; the journal has it, and the entry that forgets it only if it was synced."""
    bench = PopBench(tmp_path)
    (journal,) = config(tmp_path).glob("orders.journal.1")
    send(bench, *"abcd")
    batch = bench.popped(order="true", maxMsgNums=3)
    durable = [journal.stat().st_size]
    assert durable != [0]

    def sync(descriptor: int) -> None:
        if Path(f"/proc/self/fd/{descriptor}").readlink() == journal.resolve():
            durable[0] = journal.stat().st_size

    bench.store.files.sync = sync  # type: ignore[method-assign]
    move(bench, RESET, 1)
    bench.kill()
    with journal.open("r+b") as file:
        file.truncate(durable[0])
    bench = again(tmp_path, bench)
    for message in batch:
        assert bench.ack(message).code == 0
    assert bodies(bench.popped(order="true")) == ["b", "c", "d"]
    bench.close()


@BOTH
def test_apaches_broker_in_between_undoes_nothing(tmp_path: Path, code: int) -> None:
    """It saves its own offsets, without what only we know, and commits revived messages: only the log counts then."""
    bench = PopBench(tmp_path)
    send(bench, *"abcd")
    popped_and_acknowledged(bench, 2, 2)
    move(bench, code, 0)
    bench.close()
    path = config(tmp_path) / OFFSETS_FILE
    file = json.loads(path.read_text())
    table = file["offsetTable"] | {f"{bench.pop.log.topic}@{REVIVE_GROUP}": {"0": 4711}}
    path.write_text(json.dumps({"dataVersion": file["dataVersion"], "offsetTable": table}))
    bench = PopBench(tmp_path, clock=bench.clock)
    assert rest(bench) == ["a", "b", "c", "d"]
    bench.close()


@BOTH
def test_a_slave_knows_of_it(tmp_path: Path, code: int) -> None:
    bench = PopBench(tmp_path)
    send(bench, *"abcd")
    popped_and_acknowledged(bench, 2, 2)
    bench.store.flush()
    bench.turn()
    slave = OffsetTable(now_ms=bench.clock.now_ms)
    slave.read(bench.node.offsets.to_json())
    move(bench, code, 4)  # its committed offset already
    masters = OffsetTable(now_ms=bench.clock.now_ms)
    masters.read(bench.node.offsets.to_json())
    assert slave.take_over(masters)
    assert slave.to_json() == bench.node.offsets.to_json()
    assert slave.set_by_hand_at("T@g", 0) == bench.store.appended_offset
    bench.close()


def test_what_is_known_of_it_goes_with_the_log_and_with_the_group(tmp_path: Path) -> None:
    bench = PopBench(tmp_path)
    send(bench, *"ab")
    popped_and_acknowledged(bench, 2)
    move(bench, RESET, 0)
    offsets, end = bench.node.offsets, bench.store.appended_offset
    offsets.fit_set_by_hand(0, end - 1)
    assert offsets.set_by_hand_at("T@g", 0) == end - 1
    offsets.fit_set_by_hand(end - 1, end)
    assert offsets.set_by_hand_at("T@g", 0) == 0
    move(bench, RESET, 1)
    offsets.remove_group("g")
    assert "setByHand" not in offsets.to_json()
    bench.close()


def test_offsets_that_are_cloned_hold_after_a_kill_too(tmp_path: Path) -> None:
    bench = PopBench(tmp_path)
    send(bench, *"abcd")
    assert [message.body for message in bench.popped(group="other", maxMsgNums=2)] == [b"a", b"b"]
    popped_and_acknowledged(bench, 2, 2)
    bench.store.flush()
    bench.turn()
    assert bench.ask(314, {"srcGroup": "other", "destGroup": "g", "topic": "T", "offline": "false"}).code == 0
    bench = again(tmp_path, bench)
    assert rest(bench) == ["c", "d"]
    bench.close()
