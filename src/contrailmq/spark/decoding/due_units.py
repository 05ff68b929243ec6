"""Which units the consume queues of a store hold, by the store's own rules (store/queues/derivation.py).

`dispatched.py` says what a broker puts into a queue for each record. In addition:

- A **placeholder** of `store repair` (store/queues/placeholder.py) with a queue offset keeps that offset: an empty
  (pre-blank) unit is there, and no later message moves to it. One without an offset explains a gap in any queue.
- Records of **batch topics** have units of another format, in another directory. A name that no directory can have, or
  an offset below zero, has none.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from contrailmq.message import names_directory
from contrailmq.spark.decoding.dispatched import Units
from contrailmq.spark.decoding.queue_units import PRE_BLANK_BYTES
from contrailmq.spark.decoding.records import Int, Mask, Records
from contrailmq.spark.decoding.slices import take_slices, text_column
from contrailmq.store.queues.placeholder import PLACEHOLDER_FLAG

_BATCH_QUEUES: Final = "batchconsumequeue"


class DueUnits(NamedTuple):
    """Units of a block in log order. `is_lost` marks those of placeholders, which stand in a queue as pre-blank."""

    units: Units
    is_lost: Mask


def batch_topics(store: str) -> frozenset[str]:
    """Topics whose messages are in batch queues (queue.type=BatchCQ)."""
    folder = os.path.join(store, _BATCH_QUEUES)
    return frozenset(os.listdir(folder)) if os.path.isdir(folder) else frozenset()


def lost_records(records: Records) -> Records:
    """The placeholders of a block."""
    return records.select((records.sys_flag & PLACEHOLDER_FLAG) == PLACEHOLDER_FLAG)


def due_units(records: Records, units: Units, batches: frozenset[str]) -> DueUnits:
    """What is due for a block, of which `units` are what a broker dispatched."""
    lost = lost_records(records)
    is_lost = np.zeros(len(units.queue), dtype=np.bool_)
    if len(lost):
        units, is_lost = _joined(units, lost)
    kept = _of_queues(units, lambda topic, _: names_directory(topic) and topic not in batches)
    kept &= units.queue_offset >= 0
    return DueUnits(units, is_lost) if kept.all() else DueUnits(chosen(units, kept), is_lost[kept])


def chosen(units: Units, kept: Mask) -> Units:
    """Some of the units; `queues` stays what it is."""
    return Units(
        units.queues,
        units.queue[kept],
        units.queue_offset[kept],
        units.physical_offset[kept],
        units.size[kept],
        units.tags_code[kept],
    )


def _of_queues(units: Units, is_meant: Callable[[str, int], bool]) -> Mask:
    verdicts = np.array([is_meant(*queue) for queue in units.queues], dtype=np.bool_)
    found: Mask = verdicts[units.queue]
    return found


def _joined(units: Units, lost: Records) -> tuple[Units, Mask]:
    """Units and placeholders in the order of the log."""
    topics = text_column(take_slices(pa.py_buffer(lost.data), lost.topic_start, lost.topic_bytes)).to_pylist()
    numbers = {queue: number for number, queue in enumerate(units.queues)}
    queue = [
        numbers.setdefault((topic, queue_id), len(numbers))
        for topic, queue_id in zip(topics, lost.queue_id.tolist(), strict=True)
    ]
    order = np.argsort(np.concatenate([units.physical_offset, lost.physical_offset]), kind="stable")

    def merged(ours: Int, theirs: Int) -> Int:
        both: Int = np.concatenate([ours, theirs])[order]
        return both

    blank = np.zeros(len(lost), dtype=np.int64)
    all_units = Units(
        list(numbers),
        merged(units.queue, np.array(queue, dtype=np.int64)),
        merged(units.queue_offset, lost.queue_offset),
        merged(units.physical_offset, lost.physical_offset),
        merged(units.size, lost.size),
        merged(units.tags_code, blank),
    )
    return all_units, order >= len(units.queue)


def pre_blank(units: int) -> bytes:
    """So many empty units."""
    return PRE_BLANK_BYTES * units
