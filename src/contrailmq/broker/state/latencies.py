"""How long requests took, from the wakeup that decoded them to their answer (rocketmq_rpc_latency).

The answers of one wakeup leave together at its end, so the clock is read twice for all of them. An answer that comes
later (a held pull, a send that waits for the disk) is noted by whoever gives it: it has kept `began_ns`.

    key := request code, response code, whether it was held

A name exists only for codes that are served, so clients cannot make up series.
"""

from __future__ import annotations

import bisect
import time
from collections.abc import Callable
from typing import Final, NamedTuple

from contrailmq.wire.frame import response_code

# Upper bounds in ms. The last one is not rocketmq_rpc_latency's, but that of the times that creating topics takes.
BOUNDS_MS: Final = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000, 5000)
ONEWAY: Final = -1  # in place of a response code: nobody was answered
_MS_NS: Final = 1_000_000


class LatencyKey(NamedTuple):
    request_code: int
    response_code: int
    is_long_polling: bool


class Latencies:
    """Counts by bucket, and the sum."""

    __slots__ = ("counts", "sum_ms")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS_MS) + 1)
        self.sum_ms = 0


class RequestLatencies:
    """Owner: the node. `began_ns` is when the requests that are being served were decoded."""

    __slots__ = ("_quick", "began_ns", "by_key", "stopwatch_ns")

    def __init__(self) -> None:
        self.stopwatch_ns: Callable[[], int] = time.perf_counter_ns
        self.began_ns = 0
        self.by_key: dict[LatencyKey, Latencies] = {}
        self._quick: dict[int, Latencies] = {}  # request code -> those of its successes at once

    def note_answers(self, served: list[tuple[int, bytes | None]]) -> None:
        """What one wakeup answered: request codes with their answers, None for requests that want none."""
        elapsed_ms = (self.stopwatch_ns() - self.began_ns) // _MS_NS
        bucket = 0 if elapsed_ms < 1 else bisect.bisect_left(BOUNDS_MS, elapsed_ms)
        for request_code, answer in served:
            code = ONEWAY if answer is None else response_code(answer)
            found = self._quick.get(request_code) if code == 0 else None
            if found is None:
                found = self._of(LatencyKey(request_code, code, False))
                if code == 0:
                    self._quick[request_code] = found
            found.counts[bucket] += 1
            found.sum_ms += elapsed_ms

    def note(self, request_code: int, code: int, began_ns: int, *, is_long_polling: bool = False) -> None:
        """A response with this code leaves now, to a request that was decoded then."""
        elapsed_ms = (self.stopwatch_ns() - began_ns) // _MS_NS
        found = self._of(LatencyKey(request_code, code, is_long_polling))
        found.counts[bisect.bisect_left(BOUNDS_MS, elapsed_ms)] += 1
        found.sum_ms += elapsed_ms

    def note_late(self, request_code: int, answer: bytes, began_ns: int) -> None:
        """The same, for a whole answer."""
        self.note(request_code, response_code(answer), began_ns)

    def _of(self, key: LatencyKey) -> Latencies:
        found = self.by_key.get(key)
        if found is None:
            found = self.by_key[key] = Latencies()
        return found
