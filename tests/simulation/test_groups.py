"""A master with its slaves under faults: what two have acknowledged is on both, and planted bugs are found."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import count, islice, product
from pathlib import Path
from typing import TypeVar

import pytest

from contrailmq.broker import server
from contrailmq.message.codec import encode_record
from simulation import runs
from simulation.checker import unfinished, unsafe
from simulation.cluster import BROKER_PORT, Cluster
from simulation.disks import Disk, Loss
from simulation.faults import GROUP_KINDS, Plan, draw_group, has_slaves
from simulation.history import READERS, Acknowledged, History, Place, Queue
from simulation.network import Host, Network, Stream
from simulation.planted import BY_NAME
from simulation.replicas import FILE_BYTES, WAITING, Likeness, LogBytes, holds, holds_waiting
from simulation.test_trial import apart, with_each_kind
from simulation.trial import CLIENTS, Trial, plan_of, run_group_seed
from simulation.world import World

T = TypeVar("T")
SEEDS = range(1, 6)
# Bugs that nearly every seed with slaves finds.
OFTEN_FOUND = (
    "an answer waits for what was sent to slaves, not for reports",
    "a slave reports before the flush",
)


@pytest.mark.parametrize("seed", apart(SEEDS))
def test_a_seed_with_slaves_keeps_every_promise(seed: int) -> None:
    verdict = run_group_seed(seed, 2.0)
    assert verdict.problems == []
    assert verdict.reports > 10


@pytest.mark.long
@pytest.mark.parametrize(("kind", "flush"), apart(product(GROUP_KINDS, ("SYNC_FLUSH", "ASYNC_FLUSH"))))
def test_each_kind_of_fault_keeps_every_promise_of_a_group(kind: str, flush: str) -> None:
    plans = (draw_group(seed, 3.0, clients=CLIENTS, kinds=(kind,)) for seed in count(1))
    for plan in islice((plan for plan in plans if plan.faults), 3):
        assert {fault.kind for fault in plan.faults} == {kind}
        verdict = Trial(replace(plan, flush=flush)).run()
        assert verdict.problems == []


def log_with(*bodies: bytes, topic: str = "T") -> tuple[bytes, list[int]]:
    """Records of these bodies, and where each begins."""
    host, log, places = bytes(8), b"", list[int]()
    for number, body in enumerate(bodies):
        places.append(len(log))
        log += encode_record(
            topic,
            body,
            b"KEYS\x01k",
            queue_id=0,
            queue_offset=number,
            physical_offset=len(log),
            born_host=host,
            store_host=host,
            born_time_ms=1,
            store_time_ms=1,
        )
    return log, places


def seen_log(root: Path, log: bytes) -> LogBytes:
    """A store's log with these bytes, as the simulation looks at it."""
    folder = root / "store" / "commitlog"
    folder.mkdir(parents=True)
    (folder / "0".zfill(20)).write_bytes(log)
    return LogBytes(Disk(world := World(1), Host(Network(world), "b0", "10.0.0.1"), root))


def test_a_record_is_found_where_it_begins_and_not_inside_another(tmp_path: Path) -> None:
    """Seed 2011 of ten minutes: a place that a power cut took lay inside a later body, whose bytes passed for a size
    that led to the end of the log, and so to a copy of the lost message."""
    log, places = log_with(b"first", b"P" * 200, b"first again")
    seen = seen_log(tmp_path, log)
    found = [seen.record(place) for place in places]
    assert b"".join(found) == log
    assert [b"first" in record for record in found] == [True, False, True]
    assert {seen.record(offset) for offset in range(len(log)) if offset not in places} == {b""}


def test_a_copy_that_begins_where_a_message_was_lost_is_not_that_message(tmp_path: Path) -> None:
    """Seed 487 of ten minutes: a power cut took a message of Plain, and its copy for a retry came to stand there."""
    log, (_, place) = log_with(b"first", b"retried")
    seen = seen_log(tmp_path, log)
    for topic, is_there in (("T", True), ("Plain", False)):
        at = Acknowledged(Place(Queue(topic, "b0", 0), 1), place, 0.0)
        assert holds(seen, at, b"retried") == is_there
    assert not holds(seen, Acknowledged(Place(Queue("T", "b0", 0), 1), place, 0.0), b"another")


@pytest.mark.parametrize("topic", WAITING)
def test_what_a_power_cut_left_of_the_messages_that_wait_is_known(topic: str, tmp_path: Path) -> None:
    log, (place, later) = log_with(b"first", b"another", topic=topic)
    seen = seen_log(tmp_path, log)
    at = Acknowledged(Place(Queue("Later", "b0", 0), 0), place, 0.0)
    assert holds_waiting(seen, at, b"first")
    assert not holds_waiting(seen, at._replace(physical_offset=later), b"first")
    assert not holds(seen, at, b"first")


