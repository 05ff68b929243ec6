"""The sink of `rocketmq` with `delivery=exactly-once`, as Spark calls it; exactly_once.py says how it works.

Spark makes a writer on the driver before the first task of a query or job, and again for every commit of a stream: each
time, what an earlier driver decided is carried out first, and somebody is made to answer check-backs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pyarrow as pa
from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from contrailmq.spark.runtime.task_process import freeze
from contrailmq.spark.sinks.answering import start_answering
from contrailmq.spark.sinks.decisions import stream_batch
from contrailmq.spark.sinks.exactly_once import Committer, TaskHalves, decisions_of, write_halves
from contrailmq.spark.sinks.sending import SinkSettings
from contrailmq.spark.sinks.sink import dropped, key_prefix


class HalvesSent(WriterCommitMessage):  # type: ignore[misc]
    """What one task sent."""

    def __init__(self, halves: TaskHalves) -> None:
        self.halves = halves


def prepared(settings: SinkSettings) -> SinkSettings:
    """On the driver: finish what was decided, and tell tasks which batches are visible already."""
    given = settings.exactly_once
    assert given is not None
    Committer(settings).recover()
    start_answering(settings)
    decisions = decisions_of(given)
    return replace(
        settings,
        exactly_once=replace(
            given,
            done=tuple(decisions.newest_done().items()),
            is_write_done=decisions.is_done(given.write_name),
        ),
    )


class ExactlyOnceWriter(DataSourceArrowWriter):  # type: ignore[misc]
    """Batch writes."""

    def __init__(self, settings: SinkSettings, blank: tuple[str, ...] = ()) -> None:
        self._settings, self._blank = prepared(settings), blank

    def write(self, iterator: Iterator[pa.RecordBatch]) -> HalvesSent:
        given = self._settings.exactly_once
        assert given is not None
        return _write(
            dropped(iterator, self._blank), self._settings, batch=given.write_name, is_done=given.is_write_done
        )

    def commit(self, messages: list[HalvesSent | None]) -> None:
        assert self._settings.exactly_once is not None
        Committer(self._settings).commit(self._settings.exactly_once.write_name, _halves(messages))

    def abort(self, messages: list[HalvesSent | None]) -> None:
        assert self._settings.exactly_once is not None
        Committer(self._settings).abort(self._settings.exactly_once.write_name, _halves(messages))


class ExactlyOnceStreamWriter(DataSourceStreamArrowWriter):  # type: ignore[misc]
    """Micro-batch writes."""

    def __init__(self, settings: SinkSettings, blank: tuple[str, ...] = ()) -> None:
        self._settings, self._blank = prepared(settings), blank

    def write(self, iterator: Iterator[pa.RecordBatch]) -> HalvesSent:
        context, given = TaskContext.get(), self._settings.exactly_once
        assert context is not None
        assert given is not None
        query_id = context.getLocalProperty("sql.streaming.queryId") or ""
        number = int(context.getLocalProperty("streaming.sql.batchId") or -1)
        return _write(
            dropped(iterator, self._blank),
            self._settings,
            batch=stream_batch(query_id, number),
            is_done=number <= dict(given.done).get(query_id, -1),
        )

    def commit(self, messages: list[HalvesSent | None], batchId: int) -> None:
        halves = _halves(messages)
        if halves:
            Committer(self._settings).commit(halves[0].batch, halves)

    def abort(self, messages: list[HalvesSent | None], batchId: int) -> None:
        halves = _halves(messages)
        if halves:
            Committer(self._settings).abort(halves[0].batch, halves)


def _write(rows: Iterator[pa.RecordBatch], settings: SinkSettings, *, batch: str, is_done: bool) -> HalvesSent:
    done = HalvesSent(write_halves(rows, settings, key_prefix(settings), batch, is_done=is_done))
    freeze()
    return done


def _halves(messages: Sequence[HalvesSent | None]) -> list[TaskHalves]:
    """Of the tasks that ended well: Spark gives nothing for the others."""
    return [message.halves for message in messages if message is not None]
