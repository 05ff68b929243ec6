"""A slave of one beside the master of the other: Apache's SlaveSynchronize and ours ask the same questions."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from apache import Apache, our_broker

from contrailmq import Admin, ConsumeFromWhere, LitePullConsumer, Message, Producer
from contrailmq.broker.state import config_files
from contrailmq.message import MessageQueue
from contrailmq.store import StoreConfig, StoreView, verify_store
from contrailmq.store.timer import TimerCheckpoint, decode_checkpoint
from contrailmq.testing import LocalCluster
from contrailmq.wire.admin_bodies import SubscriptionGroupConfig
from free_ports import free_port
from waiting_for import until

pytestmark = pytest.mark.program("Apache's broker", "5.5.0")

TABLES = {
    "topics.json": "topicConfigTable",
    "subscriptionGroup.json": "subscriptionGroupTable",
    "consumerOffset.json": "offsetTable",
    "delayOffset.json": "offsetTable",
}


def _work(namesrv: str) -> None:
    """Leave something in every table of the master."""
    with Admin(namesrv=namesrv) as admin:
        admin.create_topic("Shop", queues=3)
        admin.create_group(SubscriptionGroupConfig(group_name="billing", retry_max_times=5))
        (queue,) = [queue for queue in admin.queues("Shop") if queue.queue_id == 1]
        admin.set_offset("billing", MessageQueue("Shop", queue.broker_name, 1), 0)
        with Producer("shop", namesrv=namesrv) as producer:
            for _ in range(4):
                producer.send(Message("Shop", b"now"), queue=queue)
            producer.send(Message("Shop", b"level", delay_level=1))
            producer.send(Message("Shop", b"soon", delay=2.0))
            producer.send(Message("Shop", b"later", delay=3600.0))
        admin.set_offset("billing", MessageQueue("Shop", queue.broker_name, 1), 3)


def _log(store: Path) -> bytes:
    """The log as it stands in its files, without what is not written yet."""
    return b"".join(file.read_bytes() for file in sorted((store / "commitlog").glob("[0-9]*"))).rstrip(b"\0")


def _table(store: Path, name: str) -> object:
    path = store / "config" / name
    return config_files.parse(path.read_text())[TABLES[name]] if path.exists() and path.stat().st_size else None


def _checkpoint(store: Path) -> TimerCheckpoint:
    path = store / "config" / "timercheck"
    return decode_checkpoint(path.read_bytes()) if path.exists() else TimerCheckpoint()


def _timers(store: Path) -> object:
    """Topic -> how many wait."""
    path = store / "config" / "timermetrics"
    if not path.exists() or not path.stat().st_size:
        return None
    counts = config_files.parse(path.read_text())["timingCount"]
    assert isinstance(counts, dict)
    return {topic: entry["count"] for topic, entry in counts.items()}


def _expect_copies(master: Path, slave: Path) -> None:
    """Every table of the slave becomes its master's, and says what was done above."""
    for name in TABLES:
        until(
            lambda name=name: _table(master, name) is not None and _table(slave, name) == _table(master, name),  # type: ignore[misc]
            seen=lambda name=name: (name, _table(master, name), _table(slave, name)),  # type: ignore[misc]
        )
    topics, groups, offsets = (_table(slave, name) for name in list(TABLES)[:3])
    assert isinstance(topics, dict)
    assert topics["Shop"]["readQueueNums"] == 3
    assert isinstance(groups, dict)
    assert groups["billing"]["retryMaxTimes"] == 5
    assert isinstance(offsets, dict)
    assert offsets["Shop@billing"] == {"1": 3}
    until(lambda: _timers(slave) == _timers(master) == {"Shop": 1}, seen=lambda: (_timers(master), _timers(slave)))
    until(
        lambda: _checkpoint(slave).master_queue_offset == _checkpoint(master).master_queue_offset == 2,
        seen=lambda: (_checkpoint(master), _checkpoint(slave)),
    )
    reached_ms = _checkpoint(master).read_time_ms
    until(lambda: _checkpoint(slave).read_time_ms >= reached_ms, seen=lambda: (reached_ms, _checkpoint(slave)))
    # The master answers what it has in memory, and writes its own file once a second: that may come later.
    copied_ms = _checkpoint(slave).read_time_ms
    until(lambda: _checkpoint(master).read_time_ms >= copied_ms, seen=lambda: (copied_ms, _checkpoint(master)))
    copied = _table(slave, "delayOffset.json")
    assert isinstance(copied, dict)
    assert copied["1"] == 1


