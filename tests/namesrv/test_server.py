"""The NameServer over sockets: what depends on connections, time and settings."""

from __future__ import annotations

import asyncio
import logging
import time
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from contrailmq.cli import app
from contrailmq.namesrv import NameServer, NamesrvConfig
from contrailmq.wire.bodies import (
    DataVersion,
    KVTable,
    QueueData,
    RegisterBrokerBody,
    TopicConfig,
    TopicConfigWrapper,
    TopicRouteData,
    decode_body,
    encode_body,
)
from contrailmq.wire.codes import RequestCode as Code
from contrailmq.wire.frame import FrameParser, encode_request
from contrailmq.wire.header import Command
from contrailmq.wire.properties import parse_properties
from contrailmq.wire.transport import Connection, RemotingClient

IDENTITY = {"brokerName": "a", "brokerAddr": "a:1", "clusterName": "c", "brokerId": "0"}


class Clock:
    now_ms = 1_000_000

    def __call__(self) -> int:
        return self.now_ms


@asynccontextmanager
async def running(
    home: Path, clock: Callable[[], int] | None = None, **settings: object
) -> AsyncIterator[tuple[NameServer, Callable[..., Awaitable[Command]], RemotingClient]]:
    config = NamesrvConfig(bind_address="127.0.0.1", listen_port=0, rocketmq_home=str(home), **settings)  # type: ignore[arg-type]
    server = NameServer(config, clock_ms=clock) if clock else NameServer(config)
    await server.start()
    client = RemotingClient()

    async def ask(code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Command:
        return await client.invoke(server.address, code, ext or {}, body)

    try:
        yield server, ask, client
    finally:
        await client.close()
        await server.stop()


def registration(*topics: str, counter: int = 1) -> bytes:
    table = {topic: TopicConfig(topic_name=topic, read_queue_nums=4, write_queue_nums=4) for topic in topics}
    wrapper = TopicConfigWrapper(data_version=DataVersion(counter=counter), topic_config_table=table)
    return encode_body(RegisterBrokerBody(topic_config_serialize_wrapper=wrapper))


def ext(broker_id: int = 0, address: str = "a:1", **more: str) -> dict[str, str]:
    return {**IDENTITY, "brokerId": str(broker_id), "brokerAddr": address, "haServerAddr": f"{address}:ha", **more}


@pytest.mark.parametrize("jump_s", [3600, -3600])
def test_a_wall_clock_that_is_set_forgets_no_broker_and_keeps_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jump_s: int
) -> None:
    """Only the wall clock jumps; then the time passes after which a silent broker is forgotten."""

    async def main() -> None:
        async with running(tmp_path) as (server, ask, _client):
            answer = await ask(Code.REGISTER_BROKER, ext(heartbeatTimeoutMillis="120000"), registration("T", "U"))
            assert answer.code == 0, answer.remark
            wall_ns, monotonic_ns = time.time_ns, time.monotonic_ns
            monkeypatch.setattr(time, "time_ns", lambda: wall_ns() + jump_s * 1_000_000_000)
            server.scan()
            assert [key.address for key in server.tables.live] == ["a:1"]
            monkeypatch.setattr(time, "monotonic_ns", lambda: monotonic_ns() + 121 * 1_000_000_000)
            server.scan()
            assert not server.tables.live

    asyncio.run(asyncio.wait_for(main(), 120))


def test_a_broker_whose_connection_closes_is_forgotten_at_once(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (server, ask, _client):
            other = RemotingClient()
            await other.invoke(server.address, Code.REGISTER_BROKER, ext(), registration("T", "U"))
            assert (await ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})).code == 0
            [connection] = list(server.tables.live.values())
            closed = asyncio.Event()
            broker_connection = connection.connection
            assert isinstance(broker_connection, Connection)
            broker_connection.on_close.append(lambda _connection: closed.set())
            await other.close()
            await closed.wait()
            assert (await ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})).code == 17

    asyncio.run(asyncio.wait_for(main(), 120))


