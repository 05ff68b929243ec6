"""Receipt handles: nine values in one text, and a tenth of a lite topic, read by any proxy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrailmq.proxy.handles import Handle, check_live, parse_handle
from contrailmq.proxy.statuses import Code, Refused

NUMBER = st.integers(0, 2**63 - 1)
NAME = st.text(st.characters(codec="ascii", exclude_characters=" "), min_size=1)


PARTS = st.tuples(NUMBER, NUMBER, NUMBER, st.integers(0, 999), st.sampled_from("012"), NAME, NUMBER, NUMBER, NUMBER)


@given(PARTS, st.just("") | NAME)
def test_a_handle_is_read_as_it_was_written(values: tuple[object, ...], lite_topic: str) -> None:
    text = " ".join(map(str, values))
    handle = parse_handle(f"{text} {lite_topic}" if lite_topic else text)
    assert tuple(handle) == (*values, lite_topic)
    assert handle.text == (f"{text} {lite_topic}" if lite_topic else text)
    assert handle.extra_info == text.rpartition(" ")[0]


@given(st.text())
def test_any_text_is_a_handle_or_is_refused(text: str) -> None:
    try:
        handle = parse_handle(text)
    except Refused as refused:
        assert refused.code == Code.INVALID_RECEIPT_HANDLE
    else:
        assert text.startswith(handle.extra_info)


def test_a_handle_of_eight_parts_has_no_log_offset() -> None:
    assert parse_handle("7 1000 60000 3 0 broker-a 2 9").log_offset == -1


@pytest.mark.parametrize(
    ("mark", "stored"), [("0", "orders"), ("1", "%RETRY%billing_orders"), ("2", "%RETRY%billing+orders")]
)
def test_the_mark_says_which_topic_holds_the_message(mark: str, stored: str) -> None:
    handle = parse_handle(f"7 1000 60000 3 {mark} broker-a 2 9 4711")
    assert handle.stored_topic("orders", "billing") == stored


def test_a_handle_ends_with_its_invisible_time_but_for_ordered_groups() -> None:
    handle = Handle(7, 1000, 60_000, 3, "0", "broker-a", 2, 9, 4711)
    check_live(handle, 60_999)
    with pytest.raises(Refused, match="expired 1 ms ago") as refused:
        check_live(handle, 61_001)
    assert refused.value.code == Code.INVALID_RECEIPT_HANDLE
    check_live(handle._replace(revive_queue=999), 1 << 50)
