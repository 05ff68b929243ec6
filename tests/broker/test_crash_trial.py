"""All kinds of traffic at once over kills of a broker process, in each flush mode: kill_trial.py has the rules.

Three kills for each mode; a hundred under CONTRAILMQ_LONG=1.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from broker.kill_trial import MODES, Trial
from broker.kill_verdict import table

KILLS = 100 if os.environ.get("CONTRAILMQ_LONG") else 3


@pytest.mark.parametrize("mode", MODES)
def test_kills_make_nothing_unreachable_and_repeat_only_what_is_young(mode: str, tmp_path: Path) -> None:
    verdict = Trial(mode, tmp_path, seed=20261118, say=lambda line: None).run(KILLS)
    print(f"\n{table([verdict])}")
    assert len(verdict.kills) == KILLS
    assert verdict.looked_at > 0
    assert verdict.broken == []
