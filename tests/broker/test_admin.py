"""Administration: every code that mqadmin's everyday commands send."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path

import pytest

from broker.harness import Bench, Link, records, send_fields
from contrailmq.broker.config import BrokerConfig, BrokerConfigError
from contrailmq.broker.config import keys as broker_keys
from contrailmq.broker.state.groups import Group
from contrailmq.broker.state.topics import Topic
from contrailmq.message import Message, MessageQueue
from contrailmq.wire.admin_bodies import (
    ConsumerStatusBody,
    ConsumeStats,
    ConsumeStatsList,
    ResetOffsetBody,
    TopicStatsTable,
)
from contrailmq.wire.bodies import decode_body, encode_body
from contrailmq.wire.codes import ResponseCode
from contrailmq.wire.errors import RequestTimeoutError
from contrailmq.wire.frame import encode_response
from contrailmq.wire.header import Command
from contrailmq.wire.properties import read_properties

NEW = {
    "topic": "Made",
    "defaultTopic": "TBW102",
    "readQueueNums": "3",
    "writeQueueNums": "5",
    "perm": "6",
    "topicFilterType": "SINGLE_TAG",
    "topicSysFlag": "0",
    "order": "false",
}


def body_of(answer: Command) -> dict[str, object]:
    assert answer.code == 0, answer.remark
    found = json.loads(answer.body)
    assert isinstance(found, dict)
    return found


def saved(bench: Bench, name: str) -> str:
    return (bench.node.config_path / name).read_text()


# -------------------------------------------------------------------------------------------------------------- topics


def test_a_topic_is_made_changed_shown_saved_and_deleted(bench: Bench) -> None:
    assert bench.ask(17, NEW | {"attributes": "+message.type=FIFO"}).code == 0
    assert '"Made"' in saved(bench, "topics.json")
    shown = body_of(bench.ask(351, {"topic": "Made", "lo": "true"}))
    assert shown == {
        "attributes": {"message.type": "FIFO"},
        "order": False,
        "perm": 6,
        "readQueueNums": 3,
        "topicFilterType": "SINGLE_TAG",
        "topicName": "Made",
        "topicSysFlag": 0,
        "writeQueueNums": 5,
    }
    assert bench.ask(17, NEW | {"perm": "4", "attributes": "-message.type"}).code == 0
    assert body_of(bench.ask(351, {"topic": "Made"}))["attributes"] == {}
    bench.ask(17, NEW)
    bench.send("Made", e=4)
    bench.node.offsets.commit("g", "Made", 0, 1)
    assert bench.ask(215, {"topic": "Made"}).code == 0
    assert bench.ask(351, {"topic": "Made"}).code == ResponseCode.TOPIC_NOT_EXIST
    assert '"Made"' not in saved(bench, "topics.json")
    assert bench.node.offsets.groups_of_topic("Made") == set()
    assert ("Made", 4) not in bench.store.queues(), "deleting a topic frees its queues"


@pytest.mark.parametrize(
    ("change", "hint"),
    [
        ({"topic": "bad name"}, "forbidden"),
        ({"topic": "TBW102"}, "system topic"),
        ({"topic": "C"}, "system topic"),
        ({"perm": "9"}, "perm=9"),
        ({"readQueueNums": "-1"}, "readQueueNums=-1"),
        ({"attributes": "+colour=red"}, "colour"),
        ({"topicFilterType": "X"}, "topicFilterType"),
    ],
)
def test_a_topic_that_cannot_be_is_refused_with_invalid_parameter(
    bench: Bench, change: dict[str, str], hint: str
) -> None:
    answer = bench.ask(17, NEW | change)
    assert (answer.code, hint in (answer.remark or "")) == (ResponseCode.INVALID_PARAMETER, True), answer.remark


def test_a_list_of_topics_is_made_whole_or_not_at_all(bench: Bench) -> None:
    def ask(*names: str) -> Command:
        data = {"topicConfigList": [{"topicName": name, "readQueueNums": 1, "writeQueueNums": 1} for name in names]}
        return bench.ask(18, None, json.dumps(data).encode())

    assert ask("A", "TBW102").code == ResponseCode.INVALID_PARAMETER
    assert "A" not in bench.node.topics
    assert ask("A", "B").code == 0
    assert {"A", "B"} <= set(bench.node.topics.names())


def test_attributes_of_a_list_are_changes_as_those_of_one_topic_are(bench: Bench) -> None:
    """mqadmin updateTopicList sends `{"+message.type":"FIFO"}`; the sign is not part of the name."""

    def ask(code: int = 0, **attributes: str) -> None:
        topic = {"topicName": "A", "readQueueNums": 1, "writeQueueNums": 1, "attributes": attributes}
        answer = bench.ask(18, None, json.dumps({"topicConfigList": [topic]}).encode())
        assert answer.code == code, answer.remark

    ask(**{"+message.type": "FIFO"})
    assert body_of(bench.ask(351, {"topic": "A"}))["attributes"] == {"message.type": "FIFO"}
    ask(**{"message.type": "FIFO"})
    ask(ResponseCode.INVALID_PARAMETER, **{"+colour": "red"})
    ask(ResponseCode.INVALID_PARAMETER, **{"message.type": "NORMAL"})
    ask(**{"-message.type": ""})
    assert body_of(bench.ask(351, {"topic": "A"}))["attributes"] == {}


def test_the_kind_of_a_topics_queues_cannot_change_under_its_messages(bench: Bench) -> None:
    bench.ask(17, NEW)
    bench.send("Made", b"first")
    answer = bench.ask(17, NEW | {"attributes": "+queue.type=BatchCQ"})
    assert (answer.code, "queue.type" in (answer.remark or "")) == (ResponseCode.INVALID_PARAMETER, True)
    bench.send("Made", b"second")
    assert [message.body for message in records(bench.pull("Made")[0].body)] == [b"first", b"second"]
    assert bench.ask(17, NEW | {"topic": "New", "attributes": "+queue.type=BatchCQ"}).code == 0
    assert bench.ask(17, NEW | {"topic": "New", "attributes": "+queue.type=BatchCQ"}).code == 0, "said again"


def test_all_topics_are_listed_and_paged(bench: Bench) -> None:
    whole = body_of(bench.ask(21))
    table = whole["topicConfigTable"]
    assert isinstance(table, dict)
    assert {"TBW102", "C", "b", "BenchmarkTest"} <= set(table)
    page = bench.ask(21, {"topicSeq": "0", "maxTopicNum": "3", "dataVersion": ""})
    assert page.ext["totalTopicNum"] == str(len(table))
    first = body_of(page)["topicConfigTable"]
    assert isinstance(first, dict)
    assert len(first) == 3
    system = body_of(bench.ask(305))["topicList"]
    assert isinstance(system, list)
    assert {"TBW102", "C"} <= set(system)


def test_topic_stats_list_every_queue_also_of_an_empty_topic(bench: Bench) -> None:
    bench.ask(17, NEW)
    assert len(decode_body(bench.ask(202, {"topic": "Made"}).body, TopicStatsTable).queues) == 5
    bench.send("Made")
    queues = decode_body(bench.ask(202, {"topic": "Made"}).body, TopicStatsTable).queues
    entry = queues[MessageQueue("Made", "b", 0)]
    assert (entry.min_offset, entry.max_offset, entry.last_update_timestamp) == (0, 1, bench.clock.now_ms())
    assert bench.ask(202, {"topic": "Nothing"}).code == ResponseCode.TOPIC_NOT_EXIST


def test_who_reads_a_topic(bench: Bench) -> None:
    bench.node.offsets.commit("past", "T", 0, 1)
    bench.heartbeat("T", group="live")
    assert body_of(bench.ask(300, {"topic": "T"})) == {"groupList": ["live", "past"]}


# -------------------------------------------------------------------------------------------------------------- groups


def test_a_group_is_made_shown_saved_forbidden_and_deleted(bench: Bench) -> None:
    config = {"groupName": "g", "retryMaxTimes": 3, "consumeEnable": True, "groupRetryPolicy": {"type": "CUSTOMIZED"}}
    assert bench.ask(200, None, json.dumps(config).encode()).code == 0
    assert '"g"' in saved(bench, "subscriptionGroup.json")
    assert body_of(bench.ask(352, {"group": "g"}))["retryMaxTimes"] == 3
    assert body_of(bench.ask(353, {"group": "g", "topic": "T", "readable": "false"}))["readable"] is False
    assert bench.node.groups.is_forbidden("g", "T")
    assert body_of(bench.ask(353, {"group": "g", "topic": "T"}))["readable"] is False
    bench.heartbeat("T")
    bench.node.offsets.commit("g", "T", 0, 1)
    assert bench.ask(207, {"groupName": "g", "cleanOffset": "true"}).code == 0
    assert bench.ask(352, {"group": "g"}).code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert bench.node.offsets.topics_of_group("g") == set()
    assert "%RETRY%g" not in bench.node.topics


def test_changes_of_topics_groups_and_offsets_are_logged(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "contrailmq.broker")
    bench.ask(17, NEW)
    bench.ask(17, NEW)
    bench.ask(17, NEW | {"readQueueNums": "4"})
    group = {"groupName": "g", "retryMaxTimes": 3}
    for retries in (3, 3, 5):
        bench.ask(200, None, json.dumps(group | {"retryMaxTimes": retries}).encode())
    bench.ask(353, {"group": "g", "topic": "Made", "readable": "false"})
    bench.node.offsets.commit("g", "Made", 0, 7)
    fields = {"group": "g", "topic": "Made", "timestamp": "-1", "isForce": "true", "queueId": "0"}
    bench.ask(222, fields)
    bench.ask(207, {"groupName": "g", "cleanOffset": "true"})
    bench.ask(215, {"topic": "Made"})
    assert [line for line in caplog.messages if "Made" in line or "group g" in line] == [
        "topic Made is new: 3 queues to read, 5 to write, perm 6",
        "topic Made changed: it had 3 queues to read, 5 to write, perm 6, it has 4 queues to read, 5 to write, perm 6",
        "group g is new",
        "group g changed: retryMaxTimes was 3, is 5",
        "group g may no longer read topic Made",
        "offsets of group g on topic Made are reset by the broker: queue 0 from 7 to 0",
        "group g was deleted",
        "topic Made was deleted: it had 4 queues to read, 5 to write, perm 6",
    ]


def test_groups_come_in_lists_and_pages(bench: Bench) -> None:
    body = json.dumps({"groupConfigList": [{"groupName": "x"}, {"groupName": "y"}]}).encode()
    assert bench.ask(225, None, body).code == 0
    bad = json.dumps({"groupConfigList": [{"groupName": "z"}, {"groupName": "no good"}]}).encode()
    assert bench.ask(225, None, bad).code == ResponseCode.INVALID_PARAMETER
    assert "z" not in bench.node.groups
    table = body_of(bench.ask(201))["subscriptionGroupTable"]
    assert isinstance(table, dict)
    assert {"x", "y", "TOOLS_CONSUMER"} <= set(table)
    page = bench.ask(201, {"groupSeq": "0", "maxGroupNum": "2"})
    assert page.ext["totalGroupNum"] == str(len(table))
    for broken in (b"", b"[]", b'{"groupName":5}', b'{"retryMaxTimes":3}'):
        assert bench.ask(200, None, broken).code != 0


@pytest.mark.parametrize(
    ("config", "hint"),
    [
        ({"retryQueueNums": 2_000_000_000}, "retryQueueNums=2000000000 of subscription group q: 0 to 65536"),
        ({"retryQueueNums": -1}, "retryQueueNums=-1"),
        ({"retryMaxTimes": 10**20}, "retryMaxTimes=100000000000000000000"),
        ({"brokerId": 2**63}, "brokerId="),
        ({"attributes": {"+colour": "red"}}, "'colour' is not known"),
        ({"attributes": {"+priority.factor": "101"}}, "0 to 100"),
    ],
)
def test_a_group_that_cannot_be_is_refused_with_invalid_parameter(
    bench: Bench, config: dict[str, object], hint: str
) -> None:
    """A retry topic of so many queues would keep the broker busy for ever: every question for it counts them all."""
    answer = bench.ask(200, None, json.dumps({"groupName": "q", **config}).encode())
    assert (answer.code, hint in (answer.remark or "")) == (ResponseCode.INVALID_PARAMETER, True), answer.remark
    assert "q" not in bench.node.groups


def test_attributes_of_a_group_are_changes(bench: Bench) -> None:
    def ask(**attributes: str) -> object:
        assert bench.ask(200, None, json.dumps({"groupName": "q", "attributes": attributes}).encode()).code == 0
        return body_of(bench.ask(352, {"group": "q"}))["attributes"]

    assert ask(**{"+priority.factor": "7"}) == {"priority.factor": "7"}
    assert ask() == {"priority.factor": "7"}
    assert ask(**{"-priority.factor": ""}) == {}


def test_topics_and_subscription_of_a_group(bench: Bench) -> None:
    bench.heartbeat("T", expression="TagA")
    bench.node.offsets.commit("g", "T", 0, 1)
    assert body_of(bench.ask(343, {"group": "g"})) == {"brokerAddr": "10.0.0.2:10911", "topicList": ["T"]}
    found = body_of(bench.ask(345, {"group": "g", "topic": "T"}))
    subscription = found["subscriptionData"]
    assert isinstance(subscription, dict)
    assert (subscription["subString"], subscription["codeSet"]) == ("TagA", [2598919])


# ------------------------------------------------------------------------------------------------------------ progress


def test_consume_stats_show_how_far_a_group_is(bench: Bench) -> None:
    for _ in range(5):
        bench.send()
    bench.node.groups.put(Group("g"))
    bench.node.offsets.commit("g", "T", 0, 3)
    stats = decode_body(bench.ask(208, {"consumerGroup": "g"}).body, ConsumeStats)
    entry = stats.queues[MessageQueue("T", "b", 0)]
    assert (entry.broker_offset, entry.consumer_offset, entry.last_timestamp) == (5, 3, bench.clock.now_ms())
    assert len(stats.queues) == 4
    assert decode_body(bench.ask(208, {"consumerGroup": "g", "topic": "Other"}).body, ConsumeStats).queues == {}
    some = decode_body(bench.ask(208, {"consumerGroup": "g", "topicList": "T;U"}).body, ConsumeStats)
    assert len(some.queues) == 4
    everything = decode_body(bench.ask(317, {"isOrder": "false"}).body, ConsumeStatsList)
    assert everything.total_diff == 2
    assert any("g" in entry for entry in everything.consume_stats_list)


def test_nothing_is_in_flight_of_a_group_that_commits_and_does_not_pull(bench: Bench) -> None:
    """As under POP. mqadmin consumerProgress shows pull offset - consumer offset, of Apache's broker at least 0."""
    bench.send()
    bench.send()
    bench.node.groups.put(Group("g"))
    bench.node.offsets.commit("g", "T", 0, 2)
    entry = decode_body(bench.ask(208, {"consumerGroup": "g"}).body, ConsumeStats).queues[MessageQueue("T", "b", 0)]
    assert (entry.consumer_offset, entry.pull_offset) == (2, 2)


