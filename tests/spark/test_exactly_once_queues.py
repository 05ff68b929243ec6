"""Exactly-once delivery to a topic whose queues change meanwhile: no row ends where nobody sees it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from contrailmq import Admin
from contrailmq.spark.sinks.decisions import Decisions, stream_batch
from contrailmq.spark.sinks.exactly_once import Committer, TaskHalves
from contrailmq.spark.sinks.halves import decode_places
from contrailmq.spark.sinks.sending import SinkSettings
from contrailmq.spark.sinks.settling import QueuesGoneError
from contrailmq.testing import LocalCluster
from spark.test_exactly_once import CHECKS, TASKS, _no_sleep, expected, settings_for, task, visible

BATCH = stream_batch("q", 0)


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(config=CHECKS) as running:
        yield running


@pytest.fixture
def admin(cluster: LocalCluster) -> Iterator[Admin]:
    with Admin(namesrv=cluster.namesrv) as opened:
        yield opened


def sent(settings: SinkSettings) -> list[TaskHalves]:
    return [task(settings, 0, number) for number in range(TASKS)]


@pytest.mark.parametrize("change", ["deleted", "made again with one queue", "shrunk to one queue"])
def test_a_batch_to_queues_that_are_gone_is_not_committed_and_its_repeat_goes_to_those_there(
    cluster: LocalCluster, admin: Admin, tmp_path: Path, change: str
) -> None:
    topic = "Gone" + change.split()[0]
    admin.create_topic(topic, queues=2)
    settings = settings_for(cluster, tmp_path / "sink", topic, batch_count=2)  # every task uses every queue
    committer, halves = Committer(settings, sleep=_no_sleep), sent(settings)
    if change != "shrunk to one queue":
        admin.delete_topic(topic)
    if change != "deleted":
        admin.create_topic(topic, queues=1)
    with pytest.raises(QueuesGoneError, match=rf"of {topic} on broker-0 is gone .* start again"):
        committer.commit(BATCH, halves)
    committer.abort(BATCH, halves)
    assert Decisions(tmp_path / "sink").unfinished() == []
    admin.create_topic(topic, queues=1)
    Committer(settings, sleep=_no_sleep).commit(BATCH, sent(settings))
    assert visible(cluster.namesrv, topic) == expected(1)


def test_a_committed_batch_waits_for_the_queues_that_it_was_sent_to(
    cluster: LocalCluster, admin: Admin, tmp_path: Path
) -> None:
    """The driver was killed after its decision, and meanwhile the topic was deleted."""
    admin.create_topic("Waiting", queues=2)
    settings = settings_for(cluster, tmp_path / "sink", "Waiting", batch_count=2)
    committer, halves = Committer(settings, sleep=_no_sleep), sent(settings)
    with committer._settler() as settler:
        places = [place for task in halves for place in decode_places(task.places)[0]]
        committer._decisions.decide(BATCH, places, settler.ends(places))
    admin.delete_topic("Waiting")
    with pytest.raises(QueuesGoneError, match=r"12 rows of stream-q-0+ are committed: create the topic again"):
        committer.recover()
    admin.create_topic("Waiting", queues=2)
    committer.recover()
    assert visible(cluster.namesrv, "Waiting") == expected(1)
    assert Decisions(tmp_path / "sink").unfinished() == []
