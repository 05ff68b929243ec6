"""The figures of `contrailmq bench spark`: CPU of a family of processes, whoever ends meanwhile."""

from __future__ import annotations

import pytest

from contrailmq.cli import bench_spark
from contrailmq.cli.bench_spark import CpuMeter, Process


def test_cpu_never_goes_back_when_processes_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_spark, "_TICKS_PER_S", 1)
    driver, jvm, worker = Process(1, 0, 5, 10), Process(2, 1, 6, 20), Process(3, 2, 7, 30)
    stranger = Process(9, 0, 1, 1000)
    tables = [
        [driver, jvm, worker, stranger],
        [driver, jvm, stranger],  # the worker ended and nobody waited for it
        [driver, jvm._replace(ticks=25), Process(3, 0, 99, 500), stranger],  # its number is a stranger's now
        [driver, worker._replace(parent=0, ticks=31), stranger],  # the parent ended first: still of the family
    ]
    meter = CpuMeter(lambda: tables.pop(0), root=1)
    assert [meter.seconds() for _ in range(4)] == [60, 60, 65, 66]
