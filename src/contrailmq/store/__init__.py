"""The message store: RocketMQ's commit log, consume queues and index as files, usable alone, without a broker.

Names are imported when they are first used: a Spark task that reads records loads no store for it.
"""

from typing import TYPE_CHECKING, Final

from contrailmq._lazy import lazy_names

if TYPE_CHECKING:
    from contrailmq.store.clock import Clock, ManualClock, SystemClock
    from contrailmq.store.config import BrokerRole, FlushDiskType, StoreConfig
    from contrailmq.store.errors import StoreError
    from contrailmq.store.files import Files
    from contrailmq.store.findings import VerifyReport
    from contrailmq.store.inspect import StoreSummary, inspect_store
    from contrailmq.store.message_store import Drive, MessageStore
    from contrailmq.store.queue_unit import Boundary
    from contrailmq.store.read_only import StoreView
    from contrailmq.store.rebuild import RebuildReport, rebuild_store
    from contrailmq.store.record import check_record, decode_record, encode_record
    from contrailmq.store.recovery import RecoveryReport, recover
    from contrailmq.store.repair import RepairReport, find_damage, repair_store
    from contrailmq.store.retention import Retention
    from contrailmq.store.status import GetStatus, PutStatus
    from contrailmq.store.verify import verify_store

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
    "Boundary": "contrailmq.store.queue_unit",
    "BrokerRole": "contrailmq.store.config",
    "Clock": "contrailmq.store.clock",
    "Drive": "contrailmq.store.message_store",
    "Files": "contrailmq.store.files",
    "FlushDiskType": "contrailmq.store.config",
    "GetStatus": "contrailmq.store.status",
    "ManualClock": "contrailmq.store.clock",
    "MessageStore": "contrailmq.store.message_store",
    "PutStatus": "contrailmq.store.status",
    "RebuildReport": "contrailmq.store.rebuild",
    "RecoveryReport": "contrailmq.store.recovery",
    "RepairReport": "contrailmq.store.repair",
    "Retention": "contrailmq.store.retention",
    "StoreConfig": "contrailmq.store.config",
    "StoreError": "contrailmq.store.errors",
    "StoreSummary": "contrailmq.store.inspect",
    "StoreView": "contrailmq.store.read_only",
    "SystemClock": "contrailmq.store.clock",
    "VerifyReport": "contrailmq.store.findings",
    "check_record": "contrailmq.store.record",
    "decode_record": "contrailmq.store.record",
    "encode_record": "contrailmq.store.record",
    "find_damage": "contrailmq.store.repair",
    "inspect_store": "contrailmq.store.inspect",
    "rebuild_store": "contrailmq.store.rebuild",
    "recover": "contrailmq.store.recovery",
    "repair_store": "contrailmq.store.repair",
    "verify_store": "contrailmq.store.verify",
}

__getattr__, __dir__ = lazy_names(globals(), _HOMES)
