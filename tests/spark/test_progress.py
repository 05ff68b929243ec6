"""What a stream tells of itself: how far it is behind, as text and for Prometheus; and that a session is quiet."""

from __future__ import annotations

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import contrailmq
import contrailmq.spark
from contrailmq import Message, Producer
from contrailmq.spark.columns import OptionError
from contrailmq.spark.progress import ProgressExporter, describe, source_progress
from contrailmq.testing import LocalCluster

NOW_MS = 1_795_005_600_000


def progress(**changed: Any) -> dict[str, Any]:
    """As Spark gives it, for one topic of two queues: 3 and 0 messages are left, the last one read is 5.2 s old."""
    source = {
        "description": "org.apache.spark.sql.execution.datasources.v2.python.PythonMicroBatchStream@604c3081",
        "startOffset": None,
        "endOffset": {
            "offsets": {"In": {"broker-0": {"0": 125, "1": 7}}},
            "version": 1,
            "marks": {"In": {"broker-0": {"0": f"{NOW_MS - 5200}-1-0a2b2f07", "1": f"{NOW_MS - 90_000}-1-0a2b2f07"}}},
        },
        "latestOffset": {"offsets": {"In": {"broker-0": {"0": 128, "1": 7}}}, "version": 1},
    }
    return {
        "id": "f3de065b",
        "name": 'orders "eu"',
        "batchId": 4,
        "numInputRows": 132,
        "durationMs": {"addBatch": 1500, "triggerExecution": 2000},
        "sources": [source],
        "sink": {"description": "x", "numOutputRows": 130},
    } | changed


def test_a_source_tells_messages_and_seconds_behind_by_topic() -> None:
    found = source_progress(progress()["sources"][0], now_ms=NOW_MS)
    assert found is not None
    assert found.messages_behind == {"In": 3}
    assert found.lag_s == {"In": 5.2}  # of the queue that has something left
    assert found.description == "rocketmq: In (2 queues), 3 messages and 5.2 s behind"


def test_a_topic_that_is_read_to_its_end_has_no_lag() -> None:
    source = progress()["sources"][0]
    found = source_progress(source | {"latestOffset": source["endOffset"]}, now_ms=NOW_MS)
    assert found is not None
    assert (found.messages_behind, found.lag_s) == ({"In": 0}, {"In": 0.0})


def test_a_store_tells_bytes_behind() -> None:
    """Offsets as `commitlog` writes them into a checkpoint."""
    offsets = {"endOffset": {"stores": {"/data/store": 1000}}, "latestOffset": {"stores": {"/data/store": 5096}}}
    found = source_progress(offsets)
    assert found is not None
    assert found.bytes_behind == {"/data/store": 4096}
    assert found.description == "commitlog: /data/store, 4096 bytes behind"


@pytest.mark.parametrize("offset", [None, 17, "17", {"logOffset": 3}])
def test_a_source_of_others_is_left_out(offset: Any) -> None:
    assert source_progress({"endOffset": offset, "latestOffset": offset}) is None
    text = describe(progress(sources=[{"endOffset": offset, "latestOffset": offset}]))
    assert text == "batch 4: 132 rows in 2.0 s; no source of ours"


def test_figures_are_prometheus_text_and_rows_add_up(tmp_path: Path) -> None:
    exporter = ProgressExporter(tmp_path / "spark.prom", now_ms=lambda: NOW_MS)
    exporter.note(progress())
    exporter.note(progress(batchId=5, observedMetrics={"contrailmq": {"rows": 132, "bytes": 4000}}))
    text = (tmp_path / "spark.prom").read_text()
    assert text == exporter.text()
    query = r'query="orders \"eu\""'
    assert f"contrailmq_spark_batch{{{query}}} 5\n" in text
    assert f"contrailmq_spark_input_rows_total{{{query}}} 264\n" in text
    assert f"contrailmq_spark_output_rows_total{{{query}}} 260\n" in text
    assert f"contrailmq_spark_input_bytes_total{{{query}}} 4000\n" in text
    assert f'contrailmq_spark_offsets_behind{{{query},topic="In"}} 3\n' in text
    assert f'contrailmq_spark_lag_seconds{{{query},topic="In"}} 5.2\n' in text
    assert f'contrailmq_spark_batch_seconds{{{query},phase="addBatch"}} 1.5\n' in text
    assert "# TYPE contrailmq_spark_input_rows_total counter\n" in text
    assert os.listdir(tmp_path) == ["spark.prom"]


