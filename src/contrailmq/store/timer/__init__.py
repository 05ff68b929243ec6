"""Messages that arrive later: the timer wheel, its log, its checkpoint and the stages that move messages over them."""

from contrailmq.store.timer.admission import Scheduled, TimerRefusal, admit, admit_at, wants_timer
from contrailmq.store.timer.checkpoint import TimerCheckpoint, decode_checkpoint, encode_checkpoint
from contrailmq.store.timer.log import TimerLog, TimerMagic, TimerUnit
from contrailmq.store.timer.metrics import TopicCounts
from contrailmq.store.timer.timer_store import TimerStore
from contrailmq.store.timer.wheel import Slot, TimerWheel

__all__ = [
    "Scheduled",
    "Slot",
    "TimerCheckpoint",
    "TimerLog",
    "TimerMagic",
    "TimerRefusal",
    "TimerStore",
    "TimerUnit",
    "TimerWheel",
    "TopicCounts",
    "admit",
    "admit_at",
    "decode_checkpoint",
    "encode_checkpoint",
    "wants_timer",
]
