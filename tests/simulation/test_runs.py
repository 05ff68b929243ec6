"""`make simulate`: how a run of many seeds ends, and that a seed repeats in another process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
BUG = "the broker stores an offset one too far"  # every seed finds it
ENDED_S_MAX = 120.0


def finished(*options: str, hash_seed: str = "0") -> subprocess.CompletedProcess[str]:
    """A run in processes of its own, all of which are gone when this returns."""
    environment = os.environ | {"PYTHONPATH": f"{TESTS}:{TESTS.parent / 'src'}", "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-m", "simulation.runs", *options]
    process = subprocess.Popen(
        command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    printed, errors = process.communicate(timeout=1800)
    guard_s = time.monotonic() + ENDED_S_MAX  # multiprocessing's own helper notices the end of the others, and ends
    while (left := members_of(process.pid)) and time.monotonic() < guard_s:
        os.sched_yield()
    assert left == []
    return subprocess.CompletedProcess(command, process.returncode, printed, errors)


def members_of(session: int) -> list[str]:
    """Processes of a session that still run, by their names."""
    found = []
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            name, _, rest = status.read_text().partition("(")[2].rpartition(")")
        except OSError:
            continue  # it has just ended
        state, _, _, of_session = rest.split()[:4]
        if int(of_session) == session and state != "Z":
            found.append(name)
    return found


def test_a_failing_seed_ends_the_run_with_its_faults_and_a_shorter_schedule_and_leaves_no_process() -> None:
    ended = finished("--seeds", "3", "--minutes", "0.2", "--jobs", "2", "--bug", BUG, "--tries", "2")
    lines = ended.stdout.splitlines()
    assert ended.stderr == ""
    assert ended.returncode == 1
    for seed in (1, 2, 3):
        assert sum(line.startswith(f"seed {seed}: ") for line in lines) == 1
        assert f"def test_seed_{seed}() -> None:" in lines
    assert lines.count("  faults:") == 3
    assert any("keepers is at" in line or "workers is at" in line or "readers is at" in line for line in lines)
    assert any(line.startswith("3 seeds, 3 failed ") for line in lines)


def test_seeds_that_pass_end_the_run_without_an_error_and_repeat_where_hashes_differ(tmp_path: Path) -> None:
    """Each run has two processes; which of them gets which seed is up to the real scheduler."""
    saved = []
    for hash_seed in ("1", "2"):
        file = tmp_path / hash_seed
        ended = finished("--seeds", "4", "--minutes", "0.3", "--jobs", "2", "--save", str(file), hash_seed=hash_seed)
        assert (ended.returncode, ended.stderr) == (0, "")
        results = [json.loads(line) for line in file.read_text().splitlines()]
        saved.append({result["seed"]: result["digest"] for result in results})
    assert sorted(saved[0]) == [1, 2, 3, 4]
    assert saved[0] == saved[1]


def test_a_kind_of_fault_alone_is_run_with_both_ways_to_flush_and_saved_with_the_commit(tmp_path: Path) -> None:
    file = tmp_path / "saved"
    options = ("--each", "switch", "--seeds", "1", "--minutes", "0.3", "--save", str(file), "--resume")
    ended = finished(*options)
    assert (ended.returncode, ended.stderr) == (0, "")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(line["alone"], line["flush"]) for line in lines] == [("switch", "SYNC_FLUSH"), ("switch", "ASYNC_FLUSH")]
    assert all(line["slaves"] and set(line["faults"]) == {"switch"} for line in lines)
    assert all(line["date"] and "commit" in line for line in lines)
    again = finished(*options)
    assert again.stdout.startswith("2 cases, 0 failed")
    assert len(file.read_text().splitlines()) == 2


def test_a_run_that_goes_on_repeats_what_failed_or_was_not_written_to_the_end(tmp_path: Path) -> None:
    file = tmp_path / "saved"
    options = ("--seeds", "3", "--minutes", "0.1", "--save", str(file), "--resume")
    assert finished(*options).returncode == 0
    first, second, third = map(json.loads, file.read_text().splitlines())
    lines = [json.dumps(first), json.dumps(second | {"problems": ["lost"]}), json.dumps(third)[:40]]
    file.write_text("\n".join(lines))
    again = finished(*options)
    assert (again.returncode, again.stderr) == (0, "")
    assert again.stdout.startswith(f"1 seeds of {file} passed already\n")
    results = [json.loads(line) for line in file.read_text().splitlines()]
    assert [(one["seed"], one["digest"]) for one in results[2:]] == [
        (one["seed"], one["digest"]) for one in (second, third)
    ]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--seeds", "0"), "0 is less than one"),
        (("--minutes", "-1"), "-1 minutes are no time"),
        (("--each", "nothing"), "invalid choice: 'nothing'"),
        (("--planted", "nothing"), "invalid choice: 'nothing'"),
        (("--save", "/nowhere/saved"), "make its directory first"),
        (("--resume",), "name its file with --save"),
    ],
)
def test_what_cannot_be_run_is_refused_before_the_first_seed(options: tuple[str, ...], said: str) -> None:
    ended = finished(*options)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert said in ended.stderr


def test_a_file_that_holds_something_else_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "letter"
    file.write_text("Dear reader,\nno end")
    ended = finished("--seeds", "1", "--save", str(file), "--resume")
    assert ended.returncode == 1
    assert "no result of a run is 'Dear reader,'" in ended.stderr
    assert file.read_text() == "Dear reader,\nno end"


def test_results_with_a_planted_bug_are_not_saved(tmp_path: Path) -> None:
    ended = finished("--bug", BUG, "--save", str(tmp_path / "saved"))
    assert ended.returncode == 2
    assert "leave one of them out" in ended.stderr
    assert not (tmp_path / "saved").exists()
