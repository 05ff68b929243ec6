"""On what a benchmark ran: a figure without its machine says nothing."""

from __future__ import annotations

import os
import platform

from contrailmq._compiled import build


def interpreter() -> str:
    """Python and its build, and whether the hot modules are compiled: each of the three is worth a third."""
    kind = "compiled" if build.compiled else "plain Python"
    return f"Python {platform.python_version()} ({platform.python_build()[1]}), hot modules {kind}"


def surroundings() -> dict[str, object]:
    """What stands first in a table of figures."""
    return {
        "machine": f"{os.cpu_count()} x {platform.machine()}, load {os.getloadavg()[0]:.1f}",
        "python": interpreter(),
    }
