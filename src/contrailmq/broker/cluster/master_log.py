"""What a slave asks its master about the log, over the ordinary port. RocketMQ's masters, 4.x too, answer both."""

from __future__ import annotations

from typing import Protocol

from contrailmq.message import ContrailError
from contrailmq.wire.bodies import KVTable, decode_body
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.header import Command, Fields
from contrailmq.wire.requests import ViewMessage

ASK_TIMEOUT_S = 3.0


class UnlikeError(ContrailError):
    """The master's log and ours are not one history, or it cannot be seen whether they are."""


class Asking(Protocol):
    """The part of RemotingClient that is used here."""

    async def invoke(
        self, address: str, code: int, ext: Fields | None = None, body: bytes = b"", timeout_s: float = 3.0
    ) -> Command: ...


async def log_bounds(client: Asking, master: str) -> tuple[int, int]:
    """Where its log begins and ends."""
    answer = await client.invoke(master, RequestCode.GET_BROKER_RUNTIME_INFO, None, b"", ASK_TIMEOUT_S)
    if answer.code != ResponseCode.SUCCESS:
        raise UnlikeError(f"master {master} does not say where its log ends: {answer.code} {answer.remark}")
    table = decode_body(answer.body, KVTable).table
    try:
        return max(0, int(table["commitLogMinOffset"])), int(table["commitLogMaxOffset"])
    except (KeyError, ValueError) as exc:
        raise UnlikeError(f"master {master} does not say where its log begins and ends: {exc!r}") from exc


async def record_at(client: Asking, master: str, offset: int) -> bytes | None:
    """The record that begins there in its log; None when there is none."""
    answer = await client.invoke(master, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessage(offset=offset), b"", ASK_TIMEOUT_S)
    return bytes(answer.body) if answer.code == ResponseCode.SUCCESS else None
