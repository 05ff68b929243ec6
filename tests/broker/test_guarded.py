"""What anybody who reaches the port may not do: fill the tables without end, or change settings that protect."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest

from broker.harness import Bench
from contrailmq.broker.config import FIXED_KEYS, PROTECTED_KEYS, BrokerConfig
from contrailmq.message import SYSTEM_GROUPS
from contrailmq.wire.codes import RequestCode, ResponseCode
from namesrv.test_server import running

TOPIC = {"readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "topicFilterType": "SINGLE_TAG", "order": False}


def test_by_default_clients_may_create_50_000_of_each() -> None:
    config, _ = BrokerConfig.from_properties({})
    assert (config.client_topics_max, config.client_groups_max) == (50_000, 50_000)


def test_clients_create_no_more_topics_than_allowed_and_operators_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path)
    count = len(bench.node.topics)
    bench.close()
    bench = Bench(tmp_path, settings={"clientTopicsMax": str(count + 2)})
    try:
        assert [bench.send(name).code for name in ("First", "Second")] == [0, 0]
        for name in ("Third", "Fourth", "%RETRY%nobody"):
            refused = bench.send(name)
            assert refused.code == ResponseCode.INVALID_PARAMETER, "clients try SYSTEM_ERROR again"
            text = f"topic {name} is not created: this broker has {count + 2} topics"
            assert (refused.remark or "").startswith(text)
            assert f"clientTopicsMax={count + 2}" in (refused.remark or "")
            assert name not in bench.node.topics
        assert bench.send("First").code == 0, "one that exists"
        assert sum("clientTopicsMax" in record.message for record in caplog.records) == 1
        made = bench.ask(RequestCode.UPDATE_AND_CREATE_TOPIC, TOPIC | {"topic": "Third", "defaultTopic": "TBW102"})
        assert (made.code, bench.send("Third").code) == (0, 0)
        assert bench.heartbeat("First", group="g").code == 0
        assert "%RETRY%g" in bench.node.topics, "a group's own topic is bounded by the groups"
    finally:
        bench.close()


def test_clients_create_no_more_groups_than_allowed_by_heartbeat_pull_and_send_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    limit = len(SYSTEM_GROUPS) + 1
    bench = Bench(tmp_path, settings={"clientGroupsMax": str(limit)})
    try:
        bench.send("T")
        assert bench.heartbeat("T", group="first").code == 0
        back = {"group": "second", "offset": 0, "delayLevel": 0, "originTopic": "T", "unitMode": False}
        refusals = [
            bench.heartbeat("T", group="second"),
            bench.pull("T", group="second")[0],
            bench.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back),
        ]
        for refused in refusals:
            assert refused.code == ResponseCode.INVALID_PARAMETER
            assert f"group second is not created: this broker has {limit} groups" in (refused.remark or "")
            assert f"clientGroupsMax={limit}" in (refused.remark or "")
        assert "second" not in bench.node.groups
        assert "%RETRY%second" not in bench.node.topics
        assert bench.node.clients.consumer_group("second") is None
        assert sum("clientGroupsMax" in record.message for record in caplog.records) == 1
        body = b'{"groupName":"second"}'
        assert bench.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body).code == 0
        assert bench.heartbeat("T", group="second").code == 0
    finally:
        bench.close()


def test_a_heartbeat_with_a_group_too_many_registers_the_others(tmp_path: Path) -> None:
    bench = Bench(tmp_path, settings={"clientGroupsMax": str(len(SYSTEM_GROUPS) + 1)})
    try:
        groups = ",".join(
            f'{{"groupName":"{name}","consumeType":"CONSUME_PASSIVELY","messageModel":"CLUSTERING",'
            '"consumeFromWhere":"CONSUME_FROM_FIRST_OFFSET","subscriptionDataSet":[]}'
            for name in ("fits", "beyond", "TOOLS_CONSUMER")
        )
        body = f'{{"clientID":"c","consumerDataSet":[{groups}],"producerDataSet":[{{"groupName":"pg"}}]}}'
        refused = bench.ask(RequestCode.HEART_BEAT, None, body.encode())
        assert "group beyond is not created" in (refused.remark or "")
        live = [name for name in ("fits", "beyond", "TOOLS_CONSUMER") if bench.node.clients.consumer_group(name)]
        assert live == ["fits", "TOOLS_CONSUMER"]
    finally:
        bench.close()


def changed(bench: Bench, body: str) -> tuple[int, str]:
    answer = bench.ask(RequestCode.UPDATE_BROKER_CONFIG, None, body.encode())
    return answer.code, answer.remark or ""


@pytest.mark.parametrize(
    "setting",
    [
        "namesrvAddr=10.0.0.66:9876",
        "brokerPermission=6",
        "autoCreateTopicEnable=true",
        "fileReservedTime=1",
        "deleteWhen=00",
        "diskMaxUsedSpaceRatio=10",
        "diskSpaceCleanForciblyRatio=10",
        "flushCommitLogThoroughInterval=3600000",
        "clientTopicsMax=1000000",
    ],
)
def test_what_protects_is_not_changed_over_the_network_unless_the_file_allows_the_key(
    setting: str, tmp_path: Path
) -> None:
    key = setting.partition("=")[0]
    bench = Bench(tmp_path)
    before = bench.ask(26).body
    code, remark = changed(bench, f"traceOn=false\n{setting}\n")
    assert code == ResponseCode.NO_PERMISSION
    assert remark.startswith(f"{key}: not changed over the network")
    assert f"allowRemoteConfig={key}" in remark
    assert bench.ask(26).body == before, "all or nothing"
    bench.close()
    for allowed in (f"traceOn, {key}", "*"):
        bench = Bench(tmp_path, settings={"allowRemoteConfig": allowed})
        assert changed(bench, f"{setting}\n") == (0, "")
        bench.close()


@pytest.mark.parametrize(
    "setting",
    [
        "storePathRootDir=/x",
        "storePathCommitLog=/x",
        "listenPort=1",
        "haListenPort=1",
        "bindAddress=0.0.0.0",
        "brokerIP1=10.0.0.66",
        "brokerRole=SLAVE",
        "flushDiskType=ASYNC_FLUSH",
        "allowRemoteConfig=*",
        "takeover=true",
        "resync=true",
        "allowUnsupported=true",
        "configBlackList=x",
        "brokerConfigPath=/x",
    ],
)
def test_what_is_fixed_at_the_start_is_changed_by_nobody(setting: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path, settings={"allowRemoteConfig": "*"})
    before = bench.ask(26).body
    code, remark = changed(bench, f"{setting}\n")
    assert code != 0
    assert setting.partition("=")[0] in remark
    assert bench.ask(26).body == before
    bench.close()


def test_an_operators_black_list_wins(tmp_path: Path) -> None:
    bench = Bench(tmp_path, settings={"configBlackList": "traceOn;regionId", "allowRemoteConfig": "*"})
    assert changed(bench, "traceOn=false\n") == (
        ResponseCode.NO_PERMISSION,
        "Can not update config in black list: traceOn (configBlackList)",
    )
    bench.close()


def test_the_guide_lists_the_keys_that_are_protected() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "security.md").read_text()
    section = guide.split("\n## Changing settings over the network\n")[1].split("\n## ")[0]
    assert set(re.findall(r"`(\w+)`", section)) >= PROTECTED_KEYS
    assert not PROTECTED_KEYS & FIXED_KEYS


def test_a_name_server_keeps_what_hides_or_removes_topics(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, enable_all_topic_list=False) as (server, ask, _client):
            refused = await ask(RequestCode.UPDATE_NAMESRV_CONFIG, {}, b"enableAllTopicList=true")
            assert refused.code == ResponseCode.NO_PERMISSION
            assert "allowRemoteConfig=enableAllTopicList" in str(refused.remark)
            assert not server.config.enable_all_topic_list
            listed = await ask(RequestCode.UPDATE_NAMESRV_CONFIG, {}, b"allowRemoteConfig=*")
            assert listed.code == ResponseCode.NO_PERMISSION
        async with running(tmp_path, allow_remote_config="enableAllTopicList") as (server, ask, _client):
            assert (await ask(RequestCode.UPDATE_NAMESRV_CONFIG, {}, b"enableAllTopicList=false")).code == 0
            assert not server.config.enable_all_topic_list

    asyncio.run(asyncio.wait_for(main(), 120))
