"""`python -m bench replication` runs to its end with ours on both sides, and prints what it says that it measures."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from bench.groups import Group, ours_command
from bench.replication import SHAPES, Settings, beside, measure_replication

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="the load generator is C: no cc is here")


def test_figures_stand_side_by_side_with_their_ratio() -> None:
    assert beside([300.0, 200.0]) == "300 / 200 (1.50)"
    assert beside([30.04, 0.0]) == "30.0 / 0.0", "nothing is compared with nothing"
    assert beside([-4.0, 12.0], is_ratio=False) == "-4.0 / 12.0"
    assert beside([51.23]) == "51.2"


@needs_cc
@pytest.mark.long
def test_every_part_is_measured_on_both_sides(tmp_path: Path) -> None:
    settings = Settings(
        tmp_path, rounds=1, seconds=2.0, warm_seconds=0.2, settle_seconds=0.0, mebibytes=4, directory=tmp_path
    )
    figures = measure_replication(settings, theirs=lambda home: Group("other", home, ours_command))
    for shape in SHAPES:
        name = "{} x {}".format(*shape)
        for part in (f"async {name}, sends/s, no slave", f"async {name}, sends/s, a slave", f"sync {name}, sends/s"):
            assert min(values(figures[part])) > 0, part
        assert figures[f"sync {name}, not acknowledged"] == "0.0 / 0.0"
    assert min(values(figures["catch-up, MB"])) > 3.0
    assert min(values(figures["catch-up, MB/s until the log has it"])) > 0
    assert min(values(figures["catch-up, MB/s until queues and index have it"])) > 0
    assert all(10 < resident < 500 for resident in values(figures["idle slave, resident MB"]))


def values(text: object) -> list[float]:
    return [float(value) for value in str(text).partition(" (")[0].split(" / ")]
