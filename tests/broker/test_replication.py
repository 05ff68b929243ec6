"""A master and its slave, whole brokers of ours in one process: what one has, the other has, byte for byte."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path

import pytest
import uvloop
from typer.testing import CliRunner

from broker.harness import send_fields
from broker.test_ha_port import register
from broker.test_keeping import KINDS
from broker.test_slave_end_to_end import broker
from contrailmq.broker.cluster import replication
from contrailmq.broker.cluster.replication import GATHER_S
from contrailmq.broker.config import BrokerConfigError, read_configs
from contrailmq.broker.server import BrokerServer
from contrailmq.cli import app
from contrailmq.message.codec import decode_record
from contrailmq.namesrv import NameServer, NamesrvConfig
from contrailmq.store import ReplicationServer
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.header import Command
from contrailmq.wire.tls import client_tls, server_tls
from contrailmq.wire.transport import RemotingClient
from ha_slaves import Slave
from waiting_for import until_async

pytestmark = pytest.mark.servers

FILES = 3  # of the log, of 1 MiB each
SYNC = {"brokerRole": "SYNC_MASTER", "inSyncReplicas": "2", "slaveTimeout": "1000"}


class Pair:
    """A group of two, with its NameServer. `settings` are the master's."""

    def __init__(self, path: Path, namesrv: str, client: RemotingClient, settings: dict[str, str]) -> None:
        self.path, self.namesrv, self.client, self._settings = path, namesrv, client, settings
        self.master: BrokerServer
        self.slave: BrokerServer

    async def start_master(self) -> None:
        self.master = broker(self.path / "master", self.namesrv, **self._settings)
        await self.master.start()

    async def start_slave(self) -> None:
        settings = {"brokerRole": "SLAVE", "brokerId": "1", "slaveReadEnable": "true"}
        flush = {key: text for key, text in self._settings.items() if key == "flushDiskType"}
        self.slave = broker(self.path / "slave", self.namesrv, **settings, **flush)
        await self.slave.start()

    async def in_step(self) -> None:
        """Until the slave has reported the master's end."""
        assert self.master.replication is not None
        acknowledged = self.master.replication.server.acknowledged
        await until_async(lambda: acknowledged.furthest == self.master.store.appended_offset)

    async def following(self) -> None:
        assert self.master.replication is not None
        server = self.master.replication.server
        await until_async(lambda: any(slave.acknowledged >= 0 for slave in server.status()))

    async def send(
        self, kind: str = "single", body: bytes = b"", *, topic: str = "T", timeout_s: float = 30
    ) -> Command:
        fields, own_body = KINDS[kind]
        return await self.client.invoke(
            self.master.address, RequestCode.SEND_MESSAGE_V2, send_fields(topic, **fields), body or own_body, timeout_s
        )

    def logs(self) -> tuple[bytes, bytes]:
        """Both logs from their beginning to their end."""
        return log_of(self.master), log_of(self.slave)


def log_of(server: BrokerServer) -> bytes:
    store = server.store
    log, offset = b"", 0
    while (view := store.read_log(offset, 1 << 20)) is not None:
        log += bytes(view)
        offset += len(view)
    assert offset == store.log_max_offset
    return log


def bodies_in(log: bytes) -> set[bytes]:
    """Of a log of one file."""
    bodies, position = set(), 0
    while position < len(log):
        message = decode_record(log, position)
        bodies.add(message.body)
        position += message.size_bytes
    return bodies


@asynccontextmanager
async def pair(path: Path, **settings: str) -> AsyncIterator[Pair]:
    namesrv = NameServer(NamesrvConfig(bind_address="127.0.0.1", listen_port=0, rocketmq_home=str(path / "home")))
    await namesrv.start()
    client = RemotingClient()
    made = Pair(path, namesrv.address, client, settings)
    await made.start_master()
    await made.start_slave()
    try:
        await made.following()
        yield made
    finally:
        await client.close()
        await made.slave.stop()
        await made.master.stop()
        await namesrv.stop()


