"""The load generators verify what they count, in both forms of headers, and the programs' lines are read as printed."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench.__main__ import app
from bench.apache_programs import PROGRAMS, measure_programs, parse_line
from bench.apache_programs import compared as compared_programs
from bench.mixed import OURS, NotDelivered, Settings, build_load, compared, measure_mixed, run_load
from contrailmq.testing import LocalCluster

needs_cc = pytest.mark.skipif(shutil.which("cc") is None, reason="the load generators are C: no cc is here")

# What mixed.c keeps for each of its 512 queues: its end, then count and checksum of the older log and of the last run.
_QUEUE = struct.Struct("<qqQqQ")
_QUEUES = 512

# Printed by rocketmq-example 5.5.0.
PRINTED = {
    "Producer": "Current Time: 2026-11-18 05:20:20,712 | Send TPS: 13965 | Max RT(ms): 2278 | Average RT(ms):   4.581 "
    "| Send Failed: 0 | Response Failed: 0",
    "BatchProducer": "Current Time: 2026-11-18 05:20:56,501 | Send TPS: 2149 | Send MPS: 34388 | Max RT(ms): 2745 | "
    "Average RT(ms):  29.742 | Average Message RT(ms):   1.859 | Send Failed: 57 | Send Message Failed: 912",
    "TransactionProducer": "Current Time: 2026-11-18 05:21:17,966 | Send TPS:    23 | Max RT(ms):  2158 | AVG RT(ms): "
    "352.8 | Send Failed: 0 | Check: 0 | UnexpectedCheck: 3 | DuplicatedCheck: 4",
    "Consumer": "Current Time: 2026-11-18 05:22:03,831 | Consume TPS: 21072 | AVG(B2C) RT(ms): 72885.851 | AVG(S2C) "
    "RT(ms): 72867.145 | MAX(B2C) RT(ms): 73768 | MAX(S2C) RT(ms): 73750 | Consume Fail: 0",
}


@pytest.mark.parametrize(
    ("name", "rate", "response_ms", "failures"),
    [
        ("Producer", 13965, 4.581, 0),
        ("BatchProducer", 34388, 29.742, 969),
        ("TransactionProducer", 23, 352.8, 7),
        ("Consumer", 21072, 72867.145, 0),
    ],
)
def test_a_line_of_apaches_programs_gives_rate_response_time_and_failures(
    name: str, rate: float, response_ms: float, failures: float
) -> None:
    (program,) = (one for one in PROGRAMS if one.name == name)
    found = parse_line(PRINTED[name])
    assert (found[program.rate], found[program.response_ms]) == (rate, response_ms)
    assert sum(found[name] for name in program.failures) == failures


def test_lines_that_are_not_figures_of_a_program_give_nothing() -> None:
    assert parse_line("topic: BmProducer, threadCount: 64, messageSize: 128, batchSize: 16") == {}
    idle = parse_line("Current Time: 2026-11-18 05:21:53,831 | Consume TPS: 0 | AVG(S2C) RT(ms):     NaN")
    assert idle["Consume TPS"] == 0
    assert idle["AVG(S2C) RT(ms)"] != idle["AVG(S2C) RT(ms)"]


def test_medians_of_programs_are_compared_and_failures_added() -> None:
    ours = [{"per_s": rate, "response_ms": 4.0, "cpu_us": 10.0, "failures": 1.0} for rate in (100.0, 300.0, 200.0)]
    theirs = [{"per_s": 400.0, "response_ms": 2.0, "cpu_us": 40.0, "failures": 0.0}] * 3
    assert compared_programs(ours, theirs) == {
        "messages/s": "200 / 400 (0.50)",
        "response ms": "4 / 2 (2.00)",
        "CPU us a message": "10 / 40 (0.25)",
        "failures": "3 / 0",
    }


def test_medians_of_the_mixed_load_are_compared_with_the_ratio_of_every_round() -> None:
    names = [
        "sends_per_s",
        "tail_1_messages_per_s",
        "tail_2_messages_per_s",
        "tail_3_messages_per_s",
        "tail_1_pulls_per_s",
    ]
    names += ["behind_messages_per_s", "behind_pulls_per_s", "send_p50_us", "send_p99_us", "tail_p50_us", "tail_p99_us"]
    names += ["behind_p50_us", "behind_p99_us", "cpu_us_per_moved", "generator_cores", "refused", "verified"]
    base = dict.fromkeys(names, 50.0)
    ours = [{**base, "sends_per_s": 300.0, "moved_per_s": moved} for moved in (100.0, 200.0)]
    theirs = [{**base, "sends_per_s": 200.0, "moved_per_s": moved} for moved in (100.0, 100.0)]
    lines = compared(ours, theirs)
    assert lines["sends/s"] == "300 / 200 (1.50)"
    assert lines["all messages moved/s"] == "150 / 100 (1.50)"
    assert lines["all messages moved/s, ratio of each round"] == "1.00 2.00"
    assert lines["messages verified by count and checksum"] == "100 / 100"


def test_forms_of_headers_and_programs_that_do_not_exist_are_refused() -> None:
    done = CliRunner().invoke(app, ["mixed", "--headers", "json,xml"])
    assert done.exit_code == 2
    assert "json, binary or both" in done.output
    done = CliRunner().invoke(app, ["apache-programs", "--only", "Producer,Poet"])
    assert done.exit_code == 2
    assert "TransactionProducer" in done.output


@needs_cc
@pytest.mark.long
@pytest.mark.parametrize("form", ["json", "binary"])
def test_the_uniform_load_sends_and_pulls_with_both_forms_of_headers(tmp_path: Path, form: str) -> None:
    build_load("load", tmp_path / "load")
    with LocalCluster(processes=True) as cluster:
        host, _, port = cluster.broker_addresses[0].partition(":")
        target = [host, port, "LoadTopic", "4", "2", "2"]
        sent = run_load("ours", [str(tmp_path / "load"), "send", *target, "1024", "0.5", form])
        pulled = run_load("ours", [str(tmp_path / "load"), "pull", *target, "32", "0.5", form])
    assert sent["messages_per_s"] > 0
    assert pulled["messages_per_s"] > 0
    assert sent["errors"] == pulled["errors"] == 0


@needs_cc
@pytest.mark.long
def test_the_mixed_load_gives_verified_figures_of_both_sides_in_both_forms(tmp_path: Path) -> None:
    figures = measure_mixed(
        Settings(tmp_path, other=OURS, forms=("json", "binary"), rounds=1, seconds=0.5, warm_seconds=0.2,
                 settle_seconds=0.0, mebibytes=2, directory=tmp_path)
    )  # fmt: skip
    for form in ("json", "binary"):
        for name in ("sends/s", "group 3 that tails, messages/s", "group behind, messages/s"):
            mine, _, other = str(figures[f"{form}: {name}"]).partition(" / ")
            assert float(mine) > 0, name
            assert float(other.split()[0]) > 0, name
        verified = str(figures[f"{form}: messages verified by count and checksum"]).split(" / ")
        assert all(int(count) > 0 for count in verified)
        assert figures[f"{form}: sends refused"] == "0 / 0"


@needs_cc
@pytest.mark.long
@pytest.mark.parametrize(("field", "said"), [(1, "checksum"), (2, "checksum"), (0, "code 21")])
def test_no_figure_comes_from_a_broker_that_did_not_deliver_what_was_sent(
    tmp_path: Path, field: int, said: str
) -> None:
    """What the generator remembers of each queue is changed: the broker then gives one message fewer, or others."""
    build_load("mixed", tmp_path / "mixed")
    state = tmp_path / "state"
    with LocalCluster(processes=True) as cluster:
        host, _, port = cluster.broker_addresses[0].partition(":")
        target = [host, port, str(state), "binary"]
        filled = run_load("ours", [str(tmp_path / "mixed"), "fill", *target, "1"])
        queues = [list(queue) for queue in _QUEUE.iter_unpack(state.read_bytes())]
        assert len(queues) == _QUEUES
        assert sum(queue[1] for queue in queues) == filled["messages"]
        for queue in queues:
            queue[field] += 1
        state.write_bytes(b"".join(_QUEUE.pack(*queue) for queue in queues))
        with pytest.raises(NotDelivered, match=said):
            run_load("ours", [str(tmp_path / "mixed"), "run", *target, "1"])


@needs_cc
@pytest.mark.long
def test_programs_run_against_both_brokers_and_their_best_line_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In place of a JVM a script prints what Apache's programs do, idle at first, and a line in two halves."""
    (tmp_path / "rocketmq-broker-5.5.0.jar").touch()
    java = tmp_path / "java"
    java.write_text(
        "#!/bin/sh\n"
        f'echo "$@" >> {tmp_path}/calls\n'
        f"echo '{PRINTED['Consumer'].replace('21072', '0')}'\n"
        f"printf '%s' '{PRINTED['Consumer'][:80]}'; sleep 0.3; echo '{PRINTED['Consumer'][80:]}'\n"
        f"echo '{PRINTED['Consumer'].replace('21072', '300')}'\n"
        "exec sleep 60\n"
    )
    java.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    settings = Settings(tmp_path, other=OURS, rounds=1, seconds=1.0, settle_seconds=0.0, directory=tmp_path)
    consumer = tuple(program for program in PROGRAMS if program.name == "Consumer")
    figures = measure_programs(settings, programs=consumer, backlog_seconds=0.2)
    assert figures["Consumer: messages/s"] == "21072 / 21072 (1.00)"
    assert figures["Consumer: failures"] == "0 / 0"
    calls = (tmp_path / "calls").read_text().splitlines()
    assert len(calls) == 2
    for call in calls:
        assert "org.apache.rocketmq.example.benchmark.Consumer -n 127.0.0.1:" in call
        assert "-t BenchmarkConsumer1 -ri 1000 -w 20" in call
