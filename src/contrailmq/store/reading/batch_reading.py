"""Reading a batch queue: which records answer a read.

A unit is one record of several messages, and an answer holds whole records: a read from the middle of a batch gets that
batch, and the decoder drops the messages before the requested offset, as RocketMQ's clients do. Limits
count messages; the first record is always given. A further record is given if the count that was asked for has room for
all of its messages and the store's own limit is not reached before it (DefaultMessageStore.isTheBatchFull): 20 and 20
messages make 40 for a reader that asks for 64.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

from contrailmq.message.record import OFFSETS
from contrailmq.store.base.status import GetResult, GetStatus, Limits, MessageFilter
from contrailmq.store.queues.batch_consume_queue import BATCH_UNIT_BYTES, BatchConsumeQueue

SCAN_BYTES_MAX: Final = 16_000  # maxFilterMessageSize


def read_batches(
    queue: BatchConsumeQueue,
    offset: int,
    limits: Limits,
    message_filter: MessageFilter | None,
    fetch: Callable[[int, int, int], memoryview | None],
    *,
    log_end: int,
    distance_in_memory: int,
) -> GetResult:
    """`fetch` takes a record's physical offset, its size and its queue offset; it gives None for a damaged one."""
    memory_bytes, memory_count, disk_bytes, disk_count, asked_count = limits
    status = GetStatus.NO_MATCHED_MESSAGE
    slices: list[memoryview] = []
    total = count = physical_offset = 0
    following = offset
    scan_max = SCAN_BYTES_MAX // BATCH_UNIT_BYTES
    for unit in itertools.islice(queue.scan(queue.number_of(offset)), scan_max):
        physical_offset = unit.physical_offset
        is_cold = log_end - physical_offset > distance_in_memory
        if slices and (
            count + unit.batch_size > asked_count
            or count >= (disk_count if is_cold else memory_count)
            or total + unit.size_bytes > (disk_bytes if is_cold else memory_bytes)
        ):
            break
        following = unit.following
        if message_filter is not None and not message_filter.match_unit(unit.tags_code, None):
            continue
        record = fetch(physical_offset, unit.size_bytes, unit.base_offset)
        own = unit.base_offset.to_bytes(8, "big") + physical_offset.to_bytes(8, "big")
        if record is None or record[OFFSETS] != own:
            status = GetStatus.MESSAGE_WAS_REMOVING if not slices else status
            continue
        if message_filter is not None and not message_filter.match_record(record):
            record.release()
            continue
        slices.append(record)
        total += unit.size_bytes
        count += unit.batch_size
        status = GetStatus.FOUND
    suggest_slave = log_end - physical_offset > distance_in_memory
    return GetResult(status, following, queue.min_offset, queue.max_offset, slices, total, suggest_slave, count)