def queue_units(server: BrokerServer) -> dict[tuple[str, int], list[tuple[int, int, int]]]:
    store = server.store
    return {
        (topic, queue_id): store.read_units(topic, queue_id, first, end - first)
        for (topic, queue_id), (first, end) in store.queues().items()
        if end > first
    }


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_logs_queues_and_index_of_both_are_equal_after_mixed_messages_and_restarts(tmp_path: Path, flush: str) -> None:
    """Every kind of send, files that roll, a slave that is killed and one that is stopped, a master that restarts."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")

    async def some(made: Pair, rng: random.Random, until_file: int) -> None:
        while made.master.store.appended_offset < until_file << 20:
            kind = rng.choice(list(KINDS))
            body = b"" if "batch" in kind else rng.randbytes(rng.choice([1, 200, 5000, 90_000]))
            answer = await made.send(kind, body, topic=rng.choice(["T", "U"]))
            assert answer.code == 0, answer.remark

    async def work() -> None:
        rng = random.Random(seed)
        async with pair(tmp_path, flushDiskType=flush) as made:
            await some(made, rng, 1)
            await made.slave.kill()
            await some(made, rng, 2)
            await made.start_slave()
            await made.in_step()
            await made.slave.stop()
            await made.master.stop()
            await made.start_master()
            await made.start_slave()
            await made.following()
            await some(made, rng, FILES)
            await made.send("single", b"last", topic="T")
            await made.in_step()
            # Until both are seen at one offset: delay levels go on being delivered.
            await until_async(lambda: made.slave.store.dispatched_offset == made.master.store.dispatched_offset)
            ours, theirs = made.logs()
            assert len(ours) > FILES << 20
            assert ours == theirs
            assert queue_units(made.master) == queue_units(made.slave)

    asyncio.run(work())


def test_a_sync_master_acknowledges_what_both_have(tmp_path: Path) -> None:
    """With the slave gone: FLUSH_SLAVE_TIMEOUT, and stored; with the slave back: acknowledged, and on both."""

    async def work() -> None:
        async with pair(tmp_path, **SYNC, flushDiskType="SYNC_FLUSH") as made:
            answers = await asyncio.gather(*(made.send("single", b"%d" % number) for number in range(50)))
            assert [answer.code for answer in answers] == [0] * 50
            theirs = log_of(made.slave)  # at this moment, without waiting for it
            assert bodies_in(theirs) >= {b"%d" % number for number in range(50)}
            await made.slave.kill()
            late = await made.send("single", b"late")
            assert late.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
            assert "1 of 2 copies" in (late.remark or "")
            await made.start_slave()
            await made.in_step()
            again = await made.send("single", b"again")
            assert again.code == 0, again.remark
            ours, theirs = made.logs()
            assert ours == theirs
            assert {b"late", b"again"} <= bodies_in(theirs)

    asyncio.run(work())


def counted(server: ReplicationServer) -> list[float]:
    """When the log is pushed to slaves, from now on."""
    pushed: list[float] = []
    push = server.push

    def count() -> None:
        pushed.append(asyncio.get_running_loop().time())
        push()

    server.push = count  # type: ignore[method-assign]
    return pushed


def test_a_master_for_whose_slaves_nobody_waits_sends_them_what_it_gathers(tmp_path: Path) -> None:
    async def work() -> None:
        async with pair(tmp_path) as made:
            assert made.master.replication is not None
            pushed = counted(made.master.replication.server)
            for number in range(100):
                assert (await made.send("single", b"%d" % number)).code == 0
            await made.in_step()
            gaps = [later - earlier for earlier, later in pairwise(pushed)]
            assert min(gaps) >= GATHER_S / 2  # the loop's clock has milliseconds
            ours, theirs = made.logs()
            assert ours == theirs

    asyncio.run(work())


def test_a_master_whose_sends_wait_for_slaves_gathers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour of gathering would be the end of every send."""
    monkeypatch.setattr(replication, "GATHER_S", 3600.0)

    async def work() -> None:
        async with pair(tmp_path, **SYNC) as made:
            assert made.master.replication is not None
            made.master.replication.server.tick = lambda: None  # type: ignore[method-assign]  # it pushes too
            answers = await asyncio.gather(*(made.send("single", b"%d" % number) for number in range(20)))
            assert [answer.code for answer in answers] == [0] * 20

    asyncio.run(work())


