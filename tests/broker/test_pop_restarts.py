"""POP across restarts: kills at each step, power failures, and Apache's stores with messages in flight.

A kill leaves the log as it is and none of the tables that were not saved. `crash_after` ends a broker in the middle of
a step: the store takes so many more records, and then the process is gone.
"""

from __future__ import annotations

import json
import tarfile
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

import pytest

from broker.pop_bench import PopBench, Popped
from broker.test_pop import bodies, send, stored
from contrailmq.message import SystemTopic
from contrailmq.store import AppendResult, decode_checkpoint, encode_checkpoint, truncate_store
from contrailmq.store.base.clock import ManualClock

GOLDEN = Path(__file__).parents[1] / "golden"


class Stuck(Executor):
    """Its reads come to no end."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        return Future()


class Killed(BaseException):
    """The process ends here."""


def crash_after(bench: PopBench, records: int) -> None:
    """Let the broker write so many records, and end it before the next."""
    left = [records]
    append = bench.store.append

    def counted(*args: Any, **fields: Any) -> AppendResult:
        if not left[0]:
            raise Killed
        left[0] -= 1
        return append(*args, **fields)

    bench.store.append = counted


def again(path: Path, bench: PopBench, **settings: object) -> PopBench:
    """A broker after a kill of `bench`, a moment later."""
    if not bench.is_stopped:
        bench.kill()
    bench.clock.advance(200)
    return PopBench(path, clock=bench.clock, **settings)  # type: ignore[arg-type]


def drained(bench: PopBench, milliseconds: int = 70_000, group: str = "g", topic: str = "T") -> list[Popped]:
    """Everything that comes within a time, each message acknowledged."""
    found = []
    for _ in range(milliseconds // 500):
        for message in bench.popped(topic, group):
            found.append(message)
            bench.ack(stored(message, group), group)
        bench.passes(500, step_ms=100)
    return found


def test_a_kill_loses_nothing_and_repeats_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    bench = PopBench(tmp_path)
    send(bench, "a", "b", "c", "d")
    a, b, _ = bench.popped(maxMsgNums=3)
    bench.ack(a)
    longer = b.changed(bench.change(b, 20_000))
    bench = again(tmp_path, bench)
    assert bench.pop.in_flight.messages == 2
    bench.ack(longer)
    assert bodies(drained(bench)) == ["d", "c"]
    bench.close()


def test_a_picture_and_the_log_say_the_same(tmp_path: Path) -> None:
    """With the picture of a moment before, and without any."""
    bench = PopBench(tmp_path)
    send(bench, *"abcdef")
    first = bench.popped(maxMsgNums=3)
    bench.ack(first[0])
    bench.passes(6000)  # a picture is saved
    bench.saver.save_all_now()
    second = bench.popped(maxMsgNums=2)
    bench.ack(first[1])
    bench.ack(second[1])
    expected = {offset: one.pop_time_ms for one in bench.pop.in_flight.all() for offset in one.offsets}
    bench.kill()
    seen = []
    for without_picture in (False, True):
        if without_picture:
            for path in (tmp_path / "store" / "config").glob("pop.json*"):
                path.unlink()
        fresh = PopBench(tmp_path, clock=bench.clock)
        queue = fresh.pop.in_flight.queues["T", "g", 0]
        seen.append((sorted(queue.waiting), queue.next_offset))
        fresh.kill()
    assert seen == [([2, 3], 5), ([2, 3], 5)]
    assert set(seen[0][0]) < set(expected)


@pytest.mark.parametrize("records", [0, 1])
def test_a_kill_between_a_copy_and_its_acknowledgement_gives_the_message_once(tmp_path: Path, records: int) -> None:
    bench = PopBench(tmp_path)
    send(bench, "a")
    bench.popped(invisibleTime=2000)
    bench.passes(1900)
    crash_after(bench, records)
    with pytest.raises(Killed):
        bench.passes(200)
    bench = again(tmp_path, bench)
    assert bodies(drained(bench)) == ["a"]
    bench.close()


@pytest.mark.parametrize("records", [0, 1])
def test_a_kill_between_the_records_of_a_change_gives_the_message_once(tmp_path: Path, records: int) -> None:
    bench = PopBench(tmp_path)
    send(bench, "a", "b")
    _, b = bench.popped(invisibleTime=5000)
    crash_after(bench, records)
    with pytest.raises(Killed):
        bench.change(b, 30_000)
    bench = again(tmp_path, bench)
    assert sorted(bodies(drained(bench))) == ["a", "b"]
    bench.close()


def test_a_kill_before_the_checkpoint_leaves_the_messages_in_the_queue(tmp_path: Path) -> None:
    bench = PopBench(tmp_path)
    send(bench, "a")
    crash_after(bench, 0)
    with pytest.raises(Killed):
        bench.popped()
    bench = again(tmp_path, bench)
    assert [(one.body, one.message.reconsume_times) for one in drained(bench)] == [(b"a", 0)]
    bench.close()


def test_the_committed_offset_waits_for_the_disk(tmp_path: Path) -> None:
    """A power failure may take the checkpoint: the messages must then still lie before the group."""
    bench = PopBench(tmp_path)
    send(bench, "a")
    bench.popped()
    assert bench.node.offsets.stored("T@g", 0) == 0
    bench.store.flush()
    bench.turn()
    assert bench.node.offsets.stored("T@g", 0) == 1
    bench.close()


def test_a_power_failure_that_takes_the_journal_of_offsets_moves_no_group_back(tmp_path: Path) -> None:
    """The picture is durable, the journal is not: an offset that is older than the picture looks like a reset."""
    bench = PopBench(tmp_path)
    send(bench, "a", "b")
    for _ in "ab":
        (message,) = bench.popped(maxMsgNums=1)
        bench.run(bench.saver.save("consumerOffset.json"))
        bench.ack(message)
        bench.store.flush()
        bench.turn()
    bench.run(bench.saver.save("pop.json"))
    bench = again(tmp_path, bench)
    assert bodies(drained(bench)) == []
    bench.close()


def test_a_picture_that_knows_what_a_power_failure_took_does_not_count(tmp_path: Path) -> None:
    """Under SYNC_FLUSH a message had come again when a sync failed: its copy was lost with the power. Tables could be
    saved once more before that, and no queue had the copy yet (sync-error alone, seed 1 of one minute)."""
    bench = PopBench(tmp_path)
    send(bench, "a")
    assert len(bench.popped(invisibleTime=3000)) == 1
    bench.passes(2900)
    bench.store.flush()
    durable, timer_end = bench.store.appended_offset, bench.store.max_offset(SystemTopic.TIMER, 0)
    bench.passes(200)
    assert bench.pop.reviving.revived == 1
    bench.run(bench.saver.save("pop.json"))
    bench.kill()
    picture = tmp_path / "store" / "config" / "pop.json"
    picture.write_text(json.dumps(json.loads(picture.read_text()) | {"timer_offset": timer_end}))
    truncate_store(bench.store.config, durable)
    bench = again(tmp_path, bench)
    assert bodies(drained(bench, 10_000)) == ["a"]
    bench.close()


@pytest.mark.parametrize("is_read", [False, True], ids=["the store takes nothing", "a read that does not end"])
def test_what_cannot_come_again_yet_is_not_done_for_whoever_reads_the_log_alone(tmp_path: Path, is_read: bool) -> None:
    """The commit of the revive log moved past it, and a start without a picture, Apache's too, took it for done
    (sync-error, seed 307 of ten minutes)."""
    bench = PopBench(tmp_path)
    send(bench, "a", "b")
    bench.popped(invisibleTime=3000, maxMsgNums=1)
    bench.passes(2500)
    (checkpoint,) = bench.pop.in_flight.all()
    assert bench.store.max_offset(bench.pop.log.topic, checkpoint.revive_queue) == 1
    if is_read:
        bench.store.is_resident = lambda place: False  # type: ignore[method-assign]
        bench.pop.reviving._readers = Stuck()
    else:
        bench.store.set_disk_full("the disk is full")
    bench.passes(60_000, step_ms=200)
    bench.run(bench.saver.save("consumerOffset.json"))
    bench.kill()
    (tmp_path / "store" / "config" / "pop.json").unlink(missing_ok=True)
    bench = again(tmp_path, bench)
    assert sorted(bodies(drained(bench))) == ["a", "b"]
    bench.close()


def test_what_a_slave_that_stood_in_handed_elsewhere_comes_again_when_it_is_made_the_master(tmp_path: Path) -> None:
    """Its timer went on, but the copies of POP's records went to another group, which has no use for them."""
    bench = PopBench(tmp_path)
    send(bench, "a", "b", "c", "d")
    a, _, _ = bench.popped(invisibleTime=4000, maxMsgNums=3)
    bench.ack(a)
    bench.passes(2000)
    (d,) = bench.popped(invisibleTime=4000)
    bench.passes(2500)  # the first three were delivered here
    assert any(bench.store.max_offset(bench.pop.log.topic, queue_id) for queue_id in range(8))
    bench.run(bench.saver.save("consumerOffset.json"))
    bench.timers.timer.flush(bench.clock.now_ms())
    bench.kill()
    (tmp_path / "store" / "config" / "pop.json").unlink(missing_ok=True)
    path = tmp_path / "store" / "config" / "timercheck"
    stood_in = decode_checkpoint(path.read_bytes())
    bench.clock.advance(20_000)
    path.write_bytes(encode_checkpoint(stood_in._replace(read_time_ms=bench.clock.now_ms())))
    bench = again(tmp_path, bench)
    assert sorted(bodies(drained(bench))) == ["b", "c", d.message.body.decode()]
    bench.close()


