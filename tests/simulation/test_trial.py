"""Clusters under faults: what was acknowledged stays, a seed repeats, and planted bugs are found."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import product

import pytest
from _pytest.mark import ParameterSet

from simulation import runs
from simulation.checker import ahead, unfinished, unsafe, unsafe_stores
from simulation.cluster import Cluster
from simulation.disks import Loss
from simulation.faults import BEGIN_S, CRASHES, GROUP_CRASHES, KINDS, SWITCH, Fault, Plan, draw
from simulation.history import (
    DEALS,
    KEEPERS,
    LATER,
    ORDERED,
    PLAIN,
    READERS,
    WORKERS,
    Acknowledged,
    Cut,
    Delivery,
    History,
    Kind,
    MovedBack,
    Place,
    Queue,
    Sent,
)
from simulation.planted import BY_NAME, PLANTED, planted
from simulation.stores import Left, Record
from simulation.trial import CLIENTS, LOOK_EVERY_S, PEACE_S, Trial, run_seed

# Seeds with many kinds of faults, SYNC_FLUSH and ASYNC_FLUSH, with preemption and without; 1 or 2 s of CPU each.
SEEDS = range(1, 17)
# Bugs that nearly every seed finds. Which seed it is changes with every change of the package.
OFTEN_FOUND = (
    "sends are answered before the flush",
    "a transaction that was rolled back is committed",
    "the answer to a send names the wrong offset",
    "the broker stores an offset one too far",
)


def apart(values: Iterable[object]) -> list[ParameterSet]:
    """Cases that may run in any process, so that they keep all cores busy."""
    cases = [one if isinstance(one, tuple) else (one,) for one in values]
    names = ["-".join(map(str, case)) for case in cases]
    marks = [pytest.mark.xdist_group(f"simulation {name}") for name in names]
    return [pytest.param(*case, marks=mark, id=name) for case, mark, name in zip(cases, marks, names, strict=True)]


def with_each_kind(plan: Plan, kinds: Iterable[str]) -> Plan:
    """One fault of each kind, one after the other, under load all the time; no power cuts where a bit turns."""
    chance = random.Random(plan.seed)
    drawn = chance.sample(tuple(kinds), len(tuple(kinds)))
    step_s = (60.0 * plan.minutes - BEGIN_S) / len(drawn)
    faults = []
    for number, kind in enumerate(drawn):
        target = plan.brokers[0] if kind in (*CRASHES, *GROUP_CRASHES, SWITCH) else plan.members[-1]
        target = chance.choice(plan.clients) if kind.startswith("client") else target
        faults.append(Fault(BEGIN_S + step_s * number, kind, target, plan.brokers[0], 2.0, chance.getrandbits(32)))
    return replace(plan, faults=tuple(faults), bursts=(), pace=1.0)


@pytest.mark.parametrize("seed", apart(SEEDS))
def test_a_seed_keeps_every_promise(seed: int) -> None:
    verdict = run_seed(seed, 2.0)
    assert verdict.problems == []
    assert len(verdict.history.acknowledged) > 10


@pytest.mark.long
@pytest.mark.parametrize(("kind", "flush"), apart(product(KINDS, ("SYNC_FLUSH", "ASYNC_FLUSH"))))
def test_each_kind_of_fault_keeps_every_promise(kind: str, flush: str) -> None:
    verdict = run_seed(11, 5.0, kind, flush=flush)
    assert any(fault.kind == kind for fault in verdict.plan.faults)
    assert verdict.plan.flush == flush
    assert verdict.problems == []


def test_a_seed_with_every_kind_of_fault_repeats_its_history_and_stores_byte_for_byte() -> None:
    plan = with_each_kind(draw(4, 1.0, clients=CLIENTS), KINDS)
    first, second = Trial(plan).run(), Trial(plan).run()
    assert first.problems == []
    assert first.history.flipped
    assert first.history.digest() == second.history.digest()
    assert first.stores == second.stores
    assert first.trace == second.trace
    assert len(first.history.acknowledged) > 30


def test_what_a_fifo_consumer_keeps_longer_when_its_time_is_over_is_promised_to_nobody() -> None:
    """Seed 20: a second member had the batch by then, and the acknowledgements of the first had no effect."""
    assert run_seed(20, 1.0, "kill").problems == []


# --- planted bugs


@pytest.mark.parametrize("name", apart(OFTEN_FOUND))
def test_a_planted_bug_is_found(name: str) -> None:
    assert any(runs.run_one(seed, 2.0, BY_NAME[name])[0].problems for seed in range(1, 21))


@pytest.mark.long
@pytest.mark.parametrize("name", apart(BY_NAME))
def test_each_planted_bug_is_found(name: str) -> None:
    assert any(runs.run_one(seed, 2.0, BY_NAME[name])[0].problems for seed in range(1, 101))


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_the_text_that_a_planted_bug_replaces_is_there(bug: runs.Planted) -> None:
    with planted(bug):
        pass


def test_a_failing_plan_is_shortened_to_what_it_needs_and_printed_as_a_test() -> None:
    calm = Plan(1, 0.2, "SYNC_FLUSH", (Fault(6.0, "stall", "b0", "p0", 0.3, 1),), ("p1", "c0"))
    with planted(BY_NAME["the broker stores an offset one too far"]):
        shorter = runs.shrink(calm, tries=2)
    assert shorter.faults == ()
    text = runs.as_test(shorter)
    assert text.startswith("def test_seed_1() -> None:\n    faults = ()\n")
    compile(text, "a test", "exec")


# --- disks that do not keep their word


class Quiet:
    """Two brokers and all clients after 15 virtual seconds, without faults but those of the test."""

    def __init__(self, cluster: Cluster) -> None:
        plan = Plan(cluster.world.seed, 1.0, str(cluster.settings["flushDiskType"]), (), CLIENTS, pace=2.0)
        self.trial = Trial(plan)
        self.trial.join(cluster)
        self.cluster, self.history, self.disk = cluster, self.trial.history, cluster.disk("b0")
        cluster.world.run_for(15)

    def acknowledged(self) -> int:
        """By the broker whose disk it is."""
        return sum(one.place.queue.broker == "b0" for one in self.history.acknowledged.values())

    def cut_and_restart(self) -> list[str]:
        """What the checker says when the broker is back and all has arrived, or as much time is over as in a trial."""
        self.cluster.node("b0").cut_power()
        self.cluster.start_broker("b0")
        self.trial.workload.is_on = False
        world = self.cluster.world
        world.run_for(20)
        world.is_resting = True
        end_s = world.now_s + PEACE_S
        while unfinished(self.history) and world.now_s < end_s:
            world.run_for(LOOK_EVERY_S)
        return unsafe(self.history) + unfinished(self.history)


def test_a_disk_that_only_says_that_it_synced_is_found() -> None:
    """The checker's own check: with such a disk a power cut takes acknowledged messages."""
    with Cluster(5) as cluster:
        quiet = Quiet(cluster)
        quiet.disk.lies, quiet.disk.loss = True, Loss.EVERYTHING
        cluster.world.run_for(10)
        assert quiet.cut_and_restart() != []