def test_a_silent_broker_is_forgotten_and_its_connection_closed(tmp_path: Path) -> None:
    async def main() -> None:
        clock = Clock()
        async with running(tmp_path, clock) as (server, ask, _client):
            other = RemotingClient()
            broker = await other.connect(server.address)
            closed = asyncio.Event()
            broker.on_close.append(lambda _connection: closed.set())
            await broker.invoke(Code.REGISTER_BROKER, ext(heartbeatTimeoutMillis="5000"), registration("T", "U"))
            clock.now_ms += 4000
            await broker.invoke(Code.BROKER_HEARTBEAT, IDENTITY)
            clock.now_ms += 5000
            server.scan()
            assert (await ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})).code == 0
            clock.now_ms += 1
            server.scan()
            await closed.wait()
            assert (await ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})).code == 17
            await other.close()

    asyncio.run(asyncio.wait_for(main(), 120))


def test_brokers_that_come_and_go_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        clock = Clock()
        async with running(tmp_path, clock) as (server, ask, _client):
            for _ in range(2):
                await ask(Code.REGISTER_BROKER, ext(heartbeatTimeoutMillis="5000"), registration("T", "U"))
            await ask(Code.UNREGISTER_BROKER, IDENTITY)
            await ask(Code.REGISTER_BROKER, ext(heartbeatTimeoutMillis="5000"), registration("T", "U"))
            clock.now_ms += 5001
            server.scan()

    caplog.set_level(logging.INFO)
    asyncio.run(asyncio.wait_for(main(), 120))
    name, address = IDENTITY["brokerName"], IDENTITY["brokerAddr"]
    came = f"broker {name} (id 0) of cluster {IDENTITY['clusterName']} registered at {address}, with 2 topics"
    went = f"broker {name} of cluster {IDENTITY['clusterName']} at {address} is forgotten: "
    assert [line for line in caplog.messages if line.startswith("broker ")] == [
        came,
        went + "it said goodbye",
        came,
        went + "it was silent for its heartbeat timeout",
    ]


def test_a_question_about_the_data_version_counts_as_a_heartbeat(tmp_path: Path) -> None:
    """Also with another version: brokers of RocketMQ's send nothing else between two registrations."""

    async def main() -> None:
        clock = Clock()
        async with running(tmp_path, clock) as (server, ask, _client):
            first = await ask(Code.QUERY_DATA_VERSION, IDENTITY, encode_body(DataVersion(counter=1)))
            assert (first.ext["changed"], first.body) == ("true", b"")
            await ask(Code.REGISTER_BROKER, ext(), registration("T", "U"))
            clock.now_ms += 100_000
            same = await ask(Code.QUERY_DATA_VERSION, IDENTITY, encode_body(DataVersion(counter=1)))
            assert same.ext["changed"] == "false"
            assert decode_body(same.body, DataVersion) == DataVersion(counter=1)
            clock.now_ms += 100_000
            changed = await ask(Code.QUERY_DATA_VERSION, IDENTITY, encode_body(DataVersion(counter=2)))
            assert changed.ext["changed"] == "true"
            clock.now_ms += 100_000
            server.scan()
            assert (await ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})).code == 0

    asyncio.run(asyncio.wait_for(main(), 120))


