"""Who delivers what is due in a group, and what becomes of a message that goes to another one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broker.harness import Bench
from contrailmq.broker.cluster import escape as escape_module
from contrailmq.broker.cluster.escape import Escape, outgoing
from contrailmq.broker.state.duty import Duty, Seen, duty_of_slave
from contrailmq.message import (
    StoredMessage,
    SysFlag,
    SystemTopic,
    decode_properties,
    encode_host,
    encode_properties,
)
from contrailmq.message.codec import decode_record, encode_record
from contrailmq.wire.admin_requests import GetRouteInfo
from contrailmq.wire.bodies import BrokerData, QueueData, TopicRouteData, encode_route
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import ConnectError
from contrailmq.wire.frame import FrameParser, encode_request, encode_response
from contrailmq.wire.header import Command, Fields
from contrailmq.wire.requests import SendMessage


@pytest.mark.parametrize(
    ("own_id", "seen", "duty"),
    [
        (1, Seen(), Duty.FOLLOW),  # no NameServer has answered
        (1, Seen({0, 1}), Duty.FOLLOW),
        (1, Seen({1}), Duty.ESCAPE),
        (1, Seen({1, 2}), Duty.ESCAPE),
        (2, Seen({1, 2}), Duty.FOLLOW),
        (2, Seen({2, 5}), Duty.ESCAPE),
        (1, Seen({1}, follows_master=True), Duty.FOLLOW),  # the NameServers have lost a master that lives
        (1, Seen({1}, has_yielded=True), Duty.FOLLOW),
    ],
)
def test_the_lowest_slave_that_hears_of_no_master_acts(own_id: int, seen: Seen, duty: Duty) -> None:
    assert duty_of_slave(own_id, seen, may_act=True) is duty
    assert duty_of_slave(own_id, seen, may_act=False) is Duty.FOLLOW


def waiting(topic: str, properties: dict[str, str], *, sys_flag: int = 0, place: int = 0) -> StoredMessage:
    """A message as it lies in the log at a place."""
    record = encode_record(
        topic,
        b"body",
        encode_properties({"UNIQ_KEY": "U", "KEYS": "k", "TAGS": "t"} | properties),
        queue_id=0,
        queue_offset=0,
        physical_offset=place,
        born_host=HOST,
        store_host=HOST,
        born_time_ms=77,
        store_time_ms=78,
        flag=0,
        sys_flag=sys_flag,
        reconsume_times=3,
    )
    return decode_record(record)


HOST = encode_host("10.0.0.9", 1)
REAL = {"REAL_TOPIC": "T", "REAL_QID": "2"}


def test_a_delayed_message_is_an_ordinary_one_elsewhere() -> None:
    message = waiting(
        SystemTopic.SCHEDULE,
        REAL | {"DELAY": "3", "WAIT": "false", "TRAN_MSG": "true", "PGROUP": "pg", "own": "1"},
        sys_flag=SysFlag.COMPRESSED | SysFlag.TRANSACTION_COMMIT,
    )
    sent = outgoing(message, 0, inner_group="inner")
    assert sent is not None
    assert (sent.topic, sent.group, sent.sys_flag) == ("T", "pg", SysFlag.COMPRESSED)
    assert decode_properties(sent.properties) == {"UNIQ_KEY": "U", "KEYS": "k", "TAGS": "t", "PGROUP": "pg", "own": "1"}


def test_a_timer_is_due_elsewhere_at_once_or_when_it_rolls_at_its_own_time() -> None:
    asked = {"TIMER_DELAY_SEC": "9", "TIMER_OUT_MS": "5000", "TIMER_ENQUEUE_MS": "1", "TIMER_ROLL_TIMES": "2"}
    message = waiting(SystemTopic.TIMER, REAL | asked)
    due, rolls = (outgoing(message, deliver_ms, inner_group="inner") for deliver_ms in (0, 5000))
    assert due is not None
    assert rolls is not None
    own = {"UNIQ_KEY": "U", "KEYS": "k", "TAGS": "t"}
    assert decode_properties(due.properties) == own
    assert decode_properties(rolls.properties) == own | {"TIMER_DELIVER_MS": "5000"}
    assert due.group == "inner"


def test_a_half_message_is_one_elsewhere_and_keeps_its_delay() -> None:
    asked = {"TRAN_MSG": "true", "PGROUP": "pg", "DELAY": "2", "TRANSACTION_CHECK_TIMES": "4"}
    sent = outgoing(
        waiting(SystemTopic.HALF, REAL | asked | {"TRAN_PREPARED_QUEUE_OFFSET": "8"}), 0, inner_group="inner"
    )
    assert sent is not None
    assert sent.sys_flag == SysFlag.TRANSACTION_PREPARED
    properties = decode_properties(sent.properties)
    assert {key: properties.get(key) for key in ("TRAN_MSG", "PGROUP", "DELAY")} == {
        "TRAN_MSG": "true", "PGROUP": "pg", "DELAY": "2",
    }  # fmt: skip
    assert not {"REAL_TOPIC", "REAL_QID", "TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET"} & set(properties)


@pytest.mark.parametrize("properties", [{}, {"REAL_TOPIC": SystemTopic.HALF}])
def test_one_that_does_not_say_where_it_belongs_goes_nowhere(properties: dict[str, str]) -> None:
    assert outgoing(waiting(SystemTopic.SCHEDULE, properties), 0, inner_group="inner") is None


class Others:
    """NameServer and other groups, as a client sees them. `codes` are answers to sends, by address."""

    def __init__(self, *groups: str) -> None:
        self.groups = groups
        self.codes: dict[str, ResponseCode | None] = {}  # None: nobody answers
        self.sent: list[tuple[str, SendMessage, bytes]] = []
        self.release = asyncio.Event()
        self.release.set()

    async def invoke(
        self, address: str, code: int, ext: Fields | None = None, body: bytes = b"", timeout_s: float = 3.0
    ) -> Command:
        (request,) = FrameParser().feed(encode_request(code, ext, body, opaque=1))
        if code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            assert isinstance(ext, GetRouteInfo)
            return _read(self._route(request))
        await self.release.wait()
        answer = self.codes.get(address, ResponseCode.SUCCESS)
        if answer is None:
            raise ConnectError(address, OSError("gone"))
        self.sent.append((address, request.header(SendMessage), body))
        return _read(encode_response(request, answer, remark="no"))

    def _route(self, request: Command) -> bytes:
        if not self.groups:
            return encode_response(request, ResponseCode.TOPIC_NOT_EXIST)
        route = TopicRouteData(
            broker_datas=[BrokerData(broker_name=name, broker_addrs={0: f"{name}:1"}) for name in self.groups],
            queue_datas=[
                QueueData(broker_name=name, perm=4 if name == "reads" else 6, write_queue_nums=2, read_queue_nums=2)
                for name in self.groups
            ],
        )
        return encode_response(request, body=encode_route(route, is_standard=True))


def _read(frame: bytes) -> Command:
    (answer,) = FrameParser().feed(frame)
    return answer


class Escaping:
    def __init__(self, path: Path, others: Others, **settings: str) -> None:
        said = {"brokerId": "1", "brokerName": "own", "enableRemoteEscape": "true", "namesrvAddr": "n:1"} | settings
        self.bench = Bench(path, settings=said, broker_role="SLAVE")
        self.escape = Escape(self.bench.node, others)
        self.escape.open()

    async def hand_over(self, *places: int, topic: str = "T") -> int:
        """Offer messages, and once more when what was sent has been answered."""
        messages = [
            (waiting(SystemTopic.SCHEDULE, {"REAL_TOPIC": topic, "REAL_QID": "0"}, place=place), 0) for place in places
        ]
        self.escape.hand_over(messages)
        await self.escape.settled()
        return self.escape.hand_over(messages)


def test_messages_go_to_masters_of_other_groups_that_may_be_written_to_in_turn(tmp_path: Path) -> None:
    others = Others("own", "one", "reads", "two")
    made = Escaping(tmp_path, others)

    async def work() -> None:
        assert await made.hand_over(10, 20, 30, 40) == 4
        assert sorted((address, header.queue_id) for address, header, _ in others.sent) == [
            ("one:1", 0), ("one:1", 1), ("two:1", 0), ("two:1", 1),
        ]  # fmt: skip
        _, header, body = others.sent[0]
        assert (header.topic, header.producer_group, header.born_timestamp, header.reconsume_times, body) == (
            "T", "InnerProducerGroup_own_1", 77, 3, b"body",
        )  # fmt: skip

    asyncio.run(work())
    made.bench.close()


def test_what_arrived_out_of_turn_counts_when_its_turn_comes_and_is_not_sent_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    others = Others("one", "two")
    others.codes = {"one:1": ResponseCode.SYSTEM_ERROR}
    made = Escaping(tmp_path, others)

    async def work() -> None:
        first = await made.hand_over(10, 20, 30, 40)
        assert first < 4
        assert "one:1 does not take a message of topic T: 1 no" in caplog.text
        others.codes = {}
        made.bench.clock.advance(escape_module.PAUSE_MS)
        assert await made.hand_over(*(10, 20, 30, 40)[first:]) == 4 - first
        arrived = [address for address, _, _ in others.sent if address == "two:1"]
        assert made.escape.escaped == 4
        assert made.escape.standstill == ""
        assert len(arrived) >= 2

    asyncio.run(work())
    made.bench.close()


@pytest.mark.parametrize(
    "code",
    [ResponseCode.FLUSH_DISK_TIMEOUT, ResponseCode.FLUSH_SLAVE_TIMEOUT, ResponseCode.SLAVE_NOT_AVAILABLE],
    ids=lambda code: code.name,
)
def test_one_that_is_stored_less_safely_than_asked_for_is_not_sent_again(tmp_path: Path, code: ResponseCode) -> None:
    others = Others("one")
    others.codes = {"one:1": code}
    made = Escaping(tmp_path, others)

    async def work() -> None:
        assert await made.hand_over(10) == 1
        assert len(others.sent) == 1

    asyncio.run(work())
    made.bench.close()


def test_a_broker_that_is_gone_is_left_alone_for_a_while(tmp_path: Path) -> None:
    others = Others("one", "two")
    others.codes = {"one:1": None}
    made = Escaping(tmp_path, others)

    async def work() -> None:
        left = [10, 20, 30, 40]
        for _ in range(3):
            del left[: await made.hand_over(*left)]
            made.bench.clock.advance(escape_module.PAUSE_MS)
        assert left == []
        assert {address for address, _, _ in others.sent} == {"two:1"}

    asyncio.run(work())
    made.bench.close()


@pytest.mark.parametrize("groups", [(), ("own",), ("reads",)])
def test_without_another_group_nothing_is_sent_and_the_reason_is_said(tmp_path: Path, groups: tuple[str, ...]) -> None:
    others = Others(*groups)
    made = Escaping(tmp_path, others)

    async def work() -> None:
        assert await made.hand_over(10, 20) == 0
        why = made.escape.figures()["escapeStandstill"]
        assert "no master of another group that takes messages of topic T is known" in why
        assert "start the master of own" in why
        assert others.sent == []
        others.groups = ("one",)
        made.bench.clock.advance(escape_module.PAUSE_MS)
        assert await made.hand_over(10, 20) == 2

    asyncio.run(work())
    made.bench.close()


def test_a_standstill_is_said_once_a_minute_also_while_other_topics_go_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    others = Others("one")
    made = Escaping(tmp_path, others)
    message = waiting(SystemTopic.SCHEDULE, {"REAL_TOPIC": "Odd", "REAL_QID": "0"}, place=5)

    async def work() -> None:
        for round_ in range(100):
            others.groups = ()
            made.escape.hand_over([(message, 0)])
            await made.escape.settled()
            others.groups = ("one",)
            assert await made.hand_over(100 + round_) == 1
            assert "topic Odd" in made.escape.standstill
            made.bench.clock.advance(escape_module.PAUSE_MS + 100)
        assert await made.hand_over(5, topic="Odd") == 1
        assert made.escape.standstill == ""

    asyncio.run(work())
    said = [record.message for record in caplog.records if "what is due waits" in record.message]
    assert len(said) == 2, "110 seconds have passed"
    made.bench.close()


def test_one_that_is_closed_begins_nothing_and_tells_of_what_was_on_its_way(tmp_path: Path) -> None:
    others = Others("one")
    others.release.clear()
    made = Escaping(tmp_path, others)

    async def work() -> None:
        message = waiting(SystemTopic.SCHEDULE, {"REAL_TOPIC": "T", "REAL_QID": "0"}, place=10)
        late = waiting(SystemTopic.SCHEDULE, {"REAL_TOPIC": "T", "REAL_QID": "0"}, place=20)
        assert made.escape.hand_over([(message, 0)]) == 0
        made.escape.close()
        others.release.set()
        assert made.escape.hand_over([(message, 0), (late, 0)]) == 0
        await made.escape.settled()
        assert made.escape.hand_over([(message, 0), (late, 0)]) == 1
        assert len(others.sent) == 1

    asyncio.run(work())
    made.bench.close()
