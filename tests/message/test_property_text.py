"""Every finder finds what decoding the whole property string would give, whatever the string."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contrailmq.message import decode_properties
from contrailmq.message.property_text import (
    Keys,
    append,
    closed,
    find,
    find_decoded,
    find_many,
    find_text,
    key_of,
    without,
)
from how_many import examples

# Names that begin or end like others, and values that look like names.
NAMES = ["TAGS", "MYTAGS", "TAGS2", "T", "S", "KEYS", "UNIQ_KEY", "UNIQ", "INNER_NUM", "INNER_", "é", ""]
VALUES = ["", "v", "TAGS", "TAGS\x01x", "\x01", "é\U0001f600", "a\x01TAGS\x01b", "\x00"]
PIECES = [*NAMES, *VALUES, "\x01", "\x01", "\x01", "\x02", "\x02", "\x02"]

texts = st.one_of(
    st.lists(st.sampled_from(PIECES), max_size=24).map("".join),  # separators may be missing or doubled
    st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(VALUES)), max_size=8).map(
        lambda pairs: "\x02".join(f"{name}\x01{value}" for name, value in pairs)
    ),
)
many = settings(max_examples=examples(500), deadline=None)


@many
@given(texts)
def test_every_finder_finds_what_a_decoder_finds(text: str) -> None:
    known, data = decode_properties(text), text.encode()
    names = [name for name in NAMES if name]
    for name in names:
        expected = known.get(name)
        assert find_text(text, f"{name}\x01") == expected, name
        assert find_decoded(data, key_of(name)) == expected, name
        assert find(data, key_of(name)) == (None if expected is None else expected.encode()), name
    assert find_many(text, [f"{name}\x01" for name in names]) == [known.get(name) for name in names]


@many
@given(texts, st.binary(max_size=12), st.binary(max_size=12))
def test_spans_within_a_buffer_are_those_of_the_string_alone(text: str, before: bytes, behind: bytes) -> None:
    data = text.encode()
    names = [name for name in NAMES if name]
    buffer, begin, end = before + data + behind, len(before), len(before) + len(data)
    spans = Keys([key_of(name) for name in names]).find_spans(buffer, begin, end)
    known = decode_properties(text)
    for number, name in enumerate(names):
        value_at, value_end = spans[2 * number : 2 * number + 2]
        found = buffer[value_at:value_end].decode() or None
        assert found == known.get(name), name
        assert value_end == 0 or begin < value_at < value_end <= end


@many
@given(texts)
def test_a_beginning_of_a_name_is_found_wherever_a_name_begins_so(text: str) -> None:
    """It may also be found in a piece that has no value: whoever asks looks closer."""
    _, end = Keys([b"INNER_"]).find_spans(text.encode(), 0, len(text.encode()))
    if any(name.startswith("INNER_") for name in decode_properties(text)):
        assert end > 0
    elif "INNER_" not in text:
        assert end == 0


@many
@given(st.binary(max_size=40))
def test_bytes_that_are_no_text_are_found_as_the_decoder_reads_them(data: bytes) -> None:
    data = data.replace(b"a", b"TAGS\x01").replace(b"b", b"\x02")
    assert find_decoded(data, b"TAGS\x01") == decode_properties(data).get("TAGS")


@many
@given(texts, st.sampled_from([name for name in NAMES if name]), st.sampled_from(["v", "w\x01x"]))
def test_what_is_appended_counts_and_the_rest_stays(text: str, name: str, value: str) -> None:
    assert decode_properties(append(text.encode(), name, value)) == decode_properties(text) | {name: value}


@many
@given(texts, st.sets(st.sampled_from([name for name in NAMES if name])))
def test_without_names_the_others_stay_as_they_are(text: str, names: set[str]) -> None:
    left = without(text.encode(), {name.encode() for name in names})
    known = decode_properties(text)
    assert decode_properties(left) == {name: value for name, value in known.items() if name not in names}
    assert left == closed(left)


@pytest.mark.parametrize(
    ("properties", "value"),
    [
        (b"TAGS\x01a\x02", b"a"),
        (b"TAGS\x01a", b"a"),
        (b"TAGS\x01a\x02TAGS\x01b\x02", b"b"),
        (b"TAGS\x01a\x02TAGS\x01\x02", b"a"),
        (b"TAGS\x01a\x02TAGS\x02", b"a"),
        (b"MYTAGS\x01a\x02", None),
        (b"x\x01TAGS\x01a\x02", None),
        (b"TAGS\x01a\x02MYTAGS\x01b\x02", b"a"),
        (b"\x02\x02TAGS\x01\x01\x02", b"\x01"),
        (b"TAGS\x01", None),
        (b"", None),
    ],
)
def test_the_rule_by_hand(properties: bytes, value: bytes | None) -> None:
    assert find(properties, b"TAGS\x01") == value
