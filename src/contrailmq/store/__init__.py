"""The message store: RocketMQ's commit log, consume queues and index as files, usable alone, without a broker.

This is the store's front: a broker imports everything of it from here, and users `MessageStore`, settings and tools.
Names are imported when they are first used: a Spark task that reads records loads no store for it.
"""

from typing import TYPE_CHECKING, Final

from contrailmq._lazy import lazy_names

if TYPE_CHECKING:
    from contrailmq.message.codec import check_record, decode_record, encode_record
    from contrailmq.store.base.clock import Clock, ManualClock, SystemClock
    from contrailmq.store.base.clock_file import Stretch
    from contrailmq.store.base.errors import StoreConfigError, StoreError, StoreIOError, StoreReadOnlyError
    from contrailmq.store.base.findings import VerifyReport
    from contrailmq.store.base.journal import RUN_BYTES_MAX, CopyPlace, EntryPlace, Journal, Run, stands
    from contrailmq.store.base.stats import DURATION_BOUNDS_US, Durations
    from contrailmq.store.base.status import (
        AppendResult,
        Arrival,
        BatchResult,
        Copy,
        GetResult,
        GetStatus,
        PutStatus,
        QueueRead,
    )
    from contrailmq.store.base.store_clock import StoreClock
    from contrailmq.store.config import (
        WITHOUT_EFFECT,
        BrokerRole,
        FlushDiskType,
        StoreConfig,
        hours_of,
        recorded_path,
        rocketmq_key,
        settings_to_record,
    )
    from contrailmq.store.delay_levels import DelayLevels
    from contrailmq.store.files import Files
    from contrailmq.store.log.copying import COPY_MISSES_MAX, QUEUE_ID_MAX, Copier, place_of
    from contrailmq.store.log.damage import Place
    from contrailmq.store.message_store import Drive, MessageStore
    from contrailmq.store.queues.descriptors import STORE_DESCRIPTORS
    from contrailmq.store.queues.light_queues import LIGHT_PREFIX
    from contrailmq.store.queues.queue_state import TAG_LENGTH_MAX
    from contrailmq.store.queues.queue_unit import Boundary
    from contrailmq.store.recovery.recovery import RecoveryReport, recover
    from contrailmq.store.recovery.truncation import is_cut, positions_set_back
    from contrailmq.store.replication.following import Following
    from contrailmq.store.replication.serving import Listen, Listening, ReplicationServer, SlaveStatus
    from contrailmq.store.replication.stream import ReplicationError
    from contrailmq.store.timer.admission import TIMER_REQUESTS, TimerRefusal, admit, admit_at, wants_timer
    from contrailmq.store.timer.checkpoint import FlushPlan, TimerCheckpoint, decode_checkpoint, encode_checkpoint
    from contrailmq.store.timer.host import Elsewhere
    from contrailmq.store.timer.metrics import TopicCounts
    from contrailmq.store.timer.timer_store import TimerStore
    from contrailmq.store.tools.inspect import StoreSummary, inspect_store
    from contrailmq.store.tools.read_only import StoreView
    from contrailmq.store.tools.rebuild import RebuildReport, rebuild_store
    from contrailmq.store.tools.repair import RepairReport, find_damage, repair_store
    from contrailmq.store.tools.verify import verify_store
    from contrailmq.store.truncating import ClosedLog, TruncateReport, plan_truncation, truncate_store
    from contrailmq.store.upkeep.retention import Retention

__all__ = [
    "COPY_MISSES_MAX",
    "DURATION_BOUNDS_US",
    "LIGHT_PREFIX",
    "QUEUE_ID_MAX",
    "RUN_BYTES_MAX",
    "STORE_DESCRIPTORS",
    "TAG_LENGTH_MAX",
    "TIMER_REQUESTS",
    "WITHOUT_EFFECT",
    "AppendResult",
    "Arrival",
    "BatchResult",
    "Boundary",
    "BrokerRole",
    "Clock",
    "ClosedLog",
    "Copier",
    "Copy",
    "CopyPlace",
    "DelayLevels",
    "Drive",
    "Durations",
    "Elsewhere",
    "EntryPlace",
    "Files",
    "FlushDiskType",
    "FlushPlan",
    "Following",
    "GetResult",
    "GetStatus",
    "Journal",
    "Listen",
    "Listening",
    "ManualClock",
    "MessageStore",
    "Place",
    "PutStatus",
    "QueueRead",
    "RebuildReport",
    "RecoveryReport",
    "RepairReport",
    "ReplicationError",
    "ReplicationServer",
    "Retention",
    "Run",
    "SlaveStatus",
    "StoreClock",
    "StoreConfig",
    "StoreConfigError",
    "StoreError",
    "StoreIOError",
    "StoreReadOnlyError",
    "StoreSummary",
    "StoreView",
    "Stretch",
    "SystemClock",
    "TimerCheckpoint",
    "TimerRefusal",
    "TimerStore",
    "TopicCounts",
    "TruncateReport",
    "VerifyReport",
    "admit",
    "admit_at",
    "check_record",
    "decode_checkpoint",
    "decode_record",
    "encode_checkpoint",
    "encode_record",
    "find_damage",
    "hours_of",
    "inspect_store",
    "is_cut",
    "place_of",
    "plan_truncation",
    "positions_set_back",
    "rebuild_store",
    "recorded_path",
    "recover",
    "repair_store",
    "rocketmq_key",
    "settings_to_record",
    "stands",
    "truncate_store",
    "verify_store",
    "wants_timer",
]

