"""Settings that name hosts and ports: what cannot be dialled or bound is refused at the start, with its key."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from contrailmq.broker import BrokerServer
from contrailmq.broker.config import BrokerConfig, BrokerConfigError, read_configs
from contrailmq.cli import app
from contrailmq.store.base.errors import StoreConfigError


def read(path: Path, **settings: str) -> None:
    read_configs(settings, path=path)


@pytest.mark.parametrize("value", ["x", "host", "host:", ":10912", "host:65536", "host:0", "a:1;b:2", "ho st:10912"])
def test_a_ha_address_that_cannot_be_dialled_is_refused_at_the_start(value: str, tmp_path: Path) -> None:
    with pytest.raises(StoreConfigError, match=rf"haMasterAddress='{value}': .*host:port of the master's HA port"):
        read(tmp_path, brokerRole="SLAVE", brokerId="1", haMasterAddress=value)


@pytest.mark.parametrize("value", ["", "host:10912", "10.0.0.1:65535", "[::1]:10912", "::1:10912"])
def test_a_ha_address_that_apache_takes_is_taken(value: str, tmp_path: Path) -> None:
    read(tmp_path, brokerRole="SLAVE", brokerId="1", haMasterAddress=value)


@pytest.mark.parametrize("value", ["x", "h:65536", "h:0", "a:9876;b", "a:9876;b:70000", "a b:9876", "http://a:9876"])
def test_a_name_server_that_cannot_be_dialled_is_refused_at_the_start(value: str, tmp_path: Path) -> None:
    with pytest.raises(BrokerConfigError, match=r"namesrvAddr='.*': host:port, several joined by ';'"):
        read(tmp_path, namesrvAddr=value)


def test_of_several_name_servers_the_one_that_is_wrong_is_named(tmp_path: Path) -> None:
    with pytest.raises(BrokerConfigError, match="b:70000"):
        read(tmp_path, namesrvAddr="a:9876;b:70000;c:9876")


@pytest.mark.parametrize("value", ["", "h:9876", "a:9876;b:9876", "a:9876; b:9876;", "a:9876,b:9876", "[::1]:9876"])
def test_name_servers_that_apache_takes_are_taken(value: str, tmp_path: Path) -> None:
    read(tmp_path, namesrvAddr=value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("brokerIP1", "1.2.3.4:10911"),
        ("brokerIP1", "300.1.1.1"),
        ("brokerIP1", "localhost"),
        ("brokerIP2", "1.2.3.4:10912"),
        ("brokerIP2", "a;b"),
        ("bindAddress", "0.0.0.0:10911"),
        ("bindAddress", "a b"),
        ("bindAddress", "[::1]"),
        ("metricsPromExporterHost", "127.0.0.1:5557"),
    ],
)
def test_an_address_of_the_broker_that_is_none_is_refused_with_its_key(key: str, value: str, tmp_path: Path) -> None:
    with pytest.raises(BrokerConfigError) as refused:
        read(tmp_path, **{key: value})
    assert str(refused.value).startswith(f"broker setting {key}={value!r}: ")


def test_a_name_to_bind_needs_an_address_for_clients(tmp_path: Path) -> None:
    with pytest.raises(BrokerConfigError, match="bindAddress='localhost': .*set brokerIP1"):
        read(tmp_path, bindAddress="localhost")
    read(tmp_path, bindAddress="localhost", brokerIP1="127.0.0.1")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("brokerIP1", "10.0.0.1"),
        ("brokerIP1", "::1"),
        ("brokerIP1", "fe80::1%eth0"),
        ("brokerIP2", "ha.example"),
        ("brokerIP2", "::1"),
        ("brokerIP2", "[::1]"),
        ("bindAddress", ""),
        ("bindAddress", "::"),
        ("metricsPromExporterHost", ""),
        ("metricsPromExporterHost", "localhost"),
    ],
)
def test_an_address_of_the_broker_is_taken(key: str, value: str, tmp_path: Path) -> None:
    read(tmp_path, **{key: value})


@pytest.mark.parametrize("value", ["::1", "[::1]"])
def test_clients_get_an_ipv6_address_with_brackets_or_without(value: str, tmp_path: Path) -> None:
    settings = {"listenPort": "0", "bindAddress": "127.0.0.1", "brokerIP1": value}
    config, store_config, _ = read_configs(settings, path=tmp_path)

    async def serve() -> tuple[str, int]:
        broker = BrokerServer(config, store_config)
        await broker.start()
        try:
            return broker.node.address, broker.port
        finally:
            await broker.stop()

    address, port = asyncio.run(serve())
    assert address == f"::1:{port}"


def test_a_target_of_metrics_with_an_impossible_port_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokerConfigError, match="metricsGrpcExporterTarget='otel:70000'"):
        read(tmp_path, metricsExporterType="OTLP_GRPC", metricsGrpcExporterTarget="otel:70000")
    read(tmp_path, metricsExporterType="OTLP_GRPC", metricsGrpcExporterTarget="http://otel:4317")


def test_an_update_cannot_name_a_server_that_cannot_be_dialled() -> None:
    with pytest.raises(BrokerConfigError, match="b:70000"):
        BrokerConfig().update({"namesrvAddr": "a:9876;b:70000"})


def test_the_command_ends_with_the_key_the_value_and_the_remedy(tmp_path: Path) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text(
        f"brokerRole=SLAVE\nbrokerId=1\nstorePathRootDir={tmp_path}/store\nhaMasterAddress=10.0.0.1:76448\n"
    )
    result = CliRunner().invoke(app, ["broker", "-c", str(conf)])
    said = " ".join(result.output.split())
    assert result.exit_code == 1
    assert "haMasterAddress='10.0.0.1:76448'" in said
    assert "a port of at most 65535" in said


def test_a_settings_file_that_was_changed_at_run_time_is_checked_too(tmp_path: Path) -> None:
    config, store_config, _ = read_configs({"listenPort": "0", "bindAddress": "127.0.0.1"}, path=tmp_path)
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "broker.properties").write_text("namesrvAddr=a:70000\n")

    async def serve() -> None:
        await BrokerServer(config, store_config).start()

    with pytest.raises(Exception, match=r"broker\.properties.*a:70000"):
        asyncio.run(serve())
