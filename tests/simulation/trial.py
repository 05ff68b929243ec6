"""One plan: a cluster and its clients, faults for some virtual minutes, then peace, a clean stop, and a verdict.

Under ASYNC_FLUSH a power cut may lose acknowledged messages by its own promise; the checker then asks that only the end
of the log is missing. Everything else is asked in both modes.
"""

from __future__ import annotations

import asyncio
import hashlib
import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Final

from contrailmq.broker.server import BrokerServer
from simulation.checker import ahead, unfinished, unsafe, unsafe_copy, unsafe_stores
from simulation.cluster import ROLLING, SHORT_WAITS, SMALL_FILES, Cluster
from simulation.disks import Loss
from simulation.faults import (
    CLOCKS,
    GROUP_CRASHES,
    HARMLESS,
    MASTERS,
    POWER,
    SWITCH,
    Fault,
    Plan,
    Roles,
    draw,
    draw_group,
    group_of,
    has_slaves,
)
from simulation.history import KEEPERS, MEMBERS, POPPED, SUBSCRIBED, TOPICS, WORKERS, Acknowledged, Cut, History, Queue
from simulation.memory import bytes_held_by
from simulation.network import Link
from simulation.nodes import RATE_MILLION, Node
from simulation.replicas import HA_PORT, Likeness, LogBytes, Witness, holds, holds_waiting
from simulation.stores import Left
from simulation.workload import QUEUES_MAX, Workload
from simulation.world import MICROSECOND_NS, MILLISECOND_NS

PEACE_S: Final = 240.0  # how long all that was acknowledged may take to arrive when faults are over
HASTY_PEACE_S: Final = 90.0
RESYNC_ODDS: Final = 0.6  # that the operator has a slave cut itself; else it is cut by hand, or begins anew
LAST_POP_S: Final = 10.0  # until what POP delivered for the last time is a dead letter, after its invisible time
SENT_BACK_S: Final = 0.005  # what a failed message takes to the broker and the answer back, without a sync
ANSWERS_S: Final = 0.003  # in which answers that a sync has freed arrive; the next sync takes longer
OLD_S: Final = 1.0  # what was acknowledged so long ago is on the disk, under ASYNC_FLUSH too
IN_FLIGHT: Final = 20  # messages of a queue that slaves may have and nobody has seen there
SWITCH_S: Final = 6.0  # what a master has to stop before a slave takes its place
AFTER_SWITCH_S: Final = 12.0  # when the old one comes back as a slave: the new one is registered by then
ALONE_S: Final = (2.0, 5.0, 10.0)  # between masters that come back after all were killed
OFFSETS_S: Final = 60.0  # how long no consumer may store how far it is, behind the end; they do every 5 or 20
LAG_S: Final = 90.0  # how long slaves may take to have all of their master's log when faults are over
BUSY_PEACE_S: Final = 30.0  # what comes later than this comes after timers and retries: the world rests meanwhile
LOOK_EVERY_S: Final = 5.0
RINGING_S: Final = 2.0  # how long after a burst timers are still exact
BORDER_BYTES: Final = 16 * 1024  # an acknowledged record so near to the beginning of a log file is at its border
NOW_S: Final = 1e-6  # what is nearer than this is now
# That a broker ends between two steps with its files: by a kill, which has no other moment to wait for, or a power cut.
KILL_STEP_ODDS, CUT_STEP_ODDS = 0.6, 0.3
# Some of what is in their paths, and how long to wait for the step; tables are saved every five or ten seconds.
STEPS_S: Final = {
    "commitlog": 3.0,
    "timer": 6.0,
    "checkpoint": 6.0,
    "levels.journal": 6.0,
    "timers.journal": 6.0,
    "offsets.journal": 6.0,
    "orders.journal": 6.0,
    "config": 12.0,
    "delayOffset": 12.0,
    "": 3.0,  # whatever it is
}
STEPS_MAX: Final = 6  # it is one of the first so many
CLIENTS: Final = ("p0", "p1", "t0", "c0", "c1", "c2")
SOCKETS_MAX, TASKS_MAX, THREADS_MAX = 60, 400, 60  # of a broker after a trial; 10 to 30, 40 to 120, 10 to 25 are usual
MEMORY_BYTES_MAX: Final = 8 << 20  # of a broker's objects after a trial; 0.3 to 1.5 million are usual


