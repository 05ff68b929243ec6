"""StoreConfig: RocketMQ's MessageStoreConfig in Python names.

Every field is RocketMQ's key in snake case with RocketMQ's default (`mappedFileSizeCommitLog` is
`mapped_file_size_commit_log`); `from_properties` reads RocketMQ's own files. Keys that RocketMQ knows and that mean
nothing here are listed in WITHOUT_EFFECT and named once when the store opens. Keys that RocketMQ does not have are in
the last group.

File sizes: 0 means "not given": `resolved()` takes the size from the files that exist, else RocketMQ's default. A store
written with other sizes therefore opens without its broker.conf.
"""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from contrailmq.message.addresses import check_dialled
from contrailmq.message.errors import MessageError
from contrailmq.message.identity import encode_address
from contrailmq.store.base.errors import StoreConfigError
from contrailmq.store.base.index_sizes import read_index_sizes
from contrailmq.store.base.store_lock import OLD
from contrailmq.store.delay_levels import DELAY_LEVELS, DelayLevels
from contrailmq.store.files import Files
from contrailmq.store.setting_ranges import refusal

GIB: Final = 1 << 30
MIB: Final = 1 << 20

COMMIT_LOG_FILE_BYTES: Final = GIB
CONSUME_QUEUE_UNIT_BYTES: Final = 20
CONSUME_QUEUE_FILE_BYTES: Final = 300_000 * CONSUME_QUEUE_UNIT_BYTES
BATCH_QUEUE_UNIT_BYTES: Final = 46
BATCH_QUEUE_FILE_BYTES: Final = 300_000 * BATCH_QUEUE_UNIT_BYTES
CONSUME_QUEUE_EXT_FILE_BYTES: Final = 48 * MIB
INDEX_SLOTS: Final = 5_000_000
INDEX_UNITS: Final = 20_000_000

_SIZES: Final = ("mapped_file_size", "mapper_file_size", "max_hash", "max_index")
_HOUR: Final = re.compile("([01]?[0-9]|2[0-3])?")  # nothing: no hour, as in "04;"
_MESSAGE_BYTES_MIN: Final = 10  # RocketMQ ignores a smaller maxMessageSize


class FlushDiskType(enum.StrEnum):
    ASYNC_FLUSH = "ASYNC_FLUSH"
    SYNC_FLUSH = "SYNC_FLUSH"


class BrokerRole(enum.StrEnum):
    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


