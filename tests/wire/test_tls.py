"""TLS and plain peers on one port, by mode; mutual TLS."""

from __future__ import annotations

import asyncio
import errno
import logging
import re
import socket
import ssl
import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from contrailmq.wire import listener as listener_module
from contrailmq.wire.codes import ResponseCode
from contrailmq.wire.errors import ConnectError, LocalProtocolError, WireError
from contrailmq.wire.frame import FrameParser, encode_request, encode_response
from contrailmq.wire.header import Command
from contrailmq.wire.tls import ServerTls, TlsMode, client_tls, server_tls
from contrailmq.wire.transport import Connection, RemotingClient, RemotingServer, new_event_loop
from waiting_for import until_async

from .peers import Run, request, turns_until
from .test_churn import sockets_at

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


async def ask(server_settings: dict[str, str], client_settings: dict[str, str], *, host: str = "127.0.0.1") -> bytes:
    server = RemotingServer(echo, host=host, tls=server_tls(server_settings))
    await server.start()
    client = RemotingClient(tls=client_tls(client_settings))
    try:
        body = b"x" * 300_000
        answer = await client.invoke(server.address, 1, None, body, timeout_s=120)
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
        assert runner.run(asyncio.wait_for(ask(server, client), 120))


@LOOPS
@pytest.mark.parametrize(("server", "client"), BAD)
def test_the_modes_that_refuse(server: dict[str, str], client: dict[str, str], loop: Loop) -> None:
    with asyncio.Runner(loop_factory=loop) as runner, pytest.raises(WireError):
        runner.run(asyncio.wait_for(ask(server, client), 120))


