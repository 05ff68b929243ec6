"""`store repair` beside replication, and a master that deletes what its slave still needs."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import shutil
import signal
from pathlib import Path

import pytest
from typer.testing import CliRunner

from contrailmq import Message, Producer, SendStatus
from contrailmq.cli.store import app
from contrailmq.store import StoreConfig, StoreView, verify_store
from contrailmq.testing import LocalCluster
from contrailmq.wire.bodies import KVTable, decode_body
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.transport import RemotingClient
from waiting_for import until

FILE_BYTES = 1 << 20


def body_of(number: int) -> bytes:
    return b"order-%03d " % number * 20


def send(cluster: LocalCluster, begin: int, end: int) -> None:
    with Producer("producers", namesrv=cluster.namesrv) as producer:
        queues = producer.queues("Orders")
        for number in range(begin, end):
            message = Message("Orders", body_of(number), keys=[f"k{number}"])
            assert producer.send(message, queue=queues[0]).status is SendStatus.OK


def log_of(store: Path) -> bytes:
    files = sorted((store / "commitlog").glob("[0-9]*"))
    return b"".join(file.read_bytes() for file in files).rstrip(b"\0")


def damage(store: Path, number: int) -> None:
    """Flip a byte of one message's body."""
    (file,) = (store / "commitlog").glob("[0-9]*")
    data = bytearray(file.read_bytes())
    data[data.index(body_of(number)) + 50] ^= 0xFF
    file.write_bytes(data)


def repair(store: Path) -> None:
    done = CliRunner().invoke(app, ["repair", str(store)])
    assert done.exit_code == 0, done.output
    assert "damaged" in done.output


def found(cluster: LocalCluster, index: int, number: int) -> list[bytes]:
    return [message.body for message in cluster.broker(index).store.query("Orders", f"k{number}")]


def served(cluster: LocalCluster, index: int) -> list[bytes]:
    """All of the queue, as pulls give it."""
    store = cluster.broker(index).store
    got: list[bytes] = []
    offset, end = 0, store.max_offset("Orders", 0)
    while offset < end:
        batch = store.get("Orders", 0, offset, 32)
        got += [message.body for message in batch]
        offset = batch.next_offset
    return got


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path]:
    return tmp_path / "broker-0", tmp_path / "broker-0-slave-1"