# key -> why it has no effect here. Reading such a key is not an error: a RocketMQ file is used unchanged.
WITHOUT_EFFECT: Final[Mapping[str, str]] = {
    "useReentrantLockWhenPutMessage": "there is one writer, the put lock is never contended",
    "useABSLock": "there is one writer, the put lock is never contended",
    "spinLockCollisionRetreatOptimalDegree": "there is one writer, the put lock is never contended",
    "topicQueueLockNum": "queue offsets are assigned under the one put lock",
    "debugLockEnable": "the put lock is never contended",
    "putMsgIndexHightWater": "unused by RocketMQ too",
    "maxAsyncPutMessageRequests": "the broker bounds requests per connection",
    "storePathDLedgerCommitLog": "DLedger logs are not supported",
    "writeWithoutMmap": "the log is written through its mapping",
    "putConsumeQueueDataByFileChannel": "queues are always written with pwrite",
    "enableRunningFlagsInFlush": "a failed sync always makes the store read-only",
    "enableBuildConsumeQueueConcurrently": "dispatch uses what the put already knows, nothing is parsed twice",
    "batchDispatchRequestThreadPoolNums": "dispatch uses what the put already knows, nothing is parsed twice",
    "enableAcceleratedRecovery": "RocksDB stores are not supported",
    "enableScheduleAsyncDeliver": "delivery of delayed messages never waits for a disk",
    "scheduleAsyncDeliverMaxPendingLimit": "delivery of delayed messages never waits for a disk",
    "scheduleAsyncDeliverMaxResendNum2Blocked": "delivery of delayed messages never waits for a disk",
    "maxRecoveryCommitlogFiles": "RocksDB stores are not supported",
    "mappedFileSwapEnable": "mappings are cheap here and are not swapped",
    "commitLogSwapMapInterval": "mappings are cheap here and are not swapped",
    "coldDataFlowControlEnable": "cold reads always go to a bounded worker",
    "coldDataScanEnable": "cold reads always go to a bounded worker",
    "accessMessageInMemoryHotRatio": "belongs to cold-data flow control",
    "bitMapLengthConsumeQueueExt": "the filter's own size is used, as RocketMQ's broker does at start",
    "duplicationEnable": "the old replication mode is not supported",
    "putMessageTimeout": "a put waits for syncFlushTimeout only",
    "flushCommitLogTimed": "a request always wakes the flush thread",
    "flushConsumeQueueLeastPages": "queues are written when 1 KB has gathered and synced once a minute",
    "deleteCommitLogFilesInterval": "deleting a log file does not disturb puts here",
    "replicasPerDiskPartition": "disk ratios are those of the partition",
    "logicalDiskSpaceCleanForciblyThreshold": "disk ratios are those of the partition",
    "travelCqFileNumWhenGetMessage": "a read looks at one queue file, RocketMQ's default",
    "messageIndexSafe": "the index is always rebuilt as far as it is missing",
    "diskFallRecorded": "how far a reader is behind is a statistic of the broker",
    "maxConsumeQueueScan": "belongs to estimates of filtered queues",
    "sampleCountThreshold": "belongs to estimates of filtered queues",
    "recheckReputOffsetFromCq": "recovery always compares queues and log",
    "correctLogicMinOffsetForceInterval": "a batch queue's minimum is corrected whenever log files were deleted",
    "deleteConsumeQueueFilesInterval": "deleting a queue file does not disturb puts here",
    "totalReplicas": "how large a group is the NameServers say",
    "allAckInSyncStateSet": "controller mode is not supported",
    "haMaxTimeSlaveNotCatchup": "controller mode is not supported",
    "syncFromLastFile": "controller mode is not supported",
    "asyncLearner": "controller mode is not supported",
    "maxSlaveResendLength": "of RocketMQ's own pairs: slaves follow without it",
    "syncMasterFlushOffsetWhenStartup": "of RocketMQ's own pairs: slaves follow without it",
    "disappearTimeAfterStart": "of RocketMQ's own pairs: slaves follow without it",
    "defaultQueryMaxNum": "a query says how many it wants",
    "pullBatchMaxMessageCount": "the limits of a pull are maxTransfer...",
    "timerGetMessageThreadNum": "one thread serves the timers",
    "timerPutMessageThreadNum": "one thread serves the timers",
    "timerEnableRetryUntilSuccess": "a timer that cannot be delivered now is always tried again",
    "timerSkipUnknownError": "a timer is passed over only when the store can never take it",
    "timerWarmEnable": "the wheel is read at start",
    "enableCompaction": "compaction topics are not supported",
    "compactionMappedFileSize": "compaction topics are not supported",
    "compactionCqMappedFileSize": "compaction topics are not supported",
    "storePathEpochFile": "controller mode is not supported",
    "storePathBrokerIdentity": "controller mode is not supported",
}

# Python field -> RocketMQ key, where the snake-case rule does not lead back to RocketMQ's spelling.
_ODD_KEYS: Final[Mapping[str, str]] = {
    "path": "storePathRootDir",
    "enabled_append_prop_crc": "enabledAppendPropCRC",
    "force_verify_prop_crc": "forceVerifyPropCRC",
    "check_crc_on_recover": "checkCRCOnRecover",
    "read_un_committed": "readUnCommitted",
}
_OLD_KEYS: Final[Mapping[str, str]] = {  # spellings of older 4.x
    "mapedFileSizeCommitLog": "mappedFileSizeCommitLog",
    "mapedFileSizeConsumeQueue": "mappedFileSizeConsumeQueue",
    "haSlaveFallbehindMax": "haMaxGapNotInSync",
}