def test_a_registration_with_a_wrong_crc_or_an_unreadable_body_is_refused_with_a_reason(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (_server, ask, _client):
            body = registration("T", "U")
            wrong = await ask(Code.REGISTER_BROKER, ext(bodyCrc32="5"), body)
            assert wrong.code == 1
            assert "crc32 not match" in str(wrong.remark)
            crc = str(zlib.crc32(body) & 0x7FFFFFFF)
            assert (await ask(Code.REGISTER_BROKER, ext(bodyCrc32=crc), body)).code == 0
            unreadable = await ask(Code.REGISTER_BROKER, ext(), b"nonsense")
            assert unreadable.code == 1
            first = await ask(Code.REGISTER_BROKER, ext(address="new:1", brokerName="new"), registration("One"))
            assert (first.code, str(first.remark)[:22]) == (1, "register broker failed")

    asyncio.run(asyncio.wait_for(main(), 120))


def test_registrations_are_entered_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    """A large one is decoded in a worker thread; a small one that comes after it must not be overtaken by it."""

    async def main() -> None:
        async with running(tmp_path) as (server, ask, _client):
            large = registration(*(f"Topic-{number}" for number in range(2000)), counter=1)
            assert len(large) > 64 * 1024
            changed = TopicConfig(topic_name="Topic-7", read_queue_nums=9, write_queue_nums=9)
            wrapper = TopicConfigWrapper(data_version=DataVersion(counter=2), topic_config_table={"Topic-7": changed})
            small = encode_body(RegisterBrokerBody(topic_config_serialize_wrapper=wrapper))
            answers = await asyncio.gather(
                ask(Code.REGISTER_BROKER, ext(), large),
                ask(Code.REGISTER_BROKER, ext(), small),
            )
            assert [answer.code for answer in answers] == [0, 0]
            assert len(server.tables.topics) == 2000
            assert server.tables.queues["a"]["Topic-7"].read_queue_nums == 9

    asyncio.run(asyncio.wait_for(main(), 120))


class Staying:
    """A connection that keeps what it is answered."""

    is_open = True
    address = "10.0.0.1:4711"

    def __init__(self) -> None:
        self.answers: list[bytes] = []

    def reply(self, data: bytes) -> None:
        self.answers.append(data)


def test_a_large_registration_is_seen_whole_or_not_at_all_and_the_loop_turns_meanwhile(tmp_path: Path) -> None:
    """100,000 topics. Every turn of the loop while they are read looks at the tables: none of them, or all."""

    async def main() -> None:
        server, connection = NameServer(NamesrvConfig(rocketmq_home=str(tmp_path))), Staying()
        large = registration(*(f"T{number}" for number in range(100_000)))
        [request] = FrameParser().feed(encode_request(Code.REGISTER_BROKER, ext(), large, opaque=1))
        server.handle(connection, [request])  # type: ignore[arg-type]
        seen: list[int] = []
        while not connection.answers:
            seen.append(len(server.tables.queues.get("a", ())))
            await asyncio.sleep(0)
        [answer] = FrameParser().feed(connection.answers[0])
        assert answer.code == 0
        assert set(seen) <= {0, 100_000}
        assert len(seen) > 200  # there are 391 slices; one call for all would leave the loop a turn or two
        assert len(server.tables.topics) == 100_000
        assert server.tables.route("T99999") is not None

    asyncio.run(asyncio.wait_for(main(), 120))


class Leaving:
    """A connection that ends while its request is served."""

    is_open = True
    address = "10.0.0.1:4711"

    def reply(self, data: bytes) -> None:
        assert not self.is_open


def test_a_broker_that_leaves_while_its_registration_is_read_is_not_entered(tmp_path: Path) -> None:
    async def main() -> None:
        server = NameServer(NamesrvConfig(rocketmq_home=str(tmp_path)))
        connection = Leaving()
        large = registration(*(f"Topic-{number}" for number in range(2000)))
        [request] = FrameParser().feed(encode_request(Code.REGISTER_BROKER, ext(), large, opaque=1))
        server.handle(connection, [request])  # type: ignore[arg-type]
        connection.is_open = False
        await asyncio.wait(server._tasks)
        assert not server.tables.live
        assert not server.tables.topics

    asyncio.run(asyncio.wait_for(main(), 120))


def test_routes_wait_when_the_server_must_be_ready_first(tmp_path: Path) -> None:
    async def main() -> None:
        clock = Clock()
        async with running(tmp_path, clock, need_wait_for_service=True) as (_server, ask, _client):
            await ask(Code.REGISTER_BROKER, ext(), registration("T", "U"))
            early = await ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
            assert (early.code, early.remark) == (1, "name server not ready")
            clock.now_ms += 45_000
            assert (await ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})).code == 0

    asyncio.run(asyncio.wait_for(main(), 120))


