"""Where the metrics of `contrailmq up` are: on, on the loopback interface, one port for each server.

    5556 the NameServer, 5557 the first broker, 5558 the next one, ...        (metricsPromExporterPort and from there)

Nobody asked for it, so a port that is taken costs the metrics and not the start; a port that was named is an error.
With free ports for brokers (`--broker-port 0`) these are free ones too: the log names them.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Mapping

from contrailmq.metrics.settings import DEFAULT_PORT, ExporterKind, exporter_kind

KIND = "metricsExporterType"
PORT = "metricsPromExporterPort"
HOST = "metricsPromExporterHost"


def ports_of(properties: Mapping[str, str], *, broker_port: int, brokers: int) -> list[int] | None:
    """Of the NameServer and of each broker; None when there are no pages. Looks at no port."""
    if KIND in properties and exporter_kind(properties[KIND]) is not ExporterKind.PROM:
        return None
    first = int(properties.get(PORT, DEFAULT_PORT if broker_port else 0))
    return [first - 1 + number for number in range(brokers + 1)] if first > 1 else [0] * (brokers + 1)


def ports_to_serve(properties: Mapping[str, str], *, broker_port: int, brokers: int) -> list[int] | None:
    """The same for a start: None, and a warning, when one that nobody named is taken."""
    ports = ports_of(properties, broker_port=broker_port, brokers=brokers) or []
    taken = [port for port in ports if port and not _is_free(properties.get(HOST, "127.0.0.1"), port)]
    if taken and KIND not in properties and PORT not in properties:
        logging.getLogger("contrailmq").warning(
            "metrics are not served: port %d is taken; --set %s=PORT names another, 0 takes free ones", taken[0], PORT
        )
        return None
    return ports or None


def as_settings(port: int) -> dict[str, str]:
    """Of a broker with its page there."""
    return {KIND: ExporterKind.PROM.name, PORT: str(port)}


def _is_free(host: str, port: int) -> bool:
    try:
        with socket.create_server((host or "127.0.0.1", port)):
            return True
    except OSError:
        return False
