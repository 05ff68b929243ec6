"""How many examples a property test takes, and how many places a test of damage tries.

`make test-long` takes all of them and `make test` a tenth. `make test-plain` takes a twentieth: it runs after `make
test`, on the sources of what was tried compiled, and looks for what differs between the two.
"""

from __future__ import annotations

import os

IS_LONG = bool(os.environ.get("CONTRAILMQ_LONG"))
IS_SECOND = bool(os.environ.get("CONTRAILMQ_SECOND_RUN"))
LEAST = 10


def examples(count: int) -> int:
    return count if IS_LONG else max(LEAST, count // (20 if IS_SECOND else 10))
