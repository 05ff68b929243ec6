"""Java's JSON that is not JSON."""

from __future__ import annotations

import json

import pytest

from contrailmq.message import MessageQueue
from contrailmq.wire.admin_bodies import ConsumeMessageDirectlyResult, ConsumeStats, OffsetProgress, ResetOffsetBody
from contrailmq.wire.bodies import (
    BrokerData,
    HeartbeatData,
    QueueData,
    TopicRouteData,
    decode_body,
    encode_body,
    encode_route,
    loads_fastjson,
)
from contrailmq.wire.errors import RemoteProtocolError
from contrailmq.wire.fastjson import _quote_bare_names, _rewrite, to_standard_json

QUEUE = MessageQueue("T", "broker-a", 3)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b'{0:"a",1:"b"}', {"0": "a", "1": "b"}),
        (b"{name:1,other:{2:3}}", {"name": 1, "other": {"2": 3}}),
        (b"{'a':'it\\'s','b':'say \"x\"'}", {"a": "it's", "b": 'say "x"'}),
        (b'{"a":[1,2,],"b":{},}', {"a": [1, 2], "b": {}}),
        (b'{{"q":0}:5}', {'{"q":0}': 5}),
        (b'{{q:0,"t":"x"}:{{"r":1}:2},"z":null}', {'{"q":0,"t":"x"}': {'{"r":1}': 2}, "z": None}),
        (b' { -1 : "x" } ', {"-1": "x"}),
        (b'{"plain":true}', {"plain": True}),
    ],
)
def test_every_odd_form_is_read(text: bytes, value: object) -> None:
    assert loads_fastjson(text) == value