def test_a_slave_waits_at_a_damaged_record_of_its_master_and_goes_on_after_its_repair(
    tmp_path: Path, paths: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """It takes what is sound, says what is wrong, and then has the placeholder in place of the lost message."""
    caplog.set_level(logging.WARNING)
    with LocalCluster(slaves=1, store=tmp_path) as cluster:
        slave = cluster.slave_index()
        send(cluster, 0, 5)
        cluster.wait_until_replicated()
        cluster.stop_broker(slave)
        send(cluster, 5, 20)
        cluster.stop_broker(0)
        damage(paths[0], 10)
        cluster.restart_broker(0)
        cluster.restart_broker(slave)
        until(lambda: "is not sound" in caplog.text, "the slave says what is wrong")
        assert "store repair` mends it" in caplog.text
        until(lambda: found(cluster, slave, 9) == [body_of(9)], "what is sound before it is served")
        assert found(cluster, slave, 11) == []
        cluster.stop_broker(0)
        repair(paths[0])
        cluster.restart_broker(0)
        send(cluster, 20, 22)
        cluster.wait_until_replicated()
        expected = [body_of(number) for number in range(22) if number != 10]
        until(lambda: served(cluster, slave) == expected, "the rest, without the lost message")
        assert served(cluster, 0) == expected
        assert cluster.broker(slave).store.max_offset("Orders", 0) == 22, "no offset has moved"
    assert log_of(paths[0]) == log_of(paths[1])
    with StoreView(StoreConfig(paths[1])) as view:
        assert verify_store(view).findings == []


def test_a_slave_keeps_a_message_that_its_master_has_lost_and_repaired(
    tmp_path: Path, paths: tuple[Path, Path]
) -> None:
    with LocalCluster(slaves=1, store=tmp_path) as cluster:
        slave = cluster.slave_index()
        send(cluster, 0, 20)
        cluster.wait_until_replicated()
        cluster.stop_broker(0)
        damage(paths[0], 10)
        repair(paths[0])
        cluster.restart_broker(0)
        send(cluster, 20, 30)
        cluster.wait_until_replicated()
        until(lambda: len(served(cluster, slave)) == 30, "all at the slave")
        assert served(cluster, slave) == [body_of(number) for number in range(30)]
        assert served(cluster, 0) == [body_of(number) for number in range(30) if number != 10]
    ours, theirs = map(log_of, paths)
    differing = [place for place in range(len(ours)) if ours[place] != theirs[place]]
    begin = theirs.index(body_of(10))
    assert len(ours) == len(theirs)
    assert begin - 200 < differing[0] <= differing[-1] < begin + 2 * len(body_of(10)), "the lost record alone"


def test_a_slave_does_not_follow_a_master_that_has_repaired_the_last_record_of_both(
    tmp_path: Path, paths: tuple[Path, Path], caplog: pytest.LogCaptureFixture
) -> None:
    """It cannot know that the rest is the same; nothing of it is lost, and somebody decides."""
    with LocalCluster(slaves=1, store=tmp_path) as cluster:
        slave = cluster.slave_index()
        send(cluster, 0, 20)
        cluster.wait_until_replicated()
        cluster.stop_broker(0)
        damage(paths[0], 19)
        repair(paths[0])
        cluster.restart_broker(0)
        until(lambda: "the last one of this slave, is not the one that master" in caplog.text, "it says so")
        assert found(cluster, slave, 19) == [body_of(19)]


def test_a_repaired_slave_follows_on_and_lacks_the_lost_message_alone(tmp_path: Path, paths: tuple[Path, Path]) -> None:
    """docs/replication.md says what is better: a copy of the master's log."""
    with LocalCluster(slaves=1, store=tmp_path) as cluster:
        slave = cluster.slave_index()
        send(cluster, 0, 20)
        cluster.wait_until_replicated()
        cluster.stop_broker(slave)
        damage(paths[1], 10)
        repair(paths[1])
        cluster.restart_broker(slave)
        send(cluster, 20, 30)
        cluster.wait_until_replicated()
        until(lambda: len(served(cluster, slave)) == 29, "the rest")
        assert served(cluster, slave) == [body_of(number) for number in range(30) if number != 10]
        assert served(cluster, 0) == [body_of(number) for number in range(30)]
    with StoreView(StoreConfig(paths[1])) as view:
        assert verify_store(view).findings == []


# --- a master that deletes what its slave has not got yet


def ask(cluster: LocalCluster, index: int, code: RequestCode) -> dict[str, str]:
    async def asked() -> dict[str, str]:
        client = RemotingClient()
        answer = await client.invoke(cluster.broker_addresses[index], code, timeout_s=60.0)
        await client.close()
        assert answer.code == 0, answer.remark
        return decode_body(answer.body, KVTable).table if answer.body else {}

    return asyncio.run(asked())


def figures(cluster: LocalCluster, index: int) -> dict[str, str]:
    return ask(cluster, index, RequestCode.GET_BROKER_RUNTIME_INFO)


def test_a_slow_slave_whose_files_the_master_has_deleted_keeps_what_it_has_and_begins_anew_when_told(
    tmp_path: Path, paths: tuple[Path, Path]
) -> None:
    """Processes: the slave stands still while the master rolls its files and deletes those that are too old."""
    config = {"mappedFileSizeCommitLog": FILE_BYTES, "fileReservedTime": 0, "haHousekeepingInterval": 1500}
    with LocalCluster(slaves=1, processes=True, store=tmp_path, config=config) as cluster:
        slave = cluster.slave_index()
        send(cluster, 0, 5)
        cluster.wait_until_replicated()
        process_id = cluster.broker_process_id(slave)
        os.kill(process_id, signal.SIGSTOP)
        with Producer("producers", namesrv=cluster.namesrv) as producer:
            for number in range(140):  # bodies that no compression makes smaller, and more than sockets hold
                body = random.Random(number).randbytes(100_000)
                assert producer.send(Message("Bulk", body)).status is SendStatus.OK

        def is_deleted() -> bool:
            ask(cluster, 0, RequestCode.DELETE_EXPIRED_COMMITLOG)
            return int(figures(cluster, 0)["commitLogMinOffset"]) >= 10 * FILE_BYTES

        until(is_deleted, "the master deletes its old files")
        os.kill(process_id, signal.SIGCONT)
        until(lambda: figures(cluster, slave)["haIsFollowing"] == "false", "the slave is refused")
        end = int(figures(cluster, slave)["commitLogMaxOffset"])
        assert 0 < end < int(figures(cluster, 0)["commitLogMinOffset"])
        cluster.stop_broker(slave)
        with StoreView(StoreConfig(paths[1])) as view:
            assert verify_store(view).findings == []
        assert log_of(paths[1]).count(b"order-") == 5 * 20, "what it has is sound, and stays"
        shutil.rmtree(paths[1])
        cluster.restart_broker(slave)
        cluster.wait_until_replicated()
        send(cluster, 5, 6)
        cluster.wait_until_replicated()
        assert figures(cluster, slave)["commitLogMaxOffset"] == figures(cluster, 0)["commitLogMaxOffset"]