def test_a_failed_sync_is_final_and_nothing_that_was_acknowledged_is_lost() -> None:
    with Cluster(5) as cluster:
        quiet = Quiet(cluster)
        quiet.disk.fails_syncs = True
        cluster.world.run_for(10)
        acknowledged = quiet.acknowledged()
        quiet.disk.fails_syncs = False  # too late: the pages may be gone
        cluster.world.run_for(10)
        assert quiet.acknowledged() == acknowledged > 10
        assert any("simulated disk" in text for text in quiet.history.refused.values())
        assert not any(str(cluster.path) in text for text in quiet.history.refused.values())  # no two runs share it
        assert quiet.cut_and_restart() == []


def test_a_full_disk_refuses_and_serves_again_when_there_is_room() -> None:
    with Cluster(6) as cluster:
        quiet = Quiet(cluster)
        quiet.disk.free_bytes = 0
        cluster.world.run_for(30)
        acknowledged = quiet.acknowledged()
        quiet.disk.make_room()
        cluster.world.run_for(20)
        assert quiet.acknowledged() > acknowledged
        assert quiet.cut_and_restart() == []


def test_offsets_that_a_power_cut_took_are_used_again_and_who_has_passed_them_misses_the_new_messages() -> None:
    """ASYNC_FLUSH. As with Apache's broker: a pull beyond the end is moved to the end, but these consumers are away
    until the queues are longer than before, and nothing tells them that other messages stand there now."""
    with Cluster(5, flush="ASYNC_FLUSH") as cluster:
        quiet = Quiet(cluster)
        quiet.disk.loss = Loss.EVERYTHING
        quiet.disk.stall(10.0)
        cluster.world.run_for(3)
        for name in ("c0", "c1", "c2"):
            cluster.network.part(cluster.host("b0"), cluster.host(name))
        quiet.history.forgetful_cuts["b0"].append(quiet.trial._cut_of("b0"))
        cluster.node("b0").cut_power()
        cluster.start_broker("b0")
        cluster.world.run_for(20)
        quiet.trial.workload.is_on = False
        for name in ("c0", "c1", "c2"):
            cluster.network.join(cluster.host("b0"), cluster.host(name))
        cluster.world.is_resting = True
        cluster.world.run_for(PEACE_S)
        history = quiet.history
        history.is_calm = False  # who heard no answer has sent again
        placed = [body for body in history.acknowledged if history.sent[body].kind.has_place]
        missed = {body for body in placed if not history.is_excused(body)} - history.succeeded[READERS]
        assert missed
        assert all(history.is_passed_over(body, READERS) for body in missed)
        cluster.stop("b0")
        cluster.stop("b1")
        stores = [cluster.read_store(name) for name in ("b0", "b1")]  # they say where delayed messages stand
        assert unsafe(history) + unsafe_stores(history, stores) + unfinished(history) == []


