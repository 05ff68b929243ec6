"""The timer's rules on a fake clock: never early, never lost, repeated at most once per crash."""

from __future__ import annotations

import random
from collections import Counter
from concurrent.futures import Executor
from pathlib import Path

import pytest

from at_once import AtOnce, Later
from contrailmq.message import Property, SystemTopic, encode_properties, java_hash
from contrailmq.store import Files, ManualClock
from contrailmq.store.base.errors import StoreReadOnlyError
from contrailmq.store.base.status import PutStatus
from contrailmq.store.timer import TimerCheckpoint, TimerStore, due
from contrailmq.store.timer.wheel import SLOTS_TOTAL
from timer_host import MADE, MemoryHost

START_MS = 1_794_710_242_345
DAY_MS = 86_400_000


class FilesWithoutSync(Files):
    """These tests kill the process, not the machine: what was written is there."""

    def sync(self, descriptor: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


class Bench:
    """A timer store on a store in memory and a clock that stands still until told."""

    def __init__(
        self, path: Path, *, slots_total: int = 7 * 3600, workers: Executor | None = None, **settings: object
    ) -> None:
        self.workers = workers or AtOnce()
        self.slots_total = slots_total  # a smaller wheel than the real one is looked through faster
        self.clock = ManualClock(START_MS)
        settings = {"mapped_file_size_timer_log": 10_400, "timer_max_delay_sec": 41 * 86_400} | settings
        self.host = MemoryHost(path, self.clock.now_ms, **settings)
        self.timer = self.opened()

    def opened(self) -> TimerStore:
        timer = self.made(FilesWithoutSync())
        self.recovered = timer.open(self.clock.now_ms())
        return timer

    def made(self, files: Files) -> TimerStore:
        timer = TimerStore(self.host, files, self.workers, slots_total=self.slots_total)
        MADE.append(timer)
        return timer

    def tick(self) -> None:
        while self.timer.tick(self.clock.now_ms()):
            pass
        if self.timer.is_flush_due(self.clock.now_ms()):
            self.timer.flush(self.clock.now_ms())

    def run(self, milliseconds: int, step_ms: int = 250) -> None:
        for _ in range(milliseconds // step_ms):
            self.clock.advance(step_ms)
            self.tick()

    def jump(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)
        self.tick()

    def crash(self) -> None:
        self.timer.crash()
        self.timer = self.opened()

    def crash_without_journal(self) -> None:
        """As a power failure that came before the kernel wrote it."""
        self.timer.crash()
        for path in self.host.config.path.glob("config/timers.journal.*"):
            path.unlink()
        self.timer = self.opened()


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.mark.parametrize("way", ["TIMER_DELIVER_MS", "TIMER_DELAY_MS", "TIMER_DELAY_SEC"])
def test_a_timer_is_delivered_at_its_own_millisecond(bench: Bench, way: str) -> None:
    """Sent at various milliseconds of a tick; the clock goes by milliseconds."""
    wanted = {}
    for number in range(24):
        delay_ms = 1000 * (number % 3 + 1) if way == "TIMER_DELAY_SEC" else 1 + number * 73
        due_ms = bench.clock.now_ms() + delay_ms
        asked = {"TIMER_DELIVER_MS": due_ms, "TIMER_DELAY_MS": delay_ms, "TIMER_DELAY_SEC": delay_ms // 1000}[way]
        bench.host.send(f"m{number}".encode(), **{way: str(asked)})
        wanted[f"m{number}"] = due_ms
        bench.run(57, step_ms=1)
    bench.run(4000, step_ms=1)
    assert {message.body.decode(): message.store_time_ms for message in bench.host.messages()} == wanted
    assert [wanted[body] for body in bench.host.bodies()] == sorted(wanted.values())


def test_the_delivered_copy_says_when_it_went_onto_the_wheel_and_off_it(bench: Bench) -> None:
    """Property for property what Apache writes (golden store: GoldenTimer/0/1)."""
    bench.host.send(b"m", queue_id=3, TIMER_DELAY_SEC="3", TAGS="sec", KEYS="k")
    bench.run(6000)
    (message,) = bench.host.messages("Orders", 3)
    assert message.properties == {
        "UNIQ_KEY": message.properties["UNIQ_KEY"],
        "TIMER_DELAY_SEC": "3",
        "TAGS": "sec",
        "KEYS": "k",
        "TIMER_OUT_MS": "1794710245000",
        "REAL_TOPIC": "Orders",
        "REAL_QID": "3",
        "TIMER_ENQUEUE_MS": "1794710242000",
        "TIMER_DEQUEUE_MS": str(message.store_time_ms),
    }
    assert message.born_time_ms == START_MS


def test_a_slot_is_delivered_in_the_order_its_messages_came(bench: Bench) -> None:
    for number in range(100):
        bench.host.send(f"m{number:03d}".encode(), TIMER_DELAY_SEC="5")
    bench.run(7000)
    assert bench.host.bodies() == [f"m{number:03d}" for number in range(100)]
    assert bench.timer.metrics.counts == {"Orders": 0}


def test_a_message_that_is_due_when_it_is_taken_in_is_delivered_at_once(bench: Bench) -> None:
    """By way of its slot, unless that has passed; Apache writes the same for `never on the wheel`."""
    bench.host.send(b"m", TIMER_DELAY_SEC="2")
    bench.jump(60_000)
    now_ms = bench.clock.now_ms()
    bench.clock.set_wall(START_MS)
    bench.host.send(b"n", TIMER_DELAY_SEC="2")
    bench.clock.set_wall(now_ms)
    bench.tick()
    messages = bench.host.messages()
    assert [message.body for message in messages] == [b"m", b"n"]
    assert [message.properties[Property.TIMER_ENQUEUE_MS] for message in messages] == ["1794710244000", str(2**63 - 1)]


def test_what_is_late_goes_in_groups_and_each_once_whatever_stands_between(bench: Bench) -> None:
    """As after a pause of the broker: all were due before they were taken in. One is refused for a while."""
    bench.run(1000)
    bench.timer.config.change({"timerStopEnqueue": "true"})
    for number in range(50):
        bench.host.send(f"m{number:02d}".encode(), TIMER_DELAY_MS="1200")
        if number % 10 == 5:
            bench.host.send(f"w{number:02d}".encode(), TIMER_DELAY_SEC="60")
    bench.run(10_000)
    bench.timer.config.change({"timerStopEnqueue": "false"})
    groups: list[int] = []
    append_copies = bench.host.append_copies
    bench.host.append_copies = lambda copies: groups.append(len(copies)) or append_copies(copies)  # type: ignore
    refusals = iter([PutStatus.OS_PAGE_CACHE_BUSY] * 6)
    bench.host.refuse = lambda topic, body: next(refusals, None) if body == b"m27" else None
    bench.run(3000)
    assert bench.host.bodies() == [f"m{number:02d}" for number in range(50)]
    assert max(groups) >= 4
    assert {m.properties[Property.TIMER_ENQUEUE_MS] for m in bench.host.messages()} == {str(2**63 - 1)}
    assert bench.timer.metrics.counts == {"Orders": 5}
    bench.run(60_000)
    assert bench.host.bodies()[50:] == [f"w{number:02d}" for number in range(5, 50, 10)]


def test_delays_beyond_the_window_roll_and_arrive_on_time(tmp_path: Path) -> None:
    """1 s to 40 days mixed; ticks once a second only around what is due, as the loop would."""
    bench = Bench(tmp_path, slots_total=SLOTS_TOTAL)
    source = random.Random(8)
    wanted = {}
    for number in range(60):
        delay_ms = int(1000 * 86_400 ** source.uniform(0, 1) * source.choice((1, 40)))
        bench.host.send(f"m{number}".encode(), TIMER_DELAY_MS=str(delay_ms))
        wanted[f"m{number}"] = START_MS + delay_ms
    bench.tick()
    while bench.clock.now_ms() < START_MS + 41 * DAY_MS:
        slots = list(bench.timer.wheel.occupied(bench.timer.read_time_ms, bench.clock.now_ms() + 3 * DAY_MS))
        if not slots:
            break
        bench.jump(max(slots[0].time_ms + 1000 - bench.clock.now_ms(), 1000))
        bench.jump(1000)
    found = bench.host.messages()
    assert len(found) == 60
    for message in found:
        late_ms = message.store_time_ms - wanted[message.body.decode()]
        assert 0 <= late_ms <= 2000, (message.body, late_ms)
    assert bench.timer.stats.rolled > 20
    assert bench.timer.metrics.counts == {"Orders": 0}


def test_a_recalled_message_is_not_delivered_and_others_are(bench: Bench) -> None:
    bench.host.send(b"keep", TIMER_DELAY_SEC="60")
    bench.host.send(b"drop", TIMER_DELAY_SEC="60", UNIQ_KEY="K1")
    bench.host.send(b"drop too", TIMER_DELAY_SEC="60", UNIQ_KEY="K2")
    bench.run(10_000)
    deliver = str(START_MS + 60_000)
    bench.host.send(b"x", TIMER_DELIVER_MS=deliver, UNIQ_KEY="K1", TIMER_DEL_UNIQKEY="K1")
    bench.host.send(b"x", TIMER_DELIVER_MS=deliver, UNIQ_KEY="K2", TIMER_DEL_UNIQKEY="Orders+K2")
    bench.tick()
    assert bench.timer.metrics.counts == {"Orders": 1}
    assert bench.timer.recount(100_000)
    assert bench.timer.metrics.counts == {"Orders": 1}
    bench.run(55_000)
    assert bench.host.bodies() == ["keep"]
    assert bench.timer.stats.recalled == 2
    assert bench.timer.metrics.counts == {"Orders": 0}


def test_many_recalls_in_a_slot_do_not_make_its_delivery_read_it_again_and_again(bench: Bench) -> None:
    deliver = str(START_MS + 60_000)
    for number in range(400):
        bench.host.send(f"m{number}".encode(), TIMER_DELIVER_MS=deliver, UNIQ_KEY=f"K{number}")
    for number in range(0, 400, 2):
        key = f"K{number}"
        bench.host.send(b"0", TIMER_DELIVER_MS=deliver, UNIQ_KEY=f"R{number}", TIMER_DEL_UNIQKEY=key)
    bench.tick()
    reads = 0
    read_log = bench.host.read_log

    def count(offset: int, max_bytes: int) -> memoryview | None:
        nonlocal reads
        reads += 1
        return read_log(offset, max_bytes)

    bench.host.read_log = count  # type: ignore[method-assign]
    bench.clock.advance(62_000)
    while bench.timer.tick(bench.clock.now_ms(), 128):
        pass
    assert bench.host.bodies() == [f"m{number}" for number in range(1, 400, 2)]
    assert reads <= 6 * 400


def test_a_log_that_takes_no_copies_is_asked_twice_a_portion(bench: Bench) -> None:
    for number in range(300):
        bench.host.send(f"m{number:03d}".encode(), TIMER_DELAY_SEC="5")
    bench.tick()
    asked: list[int] = []
    bench.host.append_copies = lambda copies: asked.append(len(copies)) or 0  # type: ignore[method-assign]
    bench.clock.advance(7000)
    while bench.timer.tick(bench.clock.now_ms(), 100):
        pass
    assert bench.host.bodies() == [f"m{number:03d}" for number in range(300)]
    assert len(asked) <= 6


def test_a_recount_is_exact_whatever_comes_and_goes_meanwhile(bench: Bench) -> None:
    """Between any two steps of the count timers are sent, delivered, recalled and flushed; the truth is kept here."""
    source = random.Random(5)
    waiting: Counter[str] = Counter()
    due: dict[str, list[tuple[int, str]]] = {"A": [], "B": []}

    def send() -> None:
        topic, delay_s = source.choice("AB"), source.choice((0.7, 1.5, source.randrange(2, 20_000)))
        key = f"K{source.getrandbits(60)}"
        bench.host.send(b"m", topic=topic, TIMER_DELAY_MS=str(int(delay_s * 1000)), UNIQ_KEY=key)
        due[topic].append((bench.clock.now_ms() + int(delay_s * 1000), key))

    for _ in range(300):
        send()
    bench.tick()
    for round_number in range(8):
        bench.timer.metrics.add("A", 1000, 0)  # wrong from now on, until the recount is over
        steps = 0
        while not bench.timer.recount(40):
            steps += 1
            for _ in range(source.randrange(4)):
                send()
            if source.random() < 0.3:
                topic = source.choice("AB")
                due_ms, key = due[topic].pop(source.randrange(len(due[topic])))
                if due_ms > bench.clock.now_ms():
                    bench.host.send(
                        b"x", topic=topic, TIMER_DELIVER_MS=str(due_ms), UNIQ_KEY=key, TIMER_DEL_UNIQKEY=key
                    )
                else:
                    due[topic].append((due_ms, key))
            bench.jump(source.choice((0, 300, 300, 5000, 100_000)))
        assert steps > 10
        for topic, timers in due.items():
            due[topic] = [timer for timer in timers if timer[0] > bench.clock.now_ms()]
            waiting[topic] = len(due[topic])
        assert bench.timer.metrics.counts == dict(waiting), round_number


def test_timers_of_one_slot_are_told_apart_by_topic_wherever_it_stands_among_the_properties(bench: Bench) -> None:
    """Java's order is that of a hash table. Each unit has its own topic's hash, and each topic its own count."""
    out_ms = str((START_MS + 5000) // 1000 * 1000)
    orders = (
        ("TIMER_OUT_MS", "REAL_TOPIC", "REAL_QID"),
        ("REAL_TOPIC", "REAL_QID", "TIMER_OUT_MS"),
        ("REAL_QID", "REAL_TOPIC", "TIMER_OUT_MS"),
    )
    for number in range(12):
        values = {"TIMER_OUT_MS": out_ms, "REAL_TOPIC": f"T{number % 4}", "REAL_QID": "0"}
        properties = encode_properties({name: values[name] for name in orders[number % 3]})
        bench.host.append(SystemTopic.TIMER, 0, b"%d" % number, properties, tags_code=0, keys=None, unique_key=None)
    bench.tick()
    assert bench.timer.metrics.counts == {f"T{topic}": 3 for topic in range(4)}
    slot = bench.timer.wheel.get(int(out_ms))
    units, _ = bench.timer.log.chain(slot.last_position, slot.first_position, 100)
    assert [unit.topic_hash for unit in reversed(units)] == [java_hash(f"T{number % 4}") for number in range(12)]
    bench.run(8000)
    assert {topic: bench.host.bodies(topic) for topic in ("T0", "T3")} == {
        "T0": ["0", "4", "8"],
        "T3": ["3", "7", "11"],
    }
    assert set(bench.timer.metrics.counts.values()) == {0}


def test_two_topics_with_one_hash_are_counted_apart(bench: Bench) -> None:
    """The timer log names a topic by Java's hash of it: "Aa" and "BB" share theirs."""
    for number in range(5):
        bench.host.send(b"m", topic="Aa" if number else "BB", TIMER_DELAY_SEC="60")
    bench.tick()
    bench.timer.metrics.add("Aa", 7, 0)
    assert bench.timer.recount(100_000)
    assert bench.timer.metrics.counts == {"Aa": 4, "BB": 1}


def test_a_message_that_rolls_can_be_recalled_before_and_after_it_rolled(tmp_path: Path) -> None:
    bench = Bench(tmp_path, slots_total=SLOTS_TOTAL)
    for key in ("K1", "K2"):
        bench.host.send(key.encode(), TIMER_DELAY_SEC=str(5 * 86_400), UNIQ_KEY=key)
    deliver = str(START_MS + 5 * DAY_MS)
    bench.tick()
    bench.jump(3_600_000)
    bench.host.send(b"x", TIMER_DELIVER_MS=deliver, UNIQ_KEY="K1", TIMER_DEL_UNIQKEY="K1")
    for hour in range(5 * 24 + 2):
        bench.jump(3_600_000)
        if hour == 80:
            bench.host.send(b"x", TIMER_DELIVER_MS=deliver, UNIQ_KEY="K2", TIMER_DEL_UNIQKEY="K2")
    assert bench.host.bodies() == []
    assert bench.timer.stats.recalled == 2
    assert bench.timer.metrics.counts == {"Orders": 0}


# -------------------------------------------------------------------------------------------------------- the clock


def test_a_clock_set_forward_delivers_what_is_due_and_nothing_else(bench: Bench) -> None:
    bench.host.send(b"soon", TIMER_DELAY_SEC="1800")
    bench.host.send(b"later", TIMER_DELAY_SEC="7200")
    bench.tick()
    bench.clock.set_wall(START_MS + 3_600_000)
    bench.tick()
    assert bench.host.bodies() == ["soon"]


def test_a_clock_set_back_neither_repeats_nor_parks_a_message(bench: Bench) -> None:
    """RocketMQ #8022: what was sent after the step lay in a slot that had been passed, until the wheel came round."""
    bench.host.send(b"before", TIMER_DELAY_SEC="5")
    bench.run(10_000)
    assert bench.host.bodies() == ["before"]
    bench.clock.set_wall(START_MS)  # ten seconds back: the slots of the first run lie ahead again
    bench.host.send(b"after", TIMER_DELAY_SEC="5")
    bench.run(3000)
    assert bench.host.bodies() == ["before"]
    bench.run(4000)
    assert bench.host.bodies() == ["before", "after"]
    bench.clock.set_wall(START_MS - 3_600_000)
    bench.host.send(b"hour", TIMER_DELAY_SEC="5")
    bench.run(4000)
    assert bench.host.bodies() == ["before", "after"]
    bench.run(4000)
    assert bench.host.bodies() == ["before", "after", "hour"]
    bench.run(3_700_000, step_ms=5000)
    assert bench.host.bodies() == ["before", "after", "hour"]


def test_a_clock_set_back_repeats_nothing_after_a_restart_either(bench: Bench) -> None:
    bench.host.send(b"before", TIMER_DELAY_SEC="5")
    bench.run(10_000)
    bench.crash()
    bench.clock.set_wall(START_MS)
    bench.host.send(b"after", TIMER_DELAY_SEC="5")
    bench.run(1000)
    bench.crash()
    bench.run(20_000)
    assert bench.host.bodies() == ["before", "after"]


def test_a_stop_longer_than_the_wheel_loses_nothing(tmp_path: Path) -> None:
    """Apache looks back seven days at most."""
    bench = Bench(tmp_path, slots_total=SLOTS_TOTAL)
    for days in (1, 9, 20):
        bench.host.send(f"{days}".encode(), TIMER_DELAY_SEC=str(days * 86_400))
    bench.tick()
    bench.timer.close(bench.clock.now_ms())
    bench.clock.advance(30 * DAY_MS)
    bench.timer = bench.opened()
    bench.host.send(b"new", TIMER_DELAY_SEC="5")
    bench.run(10_000)
    assert sorted(bench.host.bodies()) == ["1", "20", "9", "new"]


# ------------------------------------------------------------------------------------------------------------ faults


def test_a_put_that_is_refused_for_now_repeats_nothing_and_goes_on_where_it_stood(bench: Bench) -> None:
    """RocketMQ #6984: one failure repeated the whole batch."""
    for number in range(20):
        bench.host.send(f"m{number:02d}".encode(), TIMER_DELAY_SEC="5")
    bench.run(3000)
    refusals = iter([PutStatus.OS_PAGE_CACHE_BUSY] * 10)  # each try asks twice: for all that are due, then for this one
    bench.host.refuse = lambda topic, body: next(refusals, None) if body == b"m11" else None
    bench.run(5000)
    assert bench.host.bodies() == [f"m{number:02d}" for number in range(20)]
    assert bench.timer.stats.refused == 5


def test_a_message_with_no_room_for_the_timers_properties_does_not_block_the_wheel(bench: Bench) -> None:
    """RocketMQ #9654: such a message stopped all timers."""
    bench.host.send(b"large", TIMER_DELAY_SEC="5", filler="x" * (32_767 - 170))
    bench.host.send(b"next", TIMER_DELAY_SEC="5")
    bench.run(7000)
    assert bench.host.bodies() == ["large", "next"]
    assert Property.TIMER_DEQUEUE_MS not in bench.host.messages()[0].properties


def test_a_message_that_the_store_can_never_take_is_counted_and_passed(bench: Bench) -> None:
    bench.host.send(b"bad", TIMER_DELAY_SEC="5")
    bench.host.send(b"good", TIMER_DELAY_SEC="5")
    bench.tick()
    bench.host.refuse = lambda topic, body: PutStatus.MESSAGE_ILLEGAL if body == b"bad" else None
    bench.run(7000)
    assert bench.host.bodies() == ["good"]
    assert bench.timer.stats.undeliverable == 1


@pytest.mark.parametrize("stage", ["log append", "timer log", "wheel", "checkpoint", "delivery", "half a slot"])
def test_a_crash_at_any_stage_loses_nothing_and_repeats_nothing_twice(
    tmp_path: Path, stage: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process dies at a random moment right after the named step; 10 crashes among 200 messages."""
    bench = Bench(tmp_path)
    source = random.Random(stage)
    sent = 0
    due_ms: dict[str, int] = {}
    for _ in range(10):
        for _ in range(20):
            delay_ms = source.randrange(1, 9000)
            bench.host.send(f"m{sent}".encode(), TIMER_DELAY_MS=str(delay_ms))
            due_ms[f"m{sent}"] = bench.clock.now_ms() + delay_ms
            sent += 1
        bench.run(source.randrange(500, 3000))
        _die_at(bench, stage)
        bench.crash()
    bench.run(12_000)
    counts = Counter(bench.host.bodies())
    assert set(counts) == {f"m{number}" for number in range(sent)}
    assert max(counts.values()) <= 11
    assert all(due_ms[message.body.decode()] <= message.store_time_ms for message in bench.host.messages())


def _die_at(bench: Bench, stage: str) -> None:
    now_ms = bench.clock.now_ms() + 1500
    bench.clock.advance(1500)
    timer = bench.timer
    if stage == "log append":
        return  # messages are in the timer topic, nothing else has happened
    if stage == "half a slot":
        timer.tick(now_ms, 20)
        timer.tick(now_ms, 3)
        return
    timer.tick(now_ms)
    if stage == "delivery":
        return
    plan = timer.begin_flush(now_ms)
    timer.log.sync(plan.log_files)
    if stage == "timer log":
        return
    timer.wheel.write_slots(plan.slots)
    if stage == "wheel":
        return
    timer.run_flush(plan)


def test_each_crash_repeats_a_message_at_most_once(bench: Bench) -> None:
    for number in range(10):
        bench.host.send(f"m{number}".encode(), TIMER_DELAY_SEC="2")
    bench.run(1000)
    bench.clock.advance(4000)
    bench.timer.tick(bench.clock.now_ms())  # delivered, not flushed
    bench.crash_without_journal()
    bench.run(3000)
    assert Counter(bench.host.bodies()) == {f"m{number}": 2 for number in range(10)}
    bench.crash_without_journal()
    bench.run(3000)
    assert len(bench.host.bodies()) == 20


def test_each_crash_repeats_a_message_that_rolls_at_most_once(tmp_path: Path) -> None:
    """Crashes leave copies of it on its way: they gather in its next slot, and each life delivers one of them."""
    bench = Bench(tmp_path, timer_roll_window_slot=6)
    bench.host.send(b"rolls", TIMER_DELAY_MS="11500", UNIQ_KEY="K")
    bench.host.send(b"twin", TIMER_DELAY_MS="11500", UNIQ_KEY="K2")
    bench.run(1000)
    bench.clock.advance(7000)  # the first leg is over
    for _ in range(5):  # in each life, and no flush comes
        while bench.timer.tick(bench.clock.now_ms()):
            pass
        bench.crash_without_journal()
    assert len(bench.host.messages(SystemTopic.TIMER)) >= 2 + 2 * 5
    bench.clock.advance(8000)
    delivered = []
    for _ in range(4):
        before = len(bench.host.bodies())
        while bench.timer.tick(bench.clock.now_ms()):
            pass
        delivered.append(sorted(bench.host.bodies()[before:]))
        bench.crash_without_journal()
    assert delivered == [["rolls", "twin"]] * 4
    assert bench.timer.stats.repeated_rolls == 0
    bench.run(2000)
    bench.run(20_000)
    assert len(bench.host.bodies()) == 10
    assert bench.timer.stats.repeated_rolls >= 8


def test_a_power_failure_that_takes_the_copies_does_not_take_the_messages(bench: Bench) -> None:
    """The read time and the closed slots are saved only when the copies are durable."""
    bench.host.send(b"m", TIMER_DELAY_SEC="2")
    bench.run(1000)
    bench.host.syncs = False
    bench.clock.advance(5000)
    bench.timer.tick(bench.clock.now_ms())
    assert bench.host.bodies() == ["m"]
    with pytest.raises(StoreReadOnlyError):
        bench.timer.flush(bench.clock.now_ms())
    bench.timer.crash()
    bench.host.lose_power()
    assert bench.host.bodies() == []
    bench.host.syncs = True
    bench.timer = bench.opened()
    bench.run(1000)
    assert bench.host.bodies() == ["m"]


def test_a_unit_whose_message_was_lost_does_not_deliver_another_one(bench: Bench) -> None:
    """RocketMQ #10668: after the log was cut, the place of the lost message is another's."""
    bench.host.send(b"kept", TIMER_DELAY_SEC="20")
    bench.run(2000)
    bench.host.send(b"lost", TIMER_DELAY_SEC="20")
    bench.timer.tick(bench.clock.now_ms())
    bench.timer.crash()  # the unit is in the timer log's file; the message is not durable
    bench.host.lose_power()
    bench.timer = bench.opened()
    assert bench.timer.queue_offset == 1
    bench.host.send(b"else", TIMER_DELAY_SEC="40")
    bench.run(25_000)
    assert bench.host.bodies() == ["kept"]
    bench.run(25_000)
    assert bench.host.bodies() == ["kept", "else"]


def test_a_torn_timer_log_is_cut_and_its_messages_are_taken_in_again(bench: Bench) -> None:
    for number in range(30):
        bench.host.send(f"m{number:02d}".encode(), TIMER_DELAY_SEC=str(10 + number))
    bench.run(2000)
    bench.timer.crash()
    path = bench.host.config.path / "timerlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[10 * 52 + 12] = 0xFF  # the eleventh unit's magic
    path.write_bytes(data)
    bench.timer = bench.opened()
    assert bench.recovered.is_rebuilt
    assert bench.recovered.queue_offset == 10
    bench.run(45_000)
    assert bench.host.bodies() == [f"m{number:02d}" for number in range(30)]


@pytest.mark.parametrize("lost", ["timerwheel", "timerlog", "config/timercheck"])
def test_a_lost_file_is_made_again_from_the_others(bench: Bench, lost: str) -> None:
    for number in range(30):
        bench.host.send(f"m{number:02d}".encode(), TIMER_DELAY_SEC=str(1 + number))
    bench.run(10_000)
    bench.timer.close(bench.clock.now_ms())
    delivered = set(bench.host.bodies())
    path = bench.host.config.path / lost
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        file.unlink()
    bench.clock.advance(5000)  # more became due meanwhile
    bench.timer = bench.opened()
    bench.run(45_000)
    counts = Counter(bench.host.bodies())
    assert set(counts) == {f"m{number:02d}" for number in range(30)}
    repeated = {body for body, count in counts.items() if count > 1}
    # What was delivered of a tick that is not over stands in the timer log alone.
    assert repeated <= {"config/timercheck": delivered, "timerlog": {"m09"}}.get(lost, set())


# ------------------------------------------------------------------------------------------------ what is not in memory


@pytest.fixture
def cold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    """A worker that waits to be told; reading the mapped log of what is not in memory fails the test."""
    bench = Bench(tmp_path, workers=Later())
    read_log = bench.host.read_log

    def touch(offset: int, max_bytes: int) -> memoryview | None:
        assert bench.host.is_resident(offset), "pages that are not in memory were touched on the loop"
        return read_log(offset, max_bytes)

    monkeypatch.setattr(bench.host, "read_log", touch)
    return bench


def work(bench: Bench) -> bool:
    """Run the worker's jobs; whether it had any."""
    assert isinstance(bench.workers, Later)
    had_work = bool(bench.workers.jobs)
    bench.workers.run()
    return had_work


def test_due_messages_that_are_not_in_memory_are_read_by_a_worker(cold: Bench) -> None:
    for number in range(100):
        cold.host.send(f"m{number:02d}".encode(), TIMER_DELAY_SEC="5", UNIQ_KEY=f"K{number}")
    cold.tick()
    cold.host.send(b"x", TIMER_DELIVER_MS=str(START_MS + 5000), UNIQ_KEY="K7", TIMER_DEL_UNIQKEY="K7")
    cold.tick()
    cold.host.is_resident = lambda offset: False  # type: ignore[method-assign]
    cold.run(7000)
    assert cold.host.bodies() == []
    assert cold.timer.is_waiting
    rounds = 0
    while work(cold):
        assert not cold.timer.is_waiting
        while cold.timer.tick(cold.clock.now_ms(), 40):
            pass
        rounds += 1
    assert rounds == 4  # the mark, then three portions of messages
    assert cold.host.bodies() == [f"m{number:02d}" for number in range(100) if number != 7]
    assert cold.timer.metrics.counts == {"Orders": 0}


def test_messages_to_be_taken_in_that_are_not_in_memory_are_read_by_a_worker(cold: Bench) -> None:
    """As after a long stop: the timer topic's newest messages were written by the process before."""
    for number in range(10):
        cold.host.send(f"m{number}".encode(), TIMER_DELAY_SEC="5")
    cold.host.is_resident = lambda offset: False  # type: ignore[method-assign]
    cold.tick()
    assert cold.timer.queue_offset == 0
    assert work(cold)
    cold.tick()
    assert cold.timer.queue_offset == 10
    assert cold.timer.metrics.counts == {"Orders": 10}


def test_a_large_new_slot_is_read_in_portions_while_new_timers_come_in(cold: Bench) -> None:
    """No worker has to be waited for, and no turn reads the 1,000 units of the slot at once."""
    for number in range(1000):
        cold.host.send(b"%d" % number, TIMER_DELAY_SEC="5")
    cold.tick()
    cold.clock.advance(7000)
    turns = 0
    while not cold.host.bodies():
        cold.host.send(b"new", TIMER_DELAY_SEC="60")
        assert cold.timer.tick(cold.clock.now_ms(), 10)
        assert cold.timer.behind_messages() == 0 or cold.host.bodies()
        turns += 1
    assert turns >= 1000 // (10 * due.WALK)
    assert not work(cold)
    cold.tick()
    assert cold.host.bodies() == [str(number) for number in range(1000)]


def test_a_large_old_slot_is_read_by_a_worker_while_new_timers_come_in(cold: Bench) -> None:
    for number in range(1000):
        cold.host.send(b"%d" % number, TIMER_DELAY_SEC="5")
    cold.run(2000)
    cold.crash()
    cold.run(5000)
    assert cold.host.bodies() == []
    cold.host.send(b"new", TIMER_DELAY_SEC="5")
    cold.tick()
    assert cold.timer.queue_offset == 1001
    assert work(cold)
    cold.run(10_000)
    assert cold.host.bodies() == [*(str(number) for number in range(1000)), "new"]


def test_an_old_slot_is_loaded_by_a_worker_after_a_restart(cold: Bench) -> None:
    cold.host.send(b"m", TIMER_DELAY_SEC="5")
    cold.run(2000)
    cold.crash()
    cold.run(5000)
    assert cold.host.bodies() == []
    assert work(cold)
    cold.run(1000)
    assert cold.host.bodies() == ["m"]


# ------------------------------------------------------------------------------------------- slaves, limits, figures


def test_a_slave_takes_in_up_to_its_master_and_delivers_nothing(tmp_path: Path) -> None:
    bench = Bench(tmp_path, broker_role="SLAVE")
    for number in range(5):
        bench.host.send(f"m{number}".encode(), TIMER_DELAY_SEC="5")
    bench.run(2000)
    assert bench.timer.queue_offset == 0
    bench.timer.follow(TimerCheckpoint(START_MS // 1000 * 1000, 0, 3, 3))
    bench.run(20_000)
    assert bench.timer.queue_offset == 3
    assert bench.host.bodies() == []
    bench.timer.close(bench.clock.now_ms())
    master = Bench(tmp_path)  # promoted: the same files under another role
    master.clock.set_wall(bench.clock.now_ms())
    master.timer.crash()
    master.host.queues, master.host._at = bench.host.queues, bench.host._at
    master.host.log_max_offset = master.host.durable_offset = bench.host.log_max_offset
    master.timer = master.opened()
    master.run(3000)
    assert sorted(master.host.bodies()) == [f"m{number}" for number in range(5)]


def test_a_slot_is_congested_beyond_its_limit(tmp_path: Path) -> None:
    bench = Bench(tmp_path, timer_congest_num_each_slot=3)
    for number in range(4):
        out_ms = bench.host.send(f"m{number}".encode(), TIMER_DELAY_SEC="5")
        assert out_ms is not None
        assert not bench.timer.is_congested(out_ms)
        bench.tick()
    assert bench.timer.is_congested(out_ms)
    assert not bench.timer.is_congested(out_ms + 1000)


@pytest.mark.parametrize("count", [10_000, pytest.param(100_000, marks=pytest.mark.long)])
def test_many_timers_of_one_second_are_delivered_in_portions(tmp_path: Path, count: int) -> None:
    """Over five files of the timer log."""
    bench = Bench(tmp_path, mapped_file_size_timer_log=count // 5 * 52)
    for number in range(count):
        bench.host.send(b"%d" % number, TIMER_DELIVER_MS=str(START_MS + 5000))
    bench.tick()
    assert bench.timer.metrics.total == count
    bench.clock.advance(6000)
    portions = 1
    while bench.timer.tick(bench.clock.now_ms(), 1000):
        portions += 1
    assert portions >= count // 1000
    assert bench.host.bodies() == [str(number) for number in range(count)]
    assert bench.timer.metrics.total == 0


def test_stopping_a_stage_by_its_setting_stops_only_that_stage(tmp_path: Path) -> None:
    bench = Bench(tmp_path, timer_stop_dequeue=True)
    bench.host.send(b"m", TIMER_DELAY_SEC="2")
    bench.run(1000)
    bench.run(5000)
    assert bench.timer.queue_offset == 1
    assert bench.host.bodies() == []
    assert bench.timer.behind_ms(bench.clock.now_ms()) >= 5000
    assert bench.host.max_offset(SystemTopic.TIMER, 0) == 1


def test_a_flush_between_two_slots_that_are_both_due_hides_none_of_them(bench: Bench) -> None:
    """The second slot goes from memory to the file while the first is delivered: it must be seen in one of them."""
    for number in range(30):
        bench.host.send(f"m{number:02d}".encode(), TIMER_DELAY_MS="1500" if number < 20 else "2500")
    bench.timer.tick(bench.clock.now_ms())  # onto the wheel, and in memory only
    bench.clock.advance(5000)
    bench.timer.tick(bench.clock.now_ms(), 7)  # part of the first slot
    bench.timer.flush(bench.clock.now_ms())
    while bench.timer.tick(bench.clock.now_ms(), 7):
        pass
    assert bench.host.bodies() == [f"m{number:02d}" for number in range(30)]


def test_a_timer_for_a_slot_that_was_passed_over_is_seen_after_the_clock_went_back_and_forth(bench: Bench) -> None:
    """Two slots are due and the first is begun; the clock goes back, a third comes in between, the clock returns."""
    for _ in range(10):
        bench.host.send(b"first", TIMER_DELAY_MS="1500")
    bench.host.send(b"last", TIMER_DELAY_MS="4500")
    bench.timer.tick(bench.clock.now_ms())
    now_ms = bench.clock.now_ms()
    bench.clock.advance(6000)
    bench.timer.tick(bench.clock.now_ms(), 4)
    bench.clock.set_wall(now_ms)
    bench.host.send(b"between", TIMER_DELAY_MS="3000")
    for _ in range(20):
        bench.timer.tick(bench.clock.now_ms(), 4)
    bench.clock.set_wall(now_ms + 6000)
    for _ in range(20):
        bench.timer.tick(bench.clock.now_ms(), 4)
    assert bench.host.bodies() == ["first"] * 10 + ["between", "last"]


def test_a_slot_waits_for_the_mark_that_recalls_one_of_its_messages(bench: Bench) -> None:
    """The mark is behind more timers than one portion of the intake takes, and the slot is due."""
    bench.host.send(b"stays", TIMER_DELAY_MS="1500")
    bench.host.send(b"goes", TIMER_DELAY_MS="1500", UNIQ_KEY="K")
    bench.timer.tick(bench.clock.now_ms())
    for _ in range(10):
        bench.host.send(b"more", TIMER_DELAY_SEC="60")
    bench.host.send(b"0", TIMER_DELAY_MS="1500", TIMER_DEL_UNIQKEY="K", UNIQ_KEY="K")
    bench.clock.advance(3000)
    while bench.timer.tick(bench.clock.now_ms(), 3):
        pass
    assert bench.host.bodies() == ["stays"]


def test_a_slot_that_was_begun_is_finished_before_more_is_taken_in(bench: Bench) -> None:
    for _ in range(12):
        bench.host.send(b"due", TIMER_DELAY_MS="1500")
    bench.timer.tick(bench.clock.now_ms())
    bench.clock.advance(3000)
    assert bench.timer.tick(bench.clock.now_ms(), 5)
    for _ in range(12):
        bench.host.send(b"new", TIMER_DELAY_SEC="60")
    assert bench.timer.tick(bench.clock.now_ms(), 5)
    assert bench.host.bodies() == ["due"] * 10
    assert bench.timer.behind_messages() == 12
    while bench.timer.tick(bench.clock.now_ms(), 5):
        pass
    assert bench.host.bodies() == ["due"] * 12
    assert bench.timer.behind_messages() == 0


def test_an_intake_that_is_behind_outruns_its_senders(bench: Bench) -> None:
    """Slots wait for it: twice as many come in as a portion holds, for ever, and yet what is due is delivered."""
    bench.host.send(b"due", TIMER_DELAY_MS="1500")
    for _ in range(200):
        for _ in range(10):
            bench.host.send(b"later", TIMER_DELAY_SEC="60")
        bench.clock.advance(20)
        bench.timer.tick(bench.clock.now_ms(), 5)
    assert bench.host.bodies() == ["due"]
    assert bench.timer.behind_messages() <= 20


def test_after_a_stop_all_that_rolls_and_is_due_is_delivered_without_waiting_for_a_tick(tmp_path: Path) -> None:
    bench = Bench(tmp_path, timer_roll_window_slot=6)
    for number in range(40):
        bench.host.send(f"m{number:02d}".encode(), TIMER_DELAY_MS=str(7_500 + number * 1_000))
    bench.tick()
    bench.clock.advance(120_000)
    while bench.timer.tick(bench.clock.now_ms(), 5):
        pass
    assert bench.host.bodies() == [f"m{number:02d}" for number in range(40)]
