"""Host addresses and message ids: Java's, bit for bit, because they are on disk and on the wire."""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import struct
import time
from datetime import datetime
from typing import Final, NamedTuple, NewType

from contrailmq.message.errors import MessageError

PhysicalOffset = NewType("PhysicalOffset", int)  # byte address in the commit log
QueueOffset = NewType("QueueOffset", int)  # entry number in one consume queue


class Host(NamedTuple):
    """An IP address and a port."""

    ip: str
    port: int

    def __str__(self) -> str:
        return f"[{self.ip}]:{self.port}" if ":" in self.ip else f"{self.ip}:{self.port}"


def encode_host(ip: str, port: int) -> bytes:
    """IP (4 or 16 bytes) and port (4 bytes), as records and message ids hold them."""
    try:
        family = socket.AF_INET6 if ":" in ip else socket.AF_INET
        packed = socket.inet_pton(family, ip.partition("%")[0])
    except (OSError, ValueError, TypeError, AttributeError):
        raise MessageError(f"{ip!r} is not an IP address: give IPv4 or IPv6, not a name", field="host") from None
    if not isinstance(port, int) or not 0 <= port <= 65_535:
        raise MessageError(f"port {port!r} of {ip} is not a port: give a number from 0 to 65535", field="port")
    return packed + port.to_bytes(4, "big")


def encode_address(address: str) -> bytes:
    """The same of `ip:port`; an IPv6 address has brackets, no address means this machine."""
    host, _, port = address.rpartition(":")
    return encode_host(host.strip("[]") or "127.0.0.1", int(port))


def decode_host(data: bytes) -> Host:
    """The address behind the 8 or 20 bytes of a record."""
    if len(data) not in (8, 20):
        raise MessageError(
            f"a host of {len(data)} bytes: it takes 8 (IPv4) or 20 (IPv6)", field="host", size=len(data), limit=20
        )
    family = socket.AF_INET if len(data) == 8 else socket.AF_INET6
    return Host(socket.inet_ntop(family, data[:-4]), int.from_bytes(data[-4:], "big", signed=True))


def offset_message_id(store_host: bytes, physical_offset: int) -> str:
    """The broker's message id: where the record lies. 32 hex digits for IPv4, 56 for IPv6.

    The offset is signed, as in the record: -1 ends in sixteen F, and `parse_offset_message_id` gives -1 back.
    """
    try:
        return (store_host + physical_offset.to_bytes(8, "big", signed=True)).hex().upper()
    except OverflowError:
        raise MessageError(
            f"physical offset {physical_offset} is not a signed 64-bit number", field="physical_offset"
        ) from None


def parse_offset_message_id(text: str) -> tuple[str, int, PhysicalOffset]:
    """(ip, port, physical offset) of an offset message id."""
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if len(data) not in (16, 28):
        raise MessageError(
            f"message id {text[:64]!r} is not an offset message id: it takes 32 or 56 hex digits", field="message_id"
        )
    host = decode_host(data[:-8])
    return host.ip, host.port, PhysicalOffset(int.from_bytes(data[-8:], "big", signed=True))


class UniqueId(NamedTuple):
    """What a client's unique message id says. The month is not in it: `created_ms` assumes the newest that fits."""

    ip: str
    pid: int
    created_ms: int
    counter: int


_IDS_PER_HEAD: Final = 4096
_HEX: Final = [f"{value:02X}" for value in range(256)]
_counter = itertools.count()
_unique_prefix = ""
_month_begin_ms = 0
_month_end_ms = 0
_head = ""
_head_ms = 0


def create_unique_id() -> str:
    """A new unique message id: client IP, pid, random bytes, milliseconds of the month, counter.

    Unique within a process for 65,536 ids a millisecond; the random bytes keep processes apart.
    """
    now_ms = time.time_ns() // 1_000_000
    if now_ms != _head_ms:
        _start_head(now_ms)
    number = next(_counter)
    return f"{_head}{_HEX[number >> 8 & 0xFF]}{_HEX[number & 0xFF]}"


def create_unique_ids(count: int) -> list[str]:
    """That many at once: the clock is asked once for all.

    Up to 4,096 share a millisecond. Then the clock is asked again: the counter comes round only after 65,536 ids, and
    those take far longer than the millisecond in which they would have to be made to meet.
    """
    ids: list[str] = []
    while (left := count - len(ids)) > 0:
        ids.append(create_unique_id())
        head, numbers = ids[-1][:-4], itertools.islice(_counter, min(left, _IDS_PER_HEAD) - 1)
        ids += [f"{head}{_HEX[number >> 8 & 0xFF]}{_HEX[number & 0xFF]}" for number in numbers]
    return ids


def _start_head(now_ms: int) -> None:
    """All but the counter; the same for all ids of a millisecond, which a busy producer makes many of."""
    global _head, _head_ms
    if not _month_begin_ms <= now_ms < _month_end_ms:
        _start_month(now_ms)
    _head, _head_ms = f"{_unique_prefix}{now_ms - _month_begin_ms:08X}", now_ms


def parse_unique_id(text: str, *, now_ms: int | None = None) -> UniqueId:
    """The parts of a unique message id."""
    try:
        data = bytes.fromhex(text)
    except ValueError:
        data = b""
    if len(data) not in (16, 28):
        raise MessageError(
            f"message id {text[:64]!r} is not a unique message id: it takes 32 or 56 hex digits", field="message_id"
        )
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    ip = socket.inet_ntop(socket.AF_INET if len(data) == 16 else socket.AF_INET6, data[:-12])
    pid, _, since_ms, counter = struct.unpack(">HIIH", data[-12:])
    created_ms = _month_begin(now_ms) + since_ms
    if created_ms > now_ms + 60_000:  # a clock may be a minute ahead; more means it was made last month
        created_ms = _month_begin(_month_begin(now_ms) - 1) + since_ms
    return UniqueId(ip, pid, created_ms, counter)


def _month_begin(now_ms: int) -> int:
    first = datetime.fromtimestamp(now_ms / 1000).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    return int(first.timestamp() * 1000)


def _start_month(now_ms: int) -> None:
    global _month_begin_ms, _month_end_ms
    begin = _month_begin(now_ms)
    _month_end_ms = _month_begin(begin + 45 * 86_400_000) if begin else 0
    _month_begin_ms = begin


def _start_process() -> None:
    """Take a new identity: at import and in a forked child, which must not repeat its parent's ids."""
    global _unique_prefix, _head_ms
    _head_ms = 0
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(("192.0.2.1", 9))  # sends nothing: it only asks the kernel which address it would use
            ip = socket.inet_aton(probe.getsockname()[0])
    except OSError:
        ip = bytes([127, 0, 0, 1])
    _unique_prefix = (ip + (os.getpid() & 0xFFFF).to_bytes(2, "big") + secrets.token_bytes(4)).hex().upper()


_start_process()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_process)