def test_time_spans_and_units_of_a_queue(bench: Bench) -> None:
    start = bench.clock.now_ms()
    for tag in ("TagA", "TagB"):
        bench.send(properties={"TAGS": tag})
        bench.clock.advance(1000)
    bench.node.offsets.commit("g", "T", 0, 1)
    spans = body_of(bench.ask(303, {"topic": "T", "group": "g"}))["consumeTimeSpanSet"]
    assert isinstance(spans, list)
    first = spans[0]
    assert (first["minTimeStamp"], first["maxTimeStamp"], first["consumeTimeStamp"]) == (start, start + 1000, start)
    assert first["delayTime"] == 1000
    bench.heartbeat("T", expression="TagB")
    units = body_of(bench.ask(321, {"topic": "T", "queueId": "0", "index": "0", "count": "9", "consumerGroup": "g"}))
    data = units["queueData"]
    assert isinstance(data, list)
    assert [(unit["tagsCode"], unit["eval"]) for unit in data] == [(2598919, False), (2598920, True)]
    assert units["maxQueueIndex"] == 2
    assert bench.ask(321, {"topic": "Nothing", "queueId": "0"}).code == ResponseCode.SYSTEM_ERROR


# ------------------------------------------------------------------------------------------------------------- offsets


def reset(bench: Bench, **fields: object) -> Command:
    ext = {"group": "g", "topic": "T", "timestamp": -1, "isForce": "true"} | fields
    return bench.ask(222, {name: str(value) for name, value in ext.items()})