_NAMES: Final = {
    "contrailmq.message.codec": ("check_record", "decode_record", "encode_record"),
    "contrailmq.store.base.clock": ("Clock", "ManualClock", "SystemClock"),
    "contrailmq.store.base.clock_file": ("Stretch",),
    "contrailmq.store.base.errors": ("StoreConfigError", "StoreError", "StoreIOError", "StoreReadOnlyError"),
    "contrailmq.store.base.findings": ("VerifyReport",),
    "contrailmq.store.base.journal": ("CopyPlace", "EntryPlace", "Journal", "RUN_BYTES_MAX", "Run", "stands"),
    "contrailmq.store.base.store_clock": ("StoreClock",),
    "contrailmq.store.base.stats": ("DURATION_BOUNDS_US", "Durations"),
    "contrailmq.store.base.status": (
        "AppendResult",
        "Arrival",
        "BatchResult",
        "Copy",
        "GetResult",
        "GetStatus",
        "PutStatus",
        "QueueRead",
    ),
    "contrailmq.store.config": (
        "BrokerRole",
        "FlushDiskType",
        "StoreConfig",
        "WITHOUT_EFFECT",
        "hours_of",
        "recorded_path",
        "rocketmq_key",
        "settings_to_record",
    ),
    "contrailmq.store.delay_levels": ("DelayLevels",),
    "contrailmq.store.files": ("Files",),
    "contrailmq.store.log.copying": ("COPY_MISSES_MAX", "Copier", "QUEUE_ID_MAX", "place_of"),
    "contrailmq.store.log.damage": ("Place",),
    "contrailmq.store.message_store": ("Drive", "MessageStore"),
    "contrailmq.store.queues.descriptors": ("STORE_DESCRIPTORS",),
    "contrailmq.store.queues.light_queues": ("LIGHT_PREFIX",),
    "contrailmq.store.queues.queue_state": ("TAG_LENGTH_MAX",),
    "contrailmq.store.queues.queue_unit": ("Boundary",),
    "contrailmq.store.recovery.recovery": ("RecoveryReport", "recover"),
    "contrailmq.store.recovery.truncation": ("is_cut", "positions_set_back"),
    "contrailmq.store.replication.following": ("Following",),
    "contrailmq.store.replication.serving": ("Listen", "Listening", "ReplicationServer", "SlaveStatus"),
    "contrailmq.store.replication.stream": ("ReplicationError",),
    "contrailmq.store.timer.admission": ("TIMER_REQUESTS", "TimerRefusal", "admit", "admit_at", "wants_timer"),
    "contrailmq.store.timer.checkpoint": ("FlushPlan", "TimerCheckpoint", "decode_checkpoint", "encode_checkpoint"),
    "contrailmq.store.timer.host": ("Elsewhere",),
    "contrailmq.store.timer.metrics": ("TopicCounts",),
    "contrailmq.store.timer.timer_store": ("TimerStore",),
    "contrailmq.store.tools.inspect": ("StoreSummary", "inspect_store"),
    "contrailmq.store.tools.read_only": ("StoreView",),
    "contrailmq.store.tools.rebuild": ("RebuildReport", "rebuild_store"),
    "contrailmq.store.tools.repair": ("RepairReport", "find_damage", "repair_store"),
    "contrailmq.store.tools.verify": ("verify_store",),
    "contrailmq.store.truncating": ("ClosedLog", "TruncateReport", "plan_truncation", "truncate_store"),
    "contrailmq.store.upkeep.retention": ("Retention",),
}

__getattr__, __dir__ = lazy_names(globals(), {name: home for home, names in _NAMES.items() for name in names})