def test_order_settings_reach_routes_and_brokers_and_survive_a_restart(tmp_path: Path) -> None:
    async def main() -> None:
        put = {"namespace": "ORDER_TOPIC_CONFIG", "key": "T", "value": "a:4"}
        async with running(tmp_path, order_message_enable=True) as (_server, ask, _client):
            registered = await ask(Code.REGISTER_BROKER, ext(), registration("T", "U"))
            assert registered.body == b""
            assert b"orderTopicConf" not in (await ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})).body
            assert (await ask(Code.PUT_KV_CONFIG, put)).code == 0
            route = decode_body((await ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})).body, TopicRouteData)
            assert route.order_topic_conf == "a:4"
            registered = await ask(Code.REGISTER_BROKER, ext(), registration("T", "U"))
            assert decode_body(registered.body, KVTable).table == {"T": "a:4"}
        async with running(tmp_path) as (_server, ask, _client):
            assert (await ask(Code.GET_KV_CONFIG, put)).ext == {"value": "a:4"}
            assert (await ask(Code.DELETE_KV_CONFIG, put)).code == 0
            assert (await ask(Code.GET_KV_CONFIG, put)).code == 22
            assert (await ask(Code.GET_KVLIST_BY_NAMESPACE, {"namespace": "none"})).code == 22

    asyncio.run(asyncio.wait_for(main(), 120))


def test_settings_are_changed_saved_and_shown_except_those_on_the_black_list(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (server, ask, _client):
            changed = await ask(Code.UPDATE_NAMESRV_CONFIG, {}, b"orderMessageEnable=true\nunheardOf=1\n")
            assert changed.code == 0
            assert server.config.order_message_enable
            shown = parse_properties((await ask(Code.GET_NAMESRV_CONFIG)).body.decode())
            assert shown["orderMessageEnable"] == "true"
            saved = parse_properties((tmp_path / "namesrv" / "namesrv.properties").read_text())
            assert saved["orderMessageEnable"] == "true"
            wrong = await ask(Code.UPDATE_NAMESRV_CONFIG, {}, b"waitSecondsForService=many")
            assert (wrong.code, str(wrong.remark)[:29]) == (1, "setting waitSecondsForService")

    asyncio.run(asyncio.wait_for(main(), 120))


def test_topic_lists_can_be_switched_off(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, enable_all_topic_list=False, enable_topic_list=False) as (_server, ask, _client):
            for code in (206, 311, 312, 313):
                answer = await ask(code)
                assert (answer.code, answer.remark) == (1, "disable")
            assert (await ask(Code.GET_TOPICS_BY_CLUSTER, {"cluster": "c"})).code == 1
            assert (await ask(Code.GET_SYSTEM_TOPIC_LIST_FROM_NS)).code == 0

    asyncio.run(asyncio.wait_for(main(), 120))


def test_old_requesters_get_bare_broker_ids_and_those_who_ask_standard_json(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (server, ask, _client):
            await ask(Code.REGISTER_BROKER, ext(), registration("T", "U"))
            answers: list[bytes] = []

            class Asker:
                def reply(self, data: bytes) -> None:
                    answers.append(data)

            [old] = FrameParser().feed(encode_request(105, {"topic": "T"}, opaque=1))
            old.version = 317
            [asking] = FrameParser().feed(
                encode_request(105, {"topic": "T", "acceptStandardJsonOnly": "true"}, opaque=1)
            )
            asking.version = 317
            server.handle(Asker(), [old, asking, old])  # type: ignore[arg-type]
            assert b'{0:"a:1"}' in answers[0]
            assert b'{"0":"a:1"}' in answers[1]
            assert answers[2] == answers[0]

    asyncio.run(asyncio.wait_for(main(), 120))


def test_zones_show_their_own_brokers_only(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (_server, ask, _client):
            await ask(Code.REGISTER_BROKER, ext(__ZONE_NAME="z1"), registration("T", "U"))
            await ask(
                Code.REGISTER_BROKER, ext(address="b:1", brokerName="b", __ZONE_NAME="z2"), registration("T", "U")
            )
            zone = {"topic": "T", "__ZONE_MODE": "true", "__ZONE_NAME": "z2"}
            route = decode_body((await ask(Code.GET_ROUTEINFO_BY_TOPIC, zone)).body, TopicRouteData)
            assert [data.broker_name for data in route.broker_datas] == ["b"]
            assert [queues.broker_name for queues in route.queue_datas] == ["b"]
            both = decode_body((await ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})).body, TopicRouteData)
            assert len(both.broker_datas) == 2

    asyncio.run(asyncio.wait_for(main(), 120))


def test_topics_are_registered_and_deleted_by_tools(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (_server, ask, _client):
            await ask(Code.REGISTER_BROKER, ext(), registration("T", "U"))
            route = TopicRouteData(queue_datas=[QueueData(broker_name="a", read_queue_nums=2, write_queue_nums=2)])
            await ask(Code.REGISTER_TOPIC_IN_NAMESRV, {"topic": "N"}, encode_body(route))
            assert (await ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "N"})).code == 0
            await ask(Code.DELETE_TOPIC_IN_NAMESRV, {"topic": "N"})
            assert (await ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "N"})).code == 17
            group = await ask(Code.GET_BROKER_MEMBER_GROUP, {"clusterName": "c", "brokerName": "a"})
            assert group.body == b'{"brokerMemberGroup":{"brokerAddrs":{"0":"a:1"},"brokerName":"a","cluster":"c"}}'

    asyncio.run(asyncio.wait_for(main(), 120))


