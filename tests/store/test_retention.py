"""Cleaning: which files go, when, and what queues and index do then."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from contrailmq.message import Message
from contrailmq.store import Files, ManualClock, MessageStore, StoreConfig
from contrailmq.store.files import DiskUsage
from contrailmq.store.log.mapped_file_queue import MappedFileQueue
from contrailmq.store.upkeep.retention import Retention

HOUR_MS = 3_600_000
LOG_BYTES = 4096


class Disk(Files):
    """A disk that is as full as the test says."""

    used_percent = 10
    queues_used_percent: int | None = None  # where the queues lie on a partition of their own

    def disk_usage(self, path: Path) -> DiskUsage:
        used = self.used_percent
        if path.name == "consumequeue" and self.queues_used_percent is not None:
            used = self.queues_used_percent
        return DiskUsage(100, used, 100 - used)


class Scene:
    """A closed store's files under a Retention that the test drives by hand."""

    def __init__(self, root: Path, **settings: object) -> None:
        sizes = {
            "mapped_file_size_commit_log": LOG_BYTES,
            "mapped_file_size_consume_queue": 200,
            "max_hash_slot_num": 10,
            "max_index_num": 20,
        }
        with MessageStore(StoreConfig(root, **sizes)) as store:
            for number in range(100):
                store.put(Message("Orders", b"x" * 100, keys=[f"k{number}"]), queue_id=number % 2)
        self.files = Disk()
        self.clock = ManualClock(_at_hour(12))
        self.full: list[str | None] = []
        self.config = StoreConfig(root, **sizes, **settings)
        self.store = MessageStore(self.config).open()
        self.store.close()
        self.log = MappedFileQueue(self.files, self.clock, self.config.commit_log_paths, LOG_BYTES)
        self.log.load()
        self.count = len(self.log.files)
        parts = MessageStore(self.config)
        self.queues, self.index = parts._queues, parts._index
        self.queues.load()
        assert self.index is not None
        self.index.load()
        self.retention = Retention(
            self.config, self.files, self.clock, self.log, self.queues, self.index, on_disk_full=self.full.append
        )

    def close(self) -> None:
        assert self.index is not None
        for part in (self.log, self.queues, self.index):
            part.close()

    def age(self, hours: float, count: int) -> None:
        """Make the oldest files that old."""
        then = self.clock.now_ms() / 1000 - hours * 3600
        for number, file in enumerate(self.log.files):
            moment = then if number < count else self.clock.now_ms() / 1000
            os.utime(file.path, (moment, moment))

    def clean(self) -> int:
        return len(self.retention.clean().log_files)


def _at_hour(hour: int) -> int:
    return int(datetime(2026, 11, 15, hour, 30).timestamp() * 1000)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    scene.age(73, 2)
    yield scene
    scene.close()


def test_expired_files_go_in_the_hour_of_delete_when_only(scene: Scene) -> None:
    assert scene.clean() == 0
    scene.clock.set_wall(_at_hour(4))
    scene.age(73, 2)
    assert scene.clean() == 2
    assert scene.clean() == 0


def test_a_file_younger_than_the_reserved_time_stays(scene: Scene) -> None:
    scene.clock.set_wall(_at_hour(4))
    scene.age(71, 2)
    assert scene.clean() == 0


@pytest.mark.parametrize(
    ("used_percent", "removed", "full"),
    [(75, 0, False), (76, 2, False), (85, 2, False), (86, "all", False), (90, "all", False), (91, "all", True)],
)
def test_a_fuller_disk_takes_more_and_at_last_refuses_puts(
    used_percent: int, removed: int | str, full: bool, scene: Scene
) -> None:
    scene.files.used_percent = used_percent
    batch = min(10, scene.count - 1)
    assert scene.clean() == (batch if removed == "all" else removed)
    assert bool(scene.full) == full
    if full:
        assert scene.full[0] is not None
        assert "91%" in scene.full[0]
        scene.files.used_percent = 50
        scene.clean()
        assert scene.full[-1] is None


def test_without_permission_to_clean_forcibly_only_expired_files_go(tmp_path: Path) -> None:
    scene = Scene(tmp_path, clean_file_forcibly_enable=False)
    scene.age(73, 2)
    scene.files.used_percent = 95
    assert scene.clean() == 2


def test_a_round_removes_at_most_the_batch_and_never_the_last_file(tmp_path: Path) -> None:
    scene = Scene(tmp_path, delete_file_batch_max=3)
    scene.files.used_percent = 95
    removed = [scene.clean() for _ in range(10)]
    assert max(removed) == 3
    assert sum(removed) == scene.count - 1
    assert len(scene.log.files) == 1


def test_a_manual_order_lasts_twenty_rounds(scene: Scene) -> None:
    """In the first and in the twentieth round expired files go at any hour, in the next they stay."""
    scene.retention.delete_now()
    assert scene.clean() == 2
    for _ in range(18):
        assert scene.clean() == 0
    scene.age(73, 1)
    assert scene.clean() == 1
    scene.age(73, 1)
    assert scene.clean() == 0


