"""POP_MESSAGE (200050): hand out messages of a topic and of its retry topic.

    check -> plan of queues -> for each: position, read, checkpoint -> answer | wait

The plan begins at a random queue; every fifth request looks into the retry topic first, the others last. Of a topic
with message.type=PRIORITY it begins at the highest queue (`requests/priority.py`), and the retry topic is last. Each
queue of the plan is visited once, also when the batch is full: it still counts for `restNum`. What is not in memory is
read by a worker, and the queue is busy meanwhile: other pops pass it over.

Messages leave only after their checkpoint is in the log. Where the store takes no checkpoint nothing is handed out.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, NamedTuple, TypeVar

from contrailmq.broker.filters import Subscription
from contrailmq.broker.handlers import Handlers, Refused, answer_later
from contrailmq.broker.hooks import MessagesPulled
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.pop.checks import Checks
from contrailmq.broker.pop.in_flight import Checkpoint, InFlight, PopQueue, QueueKey
from contrailmq.broker.pop.orders import OrderTable
from contrailmq.broker.pop.positions import Positions
from contrailmq.broker.pop.records_found import FoundRecord, as_retried, is_of_group, rest_of_batch, split_records
from contrailmq.broker.pop.revive_log import ReviveLog
from contrailmq.broker.pop.waiting import ALL_QUEUES, EARLY_MS, Waiter, Waiters
from contrailmq.broker.requests.cold_reads import ColdReads
from contrailmq.broker.requests.send import refused_put
from contrailmq.broker.state.acknowledging import Needs, Problem
from contrailmq.broker.state.groups import Group
from contrailmq.broker.state.topics import Topic
from contrailmq.message import RETRY_PREFIX, pop_retry_mark, pop_retry_topic, pop_retry_topic_v2
from contrailmq.store import AppendResult, GetResult, GetStatus, QueueRead
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.frame import encode_response
from contrailmq.wire.header import Command
from contrailmq.wire.peer import Peer
from contrailmq.wire.pop_requests import PopMessage, PopMessageResponse
from contrailmq.wire.pop_strings import (
    ORDERED_QUEUE,
    PopHandle,
    count_entries,
    join_entries,
    offsets_entry,
    start_entry,
)

R = TypeVar("R")

FOUND: Final = "FOUND"
NOTHING: Final = "NO_MESSAGE_IN_QUEUE"
_NO_FIELDS: Final = PopMessageResponse()
_ELSEWHERE: Final = (GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.OFFSET_FOUND_NULL)
_PASSED: Final = (
    GetStatus.NO_MATCHED_MESSAGE,
    GetStatus.OFFSET_FOUND_NULL,
    GetStatus.MESSAGE_WAS_REMOVING,
    GetStatus.NO_MATCHED_LOGIC_QUEUE,
)


class Visit(NamedTuple):
    """A queue of the plan."""

    topic: str
    queue_id: int


class Pop:
    """One request on its way through its plan."""

    __slots__ = (
        "at", "command", "connection", "count", "counts", "end_offset", "entries", "group", "has_passed", "header",
        "offsets", "parts", "plan", "pop_time_ms", "problem", "rest", "revive_queue", "size_bytes", "subscription",
        "topic",
    )  # fmt: skip

    def __init__(
        self,
        connection: Peer,
        command: Command,
        header: PopMessage,
        topic: Topic,
        group: Group,
        subscription: Subscription | None,
    ) -> None:
        self.connection = connection
        self.command = command
        self.header = header
        self.topic = topic
        self.group = group
        self.subscription = subscription
        self.plan: list[Visit] = []
        self.at = 0
        self.pop_time_ms = 0
        self.revive_queue = 0
        self.rest = 0
        self.count = 0
        self.size_bytes = 0
        self.end_offset = 0  # of the newest checkpoint's record
        self.entries: list[str] = []  # of startOffsetInfo
        self.offsets: list[str] = []
        self.counts: list[str] = []
        self.parts: list[bytes | memoryview] = []
        self.has_passed = False  # it went over messages that its filter leaves out
        self.problem: AppendResult | None = None  # why a checkpoint was not taken

    @property
    def is_ordered(self) -> bool:
        return bool(self.header.order)


class Popping:
    """Serves pops. `workers` read what is not in memory."""

    def __init__(
        self,
        node: BrokerNode,
        workers: Executor,
        *,
        checks: Checks,
        in_flight: InFlight,
        positions: Positions,
        orders: OrderTable,
        revive_log: ReviveLog,
        waiters: Waiters,
    ) -> None:
        self._node = node
        self._cold = ColdReads(workers)
        self._checks = checks
        self._in_flight = in_flight
        self._positions = positions
        self._orders = orders
        self._log = revive_log
        self._waiters = waiters
        self.bury: Callable[[Checkpoint], bool] = lambda checkpoint: False  # make a dead letter of its message
        self.random: Callable[[int], int] = random.Random().randrange  # tests choose where a plan begins

    def register(self, handlers: Handlers) -> None:
        handlers.register(RequestCode.POP_MESSAGE, self.pop)

    def pop(self, connection: Peer, command: Command) -> bytes | None:
        node, header = self._node, command.header(PopMessage)
        if header.born_time <= 0:
            header.born_time = node.now_ms()
        self._checks.in_time(header.born_time, header.poll_time, _NO_FIELDS)
        self._checks.serving("pop message", _NO_FIELDS)
        self._checks.pop_allowed(header.max_msg_nums, _NO_FIELDS)
        return self._run(connection, command, header)

    def _run(self, connection: Peer, command: Command, header: PopMessage) -> bytes | None:
        """From the beginning: when it comes, and each time that it was woken."""
        node, checks = self._node, self._checks
        topic, group = checks.readable(header.topic, header.consumer_group, header.queue_id, connection, _NO_FIELDS)
        self._check_time(header.invisible_time)
        subscription = checks.subscription(header.topic, header.exp, header.exp_type, _NO_FIELDS)
        pop = Pop(connection, command, header, topic, group, subscription)
        pop.pop_time_ms = node.now_ms()
        pop.revive_queue = ORDERED_QUEUE if pop.is_ordered else self._log.next_queue()
        pop.plan = self._plan(pop)
        return self._advance(pop)

    def _check_time(self, invisible_ms: int) -> None:
        longest_ms = self._node.store.config.timer_max_delay_sec * 1000
        if not 0 <= invisible_ms <= longest_ms:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"an invisible time of {invisible_ms} ms: 0 to {longest_ms} are allowed (timerMaxDelaySec)",
                _NO_FIELDS,
            )

    def _plan(self, pop: Pop) -> list[Visit]:
        config, name, queues = self._node.config, pop.topic.name, pop.topic.read_queues
        chance = self.random(100)
        is_by_priority = pop.topic.is_by_priority and not pop.is_ordered and chance < pop.group.priority_factor
        retries = config.pop_from_retry_probability
        if pop.header.queue_id >= 0:
            own = [Visit(name, pop.header.queue_id)]
        elif is_by_priority:
            retries = config.pop_from_retry_probability_for_priority
            down = range(queues - 1, -1, -1) if config.priority_order_asc else range(queues)
            own = [Visit(name, number) for number in down]
        else:
            own = [Visit(name, (chance + number) % queues) for number in range(queues)]
        if pop.is_ordered:
            return own
        retry = self._retry_queues(name, pop.group.name, is_old_one=chance % 2 == 0)
        return retry + own if chance < retries else own + retry

    def _retry_queues(self, topic: str, group: str, *, is_old_one: bool) -> list[Visit]:
        config = self._node.config
        if topic.startswith(RETRY_PREFIX):
            return []  # somebody pops the retry topic by its own name
        if config.enable_retry_topic_v2 and not (config.retrieve_message_from_pop_retry_topic_v1 and is_old_one):
            name = pop_retry_topic_v2(group, topic)
        else:
            name = pop_retry_topic(group, topic)
        known = self._node.topics.get(name)
        return [Visit(name, queue_id) for queue_id in range(known.read_queues)] if known is not None else []

    # --- one queue after the other

    def _advance(self, pop: Pop) -> bytes | None:
        while pop.at < len(pop.plan):
            visit = pop.plan[pop.at]
            if not self._visit(pop, visit):
                return None  # a worker reads, and goes on from here
            pop.at += 1
        return self._finish(pop)

    def _visit(self, pop: Pop, visit: Visit) -> bool:
        """False: the answer of a worker is awaited."""
        key = (visit.topic, pop.group.name, visit.queue_id)
        init_mode, wanted = pop.header.init_mode, pop.header.max_msg_nums - pop.count
        known = self._in_flight.queues.get(key)
        if (known is not None and known.is_busy) or self._is_full(pop, key):
            if not pop.is_ordered:
                pop.rest += self._behind(key, self._positions.current(key, init_mode))
            return True
        queue = self._positions.queue(key, init_mode)
        if pop.is_ordered:
            if self._orders.is_blocked(key, pop.header.attempt_id):
                return True
            if self._bury_first(pop, key):
                queue = self._positions.queue(key, init_mode)
        if wanted <= 0 or pop.size_bytes >= self._node.config.pull_bytes_max:
            pop.rest += self._behind(key, queue.next_offset)
            return True
        if self._has_ended(queue):
            self._take_back_if_beyond(queue)
            return True
        result = None if self._is_heavy(pop) else self._read(self._node.store.get_slices_warm, pop, queue)
        if result is None:
            self._read_cold(pop, queue)
            return False
        self._take(pop, queue, result)
        return True

    def _has_ended(self, queue: PopQueue) -> bool:
        """Whether there is nothing to read. The queue is brought up to date only where this wakeup appended to it: the
        checkpoints of pops that came together are dispatched together."""
        topic, _, queue_id = queue.key
        node, reader = self._node, self._node.store.reader
        if queue.next_offset < reader.max_offset(topic, queue_id):
            return False
        if node.is_dispatch_due and reader.is_behind(topic, queue_id):
            node.dispatch_now()
        return queue.next_offset >= reader.max_offset(topic, queue_id)

    def _bury_first(self, pop: Pop, key: QueueKey) -> bool:
        """The message that a FIFO queue waits for becomes a dead letter when it was delivered too often."""
        order = self._orders.get(key)
        if order is None or (order.attempt_id is not None and order.attempt_id == pop.header.attempt_id):
            return False
        offset = order.first_open()
        if offset not in order.offsets or order.counts.get(offset, 0) < pop.group.retry_max_times:
            return False
        topic, group, queue_id = key
        one = Checkpoint(
            topic,
            group,
            queue_id,
            start_offset=offset,
            offsets=(offset,),
            pop_time_ms=order.pop_time_ms,
            invisible_ms=order.invisible_ms,
            revive_queue=ORDERED_QUEUE,
            broker_name=self._node.config.broker_name,
        )
        if not self.bury(one):
            return False
        following = self._orders.acknowledge(key, offset, order.pop_time_ms, pop.pop_time_ms)
        self._node.commit_offset(group, topic, queue_id, following)
        return True

    def _take_back_if_beyond(self, queue: PopQueue) -> None:
        """A position beyond the end, which a cut of the log leaves, would pass over the messages to come."""
        topic, _, queue_id = queue.key
        end = self._node.store.max_offset(topic, queue_id)
        if queue.next_offset > end:
            self._positions.moved(queue, end, 0)

    def _is_full(self, pop: Pop, key: QueueKey) -> bool:
        """Whether as many messages are in flight as memory is meant for."""
        if pop.is_ordered:
            return False
        config, table = self._node.config, self._in_flight
        waiting = table.in_flight(key)
        return (
            table.checkpoints >= config.pop_ck_max_buffer_size
            or waiting >= config.pop_ck_offset_max_queue_size
            or (config.enable_pop_message_threshold and waiting > config.pop_inflight_message_threshold)
        )

    def _behind(self, key: QueueKey, offset: int) -> int:
        return max(self._node.store.reader.max_offset(key[0], key[2]) - offset, 0)

    def _is_heavy(self, pop: Pop) -> bool:
        return pop.subscription is not None and pop.subscription.is_heavy

    def _read(self, read: QueueRead[R], pop: Pop, queue: PopQueue) -> R:
        topic, _, queue_id = queue.key
        return read(
            topic,
            queue_id,
            queue.next_offset,
            max(pop.header.max_msg_nums - pop.count, 1),
            max_bytes=self._node.config.pull_bytes_max,
            filter=None if pop.subscription is None else pop.subscription.filter,
        )

    def _read_cold(self, pop: Pop, queue: PopQueue) -> None:
        start = queue.next_offset

        def done(finished: asyncio.Future[GetResult]) -> None:
            queue.reader = None

            def go_on() -> bytes | None:
                if self._in_flight.queues.get(queue.key) is queue and queue.next_offset == start:
                    self._take(pop, queue, finished.result())
                else:  # Its topic or group was deleted meanwhile, or an operator has set its offset.
                    finished.result().release()
                pop.at += 1
                return self._advance(pop)

            answer_later(pop.connection, pop.command, go_on)

        queue.reader = pop.connection
        self._cold.read(pop.connection, lambda: self._read(self._node.store.get_slices_cold, pop, queue), done)

    def _take(self, pop: Pop, queue: PopQueue, result: GetResult) -> None:
        """What a read of a queue gave."""
        if result.status in _ELSEWHERE and result.next_offset >= 0 and result.next_offset != queue.next_offset:
            self._positions.moved(queue, result.next_offset, 0)
            result = self._read(self._node.store.get_slices_sound, pop, queue)
        position = queue.next_offset
        if result.status is GetStatus.FOUND:
            position = result.next_offset if self._hand_out(pop, queue, result) else queue.next_offset
        elif result.status in _PASSED and result.next_offset > position:
            position = result.next_offset
            self._positions.moved(queue, position, 0)
            pop.has_passed = True
        pop.rest += self._behind(queue.key, position)

    def _hand_out(self, pop: Pop, queue: PopQueue, result: GetResult) -> bool:
        """False when they stay where they are."""
        topic, _, queue_id = queue.key
        start = queue.next_offset
        found: list[FoundRecord] = [one for one in split_records(result.slices) if one[0][-1] >= start]
        is_begun = bool(found) and found[0][0][0] < start  # a batch, of which some are done
        if is_begun:
            found[:1] = rest_of_batch(found[0][1], start)
        mark = pop_retry_mark(topic)
        if mark == "1":
            found = [one for one in found if is_of_group(one[1], pop.group.name)]
        offsets = tuple([offset for places, _ in found for offset in places])
        if not offsets:
            self._positions.moved(queue, result.next_offset, 0)
            pop.has_passed = True
        if not offsets or not self._note(pop, queue, offsets, result.next_offset):
            result.release()
            return False
        pop.entries.append(start_entry(mark, queue_id, start))
        pop.offsets.append(offsets_entry(mark, queue_id, offsets))
        if mark != "0":
            self._add_retried(pop, queue, found, start)
        elif is_begun:
            pop.parts += [bytes(record) for _, record in found]
            pop.size_bytes += sum([len(record) for _, record in found])
        else:
            pop.parts += result.slices
            pop.size_bytes += result.size_bytes
        pop.count += len(offsets)
        self._show(pop, queue, result, first_offset=start, count=len(offsets))
        return True

    def _show(self, pop: Pop, queue: PopQueue, result: GetResult, *, first_offset: int, count: int) -> None:
        topic, group, queue_id = queue.key
        self._node.statistics.note_get(group, topic, count, result.size_bytes)
        if self._node.hooks.on_pulled:
            self._node.hooks.pulled(
                MessagesPulled(
                    client=pop.connection.address,
                    group=group,
                    topic=topic,
                    queue_id=queue_id,
                    first_offset=first_offset,
                    next_offset=result.next_offset,
                    count=count,
                    size_bytes=result.size_bytes,
                )
            )

    def _add_retried(self, pop: Pop, queue: PopQueue, found: list[FoundRecord], start: int) -> None:
        topic, _, queue_id = queue.key
        is_renamed = topic != pop.topic.name and not self._node.config.pop_response_return_actual_retry_topic
        handle = PopHandle(
            start,
            pop.pop_time_ms,
            pop.header.invisible_time,
            pop.revive_queue,
            pop_retry_mark(topic),
            self._node.config.broker_name,
            queue_id,
            0,
        )
        for offsets, record in found:  # one each: batches come again message by message
            if is_renamed:
                data = as_retried(record, pop.topic.name, handle._replace(offset=offsets[0]))
            else:
                data = as_retried(record, topic, None)
            pop.parts.append(data)
            pop.size_bytes += len(data)

    def _note(self, pop: Pop, queue: PopQueue, offsets: tuple[int, ...], next_offset: int) -> bool:
        """Put down that these are in flight; False when that is not possible."""
        topic, group, queue_id = queue.key
        if pop.is_ordered:
            order = self._orders.update(
                queue.key,
                offsets,
                pop_time_ms=pop.pop_time_ms,
                invisible_ms=pop.header.invisible_time,
                attempt_id=pop.header.attempt_id,
            )
            pop.counts += count_entries(pop_retry_mark(topic), queue_id, offsets, order.counts)
            return True
        checkpoint = Checkpoint(
            topic,
            group,
            queue_id,
            start_offset=queue.next_offset,
            offsets=offsets,
            pop_time_ms=pop.pop_time_ms,
            invisible_ms=pop.header.invisible_time,
            revive_queue=pop.revive_queue,
            broker_name=self._node.config.broker_name,
        )
        if any(
            (old := queue.waiting.get(offset)) is not None and old.pop_time_ms >= pop.pop_time_ms for offset in offsets
        ):
            return False  # reset to here within a millisecond: nobody could tell the two handles apart
        put = self._log.put_checkpoint(checkpoint, next_offset=next_offset)
        if not put.status.is_stored:
            pop.problem = put
            return False
        for old, offset in self._in_flight.add(queue, checkpoint):
            self._log.put_acks(old, [offset])
        pop.end_offset = put.physical_offset + put.size_bytes
        self._positions.moved(queue, next_offset, pop.end_offset)
        return True

    # --- answers

    def _finish(self, pop: Pop) -> bytes | None:
        key = (pop.topic.name, pop.group.name, max(pop.header.queue_id, ALL_QUEUES))
        if pop.count:
            if pop.rest:
                self._node.call_soon(lambda: self._wake(key))
            return self._answer_found(pop)
        if pop.problem is not None:
            raise refused_put(pop.problem, self._fields(pop))
        self._node.statistics.get_missed.value += 1
        remaining_ms = pop.header.born_time + pop.header.poll_time - self._node.now_ms() - EARLY_MS
        code = ResponseCode.POLLING_TIMEOUT
        if pop.header.poll_time > 0 and remaining_ms > 0 and self._node.is_accepting:
            if self._try_hold(pop, key, min(remaining_ms, pop.header.poll_time)):
                if pop.has_passed and pop.rest:  # there may be some that it wants further on
                    self._node.call_soon(lambda: self._wake(key))
                return None
            code = ResponseCode.POLLING_FULL
        return encode_response(pop.command, code, self._fields(pop), remark=NOTHING)

    def _try_hold(self, pop: Pop, key: QueueKey, remaining_ms: int) -> bool:
        def resume() -> None:
            answer_later(pop.connection, pop.command, lambda: self._run(pop.connection, pop.command, pop.header))

        def give_up() -> None:
            fields = self._fields(pop)
            answer_later(
                pop.connection,
                pop.command,
                lambda: encode_response(pop.command, ResponseCode.POLLING_TIMEOUT, fields, remark=NOTHING),
            )

        subscription = pop.subscription
        waiter = Waiter(
            key,
            deadline_ms=self._node.monotonic_ms() + remaining_ms,
            connection=pop.connection,
            resume=resume,
            give_up=give_up,
            filter=None if subscription is None else subscription.filter,
            is_heavy=self._is_heavy(pop),
        )
        return self._waiters.try_hold(waiter)

    def _wake(self, key: QueueKey) -> None:
        self._waiters.wake(key)

    def _answer_found(self, pop: Pop) -> bytes | None:
        node, fields = self._node, self._fields(pop)
        if pop.is_ordered:
            node.offset_journal.note()
        # A worker may have read for this pop while others appended: answers are released in the order of their ends.
        end_offset = node.store.appended_offset if pop.end_offset else 0
        needs = Needs(
            durable_up_to=end_offset if node.store.config.is_sync_flush else 0,
            # What is in flight for a group that a crash forgets would never come again.
            groups=(pop.group.name,) if pop.group.name in node.keeping.groups else (),
            replicated_up_to=end_offset if node.replicas.is_awaited else 0,
        )
        if not (needs.durable_up_to or needs.replicated_up_to or needs.groups):
            head = encode_response(pop.command, ResponseCode.SUCCESS, fields, remark=FOUND, body_bytes=pop.size_bytes)
            pop.connection.reply_parts([head, *pop.parts], len(head) + pop.size_bytes)
            return None

        def render(problem: Problem | None) -> bytes:
            if problem is not None and not problem.is_late:
                return encode_response(pop.command, problem.code, fields, remark=problem.remark)
            return encode_response(pop.command, ResponseCode.SUCCESS, fields, b"".join(pop.parts), FOUND)

        return node.acknowledging.answer(pop.connection, pop.command, needs, render)

    def _fields(self, pop: Pop) -> PopMessageResponse:
        return PopMessageResponse(
            pop_time=pop.pop_time_ms,
            invisible_time=pop.header.invisible_time,
            revive_qid=pop.revive_queue,
            rest_num=pop.rest,
            start_offset_info=join_entries(pop.entries),
            msg_offset_info=join_entries(pop.offsets),
            order_count_info=join_entries(pop.counts) if pop.is_ordered else None,
        )
