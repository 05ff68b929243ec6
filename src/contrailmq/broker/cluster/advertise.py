"""The address that a broker tells its clients, and what may be wrong with it.

Clients dial the address from the NameServer's route, and the one inside message ids. An address that they cannot reach
is the most reported trouble of RocketMQ users, so it is chosen with care, logged with its reason, and warned about
when it looks reachable from this machine only.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from contrailmq.message.addresses import without_brackets

CONTAINER_MARKS: Final = ("/.dockerenv", "/run/.containerenv")  # what Docker and Podman leave in a container

_OUTSIDE: Final = "203.0.113.1"  # TEST-NET-3: only the route there is asked for


class Advertised(NamedTuple):
    ip: str
    reason: str
    warning: str | None


def advertised_address(
    *, configured: str, bind_address: str, namesrv_addresses: Iterable[str], is_in_container: bool | None = None
) -> Advertised:
    """brokerIP1 when given, else the bound address, else the address of the interface that leads to the NameServer."""
    servers = list(namesrv_addresses)
    if is_in_container is None:
        is_in_container = any(Path(mark).exists() for mark in CONTAINER_MARKS)
    if configured:
        ip, reason = without_brackets(configured), "brokerIP1"
    elif bind_address not in ("", "0.0.0.0", "::"):
        ip, reason = bind_address, "bindAddress"
    else:
        target = servers[0].rpartition(":")[0] if servers else _OUTSIDE
        ip, reason = interface_towards(target), f"the interface that leads to {target}"
    return Advertised(ip, reason, _warning(ip, servers, is_in_container=is_in_container and not configured))


def interface_outward() -> str:
    """This machine's address on the way to others."""
    return interface_towards(_OUTSIDE)


def interface_towards(host: str) -> str:
    """This machine's address on the way to a host; a UDP socket is connected, nothing is sent."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except (OSError, UnicodeError):  # the latter: no host name at all
        return "127.0.0.1"


def _warning(ip: str, servers: list[str], *, is_in_container: bool) -> str | None:
    try:
        address = ipaddress.ip_address(ip)
    except ValueError:
        return None  # a host name: whoever set it knows better
    are_servers_local = all(_is_loopback(server.rpartition(":")[0]) for server in servers)
    if address.is_loopback and not are_servers_local:
        return (
            f"clients on other machines are told {ip} and cannot reach it, while the NameServer is remote: "
            "set brokerIP1 to this machine's address"
        )
    is_of_docker = address.version == 4 and address in ipaddress.ip_network("172.17.0.0/16")
    if is_of_docker or (is_in_container and not address.is_loopback):
        return f"{ip} looks like a container's address, which other machines cannot reach: set brokerIP1 to the host's"
    return None


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
