"""How far a stream is behind, from what Spark tells of each micro-batch, and its export for Prometheus.

Spark has no way for a Python source to add metrics of its own to `query.lastProgress` (4.3: `metrics` of a source stays
empty), nor to say what it is (`description` is a class name). But the offsets in it are ours. The end of a batch and
the latest offset give the distance, and the mark beside each offset (sources/topic_marks.py) tells when the last
message that was read was stored. So nothing is asked of brokers here. What tasks alone know (bytes) is told by
`observed`, which Spark's own `observe` carries to `observedMetrics`.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from pyspark.sql.streaming import StreamingQueryListener
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
)

from contrailmq.spark.columns import TASK_COLUMNS, OptionError
from contrailmq.spark.prometheus import prometheus_text, replace_text
from contrailmq.spark.runtime.listening import add_listener

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

OBSERVED: Final = "contrailmq"
_OBSERVED_METRICS: Final = {
    "bytes": ("contrailmq_spark_input_bytes_total", 1.0),
    "readMicros": ("contrailmq_spark_read_seconds_total", 1e-6),
    "readRetries": ("contrailmq_spark_read_retries_total", 1.0),
    "taskRetries": ("contrailmq_spark_task_retries_total", 1.0),
}
_CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
# name -> (type, meaning)
METRICS: Final = {
    "contrailmq_spark_query_active": ("gauge", "1 while the query runs, 0 after it ended"),
    "contrailmq_spark_query_failures_total": ("counter", "how often the query ended with an error"),
    "contrailmq_spark_batch": ("gauge", "the number of the last micro-batch"),
    "contrailmq_spark_batch_seconds": ("gauge", "how long the last micro-batch took, by phase"),
    "contrailmq_spark_input_rows_total": ("counter", "rows read since the query or this exporter began"),
    "contrailmq_spark_output_rows_total": ("counter", "rows written, where the sink counts them"),
    "contrailmq_spark_input_bytes_total": ("counter", "bytes of bodies, of frames made by observed()"),
    "contrailmq_spark_read_seconds_total": ("counter", "time of tasks in reads, of frames with taskMetrics"),
    "contrailmq_spark_read_retries_total": ("counter", "how often brokers were asked again, of such frames"),
    "contrailmq_spark_task_retries_total": ("counter", "how often Spark repeated tasks that read, of such frames"),
    "contrailmq_spark_offsets_behind": ("gauge", "messages of a topic that are not read yet"),
    "contrailmq_spark_bytes_behind": ("gauge", "bytes of a store's log that are not read yet"),
    "contrailmq_spark_lag_seconds": ("gauge", "since the last message was stored that was read, 0 if none is waiting"),
}


class SourceProgress(NamedTuple):
    """What one source of a query has read, by topic or by store directory."""

    description: str  # such as "rocketmq: Orders (4 queues), 120 messages and 3.5 s behind"
    messages_behind: dict[str, int]
    bytes_behind: dict[str, int]
    lag_s: dict[str, float]


def source_progress(source: Mapping[str, Any], *, now_ms: int | None = None) -> SourceProgress | None:
    """From one of `lastProgress["sources"]`; None if it is not a source of ours, or has read nothing yet."""
    end, latest = _tree(source["endOffset"]), _tree(source["latestOffset"])
    if end is None:
        return None
    now_ms = time.time_ns() // 1_000_000 if now_ms is None else now_ms
    reached, known = end["offsets"], (latest or end)["offsets"]
    if all(isinstance(place, int) for place in reached.values()):
        behind = {store: max(0, known.get(store, place) - place) for store, place in reached.items()}
        text = f"commitlog: {', '.join(reached)}, {sum(behind.values())} bytes behind"
        return SourceProgress(text, {}, behind, {})
    messages: dict[str, int] = {}
    lag_s: dict[str, float] = {}
    count = 0
    for topic, broker, queue, offset in _queues(known):
        count += 1
        read = reached.get(topic, {}).get(broker, {}).get(queue, 0)
        messages[topic] = messages.get(topic, 0) + max(0, offset - read)
        lag_s.setdefault(topic, 0.0)
        mark = end.get("marks", {}).get(topic, {}).get(broker, {}).get(queue)
        if offset > read and mark is not None:
            stored_ms = int(mark.partition("-")[0])
            lag_s[topic] = max(lag_s[topic], (now_ms - stored_ms) / 1000)
    text = f"rocketmq: {', '.join(messages)} ({count} queues), {sum(messages.values())} messages"
    return SourceProgress(f"{text} and {max(lag_s.values(), default=0.0):.1f} s behind", messages, {}, lag_s)


def describe(progress: Any) -> str:
    """One line of a query's `lastProgress`: what it reads, how fast, and how far it is behind."""
    tree = json.loads(progress.json) if hasattr(progress, "json") else progress
    found = [source_progress(source) for source in tree["sources"]]
    sources = "; ".join(one.description for one in found if one is not None) or "no source of ours"
    seconds = tree["durationMs"].get("triggerExecution", 0) / 1000
    told, read = _observed(tree), ""
    if "readMicros" in told:
        read = f" ({told.get('bytes', 0) / 1e6:.1f} MB, reads {told['readMicros'] / 1e6:.1f} s, "
        read += f"{told['readRetries']:.0f} asked again, {told['taskRetries']:.0f} tasks repeated)"
    return f"batch {tree['batchId']}: {tree['numInputRows']} rows in {seconds:.1f} s{read}; {sources}"


