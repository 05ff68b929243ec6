"""What a session is started with: a home for Spark whose workers need not compile pyspark anew."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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
