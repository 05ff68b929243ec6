"""Lite topics under any order of sends, subscriptions, pops, acknowledgements, waits and kills, held against a model.

Whatever happens, an acknowledged message does not come again, none is lost, those of one lite topic come in their
order, and nothing leaves while the group has an earlier one that is neither acknowledged nor due again.
"""

from __future__ import annotations

import os
import tempfile
from collections import defaultdict
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.lite_bench import Given, LiteBench

NAMES = ("r1", "r2", "r3")
CLIENTS = ("c1", "c2")
INVISIBLE_MS = 2000
EXAMPLES = 200 if os.environ.get("CONTRAILMQ_LONG") else 10

names = st.sampled_from(NAMES)
clients = st.sampled_from(CLIENTS)


class LiteTopics(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self._directory = tempfile.TemporaryDirectory()
        self.bench = LiteBench(Path(self._directory.name))
        self.sent: dict[str, int] = defaultdict(int)  # how many; bodies are their numbers
        self.acked: dict[str, set[int]] = defaultdict(set)
        self.held: list[Given] = []  # whose time may not be over
        self.due: dict[tuple[str, int], int] = {}  # when a message is due again, by the steady clock
        self.has: dict[str, set[str]] = {client: set() for client in CLIENTS}

    def teardown(self) -> None:
        self._drain()
        self.bench.close()
        self._directory.cleanup()

    @property
    def now_ms(self) -> int:
        return self.bench.clock.monotonic_ms()

    @rule(name=names, count=st.integers(1, 4))
    def send(self, name: str, count: int) -> None:
        for _ in range(count):
            self.bench.put(name, str(self.sent[name]))
            self.sent[name] += 1

    @rule(client=clients, some=st.sets(names, min_size=1))
    def subscribe(self, client: str, some: set[str]) -> None:
        self.bench.subscribe(*some, client=client)
        self.has[client] |= some

    @rule(client=clients, some=st.sets(names))
    def say_all(self, client: str, some: set[str]) -> None:
        self.bench.control("COMPLETE_ADD", *some, client=client)
        self.has[client] = set(some)

    @rule(client=clients, name=names)
    def unsubscribe(self, client: str, name: str) -> None:
        self.bench.control("PARTIAL_REMOVE", name, client=client)
        self.has[client].discard(name)

    @rule(client=clients, count=st.integers(1, 5))
    def pop(self, client: str, count: int) -> None:
        found = self.bench.given(client, maxMsgNum=count, invisibleTime=INVISIBLE_MS)
        assert len(found) <= count
        self._check(client, found)

    def _check(self, client: str, found: list[Given]) -> None:
        last: dict[str, int] = {}
        for one in found:
            name, number = one.lite_topic, int(one.body)
            assert name in self.has[client], "not subscribed"
            assert number not in self.acked[name], "acknowledged"
            assert number > last.get(name, -1), "out of order"
            waiting = [
                earlier
                for earlier in range(number)
                if earlier not in self.acked[name]
                and (name, earlier) not in {(n.lite_topic, int(n.body)) for n in found}
            ]
            assert not waiting, f"{waiting} of {name} come before {number}"
            assert self.due.get((name, number), -1) < self.now_ms, "it is in flight"
            last[name] = number
        for one in found:
            self.due[one.lite_topic, int(one.body)] = self.now_ms + INVISIBLE_MS
        self.held += found

    @rule(client=clients, some=st.sets(st.integers(0, 7)), name=names)
    def work(self, client: str, some: set[int], name: str) -> None:
        """Send and take a few, finish some of them, and let the rest come due."""
        self.subscribe(client, {name})
        self.send(name, 3)
        found = self.bench.given(client, maxMsgNum=8, invisibleTime=INVISIBLE_MS)
        self._check(client, found)
        for number, one in enumerate(found):
            if number in some:
                self._acknowledge(one)
        self.wait(2100)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def acknowledge(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.held), "which")
        self._acknowledge(one)

    def _acknowledge(self, one: Given) -> None:
        self.bench.done(one)
        newest = [other for other in self.held if (other.lite_topic, other.body) == (one.lite_topic, one.body)][-1]
        self.held.remove(one)
        if newest is one:  # else it was by the handle of an earlier delivery, and may come again
            self.acked[one.lite_topic].add(int(one.body))

    @precondition(lambda self: self.held)
    @rule(data=st.data(), invisible_ms=st.sampled_from([0, 1000, 5000]))
    def change(self, data: st.DataObject, invisible_ms: int) -> None:
        one = data.draw(st.sampled_from(self.held), "which")
        if self.bench.later(one, invisible_ms).code == 0:
            self.due[one.lite_topic, int(one.body)] = self.now_ms + invisible_ms

    @rule(milliseconds=st.sampled_from([100, 1100, 2100, 6000]))
    def wait(self, milliseconds: int) -> None:
        self.bench.passes(milliseconds, step_ms=milliseconds)

    @rule()
    def kill(self) -> None:
        clock = self.bench.clock
        self.bench.kill()
        self.bench = LiteBench(Path(self._directory.name), clock=clock)
        for client, some in self.has.items():
            self.bench.control("COMPLETE_ADD", *some, client=client)

    @rule()
    def restart(self) -> None:
        clock = self.bench.clock
        self.bench.close()
        self.bench = LiteBench(Path(self._directory.name), clock=clock)
        for client, some in self.has.items():
            self.bench.control("COMPLETE_ADD", *some, client=client)

    @invariant()
    def counts_fit(self) -> None:
        assert self.bench.lite.registry.count == sum(len(some) for some in self.has.values())

    def _drain(self) -> None:
        """All that was sent comes, and is done."""
        self.subscribe("c1", set(NAMES))
        for _ in range(200):
            if all(len(self.acked[name]) == self.sent[name] for name in NAMES):
                return
            self.bench.passes(6000, step_ms=3000)
            self.held.clear()
            found = self.bench.given("c1", invisibleTime=INVISIBLE_MS)
            self._check("c1", found)
            for one in found:
                self._acknowledge(one)
        raise AssertionError(f"lost: {dict(self.sent)}, acknowledged {dict(self.acked)}")


LiteTopics.TestCase.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestLiteTopics = LiteTopics.TestCase
