"""Delivery times end to end through the broker's handlers, on a real store and a fake clock."""

from __future__ import annotations

import base64
import errno
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

import golden_stores
from broker.harness import ROUNDS, AtOnce, Bench, Link, UnsyncedFiles, send_fields
from contrailmq.broker.delayed.timers import PORTION, STEP_MS, RecallHandle
from contrailmq.broker.state.statistics import DELAY
from contrailmq.message import StoredMessage, SystemTopic
from contrailmq.store.base.clock import ManualClock
from contrailmq.store.base.errors import StoreIOError
from contrailmq.store.timer import TimerStore, decode_checkpoint
from contrailmq.wire.codes import ResponseCode

GOLDEN_SIZES: dict[str, object] = {
    "mapped_file_size_commit_log": 131_072,
    "mapped_file_size_consume_queue": 1200,
    "max_hash_slot_num": 100,
    "max_index_num": 400,
    "mapped_file_size_timer_log": 1040,
}


class TimerBench(Bench):
    def __init__(
        self,
        path: Path,
        *,
        now_ms: int = 0,
        clock: ManualClock | None = None,
        settings: dict[str, str] | None = None,
        **store: object,
    ) -> None:
        """With a `clock` of an earlier bench this is another process on the same machine."""
        if now_ms:
            clock = ManualClock(now_ms)
        settings = {"recallMessageEnable": "true"} | (settings or {})
        super().__init__(path, settings=settings, clock=clock, worker=AtOnce(), **store)
        for service in self.services:
            service.start()

    @property
    def timer(self) -> TimerStore:
        return self.timers.timer

    def run_ms(self, milliseconds: int) -> None:
        end_ms = self.clock.now_ms() + milliseconds
        while True:
            self.timers.tick(self.store.store_clock.look())
            self.settle()
            if self.clock.now_ms() >= end_ms:
                break
            self.clock.advance(min(self.timers.interval_ms, end_ms - self.clock.now_ms()))

    def messages(self, topic: str = "T", queue_id: int = 0) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        while part := self.store.get(topic, queue_id, len(found), 1000):
            found += part
        return found

    def close(self) -> None:
        self.timers.stop()
        super().close()

    def restarted(self, path: Path) -> TimerBench:
        now_ms = self.clock.now_ms()
        self.let_go()
        self.store.abandon()
        self.loop.close()
        self._worker.shutdown()
        return TimerBench(path, now_ms=now_ms)


@pytest.fixture
def timer_bench(tmp_path: Path) -> Iterator[TimerBench]:
    made = TimerBench(tmp_path)
    yield made
    made.close()


@pytest.mark.parametrize(
    "properties",
    [{"TIMER_DELAY_SEC": "5"}, {"TIMER_DELAY_MS": "5000"}, {"TIMER_DELIVER_MS": "1700000005000"}],
    ids=["seconds", "milliseconds", "time"],
)
def test_each_way_to_ask_for_a_time_is_kept_to_the_millisecond(
    timer_bench: TimerBench, properties: dict[str, str]
) -> None:
    bench = timer_bench
    bench.clock.advance(345)
    if "TIMER_DELIVER_MS" in properties:
        properties = {"TIMER_DELIVER_MS": "1700000005345"}
    answer = bench.send("T", b"m", properties=properties | {"UNIQ_KEY": "K"}, e="2")
    assert answer.code == 0
    assert answer.ext["queueId"] == "2"
    bench.run_ms(4999)
    assert bench.messages(queue_id=2) == []
    bench.run_ms(1001)
    (message,) = bench.messages(queue_id=2)
    assert message.store_time_ms == 1_700_000_005_345


@pytest.mark.parametrize(
    ("precision_ms", "tick_ms"), [(100, 100), (200, 200), (300, 200), (500, 500), (700, 500), (1000, 1000), (50, 100)]
)
def test_whatever_the_precision_a_timer_that_waits_in_time_is_not_late(
    tmp_path: Path, precision_ms: int, tick_ms: int
) -> None:
    """Precisions that the reference does not know are brought down to one that it does."""
    bench = TimerBench(tmp_path, timer_precision_ms=precision_ms)
    assert bench.timer.precision_ms == tick_ms
    start_ms = bench.clock.now_ms()
    due = {b"%d" % delay_ms: start_ms + delay_ms for delay_ms in range(1_000, 3_000, 137)}
    for body, due_ms in due.items():
        bench.send("T", body, properties={"TIMER_DELIVER_MS": str(due_ms), "UNIQ_KEY": f"K{due_ms}"})
    bench.run_ms(4_500)
    assert {message.body: message.store_time_ms for message in bench.messages()} == due
    slots = [int(message.properties["TIMER_OUT_MS"]) for message in bench.messages()]
    assert {slot_ms % tick_ms for slot_ms in slots} == {0}
    bench.close()


