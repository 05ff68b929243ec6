"""A broker without sockets that has lite topics: a parent, a group bound to it, and what clients do as methods."""

from __future__ import annotations

from pathlib import Path

import msgspec

from broker.harness import Link, records
from broker.pop_bench import ACK, CHANGE, PopBench
from contrailmq.broker.state.groups import Group
from contrailmq.broker.state.topics import Topic
from contrailmq.message import StoredMessage, encode_properties
from contrailmq.store.base.clock import ManualClock
from contrailmq.wire.header import Command
from contrailmq.wire.pop_strings import PopHandle

POP_LITE, CONTROL, NOTIFY = 200070, 200071, 200073
PARENT = "Chat"
LIGHT = {"enable_lmq": True, "enable_multi_dispatch": True}


def queue_of(lite_topic: str, parent: str = PARENT) -> str:
    return f"%LMQ%${parent}${lite_topic}"


class Given:
    """A message of a lite topic and its handle, as Java's client makes it (processPopLiteResponse)."""

    def __init__(self, message: StoredMessage, handle: PopHandle, deliveries: int) -> None:
        self.message, self.handle, self.deliveries = message, handle, deliveries
        self.lite_topic = message.properties["__LITE_TOPIC"]
        self.body = message.body

    def __repr__(self) -> str:
        return f"<{self.lite_topic} {self.handle.offset} {self.body!r}>"

    def fields(self, group: str) -> dict[str, str]:
        return {
            "consumerGroup": group,
            "topic": self.message.topic,
            "queueId": "0",
            "extraInfo": self.handle.encode(),
            "offset": str(self.handle.offset),
            "liteTopic": self.lite_topic,
        }


class LiteBench(PopBench):
    def __init__(
        self,
        path: Path,
        *,
        clock: ManualClock | None = None,
        settings: dict[str, str] | None = None,
        expiration: int = -1,
        **store_settings: object,
    ) -> None:
        super().__init__(path, clock=clock, settings=settings, **(LIGHT | store_settings))
        self.node.offset_journal.open()
        attributes = {"message.type": "LITE", "lite.topic.expiration": str(expiration)}
        self.node.topics.put(Topic(PARENT, read_queues=2, write_queues=2, attributes=attributes))
        self.bind("g")

    def bind(self, group: str, **attributes: str) -> None:
        more = {name.replace("_", "."): value for name, value in attributes.items()}
        self.node.groups.put(Group(group, attributes={"lite.bind.topic": PARENT} | more))

    # --- what clients do

    def ask_send(self, lite_topic: str, body: bytes = b"m", *, topic: str = PARENT, **properties: str) -> Command:
        text = encode_properties({"__LITE_TOPIC": lite_topic} | properties).decode()
        fields = {"a": "p", "b": topic, "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "1", "h": "0", "i": text,
                  "j": "0", "k": "false", "m": "false"}  # fmt: skip
        return self.ask(310, fields, body)

    def put(self, lite_topic: str, *bodies: str) -> None:
        for body in bodies:
            answer = self.ask_send(lite_topic, body.encode())
            assert answer.code == 0, answer.remark

    def control(
        self,
        action: str,
        *lite_topics: str,
        client: str = "c1",
        group: str = "g",
        option: tuple[str, int] | None = None,
        link: Link | None = None,
        topic: str = PARENT,
    ) -> Command:
        entry: dict[str, object] = {
            "action": action,
            "clientId": client,
            "group": group,
            "topic": topic,
            "liteTopicSet": list(lite_topics),
            "version": 1,
        }
        if option is not None:
            entry["offsetOption"] = {"type": option[0], "value": option[1]}
        return self.ask(CONTROL, {}, msgspec.json.encode({"subscriptionSet": [entry]}), link=link)

    def subscribe(self, *lite_topics: str, **more: object) -> None:
        answer = self.control("PARTIAL_ADD", *lite_topics, **more)  # type: ignore[arg-type]
        assert answer.code == 0, answer.remark

    def lite_fields(self, client: str = "c1", group: str = "g", **other: object) -> dict[str, str]:
        fields: dict[str, object] = {
            "clientId": client,
            "consumerGroup": group,
            "topic": PARENT,
            "maxMsgNum": 32,
            "invisibleTime": 10_000,
            "pollTime": 0,
            "bornTime": self.clock.now_ms(),
        }
        return {name: str(value) for name, value in (fields | other).items()}

    def ask_pop_lite(self, client: str = "c1", group: str = "g", **other: object) -> Command:
        return self.ask(POP_LITE, self.lite_fields(client, group, **other))

    def given(self, client: str = "c1", group: str = "g", **other: object) -> list[Given]:
        return given(self.ask_pop_lite(client, group, **other))

    def done(self, *messages: Given, group: str = "g") -> None:
        for message in messages:
            answer = self.ask(ACK, message.fields(group))
            assert answer.code == 0, answer.remark

    def later(self, message: Given, invisible_ms: int, group: str = "g", **other: str) -> Command:
        return self.ask(CHANGE, message.fields(group) | {"invisibleTime": str(invisible_ms)} | other)

    def position(self, lite_topic: str, group: str = "g") -> int | None:
        return self.node.offsets.query(group, queue_of(lite_topic), 0)


def given(answer: Command) -> list[Given]:
    assert answer.code in (0, 209, 210), (answer.code, answer.remark)
    ext = answer.ext
    if answer.code:
        return []
    counts = ext["orderCountInfo"].split(";")
    messages = records(answer.body)
    assert len(counts) == len(messages)
    found = []
    for message, count in zip(messages, counts, strict=True):
        assert message.properties["INNER_MULTI_DISPATCH"] == queue_of(message.properties["__LITE_TOPIC"])
        offset = int(message.properties["INNER_MULTI_QUEUE_OFFSET"])
        handle = PopHandle(
            0, int(ext["popTime"]), int(ext["invisibleTime"]), int(ext["reviveQid"]), "0", "b", 0, offset
        )
        found.append(Given(message, handle, int(count)))
    return found


def bodies(messages: list[Given]) -> list[str]:
    return [message.body.decode() for message in messages]