@pytest.mark.parametrize(
    "text",
    [b"", b"{", b"}", b"{]", b'{"a"', b"{[1]:2}", b"{{{}:1}:2}", b"{:}", b"nonsense", b'{"a":}', b"[" * 1000, b"'"],
)
def test_what_is_no_json_at_all_is_refused(text: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        loads_fastjson(text)


def test_rewriting_takes_linear_time_and_never_grows_much() -> None:
    text = b"{" + b",".join(b'{"brokerName":"b","queueId":%d,"topic":"T"}:%d' % (n, n) for n in range(20_000)) + b"}"
    assert len(to_standard_json(text)) < 2 * len(text)


def test_bare_names_alone_take_the_quick_way_to_the_same_text() -> None:
    text = b'{"a":{0:"x{1:y}",-1:[{2:3},{b:null}]}, c : "" ,d.e:true}'
    quick = _quote_bare_names(text)
    assert quick is not None
    assert quick == _rewrite(text).replace(b',"c":""', b', "c" : "" ')
    assert _quote_bare_names(text.replace(b"x", b"\\n")) is None


def test_a_large_body_that_is_no_json_is_refused_unless_its_kind_may_have_objects_as_names() -> None:
    table = {MessageQueue("T", "b", number): number for number in range(5000)}
    large = encode_body(ResetOffsetBody.of(table))
    assert decode_body(large, ResetOffsetBody).offsets == table
    bare = b'{"clientID":"c",%b}' % b",".join(b"%d:1" % number for number in range(30_000))
    for body in (large, bare, b'{"clientID":"c",0:1%b}' % b",1:2" * (1024 * 1024)):
        with pytest.raises(RemoteProtocolError, match="too large"):
            decode_body(body, HeartbeatData)
    with pytest.raises(RemoteProtocolError, match="too large"):
        loads_fastjson(bare)
    assert len(loads_fastjson(bare, is_trusted=True)) == 30_001  # type: ignore[arg-type]
    assert decode_body(bare[:50_000].rpartition(b",")[0] + b"}", HeartbeatData).client_id == "c"


def test_tables_of_queues_go_both_ways() -> None:
    stats = ConsumeStats.of({QUEUE: OffsetProgress(broker_offset=5, consumer_offset=4)}, consume_tps=1.5)
    data = encode_body(stats)
    assert data == (
        b'{"consumeTps":1.5,"offsetTable":{{"brokerName":"broker-a","queueId":3,"topic":"T"}:'
        b'{"brokerOffset":5,"consumerOffset":4,"lastTimestamp":0,"pullOffset":0}}}'
    )
    assert decode_body(data, ConsumeStats).queues == {QUEUE: OffsetProgress(broker_offset=5, consumer_offset=4)}
    assert decode_body(encode_body(ResetOffsetBody.of({QUEUE: 7})), ResetOffsetBody).offsets == {QUEUE: 7}
    assert decode_body(b"{}", ResetOffsetBody).offsets == {}


def test_a_heartbeat_of_the_cpp_client_has_ordinals_and_of_the_go_client_text_for_hash_codes() -> None:
    data = (
        b'{"clientID":"c","consumerDataSet":[{"consumeFromWhere":4,"consumeType":1,"groupName":"g","messageModel":1,'
        b'"subscriptionDataSet":[{"codeSet":["2598919"],"subString":"TagA","subVersion":"1","tagsSet":["TagA"],'
        b'"topic":"T"}]}]}'
    )
    [consumer] = decode_body(data, HeartbeatData).consumer_data_set
    assert consumer.consume_from_where == "CONSUME_FROM_FIRST_OFFSET"
    assert (consumer.consume_type, consumer.message_model) == ("CONSUME_PASSIVELY", "CLUSTERING")
    assert consumer.subscription_data_set[0].code_set == [2598919]
    assert decode_body(data, HeartbeatData).producer_data_set == []


def test_an_ordinal_without_a_name_is_the_peers_fault() -> None:
    with pytest.raises(RemoteProtocolError):
        decode_body(b'{"consumeResult":9}', ConsumeMessageDirectlyResult)
    assert decode_body(b'{"consumeResult":1}', ConsumeMessageDirectlyResult).consume_result == "CR_LATER"


def test_a_route_has_no_white_space_and_the_broker_ids_form_that_is_asked_for() -> None:
    """Go clients split the raw text at `,` and `:` and do not trim."""
    route = TopicRouteData(
        broker_datas=[BrokerData(broker_name="a", cluster="c", broker_addrs={0: "h:1", 1: "h:2"})],
        queue_datas=[QueueData(broker_name="a", read_queue_nums=4, write_queue_nums=4)],
    )
    standard, bare = encode_route(route, is_standard=True), encode_route(route, is_standard=False)
    assert b'"brokerAddrs":{"0":"h:1","1":"h:2"}' in standard
    assert b'"brokerAddrs":{0:"h:1",1:"h:2"}' in bare
    assert b" " not in standard + bare
    assert decode_body(standard, TopicRouteData) == decode_body(bare, TopicRouteData) == route


def test_a_body_of_the_wrong_shape_says_what_was_expected() -> None:
    with pytest.raises(RemoteProtocolError, match="is not a HeartbeatData: .*clientID"):
        decode_body(b"{}", HeartbeatData)


@pytest.mark.parametrize(
    ("name", "escaped"),
    [
        ("broker-a", b"broker-a"),
        ("b\u00e9", rb"b\u00E9"),
        ("\u8ba2\u5355", rb"\u8BA2\u5355"),
        ("x\U0001f600y", rb"x\uD83D\uDE00y"),
        ('q"\\\u00ff', rb"q\"\\\u00FF"),
    ],
)
def test_a_route_in_standard_json_is_ascii_and_the_old_form_is_not_escaped(name: str, escaped: bytes) -> None:
    route = TopicRouteData(queue_datas=[QueueData(broker_name=name)])
    standard, bare = encode_route(route, is_standard=True), encode_route(route, is_standard=False)
    assert b'"brokerName":"' + escaped + b'"' in standard
    assert json.loads(standard)["queueDatas"][0]["brokerName"] == name
    assert decode_body(standard, TopicRouteData) == decode_body(bare, TopicRouteData) == route
    if not name.isascii() and "\\" not in name:
        assert name.encode() in bare
