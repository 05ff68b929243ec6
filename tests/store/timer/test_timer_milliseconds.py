"""A slot while its tick lasts: each message at its own millisecond, what comes meanwhile, and a stop in the middle."""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from at_once import AtOnce, Later
from contrailmq.message import (
    SysFlag,
    SystemTopic,
    decode_properties,
    encode_host,
    encode_properties,
    natural_number,
)
from contrailmq.message.codec import decode_record, encode_record
from contrailmq.store.timer.admission import TIMER_REQUESTS, requested_time_ms
from contrailmq.store.timer.log import UNIT_BYTES, TimerUnit
from contrailmq.store.timer.put_back import put_back
from contrailmq.store.timer.records import RecordReader, own_times, read_request, read_wishes
from how_many import examples
from store.timer.test_timer_store import DAY_MS, SLOTS_TOTAL, START_MS, Bench
from timer_host import MemoryHost

TICK_MS = (START_MS + 5000) // 1000 * 1000  # a slot a few seconds ahead


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def send_at(bench: Bench, *millis: int, **properties: str) -> None:
    """Messages for these milliseconds of the tick; each is named after its own."""
    for millisecond in millis:
        key = {"UNIQ_KEY": f"K{millisecond}"}
        bench.host.send(b"%d" % millisecond, TIMER_DELIVER_MS=str(TICK_MS + millisecond), **(key | properties))


def mark(bench: Bench, millisecond: int) -> None:
    """As an older client recalls: with the message's own time."""
    key = f"K{millisecond}"
    bench.host.send(b"0", TIMER_DELIVER_MS=str(TICK_MS + millisecond), UNIQ_KEY=key, TIMER_DEL_UNIQKEY=key)


def go_to(bench: Bench, millisecond: int) -> None:
    bench.clock.set_wall(TICK_MS + millisecond)
    bench.tick()


def started_again(bench: Bench) -> None:
    bench.timer.close(bench.clock.now_ms())
    bench.timer = bench.opened()


# ----------------------------------------------------------------------------------------------------------- its time


def test_a_slot_is_delivered_in_the_order_of_time_and_then_as_its_messages_came(bench: Bench) -> None:
    for number, millisecond in enumerate((700, 300, 700, 1000, 1, 300)):
        bench.host.send(b"%d" % number, TIMER_DELIVER_MS=str(TICK_MS + millisecond))
    bench.tick()
    found = []
    for millisecond in (0, 1, 299, 300, 999, 1000):
        go_to(bench, millisecond)
        found.append("".join(bench.host.bodies()))
    assert found == ["", "4", "4", "415", "41502", "415023"]


def test_what_comes_for_the_tick_that_is_under_way_takes_its_turn(bench: Bench) -> None:
    send_at(bench, 100, 500)
    go_to(bench, 200)
    send_at(bench, 800, 250, 500)
    go_to(bench, 249)
    assert bench.host.bodies() == ["100"]
    go_to(bench, 400)
    send_at(bench, 450)
    go_to(bench, 500)
    assert bench.host.bodies() == ["100", "250", "450", "500", "500"]
    assert bench.timer.metrics.counts == {"Orders": 1}
    go_to(bench, 1000)
    assert bench.host.bodies()[5:] == ["800"]
    assert bench.timer.read_time_ms == TICK_MS + 1000
    assert bench.timer.wheel.get(TICK_MS).is_closed


def test_more_than_a_portion_comes_for_the_tick_that_is_under_way(bench: Bench) -> None:
    send_at(bench, 100)
    go_to(bench, 150)
    for number in range(500):
        bench.host.send(b"n%d" % number, TIMER_DELIVER_MS=str(TICK_MS + 200 + number % 300))
    while bench.timer.tick(bench.clock.now_ms(), 7):
        pass
    for millisecond in range(200, 520, 20):
        bench.clock.set_wall(TICK_MS + millisecond)
        while bench.timer.tick(bench.clock.now_ms(), 7):
            pass
    assert len(bench.host.bodies()) == 501
    assert all(0 <= m.store_time_ms - int(m.properties["TIMER_DELIVER_MS"]) < 60 for m in bench.host.messages())