# --- the checker alone


B0 = Queue(PLAIN, "b0", 0)
ORDER = Queue(ORDERED, "b0", 0)
TAGS = {"TAGS": "even", "number": "1"}


def of(sent: dict[bytes, Sent], *places: tuple[bytes, Place]) -> History:
    acknowledged = {body: Acknowledged(place, 100 * number, 1.0) for number, (body, place) in enumerate(places)}
    return History(sent=sent, acknowledged=acknowledged)


def plain(topic: str = PLAIN, kind: Kind = Kind.SINGLE, **more: object) -> Sent:
    return Sent(topic, kind, TAGS, 0.0, **more)  # type: ignore[arg-type]


def give(history: History, body: bytes, place: Place | None, **more: object) -> None:
    values: dict[str, object] = {"at_s": 2.0, "group": WORKERS, "member": "c0", "properties": TAGS} | more
    sent = history.sent.get(body, plain())
    values = {"topic": sent.topic, "flag": sent.flag} | values
    history.deliver(Delivery(body=body, place=place, **values))  # type: ignore[arg-type]


def test_one_place_for_two_messages_is_found() -> None:
    history = of({b"a": plain(), b"b": plain()}, (b"a", Place(B0, 0)), (b"b", Place(B0, 0)))
    assert unsafe(history) == [f"{Place(B0, 0)} was acknowledged for 'a' and for 'b'"]


def test_deliveries_of_what_was_not_sent_or_was_changed_are_found() -> None:
    history = of({b"a": plain()}, (b"a", Place(B0, 0)))
    give(history, b"x", Place(B0, 1))
    give(history, b"a", Place(B0, 0), properties={"TAGS": "even", "number": "2"})
    changed = "'a' was sent with {'number': '1'} and has {'TAGS': 'even', 'number': '2'}"
    assert unsafe(history) == ["'x' was delivered to workers and never sent", changed]