def test_timers_that_are_due_one_after_the_other_are_gathered_for_some_milliseconds(timer_bench: TimerBench) -> None:
    """A wheel that wakes for each of them would leave a busy broker no time."""
    bench = timer_bench
    for number in range(900):
        bench.send("T", b"%d" % number, properties={"TIMER_DELIVER_MS": str(1_700_000_002_001 + number)})
    bench.run_ms(1999)
    wakes = 0
    end_ms = bench.clock.now_ms() + 1000
    while bench.clock.now_ms() < end_ms:
        bench.timers.tick(bench.clock.now_ms())
        bench.settle()
        bench.clock.advance(bench.timers.interval_ms)
        wakes += 1
    late = [message.store_time_ms - 1_700_000_002_001 - int(message.body) for message in bench.messages()]
    assert len(late) == 900
    assert 0 <= min(late) <= max(late) <= STEP_MS
    assert wakes <= 1000 // STEP_MS + 10


@pytest.mark.parametrize("waiting", [0, 1])
def test_an_idle_wheel_is_looked_at_ten_times_a_second(timer_bench: TimerBench, waiting: int) -> None:
    """Also while a slot is open in which a message waits."""
    bench = timer_bench
    if waiting:
        bench.send("T", b"m", properties={"TIMER_DELIVER_MS": "1700000005700"})
    bench.run_ms(5000)
    wakes = 0
    while bench.clock.now_ms() < 1_700_000_005_700:
        bench.timers.tick(bench.clock.now_ms())
        bench.settle()
        bench.clock.advance(bench.timers.interval_ms)
        wakes += 1
    assert bench.messages() == []
    assert wakes <= 7
    bench.run_ms(0)
    assert len(bench.messages()) == waiting


def test_the_largest_message_is_delivered_and_does_not_block_those_behind_it(tmp_path: Path) -> None:
    """RocketMQ #9654. Body and properties are as large as can be: those of the timer do not fit beside them."""
    bench = TimerBench(tmp_path, max_message_size=100_000)
    due = {"TIMER_DELIVER_MS": "1700000005000"}
    bench.send("T", b"", properties=due | {"UNIQ_KEY": "K0", "x": "y"})
    room = 32_767 - len(bench.messages(SystemTopic.TIMER)[0].encoded_properties)
    answer = bench.send("T", bytes(100_000), properties=due | {"UNIQ_KEY": "K1", "x": "y" * (1 + room)})
    assert answer.code == 0, answer.remark
    assert len(bench.messages(SystemTopic.TIMER)[1].encoded_properties) == 32_767
    bench.send("T", bytes(100_000), properties=due | {"UNIQ_KEY": "K2"})
    bench.send("T", b"behind", properties=due | {"UNIQ_KEY": "K3"})
    bench.run_ms(6_000)
    assert [len(message.body) for message in bench.messages()] == [0, 100_000, 100_000, 6]
    assert bench.timer.stats.undeliverable == 0
    bench.close()


def test_a_time_in_the_past_is_delivered_at_once(timer_bench: TimerBench) -> None:
    timer_bench.send("T", b"m", properties={"TIMER_DELIVER_MS": "1600000000000", "UNIQ_KEY": "K"})
    (message,) = timer_bench.messages()
    assert "REAL_TOPIC" not in message.properties


def test_a_delay_level_wins_over_a_delivery_time(timer_bench: TimerBench) -> None:
    timer_bench.send("T", b"m", properties={"DELAY": "1", "TIMER_DELAY_SEC": "99", "UNIQ_KEY": "K"})
    assert timer_bench.messages(SystemTopic.TIMER) == []
    assert len(timer_bench.messages(SystemTopic.SCHEDULE)) == 1