def test_a_message_whose_tick_has_passed_while_it_waited_to_be_taken_in_is_delivered_at_once(bench: Bench) -> None:
    """Its slot is under delivery still, or closed."""
    bench.run(1000)
    bench.timer.config.change({"timerStopEnqueue": "true"})
    send_at(bench, 300)
    go_to(bench, 1400)
    assert bench.host.bodies() == []
    bench.timer.config.change({"timerStopEnqueue": "false"})
    bench.tick()
    assert bench.host.bodies() == ["300"]


def test_slots_that_are_over_are_delivered_one_after_the_other(bench: Bench) -> None:
    """After a standstill: all of them are due, and as they came within each."""
    send_at(bench, 2900, 900, 100, 2100, 1500)
    bench.tick()
    go_to(bench, 3_600_000)
    assert bench.host.bodies() == ["900", "100", "1500", "2900", "2100"]


def test_a_time_that_cannot_be_read_is_the_end_of_the_tick(bench: Bench) -> None:
    properties = encode_properties({"TIMER_OUT_MS": str(TICK_MS), "REAL_TOPIC": "Orders", "REAL_QID": "0"})
    bench.host.append(SystemTopic.TIMER, 0, b"m", properties, tags_code=0, keys=None, unique_key=None)
    bench.tick()
    go_to(bench, 999)
    assert bench.host.bodies() == []
    go_to(bench, 1000)
    assert bench.host.bodies() == ["m"]


def timer_record(body: bytes, properties: dict[str, str] | str, address: str, *, sys_flag: int = 0) -> bytes:
    host = encode_host(address, 10_911)
    return bytes(
        encode_record(
            SystemTopic.TIMER,
            body,
            properties.encode() if isinstance(properties, str) else encode_properties(properties),
            queue_id=0,
            queue_offset=0,
            physical_offset=0,
            born_host=host,
            store_host=host,
            born_time_ms=1,
            store_time_ms=START_MS,
            sys_flag=sys_flag,
        )
    )


def reader_of(path: Path, record: bytes) -> tuple[RecordReader, int]:
    """The record between two others, at 30, and its size."""
    record = record[:28] + (30).to_bytes(8, "big") + record[36:]
    host = MemoryHost(path, lambda: START_MS)
    host._at = {0: bytes(30) + record + bytes(30)}
    reader = RecordReader(host, AtOnce())
    reader._span_from(0)
    return reader, len(record)


def own_time(path: Path, record: bytes) -> int:
    reader, size_bytes = reader_of(path, record)
    (found,) = own_times(reader, [30], [size_bytes])
    return found


OWN_TIMES = [
    ({"TIMER_DELIVER_MS": "1794710248231"}, 1794710248231),
    ({"A": "b", "TIMER_DELIVER_MS": "1794710248231", "C": "d"}, 1794710248231),
    ({"TIMER_DELAY_MS": "4500"}, START_MS + 4500),
    ({"TIMER_DELAY_SEC": "3"}, START_MS + 3000),
    ({"TIMER_DELIVER_MS": "1794710248231", "TIMER_DELAY_MS": "4500", "TIMER_DELAY_SEC": "3"}, START_MS + 3000),
    ({"TIMER_DELIVER_MS": "1794710248231", "TIMER_DELAY_MS": "4500"}, START_MS + 4500),
    ({"xTIMER_DELIVER_MS": "1794710248231"}, 0),
    ({"TIMER_DELIVER_MS": "1794710248231", "xTIMER_DELAY_SEC": "3"}, 1794710248231),
    ({"TIMER_DELIVER_MS": "soon"}, 0),
    ({"TIMER_DELIVER_MS": "9" * 40}, 0),
    ({"A": "b"}, 0),
]


