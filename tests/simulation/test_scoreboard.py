"""What docs/reliability.md names is there."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from simulation import scoreboard
from simulation.faults import ALL_KINDS
from simulation.planted import PLANTED

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("named", sorted({test for _, test in scoreboard.PROMISES}))
def test_each_promise_names_a_test_that_is_there(named: str) -> None:
    path, _, name = named.partition("::")
    assert f"def {name}(" in (ROOT / path).read_text()


def test_each_kind_of_fault_has_a_meaning_and_each_file_of_process_tests_is_there() -> None:
    assert set(scoreboard.MEANINGS) == set(ALL_KINDS)
    assert [path for _, path in scoreboard.PROCESSES if not (ROOT / path).is_file()] == []


def test_the_scoreboard_counts_what_was_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    counts = {"acknowledged": 10, "refused": 1, "deliveries": 30, "virtual_s": 60.0, "cpu_s": 2.0}
    good = {"seed": 1, "flush": "SYNC_FLUSH", "faults": ["kill", "kill"], "problems": [], **counts}
    bad = {"seed": 2, "flush": "ASYNC_FLUSH", "faults": ["cut"], "problems": ["lost"], **counts}
    short = good | {"minutes": 1.0, "faults": ["stop"]}
    bug = {"planted": PLANTED[0].name, "first": 1, "seeds": 3, "said": "lost"}
    file = tmp_path / "runs.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in (good, bad, short, bug)))
    monkeypatch.setattr(sys, "argv", ["scoreboard", str(file)])
    scoreboard.main()
    text = capsys.readouterr().out
    assert "| Seeds | 3 of 1 and 10 virtual minutes, of which 0 without faults; 1 failed |" in text
    assert f"| kill | {scoreboard.MEANINGS['kill']} | 2 | 0 | all promises kept |" in text
    assert f"| stop | {scoreboard.MEANINGS['stop']} | 1 | 0 | all promises kept |" in text
    assert f"| pause | {scoreboard.MEANINGS['pause']} | 0 | 0 | did not come |" in text
    assert f"| cut | {scoreboard.MEANINGS['cut']} | 0 | 1 | 1 seeds failed |" in text
    assert f"1 of {len(PLANTED)} were found" in text
