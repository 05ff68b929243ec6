"""Exactly-once delivery: a batch's rows are half messages until all of it commits. No pyspark here.

1. Tasks send half messages and return their places. A task that fails rolls its own back; one that is killed cannot.
2. The driver's `commit` notes where the queues end and all places in one durable file: the decision (decisions.py).
3. Only then it sends the ends, all confirmed, and notes that the batch is done (settling.py).
A kill before 2 leaves half messages of no batch: Spark repeats it, and the new decision does not name them. A kill
after 2 leaves a decision: the next writer made on the driver (a restart makes one first) carries it out, looking up
what is visible already, and then tasks of that batch send nothing. So does a batch that Spark repeats though it is
done. What nobody ends a broker asks about, with the mark that every half message carries (answering.py): rolled back if
its batch was decided without it, or is past; carried out if it is in a decision; else unknown, and asked again.
Limit: a broker gives a half message up after transactionTimeoutMs + transactionCheckMax x transactionCheckInterval.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa

from contrailmq.client.blocking.raw_halves import HalfPlace
from contrailmq.spark.sinks.decisions import Decision, Decisions
from contrailmq.spark.sinks.halves import HalfCarrier, decode_places, encode_places, keys_of, marks_of
from contrailmq.spark.sinks.sending import ExactlyOnce, Sender, SinkSettings, send_rows
from contrailmq.spark.sinks.settling import Settler


@dataclass(frozen=True, slots=True)
class TaskHalves:
    """What one task sent: places as bytes, for they travel to the driver."""

    batch: str
    rows: int
    places: bytes
    abandoned: bytes


def write_halves(
    rows: Iterator[pa.RecordBatch], settings: SinkSettings, key_prefix: str, batch: str, *, is_done: bool
) -> TaskHalves:
    """Send every row as a half message; nothing if its batch is visible already."""
    assert settings.exactly_once is not None
    if is_done:
        return TaskHalves(batch, sum(part.num_rows for part in rows), encode_places([]), encode_places([]))
    marks = marks_of(settings.exactly_once, batch, group=settings.group)
    with settings.access.open(settings.namesrv, settings.group, settings.timeout_s) as client:
        carrier = HalfCarrier(client, settings.group)
        try:
            count = send_rows(rows, Sender(carrier, settings), replace(settings, marks=marks), key_prefix)
        except BaseException:  # a task that Spark stops, too, leaves no half messages that it knows of
            carrier.roll_back()
            raise
    return TaskHalves(batch, count, encode_places(carrier.places), encode_places(carrier.abandoned))


class Committer:
    """The driver's part, for one query or job. Every method may run in a process of its own."""

    def __init__(self, settings: SinkSettings, *, sleep: Callable[[float], None] = time.sleep) -> None:
        assert settings.exactly_once is not None
        self._settings, self._sleep = settings, sleep
        self._decisions = decisions_of(settings.exactly_once)

    def recover(self) -> None:
        """Carry out what an earlier driver decided and did not finish."""
        if self._decisions.unfinished():
            with self._decisions.lock(), self._settler() as settler:
                for batch in self._decisions.unfinished():
                    decision = self._decisions.find(batch)
                    if decision is not None:
                        self._carry_out(settler, decision, is_new=False)

    def commit(self, batch: str, tasks: Sequence[TaskHalves]) -> None:
        """Make a batch visible. What its tasks sent and no decision names is rolled back."""
        sent, abandoned = _sent(tasks)
        if not sent and not abandoned:
            return
        with self._decisions.lock(), self._settler() as settler:
            if self._decisions.is_past(batch):
                settler.roll_back([*sent, *abandoned])
                return
            decision = self._decisions.find(batch)
            is_new = decision is None
            if decision is None:
                decision = self._decisions.decide(batch, sent, settler.ends(sent))
            self._carry_out(settler, decision, is_new=is_new)
            if is_new and decision.places == sent:
                settler.roll_back(abandoned)
            else:  # of an earlier driver, or one that was faster
                winners = set(keys_of(decision.places))
                settler.roll_back([place for place in (*sent, *abandoned) if place.unique_key not in winners])

    def abort(self, batch: str, tasks: Sequence[TaskHalves]) -> None:
        """Roll back what tasks sent, unless the batch was decided: then a restart carries it out."""
        sent, abandoned = _sent(tasks)
        if not sent and not abandoned:
            return
        with self._decisions.lock(), self._settler() as settler:
            if self._decisions.find(batch) is None:
                settler.roll_back([*sent, *abandoned])

    def _carry_out(self, settler: Settler, decision: Decision, *, is_new: bool) -> None:
        settler.carry_out(decision, is_new=is_new)
        self._decisions.mark_done(decision.batch)

    @contextlib.contextmanager
    def _settler(self) -> Iterator[Settler]:
        settings = self._settings
        with settings.access.open(settings.namesrv, settings.group, settings.timeout_s) as client:
            yield Settler(client, settings.group, away_timeout_s=settings.away_timeout_s, sleep=self._sleep)


def decisions_of(settings: ExactlyOnce) -> Decisions:
    from pathlib import Path

    return Decisions(Path(settings.folder))


def _sent(tasks: Sequence[TaskHalves]) -> tuple[list[HalfPlace], list[HalfPlace]]:
    sent = [place for task in tasks for place in decode_places(task.places)[0]]
    return sent, [place for task in tasks for place in decode_places(task.abandoned)[0]]