# Settings that are looked at whenever they matter, so that a running store follows a change.
LIVE: Final = frozenset(
    [
        "check_crc_on_read",
        "clean_file_forcibly_enable",
        "clean_resource_interval",
        "commit_commit_log_least_pages",
        "commit_commit_log_thorough_interval",
        "delete_file_batch_max",
        "delete_when",
        "destroy_maped_file_interval_forcibly",
        "disk_max_used_space_ratio",
        "disk_space_clean_forcibly_ratio",
        "disk_space_warning_level_ratio",
        "file_reserved_time",
        "flush_commit_log_least_pages",
        "flush_commit_log_thorough_interval",
        "flush_consume_queue_thorough_interval",
        "flush_delay_offset_interval",
        "ha_flow_control_enable",
        "ha_housekeeping_interval",
        "ha_max_gap_not_in_sync",
        "ha_send_heartbeat_interval",
        "ha_transfer_batch_size",
        "max_filter_message_size",
        "max_ha_transfer_byte_in_second",
        "max_transfer_bytes_on_message_in_disk",
        "max_transfer_bytes_on_message_in_memory",
        "max_transfer_count_on_message_in_disk",
        "max_transfer_count_on_message_in_memory",
        "offset_check_in_slave",
        "os_page_cache_busy_time_out_mills",
        "redelete_hanged_file_interval",
        "slave_timeout",
        "timer_check_metrics_when",
        "timer_congest_num_each_slot",
        "timer_enable_check_metrics",
        "timer_flush_interval_ms",
        "timer_max_delay_sec",
        "timer_stop_dequeue",
        "timer_stop_enqueue",
    ]
)

_Enum = TypeVar("_Enum", bound=enum.StrEnum)


@dataclass(frozen=True, kw_only=True, slots=True)
class _Settings:
    """Everything but the path, in the groups of RocketMQ's documents."""

    # --- paths and sizes (0: taken from the files that exist, else the default)
    store_path_commit_log: str = ""
    read_only_commit_log_store_paths: str = ""
    mapped_file_size_commit_log: int = 0
    mapped_file_size_consume_queue: int = 0
    mapper_file_size_batch_consume_queue: int = 0
    enable_consume_queue_ext: bool = False
    mapped_file_size_consume_queue_ext: int = CONSUME_QUEUE_EXT_FILE_BYTES
    mapped_file_size_timer_log: int = 100 * MIB
    max_hash_slot_num: int = 0
    max_index_num: int = 0
    store_type: str = "default"
    # --- put
    max_message_size: int = 4 * MIB
    os_page_cache_busy_time_out_mills: int = 1000
    max_msgs_num_batch: int = 64
    enable_lmq: bool = False  # light queues need both
    enable_multi_dispatch: bool = False
    max_lmq_consume_queue_num: int = 20_000
    auto_message_version_on_topic_len: bool = True
    enabled_append_prop_crc: bool = False
    # Recovery checks the property instead of the body's CRC, in records that have it. Apache takes a record without it
    # for damaged and cuts the log there, which would erase all that was stored before enabledAppendPropCRC was set.
    force_verify_prop_crc: bool = False
    check_crc_on_recover: bool = True
    # --- flush and commit
    flush_disk_type: FlushDiskType = FlushDiskType.ASYNC_FLUSH
    flush_interval_commit_log: int = 500
    flush_commit_log_least_pages: int = 4
    flush_commit_log_thorough_interval: int = 10_000
    commit_interval_commit_log: int = 200
    commit_commit_log_least_pages: int = 4
    commit_commit_log_thorough_interval: int = 200
    flush_interval_consume_queue: int = 1000
    flush_consume_queue_thorough_interval: int = 60_000
    sync_flush_timeout: int = 5000
    transient_store_pool_enable: bool = False
    transient_store_pool_size: int = 5
    fast_fail_if_no_buffer_in_store_pool: bool = False
    warm_maped_file_enable: bool = False
    flush_least_pages_when_warm_maped_file: int = 4096
    wake_flush_when_put_message: bool = False
    wake_commit_when_put_message: bool = True
    # --- cleaning
    delete_when: str = "04"
    file_reserved_time: int = 72
    delete_file_batch_max: int = 10
    clean_resource_interval: int = 10_000
    destroy_maped_file_interval_forcibly: int = 120_000
    redelete_hanged_file_interval: int = 120_000
    disk_max_used_space_ratio: int = 75
    disk_space_warning_level_ratio: int = 90
    disk_space_clean_forcibly_ratio: int = 85
    clean_file_forcibly_enable: bool = True
    # --- read
    max_transfer_bytes_on_message_in_memory: int = 262_144
    max_transfer_count_on_message_in_memory: int = 32
    max_transfer_bytes_on_message_in_disk: int = 65_536
    max_transfer_count_on_message_in_disk: int = 8
    access_message_in_memory_max_ratio: int = 40
    max_filter_message_size: int = 16_000
    message_index_enable: bool = True
    offset_check_in_slave: bool = False
    read_un_committed: bool = False
    data_read_ahead_enable: bool = True
    # --- replication
    broker_role: BrokerRole = BrokerRole.ASYNC_MASTER
    ha_listen_port: int = 10_912
    ha_master_address: str = ""  # host:port of the master's HA port, for a slave; "": as the NameServers say
    ha_send_heartbeat_interval: int = 5000
    ha_housekeeping_interval: int = 20_000  # of silence, after which a connection is closed
    ha_transfer_batch_size: int = 256 * 1024  # RocketMQ: 32 KiB; any slave takes larger blocks, and fewer cost less
    ha_max_gap_not_in_sync: int = 256 * MIB
    ha_flow_control_enable: bool = False
    max_ha_transfer_byte_in_second: int = 100 * MIB  # to one slave, with ha_flow_control_enable
    slave_timeout: int = 3000
    in_sync_replicas: int = 1  # that have a message before it is acknowledged, a SYNC_MASTER itself included
    min_in_sync_replicas: int = 1
    enable_auto_in_sync_replicas: bool = False
    # --- delay and timer
    message_delay_level: str = DELAY_LEVELS
    flush_delay_offset_interval: int = 10_000
    timer_wheel_enable: bool = True
    timer_precision_ms: int = 1000
    timer_roll_window_slot: int = 172_800
    timer_max_delay_sec: int = 259_200
    timer_flush_interval_ms: int = 1000
    timer_congest_num_each_slot: int = 2_147_483_647
    timer_stop_enqueue: bool = False
    timer_stop_dequeue: bool = False
    timer_enable_check_metrics: bool = True
    timer_check_metrics_when: str = "05"
    # --- dispatch and recovery
    # --- ContrailMQ's own
    pre_write_commit_log: str = "auto"  # "on" | "off" | "auto" (on under SYNC_FLUSH): pwrite the next file ahead
    prefault_bytes: int = 16 * MIB  # how far ahead of the write position pages are faulted in; bounds resident memory
    check_crc_on_read: str = "cold"  # what a broker checks before it gives it away: "off" | "cold" | "all"
    open_files_max: int = 0  # cap of queue files kept open; 0: from the descriptor limit
    store_host_address: str = "127.0.0.1:10911"  # written as STOREHOST by an embedded store


