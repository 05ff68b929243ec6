"""The console's small rules: budget, cache, series, pages, times, figures, bodies, traces, passwords."""

from __future__ import annotations

import asyncio
import time
from itertools import pairwise
from pathlib import Path

import pytest

from contrailmq.client.admin.traces import TraceStep, steps_of
from contrailmq.console.model.budget import Budget, polling
from contrailmq.console.model.caching import Cached
from contrailmq.console.model.contents import SHOWN_BYTES_MAX, view_body
from contrailmq.console.model.figures import figures_of, put_latency
from contrailmq.console.model.messages import read_time
from contrailmq.console.model.paging import paged
from contrailmq.console.model.series import Series
from contrailmq.console.passwords import PasswordError, make_hash, read_password_file, write_password_file
from contrailmq.message import ContrailError


class Clock:
    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


def test_polls_take_at_most_a_hundredth_of_the_time_and_clicks_wait_for_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, slept = Clock(), list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.now_s += seconds

    async def polls() -> None:
        budget = Budget(clock)
        with polling():
            for _ in range(50):
                await budget.turn("a:1")
                clock.now_s += 0.004
                budget.spent("a:1", 0.004, is_answered=True)
        assert budget.polled_s["a:1"] == pytest.approx(0.2)
        assert budget.polled_s["a:1"] / (clock.now_s - 1000.0) <= 0.0103, "the last one has its pause before it"
        before = len(slept)
        await budget.turn("a:1")  # a click
        assert len(slept) == before
        with polling():
            await budget.turn("b:1")  # another broker
        assert len(slept) == before

    monkeypatch.setattr("contrailmq.console.model.budget.asyncio.sleep", sleep)
    asyncio.run(polls())


def test_a_broker_that_does_not_answer_is_asked_again_within_ten_seconds() -> None:
    clock = Clock()
    budget = Budget(clock)
    with polling():
        budget.spent("a:1", 3.0, is_answered=False)
        assert budget._free_at_s["a:1"] - clock.now_s == pytest.approx(9.9)


def test_a_cached_value_is_asked_once_for_all_and_again_when_it_is_old_or_failed() -> None:
    clock, asked = Clock(), list[int]()

    async def ask() -> int:
        asked.append(1)
        await asyncio.sleep(0)
        if len(asked) == 3:
            raise ContrailError("away")
        return len(asked)

    async def run() -> None:
        cached = Cached(ask, max_age_s=10, clock=clock)
        assert await asyncio.gather(cached.get(), cached.get(), cached.get()) == [1, 1, 1]
        clock.now_s += 9
        assert await cached.get() == 1
        clock.now_s += 1
        assert await cached.get() == 2
        cached.forget()
        with pytest.raises(ContrailError):
            await cached.get()
        assert await cached.get() == 4

    asyncio.run(run())


def test_a_series_keeps_an_hour_and_one_sample_for_each_ten_seconds() -> None:
    series = Series()
    for second in range(0, 2 * 3600, 2):
        series.add(1_000_000 + second * 1000, second)
    points = series.points()
    assert 360 <= len(points) <= 362
    assert points[-1] == (1_000_000 + 7198 * 1000, 7198)
    assert points[0][0] >= points[-1][0] - 3_600_000
    gaps = {later[0] - earlier[0] for earlier, later in pairwise(points[:-1])}
    assert gaps == {10_000}
    series.add(5000, 1.0)
    assert series.points() == [(5000, 1.0)], "a clock that was set back begins anew"


@pytest.mark.parametrize(
    ("number", "rows", "at"), [(1, [0, 1, 2], 1), (4, [9], 4), (5, [9], 4), (0, [0, 1, 2], 1), (-7, [0, 1, 2], 1)]
)
def test_a_page_past_the_end_is_the_last_one(number: int, rows: list[int], at: int) -> None:
    page = paged(range(10), number=number, size=3)
    assert (page.rows, page.number, page.row_count) == (rows, at, 10)


@pytest.mark.parametrize("text", ["", "yesterday", "-1y", "99999-01-01", "-1h -2h"])
def test_what_is_no_time_is_an_error_that_names_the_forms(text: str) -> None:
    assert read_time("2026-01-31T08:00:00Z") == 1_769_846_400_000
    with pytest.raises(ContrailError, match="is not a time: give 2026-01-31T08:00"):
        read_time(text)


