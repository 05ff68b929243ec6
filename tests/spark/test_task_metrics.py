"""What tasks tell of their reads, and what jobs leave for Prometheus."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner

import contrailmq.spark
from contrailmq.cli import app
from contrailmq.message import Message
from contrailmq.spark.columns import TASK_COLUMNS, OptionError
from contrailmq.spark.progress import ProgressExporter, describe
from contrailmq.spark.runtime.patience import Patience
from contrailmq.spark.sources.commitlog import CommitLogSource
from contrailmq.spark.sources.task_metrics import with_task_metrics
from contrailmq.store import MessageStore, StoreConfig


def batch(rows: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(range(rows), pa.int32())], names=["queueId"])


def test_each_batch_tells_in_its_first_row_what_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker is asked twice again before the second batch, and the task is Spark's third try."""
    monkeypatch.setattr(Patience, "waits_in_process", 7)

    def made() -> Any:
        yield batch(2)
        yield batch(0)
        Patience.waits_in_process += 2
        yield batch(3)

    first, second = with_task_metrics(made(), attempt=2, required=frozenset())
    assert first.schema.names == second.schema.names == ["queueId", *TASK_COLUMNS]
    assert (first.column("readRetries").to_pylist(), first.column("taskRetries").to_pylist()) == ([0, 0], [2, 0])
    assert (second.column("readRetries").to_pylist(), second.column("taskRetries").to_pylist()) == (
        [2, 0, 0],
        [0, 0, 0],
    )
    assert first.column("readMicros").to_pylist()[1:] == [0]
    assert first.column("readMicros").to_pylist()[0] >= 0


def test_a_table_does_not_take_what_only_observed_reads() -> None:
    created = {"owner": "x", "provider": "commitlog", "option.taskMetrics": "true", "path": "/data/store"}
    with pytest.raises(OptionError, match="taskMetrics is for observed"):
        CommitLogSource(created).schema()


def test_observed_figures_reach_text_and_prometheus() -> None:
    told = {"rows": 132, "bytes": 4_200_000, "readMicros": 1_250_000, "readRetries": 3, "taskRetries": 1}
    place = {"stores": {"/data/store": 1000}, "version": 1}
    progress = {
        "id": "f3de065b", "name": "orders", "batchId": 4, "numInputRows": 132, "durationMs": {"triggerExecution": 2000},
        "sources": [{"endOffset": place, "latestOffset": {"stores": {"/data/store": 5096}, "version": 1}}],
        "observedMetrics": {"contrailmq": told},
    }  # fmt: skip
    assert describe(progress) == (
        "batch 4: 132 rows in 2.0 s (4.2 MB, reads 1.2 s, 3 asked again, 1 tasks repeated); "
        "commitlog: /data/store, 4096 bytes behind"
    )
    exporter = ProgressExporter()
    exporter.note(progress)
    exporter.note(progress)
    text = exporter.text()
    assert 'contrailmq_spark_read_seconds_total{query="orders"} 2.5\n' in text
    assert 'contrailmq_spark_read_retries_total{query="orders"} 6\n' in text
    assert 'contrailmq_spark_task_retries_total{query="orders"} 2\n' in text
    assert 'contrailmq_spark_input_bytes_total{query="orders"} 8400000\n' in text
    assert 'contrailmq_spark_bytes_behind{query="orders",store="/data/store"} 4096\n' in text


@pytest.mark.spark
def test_a_stream_tells_what_its_tasks_know(spark: Any, golden_store: Callable[[str], str], tmp_path: Path) -> None:
    exporter = contrailmq.spark.export_metrics(spark, path=tmp_path / "spark.prom")
    source = spark.readStream.format("commitlog").option("path", golden_store("clean")).option("taskMetrics", "true")
    frame = contrailmq.spark.observed(source.load())
    assert not set(TASK_COLUMNS) & set(frame.columns)
    try:
        writer = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
        query = writer.queryName("told").trigger(availableNow=True).start()
        query.awaitTermination()
        spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        told = query.lastProgress["observedMetrics"]["contrailmq"]
        assert told["rows"] == query.lastProgress["numInputRows"] > 100
        assert told["readMicros"] > 0
        assert (told["readRetries"], told["taskRetries"]) == (0, 0)
        assert 'contrailmq_spark_read_retries_total{query="told"} 0\n' in exporter.text()
        assert 'contrailmq_spark_bytes_behind{query="told",store="' in exporter.text()
    finally:
        spark.streams.removeListener(exporter)


@pytest.fixture
def store(tmp_path: Path) -> str:
    path = str(tmp_path / "store")
    with MessageStore(StoreConfig(path)) as made:
        for number in range(20):
            made.put(Message("Orders", b"%d" % number))
    return path


def test_a_job_leaves_its_figures_whether_it_went_well_or_not(store: str, tmp_path: Path) -> None:
    file, archive = tmp_path / "job.prom", str(tmp_path / "archive")
    given = ["pipeline", "--metrics-file", str(file), "archive", "--to", archive, "--engine", "local", "--json"]
    done = CliRunner().invoke(app, [*given, "--store", store])
    assert done.exit_code == 0, done.output
    printed, text = json.loads(done.stdout), file.read_text()
    assert 'contrailmq_pipeline_success{job="archive"} 1\n' in text
    assert 'contrailmq_pipeline_figure{job="archive",figure="rows"} 20\n' in text
    assert f'contrailmq_pipeline_figure{{job="archive",figure="size_bytes"}} {printed["size_bytes"]}\n' in text
    assert f'contrailmq_pipeline_bytes_behind{{job="archive",store="{store}"}} 0\n' in text
    assert "# TYPE contrailmq_pipeline_seconds gauge\n" in text
    compacted = CliRunner().invoke(
        app, ["pipeline", "--metrics-file", str(file), "compact", "--archive", archive, "--engine", "local"]
    )
    assert compacted.exit_code == 0, compacted.output
    assert 'contrailmq_pipeline_figure{job="compact",figure="rows_after"} 20\n' in file.read_text()
    failed = CliRunner().invoke(app, [*given, "--store", str(tmp_path / "nowhere")])
    assert failed.exit_code == 2
    assert 'contrailmq_pipeline_success{job="archive"} 0\n' in file.read_text()
    assert "contrailmq_pipeline_figure" not in file.read_text()


def test_a_metrics_file_that_cannot_be_written_is_a_warning(store: str, tmp_path: Path) -> None:
    file = tmp_path / "nowhere" / "job.prom"
    given = ["pipeline", "--metrics-file", str(file), "archive", "--store", store, "--to", str(tmp_path / "archive")]
    done = CliRunner().invoke(app, [*given, "--engine", "local"])
    assert done.exit_code == 0, done.output
    assert (
        f"warning: metrics are not in {file}: No such file or directory; name a file that may be written" in done.output
    )