def test_a_property_that_nobody_sent_and_another_id_are_found() -> None:
    history = of({b"a": plain()}, (b"a", Place(B0, 0)))
    history.ids[b"a"] = "ID1"
    give(history, b"a", Place(B0, 0), properties=TAGS | {"UNIQ_KEY": "ID1", "RECONSUME_TIME": "1"})
    assert unsafe(history) == []
    got = TAGS | {"UNIQ_KEY": "ID2", "more": "x"}
    give(history, b"a", Place(B0, 0), properties=got)
    assert unsafe(history) == [
        f"'a' was sent without {{'more': 'x'}} and has {got}",
        "'a' was acknowledged as ID1 and has ID2",
    ]


@pytest.mark.parametrize("topic", ["%DLQ%workers", "%RETRY%workers", "SCHEDULE_TOPIC_XXXX"])
def test_a_message_that_was_changed_in_a_topic_that_nobody_reads_is_found(topic: str) -> None:
    place, held = Place(Queue(topic, "b0", 0), 0), Record(Place(B0, 0), 0, 0, b"a", TAGS, flag=3)
    history = of({b"a": plain(flag=3)}, (b"a", Place(B0, 0)))
    copy = held._replace(place=place, physical_offset=100)
    assert unsafe_stores(history, [Left("b0", [held, copy], [], {}, {})]) == []
    changed = copy._replace(properties={"TAGS": "even"}, flag=0)
    assert unsafe_stores(history, [Left("b0", [held, changed], [], {}, {})]) == [
        "'a' was sent with {'number': '1'} and has {'TAGS': 'even'}",
        f"'a' was sent with the flag 3 and has 0 at {place}",
    ]


def test_deliveries_too_early_rolled_back_or_not_asked_for_are_found() -> None:
    sent = {b"l": plain(LATER, Kind.LEVEL, delay_s=5.0), b"h": plain(DEALS, Kind.HALF), b"o": plain(ORDERED)}
    history = of(sent)
    history.decided[b"h"] = False
    give(history, b"l", None)
    give(history, b"h", None)
    give(history, b"o", None)
    assert unsafe(history) == [
        "'l' was to wait 5 s and came after 2.000 s",
        "'h' was delivered and its transaction did not commit",
        "'o' was delivered to workers, which asks for not at all of Ordered",
    ]


def test_a_queue_out_of_order_is_found_and_a_repetition_is_not() -> None:
    history = of({body: plain(ORDERED, Kind.ORDERED) for body in (b"a", b"b", b"c")})
    for body, offset in ((b"a", 0), (b"c", 2), (b"a", 0), (b"b", 1)):
        give(history, body, Place(ORDER, offset), group=KEEPERS)
    assert unsafe(history) == [f"keepers got 1 of {ORDER} for the first time after 2"]


def test_an_orderly_listener_that_goes_on_past_what_it_failed_on_is_found() -> None:
    history = of({body: plain(ORDERED, Kind.ORDERED) for body in (b"a", b"b")})
    history.acknowledge(b"a", Place(ORDER, 0), 0, 1.0)
    give(history, b"a", Place(ORDER, 0), group=KEEPERS, is_success=False)
    assert list(ahead(history, {(KEEPERS, ORDER): 1})) == [f"keepers is at 1 of {ORDER} and was not given [0]"]
    give(history, b"a", Place(ORDER, 0), group=KEEPERS, is_success=False)
    assert unsafe(history) == []
    give(history, b"b", Place(ORDER, 1), group=KEEPERS)
    assert unsafe(history) == [f"keepers failed on 0 of {ORDER}, and was done with 1 first"]


def test_a_message_that_is_delivered_as_one_of_another_topic_or_flag_is_found() -> None:
    history = of({b"a": plain(flag=3)})
    give(history, b"a", None, topic="%RETRY%workers")
    give(history, b"a", None, flag=0)
    assert unsafe(history) == [
        "'a' was delivered to workers as one of %RETRY%workers with the flag 3, and sent to Plain with 3",
        "'a' was delivered to workers as one of Plain with the flag 0, and sent to Plain with 3",
    ]