def test_offsets_are_reset_by_time_by_number_and_to_the_end(bench: Bench) -> None:
    start = bench.clock.now_ms()
    for _ in range(4):
        bench.send()
        bench.clock.advance(1000)
    bench.node.groups.put(Group("g"))
    offsets = decode_body(reset(bench, timestamp=start + 1500).body, ResetOffsetBody).offsets
    assert offsets[MessageQueue("T", "b", 0)] == 2
    assert len(offsets) == 4
    assert bench.node.offsets.query("g", "T", 0) == 2
    assert decode_body(reset(bench).body, ResetOffsetBody).offsets[MessageQueue("T", "b", 0)] == 4
    one = decode_body(reset(bench, queueId=0, offset=1).body, ResetOffsetBody).offsets
    assert one == {MessageQueue("T", "b", 0): 1}
    (moved,) = bench.pull(offset=4)
    assert (moved.code, moved.ext["nextBeginOffset"]) == (ResponseCode.PULL_OFFSET_MOVED, "1")
    assert '"T@g"' in saved(bench, "consumerOffset.json")


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"topic": "Nothing"}, ResponseCode.TOPIC_NOT_EXIST),
        ({"group": "nobody"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST),
        ({"queueId": 9}, ResponseCode.INVALID_PARAMETER),
        ({"queueId": 0, "offset": 99}, ResponseCode.SYSTEM_ERROR),
    ],
)
def test_a_reset_that_makes_no_sense_is_refused(bench: Bench, fields: dict[str, object], code: int) -> None:
    bench.send()
    bench.node.groups.put(Group("g"))
    assert reset(bench, **fields).code == code


