"""Delay levels on a fake clock: in, waiting, out, and across a restart."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import pytest

import golden_stores
from at_once import Later
from broker.harness import MIB, ROUNDS, AtOnce, Bench
from contrailmq.broker.delayed.delay import FILE_NAME
from contrailmq.broker.state import config_files
from contrailmq.broker.state.duty import Duty
from contrailmq.message import Property, StoredMessage, SystemTopic
from contrailmq.store import MessageStore, StoreConfig
from contrailmq.store.base.clock import ManualClock
from contrailmq.store.base.status import AppendResult, GetResult, PutStatus


class DelayBench(Bench):
    def __init__(self, path: Path, *, readers: Executor | None = None, **settings: object) -> None:
        super().__init__(path, worker=AtOnce(), readers=readers, **settings)
        self.delay.start()

    def run_ms(self, milliseconds: int) -> None:
        """Tick as the supervisor does: whenever the service wants to be called."""
        end_ms = self.clock.now_ms() + milliseconds
        while self.clock.now_ms() < end_ms:
            self.clock.advance(min(self.delay.interval_ms, end_ms - self.clock.now_ms()))
            self.delay.tick(self.store.store_clock.look())
            self.settle()

    def messages(self, topic: str = "T", queue_id: int = 0) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        while part := self.store.get(topic, queue_id, len(found), 1000):
            found += part
        return found

    def restarted(self, path: Path, **settings: object) -> DelayBench:
        """The same directory after a crash."""
        self.kill()
        return DelayBench(path, clock=ManualClock(self.clock.now_ms()), **settings)

    def kill(self) -> None:
        self.let_go()
        self.store.abandon()
        self.loop.close()
        self._worker.shutdown()


@pytest.fixture
def delay_bench(tmp_path: Path) -> Iterator[DelayBench]:
    made = DelayBench(tmp_path)
    yield made
    made.close()


def test_a_level_is_delivered_at_its_time_and_not_before(delay_bench: DelayBench) -> None:
    bench = delay_bench
    sent_ms = bench.clock.now_ms()
    for level, seconds in ((1, 1), (2, 5), (3, 10), (5, 60)):
        answer = bench.send("T", b"%d" % seconds, properties={"DELAY": str(level), "UNIQ_KEY": f"K{level}"}, e="2")
        assert answer.code == 0
        assert answer.ext["queueId"] == "2"  # what the sender asked for, not the level's queue
    bench.run_ms(61_000)
    late = {int(m.body): m.store_time_ms - sent_ms - 1000 * int(m.body) for m in bench.messages(queue_id=2)}
    assert set(late) == {1, 5, 10, 60}
    assert all(0 <= late_ms <= 10 for late_ms in late.values()), late


def test_the_delivered_copy_keeps_its_property_string_and_is_not_delayed_again(delay_bench: DelayBench) -> None:
    """As in the golden store: DELAY, REAL_TOPIC and REAL_QID are on disk in the delivered record."""
    bench = delay_bench
    bench.send("T", b"m", properties={"DELAY": "1", "TAGS": "t", "KEYS": "k", "UNIQ_KEY": "K"})
    bench.run_ms(3000)
    (waiting,) = bench.store.get(SystemTopic.SCHEDULE, 0, 0)
    (message,) = bench.messages()
    assert message.encoded_properties == waiting.encoded_properties
    assert message.properties["DELAY"] == "1"
    assert (message.properties["REAL_TOPIC"], message.properties["REAL_QID"]) == ("T", "0")
    assert message.born_time_ms == waiting.born_time_ms
    assert [found.physical_offset for found in bench.store.query("T", "k")] == [message.physical_offset]


def test_a_level_beyond_the_last_counts_as_the_last_and_drops_timer_requests(delay_bench: DelayBench) -> None:
    delay_bench.send("T", b"m", properties={"DELAY": "99", "TIMER_DELAY_SEC": "5", "UNIQ_KEY": "K"})
    (waiting,) = delay_bench.store.get(SystemTopic.SCHEDULE, 17, 0)
    assert waiting.properties[Property.DELAY] == "18"
    assert Property.TIMER_DELAY_SECONDS not in waiting.properties
    assert delay_bench.delay.pending() == {18: 1}, "before the first tick"
    delay_bench.run_ms(200)
    assert delay_bench.delay.pending() == {18: 1}


def test_a_waiting_message_that_was_damaged_is_told_and_counted_and_the_next_is_delivered(
    delay_bench: DelayBench, caplog: pytest.LogCaptureFixture
) -> None:
    bench = delay_bench
    bench.send("T", b"damaged", properties={"DELAY": "1", "UNIQ_KEY": "K1"})
    bench.send("T", b"whole", properties={"DELAY": "1", "UNIQ_KEY": "K2"})
    (waiting, _) = bench.store.get(SystemTopic.SCHEDULE, 0, 0)
    path = bench.store.config.path / "commitlog" / f"{0:020d}"
    with path.open("r+b") as log:
        log.seek(waiting.physical_offset + 4)  # its magic code
        log.write(b"\xff\xff\xff\xff")
    bench.run_ms(3000)
    assert [message.body for message in bench.messages()] == [b"whole"]
    assert bench.delay.undeliverable == 1
    assert "the record of SCHEDULE_TOPIC_XXXX/0 at queue offset 0" in caplog.text


@pytest.mark.parametrize("level", ["0", "-1", "x", ""])
def test_a_level_that_is_none_means_at_once(delay_bench: DelayBench, level: str) -> None:
    delay_bench.send("T", b"m", properties=f"DELAY\x01{level}\x02UNIQ_KEY\x01K\x02")
    assert len(delay_bench.messages()) == 1


def test_the_levels_are_those_of_the_setting(tmp_path: Path) -> None:
    bench = DelayBench(tmp_path, message_delay_level="2s 1m 1h")
    sent_ms = bench.clock.now_ms()
    for level in (1, 2, 3, 4):  # the last counts as 3
        bench.send("T", b"%d" % level, properties={"DELAY": str(level), "UNIQ_KEY": f"K{level}"})
    bench.run_ms(3_700_000)
    assert [(m.body, m.store_time_ms - sent_ms) for m in bench.messages()] == [
        (b"1", 2_000), (b"2", 60_000), (b"3", 3_600_000), (b"4", 3_600_000),
    ]  # fmt: skip
    bench.close()


def test_the_unit_of_a_waiting_message_holds_its_delivery_time_and_not_its_tag(delay_bench: DelayBench) -> None:
    sent_ms = delay_bench.clock.now_ms()
    delay_bench.send("T", b"m", properties={"DELAY": "3", "TAGS": "t", "UNIQ_KEY": "K"})
    delay_bench.settle()
    ((_, _, code),) = delay_bench.store.read_units(SystemTopic.SCHEDULE, 2, 0, 10)
    assert code == sent_ms + 10_000
    delay_bench.run_ms(11_000)
    ((_, _, code),) = delay_bench.store.read_units("T", 0, 0, 10)
    assert code == ord("t")


def test_progress_is_saved_at_its_interval_and_only_after_the_copies_are_durable(tmp_path: Path) -> None:
    bench = DelayBench(tmp_path, flush_delay_offset_interval=5_000)
    path = tmp_path / "store" / "config" / "delayOffset.json"
    durable: list[tuple[int, bool]] = []
    flush = bench.store.flush

    def flush_and_tell(offset: int) -> None:
        flush(offset)
        durable.append((bench.store.durable_offset, path.exists()))

    bench.store.flush = flush_and_tell  # type: ignore[method-assign]
    bench.send("T", b"m", properties={"DELAY": "1", "UNIQ_KEY": "K"})
    bench.run_ms(4_900)
    assert len(bench.messages()) == 1
    assert not path.exists()
    bench.run_ms(200)
    assert json.loads(path.read_text())["offsetTable"] == {"1": 1}
    assert durable == [(bench.store.log_max_offset, False)]
    bench.close()


@pytest.mark.parametrize("is_asynchronous", ["false", "true"])
def test_delivery_waits_for_no_sync_whether_asked_to_or_not(tmp_path: Path, is_asynchronous: str) -> None:
    """enableScheduleAsyncDeliver has nothing to switch: copies are put one behind the other, and synced together."""
    asked = StoreConfig.from_properties({"enableScheduleAsyncDeliver": is_asynchronous}, path=tmp_path)
    assert asked.unused_keys == ("enableScheduleAsyncDeliver",)  # named when the store opens
    bench = DelayBench(tmp_path, flush_disk_type="SYNC_FLUSH", flush_interval_commit_log=3_600_000)
    for number in range(300):
        properties = b"DELAY\x011\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02"
        bench.store.append(SystemTopic.SCHEDULE, 0, b"%d" % number, properties, tags_code=0, keys=None, unique_key=None)
    bench.store.flush(bench.store.log_max_offset)
    bench.store.dispatch()
    bench.clock.advance(2_000)
    durable_offset = bench.store.durable_offset
    while bench.delay.delivered < 300:
        before = bench.delay.delivered
        bench.delay.tick(bench.clock.now_ms())
        assert bench.delay.delivered > before
        assert bench.store.durable_offset == durable_offset  # nothing was synced meanwhile
    bench.store.flush(bench.store.log_max_offset)
    bench.store.dispatch()
    assert [m.body for m in bench.messages()] == [b"%d" % number for number in range(300)]
    bench.close()


def test_a_log_that_takes_no_copies_is_asked_twice_a_portion_and_delivers_all(tmp_path: Path) -> None:
    """With a checksum in every record none is copied as bytes."""
    bench = DelayBench(tmp_path, enabled_append_prop_crc=True)
    asked: list[int] = []
    append_copies = bench.store.append_copies
    bench.store.append_copies = lambda copies: asked.append(len(copies)) or append_copies(copies)  # type: ignore
    for number in range(200):
        bench.send("T", b"%d" % number, properties={"DELAY": "1", "UNIQ_KEY": f"K{number}"})
    bench.run_ms(2_000)
    assert [m.body for m in bench.messages()] == [b"%d" % number for number in range(200)]
    assert len(asked) <= 4
    bench.close()


def test_delivery_goes_on_after_a_crash_without_losing_or_repeating(tmp_path: Path) -> None:
    bench = DelayBench(tmp_path)
    sent = 0
    for round_number in range(ROUNDS):
        for _ in range(7):
            bench.send("T", b"m%d" % sent, properties={"DELAY": str(1 + sent % 2), "UNIQ_KEY": f"K{sent}"})
            sent += 1
        bench.run_ms(1000 + 700 * round_number)
        bench = bench.restarted(tmp_path)
        bench.run_ms(500)
    bench.run_ms(10_000)
    assert Counter(m.body for m in bench.messages()) == {b"m%d" % number: 1 for number in range(sent)}
    bench.close()


def test_a_clean_stop_repeats_nothing(tmp_path: Path) -> None:
    bench = DelayBench(tmp_path)
    for number in range(5):
        bench.send("T", b"%d" % number, properties={"DELAY": "1", "UNIQ_KEY": f"K{number}"})
    bench.run_ms(2000)
    bench.delay.stop()
    saved = json.loads((tmp_path / "store" / "config" / "delayOffset.json").read_text())
    assert saved["offsetTable"] == {"1": 5}
    assert [path.stat().st_size for path in (tmp_path / "store" / "config").glob("levels.journal.*")] == [0, 0]
    bench = bench.restarted(tmp_path)
    bench.run_ms(3000)
    assert len(bench.messages()) == 5
    bench.close()


def test_ten_thousand_due_at_once_go_in_portions_that_leave_the_loop_free(tmp_path: Path) -> None:
    bench = DelayBench(tmp_path, mapped_file_size_commit_log=4 * MIB)
    for number in range(10_000):
        properties = b"DELAY\x011\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02"
        bench.store.append(SystemTopic.SCHEDULE, 0, b"%d" % number, properties, tags_code=0, keys=None, unique_key=None)
    bench.store.dispatch()
    bench.clock.advance(1000)
    ticks = 0
    while not ticks or bench.delay.interval_ms == 0:
        before = bench.delay.delivered
        bench.delay.tick(bench.clock.now_ms())
        assert bench.delay.delivered - before <= 128
        ticks += 1
    bench.settle()
    assert bench.store.max_offset("T", 0) == 10_000
    bench.close()


def test_a_level_with_a_backlog_does_not_starve_the_others(delay_bench: DelayBench) -> None:
    bench = delay_bench
    for number in range(1000):
        bench.send("T", b"%d" % number, properties={"DELAY": "1", "UNIQ_KEY": f"K{number}"})
    bench.send("Other", b"o", properties={"DELAY": "2", "UNIQ_KEY": "O"})
    bench.clock.advance(10_000)
    for _ in range(2):
        bench.delay.tick(bench.clock.now_ms())
    bench.settle()
    assert len(bench.messages("Other")) == 1
    assert bench.delay.pending()[1] > 700


def test_a_put_that_is_refused_for_now_is_tried_again_and_holds_up_its_level_only(delay_bench: DelayBench) -> None:
    bench = delay_bench
    for number in range(3):
        bench.send("T", b"%d" % number, properties={"DELAY": "1", "UNIQ_KEY": f"K{number}"})
    bench.send("Other", b"o", properties={"DELAY": "2", "UNIQ_KEY": "O"})
    append = bench.store.append

    def busy(topic: str, *args: Any, **kwargs: Any) -> AppendResult:
        return AppendResult(PutStatus.OS_PAGE_CACHE_BUSY) if topic == "T" else append(topic, *args, **kwargs)

    bench.store.append = busy  # type: ignore[assignment]
    bench.run_ms(6000)
    assert bench.messages() == []
    assert len(bench.messages("Other")) == 1
    bench.store.append = append
    bench.run_ms(1000)
    assert [m.body for m in bench.messages()] == [b"0", b"1", b"2"]


def test_due_messages_that_are_not_in_memory_are_read_by_a_worker_and_hold_up_their_level_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    readers = Later()
    bench = DelayBench(tmp_path, readers=readers)
    for number in range(200):
        bench.send("T", b"%d" % number, properties={"DELAY": "1", "UNIQ_KEY": f"K{number}"})
    bench.send("Other", b"o", properties={"DELAY": "2", "UNIQ_KEY": "O"})
    get_slices = bench.store.get_slices

    def touch(topic: str, queue_id: int, *rest: Any, **named: Any) -> GetResult:
        assert (topic, queue_id) != (SystemTopic.SCHEDULE, 0), "pages that are not in memory were touched on the loop"
        return get_slices(topic, queue_id, *rest, **named)

    monkeypatch.setattr(bench.store, "get_slices", touch)
    monkeypatch.setattr(bench.store, "is_cold", lambda topic, queue_id, offset: queue_id == 0)
    bench.run_ms(7000)
    assert bench.messages() == []
    assert len(bench.messages("Other")) == 1
    assert bench.delay.interval_ms <= 2
    assert len(readers.jobs) == 1
    readers.run()
    bench.run_ms(10)
    assert 0 < bench.store.max_offset("T", 0) <= 128
    while bench.delay.pending():
        readers.run()
        bench.run_ms(10)
    assert [m.body for m in bench.messages()] == [b"%d" % number for number in range(200)]
    bench.close()


def test_a_slave_does_not_deliver(tmp_path: Path) -> None:
    bench = DelayBench(tmp_path)
    bench.send("T", b"m", properties={"DELAY": "1", "UNIQ_KEY": "K"})
    bench.store.config = bench.store.config.replaced(broker_role="SLAVE")
    bench.node.duty = Duty.FOLLOW
    bench.run_ms(3000)
    assert bench.messages() == []
    bench.close()


def test_a_slave_follows_its_masters_offsets_and_goes_on_from_them(tmp_path: Path) -> None:
    master = DelayBench(tmp_path / "master")
    slave = DelayBench(tmp_path / "slave")
    for bench in (master, slave):
        for number in range(3):  # the same log on both
            bench.send("T", b"%d" % number, properties={"DELAY": "1", "UNIQ_KEY": f"K{number}"})
    master.run_ms(12_000)
    slave.store.config = slave.store.config.replaced(broker_role="SLAVE")
    slave.node.duty = Duty.FOLLOW
    assert slave.delay.follow(master.ask(45).body.decode())
    assert not slave.delay.follow(master.ask(45).body.decode())
    config_files.save(slave.node.config_path / FILE_NAME, slave.delay.text())
    slave.run_ms(12_000)
    slave.delay.stop()
    assert slave.messages() == []
    assert slave.delay.offsets == {1: 3}
    slave = slave.restarted(tmp_path / "slave")  # promoted
    slave.run_ms(5000)
    assert slave.messages() == []
    with pytest.raises(ValueError, match="offsetTable"):
        slave.delay.follow("{}")
    slave.close()
    master.close()


def test_send_back_waits_on_the_same_ladder(delay_bench: DelayBench) -> None:
    bench = delay_bench
    bench.send("T", b"m", properties={"UNIQ_KEY": "K"})
    (message,) = bench.messages()
    fields = {"offset": str(message.physical_offset), "group": "g", "delayLevel": "0", "originTopic": "T"}
    assert bench.ask(36, fields).code == 0
    bench.run_ms(9900)
    assert bench.messages("%RETRY%g") == []
    bench.run_ms(200)
    (retried,) = bench.messages("%RETRY%g")
    assert retried.reconsume_times == 1
    assert retried.properties[Property.RETRY_TOPIC] == "T"


def test_apaches_delayed_messages_go_on_here(tmp_path: Path) -> None:
    """Two wait in the golden store (levels 17 and 18); the others were delivered and are not delivered again."""
    golden_stores.unpack("clean", tmp_path)
    last_ms = max(message["storeTimestamp"] for message in golden_stores.expected("clean")["messages"])
    bench = DelayBench(
        tmp_path,
        mapped_file_size_commit_log=131_072,
        mapped_file_size_consume_queue=1200,
        max_hash_slot_num=100,
        max_index_num=400,
        clock=ManualClock(last_ms),
    )
    assert bench.delay.offsets == {1: 8, 2: 2, 3: 1, 17: 0, 18: 0}
    before = bench.store.queues()
    assert bench.delay.pending() == {17: 1, 18: 1}
    bench.run_ms(500)
    assert {name: m for name, (_, m) in bench.store.queues().items()} == {n: m for n, (_, m) in before.items()}
    waiting = {17: 1794710242162 + 3_600_000, 18: 1794710242170 + 7_200_000}
    for level, due_ms in waiting.items():
        bench.clock.advance(due_ms - 1 - bench.clock.now_ms())
        bench.delay.tick(bench.clock.now_ms())
        assert level in bench.delay.pending()
        bench.clock.advance(1)
        bench.delay.tick(bench.clock.now_ms())
        assert level not in bench.delay.pending()
    bench.settle()
    keys = [m.properties["KEYS"] for queue in (0, 1) for m in bench.messages("GoldenDelay", queue)]
    assert sorted(keys) == ["delay-over", "delay0", "delay1", "delay2", "delay3"]
    bench.close()


def test_the_store_of_a_stopped_broker_opens_with_the_same_offsets(tmp_path: Path) -> None:
    """delayOffset.json is read with integer keys quoted or not, and falls back to its copy."""
    bench = DelayBench(tmp_path)
    bench.send("T", b"m", properties={"DELAY": "1", "UNIQ_KEY": "K"})
    bench.run_ms(2000)
    bench.delay.stop()
    bench.delay.stop()
    path = tmp_path / "store" / "config" / "delayOffset.json"
    assert path.with_name("delayOffset.json.bak").exists()
    path.write_text("{")
    bench = bench.restarted(tmp_path)
    assert bench.delay.offsets == {1: 1}
    bench.close()
    path.write_text('{"offsetTable":{1:1,2:7}}')
    with MessageStore(StoreConfig(tmp_path / "store")):
        pass
    bench = DelayBench(tmp_path)
    assert bench.delay.offsets == {1: 1, 2: 0}  # seven is beyond an empty queue
    bench.close()


def test_offsets_of_levels_that_are_none_are_dropped_at_the_start(tmp_path: Path) -> None:
    """A level that was taken from the setting still delivers what waits; one that never was would be looked for."""
    bench = DelayBench(tmp_path)
    bench.send("T", b"m", properties={"DELAY": "18", "UNIQ_KEY": "K"})
    bench.delay.stop()
    path = tmp_path / "store" / "config" / "delayOffset.json"
    path.write_text('{"offsetTable":{"-3":5,"0":7,"2":0,"18":0,"99999999999":1}}')
    bench.close()
    bench = DelayBench(tmp_path, message_delay_level="1s 5s")
    assert bench.delay.offsets == {2: 0, 18: 0}
    bench.clock.advance(7_200_000)
    bench.run_ms(200)
    assert [message.body for message in bench.messages()] == [b"m"]
    bench.close()
