"""The Python clients that wrap RocketMQ's C++ library, unchanged, against our NameServer and broker.

`rocketmq` 0.4.4 and `rocketmq-client-python` 0.5.0rc2 carry the library (client-cpp 1.x) in their wheels;
2.0.0 comes without it.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from apache import facts

from contrailmq import Message, Producer
from contrailmq.testing import LocalCluster

PROGRAM = Path(__file__).parent / "cpp" / "client.py"
PACKAGES = [
    pytest.param(
        f"{name}=={version}", marks=pytest.mark.program(f"Python client {name} (C++, remoting)", version), id=version
    )
    for name, version in (("rocketmq", "0.4.4"), ("rocketmq-client-python", "0.5.0rc2"))
]


@pytest.fixture(scope="module", params=PACKAGES)
def python(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment that has the package, installed from the package index by name."""
    package: str = request.param
    home = tmp_path_factory.mktemp("cpp")
    interpreter = home / "bin" / "python"
    for command in (
        [sys.executable, "-m", "venv", str(home)],
        [str(interpreter), "-m", "pip", "install", "-q", "--disable-pip-version-check", package],
        [str(interpreter), "-c", "import rocketmq.client"],
    ):
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(
                f"{package} cannot be used here: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}"
            )
    return interpreter


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """One for each test and package."""
    return "Cpp_" + "".join(letter if letter.isalnum() else "_" for letter in request.node.name[-60:])


def run(python: Path, *arguments: str) -> str:
    done = subprocess.run([str(python), str(PROGRAM), *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_produce_and_consume_by_tag(python: Path, cluster: LocalCluster, topic: str) -> None:
    sent = facts(run(python, "produce", cluster.namesrv, topic, "20"), "sent")
    assert [fact[0] for fact in sent] == ["0"] * 20
    got = run(python, "consume", cluster.namesrv, topic, "10", f"{topic}_odd", "odd")
    assert facts(got, "done") == [["true"]]
    assert sorted(fact[3] for fact in facts(got, "got")) == sorted(f"body-{i}" for i in range(1, 20, 2))


def test_a_batch_arrives_message_by_message(python: Path, cluster: LocalCluster, topic: str) -> None:
    asked = "from rocketmq.client import Producer; print(hasattr(Producer, 'send_batch'))"
    if subprocess.run([str(python), "-c", asked], capture_output=True, text=True).stdout.strip() != "True":
        pytest.skip("this package has no batches (Producer.send_batch)")
    run(python, "produce", cluster.namesrv, topic, "1")  # creates the topic
    assert facts(run(python, "batch", cluster.namesrv, topic, "6"), "sent")[0][0] == "0"
    got = run(python, "consume", cluster.namesrv, topic, "7", f"{topic}_all", "*")
    assert sorted(fact[3] for fact in facts(got, "got")) == sorted(["body-0", *(f"body-{i}" for i in range(6))])


def test_an_orderly_consumer_sees_each_queue_in_order(python: Path, cluster: LocalCluster, topic: str) -> None:
    run(python, "produce", cluster.namesrv, topic, "20")
    got = run(python, "consume", cluster.namesrv, topic, "20", f"{topic}_order", "*", "orderly")
    by_queue: dict[str, list[int]] = {}
    for queue, offset, _, _ in facts(got, "got"):
        by_queue.setdefault(queue, []).append(int(offset))
    assert sum(map(len, by_queue.values())) == 20
    assert all(offsets == list(range(len(offsets))) for offsets in by_queue.values())


def test_what_our_producer_compressed_arrives_whole(python: Path, cluster: LocalCluster, topic: str) -> None:
    long = "long " * 2000
    with Producer("to_cpp", namesrv=cluster.namesrv) as producer:
        producer.send(Message(topic, long.encode(), tags="long"))
    got = run(python, "consume", cluster.namesrv, topic, "1", f"{topic}_long", "long")
    assert [(fact[2], fact[3]) for fact in facts(got, "got")] == [("long", long)]