@pytest.mark.parametrize(("properties", "own_ms"), OWN_TIMES, ids=[str(list(own)) for own, _ in OWN_TIMES])
def test_the_time_that_a_message_asks_for_is_found_in_its_record(
    tmp_path: Path, properties: dict[str, str], own_ms: int
) -> None:
    """In the order in which a sender's are looked at (admission.py). A delay counts from the time of storing."""
    all_of_them = properties | {"TIMER_OUT_MS": str(TICK_MS), "REAL_TOPIC": "T"}
    record = timer_record(b"TIMER_DELAY_SEC\x0177\x02", all_of_them, "127.0.0.1")
    assert own_time(tmp_path, record) == own_ms
    assert own_time(tmp_path, record[:-1]) == 0


names = st.sampled_from(
    ["TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC", "TIMER_OUT_MS", "REAL_TOPIC", "TIMER_DEL_UNIQKEY",
     "xTIMER_DELIVER_MS", "TIMER_DELIVER_MSx", "TIMER_DELAY_", "A", ""]
)  # fmt: skip
values = st.sampled_from(["", "7", "1794710248231", "-3", "soon", "a\x01TIMER_DELAY_MS\x017", "9" * 40, "é"])
pieces = st.one_of(st.tuples(names, st.just("\x01"), values).map("".join), names, values)


@settings(max_examples=examples(400), deadline=None, derandomize=True, database=None)
@given(st.lists(pieces, max_size=8).map("\x02".join))
def test_what_a_timer_record_asks_for_is_what_decoding_it_would_find(text: str) -> None:
    """Equal names, empty values, names that end or begin like others, pieces without a value, no last separator."""
    known = decode_properties(text)
    asked = requested_time_ms(known, START_MS)
    expected = asked if isinstance(asked, int) and any(name in known for name in TIMER_REQUESTS) else 0
    with tempfile.TemporaryDirectory() as folder:
        reader, size_bytes = reader_of(Path(folder), timer_record(b"b", text, "127.0.0.1"))
        assert own_times(reader, [30], [size_bytes]) == [expected if 0 < expected < 10**15 else 0]
        request = read_request(reader, 30, size_bytes)
        assert request is not None
        out_ms = natural_number(known.get("TIMER_OUT_MS", "")) or 0
        assert request[2:] == (out_ms, known.get("REAL_TOPIC", ""), "TIMER_DEL_UNIQKEY" in known)
        (wish,) = read_wishes(reader, [(30, size_bytes, 0)])
        says_all = "TIMER_OUT_MS" in known and "REAL_TOPIC" in known
        if not says_all or request.is_mark:
            assert wish == b""
        elif wish:  # what has the same wish has the same place on the wheel
            assert wish.decode() == f"{known['TIMER_OUT_MS']}\x01{known['REAL_TOPIC']}"
        else:
            assert "TIMER_DEL_UNIQKEY" in text


def test_a_second_empty_time_does_not_take_a_message_to_the_slot_of_another(bench: Bench) -> None:
    """Of equal names the last one that has a value counts; the texts of these messages end alike."""
    same_end = "TIMER_OUT_MS\x01\x02REAL_TOPIC\x01Orders\x02REAL_QID\x010\x02"
    for second in (3, 5):
        text = f"TIMER_OUT_MS\x01{START_MS + second * 1000}\x02" + same_end
        bench.host.append(SystemTopic.TIMER, 0, b"%d" % second, text.encode(), tags_code=0, keys=None, unique_key=None)
    bench.tick()
    bench.run(4500)
    assert bench.host.bodies() == ["3"]


def test_the_time_is_found_in_a_record_with_long_addresses_too(tmp_path: Path) -> None:
    v6 = SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
    record = timer_record(b"body", {"TIMER_DELAY_MS": "4500"}, "::1", sys_flag=v6)
    assert own_time(tmp_path, record) == START_MS + 4500


