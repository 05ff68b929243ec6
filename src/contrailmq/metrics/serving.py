"""Metrics: what a server starts to be seen from outside, and stops last.

With PROM it listens on one port: /metrics, /live and /ready. It listens before the server opens its store, since a
probe that finds nobody kills a broker in the middle of a long recovery: until `show` is called the page has no series
and /ready says what is missing. With OTLP_GRPC figures are sent every interval.

A page is made by one scraper at a time; who comes meanwhile waits for its turn.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING

from contrailmq.metrics.instruments import Measured
from contrailmq.metrics.page import CONTENT_TYPE, page
from contrailmq.metrics.settings import ExporterKind, ExportSettings, MetricsSettingError
from contrailmq.wire.errors import ListenError
from contrailmq.wire.http import HttpAnswer, HttpServer

if TYPE_CHECKING:
    from contrailmq.metrics.otlp import OtlpSender

log = logging.getLogger("contrailmq.metrics")

Health = Callable[[], Sequence[str]]  # why a server is not what it should be; nothing when it is
Prepare = Callable[[], Awaitable[None]]  # before each page: figures that take several turns of the loop


class Metrics:
    """Owner: a server. `live` and `ready` say what is wrong, each reason a line."""

    def __init__(self, settings: ExportSettings, *, live: Health, ready: Health) -> None:
        self.settings = settings
        self._live, self._ready = live, ready
        self._table: Sequence[Measured] = ()
        self._common: dict[str, str] = {}
        self._prepare: Prepare | None = None
        self._turn = asyncio.Lock()
        self._server: HttpServer | None = None
        self._sending: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """host:port of the page; empty when none is served."""
        return self._server.address if self._server is not None else ""

    async def start(self) -> None:
        """Listen, with PROM. MetricsSettingError when the port cannot be had."""
        if self.settings.kind is not ExporterKind.PROM:
            return
        routes = {
            "/metrics": self._metrics,
            "/live": lambda: _health("live", self._live),
            "/ready": lambda: _health("ready", self._ready),
        }
        server = HttpServer(routes, host=self.settings.host, port=self.settings.port)
        try:
            await server.start()
        except ListenError as exc:
            remedy = f"{exc}; metricsPromExporterPort names another port, 0 takes a free one"
            raise MetricsSettingError("metricsPromExporterPort", str(self.settings.port), remedy) from exc
        self._server = server
        log.info("metrics are at http://%s/metrics, probes at /live and /ready", server.address)

    def show(self, table: Sequence[Measured], common: Mapping[str, str], prepare: Prepare | None = None) -> None:
        """From now on these are the figures; `common` are labels of every series, before those of metricsLabel."""
        self._table, self._prepare = table, prepare
        self._common = dict(common) | dict(self.settings.labels)
        if self.settings.kind is ExporterKind.OTLP_GRPC and self._sending is None:
            from contrailmq.metrics.otlp import OtlpSender

            sender = OtlpSender(self.settings)  # raises where the SDK is not installed, before anything is served
            self._sending = asyncio.get_running_loop().create_task(self._send(sender), name="OTLP metrics")

    async def close(self) -> None:
        """Idempotent."""
        if self._sending is not None:
            self._sending.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._sending
            self._sending = None
        if self._server is not None:
            server, self._server = self._server, None
            await server.close()

    async def _metrics(self) -> HttpAnswer:
        return HttpAnswer(self._pieces(), content_type=CONTENT_TYPE)

    async def _pieces(self) -> AsyncIterator[bytes]:
        async with self._turn:
            await self._prepared()
            async for piece in page(self._table, self._common, self.settings.limit):
                yield piece

    async def _prepared(self) -> None:
        if self._prepare is not None:
            await self._prepare()

    async def _send(self, sender: OtlpSender) -> None:
        """Every interval, and what cannot be sent is logged and lost, as with any exporter."""
        try:
            while True:
                await asyncio.sleep(self.settings.interval_ms / 1000)
                async with self._turn:
                    await self._prepared()
                    await sender.send(self._table, self._common)
        finally:
            await sender.close()


async def _health(what: str, look: Health) -> HttpAnswer:
    reasons = look()
    if not reasons:
        return HttpAnswer(f"{what}\n".encode())
    lines = "".join(f"{reason}\n" for reason in reasons)
    return HttpAnswer(f"not {what}\n{lines}".encode("utf-8", "replace"), HTTPStatus.SERVICE_UNAVAILABLE)
