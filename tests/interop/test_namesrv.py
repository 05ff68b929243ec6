"""Our NameServer under Apache's broker, clients and tools.

One Apache broker registers with two NameServers, Apache's and ours, so both know the same; tools must then print the
same from either.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from apache import Apache, facts

pytestmark = pytest.mark.program("Apache's broker", "5.5.0")

_LOGGING = re.compile(r"\|-(INFO|WARN|ERROR) in |^(RocketMQLog|OpenJDK|SLF4J)")


@contextmanager
def our_namesrv(home: Path) -> Iterator[str]:
    """`contrailmq namesrv` on a free port; its address."""
    command = [sys.executable, "-m", "contrailmq", "namesrv", "-n", "127.0.0.1:0", "--set", f"rocketmqHome={home}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = process.stdout.readline().split()
        assert ready[:2] == ["ready", "namesrv"], ready
        try:
            yield ready[2]
        finally:
            process.terminate()
            assert process.wait(30) == 0


def answer(output: str) -> list[str]:
    """What a tool printed, without Apache's logging and in an order that does not depend on hash tables."""
    lines = [re.sub(r"\s+", " ", line).strip() for line in output.splitlines()]
    return sorted(line for line in lines if line and not _LOGGING.search(line))


def stable(line: str) -> str:
    """A line of clusterList without the figures that move by themselves (rates, times, disk use)."""
    return " ".join(line.split(" ")[:5])


def test_apaches_broker_clients_and_tools_take_our_name_server_for_theirs(rocketmq: Apache, tmp_path: Path) -> None:
    with rocketmq.namesrv() as theirs, our_namesrv(tmp_path) as ours:
        with rocketmq.broker(f"{theirs.address};{ours}"):
            sent = rocketmq.client("produce", ours, "NamesrvTopic", "4")
            assert [fact[0] for fact in facts(sent, "sent")] == ["SEND_OK"] * 4
            got = rocketmq.client("consume", ours, "namesrv_group", "NamesrvTopic", "even", "2", "concurrent")
            assert sorted(fact[5] for fact in facts(got, "got")) == ["body-0", "body-2"]

            def same(*arguments: str) -> list[str]:
                outputs = [
                    (address, rocketmq.mqadmin(*arguments, namesrv=address)) for address in (theirs.address, ours)
                ]
                shown = [answer(output.replace(address, "NAMESRV")) for address, output in outputs]
                if arguments[0] == "clusterList":
                    shown = [[stable(line) for line in lines] for lines in shown]
                assert shown[0] == shown[1], arguments
                assert shown[0], arguments
                return shown[1]

            assert any("broker-a" in line for line in same("clusterList"))
            same("topicList")
            assert any('"writeQueueNums":' in line for line in same("topicRoute", "-t", "NamesrvTopic"))
            same("updateKvConfig", "-s", "space", "-k", "key", "-v", "value")
            same("deleteKvConfig", "-s", "space", "-k", "key")
            same("wipeWritePerm", "-b", "broker-a")
            assert not any('"perm":6' in line for line in same("topicRoute", "-t", "NamesrvTopic"))
            same("addWritePerm", "-b", "broker-a")
        rocketmq.mqadmin("topicList", namesrv=ours)