def test_a_stop_leaves_offsets_where_the_groups_are(tmp_path: Path) -> None:
    """Apache's broker knows no picture: it goes on from the file."""
    bench = PopBench(tmp_path)
    send(bench, "a", "b")
    bench.popped()
    bench.close()
    offsets = json.loads((tmp_path / "store" / "config" / "consumerOffset.json").read_text())
    assert offsets["offsetTable"]["T@g"]["0"] == 2


def test_a_reset_counts_also_after_a_kill(tmp_path: Path) -> None:
    bench = PopBench(tmp_path)
    send(bench, *"abcd")
    for message in bench.popped():
        bench.ack(message)
    bench.store.flush()
    bench.turn()
    bench.node.offset_journal.open()
    bench.node.offsets.reset("g", "T", 0, 2)
    bench.node.offset_journal.note()
    bench = again(tmp_path, bench)
    assert bodies(drained(bench)) == ["c", "d"]
    bench.close()


def test_invisible_times_follow_time_that_passes_and_not_the_clock(tmp_path: Path) -> None:
    bench = PopBench(tmp_path)
    send(bench, "a", "b")
    bench.popped(maxMsgNums=1)
    bench.clock.set_wall(bench.clock.now_ms() + 3_600_000)
    bench.turn()
    assert bodies(bench.popped(maxMsgNums=1)) == ["b"]
    bench.clock.set_wall(bench.clock.now_ms() - 7_200_000)
    bench.passes(9_900)
    assert bench.popped(bornTime=0) == []
    bench.passes(200)
    assert sorted(bodies(bench.popped(bornTime=0))) == ["a", "b"]
    bench.close()