class StoreConfig(_Settings):
    """Settings of one store directory; frozen but for `change`. `StoreConfig(path, flush_disk_type="SYNC_FLUSH")`."""

    __slots__ = ("path", "unused_keys")
    path: Path
    unused_keys: tuple[str, ...]

    def __init__(self, path: str | Path, **settings: object) -> None:
        known = _field_types()
        for name, value in settings.items():
            if name not in known:
                raise StoreConfigError(name, value, "no such setting")
        values = {name: _converted(name, value, known[name]) for name, value in settings.items()}
        super().__init__(**values)  # type: ignore[arg-type]
        object.__setattr__(self, "path", Path(path))
        object.__setattr__(self, "unused_keys", ())
        self._check()

    @classmethod
    def from_properties(
        cls, source: str | Path | Mapping[str, str], *, path: str | Path | None = None, **settings: object
    ) -> StoreConfig:
        """From RocketMQ's own file or mapping. `path` and `settings` win over what it says; keys of others are left."""
        texts = dict(source) if isinstance(source, Mapping) else read_properties(Path(source))
        texts = {_OLD_KEYS.get(key, key): text for key, text in texts.items()}
        known = {rocketmq_key(name): name for name in _field_types()}
        root = path if path is not None else texts.get("storePathRootDir", Path.home() / "store")
        values: dict[str, object] = {known[key]: text for key, text in texts.items() if key in known}
        for name, text in values.items():
            if name.startswith(_SIZES) and str(text).strip("+-0 ") == "":  # 0 in code: as large as those that are there
                raise StoreConfigError(rocketmq_key(name), text, "at least 1")
        config = cls(root, **(values | settings))
        return config.with_unused_keys(sorted(key for key in texts if key in WITHOUT_EFFECT))

    @staticmethod
    def known_keys() -> frozenset[str]:
        """RocketMQ's spellings of all keys that belong to the store, with or without effect here."""
        with_effect = {rocketmq_key(name) for name in _field_types()}
        return frozenset(with_effect | set(WITHOUT_EFFECT) | {"storePathRootDir"})

    def replaced(self, **settings: object) -> StoreConfig:
        """A copy with some settings changed."""
        values: dict[str, object] = {name: getattr(self, name) for name in _field_types()}
        return StoreConfig(self.path, **(values | settings)).with_unused_keys(self.unused_keys)

    def with_unused_keys(self, keys: Iterable[str]) -> StoreConfig:
        """This one, freshly made, with the keys that opening a store tells have no effect."""
        object.__setattr__(self, "unused_keys", tuple(keys))
        return self

    def change(self, properties: Mapping[str, str]) -> None:
        """Change settings of a running store: all of them, or none when one is unusable or fixed at start."""
        known = {rocketmq_key(name): name for name in _field_types()}
        values: dict[str, object] = {}
        for key, text in properties.items():
            if key in WITHOUT_EFFECT:
                raise StoreConfigError(key, text, f"has no effect here: {WITHOUT_EFFECT[key]}")
            if known.get(key) not in LIVE:
                raise StoreConfigError(key, text, "cannot be changed while the store is open: edit the file, restart")
            values[known[key]] = text
        fresh = self.replaced(**values)
        for name in values:
            object.__setattr__(self, name, getattr(fresh, name))

    def resolved(self, files: Files) -> StoreConfig:
        """A copy in which every file size is known: as given, else as the files that exist, else RocketMQ's default."""
        slots, units = self.max_hash_slot_num, self.max_index_num
        if not slots or not units:
            found = read_index_sizes(files, self._standing(files, self.index_path))
            slots, units = slots or found.slots or INDEX_SLOTS, units or found.units or INDEX_UNITS
        queue_size = self.mapped_file_size_consume_queue or size_below(
            files, self._standing(files, self.consume_queue_path), depth=3
        )
        return self.replaced(
            mapped_file_size_commit_log=self.mapped_file_size_commit_log
            or max(size_below(files, path, depth=1) for path in self.commit_log_paths)
            or COMMIT_LOG_FILE_BYTES,
            mapped_file_size_consume_queue=_rounded_up(
                queue_size or CONSUME_QUEUE_FILE_BYTES, CONSUME_QUEUE_UNIT_BYTES
            ),
            mapper_file_size_batch_consume_queue=self.mapper_file_size_batch_consume_queue
            or size_below(files, self._standing(files, self.batch_queue_path), depth=3)
            or BATCH_QUEUE_FILE_BYTES,
            max_hash_slot_num=slots,
            max_index_num=units,
        )

    def _standing(self, files: Files, path: Path) -> Path:
        """Where a part of the store is; a killed rebuild may have left it aside until the store is opened."""
        return path if files.exists(path) else self.path / OLD / path.name

    @property
    def commit_log_paths(self) -> tuple[Path, ...]:
        """The directories that hold commit-log files: one, or RocketMQ's comma-separated list; read-only ones last."""
        writable = [part.strip() for part in self.store_path_commit_log.split(",") if part.strip()]
        frozen = [part.strip() for part in self.read_only_commit_log_store_paths.split(",") if part.strip()]
        ordered = sorted(set(writable) - set(frozen)) + sorted(set(frozen))
        return tuple(Path(part) for part in ordered) or (self.path / "commitlog",)

    @property
    def consume_queue_path(self) -> Path:
        return self.path / "consumequeue"

    @property
    def batch_queue_path(self) -> Path:
        return self.path / "batchconsumequeue"

    @property
    def consume_queue_ext_path(self) -> Path:
        return self.path / "consumequeue_ext"

    @property
    def index_path(self) -> Path:
        return self.path / "index"

    @property
    def checkpoint_path(self) -> Path:
        return self.path / "checkpoint"

    @property
    def abort_path(self) -> Path:
        return self.path / "abort"

    @property
    def lock_path(self) -> Path:
        return self.path / "lock"

    @property
    def with_light_queues(self) -> bool:
        return self.enable_lmq and self.enable_multi_dispatch

    @property
    def is_sync_flush(self) -> bool:
        return self.flush_disk_type is FlushDiskType.SYNC_FLUSH

    @property
    def is_slave(self) -> bool:
        return self.broker_role is BrokerRole.SLAVE

    @property
    def is_sync_master(self) -> bool:
        return self.broker_role is BrokerRole.SYNC_MASTER

    @property
    def waits_for_slaves(self) -> bool:
        """Whether messages are acknowledged when slaves have them."""
        return self.is_sync_master and self.in_sync_replicas > 1

    @property
    def uses_write_buffer_pool(self) -> bool:
        """RocketMQ 5.x: whatever the flush type, but not on a slave."""
        return self.transient_store_pool_enable and not self.is_slave

    @property
    def pre_writes_commit_log(self) -> bool:
        return self.pre_write_commit_log == "on" or (self.pre_write_commit_log == "auto" and self.is_sync_flush)

    def _check(self) -> None:
        if self.store_type != "default":
            raise StoreConfigError("storeType", self.store_type, _NO_ROCKSDB)
        if self.max_message_size < _MESSAGE_BYTES_MIN:
            raise StoreConfigError("maxMessageSize", self.max_message_size, f"at least {_MESSAGE_BYTES_MIN}")
        if self.pre_write_commit_log not in ("on", "off", "auto"):
            raise StoreConfigError("preWriteCommitLog", self.pre_write_commit_log, "on, off or auto")
        if self.check_crc_on_read not in ("off", "cold", "all"):
            raise StoreConfigError("checkCrcOnRead", self.check_crc_on_read, "cold, all or off")
        for name, kind in _field_types().items():
            value = getattr(self, name)
            if kind == "int" and (remedy := refusal(name, value)):
                raise StoreConfigError(rocketmq_key(name), value, remedy)
        if self.min_in_sync_replicas > self.in_sync_replicas:
            remedy = f"at most inSyncReplicas, which is {self.in_sync_replicas}"
            raise StoreConfigError("minInSyncReplicas", self.min_in_sync_replicas, remedy)
        self._check_addresses()
        DelayLevels(self.message_delay_level)  # refuses what it cannot read
        for name in ("delete_when", "timer_check_metrics_when"):
            hours = getattr(self, name).split(";")
            if not all(_HOUR.fullmatch(hour.strip()) for hour in hours):
                raise StoreConfigError(rocketmq_key(name), ";".join(hours), "hours from 00 to 23, with ; between them")

    def _check_addresses(self) -> None:
        if self.ha_master_address:
            try:
                check_dialled(self.ha_master_address)
            except ValueError as exc:
                remedy = f"{exc}; give host:port of the master's HA port, or nothing: then the NameServers name it"
                raise StoreConfigError("haMasterAddress", self.ha_master_address, remedy) from None
        try:
            encode_address(self.store_host_address)
        except (MessageError, ValueError) as exc:
            remedy = f"an IP address and a port, such as 10.0.0.1:10911: {exc}"
            raise StoreConfigError("storeHostAddress", self.store_host_address, remedy) from None


