"""Transactions in a broker that kills itself (SIGKILL) at a named step, again and again on the same store.

    python killed_transactions.py DIRECTORY STAGE ROUNDS SEED

A round (killed_rounds.py) prepares messages, ends most of them, answers the broker's checks, and dies right after the
named step at a random moment. What the producer was told is written to DIRECTORY/diary as it happens, so it survives
the kill. A producer commits the messages with even numbers and rolls the others back, whenever it is asked. The last
round is not killed: it goes on until nothing is pending and writes what is visible to DIRECTORY/visible.

What a kill can tell apart is what is in the log and in the tables. So a step is a record that the log has just taken,
or an answer of the broker that its client does not get.
"""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from broker.harness import Link
from broker.test_transactions import COMMIT, ROLLBACK, TransactionBench
from contrailmq.message import SystemTopic
from contrailmq.store import AppendResult, Copy
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
        self.is_preparing = False
        self._watch_log()
        self.write("round", number, self.bench.store.max_offset("T", 1))

    def write(self, *words: object) -> None:
        os.write(self.diary, (" ".join(map(str, words)) + "\n").encode())

    def _watch_log(self) -> None:
        """Call the method of a step as soon as the log has the record, before the broker goes on."""
        store = self.bench.store
        append, append_copies = store.append, store.append_copies

        def watched_append(topic: str, *args: Any, **kwargs: Any) -> AppendResult:
            result = append(topic, *args, **kwargs)
            assert result.status.is_stored, result
            self._stored(topic)
            return result

        def watched_copies(copies: Sequence[Copy]) -> int:
            written = append_copies(copies)
            for copy in copies[:written]:
                self._stored(copy.topic)
            return written

        store.append, store.append_copies = watched_append, watched_copies  # type: ignore[method-assign]

    def _stored(self, topic: str) -> None:
        if topic == SystemTopic.OP_HALF:
            self.op_stored()
        elif topic == SystemTopic.HALF:
            if not self.is_preparing:
                self.put_back()
        else:
            assert topic == "T"
            self.commit_stored()

    def commit_stored(self) -> None:
        """A message is visible; its half message is not ended yet."""

    def op_stored(self) -> None:
        """Ends are listed; nobody has noted that."""

    def put_back(self) -> None:
        """A half message is at the end of its queue; its old place still counts."""

    def ended(self) -> None:
        """The broker has confirmed an end; its client will not know."""

    def prepare(self, name: str) -> Any:
        self.is_preparing = True
        prepared = self.bench.prepare(name.encode())
        self.is_preparing = False
        return prepared

    def save(self) -> None:
        self.bench.run(self.bench.saver.save("consumerOffset.json", "topics.json"))

    def step(self, milliseconds: int) -> None:
        self.bench.run_ms(milliseconds)
        self.write("now", self.bench.clock.now_ms())
        for request, message in self.bench.checks(self.producer):
            self.bench.answer_check(request, outcome(message.body.decode()))
            self.ended()
        self.save()

    def run(self, source: random.Random) -> None:
        for number in range(MESSAGES_PER_ROUND):
            name = f"{self.number}-{number}"
            prepared = self.prepare(name)
            self.write("half", name)
            if source.random() < 0.7:
                (answer,) = self.bench.end(prepared, outcome(name))
                assert answer.code == 0, answer.remark
                self.ended()
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
        steps = {
            "half": "prepare",
            "commit": "commit_stored",
            "end": "ended",
            "op": "op_stored",
            "put back": "put_back",
            "offsets": "save",
        }
        return self, steps[stage]

    def note_kill(self, stage: str) -> None:
        self.write("killed", stage)


if __name__ == "__main__":
    run_rounds(lambda directory, _, number: Round(directory, number), steps_max=4)