def test_a_message_that_has_rolled_keeps_its_millisecond_or_the_end_of_its_tick(tmp_path: Path) -> None:
    """With a delay its own time is not known: the time of storing is that of the last roll."""
    bench = Bench(tmp_path, slots_total=SLOTS_TOTAL)
    due_ms = START_MS + 5 * DAY_MS
    bench.host.send(b"time", TIMER_DELIVER_MS=str(due_ms))
    bench.host.send(b"delay", TIMER_DELAY_MS=str(5 * DAY_MS))
    bench.tick()
    while bench.clock.now_ms() < due_ms - 7_200_000:
        bench.jump(3_600_000)
    bench.clock.set_wall(due_ms - 1000)
    bench.run(2000, step_ms=5)
    assert bench.timer.stats.rolled >= 4
    assert {message.body: message.store_time_ms for message in bench.host.messages()} == {
        b"time": due_ms,
        b"delay": due_ms // 1000 * 1000 + 1000,
    }


def test_messages_that_are_not_in_memory_wait_for_their_millisecond_too(bench: Bench) -> None:
    send_at(bench, 100, 300, 301, 302, 500)
    bench.tick()
    bench.host.is_resident = lambda offset: False  # type: ignore[method-assign]
    for millisecond in range(0, 600, 1):
        go_to(bench, millisecond)
    assert {int(m.body): m.store_time_ms - TICK_MS for m in bench.host.messages()} == {
        number: number for number in (100, 300, 301, 302, 500)
    }


def test_a_portion_that_a_worker_reads_is_delivered_though_the_next_one_may_be_larger(tmp_path: Path) -> None:
    bench = Bench(tmp_path, workers=Later())
    assert isinstance(bench.workers, Later)
    send_at(bench, *[300] * 200)
    bench.tick()
    bench.host.is_resident = lambda offset: False  # type: ignore[method-assign]
    for step in range(60):
        bench.clock.set_wall(TICK_MS + 200 + step * 5)
        bench.timer.tick(bench.clock.now_ms(), 10 + step % 3)
        bench.workers.run()
    assert len(bench.host.bodies()) == 200
    assert bench.timer._outlet.cold_reads == bench.timer._preview.cold_reads == 200


# -------------------------------------------------------------------------------------------------------------- recall


def test_a_mark_that_comes_in_the_tick_of_its_message_takes_effect(bench: Bench) -> None:
    send_at(bench, 100, 300, 500, 700, 900)
    go_to(bench, 200)
    assert bench.host.bodies() == ["100"]
    mark(bench, 500)
    go_to(bench, 400)
    mark(bench, 700)
    assert bench.timer.metrics.counts == {"Orders": 2}
    for millisecond in (450, 699, 899):
        go_to(bench, millisecond)
        assert bench.timer.metrics.counts == {"Orders": 1}
    assert bench.host.bodies() == ["100", "300"]
    go_to(bench, 1000)
    assert bench.host.bodies() == ["100", "300", "900"]
    assert bench.timer.stats.recalled == 2
    assert bench.timer.metrics.counts == {"Orders": 0}


def test_a_mark_is_waited_for_that_was_stored_in_time_and_is_not_dispatched_yet(bench: Bench) -> None:
    """As under SYNC_FLUSH, where a message is dispatched when it is durable. What is due meanwhile comes late."""
    send_at(bench, 299, 300, 301)
    go_to(bench, 250)
    bench.host.dispatched = bench.host.log_max_offset
    bench.clock.set_wall(TICK_MS + 299)
    mark(bench, 300)
    for millisecond in (299, 300, 305):
        go_to(bench, millisecond)
        assert bench.host.bodies() == []
        assert bench.timer.is_waiting
    bench.host.dispatched = None
    bench.tick()
    assert bench.host.bodies() == ["299", "301"]
    assert bench.timer.stats.recalled == 1


def test_a_mark_is_waited_for_that_is_behind_more_than_a_portion(bench: Bench) -> None:
    send_at(bench, 300)
    go_to(bench, 100)
    for _ in range(100):
        bench.host.send(b"later", TIMER_DELAY_SEC="60")
    mark(bench, 300)
    bench.clock.set_wall(TICK_MS + 300)
    while bench.timer.tick(bench.clock.now_ms(), 3):
        pass
    assert bench.timer.stats.recalled == 1
    assert bench.host.bodies() == []


