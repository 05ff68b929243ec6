"""Programs that may die, each in a fork of one process that has imported what they need: starting costs little."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Self

import contrailmq

# Imports start no threads, so that a fork has all that the program needs.
_SERVER = """
import json, os, sys
from contrailmq.spark.jobs import archive, archive_repair, delta, iceberg, upkeep
from contrailmq.spark.sources import commitlog
for name in ("deltalake", "pyiceberg.catalog.sql"):
    try:
        __import__(name)
    except ImportError:
        continue  # tests that need it are skipped
for line in sys.stdin:
    child = os.fork()
    if child == 0:
        exec(compile(json.loads(line), "forked", "exec"), {})
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Forking:
    """The process, as a context manager."""

    def __enter__(self) -> Self:
        self._server = subprocess.Popen(
            [sys.executable, "-c", _SERVER],
            env={**os.environ, "PYTHONPATH": str(Path(contrailmq.__file__).parents[1])},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self._server.communicate()

    def run(self, code: str) -> int:
        """How a program ended: as `Popen.returncode` says it."""
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        self._server.stdin.write(json.dumps(code) + "\n")
        self._server.stdin.flush()
        return int(self._server.stdout.readline())
