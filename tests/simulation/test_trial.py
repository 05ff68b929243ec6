"""Clusters under faults: what was acknowledged stays, a seed repeats, and a planted fault is found."""

from __future__ import annotations

import pytest

from simulation.checker import unfinished, unsafe
from simulation.cluster import Cluster
from simulation.disks import Loss
from simulation.history import Delivery, History, Place
from simulation.trial import Trial, Verdict


def run(seed: int, *faults: str, minutes: float = 1.5) -> Verdict:
    return Trial(seed).run(minutes, faults=faults)


def test_a_seed_with_kills_and_power_cuts_repeats_its_history_and_stores_byte_for_byte() -> None:
    first, second = run(3, "kill", "cut"), run(3, "kill", "cut")
    assert first.problems == []
    assert any(" cut " in fault for fault in first.faults)
    assert first.faults == second.faults
    assert first.history.digest() == second.history.digest()
    assert first.stores == second.stores
    assert first.trace == second.trace
    assert len(first.history.acknowledged) > 100


@pytest.mark.parametrize("fault", ["pause", "part", "one-way", "reset", "stall", "jump", "stop"])
def test_every_acknowledged_message_is_delivered_whatever_happens_meanwhile(fault: str) -> None:
    verdict = run(11, fault, minutes=1.0)
    assert verdict.problems == []
    assert len(verdict.history.acknowledged) > 50


class Quiet:
    """A broker, a producer and a consumer after 20 virtual seconds, without faults but those of the test."""

    def __init__(self, cluster: Cluster) -> None:
        self.trial = Trial(cluster.world.seed, producers=1)
        self.trial.join(cluster)
        self.cluster, self.history, self.disk = cluster, self.trial.history, cluster.disk("b0")
        cluster.world.run_for(20)

    def cut_and_restart(self) -> list[str]:
        """What the checker says when the broker is back and a minute is over."""
        self.cluster.node("b0").cut_power()
        self.cluster.start_broker("b0")
        self.cluster.world.run_for(60)
        return unsafe(self.history) + unfinished(self.history)


def test_a_disk_that_only_says_that_it_synced_is_found() -> None:
    """The checker's own check: with such a disk a power cut takes acknowledged messages."""
    with Cluster(5) as cluster:
        quiet = Quiet(cluster)
        quiet.disk.lies, quiet.disk.loss = True, Loss.EVERYTHING
        cluster.world.run_for(20)
        assert quiet.cut_and_restart() != []


def test_a_failed_sync_is_final_and_nothing_that_was_acknowledged_is_lost() -> None:
    with Cluster(5) as cluster:
        quiet = Quiet(cluster)
        quiet.disk.fails_syncs = True
        cluster.world.run_for(10)
        acknowledged = len(quiet.history.acknowledged)
        quiet.disk.fails_syncs = False  # too late: the pages may be gone
        cluster.world.run_for(10)
        assert len(quiet.history.acknowledged) == acknowledged > 10
        assert quiet.cut_and_restart() == []
        assert len(quiet.history.acknowledged) > acknowledged


def test_a_full_disk_refuses_and_serves_again_when_there_is_room() -> None:
    with Cluster(6) as cluster:
        quiet = Quiet(cluster)
        quiet.disk.free_bytes = 0
        cluster.world.run_for(60)
        acknowledged = len(quiet.history.acknowledged)
        assert len(quiet.history.refused) > 0
        quiet.disk.free_bytes = 1 << 40
        cluster.world.run_for(60)
        assert len(quiet.history.acknowledged) > acknowledged
        assert quiet.cut_and_restart() == []


def test_the_checker_names_what_is_wrong() -> None:
    place, other = Place("b0", 0, 0), Place("b0", 0, 1)
    history = History(sent={b"a": {"k": "1"}, b"b": {}, b"c": {}}, acknowledged={b"a": place, b"b": place, b"c": other})
    history.deliveries = [
        Delivery(1.0, b"a", {"k": "2"}, place),
        Delivery(2.0, b"x", {}, other),
        Delivery(3.0, b"b", {}, other),
        Delivery(4.0, b"c", {}, other),
    ]
    assert unsafe(history) == [
        f"{place} was acknowledged for b'a' and for b'b'",
        "b'a' was sent with {'k': '1'} and delivered with {'k': '2'}",
        "b'x' was delivered and never sent",
        f"{other} held b'c' and later b'b'",
    ]
    assert unfinished(history) == [f"b'b' was acknowledged at {place} and not delivered"]