def test_an_intake_that_never_ends_delays_a_slot_and_does_not_stop_it(bench: Bench) -> None:
    """More comes at each turn than a portion takes: what was there at some moment is reached all the same."""
    send_at(bench, *range(100, 900, 100))
    go_to(bench, 0)
    for millisecond in range(5, 1000, 5):
        for _ in range(9):
            bench.host.send(b"later", TIMER_DELAY_SEC="60")
        bench.clock.set_wall(TICK_MS + millisecond)
        bench.timer.tick(bench.clock.now_ms(), 4)
    late = [message.store_time_ms - TICK_MS - int(message.body) for message in bench.host.messages()]
    assert len(late) == 8
    assert 0 <= min(late) <= max(late) <= 50


# -------------------------------------------------------------------------------------------- stops, crashes, the clock


def as_apache_finds_it(bench: Bench, tick_ms: int = TICK_MS) -> tuple[list[str], int]:
    """What its recovery makes of the log, and its walk of the chain: the bodies of the slot, and where it goes on.

    Each unit of the log becomes the last of its slot, and a chain is read to a unit without a predecessor. It goes on
    behind the message of the last unit of all. (Section 12 of the facts on the store.)
    """
    log, last, newest = bench.timer.log, {}, -1
    position = log.begin
    while position < log.end:
        unit = log.read(position)
        assert unit is not None
        last[unit.slot_time_ms], newest = position, position
        position = log.next_position(position)
    bodies: list[str] = []
    deleted: set[str] = set()
    position = last[tick_ms]
    while position != -1:
        unit = log.read(position)
        assert unit is not None
        message = message_of(bench, unit)
        if unit.is_delete:
            deleted.add(message.properties.get("TIMER_DEL_UNIQKEY", ""))
        elif message.properties["UNIQ_KEY"] not in deleted:
            bodies.insert(0, message.body.decode())
        position = unit.previous
    unit = log.read(newest)
    assert unit is not None
    return bodies, message_of(bench, unit).queue_offset + 1


def message_of(bench: Bench, unit: TimerUnit):  # type: ignore[no-untyped-def]
    record = bench.host.read_record(unit.physical_offset)
    assert record is not None
    return decode_record(record)


@pytest.mark.parametrize("behind", ["nothing", "another slot", "a message of the tick", "a delivered one of the tick"])
@pytest.mark.parametrize("file_bytes", [10_400, *range(68 + 52, 68 + 8 * 52, 52)])
@pytest.mark.parametrize("stopped_at", [50, 200, 450, 950])
def test_a_stop_in_the_middle_of_a_slot_leaves_exactly_the_rest(
    tmp_path: Path, stopped_at: int, file_bytes: int, behind: str
) -> None:
    """To this program and to Apache's, wherever the files of the timer log end and whatever message is the newest."""
    bench = Bench(tmp_path, mapped_file_size_timer_log=file_bytes)
    send_at(bench, 700, 100, 900, 300, 500, 600, 800, 400)
    go_to(bench, 0)
    mark(bench, 600)
    bench.tick()
    if behind == "another slot":
        bench.host.send(b"far", TIMER_DELAY_SEC="60")
    if behind == "a message of the tick":
        send_at(bench, 980)
    if behind == "a delivered one of the tick":
        send_at(bench, 40)
    go_to(bench, stopped_at)
    before = bench.host.bodies()
    bench.timer.close(bench.clock.now_ms())
    bench.timer = bench.opened()
    newest = [980] if behind == "a message of the tick" else []
    rest = [n for n in (700, 100, 900, 300, 500, 800, 400, *newest) if n > stopped_at]
    assert as_apache_finds_it(bench) == ([str(n) for n in rest], bench.timer.queue_offset)
    log = bench.timer.log
    for base in log.bases[:-1]:
        offsets = [unit.physical_offset for at in range(base, base + file_bytes - 67, 52) if (unit := log.read(at))]
        assert offsets[-1] == max(offsets), "a file goes when the message of its last unit is gone"
    for millisecond in range(stopped_at + 10, 1200, 10):
        go_to(bench, millisecond)
    assert bench.host.bodies()[len(before) :] == [str(n) for n in sorted(rest)]
    assert len(set(bench.host.bodies())) == len(bench.host.bodies())
    assert bench.timer.metrics.counts == {"Orders": int(behind == "another slot")}
    bench.run(60_000)
    assert ("far" in bench.host.bodies()) is (behind == "another slot")
    assert bench.timer.metrics.counts == {"Orders": 0}


