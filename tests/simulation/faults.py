"""What may happen to a cluster, and when: a schedule drawn from a seed.

A seed chooses some kinds of faults, not all, so that what one kind hides from another comes up in other seeds. Each
fault has a time, a target and a duration; faults overlap, so a broker may be killed while it recovers. A schedule is a
list of values: shortened, it can be run again, and printed, it is a test.

Load comes in bursts, with rests of up to a minute in between, as in most clusters: what takes minutes (checks of
transactions, cleaning, expiring connections) has its minutes, and the messages are where the faults are. Most faults
strike in a burst, some in a rest.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

CLOCKS: Final = ("jump", "drift")
POWER: Final = ("cut", "twice", "sync-error", "group-cut")  # faults that end in a power cut
CRASHES: Final = ("kill", "cut", "stop", "twice", "sync-error")
DISKS: Final = ("stall", "full", "read-error", "flip")
NETWORK: Final = ("part", "one-way", "slow", "reset")
CLIENTS: Final = ("client-kill", "client-cut", "client-pause")
OTHERS: Final = ("pause", "namesrv-kill")
# What costs a broker nothing that it knows: clean stops, and what is done to everybody but brokers.
HARMLESS: Final = ("stop", *NETWORK, *CLIENTS, *OTHERS)
KINDS: Final = (*CRASHES, *DISKS, *NETWORK, *CLIENTS, *OTHERS, *CLOCKS)
GROUP_CRASHES: Final = ("group-kill", "group-cut")
SWITCH: Final = "switch"
MASTERS: Final = "masters-kill"
# Of plans with slaves. Turned bits are left out: a slave that lacks the record cannot get it any more.
GROUP_KINDS: Final = (*(kind for kind in KINDS if kind != "flip"), *GROUP_CRASHES, SWITCH, MASTERS)
ALL_KINDS: Final = (*KINDS, *GROUP_CRASHES, SWITCH, MASTERS)
GROUP_ODDS: Final = 3  # one seed in so many has slaves
ACTING_ODDS: Final = 0.4  # that a slave of such a seed stands in for its master
POP_ODDS: Final = 0.5  # that a seed has consumers of POP
PAGES: Final = (2, 5, 32)  # how many messages consumers ask for at once
ROLL_ODDS: Final = 0.5  # that timers roll in a seed
PAIR_ODDS: Final = 0.6  # that a fault of the network in such a seed is one between master and slave
PLAN_VERSION: Final = 11  # changes whenever seeds get other plans: saved runs are of one version
DURATIONS_S: Final = (0.01, 0.3, 2.0, 8.0, 25.0)
BROKERS: Final = ("b0", "b1")
CALM_ODDS: Final = 8  # one seed in so many has no faults at all: what may never happen then is more
BEGIN_S: Final = 5.0  # brokers, topics and clients are there by then
FIRST_BURST_S, BURSTS_S, RESTS_S = (9.0, 13.0), (1.0, 4.0), (20.0, 90.0)  # bounds of their lengths
REST_FAULT_ODDS: Final = 0.2


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
    rebalance_s: float = 5.0  # of consumers, and between two saves of offsets; heartbeats and routes take twice as long
    bursts: tuple[tuple[float, float], ...] = ()  # (begin, end) in virtual seconds; none: one that lasts all the time
    slaves: tuple[str, ...] = ()  # of b0
    role: str = "ASYNC_MASTER"  # of a master that has slaves
    in_sync: int = 1  # its inSyncReplicas
    block_bytes: int = 256 * 1024  # its haTransferBatchSize
    acts: bool = False  # a slave stands in for a master that is gone
    pops: bool = False  # consumers of POP take part
    page: int = 32  # messages that consumers ask for at once, as by default; bursts are too short to fill such a page
    rolls: bool = False  # timers of more than some seconds roll: they go through the log again on their way

    @property
    def members(self) -> tuple[str, ...]:
        """Every broker, masters and slaves."""
        return self.brokers + self.slaves

    def slaves_of(self, group: str) -> tuple[str, ...]:
        return tuple(name for name in self.slaves if group_of(name) == group)

    def settings_of(self, name: str) -> dict[str, str]:
        """What a member's settings have beside those of all brokers."""
        acting = {"enableSlaveActingMaster": "true", "enableRemoteEscape": "true"} if self.acts else {}
        if name in self.slaves:
            group, _, number = name.partition("-")
            return acting | {"brokerName": group, "brokerId": number, "brokerRole": "SLAVE", "slaveReadEnable": "true"}
        if not self.slaves_of(name):
            return {}
        return acting | {
            "brokerName": name,
            "brokerRole": self.role,
            "inSyncReplicas": str(self.in_sync),
            "slaveReadEnable": "true",
            "slaveTimeout": "2000",  # below the 3 s of producers, who then hear of it
            "haTransferBatchSize": str(self.block_bytes),
        }

    def next_burst(self, at_s: float) -> tuple[float, float] | None:
        """The burst that this moment is in, or the next one."""
        bursts = self.bursts or ((0.0, self.minutes * 60),)
        return next((burst for burst in bursts if at_s < burst[1]), None)


