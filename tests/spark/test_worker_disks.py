"""Spark's workers whose disk takes no more: what they write fails with file and remedy, nothing of it counts, and the
next run has every row.

By a limit on the size of the workers' files, which the system enforces as it does a full disk.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException, StreamingQueryException

from contrailmq.spark.jobs.archive import archive
from contrailmq.spark.jobs.manifest import Manifest
from contrailmq.spark.jobs.upkeep import compact
from contrailmq.spark.runtime.engine import SparkEngine
from contrailmq.spark.topic_tables.job import tables
from contrailmq.spark.topic_tables.table_manifest import TableManifest
from spark.killed_streams import start
from spark.test_archive import archived, user_offsets
from spark.test_kills import Archive, Stream, Tables, spark_pythons
from spark.test_topic_tables import ORDERS, order, put, rows_of
from spark.test_upkeep import check, make_archive, on_disk

TOLD = "cannot be written: File too large; nothing was committed: raise the limit on the size of files"
BYTES_MAX = 1_500

pytestmark = pytest.mark.spark


@contextmanager
def full_disks() -> Iterator[None]:
    """For the Python processes that Spark has now, and for all that they fork."""
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    processes = spark_pythons()
    assert processes, "Spark has not started any yet"
    for pid in processes:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (BYTES_MAX, resource.RLIM_INFINITY))
    try:
        yield
    finally:
        for pid in set(processes) & set(spark_pythons()):
            resource.prlimit(pid, resource.RLIMIT_FSIZE, unlimited)


@pytest.fixture
def engine(spark: Any) -> SparkEngine:
    """Its workers have started."""
    engine = SparkEngine(spark)
    assert list(engine.run(len, ["ab", "c"])) == [2, 1]
    return engine


def test_an_archive_is_told_and_the_next_run_has_all(
    engine: SparkEngine, tmp_path: Path, golden_store: Callable[[str], str]
) -> None:
    store, target = golden_store("clean"), tmp_path / "archive"
    with full_disks(), pytest.raises(PySparkException, match=TOLD):
        archive(store, str(target), engine)
    assert Manifest(target).head().version == 0
    archive(store, str(target), engine)
    assert archived(target) == user_offsets("clean")


def test_a_compaction_is_told_and_changes_nothing(engine: SparkEngine, tmp_path: Path) -> None:
    _, target = make_archive(tmp_path)
    before = on_disk(target)
    with full_disks(), pytest.raises(PySparkException, match=TOLD):
        compact(str(target), engine)
    assert on_disk(target) == before
    check(target, user_offsets("clean"))
    assert compact(str(target), engine).files_after == 1
    check(target, user_offsets("clean"))


def test_typed_tables_are_told_and_the_next_run_has_all(engine: SparkEngine, tmp_path: Path) -> None:
    store, target = tmp_path / "store", tmp_path / "lake"
    put(store, "Orders", [*map(order, range(9)), b"bad"])
    put(store, "Users", [{"id": n % 3, "n": n} for n in range(9)], queues=1)
    specs = {"Orders": {"schema": ORDERS}, "Users": {"schema": "id int, n int", "key": ["id"], "buckets": 2}}
    with full_disks(), pytest.raises(PySparkException, match=TOLD):
        tables(str(store), str(target), engine, specs)
    assert TableManifest(target).head().version == 0
    assert tables(str(store), str(target), engine, specs).rows == 18
    assert sorted(row["id"] for row in rows_of(target, "Orders")) == list(range(9))
    assert sorted((row["id"], row["n"]) for row in rows_of(target, "Users")) == [(0, 6), (1, 7), (2, 8)]
    assert len(rows_of(target, None)) == 1


@pytest.mark.long
@pytest.mark.parametrize("kind", ["archive", "tables"])
def test_a_stream_is_told_and_goes_on_where_it_was(
    spark: Any, tmp_path: Path, golden_store: Callable[[str], str], kind: str
) -> None:
    """Its disk is full from its first micro-batch on; an earlier stream has started the processes."""

    def made(folder: Path) -> Stream:
        return Archive(golden_store("clean"), folder) if kind == "archive" else Tables(folder)

    earlier, stream = made(tmp_path / "earlier"), made(tmp_path / "full")
    start(kind, spark, earlier.source, earlier.folder).awaitTermination()
    with full_disks(), pytest.raises(StreamingQueryException, match=TOLD):
        start(kind, spark, stream.source, stream.folder).awaitTermination()
    start(kind, spark, stream.source, stream.folder).awaitTermination()
    stream.check()
