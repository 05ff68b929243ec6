"""Messages whose invisible time is over: copies to the retry topic, or to the dead letters.

A copy has the original's body, properties and born time, one more attempt, ORIGIN_GROUP, and the time of its first pop
(1ST_POP_TIME). After `retryMaxTimes` attempts of the group it becomes a dead letter, so a consumer that never
acknowledges gets no message for ever. `suspend` in a change of the invisible time asks for no attempt to be counted.

A message is taken for the one that was popped only if it has exactly that offset and lies before the checkpoint in the
log: a topic that was deleted and made again holds others there. What is gone is given up, and the log says so.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from typing import Final

from contrailmq._faults import LastingFault
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.pop.in_flight import Checkpoint, InFlight
from contrailmq.broker.pop.records_found import ORIGIN_PROPERTY, message_at
from contrailmq.broker.pop.recovery import origin_of
from contrailmq.broker.pop.revive_log import ReviveLog
from contrailmq.broker.state.groups import Group
from contrailmq.broker.state.incoming import IncomingMessage
from contrailmq.message import (
    RETRY_PREFIX,
    MessageError,
    Property,
    StoredMessage,
    check_topic,
    dlq_topic,
    pop_origin_topic,
    pop_retry_topic,
    pop_retry_topic_v2,
)
from contrailmq.store import TIMER_REQUESTS, PutStatus, StoreError

log = logging.getLogger("contrailmq.broker")

PORTION: Final = 64  # checkpoints in a tick: a few ms of the loop at most
AGAIN_MS: Final = 1000  # after a put that the store refused
AGAIN_MAX_MS: Final = 60_000
READING_MAX: Final = 64  # checkpoints that workers read for
_HOPELESS: Final = frozenset({PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED})
_OF_A_DELAY: Final = (
    Property.DELAY,
    *TIMER_REQUESTS,
    Property.TIMER_OUT_MS,
    Property.TIMER_ENQUEUE_MS,
    Property.TIMER_DEQUEUE_MS,
    Property.TIMER_ROLL_TIMES,
    Property.POP_CHECKPOINT,
)

Found = dict[int, StoredMessage | None]


class Reviving:
    """Owner: PopService. `readers` read what is not in memory."""

    def __init__(self, node: BrokerNode, in_flight: InFlight, revive_log: ReviveLog, readers: Executor) -> None:
        self._node = node
        self._store = node.store
        self._in_flight = in_flight
        self._log = revive_log
        self._readers = readers
        self._reading: dict[Checkpoint, Future[Found]] = {}
        self._refusals: dict[Checkpoint, int] = {}  # what the store could not take yet -> when it was due first
        self._refused = LastingFault(log, "messages whose invisible time is over stay where they are")
        self.revived = 0
        self.dead = 0
        self.given_up = 0

    def tick(self, now_ms: int) -> bool:
        """Revive a portion of what is due by steady time; whether there is more."""
        for checkpoint in [one for one, future in self._reading.items() if future.done()]:
            self._attempt(checkpoint, self._reading.pop(checkpoint).result, now_ms)
        if len(self._reading) >= READING_MAX:
            return True
        count = 0
        for checkpoint in self._in_flight.due(now_ms, PORTION):
            count += 1
            self._attempt(checkpoint, partial(self._find, checkpoint), now_ms)
        return count == PORTION or bool(self._reading)

    def _attempt(self, checkpoint: Checkpoint, find: Callable[[], Found | None], now_ms: int) -> None:
        """What fails is due again later: it is in the hands of nobody else."""
        is_read = True
        try:
            found = find()
            is_read = found is not None  # else by a worker
            if found is not None:
                self._revive(checkpoint, found, now_ms)
        except (StoreError, OSError) as exc:
            self._refused.goes_on(str(exc))
        finally:
            if is_read:
                self._postpone(checkpoint, now_ms)

    def first_due_ms(self) -> int | None:
        """Since when something is due that has not come again, or when the first one will be."""
        self._refusals = {checkpoint: due_ms for checkpoint, due_ms in self._refusals.items() if checkpoint.left}
        reading = [checkpoint.due_ms for checkpoint in self._reading]
        first = self._in_flight.first_due_ms
        return min([*self._refusals.values(), *reading, *([] if first is None else [first])], default=None)

    def stop(self) -> None:
        for checkpoint, future in list(self._reading.items()):
            future.cancel()
            self._in_flight.await_time(checkpoint)
        self._reading.clear()

    # --- finding

    def _find(self, checkpoint: Checkpoint) -> Found | None:
        """The messages that are open; None while a worker reads them."""
        places: dict[int, int | None] = {}
        for offset in self._in_flight.open_offsets(checkpoint):
            is_there = offset >= self._store.min_offset(checkpoint.topic, checkpoint.queue_id)
            units = self._store.read_units(checkpoint.topic, checkpoint.queue_id, offset, 1) if is_there else []
            places[offset] = units[0][0] if units else None
        if all(place is None or self._store.is_resident(place) for place in places.values()):
            return self._look_up(checkpoint, places)
        self._reading[checkpoint] = self._readers.submit(self._look_up, checkpoint, places)
        return None

    def _look_up(self, checkpoint: Checkpoint, places: dict[int, int | None]) -> Found:
        found: Found = {}
        for offset, place in places.items():
            record = None if place is None else self._store.lookup_sound(place)
            is_of_it = (
                record is not None
                and record.topic == checkpoint.topic
                and (record.physical_offset < checkpoint.physical_offset or checkpoint.physical_offset < 0)
            )
            found[offset] = message_at(record, offset) if record is not None and is_of_it else None
        return found

    # --- reviving

    def _revive(self, checkpoint: Checkpoint, found: Found, now_ms: int) -> None:
        open_offsets = set(self._in_flight.open_offsets(checkpoint))  # some were acknowledged while a worker read
        group = self._node.groups.get(checkpoint.group)
        settled: list[int] = []
        for offset, message in found.items():
            if offset not in open_offsets:
                continue
            if message is None or group is None:
                self._give_up(
                    checkpoint, offset, "its group was deleted" if group is None else "it is not in its queue"
                )
            elif not self._put(checkpoint, offset, message, group):
                break
            settled.append(offset)
        if settled:
            self._log.put_acks(checkpoint, settled)  # without it the next start finds the copies
            queue = self._in_flight.queues[checkpoint.key]
            for offset in settled:
                self._in_flight.settle(queue, offset)
            self._node.after_append(wants_flush=self._store.config.is_sync_flush)

    def _postpone(self, checkpoint: Checkpoint, now_ms: int) -> None:
        """What is left of it, if anything, did not come again."""
        if checkpoint.left:
            self._refusals.setdefault(checkpoint, checkpoint.due_ms)
            checkpoint.tries += 1
            checkpoint.due_ms = now_ms + min(AGAIN_MS * checkpoint.tries, AGAIN_MAX_MS)
            self._in_flight.await_time(checkpoint)

    def _give_up(self, checkpoint: Checkpoint, offset: int, why: str) -> None:
        self.given_up += 1
        log.warning(
            "message %d of queue %d of topic %s, which group %s did not acknowledge, does not come again: %s",
            offset,
            checkpoint.queue_id,
            checkpoint.topic,
            checkpoint.group,
            why,
        )

    def _put(self, checkpoint: Checkpoint, offset: int, message: StoredMessage, group: Group) -> bool:
        """Put a copy where it belongs; False when the store cannot take it now."""
        is_dead = message.reconsume_times >= group.retry_max_times and not checkpoint.is_suspended
        if not is_dead:
            status, reason = self._try_put(self._retried(checkpoint, offset, message))
            is_dead = status in _HOPELESS  # the name of the retry topic is too long, or its properties
        if is_dead:
            status, reason = self._try_put(self._dead_letter(checkpoint, offset, message))
        if not status.is_stored:
            self._refused.goes_on(f"{status.name} {reason}")
            return False
        self._refused.is_over("they come again")
        if is_dead:
            self.dead += 1
        else:
            self.revived += 1
        return True

    def bury(self, checkpoint: Checkpoint) -> bool:
        """Put the one message of a FIFO batch among the dead letters; False when the store cannot take it now."""
        (offset,) = checkpoint.offsets
        units = self._store.read_units(checkpoint.topic, checkpoint.queue_id, offset, 1)
        message = self._look_up(checkpoint, {offset: units[0][0] if units else None})[offset]
        if message is None:
            self._give_up(checkpoint, offset, "it is not in its queue")
            return True
        status, reason = self._try_put(self._dead_letter(checkpoint, offset, message))
        if not status.is_stored:
            self._refused.goes_on(f"{status.name} {reason}")
            return False
        self.dead += 1
        return True

    def _try_put(self, copy: IncomingMessage) -> tuple[PutStatus, str]:
        try:
            check_topic(copy.topic)
            self._node.topics.create_for_group(copy.topic, queues=1)
            try:
                copy.encoded_properties()
            except MessageError:  # too long with what was added
                for name in (ORIGIN_PROPERTY, Property.ORIGIN_GROUP, Property.FIRST_POP_TIME):
                    copy.properties.pop(name, None)
            result = self._node.put(copy)
        except MessageError as exc:
            return PutStatus.MESSAGE_ILLEGAL, str(exc)
        return result.status, result.reason

    def _retried(self, checkpoint: Checkpoint, offset: int, message: StoredMessage) -> IncomingMessage:
        if checkpoint.topic.startswith(RETRY_PREFIX):
            topic = checkpoint.topic
        elif self._node.config.enable_retry_topic_v2:
            topic = pop_retry_topic_v2(checkpoint.group, checkpoint.topic)
        else:
            topic = pop_retry_topic(checkpoint.group, checkpoint.topic)
        copy = self._copy(checkpoint, offset, message, topic)
        if not checkpoint.is_suspended:
            copy.reconsume_times = message.reconsume_times + 1
        return copy

    def _dead_letter(self, checkpoint: Checkpoint, offset: int, message: StoredMessage) -> IncomingMessage:
        copy = self._copy(checkpoint, offset, message, dlq_topic(checkpoint.group))
        origin = pop_origin_topic(checkpoint.topic, checkpoint.group)
        copy.properties.setdefault(Property.RETRY_TOPIC, origin)
        copy.properties.setdefault(Property.ORIGIN_MESSAGE_ID, message.offset_message_id)
        copy.properties[Property.DLQ_ORIGIN_TOPIC] = origin
        copy.properties[Property.DLQ_ORIGIN_MESSAGE_ID] = copy.properties[Property.ORIGIN_MESSAGE_ID]
        copy.reconsume_times = message.reconsume_times + 1
        return copy

    def _copy(self, checkpoint: Checkpoint, offset: int, message: StoredMessage, topic: str) -> IncomingMessage:
        copy = IncomingMessage.copy_of(message, topic=topic, queue_id=0, store_host=self._node.store_host)
        copy.born_host = self._node.store_host  # as the reference's
        for name in _OF_A_DELAY:
            copy.properties.pop(name, None)
        if message.reconsume_times == 0 or Property.FIRST_POP_TIME not in copy.properties:
            copy.properties[Property.FIRST_POP_TIME] = str(checkpoint.pop_time_ms)
        copy.properties[Property.ORIGIN_GROUP] = checkpoint.group
        copy.properties[ORIGIN_PROPERTY] = origin_of(checkpoint, offset)
        return copy
