"""What is known of a batch's parts is what decoding each of them says, whatever they share."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contrailmq.message import Property, decode_properties
from contrailmq.store.batches import known_of
from contrailmq.store.record import BatchPart

NAMES = [b"UNIQ_KEY", b"TAGS", b"KEYS", b"DELAY", b"MYUNIQ_KEY", b"UNIQ_KEYS", b"a", b""]
VALUES = [b"", b"0", b"3", b"x", b"A1", b"UNIQ_KEY", b"\xff", "é".encode()]
pieces = st.tuples(st.sampled_from(NAMES), st.sampled_from([b"\x01", b""]), st.sampled_from(VALUES)).map(b"".join)
properties = st.tuples(st.lists(pieces, max_size=5).map(b"\x02".join), st.sampled_from([b"\x02", b""])).map(b"".join)


@given(st.lists(properties, max_size=6))
def test_known_parts_are_what_decoding_says(strings: list[bytes]) -> None:
    found = known_of([BatchPart(0, b"", each) for each in strings])
    expected = [decode_properties(each) for each in strings]
    assert [(known.keys, known.unique_key, known.tags) for known in found] == [
        (known.get(Property.KEYS), known.get(Property.UNIQUE_KEY), known.get(Property.TAGS)) for known in expected
    ]
    assert [known.is_delayed for known in found] == [
        known.get(Property.DELAY) not in (None, "", "0") for known in expected
    ]


@pytest.mark.parametrize(
    "around", [(b"TAGS\x01a\x02", b""), (b"", b"TAGS\x01a\x02"), (b"x\x01y\x02", b"TAGS\x01a\x02")]
)
def test_parts_that_differ_in_their_unique_key_alone_keep_their_own(around: tuple[bytes, bytes]) -> None:
    before, after = around
    parts = [BatchPart(0, b"", before + b"UNIQ_KEY\x01%d\x02" % number + after) for number in range(3)]
    assert [(known.unique_key, known.tags) for known in known_of(parts)] == [("0", "a"), ("1", "a"), ("2", "a")]
