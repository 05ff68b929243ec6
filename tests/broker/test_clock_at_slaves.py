"""A master whose clock was set, and the slave that is made the master: what waits, waits as long as was asked."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.test_slave_sync import MASTER, Broker, Pair
from contrailmq.wire.admin_requests import GetTimerCheckPoint, GetTimerCheckPointResponse
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.header import Command

HOUR_MS = 3_600_000
TICK_MS = 1000


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


def live(pair: Pair, milliseconds: int) -> None:
    """Both, at one time, and at its end the slave has all."""
    pair.master.live(milliseconds)
    pair.slave.live(milliseconds)
    assert pair.copy()


def promoted(pair: Pair, milliseconds: int, *, is_moved: bool) -> Broker:
    """The slave as a master, after it was down that long; on another machine, or on its own."""
    slave = pair.slave
    slave.close()
    slave.clock.advance(milliseconds)
    pair.slave = Broker(slave.path, now_ms=slave.clock.now_ms()) if is_moved else Broker(slave.path, clock=slave.clock)
    return pair.slave


def came(broker: Broker) -> list[str]:
    """Bodies that were delivered, in their order."""
    return [message.body.decode() for message in broker.messages()]


@pytest.mark.parametrize("is_moved", [False, True], ids=["on its machine", "on another machine"])
@pytest.mark.parametrize("jump_ms", [HOUR_MS, -HOUR_MS, 30_000, -30_000])
def test_after_the_masters_clock_was_set_its_slave_as_master_delivers_when_it_was_asked(
    pair: Pair, jump_ms: int, is_moved: bool
) -> None:
    live(pair, 5000)
    pair.master.send("T", b"before", properties={"TIMER_DELAY_SEC": "60"})
    live(pair, 5000)
    pair.master.clock.set_wall(pair.master.clock.now_ms() + jump_ms)
    live(pair, 1000)
    pair.master.send("T", b"after", properties={"TIMER_DELAY_SEC": "60"})
    pair.master.send("T", b"level", properties={"DELAY": "5"})
    live(pair, 5000)
    master = promoted(pair, 10_000, is_moved=is_moved)
    master.live(39_000 - TICK_MS)  # of the 60 s of the first 21 were gone, of the others 15
    assert came(master) == []
    master.live(3 * TICK_MS)
    assert came(master) == ["before"]
    master.live(6000 - 3 * TICK_MS)
    assert came(master) == ["before"]
    master.live(3 * TICK_MS)
    assert sorted(came(master)) == ["after", "before", "level"]


def test_a_clock_of_the_slaves_own_that_was_set_moves_nothing(pair: Pair) -> None:
    for jump_ms in (HOUR_MS, -HOUR_MS):
        pair.slave.clock.set_wall(pair.slave.clock.now_ms() + jump_ms)
        live(pair, 1000)
        pair.master.send("T", b"%d" % jump_ms, properties={"TIMER_DELAY_SEC": "60"})
        live(pair, 1000)
    master = promoted(pair, 1000, is_moved=False)
    master.live(54_000)
    assert came(master) == []
    master.live(8000)
    assert came(master) == [str(HOUR_MS), str(-HOUR_MS)]


def test_a_master_tells_what_a_slave_lacks_and_rocketmqs_slaves_nothing(pair: Pair) -> None:
    def told(version: str | None) -> Command:
        return pair.slave.run(
            pair.wire.invoke(MASTER, RequestCode.GET_TIMER_CHECK_POINT, GetTimerCheckPoint(clock_version=version))
        )

    assert told(None).ext == {}
    first = told("").header(GetTimerCheckPointResponse)
    assert first.clock_stretches is not None
    assert told(first.clock_version).header(GetTimerCheckPointResponse).clock_stretches is None
    pair.master.clock.set_wall(pair.master.clock.now_ms() + HOUR_MS)
    pair.master.live(100)
    assert told(first.clock_version).header(GetTimerCheckPointResponse).clock_stretches is not None


def test_what_a_master_says_of_its_clock_and_cannot_be_read_keeps_nothing_else_from_being_copied(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    pair.master.node.offsets.commit("g", "T", 0, 7)
    invoke = pair.wire.invoke

    async def garbled(*args: object, **fields: object) -> Command:
        answer = await invoke(*args, **fields)  # type: ignore[arg-type]
        if args[1] == RequestCode.GET_TIMER_CHECK_POINT:
            answer.ext["clockStretches"] = "[[1,2]]"
        return answer

    pair.wire.invoke = garbled  # type: ignore[method-assign]
    assert pair.copy()
    assert pair.slave.node.offsets.query("g", "T", 0) == 7
    assert "timer checkpoint: not copied from" in caplog.text
