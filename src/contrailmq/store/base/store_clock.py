"""The time in records, and the time that every delay follows, whatever is done to the wall clock.

The monotonic clock carries all three times, in milliseconds; the wall clock is only compared:

    steady  the wall clock at opening plus what has passed. Delays, timers and checks are due by it.
    wall    steady + ahead. If `look` finds the wall clock STEP_MS or more away, it was set: `ahead` changes by that.
    store   what records get: wall, but never less than the record before. After a jump back it runs at half pace until
            the wall clock has caught up, so it still shows when each record was stored.

So the log consists of *stretches*. Within one, store and steady time differ by a fixed rule: `stored_ms` turns a store
time into steady time, and `ahead_ms` says how the wall clock stood. A stretch begins only in `look`, at the end of the
log. A broker looks before each tick (10 times a second) and when it admits a timer, an embedded store once a second.

Stretches are kept in a file (clock_file.py). After a restart, steady time goes on from the last process: by the
machine's own clock if the machine kept running, otherwise by the wall clock, but never before the newest record. If the
wall clock is then MOVE_MS or more ahead, all steady times move by that much: waits keep their length, and `is_moved`
tells the timer wheel. Records that the file does not cover (Apache's) are taken at their store time.

A slave stores nothing itself: its records have their master's store times, and what is done to the slave's own clock
says nothing about them. So it begins no stretches. It takes those of its master (`follow`), in its own steady time, and
notes them, so that it can be made the master. Until it has them, its notes end where its copies begin (`log_end`).

A jump forward is doubted for DOUBT_MS, also across a restart: files do not expire by it (`doubted_ms`, retention.py).
Opening a store whose newest record is over a day old counts as such a jump. Time that a suspended machine slept is
added at the next look. A look counts only if both clocks were read within READ_MS, or a pause would look like a jump.
"""

from __future__ import annotations

import bisect
import logging
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Final

from contrailmq.store.base.clock import Clock
from contrailmq.store.base.clock_file import RUNNING, ClockFile, ClockNotes, Doubt, Stretch

_log = logging.getLogger(__name__)

STEP_MS: Final = 100  # a smaller step is not followed: store times may differ from the wall clock by as much
MOVE_MS: Final = 1000  # a tick of the timer wheel; moving costs a reading of all that waits there
WORTH_A_WARNING_MS: Final = 1000
READ_MS: Final = 5
DOUBT_MS: Final = 3_600_000
LONG_AGO_MS: Final = 86_400_000  # the newest record of a store that is opened: the wall clock may be wrong
STRETCHES_MAX: Final = 1000  # jumps that are remembered; of what was stored before them the oldest one's rule is taken
_READINGS_MAX: Final = 3
_DOUBTED: Final = "; for an hour no file is deleted that is old by this difference alone"
_SLOW: Final = 2  # ms for each ms of store time, after a jump back