def test_a_record_of_which_the_end_has_not_come_is_not_counted_among_what_a_slave_has(tmp_path: Path) -> None:
    """Seed 5 of two minutes: of two slaves whose logs were as long by their sizes, the operator chose the one that
    lacked the last 50 bytes, and with them a message that the other had."""
    log, (_, one) = log_with(b"m", b"m")
    both, ends = len(log), []
    for missing in (0, 1, 50):
        seen = seen_log(tmp_path / str(missing), log[: both - missing].ljust(FILE_BYTES, b"\0"))
        ends.append((seen.end, seen.whole_end))
    assert ends == [(both, both), (both, one), (both, one)]


def test_a_seed_with_slaves_and_every_kind_of_fault_repeats_its_history_and_stores_byte_for_byte() -> None:
    plan = with_each_kind(draw_group(2, 1.0, clients=CLIENTS), GROUP_KINDS)
    first, second = Trial(plan).run(), Trial(plan).run()
    assert first.problems == []
    assert first.history.digest() == second.history.digest()
    assert first.stores == second.stores
    assert first.trace == second.trace
    assert len(first.stores) == len(first.plan.members) > 1
    assert first.reports > 10


@pytest.mark.parametrize("name", apart(OFTEN_FOUND))
def test_a_planted_bug_of_replication_is_found(name: str) -> None:
    assert any(runs.run_one(seed, 2.0, BY_NAME[name])[0].problems for seed in range(1, 21))


def test_some_seeds_have_slaves_in_every_mode_and_the_plans_of_the_others_do_not_know_of_them() -> None:
    plans = [plan_of(seed, 2.0) for seed in range(1, 200)]
    assert all(bool(plan.slaves) == has_slaves(plan.seed) for plan in plans)
    groups = [plan for plan in plans if plan.slaves]
    assert 40 < len(groups) < 100
    modes = {(plan.role, plan.flush, len(plan.slaves)) for plan in groups}
    assert len(modes) == 8
    assert {plan.in_sync for plan in groups if plan.role == "SYNC_MASTER"} == {2, 3}
    assert {fault.target for plan in groups for fault in plan.faults} >= {"b0", "b1", "b0-1", "b0-2"}


def test_a_plan_with_slaves_is_printed_as_a_test() -> None:
    plan = draw_group(1, 0.2, clients=CLIENTS, kinds=("calm",))
    made: dict[str, object] = {}
    exec(runs.as_test(plan), {"Plan": lambda *a, **k: made.setdefault("plan", Plan(*a, **k)), "Trial": Trial}, made)
    assert runs.as_test(plan).count(f"slaves={plan.slaves!r}") == 1


# --- one master, one slave


class Pair:
    """b0 and b0-1 under load for 15 virtual seconds, without faults but those of the test."""

    def __init__(self, cluster: Cluster, *, minutes: float = 1.0, rebalance_s: float = 5.0, acts: bool = False) -> None:
        flush = str(cluster.settings["flushDiskType"])
        group = {
            "brokers": ("b0",),
            "slaves": ("b0-1",),
            "role": "SYNC_MASTER",
            "in_sync": 2,
            "rebalance_s": rebalance_s,
            "acts": acts,
        }
        self.trial = Trial(Plan(cluster.world.seed, minutes, flush, (), CLIENTS, pace=2.0, **group))  # type: ignore[arg-type]
        self.trial.join(cluster)
        self.cluster, self.history, self.witness = cluster, self.trial.history, self.trial.witness
        cluster.world.run_for(15)

    def unread(self) -> set[bytes]:
        """What was acknowledged at a place, and the reader has not got."""
        placed = {body for body in self.history.acknowledged if self.history.sent[body].kind.has_place}
        return placed - self.history.succeeded[READERS]


def test_what_is_acknowledged_is_on_both_and_lag_comes_to_nothing() -> None:
    with Cluster(3) as cluster:
        pair = Pair(cluster)
        pair.trial.workload.is_on = False
        cluster.world.run_for(5)
        compared = pair.witness.compare("b0-1")
        assert compared is not None
        assert compared.likeness is Likeness.EQUAL
        assert compared.common_end == compared.master_end > 10_000
        assert len(pair.history.acknowledged) > 30
        assert pair.trial.verdict.problems == unsafe(pair.history) == []


def test_consumers_that_read_from_the_slave_while_the_master_is_gone_get_the_same_messages() -> None:
    with Cluster(4) as cluster:
        pair = Pair(cluster)
        cluster.network.part(cluster.host("b0"), cluster.host("c2"))
        cluster.world.run_for(5)
        cluster.node("b0").kill()
        pair.trial.workload.is_on = False
        unread = pair.unread()
        assert unread
        cluster.network.join(cluster.host("b0"), cluster.host("c2"))
        assert cluster.world.run_until(lambda: not pair.unread(), within_s=90)
        assert not cluster.node("b0").is_alive
        pair.trial._launch("b0")
        cluster.world.run_for(90)
        assert pair.trial.verdict.problems == unsafe(pair.history) + unfinished(pair.history) == []


