"""Which NameServer to ask.

The list comes from the argument, from NAMESRV_ADDR, or from an HTTP address whose body is such a list (`http://host:8080/
rocketmq/nsaddr`, asked again every two minutes). It is shuffled, so that clients spread; one server is kept until it
fails, then the next is tried, so a call fails only when every server did. One that hangs, or whose host is gone, is
waited for only so long that the time of the call is enough for the others.

RocketMQ's built-in HTTP default (`jmenv.tbsite.net`) is a name inside one company: here a missing address is an error
that says what to set.
"""

from __future__ import annotations

import asyncio
import http.client
import logging
import os
import random
import re
import urllib.request
from typing import Final

from contrailmq.client.errors import NoNameServerError
from contrailmq.message import ContrailError
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.errors import ConnectError, ConnectionClosedError, RequestTimeoutError
from contrailmq.wire.header import Command, Fields
from contrailmq.wire.transport import RemotingClient

_log = logging.getLogger("contrailmq.client")

HTTP_REFRESH_S: Final = 120.0
HTTP_AGAIN_S: Final = 10.0  # after a failure
HTTP_TIMEOUT_S: Final = 3.0


class NameServers:
    """The NameServers of one client instance. Used on its loop only."""

    def __init__(self, remoting: RemotingClient, namesrv: str | None) -> None:
        self._remoting = remoting
        text = namesrv or os.environ.get("NAMESRV_ADDR") or ""
        self._endpoint = text if _is_lookup(text) else None
        self._addresses: list[str] = []
        self._current = 0
        self._fetched_at_s = 0.0
        if self._endpoint is None:
            self._set(parse_addresses(text))
            if not self._addresses:
                raise NoNameServerError("no NameServer address: pass namesrv='host:9876' or set NAMESRV_ADDR")

    @property
    def text(self) -> str:
        return ";".join(self._addresses) or self._endpoint or ""

    @property
    def addresses(self) -> list[str]:
        return list(self._addresses)

    async def invoke(self, code: RequestCode, ext: Fields, *, timeout_s: float, body: bytes = b"") -> Command:
        """Ask the current server, then the others; the error of the last one is raised when none answers."""
        if self._endpoint is not None:
            await self._refresh()
        last: ContrailError | None = None
        count = len(self._addresses)
        for number in range(1, count + 1):
            address = self._addresses[self._current % count]
            patience_s = timeout_s / count if number < count else None
            try:
                async with asyncio.timeout(patience_s):
                    return await self._remoting.invoke(address, code, ext, body, timeout_s=timeout_s)
            except (ConnectError, ConnectionClosedError, RequestTimeoutError) as exc:
                last = exc
            except TimeoutError:
                last = RequestTimeoutError(address, code, timeout_s / count)
            except asyncio.CancelledError:  # the caller's time is over: the next call does not begin with this one
                self._current += 1
                raise
            self._current += 1
        raise NoNameServerError(
            f"none of the NameServers {self.text} answered {code.name} (last: {last}): are they up and reachable?"
        ) from last

    async def invoke_each(
        self, code: RequestCode, ext: Fields, *, timeout_s: float, body: bytes = b""
    ) -> list[Command]:
        """Ask every server, because they do not talk to each other: for what changes their tables."""
        if self._endpoint is not None:
            await self._refresh()
        return [
            await self._remoting.invoke(address, code, ext, body, timeout_s=timeout_s) for address in self._addresses
        ]

    async def _refresh(self) -> None:
        now_s = asyncio.get_running_loop().time()
        if self._addresses and now_s - self._fetched_at_s < HTTP_REFRESH_S:
            return
        assert self._endpoint is not None
        try:
            text = await asyncio.to_thread(_fetch, self._endpoint)
            addresses = _listed(text)
        except (OSError, http.client.HTTPException, ValueError) as exc:
            if self._addresses:  # the old list still serves; not every call of the next moments waits for the endpoint
                self._fetched_at_s = now_s - HTTP_REFRESH_S + HTTP_AGAIN_S
                _log.warning("the NameServer list at %s cannot be read, the old one stays: %r", self._endpoint, exc)
                return
            raise NoNameServerError(f"the NameServer list at {self._endpoint} cannot be read: {exc!r}") from exc
        self._fetched_at_s = now_s
        if sorted(addresses) != sorted(self._addresses):
            self._set(addresses)

    def _set(self, addresses: list[str]) -> None:
        random.shuffle(addresses)
        self._addresses = addresses
        self._current = 0


def parse_addresses(text: str) -> list[str]:
    """`host:port;host:port`, also with `,` and with an `http://` prefix, which Java strips too."""
    parts = (part.strip() for part in text.replace(",", ";").split(";"))
    bare = (part.removeprefix("http://").removeprefix("https://").rstrip("/") for part in parts)
    return [part if ":" in part else f"{part}:9876" for part in bare if part]


_ADDRESS: Final = re.compile(r"[\w.\-:\[\]%]+:\d{1,5}", re.ASCII)


def _listed(text: str) -> list[str]:
    """What an endpoint answered, when that is a list: an empty page or one for human eyes is a failure of it."""
    addresses = parse_addresses(text)
    wrong = next((address for address in addresses if not _ADDRESS.fullmatch(address)), None)
    if wrong is not None or not addresses:
        raise ValueError(f"host:port;host:port was expected, and {text[:80]!r} came")
    return addresses


def _is_lookup(text: str) -> bool:
    scheme, separator, rest = text.partition("://")
    return bool(separator) and scheme in ("http", "https") and "/" in rest.rstrip("/") and ";" not in text


def _fetch(endpoint: str) -> str:
    with urllib.request.urlopen(endpoint, timeout=HTTP_TIMEOUT_S) as answer:
        body: bytes = answer.read(65_536)
    return body.decode("utf-8").strip()