@pytest.mark.parametrize(
    ("used_percent", "removed", "full"),
    [(75, 0, False), (76, 2, False), (85, 2, False), (86, "all", False), (90, "all", False), (91, "all", True)],
)
def test_the_partition_of_the_queues_counts_as_the_logs(
    used_percent: int, removed: int | str, full: bool, scene: Scene
) -> None:
    scene.files.queues_used_percent = used_percent
    assert scene.clean() == (min(10, scene.count - 1) if removed == "all" else removed)
    assert bool(scene.full) == full


@pytest.mark.parametrize(
    ("setting", "value", "limit", "effect"),
    [
        ("disk_max_used_space_ratio", 1, 10, "is_up"),  # its upper limit of 95 never counts: above 85 files go anyway
        ("disk_space_clean_forcibly_ratio", 1, 30, "at_once"),
        ("disk_space_clean_forcibly_ratio", 99, 85, "at_once"),
        ("disk_space_warning_level_ratio", 1, 35, "is_disk_full"),
        ("disk_space_warning_level_ratio", 99, 90, "is_disk_full"),
    ],
)
def test_the_percentages_are_kept_between_rocketmqs_limits(
    setting: str, value: int, limit: int, effect: str, tmp_path: Path
) -> None:
    """With a value outside of them nothing happens at the limit, and it does one percent above."""
    scene = Scene(tmp_path, **{setting: value})
    scene.files.used_percent = limit
    assert not getattr(scene.retention.space(), effect)
    scene.files.used_percent = limit + 1
    assert getattr(scene.retention.space(), effect)


def test_queues_and_index_follow_the_log(scene: Scene) -> None:
    scene.files.used_percent = 95
    report = scene.retention.clean()
    log_min = scene.log.min_offset
    assert report.queue_files > 0
    assert report.index_files > 0
    for queue in scene.queues:
        first = queue.unit_at(queue.min_offset)
        assert first is not None
        assert first.physical_offset >= log_min
        before = queue.read_units(queue.min_offset - 1, 1)
        assert not before or int.from_bytes(before[:8], "big") < log_min
    assert scene.index is not None
    assert scene.index.index_files[0].end_offset >= log_min


def test_rounds_come_after_a_minute_and_then_every_ten_seconds(scene: Scene) -> None:
    scene.clock.set_wall(_at_hour(4))
    scene.age(73, 2)
    scene.clock.advance(59_999)
    assert scene.retention.tick().is_empty
    scene.clock.advance(1)
    assert len(scene.retention.tick().log_files) == 2
    scene.age(73, 1)
    assert scene.retention.tick().is_empty
    scene.clock.advance(10_000)
    assert len(scene.retention.tick().log_files) == 1


def test_a_queue_whose_messages_are_all_gone_has_expired_but_no_system_topic(scene: Scene) -> None:
    for topic in ("Old", "rmq_sys_wheel_timer"):
        scene.queues.append(topic, 0, 0, 0, 100, 0, 1)
    scene.files.used_percent = 95
    scene.clean()
    assert scene.retention.expired_queues() == [("Old", 0)]


def test_the_self_check_names_a_gap(scene: Scene) -> None:
    assert scene.retention.self_check() == []
    files = scene.log.files
    scene.log.files = files[:1] + files[2:]
    (finding,) = scene.retention.self_check()
    assert f"from {LOG_BYTES} to {2 * LOG_BYTES}" in finding


def test_the_self_check_runs_every_ten_minutes(scene: Scene) -> None:
    files = scene.log.files
    scene.log.files = files[:1] + files[2:]
    scene.clock.advance(599_999)
    scene.retention.tick()
    assert scene.retention.findings == []
    scene.clock.advance(1)
    scene.retention.tick()
    assert len(scene.retention.findings) == 1
    scene.log.files = files
    scene.clock.advance(599_999)
    scene.retention.tick()
    assert len(scene.retention.findings) == 1
    scene.clock.advance(1)
    scene.retention.tick()
    assert scene.retention.findings == []


def test_a_file_that_was_in_use_is_tried_again_after_the_interval(scene: Scene) -> None:
    """Outside of the hour of deletion: nothing but the second round would take it up. It comes 120 s after the start
    and then every 120 s, in a round of the cleaner."""
    first = scene.log.files[0]
    assert first.hold()
    scene.retention.delete_now()
    assert scene.clean() == 0
    assert not first.is_available
    for _ in range(19):  # the manual order runs out
        scene.clean()
    first.release()
    scene.clock.advance(119_999)
    scene.retention.tick()
    assert scene.log.files[0] is first
    scene.clock.advance(10_001)
    scene.retention.tick()
    assert scene.log.files[0] is not first
    assert not first.path.exists()