def test_the_old_way_of_resetting_goes_through_the_clients(tmp_path: Path) -> None:
    bench = Bench(tmp_path, settings={"useServerSideResetOffset": "false"})
    bench.node.topics.put(Topic("T", read_queues=1, write_queues=1))
    for _ in range(3):
        bench.send()
    bench.node.groups.put(Group("g"))
    bench.node.offsets.commit("g", "T", 0, 2)
    assert reset(bench).code == ResponseCode.CONSUMER_NOT_ONLINE
    consumer = Link(1)
    bench.heartbeat("T", link=consumer)
    backwards = reset(bench, isForce="false", timestamp=0)
    assert decode_body(backwards.body, ResetOffsetBody).offsets == {MessageQueue("T", "b", 0): 0}
    only_backwards = reset(bench, isForce="false")
    assert decode_body(only_backwards.body, ResetOffsetBody).offsets == {MessageQueue("T", "b", 0): 2}
    codes = [code for code, _, _ in consumer.requests]
    assert codes == [40, 220, 220]
    bench.close()


def test_offsets_are_cloned_compared_and_handed_to_a_slave(bench: Bench) -> None:
    bench.send()
    bench.node.offsets.commit("g", "T", 0, 9)
    bench.node.offsets.commit("h", "T", 0, 4)
    assert bench.ask(314, {"srcGroup": "g", "destGroup": "copy", "topic": "T", "offline": "false"}).code == 0
    assert bench.ask(314, {"srcGroup": "g", "destGroup": "copy2"}).code == 0
    assert bench.node.offsets.query("copy2", "T", 0) == 9
    answer = body_of(bench.ask(308, {"compareGroup": "g", "topic": "T", "filterGroups": "copy,copy2"}))
    assert answer == {"correctionOffsets": {"0": 4}}
    behind = body_of(bench.ask(308, {"compareGroup": "h", "topic": "T", "filterGroups": "h"}))
    assert behind == {"correctionOffsets": {"0": 2**63 - 1}}
    table = body_of(bench.ask(43))["offsetTable"]
    assert isinstance(table, dict)
    assert table["T@g"] == {"0": 9}


