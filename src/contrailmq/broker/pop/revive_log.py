"""Checkpoints and acknowledgements as records of the log, in Apache's form and on Apache's way.

    record           tag    delivered to the revive log at           UNIQ_KEY
    checkpoint       ck     pop time + invisible time - 1 s          topic@queue@start@group@popTime@broker@ck
    ack of one       ack    pop time + invisible time                topic@queue@offset@group@popTime@broker@ack
    ack of several   bAck   pop time + invisible time                topic@queue@-1@group@popTime@broker@ack

Until then a record waits in the timer topic, so Apache's broker finds a checkpoint before its acknowledgements and both
when the time is over. A time that has passed means: straight into the revive log. If the timer is behind, an
acknowledgement goes through it all the same, so that it cannot overtake its checkpoint.

One property is ours: CONTRAIL_POP_NEXT, in the checkpoint of a pop, is the position after it. After a crash it says how
far the group has come; Apache's broker ignores it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from contrailmq.broker.node import BrokerNode
from contrailmq.broker.pop.in_flight import Checkpoint
from contrailmq.broker.state.incoming import IncomingMessage
from contrailmq.message import Property, SystemTopic
from contrailmq.store import AppendResult, PutStatus, TimerRefusal, admit_at
from contrailmq.wire.pop_records import ACK_TAG, BATCH_ACK_TAG, CHECKPOINT_TAG, AckBody, CheckpointBody

REVIVE_GROUP: Final = "CID_RMQ_SYS_REVIVE_GROUP"
NEXT_PROPERTY: Final = "CONTRAIL_POP_NEXT"
TIMER_LATE_MS: Final = 500  # a checkpoint has twice as much between the timer and its own time
AHEAD_MS: Final = 1000  # by which a checkpoint is in the revive log before its acknowledgements


class ReviveLog:
    """Owner: the loop."""

    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self._counter = -1
        self.timer_behind_ms: Callable[[], int] = lambda: 0  # by how much the timer delivers late

    @property
    def topic(self) -> str:
        return f"{SystemTopic.PREFIX}REVIVE_LOG_{self._node.config.broker_cluster_name}"

    @property
    def queues(self) -> int:
        topic = self._node.topics.get(self.topic)
        return self._node.config.revive_queue_num if topic is None else max(topic.write_queues, 1)

    def next_queue(self) -> int:
        self._counter += 1
        return self._counter % self.queues

    def put_checkpoint(self, checkpoint: Checkpoint, *, next_offset: int | None = None) -> AppendResult:
        """Write it; what the store said. `next_offset`: where the group goes on after this pop."""
        start = checkpoint.start_offset
        body = CheckpointBody(
            broker_name=checkpoint.broker_name,
            group=checkpoint.group,
            distances=[offset - start for offset in checkpoint.offsets],
            invisible_ms=checkpoint.invisible_ms,
            count=len(checkpoint.offsets),
            pop_time_ms=checkpoint.pop_time_ms,
            queue_id=checkpoint.queue_id,
            revive_time_ms=checkpoint.pop_time_ms + checkpoint.invisible_ms,
            start_offset=start,
            is_suspended=checkpoint.is_suspended,
            topic=checkpoint.topic,
        )
        extra = {} if next_offset is None else {NEXT_PROPERTY: str(next_offset)}
        key = f"{checkpoint.topic}@{checkpoint.queue_id}@{start}@{checkpoint.group}@{checkpoint.pop_time_ms}"
        result = self._put(
            checkpoint,
            CHECKPOINT_TAG,
            msgspec.json.encode(body),
            unique_key=f"{key}@{checkpoint.broker_name}@{CHECKPOINT_TAG}",
            deliver_ms=checkpoint.pop_time_ms + checkpoint.invisible_ms - AHEAD_MS,
            extra=extra,
        )
        if result.status.is_stored:
            checkpoint.physical_offset, checkpoint.store_time_ms = result.physical_offset, result.store_time_ms
            checkpoint.due_ms = self._node.store.store_clock.steady_ms() + checkpoint.invisible_ms
        return result

    def put_acks(self, checkpoint: Checkpoint, offsets: Sequence[int]) -> AppendResult:
        """Write that these messages are not in flight under it any more."""
        is_one = len(offsets) == 1
        body = AckBody(
            offset=offsets[0] if is_one else -1,
            broker_name=checkpoint.broker_name,
            group=checkpoint.group,
            pop_time_ms=checkpoint.pop_time_ms,
            queue_id=checkpoint.queue_id,
            start_offset=checkpoint.start_offset,
            topic=checkpoint.topic,
        )
        if not is_one:
            body.offsets = list(offsets)
        key = f"{checkpoint.topic}@{checkpoint.queue_id}@{body.offset}@{checkpoint.group}@{checkpoint.pop_time_ms}"
        return self._put(
            checkpoint,
            ACK_TAG if is_one else BATCH_ACK_TAG,
            msgspec.json.encode(body),
            unique_key=f"{key}@{checkpoint.broker_name}@{ACK_TAG}",
            deliver_ms=self._after_checkpoint(checkpoint),
            extra={},
        )

    def _after_checkpoint(self, checkpoint: Checkpoint) -> int:
        """When an acknowledgement goes to the revive log: when the time is over, but never before its checkpoint, or
        Apache's broker would pass it over. A timer that is behind, as after a start, may still have that."""
        due_ms = checkpoint.pop_time_ms + checkpoint.invisible_ms
        if self.timer_behind_ms() < TIMER_LATE_MS:
            return due_ms
        return max(due_ms, self._node.store.store_clock.wall_ms() + 2 * AHEAD_MS)

    def _put(
        self,
        checkpoint: Checkpoint,
        tag: str,
        body: bytes,
        *,
        unique_key: str,
        deliver_ms: int,
        extra: dict[str, str],
    ) -> AppendResult:
        node, clock = self._node, self._node.store.store_clock
        properties = {
            Property.TAGS: tag,
            Property.UNIQUE_KEY: unique_key,
            Property.TIMER_DELIVER_MS: str(deliver_ms),
        } | extra
        message = IncomingMessage(
            self.topic,
            checkpoint.revive_queue,
            body,
            properties,
            born_host=node.store_host,
            store_host=node.store_host,
            born_time_ms=node.now_ms(),
        )
        clock.look()
        admitted = admit_at(deliver_ms, clock.wall_ms(), node.store.config)
        if isinstance(admitted, TimerRefusal):
            return AppendResult(admitted.status, reason=admitted.reason)
        if admitted is not None:
            properties[Property.TIMER_OUT_MS] = str(admitted.out_ms)
            properties[Property.REAL_TOPIC] = message.topic
            properties[Property.REAL_QUEUE_ID] = str(message.queue_id)
            message.topic, message.queue_id = SystemTopic.TIMER, 0
        result = node.put(message)
        node.after_append(wants_flush=node.store.config.is_sync_flush)
        return result


def is_too_long(result: AppendResult) -> bool:
    """Whether the timer refused an invisible time that it cannot keep."""
    return result.status is PutStatus.WHEEL_TIMER_MSG_ILLEGAL
