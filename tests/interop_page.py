"""docs/compatibility.md, written from a run of tests/interop: `-p interop_page`, as `make interop` has it.

A test there is a case of a program: the marker `program(name, version)` says of which, its own name says what holds.
A run replaces the rows of the test files that it ran and leaves the others, so that a new file needs no whole run;
the page says which run each row is from. With `--collect-only` nothing is written, and the cases are printed:
tests/test_compatibility_page.py holds them against the page.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from contrailmq import __version__

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "tests" / "interop"
# Given by name, a trial writes elsewhere.
PAGE = Path(os.environ.get("CONTRAILMQ_COMPATIBILITY_PAGE", ROOT / "docs" / "compatibility.md"))
REASON_LENGTH_MAX = 240
NOT_RUN = "- Not run since this page is made by runs: "

INTRODUCTION = """# Compatibility: which programs were run, and what held

`make interop` runs other people's programs, unchanged, against ContrailMQ, and ours against Apache RocketMQ; then it
writes this page. A case passes when what arrived is what was sent, where and as often as it should have been: each test
compares contents. `skip` says why a case did not run. To write the rows of one file again:

```
make interop INTEROP=tests/interop/test_pop.py
```
"""


class Row(NamedTuple):
    """A line of the page; sorted as it stands there."""

    program: str
    version: str
    case: str
    file: str
    outcome: str


def describe(item: pytest.Item) -> Row:
    """The row of a test that has not run."""
    marker = item.get_closest_marker("program")
    if marker is None:
        raise pytest.UsageError(f"{item.nodeid}: give it pytest.mark.program(name, version), for docs/compatibility.md")
    program, version = marker.args
    name, _, told = item.name.removesuffix("]").partition("[")
    for known in (f"{program} {version}", program, version):
        told = told.replace(known, "")
    told = told.strip("-")
    case = name.removeprefix("test_").replace("_", " ")
    return Row(program, version, case + (f" ({told})" if told else ""), item.path.name, "")


def _cases(items: Iterable[pytest.Item]) -> dict[str, Row]:
    return {item.nodeid: describe(item) for item in items if item.path.parent == HERE}


class _Outcomes:
    """What the tests of this run did; in a run of several processes, in the one that prints."""

    def __init__(self) -> None:
        self.rows: dict[str, Row] = {}

    def note(self, report: pytest.TestReport) -> None:
        given = dict(report.user_properties).get("compatibility")
        if given is None or (report.when != "call" and report.passed):
            return
        assert isinstance(given, list)
        row = Row(*given)
        known = self.rows.get(report.nodeid)
        if known is None or known.outcome == "pass":  # what fails after the test's end fails the case
            self.rows[report.nodeid] = row._replace(outcome=_outcome(report))


def _outcome(report: pytest.TestReport) -> str:
    if hasattr(report, "wasxfail"):
        return "fail: " + _one_line(report.wasxfail)
    if report.passed:
        return "pass"
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        return "skip: " + _one_line(reason.removeprefix("Skipped: "))
    crash = getattr(report.longrepr, "reprcrash", None)
    return "fail: " + _one_line(crash.message if crash else str(report.longrepr))


def _one_line(text: str) -> str:
    """Without what would end a cell of a table, and without what differs between two runs on two machines."""
    line = " ".join(text.split()).replace("|", "/").replace("<", "&lt;").replace(str(ROOT), ".")
    return line if len(line) <= REASON_LENGTH_MAX else line[: REASON_LENGTH_MAX - 3] + "..."


_outcomes = _Outcomes()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for node_id, row in _cases(items).items():
        if config.option.collectonly:
            print("CASE", *row[:4], sep="\t")
        else:
            next(item for item in items if item.nodeid == node_id).user_properties.append(("compatibility", list(row)))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _outcomes.note(report)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _outcomes.rows and not hasattr(session.config, "workerinput"):
        rows, runs = read_page(PAGE.read_text()) if PAGE.exists() else ([], {})
        ran = {row.file for row in _outcomes.rows.values()}
        kept = [row for row in rows if row.file not in ran and (HERE / row.file).exists()]
        rows = sorted({*kept, *_outcomes.rows.values()})
        known = {name: run for name, run in runs.items() if name in {row.file for row in rows}}
        files = {path.name for path in HERE.glob("test_*.py")}
        missing = sorted(files - {row.file for row in rows})
        PAGE.write_text(page(rows, known | dict.fromkeys(ran, this_run()), missing))


def this_run() -> str:
    java = "no Java"
    if shutil.which("java"):
        told = subprocess.run(["java", "-version"], capture_output=True, text=True).stderr
        java = "Java " + (re.search(r'version "([^"]+)"', told) or ["", "unknown"])[1]
    git = subprocess.run(
        ["git", "describe", "--always", "--dirty=, with changes"], cwd=ROOT, capture_output=True, text=True
    )
    commit = f"commit {git.stdout.strip()}" if git.returncode == 0 else "no commit known"
    python = f"{platform.python_implementation()} {platform.python_version()}"
    day = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return f"{day}, ContrailMQ {__version__}, {commit}, {python}, {java}, {platform.system()} {platform.machine()}"


def page(rows: list[Row], runs: Mapping[str, str], missing: Sequence[str] = ()) -> str:
    """The whole text. The rows stand in their order; the run of most files is named without its files."""
    lines = list(_run_lines(runs))
    if missing:
        lines.append(NOT_RUN + ", ".join(missing))
    return "\n".join([INTRODUCTION, *lines, "", *_summary(rows), *_tables(rows)]).rstrip() + "\n"


def not_run(text: str) -> list[str]:
    """The files of which a page says that it has no rows of them."""
    return [name for line in text.splitlines() if line.startswith(NOT_RUN) for name in line[len(NOT_RUN) :].split(", ")]


def _run_lines(runs: Mapping[str, str]) -> Iterator[str]:
    counts = Counter(runs.values())
    most = counts.most_common(1)[0][0]
    yield f"- Run of {most}: all rows" + (" but those of the files below" if len(counts) > 1 else "")
    for run in sorted(counts, reverse=True):
        if run != most:
            yield f"- Run of {run}: {', '.join(sorted(name for name, made in runs.items() if made == run))}"


def _summary(rows: list[Row]) -> Iterator[str]:
    yield from ("| Program | Version | pass | fail | skip |", "|---|---|---|---|---|")
    counts = Counter((row.program, row.version, row.outcome.partition(":")[0]) for row in rows)
    for program, version in sorted({row[:2] for row in rows}):
        figures = (str(counts[program, version, kind]) for kind in ("pass", "fail", "skip"))
        yield f"| {program} | {version} | {' | '.join(figures)} |"


def _tables(rows: list[Row]) -> Iterator[str]:
    for program in sorted({row.program for row in rows}):
        yield from ("", f"## {program}", "", "| Version | Case | Outcome | Test |", "|---|---|---|---|")
        for row in rows:
            if row.program == program:
                yield f"| {row.version} | {row.case} | {row.outcome} | {row.file} |"


def read_page(text: str) -> tuple[list[Row], dict[str, str]]:
    """(Rows, file -> run) of a page."""
    rows, program = [], ""
    named: dict[str, str] = {}
    most = ""
    for line in text.splitlines():
        if line.startswith("## "):
            program = line[3:]
        elif line.startswith("- Run of "):
            run, _, files = line.removeprefix("- Run of ").rpartition(": ")
            if files.startswith("all rows"):
                most = run
            else:
                named |= dict.fromkeys(files.split(", "), run)
        elif program and line.startswith("| ") and not line.startswith("| Version |"):
            version, case, outcome, file = line.removeprefix("| ").removesuffix(" |").split(" | ")
            rows.append(Row(program, version, case, file, outcome))
    return rows, {row.file: named.get(row.file, most) for row in rows}
