"""What clients send, and what producers of any kind have stored, as the other side gets it: anybody's bytes."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from client.messages import received
from contrailmq.client.records import ReceivedMessage
from contrailmq.message import Property
from contrailmq.proxy.messages import check_sent, delivered, ms_of, stored_properties
from contrailmq.proxy.protocol import v2
from contrailmq.proxy.statuses import Code, Refused
from how_many import examples
from proxy.calling import message

INT64 = st.integers(-(2**63), 2**63 - 1)
TEXTS = st.text(st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=8)
NUMBERS = st.one_of(INT64.map(str), st.integers(0, 10**30).map(str), st.just("9" * 5000), TEXTS)
PROPERTIES = st.dictionaries(
    st.one_of(
        st.sampled_from((Property.BORN_TIMESTAMP, Property.TIMER_DELIVER_MS, Property.PRIORITY, Property.SHARDING_KEY)),
        TEXTS,
    ),
    NUMBERS,
    max_size=5,
)


def stored(properties: dict[str, str], born_time_ms: int, reconsume_times: int) -> ReceivedMessage:
    return received(7, properties=properties, born_time_ms=born_time_ms, reconsume_times=reconsume_times)


@given(PROPERTIES, INT64, st.integers(-(2**31), 2**31 - 1))
@settings(max_examples=examples(2000), deadline=None)
def test_whatever_a_producer_has_stored_a_consumer_gets_with_times_that_it_can_read(
    properties: dict[str, str], born_time_ms: int, reconsume_times: int
) -> None:
    """One that could not be given would hold up all others of its batch, each time again."""
    system = v2.Message.FromString(
        delivered(stored(properties, born_time_ms, reconsume_times), "T").SerializeToString()
    ).system_properties
    assert (system.queue_offset, system.body_digest.checksum) == (7, "841A2D689AD86BD1611447453C22C6FC")
    for time in (system.born_timestamp, system.delivery_timestamp):
        assert time.ToDatetime(UTC) >= datetime(1, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(("said", "born_ms"), [("1700000000123", 1_700_000_000_123), ("", 5), ("x", 5), ("9" * 40, 5)])
def test_the_time_of_birth_is_that_of_the_property_if_it_is_one(said: str, born_ms: int) -> None:
    system = delivered(stored({Property.BORN_TIMESTAMP: said}, 5, 0), "T").system_properties
    assert system.born_timestamp.ToMilliseconds() == born_ms


@pytest.mark.parametrize(
    ("seconds", "nanos", "milliseconds"),
    [(1, 999_999_999, 1999), (0, 0, 0), (-1, 0, -1000), (2**63 - 1, 0, 2**63 - 1), (-(2**63), -5, -(2**63))],
)
def test_a_time_that_a_client_sends_is_a_number_whatever_it_is(seconds: int, nanos: int, milliseconds: int) -> None:
    sent = v2.Message()
    sent.system_properties.born_timestamp.seconds, sent.system_properties.born_timestamp.nanos = seconds, nanos
    assert ms_of(sent.system_properties.born_timestamp) == milliseconds


def test_a_delivery_in_the_far_future_is_refused_by_its_code() -> None:
    sent = message("T", b"body", message_id="01")
    sent.system_properties.delivery_timestamp.seconds = 2**62
    with pytest.raises(Refused) as refused:
        check_sent(sent)
    assert refused.value.code == Code.ILLEGAL_DELIVERY_TIME


def test_a_birth_that_is_no_time_is_stored_as_it_was_sent() -> None:
    sent = message("T", b"body", message_id="01")
    sent.system_properties.born_timestamp.seconds = 2**62
    assert f"{Property.BORN_TIMESTAMP}\x01{2**63 - 1}" in stored_properties(sent, 1, "peer")