class StoreClock:
    """Owner: MessageStore. `now_ms` belongs to whoever holds the log's lock; the others may be called by any thread."""

    def __init__(self, clock: Clock, file: ClockFile | None = None, *, is_slave: bool = False) -> None:
        """Without `file` every process starts afresh."""
        self.monotonic_ms = clock.monotonic_ms
        self._wall_ms = clock.now_ms
        self.slept_ms = clock.slept_ms
        self.boot_id = clock.boot_id
        self._file = file
        self._is_slave = is_slave
        self._copies_from = RUNNING  # log offset: from there on a slave's records are the master's, and nobody's notes
        self._begun = 0  # stretches of this process
        self._known_sleep_ms = clock.slept_ms()
        self._base_ms = clock.now_ms() - clock.monotonic_ms()
        self._store_base_ms = self._base_ms  # store time - monotonic time, where the pace is the usual one
        self._slow: Stretch | None = None  # the newest stretch, where it is not
        self._ahead_ms = 0
        self._stretches: tuple[Stretch, ...] = (Stretch(0, self.steady_ms(), self.steady_ms(), 0, 1),)
        self._offsets: list[int] = [0]
        self._doubts: tuple[Doubt, ...] = ()
        self._lock: AbstractContextManager[bool] | None = None
        self._log_end: Callable[[], int] = _nowhere
        self.is_moved = False  # since the timer wheel last asked
        self.opened_at = 0  # log offset: what is before it was stored by an earlier process
        self.opened_ms = self.steady_ms()

    def opened(
        self, lock: AbstractContextManager[bool], log_end: Callable[[], int], *, last_store_time_ms: int
    ) -> None:
        """The log can be written to from here on. `lock` is the one under which it is. OSError: of the file."""
        notes = None if self._file is None else self._file.load()
        self._known_sleep_ms = self.slept_ms()
        self._base_ms += self._read_ahead_ms() or 0
        self._ahead_ms, wall_ms = 0, self.steady_ms()
        self._stretches = (Stretch(0, wall_ms, wall_ms, 0, 1),)
        self._log_end, self.opened_at = log_end, log_end()
        jump_ms = 0 if notes is None else self._go_on_from(notes, wall_ms, last_store_time_ms)
        if self._is_slave:
            self._begin_copies(notes, wall_ms)
        else:
            self._begin(last_store_time_ms)
        self._lock, self.opened_ms = lock, self.steady_ms()
        gap_ms = wall_ms - last_store_time_ms
        if gap_ms < 0:
            _log.warning(
                "the newest record was stored %s ahead of the wall clock: store times go at half their pace until it "
                "has caught up",
                _seconds(-gap_ms),
            )
        if last_store_time_ms and gap_ms > LONG_AGO_MS:
            self._doubt(gap_ms)
            _log.warning("the newest record was stored %s ago%s", _seconds(gap_ms), _DOUBTED)
        elif abs(jump_ms) >= STEP_MS:
            self._doubt(jump_ms)
            self._tell(jump_ms)
        if self._note_or_tell():
            self.keep()

    def closed(self) -> None:
        """Nothing more is stored. OSError: the next process takes it for a kill."""
        self._note(self._log_end())
        if self._file is not None:
            self._file.end()

    def keep(self) -> None:
        """Make durable what the next process has to know. Blocks; OSError."""
        if self._file is not None:
            self._file.keep()

    def settled(self) -> None:
        """The timer wheel has followed steady time to where it was moved. OSError."""
        if self.is_moved:
            self.is_moved = False
            self._note()
            self.keep()

    def _go_on_from(self, notes: ClockNotes, wall_ms: int, last_store_time_ms: int) -> int:
        """Continue the steady time of an earlier process; by how much the wall clock was set since."""
        end = self.opened_at
        is_foreign = RUNNING < notes.log_end < end
        known_end = notes.log_end if is_foreign else end
        stretches = [stretch for stretch in notes.stretches if stretch.log_offset < known_end]
        newest_ms = notes.stretches[-1].steady_ms
        if stretches and not is_foreign:
            newest_ms = _stored_ms(stretches[-1], last_store_time_ms)
        boot_ms = self.monotonic_ms() + self._known_sleep_ms
        passed_ms = notes.boot_base_ms + boot_ms - newest_ms
        is_same_boot = notes.boot_id != "" and notes.boot_id == self.boot_id()
        if not is_same_boot or passed_ms < -STEP_MS:
            passed_ms = max(wall_ms - notes.ahead_ms - newest_ms, 0)
        ahead_ms = wall_ms - (newest_ms + passed_ms)
        moved_ms = ahead_ms if abs(ahead_ms) >= MOVE_MS else 0
        self._base_ms -= ahead_ms - moved_ms
        self._ahead_ms = ahead_ms - moved_ms if abs(ahead_ms - moved_ms) >= STEP_MS else 0
        if stretches:
            self._stretches = tuple(
                old._replace(steady_ms=old.steady_ms + moved_ms, ahead_ms=old.ahead_ms - moved_ms) for old in stretches
            )
        if is_foreign:
            self._stretches = (*self._stretches, Stretch(notes.log_end, wall_ms, wall_ms, 0, 1))
        self._doubts = tuple(doubt._replace(steady_ms=doubt.steady_ms + moved_ms) for doubt in notes.doubts)
        self.is_moved = notes.is_moved or moved_ms != 0
        return ahead_ms - notes.ahead_ms

    def _begin_copies(self, notes: ClockNotes | None, wall_ms: int) -> None:
        """From here on the records are the master's, and are taken at their store time."""
        self._copies_from = self.opened_at
        if notes is not None and RUNNING < notes.log_end < self.opened_at:
            self._copies_from = notes.log_end  # their stretch was begun with the notes
        else:
            own = (old for old in self._stretches if old.log_offset < self._copies_from)
            self._stretches = (*own, Stretch(self._copies_from, wall_ms, wall_ms, 0, 1))
        self._offsets = [one.log_offset for one in self._stretches]
        self._store_base_ms = self._base_ms + self._ahead_ms

    def _note(self, log_end: int = RUNNING) -> None:
        """Have the file say what the next process has to know. OSError: `keep` tries again."""
        is_moved = self.is_moved
        if self._is_slave:
            log_end = self._copies_from
            is_moved = is_moved or any(stretch.ahead_ms for stretch in self._stretches)  # a slave's wheel has no shifts
        if self._file is not None:
            boot_base_ms = self._base_ms - self._known_sleep_ms
            self._file.note(
                ClockNotes(
                    self.boot_id(),
                    boot_base_ms,
                    self._ahead_ms,
                    self._stretches,
                    self._doubts,
                    is_moved,
                    log_end,
                )
            )

    # --- the three times

    def now_ms(self) -> int:
        """Store time."""
        slow = self._slow
        if slow is None:
            return self.monotonic_ms() + self._store_base_ms
        return slow.store_ms + (self.monotonic_ms() + self._base_ms - slow.steady_ms) // _SLOW

    def steady_ms(self) -> int:
        return self.monotonic_ms() + self._base_ms

    def wall_ms(self) -> int:
        """The wall clock, as of the newest look."""
        return self.steady_ms() + self._ahead_ms

    def look(self) -> int:
        """Notice whether the wall clock was set. The steady time."""
        ahead_ms = self._read_ahead_ms()
        if ahead_ms is None or self._lock is None or not self._is_news(ahead_ms):
            return self.steady_ms()
        with self._lock:
            ahead_ms -= self._add_sleep()
            if not self._is_news(ahead_ms):
                return self.steady_ms()  # the machine has slept, or another thread was quicker
            jump_ms, self._ahead_ms = ahead_ms - self._ahead_ms, ahead_ms
            if not self._is_slave:
                self._begin(self.now_ms())
            self._doubt(jump_ms)
            self._note_or_tell()
        if abs(jump_ms) >= STEP_MS:
            self._tell(jump_ms)
        return self.steady_ms()

    # --- master and slave

    @property
    def version(self) -> str:
        """Another one whenever the stretches are others."""
        return f"{self.opened_ms}-{self._begun}"

    @property
    def stretches(self) -> tuple[Stretch, ...]:
        return self._stretches

    def follow(self, stretches: Sequence[Stretch], steady_ms: int, *, error_ms: int) -> None:
        """A slave reads its records by the stretches of its master, whose steady time is this now, give or take."""
        moved_ms = self.steady_ms() - steady_ms
        followed = tuple(_seen_from(moved_ms, stretch, STEP_MS + error_ms) for stretch in stretches)
        if self._lock is None or not followed:
            return
        with self._lock:
            if self._copies_from != RUNNING or not _are_alike(followed, self._stretches, STEP_MS + error_ms):
                self._stretches = followed
                self._offsets = [one.log_offset for one in followed]
                self._copies_from = RUNNING
                self._note_or_tell()

    # --- of a record

    def ahead_ms(self, physical_offset: int) -> int:
        """By how much the wall clock was ahead of steady time when this record was stored."""
        return self._stretch_of(physical_offset).ahead_ms

    def stored_ms(self, physical_offset: int, store_time_ms: int) -> int:
        """When this record was stored, in steady time."""
        return _stored_ms(self._stretch_of(physical_offset), store_time_ms)

    @property
    def aheads_ms(self) -> list[int]:
        """All values of `ahead_ms`, the newest first."""
        return list(dict.fromkeys(stretch.ahead_ms for stretch in reversed(self._stretches)))

    def _stretch_of(self, physical_offset: int) -> Stretch:
        at = bisect.bisect_right(self._offsets, physical_offset) - 1
        return self._stretches[max(at, 0)]

    # --- jumps

    def doubted_ms(self) -> int:
        """By how much the wall clock went forward within the last DOUBT_MS."""
        now_ms = self.steady_ms()
        return sum(doubt.size_ms for doubt in self._doubts if now_ms - doubt.steady_ms < DOUBT_MS)

    def _doubt(self, size_ms: int) -> None:
        if size_ms < STEP_MS:
            return
        now_ms = self.steady_ms()
        recent = [doubt for doubt in self._doubts if now_ms - doubt.steady_ms < DOUBT_MS]
        self._doubts = (*recent, Doubt(now_ms, size_ms))

    def _read_ahead_ms(self) -> int | None:
        for _ in range(_READINGS_MAX):
            before_ms = self.monotonic_ms()
            wall_ms = self._wall_ms()
            if self.monotonic_ms() - before_ms <= READ_MS:
                return wall_ms - before_ms - self._base_ms
        return None

    def _add_sleep(self) -> int:
        """Count what the machine has slept; how long that was."""
        size_ms = max(self.slept_ms() - self._known_sleep_ms, 0)
        self._known_sleep_ms += size_ms
        self._base_ms += size_ms
        self._store_base_ms += size_ms
        return size_ms

    def _is_news(self, ahead_ms: int) -> bool:
        """Whether the wall clock was set, or has caught up with store times."""
        if abs(ahead_ms - self._ahead_ms) >= STEP_MS:
            return True
        return self._slow is not None and self.steady_ms() + ahead_ms >= self.now_ms()

    def _begin(self, store_ms: int) -> None:
        """A stretch from here on. `store_ms` is the least that its records may say."""
        steady_ms = self.steady_ms()
        wall_ms = steady_ms + self._ahead_ms
        is_slow = wall_ms < store_ms
        stretch = Stretch(self._log_end(), steady_ms, max(wall_ms, store_ms), self._ahead_ms, _SLOW if is_slow else 1)
        kept = [old for old in self._stretches if old.log_offset < stretch.log_offset][-STRETCHES_MAX:]
        if kept and _rule(kept[-1]) == _rule(stretch):
            stretch = kept.pop()  # a restart, and nothing has changed
        self._stretches = (*kept, stretch)
        self._begun += 1
        self._offsets = [one.log_offset for one in self._stretches]
        self._slow = stretch if is_slow else None
        self._store_base_ms = self._base_ms + self._ahead_ms

    def _note_or_tell(self) -> bool:
        """The same on a disk that may be full: a store opens and services go on, and `keep` tries again."""
        try:
            self._note()
        except OSError as exc:
            _log.warning(
                "the state of the clock is not saved yet, after a restart delays may be off by a jump: %s", exc
            )
            return False
        return True

    def _tell(self, jump_ms: int) -> None:
        _log.log(
            logging.WARNING if abs(jump_ms) >= WORTH_A_WARNING_MS else logging.INFO,
            "the wall clock was set %s by %s: delays and timers go on by the time that passes; store times %s%s",
            "forward" if jump_ms > 0 else "back",
            _seconds(abs(jump_ms)),
            "follow it" if self._slow is None else "go at half their pace until it has caught up with them",
            _DOUBTED if jump_ms > LONG_AGO_MS else "",
        )


