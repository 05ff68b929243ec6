"""How large a request's body may be, so that decoding it never holds the loop for long. Pure.

The frame limit of 16 MiB is made for messages, whose bytes are copied and not looked at. Other bodies are decoded, and
16 MiB of JSON take 0.2 s and more, during which the C decoder holds the interpreter's lock: a worker thread would not
help. The cost of JSON depends on its bytes (copied, compared), its objects and arrays, the members of its objects,
which may become entries of a dict (a hundred bytes cost about as much as one of these), and where there are very many
the elements of its arrays. Each has a bound that keeps it to a few tens of milliseconds. Counting is a memchr, which
costs next to nothing.

`Connection` applies `refusal` to every request of a server; a registration, which may be compressed, is checked by the
NameServer with `check_json`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from contrailmq.wire.codes import RequestCode, request_name
from contrailmq.wire.errors import RemoteProtocolError

__all__ = [
    "FREE_BYTES",
    "JSON_BYTES_MAX",
    "JSON_COMMAS_MAX",
    "JSON_ITEMS_MAX",
    "JSON_MEMBERS_MAX",
    "SETTINGS_BYTES_MAX",
    "check_json",
    "refusal",
]

FREE_BYTES: Final = 64 * 1024  # not looked at
JSON_BYTES_MAX: Final = 2 * 1024 * 1024  # a heartbeat with 1,000 subscriptions has 0.25 MiB
JSON_ITEMS_MAX: Final = 20_000  # objects and arrays: a heartbeat has three for each subscription
JSON_MEMBERS_MAX: Final = 50_000  # a heartbeat has seven for each subscription
JSON_COMMAS_MAX: Final = 100_000  # so also elements of arrays: a million of them take 0.4 s to become objects of Python
_COUNTED_BYTES: Final = 1024 * 1024  # at once: a millisecond
SETTINGS_BYTES_MAX: Final = FREE_BYTES  # text, parsed line by line; every setting of a broker takes 10 KiB

# Bodies that are messages, and the registration (see above).
_UNBOUNDED: Final = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_HALF_BATCH,
        RequestCode.END_TRANSACTIONS,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT,
        RequestCode.REGISTER_BROKER,
    }
)
_KNOWN: Final = frozenset(RequestCode)  # others are answered as not supported, whatever they carry
_SETTINGS: Final = frozenset({RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG})


def refusal(code: int, body: bytes) -> str | None:
    """Why a server will not look at this body; None when it will."""
    size_bytes = len(body)
    if size_bytes <= FREE_BYTES or code in _UNBOUNDED or code not in _KNOWN:
        return None
    if code in _SETTINGS:
        return f"{request_name(code)}: body of {size_bytes} bytes, settings may take {SETTINGS_BYTES_MAX}"
    try:
        check_json(body, commas_max=JSON_COMMAS_MAX)
    except RemoteProtocolError as exc:
        return f"{request_name(code)}: {exc}"
    return None


def check_json(
    data: bytes,
    *,
    bytes_max: int = JSON_BYTES_MAX,
    items_max: int = JSON_ITEMS_MAX,
    members_max: int = JSON_MEMBERS_MAX,
    commas_max: int | None = None,
    remedy: str = "send less",
    give_way: Callable[[], None] | None = None,
) -> None:
    """RemoteProtocolError when decoding `data` would take too long. Marks inside of strings count too.

    `commas_max` bounds the elements of arrays, for callers whose bodies have long ones. `give_way` is called after
    every MiB, for callers in worker threads.
    """
    size_bytes = len(data)
    if size_bytes <= FREE_BYTES:
        return
    if size_bytes > bytes_max:
        raise RemoteProtocolError(f"body of {size_bytes} bytes is above the limit of {bytes_max}: {remedy}")
    items = _count(data, b"{", give_way) + _count(data, b"[", give_way)
    members = _count(data, b":", give_way)
    if items > items_max:
        raise RemoteProtocolError(f"body has {items} objects and arrays, the limit is {items_max}: {remedy}")
    if members > members_max:
        raise RemoteProtocolError(f"body has {members} members, the limit is {members_max}: {remedy}")
    if commas_max is not None and (commas := _count(data, b",", give_way)) > commas_max:
        raise RemoteProtocolError(f"body has {commas} commas, the limit is {commas_max}: {remedy}")


def _count(data: bytes, mark: bytes, give_way: Callable[[], None] | None) -> int:
    if give_way is None:
        return data.count(mark)
    found = 0
    for start in range(0, len(data), _COUNTED_BYTES):
        found += data.count(mark, start, start + _COUNTED_BYTES)
        give_way()
    return found
