"""What a kill repeats of the delay levels, and when their journal must not be believed."""

from __future__ import annotations

import json
import random
import shutil
from collections import Counter
from pathlib import Path

import pytest

from broker.harness import Bench, UnsyncedFiles
from broker.test_delay import DelayBench
from contrailmq.broker.state import config_files
from contrailmq.message import SystemTopic
from contrailmq.store.base.journal import RUN_BYTES_MAX
from contrailmq.store.files import Files
from store.faulty_files import FaultyFiles, Loss, no_space

NEVER = {"flush_delay_offset_interval": 86_400_000}  # the table says nothing: the journal alone counts


def send(bench: Bench, *names: str, level: int = 1, **properties: str) -> None:
    for name in names:
        values = {"DELAY": str(level), "UNIQ_KEY": f"K{name}"} | properties
        assert bench.send("T", name.encode(), properties=values).code == 0


def bodies(bench: DelayBench) -> list[str]:
    return [message.body.decode() for message in bench.messages()]


def names(count: int, prefix: str = "m") -> list[str]:
    return [f"{prefix}{number}" for number in range(count)]


def journal_files(path: Path) -> list[Path]:
    return sorted((path / "store" / "config").glob("levels.journal.*"))


def log_file(path: Path) -> Path:
    return path / "store" / "commitlog" / f"{0:020d}"


def cut_log(path: Path, offset: int) -> None:
    """As a power failure that took the end of the log: what was not synced reads as zeros."""
    file = log_file(path)
    data = file.read_bytes()
    file.write_bytes(data[:offset].ljust(len(data), b"\0"))


def killed_after_delivery(path: Path, *sent: str, **settings: object) -> DelayBench:
    """A broker that has delivered these, never saved its table, and is dead."""
    bench = DelayBench(path, **(NEVER | settings))
    send(bench, *sent)
    bench.run_ms(2000)
    assert bodies(bench) == list(sent)
    bench.kill()
    return bench


def started(path: Path, before: Bench, **settings: object) -> DelayBench:
    bench = DelayBench(path, **settings)
    bench.clock.set_wall(before.clock.now_ms())
    return bench


def table(path: Path) -> dict[str, int]:
    data = json.loads((path / "store" / "config" / "delayOffset.json").read_text())
    found: dict[str, int] = data["offsetTable"]
    return found


def test_a_kill_repeats_nothing_though_the_table_was_never_saved(tmp_path: Path) -> None:
    before = killed_after_delivery(tmp_path, *names(500))
    bench = started(tmp_path, before)
    bench.run_ms(3000)
    assert bodies(bench) == names(500)
    bench.close()


def test_a_level_that_a_start_set_back_passes_over_nothing_after_a_kill(tmp_path: Path) -> None:
    """A power failure took the end of the log and left the table. New messages come to stand before its offset, and
    the broker is killed before it delivers any."""
    before = killed_after_delivery(tmp_path, "first", "second", flush_delay_offset_interval=100)
    assert table(tmp_path) == {"1": 2}
    cut_log(tmp_path, 0)
    bench = started(tmp_path, before)
    assert bench.store.max_offset(SystemTopic.SCHEDULE, 0) == 0
    send(bench, "third", "fourth")
    bench = bench.restarted(tmp_path)
    bench.run_ms(3000)
    assert bodies(bench) == ["third", "fourth"]
    bench.close()


def test_what_the_journal_knew_is_in_the_table_and_the_journal_is_empty_when_delivery_begins(tmp_path: Path) -> None:
    before = killed_after_delivery(tmp_path, *names(7))
    bench = started(tmp_path, before)
    assert table(tmp_path) == {"1": 7}
    assert [path.stat().st_size for path in journal_files(tmp_path)] == [0, 0]
    bench = bench.restarted(tmp_path)  # killed before it delivered anything
    bench.run_ms(3000)
    assert bodies(bench) == names(7)
    bench.close()


def test_a_kill_in_the_middle_of_a_backlog_repeats_one_tick_at_most(tmp_path: Path) -> None:
    """Killed after the copies of a tick and before its line in the journal."""
    bench = DelayBench(tmp_path, **NEVER)
    send(bench, *names(1000))
    bench.clock.advance(2000)
    for _ in range(3):
        bench.delay.tick(bench.clock.now_ms())
    journaled = [path.read_bytes() for path in journal_files(tmp_path)]
    done = len(bench.delay.offsets) and bench.delay.offsets[1]
    bench.delay.tick(bench.clock.now_ms())
    tick = bench.delay.offsets[1] - done
    for path, data in zip(journal_files(tmp_path), journaled, strict=True):
        path.write_bytes(data)
    bench.settle()
    bench = bench.restarted(tmp_path)
    bench.run_ms(3000)
    counts = Counter(bodies(bench))
    assert set(counts) == set(names(1000))
    assert [name for name, count in counts.items() if count > 1] == names(1000)[done : done + tick]
    assert tick == 128
    bench.close()


