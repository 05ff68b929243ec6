"""What our sources are built on, looked for when this module is imported.

`shipping.py` brings this package to Spark's workers, but not what it imports. A worker that lacks some of it would only
say "No module named 'msgspec'", deep in a Spark traceback. So the modules that workers load first import
this one before all others; it names everything that is missing, where, and the remedy.
"""

from __future__ import annotations

import importlib.util
import socket
import sys
from typing import Final

NEEDED: Final = ("lz4", "msgspec", "numpy", "pyarrow", "zstandard")


def missing_text(missing: list[str]) -> str:
    """The text about modules that this Python does not have."""
    return (
        f"{sys.executable} on host {socket.gethostname()} lacks {', '.join(missing)}, which contrailmq.spark needs: "
        "pip install 'contrailmq[spark]' there. Spark's workers get contrailmq itself from the driver, but what it is "
        f"built on must be installed on each (pip install {' '.join(missing)}) or travel as a packed environment "
        "(spark.archives)"
    )


def _check() -> None:
    missing = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(missing_text(missing), name=missing[0])


_check()
