"""Producers, consumers and administration over RocketMQ's remoting protocol.

Everything is written for asyncio; `contrailmq.aio` lists those names. The blocking faces in `sync.py` run the same
objects on one background loop; `contrailmq` lists them. `raw.QueueReader` is a plain blocking reader without any loop.
"""

from contrailmq.client.admin_groups import OffsetPlace, QueueProgress
from contrailmq.client.batch import split_batch
from contrailmq.client.hooks import ClientHooks, ConsumeEvent, OpenTelemetryHooks, SendEvent
from contrailmq.client.producer import create_reply
from contrailmq.client.raw import QueueReader, RawPull, RawSent
from contrailmq.client.rebalance import (
    AverageByCircleStrategy,
    AverageStrategy,
    ConfigStrategy,
    ConsistentHashStrategy,
    MachineRoomNearbyStrategy,
    MachineRoomStrategy,
)
from contrailmq.client.results import ConsumeOutcome, TransactionResult
from contrailmq.client.selectors import by_hash, by_machine_room, by_random
from contrailmq.wire.acl import AclCredentials

__all__ = [
    "AclCredentials",
    "AverageByCircleStrategy",
    "AverageStrategy",
    "ClientHooks",
    "ConfigStrategy",
    "ConsistentHashStrategy",
    "ConsumeEvent",
    "ConsumeOutcome",
    "MachineRoomNearbyStrategy",
    "MachineRoomStrategy",
    "OffsetPlace",
    "OpenTelemetryHooks",
    "QueueProgress",
    "QueueReader",
    "RawPull",
    "RawSent",
    "SendEvent",
    "TransactionResult",
    "by_hash",
    "by_machine_room",
    "by_random",
    "create_reply",
    "split_batch",
]
