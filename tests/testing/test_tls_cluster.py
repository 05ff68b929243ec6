"""TLS from end to end: NameServer, broker, slave, clients and admin, where nothing plain is taken."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from contrailmq import Admin, ConsumeFromWhere, LitePullConsumer, Message, Producer, SendStatus
from contrailmq.broker.config import BrokerConfig, read_configs
from contrailmq.broker.server import BrokerServer
from contrailmq.broker.state.topics import Topic
from contrailmq.cli import app
from contrailmq.message import ContrailError
from contrailmq.namesrv import NameServer, NamesrvConfig
from contrailmq.testing import LocalCluster
from contrailmq.wire.errors import ConnectError
from contrailmq.wire.tls import KEYS, client_tls, server_tls
from contrailmq.wire.transport import RemotingClient
from waiting_for import until

ROOT = Path(__file__).parents[2]
CERTS = ROOT / "tests" / "wire" / "certs"
CA = CERTS / "ca.pem"
ENFORCED = {
    "tls.server.mode": "enforcing",
    "tls.server.certPath": str(CERTS / "server.pem"),
    "tls.server.keyPath": str(CERTS / "server.key"),
    "tls.server.trustCertPath": str(CA),
    "tls.server.need.client.auth": "require",
    "tls.enable": "true",
    "tls.client.trustCertPath": str(CA),
    "tls.client.certPath": str(CERTS / "client.pem"),
    "tls.client.keyPath": str(CERTS / "client.key"),
}
OF_CLIENT = {key: text for key, text in ENFORCED.items() if not key.startswith("tls.server")}
TLS_ONLY = "takes TLS only"


def variables(settings: dict[str, str]) -> dict[str, str]:
    """The environment's names, as the guide tells them."""
    names = {key: re.sub(r"(?<=[a-z])([A-Z])", r"_\1", key).upper().replace(".", "_") for key in settings}
    return {f"CONTRAILMQ_{names[key]}": text for key, text in settings.items()}


@pytest.fixture(scope="module", params=[False, True], ids=["threads", "processes"])
def cluster(request: pytest.FixtureRequest) -> Iterator[LocalCluster]:
    with LocalCluster(config=ENFORCED, processes=request.param) as made:
        yield made


def received(pull: LitePullConsumer) -> list[bytes]:
    found: list[bytes] = []
    until(lambda: found.extend(message.body for message in pull.poll(timeout=1.0)) or found, "a message")
    return found


