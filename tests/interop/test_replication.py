"""Apache's slave on our master: it follows, acknowledges, comes back after a kill; mqadmin sees it."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

from apache import Apache, Program

from contrailmq import Admin, Message, Producer, SendStatus
from contrailmq.testing import LocalCluster
from contrailmq.wire.admin_bodies import HaConnectionInfo
from free_ports import free_port

WAIT_S = 90.0


def _until(fact: Callable[[], bool], what: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not fact():
        assert time.monotonic() < deadline, what()
        time.sleep(0.1)


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
    _until(lambda: any(slave.slave_ack_offset >= 0 for slave in _slaves(cluster)), lambda: _slaves(cluster))


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
            _until(is_equal, lambda: _slaves(cluster))
            again = producer.send(Message("Shop", b"both have this"), timeout=10.0)
            assert again.status is SendStatus.OK
            assert is_equal()
