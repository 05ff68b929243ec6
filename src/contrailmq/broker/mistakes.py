"""Failures of our own code in a request: logged with a trace, without letting a peer fill the log.

Peers can repeat a request that makes us fail for ever, and a trace is a page. So each place in the code gets
one trace in a period; what fails there again meanwhile is a warning of one line, of which `peer_warnings` writes a few
and counts the rest.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Final

from contrailmq.wire.peer_warnings import PERIOD_S, PeerWarnings, peer_warnings

__all__ = ["Mistakes", "mistakes"]


class Mistakes:
    """`log` gets the traces, `warnings` what comes again. The places are those of our code, so there are few."""

    def __init__(
        self, log: logging.Logger, warnings: PeerWarnings, clock_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._log, self._warnings, self._clock_s = log, warnings, clock_s
        self._traced_s: dict[tuple[str, int], float] = {}

    def note(self, what: str) -> None:
        """Tell of the exception that is being handled. `what` is a text of ours, without a peer's words in it."""
        error = sys.exception()
        assert error is not None
        place, now_s = _place(error), self._clock_s()
        traced_s = self._traced_s.get(place)
        if traced_s is None or now_s - traced_s >= PERIOD_S:
            self._traced_s[place] = now_s
            self._log.error("%s", what, exc_info=error)
        else:
            self._warnings.warn(what, f"{type(error).__name__}: {error}")


def _place(error: BaseException) -> tuple[str, int]:
    """Where it was raised: file and line."""
    trace = error.__traceback__
    assert trace is not None
    while trace.tb_next is not None:
        trace = trace.tb_next
    return trace.tb_frame.f_code.co_filename, trace.tb_lineno


mistakes: Final = Mistakes(logging.getLogger("contrailmq.broker"), peer_warnings)  # of this process
