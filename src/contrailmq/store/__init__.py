"""The message store: RocketMQ's commit log, consume queues and index as files, usable alone, without a broker.

Names are imported when they are first used: a Spark task that reads records loads no store for it.
"""

from typing import TYPE_CHECKING, Final

from contrailmq._lazy import lazy_names

if TYPE_CHECKING:
    from contrailmq.message.codec import check_record, decode_record, encode_record
    from contrailmq.store.base.clock import Clock, ManualClock, SystemClock
    from contrailmq.store.base.errors import StoreError
    from contrailmq.store.base.findings import VerifyReport
    from contrailmq.store.base.status import GetStatus, PutStatus
    from contrailmq.store.config import BrokerRole, FlushDiskType, StoreConfig
    from contrailmq.store.files import Files
    from contrailmq.store.message_store import Drive, MessageStore
    from contrailmq.store.queues.queue_unit import Boundary
    from contrailmq.store.recovery.recovery import RecoveryReport, recover
    from contrailmq.store.tools.inspect import StoreSummary, inspect_store
    from contrailmq.store.tools.read_only import StoreView
    from contrailmq.store.tools.rebuild import RebuildReport, rebuild_store
    from contrailmq.store.tools.repair import RepairReport, find_damage, repair_store
    from contrailmq.store.tools.verify import verify_store
    from contrailmq.store.upkeep.retention import Retention

__all__ = [
    "Boundary",
    "BrokerRole",
    "Clock",
    "Drive",
    "Files",
    "FlushDiskType",
    "GetStatus",
    "ManualClock",
    "MessageStore",
    "PutStatus",
    "RebuildReport",
    "RecoveryReport",
    "RepairReport",
    "Retention",
    "StoreConfig",
    "StoreError",
    "StoreSummary",
    "StoreView",
    "SystemClock",
    "VerifyReport",
    "check_record",
    "decode_record",
    "encode_record",
    "find_damage",
    "inspect_store",
    "rebuild_store",
    "recover",
    "repair_store",
    "verify_store",
]

_HOMES: Final = {
    "Boundary": "contrailmq.store.queues.queue_unit",
    "BrokerRole": "contrailmq.store.config",
    "Clock": "contrailmq.store.base.clock",
    "Drive": "contrailmq.store.message_store",
    "Files": "contrailmq.store.files",
    "FlushDiskType": "contrailmq.store.config",
    "GetStatus": "contrailmq.store.base.status",
    "ManualClock": "contrailmq.store.base.clock",
    "MessageStore": "contrailmq.store.message_store",
    "PutStatus": "contrailmq.store.base.status",
    "RebuildReport": "contrailmq.store.tools.rebuild",
    "RecoveryReport": "contrailmq.store.recovery.recovery",
    "RepairReport": "contrailmq.store.tools.repair",
    "Retention": "contrailmq.store.upkeep.retention",
    "StoreConfig": "contrailmq.store.config",
    "StoreError": "contrailmq.store.base.errors",
    "StoreSummary": "contrailmq.store.tools.inspect",
    "StoreView": "contrailmq.store.tools.read_only",
    "SystemClock": "contrailmq.store.base.clock",
    "VerifyReport": "contrailmq.store.base.findings",
    "check_record": "contrailmq.message.codec",
    "decode_record": "contrailmq.message.codec",
    "encode_record": "contrailmq.message.codec",
    "find_damage": "contrailmq.store.tools.repair",
    "inspect_store": "contrailmq.store.tools.inspect",
    "rebuild_store": "contrailmq.store.tools.rebuild",
    "recover": "contrailmq.store.recovery.recovery",
    "repair_store": "contrailmq.store.tools.repair",
    "verify_store": "contrailmq.store.tools.verify",
}

__getattr__, __dir__ = lazy_names(globals(), _HOMES)