def test_a_client_with_tls_sends_and_receives_and_a_plain_one_is_told_why_not(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = client_tls(OF_CLIENT)
    assert context is not None
    with (
        Producer("shop", namesrv=cluster.namesrv, tls=context) as producer,
        LitePullConsumer(
            "audit", namesrv=cluster.namesrv, tls=context, from_where=ConsumeFromWhere.FIRST_OFFSET
        ) as pull,
    ):
        assert producer.send(Message("Orders", b"secret")).status is SendStatus.OK
        pull.subscribe("Orders")
        assert received(pull) == [b"secret"]
    with Producer("shop", namesrv=cluster.namesrv) as plain, pytest.raises(ContrailError, match=TLS_ONLY):
        plain.send(Message("Orders", b"open"))
    with monkeypatch.context() as environment:
        for name, text in variables(OF_CLIENT).items():
            environment.setenv(name, text)
        with Producer("shop", namesrv=cluster.namesrv) as producer:
            assert producer.send(Message("Orders", b"by the environment")).status is SendStatus.OK
        with Producer("shop", namesrv=cluster.namesrv, tls=False) as plain, pytest.raises(ContrailError):
            plain.send(Message("Orders", b"open"))


def test_a_plain_request_to_the_broker_is_refused_with_a_text_and_the_connection_closed(cluster: LocalCluster) -> None:
    async def ask() -> None:
        client = RemotingClient()
        for address in (cluster.broker_addresses[0], cluster.namesrv):
            connection = await client.connect(address)
            ended = asyncio.Event()
            connection.on_close.append(lambda gone, ended=ended: ended.set())
            answer = await connection.invoke(28, None, b"", timeout_s=120)
            assert (answer.code, answer.body) == (16, b"")
            assert TLS_ONLY in (answer.remark or "")
            await ended.wait()
        await client.close()

    asyncio.run(asyncio.wait_for(ask(), 120))


def test_admin_with_tls_lists_and_without_it_says_what_is_missing(
    cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = ["--tls-ca", str(CA), "--tls-cert", str(CERTS / "client.pem"), "--tls-key", str(CERTS / "client.key")]
    made = CliRunner().invoke(app, ["admin", *flags, "topic", "create", "Made", "-n", cluster.namesrv])
    assert made.exit_code == 0, made.output
    ask = ["topic", "list", "-n", cluster.namesrv]
    listed = CliRunner().invoke(app, ["admin", *flags, *ask])
    assert listed.exit_code == 0, listed.output
    assert "Made" in listed.output
    of_broker = CliRunner().invoke(app, ["admin", *flags, "broker", "status", cluster.broker_addresses[0], "--json"])
    assert of_broker.exit_code == 0, of_broker.output
    plain = CliRunner().invoke(app, ["admin", *ask])
    assert (plain.exit_code, TLS_ONLY in plain.output) == (1, True), plain.output
    unknown = CliRunner().invoke(app, ["admin", "--tls", *ask])  # the system's CAs did not sign it
    assert unknown.exit_code == 1
    assert "trust the CA of the server's certificate" in unknown.output.replace("\n", " ")
    other_name = CliRunner().invoke(app, ["admin", *flags, "--tls-server-name", "elsewhere", *ask])
    assert other_name.exit_code == 1
    said = other_name.output.replace("\n", " ")
    assert "its certificate is not for 'elsewhere'" in said
    assert "--tls-server-name" in said
    assert "trust the CA" not in said
    wrong = CliRunner().invoke(app, ["admin", "--tls-ca", "nowhere.pem", *ask])
    assert (wrong.exit_code, "nowhere.pem cannot be read" in wrong.output.replace("\n", " ")) == (2, True)
    for name, text in variables(OF_CLIENT).items():
        monkeypatch.setenv(name, text)
    assert CliRunner().invoke(app, ["admin", *ask]).exit_code == 0


def test_a_slave_copies_from_its_master_over_tls(tmp_path: Path) -> None:
    def broker(path: Path, namesrv: str, **settings: str) -> BrokerServer:
        own = {"brokerName": "b", "bindAddress": "127.0.0.1", "listenPort": "0", "namesrvAddr": namesrv}
        small: dict[str, object] = {"mapped_file_size_commit_log": 1 << 20, "max_hash_slot_num": 100}
        config, store_config, warnings = read_configs(own | ENFORCED | settings, path=path, max_index_num=400, **small)
        assert not warnings, "no key of TLS is unknown"
        return BrokerServer(config, store_config, tls=server_tls(ENFORCED), client_tls=client_tls(ENFORCED))

    async def serve() -> None:
        names = NameServer(
            NamesrvConfig(bind_address="127.0.0.1", listen_port=0, rocketmq_home=str(tmp_path)),
            tls=server_tls(ENFORCED),
        )
        async with contextlib.AsyncExitStack() as running:
            await names.start()
            running.push_async_callback(names.stop)
            master = broker(tmp_path / "master", names.address)
            await master.start()
            running.push_async_callback(master.stop)
            master.node.topics.put(Topic("Copied"))
            slave = broker(tmp_path / "slave", names.address, brokerRole="SLAVE", brokerId="1")
            await slave.start()
            running.push_async_callback(slave.stop)
            assert slave.slave_sync is not None
            assert slave.slave_sync.master == master.address
            assert await slave.slave_sync.copy_all()
            assert "Copied" in slave.node.topics

    asyncio.run(asyncio.wait_for(serve(), 120))


def test_a_plain_broker_is_told_why_a_name_server_does_not_take_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def serve() -> None:
        names = NameServer(
            NamesrvConfig(bind_address="127.0.0.1", listen_port=0, rocketmq_home=str(tmp_path)),
            tls=server_tls(ENFORCED),
        )
        await names.start()
        own = {"brokerName": "b", "bindAddress": "127.0.0.1", "listenPort": "0", "namesrvAddr": names.address}
        config, store_config, _ = read_configs(own, path=tmp_path / "store", max_hash_slot_num=100, max_index_num=400)
        plain = BrokerServer(config, store_config.replaced(mapped_file_size_commit_log=1 << 20))
        await plain.start()
        await plain.stop()
        await names.stop()

    asyncio.run(asyncio.wait_for(serve(), 120))
    told = [record.message for record in caplog.records if "not registered with NameServer" in record.message]
    assert len(told) == 1
    assert TLS_ONLY in told[0]


def test_a_tls_client_at_a_plain_server_and_one_that_trusts_another_ca_are_told_what_to_look_at() -> None:
    async def dialled(address: str, settings: dict[str, str]) -> str:
        client = RemotingClient(tls=client_tls(settings))
        try:
            with pytest.raises(ConnectError) as refused:
                await client.connect(address)
            return str(refused.value)
        finally:
            await client.close()

    with LocalCluster() as plain:
        assert "no TLS there" in asyncio.run(dialled(plain.namesrv, OF_CLIENT))
    with LocalCluster(config=ENFORCED) as secured:
        text = asyncio.run(
            dialled(secured.namesrv, OF_CLIENT | {"tls.client.trustCertPath": str(CERTS / "client.pem")})
        )
        assert "tls.client.trustCertPath" in text


def test_no_key_of_tls_is_called_unknown_and_a_misspelt_one_is_an_error() -> None:
    _, warnings = BrokerConfig.from_properties(dict.fromkeys(KEYS, "false"))
    assert warnings == []
    _, warnings = NamesrvConfig.from_properties(dict.fromkeys(KEYS, "false"))
    assert warnings == []
    with (
        pytest.raises(ContrailError, match=r"did you mean tls\.server\.mode"),
        LocalCluster(config={"tls.servr.mode": "x"}),
    ):
        pytest.fail("a cluster without the TLS that was asked for was started")


def test_the_file_of_tls_settings_counts_and_what_is_said_elsewhere_wins(tmp_path: Path) -> None:
    file = tmp_path / "tls.properties"
    file.write_text("".join(f"{key}={text}\n" for key, text in ENFORCED.items()))
    found = server_tls({"tls.config.file": str(file)})
    assert found is not None
    assert (found.mode.value, found.context is not None) == ("enforcing", True)
    found = server_tls({"tls.config.file": str(file), "tls.server.mode": "permissive"})
    assert found is not None
    assert found.mode.value == "permissive"
    made = client_tls({"tls.config.file": str(file)})
    assert made is not None
    assert made.verify_mode is ssl.CERT_REQUIRED
    with pytest.raises(ContrailError, match=r"gone\.properties cannot be read"):
        server_tls({"tls.config.file": str(tmp_path / "gone.properties")})


def test_a_ca_that_is_named_is_verified_and_without_one_the_log_warns(caplog: pytest.LogCaptureFixture) -> None:
    trusting = client_tls({"useTLS": "true", "tls.client.trustCertPath": str(CA)})
    assert trusting is not None
    assert trusting.verify_mode is ssl.CERT_REQUIRED
    assert not caplog.records
    blind = client_tls({"tls.enable": "true"})
    assert blind is not None
    assert blind.verify_mode is ssl.CERT_NONE
    assert "TLS without verification" in caplog.text


def test_the_guides_commands_make_certificates_that_serve(tmp_path: Path) -> None:
    """The blocks of docs/security.md as they stand: openssl, the settings, and a client."""
    section = (ROOT / "docs" / "security.md").read_text().split("\n## TLS\n")[1].split("\n## ")[0]
    shell, settings, python, *_ = re.findall(r"```\w+\n(.*?)```", section, re.DOTALL)
    subprocess.run(["bash", "-euc", shell], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "tls.conf").write_text(settings)
    ports = ["--namesrv-port", "0", "--broker-port", "0", "--store", "store"]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen(
        [sys.executable, "-m", "contrailmq", "up", "--no-console", "-c", "tls.conf", *ports],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("ready "), process.communicate()
        program = python.replace("10.0.0.1:9876", line.split()[2])
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, env=environment, check=False
        )
        assert (done.returncode, "SendStatus.OK" in done.stdout) == (0, True), done.stderr
        flags = ["--tls-ca", "ca.pem", "--tls-cert", "client.pem", "--tls-key", "client.key"]
        listed = subprocess.run(
            [sys.executable, "-m", "contrailmq", "admin", *flags, "topic", "list", "-n", line.split()[2]],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        assert (listed.returncode, "Orders" in listed.stdout) == (0, True), listed.stderr
    finally:
        process.terminate()
        process.communicate(timeout=120)


def test_blocking_admin_takes_a_context(cluster: LocalCluster) -> None:
    context = client_tls(OF_CLIENT)
    assert context is not None
    with Admin(namesrv=cluster.namesrv, tls=context) as admin:
        assert cluster.broker_addresses[0] in str(admin.cluster())
