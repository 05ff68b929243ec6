"""What a SYNC_MASTER's answers wait for: slaves' own reports, together with the disk, for every kind of send."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.harness import Bench, send_fields
from broker.test_keeping import KINDS
from broker.test_timers import TimerBench
from contrailmq.store import StoreConfig, StoreConfigError
from contrailmq.wire.codes import ResponseCode
from contrailmq.wire.header import Command

SYNC = {"broker_role": "SYNC_MASTER", "in_sync_replicas": 2}


class Slaves:
    """What slaves have reported, as the node hears of it."""

    def __init__(self, bench: Bench, *, in_sync: int = 1) -> None:
        self.offsets: list[int] = []
        self.in_sync = in_sync
        self._replicas = bench.node.replicas
        self._replicas.reached_by = lambda slaves: (
            sorted(self.offsets, reverse=True)[slaves - 1] if slaves <= len(self.offsets) else -1
        )
        self._replicas.slaves_in_sync = lambda: self.in_sync
        self._replicas.look()

    def report(self, *offsets: int) -> None:
        self.offsets = list(offsets)
        self._replicas.advanced()


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[TimerBench]:
    made = TimerBench(tmp_path, **SYNC)
    yield made
    made.close()


@pytest.mark.parametrize("is_binary", [False, True], ids=["JSON", "binary"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_send_waits_for_a_slave(bench: TimerBench, kind: str, is_binary: bool) -> None:
    slaves = Slaves(bench)
    fields, body = KINDS[kind]
    answers = bench.tell(310, send_fields("T", **fields), body, is_binary=is_binary)
    if kind == "no wait":
        assert [answer.code for answer in answers] == [0]
        return
    assert answers == []
    end = bench.store.appended_offset
    slaves.report(end - 1)
    assert bench.link.take() == []
    slaves.report(end)
    assert [answer.code for answer in bench.link.take()] == [0]


def test_answers_of_many_messages_leave_with_one_report(bench: TimerBench) -> None:
    slaves = Slaves(bench)
    for number in range(10):
        assert bench.tell(310, send_fields("T"), b"%d" % number) == []
    middle = bench.store.appended_offset
    assert bench.tell(310, send_fields("T"), b"last") == []
    slaves.report(middle)
    assert [answer.code for answer in bench.link.take()] == [0] * 10
    slaves.report(bench.store.appended_offset)
    assert [answer.ext["queueOffset"] for answer in bench.link.take()] == ["10"]


@pytest.mark.parametrize("order", ["disk slave", "slave disk"])
def test_disk_and_slave_are_waited_for_together(tmp_path: Path, order: str) -> None:
    bench = TimerBench(tmp_path, flush_disk_type="SYNC_FLUSH", **SYNC)
    bench.store.request_flush = lambda: None  # type: ignore[method-assign]
    slaves = Slaves(bench)
    assert bench.tell(310, send_fields("T"), b"x") == []
    answers: list[Command] = []
    for step in order.split():
        assert answers == [], f"before {step}"
        if step == "disk":
            bench.node.durable(bench.store.appended_offset)
        else:
            slaves.report(bench.store.appended_offset)
        answers += bench.link.take()
    assert [answer.code for answer in answers] == [0]
    bench.close()


def test_a_slave_that_dies_in_the_wait_is_a_timeout_also_when_the_disk_was_in_time(tmp_path: Path) -> None:
    """Its deadline counts from the send, not from the flush; and nothing is answered twice."""
    bench = TimerBench(tmp_path, flush_disk_type="SYNC_FLUSH", **SYNC)
    bench.store.request_flush = lambda: None  # type: ignore[method-assign]
    slaves = Slaves(bench)
    assert bench.tell(310, send_fields("T"), b"x") == []
    bench.clock.advance(2000)
    bench.node.durable(bench.store.appended_offset)
    slaves.in_sync = 0
    slaves.report()
    bench.clock.advance(999)
    bench.node.replicas.expire(bench.clock.monotonic_ms())
    assert bench.link.take() == []
    bench.clock.advance(1)
    bench.node.replicas.expire(bench.clock.monotonic_ms())
    (answer,) = bench.link.take()
    assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    remark = "stored, but 1 of 2 copies (inSyncReplicas=2) were there within slaveTimeout=3000 ms; 0 slaves are in sync"
    assert answer.remark == remark
    assert answer.ext["queueOffset"] == "0", "stored, and a client may find it"
    slaves.report(bench.store.appended_offset)
    assert bench.link.take() == []
    bench.close()


def test_a_failed_sync_is_no_acknowledgement_whatever_slaves_have(tmp_path: Path) -> None:
    bench = TimerBench(tmp_path, flush_disk_type="SYNC_FLUSH", **SYNC)
    bench.store.request_flush = lambda: None  # type: ignore[method-assign]
    slaves = Slaves(bench)
    assert bench.tell(310, send_fields("T"), b"x") == []
    bench.node.durable(-1)
    assert [answer.code for answer in bench.link.take()] == [ResponseCode.SERVICE_NOT_AVAILABLE]
    slaves.report(bench.store.appended_offset)
    assert bench.link.take() == []
    bench.close()


def test_three_copies_need_two_slaves(tmp_path: Path) -> None:
    bench = TimerBench(tmp_path, broker_role="SYNC_MASTER", in_sync_replicas=3)
    slaves = Slaves(bench, in_sync=2)
    assert bench.tell(310, send_fields("T"), b"x") == []
    end = bench.store.appended_offset
    slaves.report(end, end - 1)
    assert bench.link.take() == []
    bench.clock.advance(3000)
    bench.node.replicas.expire(bench.clock.monotonic_ms())
    assert "2 of 3 copies" in (bench.link.take()[0].remark or "")
    assert bench.tell(310, send_fields("T"), b"y") == []
    slaves.report(*[bench.store.appended_offset] * 2)
    assert [answer.code for answer in bench.link.take()] == [0]
    bench.close()


def test_a_message_sent_back_waits_for_a_slave(bench: TimerBench) -> None:
    slaves = Slaves(bench)
    assert bench.send(properties={"WAIT": "false"}, body=b"poison").code == 0
    back = {"offset": "0", "group": "g", "delayLevel": "0", "originTopic": "T"}
    assert bench.tell(36, back) == []
    slaves.report(bench.store.appended_offset)
    assert [answer.code for answer in bench.link.take()] == [0]


@pytest.mark.parametrize(
    ("settings", "waits"),
    [
        ({"broker_role": "SYNC_MASTER"}, False),  # Apache 5.x with defaults: waits for nobody
        ({"broker_role": "ASYNC_MASTER", "in_sync_replicas": 2}, False),
        ({"broker_role": "SYNC_MASTER", "in_sync_replicas": 2}, True),
    ],
)
def test_who_waits(tmp_path: Path, settings: dict[str, object], waits: bool) -> None:
    bench = TimerBench(tmp_path, **settings)
    Slaves(bench, in_sync=0)
    assert [answer.code for answer in bench.tell(310, send_fields("T"), b"x")] == ([] if waits else [0])
    bench.close()


# --- in-sync replicas not enough


MIN = {"broker_role": "SYNC_MASTER", "in_sync_replicas": 3, "min_in_sync_replicas": 2}


@pytest.mark.parametrize("kind", KINDS)
def test_with_too_few_in_sync_nothing_is_stored(tmp_path: Path, kind: str) -> None:
    """But what does not wait for slaves (WAIT=false) is, as in RocketMQ."""
    bench = TimerBench(tmp_path, **MIN)
    slaves = Slaves(bench, in_sync=0)
    fields, body = KINDS[kind]
    before = bench.store.appended_offset
    (answer,) = bench.tell(310, send_fields("T", **fields), body)
    if kind == "no wait":
        assert answer.code == 0
    else:
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert (answer.remark or "").startswith("in-sync replicas not enough: 1 of 2 (minInSyncReplicas=2)")
        assert bench.store.appended_offset == before
    slaves.in_sync = 2
    slaves.report(0, 0)
    after = bench.tell(310, send_fields("T", **fields), body)
    assert after == [] or kind == "no wait", "enough are there: it is stored, and waits"
    bench.close()


def test_with_too_few_in_sync_nothing_is_sent_back(tmp_path: Path) -> None:
    bench = TimerBench(tmp_path, **MIN)
    Slaves(bench, in_sync=0)
    assert bench.send(properties={"WAIT": "false"}, body=b"poison").code == 0
    before = bench.store.appended_offset
    answer = bench.ask(36, {"offset": "0", "group": "g", "delayLevel": "0", "originTopic": "T"})
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "in-sync replicas not enough: 1 of 2" in (answer.remark or "")
    assert bench.store.appended_offset == before


@pytest.mark.parametrize(
    ("in_sync_slaves", "needed"),
    [(0, None), (1, 2), (2, 3), (5, 3)],  # ha.md 12: max(2, min(3, 1)) = 2 > 1 is refused
)
def test_copies_that_are_needed_follow_those_in_sync_when_they_may(
    tmp_path: Path, in_sync_slaves: int, needed: int | None
) -> None:
    bench = TimerBench(tmp_path, enable_auto_in_sync_replicas=True, **MIN)
    slaves = Slaves(bench, in_sync=in_sync_slaves)
    answers = bench.tell(310, send_fields("T"), b"x")
    if needed is None:
        assert [answer.code for answer in answers] == [ResponseCode.SYSTEM_ERROR]
    else:
        end = bench.store.appended_offset
        slaves.report(*[end] * (needed - 2))
        assert bench.link.take() == []
        slaves.report(*[end] * (needed - 1))
        assert [answer.code for answer in bench.link.take()] == [0]
    bench.close()


def test_a_floor_above_the_wish_is_refused() -> None:
    with pytest.raises(StoreConfigError, match="minInSyncReplicas=2: at most inSyncReplicas, which is 1"):
        StoreConfig("/nowhere", min_in_sync_replicas=2)
