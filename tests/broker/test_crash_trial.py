"""All kinds of traffic at once over many kills: 5 rounds for each flush mode, 50 under CONTRAILMQ_LONG=1."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.crash_trial import AT_A_PLACE, KINDS, Stored, Trial

ROUNDS = 50 if os.environ.get("CONTRAILMQ_LONG") else 5
REPEATED_MS = 200  # docs/store.md: how old a delivery may be that a kill repeats


class Outcome:
    def __init__(self, trial: Trial, stored: dict[str, list[Stored]]) -> None:
        self.trial, self.stored = trial, stored

    def missing(self, kind: str) -> list[str]:
        return [value for value in self.trial.acknowledged[kind] if value not in self.stored]


@pytest.fixture(scope="module", params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def outcome(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcome]:
    trial = Trial(Path(tmp_path_factory.mktemp("trial")), flush=request.param, seed=20261117)
    with trial.cluster:
        trial.run(ROUNDS)
        yield Outcome(trial, trial.found)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in ("rollback", "retry")])
def test_every_acknowledged_message_is_reachable_after_the_kills(outcome: Outcome, kind: str) -> None:
    assert len(outcome.trial.acknowledged[kind]) > ROUNDS
    assert outcome.missing(kind) == []


@pytest.mark.parametrize("kind", AT_A_PLACE)
def test_a_message_lies_once_and_where_its_acknowledgement_said(outcome: Outcome, kind: str) -> None:
    told = outcome.trial.acknowledged[kind]
    elsewhere = {
        value: outcome.stored[value]
        for value in told
        if [copy.place for copy in outcome.stored[value]] != [told[value]]
    }
    assert elsewhere == {}


def test_nothing_is_there_that_nobody_sent_and_nothing_that_was_rolled_back(outcome: Outcome) -> None:
    assert outcome.stored.keys() <= outcome.trial.tried
    assert [value for value in outcome.stored if value.startswith("rollback/")] == []


def test_every_message_that_a_consumer_refused_comes_back(outcome: Outcome) -> None:
    assert len(outcome.trial.acknowledged["retry"]) > ROUNDS
    assert outcome.trial.acknowledged["retry"].keys() - outcome.trial.consumed == set()


@pytest.mark.parametrize("kind", ["level", "timer", "transaction"])
def test_a_kill_repeats_only_what_was_delivered_just_before_it(outcome: Outcome, kind: str) -> None:
    """Of two copies the earlier one was stored within REPEATED_MS before one of the kills."""
    kills = outcome.trial.kill_times_ms
    repeated = {
        value: [copy.store_time_ms for copy in copies]
        for value, copies in outcome.stored.items()
        if value.startswith(f"{kind}/") and len(copies) > 1
    }
    early = {
        value: times
        for value, times in repeated.items()
        if not all(any(0 <= kill - time <= REPEATED_MS for kill in kills) for time in sorted(times)[:-1])
    }
    assert early == {}
