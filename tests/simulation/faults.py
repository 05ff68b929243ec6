"""What may happen to a cluster, and when: a schedule drawn from a seed.

A seed chooses some kinds of faults, not all, so that what one kind hides from another comes up in other seeds. Each
fault has a time, a target and a duration; faults overlap, so a broker may be killed while it recovers. A schedule is a
list of values: shortened, it can be run again, and printed, it is a test.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

CLOCKS: Final = ("jump", "drift")
CRASHES: Final = ("kill", "cut", "stop", "twice", "sync-error")
DISKS: Final = ("stall", "full", "read-error", "flip")
NETWORK: Final = ("part", "one-way", "slow", "reset")
CLIENTS: Final = ("client-kill", "client-cut", "client-pause")
OTHERS: Final = ("pause", "namesrv-kill")
KINDS: Final = (*CRASHES, *DISKS, *NETWORK, *CLIENTS, *OTHERS, *CLOCKS)
DURATIONS_S: Final = (0.01, 0.3, 2.0, 8.0, 25.0)
BROKERS: Final = ("b0", "b1")
CALM_ODDS: Final = 8  # one seed in so many has no faults at all: what may never happen then is more


class Fault(NamedTuple):
    at_s: float
    kind: str
    target: str  # a broker or a client
    other: str  # for the network: the other end
    lasts_s: float
    dice: int  # seeds what the fault itself leaves open

    def __str__(self) -> str:
        return f"{self.at_s:7.2f} {self.kind} {self.target} ({self.other}) {self.lasts_s:g} s"


@dataclass(frozen=True, slots=True)
class Plan:
    """All that is chosen before a trial runs. `clients` are those that take part."""

    seed: int
    minutes: float
    flush: str
    faults: tuple[Fault, ...]
    clients: tuple[str, ...]
    brokers: tuple[str, ...] = BROKERS
    is_preemptive: bool = False
    pace: float = 1.0

    def without(self, faults: tuple[Fault, ...]) -> Plan:
        return replace(self, faults=faults)


def draw(seed: int, minutes: float, *, clients: tuple[str, ...], kinds: tuple[str, ...] = KINDS) -> Plan:
    """The plan of a seed. With few `kinds` all of them are used; "calm" is none at all."""
    chance = random.Random(f"plan of {seed}")
    flush = "SYNC_FLUSH" if chance.random() < 0.7 else "ASYNC_FLUSH"
    is_preemptive = chance.random() < 0.5
    if kinds == KINDS:
        kinds = () if chance.randrange(CALM_ODDS) == 0 else tuple(chance.sample(KINDS, chance.randrange(1, 7)))
    if kinds == ("calm",):
        kinds = ()
    mean_s = chance.choice((3.0, 8.0, 20.0))
    faults, at_s = [], 6.0 + chance.expovariate(1 / mean_s)
    while kinds and at_s < minutes * 60:
        kind = chance.choice(kinds)
        target = chance.choice(clients if kind.startswith("client") else BROKERS)
        other = chance.choice([name for name in (*clients, *BROKERS, "namesrv") if name != target])
        lasts_s = chance.choice(DURATIONS_S)
        faults.append(Fault(round(at_s, 3), kind, target, other, lasts_s, chance.getrandbits(32)))
        at_s += chance.expovariate(1 / mean_s)
    pace = chance.choice((1.0, 2.0, 4.0))
    return Plan(seed, minutes, flush, tuple(faults), clients, is_preemptive=is_preemptive, pace=pace)
