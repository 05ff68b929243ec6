"""The console's own watch over a cluster: rates, disk, replication and backlog, sampled in the background.

Every ten seconds each broker is asked for its figures (two seconds while a browser looks), and the groups are gone
through one after another for their lag. All of it is polling: `budget.py` keeps it under a hundredth of a core of each
broker, so a sweep over many groups takes as long as it must. Everything that is drawn comes from here, and no page
waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from contrailmq.console.model.asking import MASTER_ID, Asking, BrokerPlace
from contrailmq.console.model.budget import polling
from contrailmq.console.model.figures import Figures, figures_of
from contrailmq.console.model.series import KEPT_MS, SAMPLE_S, Series
from contrailmq.message import ContrailError, is_system_group
from contrailmq.wire.admin_bodies import HaRuntimeInfo

_log = logging.getLogger("contrailmq.console")

LOOKED_AT_S: Final = 15.0  # so long after a page's last question somebody looks
LIVE_S: Final = 2.0
SWEEP_IDLE_S: Final = 60.0  # between sweeps over the groups when nobody looks


@dataclass(slots=True)
class BrokerSample:
    """The newest of one broker. `put_per_s` and `get_per_s` are between the last two looks."""

    place: BrokerPlace
    figures: Figures
    table: dict[str, str]
    time_ms: int
    put_per_s: float = 0.0
    get_per_s: float = 0.0
    replication: HaRuntimeInfo | None = None

    @property
    def slowest_slave_bytes(self) -> int | None:
        """How far the slave is behind that is furthest behind; None without slaves."""
        if self.replication is None or not self.replication.ha_connection_info:
            return None
        return max(slave.diff for slave in self.replication.ha_connection_info)


@dataclass(slots=True)
class Overview:
    """What the first page shows. `error` is why there is nothing newer."""

    brokers: list[BrokerSample] = field(default_factory=list)
    notes: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()  # of the last hour's brokers: nobody but them knows their topics and groups
    error: str = ""
    time_ms: int = 0
    group_count: int | None = None
    backlog: int | None = None  # of all groups, from the last sweep
    backlog_ms: int = 0

    @property
    def put_per_s(self) -> float:
        return sum(sample.put_per_s for sample in self.brokers if sample.place.broker_id == MASTER_ID)

    @property
    def get_per_s(self) -> float:
        return sum(sample.get_per_s for sample in self.brokers)


class Sampler:
    """Owns the samples. `start` it on the loop that the pages run on."""

    def __init__(self, asking: Asking) -> None:
        self._asking = asking
        self._samples: dict[str, BrokerSample] = {}  # by address
        self._known: dict[BrokerPlace, int] = {}  # every broker of the last hour, and when it was last registered
        self.overview = Overview()
        self.put_rate, self.get_rate, self.backlog = Series(), Series(), Series()
        self.put_latency_99, self.put_latency_999 = Series(), Series()  # of the slowest master, in milliseconds
        self.lag: dict[str, Series] = {}  # by group
        self._tasks: list[asyncio.Task[None]] = []
        self._looked_at_s = float("-inf")
        self._woken = asyncio.Event()
        self.first = asyncio.Event()  # set after the first try

    def start(self) -> None:
        self._tasks = [asyncio.ensure_future(self._run()), asyncio.ensure_future(self._sweeps())]

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    def looked_at(self) -> None:
        """A page is open: samples come faster for a while."""
        if not self.is_looked_at:
            self._woken.set()
        self._looked_at_s = time.monotonic()

    @property
    def is_looked_at(self) -> bool:
        return time.monotonic() - self._looked_at_s < LOOKED_AT_S

    async def _run(self) -> None:
        while True:
            with polling():
                await self.sample()
            self._woken.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._woken.wait(), LIVE_S if self.is_looked_at else SAMPLE_S)

    async def sample(self) -> None:
        """One look at every broker. What goes wrong is kept as text for the page."""
        old = self.overview
        try:
            places = await self._asking.places()
            seen = await self._asking.of_each(places, self._sample_of)
        except ContrailError as exc:
            self.overview = replace(old, error=str(exc))
            return
        finally:
            self.first.set()
        samples = list(seen.value.values())
        self._samples = {sample.place.address: sample for sample in samples}
        now_ms = time.time_ns() // 1_000_000
        new = self.overview = replace(
            self.overview, brokers=samples, notes=seen.notes, gone=self._gone(places, now_ms), error="", time_ms=now_ms
        )
        self.put_rate.add(now_ms, new.put_per_s)
        self.get_rate.add(now_ms, new.get_per_s)
        masters = [sample.figures for sample in samples if sample.place.broker_id == MASTER_ID]
        _add_slowest(self.put_latency_99, now_ms, [figures.put_latency_99_ms for figures in masters])
        _add_slowest(self.put_latency_999, now_ms, [figures.put_latency_999_ms for figures in masters])

    def _gone(self, places: list[BrokerPlace], now_ms: int) -> tuple[str, ...]:
        """A NameServer forgets a broker that ends: who looks later must learn that there was one."""
        self._known = {place: at for place, at in self._known.items() if at > now_ms - KEPT_MS}
        self._known |= dict.fromkeys(places, now_ms)
        here = set(places)
        return tuple(
            f"{place.label} at {place.address} is no longer registered, since about {_clock(at)}: is it down? "
            "What it alone has is not shown"
            for place, at in sorted(self._known.items())
            if place not in here
        )

    async def _sample_of(self, place: BrokerPlace) -> BrokerSample:
        table = await self._asking.broker_stats(place.address)
        sample = BrokerSample(place, figures_of(table), table, time.time_ns() // 1_000_000)
        sample.put_per_s, sample.get_per_s = sample.figures.put_per_s, sample.figures.get_per_s
        before = self._samples.get(place.address)
        if before is not None and before.figures.boot_ms == sample.figures.boot_ms:
            elapsed_s = (sample.time_ms - before.time_ms) / 1000
            if elapsed_s > 0.5:
                put = sample.figures.put_total - before.figures.put_total
                got = sample.figures.get_total - before.figures.get_total
                sample.put_per_s, sample.get_per_s = max(put, 0) / elapsed_s, max(got, 0) / elapsed_s
            else:
                sample.put_per_s, sample.get_per_s = before.put_per_s, before.get_per_s
        if place.broker_id == MASTER_ID:
            with contextlib.suppress(ContrailError):  # 4.x does not know the request
                sample.replication = await self._asking.ha_status(place.address)
        return sample

    async def _sweeps(self) -> None:
        while True:
            try:
                with polling():
                    await self.sweep()
            except ContrailError as exc:
                _log.debug("the groups' lag is not known: %s", exc)  # the page says it from `sample`
            waited_s = 0
            while waited_s < SWEEP_IDLE_S and not (self.is_looked_at and waited_s >= SAMPLE_S):
                await asyncio.sleep(1)
                waited_s += 1

    async def sweep(self) -> None:
        """The lag of every group, one after another."""
        groups = [group for group in await self._asking.groups() if not is_system_group(group)]
        self.overview.group_count = len(groups)
        total = 0
        for group in groups:
            seen = await self._asking.progress_seen(group)
            lag = sum(row.lag for row in seen.value)
            total += lag
            self.lag.setdefault(group, Series()).add(time.time_ns() // 1_000_000, lag)
        for gone in self.lag.keys() - set(groups):
            del self.lag[gone]
        now_ms = time.time_ns() // 1_000_000
        self.overview.backlog, self.overview.backlog_ms = total, now_ms
        self.backlog.add(now_ms, total)


def _add_slowest(series: Series, now_ms: int, values: list[float | None]) -> None:
    """Brokers before 5.0 do not say: then nothing is drawn, and no zero."""
    if known := [value for value in values if value is not None]:
        series.add(now_ms, max(known))


def _clock(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000).strftime("%H:%M:%S")