def _nowhere() -> int:
    return 0


def _stored_ms(stretch: Stretch, store_time_ms: int) -> int:
    elapsed_ms = (store_time_ms - stretch.store_ms) * stretch.pace
    return stretch.steady_ms + elapsed_ms + stretch.pace - 1  # rounded up: no delay is shortened


def _seen_from(moved_ms: int, stretch: Stretch, step_ms: int) -> Stretch:
    """With steady times that are ahead by that much; the wall clock stood where it stood. Small steps are none."""
    wall_ms, ahead_ms = stretch.steady_ms + stretch.ahead_ms, stretch.ahead_ms - moved_ms
    if abs(ahead_ms) < step_ms:
        ahead_ms = 0
    return stretch._replace(steady_ms=wall_ms - ahead_ms, ahead_ms=ahead_ms)


def _are_alike(some: Sequence[Stretch], others: Sequence[Stretch], step_ms: int) -> bool:
    """Whether they say the same, but for small steps."""
    return len(some) == len(others) and all(
        (one.log_offset, one.pace) == (other.log_offset, other.pace)
        and abs(one.ahead_ms - other.ahead_ms) < step_ms
        and abs((one.store_ms - one.steady_ms) - (other.store_ms - other.steady_ms)) < step_ms
        and (one.pace == 1 or one.store_ms == other.store_ms)
        for one, other in zip(some, others, strict=True)
    )


def _rule(stretch: Stretch) -> tuple[int, int, int]:
    """Two stretches with the same one are one. Of slow ones each has its own."""
    if stretch.pace != 1:
        return stretch.ahead_ms, stretch.log_offset, stretch.pace
    return stretch.ahead_ms, stretch.store_ms - stretch.steady_ms, 1


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds / 1000:.3f} s"
