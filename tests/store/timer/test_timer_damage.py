"""Timer files that a crash or an accident left wrong: no timer is lost, and what cannot be used is named."""

from __future__ import annotations

import errno
from collections import Counter
from pathlib import Path

import pytest

from contrailmq.store.base.errors import CorruptStoreError
from contrailmq.store.timer.checkpoint import TimerCheckpoint, decode_checkpoint, encode_checkpoint
from contrailmq.store.timer.metrics import TopicCounts
from store.timer.test_timer_store import Bench, FilesWithoutSync

TIMERS = 60
BODIES = {f"m{number:02d}" for number in range(TIMERS)}


@pytest.fixture
def stopped(tmp_path: Path) -> Bench:
    """A timer store of several files that was closed when a third of its timers had been delivered."""
    bench = Bench(tmp_path, mapped_file_size_timer_log=1040)
    for number in range(TIMERS):
        bench.host.send(f"m{number:02d}".encode(), TIMER_DELAY_SEC=str(1 + number))
    bench.run(TIMERS // 3 * 1000)
    bench.timer.close(bench.clock.now_ms())
    bench.clock.advance(5000)  # more become due meanwhile
    return bench


def go_on(bench: Bench) -> Counter[str]:
    bench.timer = bench.opened()
    bench.run(TIMERS * 1000)
    return Counter(bench.host.bodies())


class UnreadableFiles(FilesWithoutSync):
    """Reads fail while it says so, as those of a disk with an error may."""

    is_failing = False

    def pread(self, descriptor: int, size_bytes: int, position: int) -> bytes:
        if self.is_failing:
            raise OSError(errno.EIO, "Input/output error")
        return super().pread(descriptor, size_bytes, position)


def test_a_read_that_failed_passes_over_no_timer(tmp_path: Path) -> None:
    """It is tried again within the same tick of the wheel: what ended the walk over the slots is not their end."""
    files, bench = UnreadableFiles(), Bench(tmp_path)
    bench.timer.close(bench.clock.now_ms())
    bench.timer = bench.made(files)
    bench.timer.open(bench.clock.now_ms())
    bench.host.send(b"m", TIMER_DELAY_SEC="2")
    bench.tick()
    files.is_failing = True
    bench.clock.advance(3000)
    with pytest.raises(OSError, match="Input/output error"):
        bench.tick()
    files.is_failing = False
    bench.run(2000)
    assert bench.host.bodies() == ["m"]


@pytest.mark.parametrize("damaged", [{}, {"log_flushed_position": 2**62}, {"log_flushed_position": -(2**62)}])
@pytest.mark.parametrize("read_time_ms", [2**62, -(2**62), 1, 4 * 10**12])
def test_a_read_time_that_cannot_be_loses_no_timer(stopped: Bench, read_time_ms: int, damaged: dict[str, int]) -> None:
    path = stopped.host.config.path / "config" / "timercheck"
    checkpoint = decode_checkpoint(path.read_bytes())
    path.write_bytes(encode_checkpoint(checkpoint._replace(read_time_ms=read_time_ms, **damaged)))
    assert set(go_on(stopped)) == BODIES


@pytest.mark.parametrize("offset", [2**62, -(2**62)])
def test_a_queue_offset_that_cannot_be_loses_no_timer(stopped: Bench, offset: int) -> None:
    path = stopped.host.config.path / "config" / "timercheck"
    checkpoint = decode_checkpoint(path.read_bytes())
    path.write_bytes(encode_checkpoint(checkpoint._replace(queue_offset=offset, master_queue_offset=offset)))
    counts = go_on(stopped)
    assert set(counts) == BODIES
    assert set(counts.values()) == {1}


@pytest.mark.parametrize(
    "garbled",
    [
        {"queue_offset": 2**62, "master_queue_offset": 2**62},
        {"queue_offset": 61, "log_flushed_position": -5},
        {"queue_offset": 61, "read_time_ms": 2**61},
    ],
)
def test_a_garbled_checkpoint_does_not_hide_timers_that_a_crash_left_untaken(
    stopped: Bench, garbled: dict[str, int]
) -> None:
    stopped.host.send(b"m60", TIMER_DELAY_SEC="1")  # nobody took it in
    stopped.clock.advance(5000)
    path = stopped.host.config.path / "config" / "timercheck"
    path.write_bytes(encode_checkpoint(decode_checkpoint(path.read_bytes())._replace(**garbled)))
    assert set(go_on(stopped)) == BODIES | {"m60"}


def test_a_wheel_that_is_gone_is_made_again_from_every_file_of_the_log(stopped: Bench) -> None:
    assert len(list((stopped.host.config.path / "timerlog").iterdir())) == 4
    (stopped.host.config.path / "timerwheel").unlink()
    counts = go_on(stopped)
    assert set(counts) == BODIES
    assert set(counts.values()) == {1}


def test_a_log_file_that_was_made_and_not_grown_before_a_kill_is_grown_at_the_start(stopped: Bench) -> None:
    last = max((stopped.host.config.path / "timerlog").iterdir())
    (last.parent / f"{int(last.name) + 1040:020d}").touch()
    counts = go_on(stopped)
    assert set(counts) == BODIES
    assert set(counts.values()) == {1}


def test_the_first_log_file_of_all_may_be_empty_too(tmp_path: Path) -> None:
    (tmp_path / "timerlog").mkdir()
    (tmp_path / "timerlog" / f"{0:020d}").touch()
    bench = Bench(tmp_path)
    bench.host.send(b"m", TIMER_DELAY_SEC="1")
    bench.run(3000)
    assert bench.host.bodies() == ["m"]


@pytest.mark.parametrize("size_bytes", [10, 67, 600])
def test_a_log_file_that_was_cut_is_named_with_a_way_out(stopped: Bench, size_bytes: int) -> None:
    first = min((stopped.host.config.path / "timerlog").iterdir())
    first.write_bytes(first.read_bytes()[:size_bytes])
    with pytest.raises(CorruptStoreError, match="timerlog"):
        stopped.opened()


def test_an_empty_checkpoint_is_all_zeros() -> None:
    assert decode_checkpoint(b"") == TimerCheckpoint()


@pytest.mark.parametrize(
    "text",
    [
        '{"timingCount":{"T":{"count":1e999}}}',
        '{"timingCount":{"T":{"count":null}}}',
        '{"timingCount":{"T":{"count":1}},"dataVersion":[1]}',
        '{"timingCount":[]}',
        "[" * 100_000,
        "",
    ],
    ids=lambda text: text[:40],
)
def test_counts_that_cannot_be_read_are_refused_whole_and_stop_no_start(stopped: Bench, text: str) -> None:
    counts = TopicCounts("timingCount")
    counts.read_json('{"timingCount":{"T":{"count":7,"timeStamp":1}},"dataVersion":{"counter":3}}')
    with pytest.raises(ValueError, match="."):
        counts.read_json(text)
    assert (counts.counts, counts.version) == ({"T": 7}, (3, 0, 0))
    path = stopped.host.config.path / "config" / "timermetrics"
    for candidate in (path, path.with_name("timermetrics.bak")):
        candidate.write_text(text)
    assert set(go_on(stopped)) == BODIES


def test_a_wheel_that_was_cut_is_refused_with_a_way_out_that_works(stopped: Bench) -> None:
    path = stopped.host.config.path / "timerwheel"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(CorruptStoreError, match="move it away"):
        stopped.opened()
    path.rename(path.with_name("away"))
    assert set(go_on(stopped).values()) == {1}
