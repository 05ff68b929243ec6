"""Upkeep of an archive on Spark whose workers are killed while they write: rows stay those of the log, files those that
are listed.

Workers die when a file shows that nobody lists yet. Spark tries their tasks again, and ends a job whose task died three
times (the session's master is local[2,3]): it is run again. `make test` kills five times, `make test-long` fifty.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException

from contrailmq.spark.jobs.manifest import Manifest
from contrailmq.spark.jobs.upkeep import compact, expire, vacuum
from contrailmq.spark.runtime.engine import SparkEngine
from spark.test_archive import user_offsets
from spark.test_kills import python_workers
from spark.test_upkeep import check, make_archive, middle_ms, on_disk, stored_since

KILLS = 50 if os.environ.get("CONTRAILMQ_LONG") else 5
LOOK_S = 0.01
ROUNDS_MAX = 20 * KILLS  # a guard: each round kills once or more, as a rule

pytestmark = pytest.mark.spark


class Killer:
    """Kills the workers of Spark whenever a job has begun a file that the archive did not have."""

    def __init__(self, target: Path) -> None:
        self.kills = 0
        self._target = target

    def during(self, job: Callable[[], Any]) -> None:
        """Run the job until it ends well, with one round of kills for each of its runs."""
        while True:
            over = threading.Event()
            watching = threading.Thread(target=self._kill_once, args=(on_disk(self._target), over))
            watching.start()
            before = self.kills
            try:
                job()
                return
            except PySparkException as exc:
                if self.kills == before or "most recent failure" not in str(exc):
                    raise
            finally:
                over.set()
                watching.join()

    def _kill_once(self, known: set[str], over: threading.Event) -> None:
        while not over.wait(LOOK_S):
            if on_disk(self._target) - known:
                for pid in python_workers():
                    with contextlib.suppress(ProcessLookupError):  # it ended by itself meanwhile
                        os.kill(pid, signal.SIGKILL)
                        self.kills += 1
                return


def test_upkeep_whose_workers_are_killed_loses_and_repeats_nothing(spark: Any, tmp_path: Path) -> None:
    _, made = make_archive(tmp_path, "topics")
    engine, everything, kept = SparkEngine(spark), user_offsets("clean"), stored_since("clean", middle_ms())
    kills = 0
    for _ in range(ROUNDS_MAX):
        shutil.copytree(made, tmp_path / "kept")
        killer = Killer(made)
        killer.during(lambda: compact(str(made), engine, target_bytes=20_000))
        check(made, everything)
        killer.during(lambda: expire(str(made), middle_ms(), engine))
        check(made, kept)
        vacuum(str(made), retention_s=0)
        check(made, kept)
        assert on_disk(made) == {file.path for file in Manifest(made).load().files}
        kills += killer.kills
        if kills >= KILLS:
            break
        shutil.rmtree(made)
        (tmp_path / "kept").rename(made)
    assert kills >= KILLS
