"""`config/timers.journal`: what was delivered since the last flush (see store/base/journal.py).

    payload := read_time_ms:i64  queue_offset:i64  log_end:i64  version:i64  slot_time_ms:i64  offset:i64*

The first four are the checkpoint's values at that time: `log_end` is the timer log's, `version` counts checkpoints
begun. `slot_time_ms` is the slot under delivery, or -1. The offsets are the physical offsets of its messages that were
done since the entry before. A run is one slot, so its entries name everything done of it. A position would not do,
because a slot is delivered by each message's millisecond and grows meanwhile. A slot that begins again after the clock
was set back continues its run; the next slot starts a new one. It costs 76 bytes per group and 8 per message.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Final, NamedTuple

from contrailmq.store.base.journal import RUN_BYTES_MAX, CopyPlace, Journal, RecordSource, Run, stands
from contrailmq.store.files import Files
from contrailmq.store.timer.checkpoint import TimerCheckpoint
from contrailmq.store.timer.due import DueSlot

FILE_NAME: Final = "timers.journal"
NO_SLOT: Final = -1
_STATE: Final = struct.Struct(">5q")
STATE_BYTES: Final = 40
assert _STATE.size == STATE_BYTES
_NOTHING: Final = array("q")


class Delivered(NamedTuple):
    """What an earlier life had delivered when it wrote last. `done` are physical offsets."""

    read_time_ms: int
    queue_offset: int
    log_end: int
    version: int
    slot_time_ms: int
    done: AbstractSet[int] = frozenset()

    def advance(self, checkpoint: TimerCheckpoint, *, log_end: int) -> TimerCheckpoint:
        """The checkpoint as it would have been then; the old one where it is newer, or where units are lost since."""
        if self.version < checkpoint.version_counter or self.log_end > log_end:
            return checkpoint
        return checkpoint._replace(
            read_time_ms=self.read_time_ms,
            log_flushed_position=self.log_end,
            queue_offset=self.queue_offset,
            master_queue_offset=max(checkpoint.master_queue_offset, self.queue_offset),
        )


class DeliveredJournal:
    """Owner: TimerStore."""

    def __init__(self, files: Files, directory: Path) -> None:
        self._journal = Journal(files, directory / FILE_NAME)
        self._slot_time_ms = NO_SLOT  # of the run
        self._told_copy: CopyPlace | None = None  # the last one that is known here
        self.close = self._journal.close

    def open(self, store: RecordSource) -> Delivered | None:
        """What is known to be true of an earlier life."""
        for run in self._journal.open():
            for end in range(len(run), 0, -1):
                if stands(store, run[end - 1].copy):
                    return _decode(run[:end])
        return None

    def clear(self) -> None:
        self._journal.clear()
        self._slot_time_ms = NO_SLOT

    def tell(self, state: Delivered, copy: CopyPlace | None, due: DueSlot | None) -> None:
        """Note what was delivered since this was called last: copies up to `copy`, of the slot under delivery too."""
        if copy is None or (copy is self._told_copy and (due is None or due.told == due.done)):
            return
        if self.note(state, copy, _NOTHING if due is None else due.untold()):
            self._told_copy = copy
            if due is not None:
                due.told = due.done

    def note(self, state: Delivered, copy: CopyPlace, done: array[int] = _NOTHING) -> bool:
        """Every copy up to `copy` was made; of the slot under delivery these are done that were not told before.

        False when they have to be told again.
        """
        is_endless = state.slot_time_ms == NO_SLOT and self._journal.run_bytes > RUN_BYTES_MAX
        if state.slot_time_ms != self._slot_time_ms or is_endless:
            self._journal.restart()
            self._slot_time_ms = state.slot_time_ms
        payload = _STATE.pack(*state[:5]) + struct.pack(f">{len(done)}q", *done)
        return self._journal.append(copy, payload)


def _decode(run: Run) -> Delivered:
    done: set[int] = set()
    for entry in run:
        offsets = entry.payload[STATE_BYTES:]
        done.update(struct.unpack(f">{len(offsets) // 8}q", offsets))
    read_time_ms, queue_offset, log_end, version, slot_time_ms = _STATE.unpack_from(run[-1].payload)
    return Delivered(read_time_ms, queue_offset, log_end, version, slot_time_ms, done)
