"""Messages that arrive later: the timer wheel, its log, its checkpoint and the stages that move messages over them."""

from contrailmq.store.timer.checkpoint import TimerCheckpoint, decode_checkpoint, encode_checkpoint
from contrailmq.store.timer.log import TimerLog, TimerMagic, TimerUnit
from contrailmq.store.timer.metrics import TimerMetrics
from contrailmq.store.timer.wheel import Slot, TimerWheel

__all__ = [
    "Slot",
    "TimerCheckpoint",
    "TimerLog",
    "TimerMagic",
    "TimerMetrics",
    "TimerUnit",
    "TimerWheel",
    "decode_checkpoint",
    "encode_checkpoint",
]
