"""`sound_run` passes over exactly the records of the common shape that `check_record` calls whole.

`check_record` is the reference: it reads a record field by field and knows every shape.
"""

from __future__ import annotations

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from contrailmq.message import encode_host, encode_properties
from contrailmq.message.codec import Kind, check_record, encode_record
from contrailmq.message.record_runs import NO_SHAPE, shape_at, sound_run
from how_many import examples

BASE = 3 * 2**30  # where the block lies in the log: beyond 31 bits
V4, V6 = encode_host("10.0.0.7", 4711), encode_host("2001:db8::1", 4711)


def record(offset: int, topic: str, body: bytes, properties: dict[str, str], born_host: bytes = V4) -> bytes:
    return encode_record(
        topic,
        body,
        encode_properties(properties),
        queue_id=3,
        queue_offset=17,
        physical_offset=offset,
        store_time_ms=1_700_000_000_000,
        born_time_ms=1_700_000_000_000,
        born_host=born_host,
        store_host=V4,
    )


@st.composite
def logs(draw: st.DrawFn) -> tuple[bytes, list[int], int]:
    """A block, where its records begin and end, and how many of them are of the common shape from its begin on."""
    log, borders, common, is_common = b"", [0], 0, True
    for _ in range(draw(st.integers(0, 8))):
        kind = draw(st.sampled_from(["common"] * 6 + ["long topic", "IPv6"]))
        topic = "t" * 200 if kind == "long topic" else draw(st.sampled_from(["T", "Größe", "x" * 127]))
        body = draw(st.binary(max_size=40))
        properties = draw(
            st.dictionaries(st.sampled_from(["a", "KEYS", "é"]), st.text("abc é", min_size=1, max_size=5))
        )
        log += record(BASE + len(log), topic, body, properties, V6 if kind == "IPv6" else V4)
        borders.append(len(log))
        is_common = is_common and kind == "common"
        common += is_common
    return log, borders, common


@settings(max_examples=examples(300), deadline=None)
@given(logs(), st.integers(0, 400))
def test_a_run_ends_before_the_first_record_that_is_not_whole_or_not_common(
    given_log: tuple[bytes, list[int], int], cut: int
) -> None:
    log, borders, common = given_log
    block = log[: max(0, len(log) - cut)]
    passed = max(count for count in range(common + 1) if borders[count] <= len(block))
    last = borders[passed - 1] if passed else -1
    assert sound_run(block, BASE) == (borders[passed], last)
    assert sound_run(block, BASE + 1) == (0, -1), "another place in the log than the records say"


@settings(max_examples=examples(300), deadline=None)
@given(logs(), st.data())
def test_a_changed_byte_is_passed_over_only_where_nothing_checks_it(
    given_log: tuple[bytes, list[int], int], data: st.DataObject
) -> None:
    log, _, _ = given_log
    if not log:
        return
    changed = bytearray(log)
    changed[data.draw(st.integers(0, len(log) - 1))] ^= data.draw(st.integers(1, 255))
    end, last = sound_run(bytes(changed), BASE)
    at, before = 0, -1
    while at < end:
        verdict = check_record(changed, at, physical_offset=BASE + at)
        assert verdict.kind is Kind.WHOLE
        at, before = at + verdict.size_bytes, at
    assert (at, before) == (end, last)


def test_bytes_of_nobody_are_no_record() -> None:
    rng = random.Random(5)
    for size in (0, 1, 90, 91, 92, 500):
        block = rng.randbytes(size)
        assert sound_run(block, BASE) == (0, -1)
        assert shape_at(block, 0, BASE) == NO_SHAPE


def test_the_parts_of_a_record_are_where_they_are() -> None:
    block = record(BASE, "Orders", b"body", {"a": "1"})
    body_end, topic_end, end = shape_at(block, 0, BASE)
    assert block[body_end - 4 : body_end] == b"body"
    assert block[body_end + 1 : topic_end] == b"Orders"
    assert block[topic_end + 2 : end] == b"a\x011\x02"
    assert end == len(block)