def test_a_retry_that_comes_at_once_or_skips_an_attempt_is_found() -> None:
    history = of({b"a": plain()})
    give(history, b"a", Place(B0, 0), is_success=False, at_s=2.0)
    give(history, b"a", None, is_success=False, at_s=6.0, attempt=1)
    assert unsafe(history) == []
    give(history, b"a", None, at_s=9.0, attempt=2)
    give(history, b"a", None, at_s=20.0, attempt=4)
    assert unsafe(history) == [
        "'a' failed at 6.000 s and came again at 9.000 s",
        "'a' came as attempt 4, and workers had not failed on the one before",
    ]


def test_a_topic_that_was_made_again_and_begins_behind_the_old_one_is_found() -> None:
    place = Place(Queue("Passing1", "b0", 0), 3)
    history = of({b"a": plain("Passing1")}, (b"a", place))
    history.deleted.add("Passing1")
    history.first_again.add(b"a")
    assert unsafe(history) == []  # a broker that was away has not heard that it was deleted
    history.is_calm = True
    assert unsafe(history) == [f"'a' is the first of Passing1, which was deleted, and stands at {place}"]


def test_an_offset_that_ran_ahead_is_found() -> None:
    history = of({b"a": plain(), b"b": plain()})
    give(history, b"a", Place(B0, 0))
    assert list(ahead(history, {(WORKERS, B0): 1})) == []
    assert list(ahead(history, {(WORKERS, B0): 2})) == [f"workers is at 2 of {B0} and was not given [1]"]


def test_what_never_arrived_is_found() -> None:
    history = of({b"a": plain()}, (b"a", Place(B0, 0)))
    give(history, b"a", Place(B0, 0), is_success=False)
    give(history, b"a", Place(B0, 0), group=READERS)
    assert unfinished(history) == ["'a', single, was acknowledged and workers never got it"]


def test_a_group_that_was_set_back_and_not_given_all_of_it_again_is_found() -> None:
    odd = Sent(ORDERED, Kind.ORDERED, TAGS | {"TAGS": "odd"}, 0.0)
    sent = {b"a": plain(ORDERED, Kind.ORDERED), b"b": odd, b"c": plain(ORDERED, Kind.ORDERED)}
    history = of(sent, *((body, Place(ORDER, number)) for number, body in enumerate(sent)))
    history.subscribed, history.is_calm = {KEEPERS: {ORDERED: "even"}}, True
    give(history, b"a", Place(ORDER, 0), group=KEEPERS, at_s=2.0)
    give(history, b"c", Place(ORDER, 2), group=KEEPERS, at_s=2.0)
    history.moved_back.append(MovedBack(KEEPERS, ORDERED, 3.0))
    give(history, b"a", Place(ORDER, 0), group=KEEPERS, at_s=4.0)
    assert unfinished(history) == ["keepers was set back to the beginning of Ordered at 3 s and not given 'c'"]
    give(history, b"c", Place(ORDER, 2), group=KEEPERS, at_s=4.0)
    assert unfinished(history) == []


@pytest.mark.parametrize(("stored_ms", "said"), [(4_999, "4.999"), (5_000, ""), (11_000, ""), (11_001, "11.001")])
def test_what_comes_into_its_topic_too_early_or_late_is_found_where_nothing_was_done(stored_ms: int, said: str) -> None:
    history = of({b"l": plain(LATER, Kind.LEVEL, delay_s=5.0)}, (b"l", Place(Queue(LATER, "b0", 0), 0)))
    waits = Record(Place(Queue("SCHEDULE_TOPIC_XXXX", "b0", 1), 0), 0, 0, b"l", TAGS)
    came = Record(Place(Queue(LATER, "b0", 0), 0), 100, stored_ms, b"l", TAGS)
    left = Left("b0", [waits, came], [], {}, {})
    assert unsafe_stores(history, [left]) == []  # a fault may have held it up
    history.is_calm = True
    expected = [f"'l' was to wait 5 s and stood in its topic after {said} s"] if said else []
    assert unsafe_stores(history, [left]) == expected


