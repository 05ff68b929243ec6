"""Three releases of Apache's Java client (remoting) on our broker: what was sent is what arrived, where, how often.

One JVM of each release runs every case at once; the tests read the facts that it printed.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import apache
import pytest
from apache import facts

from contrailmq import Admin
from contrailmq.testing import LocalCluster

SOURCE = Path(__file__).parent / "java_versions" / "Cases.java"
VERSIONS = ("4.9.7", "5.3.3", "5.5.0")
PROGRAM = "Java client (remoting)"
TOPICS = ("Kinds", "Batch", "Ordered", "Retry", "Delayed", "Decided", "Pop")
# The mode POP is for clients that leave the assignment of queues to the broker; the others do not ask.
SETTINGS = {
    "transactionTimeOut": "2000", "transactionCheckInterval": "1000", "messageDelayLevel": "1s 1s 1s 1s",
    "defaultMessageRequestMode": "POP",
}  # fmt: skip
RUN_S = 600

Fact = list[str]


class Told:
    """What the program of one version printed."""

    def __init__(self, version: str, output: str) -> None:
        self.version, self._output = version, output

    def all(self, kind: str, case: str | None = None) -> list[Fact]:
        found = facts(self._output, kind)
        return found if case is None else [fact[1:] for fact in found if fact[0] == case]

    def got(self, case: str) -> list[Fact]:
        """(queue, offset, failures, tags, body) of a consumer that got all it waited for."""
        if [case] in self.all("absent"):
            pytest.skip(f"Apache's Java client {self.version} cannot do this: it has no POP")
        assert self.all("done", case) == [["true"]], (case, self.all("got", case))
        return self.all("got", case)

    def bodies(self, case: str) -> list[str]:
        return sorted(fact[4] for fact in self.got(case))


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(config=SETTINGS) as running:
        yield running


@pytest.fixture(
    scope="module",
    params=[pytest.param(version, marks=pytest.mark.program(PROGRAM, version), id=version) for version in VERSIONS],
)
def told(request: pytest.FixtureRequest, cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Told:
    version: str = request.param
    try:
        jars = apache.fetch_jars(f"rocketmq-client-{version}", [("rocketmq-client", version)])
    except apache.Missing as missing:
        pytest.skip(str(missing))
    classes = apache.KEPT / f"cases-{version}-{hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:12]}"
    if not (classes / "Cases.class").exists():
        subprocess.run(["javac", "-nowarn", "-cp", f"{jars}/*", "-d", str(classes), str(SOURCE)], check=True)
    prefix = "Java" + version.replace(".", "") + "_"
    with Admin(namesrv=cluster.namesrv) as admin:
        for topic in TOPICS:
            admin.create_topic(prefix + topic, queues=4)
    home = tmp_path_factory.mktemp("java")
    options = ["-Xmx256m", "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", f"-Duser.home={home}"]
    command = ["java", *options, "-cp", f"{jars}/*:{classes}", "Cases", cluster.namesrv, prefix]
    done = subprocess.run(command, capture_output=True, text=True, timeout=RUN_S)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return Told(version, done.stdout)


def _where(told: Told, case: str) -> dict[str, tuple[str, str]]:
    """Body -> (queue, offset), as the producer was answered."""
    answers = told.all("sent", case)
    assert {fact[0] for fact in answers} == {"SEND_OK"}
    return {fact[3]: (fact[1], fact[2]) for fact in answers}


def test_sync_async_oneway_and_chosen_queues_arrive_once_and_where_the_answer_said(told: Told) -> None:
    where = _where(told, "kinds")
    got = told.got("kinds")
    sent = [f"{kind}-{i}" for kind, n in (("sync", 10), ("async", 10), ("oneway", 5), ("queue", 4)) for i in range(n)]
    assert sorted(fact[4] for fact in got) == sorted(sent)
    assert {fact[4]: (fact[0], fact[1]) for fact in got if not fact[4].startswith("oneway")} == where
    assert {where[f"queue-{i}"][0] for i in range(4)} == {"0", "1", "2", "3"}
    assert {fact[2] for fact in got} == {"0"}


def test_a_tag_selects(told: Told) -> None:
    assert told.bodies("tag") == sorted(f"{kind}-{i}" for kind in ("sync", "async") for i in (1, 3, 5, 7, 9))


def test_sql_selects_by_property_and_tag(told: Told) -> None:
    assert told.bodies("sql") == sorted(
        [*(f"{kind}-{i}" for kind in ("sync", "async") for i in (3, 4, 5, 6)), "queue-3"]
    )


def test_a_batch_arrives_message_by_message_by_push_and_by_lite_pull(told: Told) -> None:
    bodies = [f"batch-{i}" for i in range(6)]
    assert told.bodies("batch") == bodies
    assert told.bodies("lite") == bodies


def test_an_orderly_consumer_sees_each_queue_in_the_order_of_the_sends(told: Told) -> None:
    got = told.got("ordered")
    assert {fact[4]: (fact[0], fact[1]) for fact in got} == _where(told, "ordered")
    for queue in ("0", "1"):
        assert [fact[4] for fact in got if fact[0] == queue] == [f"order-{i}" for i in range(int(queue), 40, 2)]


def test_a_failed_message_comes_again_once_with_its_count(told: Told) -> None:
    counts = Counter((fact[4], fact[2]) for fact in told.got("retry"))
    assert counts == {(f"retry-{i}", failures): 1 for i in range(3) for failures in ("0", "1")}


def test_delayed_messages_arrive_once(told: Told) -> None:
    timers = [] if ["timer"] in told.all("absent") else ["timer-1"]
    assert told.bodies("delayed") == ["level-1", *timers]


def test_transactions_are_visible_as_decided_or_as_the_check_said(told: Told) -> None:
    assert told.all("asked") == [["true"]]
    assert told.bodies("decided") == ["later-commit", "now-commit"]
    assert {"later-commit", "later-undo"} <= {fact[0] for fact in told.all("checked")}


def test_pop_mode_with_the_clients_rebalance_off_brings_each_message_once(told: Told) -> None:
    assert {fact[4]: (fact[0], fact[1]) for fact in told.got("pop")} == _where(told, "pop")
    assert len(told.got("pop")) == 20


def test_a_message_that_fails_in_pop_mode_comes_again_once(told: Told) -> None:
    counts = Counter(fact[4] for fact in told.got("retry-pop"))
    assert counts == {f"pop-{i}": 2 for i in range(20)}
