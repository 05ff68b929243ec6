"""LocalCluster and whole brokers over sockets: start, serve, die, come back, stop."""

from __future__ import annotations

import asyncio
import os
import queue
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from contrailmq import (
    Admin,
    ConsumeFromWhere,
    LitePullConsumer,
    Message,
    Producer,
    PushConsumer,
    SendStatus,
    StoredMessage,
)
from contrailmq.broker import BrokerConfig, BrokerServer
from contrailmq.broker import server as server_module
from contrailmq.broker.cluster.advertise import interface_outward
from contrailmq.store import MessageStore, StoreConfig, StoreError
from contrailmq.testing import LocalCluster
from contrailmq.testing.members import ClusterError
from contrailmq.wire.transport import RemotingClient
from waiting_for import until

IP_LOCAL_PORT_RANGE = 51  # of Linux; Python has no name for it


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as made:
        yield made


def polled(pull: LitePullConsumer, count: int) -> set[bytes]:
    """What there is, once there are so many bodies."""
    bodies: set[bytes] = set()

    def are_all_there() -> bool:
        bodies.update(message.body for message in pull.poll(timeout=1.0))
        return len(bodies) >= count

    until(are_all_there, f"{count} messages", seen=lambda: bodies)
    return bodies


def test_a_cluster_is_up_in_under_a_second_and_serves_a_producer_and_a_consumer(cluster: LocalCluster) -> None:
    received: queue.Queue[StoredMessage] = queue.Queue()
    consumer = PushConsumer("billing", namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("Orders", "paid || shipped")
    consumer.listen(lambda messages: [received.put(message) for message in messages] and None)
    with Producer("shop", namesrv=cluster.namesrv) as producer:
        for tag in ("paid", "lost", "shipped"):
            result = producer.send(Message("Orders", tag.encode(), tags=tag, keys=["o-17"]))
            assert result.status is SendStatus.OK
        consumer.start()
        try:
            assert {received.get(timeout=120).body for _ in range(2)} == {b"paid", b"shipped"}
        finally:
            consumer.shutdown()


def test_what_was_acknowledged_survives_a_clean_restart_on_the_same_port() -> None:
    with LocalCluster() as cluster:
        address = cluster.broker_addresses[0]
        with Producer("shop", namesrv=cluster.namesrv) as producer:
            producer.send(Message("Orders", b"before"))
            cluster.stop_broker()
            cluster.restart_broker()
            assert cluster.broker_addresses == [address]
            producer.send(Message("Orders", b"after"))
        with LitePullConsumer("audit", namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET) as pull:
            pull.subscribe("Orders")
            assert polled(pull, 2) == {b"before", b"after"}


@pytest.mark.parametrize("who", ["broker", "NameServer"])
def test_nobody_gets_the_port_of_a_member_that_is_away(who: str) -> None:
    """A client's connection took it between a stop and the start after it, which then failed."""
    with LocalCluster() as cluster, socket.create_server(("127.0.0.1", 0)) as other, socket.socket() as client:
        address = cluster.broker_addresses[0] if who == "broker" else cluster.namesrv
        port = int(address.rpartition(":")[2])
        if who == "broker":
            cluster.kill_broker()
        else:
            cluster.stop_name_server()
        only_this = struct.pack("=I", port << 16 | port)  # highest and lowest that the system may choose
        client.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, only_this)
        with pytest.raises(OSError, match="Cannot assign requested address"):
            client.connect(other.getsockname())
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        if who == "broker":
            cluster.restart_broker()
            assert cluster.broker_addresses == [address]
        else:
            cluster.restart_name_server()
            assert cluster.namesrv == address


def test_what_was_acknowledged_with_synchronous_flush_survives_a_kill() -> None:
    with LocalCluster(config={"flushDiskType": "SYNC_FLUSH"}) as cluster:
        with Producer("shop", namesrv=cluster.namesrv) as producer:
            sent = [producer.send(Message("Orders", b"%d" % number)) for number in range(20)]
            assert all(result.status is SendStatus.OK for result in sent)
        cluster.kill_broker()
        cluster.restart_broker()
        store = cluster.broker().store
        assert not store.recovery.was_clean_exit
        assert sum(high for (topic, _), (_, high) in store.queues().items() if topic == "Orders") == 20


