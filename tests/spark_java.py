"""How the JVMs that tests start for Spark spend little: they live for seconds.

Only the first compiler, the simplest collector, and classes from the archives of tools/spark_classes.py where `make
test` has made them. Java goes on without an archive that is missing or does not fit; `-Xlog:disable` keeps its remark
about that out of what programs print.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

BRIEF = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # half the CPU of a JVM that lives for seconds


def options(archive: str) -> str:
    """For a JVM whose classes are in this archive."""
    path = Path(sys.prefix, archive)
    return f"{BRIEF} -XX:SharedArchiveFile={path} -Xlog:disable" if path.exists() else BRIEF


PLAIN = options("spark-plain.jsa")


def for_our_sessions() -> None:
    """From now on, of what this process starts: Spark's launcher and its drivers read these variables."""
    os.environ.setdefault("SPARK_LAUNCHER_OPTS", BRIEF)
    os.environ.setdefault("SPARK_SUBMIT_OPTS", options("spark-ours.jsa"))