# ------------------------------------------------------------------------------------------------------------- clients


def test_who_is_connected(bench: Bench) -> None:
    link = Link(77)
    bench.heartbeat("T", link=link)
    consumers = body_of(bench.ask(203, {"consumerGroup": "g"}))
    assert consumers["connectionSet"] == [
        {"clientAddr": "10.0.0.9:77", "clientId": "c1", "language": "PYTHON", "version": 479}
    ]
    assert consumers["consumeFromWhere"] == "CONSUME_FROM_FIRST_OFFSET"
    subscriptions = consumers["subscriptionTable"]
    assert isinstance(subscriptions, dict)
    assert subscriptions["T"]["subString"] == "*"
    assert bench.ask(203, {"consumerGroup": "nobody"}).code == ResponseCode.CONSUMER_NOT_ONLINE
    assert len(str(body_of(bench.ask(204, {"producerGroup": "pg"}))["connectionSet"])) > 10
    assert bench.ask(204, {"producerGroup": "nobody"}).code == ResponseCode.SYSTEM_ERROR
    everybody = body_of(bench.ask(328))["data"]
    assert isinstance(everybody, dict)
    assert everybody["pg"][0]["remoteIP"] == "/10.0.0.9:77"


def frame(code: int = 0, body: bytes = b"", remark: str | None = None) -> bytes:
    return encode_response(Command(), code, None, body, remark)


