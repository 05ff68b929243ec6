"""What a server measures, and how it leaves the process: a Prometheus page, or OTLP. Health probes share the port.

A server (broker, NameServer) describes its figures once, as a table of `Measured`: an instrument and a function that
gives its series. `page.py` prints the table in Prometheus' text format, `otlp.py` sends it through OpenTelemetry's
SDK, docs/metrics.md lists it (a test compares). `serving.py` is what a server starts and stops.
"""

from __future__ import annotations

from contrailmq.metrics.instruments import Distribution, Instrument, Kind, Measured, Series
from contrailmq.metrics.serving import Health, Metrics
from contrailmq.metrics.settings import ExporterKind, ExportSettings, MetricsSettingError

__all__ = [
    "Distribution",
    "ExportSettings",
    "ExporterKind",
    "Health",
    "Instrument",
    "Kind",
    "Measured",
    "Metrics",
    "MetricsSettingError",
    "Series",
]
