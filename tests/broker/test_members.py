"""Heartbeats, members, notifications, order locks, offsets, retries, queries and replies as requests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from broker.harness import Bench, Link, records, send_fields
from contrailmq.broker.state.groups import Group
from contrailmq.broker.state.topics import Topic
from contrailmq.message import SystemTopic
from contrailmq.wire.codes import ResponseCode
from contrailmq.wire.errors import RequestTimeoutError
from contrailmq.wire.frame import encode_response
from contrailmq.wire.header import Command

LOCK = {"clientId": "c1", "consumerGroup": "g", "mqSet": [{"brokerName": "b", "queueId": 0, "topic": "T"}]}


def test_a_heartbeat_makes_group_and_retry_topic_and_tells_every_member(bench: Bench) -> None:
    one, two = Link(1), Link(2)
    answer = bench.heartbeat("T", client_id="c1", link=one)
    assert answer.ext == {"IS_SUPPORT_HEART_BEAT_V2": "true", "IS_SUB_CHANGE": "true"}
    assert answer.version >= 232, "Java refuses SQL92 locally below this"
    retry = bench.node.topics.get("%RETRY%g")
    assert retry is not None
    assert (retry.write_queues, retry.perm) == (1, 6)
    bench.heartbeat("T", client_id="c2", link=two)
    assert one.requests == [(40, {"consumerGroup": "g"}, b"")] * 2
    assert two.requests == [(40, {"consumerGroup": "g"}, b"")]
    bench.heartbeat("T", client_id="c2", link=two)
    assert len(two.requests) == 1


def test_members_leave_by_request_by_closing_and_by_silence(bench: Bench) -> None:
    one, two, three = Link(1), Link(2), Link(3)
    for number, link in enumerate((one, two, three), 1):
        bench.heartbeat("T", client_id=f"c{number}", link=link)
    body = bench.ask(38, {"consumerGroup": "g"}).body
    assert json.loads(body) == {"consumerIdList": ["c1", "c2", "c3"]}
    bench.ask(35, {"clientID": "c1", "producerGroup": "", "consumerGroup": "g"}, link=one)
    bench.members.disconnected(two)
    bench.settle()
    assert json.loads(bench.ask(38, {"consumerGroup": "g"}).body) == {"consumerIdList": ["c3"]}
    before = len(three.requests)
    bench.clock.advance(120_001)
    bench.members.expire(bench.clock.monotonic_ms())
    bench.settle()
    assert not three.is_open
    assert "heartbeat" in three.close_cause
    assert len(three.requests) == before
    assert bench.ask(38, {"consumerGroup": "g"}).code == ResponseCode.SYSTEM_ERROR


def test_a_clock_that_is_stepped_drops_no_member_and_no_lock(bench: Bench) -> None:
    link = Link(1)
    bench.heartbeat("T", client_id="c1", link=link)
    bench.ask(41, {}, json.dumps(LOCK | {"clientId": "c1"}).encode(), link=link)
    bench.clock.set_wall(bench.clock.now_ms() + 3_600_000)
    bench.members.expire(bench.node.monotonic_ms())
    bench.settle()
    assert link.is_open
    assert json.loads(bench.ask(38, {"consumerGroup": "g"}).body) == {"consumerIdList": ["c1"]}
    other = bench.ask(41, {}, json.dumps(LOCK | {"clientId": "c2"}).encode())
    assert json.loads(other.body)["lockOKMQSet"] == []


@pytest.mark.parametrize("quiet", ["broadcast", "group", "broker"])
def test_nobody_is_told_where_that_is_switched_off(bench: Bench, quiet: str) -> None:
    if quiet == "group":
        bench.node.groups.put(Group("g", notify_ids_changed=False))
    if quiet == "broker":
        bench.config.notify_consumer_ids_changed_enable = False
    link = Link(1)
    bench.heartbeat("T", link=link, model="BROADCASTING" if quiet == "broadcast" else "CLUSTERING")
    assert link.requests == []


def test_heartbeats_of_other_languages_are_understood(bench: Bench) -> None:
    body = b"""{"clientID":"go","consumerDataSet":[{"groupName":"g","consumeType":1,"messageModel":1,
      "consumeFromWhere":0,"subscriptionDataSet":[{"topic":"T","subString":"TagA","codeSet":["2598919"],"subVersion":1}]}]}"""
    assert bench.ask(34, None, body).code == 0
    live = bench.node.clients.consumer_group("g")
    assert live is not None
    assert (live.consume_type, live.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert live.subscriptions["T"].codes == (2598919,)


def test_a_broken_heartbeat_is_refused(bench: Bench) -> None:
    for body in (b"", b"{", b"[]", b'{"clientID":5}'):
        assert bench.ask(34, None, body).code in (ResponseCode.SYSTEM_ERROR, ResponseCode.INVALID_PARAMETER)


def test_heartbeat_v2_says_whether_the_subscription_is_another_one(bench: Bench) -> None:
    def beat(fingerprint: int, *, without_sub: bool = False) -> str:
        data = {
            "clientID": "c",
            "heartbeatFingerprint": fingerprint,
            "withoutSub": without_sub,
            "consumerDataSet": [
                {"groupName": "g", "subscriptionDataSet": [] if without_sub else [{"topic": "T", "subString": "*"}]}
            ],
        }
        return bench.ask(34, None, json.dumps(data).encode()).ext["IS_SUB_CHANGE"]

    assert beat(11) == "false"
    assert beat(11, without_sub=True) == "false"
    assert bench.node.clients.subscription("g", "T") is not None
    assert beat(12) == "true"


def test_a_subscription_can_be_checked_before_it_is_used(bench: Bench) -> None:
    def check(kind: str, text: str) -> Command:
        data = {
            "clientId": "c",
            "group": "g",
            "subscriptionData": {"topic": "T", "subString": text, "expressionType": kind},
        }
        return bench.ask(46, None, json.dumps(data).encode())

    assert check("TAG", "a").code == 0
    assert check("SQL92", "a = 1").code == 0
    assert check("SQL92", "a >").code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    bench.config.enable_property_filter = False
    assert check("SQL92", "a = 1").code == ResponseCode.SYSTEM_ERROR


def test_locks_are_granted_to_one_client_and_always_answered_with_success(bench: Bench) -> None:
    mine = bench.ask(41, None, json.dumps(LOCK).encode())
    assert json.loads(mine.body)["lockOKMQSet"] == LOCK["mqSet"]
    other = bench.ask(41, None, json.dumps(LOCK | {"clientId": "c2"}).encode())
    assert (other.code, json.loads(other.body)["lockOKMQSet"]) == (0, [])
    assert bench.ask(42, None, json.dumps(LOCK).encode()).code == 0
    other = bench.ask(41, None, json.dumps(LOCK | {"clientId": "c2"}).encode())
    assert len(json.loads(other.body)["lockOKMQSet"]) == 1


# ------------------------------------------------------------------------------------------------------------- offsets


def query_offset(bench: Bench, **fields: str) -> Command:
    return bench.ask(14, {"consumerGroup": "g", "topic": "T", "queueId": "0"} | fields)


def test_a_fresh_group_starts_at_zero_while_nothing_is_lost(bench: Bench) -> None:
    bench.node.topics.put(Topic("T", read_queues=1, write_queues=1))
    assert query_offset(bench).ext["offset"] == "0"
    bench.send()
    assert query_offset(bench).ext["offset"] == "0"
    assert query_offset(bench, setZeroIfNotFound="false").code == ResponseCode.QUERY_NOT_FOUND


def test_a_fresh_group_on_a_queue_that_lost_its_beginning_is_not_found(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench.store, "min_offset", lambda topic, queue_id: 5)
    assert query_offset(bench).code == ResponseCode.QUERY_NOT_FOUND


def test_offsets_are_committed_and_queried(bench: Bench) -> None:
    bench.node.topics.put(Topic("T"))
    for _ in range(43):
        bench.send()
    update = {"consumerGroup": "g", "topic": "T", "queueId": "0", "commitOffset": "42"}
    assert bench.ask(15, update).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    bench.node.groups.put(Group("g"))
    assert bench.ask(15, update).code == 0
    assert bench.tell(15, update | {"commitOffset": "43"}, is_oneway=True) == []
    assert query_offset(bench).ext["offset"] == "43"
    assert bench.ask(15, update | {"topic": "Nothing"}).code == ResponseCode.TOPIC_NOT_EXIST
    assert bench.ask(15, update | {"consumerGroup": "!"}).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert bench.ask(15, update | {"commitOffset": "-1"}).code == ResponseCode.INVALID_PARAMETER


@pytest.mark.parametrize("queue_id", [-1, 65_536, 2**31 - 1])
def test_an_offset_of_a_queue_that_no_topic_has_is_refused(bench: Bench, queue_id: int) -> None:
    """Else a client could fill the table, and the file, with as many entries as there are numbers."""
    bench.send()
    bench.heartbeat("T")
    fields = {"consumerGroup": "g", "topic": "T", "queueId": str(queue_id), "commitOffset": "1"}
    answer = bench.ask(15, fields)
    assert (answer.code, f"queueId {queue_id}" in (answer.remark or "")) == (ResponseCode.INVALID_PARAMETER, True)
    assert bench.node.offsets.queues("g", "T") == {}


def test_bounds_and_times_of_a_queue(bench: Bench) -> None:
    queue = {"topic": "T", "queueId": "0"}
    assert bench.ask(30, queue).ext["offset"] == "0"
    assert bench.ask(32, queue).ext["timestamp"] == "-1"
    start = bench.clock.now_ms()
    for _ in range(3):
        bench.send()
        bench.clock.advance(1000)
    assert bench.ask(30, queue).ext["offset"] == "3"
    assert bench.ask(31, queue).ext["offset"] == "0"
    assert bench.ask(32, queue).ext["timestamp"] == str(start)
    assert bench.ask(29, queue | {"timestamp": str(start + 500)}).ext["offset"] == "1"
    assert bench.ask(29, queue | {"timestamp": str(start + 500), "boundaryType": "upper"}).ext["offset"] == "0"
    assert bench.ask(29, queue | {"timestamp": str(start + 99_999)}).ext["offset"] == "3"


# ------------------------------------------------------------------------------------------------------------- retries


def send_back(bench: Bench, offset: int, *, version: int = 479, **fields: object) -> Command:
    ext = {"offset": offset, "group": "g", "delayLevel": 0, "originTopic": "T"} | fields
    return bench.ask(36, {name: str(value) for name, value in ext.items()}, version=version)


def stored(bench: Bench, topic: str, offset: int = 0) -> dict[str, str]:
    (answer,) = bench.pull(topic, offset)
    return records(answer.body)[0].properties


def test_a_message_sent_back_goes_to_the_retry_topic_with_its_level(bench: Bench) -> None:
    first = bench.send(properties={"TAGS": "TagA", "KEYS": "k"}, body=b"poison")
    assert send_back(bench, 0).code == 0
    (waiting,) = bench.store.get(SystemTopic.SCHEDULE, 3 - 1, 0, 10)
    assert waiting.properties["DELAY"] == "3"
    assert waiting.properties["WAIT"] == "false"
    bench.deliver_delayed()
    (answer,) = bench.pull("%RETRY%g")
    (copy,) = records(answer.body)
    assert (copy.body, copy.reconsume_times, copy.tags) == (b"poison", 1, "TagA")
    assert copy.properties["RETRY_TOPIC"] == "T"
    assert copy.properties["ORIGIN_MESSAGE_ID"] == first.ext["msgId"]
    assert send_back(bench, copy.physical_offset).code == 0
    (again,) = bench.store.get(SystemTopic.SCHEDULE, 4 - 1, 0, 10)
    assert (again.properties["DELAY"], again.properties["RETRY_TOPIC"]) == ("4", "T")
    assert again.properties["ORIGIN_MESSAGE_ID"] == first.ext["msgId"]
    assert send_back(bench, 0, delayLevel=7).code == 0
    assert bench.store.max_offset(SystemTopic.SCHEDULE, 7 - 1) == 1


@pytest.mark.parametrize(
    ("fields", "version"),
    [({"delayLevel": -1}, 479), ({"maxReconsumeTimes": 0}, 479)],
)
def test_dead_letters_keep_where_they_came_from_and_can_be_read(
    bench: Bench, fields: dict[str, object], version: int
) -> None:
    bench.send(body=b"poison")
    assert send_back(bench, 0, version=version, **fields).code == 0
    dead = bench.node.topics.get("%DLQ%g")
    assert dead is not None
    assert dead.perm == 6
    properties = stored(bench, "%DLQ%g")
    assert "DELAY" not in properties
    assert properties["DLQ_ORIGIN_TOPIC"] == "T"
    assert properties["DLQ_ORIGIN_MESSAGE_ID"] == properties["ORIGIN_MESSAGE_ID"]


def test_a_retry_goes_to_a_queue_that_its_topic_has(bench: Bench) -> None:
    """A retry topic is made once; a group that is given more queues later keeps it."""
    bench.send()
    assert send_back(bench, 0).code == 0
    bench.node.groups.put(Group("g", retry_queues=64))
    for _ in range(20):
        assert send_back(bench, 0).code == 0
    bench.deliver_delayed()
    assert bench.store.max_offset("%RETRY%g", 0) == 21


def test_an_old_clients_limit_is_ignored(bench: Bench) -> None:
    bench.send()
    assert send_back(bench, 0, version=100, maxReconsumeTimes=0).code == 0
    bench.deliver_delayed()
    assert bench.store.max_offset("%RETRY%g", 0) == 1


def test_send_back_refuses_what_it_cannot_do(bench: Bench) -> None:
    bench.send()
    assert send_back(bench, 77).code == ResponseCode.SYSTEM_ERROR
    assert send_back(bench, 0, group="bad group").code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    bench.node.groups.put(Group("g", retry_queues=0))
    assert send_back(bench, 0).code == 0
    assert bench.store.max_offset("%RETRY%g", 0) == 0
    bench.config.broker_permission = 4
    assert send_back(bench, 0).code == ResponseCode.NO_PERMISSION


# ------------------------------------------------------------------------------------------------------------- queries


def query(bench: Bench, key: str, **fields: str) -> Command:
    ext = {"topic": "T", "key": key, "maxNum": "64", "beginTimestamp": "0", "endTimestamp": str(2**63 - 1)}
    return bench.ask(12, ext | fields)


def test_messages_are_found_by_key_by_unique_id_and_by_offset(bench: Bench) -> None:
    first = bench.send(properties={"KEYS": "k1 k2", "UNIQ_KEY": "U1"}, body=b"one")
    bench.send(properties={"KEYS": "k2", "UNIQ_KEY": "U2"}, body=b"two")
    assert {message.body for message in records(query(bench, "k2").body)} == {b"one", b"two"}
    assert [message.body for message in records(query(bench, "U2", _UNIQUE_KEY_QUERY="true").body)] == [b"two"]
    missing = query(bench, "nothing")
    assert missing.code == ResponseCode.QUERY_NOT_FOUND
    assert "indexLastUpdatePhyoffset" in missing.ext
    view = bench.ask(33, {"offset": str(int(first.ext["msgId"][-16:], 16))})
    assert records(view.body)[0].body == b"one"
    assert bench.ask(33, {"offset": "12345"}).code == ResponseCode.SYSTEM_ERROR


# ------------------------------------------------------------------------------------------------------------- replies

LONG_NAMES = {
    "producerGroup": "a",
    "topic": "b",
    "defaultTopic": "c",
    "defaultTopicQueueNums": "d",
    "queueId": "e",
    "sysFlag": "f",
    "bornTimestamp": "g",
    "flag": "h",
    "properties": "i",
}
REPLY = {"CORRELATION_ID": "x", "REPLY_TO_CLIENT": "c1", "MSG_TYPE": "reply", "UNIQ_KEY": "U"}


def answer_frame(code: int = 0, body: bytes = b"") -> bytes:
    return encode_response(Command(opaque=0), code, None, body)


def test_a_reply_is_pushed_to_the_client_that_waits_and_stored(bench: Bench) -> None:
    requester = Link(7)
    requester.answers[326] = answer_frame()
    bench.heartbeat("T", client_id="c1", link=requester)
    answer = bench.ask(325, send_fields("C_REPLY_TOPIC", properties=REPLY), b"pong")
    assert answer.code == 0
    code, ext, body = requester.requests[-1]
    assert (code, body, ext["topic"], ext["bornHost"]) == (326, b"pong", "C_REPLY_TOPIC", "10.0.0.9:40000")
    assert "PUSH_REPLY_TIME" in ext["properties"]
    assert stored(bench, "C_REPLY_TOPIC")["CORRELATION_ID"] == "x"


def test_with_synchronous_flush_a_reply_is_acknowledged_when_it_is_durable(tmp_path: Path) -> None:
    bench = Bench(tmp_path, flush_disk_type="SYNC_FLUSH")
    bench.store.request_flush = lambda: None  # type: ignore[method-assign]
    requester = Link(7)
    requester.answers[326] = answer_frame()
    bench.heartbeat("T", client_id="c1", link=requester)
    assert bench.tell(325, send_fields("C_REPLY_TOPIC", properties=REPLY), b"pong") == []
    assert requester.requests[-1][0] == 326
    bench.store.flush()
    bench.node.durable(bench.store.log_max_offset)
    (answer,) = bench.link.take()
    assert answer.code == 0
    assert stored(bench, "C_REPLY_TOPIC")["CORRELATION_ID"] == "x"
    bench.close()


def test_a_reply_in_the_long_form_of_old_clients_is_served_alike(bench: Bench) -> None:
    requester = Link(7)
    requester.answers[326] = answer_frame()
    bench.heartbeat("T", client_id="c1", link=requester)
    short = send_fields("C_REPLY_TOPIC", properties=REPLY)
    answer = bench.ask(324, {name: short[letter] for name, letter in LONG_NAMES.items()}, b"pong")
    assert answer.code == 0
    assert requester.requests[-1][0] == 326
    assert requester.requests[-1][2] == b"pong"
    assert stored(bench, "C_REPLY_TOPIC")["CORRELATION_ID"] == "x"


def test_a_reply_that_nobody_takes_is_an_error_for_its_sender(bench: Bench) -> None:
    fields = send_fields("C_REPLY_TOPIC", properties=REPLY)
    assert "not found" in (bench.ask(325, fields, b"pong").remark or "")
    requester = Link(7)
    bench.heartbeat("T", client_id="c1", link=requester)
    requester.answers[326] = RequestTimeoutError("c1", 326, 10)
    assert bench.ask(325, fields, b"pong").code == ResponseCode.SYSTEM_ERROR
    requester.answers[326] = answer_frame(1)
    assert bench.ask(325, fields, b"pong").code == ResponseCode.SYSTEM_ERROR
    assert bench.ask(325, send_fields("C_REPLY_TOPIC"), b"pong").code == ResponseCode.SYSTEM_ERROR


def test_replies_need_not_be_stored(tmp_path: Path) -> None:
    bench = Bench(tmp_path, settings={"storeReplyMessageEnable": "false"})
    answer = bench.ask(325, send_fields("C_REPLY_TOPIC", properties=REPLY), b"pong")
    assert answer.ext["msgId"] == "0"
    bench.close()