def test_figures_are_read_from_apaches_sentences_and_ours() -> None:
    apache = figures_of(
        {
            "brokerVersionDesc": "V5_5_0",
            "putTps": "12.5 10.0 9.0",
            "msgPutTotalTodayNow": "77",
            "commitLogDirCapacity": "Total : 1.5 GiB, Free : 512.0 MiB.",
            "commitLogDiskRatio": "0.25",
            "putMessageDistributeTime": "[<=0ms]:990 [0~10ms]:9 [10~50ms]:1 [50~100ms]:0 ",
        }
    )
    assert (apache.put_per_s, apache.put_total, apache.disk_ratio) == (12.5, 77, 0.25)
    assert (apache.disk_total_bytes, apache.disk_free_bytes) == (3 << 29, 1 << 29)
    assert apache.put_latency == "<=0ms"
    assert (apache.put_latency_99_ms, apache.put_latency_999_ms) == (None, None), "what is not said is not drawn"
    ours = figures_of({"putLatency99": "3.25", "putLatency999": "8"})
    assert (ours.put_latency, ours.put_latency_99_ms, ours.put_latency_999_ms) == ("3.25 ms", 3.25, 8.0)
    assert put_latency({"putLatency99": "3.25"}) == "3.25 ms"
    empty = figures_of({"putTps": "?", "msgPutTotalTodayNow": "x", "commitLogDirCapacity": "full"})
    assert (empty.put_per_s, empty.put_total, empty.disk_free_bytes, empty.put_latency) == (0.0, 0, None, "")


def test_a_body_is_shown_as_json_text_and_hex_and_no_more_than_a_browser_bears() -> None:
    view = view_body('{"n":1.10,"big":12345678901234567890,"t":"ä"}'.encode())
    assert view.json_text == '{\n  "n": 1.10,\n  "big": 12345678901234567890,\n  "t": "ä"\n}'
    assert view.is_text
    raw = view_body(b"\xff\x00<b>" + b"x" * 20)
    assert (raw.is_text, raw.json_text) == (False, "")
    assert raw.hex_text.splitlines()[0] == "00000000  ff 00 3c 62 3e 78 78 78 78 78 78 78 78 78 78 78  ..<b>xxxxxxxxxxx"
    large = view_body(b"[" + b"1," * SHOWN_BYTES_MAX + b"1]")
    assert (large.is_cut, len(large.text), large.json_text) == (True, SHOWN_BYTES_MAX, "")
    assert view_body(b"[" * 100_000).json_text == "", "a deep body is no reason to fail"
    assert view_body(b"").text == ""


def test_a_trace_is_read_in_order_and_records_that_are_cut_are_left_out() -> None:
    f, r = "\x01", "\x02"
    pub = f.join(["Pub", "100", "R", "shop", "T", "ID1", "tag", "k", "1.2.3.4:10911", "5", "3", "0", "OFF", "true"])
    before = f.join(["SubBefore", "110", "R", "billing", "REQ", "ID1", "2", "k"])
    after = f.join(["SubAfter", "REQ", "ID1", "7", "false", "k", "2", "117", "billing"])
    other = pub.replace("ID1", "ID2")
    body = r.join([after, pub, before, other, "Pub\x01x", "SubBefore\x01no\x01R\x01g\x01q\x01ID1\x010\x01k", ""])
    assert steps_of([body.encode(), body.encode(), b"\xff\xfe"], "ID1") == [
        TraceStep(100, "sent", "shop", "in 3 ms, stored by 1.2.3.4:10911"),
        TraceStep(110, "consuming", "billing", "began, retry 2"),
        TraceStep(117, "not consumed", "billing", "exception in 7 ms", is_good=False),
    ]


def test_a_password_file_holds_a_hash_that_only_its_owner_reads(tmp_path: Path) -> None:
    path = tmp_path / "password"
    write_password_file(path, "correct horse")
    assert path.stat().st_mode & 0o777 == 0o600
    assert "correct" not in path.read_text()
    found = read_password_file(path)
    assert found.fits("correct horse")
    assert not found.fits("correct horse ")
    assert not found.fits("")
    assert not found.fits("x" * 100_000)
    assert make_hash("correct horse").salt != found.salt
    with pytest.raises(PasswordError, match="has 7 characters: give 8 to 1024"):
        write_password_file(path, "seven77")


REST = "$AAAAAAAAAAA=$" + "A" * 43 + "="


@pytest.mark.parametrize(
    "text",
    ["", "correct horse", "scrypt$1$2$3", "scrypt$16384$8$1$!!$!!"]
    + [head + REST for head in ("scrypt$3$8$1", "scrypt$1073741824$8$1", "md5$2$1$1")],
)
def test_a_file_that_holds_no_hash_is_said_with_the_remedy(tmp_path: Path, text: str) -> None:
    path = tmp_path / "password"
    path.write_text(text)
    began = time.monotonic()
    with pytest.raises(PasswordError, match="contrailmq console --set-password"):
        read_password_file(path)
    assert time.monotonic() - began < 60, "a cost beyond all measure is not tried"
    with pytest.raises(PasswordError, match="cannot be read"):
        read_password_file(tmp_path / "none")
