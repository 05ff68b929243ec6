"""Run by test_archive.py in its own process: archive a stream, and die by SIGKILL right after the first commit."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import contrailmq.spark
from contrailmq.spark.jobs import manifest
from spark.test_archive import start_stream


def main(store: str, folder: str) -> None:
    commit = manifest.Manifest.commit

    def commit_then_die(self: manifest.Manifest, *args: Any, **keywords: Any) -> manifest.ArchiveState:
        state = commit(self, *args, **keywords)
        if state.version == 1:
            # The JVM goes too: it notices that its Python has gone.
            os.kill(os.getpid(), signal.SIGKILL)
        return state

    manifest.Manifest.commit = commit_then_die  # type: ignore[method-assign]
    session = contrailmq.spark.session("dies", master="local[2]", spark_driver_memory="1g")
    start_stream(session, store, Path(folder)).awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