@dataclass
class Verdict:
    """Of one plan. `problems` are sentences; none: it passed."""

    plan: Plan
    problems: list[str] = field(default_factory=list)
    history: History = field(default_factory=History)
    trace: str = ""
    stores: dict[str, str] = field(default_factory=dict)  # broker -> digest
    virtual_s: float = 0.0
    reports: int = 0  # of slaves
    decisions: Counter[str] = field(default_factory=Counter)  # of the operator: resync, truncate, wipe, promote
    steps: Counter[str] = field(default_factory=Counter)  # with which files a broker was ended

    @property
    def seed(self) -> int:
        return self.plan.seed

    def digest(self) -> str:
        """A hash of all that happened, of what clients saw and of what the stores hold."""
        seen = f"{self.trace} {self.history.digest()} {sorted(self.stores.items())}"
        return hashlib.blake2b(seen.encode(), digest_size=16).hexdigest()


def run_seed(seed: int, minutes: float, *kinds: str, flush: str = "") -> Verdict:
    """The trial of a seed; with kinds of faults, of those only; with a way to flush, in that one."""
    plan = draw(seed, minutes, clients=CLIENTS, kinds=kinds) if kinds else plan_of(seed, minutes)
    return Trial(replace(plan, flush=flush) if flush else plan).run()


def plan_of(seed: int, minutes: float) -> Plan:
    return (draw_group if has_slaves(seed) else draw)(seed, minutes, clients=CLIENTS)


def run_group_seed(seed: int, minutes: float, *kinds: str, flush: str = "") -> Verdict:
    """A trial of a master with slaves; with kinds of faults, of those only; with a way to flush, in that one."""
    plan = draw_group(seed, minutes, clients=CLIENTS, kinds=kinds)
    return Trial(replace(plan, flush=flush) if flush else plan).run()


