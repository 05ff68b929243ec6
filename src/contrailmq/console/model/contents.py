"""A body for human eyes: as text, as JSON with lines, as hex. Nothing here trusts the bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import msgspec

SHOWN_BYTES_MAX: Final = 64 * 1024  # of a body on a page: a browser that gets four megabytes of hex stops
HEX_WIDTH: Final = 16


@dataclass(frozen=True, slots=True)
class BodyView:
    size_bytes: int
    text: str  # where bytes are no UTF-8, the replacement character stands
    is_text: bool
    json_text: str  # empty when the body is no JSON object or list
    hex_text: str
    is_cut: bool


def view_body(body: bytes) -> BodyView:
    shown = body[:SHOWN_BYTES_MAX]
    is_cut = len(body) > SHOWN_BYTES_MAX
    text = shown.decode("utf-8", "replace")
    try:
        body.decode("utf-8")
        is_text = True
    except UnicodeDecodeError:
        is_text = False
    return BodyView(len(body), text, is_text, "" if is_cut else json_of(body), hex_of(shown), is_cut)


def json_of(body: bytes) -> str:
    """With one member a line; empty when it is no JSON. Numbers and the order of members stay as they were."""
    if body.lstrip()[:1] not in (b"{", b"["):
        return ""
    try:
        return msgspec.json.format(body, indent=2).decode()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""


def hex_of(data: bytes) -> str:
    """Lines as `hexdump -C` has them."""
    lines = []
    for begin in range(0, len(data), HEX_WIDTH):
        part = data[begin : begin + HEX_WIDTH]
        readable = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        lines.append(f"{begin:08x}  {part.hex(' '):<{HEX_WIDTH * 3 - 1}}  {readable}")
    return "\n".join(lines)
