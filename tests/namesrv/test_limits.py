"""What a NameServer holds in memory is bounded, what it answered is saved, and stopping has an end."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from contrailmq.namesrv import NameServer, NamesrvConfig, kv_config
from contrailmq.namesrv import server as server_module
from contrailmq.namesrv.kv_config import KvConfig, KvConfigError, load, save
from contrailmq.wire.codes import RequestCode as Code
from contrailmq.wire.frame import FrameParser, encode_request
from contrailmq.wire.header import Command
from contrailmq.wire.transport import RemotingClient
from waiting_for import until_async

from .test_server import Leaving, Staying, ext, registration, running

WAIT_S = 120.0


class Gate:
    """Stands before a blocking function: counts its calls and holds them until it is opened."""

    def __init__(self, function: Callable[..., object]) -> None:
        self._function = function
        self.calls: list[tuple[object, ...]] = []
        self.entered = threading.Event()
        self.opened = threading.Event()

    def __call__(self, *arguments: object) -> object:
        self.calls.append(arguments)
        self.entered.set()
        assert self.opened.wait(WAIT_S)
        return self._function(*arguments)


@pytest.fixture
def saving(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate(kv_config.save)
    monkeypatch.setattr(kv_config, "save", gate)
    return gate


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Gate:
    gate = Gate(server_module._read_registration)
    monkeypatch.setattr(server_module, "_read_registration", gate)
    return gate


def run(main: Callable[[], object]) -> None:
    asyncio.run(asyncio.wait_for(main(), WAIT_S))  # type: ignore[arg-type]


def put(number: int) -> bytes:
    return encode_request(
        Code.PUT_KV_CONFIG, {"namespace": "n", "key": f"k{number}", "value": f"v{number}"}, opaque=number
    )


def parsed(data: bytes) -> list[Command]:
    return FrameParser().feed(data)


def a_server(home: Path, **settings: int) -> NameServer:
    return NameServer(
        NamesrvConfig(bind_address="127.0.0.1", listen_port=0, rocketmq_home=str(home), **settings)  # type: ignore[arg-type]
    )


async def until(event: threading.Event) -> None:
    assert await asyncio.to_thread(event.wait, WAIT_S)


# ------------------------------------------------------------------------------------------------------------- memory


def test_registrations_that_wait_are_bounded_in_bytes_and_those_beyond_are_told_the_numbers(
    tmp_path: Path, reading: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        large = registration(*(f"Topic-{number}" for number in range(2000)))
        monkeypatch.setattr(server_module, "WAITING_BYTES_MAX", 3 * len(large))
        server, connection = a_server(tmp_path), Staying()
        for opaque in range(5):
            server.handle(
                connection,  # type: ignore[arg-type]
                parsed(encode_request(Code.REGISTER_BROKER, ext(), large, opaque=opaque)),
            )
        refused = [parsed(answer)[0] for answer in connection.answers]
        assert [(answer.opaque, answer.code) for answer in refused] == [(2, 2), (3, 2), (4, 2)]
        assert f"the limit is {3 * len(large)}" in str(refused[0].remark)
        assert "2 requests of" in str(refused[0].remark)
        reading.opened.set()
        await asyncio.wait(server._tasks)
        assert {parsed(answer)[0].code for answer in connection.answers[3:]} == {0}
        assert server._waiting_bytes == 0

    run(main)


@pytest.mark.parametrize("broker_id", [-1, 2**63, 10**400])
def test_a_broker_id_that_is_none_is_refused(broker_id: int, tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (server, ask, _client):
            assert (await ask(Code.REGISTER_BROKER, ext(2**63 - 1), registration("T", "U"))).code == 0
            refused = await ask(Code.REGISTER_BROKER, ext(broker_id, "b:1"), registration("T", "U"))
            assert (refused.code, "brokerId" in str(refused.remark)) == (1, True)
            assert [live.broker_id for live in server.tables.live.values()] == [2**63 - 1]

    run(main)


@pytest.mark.parametrize("field", ["clusterName", "brokerName", "brokerAddr", "haServerAddr", "__ZONE_NAME"])
def test_a_name_that_is_too_long_is_refused(field: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (server, ask, _client):
            refused = await ask(Code.REGISTER_BROKER, {**ext(), field: "x" * 1025}, registration("T", "U"))
            assert (refused.code, "has 1025 characters, the limit is 1024" in str(refused.remark)) == (1, True)
            assert not server.tables.brokers
            assert (await ask(Code.REGISTER_BROKER, {**ext(), field: "x" * 1024}, registration("T", "U"))).code == 0

    run(main)


def test_a_queued_registration_whose_connection_has_gone_is_not_read(tmp_path: Path, reading: Gate) -> None:
    async def main() -> None:
        large = registration(*(f"Topic-{number}" for number in range(2000)))
        server, staying, leaving = a_server(tmp_path), Staying(), Leaving()
        for connection in (staying, leaving):
            server.handle(
                connection,  # type: ignore[arg-type]
                parsed(encode_request(Code.REGISTER_BROKER, ext(), large, opaque=1)),
            )
        await until(reading.entered)
        leaving.is_open = False
        reading.opened.set()
        await asyncio.wait(server._tasks)
        assert len(reading.calls) == 1

    run(main)


def test_what_undoes_a_registration_waits_for_the_one_that_came_before_it(tmp_path: Path, reading: Gate) -> None:
    async def main() -> None:
        large = registration(*(f"Topic-{number}" for number in range(2000)))
        server, connection = a_server(tmp_path), Staying()
        frames = [
            encode_request(Code.REGISTER_BROKER, ext(), large, opaque=1),
            encode_request(Code.DELETE_TOPIC_IN_NAMESRV, {"topic": "Topic-7"}, opaque=2),
            encode_request(Code.UNREGISTER_BROKER, ext(), opaque=3),
            encode_request(Code.REGISTER_BROKER, ext(), registration("Last-1", "Last-2"), opaque=4),
        ]
        server.handle(connection, parsed(b"".join(frames)))  # type: ignore[arg-type]
        assert connection.answers == []
        reading.opened.set()
        await asyncio.wait(server._tasks)
        answers = [parsed(answer)[0] for answer in connection.answers]
        assert [(answer.opaque, answer.code) for answer in answers] == [(1, 0), (2, 0), (3, 0), (4, 0)]
        assert sorted(server.tables.topics) == ["Last-1", "Last-2"]
        assert server._registrations_read == 0

    run(main)


def test_the_cache_of_encoded_routes_is_bounded_in_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with running(tmp_path) as (server, ask, _client):
            await ask(Code.REGISTER_BROKER, ext(), registration(*(f"T{number}" for number in range(50))))
            one = len((await ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": "T0"})).body)
            monkeypatch.setattr(server_module, "ROUTE_BYTES_MAX", 10 * one)
            for number in range(50):
                assert (await ask(Code.GET_ROUTEINFO_BY_TOPIC, {"topic": f"T{number}"})).code == 0
                held_bytes = sum(len(body) for body in server._route_bodies.values())
                assert 0 < held_bytes <= 10 * one

    run(main)


def test_the_key_value_table_refuses_to_grow_beyond_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv_config, "TABLE_BYTES_MAX", 10_000)
    table = KvConfig({"old": {"k": "v" * 100}})
    table.put("n", "k", "v" * 9000)
    with pytest.raises(KvConfigError, match=r"'more' needs 1108 bytes more .* the limit is 10000: delete keys"):
        table.put("n", "more", "v" * 1000)
    assert table.get("n", "more") is None
    table.put("n", "k", "v" * 8000)  # smaller than what it replaces
    table.put("n", "more", "v" * 1000)
    table.delete("n", "k")
    table.put("n", "k2", "é" * 3900)
    with pytest.raises(KvConfigError):
        table.put("n", "k3", "é" * 500)
    with pytest.raises(KvConfigError, match=r"'k4' needs 604 bytes"):
        table.put("n", "k4", "\1" * 83)  # what counts is the JSON that every change writes: \u0001
    assert KvConfig({"n": {"k2": "é" * 3900, "more": "v" * 1000}, "old": {"k": "v" * 100}}).size_bytes == (
        table.size_bytes
    )


def test_a_full_table_is_an_answer_with_the_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        monkeypatch.setattr(kv_config, "TABLE_BYTES_MAX", 1000)
        async with running(tmp_path) as (_server, ask, _client):
            header = {"namespace": "n", "key": "k", "value": "v" * 1000}
            refused = await ask(Code.PUT_KV_CONFIG, header)
            assert (refused.code, "the limit is 1000" in str(refused.remark)) == (1, True)
            assert (await ask(Code.GET_KV_CONFIG, header)).code == 22

    run(main)


# ------------------------------------------------------------------------------------------------- saving and stopping


def test_a_change_is_answered_only_when_it_is_saved(tmp_path: Path, saving: Gate) -> None:
    async def main() -> None:
        server, connection = a_server(tmp_path), Staying()
        server.handle(connection, parsed(put(1)))  # type: ignore[arg-type]
        await until(saving.entered)
        assert not connection.answers
        assert not server.config.kv_config_file.exists()
        saving.opened.set()
        await asyncio.wait(server._tasks)
        assert parsed(connection.answers[0])[0].code == 0
        assert load(server.config.kv_config_file).get("n", "k1") == "v1"

    run(main)


def test_changes_that_wait_are_saved_by_one_write_and_a_later_one_by_the_next(tmp_path: Path, saving: Gate) -> None:
    async def main() -> None:
        server, connection = a_server(tmp_path), Staying()
        server.handle(connection, parsed(b"".join(put(number) for number in range(500))))  # type: ignore[arg-type]
        await until(saving.entered)
        server.handle(connection, parsed(b"".join(put(number) for number in range(500, 1000))))  # type: ignore[arg-type]
        saving.opened.set()
        while server._tasks:
            await asyncio.wait(server._tasks)
        assert {parsed(answer)[0].code for answer in connection.answers} == {0}
        assert len(connection.answers) == 1000
        assert len(saving.calls) == 2
        assert len(load(server.config.kv_config_file).namespace("n") or ()) == 1000

    run(main)


def test_a_write_that_fails_is_the_answer_to_every_change_in_it(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "namesrv").write_text("a file where the directory should be")
        server, connection = a_server(tmp_path), Staying()
        server.handle(connection, parsed(put(1) + put(2)))  # type: ignore[arg-type]
        await asyncio.wait(server._tasks)
        answers = [parsed(answer)[0] for answer in connection.answers]
        assert [answer.code for answer in answers] == [1, 1]
        assert "cannot be written" in str(answers[1].remark)

    run(main)


def test_stopping_answers_and_saves_what_was_accepted(tmp_path: Path, saving: Gate) -> None:
    """3,000 changes on their way when the server is told to stop; every one is answered and in the file."""

    async def main() -> None:
        server = a_server(tmp_path)
        await server.start()
        client = RemotingClient()
        connection = await client.connect(server.address)
        header = {"namespace": "n", "value": "v"}
        answers = [
            connection.invoke(Code.PUT_KV_CONFIG, {**header, "key": str(number)}, timeout_s=WAIT_S)
            for number in range(3000)
        ]
        await until_async(lambda: len(server.kv.namespace("n") or ()) == 3000, look_s=0)
        stopping = asyncio.ensure_future(server.stop())
        await until(saving.entered)
        assert not stopping.done()
        saving.opened.set()
        assert {answer.code for answer in await asyncio.gather(*answers)} == {0}
        await stopping
        assert len(load(server.config.kv_config_file).namespace("n") or ()) == 3000
        assert len(saving.calls) < 50
        await client.close()

    run(main)


def test_stopping_waits_for_what_nobody_asked_an_answer_for(tmp_path: Path, saving: Gate) -> None:
    async def main() -> None:
        server = a_server(tmp_path)
        await server.start()
        client = RemotingClient()
        await client.oneway(server.address, Code.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "v"})
        await until(saving.entered)
        await client.oneway(server.address, Code.PUT_KV_CONFIG, {"namespace": "n", "key": "k2", "value": "v"})
        await until_async(lambda: server._kv_saving.has_next, look_s=0)  # for the next write
        stopping = asyncio.ensure_future(server.stop())
        await until_async(lambda: not server.connection_count, look_s=0)
        for _ in range(50):
            await asyncio.sleep(0)
        assert not stopping.done()
        saving.opened.set()
        await stopping
        assert load(server.config.kv_config_file).namespace("n") == {"k": "v", "k2": "v"}
        await client.close()

    run(main)


def test_what_is_not_done_in_the_time_for_stopping_is_refused(tmp_path: Path, reading: Gate) -> None:
    async def main() -> None:
        server = a_server(tmp_path, shutdown_wait_time_seconds=0)
        await server.start()
        client = RemotingClient()
        large = registration(*(f"Topic-{number}" for number in range(2000)))
        answers = [
            asyncio.ensure_future(client.invoke(server.address, Code.REGISTER_BROKER, ext(), large, timeout_s=WAIT_S))
            for _ in range(2)
        ]
        await until_async(lambda: server._registrations_read == 2, look_s=0)
        await until(reading.entered)
        stopping = asyncio.ensure_future(server.stop())
        for answer in answers:
            refused = await answer
            assert (refused.code, "shutdownWaitTimeSeconds=0" in str(refused.remark)) == (2, True)
        await stopping
        reading.opened.set()
        assert len(reading.calls) == 1
        await client.close()

    run(main)


def test_stopping_waits_for_a_write_that_has_begun_and_begins_no_other(tmp_path: Path, saving: Gate) -> None:
    async def main() -> None:
        server, connection = a_server(tmp_path, shutdown_wait_time_seconds=0), Staying()
        server.handle(connection, parsed(put(1)))  # type: ignore[arg-type]
        await until(saving.entered)
        server.handle(connection, parsed(put(2)))  # type: ignore[arg-type]
        await until_async(lambda: server._kv_saving.has_next, look_s=0)
        stopping = asyncio.ensure_future(server.stop())
        await until_async(lambda: len(connection.answers) == 2, look_s=0)
        for _ in range(50):
            await asyncio.sleep(0)
        assert not stopping.done()
        assert [parsed(answer)[0].code for answer in connection.answers] == [2, 2]
        saving.opened.set()
        await stopping
        assert len(saving.calls) == 1
        assert load(server.config.kv_config_file).namespace("n") == {"k1": "v1"}

    run(main)


def test_requests_without_a_byte_are_bounded_too_when_they_wait(
    tmp_path: Path, saving: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty change of settings says nothing and costs a task: 65,536 of one connection took 150 MB."""
    monkeypatch.setattr(server_module, "WAITING_BYTES_MAX", 10 * server_module.WAITING_BYTES)

    async def main() -> None:
        server, connection = a_server(tmp_path), Staying()
        empty = [encode_request(Code.UPDATE_NAMESRV_CONFIG, None, opaque=number) for number in range(12)]
        server.handle(connection, parsed(b"".join(empty)))  # type: ignore[arg-type]
        assert [(answer.opaque, answer.code) for [answer] in map(parsed, connection.answers)] == [(10, 2), (11, 2)]
        saving.opened.set()
        await asyncio.wait(server._tasks)
        assert {parsed(answer)[0].code for answer in connection.answers[2:]} == {0}
        assert server._waiting_bytes == 0

    run(main)


