"""One batch queue by itself: appended to by one thread, written out and read by others at any moment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Self

import pytest

from contrailmq.store import Files
from contrailmq.store.queues.batch_consume_queue import (
    BATCH_UNIT_BYTES,
    PENDING_BYTES_MAX,
    BatchConsumeQueue,
    BatchUnit,
)
from contrailmq.store.queues.descriptors import DescriptorCache


def unit(number: int) -> BatchUnit:
    """A batch of three messages."""
    return BatchUnit(1000 * number, 1000, 7, 1_700_000_000_000 + number, 3 * number, 3)


def make_queue(path: Path) -> BatchConsumeQueue:
    files = Files()
    descriptors = DescriptorCache(files, capacity=4)
    return BatchConsumeQueue("T", 0, str(path), file_bytes=10 * BATCH_UNIT_BYTES, files=files, descriptors=descriptors)


class Interrupted(bytearray):
    """Another thread has its turn in the middle of an append, when the unit is pending and the queue's end is old."""

    meanwhile: Callable[[], object]

    def __iadd__(self, data: object) -> Self:
        self.extend(data)  # type: ignore[arg-type]
        self.meanwhile()
        return self


@pytest.mark.parametrize("written", [0, 3, 10])
def test_units_that_are_written_out_in_the_middle_of_an_append_stand_in_their_places(
    written: int, tmp_path: Path
) -> None:
    queue = make_queue(tmp_path / "T/0")
    for number in range(written):
        queue.append(unit(number))
    queue.write_pending()
    queue._pending = pending = Interrupted()
    pending.meanwhile = queue.write_pending
    for number in range(written, written + 12):
        queue.append(unit(number))
    again = make_queue(tmp_path / "T/0")
    again.load()
    assert list(again) == list(queue) == [unit(number) for number in range(written + 12)]


def test_a_unit_that_is_read_in_the_middle_of_an_append_is_the_one_of_its_number(tmp_path: Path) -> None:
    queue = make_queue(tmp_path / "T/0")
    for number in range(5):
        queue.append(unit(number))
    queue.write_pending()
    queue._pending = pending = Interrupted()
    read: list[BatchUnit | None] = []
    pending.meanwhile = lambda: read.extend(queue.unit_at(number) for number in range(5))
    queue.append(unit(5))
    assert read == [unit(number) for number in range(5)]
    assert queue.unit_at(5) == unit(5)


def test_what_is_pending_is_bounded(tmp_path: Path) -> None:
    queue = make_queue(tmp_path / "T/0")
    most = 0
    for number in range(3 * PENDING_BYTES_MAX // BATCH_UNIT_BYTES):
        queue.append(unit(number))
        most = max(most, queue.pending_bytes)
    assert most == PENDING_BYTES_MAX - BATCH_UNIT_BYTES
    assert sum(1 for _ in queue) == 3 * PENDING_BYTES_MAX // BATCH_UNIT_BYTES
