"""A user's module that hides one of Python's own is named."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from pyspark.errors import PySparkException

from contrailmq.cli.pipeline_running import told_errors
from contrailmq.spark.runtime.hidden_modules import hiding_files


@pytest.mark.parametrize("place", ["here", "script", "path"])
def test_a_module_that_hides_one_of_pythons_own_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "types").mkdir()
    (tmp_path / "types" / "__init__.py").touch()
    for name in ("random.py", "orders.py", "mine/queue.py"):  # the last is a part of a package, and hides nothing
        (tmp_path / name).touch()
    (tmp_path / "json").mkdir()  # not a module
    if place == "here":
        monkeypatch.chdir(tmp_path)
    elif place == "script":
        monkeypatch.syspath_prepend(str(tmp_path))
    else:
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert hiding_files() == [tmp_path / "random.py", tmp_path / "types"]


def test_an_error_of_spark_names_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "random.py").touch()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(typer.Exit), told_errors():
        raise PySparkException("Python worker exited unexpectedly (crashed)")
    assert capsys.readouterr().err.splitlines() == [
        "error: Python worker exited unexpectedly (crashed)",
        f"perhaps because {tmp_path}/random.py hides Python's own module random from Spark's Python workers, which "
        "look there first: rename it, or start from another directory",
    ]