def test_figures_are_served_over_http() -> None:
    exporter = ProgressExporter(now_ms=lambda: NOW_MS)
    exporter.note(progress())
    port = exporter.serve(0)
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
            assert answer.read().decode() == exporter.text()
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/")
    finally:
        exporter.close()


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        with Producer("filling", namesrv=running.namesrv) as producer:
            for number in range(30):
                producer.send(Message("In", b"%03d" % number))
        yield running


@pytest.mark.spark
def test_a_stream_is_exported_while_it_runs_and_after_a_restart(
    spark: Any, cluster: LocalCluster, tmp_path: Path
) -> None:
    exporter = contrailmq.spark.export_metrics(spark, path=tmp_path / "spark.prom")

    def run() -> Any:
        source = spark.readStream.format("rocketmq").option("nameServer", cluster.namesrv).option("subscribe", "In")
        frame = source.option("startingOffsets", "earliest").option("maxOffsetsPerTrigger", "20").load()
        writer = contrailmq.spark.observed(frame).writeStream.format("noop").queryName("counted")
        query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        query.awaitTermination()
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        return query

    try:
        query = run()
        text = exporter.text()
        assert 'contrailmq_spark_input_rows_total{query="counted"} 30\n' in text
        assert 'contrailmq_spark_input_bytes_total{query="counted"} 90\n' in text
        assert 'contrailmq_spark_offsets_behind{query="counted",topic="In"} 0\n' in text
        assert "rocketmq: In (4 queues), 0 messages and 0.0 s behind" in describe(query.lastProgress)
        with Producer("filling", namesrv=cluster.namesrv) as producer:
            producer.send(Message("In", b"030"))
        again = run()
        assert 'contrailmq_spark_input_rows_total{query="counted"} 31\n' in exporter.text()
        assert again.lastProgress["sources"][0]["latestOffset"]
    finally:
        spark.streams.removeListener(exporter)


@pytest.mark.spark
def test_observed_needs_bodies(spark: Any) -> None:
    with pytest.raises(OptionError, match="no column body to measure"):
        contrailmq.spark.observed(spark.range(1))


QUIET = """
import sys, tempfile, contrailmq.spark
namesrv = sys.argv[1]
spark = contrailmq.spark.session(master="local[2]")
stream = spark.readStream.format("rocketmq").option("nameServer", namesrv).option("subscribe", "In")
frame = stream.option("startingOffsets", "earliest").load()
slow = frame.selectExpr("java_method('java.lang.Thread', 'sleep', cast(60000 as bigint)) as x")
query = slow.writeStream.format("noop").option("checkpointLocation", tempfile.mkdtemp()).start()
tracker = spark.sparkContext.statusTracker()
while not tracker.getActiveStageIds():
    query.awaitTermination(0.05)
query.stop()
print("stopped", query.exception())
spark.stop()
"""


@pytest.mark.spark
def test_a_session_and_a_stop_in_the_middle_of_a_batch_say_nothing(cluster: LocalCluster) -> None:
    paths = [str(Path(contrailmq.__file__).parents[1])]
    done = subprocess.run(
        [sys.executable, "-c", QUIET, cluster.namesrv],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert (done.stdout, done.stderr) == ("stopped None\n", "")


CROWDED = """
import os, resource, tempfile, contrailmq.spark
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
spark = contrailmq.spark.session(master="local[1]")
taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
try:
    contrailmq.spark.export_metrics(spark, path=tempfile.mktemp())
except Exception as exc:
    print(type(exc).__name__, exc)
query = spark.readStream.format("rate").load().writeStream.format("noop")
query = query.option("checkpointLocation", tempfile.mkdtemp()).trigger(availableNow=True).start()
print("ended", query.awaitTermination(120))
spark.stop()
"""


@pytest.mark.spark
def test_a_process_with_many_open_files_is_told_that_a_listener_would_not_be_called() -> None:
    """Its queries waited at their start for an answer, for ever."""
    done = subprocess.run([sys.executable, "-c", CROWDED], capture_output=True, text=True, timeout=600)
    told, ended = done.stdout.splitlines()
    assert told.startswith("ListenerUnheardError Spark cannot call a listener in this process: the socket")
    assert "before so many files are open" in told
    assert ended == "ended True"