def test_more_ticks_than_a_run_holds_are_journaled_too(tmp_path: Path) -> None:
    """One tick a message: each entry has 36 bytes and 20 for the one level."""
    bench = DelayBench(tmp_path, **NEVER)
    journal = bench.delay._journal
    send(bench, "m0", "m1")
    bench.run_ms(2000)
    copy = bench.delay._last_copy
    assert copy is not None
    for _ in range(2 * RUN_BYTES_MAX // 56):
        journal.note(bench.delay.offsets, copy)
    assert [path.stat().st_size <= RUN_BYTES_MAX + 56 for path in journal_files(tmp_path)] == [True, True]
    bench = bench.restarted(tmp_path)
    assert bench.delay.offsets == {1: 2}
    bench.close()


def test_a_torn_entry_repeats_only_what_it_spoke_of(tmp_path: Path) -> None:
    bench = DelayBench(tmp_path, **NEVER)
    send(bench, "a", "b")
    bench.run_ms(2000)
    send(bench, "c")
    bench.run_ms(2000)
    bench.kill()
    written = max(journal_files(tmp_path), key=lambda path: path.stat().st_size)
    written.write_bytes(written.read_bytes()[:-5])
    again = started(tmp_path, bench)
    again.run_ms(3000)
    assert bodies(again) == ["a", "b", "c", "c"]
    again.close()


def test_a_journal_ahead_of_a_log_that_was_cut_loses_nothing(tmp_path: Path) -> None:
    """The copies of the second delivery are gone with the end of the log; the entry of the first one counts."""
    bench = DelayBench(tmp_path, **NEVER)
    send(bench, "a", "b")
    bench.run_ms(2000)
    send(bench, "c", "d")
    bench.run_ms(2000)
    copy_of_d = bench.messages()[3].physical_offset
    bench.kill()
    cut_log(tmp_path, copy_of_d)
    again = started(tmp_path, bench)
    assert again.delay.offsets == {1: 2}
    again.run_ms(3000)
    assert Counter(bodies(again)) == {"a": 1, "b": 1, "c": 2, "d": 1}
    again.close()


def test_a_log_that_was_cut_and_written_on_by_another_program_does_not_make_the_journal_true(tmp_path: Path) -> None:
    """Apache opens the store after the power failure: it knows no journal, and its log grows past the old copies."""
    before = killed_after_delivery(tmp_path, *names(5))
    kept = {path: path.read_bytes() for path in journal_files(tmp_path)}
    bench = started(tmp_path, before)
    cut_at = bench.messages()[0].physical_offset
    bench.kill()
    cut_log(tmp_path, cut_at)
    other = Bench(tmp_path)  # without delay levels
    other.clock.set_wall(before.clock.now_ms() + 60_000)
    for number in range(50):
        other.send("Else", b"x" * (50 + number), properties={"UNIQ_KEY": f"E{number}"})
    other.store.abandon()
    for path, data in kept.items():
        path.write_bytes(data)
    (tmp_path / "store" / "config" / "delayOffset.json").unlink()
    again = started(tmp_path, other)
    assert again.delay.offsets == {1: 0}
    again.run_ms(3000)
    assert bodies(again) == names(5)
    again.close()


def test_the_journal_of_another_store_is_not_believed(tmp_path: Path) -> None:
    """`config` was copied from another broker."""
    other = killed_after_delivery(tmp_path / "other", *names(40))
    bench = DelayBench(tmp_path / "own", **NEVER)
    bench.clock.set_wall(other.clock.now_ms() + 5_000)
    send(bench, *names(50, "own"))
    bench.kill()
    for path in journal_files(tmp_path / "other"):
        shutil.copy(path, tmp_path / "own" / "store" / "config" / path.name)
    again = started(tmp_path / "own", bench)
    assert again.delay.offsets == {1: 0}
    again.run_ms(3000)
    assert bodies(again) == names(50, "own")
    again.close()


def test_a_copy_of_the_whole_store_goes_on_where_it_was(tmp_path: Path) -> None:
    before = killed_after_delivery(tmp_path / "one", *names(40))
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    bench = started(tmp_path / "two", before)
    bench.run_ms(3000)
    assert bodies(bench) == names(40)
    bench.close()


def test_a_level_whose_queue_was_made_anew_is_not_skipped(tmp_path: Path) -> None:
    """The topic was deleted: the same offsets are other messages' now. The other levels are believed."""
    bench = DelayBench(tmp_path, **NEVER)
    send(bench, *names(10))
    bench.run_ms(2000)
    bench.delay.crash()
    bench.store.delete_topics([SystemTopic.SCHEDULE])
    send(bench, *names(20, "new"))
    bench.kill()
    again = started(tmp_path, bench)
    again.run_ms(3000)
    assert bodies(again) == names(10) + names(20, "new")
    again.close()


def test_a_table_that_another_program_saved_later_counts(tmp_path: Path) -> None:
    """Apache went on from where its own table stood, and is ahead of our journal."""
    before = killed_after_delivery(tmp_path, *names(10))
    bench = DelayBench(tmp_path, **NEVER)
    bench.clock.set_wall(before.clock.now_ms())
    send(bench, *names(4, "late"))
    bench.kill()
    text = config_files.pretty(
        {"dataVersion": {"counter": 9, "stateVersion": 0, "timestamp": 1}, "offsetTable": {"1": 12}}
    )
    (tmp_path / "store" / "config" / "delayOffset.json").write_text(text)
    again = started(tmp_path, bench)
    again.run_ms(3000)
    assert bodies(again) == [*names(10), "late2", "late3"]
    again.close()


def test_after_a_stop_the_table_alone_counts(tmp_path: Path) -> None:
    """An operator may set it back to have messages delivered again."""
    bench = DelayBench(tmp_path)
    send(bench, *names(5))
    bench.run_ms(2000)
    bench.delay.stop()
    bench.kill()
    path = tmp_path / "store" / "config" / "delayOffset.json"
    path.write_text(path.read_text().replace('"1":5', '"1":3'))
    again = started(tmp_path, bench)
    again.run_ms(3000)
    assert bodies(again) == [*names(5), "m3", "m4"]
    again.close()


def test_a_slave_takes_nothing_from_the_journal_of_the_master_that_it_was(tmp_path: Path) -> None:
    before = killed_after_delivery(tmp_path, *names(5))
    slave = started(tmp_path, before, broker_role="SLAVE")
    assert slave.delay.offsets == {1: 0}
    slave.kill()
    assert [path.stat().st_size for path in journal_files(tmp_path)] == [0, 0]


def test_a_journal_that_cannot_be_written_falls_back_to_the_table_and_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class FullFiles(Files):
        def pwrite(self, descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
            if descriptor in refused:
                raise no_space()
            super().pwrite(descriptor, data, position)

    refused: list[int] = []
    bench = DelayBench(tmp_path, files=FullFiles(), flush_delay_offset_interval=2500)
    refused += bench.delay._journal._journal._descriptors
    send(bench, "a", "b")
    bench.run_ms(3500)
    assert table(tmp_path) == {"1": 2}
    send(bench, "c", "d", "e")
    bench.clock.advance(1100)
    bench.delay.tick(bench.clock.now_ms())  # delivered, not saved
    bench.settle()
    assert caplog.text.count("No space left on device") == 1
    again = bench.restarted(tmp_path)
    again.run_ms(3000)
    assert bodies(again) == ["a", "b", "c", "d", "e", "c", "d", "e"]
    again.close()


def test_copies_that_the_write_buffer_pool_had_not_committed_are_delivered_again(tmp_path: Path) -> None:
    """The journal was written and its copies died with the process's memory. An older entry counts."""
    pool = {
        "transient_store_pool_enable": True,
        "transient_store_pool_size": 2,
        "commit_interval_commit_log": 3_600_000,  # commits by `flush` only
        "commit_commit_log_thorough_interval": 3_600_000,
        "commit_commit_log_least_pages": 100_000,
    }
    bench = DelayBench(tmp_path, **(NEVER | pool))

    def deliver(*sent: str) -> None:
        send(bench, *sent)
        bench.store.flush()
        bench.store.dispatch()
        bench.run_ms(2000)

    deliver("a", "b")
    bench.store.flush()
    bench.store.dispatch()
    deliver("c", "d")
    assert bench.delay.offsets == {1: 4}
    committed = bench.store.log_max_offset
    bench.kill()
    cut_log(tmp_path, committed)  # a kill in this process is one after a commit
    again = started(tmp_path, bench)
    assert again.delay.offsets == {1: 2}
    again.run_ms(3000)
    assert bodies(again) == ["a", "b", "c", "d"]
    again.close()


@pytest.mark.parametrize("loss", [Loss.EVERYTHING, Loss.PAGES, Loss.SECTORS])
def test_a_power_cut_at_any_moment_loses_no_message_that_waited(tmp_path: Path, loss: Loss) -> None:
    """Any page of the log and of the journal may be lost, in any order: each message in the log is delivered. At first
    nothing is lost, so that the journal counts once; of the others it does in a few."""
    root = tmp_path / "run" / "store"
    root.mkdir(parents=True)
    files = FaultyFiles(root)
    sizes = {"mapped_file_size_commit_log": 1 << 16, "max_hash_slot_num": 10, "max_index_num": 40}
    bench = DelayBench(tmp_path / "run", files=files, **(NEVER | sizes))
    first = files.journal.event
    for number in range(12):
        send(bench, f"m{number}", level=1 + number % 2)
        bench.run_ms(700)
        if number % 4 == 0:
            bench.store.flush()
    last = files.journal.event
    bench.kill()
    rng = random.Random(11)
    cuts = [(last, Loss.NOTHING)] + [(rng.randint(first, last), loss) for _ in range(48)]
    believed = 0
    for cut, (at, lost) in enumerate(cuts):
        target = tmp_path / f"{cut}" / "store"
        files.journal.image(at, target, rng, lost)
        again = started(target.parent, bench, **sizes)
        believed += any(again.delay.offsets.values())
        waited = {
            message.body for level in range(2) for message in again.store.get(SystemTopic.SCHEDULE, level, 0, 1000)
        }
        again.run_ms(20_000)
        assert waited <= {message.body for message in again.messages()}
        again.close()
    assert believed


def test_copies_before_one_that_the_log_refuses_are_noted_and_a_later_kill_does_not_repeat_them(tmp_path: Path) -> None:
    """The log needs a new file in the middle of a group and gets none. No later delivery makes a note for it."""
    files = FaultyFiles(tmp_path / "store")
    files.records = False
    bench = DelayBench(tmp_path, files=files, **NEVER)
    sent = names(100)
    for name in sent:
        send(bench, name, padding="x" * 18_000)
    files.fault = lambda operation, path, _: (
        no_space() if operation in ("create", "allocate") and "commitlog" in path.parts else None
    )
    bench.run_ms(2000)
    before = bodies(bench)
    assert 10 < len(before) < 100
    again = bench.restarted(tmp_path)
    again.run_ms(3000)
    assert bodies(again) == sent
    again.close()


@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_no_consumer_hears_of_a_copy_before_it_is_noted(tmp_path: Path, flush: str) -> None:
    """So what a kill repeats, nobody has seen: not even when the write of the note takes its time."""
    heard: list[int] = []

    class WatchedFiles(UnsyncedFiles):
        def pwrite(self, descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
            if descriptor in watched:
                heard.append(len(bench.link.sent))
            super().pwrite(descriptor, data, position)

    watched: list[int] = []
    bench = DelayBench(tmp_path, files=WatchedFiles(), flush_disk_type=flush, **NEVER)
    watched += bench.delay._journal._journal._descriptors
    send(bench, "a", "b", WAIT="false")
    bench.store.flush()
    bench.node.durable(bench.store.durable_offset)
    bench.settle()
    bench.link.take()
    assert bench.pull("T", 0, sysFlag=6) == [], "it is held"
    bench.clock.advance(1100)
    bench.delay.tick(bench.store.store_clock.look())
    bench.store.flush()
    bench.node.durable(bench.store.durable_offset)
    bench.settle()
    assert heard == [0]
    (answer,) = bench.link.take()
    assert answer.code == 0
    bench.close()


def test_retries_that_came_back_do_not_come_again_after_a_kill(tmp_path: Path) -> None:
    bench = DelayBench(tmp_path, **NEVER)
    for name in ("a", "b"):
        assert bench.send("T", name.encode(), properties={"UNIQ_KEY": name}).code == 0
    for message in bench.messages():
        back = {"offset": message.physical_offset, "group": "g", "delayLevel": 0, "originTopic": "T"}
        assert bench.ask(36, {name: str(value) for name, value in back.items()}).code == 0
    bench.run_ms(11_000)
    retries = [(retry.body, retry.reconsume_times) for retry in bench.messages("%RETRY%g")]
    assert retries == [(b"a", 1), (b"b", 1)]
    again = bench.restarted(tmp_path)
    again.run_ms(20_000)
    assert [(retry.body, retry.reconsume_times) for retry in again.messages("%RETRY%g")] == retries
    again.close()
