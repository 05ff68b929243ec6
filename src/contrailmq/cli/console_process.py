"""The web console of `contrailmq up`: a child process that may be missing, refused or dead without stopping anything.

What keeps it from starting is one line of the log: the extra is not installed, or the port is taken.
"""

from __future__ import annotations

import asyncio
import importlib.util
import logging
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from contrailmq.cli.logs import LogSettings, child_log
from contrailmq.wire.properties import environment_name, is_setting
from contrailmq.wire.tls import KEYS as TLS_KEYS
from contrailmq.wire.transport import ENDS_WITH_STDIN

log = logging.getLogger("contrailmq")

STOP_S: Final = 5.0  # then it is killed: it holds nothing that must be saved
_READY: Final = "ready console "


class ConsoleProcess:
    """`start`, then `ready` for its address, then `stop`. Without a port there is none, and each does nothing."""

    def __init__(self, namesrv: str, port: int | None, properties: Mapping[str, str], logs: LogSettings) -> None:
        self._namesrv = namesrv
        self._port = port
        self._tls = {key: properties[key] for key in TLS_KEYS if key in properties}
        self._logs = logs
        self._process: subprocess.Popen[bytes] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._url: asyncio.Future[str] | None = None
        self._is_stopping = False

    def start(self) -> None:
        if self._port is None:
            return
        if not _is_installed():
            log.info("no web console: pip install 'contrailmq[console]' brings it, --no-console leaves this line out")
            return
        flags = ["--port", str(self._port), *self._logs.child_flags()]
        # Not by the loop: see `testing/members.py` on children of uvloop.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "contrailmq", "console", "-n", self._namesrv, *flags],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=self._environment(),
        )
        self._url = asyncio.get_running_loop().create_future()
        self._listening = asyncio.ensure_future(self._listen(self._process, self._url))

    async def ready(self) -> str:
        """Its address once it accepts; empty when there is none."""
        return "" if self._url is None else await self._url

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is None or self._listening is None:
            return
        self._is_stopping = True
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(asyncio.shield(self._listening), STOP_S)
        except TimeoutError:
            process.kill()
            await self._listening

    async def _listen(self, process: subprocess.Popen[bytes], url: asyncio.Future[str]) -> None:
        """Ends when the process does: its output ends then."""
        said = child_log("console")
        output = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(output)
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(lambda: protocol, process.stdout)
        async for raw in output:
            line = raw.decode("utf-8", "replace").rstrip()
            if line.startswith(_READY) and not url.done():
                url.set_result(line.removeprefix(_READY))
            else:
                said(line)
        code = process.wait()
        assert process.stdin is not None
        process.stdin.close()
        pipe.close()
        if not url.done():
            url.set_result("")
        if not self._is_stopping:
            log.warning(
                "the web console ended with exit code %d, the brokers go on: contrailmq console -n %s --port PORT "
                "starts it again",
                code,
                self._namesrv,
            )

    def _environment(self) -> dict[str, str]:
        """Ours without settings, which are for brokers; TLS as the brokers have it."""
        kept = {name: value for name, value in os.environ.items() if not is_setting(name)}
        package_parent = str(Path(__file__).resolve().parents[2])
        others = [part for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part]
        tls = {environment_name(key): value for key, value in self._tls.items()}
        return kept | tls | {"PYTHONPATH": os.pathsep.join([package_parent, *others]), ENDS_WITH_STDIN: "1"}


def _is_installed() -> bool:
    """Whether the extra is there; looking does not load it."""
    try:
        return importlib.util.find_spec("nicegui") is not None
    except ModuleNotFoundError:
        return False
