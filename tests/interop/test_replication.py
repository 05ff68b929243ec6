"""Masters and slaves of both: they follow and acknowledge each other, and readers go on when the master stops."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from apache import Apache, Program, facts, our_broker

from contrailmq import Admin, Message, Producer, SendStatus
from contrailmq.message import ContrailError
from contrailmq.store import StoreConfig, StoreView, verify_store
from contrailmq.testing import LocalCluster
from contrailmq.wire.admin_bodies import HaConnectionInfo
from free_ports import free_port
from waiting_for import until

pytestmark = pytest.mark.program("Apache's broker", "5.5.0")


def _log(store: Path, end: int) -> bytes:
    """The log's bytes up to an offset, as they stand in its files."""
    files = sorted((store / "commitlog").iterdir())
    assert files[0].name == "0" * 20
    return b"".join(file.read_bytes() for file in files)[:end]


def _slaves(cluster: LocalCluster) -> list[HaConnectionInfo]:
    with Admin(namesrv=cluster.namesrv) as admin:
        return list(admin.ha_status(cluster.broker().address).ha_connection_info)


def _apaches_slave(rocketmq: Apache, cluster: LocalCluster, store: Path) -> Program:
    name = cluster.broker().config.broker_name
    return rocketmq.broker(cluster.namesrv, store=store, name=name, brokerId=1, brokerRole="SLAVE")


def _follows(cluster: LocalCluster) -> None:
    """A slave of Apache's is silent for up to 5 s after it has connected."""
    until(lambda: any(slave.slave_ack_offset >= 0 for slave in _slaves(cluster)), seen=lambda: _slaves(cluster))


def test_apaches_slave_acknowledges_for_our_sync_master(rocketmq: Apache, tmp_path: Path) -> None:
    """Every answer is OK because Apache's slave has reported the message; then both logs are equal, byte for byte."""
    settings = {
        "brokerRole": "SYNC_MASTER",
        "inSyncReplicas": "2",
        "slaveTimeout": "2000",
        "listenPort": free_port(),
        "enableFastListenPort": "true",  # Apache's slave asks some of it there
    }
    ours, theirs = tmp_path / "ours", tmp_path / "apache"
    with LocalCluster(store=ours, config=settings) as cluster, Producer("p", namesrv=cluster.namesrv) as producer:
        master = cluster.broker()
        path = master.store.config.path

        def is_equal() -> bool:
            end = master.store.appended_offset
            return _log(path, end) == _log(theirs, end)

        with _apaches_slave(rocketmq, cluster, theirs) as slave:
            _follows(cluster)
            for number in range(200):
                sent = producer.send(Message("Shop", b"%d" % number * (1 + number * 10), keys=[f"k{number}"]))
                assert sent.status is SendStatus.OK, number
            assert is_equal(), "what was acknowledged is there at once"
            sent_batch = producer.send_batch([Message("Shop", b"batch %d" % number) for number in range(10)])
            assert sent_batch.status is SendStatus.OK
            shown = rocketmq.mqadmin("haStatus", "-b", master.address, namesrv=cluster.namesrv)
            end = master.store.appended_offset
            assert f"#MasterCommitLogMaxOffset\t{end}" in shown
            assert "#SlaveNum\t1" in shown
            assert "#InSyncSlaveNum\t1" in shown
            slave.stop(signal.SIGKILL)
        late = producer.send(Message("Shop", b"nobody has this"), timeout=10.0)
        assert late.status is SendStatus.FLUSH_SLAVE_TIMEOUT
        with _apaches_slave(rocketmq, cluster, theirs):
            _follows(cluster)
            until(is_equal, seen=lambda: _slaves(cluster))
            again = producer.send(Message("Shop", b"both have this"), timeout=10.0)
            assert again.status is SendStatus.OK
            assert is_equal()


def _apaches_slave_reads(rocketmq: Apache, cluster: LocalCluster, store: Path) -> Program:
    name = cluster.broker().config.broker_name
    given = {"brokerId": 1, "brokerRole": "SLAVE", "slaveReadEnable": "true"}
    return rocketmq.broker(cluster.namesrv, store=store, name=name, **given)


def _send(namesrv: str, numbers: range) -> None:
    """As a producer that goes on until the master is back: routes are up to a heartbeat old."""
    with Producer("shop", namesrv=namesrv) as producer:
        for number in numbers:
            until(lambda number=number: _is_sent(producer, number), seen=lambda number=number: number)  # type: ignore[misc]