def hours_of(text: str) -> frozenset[int]:
    """Hours of the day as settings name them: "04", "04;16"."""
    return frozenset(int(part) for part in text.split(";") if part.strip())


def read_properties(path: Path) -> dict[str, str]:
    """A Java properties file, as far as RocketMQ's use them: key=value, comments, no line continuation."""
    texts: dict[str, str] = {}
    for line in path.read_text("utf-8").splitlines():
        stripped = line.strip()
        if not stripped or stripped[0] in "#!":
            continue
        key, _, value = stripped.partition("=")
        texts[key.strip()] = value.strip()
    return texts


def rocketmq_key(name: str) -> str:
    """`mapped_file_size_commit_log` -> `mappedFileSizeCommitLog`."""
    if name in _ODD_KEYS:
        return _ODD_KEYS[name]
    return re.sub(r"_([a-z0-9])", lambda match: match.group(1).upper(), name)


def _field_types() -> dict[str, str]:
    return {field.name: str(field.type) for field in dataclasses.fields(_Settings)}


def _converted(name: str, value: object, kind: str) -> object:
    """A Python value or RocketMQ's text as the field's type; an unusable one names the key."""
    key = rocketmq_key(name)
    if kind == "FlushDiskType":
        return _member(FlushDiskType, key, value)
    if kind == "BrokerRole":
        return _member(BrokerRole, key, value)
    if kind == "bool":
        text = str(value).lower()
        if text not in ("true", "false"):
            raise StoreConfigError(key, value, "true or false")
        return text == "true"
    try:
        if kind == "int":
            return int(str(value))
        if kind == "float":
            return float(str(value))
    except ValueError:
        raise StoreConfigError(key, value, _number_wanted(name, str(value), kind)) from None
    return str(value)