@pytest.mark.parametrize(
    ("properties", "code", "text"),
    [
        ({"TIMER_DELAY_SEC": "259201"}, 13, "a delay of 259201 s is over the limit of 259200 s"),
        ({"TIMER_DELAY_SEC": "9223372036854775807"}, 13, "is over the limit of 259200 s"),  # RocketMQ #10872
        ({"TIMER_DELAY_MS": "9223372036854775807"}, 13, "is over the limit of 259200 s"),
        ({"TIMER_DELIVER_MS": "soon"}, 13, "TIMER_DELIVER_MS is 'soon': a whole number is needed"),
    ],
)
def test_a_time_that_cannot_be_is_refused_with_the_reason(
    timer_bench: TimerBench, properties: dict[str, str], code: int, text: str
) -> None:
    answer = timer_bench.send("T", b"m", properties=properties | {"UNIQ_KEY": "K"})
    assert answer.code == code
    assert text in (answer.remark or "")


def test_without_the_wheel_a_delivery_time_is_refused(tmp_path: Path) -> None:
    bench = TimerBench(tmp_path, timer_wheel_enable=False)
    answer = bench.send("T", b"m", properties={"TIMER_DELAY_SEC": "5", "UNIQ_KEY": "K"})
    assert (answer.code, "timerWheelEnable" in (answer.remark or "")) == (1, True)
    bench.run_ms(1000)
    bench.close()


def test_a_full_slot_refuses_more(tmp_path: Path) -> None:
    bench = TimerBench(tmp_path, timer_congest_num_each_slot=3)
    codes = []
    for number in range(6):
        answer = bench.send("T", b"%d" % number, properties={"TIMER_DELIVER_MS": "1700000060000", "UNIQ_KEY": "K"})
        codes.append(answer.code)
        bench.run_ms(0)
    assert codes == [0, 0, 0, 0, 1, 1]
    assert "timerCongestNumEachSlot" in (answer.remark or "")
    bench.close()


def test_a_recall_is_taken_for_a_slot_that_takes_no_timers_any_more(tmp_path: Path) -> None:
    bench = TimerBench(tmp_path, timer_congest_num_each_slot=1)
    handles = []
    for number in range(2):
        properties = {"TIMER_DELIVER_MS": "1700000060000", "UNIQ_KEY": f"K{number}"}
        handles.append(bench.send("T", b"%d" % number, properties=properties).ext["recallHandle"])
        bench.run_ms(0)
    full = {"TIMER_DELIVER_MS": "1700000060000", "UNIQ_KEY": "K9"}
    assert bench.send("T", b"9", properties=full).code == 1
    assert bench.ask(370, {"topic": "T", "recallHandle": handles[0]}).code == 0
    bench.run_ms(0)
    assert bench.send("T", b"9", properties=full).code == 0  # there is room again
    bench.run_ms(61_000)
    assert [message.body for message in bench.messages()] == [b"1", b"9"]
    bench.close()


# ------------------------------------------------------------------------------------------------------------ recall


def test_a_recalled_message_is_not_delivered(timer_bench: TimerBench) -> None:
    bench = timer_bench
    answer = bench.send("T", b"m", properties={"TIMER_DELAY_SEC": "60", "UNIQ_KEY": "K1"})
    bench.send("T", b"other", properties={"TIMER_DELAY_SEC": "60", "UNIQ_KEY": "K2"})
    handle = answer.ext["recallHandle"]
    assert base64.urlsafe_b64decode(handle) == b"v1 T b 1700000059001 K1"
    bench.run_ms(5000)
    recalled = bench.ask(370, {"producerGroup": "pg", "topic": "T", "recallHandle": handle})
    assert (recalled.code, recalled.ext["msgId"]) == (0, "K1")
    mark = bench.messages(SystemTopic.TIMER)[-1]
    assert mark.body == b"0"
    assert mark.properties["TIMER_DEL_UNIQKEY"] == "K1"
    assert mark.properties["TIMER_OUT_MS"] == bench.messages(SystemTopic.TIMER)[0].properties["TIMER_OUT_MS"]
    bench.run_ms(60_000)
    assert [m.body for m in bench.messages()] == [b"other"]
    assert bench.timers.pending() == {}


def test_with_synchronous_flush_a_recall_is_confirmed_when_its_mark_is_durable(tmp_path: Path) -> None:
    bench = TimerBench(tmp_path, flush_disk_type="SYNC_FLUSH")
    bench.store.request_flush = lambda: None  # type: ignore[method-assign]
    fields = send_fields("T", properties={"TIMER_DELAY_SEC": "60", "UNIQ_KEY": "K1"})
    assert bench.tell(310, fields, b"m") == []
    bench.node.durable(bench.store.log_max_offset)
    (sent,) = bench.link.take()
    recall = {"producerGroup": "pg", "topic": "T", "recallHandle": sent.ext["recallHandle"]}
    assert bench.tell(370, recall) == []
    bench.node.durable(bench.store.log_max_offset - 1)
    assert bench.link.take() == []
    bench.node.durable(bench.store.log_max_offset)
    (answer,) = bench.link.take()
    assert (answer.code, answer.ext["msgId"]) == (0, "K1")
    assert bench.tell(370, recall) == []
    bench.node.durable(-1)
    (answer,) = bench.link.take()
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    bench.close()