def test_in_the_revive_log_no_acknowledgement_is_before_its_checkpoint(tmp_path: Path) -> None:
    """Apache's broker passes over one that is. The timer is behind when a broker starts long after the time."""
    bench = PopBench(tmp_path)
    send(bench, "a", "b")
    a, _ = bench.popped(invisibleTime=5000)
    bench.ack(a)
    bench.close()
    bench.clock.advance(60_000)
    bench = PopBench(tmp_path, clock=bench.clock)
    assert bodies(drained(bench, 10_000)) == ["b"]
    tags = [
        [message.tags for message in bench.store.get("rmq_sys_REVIVE_LOG_C", queue_id, 0, 32)] for queue_id in range(8)
    ]
    assert ["ck", "ack", "ack"] in tags
    bench.close()


# --- Apache's stores


def unpacked(name: str, path: Path) -> dict[str, object]:
    with tarfile.open(GOLDEN / f"{name}.tar.gz") as archive:
        archive.extractall(path)
    return json.loads((GOLDEN / f"{name}.pop.json").read_text())


@pytest.mark.parametrize("name", ["store-5.5.0-pop-pending", "store-5.5.0-pop-pending-kill9"])
def test_messages_in_flight_of_apaches_store_come_as_its_own_broker_gives_them(tmp_path: Path, name: str) -> None:
    golden = unpacked(name, tmp_path)
    clock = ManualClock(golden["firstPopAt"] + 30_000)  # type: ignore[operator]
    bench = PopBench(
        tmp_path,
        clock=clock,
        settings={"brokerName": "golden-q", "brokerClusterName": "GoldenCluster"},
        mapped_file_size_commit_log=131_072,
        mapped_file_size_consume_queue=1200,
        mapped_file_size_timer_log=104_000,
    )
    summary: dict[str, dict[str, list[str]]] = golden["summary"]  # type: ignore[assignment]
    for group, topic, ordered in (
        ("Golden_a", "GoldenCon", False),
        ("Golden_b", "GoldenCon", False),
        ("Golden_f", "GoldenOrd", True),
    ):
        came: dict[str, list[int]] = {}
        for _ in range(40):
            for message in bench.popped(topic, group, order="true" if ordered else "false", invisibleTime=60_000):
                times = message.message.reconsume_times
                came.setdefault(message.message.keys[0], []).append(times)
                assert bench.ack(stored(message, group), group).code == 0
            bench.passes(2500, step_ms=250)
        expected = summary[group]
        assert sorted(came) == sorted(expected["delivered_again"] + expected["first_delivery"])
        assert all(len(times) == 1 for times in came.values())
        if not ordered:
            after = {one["key"]: one["reconsumeTimes"] for one in golden["after"] if one["group"] == group}  # type: ignore[attr-defined,index]
            assert {key: times[0] for key, times in came.items()} == after
    bench.close()