def test_a_slave_that_is_cut_off_makes_sends_time_out_and_has_all_of_them_when_it_is_back() -> None:
    with Cluster(5) as cluster:
        pair = Pair(cluster)
        cluster.network.part(cluster.host("b0"), cluster.host("b0-1"))
        cluster.world.run_for(1)
        acknowledged = len(pair.history.acknowledged)
        cluster.world.run_for(10)
        assert len(pair.history.acknowledged) == acknowledged
        assert "FLUSH_SLAVE_TIMEOUT" in pair.history.refused.values()
        cluster.network.join(cluster.host("b0"), cluster.host("b0-1"))
        cluster.world.run_for(30)
        assert len(pair.history.acknowledged) > acknowledged
        pair.trial.workload.is_on = False
        cluster.world.run_for(5)
        compared = pair.witness.compare("b0-1")
        assert compared is not None
        assert compared.likeness is Likeness.EQUAL
        assert pair.trial.verdict.problems == []


def test_a_consumer_that_its_slave_sends_to_a_master_which_it_does_not_know_asks_for_the_route() -> None:
    """Not the slave, again and again: the route is asked for every 40 s otherwise, and the master was away."""
    with Cluster(6) as cluster:
        pair = Pair(cluster, rebalance_s=20.0)
        pair.trial.workload.is_on = False
        cluster.node("b0").kill()
        cluster.world.run_for(60)  # the route has no master
        asked = Pulls(cluster, "b0-1")
        pair.trial._launch("b0")
        cluster.world.run_for(20)
        assert pair.trial.verdict.problems == []
        assert 0 < asked.of["c2"] < 100
        assert asked.of["c0"] < 100


def test_consumers_of_a_slave_that_stood_in_for_its_master_do_not_ask_it_again_and_again_when_that_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Seed 1001: their routes call the slave the master until they ask for them again, every 40 s here. This slave
    sends them on at once, as others than ours do."""
    monkeypatch.setattr(server, "ROUTES_MS", 0)
    with Cluster(6) as cluster:
        pair = Pair(cluster, rebalance_s=20.0, acts=True)
        pair.trial.workload.is_on = False
        cluster.node("b0").kill()
        cluster.world.run_for(60)
        asked = Pulls(cluster, "b0-1")
        pair.trial._launch("b0")
        cluster.world.run_for(30)
        assert pair.trial.verdict.problems == []
        assert 0 < asked.of["c2"] < 100
        assert asked.of["c0"] < 100


class Pulls:
    """How often each host has written to a broker since this was made."""

    def __init__(self, cluster: Cluster, broker: str) -> None:
        self.of: Counter[str] = Counter()
        address, tap = (cluster.host(broker).address, BROKER_PORT), cluster.network.tap

        def count(stream: Stream, data: bytes) -> None:
            if stream.remote == address:
                self.of[stream.host.name] += 1
            if tap is not None:
                tap(stream, data)

        cluster.network.tap = count


def test_what_a_slave_has_shown_and_its_master_has_lost_is_another_message_later() -> None:
    """A SYNC_MASTER sends slaves what it has not synced yet. A power cut takes it from the master, though under
    SYNC_FLUSH it was acknowledged to nobody, and consumers may have read it from the slave meanwhile."""
    with Cluster(8) as cluster:
        pair = Pair(cluster, minutes=5.0)
        disk, history = cluster.disk("b0"), pair.history
        disk.loss = Loss.EVERYTHING
        disk.stall(3.0)
        cluster.world.run_for(2)
        pair.trial._is_down.add("b0")
        pair.trial._cut_power("b0", Sure())
        cluster.world.run_for(150)  # NameServers forget a master that has fallen silent after two minutes
        pair.trial._launch("b0")
        pair.trial._live_until(cluster.world.now_s + 20)
        pair.trial.workload.is_on = False
        pair.trial._live_until(cluster.world.now_s + 90)
        bodies: dict[Place, set[bytes]] = defaultdict(set)
        for delivery in history.deliveries:
            if delivery.place is not None:
                bodies[delivery.place].add(delivery.body)
        twice = [found for found in bodies.values() if len(found) > 1]
        assert twice
        assert all(len(found - history.acknowledged.keys()) > 0 for found in twice if _has_place(history, found))
        assert pair.trial.verdict.problems == unsafe(history) + unfinished(history) == []
        assert pair.trial.verdict.decisions.total() == 1  # the slave was truncated or given an empty directory


class Sure(random.Random):
    """Every die shows its last side."""

    def choice(self, seq: Sequence[T]) -> T:  # type: ignore[override]
        return seq[-1]


def _has_place(history: History, bodies: set[bytes]) -> bool:
    return all(history.sent[body].kind.has_place for body in bodies)
