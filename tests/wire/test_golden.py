"""Every exchange that was captured between Apache's own programs, decoded and written again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from contrailmq.wire import admin_bodies as admin
from contrailmq.wire import bodies
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.fastjson import Body, decode_body, encode_body, loads_fastjson
from contrailmq.wire.frame import FrameParser, encode_request, encode_response
from contrailmq.wire.header import BINARY, JSON, Command, to_ext

from . import headers_by_code as unserved
from .headers_by_code import REQUEST_HEADERS, RESPONSE_HEADERS

GOLDEN = Path(__file__).parents[1] / "golden" / "wire"


@dataclass(frozen=True)
class Exchange:
    name: str
    code: int
    request: bytes
    response: bytes | None
    request_ext: dict[str, str]
    response_ext: dict[str, str]
    response_code: int | None


@cache
def exchanges() -> tuple[Exchange, ...]:
    found = []
    for path in sorted(GOLDEN.glob("[0-9]*.json")):
        data = json.loads(path.read_text())
        found.append(
            Exchange(
                path.stem,
                data["code"],
                bytes.fromhex(data["request_hex"]),
                bytes.fromhex(data["response_hex"]) if data["response_hex"] else None,
                data["request_ext"],
                data["response_ext"],
                data["response_code"],
            )
        )
    assert len(found) == 397
    return tuple(found)


def parse(frame: bytes) -> Command:
    [command] = FrameParser().feed(frame)
    return command


def whole(frame: bytes) -> list[Command]:
    return FrameParser().feed(frame)


def byte_by_byte(frame: bytes) -> list[Command]:
    parser = FrameParser()
    return [command for position in range(len(frame)) for command in parser.feed(frame[position : position + 1])]


def with_trailing_bytes(frame: bytes) -> list[Command]:
    parser = FrameParser()
    commands = parser.feed(frame + frame[:7])
    assert parser.buffered_bytes == 7
    return commands


def facts(command: Command) -> tuple[object, ...]:
    return (
        command.code,
        command.opaque,
        command.flag,
        command.version,
        command.language,
        command.remark,
        command.ext,
        command.body,
        command.serialize_type,
    )


@pytest.mark.parametrize("feed", [whole, byte_by_byte, with_trailing_bytes])
def test_every_captured_frame_parses_the_same_however_it_is_fed(feed: Callable[[bytes], list[Command]]) -> None:
    for exchange in exchanges():
        for frame in (exchange.request, exchange.response):
            if frame is None or (len(frame) > 20_000 and feed is byte_by_byte):
                continue
            [command] = feed(frame)
            assert facts(command) == facts(parse(frame)), exchange.name


def test_captured_ext_fields_are_read_as_the_capture_says() -> None:
    for exchange in exchanges():
        request = parse(exchange.request)
        assert request.code == exchange.code, exchange.name
        assert request.ext == without_empty(exchange.request_ext, request), exchange.name
        assert request.language == "JAVA"
        assert request.version == 513
        if exchange.response is not None:
            response = parse(exchange.response)
            assert response.is_response
            assert response.opaque == request.opaque
            assert response.code == exchange.response_code, exchange.name
            assert response.ext == without_empty(exchange.response_ext, response), exchange.name


def without_empty(ext: dict[str, str], command: Command) -> dict[str, str]:
    """An empty value of a binary header is the same as an absent one."""
    return {name: value for name, value in ext.items() if value or command.serialize_type == JSON}


def test_captured_requests_have_a_typed_header_that_writes_the_same_fields() -> None:
    for exchange in exchanges():
        request = parse(exchange.request)
        kind = REQUEST_HEADERS.get(exchange.code)
        if kind is None:
            assert request.ext == {}, f"{exchange.name} has fields and no struct"
        else:
            assert to_ext(request.header(kind)) == request.ext, exchange.name


def test_captured_successes_have_a_typed_header_that_holds_every_field() -> None:
    for exchange in exchanges():
        kind = RESPONSE_HEADERS.get(exchange.code)
        if exchange.response is None or exchange.response_code not in (0, 19, 20, 21) or kind is None:
            continue
        response = parse(exchange.response)
        fields = {name: value for name, value in response.ext.items() if name != "MSG_REGION"}
        written = {name: value for name, value in to_ext(response.header(kind)).items() if name != "MSG_REGION"}
        assert written == fields, exchange.name


@pytest.mark.parametrize("serialize_type", [JSON, BINARY])
def test_captured_requests_encode_again_to_equal_values(serialize_type: int) -> None:
    for exchange in exchanges():
        request = parse(exchange.request)
        if serialize_type == BINARY and request.code > 0x7FFF:
            continue
        frame = encode_request(
            request.code,
            request.ext,
            request.body,
            opaque=request.opaque,
            is_oneway=request.is_oneway,
            remark=request.remark,
            serialize_type=serialize_type,
        )
        again = parse(frame)
        expected = without_empty(request.ext, again)
        assert (again.code, again.opaque, again.flag, again.remark, again.body) == (
            request.code,
            request.opaque,
            request.flag,
            request.remark,
            request.body,
        ), exchange.name
        assert again.ext == expected, exchange.name


def test_captured_responses_encode_again_to_equal_values() -> None:
    for exchange in exchanges():
        if exchange.response is None:
            continue
        request, response = parse(exchange.request), parse(exchange.response)
        again = parse(encode_response(request, response.code, response.ext, response.body, response.remark))
        assert again.serialize_type == request.serialize_type
        assert (again.code, again.opaque, again.flag, again.body) == (
            response.code,
            response.opaque,
            response.flag,
            response.body,
        ), exchange.name
        assert (again.remark or None) == (response.remark or None)
        assert again.ext == without_empty(response.ext, again)


REQUEST_BODIES: dict[int, type[Body]] = {
    RequestCode.HEART_BEAT: bodies.HeartbeatData,
    RequestCode.LOCK_BATCH_MQ: bodies.LockBatchBody,
    RequestCode.UNLOCK_BATCH_MQ: bodies.LockBatchBody,
    RequestCode.CHECK_CLIENT_CONFIG: bodies.CheckClientBody,
    RequestCode.REGISTER_BROKER: bodies.RegisterBrokerBody,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: admin.SubscriptionGroupConfig,
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: unserved.SubscriptionGroupList,
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: admin.TopicConfigList,
    RequestCode.SET_MESSAGE_REQUEST_MODE: unserved.MessageRequestMode,
    RequestCode.QUERY_ASSIGNMENT: unserved.QueryAssignment,
    RequestCode.AUTH_CREATE_USER: unserved.UserInfo,
}
RESPONSE_BODIES: dict[int, type[Body]] = {
    RequestCode.GET_ROUTEINFO_BY_TOPIC: bodies.TopicRouteData,
    RequestCode.GET_BROKER_CLUSTER_INFO: bodies.ClusterInfo,
    RequestCode.REGISTER_BROKER: bodies.KVTable,
    RequestCode.GET_KVLIST_BY_NAMESPACE: bodies.KVTable,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: bodies.TopicList,
    RequestCode.GET_TOPICS_BY_CLUSTER: bodies.TopicList,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: bodies.TopicList,
    RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: bodies.TopicList,
    RequestCode.QUERY_TOPICS_BY_CONSUMER: bodies.TopicList,
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: bodies.ConsumerList,
    RequestCode.LOCK_BATCH_MQ: bodies.LockedQueues,
    RequestCode.GET_ALL_TOPIC_CONFIG: bodies.TopicConfigWrapper,
    RequestCode.GET_TOPIC_CONFIG: bodies.TopicConfig,
    RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: admin.SubscriptionGroupWrapper,
    RequestCode.GET_CONSUMER_CONNECTION_LIST: admin.ConsumerConnection,
    RequestCode.GET_PRODUCER_CONNECTION_LIST: admin.ProducerConnection,
    RequestCode.GET_ALL_PRODUCER_INFO: admin.ProducerTable,
    RequestCode.VIEW_BROKER_STATS_DATA: admin.BrokerStatsData,
    RequestCode.GET_BROKER_HA_STATUS: admin.HaRuntimeInfo,
    RequestCode.QUERY_CONSUME_QUEUE: admin.ConsumeQueueUnits,
    RequestCode.QUERY_CONSUME_TIME_SPAN: admin.QueueTimeSpans,
    RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: admin.GroupList,
    RequestCode.QUERY_ASSIGNMENT: unserved.QueueAssignments,
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: admin.GroupForbidden,
    RequestCode.QUERY_SUBSCRIPTION_BY_CONSUMER: admin.SubscriptionOfGroup,
    RequestCode.GET_ALL_MESSAGE_REQUEST_MODE: unserved.MessageRequestModes,
    RequestCode.CONSUME_MESSAGE_DIRECTLY: admin.ConsumeMessageDirectlyResult,
    RequestCode.GET_TOPIC_STATS_INFO: admin.TopicStatsTable,
    RequestCode.GET_CONSUME_STATS: admin.ConsumeStats,
    RequestCode.GET_BROKER_CONSUME_STATS: admin.ConsumeStatsList,
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: admin.ResetOffsetBody,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: admin.ConsumerStatusBody,
    RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: admin.ConsumerStatusBody,
    RequestCode.GET_CONSUMER_RUNNING_INFO: admin.ConsumerRunningInfo,
}


def test_captured_json_bodies_are_written_again_with_equal_content() -> None:
    seen = set()
    for exchange in exchanges():
        for table, frame in ((REQUEST_BODIES, exchange.request), (RESPONSE_BODIES, exchange.response)):
            kind = table.get(exchange.code)
            body = parse(frame).body if frame else b""
            if kind is None or not body:
                continue
            value = decode_body(body, kind)
            assert loads_fastjson(encode_body(value)) == loads_fastjson(body), exchange.name
            seen.add(kind)
    assert len(seen) >= 38


def test_tables_with_queues_as_names_are_written_byte_for_byte_as_java_does() -> None:
    """Only the order of the queues is Java's hash order, which is kept here by reading and writing in one order."""
    count = 0
    for exchange in exchanges():
        body = parse(exchange.response).body if exchange.response else b""
        if not body:
            continue
        if exchange.code == RequestCode.GET_TOPIC_STATS_INFO:
            stats = decode_body(body, admin.TopicStatsTable)
            again = encode_body(admin.TopicStatsTable.of(stats.queues, put_tps=stats.topic_put_tps))
        elif exchange.code == RequestCode.GET_CONSUME_STATS:
            consumed = decode_body(body, admin.ConsumeStats)
            again = encode_body(admin.ConsumeStats.of(consumed.queues, consume_tps=consumed.consume_tps))
        elif exchange.code == RequestCode.INVOKE_BROKER_TO_RESET_OFFSET:
            again = encode_body(admin.ResetOffsetBody.of(decode_body(body, admin.ResetOffsetBody).offsets))
        elif exchange.code == RequestCode.INVOKE_BROKER_TO_GET_CONSUMER_STATUS:
            again = encode_body(
                admin.ConsumerStatusBody.of_clients(decode_body(body, admin.ConsumerStatusBody).clients)
            )
        elif exchange.code == RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT:
            again = encode_body(admin.ConsumerStatusBody.of(decode_body(body, admin.ConsumerStatusBody).offsets))
        else:
            continue
        assert again == body, exchange.name
        count += 1
    assert count >= 6


def test_routes_and_cluster_info_are_written_byte_for_byte_as_java_does() -> None:
    for exchange in exchanges():
        body = parse(exchange.response).body if exchange.response else b""
        if not body:
            continue
        if exchange.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            route = decode_body(body, bodies.TopicRouteData)
            assert bodies.encode_route(route, is_standard=True) == body
            assert b'"brokerAddrs":{0:"' in bodies.encode_route(route, is_standard=False)
        elif exchange.code == RequestCode.GET_BROKER_CLUSTER_INFO:
            assert bodies.encode_cluster_info(decode_body(body, bodies.ClusterInfo)) == body