def test_questions_are_passed_on_to_a_consumer_and_its_answer_is_passed_back(bench: Bench) -> None:
    link = Link(1)
    bench.heartbeat("T", link=link)
    sent = bench.send(body=b"again")
    link.answers[307] = frame(0, b"{}", "fine")
    info = bench.ask(307, {"consumerGroup": "g", "clientId": "c1", "jstackEnable": "false"})
    assert (info.code, info.body, info.remark) == (0, b"{}", "fine")
    link.answers[309] = frame(0, b'{"consumeResult":"CR_SUCCESS"}')
    fields = {"consumerGroup": "g", "clientId": "c1", "msgId": sent.ext["msgId"], "topic": "T"}
    assert b"CR_SUCCESS" in bench.ask(309, fields).body
    code, ext, body = link.requests[-1]
    assert (code, ext["brokerName"], ext["topicSysFlag"], records(body)[0].body) == (309, "b", "0", b"again")
    link.answers[307] = RequestTimeoutError("c1", 307, 10)
    late = bench.ask(307, {"consumerGroup": "g", "clientId": "c1"})
    assert late.code == ResponseCode.CONSUME_MSG_TIMEOUT
    assert bench.ask(307, {"consumerGroup": "g", "clientId": "gone"}).code == ResponseCode.SYSTEM_ERROR
    assert bench.ask(309, fields | {"msgId": "nonsense"}).code == ResponseCode.SYSTEM_ERROR
    assert bench.ask(309, fields | {"msgId": sent.ext["msgId"][:-1] + "7"}).code == ResponseCode.SYSTEM_ERROR


def test_the_offsets_in_the_memory_of_consumers_are_gathered(bench: Bench) -> None:
    link = Link(1)
    bench.heartbeat("T", link=link)
    link.answers[221] = frame(0, encode_body(ConsumerStatusBody.of({MessageQueue("T", "b", 0): 5})))
    answer = bench.ask(223, {"topic": "T", "group": "g", "clientAddr": ""})
    assert decode_body(answer.body, ConsumerStatusBody).clients == {"c1": {MessageQueue("T", "b", 0): 5}}
    assert bench.ask(223, {"topic": "T", "group": "nobody"}).code == ResponseCode.SYSTEM_ERROR


# ------------------------------------------------------------------------------------------------------- broker itself


def test_runtime_info_has_what_cluster_list_parses(bench: Bench) -> None:
    bench.send()
    table = body_of(bench.ask(28))["table"]
    assert isinstance(table, dict)
    assert all(isinstance(value, str) for value in table.values())
    for key in ("putTps", "getTransferredTps", "getTotalTps", "getFoundTps", "getMissTps"):
        assert len(str(table[key]).split()) == 3, key
    needed = """brokerVersionDesc brokerActive msgPutTotalTodayNow msgGetTotalTodayMorning sendThreadPoolQueueSize
        sendThreadPoolQueueHeadWaitTimeMills pageCacheLockTimeMills earliestMessageTimeStamp commitLogDiskRatio
        consumeQueueDiskRatio commitLogMinOffset commitLogMaxOffset timerReadBehind timerOffsetBehind
        timerCongestNum timerEnqueueTps timerDequeueTps bootTimestamp runtime dispatchBehindBytes
        remainHowManyDataToFlush commitLogDirCapacity EndTransactionQueueSize putMessageDistributeTime"""
    for key in needed.split():
        assert key in table, key
    assert int(str(table["commitLogMaxOffset"])) > 0


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_put_times_are_told_from_the_first_put_of_a_wakeup_until_all_are_readable_or_durable(
    tmp_path: Path, flush: str
) -> None:
    bench = Bench(tmp_path, flush_disk_type=flush)
    bench.node.topics.put(Topic("T"))
    elapsed_ns = 0
    bench.node.stopwatch_ns = lambda: elapsed_ns
    for _ in range(3):  # one wakeup: what is due runs when it ends
        bench.tell(310, send_fields(), b"body", settle=False)
    if flush == "ASYNC_FLUSH":
        elapsed_ns = 15_000_000
    bench.settle()
    if flush == "SYNC_FLUSH":
        elapsed_ns = 15_000_000
        assert "[10~50ms]:0" in str(body_of(bench.ask(28))["table"]["putMessageDistributeTime"])
        bench.node.durable(bench.store.log_max_offset)
        assert len(bench.link.take()) == 3
    table = body_of(bench.ask(28))["table"]
    assert table["putMessageEntireTimeMax"] == "15"
    assert str(table["putMessageDistributeTime"]).startswith("[<=0ms]:0 [0~10ms]:0 [10~50ms]:3 [50~100ms]:0")
    for key in ("putLatency99", "putLatency999"):
        assert 12.5 < float(str(table[key])) < 18.0
    bench.close()


