"""Settings of exporting, with RocketMQ's keys: brokers, NameServers and whatever exports later have the same ones."""

from __future__ import annotations

import enum
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from contrailmq.message import ContrailError
from contrailmq.metrics.page import LABEL_NAME

DEFAULT_PORT: Final = 5557
LIMIT: Final = 50_000  # metricsOtelCardinalityLimit


class MetricsSettingError(ContrailError):
    """A setting of exporting is unusable; `key` names it."""

    def __init__(self, key: str, value: str, remedy: str) -> None:
        super().__init__(f"{key}={value!r}: {remedy}")
        self.key, self.value, self.remedy = key, value, remedy


class ExporterKind(enum.Enum):
    """metricsExporterType, by name or number. RocketMQ's LOG (3) is not there."""

    DISABLE = 0
    OTLP_GRPC = 1
    PROM = 2


class ExportSettings(NamedTuple):
    """What a server exports and where to."""

    kind: ExporterKind = ExporterKind.DISABLE
    host: str = "127.0.0.1"
    port: int = DEFAULT_PORT
    target: str = ""
    headers: tuple[tuple[str, str], ...] = ()
    timeout_ms: int = 3000
    interval_ms: int = 60_000
    labels: tuple[tuple[str, str], ...] = ()
    is_delta: bool = False
    limit: int = LIMIT


def exporter_kind(text: str) -> ExporterKind:
    """Of metricsExporterType."""
    said = text.strip().upper() or "DISABLE"
    for kind in ExporterKind:
        if said in (kind.name, str(kind.value)):
            return kind
    missing = "LOG is not there; " if said in ("LOG", "3") else ""
    raise MetricsSettingError("metricsExporterType", text, f"{missing}DISABLE, PROM or OTLP_GRPC (0, 2, 1)")


def pairs(key: str, text: str) -> tuple[tuple[str, str], ...]:
    """`k:v,k:v`, as metricsLabel and metricsGrpcExporterHeader have it. The first colon divides."""
    found = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, colon, value = part.partition(":")
        if not colon or not name.strip():
            raise MetricsSettingError(key, text, "name:value, several joined by ','")
        found.append((name.strip(), value.strip()))
    return tuple(found)


def label_pairs(text: str) -> tuple[tuple[str, str], ...]:
    """Of metricsLabel: names must be names of labels."""
    found = pairs("metricsLabel", text)
    for name, _ in found:
        if not LABEL_NAME.fullmatch(name) or name.startswith("__"):
            raise MetricsSettingError("metricsLabel", text, f"{name!r} is no label: letters, digits and _ make one")
    return found


def otlp_target(text: str) -> str:
    """metricsGrpcExporterTarget with its scheme: without one it is https, as in RocketMQ."""
    if not text.strip():
        raise MetricsSettingError(
            "metricsGrpcExporterTarget", text, "OTLP_GRPC needs it: host:4317 or http://host:4317"
        )
    target = text if text.startswith(("http://", "https://")) else f"https://{text}"
    try:
        urlsplit(target).port  # noqa: B018
    except ValueError as exc:
        raise MetricsSettingError("metricsGrpcExporterTarget", text, f"host:4317 or http://host:4317: {exc}") from None
    return target