def _is_sent(producer: Producer, number: int) -> bool:
    try:
        return producer.send(Message("Shop", b"%d" % number)).status is SendStatus.OK
    except ContrailError:  # the master is not back yet
        return False


def _heard(rocketmq: Apache, group: str, count: int) -> set[int]:
    """What Java's consumer has got; it waits for so many."""
    return {int(fact[5]) for fact in facts(rocketmq.client("heard", group, str(count)), "got")}


def _reads_go_on(
    rocketmq: Apache,
    namesrv: str,
    *,
    await_slave: Callable[[], None],
    stop_master: Callable[[], object],
    start_master: Callable[[], object],
) -> None:
    """Java's consumers: one that runs all the time, and one that begins while the master is gone."""
    with Admin(namesrv=namesrv) as admin:
        admin.create_topic("Shop", queues=4)
    rocketmq.client("listen", namesrv, "always", "Shop")
    _send(namesrv, range(20))
    assert _heard(rocketmq, "always", 20) == set(range(20))
    rocketmq.client("suspend", "always")
    _send(namesrv, range(20, 40))
    await_slave()
    stop_master()
    rocketmq.client("listen", namesrv, "late", "Shop")
    assert _heard(rocketmq, "late", 40) == set(range(40)), "all of it from the slave"
    rocketmq.client("resume", "always")
    assert _heard(rocketmq, "always", 40) == set(range(40)), "it goes on at the slave"
    start_master()
    _send(namesrv, range(40, 60))
    for group in ("always", "late"):
        assert _heard(rocketmq, group, 60) == set(range(60)), group
        rocketmq.client("leave", group)


def test_javas_consumers_read_from_our_slave_while_our_master_is_gone(rocketmq: Apache) -> None:
    with LocalCluster(slaves=1) as cluster:
        _reads_go_on(
            rocketmq,
            cluster.namesrv,
            await_slave=cluster.wait_until_replicated,
            stop_master=lambda: cluster.kill_broker(0),
            start_master=lambda: cluster.restart_broker(0),
        )


def test_javas_consumers_read_from_apaches_slave_while_our_master_is_gone(rocketmq: Apache, tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "apache"
    settings = {"listenPort": free_port(), "enableFastListenPort": "true"}
    with LocalCluster(store=ours, config=settings) as cluster, _apaches_slave_reads(rocketmq, cluster, theirs):
        _follows(cluster)
        path = cluster.broker().store.config.path

        def await_slave() -> None:
            """The log at once; the topics when Apache's slave has run for a minute."""
            end = cluster.broker().store.appended_offset
            until(lambda: _log(path, end) == _log(theirs, end), seen=lambda: _slaves(cluster))
            until(lambda: '"Shop"' in _text(theirs / "config" / "topics.json"), "Apache's slave has the topic")

        _reads_go_on(
            rocketmq,
            cluster.namesrv,
            await_slave=await_slave,
            stop_master=lambda: cluster.stop_broker(0),
            start_master=lambda: cluster.restart_broker(0),
        )


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_our_slave_follows_a_master_of_apaches_4_9_7_and_is_read_while_it_is_gone(
    rocketmq: Apache, rocketmq_4: Apache, tmp_path: Path
) -> None:
    theirs, ours = tmp_path / "apache", tmp_path / "ours"
    slave = {
        "brokerName": "broker-a",
        "brokerId": 1,
        "brokerRole": "SLAVE",
        "slaveReadEnable": "true",
        "storePathRootDir": ours,
    }
    with (
        rocketmq_4.namesrv() as namesrv,
        rocketmq_4.broker(namesrv.address, store=theirs) as master,
        our_broker(tmp_path, namesrv.address, slave),
    ):

        def await_slave() -> None:
            until(lambda: _is_copy(theirs, ours), seen=lambda: (len(_written(theirs)), len(_written(ours))))

        _reads_go_on(
            rocketmq,
            namesrv.address,
            await_slave=await_slave,
            stop_master=master.stop,
            start_master=master.__enter__,
        )
        await_slave()
    with StoreView(StoreConfig(ours)) as view:
        assert verify_store(view).findings == []


def _is_copy(master: Path, slave: Path) -> bool:
    written = _written(master)
    return len(written) > 1000 and _written(slave) == written


def _written(store: Path) -> bytes:
    return b"".join(file.read_bytes() for file in sorted((store / "commitlog").glob("[0-9]*"))).rstrip(b"\0")
