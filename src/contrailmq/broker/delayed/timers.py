"""Messages with a delivery time of their own: the broker's side of the timer wheel in `store/timer`.

Here are the rewrite of a message on its way in, with the refusals that a sender sees; the recall of a waiting message;
and the service that turns the wheel on the loop and flushes it on a worker.

    recall handle := base64url of "v1 topic broker_name deliver_ms unique_key"        (deliver_ms = TIMER_OUT_MS + 1)

A recall stores a mark with the same delivery time. When its slot begins, marks are read first and their messages are
dropped; until then the handle is good. The handle's time is of the wall clock at admission. If that clock was set since
(store/timer/wheel_time.py), the handle does not say by which of its settings. The message does: it is looked up by its
unique key, and its place in the log tells. Without an index every setting may be meant, and each gets a mark. A recall
is refused when a message that may be meant is due: what is confirmed has its effect.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import logging
from concurrent.futures import Executor
from datetime import datetime
from typing import Final, NamedTuple

from contrailmq._faults import LastingFault
from contrailmq.broker.handlers import Handlers, Refused, answer_later, success
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.requests.cold_reads import ColdReads
from contrailmq.broker.requests.send import BORN_HOST, STATUS_CODES, refused_put
from contrailmq.broker.state.duty import Duty
from contrailmq.broker.state.incoming import IncomingMessage, Refusal
from contrailmq.broker.state.statistics import DELAY
from contrailmq.broker.worker_job import WorkerJob
from contrailmq.message import RETRY_PREFIX, Property, SysFlag, SystemTopic, encode_host, natural_number
from contrailmq.store import (
    FlushPlan,
    PutStatus,
    StoreError,
    StoreIOError,
    TimerCheckpoint,
    TimerRefusal,
    TimerStore,
    TopicCounts,
    admit,
    decode_checkpoint,
    encode_checkpoint,
    hours_of,
    wants_timer,
)
from contrailmq.wire.admin_requests import GetTimerCheckPoint, GetTimerCheckPointResponse
from contrailmq.wire.bodies import encode_body
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.header import Command
from contrailmq.wire.peer import Peer
from contrailmq.wire.requests import RecallMessage, RecallMessageResponse

log = logging.getLogger("contrailmq.broker")

PORTION: Final = 128  # messages per stage and tick: about 1 ms of the loop
PORTIONS_MAX: Final = 4  # per tick of a wheel that is behind
READING_MS: Final = 2  # how soon to look again while a worker reads
STEP_MS: Final = 20  # of a wheel that is busy: what comes and what is due is gathered as long
POLL_MS: Final = 100  # how often the timer topic is looked at
RECALL_TAG: Final = "_RECALL_TAG_"
CHECKPOINT_BYTES: Final = 56  # what a slave is sent: the file without its padding
OLD_CHECKPOINT_BYTES: Final = 32  # of a master that has no data version in it
FIGURES_MS: Final = 1000
NEVER_MS: Final = 1 << 62
COUNTED_TICKS_MAX: Final = 600  # of a delivery that is late: 2 ms for a page of metrics
STANDSTILL_MS: Final = 1000  # between tries while the disk takes nothing
WITH_ONE_KEY_MAX: Final = 64  # messages that are looked at for a recall: those that were sent again, and their marks


class TimerProgress(NamedTuple):
    """What waits for the wheel and for delivery, and how late they are."""

    not_taken_in: int
    taken_in_late_ms: int
    not_delivered: int
    delivered_late_ms: int


class RecallHandle(NamedTuple):
    """What a sender needs to take a message back."""

    topic: str
    broker_name: str
    deliver_ms: int
    unique_key: str

    def encode(self) -> str:
        text = f"v1 {self.topic} {self.broker_name} {self.deliver_ms} {self.unique_key}"
        return base64.urlsafe_b64encode(text.encode()).decode()

    @classmethod
    def decode(cls, handle: str) -> RecallHandle:
        """ValueError if it is not a handle."""
        try:
            version, topic, broker_name, deliver_ms, unique_key = base64.urlsafe_b64decode(handle).decode().split(" ")
        except (binascii.Error, UnicodeDecodeError, ValueError) as exc:
            raise ValueError("the recall handle is not readable") from exc
        if version != "v1":
            raise ValueError(f"a recall handle of version {version[:16]!r} is not known")
        due_ms = natural_number(deliver_ms)
        if due_ms is None:
            raise ValueError(f"the time in the recall handle is {deliver_ms[:32]!r}: a whole number is needed")
        return cls(topic, broker_name, due_ms, unique_key)


class TimerService:
    """Turns the timer wheel. Nothing but refusals happens where timerWheelEnable is false."""

    name = "timer wheel"

    def __init__(self, node: BrokerNode, worker: Executor, readers: Executor) -> None:
        """`worker` flushes, `readers` read what is not in memory."""
        self._node = node
        self._config = node.store.config
        self._job = WorkerJob(worker)
        self._failure: StoreError | None = None
        self._standstill = LastingFault(log, "timers have stopped")
        self._unflushed = LastingFault(log, "the timer wheel is not flushed")
        self._plan: FlushPlan | None = None
        self._is_running = False
        self._is_recount_due = False
        self._recounted_hour = 0
        self._sampled_ms = 0
        self._sampled = (0, 0)
        self._rates = (0.0, 0.0)
        self._clock = node.store.store_clock
        self._readers = readers
        self._lookups = ColdReads(readers)
        self.timer = self._new_timer()
        self._was_started = False
        self.interval_ms = POLL_MS

    def _new_timer(self) -> TimerStore:
        return TimerStore(self._node.store, self._node.store.files, self._readers, clock=self._clock)

    def register(self, handlers: Handlers) -> None:
        handlers.register(RequestCode.RECALL_MESSAGE, self.recall)
        handlers.register(RequestCode.GET_TIMER_CHECK_POINT, self.checkpoint)
        handlers.register(RequestCode.GET_TIMER_METRICS, self.metrics)

    # --- on the way in

    def rewrite(self, message: IncomingMessage) -> Refusal | None:
        """Send a message with a delivery time to the timer topic; one that is due already stays as it is."""
        properties = message.properties
        if not wants_timer(message.topic, properties) or message.topic in (SystemTopic.HALF, SystemTopic.SCHEDULE):
            return None
        if message.sys_flag & SysFlag.TRANSACTION_PREPARED:
            return None
        self._clock.look()  # a wish for a time is meant by the clock as it is now
        admitted = admit(properties, self._clock.wall_ms(), self._config)
        if admitted is None:
            return None
        if (
            not isinstance(admitted, TimerRefusal)
            and Property.TIMER_DELETE_UNIQUE_KEY not in properties  # a recall makes room
            and self._is_running
            and self.timer.is_congested(admitted.out_ms - self.timer.time.shifts_ms[0])
        ):
            admitted = TimerRefusal(
                PutStatus.WHEEL_TIMER_FLOW_CONTROL,
                f"more than {self._config.timer_congest_num_each_slot} timers are due in that second "
                "(timerCongestNumEachSlot): choose another time or raise the limit",
            )
        if isinstance(admitted, TimerRefusal):
            code, prefix = STATUS_CODES[admitted.status]
            return Refusal(code, prefix + admitted.reason)
        self._node.statistics.note_delay(message.topic, admitted.out_ms - self._clock.wall_ms())
        properties[Property.TIMER_OUT_MS] = str(admitted.out_ms)
        properties[Property.REAL_TOPIC] = message.topic
        properties[Property.REAL_QUEUE_ID] = str(message.queue_id)
        unique_key = properties.get(Property.UNIQUE_KEY)
        if unique_key and not message.topic.startswith(RETRY_PREFIX):
            handle = RecallHandle(message.topic, self._node.config.broker_name, admitted.out_ms + 1, unique_key)
            message.answer_fields["recallHandle"] = handle.encode()
        message.topic, message.queue_id = SystemTopic.TIMER, 0
        return None

    # --- recall

    def recall(self, connection: Peer, command: Command) -> bytes | None:
        """RECALL_MESSAGE (370): store a mark that drops a waiting message. It is answered when the mark is as safe as a
        send: a crash that took it would deliver what its sender was told is taken back."""
        node, header = self._node, command.header(RecallMessage)
        if not node.config.recall_message_enable:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                "recall failed, the operation is disabled: set recallMessageEnable=true at the broker",
            )
        if node.is_slave:
            raise Refused(ResponseCode.SLAVE_NOT_AVAILABLE, "a slave recalls nothing: send to its master")
        if node.topics.get(header.topic) is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{header.topic}] not exist")
        if node.replicas.shortage:
            raise Refused(ResponseCode.SYSTEM_ERROR, node.replicas.shortage)
        handle = self._checked_handle(header)
        self._clock.look()
        node.dispatch_now()
        if len(self.timer.time.shifts_ms) > 1 and node.store.is_index_doubtful:  # it may have to read whole files first

            def answer(finished: asyncio.Future[list[int]]) -> None:
                answer_later(
                    connection, command, lambda: self._take_back(connection, command, handle, finished.result())
                )

            self._lookups.read(connection, lambda: self._due_times_ms(handle), answer)
            return None
        return self._take_back(connection, command, handle, self._due_times_ms(handle))

    def _take_back(self, connection: Peer, command: Command, handle: RecallHandle, due_ms: list[int]) -> bytes | None:
        """Store a mark for each of these times, by steady time, and answer."""
        node, end_offset = self._node, 0
        born_host = connection.attributes.get(BORN_HOST) or encode_host(*connection.peer)
        assert isinstance(born_host, bytes)
        for deliver_ms in self._times_ahead_ms(due_ms):
            mark = IncomingMessage(
                handle.topic,
                0,
                b"0",
                {
                    Property.TIMER_DELETE_UNIQUE_KEY: handle.unique_key,
                    Property.BORN_TIMESTAMP: str(node.now_ms()),
                    Property.TIMER_DELIVER_MS: str(deliver_ms),
                    Property.UNIQUE_KEY: handle.unique_key,
                    Property.PRODUCER_GROUP: command.header(RecallMessage).producer_group or "",
                    Property.TAGS: RECALL_TAG,
                },
                born_host=born_host,
                store_host=node.store_host,
                born_time_ms=node.now_ms(),
            )
            refusal = self.rewrite(mark)
            if refusal is not None:
                raise Refused(ResponseCode.ILLEGAL_OPERATION, refusal.remark)
            result = node.put(mark)
            if not result.status.is_stored:
                raise refused_put(result)
            end_offset = result.physical_offset + result.size_bytes
        node.after_append(wants_flush=self._config.is_sync_flush)
        return node.acknowledging.confirm(
            connection, command, end_offset, ext=RecallMessageResponse(msg_id=handle.unique_key)
        )

    def _due_times_ms(self, handle: RecallHandle) -> list[int]:
        """When the message is due, by steady time: one time unless the clock was set and there is no index, or it was
        sent twice. None: nobody knows such a message."""
        time, handle_ms = self.timer.time, handle.deliver_ms - 1
        shifts_ms = time.shifts_ms
        if len(shifts_ms) == 1 or not self._config.message_index_enable:
            return sorted(handle_ms - shift_ms for shift_ms in shifts_ms)
        due_ms = set()
        for message in self._node.store.query_sound(SystemTopic.TIMER, handle.unique_key, WITH_ONE_KEY_MAX):
            properties = message.properties
            out_ms = natural_number(properties.get(Property.TIMER_OUT_MS, ""))
            if out_ms is None or Property.TIMER_DELETE_UNIQUE_KEY in properties:
                continue
            if out_ms == handle_ms or Property.TIMER_ROLL_TIMES in properties:  # the copy may have the time of now
                due_ms.add(out_ms - time.shift_ms(message.physical_offset))
        return sorted(due_ms)

    def _times_ahead_ms(self, due_ms: list[int]) -> list[int]:
        """These times by the wall clock as it is now, as a handle has them. Refused unless all of them lie ahead."""
        steady_ms, shift_ms = self._clock.look(), self.timer.time.shifts_ms[0]
        times_ms, now_ms = [one_ms + 1 + shift_ms for one_ms in due_ms], self._clock.wall_ms()
        if not times_ms:
            raise Refused(ResponseCode.ILLEGAL_OPERATION, "recall failed, no message with this handle waits here")
        left_ms = min(times_ms[0] - now_ms, due_ms[0] + 1 - steady_ms)
        if left_ms <= 0 or times_ms[-1] - now_ms > self._config.timer_max_delay_sec * 1000:
            raise Refused(
                ResponseCode.ILLEGAL_OPERATION,
                f"recall failed, the message is due in {left_ms} ms: too late, or not a time this broker accepts",
            )
        return times_ms

    def _checked_handle(self, header: RecallMessage) -> RecallHandle:
        node = self._node
        try:
            handle = RecallHandle.decode(header.recall_handle)
        except ValueError as exc:
            raise Refused(ResponseCode.ILLEGAL_OPERATION, f"recall failed, {exc}") from exc
        if handle.topic != header.topic:
            raise Refused(ResponseCode.ILLEGAL_OPERATION, "recall failed, the topic does not match the handle's")
        if handle.broker_name != node.config.broker_name:
            raise Refused(
                ResponseCode.ILLEGAL_OPERATION,
                f"recall failed, the message is on broker {handle.broker_name}, not on {node.config.broker_name}",
            )
        return handle

    # --- master and slave

    def checkpoint(self, connection: Peer, command: Command) -> bytes | None:
        """GET_TIMER_CHECK_POINT (60). A slave reads times by the wall clock: it gets the earliest that is meant."""
        self._check_enabled()
        saved = self.timer.saved_checkpoint
        saved = saved._replace(read_time_ms=saved.read_time_ms + min(self.timer.time.shifts_ms))
        ext = self._clock_for(command.header(GetTimerCheckPoint).clock_version)
        return success(command, ext, encode_checkpoint(saved)[:CHECKPOINT_BYTES])

    def _clock_for(self, known: str | None) -> GetTimerCheckPointResponse | None:
        """How a slave of ours reads the store times of its copies, and whether it lacks topics or groups."""
        clock, node = self._clock, self._node
        if known is None:
            return None
        stretches = None if known == clock.version else encode_body(clock.stretches).decode()
        return GetTimerCheckPointResponse(
            clock_version=clock.version,
            clock_steady_ms=clock.look(),
            clock_stretches=stretches,
            tables_version="-".join(map(str, (*node.topics.version.parts, *node.groups.version.parts))),
        )

    def metrics(self, connection: Peer, command: Command) -> bytes | None:
        """GET_TIMER_METRICS (61)."""
        self._check_enabled()
        return success(command, None, self.timer.metrics.to_json().encode())

    def _check_enabled(self) -> None:
        """Where no wheel turns, zeros would tell a slave that nothing was ever delivered."""
        if not self._config.timer_wheel_enable:
            raise Refused(ResponseCode.SYSTEM_ERROR, "this broker has no timers: timerWheelEnable=false")

    def follow(self, checkpoint: bytes) -> None:
        """A slave learns how far its master has come. ValueError: not a checkpoint."""
        if len(checkpoint) not in (OLD_CHECKPOINT_BYTES, CHECKPOINT_BYTES):
            raise ValueError(f"a timer checkpoint of {len(checkpoint)} bytes: {CHECKPOINT_BYTES} are needed")
        if self._is_running:
            self.timer.follow(decode_checkpoint(checkpoint.ljust(CHECKPOINT_BYTES, b"\0")))

    def follow_metrics(self, text: bytes) -> None:
        """A slave takes its master's figures; they are saved with the next flush. ValueError: not readable."""
        metrics = TopicCounts("timingCount")
        metrics.read_json(text.decode())
        if self._is_running:
            self.timer.follow_metrics(metrics)

    def take_over(self, checkpoint: TimerCheckpoint) -> None:
        """A master learns how far a slave has come that stood in for it, whose log is a part of this one. Blocks."""
        if self._is_running:
            self.timer.take_over(checkpoint, self._clock.steady_ms())
            self._is_recount_due = True  # what the slave has delivered was counted in here

    def end_soon(self) -> None:
        """Begin no slot any more: this broker's part ends when the one under delivery does."""
        self.timer.is_ending = True

    def behind_ms(self) -> int:
        """By how much it delivers late; for ever, as long as it does not run."""
        return self.timer.behind_ms(self._clock.steady_ms()) if self._is_running else NEVER_MS

    @property
    def is_in_slot(self) -> bool:
        return self._is_running and self.timer.is_in_slot

    # --- life

    def start(self) -> None:
        if self._config.timer_wheel_enable:
            if self._was_started:
                self.timer = self._new_timer()
            self._was_started = True
            elsewhere = self._node.elsewhere if self._node.duty is Duty.ESCAPE else None
            found = self.timer.open(
                self._clock.steady_ms(), elsewhere=elsewhere, may_deliver=not self._node.never_delivers
            )
            self._is_running = True
            self._is_recount_due = (
                found.replayed_units > 0 or found.is_rebuilt or found.retake_until > 0 or found.is_journaled
            )
            log.info(
                "timers go on from %d, at offset %d of the timer topic; %d units were replayed",
                found.read_time_ms,
                found.queue_offset,
                found.replayed_units,
            )

    def stop(self) -> None:
        if self._is_running:
            self._is_running = False
            self._job.wait()
            self.timer.close(self._clock.steady_ms())

    def crash(self) -> None:
        """Let go of the files as they are, as a killed process does."""
        if self._is_running:
            self._is_running = False
            try:
                self._job.wait()  # it must not write to descriptors that are closed under it
            except StoreError as exc:
                log.info("the last flush of the timer wheel failed: %s", exc)
            self.timer.crash()

    def tick(self, now_ms: int) -> None:
        if not self._is_running:
            return
        if self._failure is not None:
            raise self._failure  # a flush that failed is final: what it had to sync is not known any more
        self._node.dispatch_now()  # a recall that was just taken must be seen before its message is due
        store, stats = self._node.store, self.timer.stats
        end, before = store.log_max_offset, (stats.enqueued, stats.delivered)
        try:
            # The longer delivery takes, the larger its share of the loop: requests have 5 ms at a stretch.
            behind_ticks = self.timer.behind_ms(now_ms) // self.timer.precision_ms
            has_more = self.timer.tick(now_ms, PORTION * min(1 + behind_ticks, PORTIONS_MAX))
            self._flush_when_due(now_ms)
        except StoreIOError as exc:
            if self._failure is not None:
                raise
            # A full disk: what was taken in stays in memory and is written later.
            self._standstill.goes_on(exc)
            self.interval_ms = STANDSTILL_MS
            return
        self._standstill.is_over("they go on")
        if store.log_max_offset != end:
            self._node.after_append(wants_flush=self._config.is_sync_flush)
        for topic, (count, size_bytes) in stats.take_puts().items():
            self._node.statistics.note_put(topic, count, size_bytes, DELAY)
        pause_ms = self.timer.next_due_ms(now_ms) - now_ms
        if before != (stats.enqueued, stats.delivered):
            pause_ms = max(pause_ms, STEP_MS)
        self.interval_ms = 0 if has_more else min(POLL_MS, pause_ms)
        if self.timer.is_waiting:
            self.interval_ms = READING_MS
        self._sample(now_ms)
        if not has_more:
            self._recount_when_due(now_ms)

    def _flush_when_due(self, now_ms: int) -> None:
        try:
            is_free = self._job.poll()
        except StoreError as exc:
            if not isinstance(exc, StoreIOError) or exc.operation != "write" or self._plan is None:
                self._failure = exc
                raise
            self._unflushed.goes_on(exc)
            self.timer.drop_flush(self._plan)
            return
        if is_free and self.timer.is_flush_due(now_ms):
            plan = self._plan = self.timer.begin_flush(now_ms)
            self._job.start(lambda: self.timer.run_flush(plan), lambda: self._flushed(plan))

    def _flushed(self, plan: FlushPlan) -> None:
        self.timer.end_flush(plan)
        self._unflushed.is_over("it is flushed again")

    # --- figures

    def _recount_when_due(self, now_ms: int) -> None:
        """Once in each hour of timerCheckMetricsWhen, and after a crash. A slave's figures are its master's."""
        if self._node.duty is Duty.FOLLOW:
            return
        hour = now_ms // 3_600_000
        if self._config.timer_enable_check_metrics and hour != self._recounted_hour:
            self._recounted_hour = hour
            if datetime.fromtimestamp(now_ms / 1000).hour in hours_of(self._config.timer_check_metrics_when):
                self._is_recount_due = True
        if self._is_recount_due and self.timer.recount(PORTION):
            self._is_recount_due = False

    def _sample(self, now_ms: int) -> None:
        elapsed_ms = now_ms - self._sampled_ms
        if 0 <= elapsed_ms < FIGURES_MS:
            return
        stats = self.timer.stats
        now = (stats.enqueued, stats.delivered)
        if 0 < elapsed_ms < 60_000:
            before = self._sampled
            self._rates = ((now[0] - before[0]) * 1000 / elapsed_ms, (now[1] - before[1]) * 1000 / elapsed_ms)
        self._sampled, self._sampled_ms = now, now_ms

    def figures(self) -> dict[str, str]:
        """Lines for GET_BROKER_RUNTIME_INFO."""
        if not self._is_running:
            return {}
        enqueue_rate, dequeue_rate = self._rates
        return {
            "timerReadBehind": str(self.timer.behind_ms(self._clock.steady_ms()) // 1000),
            "timerOffsetBehind": str(self.timer.behind_messages()),
            "timerCongestNum": str(self.timer.metrics.total),
            "timerEnqueueTps": f"{enqueue_rate:.1f}",
            "timerDequeueTps": f"{dequeue_rate:.1f}",
            **{f"timerPending_{topic}": str(count) for topic, count in sorted(self.pending().items())},
        }

    def progress(self) -> TimerProgress:
        """How far behind taking in and delivering are."""
        if not self._is_running:
            return TimerProgress(0, 0, 0, 0)
        timer, store = self.timer, self._node.store
        now_ms = self._clock.steady_ms()
        waiting, late_ms = timer.behind_messages(), timer.behind_ms(now_ms)
        since_ms = store.store_time_at(SystemTopic.TIMER, 0, timer.queue_offset) if waiting else 0
        begin_ms = max(timer.read_time_ms, now_ms - COUNTED_TICKS_MAX * timer.precision_ms)
        ticks = range(begin_ms, now_ms - timer.precision_ms, timer.precision_ms) if late_ms else ()
        due = sum(timer.wheel.get(tick_ms).timers for tick_ms in ticks)
        return TimerProgress(waiting, max(now_ms - since_ms, 0) if since_ms > 0 else 0, due, late_ms)

    def pending(self) -> dict[str, int]:
        """Topic -> timers that wait."""
        return {topic: count for topic, count in self.timer.metrics.counts.items() if count}
