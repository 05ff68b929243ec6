"""Figures as OTLP, by OpenTelemetry's own SDK and exporter (the extra `otel`; imported only when it is asked for).

The SDK has no instrument for histograms that are counted elsewhere, as ours are. So the exporter is given the SDK's
data points, made from the same table as the page, and does the rest: encoding, gRPC, compression, TLS, tries.
Counters and histograms are cumulative, or with metricsInDelta the growth since what was sent before.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from contrailmq._faults import LastingFault
from contrailmq._version import __version__
from contrailmq.message import ContrailError
from contrailmq.metrics.instruments import OVERFLOW, Distribution, Instrument, Kind, Measured, Value, limited
from contrailmq.metrics.settings import ExportSettings

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import export

log = logging.getLogger("contrailmq.metrics")

SCOPE: Final = "broker-meter"  # RocketMQ's
_TURN_S: Final = 0.002
_BETWEEN_LOOKS: Final = 64
_Key = tuple[str, tuple[str, ...] | None]


class OtlpMissingError(ContrailError):
    """OpenTelemetry's SDK is not installed."""


class OtlpSender:
    """Sends tables to one collector. Owner: `Metrics`; runs on its loop, and sends in a thread."""

    def __init__(self, settings: ExportSettings) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.util.instrumentation import InstrumentationScope
        except ImportError as exc:
            raise OtlpMissingError(
                f"metricsExporterType=OTLP_GRPC needs OpenTelemetry: pip install 'contrailmq[otel]' ({exc})"
            ) from exc
        self._settings = settings
        self._exporter = OTLPMetricExporter(
            endpoint=settings.target,
            insecure=settings.target.startswith("http://"),
            headers=tuple((name.lower(), value) for name, value in settings.headers),  # gRPC takes no capitals
            timeout=settings.timeout_ms / 1000,
        )
        self._resource = Resource.create({"service.name": "contrailmq", "service.version": __version__})
        self._scope = InstrumentationScope(SCOPE, __version__)
        self._began_ns = time.time_ns()
        self._sent_ns = self._began_ns
        self._last: dict[_Key, Value] = {}
        self._fault = LastingFault(log, f"metrics are not sent to {settings.target}")

    async def send(self, table: Sequence[Measured], common: Mapping[str, str]) -> None:
        """Gather on the loop, in turns; encode and send in a thread."""
        from opentelemetry.sdk.metrics.export import MetricExportResult

        now_ns = time.time_ns()
        attributes = dict(common) | ({"aggregation": "delta"} if self._settings.is_delta else {})
        metrics = await self._gathered(table, attributes, now_ns)
        try:
            result = await asyncio.to_thread(self._exporter.export, self._wrapped(metrics), self._settings.timeout_ms)
        except Exception as exc:  # noqa: BLE001 - whatever the exporter raises: it is logged, and the next may go
            self._fault.goes_on(repr(exc))
            return
        if result is MetricExportResult.SUCCESS:
            self._sent_ns = now_ns
            self._fault.is_over("they are sent again")
        else:
            self._fault.goes_on("the collector does not take them: is it up, and metricsGrpcExporterTarget right?")

    async def close(self) -> None:
        await asyncio.to_thread(self._exporter.shutdown)

    async def _gathered(
        self, table: Sequence[Measured], attributes: Mapping[str, str], now_ns: int
    ) -> list[export.Metric]:
        from opentelemetry.sdk.metrics import export

        found: list[export.Metric] = []
        end_s = time.monotonic() + _TURN_S
        for measured in table:
            instrument = measured.instrument
            points: list[Any] = []
            for number, (labels, value) in enumerate(limited(measured, self._settings.limit)):
                points.append(self._point(instrument, labels, value, attributes, now_ns))
                if number % _BETWEEN_LOOKS == 0 and time.monotonic() >= end_s:
                    await asyncio.sleep(0)
                    end_s = time.monotonic() + _TURN_S
            if points:
                data = self._data(instrument.kind, points)
                found.append(export.Metric(instrument.name, instrument.help, instrument.unit, data))
        return found

    def _point(
        self,
        instrument: Instrument,
        labels: tuple[str, ...] | None,
        value: Value,
        common: Mapping[str, str],
        now_ns: int,
    ) -> object:
        from opentelemetry.sdk.metrics import export

        own = {OVERFLOW: "true"} if labels is None else dict(zip(instrument.labels, labels, strict=True))
        if self._settings.is_delta and instrument.kind is not Kind.GAUGE:
            key: _Key = (instrument.name, labels)
            before, self._last[key] = self._last.get(key), value
            value = _growth(before, value)
        began_ns = self._sent_ns if self._settings.is_delta else self._began_ns
        if not isinstance(value, Distribution):
            return export.NumberDataPoint(dict(common) | own, began_ns, now_ns, value)
        counts = list(value.counts)
        return export.HistogramDataPoint(
            dict(common) | own, began_ns, now_ns, sum(counts), value.sum, counts, list(instrument.bounds), 0, 0
        )

    def _data(self, kind: Kind, points: list[Any]) -> Any:
        from opentelemetry.sdk.metrics import export

        if kind is Kind.GAUGE:
            return export.Gauge(points)
        temporality = (
            export.AggregationTemporality.DELTA
            if self._settings.is_delta
            else (export.AggregationTemporality.CUMULATIVE)
        )
        if kind is Kind.COUNTER:
            return export.Sum(points, temporality, is_monotonic=True)
        return export.Histogram(points, temporality)

    def _wrapped(self, metrics: list[export.Metric]) -> export.MetricsData:
        from opentelemetry.sdk.metrics import export

        scope = export.ScopeMetrics(self._scope, metrics, "")
        return export.MetricsData([export.ResourceMetrics(self._resource, [scope], "")])


def _growth(before: Value | None, now: Value) -> Value:
    """Since the figure before; the whole where there was none, or where it began again."""
    if before is None:
        return now
    if isinstance(now, Distribution):
        assert isinstance(before, Distribution)
        counts = [new - old for new, old in zip(now.counts, before.counts, strict=True)]
        return Distribution(counts, now.sum - before.sum) if min(counts) >= 0 else now
    assert not isinstance(before, Distribution)
    return now - before if now >= before else now
