"""The official gRPC client of RocketMQ 5 for Python, unchanged, through our proxy, in front of both brokers."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from apache import Apache, Program, facts

from contrailmq import Admin
from contrailmq.testing import LocalCluster
from contrailmq.wire.admin_bodies import SubscriptionGroupConfig
from free_ports import free_port

PROGRAM = Path(__file__).parent / "grpc" / "client.py"
PACKAGE = "rocketmq-python-client==5.1.2"
TYPES = {"GrpcPlain": "NORMAL", "GrpcOrdered": "FIFO", "GrpcLater": "DELAY", "GrpcDecided": "TRANSACTION"}
SOON = {"transactionTimeOut": "2000", "transactionCheckInterval": "1000"}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has the client, installed from the package index by name."""
    home = tmp_path_factory.mktemp("grpc")
    interpreter = home / "bin" / "python"
    for command in (
        [sys.executable, "-m", "venv", str(home)],
        [str(interpreter), "-m", "pip", "install", "-q", "--disable-pip-version-check", PACKAGE],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(
                f"{PACKAGE} cannot be installed here: {(done.stderr.strip().splitlines() or ['no reason'])[-1]}"
            )
    return interpreter


@pytest.fixture(scope="module", params=["Apache", "ours"])
def behind(request: pytest.FixtureRequest, rocketmq: Apache) -> Iterator[tuple[str, str, str]]:
    """(whose broker, NameServer, endpoint of our proxy in front of it)."""
    with ExitStack() as stack:
        if request.param == "Apache":
            namesrv, _ = stack.enter_context(rocketmq.cluster(**SOON))
        else:
            namesrv = stack.enter_context(LocalCluster(config=SOON)).namesrv
        with Admin(namesrv=namesrv) as admin:
            for name, kind in TYPES.items():
                admin.create_topic(name, queues=4, attributes={"message.type": kind})
            admin.create_group(SubscriptionGroupConfig(group_name="GrpcInOrder", consume_message_orderly=True))
        port = free_port()
        command = [sys.executable, "-m", "contrailmq", "proxy", "-n", namesrv, "--port", str(port)]
        log = rocketmq.work / f"proxy-{port}.log"
        stack.enter_context(
            Program(command, port=port, log=log, env=os.environ, ready=lambda text: "ready proxy" in text)
        )
        yield request.param, namesrv, f"127.0.0.1:{port}"


def run(python: Path, *arguments: str) -> str:
    done = subprocess.run([str(python), str(PROGRAM), *arguments], capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_every_type_of_message_arrives_once_in_order_and_again_after_a_failure(
    python: Path, behind: tuple[str, str, str]
) -> None:
    whose, _, endpoint = behind
    output = run(python, "flow", endpoint, "")
    pushed = facts(output, "push")
    plain = [fact for fact in pushed if fact[1].startswith("plain")]
    assert sorted(fact[1] for fact in plain) == sorted(f"plain-{number}" for number in range(20)), whose
    assert {fact[2] for fact in plain} == {"odd", "even"}
    ordered = [f"ordered-{number}" for number in range(10)]
    assert sorted(fact[1] for fact in pushed if fact[0] == "GrpcOrdered") == ordered
    assert [fact[1] for fact in facts(output, "in-order")] == ordered
    assert [fact[4] for fact in pushed if fact[1] == "fails"] == ["1", "2"]
    assert len([fact for fact in pushed if fact[1].startswith("later")]) == 1
    taken = facts(output, "simple")
    assert sorted(fact[1] for fact in taken) == sorted(f"plain-{number}" for number in range(1, 20, 2))
    assert {fact[2] for fact in taken} == {"odd"}


def test_transactions_are_visible_as_decided_also_when_the_broker_had_to_ask(
    python: Path, behind: tuple[str, str, str]
) -> None:
    _, namesrv, endpoint = behind
    output = run(python, "decide", endpoint, "")
    assert facts(output, "asked") == [["True"]]
    assert ["orphan"] in facts(output, "checked")
    with Admin(namesrv=namesrv) as admin:
        keys = ("committed", "undone", "orphan")
        # Until its op message is written, three seconds later, Apache's broker may check and commit a half again.
        found = {key: {one.body for one in admin.messages_by_key("GrpcDecided", key)} for key in keys}
    assert found == {"committed": {b"committed"}, "undone": set(), "orphan": {b"orphan"}}