class Trial:
    """The members of one plan, and what happens to them."""

    def __init__(self, plan: Plan, *, is_hasty: bool = False) -> None:
        self.plan = plan
        self._is_hasty = is_hasty  # the first problem is enough
        self.verdict = Verdict(plan)
        self.history = self.verdict.history
        self.history.is_calm = not plan.faults
        self.history.stops_cleanly = all(fault.kind in HARMLESS for fault in plan.faults)
        self.history.may_escape = plan.acts
        self.history.keeps_journals = not plan.slaves and not any(fault.kind in POWER for fault in plan.faults)
        groups = SUBSCRIBED | POPPED if plan.pops else SUBSCRIBED
        present = {name: topics for name, topics in groups.items() if MEMBERS[name] & {*plan.clients}}
        self.history.subscribed = present
        self.history.is_timely = not any(fault.kind in CLOCKS for fault in plan.faults)
        self._actions: list[tuple[float, int, Callable[[], None]]] = []
        self._number = 0
        self._is_down: set[str] = set()  # brokers that nobody starts before their fault is over
        self._lives: list[Node] = []  # of brokers
        self.roles = Roles(plan)
        self._headless: dict[str, Cut] = {}  # masters that lost power, whose slaves have all that they acknowledged
        self._may_end: set[str] = set()  # brokers whose disk fails: they may end by themselves

    def run(self) -> Verdict:
        with Cluster(self.plan.seed, flush=self.plan.flush) as cluster:
            self.join(cluster)
            for begin_s, end_s in self.plan.bursts:
                self._at(begin_s, self._wake_up)
                self._at(end_s + RINGING_S, lambda end_s=end_s: self._fall_asleep(end_s))  # type: ignore[misc]
            for fault in self.plan.faults:
                self._at(fault.at_s, lambda fault=fault: self._strike(fault))  # type: ignore[misc]
            self._live_until(self.plan.minutes * 60)
            if self._is_hasty:
                self.verdict.problems += unsafe(self.history)
            if not self._is_hasty or not self.verdict.problems:
                self._make_peace()
                self._judge()
            self.verdict.trace, self.verdict.virtual_s = self.world.trace, self.world.now_s
            self.verdict.reports = self.witness.reports
        return self.verdict

    def join(self, cluster: Cluster) -> None:
        """Start all members in a cluster."""
        self.cluster, self.world = cluster, cluster.world
        self.witness = Witness(cluster, self.plan, self.roles, self._blame)
        self.workload = Workload(cluster, self.history, self.plan, self.witness.acknowledged)
        cluster.settings |= SHORT_WAITS | (ROLLING if self.plan.rolls else {})
        cluster.broker_names = self.plan.brokers
        cluster.is_preemptive = self.plan.is_preemptive
        cluster.is_patient = not self.plan.is_preemptive  # the other half of the seeds is for exact timers
        cluster.start_name_server()
        for name in self.plan.members:
            self.witness.launched(name)
            self._lives.append(cluster.start_broker(name, **self.roles.settings_of(name)))
        for name in self.plan.clients:
            self.workload.start(name)

    # --- time

    def _at(self, at_s: float, action: Callable[[], None]) -> None:
        self._number += 1
        heapq.heappush(self._actions, (at_s, self._number, action))

    def _after(self, delay_s: float, action: Callable[[], None]) -> None:
        self._at(self.world.now_s + delay_s, action)

    def _wake_up(self) -> None:
        self.world.is_resting = False

    def _fall_asleep(self, end_s: float) -> None:
        burst = self.plan.next_burst(end_s)
        self.world.is_resting = burst is None or burst[0] > self.world.now_s

    def _live_until(self, end_s: float) -> None:
        """Let things happen, faults and their ends included, and look at the cluster now and then."""
        world = self.world
        while world.now_s < end_s - NOW_S:
            next_s = min(end_s, world.now_s + LOOK_EVERY_S, self._actions[0][0] if self._actions else end_s)
            world.run_for(max(0.0, next_s - world.now_s))
            while self._actions and self._actions[0][0] <= world.now_s + NOW_S:
                heapq.heappop(self._actions)[2]()
            self._look()

    def _look(self) -> None:
        """Start again what ended, as a supervisor does, and hold offsets against deliveries."""
        for name in self.plan.members:
            node = self.cluster.node(name)
            if not node.is_alive and name not in self._is_down:
                if node.error is not None and name not in self._may_end:
                    self._blame(f"{name} ended: {node.error!r}")
                self._launch(name)
            server = self.cluster.servers.get(name)
            if node.is_alive and isinstance(server, BrokerServer):
                offsets = server.node.offsets.whole()
                group = group_of(name)
                for sentence in ahead(self.history, {_group_and_queue(key, group): at for key, at in offsets.items()}):
                    self._blame(sentence if self.roles.is_master(name) else f"{name}: {sentence}")
        for slave in self.roles.slaves:
            self._look_at(slave)

    def _look_at(self, slave: str) -> None:
        """Hold a slave's log against its master's. Where the master has lost the end of its own, decide as an operator
        must: what only the slave has goes."""
        found = self.witness.compare(slave)
        if found is None:
            return
        self.witness.look_at_positions(slave)
        if found.likeness in (Likeness.PREFIX, Likeness.EQUAL):
            self.witness.may_differ.discard(slave)
            return
        if slave not in self.witness.may_differ:
            self._blame(f"the log of {slave} is not a prefix of its master's: {found}")
        self.cluster.node(slave).kill()
        if found.common_end and random.Random(f"{self.plan.seed} {self.world.now_ns}").random() < RESYNC_ODDS:
            self.verdict.decisions["resync"] += 1
            self._launch(slave, resync="true")
            return
        if found.likeness is Likeness.AHEAD and found.common_end == found.master_end:
            self.verdict.decisions["truncate"] += 1
            self._lives.append(self.cluster.truncate_log(slave, found.common_end))
            return
        self.verdict.decisions["wipe"] += 1
        self.cluster.disk(slave).wipe()
        self.witness.wiped(slave)
        self._launch(slave)

    def _blame(self, sentence: str) -> None:
        if len(self.verdict.problems) < 20 and sentence not in self.verdict.problems:
            self.verdict.problems.append(sentence)

    def _launch(self, name: str, **settings: str) -> None:
        self._is_down.discard(name)
        if self.cluster.node(name).is_alive:
            return
        if name in self._headless:
            self._replace(name)
            return
        self.witness.launched(name)
        self._lives.append(self.cluster.launch_broker(name, **self.roles.settings_of(name), **settings))

    # --- another master

    def _replace(self, master: str) -> None:
        """A master that waits for slaves lost power, and with it what was not synced: the slave that is furthest takes
        its place. Nothing that was acknowledged is lost, unless the slaves lost power as well meanwhile."""
        cut, cuts = self._headless.pop(master), self.history.forgetful_cuts[group_of(master)]
        successors = self.witness.successors(master)
        cuts.append(cut._replace(takes_acknowledged=not successors))
        if successors:
            self.witness.may_differ.add(master)
            self._promote(successors[0], master)
        else:
            self._launch(master)

    def _promote(self, slave: str, master: str) -> None:
        """Start a slave as the master, and the old one, which is down, a while later as a slave."""
        self.world.note(f"{slave} takes the place of {master}")
        self.history.is_switched = True
        self.verdict.decisions["promote"] += 1
        self.cluster.node(slave).kill()
        self.roles.swap(master, slave)
        self._launch(slave)
        self._is_down.add(master)
        self._after(AFTER_SWITCH_S, lambda: self._launch(master))

    def _switch(self, fault: Fault) -> None:
        """The operator stops a master and starts a slave that has all of its log in its place."""
        master = self.roles.master_of(fault.target)
        if master in self._is_down:
            return
        self._stop(master)
        self._is_down.add(master)

        def go_on() -> None:
            slaves = [] if self.cluster.node(master).is_alive else [*filter(self.witness.has_all, self.roles.slaves)]
            if slaves and self.roles.is_master(master) and master not in self._headless:
                self._promote(random.Random(fault.dice).choice(slaves), master)
            else:
                self._launch(master)

        self._after(SWITCH_S, go_on)

    # --- faults

    def _strike(self, fault: Fault) -> None:
        """One fault; its end is another action."""
        self.world.note(str(fault))
        kind = fault.kind
        if kind in ("kill", "cut", "stop", "twice", "sync-error"):
            self._crash(fault)
        elif kind in GROUP_CRASHES:
            self._crash_group(fault)
        elif kind == SWITCH:
            self._switch(fault)
        elif kind == MASTERS:
            self._kill_masters(fault)
        elif kind in ("stall", "full", "read-error", "flip"):
            self._hurt_disk(fault)
        elif kind in ("part", "one-way", "slow", "reset"):
            self._hurt_network(fault)
        elif kind in CLOCKS:
            self._turn_clock(fault)
        elif kind == "namesrv-kill":
            self.cluster.node("namesrv").kill()
            self._after(fault.lasts_s, self._start_name_server)
        elif kind in ("pause", "client-pause"):
            self.cluster.node(fault.target).pause()
            self._after(fault.lasts_s, self.cluster.node(fault.target).resume)
        else:
            node = self.cluster.node(fault.target)
            (node.kill if kind == "client-kill" else node.cut_power)()
            self._after(fault.lasts_s, lambda: self._start_client(fault.target))

    def _crash(self, fault: Fault) -> None:
        name, chance = fault.target, random.Random(fault.dice)
        if fault.kind == "stop":
            self._stop(name)
        elif fault.kind == "sync-error":
            disk = self.cluster.disk(name)
            disk.fails_syncs = True
            self._may_end.add(name)
            self._after(max(fault.lasts_s, 1.0), lambda: self._crash(fault._replace(kind="cut", lasts_s=0.3)))
            return
        else:
            self._end(name, fault.kind, chance)
        self._is_down.add(name)
        self._after(fault.lasts_s, lambda: self._launch(name))
        if fault.kind == "twice":  # once more while it recovers
            again = fault._replace(kind="kill" if chance.random() < 0.5 else "cut", dice=fault.dice + 1)
            self._after(fault.lasts_s + chance.choice((0.002, 0.02, 0.2)), lambda: self._crash(again))

    def _crash_group(self, fault: Fault) -> None:
        """A master and its slaves at the same moment, or some of them a moment later; they start in any order."""
        chance = random.Random(fault.dice)
        for name in chance.sample((fault.target, *self.plan.slaves), 1 + len(self.plan.slaves)):
            one = fault._replace(
                kind=fault.kind.removeprefix("group-"),
                target=name,
                lasts_s=chance.choice((0.01, fault.lasts_s)),
                dice=chance.getrandbits(32),
            )
            self._after(chance.choice((0.0, 0.0, 0.05)), lambda one=one: self._crash(one))  # type: ignore[misc]

    def _kill_masters(self, fault: Fault) -> None:
        """All of them. The one with slaves comes back last: a slave that stands in for it has nobody at first to whom
        it could hand what is due, and then somebody."""
        chance, back_s = random.Random(fault.dice), 0.0
        for name in sorted(self.roles.masters, key=lambda name: name == self.roles.master_of(fault.target)):
            back_s += chance.choice(ALONE_S)
            self._crash(fault._replace(kind="kill", target=name, lasts_s=back_s))

    def _end(self, name: str, kind: str, chance: random.Random) -> None:
        node, disk = self.cluster.node(name), self.cluster.disk(name)
        disk.fails_syncs = False
        is_kill = kind == "kill" or (kind == "twice" and chance.random() < 0.5)
        is_in_a_step = chance.random() < (KILL_STEP_ODDS if is_kill else CUT_STEP_ODDS)
        if is_in_a_step:
            self._wait_for_step(name, chance)
        if is_kill:
            node.kill()
            return
        moment = chance.random()
        if is_in_a_step:
            pass
        elif moment < 0.7:
            then_s = chance.choice((0.0, ANSWERS_S))
            self._wait_for_acknowledgement(name, at_border=moment < 0.3, then_s=then_s)
        elif moment < 0.85:
            self._wait_for_recall(name)
        elif moment < 0.95 and self.plan.pops:
            self._wait_for_pop(name)
        else:
            self._wait_for_retry(name)
        self._cut_power(name, chance)

    def _cut_power(self, name: str, chance: random.Random) -> None:
        """At once."""
        node = self.cluster.node(name)
        self.cluster.disk(name).loss = chance.choice(tuple(Loss))
        if node.is_alive:
            if self.roles.is_master(name):
                self._note_cut(name)
            self.witness.power_was_cut(name)
        node.cut_power()

    def _note_cut(self, name: str) -> None:
        """Of a master. One that waits for slaves sends them what it has not synced yet: under SYNC_FLUSH too they may
        have shown to consumers what is gone now, though it was acknowledged to nobody."""
        cut, waits = self._cut_of(name), self.plan.in_sync > 1 and bool(self.roles.slaves_of(group_of(name)))
        if self.plan.flush == "SYNC_FLUSH":
            if waits:
                self.history.forgetful_cuts[group_of(name)].append(cut._replace(takes_acknowledged=False))
        elif waits and self.witness.successors(name):
            self._headless[name] = cut
        else:
            self.history.forgetful_cuts[group_of(name)].append(cut)

    def _wait_for_step(self, name: str, chance: random.Random) -> None:
        """Whatever a broker does with its files, it may end before it does it, or when it has just been done."""
        disk, some, left = self.cluster.disk(name), chance.choice(tuple(STEPS_S)), chance.randint(1, STEPS_MAX)

        def is_it(path: Path) -> bool:
            nonlocal left
            left -= some in str(path)
            return left <= 0

        disk.trap = is_it
        if self.world.run_until(lambda: disk.trap is None, within_s=STEPS_S[some]):
            self.verdict.steps[some] += 1
        disk.trap = None

    def _wait_for_acknowledgement(self, name: str, *, at_border: bool, then_s: float) -> None:
        """The worst moment for a power cut: a client has just heard that its message is safe, and syncs take long; or
        so have those others whose answers left together with that one.

        Worse still when the message is the first of a log file, which is synced apart from the one before.
        """
        history, group = self.history, group_of(name)
        count = history.by_broker[group]
        file_bytes = SMALL_FILES["mapped_file_size_commit_log"]

        def is_there() -> bool:
            if history.by_broker[group] == count:
                return False
            return not at_border or history.newest_offset[group] % file_bytes < BORDER_BYTES

        self.workload.is_hurried = at_border
        self._wait_with_slow_syncs(name, is_there, within_s=8.0 if at_border else 2.0, then_s=then_s)
        self.workload.is_hurried = False

    def _wait_for_recall(self, name: str) -> None:
        """As bad a moment: a client has just heard that its timer is taken back."""
        recalls, group = self.history.recalls, group_of(name)
        count = recalls[group]
        self.workload.is_fickle = True
        self._wait_with_slow_syncs(name, lambda: recalls[group] > count, within_s=5.0)
        self.workload.is_fickle = False

    def _wait_for_retry(self, name: str) -> None:
        """A worker has just heard that what it failed on comes again."""
        history, seen = self.history, len(self.history.deliveries)

        def is_there() -> bool:
            fresh = (one for one in history.deliveries[seen:] if one.group == WORKERS and not one.is_success)
            return any(one.place is not None and one.place.queue.broker == group_of(name) for one in fresh)

        self.workload.is_clumsy = True
        self._wait_with_slow_syncs(name, is_there, within_s=5.0, then_s=SENT_BACK_S)
        self.workload.is_clumsy = False

    def _wait_for_pop(self, name: str) -> None:
        """An acknowledgement of POP has just been confirmed; or, where nobody waits for the disk, a message was popped
        that has been on the disk for long, and its checkpoint has not."""
        pops, group = self.history.pops, group_of(name)
        count, confirmed = len(pops.deliveries), pops.confirmed

        def is_there() -> bool:
            if self.plan.flush == "SYNC_FLUSH":
                return pops.confirmed > confirmed
            known = [self.history.acknowledged.get(one.body) for one in pops.deliveries[count:] if one.broker == group]
            return any(one is not None and one.at_s < self.world.now_s - OLD_S for one in known)

        self._wait_with_slow_syncs(name, is_there, within_s=5.0)

    def _wait_with_slow_syncs(
        self, name: str, is_there: Callable[[], bool], *, within_s: float, then_s: float = 0.0
    ) -> None:
        disk = self.cluster.disk(name)
        usual = disk.sync_ns_min, disk.sync_ns_max
        disk.sync_ns_min, disk.sync_ns_max = 5 * MILLISECOND_NS, 40 * MILLISECOND_NS
        if self.world.run_until(is_there, within_s=within_s) and then_s:
            self.world.run_for(then_s)
        disk.sync_ns_min, disk.sync_ns_max = usual

    def _cut_of(self, name: str) -> Cut:
        """What a power cut at this moment may take, as far as consumers could know of it."""
        members = [self.cluster.servers.get(one) for one in (name, *self.roles.slaves_of(group_of(name)))]
        servers = [one for one in members if isinstance(one, BrokerServer) and one.store._life.is_open]
        if not servers:
            return Cut(self.world.now_s)
        more = IN_FLIGHT if len(members) > 1 else 0  # what is on its way to slaves
        queues = [Queue(topic, group_of(name), number) for topic in TOPICS for number in range(QUEUES_MAX)]
        ends = {
            queue: more + max(one.store.max_offset(queue.topic, queue.queue_id) for one in servers) for queue in queues
        }
        asked = {
            (group, queue): max(one.node.offsets.query_pull(group, queue.topic, queue.queue_id) or 0 for one in servers)
            for group in self.history.subscribed
            for queue in queues
        }
        return Cut(self.world.now_s, ends, asked)

    def _stop(self, name: str) -> None:
        """A clean stop, which goes on while other things happen."""
        node, server = self.cluster.node(name), self.cluster.servers.pop(name, None)
        if isinstance(server, BrokerServer) and node.is_alive:
            node.spawn(server.stop(), then=node.kill)
        else:
            node.kill()

    def _hurt_disk(self, fault: Fault) -> None:
        disk, chance = self.cluster.disk(fault.target), random.Random(fault.dice)
        if fault.kind == "stall":
            disk.stall(min(fault.lasts_s, 8.0))
        elif fault.kind == "full":
            disk.free_bytes = 0
            self._may_end.add(fault.target)
            self._after(fault.lasts_s, disk.make_room)
        elif fault.kind == "read-error":
            disk.fails_reads = True
            self._may_end.add(fault.target)
            self._after(min(fault.lasts_s, 8.0), disk.read_again)
        else:
            self._flip(fault.target, chance)

    def _flip(self, name: str, chance: random.Random) -> None:
        """Turn a bit in the body of an acknowledged message.

        Not where the power goes as well: the log then ends at the first hole that is newer than the checkpoint.
        """
        if any(fault.target == name and fault.kind in ("cut", "twice", "sync-error") for fault in self.plan.faults):
            return
        on_disk = [
            (body, one)
            for body, one in self.history.acknowledged.items()
            if one.place.queue.broker == name
            and self.history.sent[body].kind.has_place
            and one.at_s < self.world.now_s - 10
            and not self.history.is_excused(body)
        ]
        if on_disk:
            body, one = chance.choice(on_disk)
            if self.cluster.flip(name, one.physical_offset, body, chance):
                self.history.flipped.add((name, one.physical_offset))

    def _hurt_network(self, fault: Fault) -> None:
        network, chance = self.cluster.network, random.Random(fault.dice)
        one, other = self.cluster.host(fault.target), self.cluster.host(fault.other)
        if fault.kind == "reset":
            if {fault.target, fault.other} <= set(self.plan.members):  # the worst moment: some of the log is on its way
                self.world.run_until(lambda: network.is_under_way(one, other, HA_PORT), within_s=1.0)
            network.reset_connections(one, other)
            return
        links = network.links(one, other)
        if fault.kind == "one-way":
            links = (chance.choice(links),)
        for link in links:
            if fault.kind == "slow":
                link.delay_ns_max, link.bytes_per_second = chance.choice((50, 400)) * MILLISECOND_NS, 20_000
            else:
                link.cut()
            self._after(fault.lasts_s, lambda link=link: _heal(link))  # type: ignore[misc]

    def _turn_clock(self, fault: Fault) -> None:
        chance, clock = random.Random(fault.dice), self.cluster.node(fault.target).clock
        if fault.kind == "jump":
            clock.jump(chance.choice((-3600.0, -30.0, -0.2, 0.2, 30.0, 3600.0)))
        else:
            clock.set_rate(RATE_MILLION + chance.choice((-50_000, -500, 500, 50_000)))
            self._after(fault.lasts_s, lambda: clock.set_rate(RATE_MILLION))

    def _start_name_server(self) -> None:
        if not self.cluster.node("namesrv").is_alive:
            self.cluster.launch_name_server()

    def _start_client(self, name: str) -> None:
        if not self.cluster.node(name).is_alive:
            self.workload.start(name)

    # --- peace

    def _make_peace(self) -> None:
        """End every fault, wait for what must come, and stop the brokers."""
        while self._actions:
            self._live_until(max(self._actions[0][0], self.world.now_s + LOOK_EVERY_S))
        self._may_end.clear()
        for name in self.plan.members:
            self._launch(name)
        began_s = self.world.now_s
        self.workload.is_on = self.world.is_resting = False
        self._live_until(began_s + 10)  # what is under way ends
        self._count_survivors()
        peace_s = HASTY_PEACE_S if self._is_hasty else PEACE_S
        while unfinished(self.history) and self.world.now_s < began_s + peace_s:
            self._live_until(self.world.now_s + LOOK_EVERY_S)
            self.world.is_resting = self.world.now_s > began_s + BUSY_PEACE_S
        last_s = max(self.history.pops.exhausted.values(), default=0.0)
        while self.world.now_s < last_s + LAST_POP_S:  # then they are dead letters
            self._live_until(self.world.now_s + LOOK_EVERY_S)
        self.world.is_resting = True  # nobody waits for anything any more
        self._live_until(self.world.now_s + 2 * LOOK_EVERY_S)
        self._wait_for_slaves(began_s)
        self._wait_for_offsets()
        self._weigh()

    def _count_survivors(self) -> None:
        """A power cut takes the end of a log. What is there all the same is to be delivered like everything else, and
        what waits there for its time or its transaction is to come."""
        history = self.history
        for group in history.forgetful_cuts:
            log = self.witness.log_of(self.roles.master_of(group))
            end = log.end
            for body, one in history.acknowledged.items():
                is_below = one.place.queue.broker == group and one.physical_offset < end
                if is_below and self._has_survived(log, one, body):
                    history.survivors.add(body)

    def _has_survived(self, log: LogBytes, one: Acknowledged, body: bytes) -> bool:
        if self.history.sent[body].kind.has_place:
            return holds(log, one, body)
        # Handed to another broker, it may be lost there, and nobody can tell.
        return not self.history.may_escape and holds_waiting(log, one, body)

    def _wait_for_slaves(self, began_s: float) -> None:
        """Until each has been seen with all of its master's log, which may still grow."""
        behind = list(self.roles.slaves)
        while True:
            found = {slave: self.witness.compare(slave) for slave in behind}
            behind = [slave for slave, one in found.items() if one is None or one.likeness is not Likeness.EQUAL]
            if not behind or self.world.now_s >= began_s + LAG_S:
                break
            self._live_until(self.world.now_s + 1.0)
        for slave in behind:
            self._blame(f"{slave} lacks some of its master's log {LAG_S:g} s after the last fault: {found[slave]}")

    def _wait_for_offsets(self) -> None:
        """Until it is stored that listeners are done: a group that starts again does not get everything again."""
        if self.history.forgetful_cuts or self.history.flipped:
            return
        behind, until_s = [*self._groups_behind()], self.world.now_s + OFFSETS_S
        while behind and self.world.now_s < until_s:
            self._live_until(self.world.now_s + LOOK_EVERY_S)
            before, behind = behind, [*self._groups_behind()]
            if behind != before:  # a group that was set back late has much to do, in a world that rests
                until_s = self.world.now_s + OFFSETS_S
        for sentence in behind:
            self._blame(sentence)

    def _groups_behind(self) -> Iterator[str]:
        for name, group in product(self.roles.masters, (WORKERS, KEEPERS)):
            server = self.cluster.servers.get(name)
            if not isinstance(server, BrokerServer):
                continue
            for topic, queue_id in product(self.history.subscribed.get(group, ()), range(QUEUES_MAX)):
                end, at = server.store.max_offset(topic, queue_id), server.node.offsets.query(group, topic, queue_id)
                if end > (at or 0):
                    yield f"{group} is at {at} of {Queue(topic, group_of(name), queue_id)}, which ends at {end}"

    def _weigh(self) -> None:
        """Nothing grows without bounds: sockets, tasks, threads and objects of each broker."""
        for name in self.plan.members:
            node = self.cluster.node(name)
            tasks = sum(not task.done() for task in asyncio.all_tasks(node.loop)) if node.loop is not None else 0
            counts = (len(node.sockets), tasks, self.world.count_fibers(node))
            if any(count > most for count, most in zip(counts, (SOCKETS_MAX, TASKS_MAX, THREADS_MAX), strict=True)):
                self._blame(f"{name} has {counts} sockets, tasks and threads after all is over")
            server = self.cluster.servers.get(name)
            held = 0 if server is None else bytes_held_by(server)
            if held > MEMORY_BYTES_MAX:
                self._blame(f"{name} holds {held:,} bytes of memory after all is over")

    def _judge(self) -> None:
        verdict, cluster = self.verdict, self.cluster
        stores: dict[str, Left] = {}
        for name in self.plan.members:
            node = cluster.node(name)
            try:
                cluster.stop(name)
                stores[name] = cluster.read_store(name)
            except Exception as exc:  # noqa: BLE001  whatever it is, it is the verdict
                self._blame(f"{name} does not stop cleanly: {exc!r} {node.error!r}")
        found = unsafe(self.history)
        if len(stores) == len(self.plan.members):
            found += unsafe_stores(self.history, [stores[name] for name in self.roles.masters])
            for slave in self.roles.slaves:
                self.witness.judge(slave)
                found += unsafe_copy(self.history, slave, stores[slave], stores[self.roles.master_of(slave)])
        found += unfinished(self.history)  # last: the stores say where messages are that nobody was given
        for sentence in found:
            self._blame(sentence)
        others = [node for node in cluster.world.nodes.values() if node.name not in self.plan.members]
        for node in [*self._lives, *others]:
            for complaint in node.complaints:
                self._blame(f"{node.name}: {complaint}")
            for thread, error in node.failed_threads:
                self._blame(f"{node.name}: thread {thread}: {error!r}")
        for node in others:
            if node.error is not None:
                self._blame(f"{node.name} ended: {node.error!r}")
        verdict.stores = {name: cluster.digest(name) for name in self.plan.members}


def _group_and_queue(key: tuple[str, int], broker: str) -> tuple[str, Queue]:
    topic, _, group = key[0].partition("@")
    return group, Queue(topic, broker, key[1])


def _heal(link: Link) -> None:
    link.mend()
    link.delay_ns_min, link.delay_ns_max = 50 * MICROSECOND_NS, 2 * MILLISECOND_NS
    link.bytes_per_second = 125_000_000