def observed(frame: DataFrame) -> DataFrame:
    """The same frame; every batch tells its rows and bytes of bodies as `observedMetrics["contrailmq"]`.

    Of a source with taskMetrics also how long reads took and what was tried again; the columns of that are gone then.
    """
    from pyspark.sql import functions

    if "body" not in frame.columns:
        raise OptionError("the frame has no column body to measure: call observed before you drop it")
    figures = {"bytes": functions.octet_length("body"), **{name: functions.col(name) for name in TASK_COLUMNS}}
    sums = [
        functions.coalesce(functions.sum(value), functions.lit(0)).alias(name)
        for name, value in figures.items()
        if name == "bytes" or name in frame.columns
    ]
    told = frame.observe(OBSERVED, functions.count(functions.lit(1)).alias("rows"), *sums)
    return told.drop(*TASK_COLUMNS)


class ProgressExporter(StreamingQueryListener):  # type: ignore[misc]
    """Keeps the figures of a session's queries, and gives them to a file, to HTTP, or to who asks (`text`)."""

    def __init__(self, path: str | Path | None = None, *, now_ms: Callable[[], int] | None = None) -> None:
        super().__init__()
        self._path = None if path is None else Path(path)
        self._now_ms = now_ms or (lambda: time.time_ns() // 1_000_000)
        self._values: dict[str, dict[tuple[tuple[str, str], ...], float]] = {name: {} for name in METRICS}
        self._names: dict[str, str] = {}  # query id -> its name
        self._lock = threading.Lock()
        self._server: ThreadingHTTPServer | None = None

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        self._names[str(event.id)] = event.name or str(event.id)
        self._change([("contrailmq_spark_query_active", {"query": self._names[str(event.id)]}, 1.0)])

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        self.note(json.loads(event.progress.json))

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        return None

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        labels = {"query": self._names.get(str(event.id), str(event.id))}
        self._change([("contrailmq_spark_query_active", labels, 0.0)])
        if event.exception is not None:
            self._change([("contrailmq_spark_query_failures_total", labels, 1.0)])

    def note(self, progress: Mapping[str, Any]) -> None:
        """Take in one progress, as JSON gives it."""
        self._change(_figures(progress, self._now_ms()))

    def text(self) -> str:
        """Everything, in Prometheus' text format."""
        with self._lock:
            return prometheus_text(METRICS, self._values)

    def serve(self, port: int, host: str = "127.0.0.1") -> int:
        """Answer HTTP requests for /metrics from now on; gives the port."""
        exporter = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                data = exporter.text().encode() if self.path.partition("?")[0] == "/metrics" else None
                self.send_response(404 if data is None else 200)
                self.send_header("Content-Type", _CONTENT_TYPE)
                self.end_headers()
                self.wfile.write(data or b"/metrics\n")

            def log_message(self, *_: object) -> None:
                """Nobody wants to know."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        threading.Thread(target=self._server.serve_forever, name="spark-metrics", daemon=True).start()
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop answering."""
        if self._server is not None:
            self._server.shutdown()
            self._server.server_close()

    def _change(self, figures: list[tuple[str, dict[str, str], float]]) -> None:
        with self._lock:
            for name, labels, value in figures:
                values, key = self._values[name], tuple(labels.items())
                values[key] = values.get(key, 0.0) + value if METRICS[name][0] == "counter" else value
        if self._path is not None:
            replace_text(self._path, self.text())


def export_metrics(
    spark: SparkSession, *, path: str | Path | None = None, port: int | None = None, host: str = "127.0.0.1"
) -> ProgressExporter:
    """Export the progress of this session's queries for Prometheus: to a file that is replaced with every batch (for a
    node exporter), as http://host:port/metrics, or both."""
    exporter = ProgressExporter(path)
    if port is not None:
        exporter.serve(port, host)
    add_listener(spark, exporter)
    return exporter


def _figures(progress: Mapping[str, Any], now_ms: int) -> list[tuple[str, dict[str, str], float]]:
    query = {"query": progress.get("name") or progress["id"]}
    figures: list[tuple[str, dict[str, str], float]] = [
        ("contrailmq_spark_query_active", query, 1.0),
        ("contrailmq_spark_batch", query, float(progress["batchId"])),
        ("contrailmq_spark_input_rows_total", query, float(progress["numInputRows"])),
    ]
    for phase, milliseconds in progress["durationMs"].items():
        figures.append(("contrailmq_spark_batch_seconds", {**query, "phase": phase}, milliseconds / 1000))
    written = progress.get("sink", {}).get("numOutputRows", -1)
    if written >= 0:
        figures.append(("contrailmq_spark_output_rows_total", query, float(written)))
    told = _observed(progress)
    figures += ((name, query, told[key] * unit) for key, (name, unit) in _OBSERVED_METRICS.items() if key in told)
    for source in progress["sources"]:
        found = source_progress(source, now_ms=now_ms)
        if found is None:
            continue
        for name, label, values in (
            ("contrailmq_spark_offsets_behind", "topic", found.messages_behind),
            ("contrailmq_spark_bytes_behind", "store", found.bytes_behind),
            ("contrailmq_spark_lag_seconds", "topic", found.lag_s),
        ):
            figures += ((name, {**query, label: key}, float(value)) for key, value in values.items())
    return figures


def _observed(progress: Mapping[str, Any]) -> dict[str, float]:
    """What `observed` counted in a batch."""
    told = progress.get("observedMetrics", {}).get(OBSERVED, {})
    return {name: float(value) for name, value in told.items() if value is not None}


def _tree(offset: Any) -> dict[str, Any] | None:
    """An offset as our sources write it; None for another's, or none."""
    tree = json.loads(offset) if isinstance(offset, str) else offset
    if isinstance(tree, dict) and isinstance(tree.get("stores"), dict):
        return {**tree, "offsets": tree["stores"]}
    return tree if isinstance(tree, dict) and isinstance(tree.get("offsets"), dict) else None


def _queues(tree: Mapping[str, Any]) -> Iterator[tuple[str, str, str, int]]:
    for topic, brokers in tree.items():
        for broker, queues in brokers.items():
            for queue, offset in queues.items():
                yield topic, broker, queue, offset
