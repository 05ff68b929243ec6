"""All kinds of traffic at once over kills of a broker process, in each flush mode: kill_trial.py has the rules.

Three kills for each mode; a hundred under CONTRAILMQ_LONG=1.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest

from broker.kill_load import WALK, by_pull, by_request, walk_queue
from broker.kill_trial import MODES, SEED, run_all
from broker.kill_verdict import Verdict, table
from contrailmq import Message
from contrailmq.client.blocking.raw import QueueReader
from contrailmq.client.blocking.raw_connection import RawConnection
from contrailmq.testing import LocalCluster

KILLS = 100 if os.environ.get("CONTRAILMQ_LONG") else 3


@pytest.fixture(scope="module")
def verdicts() -> dict[str, Verdict]:
    """All modes at once where most of the time is waiting, two where it is work."""
    found = run_all(list(MODES), KILLS, seed=SEED, at_once=len(MODES) if KILLS < 10 else 2)
    return {verdict.mode: verdict for verdict in found}


@pytest.mark.parametrize("mode", MODES)
def test_kills_make_nothing_unreachable_and_repeat_only_what_is_young(mode: str, verdicts: dict[str, Verdict]) -> None:
    verdict = verdicts[mode]
    print(f"\n{table([verdict])}")
    assert len(verdict.kills) == KILLS
    assert verdict.looked_at > 0
    assert verdict.broken == []


@pytest.mark.parametrize("mode", ["async", "pool-sync"])
def test_a_broker_that_gets_no_processor_after_its_answer_and_is_killed_keeps_the_commit(
    mode: str, tmp_path: Path
) -> None:
    """A trial lost a commit of 461 ms that way: SIGSTOP here is the busy machine there."""
    with LocalCluster(store=tmp_path, processes=True, config=MODES[mode]) as cluster:
        queue = walk_queue(0)
        with QueueReader(cluster.broker_addresses[0]) as reader:
            reader.send_batch([Message(WALK, b"step")] * 100, queue)
        with contextlib.closing(RawConnection(cluster.broker_addresses[0])) as connection:
            by_pull(connection, queue, 0, group="by_request")  # makes the group
            for offset in range(1, 100):
                assert by_request(connection, queue, offset).code == 0
            os.kill(cluster.broker_process_id(), signal.SIGSTOP)
        cluster.kill_broker()
        cluster.restart_broker()
        with QueueReader(cluster.broker_addresses[0]) as reader:
            assert reader.consumer_offset(queue, "by_request") == 99