def test_with_slaves_that_are_waited_for_a_recall_is_confirmed_when_they_have_its_mark(tmp_path: Path) -> None:
    bench = TimerBench(tmp_path, broker_role="SYNC_MASTER", in_sync_replicas=2, min_in_sync_replicas=2)
    replicas, reached = bench.node.replicas, 0
    replicas.reached_by = lambda _slaves: reached
    replicas.slaves_in_sync = lambda: 1
    replicas.look()
    bench.tell(310, send_fields("T", properties={"TIMER_DELAY_SEC": "60", "UNIQ_KEY": "K1"}), b"m")
    reached = bench.store.log_max_offset
    replicas.advanced()
    (sent,) = bench.link.take()
    recall = {"producerGroup": "pg", "topic": "T", "recallHandle": sent.ext["recallHandle"]}
    assert bench.tell(370, recall) == []
    reached = bench.store.log_max_offset
    replicas.advanced()
    (answer,) = bench.link.take()
    assert (answer.code, answer.ext["msgId"]) == (0, "K1")
    replicas.slaves_in_sync = lambda: 0
    replicas.look()
    (answer,) = bench.tell(370, recall)
    assert (answer.code, answer.remark) == (ResponseCode.SYSTEM_ERROR, replicas.shortage)
    bench.close()


def test_a_recall_is_taken_and_holds_until_the_slot_of_its_message_is_begun_and_not_after(
    timer_bench: TimerBench,
) -> None:
    """The mark of the last moment is in the log, and not in its queue yet, when its message is due."""
    bench = timer_bench
    handles = []
    for number, due_ms in enumerate((1_700_000_005_001, 1_700_000_005_001, 1_700_000_005_600)):
        properties = {"TIMER_DELIVER_MS": str(due_ms), "UNIQ_KEY": f"K{number}"}
        handles.append(bench.send("T", b"%d" % number, properties=properties).ext["recallHandle"])
    bench.run_ms(5000)
    assert bench.ask(370, {"topic": "T", "recallHandle": handles[0]}, settle=False).code == 0
    bench.clock.advance(1)
    bench.timers.tick(bench.clock.now_ms())
    bench.settle()
    assert [message.body for message in bench.messages()] == [b"1"]
    refused = bench.ask(370, {"topic": "T", "recallHandle": handles[2]})
    assert (refused.code, "due in 0 ms: too late" in (refused.remark or "")) == (604, True)
    bench.run_ms(1000)
    assert [message.body for message in bench.messages()] == [b"1", b"2"]
    assert bench.timer.stats.recalled == 1


def test_a_message_can_be_recalled_with_its_own_time_until_it_is_due(timer_bench: TimerBench) -> None:
    """As clients did before there were handles: a message that names the other's key, with the same time."""
    bench = timer_bench
    for number in range(2):
        properties = {"TIMER_DELIVER_MS": "1700000005600", "UNIQ_KEY": f"K{number}"}
        bench.send("T", b"%d" % number, properties=properties)
    mark = {"TIMER_DELIVER_MS": "1700000005600", "UNIQ_KEY": "M", "TIMER_DEL_UNIQKEY": "K0"}
    bench.run_ms(5599)
    assert bench.send("T", b"0", properties=mark).code == 0
    bench.run_ms(1)
    assert [message.body for message in bench.messages()] == [b"1"]
    refused = bench.send("T", b"0", properties=mark | {"TIMER_DEL_UNIQKEY": "K1"})
    assert (refused.code, "was due 0 ms ago" in (refused.remark or "")) == (13, True)
    bench.run_ms(1000)
    assert bench.timers.pending() == {}


