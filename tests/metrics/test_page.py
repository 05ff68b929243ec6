"""The text format, read back by Prometheus' own parser: names, escapes, histograms, bounds."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrailmq.metrics import Distribution, Instrument, Kind, Measured, Series
from contrailmq.metrics import page as page_module
from contrailmq.metrics.page import page
from metrics.scraping import samples, value, values

HOSTILE = ['a"b', "a\\b", "a\nb", 'x",y="z', "# TYPE", "ü€\U0001f680", "", "\\n", 'end"}', "tab\t", "nul\0", "}{", "le"]


def text_of(instrument: Instrument, series: Series, common: Mapping[str, str] | None = None, limit: int = 1000) -> str:
    async def whole() -> bytes:
        pieces = page([Measured(instrument, lambda: series)], {"cluster": "C"} if common is None else common, limit)
        return b"".join([piece async for piece in pieces])

    return asyncio.run(whole()).decode()


@pytest.mark.parametrize(
    ("name", "kind", "unit", "scraped"),
    [
        ("rocketmq_consumer_lag_latency", Kind.GAUGE, "milliseconds", "rocketmq_consumer_lag_latency_milliseconds"),
        ("rocketmq_storage_size", Kind.GAUGE, "bytes", "rocketmq_storage_size_bytes"),
        ("rocketmq_storage_flush_behind_bytes", Kind.GAUGE, "bytes", "rocketmq_storage_flush_behind_bytes"),
        ("rocketmq_finish_message_latency", Kind.HISTOGRAM, "ms", "rocketmq_finish_message_latency_milliseconds"),
        ("request_latency", Kind.HISTOGRAM, "us", "request_latency_microseconds"),
        ("rocketmq_messages_in_total", Kind.COUNTER, "", "rocketmq_messages_in_total"),
        ("contrailmq_cpu_seconds_total", Kind.COUNTER, "seconds", "contrailmq_cpu_seconds_total"),
        ("n", Kind.COUNTER, "", "n_total"),
    ],
)
def test_a_name_on_the_page_has_its_unit_once(name: str, kind: Kind, unit: str, scraped: str) -> None:
    assert Instrument(name, kind, "", unit=unit).scraped_name == scraped


def test_a_gauge_reads_as_the_format_has_it() -> None:
    text = text_of(Instrument("g", Kind.GAUGE, "what it is", ("topic",)), [(("T",), 7), (("U",), 0.25)])
    assert text == ('# HELP g what it is\n# TYPE g gauge\ng{cluster="C",topic="T"} 7\ng{cluster="C",topic="U"} 0.25\n')
    assert text_of(Instrument("g", Kind.GAUGE, "h"), [((), 1)], {}) == "# HELP g h\n# TYPE g gauge\ng 1\n"


def test_a_histogram_is_cumulative_with_sum_and_count() -> None:
    instrument = Instrument("h", Kind.HISTOGRAM, "", ("t",), "seconds", (0.01, 1))
    page = samples(text_of(instrument, [(("a",), Distribution((3, 0, 2), 12.5))]))
    assert [value(page, "h_seconds_bucket", t="a", le=end) for end in ("0.01", "1.0", "+Inf")] == [3, 3, 5]
    assert (value(page, "h_seconds_sum", t="a"), value(page, "h_seconds_count", t="a")) == (12.5, 5)


def test_an_instrument_without_series_is_not_on_the_page() -> None:
    assert text_of(Instrument("g", Kind.GAUGE, "h", ("t",)), []) == ""


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_name_is_one_label_and_nothing_else(name: str) -> None:
    text = text_of(Instrument("g", Kind.GAUGE, "h", ("topic", "group")), [((name, "G"), 1)], {"node": name})
    assert samples(text) == {("g", frozenset({("node", name), ("topic", name), ("group", "G")})): 1}


@given(st.lists(st.tuples(st.text(), st.text(), st.integers(-(2**53), 2**53)), unique_by=lambda row: row[:2]))
def test_any_names_and_numbers_come_back_as_they_were(rows: list[tuple[str, str, int]]) -> None:
    rows = [row for row in rows if "\r" not in row[0] + row[1]]  # their parser reads lines as Python does
    text = text_of(Instrument("g", Kind.GAUGE, "h", ("a", "b")), [((a, b), number) for a, b, number in rows], {})
    assert samples(text) == {("g", frozenset({("a", a), ("b", b)})): number for a, b, number in rows}


@pytest.mark.parametrize(("unit", "folded"), [("", 2 + 3 + 4), ("milliseconds", 4)])
def test_series_beyond_the_limit_become_one(unit: str, folded: int) -> None:
    """Counts add up; of ages the largest stays."""
    series = [((f"t{number}",), number) for number in range(5)]
    page = samples(text_of(Instrument("g", Kind.GAUGE, "", ("t",), unit), series, {"cluster": "C"}, limit=2))
    name = f"g_{unit}" if unit else "g"
    assert len(page) == 3
    assert page[name, frozenset({("cluster", "C"), ("otel_metric_overflow", "true")})] == folded


def test_histograms_beyond_the_limit_add_up() -> None:
    series = [((f"t{number}",), Distribution((number, 1), number)) for number in range(4)]
    instrument = Instrument("h", Kind.HISTOGRAM, "", ("t",), bounds=(5,))
    page = samples(text_of(instrument, series, {}, limit=1))
    assert value(page, "h_bucket", otel_metric_overflow="true", le="5.0") == 1 + 2 + 3
    assert value(page, "h_count", otel_metric_overflow="true") == 9
    assert values(page, "h_count", t="t0") == [1]


def test_a_long_page_gives_the_loop_back_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """20,000 series, each look at the clock a reason to give way; somebody else on the loop counts its turns."""
    monkeypatch.setattr(page_module, "TURN_S", 0.0)
    turns = 0

    async def main() -> int:
        nonlocal turns

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.ensure_future(others())
        series = [((str(number),), number) for number in range(20_000)]
        measured = Measured(Instrument("g", Kind.GAUGE, "", ("t",)), lambda: series)
        pieces = [piece async for piece in page([measured], {}, 50_000)]
        task.cancel()
        return sum(piece.count(b"\n") for piece in pieces)

    assert asyncio.run(main()) == 20_002
    assert turns >= 300, "20,000 series and a look after each 64"