def test_a_store_that_is_given_is_kept(tmp_path: Path) -> None:
    with (
        LocalCluster(store=tmp_path, brokers=2) as cluster,
        Producer("shop", namesrv=cluster.namesrv) as producer,
    ):
        assert len(set(cluster.broker_addresses)) == 2
        result = producer.send(Message("Orders", b"kept"))
    with MessageStore(StoreConfig(tmp_path / result.queue.broker_name)) as store:
        (message,) = store.get("Orders", result.queue.queue_id, 0)
        assert message.body == b"kept"
        assert store.recovery.was_clean_exit


def settings(path: Path, **changes: str) -> tuple[BrokerConfig, StoreConfig]:
    said = {"brokerName": "b", "bindAddress": "127.0.0.1", "listenPort": "0"} | changes
    config, _ = BrokerConfig.from_properties(said)
    small = {"mapped_file_size_commit_log": 1 << 20, "max_hash_slot_num": 100, "max_index_num": 400}
    return config, StoreConfig(path, **small)


def test_a_taken_port_refuses_the_start_and_lets_go_of_the_store(tmp_path: Path) -> None:
    async def start() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            broker = BrokerServer(*settings(tmp_path, listenPort=str(port), enableFastListenPort="false"))
            with pytest.raises(server_module.PortError, match=f"{port}.*in use.*set listenPort"):
                await broker.start()

    asyncio.run(start())
    MessageStore(StoreConfig(tmp_path)).open().close()


def test_a_store_in_use_refuses_the_start(tmp_path: Path) -> None:
    async def start() -> None:
        with pytest.raises(StoreError, match="in use"):
            await BrokerServer(*settings(tmp_path)).start()

    with MessageStore(settings(tmp_path)[1]):
        asyncio.run(start())


def test_a_broken_table_refuses_the_start_with_the_file(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "topics.json").write_text("{ torn")

    async def start() -> None:
        with pytest.raises(Exception, match=r"topics\.json"):
            await BrokerServer(*settings(tmp_path)).start()

    asyncio.run(start())


def test_a_broker_serves_without_any_name_server_and_saves_what_it_knows(tmp_path: Path) -> None:
    async def serve() -> None:
        broker = BrokerServer(*settings(tmp_path, namesrvAddr="127.0.0.1:1"))
        await broker.start()
        client = RemotingClient()
        fields = {"topic": "Made", "defaultTopic": "TBW102", "readQueueNums": 3, "writeQueueNums": 3, "perm": 6}
        answer = await client.invoke(
            broker.address, 17, fields | {"topicFilterType": "SINGLE_TAG", "order": False, "topicSysFlag": 0}
        )
        assert answer.code == 0
        assert "Made" in (tmp_path / "config" / "topics.json").read_text()
        await client.close()
        await broker.stop()
        await broker.stop()

    asyncio.run(serve())
    assert '"offsetTable"' in (tmp_path / "config" / "consumerOffset.json").read_text()


def test_settings_changed_at_run_time_are_kept_over_a_restart(tmp_path: Path) -> None:
    async def serve() -> None:
        broker = BrokerServer(*settings(tmp_path))
        await broker.start()
        client = RemotingClient()
        assert (await client.invoke(broker.address, 25, None, b"traceOn=false\n")).code == 0
        assert (await client.invoke(broker.address, 25, None, b"traceOm=false\n")).code == 1
        await client.close()
        await broker.stop()
        again = BrokerServer(*settings(tmp_path))
        await again.start()
        assert not again.config.trace_on
        await again.stop()

    asyncio.run(serve())


def run_command(*arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "contrailmq", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2] / "src")},
    )


def test_brokers_as_processes_survive_a_real_kill() -> None:
    with (
        LocalCluster(processes=True, config={"flushDiskType": "SYNC_FLUSH"}) as cluster,
        Producer("shop", namesrv=cluster.namesrv) as producer,
    ):
        assert producer.send(Message("Orders", b"x")).status is SendStatus.OK
        address = cluster.broker_addresses[0]
        cluster.kill_broker()
        cluster.restart_broker()
        assert cluster.broker_addresses == [address]
        assert producer.send(Message("Orders", b"y")).status is SendStatus.OK


