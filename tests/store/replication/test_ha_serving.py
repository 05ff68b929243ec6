"""The master's side of the HA port, over real sockets: what a slave gets, what counts, what ends a connection."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest
import uvloop

from contrailmq.store import MessageStore
from contrailmq.store.replication.feed import Feed
from contrailmq.store.replication.serving import COMPLAINT_MS, CONNECTIONS_MAX, TURN_BYTES, UNSENT_BYTES
from ha_slaves import FILE_BYTES, Master, Slave, append, opened, serving
from waiting_for import LIMIT_S, until_async

GOLDEN: dict[str, Any] = json.loads((Path(__file__).parents[2] / "golden" / "wire" / "ha-001.json").read_text())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[MessageStore]:
    store = opened(tmp_path)
    yield store
    store.close()


def run(work: Coroutine[Any, Any, None]) -> None:
    """On the loop that brokers have; tests of whole brokers run on asyncio's own."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)


def the_log(store: MessageStore) -> bytes:
    """Every byte of the log files, up to its end."""
    (folder,) = store.config.commit_log_paths
    begin = min(int(path.name) for path in folder.iterdir())
    files = b"".join(path.read_bytes() for path in sorted(folder.iterdir()))
    return files[: store.log_max_offset - begin]


# --- where a slave begins


def test_a_new_slave_of_an_empty_master_gets_the_log_from_its_beginning_on(store: MessageStore) -> None:
    async def work() -> None:
        async with serving(store) as master:
            slave = (await master.slave()).report(0)
            await master.reported(0)
            end = append(store)
            master.server.push()
            assert await slave.block() == (0, the_log(store))
            slave.report(end)
            await master.reported(end)

    run(work())


def test_a_new_slave_gets_the_newest_file_and_nothing_older(store: MessageStore) -> None:
    async def work() -> None:
        while append(store, b"y" * 5000) < 2 * FILE_BYTES:
            pass
        async with serving(store) as master:
            slave = (await master.slave()).report(0)
            log = await slave.log_until(2 * FILE_BYTES, store.log_max_offset)
            assert log == the_log(store)[2 * FILE_BYTES :]

    run(work())


def test_a_slave_goes_on_where_its_log_ends_across_files(store: MessageStore) -> None:
    """Blocks end where a file does, with its BLANK and what is behind it."""

    async def work() -> None:
        first = append(store)
        while append(store, b"y" * 7001) < 3 * FILE_BYTES:
            pass
        async with serving(store) as master:
            slave = (await master.slave()).report(first)
            blocks = []
            begin = first
            while begin < store.log_max_offset:
                offset, body = await slave.block()
                assert offset == begin
                begin += len(body)
                blocks.append((offset, body))
            assert b"".join(body for _, body in blocks) == the_log(store)[first:]
            assert {FILE_BYTES, 2 * FILE_BYTES, 3 * FILE_BYTES} <= {offset for offset, _ in blocks}

    run(work())


def test_a_slave_that_is_ahead_is_refused_with_both_offsets(
    store: MessageStore, caplog: pytest.LogCaptureFixture
) -> None:
    async def work() -> None:
        end = append(store)
        async with serving(store) as master:
            slave = (await master.slave()).report(end + 50)
            assert await slave.is_closed()
            assert master.server.acknowledged.furthest == -1
        assert f"its log ends at {end + 50}, 50 bytes behind the end of ours, {end}" in caplog.text
        assert "contrailmq store truncate" in caplog.text

    run(work())


def test_a_slave_of_a_controller_is_told_apart(store: MessageStore, caplog: pytest.LogCaptureFixture) -> None:
    """ha.md 12: the handshake of slave 2."""

    async def work() -> None:
        async with serving(store) as master:
            slave = await master.slave()
            slave.writer.write(bytes.fromhex("00000001000000000000000000000002"))
            assert await slave.is_closed()
        assert "this looks like a slave of a controller" in caplog.text

    run(work())


