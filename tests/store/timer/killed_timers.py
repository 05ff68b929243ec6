"""Timers in a process that kills itself (SIGKILL) at a named step, again and again on the same store.

    python killed_timers.py DIRECTORY STAGE ROUNDS SEED

A round (killed_rounds.py) goes on where the last clock stood, sends timers, turns the wheel, and dies right after the
named step at a random moment. What was acknowledged, and every step of the clock, is written to DIRECTORY/diary as it
happens, so it survives the kill, and so is how many had arrived when a round began, and after each flush, with its
time. Some rounds come to their end: that is a stop, in the middle of a slot, and its steps may be the ones that kill.
The last round is not killed: it runs until everything is delivered and writes what arrived to DIRECTORY/arrived.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

from at_once import AtOnce
from contrailmq.message import Property, SystemTopic, encode_properties
from contrailmq.store import Files, ManualClock, MessageStore, StoreConfig
from contrailmq.store.message_store import Drive
from contrailmq.store.timer import TimerStore
from contrailmq.store.timer.admission import slot_time_ms
from killed_rounds import run_rounds

START_MS = 1_700_000_000_000
TIMERS_PER_ROUND = 12
STAGES = ("log append", "timer log", "wheel", "checkpoint", "dequeue", "delivery", "roll")


class FilesWithoutSync(Files):
    """The kernel lives on: what was written is there."""

    def sync(self, descriptor: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


class Round:
    def __init__(self, directory: Path, stage: str, number: int) -> None:
        self.diary = os.open(directory / "diary", os.O_RDWR | os.O_CREAT | os.O_APPEND)
        self.clock = ManualClock(self._last_time())
        config = StoreConfig(
            directory / "store",
            mapped_file_size_commit_log=1 << 20,
            mapped_file_size_consume_queue=20_000,
            max_hash_slot_num=100,
            max_index_num=400,
            mapped_file_size_timer_log=10_400,
            timer_roll_window_slot=4 if stage == "roll" else 100,  # a third of the timers roll, or none
        )
        self.store = MessageStore(config, files=FilesWithoutSync(), clock=self.clock, drive=Drive.LOOP).open()
        self.write(f"round {number} {self.store.max_offset('T', 0)}")
        self.timer = TimerStore(self.store, FilesWithoutSync(), AtOnce(), slots_total=3600)
        self.timer.open(self.clock.now_ms())
        self.number = number

    def _last_time(self) -> int:
        lines = os.pread(self.diary, 1 << 20, 0).decode().splitlines()
        return max((int(line.split()[1]) for line in lines if line.startswith("now")), default=START_MS)

    def write(self, line: str) -> None:
        os.write(self.diary, f"{line}\n".encode())

    def send(self, name: str, delay_ms: int) -> None:
        deliver_ms = self.clock.now_ms() + delay_ms
        properties = {
            Property.TIMER_DELIVER_MS: str(deliver_ms),
            Property.TIMER_OUT_MS: str(slot_time_ms(deliver_ms, 1000)),
            Property.REAL_TOPIC: "T",
            Property.REAL_QUEUE_ID: "0",
            Property.UNIQUE_KEY: f"K{name}",
        }
        self.store.append(
            SystemTopic.TIMER,
            0,
            name.encode(),
            encode_properties(properties),
            tags_code=0,
            keys=None,
            unique_key=None,
        )
        self.write(f"sent {name} {deliver_ms}")

    def step(self, milliseconds: int) -> None:
        self.clock.advance(milliseconds)
        self.write(f"now {self.clock.now_ms()}")
        self.store.dispatch()
        while self.timer.tick(self.clock.now_ms(), 5):
            self.store.dispatch()  # as a broker does: what rolled is waited for
        self.store.dispatch()
        if self.timer.is_flush_due(self.clock.now_ms()):
            self.timer.flush(self.clock.now_ms())
            self.write(f"flushed {self.store.max_offset('T', 0)} {self.clock.now_ms()}")

    def run(self, source: random.Random) -> None:
        for number in range(TIMERS_PER_ROUND):
            self.send(f"{self.number}-{number}", source.randrange(1, 6000))
            if source.random() < 0.4:
                self.step(source.choice((100, 500, 1000)))
        for _ in range(source.choice((2, 30, 30, 30, 30))):
            self.step(source.choice((90, 500)))
        self.timer.close(self.clock.now_ms())
        self.write(f"stopped {self.store.max_offset('T', 0)}")

    def finish(self, directory: Path) -> None:
        seen = rolled = 0
        while again := self.store.get(SystemTopic.TIMER, 0, seen):
            seen += len(again)
            rolled += sum(Property.TIMER_ROLL_TIMES in message.properties for message in again)
        self.write(f"rolled {rolled}")
        for _ in range(30):
            self.step(1000)
        lines: list[str] = []
        while found := self.store.get("T", 0, len(lines)):
            lines += (f"{message.body.decode()} {message.store_time_ms}" for message in found)
        (directory / "arrived").write_text("\n".join(lines))

    def step_of(self, stage: str) -> tuple[Any, str]:
        timer = self.timer
        steps: dict[str, tuple[Any, str]] = {
            "log append": (self, "send"),
            "timer log": (timer.log, "write"),
            "wheel": (timer.wheel, "write_slots"),
            "checkpoint": (timer._checkpoint_file, "write"),
            "dequeue": (timer._delivery, "_copies"),  # taken off the wheel, not put yet
            "delivery": (self.store, "append_copies"),
            "roll": (timer._delivery, "put"),
        }
        return steps[stage]

    def note_kill(self, stage: str) -> None:
        self.write("killed")


if __name__ == "__main__":
    run_rounds(Round, steps_max=9)
