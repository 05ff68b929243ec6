"""The broker of the golden captures: what it had registered at each moment, from what it was asked.

The captures keep at most two exchanges of a kind, so most registrations are not among them. What the broker had to
register can be told without them, and without any answer of a NameServer:

    captured registrations              their topics
    UPDATE_AND_CREATE_TOPIC and kin     the topic that they name
    heartbeats, and what only members   %RETRY%group: a broker makes it when a consumer first says that it is there
      of a consumer group ask
    POP_MESSAGE                         %RETRY%group_topic
    GET_ALL_TOPIC_CONFIG                the broker's own table, as the broker answered it
    DELETE_TOPIC_IN_BROKER              the topic is gone

The numbers of queues and permissions of a topic are those of captured registrations (one late one has 40 topics) and of
the requests that made it. What none of this tells is GIVEN, below.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from contrailmq.wire.bodies import (
    DataVersion,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigWrapper,
    decode_body,
    encode_body,
)
from contrailmq.wire.codes import RequestCode as Code
from contrailmq.wire.fastjson import loads_fastjson
from contrailmq.wire.frame import FrameParser, encode_request
from contrailmq.wire.header import Command

GOLDEN: Final = Path(__file__).parents[1] / "golden" / "wire"
ORDERS: Final = "ORDER_TOPIC_CONFIG"

# Before the exchange of this number, though no captured request says so.
GIVEN_TOPICS: Final = {
    148: ["%RETRY%TOOLS_CONSUMER"],  # mqadmin consumed; the broker's table has it at 176
    294: ["BinaryWireAuto"],  # the second tour sent to it, as the first one did; the registration 321 has it
}
GIVEN_REQUESTS: Final[dict[int, list[tuple[int, dict[str, str]]]]] = {
    153: [(Code.PUT_KV_CONFIG, {"namespace": "SPACE", "key": "key1", "value": "any"})],  # of which 153 is the end
    393: [  # the tours take back the order settings that they made, as 152 does
        (Code.DELETE_KV_CONFIG, {"namespace": ORDERS, "key": "BinaryWireOrder"}),
        (Code.DELETE_KV_CONFIG, {"namespace": ORDERS, "key": "BothWireOrder"}),
    ],
}
GIVEN_REPEATS: Final = {  # the captured request of that number came again
    210: [393],  # the slave, which left at 184, is back
    318: [184],  # everything is stopped for another tour: first the slave, then the master at 318
    393: [1],  # the master, which left at 392, is back: a slave starts after its master
}

_OF_MEMBERS: Final = {
    Code.PULL_MESSAGE,
    Code.LITE_PULL_MESSAGE,
    Code.POP_MESSAGE,
    Code.QUERY_CONSUMER_OFFSET,
    Code.GET_CONSUMER_LIST_BY_GROUP,
    Code.UNREGISTER_CLIENT,
    Code.LOCK_BATCH_MQ,
    Code.QUERY_ASSIGNMENT,
}


class Exchange:
    """One captured file."""

    def __init__(self, path: Path) -> None:
        told: dict[str, Any] = json.loads(path.read_text())
        self.number = int(path.name[:3])
        self.code: int = told["code"]
        self.name = f"{path.stem} {told['request_ext']}"
        self.is_to_namesrv = "namesrv" in told["direction"]
        self.is_to_broker = "-> broker" in told["direction"]
        self.request = parse(told["request_hex"])
        self.response = parse(told["response_hex"]) if told["response_hex"] else None

    @property
    def expected(self) -> Command:
        assert self.response is not None
        return self.response


def parse(frame: str) -> Command:
    [command] = FrameParser().feed(bytes.fromhex(frame))
    return command


def captured() -> list[Exchange]:
    return [Exchange(path) for path in sorted(GOLDEN.glob("[0-9]*.json"))]


class CapturedBroker:
    """The master. `hear` every exchange in order; `registration` when `is_changed`."""

    def __init__(self, exchanges: list[Exchange]) -> None:
        first = next(one for one in exchanges if one.code == Code.REGISTER_BROKER)
        self._identity = {key: value for key, value in first.request.ext.items() if key != "bodyCrc32"}
        self._configs: dict[str, TopicConfig] = {}
        for one in exchanges:
            self._configs = {config.topic_name: config for config in _made_by(one)} | self._configs
        self._names: dict[str, None] = {}
        self._changes = 0
        self.is_changed = False

    def hear(self, exchange: Exchange) -> None:
        code, request = exchange.code, exchange.request
        if code == Code.REGISTER_BROKER and request.ext["brokerId"] == "0":
            self._has([config.topic_name for config in _made_by(exchange)])
        if exchange.is_to_broker:
            self._has([config.topic_name for config in _made_by(exchange)])
            self._has([f"%RETRY%{group}" for group in _groups_in(exchange)])
            if code == Code.POP_MESSAGE:
                self._has([f"%RETRY%{request.ext['consumerGroup']}_{request.ext['topic']}"])
            if code == Code.GET_ALL_TOPIC_CONFIG and exchange.expected.body:
                table: Any = loads_fastjson(exchange.expected.body)
                self._has(list(table["topicConfigTable"]))
            if code == Code.DELETE_TOPIC_IN_BROKER:
                self._names.pop(request.ext["topic"], None)

    def prepare(self, exchange: Exchange) -> None:
        self._has(GIVEN_TOPICS.get(exchange.number, []))

    def registration(self) -> Command:
        """Of all its topics, as every 30 s."""
        self.is_changed = False
        self._changes += 1
        wrapper = TopicConfigWrapper(
            data_version=DataVersion(counter=self._changes, timestamp=1),
            topic_config_table={name: self._config(name) for name in self._names},
        )
        body = encode_body(RegisterBrokerBody(topic_config_serialize_wrapper=wrapper))
        fields = {**self._identity, "compressed": "false"}
        [request] = FrameParser().feed(encode_request(Code.REGISTER_BROKER, fields, body, opaque=1))
        return request

    def _config(self, name: str) -> TopicConfig:
        if name.startswith("%RETRY%") and name not in self._configs:  # of the last tour, whose topics nobody asks for
            return TopicConfig(topic_name=name, read_queue_nums=1, write_queue_nums=1)
        return self._configs[name]

    def _has(self, names: list[str]) -> None:
        for name in names:
            self.is_changed = self.is_changed or name not in self._names
            self._names[name] = None


def _made_by(exchange: Exchange) -> list[TopicConfig]:
    """The topics that a request makes, or registers."""
    ext, body = exchange.request.ext, exchange.request.body
    if exchange.code == Code.REGISTER_BROKER:
        wrapper = decode_body(body, RegisterBrokerBody).topic_config_serialize_wrapper
        return list(wrapper.topic_config_table.values())
    if exchange.code == Code.UPDATE_AND_CREATE_TOPIC_LIST:
        made: Any = loads_fastjson(body)
        return [decode_body(json.dumps(one).encode(), TopicConfig) for one in made["topicConfigList"]]
    if exchange.code in (Code.UPDATE_AND_CREATE_TOPIC, Code.UPDATE_AND_CREATE_STATIC_TOPIC):
        return [
            TopicConfig(
                topic_name=ext["topic"],
                perm=int(ext["perm"]),
                read_queue_nums=int(ext["readQueueNums"]),
                write_queue_nums=int(ext["writeQueueNums"]),
            )
        ]
    return []


def _groups_in(exchange: Exchange) -> list[str]:
    """The consumer groups of which the sender is a member."""
    request = exchange.request
    if exchange.code == Code.HEART_BEAT:
        heartbeat: Any = loads_fastjson(request.body)
        return [consumer["groupName"] for consumer in heartbeat["consumerDataSet"]]
    if exchange.code not in _OF_MEMBERS:
        return []
    told: Any = loads_fastjson(request.body) if request.body else {}
    group = request.ext.get("consumerGroup") or told.get("consumerGroup")
    return [group] if group else []
