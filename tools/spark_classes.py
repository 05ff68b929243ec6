"""The classes that the JVMs of the Spark tests load, in archives that Java maps instead of reading and checking each.

A session that reads one store takes half the CPU with such an archive, and the tests start twenty of them. `make test`
makes the archives once, in .venv: one for the home that our own sessions start from, one for pyspark's own, since Java
compares paths. tests/spark_java.py names them to all that the tests start. Without them, or with another Java, Spark
only starts slower.

python tools/spark_classes.py DIRECTORY
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

OURS: Final = "spark-ours.jsa"
PLAIN: Final = "spark-plain.jsa"
SECONDS_MAX: Final = 1800
# What most of the tests do: a session, our source on its workers, a shuffle, Parquet files, a stream.
USUAL: Final = """
import sys
import contrailmq.spark
from contrailmq import Message
from contrailmq.store import MessageStore, StoreConfig
from pyspark import SparkContext

folder = sys.argv[1]
with MessageStore(StoreConfig(folder + "/store", mapped_file_size_commit_log=1 << 20)) as store:
    store.put(Message("Classes", b"one"))
spark = contrailmq.spark.session("classes", master="local[1]", **{"spark.sql.shuffle.partitions": "1"})
rows = spark.read.format("commitlog").load(folder + "/store")
assert [tuple(row) for row in rows.groupBy("topic").count().collect()] == [("Classes", 1)]
rows.drop("properties").write.parquet(folder + "/rows")
assert spark.read.parquet(folder + "/rows").count() == 1
stream = spark.readStream.format("commitlog").load(folder + "/store").select("body")
query = stream.writeStream.format("noop").option("checkpointLocation", folder + "/checkpoint")
query.trigger(availableNow=True).start().awaitTermination()
spark.stop()
gateway = SparkContext._gateway
gateway.shutdown()
gateway.proc.stdin.close()
gateway.proc.wait()  # Java writes the archive when it ends
"""


def make(path: Path, **environment: str) -> None:
    """Do the usual things once, and have Java keep what they loaded."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, path.name)
        environment["SPARK_SUBMIT_OPTS"] = f"-XX:ArchiveClassesAtExit={made} -Xlog:disable"
        done = subprocess.run(
            [sys.executable, "-c", USUAL, folder],
            env=os.environ | environment,
            capture_output=True,
            text=True,
            timeout=SECONDS_MAX,
        )
        if done.returncode or not made.exists():
            print(f"{path.name} was not made, so Spark starts slower: {done.stderr[-3000:].strip()}", file=sys.stderr)
            return
        kept = path.with_suffix(".new")
        kept.write_bytes(made.read_bytes())
        kept.replace(path)


def main(directory: str) -> None:
    import pyspark

    with ThreadPoolExecutor() as at_once:
        at_once.submit(make, Path(directory, OURS))
        at_once.submit(make, Path(directory, PLAIN), SPARK_HOME=str(Path(pyspark.__file__).parent))


if __name__ == "__main__":
    main(*sys.argv[1:])