def test_a_slave_that_needs_deleted_files_is_told_with_both_offsets(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """#323, #3388, #5579: RocketMQ sends heartbeats for ever."""

    async def work() -> None:
        store = opened(tmp_path, file_reserved_time=0)
        first = append(store)
        while append(store, b"y" * 7001) < 2 * FILE_BYTES:
            pass
        delete_the_first_file(store)
        assert store.log_min_offset == FILE_BYTES
        async with serving(store) as master:
            slave = (await master.slave()).report(first)
            assert await slave.is_closed()
        assert f"it needs the log from offset {first} on, ours begins at {FILE_BYTES}" in caplog.text
        store.close()

    run(work())


def delete_the_first_file(store: MessageStore) -> None:
    files = store._log_files
    assert files.delete_expired(reserved_ms=0, force_after_ms=0, count_max=1, at_once=True)


# --- what counts


def test_a_report_beyond_what_was_sent_closes_and_is_never_counted(
    store: MessageStore, caplog: pytest.LogCaptureFixture
) -> None:
    """#1155, #3015. The log is longer than what this slave was sent, so its end would be a lie too."""

    async def work() -> None:
        end = append(store)
        async with serving(store) as master:
            slave = (await master.slave()).report(end)
            await master.reported(end)
            beyond = append(store)  # not pushed yet
            slave.report(beyond)
            assert await slave.is_closed()
            await master.reported(-1)
        assert f"it reports offset {beyond}, but was sent the log up to {end}" in caplog.text

    run(work())


def test_reports_before_a_wrong_one_in_the_same_bytes_do_not_count(store: MessageStore) -> None:
    async def work() -> None:
        end = append(store)
        async with serving(store) as master:
            slave = (await master.slave()).report(end, end + 1)
            assert await slave.is_closed()
            assert await asyncio.wait_for(master.reports.get(), LIMIT_S) == -1

    run(work())


def test_what_apaches_slave_sent_is_taken_report_by_report(store: MessageStore) -> None:
    """The golden capture: a new slave, then every report it made, against a log as long as Apache's was."""
    reports: list[int] = GOLDEN["slave_reports"]
    assert reports[0] == 0
    while store.log_max_offset < reports[-1] or store.log_max_offset >= FILE_BYTES:
        assert append(store) <= reports[-1] + 300
        if store.log_max_offset > FILE_BYTES:
            break
    feed = Feed(store, 0)
    for event in GOLDEN["events"]:
        if event["direction"] != "slave -> master":
            continue
        sent_before = feed.next_offset
        data = bytes.fromhex(event["hex"])
        (newest,) = {int.from_bytes(data[-8:], "big")}
        if sent_before >= 0 and newest > sent_before:
            feed.sent(newest - sent_before, 0)  # the master's block, which the report answers
        assert feed.take(data, 0)
        assert feed.acknowledged == newest
    assert feed.acknowledged == reports[-1]


def test_a_slave_that_is_gone_counts_no_more(store: MessageStore) -> None:
    async def work() -> None:
        end = append(store)
        async with serving(store) as master:
            slave = (await master.slave()).report(end)
            await master.reported(end)
            assert master.server.in_sync() == 1
            slave.close()
            await master.reported(-1)
            assert master.server.in_sync() == 0
            assert master.server.status() == []

    run(work())


# --- time


def test_heartbeats_and_silence(store: MessageStore, caplog: pytest.LogCaptureFixture) -> None:
    """A heartbeat 5 s after the last write, with the next offset; 20 s without a report end the connection."""

    async def work() -> None:
        end = append(store)
        async with serving(store) as master:
            slave = (await master.slave()).report(end)
            await master.reported(end)
            master.later(5000)
            master.later(1)
            assert await slave.block() == (end, b"")
            slave.report(end)  # an answer to it, as Apache's slave gives
            await master.reported(end)
            master.later(20_000)
            assert await slave.block() == (end, b"")
            master.later(1)
            assert await slave.is_closed()
        assert "it has sent no report for 20001 ms, the limit is haHousekeepingInterval=20000 ms" in caplog.text

    run(work())


def test_who_never_reports_is_closed_too(store: MessageStore, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with serving(store) as master:
            slave = await master.slave()
            await until_async(lambda: bool(master.server.hosts()), look_s=0)
            assert master.server.status() == [], "it is no slave yet"
            master.later(20_001)
            assert await slave.is_closed()
        assert "it has never sent a report" in caplog.text

    run(work())


def test_flow_control_counts_heads_and_bodies(tmp_path: Path) -> None:
    """RocketMQ's classic master counts heads alone, which is no limit (ha.md 2.3)."""

    async def work() -> None:
        settings = {"ha_flow_control_enable": True, "max_ha_transfer_byte_in_second": 4096}
        store = opened(tmp_path, **settings)
        first = append(store)
        while append(store) < 10_000:
            pass
        async with serving(store) as master:
            slave = (await master.slave()).report(first)
            got = 0
            for _second in range(3):
                offset, body = await slave.block()
                assert offset == first + got
                assert len(body) == min(4096 - 12, store.log_max_offset - offset)
                got += len(body)
                slave.report(first + got)
                await master.reported(first + got)
                (status,) = master.server.status()
                assert status.next_offset == first + got  # nothing more in this second
                master.later(1000)
            assert first + got == store.log_max_offset
        store.close()

    run(work())


# --- bounds


def test_a_slave_that_never_reads_costs_bounded_memory(tmp_path: Path) -> None:
    async def work() -> None:
        store = opened(tmp_path, mapped_file_size_commit_log=32 * 1024 * 1024)
        first = append(store)
        for _ in range(200):
            append(store, b"z" * 100_000)
        async with serving(store) as master:
            slave = (await master.slave()).report(first)
            await master.reported(first)
            (connection,) = master.server._connections
            assert connection._transport is not None
            before = -1
            while connection.feed.next_offset != before:  # until the socket is full
                before = connection.feed.next_offset
                for _ in range(20):
                    await asyncio.sleep(0)
                    master.server.push()
            assert before < store.log_max_offset
            assert connection._transport.get_write_buffer_size() <= UNSENT_BYTES + store.config.ha_transfer_batch_size
            log = await slave.log_until(first, store.log_max_offset)  # and then it reads
            assert log == the_log(store)[first:]
        store.close()

    run(work())


def test_files_deleted_under_a_slow_slave_end_its_connection(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is on its way stays readable; the next block says what is missing."""

    async def work() -> None:
        store = opened(tmp_path, ha_flow_control_enable=True, max_ha_transfer_byte_in_second=4096)
        first = append(store)
        while append(store, b"y" * 7001) < 2 * FILE_BYTES:
            pass
        log = the_log(store)
        async with serving(store) as master:
            slave = (await master.slave()).report(first)
            offset, body = await slave.block()
            delete_the_first_file(store)
            assert body == log[offset : offset + len(body)]
            master.later(1000)
            assert await slave.is_closed()
        assert f"it needs the log from offset {first + 4084} on, ours begins at {FILE_BYTES}" in caplog.text
        store.close()

    run(work())


def test_uncommitted_bytes_of_the_write_buffer_pool_stay_here(tmp_path: Path) -> None:
    async def work() -> None:
        store = opened(
            tmp_path,
            transient_store_pool_enable=True,
            transient_store_pool_size=2,
            commit_interval_commit_log=3_600_000,
            commit_commit_log_thorough_interval=3_600_000,
            commit_commit_log_least_pages=1000,
            wake_commit_when_put_message=False,
        )
        end = append(store)
        assert store.log_max_offset == 0
        async with serving(store) as master:
            slave = (await master.slave()).report(0)
            await master.reported(0)
            master.server.push()
            (status,) = master.server.status()
            assert status.next_offset == 0
            store.flush()
            master.server.push()
            offset, body = await slave.block()
            assert (offset, len(body)) == (0, end)
        store.close()

    run(work())


@pytest.mark.parametrize(
    "role", [{}, {"broker_role": "SYNC_MASTER"}, {"broker_role": "SYNC_MASTER", "in_sync_replicas": 2}]
)
def test_under_sync_flush_bytes_leave_when_they_are_synced_unless_somebody_waits_for_both(
    tmp_path: Path, role: dict[str, object]
) -> None:
    """Or a power cut would leave slaves ahead of their master."""
    store = opened(tmp_path, flush_disk_type="SYNC_FLUSH", flush_interval_commit_log=3_600_000, **role)
    end = append(store)
    feed = Feed(store, 0)
    feed.take(bytes(8), 0)
    assert feed.size_due(0) == (end if "in_sync_replicas" in role else 0)
    store.flush()
    assert feed.size_due(0) == end
    store.close()


def test_what_is_not_in_memory_is_read_by_a_worker(store: MessageStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every block, here; the loop reads none of them."""

    async def work() -> None:
        first = append(store)
        while append(store, b"y" * 7001) < 2 * FILE_BYTES:
            pass
        monkeypatch.setattr(store, "is_resident", lambda offset: False)
        monkeypatch.setattr(store, "read_log", lambda offset, size: pytest.fail("the loop touched a cold page"))
        async with serving(store) as master:
            slave = (await master.slave()).report(first)
            assert await slave.log_until(first, store.log_max_offset) == the_log(store)[first:]

    run(work())


def test_a_far_slave_takes_turns_with_others(tmp_path: Path) -> None:
    """After TURN_BYTES the loop has its turn, also when the socket takes everything."""

    async def work() -> None:
        store = opened(tmp_path, mapped_file_size_commit_log=32 * 1024 * 1024)
        first = append(store)
        while append(store, b"z" * 100_000) < 3 * TURN_BYTES:
            pass
        feed_steps = []
        async with serving(store) as master:
            slave = (await master.slave()).report(first)
            reading = asyncio.create_task(slave.log_until(first, store.log_max_offset))
            while not reading.done():
                feed_steps += [status.next_offset for status in master.server.status()]
                await asyncio.sleep(0)
            assert len(await reading) == store.log_max_offset - first
        steps = [offset for offset in dict.fromkeys(feed_steps) if offset > first]
        assert len(steps) >= 3
        store.close()

    run(work())


# --- who comes in


def test_a_stranger_is_not_let_in_and_not_heard(store: MessageStore, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        end = append(store)
        async with serving(store, refusal=lambda host: f"{host} is no slave of this group") as master:
            slave = (await master.slave()).report(end)
            assert await slave.is_closed()
            assert master.server.acknowledged.furthest == -1
        assert "a peer was not let in on the HA port: 127.0.0.1:" in caplog.text
        assert "127.0.0.1 is no slave of this group" in caplog.text

    run(work())


def test_what_a_slave_sends_before_it_is_let_in_is_kept(store: MessageStore) -> None:
    async def work() -> None:
        end = append(store)
        async with serving(store) as master:
            gate = asyncio.Event()

            async def admit(_host: str) -> str:
                await gate.wait()
                return ""

            master.server._admit = admit
            slave = (await master.slave()).report(end)
            await until_async(lambda: any(connection._early for connection in master.server._connections), look_s=0)
            assert master.server.status() == []
            assert master.server.acknowledged.furthest == -1
            gate.set()
            await master.reported(end)
            append(store)
            master.server.push()
            assert (await slave.block())[0] == end

    run(work())


def test_no_more_connections_than_a_master_can_have(store: MessageStore, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        async with serving(store) as master:
            slaves = [await master.slave() for _ in range(CONNECTIONS_MAX + 1)]
            closed = [asyncio.create_task(slave.is_closed()) for slave in slaves]
            done, _ = await asyncio.wait(closed, return_when=asyncio.FIRST_COMPLETED, timeout=10)
            assert len(done) == 1
            master.server.close()
            await asyncio.wait_for(asyncio.gather(*closed), LIMIT_S)
        assert f"{CONNECTIONS_MAX} are open" in caplog.text

    run(work())


async def hostile_round(master: Master, rng: random.Random) -> None:
    """Bytes that no slave sends, or a slave that says too much, in pieces; then the port still serves."""
    slave: Slave = await master.slave()
    kind = rng.randrange(4)
    if kind == 0:
        data = rng.randbytes(rng.randrange(1, 300))
    elif kind == 1:
        data = (-rng.randrange(1, 2**63)).to_bytes(8, "big", signed=True)
    elif kind == 2:
        data = rng.randrange(master.store.log_max_offset + 1, 2**63).to_bytes(8, "big")
    else:
        end = master.store.log_max_offset
        data = end.to_bytes(8, "big") + rng.randrange(end + 1, 2**63).to_bytes(8, "big")
    for begin in range(0, len(data), step := rng.randrange(1, 40)):
        if not slave.writer.is_closing():
            slave.writer.write(data[begin : begin + step])
        await asyncio.sleep(0)
    with contextlib.suppress(OSError, RuntimeError):  # the master may have closed it by now
        slave.writer.write_eof()
    assert await slave.is_closed()
    slave.close()


@pytest.mark.parametrize("rounds", [1000, pytest.param(10_000, marks=pytest.mark.long)])
def test_hostile_bytes_cost_nothing(store: MessageStore, rounds: int, caplog: pytest.LogCaptureFixture) -> None:
    """No acknowledgement, no connection that stays, one line a minute; a slave is served after them as before."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")

    async def work() -> None:
        rng = random.Random(seed)
        end = append(store)
        caplog.set_level(logging.WARNING)
        async with serving(store) as master:
            for _ in range(rounds):
                await hostile_round(master, rng)
                assert master.server.acknowledged.furthest in (-1, end, 0)
            await until_async(lambda: not master.server._connections, look_s=0)
            assert master.server.acknowledged.furthest == -1
            lines = [record.getMessage() for record in caplog.records if record.name.startswith("contrailmq")]
            assert len(lines) <= 1, lines
            master.later(COMPLAINT_MS)
            assert "times more in the last minute" in caplog.records[-1].getMessage()
            slave = (await master.slave()).report(end)
            await master.reported(end)
            append(store)
            master.server.push()
            assert (await slave.block())[0] == end

    run(work())


# --- figures


def test_the_status_of_each_slave(store: MessageStore) -> None:
    async def work() -> None:
        first, end = append(store), append(store)
        async with serving(store, slaves=2) as master:
            near, far = (await master.slave()).report(end), await master.slave()
            await master.reported(end)
            far.report(first)
            assert await far.block() == (first, the_log(store)[first:])
            master.later(2000)
            one, two = master.server.status()
            assert (one.acknowledged, one.lag_bytes, one.is_in_sync, one.connected_ms) == (end, 0, True, 2000)
            assert (two.acknowledged, two.lag_bytes, two.next_offset) == (first, end - first, end)
            assert two.bytes_per_second == (12 + end - first) // 2
            assert one.address == "127.0.0.1:{}".format(near.writer.get_extra_info("sockname")[1])
            assert master.server.in_sync() == 2

    run(work())


def test_a_slave_that_is_silent_for_three_heartbeats_counts_again_when_it_speaks(
    store: MessageStore, caplog: pytest.LogCaptureFixture
) -> None:
    """A stopped process keeps its connection."""

    async def work() -> None:
        end = append(store)
        async with serving(store) as master:
            slave = (await master.slave()).report(end)
            await master.reported(end)
            master.later(15_000)
            (status,) = master.server.status()
            assert (status.is_in_sync, status.silent_ms, master.server.in_sync()) == (True, 15_000, 1)
            for _ in range(2):
                master.later(1)
            (status,) = master.server.status()
            assert (status.is_in_sync, status.lag_bytes, status.silent_ms) == (False, 0, 15_002)
            assert (master.server.in_sync(), master.server.acknowledged.furthest) == (0, -1)
            assert caplog.text.count("has sent no report for a while") == 1
            slave.report(end)
            await master.reported(end)
            (status,) = master.server.status()
            assert (status.is_in_sync, status.silent_ms, master.server.in_sync()) == (True, 0, 1)

    run(work())


def test_a_stop_waits_for_slaves_that_follow(store: MessageStore, caplog: pytest.LogCaptureFixture) -> None:
    async def work() -> None:
        first = append(store)
        async with serving(store) as master:
            slave = (await master.slave()).report(first)
            await master.reported(first)
            end = append(store)
            draining = asyncio.create_task(master.server.drain(10))
            assert await slave.block() == (first, the_log(store)[first:])
            assert not draining.done()
            slave.report(end)
            await draining
            append(store)
            await master.server.drain(0)
        assert f"reported the end of the log, offset {store.log_max_offset}" in caplog.text

    run(work())
