"""Transactions: messages that become visible when their sender's local transaction has committed.

    prepare   stores the message in RMQ_SYS_TRANS_HALF_TOPIC, queue 0, where nobody consumes: a half message
    commit    stores a record of type COMMIT in the real topic, pointing back at the half message; then an op message
    rollback  stores only the op message
    check     asks the producer about a half message that it never ended (transaction_check.py)

An op message, in RMQ_SYS_TRANS_OP_HALF_TOPIC, lists the queue offsets of ended half messages, joined by commas. Ends
of 100 to 200 ms (RocketMQ: 3 s), or 4096 bytes of them, share one. Two read offsets of group CID_RMQ_SYS_TRANS say how
far half messages are settled and which op messages still matter. Only the broker writes op messages, so it knows from
memory what is ended (`_ended`) and reads them only at start. A half message that is put back moves to the end of its
queue; `_moved` leads from the old place to the new one, so an end sent before the move still counts.

After a crash, a commit without its op message is found in the log (committed_halves.py), so a committed message is
visible once. A rollback without its op message is asked about again. The read offsets are saved only when the copies
put back before them are durable. Ages are measured in steady time (store/base/store_clock.py), so setting the clock
makes no half message older; a copy put back after a jump notes by how much the clock had moved (CLOCK_SET).

A slave that stands in for its master (state/duty.py) ends nothing and asks nobody: it hands half messages that are old
enough to other groups, as new ones, and their masters ask. Its read offsets pass them.
"""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final

from contrailmq.broker.handlers import Handlers, Refused
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.requests.send import put_rewritten
from contrailmq.broker.state.duty import Duty
from contrailmq.broker.state.incoming import IncomingMessage, Refusal
from contrailmq.broker.state.statistics import TRANSACTION
from contrailmq.broker.transactions.committed_halves import committed_halves, is_same_half
from contrailmq.broker.transactions.committing import committed, half_copier, span_of
from contrailmq.broker.transactions.transaction_check import (
    CLOCK_SET,
    CheckLimits,
    Decision,
    check_times,
    clock_set_ms,
    decide,
    is_too_late_to_end,
)
from contrailmq.broker.worker_job import WorkerJob
from contrailmq.message import (
    DLQ_PREFIX,
    MessageError,
    Property,
    StoredMessage,
    SysFlag,
    SystemTopic,
    encode_properties,
    natural_number,
    offset_message_id,
    parse_offset_message_id,
)
from contrailmq.message.codec import CorruptRecordError, decode_record, encode_record
from contrailmq.message.property_text import find_decoded, key_of
from contrailmq.message.record import RecordView
from contrailmq.store import AppendResult, Arrival, TopicCounts
from contrailmq.wire.admin_requests import ResumeCheckHalfMessage
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.frame import encode_response
from contrailmq.wire.header import Command
from contrailmq.wire.peer import Peer
from contrailmq.wire.peer_warnings import peer_warnings
from contrailmq.wire.requests import CheckTransactionState, EndTransaction

log = logging.getLogger("contrailmq.broker")

GROUP: Final = "CID_RMQ_SYS_TRANS"
METRICS_FILE: Final = "transactionMetrics"
POLL_MS: Final = 100
PORTION: Final = 64  # half messages per tick of a round
METRICS_MS: Final = 10_000
FLUSH_MS: Final = 3000  # between syncs of the log for the read offsets
OP_TAG: Final = "d"
_HALF_TOPIC: Final = SystemTopic.HALF.encode()
_REAL_TOPIC: Final = key_of(Property.REAL_TOPIC)
_GROUP: Final = key_of(Property.PRODUCER_GROUP)
_IMMUNITY: Final = key_of(Property.CHECK_IMMUNITY_SECONDS)
UNKNOWN, COMMIT, ROLLBACK = 0, 8, 12


