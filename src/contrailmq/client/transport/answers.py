"""Numbers in the ext fields of what a peer sent. One that is missing or no number is the peer's error, told as such."""

from __future__ import annotations

from collections.abc import Mapping

from contrailmq.wire.errors import RemoteProtocolError


def number(ext: Mapping[str, str], name: str) -> int:
    try:
        return int(ext[name])
    except (KeyError, ValueError) as exc:
        raise RemoteProtocolError(f"the peer's fields lack or garble {name}: {ext}", field=name) from exc
