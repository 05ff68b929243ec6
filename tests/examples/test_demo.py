"""`make demo` runs to its end, which is the pipeline's report, and leaves nothing odd on the screen."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import contrailmq


def test_the_demo_ends_with_the_pipelines_report() -> None:
    environment = os.environ | {"PYTHONPATH": str(Path(contrailmq.__file__).parents[1]), "COLUMNS": "100"}
    done = subprocess.run(
        [sys.executable, "-m", "contrailmq", "demo"], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    _, found, report = done.stdout.partition("contrailmq pipeline report")
    assert found
    rows = dict(re.findall(r"^│ (\S+) +│ (\d+) +│", report, re.MULTILINE))
    assert (rows["Orders"], rows["Reminders"], rows["Transfers"]) == ("12", "2", "1")
    assert re.fullmatch(r"done in \d+\.\d s; nothing is left behind", report.rstrip().splitlines()[-1])