def test_brokers_as_processes_leave_what_others_hold_in_this_process_alone(tmp_path: Path) -> None:
    """A child that cleans up after a fork closes what is not its own: py4j's sockets to Spark's JVM were shut down."""
    cleaned = tmp_path / "cleaned"
    os.register_at_fork(after_in_child=cleaned.touch)
    with LocalCluster(processes=True):
        pass
    assert not cleaned.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_up_prints_one_ready_line_and_ends_cleanly_on_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    process = run_command("up", "--no-console", "--store", str(tmp_path), "--namesrv-port", "0", "--broker-port", "0")
    assert process.stdout is not None
    line = process.stdout.readline()
    assert line.startswith("ready namesrv 127.0.0.1:"), process.communicate()
    with Producer("shop", namesrv=line.split()[2]) as producer:
        assert producer.send(Message("Orders", b"x")).status is SendStatus.OK
    process.send_signal(number)
    rest, errors = process.communicate(timeout=120)
    assert (process.returncode, rest) == (0, ""), errors
    assert not (tmp_path / "broker-a" / "abort").exists(), "the store was not closed"


def test_the_broker_command_says_what_is_wrong(tmp_path: Path) -> None:
    config = tmp_path / "broker.conf"
    config.write_text("brokerName=b\nlistenPort=many\n")
    process = run_command("broker", "-c", str(config))
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 1
    assert "listenPort" in errors
    assert "Traceback" not in errors


def test_the_broker_command_prints_its_settings_and_where_they_differ(tmp_path: Path) -> None:
    process = run_command("broker", "-p", "--set", "brokerName=b", "--set", f"storePathRootDir={tmp_path}")
    output, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "brokerName=b\n" in output
    assert "mappedFileSizeCommitLog=" in output
    assert "# enablePropertyFilter: true here, false in RocketMQ" in output


def test_a_broker_with_a_write_buffer_pool_delivers_what_it_committed() -> None:
    with (
        LocalCluster(config={"transientStorePoolEnable": True, "transientStorePoolSize": 2}) as cluster,
        Producer("shop", namesrv=cluster.namesrv) as producer,
        LitePullConsumer("pool", namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET) as pull,
    ):
        producer.send(Message("Orders", b"pooled"))
        pull.subscribe("Orders")
        assert polled(pull, 1) == {b"pooled"}


def test_a_consumer_of_cold_data_is_served_by_the_workers() -> None:
    with (
        LocalCluster(config={"accessMessageInMemoryMaxRatio": 0}) as cluster,
        Producer("shop", namesrv=cluster.namesrv) as producer,
        LitePullConsumer("cold", namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET) as pull,
    ):
        for number in range(10):
            producer.send(Message("Cold", b"%d" % number))
        pull.subscribe("Cold")
        assert polled(pull, 10) == {b"%d" % number for number in range(10)}


def test_a_name_server_that_never_answers_does_not_hold_up_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "FIRST_REGISTRATION_S", 0.2)

    async def serve() -> None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            address = f"127.0.0.1:{silent.getsockname()[1]}"
            broker = BrokerServer(*settings(tmp_path, namesrvAddr=address, registerBrokerTimeoutMills="600000"))
            await broker.start()
            await broker.stop()

    began = time.monotonic()
    asyncio.run(serve())
    assert time.monotonic() - began < 300  # half of what it may wait for the answer


def test_a_number_that_no_broker_has_is_named_with_those_that_there_are() -> None:
    with LocalCluster(brokers=2) as cluster:
        calls = (
            cluster.kill_broker,
            cluster.stop_broker,
            cluster.restart_broker,
            cluster.broker,
            cluster.broker_process_id,
        )
        for call in calls:
            for index in (9, -1):
                told = f"no broker {index}: the cluster has 2, with the numbers 0 to 1$"
                with pytest.raises(ClusterError, match=told):
                    call(index)
        with pytest.raises(ClusterError, match="slave 0 is none: each broker has 0"):
            cluster.slave_index()
        with pytest.raises(ClusterError, match="broker 3 is none: there are 2"):
            cluster.slave_index(3)
    with pytest.raises(ClusterError, match="no broker 0: the cluster is not running"):
        cluster.kill_broker()


