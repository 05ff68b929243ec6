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
    good = {"seed": 1, "flush": "SYNC_FLUSH", "faults": ["kill", "kill"], "problems": [], "commit": "1234567", **counts}
    good |= {"date": "2026-11-18", "slaves": 0}
    bad = {"seed": 2, "flush": "ASYNC_FLUSH", "faults": ["cut"], "problems": ["lost"], "slaves": 1, **counts}
    short = good | {"minutes": 1.0, "faults": ["stop"], "cpu_s": 4.0}
    alone = short | {"seed": 1, "alone": "kill", "faults": ["kill"], "slaves": 0}
    in_group = alone | {"slaves": 2}
    bug = {"planted": PLANTED[0].name, "first": 1, "seeds": 3, "said": "lost", "commit": "89abcde", "date": "today"}
    file = tmp_path / "runs.jsonl"
    lines = (good, good, bad, short, alone, in_group, bug)
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr(sys, "argv", ["scoreboard", str(file)])
    scoreboard.main()
    text = capsys.readouterr().out
    assert (
        "| Seeds | 5 of 1 and 10 virtual minutes, of which 0 without faults and 2 with one kind of fault alone; "
        "1 failed |" in text
    )
    assert "| Package at | commit 1234567, 2026-11-18: 4; commit unknown, unknown: 1 |" in text
    assert "| Speed | 2 seeds of 1 minutes without slaves: 0.0 virtual hours in 0.1 min of CPU, 15 to 1 |" in text
    assert f"| kill | {scoreboard.MEANINGS['kill']} | 4 in 3, 2 | 0 in 0, 0 | all promises kept |" in text
    assert f"| stop | {scoreboard.MEANINGS['stop']} | 1 in 1, 0 | 0 in 0, 0 | all promises kept |" in text
    assert f"| pause | {scoreboard.MEANINGS['pause']} | 0 in 0, 0 | 0 in 0, 0 | did not come |" in text
    assert f"| cut | {scoreboard.MEANINGS['cut']} | 0 in 0, 0 | 1 in 1, 0 | 1 seeds failed |" in text
    assert f"1 of {len(PLANTED)} were found" in text
    assert "Run at commit 89abcde, today: 1." in text
