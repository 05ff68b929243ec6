"""Transactions in a broker that kills itself (SIGKILL) at a named step, again and again on the same store.

    python killed_transactions.py DIRECTORY STAGE ROUNDS SEED

A round (killed_rounds.py) prepares messages, ends most of them, answers the broker's checks, and dies right after the
named step at a random moment. What the producer was told is written to DIRECTORY/diary as it happens, so it survives
the kill. A producer commits the messages with even numbers and rolls the others back, whenever it is asked. The last
round is not killed: it goes on until nothing is pending and writes what is visible to DIRECTORY/visible.
"""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

from broker.harness import Link
from broker.test_transactions import COMMIT, ROLLBACK, TransactionBench
from contrailmq.store.base.clock import ManualClock
from killed_rounds import run_rounds

START_MS = 1_700_000_000_000
MESSAGES_PER_ROUND = 8
STAGES = ("half", "commit", "end", "op", "put back", "offsets")


def outcome(name: str) -> str:
    return ROLLBACK if int(name.partition("-")[2]) % 2 else COMMIT


class Round:
    def __init__(self, directory: Path, number: int) -> None:
        self.number = number
        self.diary = os.open(directory / "diary", os.O_RDWR | os.O_CREAT | os.O_APPEND)
        lines = os.pread(self.diary, 1 << 22, 0).decode().splitlines()
        now_ms = max((int(line.split()[1]) for line in lines if line.startswith("now")), default=START_MS)
        # A life is too short to end all that are asked about.
        self.bench = TransactionBench(directory, checks_max=1000, clock=ManualClock(now_ms))
        self.producer = Link(40_000 + number % 20_000)
        self.bench.heartbeat("T", link=self.producer)
        self.write("round", number, self.bench.store.max_offset("T", 1))

    def write(self, *words: object) -> None:
        os.write(self.diary, (" ".join(map(str, words)) + "\n").encode())

    def prepare(self, name: str) -> Any:
        return self.bench.prepare(name.encode())

    def save(self) -> None:
        self.bench.run(self.bench.saver.save("consumerOffset.json", "topics.json"))

    def step(self, milliseconds: int) -> None:
        self.bench.run_ms(milliseconds)
        self.write("now", self.bench.clock.now_ms())
        for request, message in self.bench.checks(self.producer):
            self.bench.answer_check(request, outcome(message.body.decode()))
        self.save()

    def run(self, source: random.Random) -> None:
        for number in range(MESSAGES_PER_ROUND):
            name = f"{self.number}-{number}"
            prepared = self.prepare(name)
            self.write("half", name)
            if source.random() < 0.7:
                (answer,) = self.bench.end(prepared, outcome(name))
                assert answer.code == 0, answer.remark
                self.write("ended", name)
            if source.random() < 0.5:
                self.step(source.choice((100, 3100, 7000)))
        for _ in range(10):
            self.step(3000)

    def finish(self, directory: Path) -> None:
        for _ in range(20):
            self.step(3000)
        (directory / "visible").write_bytes(b"\n".join(self.bench.bodies()))
        (directory / "pending").write_text(str(self.bench.service.pending()))

    def step_of(self, stage: str) -> tuple[Any, str]:
        service = self.bench.service
        steps: dict[str, tuple[Any, str]] = {
            "half": (self, "prepare"),
            "commit": (service, "_commit"),
            "end": (service, "note_ended"),
            "op": (service, "_append_own"),
            "put back": (service, "_put_copy"),
            "offsets": (self, "save"),
        }
        return steps[stage]

    def note_kill(self, stage: str) -> None:
        self.write("killed", stage)


if __name__ == "__main__":
    run_rounds(lambda directory, _, number: Round(directory, number), steps_max=4)
