"""Timers: from the timer topic onto the wheel, around it, and off it into their real topics.

A message with a delivery time is stored in `rmq_sys_wheel_timer` with TIMER_OUT_MS (its slot), REAL_TOPIC and REAL_QID.
`tick` runs these stages on one thread, in bounded portions, after finishing what it can of a slot under delivery:

    enqueue   reads the timer topic from `queue_offset`, adds a unit to the timer log and chains it into its slot, or
              delivers at once if that slot is over. A time beyond the roll window gets a slot on the way.
    dequeue   takes the slots from `read_time_ms` on, each when its tick begins (due.py). It reads marks of recalled
              messages first, and puts each message into its real topic at its own millisecond, or back into the timer
              topic if it only rolls. A slot is closed when its tick is over and all of it is done.
    flush     every timerFlushIntervalMs: timer log, wheel, checkpoint, metrics, each synced before the next.

What is due by a moment is delivered only when everything that was in the log at that moment is on the wheel, because a
mark that recalls one of these messages may be the newest record. So a moment is noted with the log's end and released
(`_released_ms`) when the intake has come so far. A slow intake delays delivery but cannot stop it.

What holds, whatever fails
--------------------------
* Never early: a message is put at its own millisecond, or when its tick is over if that is not known.
* A recall that was accepted takes effect, except for a rolled message that a broker takes in when it is already due.
* Never lost: a flush syncs the copies in the commit log, then the timer log, the wheel and the checkpoint. A refused
  put is tried again for ever (timerEnableRetryUntilSuccess is always on). A message that is too long with the
  properties that the timer adds is put without them.
* Repeated at most once per crash: a kill repeats the group of copies that it interrupts (delivered.py). A power failure
  repeats what was delivered after the last flush, and the done part of the slot under delivery then. A crash may leave
  one more copy of a rolling message, and each process puts only one of them (`_rolled_identity`). A stop repeats
  nothing (put_back.py), nor does a failed put: the place in the slot is kept.

Clock steps
-----------
`now_ms` is steady time (store/base/store_clock.py), and a message is taken in at the steady time of its wish
(wheel_time.py). So setting the wall clock neither shortens nor lengthens a wait. After a restart that moved steady
time, waiting messages get new slots. Without a store clock `now_ms` may be before `read_time_ms`: a new timer in an
earlier slot brings the read time back, and delivered slots are closed (wheel.py), so nothing repeats. After a stop
longer than one turn of the wheel, new timers wait where their slot would be an old one's.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor
from typing import Final

from contrailmq.message import Property, SystemTopic
from contrailmq.store.base.errors import StoreIOError
from contrailmq.store.base.store_clock import StoreClock
from contrailmq.store.files import Files
from contrailmq.store.timer.admission import effective_precision_ms, roll_window_slots, rolled_slot_time_ms
from contrailmq.store.timer.checkpoint import FlushPlan, TimerCheckpoint, TimerCheckpointFile
from contrailmq.store.timer.delivered import NO_SLOT, Delivered, DeliveredJournal
from contrailmq.store.timer.delivery import Delivery, TimerStats
from contrailmq.store.timer.due import DueSlot
from contrailmq.store.timer.host import Elsewhere, TimerHost
from contrailmq.store.timer.intake import GrowingSlot, Place, Without
from contrailmq.store.timer.log import FILE_BYTES_MIN, TimerLog, TimerMagic, TimerUnit
from contrailmq.store.timer.metrics import TopicCounts, save_text
from contrailmq.store.timer.put_back import put_back
from contrailmq.store.timer.put_unknown import put_unknown
from contrailmq.store.timer.records import RecordReader, TimerRequest, read_request, read_timer, read_wishes
from contrailmq.store.timer.recount import Recount
from contrailmq.store.timer.recovery import Recovered, recover
from contrailmq.store.timer.wheel import SLOTS_TOTAL, Slot, TimerWheel
from contrailmq.store.timer.wheel_time import DISPLACED_TEXT, WheelTime, resettle

log = logging.getLogger("contrailmq.store.timer")

CLEAN_INTERVAL_MS: Final = 30_000
CATCH_UP: Final = 4  # portions per tick of an intake that is behind: it must outrun senders, for slots wait for it
CHANGED_SLOTS_MAX: Final = 65_536  # flush before the wheel's changes take more than some MB


class TimerStore:
    """Owner of the wheel, the timer log and the checkpoint. `open` after the message store, `close` before it."""

    def __init__(
        self,
        store: TimerHost,
        files: Files,
        workers: Executor,
        *,
        slots_total: int = SLOTS_TOTAL,
        clock: StoreClock | None = None,
    ) -> None:
        """`workers` read what is not in memory. Without `clock` no wall clock is ever set."""
        config = store.config
        self._store = store
        self._workers = workers
        self._intake = RecordReader(store, workers)
        self._outlet = RecordReader(store, workers)
        self._preview = RecordReader(store, workers)
        self._files = files
        self.config = config
        self.precision_ms = effective_precision_ms(config)
        self._window_ms = roll_window_slots(config) * self.precision_ms
        self.wheel = TimerWheel(
            files, config.path / "timerwheel", precision_ms=self.precision_ms, slots_total=slots_total
        )
        directory = config.path / "timerlog"
        found = max((files.size(path) for path in files.list_directory(directory)), default=0)
        # As for the log's and the queues' files: those that exist say how large they are.
        self.log = TimerLog(
            files, directory, file_bytes=found if found >= FILE_BYTES_MIN else config.mapped_file_size_timer_log
        )
        self._checkpoint_file = TimerCheckpointFile(files, config.path / "config" / "timercheck")
        self._journal = DeliveredJournal(files, config.path / "config")
        self._in_file = (0, 0)  # how far the timer topic was taken in, and where its units end in their file
        self._metrics_path = config.path / "config" / "timermetrics"
        self.metrics = TopicCounts("timingCount")
        self.stats = TimerStats()
        self.time = WheelTime(store, clock, self.precision_ms)
        self._delivery = Delivery(store, self._outlet, self.stats, self._note_out, self.time)
        self._displaced_path = config.path / "config" / "timersteady"
        self._is_displaced = False  # units with a shift are on the wheel, or may be
        self._shift_ms = 0  # of the messages that are being taken in
        self.read_time_ms = 0
        self.queue_offset = 0
        self.master_queue_offset = 0
        self.saved_checkpoint = TimerCheckpoint()  # what a slave gets: no copies that it may not have yet
        self._retake_until = 0
        self._due: DueSlot | None = None
        self._walk: Iterator[Slot] | None = None  # over the slots up to _walk_end_ms, as long as nothing is put there
        self._walk_end_ms = 0
        self._released_ms = 0  # what is due by then may be delivered
        self._goal_ms = 0  # the moment that is released next
        self._goal_log_offset = 0  # when dispatch has come here,
        self._goal_queue_offset = -1  # and then the intake here; -1 as long as dispatch has not
        self._rolled = 0  # of stats.rolled: those that the goal refers to
        self._cuts: list[int] = []
        self._recount: Recount | None = None
        self._last_tick_ms = 0
        self._last_flush_ms = 0
        self._last_clean_ms = 0
        self._version = (0, 0, 0)
        self.is_following, self.is_ending = config.is_slave, False  # another broker delivers; begin no slot any more

    # --- life

    def open(self, now_ms: int, *, elsewhere: Elsewhere | None = None, may_deliver: bool = False) -> Recovered:
        """Load, and replay what the wheel may lack. Raises StoreError when a file is not what it should be. A slave
        follows its master, or delivers `elsewhere`; one that never does takes nothing from the journal."""
        self.is_following, self._delivery.elsewhere = self.config.is_slave and elsewhere is None, elsewhere
        self.wheel.open()
        self.log.open()
        checkpoint = self._checkpoint_file.open()
        if not self.metrics.load(self._metrics_path):
            self.metrics = TopicCounts("timingCount", now_ms)
        delivered = self._journal.open(self._store)
        if self.config.is_slave and not may_deliver:
            delivered = None  # its master delivers
        found = recover(self._store, self.wheel, self.log, checkpoint, now_ms, delivered)
        if delivered is not None:
            self._take_off(delivered)
        self.read_time_ms, self.queue_offset = found.read_time_ms, found.queue_offset
        self._in_file = self.queue_offset, self.log.end
        self._retake_until = found.retake_until
        self.master_queue_offset = checkpoint.master_queue_offset
        self._version = (checkpoint.state_version, checkpoint.version_timestamp, checkpoint.version_counter)
        self._last_flush_ms = self._last_clean_ms = now_ms
        if self.time.is_moved or self._files.exists(self._displaced_path):
            self._resettle(now_ms)
            found = found._replace(read_time_ms=self.read_time_ms, is_rebuilt=True)
        elif not self._flush_if_there_is_room(now_ms):
            return found  # the journal goes on as it is
        self._journal.clear()
        return found

    def _take_off(self, delivered: Delivered) -> None:
        """Take from the slot that a crash interrupted what is done of it."""
        if not delivered.done:
            return
        slot = self.wheel.get(delivered.slot_time_ms)
        if not slot.is_empty and slot.time_ms == delivered.slot_time_ms:
            put_back(self.log, self.wheel, slot, delivered.done, self._cuts)

    def _resettle(self, now_ms: int) -> None:
        """The clock was set under an earlier process, or since: its wheel means other times than ours."""
        count = resettle(
            self._store, self.time, self.wheel, self.log, self._cuts, now_ms=now_ms, window_ms=self._window_ms
        )
        log.info("the clock was set while %d timers waited: they have the slots of the clock as it is now", count)
        self.read_time_ms = now_ms // self.precision_ms * self.precision_ms
        self._retake_until = 0  # what was due before the read time is not known any more: rather twice than never
        self.flush(now_ms)
        try:
            self.time.settled()
            if self._files.exists(self._displaced_path):
                self._files.unlink(self._displaced_path)
                self._files.sync_directory(self._displaced_path.parent)
        except OSError as exc:
            raise StoreIOError("settling the wheel of", self._displaced_path, exc) from exc

    def close(self, now_ms: int) -> None:
        self._put_back()
        self.flush(now_ms)
        self._journal.clear()
        self.crash()

    def crash(self) -> None:
        """Let go of the files as they are: what a killed process does."""
        self.wheel.close()
        self.log.close()
        self._checkpoint_file.close()
        self._journal.close()

    # --- the stages

    def tick(self, now_ms: int, max_count: int = 1000) -> bool:
        """Move on by some `max_count` messages per stage; True when there is more to do at once."""
        delivers = not self.config.timer_stop_dequeue and not self.is_following
        enqueued = dequeued = 0
        due = self._due
        if due is not None and now_ms < due.time_ms and not due.is_loading:
            self._put_back()  # the clock was set back
        if delivers:
            self._set_goal(now_ms)
            if self._due is not None:
                dequeued = self._go_on(now_ms, max_count)
        has_read = self._is_reading  # of its chain, as much as a turn may
        if dequeued < max_count:
            if not self.config.timer_stop_enqueue:
                is_behind = self.behind_messages() > max_count
                enqueued = self.enqueue(now_ms, max_count * CATCH_UP if is_behind else max_count)
            if delivers:
                self._reach_goal(enqueued)
                if not has_read:
                    dequeued += self.dequeue(now_ms, max_count - dequeued)
        self._note_delivered()
        if enqueued >= max_count or dequeued >= max_count:
            return True
        is_held = self._released_ms < now_ms and not self._intake.is_waiting and not self._awaits_dispatch
        return delivers and (is_held or self._is_reading)

    def _note_delivered(self) -> None:
        """Have the journal know what was delivered since it was told last. What was taken in goes to its file first;
        where that fails, the journal refers to what is there."""
        try:
            self.log.write()
            self._in_file = self.queue_offset, self.log.end
        finally:
            slot_time_ms = NO_SLOT if self._due is None else self._due.time_ms
            state = Delivered(self.read_time_ms, *self._in_file, self._version[2], slot_time_ms)
            self._journal.tell(state, self._delivery.last_copy, self._due)

    @property
    def _is_reading(self) -> bool:
        """Whether a slot is begun of which more is to be read here."""
        return self._due is not None and self._due.is_reading and not self._preview.is_waiting

    # --- how far delivery may go

    def _set_goal(self, now_ms: int) -> None:
        """Note this moment, unless another one is waited for."""
        self._released_ms = min(self._released_ms, now_ms)  # the clock may have been set back
        if self._released_ms < now_ms and not self._released_ms < self._goal_ms <= now_ms:
            self._goal_ms, self._goal_log_offset, self._goal_queue_offset = now_ms, self._store.log_max_offset, -1

    def _reach_goal(self, enqueued: int) -> None:
        """Release the moment that was noted when the intake has come so far, or cannot go on."""
        if self._goal_ms <= self._released_ms:
            return
        if self._goal_queue_offset < 0:
            if self._awaits_dispatch:
                return
            self._goal_queue_offset = self._store.max_offset(SystemTopic.TIMER, 0)
        is_stuck = enqueued == 0 and not self._intake.is_waiting
        if is_stuck or self.queue_offset >= self._goal_queue_offset:
            self._released_ms = self._goal_ms

    @property
    def _awaits_dispatch(self) -> bool:
        is_open = self._goal_ms > self._released_ms and self._goal_queue_offset < 0
        return is_open and self._store.dispatched_offset < self._goal_log_offset

    def next_due_ms(self, now_ms: int) -> int:
        """When `tick` has something to do next: deliver a message, or begin a slot."""
        end_ms = (now_ms // self.precision_ms + 1) * self.precision_ms
        return end_ms if self._due is None else max(min(end_ms, self._due.next_ms), now_ms + 1)

    def enqueue(self, now_ms: int, max_count: int) -> int:
        """Take messages in from the timer topic; the count."""
        self._last_tick_ms = now_ms
        write_time_ms = now_ms // self.precision_ms * self.precision_ms
        # What was cleaned away under us is gone.
        begin = self.queue_offset = max(self.queue_offset, self._store.min_offset(SystemTopic.TIMER, 0))
        end = begin + max_count
        if self.is_following:
            end = min(end, self.master_queue_offset)
        while self.queue_offset < end and self.wheel.changed_count < CHANGED_SLOTS_MAX:
            units = self._store.read_units(SystemTopic.TIMER, 0, self.queue_offset, min(end - self.queue_offset, 256))
            units = self._of_one_shift(units)
            if not units or not self._take_in_all(units, now_ms, write_time_ms):
                break
        return self.queue_offset - begin

    def _of_one_shift(self, units: list[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """These messages, up to one before which the clock was set."""
        if not units:
            return units
        shift_ms = self.time.shift_ms
        self._shift_ms = shift_ms(units[0][0])
        if self._shift_ms and not self._is_displaced:
            try:
                save_text(self._files, self._displaced_path, DISPLACED_TEXT)
            except OSError as exc:
                raise StoreIOError("write", self._displaced_path, exc) from exc
            self._is_displaced = True
        if shift_ms(units[-1][0]) == self._shift_ms:
            return units
        return [unit for unit in units if shift_ms(unit[0]) == self._shift_ms]

    def _request(self, unit: tuple[int, int, int]) -> TimerRequest | None:
        """What a message asks for, in steady time."""
        request = read_request(self._intake, unit[0], unit[1])
        if request is None or not self._shift_ms:
            return request
        return request._replace(out_ms=request.out_ms - self._shift_ms)

    def _take_in_all(self, units: list[tuple[int, int, int]], now_ms: int, write_time_ms: int) -> bool:
        """Take in these messages; False when the rest has to wait. The changed slots are kept for all of them."""
        intake, add = self._intake, self.log.add
        if not intake.prepare([unit[0] for unit in units], [unit[1] for unit in units]):
            return False
        places: list[Place] = []
        known: dict[bytes, Place] = {}
        slots: dict[int, GrowingSlot] = {}
        try:
            wishes = read_wishes(intake, units)
            begin, at = self.queue_offset, 0
            while at < len(units):
                physical_offset, size_bytes, _ = units[at]
                place = known.get(wishes[at])
                if place is None:
                    read_time_ms = self.read_time_ms
                    found = self._find_place(units[at], write_time_ms, slots)
                    if self.read_time_ms != read_time_ms:
                        known.clear()  # the clock went back: they may be too far away now
                    if isinstance(found, Place):
                        place = found
                        places.append(place)
                        if wishes[at]:
                            known[wishes[at]] = place
                    else:
                        count = self._do_without(found, units[at:], now_ms, write_time_ms)
                        if not count:
                            return False
                        at += count
                        self.queue_offset = begin + at
                        continue
                slot = place.slot
                previous = slot.last if slot.first >= 0 else -1
                slot.last = position = add(
                    previous, place.magic, place.write_time_ms, place.delay_ms, physical_offset, size_bytes, place.hash
                )
                if previous < 0:
                    slot.first = position
                place.count += 1
                at += 1
                self.queue_offset = begin + at
        finally:
            self._end_intake(places, slots)
            intake.release()
        return True

    def _end_intake(self, places: list[Place], slots: dict[int, GrowingSlot]) -> None:
        for place in places:
            change = -place.count if place.magic & TimerMagic.DELETE else place.count
            place.slot.timers += change
            self.stats.enqueued += place.count
            self._note(place.slot.time_ms, place.topic, change)
        for slot in slots.values():
            if slot.first >= 0:
                grown = Slot(slot.time_ms, slot.first, slot.last, slot.timers, slot.magic)
                self.wheel.put(grown)
                if self._due is not None and self._due.time_ms == slot.time_ms:
                    self._due.grow(grown)

    def _find_place(
        self, unit: tuple[int, int, int], write_time_ms: int, slots: dict[int, GrowingSlot]
    ) -> Place | Without:
        """Where a message goes on the wheel, or what becomes of it without."""
        request = self._request(unit)
        if request is None:
            self.stats.missing += 1
            return Without.NOTHING
        _, _, out_ms, topic, is_mark = request
        if self._was_delivered(out_ms, self.queue_offset):
            return Without.NOTHING
        if self._is_late(request, write_time_ms):
            return Without.NOTHING if is_mark else Without.DELIVERY
        write_time_ms = min(write_time_ms, out_ms)
        magic = TimerMagic.DEFAULT | TimerMagic.DELETE if is_mark else TimerMagic.DEFAULT
        slot_time_ms = out_ms // self.precision_ms * self.precision_ms  # it may be of another precision
        if out_ms - write_time_ms >= self._window_ms:
            slot_time_ms = rolled_slot_time_ms(
                out_ms, write_time_ms, window_ms=self._window_ms, precision_ms=self.precision_ms
            )
            magic |= TimerMagic.ROLL
        if slot_time_ms - self.read_time_ms >= self.wheel.span_ms:
            return Without.WAITING  # its place may still hold a slot of the last lap: deliver that first
        if self._due is not None and slot_time_ms < self._due.time_ms:
            return Without.WAITING  # the clock went back: the slot that was begun is put back first
        if slot_time_ms < self.read_time_ms:
            self._go_back_to(slot_time_ms)
        elif slot_time_ms < self._walk_end_ms:
            self._walk = None  # it may have looked there
        slot = slots.get(slot_time_ms)
        if slot is None:
            slot = slots[slot_time_ms] = GrowingSlot(self.wheel.get(slot_time_ms))
        return Place(slot, topic, magic, write_time_ms, slot_time_ms - write_time_ms)

    def _do_without(self, what: Without, units: list[tuple[int, int, int]], now_ms: int, write_time_ms: int) -> int:
        """Deal with the first of these messages, and with those after it that go the same way; 0: not now."""
        if what is Without.WAITING:
            return 0
        if what is Without.NOTHING:
            return 1
        late = 1
        for unit in units[1:]:
            request = self._request(unit)
            if request is None or request.is_mark or self._was_delivered(request.out_ms, self.queue_offset + late):
                break
            if not self._is_late(request, write_time_ms):
                break
            late += 1
        return self._delivery.put_late(self._intake, units[:late], now_ms)

    def _was_delivered(self, out_ms: int, queue_offset: int) -> bool:
        """By the master, or by this broker before units were lost."""
        return out_ms < self.read_time_ms and (self.is_following or queue_offset < self._retake_until)

    def _is_late(self, request: TimerRequest, write_time_ms: int) -> bool:
        """Whether its slot has been delivered: it is not put there any more."""
        return request.out_ms < write_time_ms and not self.is_following and not self._may_wait(request)

    def _may_wait(self, request: TimerRequest) -> bool:
        """Whether a message whose tick is over goes into its slot, where a mark may find it: when that is not closed.

        One that has rolled is delivered at once. A crash repeats its rolling: while crashes come faster than flushes
        its copies would gather in that slot, and each crash would repeat all of them.
        """
        if request.out_ms < self.read_time_ms:
            return False
        if request.is_mark:
            return True
        message = read_timer(self._intake, request.physical_offset, request.size_bytes)
        return message is not None and Property.TIMER_ROLL_TIMES not in message.properties

    def _go_back_to(self, slot_time_ms: int) -> None:
        """The clock was set back: look again at slots from there on. What was delivered is closed."""
        log.warning(
            "the clock went back: timers are read from %d again, which is %d ms before the last slot delivered",
            slot_time_ms,
            self.read_time_ms - slot_time_ms,
        )
        self.read_time_ms = slot_time_ms
        self._walk = None

    def dequeue(self, now_ms: int, max_count: int) -> int:
        """Deliver what is due and was released; the count of messages done."""
        done = 0
        while done < max_count:
            if self._due is None and (self.is_ending or not self._find_due(min(self._released_ms, now_ms))):
                break
            done += self._go_on(now_ms, max_count - done)
            if self._due is not None:
                break
        return done

    def _go_on(self, now_ms: int, max_count: int) -> int:
        """Deliver from the slot that was begun and close it after the last message; the count."""
        self._last_tick_ms = now_ms
        due, until_ms = self._due, min(self._released_ms, now_ms)
        assert due is not None
        if not due.go_on(self.log, self._preview, now_ms, max_count) or not self._delivery.read_marks(due):
            return 0
        due.release(until_ms)
        count = self._delivery.deliver(due, now_ms, max_count)
        if count:
            # At once, not when the tick ends: on a machine that is short of processors a kill may come long after.
            self._note_delivered()
        if self._rolled != self.stats.rolled:
            # What rolled is in the timer topic when the caller has dispatched it, and may belong to the next slot.
            self._rolled = self.stats.rolled
            self._released_ms = self._goal_ms = 0
        if due.is_done and until_ms >= due.end_ms:
            self._delivery.give_back_marks(due)
            self.wheel.shut(due.slot)
            self.read_time_ms = due.end_ms
            self._due = None
        return count

    @property
    def is_waiting(self) -> bool:
        """Whether a worker reads what the next tick needs, or syncs what it needs to be dispatched."""
        if self._intake.is_waiting or self._outlet.is_waiting or self._preview.is_waiting:
            return True
        due = self._due
        if due is not None and due.is_loading:
            return True
        next_ms = self.read_time_ms + self.precision_ms if due is None else min(due.next_ms, due.end_ms)
        return next_ms <= self._goal_ms and self._awaits_dispatch

    def _find_due(self, until_ms: int) -> bool:
        """Begin to load the next slot with timers whose tick has begun; without one, the read time is that tick's."""
        tick_ms = until_ms // self.precision_ms * self.precision_ms
        end_ms = tick_ms + self.precision_ms
        if self.read_time_ms >= end_ms:
            return False
        if self._walk is None or self._walk_end_ms != end_ms:
            self._walk, self._walk_end_ms = self.wheel.occupied(self.read_time_ms, end_ms), end_ms
        walk, self._walk = self._walk, None  # one that raised is over, and would say that there are no more slots
        if (slot := next(walk, None)) is None:
            self.read_time_ms = max(self.read_time_ms, tick_ms)
            return False
        self._walk, self.read_time_ms = walk, slot.time_ms
        self._due = DueSlot(slot, self.precision_ms, self.time)
        self._due.load(self.log, self._workers)
        return True

    def _put_back(self) -> None:
        """Leave the slot that was begun on the wheel, with what is not done of it."""
        due = self._due
        if due is None:
            return
        if due.done:
            put_back(self.log, self.wheel, due.slot, due.offsets_done, self._cuts)
        for topic in due.used_marks:  # they will be read again, and find nothing
            self._note(due.time_ms, topic, -1)
        self._due = self._walk = None

    # --- flow control and figures

    def is_congested(self, out_ms: int) -> bool:
        """Whether the slot of that steady time holds more timers than timerCongestNumEachSlot."""
        slot, due = self.wheel.get(out_ms), self._due
        done = due.done if due is not None and due.time_ms == slot.time_ms else 0
        return slot.timers - done > self.config.timer_congest_num_each_slot

    def behind_messages(self) -> int:
        """Messages of the timer topic that were not taken in yet (timerOffsetBehind)."""
        return max(0, self._store.max_offset(SystemTopic.TIMER, 0) - self.queue_offset)

    def behind_ms(self, now_ms: int) -> int:
        """How late delivery is (timerReadBehind)."""
        return max(0, now_ms // self.precision_ms * self.precision_ms - self.read_time_ms)

    def recount(self, max_count: int) -> bool:
        """Count what is on the wheel, a portion per call, and set the metrics right at the end; True when done."""
        if self._recount is None:
            self._recount = Recount(self.wheel, self.log, self.metrics.counts, self._topic_of, self._changes_of)
        if not self._recount.step(max_count):
            return False
        self.metrics.replace(self._recount.counts, self.metrics.timestamp)
        self._recount = None
        return True

    def _topic_of(self, unit: TimerUnit) -> str:
        message = read_timer(self._outlet, unit.physical_offset, unit.size_bytes)
        self._outlet.release()
        return "" if message is None else message.properties.get(Property.REAL_TOPIC, "")

    def _changes_of(self, slot_time_ms: int) -> Mapping[str, int]:
        """What delivery has changed of a slot whose units are all on the wheel still."""
        return self._due.changes if self._due is not None and self._due.time_ms == slot_time_ms else {}

    def _note_out(self, slot_time_ms: int, topic: str, change: int) -> None:
        """Delivery has taken so many less from a slot."""
        if self._due is not None:
            self._due.changes[topic] += change
        self._note(slot_time_ms, topic, change)

    def _note(self, slot_time_ms: int, topic: str, change: int) -> None:
        """A slot has so many more timers of a topic. A slave's figures are its master's, who has counted them."""
        if self.is_following:
            return
        self.metrics.add(topic, change, self._last_tick_ms)
        if self._recount is not None:
            self._recount.note(slot_time_ms, topic, change)

    # --- following a master

    def follow(self, checkpoint: TimerCheckpoint) -> None:
        """A slave learns how far its master has come: it takes in up to there and delivers nothing.

        The read time is the master's, also where the slave's own was later: between the two lies what the master has
        not delivered yet.
        """
        self.master_queue_offset = checkpoint.master_queue_offset
        self.read_time_ms = checkpoint.read_time_ms or self.read_time_ms
        self._version = (checkpoint.state_version, checkpoint.version_timestamp, checkpoint.version_counter)

    @property
    def is_in_slot(self) -> bool:
        """Whether a slot is under delivery: a checkpoint says nothing of the messages in it that are done."""
        return self._due is not None

    def take_over(self, checkpoint: TimerCheckpoint, now_ms: int) -> None:
        """A master learns how far a slave has come that stood in for it, and whose log is a part of this one.

        It has delivered the slots before its read time, of the messages before its place in the timer topic. Others,
        which never reached it, are put now, and so is what was to roll in these slots and is due after them.
        """
        if checkpoint.read_time_ms > self.read_time_ms:
            units = self._store.read_units(SystemTopic.TIMER, 0, checkpoint.queue_offset, 1)
            unknown = units[0][0] if units else self._store.log_max_offset
            slots = list(self.wheel.occupied(self.read_time_ms, checkpoint.read_time_ms))
            parts, until_ms = (self.wheel, self.log, self._delivery, self._outlet), checkpoint.read_time_ms
            open_slot = put_unknown(*parts, slots, unknown, now_ms, done_until_ms=until_ms, time=self.time)
            self.read_time_ms = checkpoint.read_time_ms if open_slot is None else open_slot.time_ms
            self._retake_until = max(self._retake_until, checkpoint.queue_offset)
            self.flush(now_ms)

    def follow_metrics(self, metrics: TopicCounts) -> bool:
        """A slave takes its master's figures; False when it has them."""
        if metrics.version == self.metrics.version:
            return False
        self.metrics = metrics
        return True

    @property
    def checkpoint(self) -> TimerCheckpoint:
        """As of now: what a flush saves."""
        # A crash on the way to `_retake_until` must not forget that what was due before was delivered.
        master = self.master_queue_offset if self.is_following else max(self.queue_offset, self._retake_until)
        return TimerCheckpoint(self.read_time_ms, self.log.end, self.queue_offset, master, *self._version)

    # --- flushing

    def flush(self, now_ms: int) -> None:
        """All of a flush, here and now."""
        plan = self.begin_flush(now_ms)
        try:
            self.run_flush(plan)
        except StoreIOError:
            self.drop_flush(plan)
            raise
        self.end_flush(plan)

    def _flush_if_there_is_room(self, now_ms: int) -> bool:
        """False on a full disk: the next flush does all of it."""
        try:
            self.flush(now_ms)
        except StoreIOError as exc:
            if exc.operation != "write":
                raise
            log.error("the timer wheel cannot be flushed: %s", exc)
            return False
        return True

    def is_flush_due(self, now_ms: int) -> bool:
        is_full = self.wheel.changed_count >= CHANGED_SLOTS_MAX
        return is_full or not 0 <= now_ms - self._last_flush_ms < self.config.timer_flush_interval_ms

    def begin_flush(self, now_ms: int) -> FlushPlan:
        self._last_flush_ms = now_ms
        is_loading = self._due is not None and self._due.is_loading  # from files that must stay meanwhile
        if not is_loading and not 0 <= now_ms - self._last_clean_ms < CLEAN_INTERVAL_MS:
            self._last_clean_ms = now_ms
            self.log.delete_before(self._store.log_min_offset)
        self.log.write()
        if not self.is_following:
            state, _, counter = self._version
            self._version = (state, now_ms, counter + 1)
        return FlushPlan(
            self._store.log_max_offset,
            self.log.take_unsynced(),
            self.wheel.take_changes(),
            self.checkpoint,
            self.metrics.to_json(),
            self._cuts.copy(),
            self.log.places_of_previous(self._cuts),
        )

    def run_flush(self, plan: FlushPlan) -> None:
        """The slow part. Each step only after the one before is durable: a crash between them loses nothing."""
        self._store.flush(plan.log_end)
        self.log.sync(plan.log_files)
        self.wheel.write_slots(plan.slots)
        self._checkpoint_file.write(plan.checkpoint)
        if plan.cut_places:
            self.log.cut(plan.cut_places)
        try:
            save_text(self._files, self._metrics_path, plan.metrics)
        except OSError as exc:
            raise StoreIOError("write", self._metrics_path, exc) from exc

    def end_flush(self, plan: FlushPlan) -> None:
        self.saved_checkpoint = plan.checkpoint
        self.wheel.forget(plan.slots)
        if plan.cuts:
            del self._cuts[: len(plan.cuts)]
            self.log.forget_block()

    def drop_flush(self, plan: FlushPlan) -> None:
        """A write of it failed (a full disk): the next flush does all of it again. A failed sync is final instead."""
        self.log.give_back_unsynced(plan.log_files)