def test_stops_at_every_few_milliseconds_of_a_slot_repeat_and_lose_nothing(bench: Bench) -> None:
    send_at(bench, *range(20, 1001, 20))
    bench.tick()
    for millisecond in range(0, 1100, 30):
        go_to(bench, millisecond)
        if millisecond % 4 == 0:
            send_at(bench, millisecond + 15)
            bench.tick()
        started_again(bench)
    go_to(bench, 1200)
    bodies = [int(body) for body in bench.host.bodies()]
    assert Counter(bodies) == Counter([*range(20, 1001, 20), *(n + 15 for n in range(0, 1100, 60))])
    assert bench.timer.metrics.counts == {"Orders": 0}


def test_a_wheel_that_is_lost_after_a_stop_in_the_middle_of_a_slot_is_made_again_with_the_rest(bench: Bench) -> None:
    send_at(bench, 100, 300, 500)
    go_to(bench, 300)
    bench.timer.close(bench.clock.now_ms())
    (bench.host.config.path / "timerwheel").unlink()
    bench.timer = bench.opened()
    send_at(bench, 400)
    go_to(bench, 450)
    go_to(bench, 1000)
    assert bench.host.bodies() == ["100", "300", "400", "500"]


def test_a_crash_in_the_middle_of_a_slot_repeats_what_it_had_delivered_once(bench: Bench) -> None:
    send_at(bench, 100, 300, 500, 700)
    go_to(bench, 300)
    bench.timer.flush(bench.clock.now_ms())
    bench.crash_without_journal()
    bench.tick()
    assert bench.host.bodies() == ["100", "300", "100", "300"]
    go_to(bench, 500)
    started_again(bench)
    go_to(bench, 1000)
    assert bench.host.bodies() == ["100", "300", "100", "300", "500", "700"]


def test_a_clock_set_back_an_hour_in_the_middle_of_a_slot_repeats_and_parks_nothing(bench: Bench) -> None:
    """What is not done of the slot waits for its time to come again; what is sent meanwhile does not wait for it."""
    send_at(bench, 100, 300, 500)
    go_to(bench, 300)
    go_to(bench, 300 - 3_600_000)
    bench.host.send(b"soon", TIMER_DELAY_MS="2500")
    send_at(bench, 200)
    bench.run(2499, step_ms=1)
    assert bench.host.bodies() == ["100", "300"]
    bench.run(1, step_ms=1)
    assert bench.host.bodies() == ["100", "300", "soon"]
    started_again(bench)
    assert as_apache_finds_it(bench)[0] == ["500", "200"]
    bench.run(3_590_000, step_ms=5000)
    go_to(bench, 199)
    assert bench.host.bodies() == ["100", "300", "soon"]
    for millisecond in (200, 499, 500, 1000):
        go_to(bench, millisecond)
    assert {body: bench.host.messages()[at].store_time_ms - TICK_MS for at, body in enumerate(bench.host.bodies())} == {
        "100": 300,
        "300": 300,
        "soon": 300 - 3_600_000 + 2500,
        "200": 200,
        "500": 500,
    }
    assert bench.timer.metrics.counts == {"Orders": 0}


