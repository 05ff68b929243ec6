"""Delays of a broker that is a process of its own, whose wall clock is set and which is stopped or killed meanwhile.

Each round sends messages with a delay of ten seconds, sets the broker's wall clock at some moment and starts the broker
again; those of earlier rounds wait meanwhile. This process measures by its own monotonic clock, which nobody sets.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from contrailmq import ConsumeFromWhere, Message, Producer, PushConsumer, StoredMessage
from contrailmq.testing import LocalCluster

ROUNDS: Final = 20
ASKED_S: Final = 10.0
LATE_S: Final = 60.0  # a broker that is being started, a client that finds it again, a machine that is busy
WAIT_S: Final = 120
HOUR_S: Final = 3600
JUMPS_S: Final = [sign * size for size in (0.8, 1, HOUR_S, 30 * 24 * HOUR_S) for sign in (1, -1)]
WHENS: Final = ("noticed", "before the end", "while it is down", "after the start")

# Python runs this in each process that has it on its path: the wall clock is ahead by what the file says.
FAKED: Final = """
import os, time
_path, _true_ns = os.environ["WALL_CLOCK_AHEAD"], time.time_ns
def _ahead_ns():
    with open(_path) as file:
        return int(file.read())
time.time_ns = lambda: _true_ns() + _ahead_ns()
time.time = lambda: time.time_ns() / 1e9
"""


class WallClock:
    """Of the broker processes that are started from here on."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._path = directory / "ahead"
        self._ahead_ns = 0
        self.jump(0)
        (directory / "sitecustomize.py").write_text(FAKED)
        others = os.environ.get("PYTHONPATH")
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(directory), *([others] if others else [])]))
        monkeypatch.setenv("WALL_CLOCK_AHEAD", str(self._path))

    def jump(self, seconds: float) -> None:
        self._ahead_ns += round(seconds * 1e9)
        beside = self._path.with_suffix(".new")
        beside.write_text(str(self._ahead_ns))
        beside.replace(self._path)


class Trial:
    """When each message was sent, acknowledged and first received."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._sent: dict[bytes, tuple[float, float]] = {}
        self._received: dict[bytes, float] = {}
        self._is_complete = threading.Event()
        self._is_over = False

    def send(self, body: str) -> None:
        for kind, wish in (("level", {"delay_level": 3}), ("timer", {"delay": ASKED_S})):
            began_s = time.monotonic()
            self._producer.send(Message("Later", f"{kind} {body}".encode(), **wish))
            self._sent[f"{kind} {body}".encode()] = began_s, time.monotonic()

    def receive(self, messages: list[StoredMessage]) -> None:
        for message in messages:
            self._received.setdefault(message.body, time.monotonic())
        if self._is_over and len(self._received) == len(self._sent):
            self._is_complete.set()

    def wait(self) -> None:
        self._is_over = True
        self.receive([])
        assert self._is_complete.wait(WAIT_S), set(self._sent) - set(self._received)

    def waits_s(self, kind: str) -> list[float]:
        """From the moment of sending on, the shortest first."""
        found = [(self._received[body], *times) for body, times in self._sent.items() if body.startswith(kind.encode())]
        return sorted(received_s - began_s for received_s, began_s, _ in found)


def one_round(trial: Trial, cluster: LocalCluster, clock: WallClock, source: random.Random, number: int) -> str:
    """What was done."""
    jump_s, when, ends = source.choice(JUMPS_S), source.choice(WHENS), source.choice(("stop", "kill"))
    end: Callable[[], None] = cluster.stop_broker if ends == "stop" else cluster.kill_broker
    pause = threading.Event().wait

    def maybe(moment: str) -> None:
        if when == moment:
            clock.jump(jump_s)

    trial.send(f"{number} before")
    maybe("noticed")
    trial.send(f"{number} just after")
    pause(0.5)
    trial.send(f"{number} after")
    maybe("before the end")
    end()
    maybe("while it is down")
    cluster.restart_broker()
    maybe("after the start")
    trial.send(f"{number} in the next life")
    return f"{number}: {jump_s:+} s {when}, {ends}"


@pytest.mark.long
@pytest.mark.kills
def test_no_delay_of_ten_seconds_is_shorter_and_none_is_longer_by_a_jump(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, source = WallClock(tmp_path, monkeypatch), random.Random(4)
    with LocalCluster(processes=True) as cluster, Producer("sender", namesrv=cluster.namesrv) as producer:
        trial = Trial(producer)
        consumer = PushConsumer("reader", namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
        consumer.subscribe("Later")
        consumer.listen(trial.receive)
        with consumer:
            done = [one_round(trial, cluster, clock, source, number) for number in range(ROUNDS)]
            trial.wait()
    for kind in ("level", "timer"):
        waits_s = trial.waits_s(kind)
        print(f"{kind}: {len(waits_s)} messages, {waits_s[0]:.3f} s to {waits_s[-1]:.3f} s")
        assert len(waits_s) == 4 * ROUNDS
        assert waits_s[0] >= ASKED_S, done
        assert waits_s[-1] <= ASKED_S + LATE_S, done
