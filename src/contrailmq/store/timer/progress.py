"""What may be called done: progress counts only when the copies it speaks of are durable.

A delivery appends a copy to the commit log, which becomes durable some time later. Were the read time saved before
that, a power failure could lose the copy and still remember the delivery: a lost message. So every step of progress
is noted with the end of the log at that moment, and a flush saves the newest step whose end is durable.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

Step = TypeVar("Step")


class DurableProgress(Generic[Step]):
    """Steps in order; ends of the log never decrease. Owner: whoever delivers."""

    def __init__(self, step: Step) -> None:
        self.durable = step
        self._steps: deque[tuple[int, Step]] = deque()

    def note(self, log_end: int, step: Step) -> None:
        """This step is done as soon as the log is durable up to `log_end`."""
        if self._steps and self._steps[-1][0] == log_end:
            self._steps[-1] = (log_end, step)
        else:
            self._steps.append((log_end, step))

    def settle(self, durable_offset: int) -> Step:
        """The newest step that is durable now."""
        while self._steps and self._steps[0][0] <= durable_offset:
            self.durable = self._steps.popleft()[1]
        return self.durable

    @property
    def is_settled(self) -> bool:
        return not self._steps
