"""Routes, selectors, batches, subscriptions, names, settings: the pure parts."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Mapping
from dataclasses import fields
from typing import get_type_hints

import pytest

import contrailmq.aio as aio
from contrailmq.client import settings
from contrailmq.client.consuming import subscriber
from contrailmq.client.consuming.subscription import SqlFilter, make_subscription
from contrailmq.client.errors import ClientConfigError, NoNameServerError
from contrailmq.client.namespace import unwrap, wrap
from contrailmq.client.producing.batch import check_batch, item_bytes, pack_batch, split_batch
from contrailmq.client.producing.producer import broker_of_handle, create_reply
from contrailmq.client.producing.selectors import by_hash, by_machine_room
from contrailmq.client.transport.name_servers import HTTP_REFRESH_S, NameServers, parse_addresses
from contrailmq.client.transport.routes import (
    default_topic_route,
    parse_route,
    publish_queues,
    read_address,
    subscribe_queues,
)
from contrailmq.message import Message, MessageError, MessageQueue, decode_properties
from contrailmq.message.batch import split_batch as take_apart
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.errors import RemoteProtocolError
from contrailmq.wire.transport import RemotingClient

from .messages import received
from .waiting import MovedLoop

ROUTE = (
    b'{"brokerDatas":[{"brokerAddrs":{"1":"h:2"},"brokerName":"b","cluster":"c"},'
    b'{"brokerAddrs":{"1":"h:4","0":"h:3"},"brokerName":"a","cluster":"c"}],"filterServerTable":{},"queueDatas":['
    b'{"brokerName":"b","perm":6,"readQueueNums":1,"topicSysFlag":0,"writeQueueNums":1},'
    b'{"brokerName":"a","perm":6,"readQueueNums":3,"topicSysFlag":0,"writeQueueNums":2}]}'
)


def queue(broker: str, queue_id: int) -> MessageQueue:
    return MessageQueue("T", broker, queue_id)


# Routes.
def test_writing_needs_a_master_and_reading_does_not() -> None:
    route = parse_route(ROUTE)
    assert publish_queues("T", route) == [queue("a", 0), queue("a", 1)]
    assert subscribe_queues("T", route) == [queue("a", 0), queue("a", 1), queue("a", 2), queue("b", 0)]


@pytest.mark.parametrize(("permission", "writable", "readable"), [(6, 2, 3), (4, 0, 3), (2, 2, 0), (0, 0, 0)])
def test_permissions_decide_what_may_be_written_and_read(permission: int, writable: int, readable: int) -> None:
    route = parse_route(ROUTE.replace(b'"a","perm":6', b'"a","perm":%d' % permission))
    assert len(publish_queues("T", route)) == writable
    assert len([q for q in subscribe_queues("T", route) if q.broker_name == "a"]) == readable


def test_an_order_configuration_names_the_queues_exactly() -> None:
    route = parse_route(ROUTE[:-1] + b',"orderTopicConf":"b:1;a:1"}')
    assert publish_queues("T", route) == [queue("b", 0), queue("a", 0)]


def test_routes_are_equal_whatever_order_they_were_listed_in() -> None:
    mixed = ROUTE.replace(b'"1":"h:4","0":"h:3"', b'"0":"h:3","1":"h:4"')
    assert parse_route(mixed) == parse_route(ROUTE)


def test_java_leaves_broker_ids_bare() -> None:
    assert parse_route(ROUTE.replace(b'"0":', b"0:").replace(b'"1":', b"1:")) == parse_route(ROUTE)


def test_a_route_that_is_none_is_the_peers_error() -> None:
    with pytest.raises(RemoteProtocolError, match="TopicRouteData"):
        parse_route(b"[]")


def test_the_template_topics_route_is_cut_to_the_wanted_number_of_queues() -> None:
    cut = default_topic_route(parse_route(ROUTE), queues_max=2)
    assert publish_queues("T", cut) == [queue("a", 0), queue("a", 1)]


@pytest.mark.parametrize(
    ("addresses", "suggested", "expected"),
    [
        ({0: "m", 1: "s"}, 0, ("m", 0)),
        ({0: "m", 1: "s"}, 1, ("s", 1)),
        ({0: "m", 2: "s"}, 1, ("s", 2)),
        ({1: "s"}, 0, ("s", 1)),
        ({0: "m"}, 3, ("m", 0)),
        ({}, 0, None),
    ],
)
def test_reading_falls_back_to_another_replica(
    addresses: Mapping[int, str], suggested: int, expected: tuple[str, int] | None
) -> None:
    assert read_address(addresses, suggested) == expected


# Selectors.
@pytest.mark.parametrize(("arg", "index"), [("TagA", 2598919 % 4), (7, 3), (-7, 3), ("polygenelubricants", 0)])
def test_hash_selection_equals_javas(arg: object, index: int) -> None:
    queues = [queue("a", i) for i in range(4)]
    assert by_hash(queues, Message("T", b"x"), arg) == queues[index]


def test_machine_room_selection_stays_in_the_room() -> None:
    queues = [queue("r1@a", 0), queue("r2@b", 0)]
    assert by_machine_room(["r2"])(queues, Message("T", b"x"), 5) == queues[1]
    with pytest.raises(ClientConfigError, match="rooms"):
        by_machine_room(["r3"])(queues, Message("T", b"x"), 5)


# Batches.
def test_a_batch_is_length_prefixed_items_with_a_unique_id_each() -> None:
    messages = [Message("T", b"one", tags="a"), Message("T", b"three", flag=7)]
    body, ids = pack_batch(messages)
    position, seen = 0, []
    while position < len(body):
        total, magic, crc, flag, length = struct.unpack_from(">iiiii", body, position)
        start = position + 20
        (properties_length,) = struct.unpack_from(">h", body, start + length)
        properties = decode_properties(body[start + length + 2 : start + length + 2 + properties_length])
        assert (magic, crc) == (0, 0)
        assert total == 22 + length + properties_length
        seen.append((body[start : start + length], flag, properties["UNIQ_KEY"]))
        position += total
    assert seen == [(b"one", 0, ids[0]), (b"three", 7, ids[1])]
    assert ids[0] != ids[1]


def test_each_message_of_a_batch_keeps_its_own_properties() -> None:
    """Equal ones are encoded once: also when they come back after others, or hold a unique id of their own."""
    messages = [
        Message("T", b"x", tags="a"),
        Message("T", b"x", tags="a"),
        Message("T", b"x", tags="b", keys=["k"]),
        Message("T", b"x", tags="a"),
        Message("T", b"x"),
    ]
    messages[3].properties["UNIQ_KEY"] = "MINE"
    body, ids = pack_batch(messages, namespace="n")
    found = [decode_properties(part.properties) for part in take_apart(body)]
    wanted = [
        {**message.properties, "INSTANCE_ID": "n", "UNIQ_KEY": one} for message, one in zip(messages, ids, strict=True)
    ]
    assert found == wanted
    assert ids[3] == "MINE"
    assert len(set(ids)) == 5


def test_sending_the_same_object_twice_gives_two_ids_and_leaves_it_untouched() -> None:
    message = Message("T", b"x")
    _, first = pack_batch([message])
    _, second = pack_batch([message])
    assert first != second
    assert "UNIQ_KEY" not in message.properties


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "at least one"),
        ([Message("T", b"x"), Message("U", b"x")], "topic"),
        ([Message("T", b"x", delay_level=1)], "delayed"),
        ([Message("T", b"x", delay=1.0)], "delayed"),
        ([Message("T", b"x"), Message("T", b"x", wait_store_ok=False)], "wait_store_ok"),
        ([Message("%RETRY%g", b"x")], "retry topic"),
    ],
)
def test_batches_that_brokers_would_refuse_are_refused_here(messages: list[Message], reason: str) -> None:
    with pytest.raises(MessageError, match=reason):
        check_batch(messages)


def test_the_splitter_keeps_order_and_the_limit() -> None:
    messages = [Message("T", b"x" * size) for size in (100, 200, 300, 50, 400)]
    limit = 600
    batches = list(split_batch(messages, max_bytes=limit))
    assert [m for batch in batches for m in batch] == messages
    assert all(len(pack_batch(batch)[0]) <= limit for batch in batches)
    with pytest.raises(MessageError, match="alone"):
        list(split_batch([Message("T", b"x" * 1000)], max_bytes=limit))


def test_a_message_is_never_larger_in_a_batch_than_foretold() -> None:
    message = Message("T", b"x" * 10, tags="t", keys=["k"])
    assert len(pack_batch([message])[0]) <= item_bytes(message)


# Subscriptions.
@pytest.mark.parametrize("text", ["*", "", None, " * "])
def test_all_is_written_in_many_ways(text: str | None) -> None:
    subscription = make_subscription("T", text, version=1)
    assert subscription.expression == "*"
    assert subscription.wants(None)


def test_tags_are_split_trimmed_and_hashed_as_java_does() -> None:
    body = make_subscription("T", " TagA|| TagB ||", version=3).as_body()
    assert body.tags_set == ["TagA", "TagB"]
    assert body.code_set == [2598919, 2598920]
    assert body.sub_version == 3


def test_a_tag_with_the_same_hash_is_not_wanted() -> None:
    """`Aa` and `BB` have one Java hash: brokers let both pass, the client looks again."""
    subscription = make_subscription("T", "Aa", version=1)
    assert subscription.wants("Aa")
    assert not subscription.wants("BB")


def test_an_sql_filter_is_sent_as_written() -> None:
    body = make_subscription("T", SqlFilter("a > 1"), version=1).as_body()
    assert (body.expression_type, body.sub_string, body.tags_set) == ("SQL92", "a > 1", [])
    with pytest.raises(ClientConfigError, match="expression"):
        SqlFilter(" ")


@pytest.mark.parametrize("wanted", ["a || b\ud800", SqlFilter("a = '\udfff'")], ids=["tags", "sql"])
def test_half_a_character_in_a_subscription_is_refused_before_a_heartbeat_breaks_on_it(wanted: str | SqlFilter) -> None:
    with pytest.raises(ClientConfigError, match="topic 'T' holds .* half of a character, which UTF-8 cannot encode"):
        make_subscription("T", wanted, version=1)


# Names.
@pytest.mark.parametrize(
    ("name", "wrapped"),
    [
        ("shop", "ns%shop"),
        ("ns%shop", "ns%shop"),
        ("%RETRY%g", "%RETRY%ns%g"),
        ("%DLQ%g", "%DLQ%ns%g"),
        ("TBW102", "TBW102"),
        ("rmq_sys_x", "rmq_sys_x"),
        ("CID_RMQ_SYS_TRANS", "CID_RMQ_SYS_TRANS"),
    ],
)
def test_namespaces_wrap_once_and_unwrap(name: str, wrapped: str) -> None:
    assert wrap("ns", name) == wrapped
    assert unwrap("ns", wrapped) == name.replace("ns%", "")
    assert wrap("", name) == name


@pytest.mark.parametrize(
    ("text", "addresses"),
    [
        ("h:1;i:2", ["h:1", "i:2"]),
        (" h:1 , i:2 ;", ["h:1", "i:2"]),
        ("http://h:1", ["h:1"]),
        ("h", ["h:9876"]),
        ("", []),
    ],
)
def test_name_server_lists_are_read_tolerantly(text: str, addresses: list[str]) -> None:
    assert parse_addresses(text) == addresses


def test_a_missing_name_server_is_an_error_that_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NAMESRV_ADDR", raising=False)
    with pytest.raises(NoNameServerError, match="NAMESRV_ADDR"):
        NameServers(RemotingClient(), None)
    monkeypatch.setenv("NAMESRV_ADDR", "h:1")
    assert NameServers(RemotingClient(), None).addresses == ["h:1"]
    assert NameServers(RemotingClient(), "arg:2").addresses == ["arg:2"]


def test_the_list_of_name_servers_can_come_from_a_web_address() -> None:
    async def work() -> None:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.0 200 OK\r\nContent-Length: 19\r\n\r\n127.0.0.1:1;other:2")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        remoting = RemotingClient(connect_timeout_s=5.0)
        servers = NameServers(remoting, f"http://127.0.0.1:{port}/rocketmq/nsaddr")
        with pytest.raises(NoNameServerError, match="none of the NameServers"):
            await servers.invoke(RequestCode.GET_BROKER_CLUSTER_INFO, {}, timeout_s=5.0)
        assert sorted(servers.addresses) == ["127.0.0.1:1", "other:2"]
        server.close()
        gone = NameServers(remoting, f"http://127.0.0.1:{port}/rocketmq/nsaddr")
        with pytest.raises(NoNameServerError, match="cannot be read"):
            await gone.invoke(RequestCode.GET_BROKER_CLUSTER_INFO, {}, timeout_s=5.0)
        await remoting.close()

    asyncio.run(work())


@pytest.mark.parametrize(
    "answer",
    [
        b"no HTTP at all\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.0 200 OK\r\nContent-Length: 24\r\n\r\n<html>Please log in</html",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n\xff\xfe",
        b"HTTP/1.0 503 Busy\r\n\r\n",
        b"",
    ],
)
def test_a_web_address_that_answers_no_list_is_an_error_and_does_not_replace_a_list(answer: bytes) -> None:
    good = b"HTTP/1.0 200 OK\r\nContent-Length: 11\r\n\r\n127.0.0.1:1"

    async def work() -> None:
        asked, page = 0, answer

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal asked
            asked += 1
            await reader.readuntil(b"\r\n\r\n")
            writer.write(page)
            await writer.drain()
            writer.close()

        async def ask(match: str) -> None:
            with pytest.raises(NoNameServerError, match=match):
                await servers.invoke(RequestCode.GET_BROKER_CLUSTER_INFO, {}, timeout_s=5.0)

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        remoting = RemotingClient(connect_timeout_s=5.0)
        port = server.sockets[0].getsockname()[1]
        servers = NameServers(remoting, f"http://127.0.0.1:{port}/rocketmq/nsaddr")
        await ask("cannot be read")
        page = good
        await ask("none of the NameServers")
        page, asked = answer, 0
        loop = asyncio.get_running_loop()
        assert isinstance(loop, MovedLoop)
        loop.now_s += HTTP_REFRESH_S + 1
        for _ in range(3):
            await ask("none of the NameServers")
        assert (servers.addresses, asked) == (["127.0.0.1:1"], 1)  # and one failure is not waited for by every call
        server.close()
        await remoting.close()

    with asyncio.Runner(loop_factory=MovedLoop) as runner:
        runner.run(work())


def test_a_newer_subscription_has_a_higher_version_though_the_clock_was_set_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    times = iter([5_000, 4_000, 4_000, 9_000])
    monkeypatch.setattr(subscriber, "now_ms", lambda: next(times))
    consumer = aio.PushConsumer("g", namesrv="127.0.0.1:1")
    versions = []
    for tags in ("a", "b", "c", "d"):
        consumer.subscribe("T", tags)
        versions.append(consumer.subscriptions["T"].version)
    assert versions == [5_000, 5_001, 5_002, 9_000]


# Settings.
@pytest.mark.parametrize(
    ("typed", "options"),
    [
        (settings.ClientSettings, settings.ClientOptions),
        (settings.ProducerSettings, settings.ProducerOptions),
        (settings.ConsumerSettings, settings.ConsumerOptions),
        (settings.PushConsumerSettings, settings.PushConsumerOptions),
        (settings.LitePullConsumerSettings, settings.LitePullConsumerOptions),
    ],
)
def test_keyword_arguments_and_options_list_the_same_settings(
    typed: type, options: type[settings.ClientOptions]
) -> None:
    assert set(get_type_hints(typed)) == {item.name for item in fields(options)} - {"namesrv"}


@pytest.mark.parametrize(
    "build",
    [
        lambda: settings.PushConsumerOptions(consume_threads=0),
        lambda: settings.PushConsumerOptions(consume_batch_size=1025),
        lambda: settings.PushConsumerOptions(pull_batch_size=0),
        lambda: settings.PushConsumerOptions(max_span=65536),
        lambda: settings.LitePullConsumerOptions(auto_commit_interval_s=0.5),
        lambda: settings.LitePullConsumerOptions(topic_metadata_interval_s=0),
        lambda: settings.PushConsumerOptions(consume_timeout_s=0),
        lambda: settings.PushConsumerOptions(shutdown_wait_s=-1),
        lambda: settings.PushConsumerOptions(rebalance_interval_s=0),
        lambda: settings.PushConsumerOptions(persist_offsets_interval_s=0),
        lambda: settings.PushConsumerOptions(pull_retry_delay_s=-1),
        lambda: settings.PushConsumerOptions(consume_timestamp_ms=-1),
        lambda: settings.ProducerOptions(retry_times=-1),
        lambda: settings.ProducerOptions(max_message_bytes=0),
        lambda: settings.ProducerOptions(compress_over_bytes=-1),
    ],
)
def test_settings_outside_their_range_are_refused_with_the_range(build: type) -> None:
    with pytest.raises(ClientConfigError, match="must be from"):
        build()


def test_client_ids_are_unique_unless_a_name_is_given() -> None:
    options = settings.ClientOptions(client_ip="1.2.3.4")
    assert options.client_id() != options.client_id()
    assert options.client_id(keep_default_name=True) == "1.2.3.4@DEFAULT"
    named = settings.ClientOptions(client_ip="1.2.3.4", instance_name="x", unit_name="u")
    assert named.client_id() == "1.2.3.4@x@u"


# Requests and recalls.
def test_a_reply_goes_back_to_the_requester() -> None:
    request = received(properties={"CORRELATION_ID": "c", "REPLY_TO_CLIENT": "me", "TTL": "9", "CLUSTER": "Cl"})
    reply = create_reply(request, b"r")
    assert reply.topic == "Cl_REPLY_TOPIC"
    wanted = {"CORRELATION_ID": "c", "REPLY_TO_CLIENT": "me", "TTL": "9", "MSG_TYPE": "reply"}
    assert wanted.items() <= reply.properties.items()


def test_only_requests_can_be_replied_to() -> None:
    with pytest.raises(Exception, match="is not a request"):
        create_reply(received(), b"r")


def test_a_recall_handle_names_its_broker() -> None:
    assert broker_of_handle("djEgVG9waWMgYnJva2VyLWEgMTcwMCBBQkM=") == "broker-a"
    for broken in ("%%%", "djI="):
        with pytest.raises(Exception, match="recall handle"):
            broker_of_handle(broken)
