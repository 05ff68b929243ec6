"""ACK_MESSAGE (200051), BATCH_ACK_MESSAGE (200151), CHANGE_MESSAGE_INVISIBLETIME (200053).

An acknowledgement is answered when it is in the log, to the degree of the flush mode and of replication. One for a
message that is not in flight under its handle (acknowledged before, due again meanwhile, or never popped) changes
nothing and is answered with success, as in the reference: whoever repeats an acknowledgement may rely on that.

A change of the invisible time of such a message is refused: success would say that nobody else gets the message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NoReturn

import msgspec

from contrailmq.broker.handlers import Handlers, Refused
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.pop.checks import Checks
from contrailmq.broker.pop.in_flight import Checkpoint, InFlight, QueueKey
from contrailmq.broker.pop.orders import NOT_IN_BATCH, OLDER_DELIVERY, OrderTable
from contrailmq.broker.pop.revive_log import ReviveLog
from contrailmq.broker.pop.waiting import Waiters
from contrailmq.broker.requests.send import refused_put
from contrailmq.broker.state.acknowledging import Needs, Problem
from contrailmq.broker.state.lite_names import BOUND_TO
from contrailmq.message import RETRY_PREFIX, pop_retry_topic, pop_retry_topic_v2
from contrailmq.store import AppendResult
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import RemoteProtocolError
from contrailmq.wire.frame import ReplyTemplate, encode_response
from contrailmq.wire.header import Command, Fields
from contrailmq.wire.peer import Peer
from contrailmq.wire.pop_records import BatchAckBody, BatchAckEntry
from contrailmq.wire.pop_requests import AckMessage, ChangeInvisibleTime, ChangeInvisibleTimeResponse
from contrailmq.wire.pop_strings import ORDERED_QUEUE, PopHandle, decode_bits

NO_REMARK: Final = "not set any response code"  # what Java's answers say where nothing was said
ENTRIES_MAX: Final = 4096  # of one batch acknowledgement
_NOTHING_CHANGED: Final = ChangeInvisibleTimeResponse()
_ACKNOWLEDGED: Final = ReplyTemplate({})


class Acking:
    def __init__(
        self,
        node: BrokerNode,
        *,
        checks: Checks,
        in_flight: InFlight,
        orders: OrderTable,
        revive_log: ReviveLog,
        waiters: Sequence[Waiters],
    ) -> None:
        self._node = node
        self._checks = checks
        self._in_flight = in_flight
        self._orders = orders
        self._log = revive_log
        self._waiters = waiters
        # Of messages of lite topics: broker/lite serves them.
        self.ack_lite: Callable[[AckMessage], None] = _no_lite_topics
        self.change_lite: Callable[[ChangeInvisibleTime], ChangeInvisibleTimeResponse] = _no_lite_topics

    def register(self, handlers: Handlers) -> None:
        handlers.register(RequestCode.ACK_MESSAGE, self.ack)
        handlers.register(RequestCode.BATCH_ACK_MESSAGE, self.batch_ack)
        handlers.register(RequestCode.CHANGE_MESSAGE_INVISIBLETIME, self.change)

    # --- acknowledge

    def ack(self, connection: Peer, command: Command) -> bytes | None:
        header = command.header(AckMessage)
        self._check_master(None)
        if header.lite_topic:
            self.ack_lite(header)
            return _ACKNOWLEDGED.render(command, ())
        topic = self._checks.topic_to_ack(header.topic, header.queue_id, connection, None)
        low, high = self._bounds(topic.name, header.queue_id, header.offset)
        if not low <= header.offset <= high:
            raise Refused(
                ResponseCode.NO_MESSAGE,
                f"offset is illegal, key:{topic.name}@{header.queue_id}, commit:{header.offset}, store:{low}~{high}",
            )
        handle = _handle(header.extra_info, None)
        key = (topic.name, header.consumer_group, header.queue_id)
        if handle.is_ordered:
            self._ack_ordered(key, header.offset, handle.pop_time_ms, connection)
            self._node.offset_journal.note()
            return self._confirm(connection, command, 0)
        return self._confirm(connection, command, self._ack(key, [header.offset], handle.pop_time_ms))

    def batch_ack(self, connection: Peer, command: Command) -> bytes | None:
        self._check_master(None)
        entries = _entries(command.body)
        if not entries:
            raise Refused(ResponseCode.NO_MESSAGE, "a batch acknowledgement without any entry")
        end_offset = 0
        refused: Refused | None = None
        for entry in entries:
            try:
                end_offset = max(end_offset, self._ack_entry(entry, connection))
            except Refused as exc:  # the others count all the same
                refused = exc
        self._node.offset_journal.note()
        if refused is not None:
            raise refused
        return self._confirm(connection, command, end_offset)

    def _ack_entry(self, entry: BatchAckEntry, connection: Peer) -> int:
        """Where the log must be durable up to."""
        topic = _stored_topic(entry)
        low, high = self._bounds(topic, entry.queue_id, entry.start_offset)
        try:
            offsets = [entry.start_offset + bit for bit in decode_bits(entry.bits)]
        except ValueError as exc:
            raise Refused(ResponseCode.INVALID_PARAMETER, str(exc)) from exc
        offsets = [offset for offset in offsets if low <= offset <= high]
        key = (topic, entry.group, entry.queue_id)
        if entry.revive_queue != ORDERED_QUEUE:
            return self._ack(key, offsets, entry.pop_time_ms)
        self._check_not_lite(topic, entry.group)
        refused = None
        for offset in offsets:
            try:
                self._ack_ordered(key, offset, entry.pop_time_ms, connection)
            except Refused as exc:
                refused = exc
        if refused is not None:
            raise refused
        return 0

    def _check_not_lite(self, name: str, group_name: str) -> None:
        """An entry does not say of which lite topic it is (AckMessageProcessor refuses such a batch too)."""
        topic, group = self._node.topics.get(name), self._node.groups.get(group_name)
        if topic is not None and topic.is_lite and group is not None and group.attributes.get(BOUND_TO) == name:
            raise Refused(
                ResponseCode.ILLEGAL_OPERATION,
                f"batch ack lite is not supported: acknowledge the messages of {name} one by one (200051, liteTopic)",
            )

    def _ack(self, key: QueueKey, offsets: Sequence[int], pop_time_ms: int) -> int:
        """Those of one pop; the end of the record that says so, 0 when none was in flight."""
        by_checkpoint: dict[Checkpoint, list[int]] = {}
        for offset in offsets:
            checkpoint = self._in_flight.find(key, offset, pop_time_ms)
            if checkpoint is not None:
                by_checkpoint.setdefault(checkpoint, []).append(offset)
        end_offset = 0
        for checkpoint, found in by_checkpoint.items():
            end_offset = _end_of(self._settle(checkpoint, found))
        return end_offset

    def _settle(self, checkpoint: Checkpoint, offsets: Sequence[int]) -> AppendResult:
        put = self._log.put_acks(checkpoint, offsets)
        if not put.status.is_stored:
            raise refused_put(put)
        queue = self._in_flight.queues[checkpoint.key]
        for offset in offsets:
            self._in_flight.settle(queue, offset)
        return put

    def _confirm(self, connection: Peer, command: Command, end_offset: int) -> bytes | None:
        node = self._node
        is_sync_flush = node.store.config.is_sync_flush
        if not end_offset:
            # Nothing was in flight under the handle. An acknowledgement of it may still be on its way to the disk.
            end_offset = node.store.appended_offset
            if not is_sync_flush or node.store.durable_offset >= end_offset:
                return _ACKNOWLEDGED.render(command, ())
            node.after_append(wants_flush=True)
        if not node.acknowledging.waits:
            return _ACKNOWLEDGED.render(command, ())
        return node.acknowledging.confirm(connection, command, end_offset)

    # --- FIFO

    def _ack_ordered(self, key: QueueKey, offset: int, pop_time_ms: int, connection: Peer) -> None:
        topic, group, queue_id = key
        node = self._node
        committed = node.offsets.query(group, topic, queue_id)
        if committed is not None and offset < committed:
            return
        now_ms = node.now_ms()
        following = self._orders.acknowledge(key, offset, pop_time_ms, now_ms)
        if following == OLDER_DELIVERY:
            return
        if following == NOT_IN_BATCH:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"offset is illegal, key:{topic}@{group}@{queue_id}, old:{-1 if committed is None else committed}, "
                f"commit:{offset}, next:{NOT_IN_BATCH}, /{connection.address}",
            )
        node.commit_offset(group, topic, queue_id, following)
        if not self._orders.is_blocked(key, None):
            node.call_soon(lambda: self.unblocked(key))

    def unblocked(self, key: QueueKey) -> None:
        """A queue of a FIFO group can be read again: tell one that waits."""
        topic, group, _ = key
        for waiters in self._waiters:
            if not waiters.wake((topic, group, -1)):
                waiters.wake(key)

    # --- change the invisible time

    def change(self, connection: Peer, command: Command) -> bytes | None:
        header = command.header(ChangeInvisibleTime)
        self._check_master(_NOTHING_CHANGED)
        if header.lite_topic:
            return encode_response(command, ResponseCode.SUCCESS, self.change_lite(header), remark=NO_REMARK)
        topic = self._checks.topic_to_ack(header.topic, header.queue_id, connection, _NOTHING_CHANGED)
        low, high = self._bounds(topic.name, header.queue_id, header.offset)
        if not low <= header.offset < high:
            raise Refused(ResponseCode.NO_MESSAGE, NO_REMARK, _NOTHING_CHANGED)
        handle = _handle(header.extra_info, _NOTHING_CHANGED)
        key = (topic.name, header.consumer_group, header.queue_id)
        if not 0 <= header.invisible_time <= self._node.store.config.timer_max_delay_sec * 1000:
            raise Refused(ResponseCode.SYSTEM_ERROR, NO_REMARK, _NOTHING_CHANGED)
        if handle.is_ordered:
            return self._change_ordered(command, key, header, handle)
        old = self._in_flight.find(key, header.offset, handle.pop_time_ms)
        if old is None:
            raise Refused(
                ResponseCode.NO_MESSAGE,
                f"message {header.offset} of {topic.name}@{header.queue_id} is not in flight by this handle: it was "
                "acknowledged, or its invisible time was over",
                _NOTHING_CHANGED,
            )
        changed, end_offset = self._change(old, header)
        fields = ChangeInvisibleTimeResponse(
            pop_time=changed.pop_time_ms, invisible_time=changed.invisible_ms, revive_qid=changed.revive_queue
        )
        return self._answer_changed(connection, command, fields, end_offset)

    def _change(self, old: Checkpoint, header: ChangeInvisibleTime) -> tuple[Checkpoint, int]:
        """The new checkpoint, and where the log must be durable up to."""
        fresh = Checkpoint(
            old.topic,
            old.group,
            old.queue_id,
            start_offset=header.offset,
            offsets=(header.offset,),
            # Later than the old one, whatever the clock says: of two checkpoints the newer counts.
            pop_time_ms=max(self._node.now_ms(), old.pop_time_ms + 1),
            invisible_ms=header.invisible_time,
            revive_queue=old.revive_queue,
            broker_name=old.broker_name,
            is_suspended=bool(header.suspend),
        )
        put = self._log.put_checkpoint(fresh)
        if not put.status.is_stored:
            raise refused_put(put, _NOTHING_CHANGED)
        self._in_flight.add(self._in_flight.queues[old.key], fresh)
        acked = self._log.put_acks(old, [header.offset])
        # Without it a restart, which takes the newer of two, comes to the same; Apache's broker might deliver twice.
        return fresh, _end_of(acked if acked.status.is_stored else put)

    def _change_ordered(self, command: Command, key: QueueKey, header: ChangeInvisibleTime, handle: PopHandle) -> bytes:
        topic, group, queue_id = key
        node = self._node
        committed = node.offsets.query(group, topic, queue_id)
        if committed is not None and header.offset < committed:
            return encode_response(command, ResponseCode.SUCCESS, _NOTHING_CHANGED, remark=NO_REMARK)
        now_ms = node.now_ms()
        visible_ms = now_ms + max(header.invisible_time, 0)
        self._orders.change(key, header.offset, handle.pop_time_ms, visible_ms=visible_ms, now_ms=now_ms)
        fields = ChangeInvisibleTimeResponse(
            pop_time=handle.pop_time_ms,
            invisible_time=visible_ms - handle.pop_time_ms,
            revive_qid=ORDERED_QUEUE,
        )
        return encode_response(command, ResponseCode.SUCCESS, fields, remark=NO_REMARK)

    def _answer_changed(
        self, connection: Peer, command: Command, fields: ChangeInvisibleTimeResponse, end_offset: int
    ) -> bytes | None:
        node = self._node
        needs = Needs(
            durable_up_to=end_offset if node.store.config.is_sync_flush else 0,
            replicated_up_to=end_offset if node.replicas.is_awaited else 0,
        )

        def render(problem: Problem | None) -> bytes:
            if problem is None:
                return encode_response(command, ResponseCode.SUCCESS, fields, remark=NO_REMARK)
            return encode_response(command, problem.code, _NOTHING_CHANGED, remark=problem.remark)

        return node.acknowledging.answer(connection, command, needs, render)

    def _check_master(self, ext: Fields | None) -> None:
        node = self._node
        if node.is_slave:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"this broker is a slave (brokerId {node.config.broker_id}): acknowledge at its master",
                ext,
            )
        if node.replicas.shortage:
            raise Refused(ResponseCode.SYSTEM_ERROR, node.replicas.shortage, ext)

    def _bounds(self, topic: str, queue_id: int, offset: int) -> tuple[int, int]:
        """The first offset of a queue, and the one after the last. What was appended in this wakeup is looked at only
        when `offset` is beyond: acknowledgements that came together are dispatched together."""
        reader = self._node.store.reader
        queue = reader.any_queue(topic, queue_id)
        if queue is None or offset >= queue.max_offset:
            self._node.dispatch_now()
            queue = reader.any_queue(topic, queue_id)
        return (0, 0) if queue is None else (queue.min_offset, queue.max_offset)


def _no_lite_topics(header: AckMessage) -> NoReturn:
    raise Refused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"lite topics are not served here: {header.lite_topic}")


def _end_of(put: AppendResult) -> int:
    return put.physical_offset + put.size_bytes


def _handle(text: str, ext: Fields | None) -> PopHandle:
    try:
        return PopHandle.decode(text)
    except ValueError as exc:
        raise Refused(ResponseCode.SYSTEM_ERROR, str(exc), ext) from exc


def _entries(body: bytes) -> list[BatchAckEntry]:
    if not body:
        return []
    try:
        entries = msgspec.json.decode(body, type=BatchAckBody).acks
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise RemoteProtocolError(f"the body of a batch acknowledgement cannot be read: {exc}") from exc
    if len(entries) > ENTRIES_MAX:
        raise RemoteProtocolError(f"{len(entries)} entries in a batch acknowledgement, the limit is {ENTRIES_MAX}")
    return entries


def _stored_topic(entry: BatchAckEntry) -> str:
    if entry.topic.startswith(RETRY_PREFIX):
        return entry.topic  # it was popped by its own name
    if entry.mark == "1":
        return pop_retry_topic(entry.group, entry.topic)
    return pop_retry_topic_v2(entry.group, entry.topic) if entry.mark == "2" else entry.topic
