"""Numbers that a sender writes into properties: none stops the timers, the delay levels, the checks or a start."""

from __future__ import annotations

from pathlib import Path

import pytest

from broker.harness import Link
from broker.test_timers import TimerBench
from broker.test_transactions import COMMIT, TransactionBench
from contrailmq.message import SystemTopic, natural_number
from contrailmq.wire.codes import ResponseCode

LONG = "9" * 5000  # more digits than `int` converts


@pytest.mark.parametrize(
    ("text", "number"),
    [("0", 0), ("007", 7), (str(2**63 - 1), 2**63 - 1), (str(2**63), 2**63 - 1), (LONG, 2**63 - 1), ("0" * 5000, 0)]
    + [(text, None) for text in ("", "-1", "+1", " 1", "1_0", "²", "٣", "1e3")],
)
def test_a_number_is_ascii_digits_and_one_beyond_64_bits_counts_as_the_largest(text: str, number: int | None) -> None:
    assert natural_number(text) == number


@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
@pytest.mark.parametrize("text", ["9" * 400, LONG, "1_0", " 5", "٣", "--5"], ids=lambda text: text[:6])
def test_a_time_that_is_no_number_or_beyond_all_limits_is_illegal_and_no_error_of_the_broker(
    tmp_path: Path, name: str, text: str
) -> None:
    bench = TimerBench(tmp_path)
    answer = bench.send("T", b"m", properties={name: text, "UNIQ_KEY": "K"})
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert len(answer.remark or "") < 200
    bench.close()


def test_a_level_of_any_length_counts_as_the_last(tmp_path: Path) -> None:
    bench = TimerBench(tmp_path)
    assert bench.send("T", b"m", properties={"DELAY": LONG}).code == 0
    bench.delay.tick(bench.clock.now_ms())
    assert bench.delay.pending() == {18: 1}
    bench.close()


def test_a_foreign_roll_count_does_not_stop_the_wheel(tmp_path: Path) -> None:
    bench = TimerBench(tmp_path)
    for count in ("x", LONG):
        properties = {"TIMER_DELAY_SEC": str(60 * 3600), "TIMER_ROLL_TIMES": count, "UNIQ_KEY": count[:9]}
        assert bench.send("T", b"m", properties=properties).code == 0
    bench.run_ms(1000)
    for _ in range(63):
        bench.clock.advance(3_600_000)
        bench.run_ms(2000)
    assert len(bench.messages()) == 2
    bench.close()


def test_nobody_sends_to_the_timer_topic_itself(tmp_path: Path) -> None:
    bench = TimerBench(tmp_path)
    properties = {"TIMER_OUT_MS": "1", "REAL_TOPIC": SystemTopic.HALF, "REAL_QID": "0"}
    answer = bench.send(SystemTopic.TIMER, b"m", properties=properties)
    assert answer.code == ResponseCode.NO_PERMISSION
    bench.close()


@pytest.mark.parametrize(
    "properties",
    [
        {"TIMER_OUT_MS": LONG, "REAL_QID": "0"},
        {"TIMER_OUT_MS": "9" * 30, "REAL_QID": "0"},
        {"TIMER_OUT_MS": "1", "REAL_QID": LONG},
        {"TIMER_OUT_MS": "1", "REAL_QID": "9" * 12},
        {"TIMER_OUT_MS": "1", "REAL_QID": "0", "REAL_TOPIC": ""},
    ],
    ids=["long time", "time beyond 64 bits", "long queue", "queue beyond 32 bits", "no topic"],
)
def test_a_timer_message_that_makes_no_sense_is_passed_and_the_next_is_delivered(
    tmp_path: Path, properties: dict[str, str]
) -> None:
    bench = TimerBench(tmp_path)
    text = "".join(f"{name}\x01{value}\x02" for name, value in ({"REAL_TOPIC": "T"} | properties).items())
    bench.store.append(
        SystemTopic.TIMER, 0, b"no sense", text.encode(), tags_code=0, keys=None, unique_key=None, born_time_ms=1
    )
    assert bench.send("T", b"good", properties={"TIMER_DELAY_SEC": "2", "UNIQ_KEY": "K"}).code == 0
    bench.settle()
    bench.run_ms(3000)
    assert [message.body for message in bench.messages()] == [b"good"]
    bench.close()


def test_times_within_one_tick_share_its_slot_whatever_precision_they_were_made_with(tmp_path: Path) -> None:
    """Messages that a wheel of 100 ms left in the timer topic, on one of 1 s."""
    bench = TimerBench(tmp_path)
    for out_ms in (1_700_000_004_300, 1_700_000_004_000, 1_700_000_004_900):
        text = f"TIMER_OUT_MS\x01{out_ms}\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02"
        body = str(out_ms).encode()
        bench.store.append(
            SystemTopic.TIMER, 0, body, text.encode(), tags_code=0, keys=None, unique_key=None, born_time_ms=1
        )
    bench.store.dispatch()
    bench.run_ms(4999)
    assert bench.messages() == []
    bench.run_ms(1001)
    assert [message.body[-4:] for message in bench.messages()] == [b"4300", b"4000", b"4900"]
    bench.close()


@pytest.mark.parametrize("name", ["CHECK_IMMUNITY_TIME_IN_SECONDS", "TRANSACTION_CHECK_TIMES"])
def test_a_number_of_any_length_in_a_half_message_does_not_stop_the_checks_of_others(tmp_path: Path, name: str) -> None:
    bench = TransactionBench(tmp_path)
    producer = Link(40_001)
    bench.heartbeat("T", link=producer)
    bench.prepare(b"odd", **{name: LONG})
    bench.prepare(b"plain")
    bench.run_ms(20_000)
    assert b"plain" in {half.body for _, half in bench.checks(producer)}
    bench.close()


@pytest.mark.parametrize("text", ["²", LONG, "0", "1"])
def test_a_foreign_place_of_a_half_message_neither_stops_a_start_nor_leads_in_circles(
    tmp_path: Path, text: str
) -> None:
    bench = TransactionBench(tmp_path)
    prepared = bench.prepare(b"a")
    properties = f"REAL_TOPIC\x01T\x02REAL_QID\x011\x02PGROUP\x01pg\x02TRAN_PREPARED_QUEUE_OFFSET\x01{text}\x02"
    half = bench.store.append(
        SystemTopic.HALF,
        0,
        b"odd",
        properties.encode(),
        tags_code=0,
        keys=None,
        unique_key=None,
        born_time_ms=bench.clock.now_ms(),
    )
    assert half.queue_offset == 1
    bench.settle()
    again = bench.restarted(tmp_path)
    producer = Link(40_001)
    again.heartbeat("T", link=producer)
    assert again.end(prepared, COMMIT)[0].code == 0
    assert again.bodies() == [b"a"]
    again.run_ms(13_000)
    assert {half.body for _, half in again.checks(producer)} == {b"a" if text == "0" else b"odd"}  # 0 was put back to 1
    again.close()


def test_a_new_half_message_was_never_checked_nor_put_back_whatever_its_sender_says(tmp_path: Path) -> None:
    bench = TransactionBench(tmp_path)
    bench.prepare(b"a", TRANSACTION_CHECK_TIMES="15", TRAN_PREPARED_QUEUE_OFFSET="7")
    bench.settle()
    (half,) = bench.store.get(SystemTopic.HALF, 0, 0)
    assert not {"TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET"} & half.properties.keys()
    bench.close()