@pytest.mark.parametrize(
    ("handle", "topic", "code"),
    [
        ("!!!", "T", 604),
        (base64.urlsafe_b64encode(b"v2 T b 1700000059001 K1").decode(), "T", 604),
        (RecallHandle("Other", "b", 1_700_000_059_001, "K").encode(), "T", 604),
        (RecallHandle("T", "elsewhere", 1_700_000_059_001, "K").encode(), "T", 604),
        (RecallHandle("T", "b", 1_699_999_999_001, "K").encode(), "T", 604),
        (RecallHandle("T", "b", 1_800_000_000_001, "K").encode(), "T", 604),
        (RecallHandle("Nowhere", "b", 1_700_000_059_001, "K").encode(), "Nowhere", 17),
    ],
)
def test_a_recall_that_cannot_be_is_refused(timer_bench: TimerBench, handle: str, topic: str, code: int) -> None:
    timer_bench.send("T", b"m", properties={"UNIQ_KEY": "K"})
    answer = timer_bench.ask(370, {"producerGroup": "pg", "topic": topic, "recallHandle": handle})
    assert answer.code == code
    assert answer.remark


def test_recall_is_off_unless_it_is_enabled(tmp_path: Path) -> None:
    bench = TimerBench(tmp_path, settings={"recallMessageEnable": "false"})
    handle = RecallHandle("T", "b", 1_700_000_059_001, "K").encode()
    assert bench.ask(370, {"topic": "T", "recallHandle": handle}).code == 16
    bench.close()


def test_apaches_recall_handle_reads_back_the_same() -> None:
    handle = "djEgR29sZGVuV2lyZSBnb2xkZW4tdyAxNzk0NzE0NDY0MDAxIEMwMDAwMjAyMjNFMDMwOTQ2RTA5NDhCMjk5NUQwMDBE"
    found = RecallHandle.decode(handle)
    assert found == ("GoldenWire", "golden-w", 1794714464001, "C000020223E030946E0948B2995D000D")
    assert found.encode() == handle


# -------------------------------------------------------------------------------------------------------- together


def test_a_transaction_with_a_delivery_time_waits_after_its_commit(timer_bench: TimerBench) -> None:
    bench = timer_bench
    properties = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": "K", "TIMER_DELIVER_MS": "1700000030000"}
    prepared = bench.send("T", b"m", properties=properties, f="4", g=str(bench.clock.now_ms()))
    assert prepared.code == 0
    assert bench.messages(SystemTopic.TIMER) == []
    fields = {
        "producerGroup": "pg",
        "tranStateTableOffset": prepared.ext["queueOffset"],
        "commitLogOffset": str(int(prepared.ext["msgId"][-16:], 16)),
        "commitOrRollback": "8",
        "msgId": "K",
    }
    assert bench.ask(37, fields).code == 0
    bench.run_ms(29_999)
    assert bench.messages() == []
    bench.run_ms(1000)
    (message,) = bench.messages()
    assert message.sys_flag & 0xC == 8


def test_a_transaction_with_a_delay_level_waits_on_its_level_after_its_commit(timer_bench: TimerBench) -> None:
    bench = timer_bench
    properties = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": "K", "DELAY": "2"}
    prepared = bench.send("T", b"m", properties=properties, f="4", g=str(bench.clock.now_ms()))
    assert bench.messages(SystemTopic.SCHEDULE, 1) == []
    fields = {
        "producerGroup": "pg",
        "tranStateTableOffset": prepared.ext["queueOffset"],
        "commitLogOffset": str(int(prepared.ext["msgId"][-16:], 16)),
        "commitOrRollback": "8",
        "msgId": "K",
    }
    assert bench.ask(37, fields).code == 0
    assert len(bench.messages(SystemTopic.SCHEDULE, 1)) == 1
    for time_ms, count in ((4_999, 0), (1, 1)):
        bench.clock.advance(time_ms)
        bench.delay.tick(bench.clock.now_ms())
        bench.settle()
        assert len(bench.messages()) == count


def test_a_crash_repeats_a_timer_at_most_once_and_loses_none(tmp_path: Path) -> None:
    """The store is abandoned as a killed process leaves it; ten times, in the middle of delivery."""
    bench = TimerBench(tmp_path)
    sent = 0
    for round_number in range(ROUNDS):
        for _ in range(10):
            properties = {"TIMER_DELAY_MS": str(500 + sent * 137 % 4000), "UNIQ_KEY": f"K{sent}"}
            bench.send("T", b"m%d" % sent, properties=properties)
            sent += 1
        bench.run_ms(700 + 311 * round_number)
        before = Counter(m.body for m in bench.messages())
        bench = bench.restarted(tmp_path)
        bench.run_ms(100)
        after = Counter(m.body for m in bench.messages())
        assert all(after[body] <= count + 1 for body, count in before.items())
    bench.run_ms(8000)
    assert {m.body for m in bench.messages()} == {b"m%d" % number for number in range(sent)}
    bench.close()


