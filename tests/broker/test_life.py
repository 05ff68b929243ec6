"""A broker's life over real files: what goes wrong while it runs or stops costs as little as it must."""

from __future__ import annotations

import asyncio
import logging
import shutil
from pathlib import Path

import pytest

from contrailmq.broker.config import BrokerConfig
from contrailmq.broker.server import BrokerServer
from contrailmq.broker.state.config_files import TableSaveError
from contrailmq.namesrv import NameServer, NamesrvConfig
from contrailmq.store import MessageStore, StoreConfig
from contrailmq.store.base.errors import CorruptStoreError
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.header import Command
from contrailmq.wire.transport import RemotingClient

MIB = 1 << 20
TOPIC = {"defaultTopic": "TBW102", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6, "topicFilterType": "SINGLE_TAG"}


def made(path: Path, **properties: str) -> BrokerServer:
    own = {"brokerName": "b", "listenPort": "0", "bindAddress": "127.0.0.1"}
    config, warnings = BrokerConfig.from_properties(own | properties)
    assert not warnings
    small: dict[str, object] = {"mapped_file_size_commit_log": MIB, "max_hash_slot_num": 1000, "max_index_num": 4000}
    return BrokerServer(config, StoreConfig(path, **small))


async def new_topic(client: RemotingClient, broker: BrokerServer, name: str) -> Command:
    fields = TOPIC | {"topic": name, "order": False, "topicSysFlag": 0}
    return await client.invoke(broker.address, RequestCode.UPDATE_AND_CREATE_TOPIC, fields, b"", 30)


def test_a_table_that_cannot_be_saved_is_told_with_its_file_and_the_store_is_closed_all_the_same(
    tmp_path: Path,
) -> None:
    async def serve() -> None:
        broker, client = made(tmp_path), RemotingClient()
        await broker.start()
        (tmp_path / "config" / "topics.json.tmp").mkdir(parents=True)  # as a full disk: no new version can be written
        answer = await new_topic(client, broker, "Made")
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert f"{tmp_path}/config/topics.json cannot be saved: Is a directory: make room" in (answer.remark or "")
        assert "Made" in broker.node.topics
        await client.close()
        with pytest.raises(TableSaveError, match=r"topics\.json cannot be saved"):
            await broker.stop()

    asyncio.run(serve())
    assert '"offsetTable"' in (tmp_path / "config" / "consumerOffset.json").read_text()
    with MessageStore(StoreConfig(tmp_path, mapped_file_size_commit_log=MIB)) as store:
        assert store.recovery.was_clean_exit


def test_a_start_that_is_refused_names_the_first_cause_and_lets_go_of_the_store(tmp_path: Path) -> None:
    """The wheel cannot be used, and then the table of the delay levels cannot be saved either."""
    (tmp_path / "config" / "delayOffset.json.tmp").mkdir(parents=True)
    (tmp_path / "timerwheel").write_bytes(bytes(100))

    async def serve() -> None:
        broker = made(tmp_path)
        with pytest.raises(CorruptStoreError, match="the timer wheel has 100 bytes"):
            await broker.start()

    asyncio.run(serve())
    with MessageStore(StoreConfig(tmp_path, mapped_file_size_commit_log=MIB)) as store:
        assert store.recovery.was_clean_exit


def test_name_servers_that_are_named_while_the_broker_runs_are_told_of_it(tmp_path: Path) -> None:
    async def serve() -> tuple[int, int]:
        broker, client = made(tmp_path, allowRemoteConfig="namesrvAddr"), RemotingClient()
        name_server = NameServer(NamesrvConfig(listen_port=0, bind_address="127.0.0.1", rocketmq_home=str(tmp_path)))
        await name_server.start()
        await broker.start()
        setting = f"namesrvAddr={name_server.address}\n".encode()
        changed = await client.invoke(broker.address, RequestCode.UPDATE_BROKER_CONFIG, None, setting, 30)
        assert changed.code == ResponseCode.SUCCESS
        topic = await new_topic(client, broker, "Made")
        route = await client.invoke(name_server.address, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Made"}, b"", 30)
        await client.close()
        await broker.stop()
        await name_server.stop()
        return topic.code, route.code

    assert asyncio.run(asyncio.wait_for(serve(), 120)) == (ResponseCode.SUCCESS, ResponseCode.SUCCESS)


def test_a_store_that_takes_no_messages_is_logged_when_that_begins_and_ends(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def serve() -> None:
        broker = made(tmp_path)
        await broker.start()
        for reason in ("the disk is full to 96 %", "the disk is full to 97 %", None, None):
            broker.store.set_disk_full(reason)
            broker._watch_store()
        await broker.stop()

    caplog.set_level(logging.INFO, "contrailmq.broker")
    asyncio.run(asyncio.wait_for(serve(), 120))
    assert [line for line in caplog.messages if "takes no messages" in line] == [
        "broker b takes no messages: the disk is full to 96 %",
        "broker b takes no messages: it takes them again, after 0.0 s",
    ]


@pytest.mark.parametrize("took_its_place", [False, True])
def test_a_store_that_is_deleted_under_a_broker_ends_its_sends_and_is_not_made_again(
    took_its_place: bool, tmp_path: Path
) -> None:
    root = tmp_path / "store"

    async def serve() -> None:
        broker, client = made(root), RemotingClient()
        await broker.start()
        assert (await new_topic(client, broker, "T")).code == ResponseCode.SUCCESS
        fields = {"producerGroup": "G", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": 4}
        fields |= {"queueId": 0, "sysFlag": 0, "bornTimestamp": 1, "flag": 0, "properties": ""}
        assert (await client.invoke(broker.address, RequestCode.SEND_MESSAGE, fields, b"x", 30)).code == 0
        shutil.rmtree(root)
        if took_its_place:
            (root / "config").mkdir(parents=True)
            (root / "config" / "topics.json").write_text("another's")
        broker.store.tick()
        answer = await client.invoke(broker.address, RequestCode.SEND_MESSAGE, fields, b"x", 30)
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert f"{root}/lock was deleted while the store was in use" in (answer.remark or "")
        pull = {"consumerGroup": "G", "topic": "T", "queueId": 0, "queueOffset": 0, "maxMsgNums": 32, "sysFlag": 4}
        pull |= {"commitOffset": 0, "suspendTimeoutMillis": 0, "subscription": "*", "subVersion": 0}
        found = await client.invoke(broker.address, RequestCode.PULL_MESSAGE, pull, b"", 30)
        assert found.code == ResponseCode.SUCCESS, found.remark
        await client.close()
        with pytest.raises(TableSaveError, match="lock was deleted while the store was in use"):
            await broker.stop()

    asyncio.run(asyncio.wait_for(serve(), 120))
    assert [path.name for path in root.rglob("*")] == (["config", "topics.json"] if took_its_place else [])
    assert not took_its_place or (root / "config" / "topics.json").read_text() == "another's"
