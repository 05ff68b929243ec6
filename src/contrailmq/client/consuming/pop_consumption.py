"""Push consumption by POP: messages are popped, given to the listener, and settled one by one.

A *lane* is a queue that this consumer pops, or all queues of a broker (queue -1). Lanes of several members may be the
same: who pops a message has it, nobody else. A lane has one pop on its way at a time and stops at `pop_threshold`
messages, so what the consumer holds is bounded, and with it what must be renewed (`pop_holding.py`).

    concurrent   chunks of a pop are listener calls of their own. Success acknowledges; failure puts the message off,
                 for longer with each failure, and after `max_reconsume_times` it is a dead letter
    orderly      the broker hands out one batch of a queue at a time. Its messages are listened to one after the
                 other; a failed one is listened to again here while those behind it wait, and is a dead letter in the
                 end

A lane that is dropped ends when its pop is answered. What comes then is let go at once: a pop that was cancelled might
have messages on their way to nobody, invisible for a minute.
"""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from contrailmq.client.consuming import popping
from contrailmq.client.consuming.consume_watch import ConsumeWatch, filtered
from contrailmq.client.consuming.listener_pool import Call, ListenerPool
from contrailmq.client.consuming.pop_clock import PopClock
from contrailmq.client.consuming.pop_holding import Fate, Held, PopHolding
from contrailmq.client.consuming.popping import Popped, PopRequest
from contrailmq.client.consuming.subscription import Subscription
from contrailmq.client.errors import ClientStateError
from contrailmq.client.hooks import user_error_log
from contrailmq.client.records import PoppedMessage
from contrailmq.client.results import ConsumeFromWhere, ConsumeOutcome, ConsumeResult
from contrailmq.client.settings import PushConsumerOptions
from contrailmq.client.transport.instance import ClientInstance
from contrailmq.client.transport.waiting import set_within
from contrailmq.message import ContrailError, MessageQueue
from contrailmq.wire.codes import ResponseCode
from contrailmq.wire.errors import ResponseError

_log = user_error_log("contrailmq.client.consumer")

POLL_S: Final = 15.0
ANSWER_S: Final = 10.0  # beyond it
PAUSED_WAIT_S: Final = 1.0
SETTLE_S: Final = 1.0  # for tasks that have nothing to wait for
SUSPEND_MIN_S: Final = 0.01
SUSPEND_MAX_S: Final = 30.0
FLOW_CONTROL_WAIT_S: Final = 0.02
# What Java's client waits after each failure (popDelayLevel), in seconds.
LATER_S: Final = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)
_SUCCEEDED: Final = (ConsumeResult.SUCCESS, ConsumeResult.COMMIT)

Show = Callable[[MessageQueue, list[PoppedMessage]], None]


class Lane:
    """A queue, or all queues of a broker, that this consumer pops. Owned by its `PopConsumption`."""

    __slots__ = ("attempt_id", "count", "is_dropped", "queue", "room", "size_bytes", "task")

    def __init__(self, queue: MessageQueue) -> None:
        self.queue = queue
        self.count = self.size_bytes = 0
        self.is_dropped = False
        self.room = asyncio.Event()
        self.attempt_id: str | None = None
        self.task: asyncio.Task[None] | None = None

    def has_room(self, options: PushConsumerOptions) -> bool:
        return self.count < options.pop_threshold and self.size_bytes < options.pull_threshold_bytes


