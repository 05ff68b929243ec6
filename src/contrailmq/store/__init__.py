"""The message store: RocketMQ's commit log, consume queues and index as files, usable alone, without a broker."""

from contrailmq.store.clock import Clock, ManualClock, SystemClock
from contrailmq.store.config import BrokerRole, FlushDiskType, StoreConfig
from contrailmq.store.consume_queue import Boundary
from contrailmq.store.errors import StoreError
from contrailmq.store.files import Files
from contrailmq.store.inspect import StoreSummary, inspect_store
from contrailmq.store.message_store import Drive, MessageStore
from contrailmq.store.read_only import StoreView
from contrailmq.store.rebuild import RebuildReport, rebuild_store
from contrailmq.store.record import check_record, decode_record, encode_record
from contrailmq.store.recovery import RecoveryReport, recover
from contrailmq.store.retention import Retention
from contrailmq.store.status import GetStatus, PutStatus
from contrailmq.store.verify import VerifyReport, verify_store

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
    "inspect_store",
    "rebuild_store",
    "recover",
    "verify_store",
]