def test_brokers_as_processes_do_not_hear_of_the_environments_name_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A NAMESRV_ADDR of the shell's led `up --brokers 2` and clusters of processes into another cluster."""
    with LocalCluster() as foreign:
        before = Admin(namesrv=foreign.namesrv).cluster()
        monkeypatch.setenv("NAMESRV_ADDR", foreign.namesrv)
        monkeypatch.setenv("CONTRAILMQ_NAMESRV_ADDR", foreign.namesrv)
        monkeypatch.setenv("CONTRAILMQ_BROKER_NAME", "stranger")
        with LocalCluster(processes=True) as cluster:
            own = Admin(namesrv=cluster.namesrv).cluster()
            assert Admin(namesrv=foreign.namesrv).cluster() == before
            assert cluster.broker_addresses[0] in str(own)
            assert "stranger" not in str(own)


def test_up_with_several_brokers_does_not_hear_of_the_environments_name_servers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalCluster(config={"brokerName": "broker-a"}) as foreign:
        before = Admin(namesrv=foreign.namesrv).cluster()
        monkeypatch.setenv("NAMESRV_ADDR", foreign.namesrv)
        ports = ("--namesrv-port", "0", "--broker-port", "0")
        process = run_command("up", "--no-console", "--store", str(tmp_path), "--brokers", "2", *ports)
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            assert line.startswith("ready namesrv "), process.communicate()
            own = Admin(namesrv=line.split()[2]).cluster()
            assert Admin(namesrv=foreign.namesrv).cluster() == before
            assert "broker-a" in str(own)
            assert "broker-b" in str(own)
        finally:
            process.send_signal(signal.SIGTERM)
            process.communicate(timeout=120)


def test_the_broker_command_refuses_to_replace_a_live_one_unless_told_to(tmp_path: Path) -> None:
    with LocalCluster(config={"brokerName": "broker-a"}) as cluster:
        own = ("brokerName=broker-a", "listenPort=0", "bindAddress=127.0.0.1", f"storePathRootDir={tmp_path}")
        small = ("mappedFileSizeCommitLog=1048576", "maxHashSlotNum=1000", "maxIndexNum=4000")
        settings = [part for text in (*own, *small) for part in ("--set", text)]
        refused = run_command("broker", "-n", cluster.namesrv, *settings)
        output, errors = refused.communicate(timeout=120)
        assert (refused.returncode, output) == (1, "")
        assert cluster.broker_addresses[0] in errors
        assert "--takeover" in errors
        taking = run_command("broker", "-n", cluster.namesrv, "--takeover", *settings)
        try:
            assert taking.stdout is not None
            assert taking.stdout.readline().startswith("ready broker broker-a ")
        finally:
            taking.send_signal(signal.SIGTERM)
            taking.communicate(timeout=120)


@pytest.mark.parametrize(("listen", "told"), [((), "127.0.0.1"), (("--listen", "127.0.0.2"), "127.0.0.2")])
def test_up_listens_where_it_is_told_and_on_the_loopback_address_otherwise(
    tmp_path: Path, listen: tuple[str, ...], told: str
) -> None:
    """127.0.0.3 leads to whatever listens on all addresses. The file's bindAddress does not open the port to all."""
    ports = ("--namesrv-port", "0", "--broker-port", "0", "--set", "bindAddress=0.0.0.0")
    process = run_command("up", "--no-console", "--store", str(tmp_path), *ports, *listen)
    try:
        assert process.stdout is not None
        _, _, namesrv, _, broker, *_ = process.stdout.readline().split()
        for address in (namesrv, broker):
            host, _, port = address.rpartition(":")
            assert host == told
            socket.create_connection((told, int(port)), timeout=60).close()
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(("127.0.0.3", int(port)), timeout=60)
        with Producer("shop", namesrv=namesrv) as producer:
            assert producer.send(Message("Orders", b"x")).status is SendStatus.OK
    finally:
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=120)
    assert f"bindAddress=0.0.0.0 has no effect: --listen is {told}" in errors


def test_up_on_all_addresses_tells_clients_one_that_leads_here_from_outside(tmp_path: Path) -> None:
    ports = ("--namesrv-port", "0", "--broker-port", "0")
    process = run_command("up", "--no-console", "--store", str(tmp_path), *ports, "--listen", "0.0.0.0")
    try:
        assert process.stdout is not None
        _, _, namesrv, _, broker, *_ = process.stdout.readline().split()
        assert broker.rpartition(":")[0] == interface_outward()
        for address in (namesrv, broker):
            socket.create_connection(("127.0.0.3", int(address.rpartition(":")[2])), timeout=60).close()
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=120)
