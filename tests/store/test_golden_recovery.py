"""Stores that Apache RocketMQ 5.5.0 wrote, opened by our recovery: every offset, unit and answer is Apache's."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from plain_store import GOLDEN, GOLDEN_STORES, PlainStore, queue_files, reopened, unpack_golden

from contrailmq.store import Boundary

CRASHED = [name for name in GOLDEN_STORES if "torn" in name or name.endswith(("kill9", "kill9-lag"))]
CLEAN = [name for name in GOLDEN_STORES if name not in CRASHED]


def expected_of(name: str) -> dict[str, Any]:
    loaded: dict[str, Any] = json.loads((GOLDEN / f"{name}.expected.json").read_text())
    return loaded


@pytest.fixture(params=GOLDEN_STORES)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[PlainStore, dict[str, Any]]]:
    name: str = request.param
    store = PlainStore(unpack_golden(name, tmp_path))
    yield store, expected_of(name)
    store.close()


def check_answers(store: PlainStore, expected: dict[str, Any]) -> None:
    assert store.recovery.physical_offset_min == expected["minPhyOffset"]
    assert store.recovery.physical_offset_max == expected["maxPhyOffset"]
    assert store.ranges() == {
        (queue["topic"], queue["queueId"]): (queue["minOffset"], queue["maxOffset"]) for queue in expected["queues"]
    }
    units = store.units()
    for message in expected["messages"]:
        place = units[message["topic"], message["queueId"]][message["queueOffset"]]
        assert place[:2] == (message["commitLogOffset"], message["storeSize"])
    for asked in expected["offsetByTime"]:
        queue = store.queues.get(asked["topic"], asked["queueId"])
        assert queue is not None
        find = queue.offset_at
        assert find(asked["timestamp"], store.log.store_time_of) == asked["offset"]
        assert find(asked["timestamp"], store.log.store_time_of, Boundary.LOWER) == asked["lower"]
        assert find(asked["timestamp"], store.log.store_time_of, Boundary.UPPER) == asked["upper"]
    for asked in expected["queryByKey"]:
        found = store.index.query(asked["topic"], asked["key"], asked["maxNum"], asked["begin"], asked["end"])
        assert found == asked["commitLogOffsets"][::-1], asked  # newest first; Java sorts what it shows


def test_every_offset_unit_time_query_and_key_query_is_apaches(golden: tuple[PlainStore, dict[str, Any]]) -> None:
    check_answers(*golden)


def test_the_answers_are_the_same_after_closing_and_opening_again(tmp_path: Path) -> None:
    for name in CRASHED:
        store = reopened(unpack_golden(name, tmp_path / name))
        check_answers(store, expected_of(name))
        assert store.recovery.was_clean_exit
        assert not store.recovery.found_damage
        assert store.recovery.units_added == store.recovery.index_entries_added == 0
        store.close()


@pytest.mark.parametrize("name", CLEAN)
def test_opening_a_clean_store_finds_nothing_to_mend(name: str, tmp_path: Path) -> None:
    root = unpack_golden(name, tmp_path)
    before = queue_files(root)
    store = PlainStore(root)
    assert not store.recovery.found_damage
    assert (store.recovery.units_added, store.recovery.units_cut, store.recovery.cut_files) == (0, 0, 0)
    store.close()
    assert queue_files(root) == before


@pytest.mark.parametrize("name", CLEAN)
def test_queues_rebuilt_from_the_log_are_byte_identical_to_apaches(name: str, tmp_path: Path) -> None:
    root = unpack_golden(name, tmp_path)
    before = queue_files(root)
    shutil.rmtree(root / "consumequeue")
    shutil.rmtree(root / "index")
    sizes = expected_of(name)["config"]
    store = PlainStore(
        root,
        mapped_file_size_consume_queue=sizes["mappedFileSizeConsumeQueue"],
        max_hash_slot_num=sizes["maxHashSlotNum"],
        max_index_num=sizes["maxIndexNum"],
    )
    assert store.recovery.units_added == sum(maximum for _, maximum in store.ranges().values())
    check_answers(store, expected_of(name))
    store.close()
    assert queue_files(root) == before


@pytest.mark.parametrize("name", ["store-5.5.0-kill9", "store-5.5.0-kill9-lag"])
def test_queues_after_a_kill_are_byte_identical_to_those_that_apache_recovered(name: str, tmp_path: Path) -> None:
    recovered = unpack_golden("store-5.5.0-kill9-recovered", tmp_path / "recovered")
    root = unpack_golden(name, tmp_path / "killed")
    PlainStore(root).close()
    assert queue_files(root) == queue_files(recovered)


def test_the_report_says_what_was_cut_and_why(tmp_path: Path) -> None:
    reports = {name: PlainStore(unpack_golden(name, tmp_path / name)).recovery for name in CRASHED}
    assert all(not report.was_clean_exit for report in reports.values())
    torn = reports["store-5.5.0-torn"]
    assert (torn.physical_offset_max, torn.cut_bytes) == (610021, 562)
    assert "body checksum differs" in torn.reason
    half = reports["store-5.5.0-torn-half"]
    assert half.cut_bytes == 281  # the other half was zeroed
    middle = reports["store-5.5.0-torn-mid"]
    assert (middle.physical_offset_max, middle.cut_bytes) == (606629, 610583 - 606629)
    assert middle.units_cut == 5  # of the nine records cut, five had reached their queues
    lag = reports["store-5.5.0-kill9-lag"]
    assert lag.units_added == 746
    assert lag.reason == ""
