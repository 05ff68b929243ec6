"""How many examples a property test takes: a fifth in `make test`, all of them in `make test-long`."""

from __future__ import annotations

import os

IS_LONG = bool(os.environ.get("CONTRAILMQ_LONG"))


def examples(count: int) -> int:
    return count if IS_LONG else max(10, count // 5)
