"""The wheel, the timer log and the checkpoint against the bytes that Apache's broker wrote, and on their own."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

import golden_stores
from contrailmq.store import Files
from contrailmq.store.base.errors import CorruptStoreError
from contrailmq.store.timer import (
    Slot,
    TimerCheckpoint,
    TimerLog,
    TimerMagic,
    TimerUnit,
    TimerWheel,
    TopicCounts,
    decode_checkpoint,
    encode_checkpoint,
)

PRECISION_MS = 1000
NOW_MS = 1_794_710_242_000


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return golden_stores.unpack("clean", tmp_path_factory.mktemp("golden"))


def small_wheel(tmp_path: Path, slots_total: int = 600) -> TimerWheel:
    wheel = TimerWheel(Files(), tmp_path / "timerwheel", precision_ms=PRECISION_MS, slots_total=slots_total)
    wheel.open()
    return wheel


def small_log(tmp_path: Path, file_bytes: int = 1040) -> TimerLog:
    log = TimerLog(Files(), tmp_path / "timerlog", file_bytes=file_bytes)
    log.open()
    return log


def unit(previous: int = -1, *, physical_offset: int = 100, delay_ms: int = 5000) -> TimerUnit:
    return TimerUnit(previous, TimerMagic.DEFAULT, NOW_MS, delay_ms, physical_offset, 342, -143292516)


# ------------------------------------------------------------------------------------------------------ Apache's bytes


def test_every_slot_of_apaches_wheel_reads_as_apache_reads_it(golden: Path) -> None:
    wheel = TimerWheel(Files(), golden / "timerwheel", precision_ms=PRECISION_MS)
    wheel.open()
    wanted = golden_stores.expected("clean")["timerSlots"]
    for slot in wanted:
        assert wheel.index(slot["askedTimeMs"]) == slot["slotIndex"]
        assert wheel.get(slot["askedTimeMs"]) == Slot(
            slot["timeMs"], slot["firstPos"], slot["lastPos"], slot["num"], slot["magic"]
        )
    times = sorted(slot["timeMs"] for slot in wanted)
    assert [slot.time_ms for slot in wheel.occupied(times[0], times[-1] + 1000)] == times
    assert sorted(slot.time_ms for slot in wheel.all_slots()) == times
    wheel.close()


def test_every_unit_of_apaches_timer_log_reads_as_apache_reads_it(golden: Path) -> None:
    log = TimerLog(Files(), golden / "timerlog", file_bytes=1040)
    log.open()
    position = log.begin
    for wanted in golden_stores.expected("clean")["timerLog"]:
        if wanted["size"] != 52 or wanted["magic"] < 0:
            continue  # unwritten space, or the blank
        assert position == wanted["position"]
        found = log.read(position)
        assert found == TimerUnit(
            wanted["prevPos"],
            wanted["magic"],
            wanted["currWriteTimeMs"],
            wanted["delayMs"],
            wanted["offsetPy"],
            wanted["sizePy"],
            wanted["hashCodeOfRealTopic"],
        )
        position = log.next_position(position)
    assert position == golden_stores.expected("clean")["timerCheckpoint"]["lastTimerLogFlushPos"]
    assert log.read(position) is None
    log.close()


def test_writing_apaches_units_and_slots_again_gives_apaches_bytes(golden: Path, tmp_path: Path) -> None:
    source = TimerLog(Files(), golden / "timerlog", file_bytes=1040)
    source.open()
    log = small_log(tmp_path)
    wheel = TimerWheel(Files(), tmp_path / "timerwheel", precision_ms=PRECISION_MS)
    wheel.open()
    position = 0
    while found := source.read(position):
        assert wheel.get(found.slot_time_ms).last_position == found.previous
        assert log.append(found) == position
        wheel.add(found.slot_time_ms, position, change=-1 if found.is_delete else 1)
        position = source.next_position(position)
    log.write()
    changes = wheel.take_changes()
    wheel.write_slots(changes)
    wheel.forget(changes)
    assert wheel.changed_count == 0
    for path in sorted((golden / "timerlog").iterdir()):
        assert (tmp_path / "timerlog" / path.name).read_bytes() == path.read_bytes()
    assert (tmp_path / "timerwheel").read_bytes() == (golden / "timerwheel").read_bytes()


@pytest.mark.parametrize("name", ["clean", "kill9", "kill9-recovered"])
def test_apaches_checkpoint_reads_and_writes_back_the_same(name: str, tmp_path: Path) -> None:
    data = (golden_stores.unpack(name, tmp_path) / "config" / "timercheck").read_bytes()
    found = decode_checkpoint(data)
    wanted = golden_stores.expected(name)["timerCheckpoint"]
    assert found[:4] == (
        wanted["lastReadTimeMs"],
        wanted["lastTimerLogFlushPos"],
        wanted["lastTimerQueueOffset"],
        wanted["masterTimerQueueOffset"],
    )
    assert encode_checkpoint(found) == data


def test_apaches_metrics_read_and_write_back_the_same(golden: Path) -> None:
    text = (golden / "config" / "timermetrics").read_text()
    metrics = TopicCounts("timingCount")
    metrics.read_json(text)
    assert metrics.counts == {"GoldenTimer": 26}
    assert metrics.to_json() == text


# --------------------------------------------------------------------------------------------------------- the wheel


def test_a_slot_of_another_lap_is_empty(tmp_path: Path) -> None:
    wheel = small_wheel(tmp_path)
    wheel.add(NOW_MS, 52, change=1)
    assert wheel.get(NOW_MS + wheel.span_ms).is_empty
    assert wheel.get(NOW_MS) == Slot(NOW_MS, 52, 52, 1)


def test_changes_reach_the_file_only_with_the_flush(tmp_path: Path) -> None:
    wheel = small_wheel(tmp_path)
    wheel.add(NOW_MS, 52, change=1)
    assert not any((tmp_path / "timerwheel").read_bytes())
    changes = wheel.take_changes()
    wheel.add(NOW_MS, 104, change=1)  # while the flush runs elsewhere
    wheel.write_slots(changes)
    wheel.forget(changes)
    assert wheel.get(NOW_MS) == Slot(NOW_MS, 52, 104, 2)
    reader = small_wheel(tmp_path)
    assert reader.get(NOW_MS) == Slot(NOW_MS, 52, 52, 1)


def test_a_walk_over_the_wheel_finds_every_slot_once_and_in_order(tmp_path: Path) -> None:
    """Random slots, half of them flushed, over the wrap of the file."""
    random_source = random.Random(20)
    wheel = small_wheel(tmp_path)
    times = sorted(random_source.sample(range(NOW_MS, NOW_MS + wheel.span_ms, 1000), 100))
    for number, time_ms in enumerate(times):
        wheel.add(time_ms, number * 52, change=1)
        if number == 50:
            changes = wheel.take_changes()
            wheel.write_slots(changes)
            wheel.forget(changes)
    assert [slot.time_ms for slot in wheel.occupied(NOW_MS, NOW_MS + 3 * wheel.span_ms)] == times
    assert [slot.time_ms for slot in wheel.occupied(times[10], times[20])] == times[10:20]
    assert sorted(slot.time_ms for slot in wheel.all_slots()) == times


def test_a_closed_slot_has_no_timers_until_a_new_one_comes(tmp_path: Path) -> None:
    wheel = small_wheel(tmp_path)
    wheel.add(NOW_MS, 52, change=1)
    wheel.shut(wheel.get(NOW_MS))
    assert wheel.get(NOW_MS).is_closed
    assert list(wheel.occupied(NOW_MS, NOW_MS + 1000)) == []
    wheel.add(NOW_MS, 104, change=1)
    assert wheel.get(NOW_MS) == Slot(NOW_MS, 104, 104, 1)


def test_a_wheel_of_another_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "timerwheel").write_bytes(bytes(3200))
    with pytest.raises(CorruptStoreError, match="3200 bytes, 38400 are expected"):
        small_wheel(tmp_path)


# ----------------------------------------------------------------------------------------------------- the timer log


def test_units_read_back_before_and_after_they_are_written(tmp_path: Path) -> None:
    log = small_log(tmp_path)
    positions = []
    for number in range(100):
        positions.append(log.append(unit(physical_offset=number)))
        if number % 7 == 0:
            log.write()
        for position, wanted in zip(reversed(positions), range(number, -1, -1), strict=False):
            found = log.read(position)
            assert found is not None
            assert found.physical_offset == wanted
    assert positions == [number // 19 * 1040 + number % 19 * 52 for number in range(100)]


def test_cutting_the_log_leaves_zeros_and_later_units_follow_the_cut(tmp_path: Path) -> None:
    log = small_log(tmp_path)
    positions = [log.append(unit(physical_offset=number)) for number in range(50)]
    log.write()
    log.seek_end(positions[25])
    assert log.bases == [0, 1040]
    assert log.read(positions[25]) is None
    assert log.append(unit(physical_offset=777)) == positions[25]
    log.write()
    log.close()
    again = small_log(tmp_path)
    kept = again.read(positions[25])
    assert kept is not None
    assert kept.physical_offset == 777
    assert again.read(positions[26]) is None


def test_a_log_file_goes_when_all_its_messages_are_gone_from_the_commit_log(tmp_path: Path) -> None:
    log = small_log(tmp_path)
    for number in range(50):
        log.append(unit(physical_offset=number))
    log.write()
    assert log.delete_before(18) == 0
    assert log.delete_before(19) == 1
    assert log.begin == 1040
    assert log.delete_before(1000) == 1  # the last file stays
    log.close()
    assert small_log(tmp_path).bases == [2080]


def test_damaged_bytes_are_no_unit(tmp_path: Path) -> None:
    log = small_log(tmp_path)
    log.append(unit())
    log.write()
    path = tmp_path / "timerlog" / f"{0:020d}"
    data = path.read_bytes()
    for position, value in ((3, 51), (15, 0), (15, 16), (14, 1), (28, 0x80), (36, 0x80)):
        damaged = bytearray(data)
        damaged[position] = value
        path.write_bytes(damaged)
        log.close()
        log = small_log(tmp_path)
        assert log.read(0) is None, position


def test_a_missing_or_foreign_log_file_is_named(tmp_path: Path) -> None:
    log = small_log(tmp_path)
    for number in range(50):
        log.append(unit(physical_offset=number))
    log.write()
    log.close()
    shutil.copy(tmp_path / "timerlog" / f"{0:020d}", tmp_path / "timerlog" / "notes")
    with pytest.raises(CorruptStoreError, match="notes.*20 digits"):
        small_log(tmp_path)
    (tmp_path / "timerlog" / "notes").unlink()
    with pytest.raises(CorruptStoreError, match="mappedFileSizeTimerLog says 2080"):
        small_log(tmp_path, 2080)
    (tmp_path / "timerlog" / f"{1040:020d}").unlink()
    with pytest.raises(CorruptStoreError, match="missing between 0 and 2080"):
        small_log(tmp_path)


# -------------------------------------------------------------------------------------------- checkpoint and metrics


def test_a_short_checkpoint_counts_as_never_written() -> None:
    assert decode_checkpoint(b"") == TimerCheckpoint()
    assert decode_checkpoint(bytes(40)) == TimerCheckpoint()


def test_metrics_count_per_topic_and_fall_back_to_the_copy(tmp_path: Path) -> None:
    metrics = TopicCounts("timingCount")
    metrics.add("Orders", 1, 10)
    metrics.add("Orders", 1, 20)
    metrics.add("Bills", -1, 30)
    assert metrics.counts == {"Orders": 2, "Bills": 0}
    path = tmp_path / "timermetrics"
    path.write_text("{")
    path.with_name("timermetrics.bak").write_text(metrics.to_json())
    again = TopicCounts("timingCount")
    assert again.load(path)
    assert again.counts == metrics.counts
    assert json.loads(again.to_json())["dataVersion"]["counter"] == 3
    again.replace({"Bills": 4}, 40)
    assert again.counts == {"Orders": 0, "Bills": 4}