def test_counts_are_right_again_after_a_crash_and_once_a_day(tmp_path: Path) -> None:
    bench = TimerBench(tmp_path)
    for number in range(5):
        bench.send("T", b"%d" % number, properties={"TIMER_DELAY_SEC": "90000", "UNIQ_KEY": f"K{number}"})
    bench.timer.tick(bench.clock.now_ms())  # on the wheel, not flushed
    bench = bench.restarted(tmp_path)
    bench.run_ms(5000)
    assert bench.timers.pending() == {"T": 5}
    bench.timer.metrics.add("T", 7, 0)
    bench.run_ms(1000)
    assert bench.timers.pending() == {"T": 12}
    for _ in range(24):
        bench.clock.advance(3_600_000)
        bench.run_ms(200)
    assert bench.timers.pending() == {"T": 5}
    bench.close()


@pytest.mark.parametrize(
    ("is_enabled", "hours", "counted"),
    [(True, "05", {5}), (True, "05;17", {5, 17}), (True, "23", {23}), (False, "05", set())],
)
def test_counts_are_checked_in_the_hours_of_the_setting_if_at_all(
    tmp_path: Path, is_enabled: bool, hours: str, counted: set[int]
) -> None:
    bench = TimerBench(tmp_path, timer_enable_check_metrics=is_enabled, timer_check_metrics_when=hours)
    bench.send("T", b"m", properties={"TIMER_DELAY_SEC": "200000", "UNIQ_KEY": "K"})
    bench.run_ms(1000)
    corrected = set()
    while bench.clock.now_ms() < 1_700_000_000_000 + 26 * 3_600_000:
        bench.timer.metrics.add("T", 7, 0)
        bench.clock.advance(3_600_000)
        bench.run_ms(5_000)
        if bench.timers.pending() == {"T": 1}:
            corrected.add(datetime.fromtimestamp(bench.clock.now_ms() / 1000).hour)
    assert corrected == counted
    bench.close()


def test_the_settings_of_timers_follow_an_operator_at_once(timer_bench: TimerBench) -> None:
    bench = timer_bench
    bench.send("T", b"m", properties={"TIMER_DELAY_SEC": "5", "UNIQ_KEY": "K"})
    bench.run_ms(2000)
    assert bench.ask(25, None, b"timerStopDequeue=true\ntimerMaxDelaySec=60\n").code == 0
    refused = bench.send("T", b"m", properties={"TIMER_DELAY_SEC": "61", "UNIQ_KEY": "K"})
    assert "over the limit of 60 s" in (refused.remark or "")
    bench.run_ms(10_000)
    assert bench.messages() == []
    assert bench.ask(25, None, b"timerStopDequeue=false\ntimerStopEnqueue=true\n").code == 0
    bench.send("T", b"n", properties={"TIMER_DELAY_SEC": "5", "UNIQ_KEY": "K"})
    bench.run_ms(10_000)
    assert [message.body for message in bench.messages()] == [b"m"]
    assert bench.timer.behind_messages() == 1
    assert bench.ask(25, None, b"timerStopEnqueue=false\n").code == 0
    bench.run_ms(1000)
    assert [message.body for message in bench.messages()] == [b"m", b"n"]


@pytest.mark.parametrize(("late_ms", "portions"), [(0, 2), (1_000, 3), (2_000, 4), (60_000, 4)])
def test_the_later_the_wheel_is_the_larger_is_its_share_of_the_loop_up_to_a_limit(
    tmp_path: Path, late_ms: int, portions: int
) -> None:
    bench = TimerBench(tmp_path)
    for number in range(1_000):
        properties = {"TIMER_DELIVER_MS": "1700000060000", "UNIQ_KEY": f"K{number}"}
        bench.send("T", b"%d" % number, properties=properties)
    bench.send("T", b"first of its queue", properties={"UNIQ_KEY": "K"})
    bench.run_ms(59_500)
    bench.clock.advance(500 + late_ms)
    while not bench.timer.stats.delivered:
        bench.timers.tick(bench.clock.now_ms())
    assert bench.timer.stats.delivered == portions * PORTION
    bench.close()


