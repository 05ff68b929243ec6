"""A Node client of the remoting protocol (ali-ons, pure JavaScript), unchanged, against our NameServer and broker.

Apache's own Node packages do not take part: `rocketmq-client-nodejs` speaks gRPC only, and `apache-rocketmq` is a
binding that downloads a C++ library when it is installed.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from apache import facts

from contrailmq import Admin, Message, Producer
from contrailmq.testing import LocalCluster

pytestmark = pytest.mark.program("Node client ali-ons (remoting)", "3.12.0")

SOURCE = Path(__file__).parent / "node"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program beside its installed package, which comes from the npm registry by name."""
    for tool in ("node", "npm"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not on PATH: install Node 18 or newer")
    target = tmp_path_factory.mktemp("node")
    for name in ("package.json", "client.js"):
        shutil.copy(SOURCE / name, target)
    done = subprocess.run(
        ["npm", "install", "--no-audit", "--no-fund", "--silent"], cwd=target, capture_output=True, text=True
    )
    if done.returncode:
        pytest.skip(f"npm could not install ali-ons here: {(done.stdout + done.stderr)[-300:]}")
    return target / "client.js"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(config={"messageDelayLevel": "1s 1s 1s 1s"}) as running:
        with Admin(namesrv=running.namesrv) as admin:
            for topic in ("NodePlain", "NodeRetry"):
                admin.create_topic(topic, queues=4)  # this client does not know the template topic
        yield running


def run(client: Path, *arguments: str) -> str:
    done = subprocess.run(["node", str(client), *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_produce_and_consume_by_tag(client: Path, cluster: LocalCluster) -> None:
    sent = facts(run(client, "produce", cluster.namesrv, "NodePlain", "20"), "sent")
    assert [fact[0] for fact in sent] == ["SEND_OK"] * 20
    got = run(client, "consume", cluster.namesrv, "NodePlain", "10", "node_odd", "odd")
    assert facts(got, "done") == [["true"]]
    taken = facts(got, "got")
    assert sorted(fact[3] for fact in taken) == sorted(f"body-{i}" for i in range(1, 20, 2))
    assert {(fact[0], fact[1]) for fact in taken} <= {(fact[1], fact[2]) for fact in sent}


def test_what_our_producer_compressed_and_batched_arrives_message_by_message(
    client: Path, cluster: LocalCluster
) -> None:
    long = "long " * 2000
    with Producer("to_node", namesrv=cluster.namesrv) as producer:
        producer.send(Message("NodeOurs", long.encode()))
        producer.send_batch([Message("NodeOurs", b"batch-%d" % i, tags="t") for i in range(4)])
    got = run(client, "consume", cluster.namesrv, "NodeOurs", "5", "node_ours", "*")
    assert sorted(fact[3] for fact in facts(got, "got")) == [*(f"batch-{i}" for i in range(4)), long]


def test_a_message_that_the_listener_refuses_comes_again_with_its_count(client: Path, cluster: LocalCluster) -> None:
    run(client, "produce", cluster.namesrv, "NodeRetry", "2")
    got = run(client, "consume", cluster.namesrv, "NodeRetry", "2", "node_retry", "*", "body-1")
    counts = sorted((fact[3], fact[4]) for fact in facts(got, "got"))
    assert counts == [("body-0", "0"), ("body-1", "0"), ("body-1", "1")]