def test_what_came_into_another_queue_than_was_acknowledged_is_found() -> None:
    acknowledged, other = Queue(LATER, "b0", 0), Queue(LATER, "b0", 1)
    history = of({b"l": plain(LATER, Kind.LEVEL)}, (b"l", Place(acknowledged, 0)))
    left = Left("b0", [Record(Place(other, 0), 100, 0, b"l", TAGS)], [], {}, {})
    assert unsafe_stores(history, [left]) == [
        f"'l', delayed by a level, was acknowledged for {acknowledged} and came into {[other]}"
    ]


def test_an_answer_that_names_another_place_of_the_log_is_found() -> None:
    history, stands = of({b"a": plain()}, (b"a", Place(B0, 0))), ["7: 'a'"]
    assert unsafe_stores(history, [Left("b0", [Record(Place(B0, 0), 7, 0, b"a", TAGS)], [], {}, {})]) == [
        f"'a' was acknowledged at {Place(B0, 0)}, 0 of the log; there is {stands}"
    ]


def test_what_came_twice_after_its_time_is_found_where_brokers_stopped_cleanly() -> None:
    later = Queue(LATER, "b0", 0)
    history = of({b"l": plain(LATER, Kind.LEVEL)}, (b"l", Place(later, 0)))
    waits = Record(Place(Queue("SCHEDULE_TOPIC_XXXX", "b0", 0), 0), 0, 0, b"l", TAGS | {"REAL_TOPIC": LATER})
    came = [Record(Place(later, offset), 100 + offset, 0, b"l", TAGS) for offset in (0, 1)]
    left = Left("b0", [waits, *came], [], {}, {})
    assert unsafe_stores(history, [left]) == []  # a crash may do that
    history.stops_cleanly = True
    assert unsafe_stores(history, [left]) == [f"'l' waited 1 times and stands at {[one.place for one in came]}"]


def test_a_message_that_failed_on_its_last_try_is_done_if_it_is_a_dead_letter() -> None:
    history = of({b"a": plain()}, (b"a", Place(B0, 0)))
    give(history, b"a", Place(B0, 0), is_success=False)
    give(history, b"a", Place(B0, 0), group=READERS)
    history.exhausted.add(b"a")
    assert unfinished(history) == []
    stored = Record(Place(B0, 0), 0, 0, b"a", TAGS)
    letter = Record(Place(Queue("%DLQ%workers", "b0", 0), 0), 9, 0, b"a", TAGS)
    assert unsafe_stores(history, [Left("b0", [stored, letter], [], {}, {})]) == []
    assert unsafe_stores(history, [Left("b0", [stored], [], {}, {})]) == [
        "'a' failed on its last try and is no dead letter"
    ]


def test_an_offset_that_ran_ahead_of_a_tag_is_found() -> None:
    """Of a group with a filter only acknowledged messages count, and only those that it asks for."""
    odd = Sent(ORDERED, Kind.ORDERED, TAGS | {"TAGS": "odd"}, 0.0)
    sent = {b"a": plain(ORDERED, Kind.ORDERED), b"b": odd, b"c": plain(ORDERED, Kind.ORDERED)}
    history = History(sent=sent)
    for number, body in enumerate(sent):
        history.acknowledge(body, Place(ORDER, number), 100 * number, 1.0)
    give(history, b"a", Place(ORDER, 0), group=KEEPERS)
    assert list(ahead(history, {(KEEPERS, ORDER): 2})) == []
    assert list(ahead(history, {(KEEPERS, ORDER): 3})) == [f"keepers is at 3 of {ORDER} and was not given [2]"]


