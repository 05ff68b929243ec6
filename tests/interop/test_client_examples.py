"""The clients' own example programs, as their packages have them, against our NameServer and broker.

The examples of Apache's Java client take the NameServer from NAMESRV_ADDR. Those of the gRPC clients have an address in
their source (Go, Rust), or are text in a README (Node): they cannot be pointed at a proxy without a change.
"""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from apache import Apache

from contrailmq import Admin
from contrailmq.testing import LocalCluster

pytestmark = pytest.mark.program("Java client (remoting)", "5.5.0")

EXAMPLES = "org.apache.rocketmq.example"
WAIT_S = 600.0  # JVMs, where many are busy


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


def _environment(rocketmq: Apache, namesrv: str) -> dict[str, str]:
    return rocketmq.environment() | {"NAMESRV_ADDR": namesrv}


def _run(rocketmq: Apache, namesrv: str, example: str) -> str:
    done = subprocess.run(
        rocketmq.java(f"{EXAMPLES}.{example}"),
        capture_output=True, text=True, timeout=WAIT_S, env=_environment(rocketmq, namesrv),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def _consumed(rocketmq: Apache, namesrv: str, example: str, count: int, work: Path) -> list[str]:
    """The message ids that it printed until so many had come, and for two seconds after; it never ends by itself."""
    output = work / "consumer.txt"
    with output.open("wb") as out:
        process = subprocess.Popen(
            rocketmq.java(f"{EXAMPLES}.{example}"),
            stdout=out, stderr=subprocess.STDOUT, env=_environment(rocketmq, namesrv),
        )  # fmt: skip
    try:
        deadline = time.monotonic() + WAIT_S
        while len(set(_ids(output.read_text()))) < count:
            assert time.monotonic() < deadline, output.read_text()[-3000:]
            assert process.poll() is None, output.read_text()[-3000:]
            time.sleep(0.2)
        time.sleep(2.0)  # a message too many would arrive now
    finally:
        process.kill()
        process.wait()
    return _ids(output.read_text())


def _sent(text: str) -> list[str]:
    """The ids by place in the log: by them the examples print what they receive."""
    assert text.count("sendStatus=SEND_OK") == text.count("sendStatus=")
    return re.findall(r"\boffsetMsgId=(\w+)", text)


def _ids(text: str) -> list[str]:
    return re.findall(r"\bmsgId=(\w+)", text)


def test_the_quickstart_producer_and_consumer(rocketmq: Apache, cluster: LocalCluster, tmp_path: Path) -> None:
    sent = _sent(_run(rocketmq, cluster.namesrv, "quickstart.Producer"))
    assert len(set(sent)) == 1000
    got = _consumed(rocketmq, cluster.namesrv, "quickstart.Consumer", 1000, tmp_path)
    assert sorted(got) == sorted(sent)


def test_the_filter_producer_and_consumer(rocketmq: Apache, cluster: LocalCluster, tmp_path: Path) -> None:
    """Sixty messages with three tags, of which the consumer wants two."""
    with Admin(namesrv=cluster.namesrv) as admin:
        admin.create_topic("TagFilterTest", queues=4)
    sent = _sent(_run(rocketmq, cluster.namesrv, "filter.TagFilterProducer"))
    assert len(set(sent)) == 60
    got = _consumed(rocketmq, cluster.namesrv, "filter.TagFilterConsumer", 40, tmp_path)
    assert len(got) == len(set(got)) == 40
    assert set(got) <= set(sent)


@pytest.mark.program("Go client (gRPC)", "5.1.3")
def test_the_go_examples_run_unchanged() -> None:
    pytest.skip('they cannot: the address and the topic in them are the constant "xxxxxx", to be edited first')


@pytest.mark.program("Node client (gRPC)", "1.0.8")
def test_the_node_examples_run_unchanged() -> None:
    pytest.skip("the package has none: they are text in its README, and the program of our tests follows them")


@pytest.mark.program("Rust client (gRPC)", "5.0.0")
def test_the_rust_examples_run_unchanged() -> None:
    pytest.skip("not run: localhost:8081 stands in them, a port that tests do not take")


@pytest.mark.program("Python client (gRPC)", "5.1.2")
def test_the_python_examples_run_unchanged() -> None:
    pytest.skip("the package has none")


@pytest.mark.program("Java client (gRPC)", "5.0.8")
def test_the_java_grpc_examples_run_unchanged() -> None:
    pytest.skip("the package has none: they are in the source tree of rocketmq-clients only")
