"""Producers, consumers and administration over RocketMQ's remoting protocol.

Everything is written for asyncio; `contrailmq.aio` lists those names. The blocking faces in `sync.py` run the same
objects on one background loop; `contrailmq` lists them. `raw.QueueReader` is a plain blocking reader without any loop.

Names are imported when they are first used: a Spark task that pulls with `raw.QueueReader` loads no asyncio client.
"""

from typing import TYPE_CHECKING, Final

from contrailmq._lazy import lazy_names

if TYPE_CHECKING:
    from contrailmq.client.admin.admin_dead_letters import LetterChoice, LetterReport
    from contrailmq.client.admin.admin_groups import OffsetPlace, QueueProgress
    from contrailmq.client.blocking.raw import QueueReader, RawPull, RawSent
    from contrailmq.client.hooks import ClientHooks, ConsumeEvent, OpenTelemetryHooks, SendEvent
    from contrailmq.client.producing.batch import split_batch
    from contrailmq.client.producing.producer import create_reply
    from contrailmq.client.producing.selectors import by_hash, by_machine_room, by_random
    from contrailmq.client.rebalance import (
        AverageByCircleStrategy,
        AverageStrategy,
        ConfigStrategy,
        ConsistentHashStrategy,
        MachineRoomNearbyStrategy,
        MachineRoomStrategy,
    )
    from contrailmq.client.results import ConsumeOutcome, TransactionResult
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
    "LetterChoice",
    "LetterReport",
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

_HOMES: Final = {
    "AclCredentials": "contrailmq.wire.acl",
    "AverageByCircleStrategy": "contrailmq.client.rebalance",
    "AverageStrategy": "contrailmq.client.rebalance",
    "ClientHooks": "contrailmq.client.hooks",
    "ConfigStrategy": "contrailmq.client.rebalance",
    "ConsistentHashStrategy": "contrailmq.client.rebalance",
    "ConsumeEvent": "contrailmq.client.hooks",
    "ConsumeOutcome": "contrailmq.client.results",
    "MachineRoomNearbyStrategy": "contrailmq.client.rebalance",
    "MachineRoomStrategy": "contrailmq.client.rebalance",
    "LetterChoice": "contrailmq.client.admin.admin_dead_letters",
    "LetterReport": "contrailmq.client.admin.admin_dead_letters",
    "OffsetPlace": "contrailmq.client.admin.admin_groups",
    "OpenTelemetryHooks": "contrailmq.client.hooks",
    "QueueProgress": "contrailmq.client.admin.admin_groups",
    "QueueReader": "contrailmq.client.blocking.raw",
    "RawPull": "contrailmq.client.blocking.raw",
    "RawSent": "contrailmq.client.blocking.raw",
    "SendEvent": "contrailmq.client.hooks",
    "TransactionResult": "contrailmq.client.results",
    "by_hash": "contrailmq.client.producing.selectors",
    "by_machine_room": "contrailmq.client.producing.selectors",
    "by_random": "contrailmq.client.producing.selectors",
    "create_reply": "contrailmq.client.producing.producer",
    "split_batch": "contrailmq.client.producing.batch",
}

__getattr__, __dir__ = lazy_names(globals(), _HOMES)