def test_the_command_shows_each_slave(tmp_path: Path) -> None:
    """One that is connected, and one that is registered and gone."""

    async def rows(made: Pair, *more: str) -> list[dict[str, object]]:
        command = ["admin", "ha", "status", *more, "--namesrv", made.namesrv, "--json"]
        result = await asyncio.to_thread(CliRunner().invoke, app, command)
        assert result.exit_code == 0, result.output
        found: list[dict[str, object]] = json.loads(result.stdout)
        return found

    async def work() -> None:
        async with pair(tmp_path) as made:
            await made.send("single", b"x")
            await made.in_step()
            (row,) = await rows(made)
            speed = row.pop("bytes_per_s")
            assert isinstance(speed, int)
            assert str(row.pop("master")).startswith("127.0.0.1:"), "the HA address that it follows"
            silent_s = row.pop("silent_s")
            assert isinstance(silent_s, float)
            assert 0 <= silent_s < 20
            assert row == {
                "broker": "b",
                "id": 1,
                "slave": made.slave.address,
                "connected": True,
                "acknowledged": made.master.store.appended_offset,
                "lag_bytes": 0,
                "lag_s": 0.0,
                "in_sync": True,
                "acting": None,
            }
            (by_address,) = await rows(made, made.master.address)
            assert (by_address["connected"], by_address["lag_bytes"]) == (True, 0)
            await register(made.client, made.namesrv, 2, "127.0.0.9:1")
            _, gone = await rows(made)
            assert (gone["slave"], gone["connected"], gone["in_sync"]) == ("127.0.0.9:1", False, False)
            assert (gone["lag_bytes"], gone["lag_s"]) == (None, None)

    asyncio.run(work())


CERTS = Path(__file__).parents[1] / "wire" / "certs"
SERVER_TLS = {
    "tls.server.certPath": str(CERTS / "server.pem"),
    "tls.server.keyPath": str(CERTS / "server.key"),
    "tls.server.trustCertPath": str(CERTS / "ca.pem"),
    "tls.server.need.client.auth": "require",
}
CLIENT_TLS = {
    "tls.enable": "true",
    "tls.client.authServer": "true",
    "tls.client.trustCertPath": str(CERTS / "ca.pem"),
    "tls.client.certPath": str(CERTS / "client.pem"),
    "tls.client.keyPath": str(CERTS / "client.key"),
}


@pytest.mark.parametrize("new_loop", [uvloop.new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
def test_a_slave_follows_over_tls_and_nobody_else_does(
    tmp_path: Path, new_loop: Callable[[], asyncio.AbstractEventLoop]
) -> None:
    async def work() -> None:
        properties = {"brokerName": "b", "bindAddress": "127.0.0.1", "brokerIP1": "127.0.0.1", "listenPort": "0"}
        master = secured(tmp_path / "master", {**properties, "haTls": "true"})
        await master.start()
        assert master.replication is not None
        server = master.replication.server
        ha_address = f"127.0.0.1:{master.replication.port}"
        slave_settings = {"brokerRole": "SLAVE", "brokerId": "1", "haMasterAddress": ha_address, "haTls": "true"}
        slave = secured(tmp_path / "slave", properties | slave_settings)
        await slave.start()
        await until_async(lambda: bool(server.status()))
        for number in range(50):
            master.store.append("T", 0, b"%d" % number * 9000, b"", tags_code=0, keys=None, unique_key=None)
        master.node.after_append()
        await until_async(lambda: server.acknowledged.furthest == master.store.appended_offset)
        assert log_of(master) == log_of(slave)
        plain = Slave(*await asyncio.open_connection("127.0.0.1", master.replication.port)).report(0)
        assert await plain.is_closed()
        plain.close()
        assert len(server.status()) == 1
        await slave.stop()
        await master.stop()

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(work())


def secured(path: Path, properties: dict[str, str]) -> BrokerServer:
    config, store_config, _ = read_configs(properties, path=path, mapped_file_size_commit_log=1 << 20)
    return BrokerServer(config, store_config, tls=server_tls(SERVER_TLS), client_tls=client_tls(CLIENT_TLS))


@pytest.mark.parametrize(
    ("settings", "missing"),
    [({}, "tls.server.certPath"), ({"brokerRole": "SLAVE", "brokerId": "1"}, "tls.enable=true")],
)
def test_tls_without_certificates_is_refused(tmp_path: Path, settings: dict[str, str], missing: str) -> None:
    with pytest.raises(BrokerConfigError, match=f"haTls='true': .*{missing}"):
        asyncio.run(broker(tmp_path, "", haTls="true", **settings).start())


def test_no_task_and_no_descriptor_of_replication_stays(tmp_path: Path) -> None:
    async def work() -> None:
        async with pair(tmp_path) as made:
            await made.send("single", b"x")
            await made.in_step()
        left = {task.get_name() for task in asyncio.all_tasks()} - {asyncio.current_task().get_name()}  # type: ignore[union-attr]
        assert not left

    asyncio.run(work())