class TransactionService:
    """Prepares, ends and checks half messages. Owner of the group's read offsets."""

    name = "transactions"

    def __init__(self, node: BrokerNode, worker: Executor, mark_file: Callable[[str], None]) -> None:
        self._node = node
        self._store = node.store
        self._clock = node.store.store_clock
        self._mark_file = mark_file
        self._job = WorkerJob(worker)
        self._copier = half_copier()
        self._flushed_ms = self._clock.steady_ms()
        self.metrics = TopicCounts("transactionCount", node.now_ms())
        self.half_offset = 0  # every half message before it is dealt with
        self._ended: set[int] = set()  # ended ones from half_offset on
        self._moved: dict[int, int] = {}  # old offset -> new one, of half messages that were put back
        self._ops: deque[tuple[int, int]] = deque()  # (offset of an op message, highest half offset in it)
        self._unwritten: list[int] = []  # ended, and in no op message yet
        self._unwritten_bytes = 0
        self._unwritten_since_ms = 0
        self._steps: deque[tuple[int, int, int]] = deque()  # (end of log, half offset, op offset), to be committed
        self._round_end: int | None = None  # where a round in progress ends: before what it puts back itself
        self._last_round_ms = self._clock.steady_ms()
        self._metrics_ms = self._clock.steady_ms()
        self._is_listening = False
        self.interval_ms = POLL_MS

    def register(self, handlers: Handlers) -> None:
        handlers.register(RequestCode.END_TRANSACTION, self.end_transaction)
        handlers.register(RequestCode.RESUME_CHECK_HALF_MESSAGE, self.resume_check)

    # --- prepare

    def rewrite(self, message: IncomingMessage) -> Refusal | None:
        """Make a half message of a prepared one. Retries and dead letters still carry TRAN_MSG and are ordinary."""
        properties = message.properties
        if properties.get(Property.TRANSACTION_PREPARED, "").lower() != "true":
            return None
        if message.topic.startswith(DLQ_PREFIX) or (message.reconsume_times > 0 and Property.DELAY in properties):
            return None
        if message.sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_COMMIT:
            return None
        self.look_at_clock()
        properties[Property.REAL_TOPIC] = message.topic
        properties[Property.REAL_QUEUE_ID] = str(message.queue_id)
        properties[Property.TRANSACTION_ID] = properties.get(Property.UNIQUE_KEY, "")
        for name in (Property.TRANSACTION_CHECK_TIMES, Property.TRANSACTION_PREPARED_QUEUE_OFFSET, CLOCK_SET):
            properties.pop(name, None)  # of an earlier life: it was never checked nor put back
        message.sys_flag &= ~SysFlag.TRANSACTION_MASK
        message.topic, message.queue_id = SystemTopic.HALF, 0
        return None

    # --- end

    def end_transaction(self, connection: Peer, command: Command) -> bytes | None:
        """END_TRANSACTION (37)."""
        header = command.header(EndTransaction)
        self.check_master()
        if header.commit_or_rollback == UNKNOWN:
            return None  # the reference answers nothing: the broker will ask again
        if header.commit_or_rollback not in (COMMIT, ROLLBACK):
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"commitOrRollback is {header.commit_or_rollback}: 0 (unknown), 8 (commit) or 12 (rollback)",
            )
        return self.answer_end(connection, command, self.end(header))

    def check_master(self) -> None:
        if self._node.is_slave:
            raise Refused(ResponseCode.SLAVE_NOT_AVAILABLE, "a slave ends no transactions: send to its master")

    def end(self, header: EndTransaction, *, topic: str | None = None) -> int:
        """Commit or roll back one half message (for this topic, if one is given); Refused says why not.

        Gives up to where the log must be safe before this is confirmed, 0 for anywhere.
        """
        half = self._half_of(header)
        real_topic = half.find(_REAL_TOPIC) or ""
        if topic not in (None, real_topic):
            raise Refused(ResponseCode.SYSTEM_ERROR, f"the half message is for topic {real_topic}, not {topic}")
        offset = self._current_place(half.queue_offset)
        if offset in self._ended:  # said twice: the first time counts, and what it stored may not be safe yet
            return self._store.log_max_offset
        stored_up_to = self._commit(half) if header.commit_or_rollback == COMMIT else 0
        if stored_up_to:
            self._node.statistics.note_commit(real_topic)
            self._node.statistics.note_finish_time(real_topic, self._node.now_ms() - half.born_time_ms)
        else:
            self._node.statistics.note_rollback(real_topic)
        self.note_ended(offset, real_topic)
        return stored_up_to

    def answer_end(
        self, connection: Peer, command: Command, stored_up_to: int, *, body: bytes = b"", remark: str | None = None
    ) -> bytes | None:
        """Who hears that a message is committed relies on finding it after a crash, as its sender would."""
        node = self._node
        if command.is_oneway:  # as the Java client sends them: nobody reads an answer
            return None
        if not stored_up_to:
            return encode_response(command, ResponseCode.SUCCESS, None, body, remark)
        node.after_append(wants_flush=self._store.config.is_sync_flush)
        return node.acknowledging.confirm(connection, command, stored_up_to, body=body, remark=remark)

    def waits_at(self, offset: int) -> bool:
        """Whether a half message waits at this offset: it was neither ended nor moved."""
        return offset >= self.half_offset and offset not in self._ended and offset not in self._moved

    def look_at_clock(self) -> None:
        """Before a half message is stored: its birth is a time of the wall clock as it is now."""
        self._clock.look()

    def _half_of(self, header: EndTransaction) -> RecordView:
        """The half message that the request means; Refused when it means none, or comes too late."""
        half = self._store.view_sound(header.commit_log_offset)
        if half is None or half.topic != _HALF_TOPIC:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"find prepared transaction message failed: no half message at {header.commit_log_offset}",
            )
        group = half.find(_GROUP)
        if group != header.producer_group:
            raise _wrong("producer group", group, header.producer_group)
        if half.queue_offset != header.tran_state_table_offset:
            raise _wrong("transaction state table offset", half.queue_offset, header.tran_state_table_offset)
        if not header.from_transaction_check and _IMMUNITY in half.properties:
            self._check_in_time(decode_record(half.buffer))
        return half

    def _check_in_time(self, half: StoredMessage) -> None:
        age_ms = self._age_ms(half, self._clock.steady_ms())
        timeout_ms = self._node.config.transaction_time_out
        if is_too_late_to_end(half.properties, age_ms=age_ms, timeout_ms=timeout_ms):
            raise Refused(
                ResponseCode.ILLEGAL_OPERATION,
                f"the message is {age_ms} ms old and past its immunity: the answer to the broker's check counts",
            )

    def _current_place(self, offset: int) -> int:
        """Where the half message is now; Refused when it was dealt with."""
        while offset in self._moved:
            offset = self._moved[offset]
        if offset < self.half_offset:
            raise Refused(
                ResponseCode.SYSTEM_ERROR, f"the half message at queue offset {offset} was ended or given up before"
            )
        return offset

    def _commit(self, half: RecordView) -> int:
        """Make the message visible; where its record ends. Refused, and nothing is ended, when it cannot be stored."""
        end = self._commit_as_bytes(half) or self._commit_decoded(decode_record(half.buffer))
        self._node.after_append(wants_flush=self._store.config.is_sync_flush)
        return end

    def _commit_as_bytes(self, half: RecordView) -> int:
        """0 when this half message, or the log, wants more than a copy of the record."""
        copies, _ = self._copier.copies((memoryview(half.buffer),))
        if not copies:
            return 0
        copy = committed(copies[0], half.physical_offset)
        if not self._store.append_copies((copy,)):
            return 0
        begin, size_bytes = span_of(copy)
        self._node.statistics.note_put(copy.topic, 1, size_bytes, TRANSACTION)
        return begin + size_bytes

    def _commit_decoded(self, half: StoredMessage) -> int:
        properties = dict(half.properties)
        topic = properties.pop(Property.REAL_TOPIC, "")
        queue_id = properties.pop(Property.REAL_QUEUE_ID, "0")
        properties.pop(CLOCK_SET, None)
        message = IncomingMessage(
            topic,
            int(queue_id),
            half.stored_body,
            properties,
            born_host=half.born_host_bytes,
            store_host=half.store_host_bytes,
            born_time_ms=half.born_time_ms,
            flag=half.flag,
            sys_flag=(half.sys_flag & ~SysFlag.TRANSACTION_MASK) | SysFlag.TRANSACTION_COMMIT,
            reconsume_times=half.reconsume_times,
            prepared_transaction_offset=half.physical_offset,
        )
        result = put_rewritten(self._node, message)
        return result.physical_offset + result.size_bytes

    def note_ended(self, first: int, topic: str, *, count: int = 1) -> None:
        """Half messages are dealt with, by commits that are stored or by a rollback."""
        for offset in range(first, first + count):
            self._note_end(offset)
        self._count(topic, -count)
        if self._unwritten_bytes >= self._node.config.transaction_op_msg_max_size:
            self._write_ops()

    def _note_end(self, offset: int) -> None:
        self._ended.add(offset)
        if not self._unwritten:
            self._unwritten_since_ms = self._clock.steady_ms()
        self._unwritten.append(offset)
        self._unwritten_bytes += len(str(offset)) + 1

    def _write_ops(self) -> None:
        """One op message for everything ended since the last; what the store does not take now stays for later."""
        if self._node.duty is Duty.ESCAPE:  # its log takes nothing; the ends are found again in the log
            self._unwritten, self._unwritten_bytes = [], 0
        if not self._unwritten:
            return
        body = "".join(f"{offset}," for offset in self._unwritten).encode()
        result = self._append_own(SystemTopic.OP_HALF, body, {Property.WAIT: "true", Property.TAGS: OP_TAG})
        if result.status.is_stored:
            self._ops.append((result.queue_offset, max(self._unwritten)))
            self._unwritten, self._unwritten_bytes = [], 0

    def _append_own(self, topic: str, body: bytes, properties: dict[str, str]) -> AppendResult:
        host = self._node.store_host
        message = IncomingMessage(
            topic, 0, body, properties, born_host=host, store_host=host, born_time_ms=self._node.now_ms()
        )
        return self._node.put(message)

    # --- life

    def start(self) -> None:
        """Learn from the two queues what is pending. Reads the op messages and half messages that still matter."""
        offsets = self._node.offsets
        self._ended, self._moved, self._round_end = set(), {}, None
        self._unwritten, self._unwritten_bytes = [], 0
        self._ops.clear()
        self._steps.clear()
        self.half_offset = self._within(SystemTopic.HALF, offsets.query(GROUP, SystemTopic.HALF, 0) or 0)
        op_offset = self._within(SystemTopic.OP_HALF, offsets.query(GROUP, SystemTopic.OP_HALF, 0) or 0)
        for offset in range(op_offset, self._store.max_offset(SystemTopic.OP_HALF, 0)):
            op = self._read(SystemTopic.OP_HALF, offset)
            ended = [] if op is None else [int(part) for part in op.body.split(b",") if part.isdigit()]
            self._ended.update(part for part in ended if part >= self.half_offset)
            self._ops.append((offset, max(ended, default=-1)))
        waiting, last_places = self._learn_places()
        if self._node.duty is not Duty.FOLLOW:
            self._end_committed(last_places)
        counts: dict[str, int] = {}
        for offset, topic in waiting.items():
            if offset not in self._ended:
                counts[topic] = counts.get(topic, 0) + 1
        self.metrics.load(self._node.config_path / METRICS_FILE)
        self.metrics.replace(counts, self._node.now_ms())
        if not self._is_listening:
            self._is_listening = True
            self._store.add_arrival_listener(self._half_arrived, queues=frozenset({(SystemTopic.HALF, 0)}))

    def _end_committed(self, last_places: dict[str, int]) -> None:
        """End the half messages whose message is visible already: a crash came before their op message."""
        found = 0
        for half in committed_halves(self._store, self._begin_of_unlisted_ends()):
            offset = last_places.get(half.properties.get(Property.UNIQUE_KEY, ""), half.queue_offset)
            while offset in self._moved:
                offset = self._moved[offset]
            if offset < self.half_offset or offset in self._ended:
                continue
            now = self._read(SystemTopic.HALF, offset)
            if now is not None and is_same_half(half, now):
                self._note_end(offset)
                found += 1
        if found:
            log.info("%d half messages were committed before a crash and are not asked about again", found)

    def _begin_of_unlisted_ends(self) -> int:
        """Where in the log the ends begin that no op message lists: after the last one, or where the first half
        message is that waits."""
        store = self._store
        begin = store.log_max_offset
        for physical_offset, _, _ in store.read_units(SystemTopic.HALF, 0, self.half_offset, 1):
            begin = physical_offset
        last_op = store.max_offset(SystemTopic.OP_HALF, 0) - 1
        for physical_offset, size_bytes, _ in (
            store.read_units(SystemTopic.OP_HALF, 0, last_op, 1) if last_op >= 0 else []
        ):
            begin = max(begin, physical_offset + size_bytes)
        return begin

    def _learn_places(self) -> tuple[dict[int, str], dict[str, int]]:
        """Queue offset -> real topic, and unique key -> last queue offset, of the half messages from `half_offset` on.

        A crash may have come between putting a message back and saving that it was: then it is there twice, and only
        its last place counts. Both would be asked about otherwise, and both committed.
        """
        topics: dict[int, str] = {}
        last_places: dict[str, int] = {}
        for offset in range(self.half_offset, self._store.max_offset(SystemTopic.HALF, 0)):
            half = self._read(SystemTopic.HALF, offset)
            if half is None:
                continue
            topics[offset] = half.properties.get(Property.REAL_TOPIC, "")
            before = natural_number(half.properties.get(Property.TRANSACTION_PREPARED_QUEUE_OFFSET, ""))
            if before is not None and before < offset:  # or the way would never end
                self._moved[before] = offset
            key = half.properties.get(Property.UNIQUE_KEY)
            if key is not None:
                old = last_places.get(key)
                if old is not None:
                    self._moved[old] = offset
                    self._ended.add(old)
                last_places[key] = offset
        return topics, last_places

    def stop(self) -> None:
        self._job.wait()
        if self._node.duty is Duty.FOLLOW:
            return  # its offsets are its master's
        self._write_ops()
        self._note_step()
        self._store.flush()
        self._commit_steps()

    def tick(self, now_ms: int) -> None:
        if self._node.duty is Duty.FOLLOW:
            return
        if self._unwritten and now_ms - self._unwritten_since_ms >= self._node.config.transaction_op_batch_interval:
            self._write_ops()
        self._pass_ended()
        if self._node.duty is Duty.ESCAPE:
            self._hand_over(now_ms)
        else:
            self._check_round(now_ms)
        self._note_step()
        self._flush_steps(now_ms)
        self._commit_steps()
        if not 0 <= now_ms - self._metrics_ms < METRICS_MS:
            self._metrics_ms = now_ms
            self._mark_file(METRICS_FILE)

    def _half_arrived(self, arrival: Arrival) -> None:
        """A half message is in its queue: a new one, or one that was put back. What the store refused never comes."""
        self._count(find_decoded(arrival.properties, _REAL_TOPIC) or "", 1)

    def _count(self, topic: str, change: int) -> None:
        self.metrics.add(topic, change, self._node.now_ms())

    def pending(self) -> dict[str, int]:
        """Topic -> half messages that are not ended."""
        return {topic: count for topic, count in self.metrics.counts.items() if count}

    def figures(self) -> dict[str, str]:
        """Lines for GET_BROKER_RUNTIME_INFO."""
        return {f"halfPending_{topic}": str(count) for topic, count in sorted(self.pending().items())}

    # --- progress

    def _within(self, topic: str, offset: int) -> int:
        return max(self._store.min_offset(topic, 0), min(offset, self._store.max_offset(topic, 0)))

    def _pass_ended(self) -> None:
        ended = self._ended
        while self.half_offset in ended:
            ended.remove(self.half_offset)
            self.half_offset += 1

    def _note_step(self) -> None:
        while self._ops and self._ops[0][1] < self.half_offset:
            self._ops.popleft()
        op_offset = self._ops[0][0] if self._ops else self._store.max_offset(SystemTopic.OP_HALF, 0)
        if not self._steps or self._steps[-1][1:] != (self.half_offset, op_offset):
            self._steps.append((self._store.log_max_offset, self.half_offset, op_offset))

    def _flush_steps(self, now_ms: int) -> None:
        """Have the log made durable up to the newest step, now and then: a step counts only then."""
        is_due = not 0 <= now_ms - self._flushed_ms < FLUSH_MS
        log_end = self._steps[-1][0]
        if self._job.poll() and is_due and log_end > self._store.durable_offset:
            self._flushed_ms = now_ms
            self._job.start(lambda: self._store.flush(log_end))

    def _commit_steps(self) -> None:
        """Save the newest step that is durable; the last one stays in the queue to compare with."""
        durable = self._store.durable_offset
        step: tuple[int, int, int] | None = None
        while self._steps and self._steps[0][0] <= durable:
            step = self._steps.popleft()
        if step is not None:
            self._node.offsets.commit(GROUP, SystemTopic.HALF, 0, step[1])
            self._node.offsets.commit(GROUP, SystemTopic.OP_HALF, 0, step[2])
            if not self._steps:
                self._steps.append(step)

    # --- check-back

    def _check_round(self, now_ms: int) -> None:
        """Walk the half messages that are old enough, a portion per tick, once per transactionCheckInterval."""
        self.interval_ms = POLL_MS
        if self._round_end is None:
            if 0 <= now_ms - self._last_round_ms < self._node.config.transaction_check_interval:
                return
            self._last_round_ms = now_ms
            self._round_end = self._store.max_offset(SystemTopic.HALF, 0)
            self._forget_moves()
        limits = self._limits()
        for _ in range(PORTION):
            self._pass_ended()
            if self.half_offset >= self._round_end or not self._check_next(now_ms, limits):
                self._round_end = None
                return
        self.interval_ms = 0

    def _limits(self) -> CheckLimits:
        config = self._node.config
        return CheckLimits(
            config.transaction_time_out,
            config.transaction_check_max,
            self._store.config.file_reserved_time * 3_600_000,
        )

    def _hand_over(self, now_ms: int) -> None:
        """A slave that stands in for its master: half messages that would be checked go to other groups, whose masters
        ask the producers. Nobody can end them here, as the log takes no end."""
        limits, offered = self._limits(), list[StoredMessage]()
        end = min(self._store.max_offset(SystemTopic.HALF, 0), self.half_offset + PORTION + len(self._ended))
        for offset in range(self.half_offset, end):
            if offset in self._ended:
                continue
            half = self._read(SystemTopic.HALF, offset)
            if half is None:
                self._ended.add(offset)
                continue
            decision = decide(half, age_ms=self._age_ms(half, now_ms), limits=limits)
            if decision is Decision.STOP:
                break
            if decision is not Decision.PUT_BACK:  # one that is immune is not asked about, nor is it given away
                offered.append(half)
        assert self._node.elsewhere is not None, "a slave that acts has somewhere to hand messages to"
        arrived = self._node.elsewhere.hand_over([(half, 0) for half in offered])
        for half in offered[:arrived]:
            self._ended.add(half.queue_offset)
            self._count(half.properties.get(Property.REAL_TOPIC, ""), -1)
        self._pass_ended()

    def _age_ms(self, half: StoredMessage, now_ms: int) -> int:
        """Since its birth, which is a time of the wall clock as it was when the message came."""
        return now_ms - (half.born_time_ms - self._ahead_ms(half))

    def _ahead_ms(self, half: StoredMessage) -> int:
        """By how much the wall clock was ahead of steady time when its first copy was stored."""
        return self._clock.ahead_ms(half.physical_offset) + clock_set_ms(half.properties)

    def _properties_for_copy(self, half: StoredMessage) -> dict[str, str]:
        """Those of a copy that is stored now."""
        properties = dict(half.properties)
        properties.pop(CLOCK_SET, None)
        set_ms = self._ahead_ms(half) - self._clock.aheads_ms[0]
        if set_ms:
            properties[CLOCK_SET] = str(set_ms)
        return properties

    def _forget_moves(self) -> None:
        """Keep the way to messages that are pending, and make it short."""
        kept = {}
        for old, new in self._moved.items():
            while new in self._moved:
                new = self._moved[new]
            if new >= self.half_offset:
                kept[old] = new
        self._moved = kept

    def _check_next(self, now_ms: int, limits: CheckLimits) -> bool:
        """Deal with the half message at `half_offset`; False when the round ends before it."""
        half = self._read(SystemTopic.HALF, self.half_offset)
        if half is not None:
            decision = decide(half, age_ms=self._age_ms(half, now_ms), limits=limits)
            if decision is Decision.STOP:
                return False
            is_done = self._give_up(half) if decision is Decision.GIVE_UP else self._put_back(half, decision)
            if not is_done:
                return False  # the store takes nothing now: next round
        self.half_offset += 1
        return True

    def _give_up(self, half: StoredMessage) -> bool:
        """Nobody could say what became of it: move it to where an operator finds it."""
        topic = half.properties.get(Property.REAL_TOPIC, "")
        self._node.topics.create_for_group(SystemTopic.CHECK_MAX_TIME, queues=1)
        result = self._put_copy(half, SystemTopic.CHECK_MAX_TIME, self._properties_for_copy(half))
        if result.status.is_stored:
            peer_warnings.warn("a half message was given up, nobody ended it", f"{half.message_id} for {topic}")
            self._count(topic, -1)
        return result.status.is_stored

    def _put_back(self, half: StoredMessage, decision: Decision) -> bool:
        properties = self._properties_for_copy(half)
        if decision is Decision.CHECK:
            properties[Property.TRANSACTION_CHECK_TIMES] = str(check_times(properties) + 1)
        else:
            properties.setdefault(Property.TRANSACTION_PREPARED_QUEUE_OFFSET, str(half.queue_offset))
        try:
            encode_properties(properties)
        except MessageError:  # no room for the count: asked about as often as the log keeps it, and blocks nobody
            properties = dict(half.properties)
        result = self._put_copy(half, SystemTopic.HALF, properties)
        if not result.status.is_stored:
            return False
        self._moved[half.queue_offset] = result.queue_offset
        self._count(half.properties.get(Property.REAL_TOPIC, ""), -1)  # its copy counts when it arrives
        if decision is Decision.CHECK:
            self._ask_producer(half, properties, result)
        return True

    def _put_copy(self, half: StoredMessage, topic: str, properties: dict[str, str]) -> AppendResult:
        message = IncomingMessage.copy_of(half, topic=topic, queue_id=0, store_host=half.store_host_bytes)
        message.properties = properties
        return self._node.put(message)

    def _ask_producer(self, half: StoredMessage, properties: dict[str, str], place: AppendResult) -> None:
        """CHECK_TRANSACTION_STATE (39) to one producer of the group that is connected now; without one, next time."""
        group = properties.get(Property.PRODUCER_GROUP, "")
        producer = self._node.clients.next_producer(group)
        if producer is None:
            peer_warnings.warn(
                "a half message is not checked, no producer is connected", f"{half.message_id} of {group}"
            )
            return
        unique_key = properties.get(Property.UNIQUE_KEY)
        header = CheckTransactionState(
            tran_state_table_offset=place.queue_offset,
            commit_log_offset=place.physical_offset,
            msg_id=unique_key,
            transaction_id=unique_key,
            offset_msg_id=offset_message_id(half.store_host_bytes, place.physical_offset),
            topic=SystemTopic.HALF,
            bname=self._node.config.broker_name,
        )
        body = encode_record(
            properties.get(Property.REAL_TOPIC, ""),
            half.stored_body,
            encode_properties(properties),
            queue_id=int(properties.get(Property.REAL_QUEUE_ID, "0")),
            queue_offset=place.queue_offset,
            physical_offset=place.physical_offset,
            born_host=half.born_host_bytes,
            store_host=half.store_host_bytes,
            born_time_ms=half.born_time_ms,
            store_time_ms=place.store_time_ms,
            flag=half.flag,
            sys_flag=half.sys_flag,
            reconsume_times=half.reconsume_times,
        )
        producer.connection.oneway(RequestCode.CHECK_TRANSACTION_STATE, header, body)

    def _read(self, topic: str, offset: int) -> StoredMessage | None:
        for physical_offset, size_bytes, _ in self._store.read_units(topic, 0, offset, 1):
            record = self._store.read_record(physical_offset, size_bytes)
            with contextlib.suppress(CorruptRecordError):  # reported below, like one that is missing
                if record is not None:
                    return decode_record(record)
            peer_warnings.warn(f"a record of {topic} is gone or damaged and is skipped", f"offset {offset}")
        return None

    # --- administration

    def resume_check(self, connection: Peer, command: Command) -> bytes | None:
        """RESUME_CHECK_HALF_MESSAGE (323): a half message that was given up is asked about again."""
        message_id = command.header(ResumeCheckHalfMessage).msg_id or ""
        stored = self._given_up(message_id)
        properties = self._properties_for_copy(stored)
        properties[Property.TRANSACTION_CHECK_TIMES] = "0"
        result = self._put_copy(stored, SystemTopic.HALF, properties)
        if not result.status.is_stored:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"put message back failed: {result.reason or result.status.name}")
        return self.answer_end(connection, command, result.physical_offset + result.size_bytes)

    def _given_up(self, message_id: str) -> StoredMessage:
        try:
            _, _, physical_offset = parse_offset_message_id(message_id)
        except MessageError as exc:
            raise Refused(ResponseCode.SYSTEM_ERROR, str(exc)) from exc
        stored = self._store.lookup_sound(physical_offset)
        if stored is None or stored.topic not in (SystemTopic.HALF, SystemTopic.CHECK_MAX_TIME):
            raise Refused(ResponseCode.SYSTEM_ERROR, f"no half message at {physical_offset} (message id {message_id})")
        return stored


def _wrong(what: str, found: object, said: object) -> Refused:
    return Refused(ResponseCode.SYSTEM_ERROR, f"the {what} wrong: the message has {found}, not {said}")
