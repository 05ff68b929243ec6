"""Our NameServer, fed with the requests that Apache's brokers, clients and tools sent, answers as Apache's did.

The captures keep at most two exchanges of a kind, so registrations are missing between them. What the broker had
registered by then is told by what it was itself asked (`captured_broker`), never by the answer under test; the little
that no request tells is listed there as GIVEN: two topic names, a key-value pair that is put and two that are deleted,
that the slave came back and left once and the master came back once. No number, permission, address or text is given,
and each of them is needed: a test takes them away one by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contrailmq.namesrv import NameServer, NamesrvConfig
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.fastjson import loads_fastjson
from contrailmq.wire.frame import FrameParser, encode_request
from contrailmq.wire.header import Command
from contrailmq.wire.properties import parse_properties
from contrailmq.wire.transport import RemotingClient

from .captured_broker import GIVEN_REPEATS, GIVEN_REQUESTS, GIVEN_TOPICS, CapturedBroker, Exchange, captured

TOPIC_LISTS = {
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    RequestCode.GET_TOPICS_BY_CLUSTER,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS,
}
PATHS = ("rocketmqHome", "kvConfigPath", "configStorePath")  # of the machine that was captured
OURS = (  # settings that Apache's NameServer does not have
    "allowRemoteConfig",
    "allowUnsupported",
    "metricGrpcExporterIntervalInMills",
    "metricGrpcExporterTimeOutInMills",
    "metricsExporterType",
    "metricsGrpcExporterHeader",
    "metricsGrpcExporterTarget",
    "metricsInDelta",
    "metricsLabel",
    "metricsPromExporterHost",
    "metricsPromExporterPort",
)


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
        self.exchanges = captured()
        self.broker = CapturedBroker(self.exchanges)

    async def ask(self, request: Command) -> Command:
        self.server.handle(self.connection, [request])
        return await asyncio.wait_for(self.connection.answers.get(), 120)

    async def answers(self) -> list[tuple[Exchange, Command]]:
        """Every captured request to a NameServer, in order, and what ours answers."""
        found = []
        for exchange in self.exchanges:
            if exchange.is_to_namesrv:
                await self._prepare(exchange)
                found.append((exchange, await self.ask(exchange.request)))
            self.broker.hear(exchange)
        return found

    async def _prepare(self, exchange: Exchange) -> None:
        """What the requests that were not kept had brought."""
        for number in GIVEN_REPEATS.get(exchange.number, []):
            [again] = [one for one in self.exchanges if one.number == number]
            assert (await self.ask(again.request)).code == 0
        for code, fields in GIVEN_REQUESTS.get(exchange.number, []):
            [request] = FrameParser().feed(encode_request(code, fields, opaque=1))
            assert (await self.ask(request)).code == 0
        self.broker.prepare(exchange)
        if self.broker.is_changed and exchange.code != RequestCode.REGISTER_BROKER:
            assert (await self.ask(self.broker.registration())).code == 0


def content(code: int, command: Command) -> object:
    """What must be equal: everything but the opaque, the order of sets, and paths."""
    return command.code, command.ext, command.remark, _body(code, command.body)


def _body(code: int, body: bytes) -> object:
    if not body:
        return None
    if code == RequestCode.GET_NAMESRV_CONFIG:
        return {key: value for key, value in parse_properties(body.decode()).items() if key not in (*PATHS, *OURS)}
    value: Any = loads_fastjson(body)
    if code in TOPIC_LISTS:
        value["topicList"] = sorted(value["topicList"])
    return value


def test_captured_requests_get_apaches_answers(tmp_path: Path) -> None:
    answers = asyncio.run(Replay(tmp_path).answers())
    for exchange, answer in answers:
        assert answer.opaque == exchange.request.opaque, exchange.name
        assert content(exchange.code, answer) == content(exchange.code, exchange.expected), exchange.name
    assert len(answers) == 58


@pytest.mark.parametrize(
    ("table", "number"),
    [(table, number) for table in (GIVEN_TOPICS, GIVEN_REQUESTS, GIVEN_REPEATS) for number in table],
)
def test_nothing_is_given_that_the_answers_do_not_need(
    table: dict[int, object], number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the comparison fails: which also shows that it can."""
    monkeypatch.delitem(table, number)
    answers = asyncio.run(Replay(tmp_path).answers())
    assert any(content(one.code, answer) != content(one.code, one.expected) for one, answer in answers)


def altered(value: object) -> Iterator[object]:
    """Every way to alter one leaf, to leave one thing out, or to add one."""
    match value:
        case dict():
            yield {**value, "one more": "x"}
            for key, inner in value.items():
                yield {other: kept for other, kept in value.items() if other != key}
                yield from ({**value, key: changed} for changed in altered(inner))
        case list():
            yield [*value, "one more"]
            for place, inner in enumerate(value):
                yield value[:place] + value[place + 1 :]
                yield from ([*value[:place], changed, *value[place + 1 :]] for changed in altered(inner))
        case tuple():
            yield from (tuple(changed) for changed in altered(list(value)))
        case bool():
            yield not value
        case int():
            yield value + 1
        case _:
            yield f"{value}x"


def test_the_comparison_sees_every_single_alteration(tmp_path: Path) -> None:
    """So that it can fail: each leaf of each captured answer, altered alone, makes it unequal to ours."""
    count = 0
    for exchange, answer in asyncio.run(Replay(tmp_path).answers()):
        ours, theirs = content(exchange.code, answer), content(exchange.code, exchange.expected)
        for wrong in altered(theirs):
            assert ours != wrong, exchange.name
            count += 1
    assert count > 1000


def test_two_name_servers_share_nothing(tmp_path: Path) -> None:
    async def both() -> None:
        first, second = (
            NameServer(NamesrvConfig(bind_address="127.0.0.1", listen_port=0, rocketmq_home=str(tmp_path / name)))
            for name in ("first", "second")
        )
        await first.start()
        await second.start()
        client = RemotingClient()
        command = next(one for one in captured() if one.code == RequestCode.REGISTER_BROKER).request
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
