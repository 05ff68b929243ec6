"""Units of a time are found by bisecting their queue: the rows are those of a plain filter, whatever the clock did."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contrailmq.spark.decoding import unit_scan
from contrailmq.spark.decoding.decode import Selection
from contrailmq.spark.decoding.log_plan import LogSettings, plan_parts, read_records
from contrailmq.spark.decoding.scan import Range
from contrailmq.spark.decoding.store_files import confirmed_end
from contrailmq.spark.decoding.unit_places import FAR_MS, Places, of_time
from how_many import examples
from spark.test_pruning import FILE_BYTES, START_MS, IndexShape, Put, Record, make_store, rows, write_log

STEPS_MS = [0, 0, 1, 1000, 60_000, -1, -1000, -60_000, -3_600_000]


def places_of(put: list[Put], sizes: list[int]) -> Places:
    """The units of the messages of one queue, as a broker writes them."""
    place = np.array([one.place for one in put], dtype=np.int64)
    queue_offset = np.array([one.queue_offset for one in put], dtype=np.int64)
    size = np.array(sizes, dtype=np.int64)
    return Places(place, size, queue_offset, np.zeros_like(place), np.ones(len(put), dtype=np.bool_))


@settings(max_examples=examples(500), deadline=None)
@given(
    st.lists(st.sampled_from(STEPS_MS), min_size=1, max_size=25),
    st.dictionaries(st.integers(0, 24), st.sampled_from(["place", "size", "offset", "beyond", "record"]), max_size=3),
    st.lists(st.integers(0, 24), max_size=5),
    st.integers(0, 24),
    st.sampled_from([None, 0, 1, 1000, 3_600_000]),
)
def test_units_of_a_time_are_those_of_a_filter_and_those_that_nobody_can_tell(
    steps: list[int], harms: dict[int, str], unwanted: list[int], first: int, length_ms: int | None
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        put = write_log(Path(folder), [Record("T", 0, [("a", None)], step, 50) for step in steps])
        (path,) = Path(folder, "commitlog").iterdir()
        octets = bytearray(path.read_bytes())
    places = [one.place for one in put]
    # The last record is followed by the file's filler; its size is in its head.
    sizes = [int.from_bytes(octets[place : place + 4], "big") for place in places]
    queue = places_of(put, sizes)
    told = np.ones(len(put), dtype=np.bool_)
    for row, harm in ((row, harm) for row, harm in harms.items() if row < len(put)):
        told[row] = False
        if harm == "place":
            queue.physical_offset[row] += 1
        elif harm == "size":
            queue.size[row] -= 1
        elif harm == "offset":
            queue.queue_offset[row] += 7
        elif harm == "beyond":
            queue.physical_offset[row] = FILE_BYTES + 5
        else:
            octets[places[row] + 4 : places[row] + 8] = bytes(4)  # the magic
            octets[places[row] + 28] ^= 1  # the place that it states
    queue.is_wanted[[row % len(put) for row in unwanted]] = False
    begin_ms = put[first % len(put)].time_ms
    end_ms = FAR_MS if length_ms is None else begin_ms + length_ms
    part = Range("", 0, 0, FILE_BYTES, FILE_BYTES, is_aligned=True)
    found = of_time(np.frombuffer(octets, dtype=np.uint8), part, queue, begin_ms=begin_ms, end_ms=end_ms)
    is_of_time = np.array([begin_ms <= one.time_ms < end_ms for one in put])
    # What the search took for the range is read, and filtered row by row; what it left out is of another time for sure.
    must = queue.is_wanted & (is_of_time | ~told)
    assert (found.is_wanted | ~must).all()
    assert (queue.is_wanted | ~found.is_wanted).all()
    if told.all() and sorted(one.time_ms for one in put) == [one.time_ms for one in put]:
        assert (found.is_wanted == must).all()


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[Put]]:
    """1,200 messages, one a second, of two topics with two queues each; at 600 the clock is set back by 100 seconds."""
    root = tmp_path_factory.mktemp("times")
    given_records = [
        Record("TU"[number // 2 % 2], number % 2, [("a", None)], -100_000 if number == 600 else 1000, 50)
        for number in range(1200)
    ]
    return str(root), make_store(root, given_records, IndexShape(50, 2000))


def records_read(store: str, selection: Selection) -> int:
    chosen = LogSettings(selection=selection)
    parts = plan_parts(store, 0, confirmed_end(store), chosen)
    return sum(len(records) for part in parts for records in read_records(part, chosen))


def test_only_records_of_the_time_are_read(store: tuple[str, list[Put]], monkeypatch: pytest.MonkeyPatch) -> None:
    root, put = store
    keys = [("T", 0), ("T", 1)]
    begin_ms, end_ms = put[900].time_ms, put[960].time_ms
    chosen = Selection(
        topics=frozenset({"T"}), starting_times_ms=dict.fromkeys(keys, begin_ms), ending_times_ms={keys[0]: end_ms}
    )
    wanted = [one for one in put if one.topic == "T" and begin_ms <= one.time_ms < (FAR_MS if one.queue_id else end_ms)]
    assert len(wanted) == 15 + 75
    assert records_read(root, chosen) == len(wanted)
    monkeypatch.setattr(unit_scan, "of_time", lambda data, part, told, **bounds: told)
    assert records_read(root, chosen) == 600  # every record of the topic, as without the bisection


def test_a_clock_that_was_set_back_costs_no_row(store: tuple[str, list[Put]]) -> None:
    root, put = store
    for begin_s, end_s in ((520, 540), (480, 501), (599, 602), (500, 700), (0, 1)):
        begin_ms, end_ms = START_MS + begin_s * 1000, START_MS + end_s * 1000
        wanted = [one.row for one in put if one.topic == "T" and begin_ms <= one.time_ms < end_ms]
        times = json.dumps({"T": {"0": begin_ms, "1": begin_ms}}), json.dumps({"T": {"0": end_ms, "1": end_ms}})
        by_queue = {"startingOffsetsByTimestamp": times[0], "endingOffsetsByTimestamp": times[1]}
        for_all = {"startingTimestamp": str(begin_ms), "endingTimestamp": str(end_ms)}
        for options in (by_queue, for_all):
            assert rows(root, topics="T", plan="queue", **options) == wanted
            assert rows(root, topics="T", plan="queue", rangeBytes=str(1 << 20), **options) == wanted
