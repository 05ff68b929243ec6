"""The lag on the page: offsets that nobody consumes from any more, messages that are pulled, and POP."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.pop_bench import PopBench
from contrailmq.broker.metrics.lag import Behind, LagSurvey
from contrailmq.broker.state.groups import Group
from contrailmq.broker.state.topics import Topic


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[PopBench]:
    made = PopBench(tmp_path)
    made.node.topics.put(Topic("T", read_queues=1, write_queues=1))
    made.node.groups.put(Group("g"))
    yield made
    made.close()


def survey_of(bench: PopBench) -> LagSurvey:
    survey = LagSurvey(bench.node, bench._worker)

    def popped(topic: str, group: str, queue_id: int) -> tuple[int, dict[int, object]] | None:
        queue = bench.pop.in_flight.queues.get((topic, group, queue_id))
        return None if queue is None else (queue.next_offset, dict(queue.waiting))

    survey.popped = popped
    return survey


def row(bench: PopBench, survey: LagSurvey) -> Behind:
    bench.run(survey.take(100))
    (found,) = [each for each in survey.rows if (each.group, each.topic, each.is_retry) == ("g", "T", False)]
    return found


def sent(bench: PopBench, count: int) -> None:
    for _ in range(count):
        bench.send("T", queue_id=0)
        bench.clock.advance(1000)


def test_what_is_pulled_and_not_committed_is_in_flight_and_ages_are_those_of_the_oldest(bench: PopBench) -> None:
    sent(bench, 5)  # the first is 5 s old, the fourth 2 s
    bench.node.offsets.commit("g", "T", 0, 1)
    bench.node.offsets.note_pull("g", "T", 0, 3)
    found = row(bench, survey_of(bench))
    assert (found.lag, found.inflight, found.ready) == (4, 2, 2)
    assert (found.lag_ms, found.queueing_ms) == (4000, 2000)


def test_a_group_without_a_backlog_has_no_age(bench: PopBench) -> None:
    sent(bench, 2)
    bench.node.offsets.commit("g", "T", 0, 2)
    found = row(bench, survey_of(bench))
    assert (found.lag, found.inflight, found.ready, found.lag_ms, found.queueing_ms) == (0, 0, 0, 0, 0)


def test_a_deleted_group_is_not_shown(bench: PopBench) -> None:
    bench.node.offsets.commit("gone", "T", 0, 0)
    survey = survey_of(bench)
    bench.run(survey.take(100))
    assert survey.rows == []


def test_what_was_popped_counts_until_it_is_acknowledged(bench: PopBench) -> None:
    sent(bench, 5)
    messages = bench.popped(maxMsgNums=3)
    assert len(messages) == 3
    bench.passes(2000)  # the group's offset is committed behind them
    survey = survey_of(bench)
    found = row(bench, survey)
    assert (found.lag, found.inflight, found.ready) == (5, 3, 2)
    assert found.lag_ms == 7000
    bench.ack(messages[0])
    bench.ack(messages[1])
    found = row(bench, survey)
    assert (found.lag, found.inflight, found.ready) == (3, 1, 2)
    assert found.lag_ms == 5000