def test_statistics_are_viewed_by_name_and_key(bench: Bench) -> None:
    bench.node.statistics.tick(0, wall_ms=0)
    bench.send()
    bench.node.statistics.tick(0, wall_ms=0)
    bench.send()
    bench.node.statistics.tick(10_000, wall_ms=10_000)
    answer = body_of(bench.ask(315, {"statsName": "TOPIC_PUT_NUMS", "statsKey": "T"}))
    assert answer["statsMinute"] == {"avgpt": 1.0, "sum": 1, "tps": 0.1}
    assert bench.ask(315, {"statsName": "X", "statsKey": "T"}).code == ResponseCode.SYSTEM_ERROR


def test_settings_are_shown_and_changed_all_or_nothing(bench: Bench) -> None:
    answer = bench.ask(26)
    assert json.loads(answer.ext["version"])["counter"] == 0
    text = answer.body.decode()
    assert "brokerName=b\n" in text
    assert "flushDiskType=ASYNC_FLUSH\n" in text
    assert bench.ask(25, None, b"traceOn=false\nregionId=R2\n").code == 0
    assert bench.send().ext["TRACE_ON"] == "false"
    assert bench.send().ext["MSG_REGION"] == "R2"
    assert saved(bench, "broker.properties") == "regionId=R2\ntraceOn=false\n"
    refused = bench.ask(25, None, b"regionId=R3\nbrokerName=x\n")
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "brokerName" in (refused.remark or "")
    assert bench.config.region_id == "R2"
    assert bench.ask(25, None, b"").code == ResponseCode.SYSTEM_ERROR


def test_a_setting_is_kept_as_it_was_said_whatever_is_in_it(bench: Bench) -> None:
    """The file is Java's: a backslash in it begins an escape. So does one in the request."""
    assert bench.ask(25, None, b"regionId=a\\\\b: \xc3\xa9 #1\n").code == 0
    assert bench.config.region_id == "a\\b: \u00e9 #1"
    path = bench.node.config_path / "broker.properties"
    assert read_properties(path) == {"regionId": "a\\b: \u00e9 #1"}


def test_a_setting_that_was_changed_has_its_effect_at_once(bench: Bench) -> None:
    bench.config.allow_remote_config = "autoCreateTopicEnable,autoCreateSubscriptionGroup"

    def change(**settings: object) -> None:
        body = "".join(f"{key}={value}\n" for key, value in settings.items())
        assert bench.ask(25, None, body.encode()).code == 0

    assert bench.send("First").code == 0
    change(autoCreateTopicEnable="false", autoCreateSubscriptionGroup="false", heldPullsMax=0)
    assert bench.send("Second").code == ResponseCode.TOPIC_NOT_EXIST
    assert bench.pull("First", group="new")[0].code == ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
    assert bench.pull("First", 1, group="TOOLS_CONSUMER", sysFlag=6)[0].code == ResponseCode.PULL_NOT_FOUND
    change(autoCreateTopicEnable="true", traceTopicEnable="true", channelExpiredTimeout=1000)
    assert bench.send("Second").code == 0
    assert "RMQ_SYS_TRACE_TOPIC" in bench.node.topics
    bench.heartbeat("First", group="TOOLS_CONSUMER")
    bench.clock.advance(2000)
    bench.members.expire(bench.node.monotonic_ms())
    assert not bench.link.is_open


@pytest.mark.parametrize("setting", ["clusterTopicEnable", "brokerTopicEnable"])
def test_the_topics_of_cluster_and_broker_can_be_closed(setting: str, tmp_path: Path) -> None:
    bench = Bench(tmp_path, settings={"brokerClusterName": "Cluster", "brokerName": "Broker", setting: "false"})
    closed = "Cluster" if setting == "clusterTopicEnable" else "Broker"
    assert {name: bench.send(name).code for name in ("Cluster", "Broker")} == {
        "Cluster": 0,
        "Broker": 0,
        closed: ResponseCode.NO_PERMISSION,
    }
    bench.close()


@pytest.mark.parametrize("setting", ["unsentBytesMax=2097152", "serverChannelMaxIdleTimeSeconds=9", "listenPort=1"])
def test_a_setting_that_is_fixed_at_the_start_is_refused(bench: Bench, setting: str) -> None:
    answer = bench.ask(25, None, f"traceOn=false\n{setting}\n".encode())
    assert (answer.code, "restart" in (answer.remark or "")) == (ResponseCode.SYSTEM_ERROR, True)
    assert bench.config.trace_on, "all or nothing"