def test_our_slave_has_the_tables_of_apaches_master(rocketmq: Apache, tmp_path: Path) -> None:
    store = tmp_path / "apache"
    with rocketmq.cluster(store=store, flushDelayOffsetInterval=1000) as (namesrv, _):
        _work(namesrv)
        slave = {"brokerName": "broker-a", "brokerId": 1, "brokerRole": "SLAVE", "storePathRootDir": tmp_path / "ours"}
        with our_broker(tmp_path, namesrv, slave):
            until(lambda: (_table(store, "delayOffset.json") or {}) == {"1": 1}, "Apache delivers")
            _expect_copies(store, tmp_path / "ours")
            until(lambda: _log(tmp_path / "ours") == _log(store), "equal logs, byte for byte")
            assert len(_log(store)) > 1000
            shown = rocketmq.mqadmin("clusterList", namesrv=namesrv)
            assert [line.split()[2] for line in shown.splitlines() if "broker-a" in line] == ["0", "1"]
    log = (tmp_path / "ours.log").read_text()
    assert "this slave copies from master" in log
    assert "not copied" not in log


def test_our_slave_follows_apaches_master_through_kills_and_is_read_when_the_master_is_gone(
    rocketmq: Apache, tmp_path: Path
) -> None:
    """Batches, delays, several log files; the slave is killed under load, then the master stops and readers go on."""
    store, ours = tmp_path / "apache", tmp_path / "ours"
    small = {"mappedFileSizeCommitLog": 1024 * 1024}
    slave = {"brokerName": "broker-a", "brokerId": 1, "brokerRole": "SLAVE", "slaveReadEnable": "true"}
    given = slave | small | {"storePathRootDir": ours}
    with rocketmq.namesrv() as namesrv, rocketmq.broker(namesrv.address, store=store, **small) as master:
        with Admin(namesrv=namesrv.address) as admin:
            admin.create_topic("Shop", queues=4)
        with Producer("shop", namesrv=namesrv.address) as producer:
            with our_broker(tmp_path, namesrv.address, given) as first:
                producer.send(Message("Shop", b"first"))
                until(lambda: _log(ours) == _log(store), "the first message")
                for number in range(1500):
                    producer.send(Message("Shop", b"%d" % number * 300, keys=f"k{number}"))
                producer.send_batch([Message("Shop", b"batch %d" % number) for number in range(20)])
                producer.send(Message("Shop", b"late", delay_level=2))
                first.stop(signal.SIGKILL)
            for number in range(1500, 2000):
                producer.send(Message("Shop", b"%d" % number * 300, keys=f"k{number}"))
            second = our_broker(tmp_path, namesrv.address, given)
            with second:
                until(lambda: _log(ours) == _log(store), "equal logs, byte for byte")
                assert len(list((ours / "commitlog").iterdir())) >= 2
                master.stop()
                with LitePullConsumer(
                    "audit", namesrv=namesrv.address, from_where=ConsumeFromWhere.FIRST_OFFSET
                ) as consumer:
                    consumer.subscribe("Shop")
                    got: set[bytes] = set()
                    until(lambda: len(_gather(consumer, got)) >= 2022, seen=lambda: len(got))
                assert {b"%d" % number * 300 for number in range(2000)} <= got
    with StoreView(StoreConfig(ours)) as view:
        assert verify_store(view).findings == []


def _gather(consumer: LitePullConsumer, got: set[bytes]) -> set[bytes]:
    got.update(message.body for message in consumer.poll(timeout=1.0))
    return got


def test_apaches_slave_has_the_tables_of_our_master(rocketmq: Apache, tmp_path: Path) -> None:
    port = free_port()
    settings = {
        "listenPort": port,
        "enableFastListenPort": "true",  # Apache's slave asks some of it there
        "flushDelayOffsetInterval": 1000,
    }
    with LocalCluster(store=tmp_path / "ours", config=settings) as cluster:
        master = cluster.broker()
        _work(cluster.namesrv)
        with rocketmq.broker(
            cluster.namesrv,
            store=tmp_path / "apache",
            name=master.config.broker_name,
            brokerId=1,
            brokerRole="SLAVE",
        ):
            _expect_copies(master.store.config.path, tmp_path / "apache")