def group_of(name: str) -> str:
    """The brokerName of a member: that of its master."""
    return name.partition("-")[0]


class Roles:
    """Which process has which place of a plan: an operator may give a slave the place of its master."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._process = {name: name for name in plan.members}  # by place
        self._place = dict(self._process)  # by process

    def master_of(self, process: str) -> str:
        """Of its group."""
        return self._process[group_of(process)]

    def is_master(self, process: str) -> bool:
        return self._place[process] in self._plan.brokers

    def settings_of(self, process: str) -> dict[str, str]:
        return self._plan.settings_of(self._place[process])

    @property
    def masters(self) -> tuple[str, ...]:
        return tuple(self._process[name] for name in self._plan.brokers)

    @property
    def slaves(self) -> tuple[str, ...]:
        return tuple(self._process[name] for name in self._plan.slaves)

    def slaves_of(self, group: str) -> tuple[str, ...]:
        return tuple(self._process[name] for name in self._plan.slaves_of(group))

    def swap(self, one: str, other: str) -> None:
        self._place[one], self._place[other] = self._place[other], self._place[one]
        self._process = {place: process for process, place in self._place.items()}


def has_slaves(seed: int) -> bool:
    """Whether the plan of a seed is one of `draw_group`."""
    return random.Random(f"slaves of {seed}").randrange(GROUP_ODDS) == 0


def draw_group(seed: int, minutes: float, *, clients: tuple[str, ...], kinds: tuple[str, ...] = ()) -> Plan:
    """The plan of a seed with slaves; apart from `draw`, whose plans stay as they are."""
    chance = random.Random(f"group of {seed}")
    flush = "SYNC_FLUSH" if chance.random() < 0.6 else "ASYNC_FLUSH"
    slaves = ("b0-1",) if chance.random() < 0.7 else ("b0-1", "b0-2")
    is_sync = chance.random() < 0.75
    in_sync = chance.randrange(2, len(slaves) + 2) if is_sync else 1
    brokers = BROKERS[: chance.choice((1, 1, 2))]
    is_preemptive = chance.random() < 0.5
    if kinds == ("calm",) or (not kinds and chance.randrange(CALM_ODDS) == 0):
        kinds = ()
    elif not kinds:
        kinds = tuple(chance.sample(GROUP_KINDS, chance.randrange(1, 7)))
    if MASTERS in kinds:
        brokers = BROKERS  # else there is nobody to whom a slave could hand what is due
    bursts = tuple(_bursts(chance, minutes * 60))
    times_s = _times(chance, bursts, chance.choice((0.7, 1.5, 4.0))) if kinds else []
    plan = Plan(
        seed,
        minutes,
        flush,
        (),
        clients,
        brokers=brokers,
        is_preemptive=is_preemptive,
        pace=chance.choice((1.0, 2.0, 4.0)),
        rebalance_s=chance.choice((5.0, 20.0)),
        bursts=bursts,
        slaves=slaves,
        role="SYNC_MASTER" if is_sync else "ASYNC_MASTER",
        in_sync=in_sync,
        block_bytes=chance.choice((1024, 5000, 256 * 1024)),
        acts=random.Random(f"acting in {seed}").random() < ACTING_ODDS,
        pops=_pops(seed),
        rolls=_rolls(seed),
        page=_page(seed),
    )
    return replace(plan, faults=tuple(_fault_in_group(chance, at_s, chance.choice(kinds), plan) for at_s in times_s))


def draw(seed: int, minutes: float, *, clients: tuple[str, ...], kinds: tuple[str, ...] = KINDS) -> Plan:
    """The plan of a seed. With few `kinds` all of them are used; "calm" is none at all."""
    chance = random.Random(f"plan of {seed}")
    flush = "SYNC_FLUSH" if chance.random() < 0.7 else "ASYNC_FLUSH"
    is_preemptive = chance.random() < 0.5
    if kinds == KINDS:
        kinds = () if chance.randrange(CALM_ODDS) == 0 else tuple(chance.sample(KINDS, chance.randrange(1, 7)))
    if kinds == ("calm",):
        kinds = ()
    mean_s = chance.choice((1.5, 4.0, 10.0))
    bursts = tuple(_bursts(chance, minutes * 60))
    times_s = _times(chance, bursts, mean_s) if kinds else []
    faults = [_fault(chance, at_s, chance.choice(kinds), clients) for at_s in times_s]
    more = {"pace": chance.choice((1.0, 1.0, 2.0, 4.0)), "rebalance_s": chance.choice((5.0, 20.0, 20.0))}
    return Plan(
        seed,
        minutes,
        flush,
        tuple(faults),
        clients,
        is_preemptive=is_preemptive,
        bursts=bursts,
        pops=_pops(seed),
        rolls=_rolls(seed),
        page=_page(seed),
        **more,
    )


def _pops(seed: int) -> bool:
    return random.Random(f"POP in {seed}").random() < POP_ODDS


def _page(seed: int) -> int:
    return random.Random(f"pages of {seed}").choice(PAGES)


def _rolls(seed: int) -> bool:
    return random.Random(f"rolling in {seed}").random() < ROLL_ODDS


def _bursts(chance: random.Random, end_s: float) -> Iterator[tuple[float, float]]:
    begin_s, lasts_s = 0.0, chance.uniform(*FIRST_BURST_S)
    while begin_s < end_s:
        yield round(begin_s, 3), round(min(begin_s + lasts_s, end_s), 3)
        begin_s += lasts_s + chance.uniform(*RESTS_S)
        lasts_s = chance.uniform(*BURSTS_S)


def _times(chance: random.Random, bursts: tuple[tuple[float, float], ...], mean_s: float) -> list[float]:
    """When faults strike: so often in a burst, and now and then in the rest after one."""
    found, left_s = [], BEGIN_S + chance.expovariate(1 / mean_s)
    for number, (begin_s, end_s) in enumerate(bursts):
        while left_s < end_s - begin_s:
            found.append(begin_s + left_s)
            left_s += chance.expovariate(1 / mean_s)
        left_s -= end_s - begin_s
        if number + 1 < len(bursts) and chance.random() < REST_FAULT_ODDS:
            found.append(chance.uniform(end_s, bursts[number + 1][0]))
    return found


def _fault(chance: random.Random, at_s: float, kind: str, clients: tuple[str, ...]) -> Fault:
    target = chance.choice(clients if kind.startswith("client") else BROKERS)
    other = chance.choice([name for name in (*clients, *BROKERS, "namesrv") if name != target])
    return Fault(round(at_s, 3), kind, target, other, chance.choice(DURATIONS_S), chance.getrandbits(32))


def _fault_in_group(chance: random.Random, at_s: float, kind: str, plan: Plan) -> Fault:
    target = chance.choice(plan.clients if kind.startswith("client") else plan.members)
    other = chance.choice([name for name in (*plan.clients, *plan.members, "namesrv") if name != target])
    if kind in NETWORK and chance.random() < PAIR_ODDS:
        target, other = plan.brokers[0], chance.choice(plan.slaves)
    elif kind in (*GROUP_CRASHES, SWITCH, MASTERS):
        target = plan.brokers[0]
    return Fault(round(at_s, 3), kind, target, other, chance.choice(DURATIONS_S), chance.getrandbits(32))