class PopConsumption:
    """Owner: one push consumer, on its loop."""

    def __init__(
        self,
        options: PushConsumerOptions,
        instance: ClientInstance,
        group: str,
        pool: ListenerPool,
        watch: ConsumeWatch,
        subscriptions: Mapping[str, Subscription],
        show: Show,
    ) -> None:
        self._options = options
        self._instance = instance
        self._group = group
        self._pool = pool
        self._watch = watch
        self._subscriptions = subscriptions
        self._show = show
        self._clocks: defaultdict[str, PopClock] = defaultdict(PopClock)  # by broker
        self._lanes: dict[MessageQueue, Lane] = {}
        self._in_order: set[asyncio.Task[None]] = set()  # batches that are listened to in order
        self._is_stopping = asyncio.Event()
        self.holding = PopHolding(
            instance, group, invisible_s=options.invisible_duration_s, held_s_max=options.consume_timeout_s
        )
        self._renewing = instance.spawn(self.holding.keep_renewing(), "renewals")
        self.is_suspended = False
        self.damaged_count = 0

    # --- lanes

    @property
    def queues(self) -> list[MessageQueue]:
        return list(self._lanes)

    def take(self, queue: MessageQueue) -> None:
        lane = self._lanes[queue] = Lane(queue)
        lane.task = self._instance.spawn(self._run(lane), "pop")

    def drop(self, queue: MessageQueue) -> None:
        lane = self._lanes.pop(queue, None)
        if lane is not None:
            lane.is_dropped = True
            lane.room.set()

    async def _run(self, lane: Lane) -> None:
        while not lane.is_dropped:
            if self.is_suspended:
                await asyncio.sleep(PAUSED_WAIT_S)
                continue
            if not lane.has_room(self._options):
                lane.room.clear()
                await set_within(lane.room, POLL_S)
                continue
            try:
                popped = await self._pop(lane)
            except ContrailError as exc:
                if not lane.is_dropped:
                    await asyncio.sleep(self._after_failure(lane, exc))
                continue
            if popped.is_refused:
                _log.info("broker %s holds as many pops as it may", lane.queue.broker_name)
                await asyncio.sleep(self._options.pull_retry_delay_s)
            else:
                self._take_in(lane, popped)

    async def _pop(self, lane: Lane) -> Popped:
        options, queue = self._options, lane.queue
        subscription = self._subscriptions.get(queue.topic)
        if subscription is None:
            raise ClientStateError(f"topic {queue.topic!r} is no longer subscribed")
        clock = self._clocks[queue.broker_name]
        if options.orderly and lane.attempt_id is None:
            lane.attempt_id = uuid.uuid4().hex
        poll_s = POLL_S if clock.is_known else 0.0  # the first answer tells the broker's clock
        request = PopRequest(
            queue,
            subscription,
            min(options.pull_batch_size, options.pop_threshold - lane.count),
            options.invisible_duration_s,
            poll_s,
            poll_s + ANSWER_S,
            is_from_first=options.from_where is ConsumeFromWhere.FIRST_OFFSET,
            is_ordered=options.orderly,
            attempt_id=lane.attempt_id,
        )
        popped = await popping.pop(self._instance, self._group, request, clock)
        lane.attempt_id = None  # it was answered: the next pop is another one
        return popped

    def _after_failure(self, lane: Lane, exc: ContrailError) -> float:
        if isinstance(exc, ResponseError) and exc.code == ResponseCode.FLOW_CONTROL:
            return FLOW_CONTROL_WAIT_S
        _log.info("pop of %s is tried again: %s", lane.queue, exc)
        self._instance.refresh_soon(lane.queue.topic)
        return self._options.pull_retry_delay_s

    def _take_in(self, lane: Lane, popped: Popped) -> None:
        self.damaged_count += popped.damaged
        everything = [*popped.messages, *popped.unwanted]
        held = {held.message: held for held in self.holding.hold(everything, lambda held: self._left(lane, held))}
        lane.count += len(everything)
        lane.size_bytes += sum(len(message.stored_body) for message in everything)
        if lane.is_dropped:
            for one in held.values():
                self.holding.settle(one, Fate.LET_GO)
            return
        messages = popped.messages
        if messages and self._options.hooks is not None:
            chosen = filtered(self._options.hooks, lane.queue, list(messages))
            messages = [message for message in chosen if isinstance(message, PoppedMessage) and message in held]
        wanted = dict.fromkeys(messages)
        for message, one in held.items():
            if message not in wanted:
                self.holding.settle(one, Fate.ACKNOWLEDGED)
        kept = [held[message] for message in messages if not self._bury_old(held[message])]
        if kept:
            self._show(lane.queue, [one.message for one in kept])
            (self._submit_ordered if self._options.orderly else self._submit)(lane, kept)

    def _left(self, lane: Lane, held: Held) -> None:
        lane.count -= 1
        lane.size_bytes -= len(held.message.stored_body)
        if lane.has_room(self._options):
            lane.room.set()

    def _bury_old(self, held: Held) -> bool:
        """Apache's brokers deliver a message for ever that no consumer acknowledges."""
        if not 0 <= self._options.max_reconsume_times < held.message.reconsume_times:
            return False
        self.holding.settle(held, Fate.BURIED)
        return True

    # --- concurrent

    def _submit(self, lane: Lane, held: list[Held]) -> None:
        size = self._options.consume_batch_size
        for start in range(0, len(held), size):
            self._pool.submit(_ChunkCall(self, lane.queue, held[start : start + size]))

    def begin(self, queue: MessageQueue, chunk: list[Held], messages: list[PoppedMessage]) -> bool:
        """Whether the chunk is still ours to consume. Runs where the listener runs."""
        if not all(self.holding.is_live(held) for held in chunk):
            return False
        if self._watch.is_on:
            self._watch.before(queue, messages)
        return True

    def finish(self, queue: MessageQueue, chunk: list[Held], call: Call) -> None:
        """What the listener said of a chunk, or that it was not asked."""
        if not call.was_run:
            for held in chunk:
                self.holding.settle(held, Fate.LET_GO)
            return
        outcome = self._outcome(queue, chunk, call)
        done = len(chunk) if outcome.acknowledged is None else max(0, outcome.acknowledged)
        if outcome.result not in _SUCCEEDED:
            done = 0
        for held in chunk[:done]:
            self.holding.settle(held, Fate.ACKNOWLEDGED)
        for held in chunk[done:]:
            self._put_off(held, outcome.delay_level)

    def _outcome(self, queue: MessageQueue, chunk: list[Held], call: Call) -> ConsumeOutcome:
        outcome = call.outcome()
        self._watch.after(queue, call.messages, outcome, call.error)  # type: ignore[arg-type]
        if call.error is not None:
            text = "the listener raised for %r, retry later: %r"
            _log.warning(text, chunk[0].message, call.error, exc_info=call.error)
        return outcome

    def _put_off(self, held: Held, delay_level: int) -> None:
        times, limit = held.message.reconsume_times, self._options.max_reconsume_times
        if delay_level < 0 or 0 <= limit <= times:
            self.holding.settle(held, Fate.BURIED)
            return
        step = delay_level or times
        self.holding.settle(held, Fate.PUT_OFF, LATER_S[min(step, len(LATER_S) - 1)])

    # --- in order

    def _submit_ordered(self, lane: Lane, held: list[Held]) -> None:
        of_queues: defaultdict[tuple[str, int], list[Held]] = defaultdict(list)
        for one in held:
            of_queues[one.message.stored_topic, one.message.queue_id].append(one)
        for batch in of_queues.values():
            task = self._instance.spawn(self._consume_in_order(lane, batch), "in-order")
            self._in_order.add(task)
            task.add_done_callback(self._in_order.discard)

    async def _consume_in_order(self, lane: Lane, left: list[Held]) -> None:
        """The batch of one queue. The queue gives nothing more, to anybody, until all of it is settled."""
        queue = lane.queue
        while left and not lane.is_dropped:
            chunk = left[: self._options.consume_batch_size]
            messages = [held.message for held in chunk]
            call = await self._pool.run(messages, partial(self.begin, queue, chunk, messages))
            if not call.was_run:
                break
            outcome = self._outcome(queue, chunk, call)
            if outcome.result in _SUCCEEDED:
                for held in chunk:
                    self.holding.settle(held, Fate.ACKNOWLEDGED)
                left = left[len(chunk) :]
                continue
            left = self._count_failure(chunk) + left[len(chunk) :]
            rest_s = self._options.suspend_s if outcome.suspend_ms is None else outcome.suspend_ms / 1000
            await set_within(self._is_stopping, min(max(rest_s, SUSPEND_MIN_S), SUSPEND_MAX_S))
        for held in left:
            self.holding.settle(held, Fate.LET_GO)

    def _count_failure(self, chunk: list[Held]) -> list[Held]:
        """Those that are listened to again."""
        limit, again = self._options.max_reconsume_times, []
        for held in chunk:
            if 0 <= limit <= held.message.reconsume_times:
                self.holding.settle(held, Fate.BURIED)
            else:
                held.message.reconsume_times += 1
                again.append(held)
        return again

    # --- the end

    def stop_popping(self) -> None:
        self._is_stopping.set()
        for queue in list(self._lanes):
            self.drop(queue)

    async def close(self) -> None:
        """Listeners have ended: tell brokers of everything, and let others have the rest."""
        self._renewing.cancel()
        if self._in_order:  # each of them knows what became of its last call
            await asyncio.wait(self._in_order, timeout=SETTLE_S)
        await self.holding.close()

    async def let_go_of_the_last(self) -> None:
        """The brokers know that this member has left. What pops brought until then is let go."""
        await asyncio.sleep(0)  # lanes whose pop was answered have their turn
        await self.holding.close()

    @property
    def counts(self) -> dict[MessageQueue, int]:
        """Messages that are held, by lane."""
        return {queue: lane.count for queue, lane in self._lanes.items()}


class _ChunkCall(Call):
    """A listener call for some messages of one pop."""

    __slots__ = ("_chunk", "_consumption", "_given", "_queue")

    def __init__(self, consumption: PopConsumption, queue: MessageQueue, chunk: list[Held]) -> None:
        self._given = [held.message for held in chunk]
        super().__init__(self._given)
        self._consumption = consumption
        self._queue = queue
        self._chunk = chunk

    def is_wanted(self) -> bool:
        return self._consumption.begin(self._queue, self._chunk, self._given)

    def done(self) -> None:
        self._consumption.finish(self._queue, self._chunk, self)
