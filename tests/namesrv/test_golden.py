"""Our NameServer, fed with the requests that Apache's brokers, clients and tools sent, answers as Apache's did.

The captures keep at most two exchanges of a kind, so registrations are missing between them. Before an exchange whose
captured answer shows topics that no captured registration brought, the test registers those topics the way a broker
does: one incremental registration each.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from contrailmq.namesrv import NameServer, NamesrvConfig
from contrailmq.wire.bodies import (
    BrokerData,
    DataVersion,
    QueueData,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigWrapper,
    encode_body,
)
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.fastjson import loads_fastjson
from contrailmq.wire.frame import FrameParser, encode_request
from contrailmq.wire.header import Command
from contrailmq.wire.properties import parse_properties
from contrailmq.wire.transport import RemotingClient

GOLDEN = Path(__file__).parents[1] / "golden" / "wire"
NOBODY = BrokerData(broker_name="golden-w")
TOPIC_LISTS = {
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    RequestCode.GET_TOPICS_BY_CLUSTER,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
}


def parse(frame: str) -> Command:
    [command] = FrameParser().feed(bytes.fromhex(frame))
    return command


def captured() -> list[dict[str, Any]]:
    every = [json.loads(path.read_text()) for path in sorted(GOLDEN.glob("[0-9]*.json"))]
    return [exchange for exchange in every if "namesrv" in exchange["direction"]]


def of_slave(code: int) -> dict[str, Any]:
    return next(one for one in captured() if one["code"] == code and one["request_ext"]["brokerId"] == "1")


class Recorder:
    """Stands where a connection stands; keeps what is answered."""

    is_open = True

    def __init__(self) -> None:
        self.answers: asyncio.Queue[Command] = asyncio.Queue()

    def reply(self, data: bytes) -> None:
        [command] = FrameParser().feed(data)
        self.answers.put_nowait(command)


class Replay:
    def __init__(self, home: Path) -> None:
        self.server = NameServer(NamesrvConfig(rocketmq_home=str(home), listen_port=19876))
        self.connection: Any = Recorder()

    async def ask(self, request: Command) -> Command:
        self.server.handle(self.connection, [request])
        return await asyncio.wait_for(self.connection.answers.get(), 5)

    async def prepare(self, exchange: dict[str, Any], expected: Command) -> None:
        """Bring what the uncaptured registrations before this exchange had brought."""
        tables = self.server.tables
        code = exchange["code"]
        if code in TOPIC_LISTS:
            shown = json.loads(expected.body)["topicList"]
            for topic in [topic for topic in tables.topics if topic.startswith("Filler")]:
                tables.delete_topic(topic)
            for topic in shown:
                if topic not in tables.topics and code != RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS:
                    await self.register_topic(topic, QueueData(broker_name="golden-w"))
        elif code == RequestCode.GET_ROUTEINFO_BY_TOPIC and expected.body:
            [queues] = json.loads(expected.body)["queueDatas"]
            await self.register_topic(
                exchange["request_ext"]["topic"],
                QueueData(
                    broker_name="golden-w",
                    perm=queues["perm"],
                    read_queue_nums=queues["readQueueNums"],
                    write_queue_nums=queues["writeQueueNums"],
                ),
            )
        elif code == RequestCode.WIPE_WRITE_PERM_OF_BROKER:
            for number in range(int(expected.ext["wipeTopicCount"]) - len(tables.topics)):
                await self.register_topic(f"Filler{number}", QueueData(broker_name="golden-w"))
        elif code == RequestCode.REGISTER_BROKER:
            if "masterAddr" in expected.ext and 0 not in tables.brokers.get("golden-w", NOBODY).broker_addrs:
                await self.ask(parse(captured()[0]["request_hex"]))
            orders = json.loads(expected.body)["table"] if expected.body else {}
            for key in (self.server.kv.namespace("ORDER_TOPIC_CONFIG") or {}).keys() - orders.keys():
                self.server.kv.delete("ORDER_TOPIC_CONFIG", key)
        elif code == RequestCode.UNREGISTER_BROKER and exchange["request_ext"]["brokerId"] == "0":
            await self.ask(parse(of_slave(RequestCode.UNREGISTER_BROKER)["request_hex"]))
        elif code == RequestCode.GET_BROKER_CLUSTER_INFO:
            shown = loads_fastjson(expected.body)
            assert isinstance(shown, dict)
            addresses = shown["brokerAddrTable"]["golden-w"]["brokerAddrs"]
            if "1" in addresses and 1 not in tables.brokers["golden-w"].broker_addrs:
                await self.ask(parse(of_slave(RequestCode.REGISTER_BROKER)["request_hex"]))
        elif code == RequestCode.GET_KVLIST_BY_NAMESPACE:
            self.server.kv.put("SPACE", "key1", "gone")
            self.server.kv.delete("SPACE", "key1")

    async def register_topic(self, topic: str, queues: QueueData) -> None:
        wrapper = TopicConfigWrapper(
            data_version=DataVersion(timestamp=len(self.server.tables.topics), counter=1),
            topic_config_table={
                topic: TopicConfig(
                    topic_name=topic,
                    perm=queues.perm,
                    read_queue_nums=queues.read_queue_nums,
                    write_queue_nums=queues.write_queue_nums,
                )
            },
        )
        ext = {
            "brokerName": "golden-w",
            "brokerAddr": "127.0.0.1:20911",
            "clusterName": "GoldenCluster",
            "haServerAddr": "127.0.0.1:20912",
            "brokerId": "0",
        }
        body = encode_body(RegisterBrokerBody(topic_config_serialize_wrapper=wrapper))
        [request] = FrameParser().feed(encode_request(RequestCode.REGISTER_BROKER, ext, body, opaque=1))
        answer = await self.ask(request)
        assert answer.code == 0, answer.remark


def content(code: int, command: Command) -> object:
    """What must be equal: everything but the order of sets."""
    if not command.body:
        return None
    if code == RequestCode.GET_NAMESRV_CONFIG:
        settings = parse_properties(command.body.decode())
        for path in ("rocketmqHome", "kvConfigPath", "configStorePath"):
            settings.pop(path)
        return settings
    value: Any = loads_fastjson(command.body)
    if code in TOPIC_LISTS:
        value["topicList"] = sorted(value["topicList"])
    return value


def test_captured_requests_get_apaches_answers(tmp_path: Path) -> None:
    async def replay_all() -> int:
        replay = Replay(tmp_path)
        count = 0
        for exchange in captured():
            request, expected = parse(exchange["request_hex"]), parse(exchange["response_hex"])
            await replay.prepare(exchange, expected)
            answer = await replay.ask(request)
            name = f"{exchange['name']} {exchange['request_ext']}"
            assert answer.opaque == request.opaque, name
            assert answer.code == expected.code, f"{name}: {answer.remark}"
            assert answer.ext == expected.ext, name
            assert answer.remark == expected.remark, name
            assert content(exchange["code"], answer) == content(exchange["code"], expected), name
            count += 1
        return count

    assert asyncio.run(replay_all()) == len(captured()) == 58


def test_two_name_servers_share_nothing(tmp_path: Path) -> None:
    async def both() -> None:
        first, second = (
            NameServer(NamesrvConfig(bind_address="127.0.0.1", listen_port=0, rocketmq_home=str(tmp_path / name)))
            for name in ("first", "second")
        )
        await first.start()
        await second.start()
        client = RemotingClient()
        request = next(one for one in captured() if one["code"] == RequestCode.REGISTER_BROKER)
        command = parse(request["request_hex"])
        await client.invoke(first.address, command.code, command.ext, command.body)
        found = await client.invoke(first.address, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
        missing = await client.invoke(second.address, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "TBW102"})
        assert (found.code, missing.code) == (0, 17)
        await client.close()
        await first.stop()
        await second.stop()

    asyncio.run(both())


@pytest.mark.parametrize("code", [105, 103, 104, 322, 904, 901, 217, 224, 216, 205, 327, 100, 101, 102, 219])
def test_a_request_without_its_required_field_is_answered_with_the_fields_name(code: int, tmp_path: Path) -> None:
    async def ask() -> Command:
        [request] = FrameParser().feed(encode_request(code, {}, opaque=7))
        return await Replay(tmp_path).ask(request)

    answer = asyncio.run(ask())
    assert answer.code == 1
    assert answer.opaque == 7
    assert answer.remark is not None
    assert "is missing: it is required" in answer.remark


def test_an_unknown_code_is_answered_not_supported_with_its_number(tmp_path: Path) -> None:
    async def ask() -> Command:
        [request] = FrameParser().feed(encode_request(9999, {}, opaque=7))
        return await Replay(tmp_path).ask(request)

    answer = asyncio.run(ask())
    assert (answer.code, answer.remark) == (3, " request type 9999 not supported")
