"""The package travels to executors that do not have it, and jobs run there unchanged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

import contrailmq
from contrailmq.spark.environment import pack_package

SCRIPT = """
import json, sys
import contrailmq.spark
from contrailmq.spark.engine import SparkEngine

store, target = sys.argv[1:]
spark = contrailmq.spark.session("scale out", master="local-cluster[2,1,1024]", spark_executor_memory="1g",
                                 **{"spark.executorEnv.PYTHONPATH": ""})

def where(batches):
    import os
    import pyarrow
    import contrailmq
    for batch in batches:
        yield pyarrow.RecordBatch.from_pydict({"path": [contrailmq.__file__], "pid": [os.getppid()]})

rows = spark.range(0, 4, 1, 4).mapInArrow(where, "path string, pid long").collect()
count = spark.read.format("commitlog").option("rangeBytes", "100000").load(store).count()
done = contrailmq.spark.archive(store, target, SparkEngine(spark))
print(json.dumps({"paths": sorted({row["path"] for row in rows}), "count": count, "archived": done.rows}))
spark.stop()
"""


def test_the_packed_package_can_be_imported(tmp_path: Path) -> None:
    archive = pack_package()
    assert "contrailmq/spark/decode.py" in zipfile.ZipFile(archive).namelist()
    code = "import contrailmq.spark.log_plan as m; print(m.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(archive)}, capture_output=True, text=True, cwd=tmp_path
    )
    assert str(archive) in done.stdout, done.stderr


@pytest.mark.long
@pytest.mark.spark
def test_a_cluster_of_two_workers_reads_and_archives(tmp_path: Path, golden_store: Callable[[str], str]) -> None:
    script = tmp_path / "job.py"
    script.write_text(SCRIPT)
    source = Path(contrailmq.__file__).parents[1]
    done = subprocess.run(
        [sys.executable, str(script), golden_store("clean"), str(tmp_path / "archive")],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert (found["count"], found["archived"]) == (621, 621)
    assert all(".zip" in path for path in found["paths"])
