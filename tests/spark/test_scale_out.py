"""The package travels to executors that do not have it, and jobs run there unchanged."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import contrailmq
from contrailmq.spark.runtime.shipping import pack_package
from spark.standalone import Standalone
from spark.test_archive import user_offsets

SCRIPT = """
import json, sys
import contrailmq.spark
from contrailmq.spark.runtime.engine import SparkEngine

master, store, target = sys.argv[1:]
spark = contrailmq.spark.session("scale out", master=master, spark_executor_memory="1g", spark_executor_cores="1",
                                 spark_cores_max="2", **{"spark.executorEnv.PYTHONPATH": "",
                                 "spark.scheduler.minRegisteredResourcesRatio": "1.0",
                                 "spark.scheduler.maxRegisteredResourcesWaitingTime": "300s"})

def where(batches):
    import os
    import pyarrow
    import contrailmq
    daemon = open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()
    for batch in batches:
        yield pyarrow.RecordBatch.from_pydict({"path": [contrailmq.__file__], "executor": [int(daemon[1])]})

rows = spark.range(0, 4, 1, 4).mapInArrow(where, "path string, executor long").collect()
frame = spark.read.format("commitlog").option("rangeBytes", "100000").load(store)
done = contrailmq.spark.archive(store, target, SparkEngine(spark))
print(json.dumps({
    "paths": sorted({row["path"] for row in rows}),
    "executors": sorted({row["executor"] for row in rows}),
    "driver": spark._jvm.java.lang.ProcessHandle.current().pid(),
    "places": sorted(row["physicalOffset"] for row in frame.select("physicalOffset").collect()),
    "archived": done.rows,
    "findings": len(contrailmq.spark.verify(store, SparkEngine(spark))),
}))
spark.stop()
"""


def test_the_packed_package_can_be_imported(tmp_path: Path) -> None:
    archive = pack_package()
    assert "contrailmq/spark/decoding/decode.py" in zipfile.ZipFile(archive).namelist()
    code = "import contrailmq.spark.decoding.log_plan as m; print(m.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(archive)}, capture_output=True, text=True, cwd=tmp_path
    )
    assert str(archive) in done.stdout, done.stderr


def run_on(master: str, store: str, folder: Path) -> dict[str, Any]:
    """The script's answer; the driver has our source on its path, executors have not."""
    script = folder / "job.py"
    script.write_text(SCRIPT)
    source = Path(contrailmq.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, str(script), master, store, str(folder / "archive")],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        cwd=folder,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def check(found: dict[str, Any]) -> None:
    assert found["places"] == user_offsets("clean")
    assert (found["archived"], found["findings"]) == (621, 0)
    assert all(".zip" in path for path in found["paths"])  # not the source that the driver imports from
    assert len(found["executors"]) == 2
    assert found["driver"] not in found["executors"]


@pytest.mark.long
@pytest.mark.spark
def test_executors_in_processes_of_their_own_read_archive_and_verify(
    tmp_path: Path, golden_store: Callable[[str], str]
) -> None:
    check(run_on("local-cluster[2,1,1024]", golden_store("clean"), tmp_path))


@pytest.fixture
def standalone(tmp_path: Path) -> Iterator[str]:
    with contextlib.closing(Standalone(tmp_path, workers=2)) as cluster:
        yield cluster.url


@pytest.mark.long
@pytest.mark.spark
def test_a_standalone_master_with_two_workers_reads_archives_and_verifies(
    tmp_path: Path, golden_store: Callable[[str], str], standalone: str
) -> None:
    """Master and workers are started without our source on their path."""
    check(run_on(standalone, golden_store("clean"), tmp_path))