def test_changes_of_settings_that_wait_are_saved_by_one_write(tmp_path: Path, saving: Gate) -> None:
    async def main() -> None:
        server, connection = a_server(tmp_path), Staying()
        changes = [
            encode_request(Code.UPDATE_NAMESRV_CONFIG, None, f"waitSecondsForService={number}".encode(), opaque=number)
            for number in range(500)
        ]
        server.handle(connection, parsed(changes[0]))  # type: ignore[arg-type]
        await until(saving.entered)
        server.handle(connection, parsed(b"".join(changes[1:])))  # type: ignore[arg-type]
        saving.opened.set()
        while server._tasks:
            await asyncio.wait(server._tasks)
        assert [parsed(answer)[0].code for answer in connection.answers] == [0] * 500
        assert len(saving.calls) == 2
        assert "waitSecondsForService=499" in server.config.config_file.read_text()

    run(main)


def test_a_request_that_is_refused_before_its_turn_came_is_answered(tmp_path: Path) -> None:
    async def main() -> None:
        server, connection = a_server(tmp_path), Staying()
        server.handle(connection, parsed(put(1)))  # type: ignore[arg-type]
        server._refuse_waiting()  # the loop had no turn in between
        await asyncio.wait(server._tasks)
        [refused] = [parsed(answer)[0] for answer in connection.answers]
        assert (refused.code, "shutdownWaitTimeSeconds=30" in str(refused.remark)) == (2, True)

    run(main)


def test_a_saved_file_is_synced_before_it_takes_its_name_and_its_directory_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, events = tmp_path / "kvConfig.json", []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        events.append(f"fsync {os.readlink(f'/proc/self/fd/{descriptor}')}")
        fsync(descriptor)

    def replaced(source: Path, target: Path) -> None:
        events.append(f"replace {target}")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    save(path, b"{}")
    assert events == [f"fsync {path}.{os.getpid()}.tmp", f"replace {path}", f"fsync {tmp_path}"]
    events.clear()
    save(path, b'{"configTable":{}}')
    assert events == [f"fsync {path}.{os.getpid()}.tmp", f"replace {path}.bak", f"replace {path}", f"fsync {tmp_path}"]
    assert (path.read_bytes(), path.with_name("kvConfig.json.bak").read_bytes()) == (b'{"configTable":{}}', b"{}")
