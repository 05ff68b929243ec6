"""Cleaning: old log files go, and queues and index follow. RocketMQ's rules (CleanCommitLogService and its kin).

Consumption does not matter. When a log file goes, each queue raises its minimum, and queue and index files that point
only at deleted messages go too.

    when                                what goes
    the hour is in deleteWhen           files not modified for fileReservedTime hours
    used > diskMaxUsedSpaceRatio        the same, at any hour
    used > clean-forcibly ratio         the oldest files, whatever their age (cleanFileForciblyEnable)
    used > warning ratio                the same, and puts are refused until there is room
    manual (`delete_now`)               expired files, for the next 20 rounds

Ratios are of the partitions of log and queues. A round (`tick`, on the housekeeping thread, first after 60 s and then
every cleanResourceInterval) removes at most deleteFileBatchMax log files and never the last one. A file that a reader
holds is tried again every redeleteHangedFileInterval.

A clock that was set forward makes every file look old. So for an hour after such a jump, and after a start that finds
the newest record over a day old, files expire as if the clock had not gone forward. Only a disk above the
clean-forcibly ratio still takes them. The warning in the log gives operators that hour to correct the clock.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol

from contrailmq._faults import LastingFault
from contrailmq.message import is_system_topic
from contrailmq.store.base.clock import Clock
from contrailmq.store.base.errors import CorruptStoreError
from contrailmq.store.config import StoreConfig, hours_of
from contrailmq.store.files import Files
from contrailmq.store.index.index_service import IndexService
from contrailmq.store.queues.consume_queue_table import ConsumeQueueTable

_log = logging.getLogger(__name__)

FIRST_ROUND_MS: Final = 60_000
MANUAL_ROUNDS: Final = 20  # DefaultMessageStore.executeDeleteFilesManually
SELF_CHECK_MS: Final = 600_000
_HOUR_MS: Final = 3_600_000
_MAX_USED_LIMITS: Final = (10, 95)  # RocketMQ clamps the three percentages to these
_WARNING_LIMITS: Final = (35, 90)
_FORCIBLY_LIMITS: Final = (30, 85)


def _no_doubt() -> int:
    return 0


class CleanableLog(Protocol):
    """The commit log as cleaning needs it; MappedFileQueue is one."""

    @property
    def min_offset(self) -> int: ...
    @property
    def files(self) -> Sequence[SizedFile]: ...
    def delete_expired(
        self, *, reserved_ms: int, force_after_ms: int, count_max: int, at_once: bool = False
    ) -> list[Path]: ...
    def retry_first(self, *, force_after_ms: int) -> bool: ...


class SizedFile(Protocol):
    @property
    def base(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class SpaceVerdict:
    """What the space test says: `is_up` means that files have to go, `at_once` whatever their age."""

    is_up: bool
    at_once: bool
    is_disk_full: bool | None  # None: leave the flag as it is
    used_ratio: float


@dataclass(frozen=True, slots=True)
class CleaningReport:
    """What one round removed."""

    log_files: tuple[Path, ...] = ()
    queue_files: int = 0
    index_files: int = 0

    @property
    def is_empty(self) -> bool:
        return not (self.log_files or self.queue_files or self.index_files)


class Retention:
    """State of cleaning. One thread ticks; `delete_now` may be called from any."""

    def __init__(
        self,
        config: StoreConfig,
        files: Files,
        clock: Clock,
        log: CleanableLog,
        queues: ConsumeQueueTable,
        index: IndexService | None,
        doubted_ms: Callable[[], int] = _no_doubt,
        *,
        on_disk_full: Callable[[str | None], None],
    ) -> None:
        """`on_disk_full` gets a reason when puts must be refused, None when there is room again.

        `doubted_ms` tells by how much the wall clock went forward lately (see store_clock.py).
        """
        self._config = config
        self._files = files
        self._clock = clock
        self._log = log
        self._queues = queues
        self._index = index
        self._on_disk_full = on_disk_full
        self._doubted_ms = doubted_ms
        now_ms = clock.monotonic_ms()
        self._due_ms = now_ms + FIRST_ROUND_MS
        self._check_due_ms = now_ms + SELF_CHECK_MS
        self._retry_due_ms = now_ms + config.redelete_hanged_file_interval
        self._manual_rounds = 0
        self._crowded = LastingFault(
            _log, "the disk is crowded, and no log file may be deleted yet", level=logging.WARNING
        )
        self._queues_cleaned_to = -1
        self._is_disk_full = False
        self.findings: list[str] = []  # of the newest self-check

    def delete_now(self) -> None:
        """Delete expired files in the next rounds, at whatever hour."""
        self._manual_rounds = MANUAL_ROUNDS

    def tick(self) -> CleaningReport:
        """One round if it is due, else nothing."""
        now_ms = self._clock.monotonic_ms()
        if now_ms >= self._check_due_ms:
            self._check_due_ms = now_ms + SELF_CHECK_MS
            self.findings = self.self_check()
        if now_ms < self._due_ms:
            return CleaningReport()
        self._due_ms = now_ms + self._config.clean_resource_interval
        return self.clean()

    def clean(self) -> CleaningReport:
        """One round now."""
        log_files = self._clean_log()
        queue_files, index_files = self._clean_queues_and_index()
        report = CleaningReport(tuple(log_files), queue_files, index_files)
        if not report.is_empty:
            _log.info("cleaned: %s", report)
        return report

    def space(self) -> SpaceVerdict:
        """The space test, in RocketMQ's order: the log's partitions first, then the queues'."""
        config = self._config
        warning = _clamped(config.disk_space_warning_level_ratio, _WARNING_LIMITS)
        forcibly = _clamped(config.disk_space_clean_forcibly_ratio, _FORCIBLY_LIMITS)
        usual = _clamped(config.disk_max_used_space_ratio, _MAX_USED_LIMITS)
        # Several log paths: the emptiest counts, because new files can go there.
        log_ratio = min(self._files.disk_usage(path).used_ratio for path in config.commit_log_paths)
        queue_ratio = self._files.disk_usage(config.consume_queue_path).used_ratio
        for ratio in (log_ratio, queue_ratio):
            if ratio > warning:
                return SpaceVerdict(True, True, True, ratio)
            if ratio > forcibly:
                return SpaceVerdict(True, True, None, ratio)
        highest = max(log_ratio, queue_ratio)
        is_up = min(log_ratio, queue_ratio) < 0 or highest > usual
        return SpaceVerdict(is_up, False, False, highest)

    def expired_queues(self) -> list[tuple[str, int]]:
        """Those whose last message is gone from the log (cleanExpiredConsumerQueue); system topics stay."""
        log_min = self._log.min_offset
        return [
            (queue.topic, queue.queue_id)
            for queue in (*self._queues, *self._queues.batches)
            if not is_system_topic(queue.topic) and 0 <= queue.physical_max <= log_min
        ]

    def self_check(self) -> list[str]:
        """Do the log's files follow each other? A gap is reported, never mended: only a backup has what is missing."""
        findings = []
        files = list(self._log.files)
        for before, after in itertools.pairwise(files):
            end = before.base + before.size_bytes
            if after.base != end:
                findings.append(f"the log has a gap from {end} to {after.base}: restore the missing file")
        for finding in findings:
            _log.error("self check: %s", finding)
        return findings

    # --- parts of a round

    def _clean_log(self) -> list[Path]:
        config = self._config
        now_ms = self._clock.monotonic_ms()
        verdict = self.space()
        self._tell_disk_full(verdict)
        is_manual = self._manual_rounds > 0
        removed: list[Path] = []
        if self._is_time_up() or verdict.is_up or is_manual:
            if is_manual:
                self._manual_rounds -= 1
            removed = self._log.delete_expired(
                reserved_ms=config.file_reserved_time * _HOUR_MS + self._doubted_ms(),
                force_after_ms=config.destroy_maped_file_interval_forcibly,
                count_max=config.delete_file_batch_max,
                at_once=config.clean_file_forcibly_enable and verdict.at_once,
            )
            if verdict.is_up and not removed:
                self._crowded.goes_on(f"it is used to {verdict.used_ratio:.0%}")
        if removed or not verdict.is_up:
            self._crowded.is_over()
        if now_ms >= self._retry_due_ms:
            self._retry_due_ms = now_ms + config.redelete_hanged_file_interval
            self._log.retry_first(force_after_ms=config.destroy_maped_file_interval_forcibly)
        return removed

    def _clean_queues_and_index(self) -> tuple[int, int]:
        """Only when the log's minimum has moved since the last round."""
        log_min = self._log.min_offset
        if log_min <= self._queues_cleaned_to:
            return 0, 0
        queue_files = 0
        for queue in self._queues:
            try:
                queue_files += queue.delete_files_below(log_min)
                queue.correct_min_offset(log_min)
                queue_files += self._queues.clean_extension(queue)
            except CorruptStoreError:  # it said so where it was found; the next start makes the queue again
                continue
        queue_files += self._queues.batches.clean(log_min)
        index_files = self._index.delete_below(log_min) if self._index is not None else 0
        self._queues_cleaned_to = log_min
        return queue_files, index_files

    def _is_time_up(self) -> bool:
        """Local time, as an operator reads deleteWhen; true for the whole hour."""
        return datetime.fromtimestamp(self._clock.now_ms() / 1000).hour in hours_of(self._config.delete_when)

    def _tell_disk_full(self, verdict: SpaceVerdict) -> None:
        if verdict.is_disk_full is None or verdict.is_disk_full == self._is_disk_full:
            return
        self._is_disk_full = verdict.is_disk_full
        limit = _clamped(self._config.disk_space_warning_level_ratio, _WARNING_LIMITS)
        reason = (
            f"the disk under {self._config.path} is used to {verdict.used_ratio:.0%}, above {limit:.0%}: "
            "free space or lower fileReservedTime"
        )
        self._on_disk_full(reason if self._is_disk_full else None)


def _clamped(percent: int, limits: tuple[int, int]) -> float:
    return min(max(percent, limits[0]), limits[1]) / 100
