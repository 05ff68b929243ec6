"""What a NameServer measures. RocketMQ's exports nothing: all names are ours."""

from __future__ import annotations

import platform
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from contrailmq._version import __version__
from contrailmq.metrics import Instrument, Kind, Measured, Series
from contrailmq.metrics.process import cpu_s, open_descriptors, resident_bytes
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.peer_warnings import peer_warnings

if TYPE_CHECKING:
    from contrailmq.namesrv.server import NameServer

_C, _G = Kind.COUNTER, Kind.GAUGE
BROKERS: Final = Instrument(
    "contrailmq_namesrv_brokers", _G, "Brokers that are registered and live, slaves included", ("broker_cluster",)
)
TOPICS: Final = Instrument("contrailmq_namesrv_topics", _G, "Topics that have a route")
REQUESTS: Final = Instrument("contrailmq_namesrv_requests_total", _C, "Requests that were served", ("request_code",))
OPEN: Final = Instrument("contrailmq_connections", _G, "Connections of clients, brokers and administrators")
LIMITS_HIT: Final = Instrument("contrailmq_limits_hit_total", _C, "Requests that a bound refused", ("limit",))
PEER_FAULTS: Final = Instrument("contrailmq_peer_faults_total", _C, "What peers did wrong", ("cause",))
INFO: Final = Instrument("contrailmq_build_info", _G, "Always 1", ("version", "python"))
CPU: Final = Instrument("contrailmq_cpu_seconds_total", _C, "CPU time of the process", unit="seconds")
MEMORY: Final = Instrument("contrailmq_resident_memory", _G, "Resident memory of the process", unit="bytes")
DESCRIPTORS: Final = Instrument("contrailmq_open_descriptors", _G, "Open files and sockets of the process")

INSTRUMENTS: Final = tuple(value for value in globals().values() if isinstance(value, Instrument))
_NAMES: Final = {code.value: code.name.lower() for code in RequestCode}


def figures(server: NameServer) -> list[Measured]:
    """The instruments with their sources."""

    def brokers() -> Series:
        clusters = Counter(key.cluster for key in server.tables.live)
        return (((cluster,), count) for cluster, count in clusters.items())

    def requests() -> Series:
        return (((_NAMES.get(code, "unknown"),), count) for code, count in list(server.served.items()))

    sources: dict[Instrument, Callable[[], Series]] = {
        BROKERS: brokers,
        TOPICS: lambda: [((), len(server.tables.topics))],
        REQUESTS: requests,
        OPEN: lambda: [((), server.connection_count)],
        LIMITS_HIT: lambda: [(("connections",), server.refused_connections), (("waitingBytes",), server.busy_count)],
        PEER_FAULTS: lambda: (((cause,), count) for cause, count in list(peer_warnings.counts.items())),
        INFO: lambda: [((__version__, platform.python_version()), 1)],
        CPU: lambda: [((), cpu_s())],
        MEMORY: lambda: [((), resident_bytes())],
        DESCRIPTORS: lambda: [((), open_descriptors())],
    }
    return [Measured(instrument, sources[instrument]) for instrument in INSTRUMENTS]
