"""TLS and plain peers on one port, by mode; mutual TLS."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from contrailmq.wire.errors import ConnectError, LocalProtocolError, WireError
from contrailmq.wire.frame import encode_response
from contrailmq.wire.header import Command
from contrailmq.wire.tls import ServerTls, TlsMode, client_tls, server_tls
from contrailmq.wire.transport import Connection, RemotingClient, RemotingServer, new_event_loop

CERTS = Path(__file__).parent / "certs"
SERVER = {
    "tls.server.certPath": str(CERTS / "server.pem"),
    "tls.server.keyPath": str(CERTS / "server.key"),
    "tls.server.trustCertPath": str(CERTS / "ca.pem"),
}
CLIENT = {"tls.enable": "true"}
VERIFYING = {**CLIENT, "tls.client.authServer": "true", "tls.client.trustCertPath": str(CERTS / "ca.pem")}
WITH_CERTIFICATE = {
    **VERIFYING,
    "tls.client.certPath": str(CERTS / "client.pem"),
    "tls.client.keyPath": str(CERTS / "client.key"),
}


def echo(connection: Connection, commands: list[Command]) -> None:
    for command in commands:
        connection.reply(encode_response(command, 0, None, command.body))


async def ask(server_settings: dict[str, str], client_settings: dict[str, str]) -> bytes:
    server = RemotingServer(echo, host="127.0.0.1", tls=server_tls(server_settings))
    await server.start()
    client = RemotingClient(tls=client_tls(client_settings))
    try:
        body = b"x" * 300_000
        answer = await client.invoke(server.address, 1, None, body, timeout_s=5)
        assert answer.body == body
        return answer.body
    finally:
        await client.close()
        await server.close(drain_seconds=0)


GOOD = [
    pytest.param(SERVER, {}, id="permissive, plain client"),
    pytest.param(SERVER, CLIENT, id="permissive, TLS client"),
    pytest.param(SERVER, VERIFYING, id="permissive, verifying client"),
    pytest.param({**SERVER, "tls.server.mode": "enforcing"}, CLIENT, id="enforcing, TLS client"),
    pytest.param({**SERVER, "tls.server.mode": "disabled"}, {}, id="disabled, plain client"),
    pytest.param({}, {}, id="nothing configured, plain client"),
    pytest.param({**SERVER, "tls.server.need.client.auth": "require"}, WITH_CERTIFICATE, id="mutual"),
    pytest.param({**SERVER, "tls.server.need.client.auth": "optional"}, CLIENT, id="optional, no certificate"),
]
BAD = [
    pytest.param({**SERVER, "tls.server.mode": "enforcing"}, {}, id="enforcing, plain client"),
    pytest.param({**SERVER, "tls.server.mode": "disabled"}, CLIENT, id="disabled, TLS client"),
    pytest.param({**SERVER, "tls.server.need.client.auth": "require"}, CLIENT, id="mutual, no certificate"),
    pytest.param(
        SERVER,
        {**VERIFYING, "tls.client.trustCertPath": str(CERTS / "client.pem")},
        id="server's certificate not trusted",
    ),
]
LOOPS = pytest.mark.parametrize("loop", [new_event_loop, asyncio.new_event_loop], ids=["uvloop", "asyncio"])
Loop = Callable[[], asyncio.AbstractEventLoop]


@LOOPS
@pytest.mark.parametrize(("server", "client"), GOOD)
def test_the_modes_that_serve(server: dict[str, str], client: dict[str, str], loop: Loop) -> None:
    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(asyncio.wait_for(ask(server, client), 10))


@LOOPS
@pytest.mark.parametrize(("server", "client"), BAD)
def test_the_modes_that_refuse(server: dict[str, str], client: dict[str, str], loop: Loop) -> None:
    with asyncio.Runner(loop_factory=loop) as runner, pytest.raises(WireError):
        runner.run(asyncio.wait_for(ask(server, client), 10))


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(LocalProtocolError, match="disabled, permissive and enforcing exist"):
        server_tls({"tls.server.mode": "sometimes"})
    with pytest.raises(LocalProtocolError, match="needs a certificate"):
        server_tls({"tls.server.mode": "enforcing"})
    with pytest.raises(LocalProtocolError, match=r"nowhere\.pem"):
        server_tls({"tls.server.certPath": "nowhere.pem"})
    with pytest.raises(LocalProtocolError, match=r"nowhere\.pem"):
        client_tls({**VERIFYING, "tls.client.trustCertPath": "nowhere.pem"})
    with pytest.raises(LocalProtocolError):
        ServerTls(TlsMode.PERMISSIVE)
    assert server_tls({}) is None
    assert client_tls({}) is None


def test_closing_a_peeking_server_drops_connections_that_said_nothing() -> None:
    async def main() -> None:
        server = RemotingServer(echo, host="127.0.0.1", tls=server_tls(SERVER))
        await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        _tls_reader, tls_writer = await asyncio.open_connection("127.0.0.1", server.port)
        tls_writer.write(b"\x16")  # a handshake that never goes on
        client = RemotingClient()
        await client.invoke(server.address, 1)  # accepted after the two
        await server.close(drain_seconds=0)
        assert await reader.read() == b""
        writer.close()
        tls_writer.close()
        await client.close()
        with pytest.raises(ConnectError):
            await RemotingClient().connect(server.address)

    asyncio.run(asyncio.wait_for(main(), 10))