def test_brokers_are_told_when_the_smallest_id_of_their_group_changes(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, notify_min_broker_id_changed=True) as (server, _ask, _client):
            told: asyncio.Queue[Command] = asyncio.Queue()
            slave, master = RemotingClient(), RemotingClient()
            slave.register(Code.NOTIFY_MIN_BROKER_ID_CHANGE, lambda _connection, command: told.put_nowait(command))
            slave_ext = ext(1, "s:1", enableActingMaster="true")
            await slave.invoke(server.address, Code.REGISTER_BROKER, slave_ext, registration("T", "U"))
            master_ext = ext(0, enableActingMaster="true")
            await master.invoke(server.address, Code.REGISTER_BROKER, master_ext, registration("T", "U"))
            assert (await told.get()).ext == {
                "minBrokerId": "0",
                "brokerName": "a",
                "minBrokerAddr": "a:1",
                "haBrokerAddr": "a:1:ha",
            }
            await master.close()
            gone = await told.get()
            assert (gone.ext["minBrokerId"], gone.ext["offlineBrokerAddr"]) == ("1", "a:1")
            await slave.close()

    asyncio.run(asyncio.wait_for(main(), 120))


def test_the_command_prints_its_settings_and_names_wrong_keys(tmp_path: Path) -> None:
    file = tmp_path / "namesrv.conf"
    file.write_text("listenPort=19999\nlistenPrt=1\n")
    result = CliRunner().invoke(app, ["namesrv", "-c", str(file), "-p", "--set", "orderMessageEnable=true"])
    assert result.exit_code == 0
    assert "listenPort=19999\n" in result.output
    assert "orderMessageEnable=true\n" in result.output
    assert "did you mean listenPort?" in result.output
    missing = CliRunner().invoke(app, ["namesrv", "-c", str(tmp_path / "nowhere")])
    assert missing.exit_code == 1
    assert "cannot be read" in missing.output


@pytest.mark.parametrize("host", ["0.0.0.0", "127.0.0.1"])
def test_the_address_can_be_dialled(host: str, tmp_path: Path) -> None:
    async def main() -> None:
        server = NameServer(NamesrvConfig(bind_address=host, listen_port=0, rocketmq_home=str(tmp_path)))
        await server.start()
        client = RemotingClient()
        assert (await client.invoke(server.address, 206)).code == 0
        assert server.connection_count == 1
        await client.close()
        await server.stop()

    asyncio.run(asyncio.wait_for(main(), 120))
