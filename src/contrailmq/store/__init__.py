"""The message store: RocketMQ's commit log, consume queues and index as files, usable alone, without a broker."""

from contrailmq.store.clock import Clock, ManualClock, SystemClock
from contrailmq.store.config import BrokerRole, FlushDiskType, StoreConfig
from contrailmq.store.errors import StoreError
from contrailmq.store.files import Files
from contrailmq.store.record import check_record, decode_record, encode_record

__all__ = [
    "BrokerRole",
    "Clock",
    "Files",
    "FlushDiskType",
    "ManualClock",
    "StoreConfig",
    "StoreError",
    "SystemClock",
    "check_record",
    "decode_record",
    "encode_record",
]
