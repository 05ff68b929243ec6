"""The message store: RocketMQ's commit log, consume queues and index as files, usable alone, without a broker."""

from contrailmq.store.clock import Clock, ManualClock, SystemClock
from contrailmq.store.config import BrokerRole, FlushDiskType, StoreConfig
from contrailmq.store.consume_queue import Boundary
from contrailmq.store.errors import StoreError
from contrailmq.store.files import Files
from contrailmq.store.message_store import Drive, MessageStore
from contrailmq.store.record import check_record, decode_record, encode_record
from contrailmq.store.recovery import RecoveryReport, recover
from contrailmq.store.status import GetStatus, PutStatus

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
    "RecoveryReport",
    "StoreConfig",
    "StoreError",
    "SystemClock",
    "check_record",
    "decode_record",
    "encode_record",
    "recover",
]
