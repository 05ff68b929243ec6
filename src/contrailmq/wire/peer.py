"""A connection as those see it who answer its requests. `connection.Connection` is one; tests have others."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from contrailmq.wire.header import Command, Fields

__all__ = ["Peer"]


class Peer(Protocol):
    """Who has asked, and how to answer; what each does is said at `Connection`."""

    peer: tuple[str, int]
    attributes: dict[str, object]

    @property
    def is_open(self) -> bool: ...

    @property
    def address(self) -> str: ...

    def reply(self, data: bytes) -> None: ...

    def reply_parts(self, parts: Sequence[bytes | memoryview], size_bytes: int) -> None: ...

    def forget(self, count: int = 1) -> None: ...

    def invoke(
        self, code: int, ext: Fields | None = None, body: bytes = b"", timeout_s: float = 3.0
    ) -> asyncio.Future[Command]: ...

    def oneway(self, code: int, ext: Fields | None = None, body: bytes = b"") -> None: ...

    def close(self, cause: str = "we closed it") -> None: ...