def test_settings_of_the_store_that_it_can_follow_are_changed_too(bench: Bench) -> None:
    bench.config.allow_remote_config = "fileReservedTime"
    assert bench.ask(25, None, b"fileReservedTime=24\nmaxTransferCountOnMessageInMemory=2\nregionId=R2\n").code == 0
    for _ in range(3):
        bench.send()
    (answer,) = bench.pull()
    assert len(records(answer.body)) == 2
    assert "fileReservedTime=24\n" in bench.ask(26).body.decode()
    assert "fileReservedTime=24\n" in saved(bench, "broker.properties")
    for body, word in (
        (b"fileReservedTime=1\nmappedFileSizeCommitLog=4096\n", "mappedFileSizeCommitLog"),
        (b"fileReservedTime=1\nregionId=R3\nhaMasterAddress=x\n", "haMasterAddress"),
        (b"fileReservedTime=soon\nregionId=R3\n", "fileReservedTime"),
        (b"fileReservedTime=1\nlistenPort=1\n", "listenPort"),
    ):
        refused = bench.ask(25, None, body)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert word in (refused.remark or "")
    assert bench.store.config.file_reserved_time == 24
    assert bench.config.region_id == "R2"


@pytest.mark.parametrize(
    ("setting", "allowed"),
    [
        ("transactionCheckInterval=-1", "1 to "),
        ("transactionCheckInterval=0", "1 to "),
        ("registerNameServerPeriod=-30000", "1 to "),
        ("shortPollingTimeMills=-1", "0 to "),
        ("startAcceptSendRequestTimeStamp=-1", "0 to "),
        ("flushDelayOffsetInterval=-1", "1 to "),
        ("maxFilterMessageSize=-5", "must not be negative"),
        ("timerFlushIntervalMs=0", "1 to "),
        ("maxTransferCountOnMessageInMemory=0", "1 to "),
        (f"heldPullsMax={'9' * 5000}", "a whole number is needed"),
    ],
    ids=lambda text: text[:40],
)
def test_a_number_out_of_its_range_is_refused_with_its_key_and_the_range(
    bench: Bench, setting: str, allowed: str
) -> None:
    refused = bench.ask(25, None, f"regionId=R9\n{setting}\n".encode())
    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert setting.partition("=")[0] in (refused.remark or "")
    assert allowed in (refused.remark or "")
    assert bench.config.region_id != "R9"


@pytest.mark.parametrize(
    "name",
    [
        spec.name
        for spec in dataclasses.fields(BrokerConfig)
        if type(getattr(BrokerConfig(), spec.name)) is int and spec.name != "default_pop_share_queue_num"  # -1: all
    ],
)
def test_no_number_of_a_broker_is_negative(name: str) -> None:
    key = next(key for key, field in broker_keys().items() if field == name)
    with pytest.raises(BrokerConfigError, match=rf"{key}=-1: \d"):
        BrokerConfig.from_properties({key: "-1"})


def test_cleaning_and_ha_status(bench: Bench) -> None:
    bench.send()
    bench.send("Gone")
    bench.node.topics.delete("Gone")
    assert bench.ask(316).code == 0
    assert ("Gone", 0) not in bench.store.queues()
    assert ("T", 0) in bench.store.queues()
    assert bench.ask(306).code == 0
    assert bench.ask(329).code == 0
    assert body_of(bench.ask(907))["master"] is True
    assert bench.ask(1007).code == ResponseCode.SYSTEM_ERROR


def test_cleaning_spares_light_queues_and_system_topics(tmp_path: Path) -> None:
    bench = Bench(tmp_path, enable_lmq=True, enable_multi_dispatch=True)
    bench.send(properties={"INNER_MULTI_DISPATCH": "%LMQ%a"})
    bench.store.put(Message("rmq_sys_mine", b"kept"))
    bench.store.put(Message("Gone", b"dropped"))
    assert bench.ask(316).code == 0
    assert {topic for topic, _ in bench.store.queues()} == {"T", "%LMQ%a", "rmq_sys_mine"}
    bench.close()


def test_every_code_answers_garbage_without_failing(bench: Bench) -> None:
    """No ext fields, a body of nonsense: a clear answer for each code, never silence and never a trace in the log."""
    bench.send()
    for code in bench.handlers.codes():
        for body in (b"", b"{nonsense", b"\xff\x00"):
            answers = bench.tell(code, {"unknown": "field"}, body)
            assert len(answers) == 1, code
            assert not (answers[0].remark or "").startswith(("AttributeError", "KeyError", "TypeError", "IndexError"))
    assert bench.ask(310, send_fields(), b"x").code == 0