def test_pending_timers_are_counted_for_each_topic(timer_bench: TimerBench) -> None:
    bench = timer_bench
    for topic, count in (("A", 3), ("B", 2), ("C", 1)):
        for number in range(count):
            properties = {"TIMER_DELAY_SEC": str(60 * (number + 1)), "UNIQ_KEY": f"{topic}{number}"}
            bench.send(topic, b"m", properties=properties)
    bench.run_ms(1000)
    assert bench.timers.pending() == {"A": 3, "B": 2, "C": 1}
    bench.run_ms(61_000)
    assert bench.timers.pending() == {"A": 2, "B": 1}
    figures = bench.timers.figures()
    assert {name: text for name, text in figures.items() if name.startswith("timerPending_")} == {
        "timerPending_A": "2",
        "timerPending_B": "1",
    }
    assert b'"A":{"count":2,' in bench.ask(61).body


class FullDisk(UnsyncedFiles):
    """Files of the timer that take nothing for a while, or fail a sync."""

    is_full = False
    fails_sync = False

    def pwrite(self, descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        super().pwrite(descriptor, data, position)

    def sync(self, descriptor: int) -> None:
        if self.fails_sync:
            raise OSError(errno.EIO, "Input/output error")


def test_a_full_disk_halts_timers_and_loses_none_when_there_is_room_again(tmp_path: Path) -> None:
    bench = TimerBench(tmp_path)
    disk = FullDisk()
    bench.timer.log._files = bench.timer.wheel._files = bench.timer._checkpoint_file._files = disk
    for number in range(5):
        disk.is_full = number % 2 == 1
        bench.send("T", b"%d" % number, properties={"TIMER_DELAY_MS": str(1500 + 700 * number), "UNIQ_KEY": "K"})
        bench.run_ms(1300)
    disk.is_full = False
    bench.run_ms(9000)
    assert sorted(m.body for m in bench.messages()) == [b"0", b"1", b"2", b"3", b"4"]
    bench = bench.restarted(tmp_path)
    bench.run_ms(3000)
    assert len(bench.messages()) == 5
    bench.close()


def test_a_failed_sync_is_final_and_stops_the_timers(tmp_path: Path) -> None:
    bench = TimerBench(tmp_path)
    disk = FullDisk()
    bench.timer.log._files = bench.timer.wheel._files = bench.timer._checkpoint_file._files = disk
    disk.fails_sync = True
    bench.send("T", b"m", properties={"TIMER_DELAY_SEC": "5", "UNIQ_KEY": "K"})
    with pytest.raises(StoreIOError, match="sync"):
        bench.run_ms(3000)
    disk.fails_sync = False
    with pytest.raises(StoreIOError, match="sync"):
        bench.run_ms(3000)
    bench = bench.restarted(tmp_path)
    bench.run_ms(6000)
    assert len(bench.messages()) == 1
    bench.close()


def test_a_slave_delivers_no_level_no_timer_and_asks_about_no_half_message_and_as_a_master_it_does(
    tmp_path: Path,
) -> None:
    """The same store, opened by a slave and then by a master: what waits is delivered by the master only."""
    first = TimerBench(tmp_path)
    properties = {"UNIQ_KEY": "K", "PGROUP": "pg"}
    first.send("Level", b"l", properties=properties | {"DELAY": "2"})
    first.send("Timer", b"t", properties=properties | {"TIMER_DELAY_SEC": "5"})
    first.send("Half", b"h", properties=properties | {"TRAN_MSG": "true"}, f="4", g=str(first.clock.now_ms()))
    first.run_ms(1000)  # the timer is on the wheel
    now_ms = first.clock.now_ms()
    first.close()

    def live_a_minute(bench: TimerBench) -> tuple[list[bytes], int]:
        """(what was delivered, how often the producer was asked)."""
        producer = Link(40_001)
        bench.heartbeat("Half", link=producer)
        for _ in range(600):
            bench.run_ms(100)
            bench.delay.tick(bench.clock.now_ms())
            bench.transactions.tick(bench.clock.now_ms())
            bench.settle()
        delivered = [m.body for topic in ("Level", "Timer") for m in bench.messages(topic)]
        return delivered, sum(code == 39 for code, _, _ in producer.requests)

    slave = TimerBench(tmp_path, now_ms=now_ms, broker_role="SLAVE")
    assert not slave.store.writable
    log_end = slave.store.log_max_offset
    assert live_a_minute(slave) == ([], 0)
    assert slave.store.log_max_offset == log_end
    assert slave.timers.pending() == {"Timer": 1}
    assert slave.delay.pending() == {2: 1}
    assert slave.transactions.pending() == {"Half": 1}
    slave.close()
    master = TimerBench(tmp_path, now_ms=now_ms + 60_000, settings={"transactionCheckInterval": "6000"})
    delivered, asked = live_a_minute(master)
    assert delivered == [b"l", b"t"]
    assert asked > 0
    master.close()


def test_a_slave_is_told_how_far_the_master_is(timer_bench: TimerBench) -> None:
    bench = timer_bench
    bench.send("T", b"m", properties={"TIMER_DELAY_SEC": "60", "UNIQ_KEY": "K"})
    bench.run_ms(2000)
    body = bench.ask(60).body
    assert len(body) == 56
    checkpoint = decode_checkpoint(body)
    assert checkpoint.queue_offset == checkpoint.master_queue_offset == 1
    assert checkpoint.read_time_ms in (1_700_000_001_000, 1_700_000_002_000)  # as of the last flush
    assert b'"timingCount":{"T":{"count":1,' in bench.ask(61).body
    assert b'"timerCongestNum":"1"' in bench.ask(28).body


def test_apaches_timers_go_on_here(tmp_path: Path) -> None:
    """25 wait in five slots, one rolls, one was recalled, three were delivered."""
    golden_stores.unpack("clean", tmp_path)
    expected = golden_stores.expected("clean")
    stopped_ms = expected["timerCheckpoint"]["lastReadTimeMs"]
    bench = TimerBench(tmp_path, now_ms=stopped_ms, **GOLDEN_SIZES)
    assert bench.timer.read_time_ms == stopped_ms
    assert bench.timer.queue_offset == 31
    assert bench.timers.pending() == {"GoldenTimer": 26}
    delivered = {m.message_id for queue in (0, 1) for m in bench.messages("GoldenTimer", queue)}
    assert len(delivered) == 4
    bench.run_ms(3000)
    assert bench.store.max_offset("GoldenTimer", 0) + bench.store.max_offset("GoldenTimer", 1) == 4
    for slot_ms, count in [(1794713842000, 4), *((1794717442000 + 1000 * n, 9 + 5 * n) for n in range(5))]:
        bench.clock.advance(slot_ms + 257 - bench.clock.now_ms())  # each was sent for 258 ms after its slot's time
        bench.run_ms(0)
        before = bench.store.max_offset("GoldenTimer", 0) + bench.store.max_offset("GoldenTimer", 1)
        assert before == count - (5 if count > 4 else 0), slot_ms
        bench.clock.advance(1)
        bench.run_ms(0)
        assert bench.store.max_offset("GoldenTimer", 0) + bench.store.max_offset("GoldenTimer", 1) == count
    assert bench.timer.stats.recalled == 1
    bench.clock.advance(1794796642000 + 1000 - bench.clock.now_ms())  # the one of 60 h rolls after 24
    bench.run_ms(1000)
    rolled = bench.messages(SystemTopic.TIMER)[-1]
    assert (rolled.properties["TIMER_ROLL_TIMES"], rolled.properties["TIMER_OUT_MS"]) == ("1", "1794926242000")
    bench.clock.advance(
        1794926242000 + 999 - bench.clock.now_ms()
    )  # it rolled, with a delay: its own time is not known
    bench.run_ms(0)
    assert bench.timers.pending() == {"GoldenTimer": 1}
    bench.run_ms(1)
    found = [m for queue in (0, 1) for m in bench.messages("GoldenTimer", queue)]
    keys = Counter(m.properties["KEYS"] for m in found)
    names = ["timer-sec", "timer-ms", "timer-at", "timer-past", "timer-roll", *(f"timer-later{n}" for n in range(25))]
    assert keys == Counter(names)
    assert bench.timers.pending() == {}
    bench.close()


def test_a_delivered_timer_counts_as_a_message_of_its_topic(timer_bench: TimerBench) -> None:
    """As one of a delay level does: who looks at the topic sees what comes in, whichever way it was late."""
    for number in range(3):
        timer_bench.send("T", b"m", properties={"TIMER_DELAY_MS": "1000", "UNIQ_KEY": f"K{number}"})
    statistics = timer_bench.node.statistics
    assert ("T", DELAY) not in statistics.puts
    timer_bench.run_ms(2000)
    delivered = timer_bench.messages()
    counted = statistics.puts["T", DELAY]
    assert (counted.messages, counted.size_bytes) == (3, sum(message.size_bytes for message in delivered))
    counter = statistics.find("TOPIC_PUT_NUMS", "T")
    assert counter is not None
    assert counter.value == 3