def test_two_slots_that_are_put_back_before_a_flush_both_keep_exactly_their_rest(bench: Bench) -> None:
    """The clock is set back in the middle of one slot, into another; there the program stops."""
    send_at(bench, -2900, -2100, 100, 300)
    bench.tick()
    bench.clock.set_wall(TICK_MS - 2500)
    while bench.timer.tick(bench.clock.now_ms()):
        pass
    for millisecond in (200, -2500):  # the first of each is delivered
        bench.clock.set_wall(TICK_MS + millisecond)
        while bench.timer.tick(bench.clock.now_ms()):
            pass
    assert bench.host.bodies() == ["-2900", "-2100", "100"]
    bench.host.send(b"again", TIMER_DELIVER_MS=str(TICK_MS - 2400))
    bench.host.send(b"last", TIMER_DELIVER_MS=str(TICK_MS - 2050))
    bench.tick()
    bench.clock.set_wall(TICK_MS - 2300)
    while bench.timer.tick(bench.clock.now_ms()):
        pass
    started_again(bench)
    assert as_apache_finds_it(bench)[0] == ["300"]
    assert as_apache_finds_it(bench, TICK_MS - 3000)[0] == ["last"]
    for millisecond in (-2000, 200, 300, 1000):
        go_to(bench, millisecond)
    assert bench.host.bodies() == ["-2900", "-2100", "100", "again", "last", "300"]


def test_a_slot_that_was_put_back_and_then_stands_behind_another_one_keeps_its_rest(bench: Bench) -> None:
    """Its one unit is the newest of the log when the second slot is put back, and is repeated behind that one's."""
    send_at(bench, -2900, -2100, 100, 300)
    bench.timer.config.change({"timerStopDequeue": "true"})
    bench.tick()
    log, wheel, cuts = bench.timer.log, bench.timer.wheel, bench.timer._cuts
    for tick_ms in (TICK_MS, TICK_MS - 3000):
        first = log.read(wheel.get(tick_ms).first_position)
        assert first is not None
        put_back(log, wheel, wheel.get(tick_ms), {first.physical_offset}, cuts)
    bench.timer.flush(bench.clock.now_ms())
    assert as_apache_finds_it(bench) == (["300"], 4)
    assert as_apache_finds_it(bench, TICK_MS - 3000) == (["-2100"], 4)


def test_a_crash_before_a_slot_that_is_put_back_is_on_the_wheel_leaves_it_as_it_was(bench: Bench) -> None:
    """Its new units are in the log: they are passed over, and counted by nobody."""
    send_at(bench, 100, 200, 300, 400, 500)
    bench.host.send(b"far", topic="Far", TIMER_DELAY_SEC="60")
    go_to(bench, 0)
    bench.timer.flush(bench.clock.now_ms())
    before = bench.timer.wheel.get(TICK_MS)
    go_to(bench, 250)
    bench.timer._put_back()
    bench.timer.log.write()
    bench.crash_without_journal()
    assert bench.timer.wheel.get(TICK_MS) == before
    assert bench.timer.recount(100_000)
    assert bench.timer.metrics.counts == {"Orders": 5, "Far": 1}
    bench.run(70_000)
    assert bench.host.bodies() == ["100", "200", "100", "200", "300", "400", "500"]
    assert bench.timer.metrics.counts == {"Orders": 0, "Far": 0}


def test_units_that_were_put_back_before_a_crash_do_not_bring_the_intake_back(bench: Bench) -> None:
    """The last unit that reached the log is an older message's than the newest that was taken in."""
    send_at(bench, 100, 500)
    go_to(bench, 0)
    bench.timer.flush(bench.clock.now_ms())
    bench.clock.set_wall(TICK_MS + 150)
    bench.host.send(b"far", topic="Far", TIMER_DELAY_SEC="60")
    bench.timer.tick(bench.clock.now_ms())
    bench.timer._put_back()
    del bench.timer.log._pending[UNIT_BYTES:]
    bench.timer.log.write()
    bench.crash()
    assert bench.recovered.queue_offset == 3
    bench.run(70_000)
    assert bench.host.bodies("Far") == ["far"]


