"""deploy/spark/submit.sh archives a topic with a real spark-submit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pyarrow.dataset
import pytest

from contrailmq import Message, Producer
from contrailmq.testing import LocalCluster

SCRIPT = Path(__file__).resolve().parents[2] / "deploy" / "spark" / "submit.sh"


@pytest.mark.long
@pytest.mark.spark
def test_the_script_archives_a_topic_and_then_only_what_is_new(tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    submit = Path(sys.executable).with_name("spark-submit")
    environment = os.environ | {"MASTER": "local[1]", "SPARK_SUBMIT": str(submit), "PYSPARK_PYTHON": sys.executable}
    with LocalCluster() as cluster, Producer("shop", namesrv=cluster.namesrv) as producer:
        for count in (3, 2):
            for number in range(count):
                producer.send(Message("Orders", f"order {number}".encode()))
            command = [str(SCRIPT), cluster.namesrv, "Orders", str(archive)]
            done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, cwd=tmp_path)
            assert done.returncode == 0, done.stderr[-3000:]
            assert f"'rows': {count}" in done.stdout
    assert pyarrow.dataset.dataset(str(archive), exclude_invalid_files=True).count_rows() == 5
