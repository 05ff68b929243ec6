"""The gRPC load counts what was answered with status OK, and its figures are for a call and for a message."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from bench.grpc_calls import OURS, build_load, compared, measure_grpc, per_call
from bench.mixed import NotDelivered, Settings
from contrailmq.proxy.protocol import v2
from contrailmq.proxy.statuses import Code
from contrailmq.testing import LocalCluster
from proxy.test_bad_input import proxy_process

needs_go = pytest.mark.skipif(shutil.which("go") is None, reason="the load generator is a Go program: no go is here")


def test_figures_are_for_a_call_and_for_a_message() -> None:
    said = {
        "seconds": 2.0, "sent": 0.0, "acked": 400.0, "generator_cpu_s": 1.0, "receive calls": 100.0,
        "receive p99 ms": 7.0, "AckMessage calls": 400.0, "AckMessage p99 ms": 3.0,
    }  # fmt: skip
    assert per_call(said, 0.1) == {
        "messages/s": 200.0,
        "AckMessage p99 ms": 3.0,
        "receive p99 ms": 7.0,
        "server CPU us/call": 200.0,
        "server CPU us/message": 250.0,
        "cores of the load": 0.5,
    }


def test_a_round_without_messages_gives_no_figure() -> None:
    with pytest.raises(NotDelivered, match="more --messages are needed"):
        per_call({"seconds": 2.0, "sent": 0.0, "acked": 0.0, "generator_cpu_s": 1.0, "receive calls": 9.0}, 0.1)


def test_medians_of_ours_apaches_and_the_empty_handlers_are_compared() -> None:
    four = [[{"messages/s": rate} for rate in rates] for rates in ((9.0, 100.0, 30.0), (60.0,), (90.0,), (5.0,))]
    assert compared(four) == {"messages/s": "30 / 60 (0.50), empty handler 90, grpcio's 5"}


@needs_go
@pytest.mark.long
def test_a_call_that_is_answered_with_another_status_gives_no_figures(tmp_path: Path) -> None:
    """gRPC's own status is OK all the same."""
    settings = v2.TelemetryCommand(settings=v2.Settings(publishing=v2.Publishing()))
    message = v2.Message(topic=v2.Resource(name="nowhere"), body=b"x")
    message.system_properties.message_id = "01"
    requests = [settings, v2.SendMessageRequest(messages=[message])]
    lines = "".join(request.SerializeToString().hex() + "\n" for request in requests)
    load = build_load(tmp_path / "load")
    with LocalCluster() as cluster, proxy_process(cluster.namesrv) as (address, _):
        command = [str(load), address, "1", "2", "0.2", "send"]
        done = subprocess.run(command, input=lines, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert f"SendMessage was answered with status {Code.TOPIC_NOT_FOUND}" in done.stderr


@needs_go
@pytest.mark.long
def test_both_sides_and_the_empty_handlers_give_figures(tmp_path: Path) -> None:
    settings = Settings(
        tmp_path, OURS, OURS, rounds=1, seconds=0.5, warm_seconds=0.2, settle_seconds=0.0, directory=tmp_path
    )
    figures = measure_grpc(settings, messages=2000)
    for what in ("send", "receive 1 + ack", "receive 16 + ack"):
        for name in ("messages/s", "server CPU us/call"):
            ours, _, others = str(figures[f"{what}: {name}"]).partition(" / ")
            assert float(ours) > 0, (what, name)
            assert float(others.split()[0]) > 0, (what, name)
            assert float(others.rpartition(" ")[2]) > 0, (what, name)
