"""Hosts and `host:port`, as settings, command lines and peers write them. Looks nothing up."""

from __future__ import annotations

import ipaddress
import re
from typing import Final

PORT_MAX: Final = 65_535

_NO_NAME: Final = re.compile(r"[\s:;,/@\[\]]")


def split_host_port(text: str) -> tuple[str, int]:
    """The parts of `host:port`, `v6:port` or `[v6]:port`; ValueError says what is wrong."""
    host, _, port = text.strip().rpartition(":")
    if not host or not (port.isascii() and port.isdigit() and int(port.lstrip("0")[:6] or "0") <= PORT_MAX):
        raise ValueError(f"an address has the form host:port, with a port of at most {PORT_MAX}")
    host = without_brackets(host)
    check_host_form(host)
    return host, int(port)


def check_dialled(text: str) -> None:
    """ValueError unless it is a `host:port` that can be dialled."""
    if split_host_port(text)[1] == 0:
        raise ValueError(f"nobody can be reached at port 0: give one from 1 to {PORT_MAX}")


def check_host_form(host: str) -> None:
    """ValueError when this is neither an IP address nor a name that a resolver can be asked for."""
    if host.startswith("["):
        raise ValueError("write an IPv6 address without brackets")
    if ":" in host and is_ip(host):
        return
    if not host or _NO_NAME.search(host):
        raise ValueError("not a host name: it has a space or one of :;,/@[]" if host else "not a host name: empty")
    try:
        host.encode("idna")
    except UnicodeError as exc:
        raise ValueError("not a host name: each part between dots has 1 to 63 characters") from exc


def without_brackets(host: str) -> str:
    """`[v6]` as `v6`, and any other host as it is."""
    return host[1:-1] if host.startswith("[") and host.endswith("]") else host


def is_ip(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
