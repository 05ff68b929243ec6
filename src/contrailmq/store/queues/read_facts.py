"""The facts of records that somebody else appended: what append would have left for dispatch, read from their bytes.

A slave's records come from its master, so nobody left facts of them. `read` makes those of a block of the log, as far
as each record is of the common shape, is due one unit, and continues its queue. The rule is that of derivation.py:
whatever is in doubt ends the run, and dispatch asks there. tests/store/test_noted_and_derived.py runs both over the
same generated records.
"""

from __future__ import annotations

from typing import Final

from librt.strings import read_i32_be, read_i64_be

from contrailmq.message import Property
from contrailmq.message.property_text import Keys, key_of
from contrailmq.message.record import QUEUE_ID_AT, QUEUE_OFFSET_AT, STORE_TIME_AT, SYS_FLAG_AT
from contrailmq.message.record_runs import shape_at
from contrailmq.store.queues.consume_queue_table import ConsumeQueueTable
from contrailmq.store.queues.derivation import IN_NO_QUEUE, Derivation
from contrailmq.store.queues.keys import note_spans
from contrailmq.store.queues.queue_state import DispatchFact, QueueState

STATES_MAX: Final = 10_000  # queues that are remembered
BLOCK_BYTES: Final = 256 * 1024  # of the log at a time: what was just received is still in the processor's cache
_NOT_ASKED: Final = -1
_KEYS: Final = Keys(
    [key_of(name) for name in (Property.UNIQUE_KEY, Property.KEYS, Property.TAGS)]
)  # in the order in which their spans are taken


class FactReader:
    """Owner: dispatch; one thread at a time."""

    def __init__(self, queues: ConsumeQueueTable, derivation: Derivation, *, is_indexed: bool) -> None:
        self._queues = queues
        self._derivation = derivation
        self._is_indexed = is_indexed
        self._states: dict[tuple[bytes, int], QueueState] = {}
        self._asked: list[QueueState] = []  # those whose next offset is that of their queue

    def read(self, block: bytes, offset: int, count_max: int) -> list[DispatchFact]:
        """Of the records with which a block begins that lies at `offset` of the log, at most so many."""
        self._forget_offsets()
        facts: list[DispatchFact] = []
        at = 0
        while len(facts) < count_max:
            body_end, topic_end, end = shape_at(block, at, offset + at)
            if end == 0:
                break
            sys_flag: int = read_i32_be(block, at + SYS_FLAG_AT)
            queue_id: int = read_i32_be(block, at + QUEUE_ID_AT)
            queue_offset: int = read_i64_be(block, at + QUEUE_OFFSET_AT)
            if sys_flag & IN_NO_QUEUE:
                break
            state = self._state_of(block[body_end + 1 : topic_end], queue_id)
            if state is None or state.next_offset != queue_offset:
                break
            begin = topic_end + 2
            spans = _KEYS.find_spans(block, begin, end)
            code, hashes = note_spans(state, block, (spans[0], spans[1]), (spans[2], spans[3]), (spans[4], spans[5]))
            properties = block[begin:end]
            time_ms: int = read_i64_be(block, at + STORE_TIME_AT)
            if state.is_schedule:
                code = self._derivation.waiting_code(properties, time_ms)
            facts.append((state, offset + at, end - at, code, time_ms, queue_offset, hashes, sys_flag, properties))
            state.next_offset = queue_offset + 1
            at = end
        return facts

    def _forget_offsets(self) -> None:
        """Queues may have changed since the last block: a topic was deleted, a record took the slower way."""
        for state in self._asked:
            state.next_offset = _NOT_ASKED
        self._asked.clear()

    def _state_of(self, topic: bytes, queue_id: int) -> QueueState | None:
        """The queue of a record; None for one whose units need more than that."""
        state = self._states.get((topic, queue_id))
        if state is None:
            name = str(topic, "utf-8", "replace")
            is_known = self._queues.get(name, queue_id) is not None and not self._queues.batches.holds(name)
            if not is_known or name.encode() != topic:  # of two names that are not UTF-8 one text may be made
                return None
            if len(self._states) >= STATES_MAX:
                self._states.clear()
            state = QueueState(name, queue_id, _NOT_ASKED, is_indexed=self._is_indexed)
            self._states[topic, queue_id] = state
        if state.next_offset == _NOT_ASKED:
            state.next_offset = self._queues.next_offset(state.topic, queue_id)
            self._asked.append(state)
        return state
