"""What a slave asks its master about the log, over the ordinary port. RocketMQ's masters, 4.x too, answer both."""

from __future__ import annotations

from typing import Final, Protocol

from contrailmq.message import ContrailError
from contrailmq.message.codec import BLANK_BYTES, BLANK_MAGIC
from contrailmq.message.record import SIZE_AND_MAGIC
from contrailmq.store import MessageStore
from contrailmq.wire.bodies import KVTable, decode_body
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.header import Command, Fields
from contrailmq.wire.requests import ViewMessage

ASK_TIMEOUT_S: Final = 3.0

_REMEDY: Final = (
    "Nothing is copied until you decide: start this broker as the master (brokerRole=ASYNC_MASTER, brokerId=0) to keep "
    "its messages, or start it again with --resync to cut off what the master does not have (`contrailmq store "
    "truncate DIR --at OFFSET` does the same by hand), or give it an empty directory"
)


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


async def check_history(client: Asking, store: MessageStore, master: str) -> int:
    """UnlikeError unless a slave's log is a prefix of the master's, as far as two questions tell; the master's end."""
    end = store.replica.end
    begin, master_end = await log_bounds(client, master)
    if end == 0:
        return master_end
    _check_bounds(master, begin=begin, end=end, master_end=master_end)
    last = store.replica.last_record_offset
    if last >= begin:
        ours = store.read_record(last)
        if ours is None or await record_at(client, master, last) != ours:
            raise UnlikeError(
                f"the record at offset {last}, the last one of this slave, is not the one that master {master} "
                f"has there: the master has lost messages that this slave has, and got others since. This slave ends "
                f"at {end}, the master at {master_end}. {_REMEDY}"
            )
        blank_at = last + len(ours)
        if blank_at < end and await has_record_at(client, master, blank_at):
            raise UnlikeError(
                f"this slave's log has no record from offset {blank_at} to {end}, the end of a file, and master "
                f"{master} has one at offset {blank_at}: the master has lost the end of its log and got other messages "
                f"since. {_REMEDY}"
            )
    return master_end


async def has_record_at(client: Asking, master: str, offset: int) -> bool:
    """Whether a record begins there in its log, and not the BLANK that closes a file (which RocketMQ's answer with)."""
    found = await record_at(client, master, offset)
    return found is not None and len(found) >= BLANK_BYTES and SIZE_AND_MAGIC.unpack_from(found)[1] != BLANK_MAGIC


def _check_bounds(master: str, *, begin: int, end: int, master_end: int) -> None:
    if end > master_end:
        raise UnlikeError(
            f"this slave's log ends at offset {end}, that of master {master} at {master_end}: the master has "
            f"lost {end - master_end} bytes that this slave has. {_REMEDY}"
        )
    if end < begin:
        raise UnlikeError(
            f"this slave's log ends at offset {end}, that of master {master} begins at {begin}: it has "
            "deleted what lies between. Move this slave's store away and start it with an empty one (it gets the "
            "master's last file), or fill one with `contrailmq store copy --from HOST:HAPORT DIR`"
        )
