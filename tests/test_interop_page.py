"""docs/compatibility.md: what a run does to it, and that it has a row for every case of tests/interop."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import interop_page
from interop_page import PAGE, ROOT, Row, not_run, page, read_page

BROKER = "Apache's broker"
ROWS = [
    Row(BROKER, "5.5.0", "a store goes both ways (kill)", "test_store.py", "pass"),
    Row(BROKER, "5.5.0", "slaves follow", "test_slave.py", "fail: port 1 did not open"),
    Row("C# client", "5.1.0", "sends", "test_absent.py", "skip: no dotnet on PATH"),
]
OLD, NEW = "2026-01-01 10:00 UTC, commit a1, Linux", "2026-02-02 11:30 UTC, commit b2, Linux"


def test_a_page_is_read_as_it_was_written_with_the_run_of_each_file() -> None:
    runs = {"test_store.py": OLD, "test_slave.py": OLD, "test_absent.py": NEW}
    text = page(ROWS, runs)
    assert read_page(text) == (ROWS, runs)
    assert page(*read_page(text)) == text
    assert f"- Run of {OLD}: all rows but those of the files below\n- Run of {NEW}: test_absent.py\n" in text
    assert "| Apache's broker | 5.5.0 | 1 | 1 | 0 |" in text
    assert not_run(page(ROWS, runs, ["test_x.py", "test_y.py"])) == ["test_x.py", "test_y.py"]
    assert not_run(text) == []
    assert "| 5.5.0 | slaves follow | fail: port 1 did not open | test_slave.py |" in text


def test_the_page_has_every_case_of_the_files_that_it_has_and_names_the_others() -> None:
    """What pytest collects is the page's, case by case; `make interop INTEROP=tests/interop/FILE` brings a file in."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:randomly", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "-p", "interop_page", "tests/interop"],
        cwd=ROOT, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT / "tests")},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    collected = {tuple(line.split("\t")[1:]) for line in done.stdout.splitlines() if line.startswith("CASE\t")}
    text = PAGE.read_text()
    waiting = set(not_run(text))
    rows, _ = read_page(text)
    assert {case for case in collected if case[3] not in waiting} == {row[:4] for row in rows}
    assert waiting == {case[3] for case in collected} - {row.file for row in rows}


INNER = """
import pytest
pytestmark = pytest.mark.program("A client", "1.0")

def test_that_it_sends():
    pass

@pytest.mark.program("Another", "2.0")
@pytest.mark.parametrize("broker", ["2.0", "2.0-ours"])
def test_that_it_fails(broker):
    assert broker == "never", "x | y"

def test_that_it_is_not_there():
    pytest.skip("no | such tool")

@pytest.fixture
def gone():
    yield
    raise OSError("after it")

def test_that_passes_and_then_fails(gone):
    pass
"""


@pytest.mark.parametrize("processes", [0, 2])
def test_a_run_replaces_the_rows_of_its_files_and_keeps_the_others(tmp_path: Path, processes: int) -> None:
    """In one process, and in two that send their outcomes to a third."""
    folder, target = tmp_path / "interop", tmp_path / "page.md"
    folder.mkdir()
    (folder / "test_inner.py").write_text(INNER)
    (folder / "test_store.py").touch()
    older = [*ROWS[:1], Row("A client", "1.0", "of yore", "test_inner.py", "pass"), *ROWS[2:]]
    target.write_text(page(older, dict.fromkeys((row.file for row in older), OLD)))
    begin = f"import interop_page, sys, pytest, pathlib; interop_page.HERE = pathlib.Path({str(folder)!r});"
    begin += f"interop_page.PAGE = pathlib.Path({str(target)!r})"
    (tmp_path / "conftest.py").write_text(f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r})\n{begin}\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers = program(name, version): whose\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:randomly", "-p", "no:cacheprovider", "interop"]
    done = subprocess.run(
        [*command, "-p", "interop_page", "-n", str(processes)],
        cwd=tmp_path, capture_output=True, text=True, env={"PYTHONPATH": f"{ROOT / 'tests'}:{ROOT / 'src'}"},
    )  # fmt: skip
    assert done.returncode == 1, done.stdout + done.stderr
    rows, runs = read_page(target.read_text())
    assert [row._replace(outcome=row.outcome.partition(":")[0]) for row in rows] == [
        Row("A client", "1.0", "that it is not there", "test_inner.py", "skip"),
        Row("A client", "1.0", "that it sends", "test_inner.py", "pass"),
        Row("A client", "1.0", "that passes and then fails", "test_inner.py", "fail"),
        Row("Another", "2.0", "that it fails", "test_inner.py", "fail"),
        Row("Another", "2.0", "that it fails (ours)", "test_inner.py", "fail"),
        ROWS[0],
    ]
    assert rows[0].outcome == "skip: no / such tool"
    assert "after it" in rows[2].outcome
    assert runs["test_store.py"] == OLD
    assert interop_page.__version__ in runs["test_inner.py"]
    assert "test_absent.py" not in runs, "the file is gone, and its rows with it"
