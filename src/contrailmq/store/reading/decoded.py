"""What a read found, as messages: decoded, and checked as an embedding program wants it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from contrailmq.message import MessageError, StoredMessage, SysFlag
from contrailmq.message.checksum import crc32
from contrailmq.message.codec import CorruptRecordError, decode_record
from contrailmq.message.inner_batch import unwrapped
from contrailmq.message.record import OFFSETS
from contrailmq.store.base.errors import CorruptStoreError
from contrailmq.store.base.status import (
    GetResult,
    Messages,
)
from contrailmq.store.log.damage import body_fault

_DAMAGE_REMEDY: Final = (
    "read one message at a time to get the others, and restore the log file from a copy (`contrailmq store verify` "
    "finds whatever else is damaged)"
)


def decode_found(found: GetResult, path: Path, where: str, *, from_offset: int = 0) -> Messages:
    """What was found, decoded, checked and released. `where` names it when a record of the log is damaged.

    Of inner batches only the messages from `from_offset` on.
    """
    messages: list[StoredMessage] = []
    done = 0
    try:
        for view in found.slices:
            record = decode_record(view)
            check_body(record, path)
            if record.sys_flag & SysFlag.INNER_BATCH:
                messages += [part for part in unwrapped(record) if part.queue_offset >= from_offset]
            else:
                messages.append(record)
            done += 1
    except (CorruptRecordError, MessageError) as exc:
        # What the record says of its own place is all that is known of it, and may be damaged as well.
        said = bytes(found.slices[done][OFFSETS])
        raise CorruptStoreError(
            path,
            f"{where}: record {done + 1} of {len(found.slices)}, which says that it is queue offset "
            f"{int.from_bytes(said[:8], 'big', signed=True)} at physical offset "
            f"{int.from_bytes(said[8:], 'big', signed=True)}, is damaged ({_cause(exc)}): {_DAMAGE_REMEDY}",
        ) from exc
    finally:
        found.release()
    return Messages(found.status, found.next_offset, found.min_offset, found.max_offset, messages)


def check_body(message: StoredMessage, path: Path) -> None:
    """Raise CorruptStoreError for a body that is not the one that was stored."""
    if message.sys_flag & SysFlag.LOST:
        raise CorruptStoreError(path, f"physical offset {message.physical_offset}: {body_fault(message)}")
    body = message.stored_body
    if body and crc32(body) & 0x7FFFFFFF != message.body_crc:
        raise CorruptStoreError(
            path,
            f"{message.topic}/{message.queue_id}: the body of the message at queue offset {message.queue_offset}, "
            f"physical offset {message.physical_offset}, does not match its checksum: {_DAMAGE_REMEDY}",
        )


def _cause(error: CorruptRecordError | MessageError) -> str:
    """Without the place: a record is looked at by itself, so it would always be 0."""
    return error.verdict.reason if isinstance(error, CorruptRecordError) else str(error)