_NO_ROCKSDB: Final = (
    "there is no RocksDB here, stores are files ('default'): remove the key; what a RocksDB directory holds is not read"
)


def _number_wanted(name: str, text: str, kind: str) -> str:
    """What to write instead; ratios of the disk are percentages in RocketMQ's files."""
    if kind == "float":
        return "a number is needed"
    with contextlib.suppress(ValueError):
        if name.endswith("_ratio") and 0 < float(text) <= 1:
            return f"a whole number of percent is needed: {round(float(text) * 100)}"
    return "a whole number is needed"


def _member(kind: type[_Enum], key: str, value: object) -> _Enum:
    try:
        return kind(str(value))
    except ValueError:
        raise StoreConfigError(key, value, "one of " + ", ".join(kind)) from None


def _rounded_up(size_bytes: int, unit_bytes: int) -> int:
    return -(-size_bytes // unit_bytes) * unit_bytes


def size_below(files: Files, directory: Path, *, depth: int) -> int:
    """Size of the first non-empty file with a 20-digit name `depth` levels below; 0 when there is none."""
    for entry in files.list_directory(directory):
        if depth > 1:
            if not files.is_file(entry) and (size := size_below(files, entry, depth=depth - 1)):
                return size
        elif len(entry.name) == 20 and entry.name.isdigit() and files.is_file(entry) and (size := files.size(entry)):
            return size
    return 0


# How much a start reads to check what it finds. What lies beyond is compared when it is first read (or not: then the
# report says how many bytes were taken on trust). All of it is about a second of cold reads on a plain disk.


class StartBounds(NamedTuple):
    """Parameters for tests; nobody needs others."""

    queue_bytes: int = 1 << 30  # of queue files, compared with the ledger's checksums: 50 million messages
    index_bytes: int = 1 << 29  # of index files, likewise; the newest one in any case
    walk_bytes: int = 1 << 30  # of a log without a ledger, walked to compare all queues
    index_entries: int = 1 << 19  # of an index without a ledger, compared with that log: four seconds


START_BOUNDS: Final = StartBounds()


# ROOT/config/store.properties: settings of the store's broker without which its files cannot be judged.
#
# A consume queue holds the delivery time of each delayed message, which depends on `messageDelayLevel`; the log holds
# the level alone. So a broker leaves its levels here when they are not RocketMQ's, and `store inspect|verify|rebuild`
# take them from here unless they are given a broker.conf. RocketMQ does not know the file and passes over it.

RECORDED: Final = ("message_delay_level",)


def recorded_path(root: Path) -> Path:
    return root / "config" / "store.properties"


def recorded_settings(root: Path) -> dict[str, str]:
    """What the store's broker left, by our names; nothing where it left nothing."""
    path = recorded_path(root)
    try:
        texts = read_properties(path)
    except FileNotFoundError:
        texts = {}
    return {name: texts[rocketmq_key(name)] for name in RECORDED if rocketmq_key(name) in texts}


def settings_to_record(config: StoreConfig) -> str | None:
    """The text of the file, None when it is there already or all is as in RocketMQ and there is no file."""
    wanted = {name: str(getattr(config, name)) for name in RECORDED}
    known = recorded_settings(config.path)
    defaults = {name: str(getattr(StoreConfig(config.path), name)) for name in RECORDED}
    if wanted == known or (not known and wanted == defaults):
        return None
    return "".join(f"{rocketmq_key(name)}={value}\n" for name, value in wanted.items())
