"""What a proxy measures. `rocketmq_proxy_up` is RocketMQ's, the others are ours."""

from __future__ import annotations

import platform
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from contrailmq._version import __version__
from contrailmq.metrics import Instrument, Kind, Measured, Series
from contrailmq.metrics.process import cpu_s, open_descriptors, resident_bytes

if TYPE_CHECKING:
    from contrailmq.proxy.server import ProxyServer

_C, _G = Kind.COUNTER, Kind.GAUGE
UP: Final = Instrument("rocketmq_proxy_up", _G, "Always 1", ("proxy_mode",))
CLIENTS: Final = Instrument("contrailmq_proxy_clients", _G, "gRPC clients that are known here")
HELD: Final = Instrument("contrailmq_proxy_held_messages", _G, "Messages that are with consumers who renew")
CALLS: Final = Instrument("contrailmq_proxy_calls_total", _C, "gRPC calls that were served", ("call",))
CONNECTIONS: Final = Instrument("contrailmq_connections", _G, "Connections of remoting clients")
PASSED: Final = Instrument("contrailmq_proxy_passed_requests_total", _C, "Remoting requests that were passed on")
INFO: Final = Instrument("contrailmq_build_info", _G, "Always 1", ("version", "python"))
CPU: Final = Instrument("contrailmq_cpu_seconds_total", _C, "CPU time of the process", unit="seconds")
MEMORY: Final = Instrument("contrailmq_resident_memory", _G, "Resident memory of the process", unit="bytes")
DESCRIPTORS: Final = Instrument("contrailmq_open_descriptors", _G, "Open files and sockets of the process")

INSTRUMENTS: Final = tuple(value for value in globals().values() if isinstance(value, Instrument))


def figures(server: ProxyServer) -> list[Measured]:
    """The instruments with their sources."""
    service, remoting = server.service, server.remoting
    assert service is not None
    sources: dict[Instrument, Callable[[], Series]] = {
        UP: lambda: [(("cluster",), 1)],
        CLIENTS: lambda: [((), len(service.clients))],
        HELD: lambda: [((), len(service.renewals))],
        CALLS: lambda: (((name,), count) for name, count in list(server.served.items())),
        CONNECTIONS: lambda: [((), remoting.connections if remoting is not None else 0)],
        PASSED: lambda: [((), remoting.passed if remoting is not None else 0)],
        INFO: lambda: [((__version__, platform.python_version()), 1)],
        CPU: lambda: [((), cpu_s())],
        MEMORY: lambda: [((), resident_bytes())],
        DESCRIPTORS: lambda: [((), open_descriptors())],
    }
    return [Measured(instrument, sources[instrument]) for instrument in INSTRUMENTS]
