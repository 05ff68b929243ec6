"""A program that kills itself (SIGKILL) at a named step, again and again on the same directory.

    python SCRIPT DIRECTORY STAGE ROUNDS SEED

Each round is a fork, so that starting costs little. The last round is not killed: it finishes what the others left.
"""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol


class Round(Protocol):
    """One life of the program. `step_of` names the method that a stage stands for."""

    def step_of(self, stage: str) -> tuple[Any, str]: ...

    def run(self, source: random.Random) -> None: ...

    def finish(self, directory: Path) -> None: ...

    def note_kill(self, stage: str) -> None: ...


def run_rounds(new_round: Callable[[Path, str, int], Round], *, steps_max: int) -> None:
    """Kill every round but the last right after at most `steps_max` steps of the stage."""
    directory, stage, rounds, seed = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    for number in range(rounds + 1):
        is_last = number == rounds
        child = os.fork()
        if child == 0:
            source = random.Random(seed * 1000 + number)
            life = new_round(directory, stage, number)
            if is_last:
                life.finish(directory)
            else:
                _arm(life, stage, source.randint(1, steps_max))
                life.run(source)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        wanted = (0,) if is_last else (0, -signal.SIGKILL)
        assert os.waitstatus_to_exitcode(status) in wanted, status


def _arm(life: Round, stage: str, steps: int) -> None:
    owner, name = life.step_of(stage)
    step: Callable[..., object] = getattr(owner, name)

    def fatal(*args: object, **kwargs: object) -> object:
        nonlocal steps
        result = step(*args, **kwargs)
        steps -= 1
        if steps <= 0:
            life.note_kill(stage)
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, fatal)
