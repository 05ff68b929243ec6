"""Several messages in one record: what a topic with queue.type=BatchCQ stores of a client's batch (RocketMQ 5.x).

The record's body is the batch as it came (batch.py), its queue offset that of the first message. Consumers take it
apart, as Java's MessageDecoder.decodeMessage does: each message has its own body, flag, properties and queue offset;
place, times and hosts are the record's.
"""

from __future__ import annotations

from typing import TypeVar

from contrailmq.message.batch import split_batch
from contrailmq.message.compression import SysFlag
from contrailmq.message.model import StoredMessage

M = TypeVar("M", bound=StoredMessage)


def unwrapped(message: M) -> list[M]:
    """The messages of an inner batch; any other message alone. Raises `MessageError` if the body is not a batch."""
    if not message.sys_flag & SysFlag.INNER_BATCH:
        return [message]
    return [
        type(message)(
            message.topic,
            part.body,
            part.properties,
            message.size_bytes,
            message.magic,
            message.body_crc,
            message.queue_id,
            part.flag,
            message.queue_offset + number,
            message.physical_offset,
            message.sys_flag & ~(SysFlag.COMPRESSED | SysFlag.COMPRESSION_MASK),  # the parts lie unpacked
            message.born_time_ms,
            message.born_host_bytes,
            message.store_time_ms,
            message.store_host_bytes,
            message.reconsume_times,
            message.prepared_transaction_offset,
        )
        for number, part in enumerate(split_batch(message.body))
    ]
