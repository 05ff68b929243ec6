"""What a session is started with: a home for Spark whose workers need not compile pyspark anew."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest

from contrailmq.spark.environment import spark_home


def test_workers_import_pyspark_from_files_that_python_has_compiled(spark: Any) -> None:
    found = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("pyspark").__cached__).collect()
    assert [Path(path).is_file() for path in found] == [True]


def test_the_home_leads_to_the_installed_spark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    home, installed = spark_home(), Path(pyspark.__file__).parent
    assert home is not None
    assert home.is_relative_to(tmp_path)
    assert (home / "jars").resolve() == (installed / "jars").resolve()
    assert (home / "python" / "lib" / "pyspark.zip" / "pyspark" / "__init__.py").samefile(pyspark.__file__)
    assert spark_home() == home  # made once


def test_a_home_that_the_user_chose_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert spark_home() is None


def test_a_process_of_tasks_keeps_what_is_imported_out_of_collections(
    spark: Any, golden_store: Callable[[str], str]
) -> None:
    def frozen(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            pass
        import gc

        yield pa.RecordBatch.from_pydict({"frozen": [gc.get_freeze_count()]})

    log = spark.read.format("commitlog").load(golden_store("clean"))
    assert log.count() > 0
    rows = log.mapInArrow(frozen, "frozen bigint").collect()
    assert max(row["frozen"] for row in rows) > 50_000
    assert gc.get_freeze_count() == 0  # the driver's own process is left alone
