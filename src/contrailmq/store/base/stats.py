"""What the store did, as numbers: RocketMQ's StoreStatsService without its locks.

Hot paths add to plain integers (a lost update under threads costs a count, not a message). Once a second housekeeping
takes a sample of the totals; rates over 10, 60 and 600 seconds are differences of samples.

Put times are counted in buckets. An embedded put is timed by itself, to the millisecond; a broker times the puts of one
wakeup together, to the microsecond, from the first append until all can be read (under SYNC_FLUSH: until they are
durable), so that the clock is read twice for all of them. Their distribution and percentiles are those of the last one
to two minutes; RocketMQ's are of the last full minute.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Callable
from typing import Final, NamedTuple

from contrailmq.store.files import Mapped

# Upper bounds in ms of the buckets of put times; the last bucket is open.
PUT_TIME_BOUNDS_MS: Final = (0, 10, 50, 100, 200, 500, 1000, 2000, 3000, 4000, 5000, 10_000)
PUT_TIME_NAMES: Final = (
    "<=0ms", "0~10ms", "10~50ms", "50~100ms", "100~200ms", "200~500ms", "500ms~1s", "1~2s", "2~3s", "3~4s", "4~5s",
    "5~10s", "10s~",
)  # fmt: skip
# Upper bounds in us of the buckets for percentiles, each a fifth above the one before: 10 us to 14 s.
_FINE_BOUNDS_US: Final = tuple(round(10 * 1.2**step) for step in range(78))
# Upper bounds in us, inclusive, of what is counted for ever: 10 us to 10 s, three steps in ten of them.
DURATION_BOUNDS_US: Final = (
    10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000,
)  # fmt: skip
PUT_TIME_WINDOW_MS: Final = 60_000
SAMPLES_MAX: Final = 601  # ten minutes at one a second
RATE_WINDOWS_S: Final = (10, 60, 600)
assert len(PUT_TIME_NAMES) == len(PUT_TIME_BOUNDS_MS) + 1


class _Sample(NamedTuple):
    time_ms: int
    put_count: int
    get_found: int
    get_missed: int
    transferred: int


class Durations:
    """How long something took, in buckets, for histograms that others read. One writer.

    Noting is a search and two additions: meant for what happens once in a wakeup, not for each message.
    """

    __slots__ = ("counts", "sum_us")

    def __init__(self) -> None:
        self.counts = [0] * (len(DURATION_BOUNDS_US) + 1)
        self.sum_us = 0

    def note(self, elapsed_us: int, count: int = 1) -> None:
        """So many took so long each."""
        self.counts[bisect.bisect_left(DURATION_BOUNDS_US, elapsed_us)] += count
        self.sum_us += elapsed_us * count


class StoreStats:
    """Totals since open. `put_count` and `put_bytes` are filled in from the log when they are read; `mapped` is asked
    when the mapped files are."""

    def __init__(self, boot_time_ms: int, mapped: Callable[[], Mapped]) -> None:
        self.boot_time_ms = boot_time_ms
        self._mapped = mapped
        self.put_count = 0
        self.put_bytes = 0
        self.put_failed_count = 0
        self.listener_error_count = 0  # what listeners raised
        self.put_times = Durations()  # of a broker's puts, since open
        self.put_time_max_ms = 0
        self.put_time_counts = [0] * len(PUT_TIME_NAMES)
        self._fine_counts = [0] * (len(_FINE_BOUNDS_US) + 1)
        self._last_put_time_counts = self.put_time_counts.copy()  # of the window before
        self._last_fine_counts = self._fine_counts.copy()
        self._window_began_ms = boot_time_ms
        self.get_found_count = 0
        self.get_missed_count = 0
        self.get_time_max_ms = 0
        self.transferred_count = 0
        self._samples: deque[_Sample] = deque([_Sample(boot_time_ms, 0, 0, 0, 0)], maxlen=SAMPLES_MAX)

    @property
    def mapped_files(self) -> int:
        """Files of the store that are mapped now: log and index, also those that only a reader still holds."""
        return self._mapped().files

    @property
    def mapped_bytes(self) -> int:
        return self._mapped().bytes

    def note_put_time(self, elapsed_ms: int) -> None:
        if elapsed_ms <= 0:  # nearly always
            self.put_time_counts[0] += 1
            self._fine_counts[0] += 1
            return
        self.note_puts(1, elapsed_ms * 1000)

    def note_puts(self, count: int, elapsed_us: int) -> None:
        """Several puts that took as long together: each of them waited for the last."""
        elapsed_ms = elapsed_us // 1000
        bucket = bisect.bisect_right(PUT_TIME_BOUNDS_MS, elapsed_ms) if elapsed_ms > 0 else 0
        self.put_time_counts[bucket] += count
        self._fine_counts[bisect.bisect_left(_FINE_BOUNDS_US, elapsed_us)] += count
        self.put_times.note(elapsed_us, count)
        if elapsed_ms > self.put_time_max_ms:
            self.put_time_max_ms = elapsed_ms

    def note_get(self, count: int, elapsed_ms: int) -> None:
        if elapsed_ms > self.get_time_max_ms:
            self.get_time_max_ms = elapsed_ms
        if count:
            self.get_found_count += 1
            self.transferred_count += count
        else:
            self.get_missed_count += 1

    def sample(self, now_ms: int) -> None:
        if not 0 <= now_ms - self._window_began_ms < PUT_TIME_WINDOW_MS:  # over, or the clock was set back
            self._window_began_ms = now_ms
            self._last_put_time_counts, self.put_time_counts = self.put_time_counts, [0] * len(PUT_TIME_NAMES)
            self._last_fine_counts, self._fine_counts = self._fine_counts, [0] * (len(_FINE_BOUNDS_US) + 1)
        self._samples.append(
            _Sample(now_ms, self.put_count, self.get_found_count, self.get_missed_count, self.transferred_count)
        )

    def rates(self, field: str) -> tuple[float, float, float]:
        """Per second over the last 10, 60 and 600 s: of put_count, get_found, get_missed or transferred."""
        result = []
        for seconds in RATE_WINDOWS_S:
            samples = list(self._samples)[-seconds - 1 :]
            elapsed_ms = samples[-1].time_ms - samples[0].time_ms if len(samples) > 1 else 0
            grown = getattr(samples[-1], field) - getattr(samples[0], field) if elapsed_ms > 0 else 0
            result.append(grown * 1000 / elapsed_ms if elapsed_ms > 0 else 0.0)
        return result[0], result[1], result[2]

    def recent_put_times(self) -> dict[str, int]:
        """Puts of the last one to two minutes by how long they took."""
        pairs = zip(self._last_put_time_counts, self.put_time_counts, strict=True)
        return dict(zip(PUT_TIME_NAMES, (last + now for last, now in pairs), strict=True))

    def put_time_percentile_ms(self, ratio: float) -> float:
        """Within how many ms this share of the recent puts was done; between the bounds of its bucket, in proportion.

        What was timed to the millisecond and took none counts as nothing.
        """
        counts = [last + now for last, now in zip(self._last_fine_counts, self._fine_counts, strict=True)]
        wanted = ratio * sum(counts)
        seen, low_us = 0, 0
        for bound_us, count in zip((*_FINE_BOUNDS_US, self.put_time_max_ms * 1000), counts, strict=True):
            if count and seen + count >= wanted:
                return (low_us + (bound_us - low_us) * (wanted - seen) / count) / 1000 if low_us else 0.0
            seen, low_us = seen + count, bound_us
        return 0.0

    def runtime_info(self, now_ms: int) -> dict[str, str]:
        """RocketMQ's names and formats (StoreStatsService.getRuntimeInfo); the last two are its counters of mapped
        files (DefaultMappedFile), which it keeps and does not show."""
        found, missed = self.rates("get_found"), self.rates("get_missed")
        total = (found[0] + missed[0], found[1] + missed[1], found[2] + missed[2])
        average = self.put_bytes / self.put_count if self.put_count else 0.0
        mapped = self._mapped()
        return {
            "bootTimestamp": str(self.boot_time_ms),
            "runtime": _duration(now_ms - self.boot_time_ms),
            "putMessageEntireTimeMax": str(self.put_time_max_ms),
            "putMessageTimesTotal": str(self.put_count),
            "putMessageFailedTimes": str(self.put_failed_count),
            "putMessageSizeTotal": str(self.put_bytes),
            "putMessageDistributeTime": " ".join(
                f"[{name}]:{count}" for name, count in self.recent_put_times().items()
            ),
            "putMessageAverageSize": str(average),
            "dispatchMaxBuffer": "0",
            "getMessageEntireTimeMax": str(self.get_time_max_ms),
            "putTps": _rate_text(self.rates("put_count")),
            "getFoundTps": _rate_text(found),
            "getMissTps": _rate_text(missed),
            "getTotalTps": _rate_text(total),
            "getTransferredTps": _rate_text(self.rates("transferred")),
            "putLatency99": f"{self.put_time_percentile_ms(0.99):.2f}",
            "putLatency999": f"{self.put_time_percentile_ms(0.999):.2f}",
            "totalMappedFiles": str(mapped.files),
            "totalMappedVirtualMemory": str(mapped.bytes),
        }


def _rate_text(rates: tuple[float, float, float]) -> str:
    return " ".join(str(rate) for rate in rates)


def _duration(milliseconds: int) -> str:
    seconds = milliseconds // 1000
    days, rest = divmod(seconds, 86_400)
    hours, rest = divmod(rest, 3600)
    return f"[ {days} days, {hours} hours, {rest // 60} minutes, {rest % 60} seconds ]"
