"""Names that no other test uses, nor another process on the same cluster."""

from __future__ import annotations

import itertools
import os

_numbers = itertools.count()


def fresh_name(kind: str) -> str:
    """For a topic and a group of one test's own."""
    return f"{kind}_{os.getpid()}_{next(_numbers)}"
