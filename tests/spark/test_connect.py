"""Spark Connect: the client knows no JVM; sources are registered, read, streamed and written through the server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import contrailmq
from contrailmq import Message, Producer
from contrailmq.testing import LocalCluster
from how_many import IS_LONG
from spark.test_archive import user_offsets

SCRIPT = """
import json, sys
from pathlib import Path
import contrailmq.spark
from contrailmq.spark.jobs.manifest import Manifest
from contrailmq.spark.runtime.engine import SparkEngine

store, namesrv, folder, times = sys.argv[1:]
spark = contrailmq.spark.session("connect", remote="local[2]")
log = spark.read.format("commitlog").option("rangeBytes", "200000").load(store)
topic = spark.read.format("rocketmq").option("nameServer", namesrv).option("subscribe", "In").load()
copy = topic.select("body").write.format("rocketmq").option("nameServer", namesrv).option("topic", "Copy")
copy.mode("append").save()
stream = spark.readStream.format("commitlog").option("path", store).load().select("body", "tags")
query = (
    stream.writeStream.format("rocketmq").option("nameServer", namesrv).option("topic", "Streamed")
    .option("checkpointLocation", folder + "/checkpoint").trigger(availableNow=True).start()
)
query.awaitTermination()
for _ in range(int(times)):  # the second time finds everything archived, by the id that the checkpoint keeps
    reader = spark.readStream.format("commitlog").option("path", store).option("rangeBytes", "200000")
    writer = contrailmq.spark.archive_stream(reader, folder + "/grown", folder + "/archiving")
    writer.trigger(availableNow=True).start().awaitTermination()
grown = contrailmq.spark.read_archive(spark, folder + "/grown")

def bodies(name):
    rows = spark.read.format("rocketmq").option("nameServer", namesrv).option("subscribe", name).load()
    return sorted(bytes(row["body"]).hex() for row in rows.select("body").collect())

print(json.dumps({
    "kind": type(spark).__module__,
    "places": sorted(row["physicalOffset"] for row in log.select("physicalOffset").collect()),
    "copy": bodies("Copy"),
    "streamed": bodies("Streamed"),
    "stored": sorted(bytes(row["body"]).hex() for row in log.select("body").collect()),
    "grown": sorted(row["physicalOffset"] for row in grown.select("physicalOffset").collect()),
    "queries": list(Manifest(folder + "/grown").load().batches),
    "query": json.loads(Path(folder, "archiving", "metadata").read_text())["id"],
    "archived": contrailmq.spark.archive(store, folder + "/archive", SparkEngine(spark)).rows,
}))
spark.stop()
"""


@pytest.mark.spark
def test_sources_sink_and_jobs_work_through_spark_connect(tmp_path: Path, golden_store: Callable[[str], str]) -> None:
    pytest.importorskip("grpc_status", reason="Spark Connect needs grpcio-status and googleapis-common-protos")
    with LocalCluster() as cluster:
        with Producer("filling", namesrv=cluster.namesrv) as producer:
            for number in range(20):
                producer.send(Message("In", b"%d" % number))
        paths = [str(Path(contrailmq.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
        # By SPARK_TESTING the server takes any free port, and its client asks for it: elsewhere both mean 15002, where
        # two builds on one host would meet.
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                SCRIPT,
                golden_store("clean"),
                cluster.namesrv,
                str(tmp_path),
                "2" if IS_LONG else "1",
            ],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "SPARK_TESTING": "1"},
            capture_output=True,
            text=True,
        )
    said = [line for line in done.stderr.splitlines() if not line.lstrip().startswith("at ")]
    assert done.returncode == 0, "\n".join(said[-40:])
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["kind"].startswith("pyspark.sql.connect")
    assert found["places"] == user_offsets("clean")
    assert found["copy"] == sorted((b"%d" % number).hex() for number in range(20))
    assert found["streamed"] == found["stored"]
    assert found["grown"] == user_offsets("clean")
    assert found["queries"] == [found["query"]]
    assert found["archived"] == len(user_offsets("clean"))
