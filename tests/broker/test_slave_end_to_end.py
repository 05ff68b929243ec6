"""A master, a slave and a NameServer over real sockets: the slave finds its master, follows it, and takes its place."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections import Counter
from pathlib import Path

import pytest

from broker.harness import send_fields
from contrailmq.broker import BrokerServer
from contrailmq.broker.cluster import registration as registration_module
from contrailmq.broker.cluster import slave_sync
from contrailmq.broker.config import BrokerConfigError, read_configs
from contrailmq.broker.state.groups import Group
from contrailmq.broker.state.topics import Topic
from contrailmq.namesrv import NameServer, NamesrvConfig
from contrailmq.store.timer import decode_checkpoint
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.transport import RemotingClient
from free_ports import free_port
from waiting_for import until_async

SMALL: dict[str, object] = {"mapped_file_size_commit_log": 1 << 20, "max_hash_slot_num": 1000, "max_index_num": 4000}


def broker(path: Path, namesrv: str, *, port: int = 0, **settings: str) -> BrokerServer:
    properties = {
        "brokerName": "b",
        "bindAddress": "127.0.0.1",
        "brokerIP1": "127.0.0.1",
        "listenPort": str(port),
        "haListenPort": "0",
        "enableFastListenPort": "false",
        "namesrvAddr": namesrv,
        "flushDelayOffsetInterval": "200",
    }
    config, store_config, _ = read_configs(properties | settings, path=path, **SMALL)
    return BrokerServer(config, store_config)


def slave_at(path: Path, namesrv: str) -> BrokerServer:
    return broker(path, namesrv, brokerRole="SLAVE", brokerId="1")


async def send(client: RemotingClient, address: str, body: bytes, properties: str) -> None:
    answer = await client.invoke(address, RequestCode.SEND_MESSAGE_V2, send_fields(properties=properties), body)
    assert answer.code == 0, answer.remark


def text(server: BrokerServer, name: str) -> str:
    path = server.store.config.path / "config" / name
    return path.read_text() if path.exists() else ""


def bodies(server: BrokerServer) -> list[bytes]:
    return [message.body for message in server.store.get("T", 0, 0, 100)]


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask every tenth of a second what is asked every ten seconds."""
    monkeypatch.setattr(slave_sync, "TABLES_MS", 100)
    monkeypatch.setattr(slave_sync, "CHECKPOINT_MS", 50)
    monkeypatch.setattr(registration_module, "RECONNECT_S", 0.05)


def test_a_slave_finds_its_master_follows_it_and_takes_its_place(tmp_path: Path) -> None:
    async def story() -> None:
        name_server = NameServer(NamesrvConfig(bind_address="127.0.0.1", listen_port=0, rocketmq_home=str(tmp_path)))
        await name_server.start()
        client = RemotingClient()
        slave = slave_at(tmp_path / "slave", name_server.address)
        await slave.start()  # before its master
        assert slave.slave_sync is not None
        assert slave.slave_sync.master == ""
        port = free_port()  # nobody takes it while the master is away
        master = broker(tmp_path / "master", name_server.address, port=port)
        await master.start()
        await until_async(lambda: slave.slave_sync is not None and slave.slave_sync.master == master.address)

        await send(client, master.address, b"level", "DELAY\x011\x02UNIQ_KEY\x01L\x02")
        await send(client, master.address, b"timer", "TIMER_DELAY_SEC\x011\x02UNIQ_KEY\x01W\x02")
        await send(client, master.address, b"waits", "DELAY\x013\x02UNIQ_KEY\x01M\x02")
        await send(client, master.address, b"turns", "TIMER_DELAY_SEC\x018\x02UNIQ_KEY\x01X\x02")
        master.node.groups.put(Group("g", retry_max_times=7))
        master.node.offsets.commit("g", "T", 0, 1)
        await until_async(lambda: {b"level", b"timer"} <= set(bodies(master)))
        await until_async(lambda: '"1":1' in text(slave, "delayOffset.json"))
        timercheck = slave.store.config.path / "config" / "timercheck"
        delivered_ms = max(message.store_time_ms for message in master.store.get("T", 0, 0, 100))
        # The tick is over in which it was delivered: a slave would deliver all of that tick again.
        await until_async(lambda: decode_checkpoint(timercheck.read_bytes()).read_time_ms >= delivered_ms)
        await until_async(lambda: decode_checkpoint(timercheck.read_bytes()).master_queue_offset == 2)
        await until_async(lambda: '"T@g"' in text(slave, "consumerOffset.json"))
        topic_table = lambda: json.loads(text(slave, "topics.json"))["topicConfigTable"]  # noqa: E731
        await until_async(lambda: topic_table()["T"]["writeQueueNums"] == 4)
        await until_async(
            lambda: (
                json.loads(text(slave, "subscriptionGroup.json"))["subscriptionGroupTable"]["g"]["retryMaxTimes"] == 7
            )
        )

        await master.stop()
        await until_async(lambda: slave.slave_sync is not None and slave.slave_sync.master == "")
        assert "T" in slave.node.topics
        master = broker(tmp_path / "master", name_server.address, port=port)
        await master.start()  # it is back, and so is its slave
        master.node.topics.put(Topic("Later"))
        await until_async(lambda: "Later" in slave.node.topics)
        # On a busy machine the other two may be due by now. A slave may deliver again what it did not hear of.
        may_repeat = set(bodies(master)) - {b"level", b"timer"}
        await master.stop()
        await slave.stop()

        log = Path("commitlog")
        shutil.rmtree(tmp_path / "slave" / log)
        shutil.copytree(tmp_path / "master" / log, tmp_path / "slave" / log)
        promoted = broker(tmp_path / "slave", name_server.address)
        await promoted.start()
        await until_async(lambda: len(set(bodies(promoted))) == 4)
        delivered = Counter(bodies(promoted))
        assert delivered.keys() == {b"level", b"timer", b"turns", b"waits"}
        assert {body for body, count in delivered.items() if count > 1} <= may_repeat
        assert promoted.node.offsets.query("g", "T", 0) == 1
        await promoted.stop()
        await client.close()
        await name_server.stop()

    asyncio.run(story())


def test_a_slave_needs_an_id_above_zero_and_a_master_is_always_zero(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        with pytest.raises(BrokerConfigError, match="brokerRole=SLAVE needs an id above 0"):
            await broker(tmp_path / "slave", "", brokerRole="SLAVE").start()
        master = broker(tmp_path / "master", "", brokerId="3")
        await master.start()
        assert master.config.broker_id == 0
        await master.stop()

    asyncio.run(story())
    assert "brokerId=3 is taken as 0" in caplog.text


def test_a_slave_without_name_servers_says_that_it_cannot_find_its_master(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        slave = slave_at(tmp_path, "")
        await slave.start()
        await until_async(lambda: "namesrvAddr is not set" in caplog.text)
        await slave.stop()

    asyncio.run(story())