class UsedAgain:
    """ASYNC_FLUSH: a queue ended at 5, the group had asked for 4, and the power cut at 5 s took all from 2 on. Then new
    messages were acknowledged at 2 to 5."""

    def __init__(self) -> None:
        sent = {b"%d" % number: Sent(PLAIN, Kind.SINGLE, TAGS, 6.0) for number in range(2, 6)}
        self.history = History(sent=sent)
        for number, body in enumerate(sent, 2):
            self.history.acknowledge(body, Place(B0, number), 100 * number, 7.0)
            give(self.history, body, Place(B0, number), at_s=8.0, group=READERS)
        self.history.forgetful_cuts["b0"].append(Cut(5.0, {B0: 5}, {(WORKERS, B0): 4}))

    def missed(self) -> list[str]:
        return [sentence.split("'")[1] for sentence in unfinished(self.history)]


def test_what_stands_where_a_group_has_read_what_a_power_cut_took_may_be_missed_and_nothing_more() -> None:
    used = UsedAgain()
    assert used.missed() == ["4", "5"]  # 2 and 3 were passed
    lost = Sent(PLAIN, Kind.SINGLE, TAGS, 4.0)
    used.history.sent[b"lost"] = lost
    give(used.history, b"lost", Place(B0, 4), at_s=5.5)  # it was on its way when the power went
    assert used.missed() == ["5"]  # nothing had stood there before


def test_a_group_that_had_not_read_what_a_power_cut_took_misses_nothing() -> None:
    used = UsedAgain()
    used.history.forgetful_cuts["b0"] = [Cut(5.0, {B0: 5}, {(WORKERS, B0): 2})]
    assert used.missed() == ["2", "3", "4", "5"]
    give(used.history, b"4", Place(B0, 4), at_s=8.0)  # a new one: that it was given excuses no other
    assert used.missed() == ["2", "3", "5"]


def test_stores_that_lack_repeat_or_invent_a_message_are_found() -> None:
    history = of({b"a": plain(), b"b": plain()}, (b"a", Place(B0, 0)), (b"b", Place(B0, 2)))
    records = [Record(Place(B0, offset), offset, 0, body, TAGS) for offset, body in ((0, b"a"), (0, b"a"), (3, b"x"))]
    assert unsafe_stores(history, [Left("b0", records, [(None, "b0: index: doubtful")], {}, {})]) == [
        "b0: index: doubtful",
        f"{Place(B0, 3)} holds 'x', which was never sent",
        f"{Place(B0, 0)} stands 2 times in the log",
        f"{B0} ends at 4 and lacks [1, 2]",
        f"'b' was acknowledged at {Place(B0, 2)}, 100 of the log; there is []",
    ]


def test_without_syncs_only_the_end_of_the_log_may_be_lost() -> None:
    bodies = (b"a", b"b", b"c")
    history = of({body: plain() for body in bodies}, *((body, Place(B0, at)) for at, body in enumerate(bodies)))
    history.forgetful_cuts["b0"].append(Cut(5.0))
    first, last = Record(Place(B0, 0), 0, 0, b"a", TAGS), Record(Place(B0, 2), 200, 0, b"c", TAGS)
    assert unsafe_stores(history, [Left("b0", [first], [], {}, {})]) == []
    assert "b0 lost 100 of its log in the cut at 5 s and kept 200" in unsafe_stores(
        history, [Left("b0", [first, last], [], {}, {})]
    )


def test_what_was_acknowledged_in_the_moment_of_a_power_cut_belongs_before_it() -> None:
    """Seed 13: the power went right after an acknowledgement, the place was used again, and another cut came later."""
    history = History(sent={b"lost": plain(), b"kept": plain()})
    history.acknowledge(b"lost", Place(B0, 0), 0, 5.0)
    history.acknowledge(b"kept", Place(B0, 0), 100, 6.0)
    history.forgetful_cuts["b0"] += [Cut(5.0), Cut(9.0)]
    assert unsafe_stores(history, [Left("b0", [Record(Place(B0, 0), 100, 0, b"kept", TAGS)], [], {}, {})]) == []
