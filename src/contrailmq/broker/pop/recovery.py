"""What is in flight when a broker starts: from a picture of the table and the log after it, or from the log alone.

`config/pop.json` is ours: the table as it was at some moment, with the ends of the timer topic and the revive log then.
Records behind these ends are applied to it. A record that the timer has copied to the revive log was applied when it
went into the timer, so copies are passed over.

The picture does not count when the log ends before `log_end`: a power failure took records that it has, and that no
queue had yet. It is removed then, before the log grows beyond that place with other records. Nor does it count when
somebody else has revived messages since: Apache's broker moves the offset of its group CID_RMQ_SYS_REVIVE_GROUP then,
and the picture knows what we had committed. Without a picture (Apache's store, a slave that became a master) the log
says it all:

    with the timer, and not in the revive log              in flight, less its acknowledgements
    in the revive log behind the group's committed offset  in flight, less its acknowledgements
    in the revive log up to it                             done

How far the timer has come says nothing of this: a slave that stood in for its master hands what is due to others,
and its timer goes on. Only of what was due before the last WINDOW records of a revive queue nobody looks for the copy.

A topic may have been deleted and made again. Its checkpoints in the log before the deletion, and its positions in a
picture of before, do not count (node.deleted knows where the log ended then). Of a group that was deleted with its
offsets only the picture knows.

An operator may have set a group's offset (OffsetTable.note_set_by_hand: where the log ended then). What the log has
from before that place, and a picture that does not know of it, say nothing of where the group goes on. After that place
the record of a single message counts only with CONTRAIL_POP_NEXT: a change of the invisible time of a message that was
popped before looks the same otherwise. Apache's broker leaves these places out when it saves the offsets, so the
picture has them too.

Then two things that a crash may have left are put right. Of two checkpoints with one message the newer counts. And a
message whose copy is in the retry topic or among the dead letters (CONTRAIL_POP_OF) is not revived again: only what was
due before the end of the log can have one, and it is among the newest messages there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

import msgspec

from contrailmq.broker.node import BrokerNode
from contrailmq.broker.pop.in_flight import Checkpoint, InFlight, PopQueue, QueueKey
from contrailmq.broker.pop.records_found import ORIGIN_PROPERTY
from contrailmq.broker.pop.revive_log import NEXT_PROPERTY, REVIVE_GROUP, ReviveLog
from contrailmq.broker.state.config_files import TableSaveError, save
from contrailmq.broker.state.offsets import OFFSETS_FILE, SEPARATOR
from contrailmq.message import (
    RETRY_PREFIX,
    Property,
    StoredMessage,
    SystemTopic,
    dlq_topic,
    pop_retry_topic,
    pop_retry_topic_v2,
    tags_code,
)
from contrailmq.message.codec import CorruptRecordError, decode_record
from contrailmq.store import decode_checkpoint
from contrailmq.wire.pop_records import ACK_TAG, BATCH_ACK_TAG, CHECKPOINT_TAG, decode_ack_body, decode_checkpoint_body

log = logging.getLogger("contrailmq.broker")

PICTURE_FILE: Final = "pop.json"
WINDOW: Final = 20_000  # records of a revive queue before the committed offset that are looked at
UNITS: Final = 512
COPIES_MAX: Final = 100_000  # newest messages of a retry topic that are looked at
_CODES: Final = frozenset(tags_code(tag) for tag in (CHECKPOINT_TAG, ACK_TAG, BATCH_ACK_TAG))
_COPIED: Final = (Property.TIMER_ENQUEUE_MS, Property.TIMER_DEQUEUE_MS)

CheckpointKey = tuple[str, str, int, int, int]  # topic, group, queue, start, pop time


class Picture(msgspec.Struct, kw_only=True):
    """The table at one moment."""

    note: str = "ContrailMQ's own; without it a start reads the log"
    log_end: int = 0  # what it knows is in the log up to there
    timer_offset: int
    revive_offsets: dict[int, int]
    revived: dict[int, list[int]]  # revive queue -> what our commit of REVIVE_GROUP was, and is
    queues: list[tuple[str, str, int, int, list[int]]]  # topic, group, queue, position, what may be committed
    # topic, group, queue, start, pop time, invisible time, revive queue, broker, suspended, place, store time, offsets
    checkpoints: list[tuple[str, str, int, int, int, int, int, str, bool, int, int, list[int]]]
    set_by_hand: list[tuple[str, int, int]] = []  # "topic@group", queue, where the log ended


def picture_of(node: BrokerNode, in_flight: InFlight, revive_log: ReviveLog, revived: dict[int, list[int]]) -> Picture:
    store = node.store
    return Picture(
        log_end=store.appended_offset,
        timer_offset=store.max_offset(SystemTopic.TIMER, 0),
        revive_offsets={number: store.max_offset(revive_log.topic, number) for number in range(revive_log.queues)},
        revived={number: list(values) for number, values in revived.items()},
        queues=[
            (*queue.key, queue.next_offset, [queue.committed, *(offset for _, offset in queue.uncommitted)])
            for queue in in_flight.queues.values()
        ],
        checkpoints=[
            (
                *one.key, one.start_offset, one.pop_time_ms, one.invisible_ms, one.revive_queue, one.broker_name,
                one.is_suspended, one.physical_offset, one.store_time_ms, in_flight.open_offsets(one),
            )
            for one in in_flight.all()
        ],
        set_by_hand=node.offsets.all_set_by_hand(),
    )  # fmt: skip


class Step(NamedTuple):
    """A pop that the log knows of: where it began to read, and where the group went on."""

    physical_offset: int
    start: int
    following: int
    is_surely_pop: bool  # else it may be a change of the invisible time of one message


class Recovery:
    """One start of a broker. Blocks."""

    def __init__(self, node: BrokerNode, in_flight: InFlight, revive_log: ReviveLog) -> None:
        self._node = node
        self._store = node.store
        self._clock = node.store.store_clock
        self._in_flight = in_flight
        self._log = revive_log
        self._checkpoints: dict[CheckpointKey, Checkpoint] = {}
        self._acked: dict[CheckpointKey, set[int]] = {}
        self._done: set[CheckpointKey] = set()
        self._steps: dict[QueueKey, list[Step]] = {}
        self._points: dict[QueueKey, tuple[int, list[int]]] = {}
        self._deleted = node.deleted.log_ends()  # what lies before that in the log is of an earlier topic of that name
        self.is_from_picture = False

    def run(self) -> None:
        picture = self._load()
        if picture is not None:
            self._take_set_by_hand(picture)
        if picture is not None and self._is_ours(picture):
            self.is_from_picture = True
            self._take_picture(picture)
        else:
            self._take_log()
        self._fill()
        self._fit_set_by_hand()
        self._find_copies()

    # --- reading

    def _load(self) -> Picture | None:
        path = self._node.config_path / PICTURE_FILE
        try:
            data = path.read_bytes() if path.exists() else b""
            return msgspec.json.decode(data, type=Picture) if data.strip(b" \n\t\0") else None
        except (OSError, msgspec.DecodeError) as exc:
            log.warning("%s cannot be read (%s): what is in flight is read from the log", path, exc)
            return None

    def _committed(self, revive_queue: int) -> int:
        stored = self._node.offsets.stored(f"{self._log.topic}@{REVIVE_GROUP}", revive_queue)
        return -1 if stored is None else stored

    def _is_ours(self, picture: Picture) -> bool:
        """Whether nobody else has revived anything since, and the log still has what the picture builds on."""
        if picture.log_end > self._clock.opened_at or picture.timer_offset > self._store.max_offset(
            SystemTopic.TIMER, 0
        ):
            return False  # the end of the log is gone: what was read or written then may be too
        return all(self._committed(number) in picture.revived.get(number, [-1]) for number in range(self._log.queues))

    def _take_set_by_hand(self, picture: Picture) -> None:
        """What Apache's broker has left out of its file."""
        offsets = self._node.offsets
        for key, queue_id, log_end in picture.set_by_hand:
            topic, _, group = key.partition(SEPARATOR)
            if log_end > offsets.set_by_hand_at(key, queue_id) and offsets.stored(key, queue_id) is not None:
                offsets.note_set_by_hand(group, topic, queue_id, log_end=log_end)

    def _fit_set_by_hand(self) -> None:
        """Before the log grows: after a power failure other records would come to lie before such a place."""
        node = self._node
        if node.offsets.fit_set_by_hand(self._store.log_min_offset, self._store.appended_offset):
            try:
                save(node.config_path / OFFSETS_FILE, node.snapshots()[OFFSETS_FILE]()())
            except TableSaveError as exc:  # a full disk: a crash now repeats more, nothing is lost
                log.error("%s", exc)

    def _take_picture(self, picture: Picture) -> None:
        for entry in picture.checkpoints:
            topic, group, queue_id, start, pop_time_ms, invisible_ms, revive_queue, broker = entry[:8]
            is_suspended, place, store_time_ms, offsets = entry[8:]
            one = Checkpoint(
                topic,
                group,
                queue_id,
                start_offset=start,
                offsets=tuple(offsets),
                pop_time_ms=pop_time_ms,
                invisible_ms=invisible_ms,
                revive_queue=revive_queue,
                broker_name=broker,
                is_suspended=is_suspended,
            )
            one.physical_offset, one.store_time_ms = place, store_time_ms
            if self._is_of_deleted(topic, place):
                continue
            self._set_due(one, self._clock.stored_ms(place, store_time_ms) + invisible_ms)
            self._checkpoints[_key_of(one)] = one
        self._take_positions(picture)
        for message in self._records(SystemTopic.TIMER, 0, picture.timer_offset):
            if self._is_news(message, picture):
                self._apply(message, _revive_queue_of(message))
        for number, offset in picture.revive_offsets.items():
            for message in self._records(self._log.topic, number, offset):
                if self._is_news(message, picture):
                    self._apply(message, number)

    def _take_positions(self, picture: Picture) -> None:
        known = {(key, queue_id): log_end for key, queue_id, log_end in picture.set_by_hand}
        for topic, group, queue_id, position, points in picture.queues:
            key = f"{topic}@{group}"
            is_set_since = self._node.offsets.set_by_hand_at(key, queue_id) > known.get((key, queue_id), 0)
            self._in_flight.popped.add((topic, group, queue_id))
            if picture.log_end > self._deleted.get(topic, -1) and not is_set_since:
                self._points[topic, group, queue_id] = position, points

    def _is_news(self, message: StoredMessage, picture: Picture) -> bool:
        """Whether the picture lacks it. A queue gets a record late, under SYNC_FLUSH when the disk has it: the picture
        may have forgotten it already, with a group that was deleted."""
        return not _is_copy(message) and message.physical_offset >= picture.log_end

    def _is_of_deleted(self, topic: str, physical_offset: int) -> bool:
        """Whether a record was written before its topic was deleted, and maybe made again."""
        return 0 <= physical_offset < self._deleted.get(topic, 0)

    def _take_log(self) -> None:
        read_ms = self._timer_read_ms()
        before_window_ms: dict[int, int] = {}  # revive queue -> the copies of what was due before are not looked at
        for number in range(self._log.queues):
            committed = self._committed(number)
            first = max(committed - WINDOW, 0) if read_ms else 0
            is_cut = first > self._store.min_offset(self._log.topic, number)
            for message in self._records(self._log.topic, number, first):
                if is_cut and number not in before_window_ms:
                    before_window_ms[number] = self._out_ms(message)
                self._apply(message, number, is_done=message.queue_offset <= committed)
        for message in self._records(SystemTopic.TIMER, 0, 0):
            if message.properties.get(Property.REAL_TOPIC) == self._log.topic:
                number = _revive_queue_of(message)
                is_delivered = self._out_ms(message) < min(before_window_ms.get(number, 0), read_ms)
                self._apply(message, number, is_delivered=is_delivered)

    def _out_ms(self, message: StoredMessage) -> int:
        """When the timer delivers it; the wheel goes by steady time."""
        out_ms = _number(message.properties.get(Property.TIMER_OUT_MS))
        return out_ms - self._clock.ahead_ms(message.physical_offset)

    def _timer_read_ms(self) -> int:
        """Up to when the timer has delivered, as its file says; 0 if nobody knows."""
        path = self._node.config_path / "timercheck"
        try:
            return decode_checkpoint(path.read_bytes()).read_time_ms
        except OSError as exc:
            log.info("%s cannot be read (%s): all checkpoints of the timer topic are looked at", path, exc)
            return 0

    def _records(self, topic: str, queue_id: int, offset: int) -> Iterator[StoredMessage]:
        """Checkpoints and acknowledgements of a queue."""
        store = self._store
        offset, end = max(offset, store.min_offset(topic, queue_id)), store.max_offset(topic, queue_id)
        looks_at_all = store.config.enable_consume_queue_ext  # units hold no hashes then
        while offset < end:
            units = store.read_units(topic, queue_id, offset, min(UNITS, end - offset))
            if not units:
                return
            for place, size, code in units:
                if code in _CODES or looks_at_all:
                    message = self._read(place, size)
                    if message is not None:
                        yield message
            offset += len(units)

    def _read(self, place: int, size_bytes: int) -> StoredMessage | None:
        record = self._store.read_record(place, size_bytes)
        try:
            return None if record is None else decode_record(record)
        except CorruptRecordError as exc:
            log.error("a record of POP at %d cannot be read: %s", place, exc)
            return None

    # --- what a record says

    def _apply(
        self, message: StoredMessage, revive_queue: int, *, is_done: bool = False, is_delivered: bool = False
    ) -> None:
        """`is_done`: a checkpoint that was dealt with. `is_delivered`: if it still counts, the revive log has it."""
        tag = message.properties.get(Property.TAGS)
        if tag == CHECKPOINT_TAG:
            self._apply_checkpoint(message, revive_queue, is_done=is_done, is_delivered=is_delivered)
        elif tag in (ACK_TAG, BATCH_ACK_TAG):
            self._apply_ack(message)

    def _apply_checkpoint(
        self, message: StoredMessage, revive_queue: int, *, is_done: bool, is_delivered: bool
    ) -> None:
        body = decode_checkpoint_body(message.stored_body)
        if body is None or not body.topic or not body.group:
            return
        own_name = self._node.config.broker_name
        is_of_timer = message.topic == SystemTopic.TIMER or _is_copy(message)
        if not is_of_timer and body.broker_name not in (None, own_name):
            return  # a slave that stood in for another master sent it here: its messages are not in this log
        one = Checkpoint(
            body.topic,
            body.group,
            body.queue_id,
            start_offset=body.start_offset,
            offsets=body.offsets,
            pop_time_ms=body.pop_time_ms,
            invisible_ms=body.invisible_ms,
            revive_queue=revive_queue,
            broker_name=body.broker_name or own_name,
            is_suspended=body.is_suspended,
        )
        one.physical_offset, one.store_time_ms = message.physical_offset, message.store_time_ms
        key = _key_of(one)
        if self._is_of_deleted(one.topic, message.physical_offset):
            self._done.add(key)  # the timer may have copied it to the revive log after the deletion
            return
        following = message.properties.get(NEXT_PROPERTY)
        if not _is_copy(message) and one.offsets:
            end = max(_number(following), one.offsets[-1] + 1)
            is_surely_pop = following is not None or len(one.offsets) > 1
            step = Step(message.physical_offset, one.start_offset, end, is_surely_pop)
            self._steps.setdefault(one.key, []).append(step)
        if is_done:
            self._done.add(key)
        elif not is_delivered and key not in self._checkpoints:
            if _is_copy(message):
                due_ms = one.pop_time_ms + one.invisible_ms - self._clock.ahead_ms(message.physical_offset)
            else:
                due_ms = self._clock.stored_ms(message.physical_offset, message.store_time_ms) + one.invisible_ms
            self._set_due(one, due_ms)
            self._checkpoints[key] = one

    def _apply_ack(self, message: StoredMessage) -> None:
        body = decode_ack_body(message.stored_body)
        if body is not None:
            key = (body.topic, body.group, body.queue_id, body.start_offset, body.pop_time_ms)
            offsets = body.offsets if isinstance(body.offsets, list) else [body.offset]
            self._acked.setdefault(key, set()).update(offsets)

    def _set_due(self, one: Checkpoint, due_ms: int) -> None:
        # Where nobody knows how its time is to be read (Apache's): no more than its time once more.
        one.due_ms = min(due_ms, self._clock.opened_ms + one.invisible_ms)

    # --- the table

    def _fill(self) -> None:
        open_ones = {key: one for key, one in self._checkpoints.items() if key not in self._done}
        for key in {*self._points, *self._steps, *(one.key for one in open_ones.values())}:
            position, committed = self._position(key)
            if committed is not None:
                self._in_flight.queues[key] = PopQueue(key, position, committed)
        for one in sorted(open_ones.values(), key=lambda one: one.pop_time_ms):
            acked = self._acked.get(_key_of(one), ())
            one.offsets = tuple([offset for offset in one.offsets if offset not in acked])
            if one.offsets:
                queue = self._in_flight.queues.get(one.key)
                if queue is None:
                    queue = self._in_flight.queues[one.key] = PopQueue(one.key, 0, -1)
                self._in_flight.add(queue, one)

    def _position(self, key: QueueKey) -> tuple[int, int | None]:
        """Where the group goes on, and its committed offset.

        Only steps since an operator has set the offset count. The committed offset follows the position late. But if
        it is none of the places that the position went through, somebody has moved it, and the group goes on there.
        """
        topic, group, queue_id = key
        committed = self._node.offsets.stored(f"{topic}@{group}", queue_id)
        self._in_flight.popped.add(key)
        set_at = self._node.offsets.set_by_hand_at(f"{topic}@{group}", queue_id)
        steps = sorted(self._steps.get(key, ()))
        if set_at:
            steps = [step for step in steps if step.physical_offset >= set_at and step.is_surely_pop]
        position, points = self._points.get(key, (-1, []))
        passed = {*points, position, *(place for step in steps for place in (step.start, step.following))}
        if committed is None and (points or steps) and group in self._node.groups and topic in self._node.topics:
            committed = points[0] if points else steps[0].start  # its first pop: the file did not have it yet
            self._node.offsets.commit(group, topic, queue_id, committed)
        if committed is None:
            return 0, None
        if committed not in passed:
            return committed, committed
        position = max([position, *(step.following for step in steps)])
        end = self._store.max_offset(topic, queue_id)
        return max(committed, min(position, end)), committed

    def _find_copies(self) -> None:
        """Settle what has a copy already: a crash came between the copy and its acknowledgement."""
        now_ms = self._clock.steady_ms()
        overdue = [one for one in self._in_flight.all() if one.due_ms < now_ms]
        if not overdue:
            return
        since_ms = min(one.due_ms for one in overdue) - 1000
        wanted = {
            origin_of(one, offset): (one, offset) for one in overdue for offset in self._in_flight.open_offsets(one)
        }
        for name in {name for one in overdue for name in _copy_topics(one.topic, one.group)}:
            for message in self._newest(name, since_ms):
                found = wanted.pop(message.properties.get(ORIGIN_PROPERTY, ""), None)
                if found is not None:
                    self._in_flight.settle(self._in_flight.queues[found[0].key], found[1])
                    self._log.put_acks(found[0], [found[1]])

    def _newest(self, topic: str, since_ms: int) -> Iterator[StoredMessage]:
        known = self._node.topics.get(topic)
        for queue_id in range(0 if known is None else max(known.read_queues, known.write_queues)):
            low, end = self._store.min_offset(topic, queue_id), self._store.max_offset(topic, queue_id)
            for offset in range(end - 1, max(low, end - COPIES_MAX) - 1, -1):
                units = self._store.read_units(topic, queue_id, offset, 1)
                message = self._read(units[0][0], units[0][1]) if units else None
                if message is None:
                    continue
                if self._clock.stored_ms(message.physical_offset, message.store_time_ms) < since_ms:
                    break
                yield message


def origin_of(one: Checkpoint, offset: int) -> str:
    """What a copy says of the message that it is of."""
    return f"{one.topic}@{one.queue_id}@{offset}@{one.pop_time_ms}"


def _copy_topics(topic: str, group: str) -> Iterable[str]:
    """Where a copy of a message may be."""
    if topic.startswith(RETRY_PREFIX):
        return topic, dlq_topic(group)
    return pop_retry_topic(group, topic), pop_retry_topic_v2(group, topic), dlq_topic(group)


def _key_of(one: Checkpoint) -> CheckpointKey:
    return one.topic, one.group, one.queue_id, one.start_offset, one.pop_time_ms


def _is_copy(message: StoredMessage) -> bool:
    """Whether the timer has written it, from one that it had taken in."""
    return any(name in message.properties for name in _COPIED)


def _revive_queue_of(message: StoredMessage) -> int:
    return _number(message.properties.get(Property.REAL_QUEUE_ID))


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdigit() else 0
