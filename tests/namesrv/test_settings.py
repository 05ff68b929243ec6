"""Settings of a NameServer: ranges, what may change while it runs, and that changes survive a restart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from typer.testing import CliRunner

from contrailmq.cli import app
from contrailmq.cli import serving as cli_serving
from contrailmq.namesrv import NameServer, NamesrvConfig, kv_config
from contrailmq.wire.codes import RequestCode as Code
from contrailmq.wire.properties import SettingsError, parse_properties, read_properties
from contrailmq.wire.transport import RemotingClient

from .test_server import Clock, ext, registration, running

OUT_OF_RANGE = [
    ("scanNotActiveBrokerInterval", "0", "is 0: it takes 10 to 2147483647"),
    ("scanNotActiveBrokerInterval", "1" + "0" * 400, "is a number of 1329 bits: it takes 10 to 2147483647"),
    ("serverChannelMaxIdleTimeSeconds", "0", "is 0: it takes 1 to 86400"),
    ("serverChannelMaxIdleTimeSeconds", "-1", "is -1: it takes 1 to 86400"),
    ("shutdownWaitTimeSeconds", "3601", "is 3601: it takes 0 to 3600"),
    ("waitSecondsForService", "-5", "is -5: it takes 0 to 86400"),
    ("serverWorkerThreads", "2147483648", "is 2147483648: it takes 0 to 2147483647"),
]


@pytest.mark.parametrize(("key", "value", "cause"), [*OUT_OF_RANGE, ("listenPort", "99999", "takes 0 to 65535")])
def test_a_number_out_of_range_is_refused_at_the_start(key: str, value: str, cause: str, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=f"setting {key} .*{cause}"):
        NamesrvConfig.from_properties({key: value})
    file = tmp_path / "namesrv.conf"
    file.write_text(f"{key}={value}\n")
    for arguments in (["-c", str(file)], ["--set", f"{key}={value}"]):
        result = CliRunner().invoke(app, ["namesrv", "-p", *arguments])
        assert (result.exit_code, f"setting {key}" in result.output, cause in result.output) == (1, True, True)


def test_a_port_that_does_not_exist_is_refused_and_not_cut_to_16_bits() -> None:
    result = CliRunner().invoke(app, ["namesrv", "-p", "-n", "127.0.0.1:70000"])
    assert result.exit_code == 1
    assert "-n is '127.0.0.1:70000': it takes host:port, with a port of 0 to 65535" in result.output
    result = CliRunner().invoke(app, ["namesrv", "-p", "--set", "listenPort=70000"])
    assert result.exit_code == 1
    assert "setting listenPort is 70000: it takes 0 to 65535" in result.output


@pytest.mark.parametrize(("key", "value", "cause"), OUT_OF_RANGE)
def test_an_update_with_a_number_out_of_range_changes_nothing(key: str, value: str, cause: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (server, ask, _client):
            before = server.config
            refused = await ask(Code.UPDATE_NAMESRV_CONFIG, {}, f"orderMessageEnable=true\n{key}={value}".encode())
            assert refused.code == 1
            assert f"setting {key} {cause}" in str(refused.remark)
            assert server.config == before
            assert not server.config.config_file.exists()

    asyncio.run(asyncio.wait_for(main(), 120))


@pytest.mark.parametrize("black_list", ["", "productEnvName"])
def test_what_moves_files_or_ports_is_never_changed_while_the_server_runs(black_list: str, tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path, config_black_list=black_list) as (server, ask, _client):
            before = server.config
            keys = ["rocketmqHome", "kvConfigPath", "configStorePath", "configBlackList", "listenPort", "bindAddress"]
            for key in [*keys, *filter(None, [black_list])]:
                refused = await ask(Code.UPDATE_NAMESRV_CONFIG, {}, f"orderMessageEnable=true\n{key}=1".encode())
                assert (refused.code, refused.remark) == (16, f"Can not update config in black list: {key}")
            assert server.config == before

    asyncio.run(asyncio.wait_for(main(), 120))


def test_half_a_character_is_refused_and_a_whole_one_is_kept(tmp_path: Path) -> None:
    """Java writes characters beyond 16 bits as two escapes."""

    async def main() -> None:
        async with running(tmp_path) as (server, ask, _client):
            before = server.config
            refused = await ask(Code.UPDATE_NAMESRV_CONFIG, {}, rb"productEnvName=\ud800")
            assert refused.code == 1
            assert "come in pairs" in str(refused.remark)
            assert server.config == before
            assert (await ask(Code.UPDATE_NAMESRV_CONFIG, {}, rb"productEnvName=\ud83d\ude00")).code == 0
            assert server.config.product_env_name == "\U0001f600"
            shown = parse_properties((await ask(Code.GET_NAMESRV_CONFIG)).body.decode())
            assert shown["productEnvName"] == "\U0001f600"

    asyncio.run(asyncio.wait_for(main(), 120))


def test_a_mistake_of_ours_is_answered_and_the_connection_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with running(tmp_path) as (_server, ask, _client):
            monkeypatch.setattr(kv_config, "save", lambda *_: 1 // 0)
            for code in (Code.PUT_KV_CONFIG, Code.PUT_KV_CONFIG):
                failed = await ask(code, {"namespace": "n", "key": "k", "value": "v"})
                assert (failed.code, failed.remark) == (1, "ZeroDivisionError: integer division or modulo by zero")
            assert (await ask(Code.GET_NAMESRV_CONFIG)).code == 0

    asyncio.run(asyncio.wait_for(main(), 120))


def test_a_value_with_a_newline_does_not_become_a_second_setting(tmp_path: Path) -> None:
    async def main() -> None:
        async with running(tmp_path) as (server, ask, _client):
            assert (await ask(Code.UPDATE_NAMESRV_CONFIG, {}, rb"productEnvName=x\nkvConfigPath=/x")).code == 0
            assert read_properties(server.config.config_file) == {"productEnvName": "x\nkvConfigPath=/x"}
            shown = parse_properties((await ask(Code.GET_NAMESRV_CONFIG)).body.decode())
            assert shown["productEnvName"] == "x\nkvConfigPath=/x"
            assert shown["kvConfigPath"] == str(tmp_path / "namesrv" / "kvConfig.json")

    asyncio.run(asyncio.wait_for(main(), 120))


def test_a_change_is_written_to_the_file_of_the_command_line_and_read_at_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command as it is, twice with the same arguments; only waiting for a signal is replaced."""
    file = tmp_path / "namesrv.conf"
    file.write_text("# ours\nlistenPort=0\nbindAddress=127.0.0.1\ntls.test.mode.enable=false\n")
    seen: list[bool] = []

    def serve_once(serve: object) -> None:
        [server] = [cell.cell_contents for cell in serve.__closure__]  # type: ignore[attr-defined]
        assert isinstance(server, NameServer)
        seen.append(server.config.order_message_enable)

        async def main() -> None:
            changed = Code.UPDATE_NAMESRV_CONFIG
            await server.start()
            client = RemotingClient()
            assert (await client.invoke(server.address, changed, {}, b"orderMessageEnable=true")).code == 0
            await client.close()
            await server.stop()

        asyncio.run(asyncio.wait_for(main(), 120))

    monkeypatch.setattr(cli_serving, "run_until_stopped", serve_once)
    arguments = ["namesrv", "-c", str(file), "--set", f"rocketmqHome={tmp_path}"]
    for _ in range(2):
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
    assert seen == [False, True]
    assert read_properties(file) == {
        "listenPort": "0",
        "bindAddress": "127.0.0.1",
        "tls.test.mode.enable": "false",
        "orderMessageEnable": "true",
    }
    assert file.with_name("namesrv.conf.bak").exists()
    assert not (tmp_path / "namesrv" / "namesrv.properties").exists()


def test_scanning_goes_on_by_itself_and_after_an_exception(tmp_path: Path) -> None:
    """The timer runs, at 10 ms; the first scan fails, the loop hears of it, and the silent broker is forgotten."""

    async def main() -> None:
        clock = Clock()
        told: list[BaseException] = []
        scans: list[int] = []
        asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context["exception"]))
        async with running(tmp_path, clock, scan_not_active_broker_interval=10) as (server, ask, _client):
            scanned, scan = asyncio.Event(), server.scan

            def failing_once() -> None:
                scans.append(1)
                if len(scans) == 1:
                    raise OverflowError("int too large")
                scan()
                scanned.set()

            server.scan = failing_once  # type: ignore[method-assign]
            await ask(Code.REGISTER_BROKER, ext(heartbeatTimeoutMillis="5000"), registration("T", "U"))
            clock.now_ms += 5001
            scanned.clear()
            await scanned.wait()
            assert not server.tables.live
            assert [str(error) for error in told] == ["int too large"]

    asyncio.run(asyncio.wait_for(main(), 120))
