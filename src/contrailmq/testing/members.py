"""One broker of a local cluster, in this process or in its own. Both start, stop, die and come back alike."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from contrailmq.broker.config import read_configs
from contrailmq.broker.server import BrokerServer
from contrailmq.message import ContrailError
from contrailmq.store.config import rocketmq_key
from contrailmq.wire.bodies import KVTable, decode_body
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.properties import format_properties, is_setting
from contrailmq.wire.tls import client_tls, server_tls
from contrailmq.wire.transport import ENDS_WITH_STDIN, RemotingClient

log = logging.getLogger("contrailmq")


class ClusterError(ContrailError):
    """A member of the cluster did not start (the text holds what it said), or there is none of that number."""


class Member(Protocol):
    """A broker that can be started again after it stopped or was killed. It keeps its store and its port."""

    address: str
    ending: str  # how its process ended, "" while it runs or where it has none

    @property
    def is_running(self) -> bool: ...
    def __init__(self, path: Path, properties: Mapping[str, str], *, store_settings: Mapping[str, object]) -> None: ...
    async def start(self) -> None: ...
    async def stop(self) -> None: ...
    async def kill(self) -> None: ...
    async def failed(self) -> None:
        """Returns when the broker ended by itself."""


class ThreadlessMember:
    """A broker on the loop that starts it. `kill` drops the store as a crash would, without a flush."""

    def __init__(self, path: Path, properties: Mapping[str, str], *, store_settings: Mapping[str, object]) -> None:
        self._path = path
        self._properties = with_free_ports(properties)
        self._store_settings = dict(store_settings)
        self._server: BrokerServer | None = None
        self.address = ""
        self.ending = ""

    @property
    def is_running(self) -> bool:
        return self._server is not None

    @property
    def server(self) -> BrokerServer:
        assert self._server is not None, "the broker is not running"
        return self._server

    async def start(self) -> None:
        config, store_config, warnings = read_configs(self._properties, path=self._path, **self._store_settings)
        for warning in warnings:
            log.warning("%s", warning)
        properties = self._properties
        server = BrokerServer(config, store_config, tls=server_tls(properties), client_tls=client_tls(properties))
        await server.start()
        self._server = server
        self.address = server.address
        self._properties["listenPort"] = str(server.port)

    async def stop(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            await server.stop()

    async def kill(self) -> None:
        if self._server is not None:
            server, self._server = self._server, None
            await server.kill()

    async def failed(self) -> None:
        await self.server.failed.wait()


class ProcessMember:
    """A broker in a process of its own; `kill` is a real SIGKILL."""

    def __init__(self, path: Path, properties: Mapping[str, str], *, store_settings: Mapping[str, object]) -> None:
        self._path = path
        defaults = {rocketmq_key(name): str(value) for name, value in store_settings.items()}
        self._properties = defaults | with_free_ports(properties) | {"storePathRootDir": str(path)}
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: asyncio.ReadTransport | None = None
        self._said: asyncio.Task[None] | None = None
        self._last_lines: list[str] = []
        self.address = ""
        self.ending = ""
        self.flags: list[str] = []  # more of them for its command line
        self.on_line: Callable[[str], None] | None = None  # hears every line that it prints

    async def start(self) -> None:
        self._path.mkdir(parents=True, exist_ok=True)
        config_file = self._path / "broker.conf"
        config_file.write_text(format_properties(self._properties))
        self._process = _spawn(config_file, self._properties.get("namesrvAddr", ""), self.flags)
        output = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        protocol = asyncio.StreamReaderProtocol(output)
        self._pipe, _ = await loop.connect_read_pipe(lambda: protocol, self._process.stdout)
        async for raw in output:
            line = self._note(raw)
            if line.startswith("ready broker "):
                self.address = line.split()[-1]
                self._properties["listenPort"] = self.address.rpartition(":")[2]
                self._said = loop.create_task(self._listen(output))
                return
        await self._reap(self._process)
        said = "\n".join(map(_text_of, self._last_lines))
        raise ClusterError(
            f"{self._properties.get('brokerName', 'a broker')} did not start: {self.ending}; "
            + (f"it said:\n{said}" if said else f"it said nothing: try contrailmq broker -c {config_file}")
        )

    @property
    def is_running(self) -> bool:
        return self._process is not None

    @property
    def process_id(self) -> int:
        assert self._process is not None, "the broker is not running"
        return self._process.pid

    async def stop(self) -> None:
        await self._end(signal.SIGTERM)

    async def kill(self) -> None:
        await self._end(signal.SIGKILL)

    async def failed(self) -> None:
        assert self._said is not None, "the broker is not running"
        await asyncio.shield(self._said)

    async def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.send_signal(number)  # nothing when it ended before
        if self._said is not None:
            await self._said
        await self._reap(process)

    async def _reap(self, process: subprocess.Popen[bytes]) -> None:
        """After the end of its output, which is its end."""
        code = process.wait()
        self.ending = f"signal {-code}" if code < 0 else f"exit code {code}"
        assert process.stdin is not None
        process.stdin.close()
        if self._pipe is not None:
            self._pipe.close()
            await asyncio.sleep(0)  # a loop closes what it was told to in its next turn

    async def _listen(self, output: asyncio.StreamReader) -> None:
        """Keep the pipe empty: a broker must not stop because nobody reads its log. Ends when the broker does."""
        async for raw in output:
            self._note(raw)

    def _note(self, raw: bytes) -> str:
        line = raw.decode("utf-8", "replace").rstrip()
        self._last_lines = [*self._last_lines[-20:], line]
        if self.on_line is not None:
            self.on_line(line)
        return line


def with_free_ports(properties: Mapping[str, str]) -> dict[str, str]:
    """Settings of a broker that may take any port. It comes back to the one that it got, and so does not ask for those
    beside it: by then they may be somebody else's."""
    beside = {"haListenPort": "0", "enableFastListenPort": "false"} if properties.get("listenPort") == "0" else {}
    return beside | dict(properties)


async def figures(client: RemotingClient, member: Member) -> dict[str, str]:
    """What the broker counts."""
    answer = await client.invoke(member.address, RequestCode.GET_BROKER_RUNTIME_INFO)
    return decode_body(answer.body, KVTable).table


def _text_of(line: str) -> str:
    """What a line of a log says, which may be a JSON object."""
    try:
        return msgspec.json.decode(line, type=_Line).message
    except msgspec.DecodeError:
        return line


class _Line(msgspec.Struct):
    message: str


def _spawn(config_file: Path, namesrv: str, flags: Sequence[str]) -> subprocess.Popen[bytes]:
    """Not by the loop: uvloop's child runs Python's clean-up after a fork, and that of py4j shuts the sockets down by
    which this process talks to a JVM. Spark would go on over a new one, in a thread that knows no session."""
    command = [sys.executable, "-m", "contrailmq", "broker", "-c", str(config_file), *flags]
    return subprocess.Popen(
        [*command, "-n", namesrv] if namesrv else command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=_environment(),
    )


def _environment() -> dict[str, str]:
    """Ours, with the package that runs here found first and without any setting: those of this broker are in its file,
    and a NAMESRV_ADDR of the shell's would have it register with a cluster that is not its own."""
    package_parent = str(Path(__file__).resolve().parents[2])
    others = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    kept = {name: value for name, value in os.environ.items() if not is_setting(name)}
    return kept | {"PYTHONPATH": os.pathsep.join([package_parent, *others]), ENDS_WITH_STDIN: "1"}
