"""Roots of the typed ext fields: what every request may carry. The structs themselves: `requests`, `admin_requests`."""

from __future__ import annotations

import msgspec

__all__ = ["ExtHeader", "RpcHeader", "TopicRpcHeader"]


class ExtHeader(msgspec.Struct, rename="camel", kw_only=True, gc=False):
    """Root of all ext-field structs."""


class RpcHeader(ExtHeader, kw_only=True):
    """What 5.x clients may add to any request: namespace, broker name, oneway hint. A broker ignores them."""

    ns: str | None = None
    nsd: bool | None = None
    bname: str | None = None
    oway: bool | None = None
    req_t: str | None = msgspec.field(name="ReqT", default=None)  # 0: a stream client (lite pull)


class TopicRpcHeader(RpcHeader, kw_only=True):
    """The same for requests about a topic: `lo` marks logical queues (static topics)."""

    lo: bool | None = None