def test_a_crash_after_a_slot_was_put_back_and_grew_delivers_each_message_once(bench: Bench) -> None:
    """What came later is chained to units that stand in the log twice: the old ones are in its chain, and the new."""
    send_at(bench, 100, 300, 500)
    go_to(bench, 0)
    bench.timer.flush(bench.clock.now_ms())
    for millisecond in (150, 150 - 3_600_000):
        bench.clock.set_wall(TICK_MS + millisecond)
        bench.timer.tick(bench.clock.now_ms())
    assert bench.host.bodies() == ["100"]
    send_at(bench, 700)
    bench.timer.tick(bench.clock.now_ms())
    bench.crash_without_journal()
    for millisecond in (0, 150, 600, 1000):
        go_to(bench, millisecond)
    assert bench.host.bodies() == ["100", "100", "300", "500", "700"]


def test_a_clock_set_back_within_the_tick_delivers_nothing_before_its_time_by_the_new_clock(bench: Bench) -> None:
    send_at(bench, 100, 600, 900)
    go_to(bench, 800)
    go_to(bench, 200)
    send_at(bench, 300, 700)
    go_to(bench, 299)
    assert bench.host.bodies() == ["100", "600"]
    go_to(bench, 300)
    go_to(bench, 899)
    assert bench.host.bodies() == ["100", "600", "300", "700"]
    go_to(bench, 1000)
    assert bench.host.bodies() == ["100", "600", "300", "700", "900"]


def test_a_clock_set_forward_an_hour_in_the_middle_of_a_slot_delivers_what_is_due(bench: Bench) -> None:
    send_at(bench, 100, 900, 500)
    bench.host.send(b"between", TIMER_DELAY_SEC="1800")
    bench.host.send(b"after", TIMER_DELAY_SEC="7200")
    go_to(bench, 300)
    go_to(bench, 3_600_000)
    assert bench.host.bodies() == ["100", "500", "900", "between"]
    assert bench.timer.read_time_ms == TICK_MS + 3_600_000
    go_to(bench, 0)  # and back
    send_at(bench, 700)
    go_to(bench, 1000)
    assert bench.host.bodies() == ["100", "500", "900", "between", "700"]


# ------------------------------------------------------------------------------------------------------------- figures


def test_a_recount_beside_a_slot_under_delivery_is_exact(bench: Bench) -> None:
    send_at(bench, 100, 300, 500, 700)
    bench.host.send(b"far", topic="Far", TIMER_DELAY_SEC="60")
    go_to(bench, 0)
    mark(bench, 700)
    for millisecond, waiting in ((150, 2), (350, 1), (600, 0)):
        go_to(bench, millisecond)
        bench.timer.metrics.add("Orders", 1000, 0)
        assert bench.timer.recount(100_000)
        assert bench.timer.metrics.counts == {"Orders": waiting, "Far": 1}
    started_again(bench)
    assert bench.timer.recount(100_000)
    go_to(bench, 1000)
    assert bench.host.bodies() == ["100", "300", "500"]
    assert bench.timer.metrics.counts == {"Orders": 0, "Far": 1}


def test_what_was_delivered_of_a_slot_makes_room_in_it(tmp_path: Path) -> None:
    bench = Bench(tmp_path, timer_congest_num_each_slot=3)
    send_at(bench, 100, 200, 600, 700)
    go_to(bench, 50)
    assert bench.timer.is_congested(TICK_MS)
    go_to(bench, 100)
    assert not bench.timer.is_congested(TICK_MS)


def test_the_next_thing_to_do_is_the_next_message_or_the_next_tick(bench: Bench) -> None:
    send_at(bench, 100, 700)
    go_to(bench, -300)
    assert bench.timer.next_due_ms(TICK_MS - 300) == TICK_MS
    for now, following in ((0, 100), (99, 100), (100, 700), (700, 1000), (1000, 2000)):
        go_to(bench, now)
        assert bench.timer.next_due_ms(TICK_MS + now) == TICK_MS + following
