"""The figures of `python -m bench spark`: CPU of a family of processes, and the comparison's table."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench import spark
from bench.__main__ import app
from bench.decode import measure_decode
from bench.kafka import KafkaEnvironment, KafkaEnvironmentError, _artifact, find_environment
from bench.spark import CpuMeter, Process, mixed
from bench.spark_kafka import Case, Round, _line


def test_cpu_never_goes_back_when_processes_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark, "_TICKS_PER_S", 1)
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


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="the machine gives this process one core")
@pytest.mark.long
def test_a_second_core_is_measured_by_turns_and_given_back() -> None:
    before, seen = os.sched_getaffinity(0), []
    line = spark._second_core(lambda: seen.append(len(os.sched_getaffinity(0))))
    assert seen == [1, 2, 1, 2, 1, 2]
    assert os.sched_getaffinity(0) == before
    assert re.search(r"target 1.6: \w+; others used \d+\.\d cores", line)


def test_nothing_is_fetched_for_the_comparison_unless_it_is_asked_for(tmp_path: Path) -> None:
    with pytest.raises(KafkaEnvironmentError, match="add --fetch-kafka"):
        find_environment(tmp_path / "none", fetch=False)
    assert not (tmp_path / "none").exists()
    (tmp_path / "ready").touch()
    assert find_environment(tmp_path, fetch=False).folder == tmp_path
    done = CliRunner().invoke(app, ["spark", "--kafka-home", str(tmp_path / "none")])
    assert isinstance(done.exception, KafkaEnvironmentError)


def test_maven_is_given_the_settings_and_its_failure_comes_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Maven that says how it was called and fails, as one without a way to a repository does."""
    maven = tmp_path / "mvn"
    maven.write_text('#!/bin/sh\necho "called with $*"\nexit 1\n')
    maven.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    wanted = ("org.apache.kafka", "kafka_2.13", "4.3.1")
    with pytest.raises(KafkaEnvironmentError, match="give it as --maven-settings") as with_settings:
        KafkaEnvironment(tmp_path, Path("/etc/own.xml"))._fetch("broker", wanted)
    assert "-s /etc/own.xml" in str(with_settings.value)
    with pytest.raises(KafkaEnvironmentError) as without:
        KafkaEnvironment(tmp_path)._fetch("broker", wanted)
    assert " -s " not in str(without.value)


def test_a_jar_is_known_by_its_name_without_the_version() -> None:
    names = {
        "kafka-clients-3.9.2": "kafka-clients",
        "scala-library-2.13.15": "scala-library",
        "spark-sql-kafka-0-10_2.13-4.2.0": "spark-sql-kafka",
        "commons-pool2-2.13.1": "commons-pool2",
    }
    assert {stem: _artifact(Path(f"/x/{stem}.jar")) for stem in names} == names


def test_a_comparison_takes_medians_and_says_which_target_is_short() -> None:
    took = {
        "files": [Round(2.0, 1.0), Round(9.0, 9.0), Round(1.0, 2.0)],
        "kafka read": [Round(3.0, 4.0), Round(3.0, 4.0), Round(1.0, 1.0)],
    }
    met = _line(Case("files", 1.5, "read", lambda: None), 6000, took)
    assert met == "3k rows/s (2.0 CPU s), Kafka 2k (4.0): 1.50x, by CPU 2.00x, target 1.5: met"
    assert _line(Case("files", 1.51, "read", lambda: None, 2), 6000, took) == (
        "2k rows/s (2.0 CPU s), Kafka 1k (4.0): 1.50x, by CPU 2.00x, target 1.51: SHORT"
    )
    took["kafka read, less"] = [Round(1.0, 4.0)]
    assert _line(Case("files", None, "read", lambda: None, without_headers="read, less"), 6000, took) == (
        "3k rows/s (2.0 CPU s), Kafka 2k (4.0): 1.50x, by CPU 2.00x; without headers 0.50x"
    )


@pytest.mark.long
def test_the_kernels_are_measured_with_and_without_each_shortcut(tmp_path: Path) -> None:
    figures = measure_decode(200, 1, directory=tmp_path)
    assert figures.pop("records in each log") == 200
    assert len(figures) == 10
    for name, figure in figures.items():
        cpu_us, ratio = re.fullmatch(r"(\d+\.\d\d) \((\d+\.\d\d)\)", str(figure)).groups()  # type: ignore[union-attr]
        assert float(cpu_us) > 0, name
        assert "all shortcuts" not in name or ratio == "1.00"


def test_a_mixed_log_has_many_topics_sizes_and_properties() -> None:
    made = list(mixed(2000))
    assert {(one.topic, one.queue) for one in made} > {("mixed_00", queue) for queue in range(8)}
    assert len({one.topic for one in made}) == 64
    sizes = sorted(len(one.body) for one in made)
    assert 100 <= sizes[0] < 110
    assert 15_000 < sizes[-1] <= 16_384
    assert 1000 < sizes[1000] < 1600, "half of a log-uniform range lies below its geometric mean"
    assert sum("KEYS" in one.properties for one in made) == 1000
    own = {"KEYS", "TAGS", "UNIQ_KEY", "WAIT"}
    assert {len(one.properties.keys() - own) for one in made} == set(range(13))