@LOOPS
def test_a_handshake_that_fails_is_told_with_the_peer_and_a_reason(
    loop: Loop, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever does not trust the certificate hangs up, which has no text of its own."""

    async def main() -> None:
        server = RemotingServer(lambda *_: None, host="127.0.0.1", tls=server_tls(SERVER))
        await server.start()
        distrust = ssl.create_default_context()
        with pytest.raises(ssl.SSLError):
            await asyncio.open_connection("127.0.0.1", server.port, ssl=distrust, server_hostname="elsewhere")
        await turns_until(lambda: bool(caplog.messages))
        await server.close(drain_seconds=0)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(asyncio.wait_for(main(), 120))
    assert re.fullmatch(r"TLS handshake failed: 127\.0\.0\.1:\d+: \S.*", caplog.messages[0])


@LOOPS
def test_where_tls_is_enforced_a_plain_request_is_told_so_and_reaches_nobody(loop: Loop) -> None:
    """With a oneway before it, which is dropped, and half a request behind it. The connection ends after the answer."""

    async def main() -> None:
        served: list[Command] = []
        enforced = server_tls({**SERVER, "tls.server.mode": "enforcing"})
        server = RemotingServer(lambda _, commands: served.extend(commands), host="127.0.0.1", tls=enforced)
        await server.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(encode_request(2, None, opaque=1, is_oneway=True) + request(7) + request(8)[:5])
        (answer,) = FrameParser().feed(await reader.read())
        assert (answer.opaque, answer.code) == (7, ResponseCode.NO_PERMISSION)
        assert "this port takes TLS only (tls.server.mode=enforcing)" in str(answer.remark)
        assert served == []
        writer.close()
        await turns_until(lambda: not server.connections)
        await server.close(drain_seconds=0)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(asyncio.wait_for(main(), 120))


@pytest.mark.parametrize("server", [{}, SERVER], ids=["plain", "TLS"])
def test_an_address_may_be_ipv6(server: dict[str, str]) -> None:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as exc:
        pytest.skip(f"no IPv6 here: {exc}")
    assert asyncio.run(ask(server, CLIENT if server else {}, host="::1"))


def test_an_encrypted_key_needs_its_password_and_nobody_is_asked_for_it() -> None:
    encrypted = {**SERVER, "tls.server.keyPath": str(CERTS / "server.encrypted.key")}
    with pytest.raises(LocalProtocolError, match="an encrypted key needs its keyPassword"):
        server_tls(encrypted)
    opened = server_tls({**encrypted, "tls.server.keyPassword": "secret"})
    assert opened is not None
    assert opened.mode is TlsMode.PERMISSIVE


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(LocalProtocolError, match="disabled, permissive and enforcing exist"):
        server_tls({"tls.server.mode": "sometimes"})
    with pytest.raises(LocalProtocolError, match="needs a certificate"):
        server_tls({"tls.server.mode": "enforcing"})
    with pytest.raises(LocalProtocolError, match=r"nowhere\.pem"):
        server_tls({"tls.server.certPath": "nowhere.pem"})
    with pytest.raises(LocalProtocolError, match=r"nowhere\.pem"):
        client_tls({**VERIFYING, "tls.client.trustCertPath": "nowhere.pem"})
    with pytest.raises(LocalProtocolError, match=r"did you mean tls\.server\.mode\?"):
        server_tls({"tls.server.mod": "enforcing"})
    with pytest.raises(LocalProtocolError, match="'required': none, optional and require exist"):
        server_tls({**SERVER, "tls.server.need.client.auth": "required"})
    with pytest.raises(LocalProtocolError, match=r"did you mean tls\.client\.authServer\?"):
        client_tls({"tls.enable": "true", "tls.client.authserver": "true"})
    with pytest.raises(LocalProtocolError):
        ServerTls(TlsMode.PERMISSIVE)
    assert server_tls({}) is None
    assert client_tls({}) is None


class Exhausted:
    """A listening socket for which there are no descriptors, until there are."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self.attempts = 0
        self.has_descriptors = False

    @property
    def port(self) -> int:
        return int(self._listening.getsockname()[1])

    async def tried(self, attempts: int) -> None:
        for _ in range(100_000):
            if self.attempts >= attempts:
                return
            await asyncio.sleep(0)
        raise AssertionError(f"{self.attempts} attempts")

    def fileno(self) -> int:
        return self._listening.fileno()

    def setblocking(self, is_blocking: bool) -> None:
        self._listening.setblocking(is_blocking)

    def close(self) -> None:
        self._listening.close()

    def accept(self) -> tuple[socket.socket, object]:
        self.attempts += 1
        if not self.has_descriptors:
            raise OSError(errno.EMFILE, "Too many open files")
        return self._listening.accept()


@pytest.mark.parametrize("tls", [server_tls(SERVER), None], ids=["TLS and plain", "plain"])
def test_without_descriptors_accepting_pauses_is_logged_once_and_goes_on(
    tls: ServerTls | None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A client waits in the backlog all the while. The pause is an hour, ended by hand, and at last no time at all."""

    async def main() -> None:
        monkeypatch.setattr(listener_module, "_ACCEPT_PAUSE_SECONDS", 3600.0)
        listening = Exhausted(socket.create_server(("127.0.0.1", 0)))
        listener = listener_module.Listener(listening, lambda: Connection(echo), tls)  # type: ignore[arg-type]
        client = RemotingClient()
        connection = await client.connect(f"127.0.0.1:{listening.port}")  # by the kernel alone
        for attempts in (1, 2):
            for _ in range(100):
                await asyncio.sleep(0)
            assert listening.attempts == attempts
            assert listener._resuming is not None
            listener._resuming.cancel()
            listener._resume()
        monkeypatch.setattr(listener_module, "_ACCEPT_PAUSE_SECONDS", 0.0)
        await listening.tried(4)
        listening.has_descriptors = True
        assert (await connection.invoke(1, None, b"late", timeout_s=120)).body == b"late"
        await listener.close(1)
        await client.close()

    caplog.set_level(logging.INFO)
    asyncio.run(asyncio.wait_for(main(), 120))
    assert [record.message for record in caplog.records if "accepting failed" in record.message] == [
        "accepting failed: [Errno 24] Too many open files; trying every 3600 s; raise the limit on open files if it is"
        " reached",
        "accepting failed: it goes on, after 0.0 s",
    ]


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

    asyncio.run(asyncio.wait_for(main(), 120))


# Nothing, a plain request, its beginning, a handshake's first byte, its beginning, and a record that is no handshake.
FIRST_WORDS = (
    b"",
    request(1),
    request(1)[:5],
    b"\x16",
    bytes.fromhex("16030100c8010000c40303"),
    b"\x16\x03\x01\x00\x10" + bytes(16),
    b"\xff" * 8,
)


def test_peers_that_come_and_go_in_any_state_leave_nothing_behind_on_a_port_with_tls(run: Run) -> None:
    """Half of them reset. What is left behind would be a descriptor, a timer, a task or a connection."""

    async def main() -> None:
        server = RemotingServer(echo, host="127.0.0.1", tls=server_tls(SERVER))
        await server.start()
        (listener,) = server._listeners

        sockets = lambda: sockets_at(server.port)  # noqa: E731

        async def be_served() -> None:
            client = RemotingClient(tls=client_tls(CLIENT))
            assert (await client.invoke(server.address, 1, None, b"there", timeout_s=120)).body == b"there"
            await client.close()
            await turns_until(lambda: not (listener._silent or listener._entering or server.connections))

        await be_served()
        before = sockets()
        for number in range(700):
            with socket.create_connection(("127.0.0.1", server.port)) as peer:
                peer.sendall(FIRST_WORDS[number % len(FIRST_WORDS)])
                for _ in range(number % 4):  # it is accepted, looked at, read, or none of these
                    await asyncio.sleep(0)
                if number % 2:
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        await be_served()
        await until_async(lambda: sockets() <= before, "no socket is left over", seen=sockets)
        await server.close(drain_seconds=0)

    run(main())
