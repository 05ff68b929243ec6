"""Apache's Go client, unchanged, against our NameServer and broker."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from apache import facts

from contrailmq.testing import LocalCluster

pytestmark = pytest.mark.program("Go client (remoting)", "2.1.2")

SOURCE = Path(__file__).parent / "go"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The compiled program; its module comes through the Go proxy by name."""
    if shutil.which("go") is None:
        pytest.skip("go is not on PATH: install Go 1.21 or newer")
    target = tmp_path_factory.mktemp("go") / "client"
    done = subprocess.run(["go", "build", "-o", str(target), "."], cwd=SOURCE, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"the Go client could not be built here: {done.stderr[-300:]}")
    return target


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


def run(client: Path, *arguments: str) -> str:
    done = subprocess.run([str(client), *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def test_produce_and_consume_by_tag(client: Path, cluster: LocalCluster) -> None:
    sent = facts(run(client, "produce", cluster.namesrv, "GoPlain", "20"), "sent")
    assert [fact[0] for fact in sent] == ["0"] * 20
    got = run(client, "consume", cluster.namesrv, "GoPlain", "10", "go_odd", "odd")
    assert facts(got, "done") == [["true"]]
    assert sorted(fact[3] for fact in facts(got, "got")) == sorted(f"body-{i}" for i in range(1, 20, 2))


def test_a_batch_arrives_message_by_message(client: Path, cluster: LocalCluster) -> None:
    run(client, "batch", cluster.namesrv, "GoBatch", "6")
    got = run(client, "consume", cluster.namesrv, "GoBatch", "6", "go_batch", "*")
    assert sorted(fact[3] for fact in facts(got, "got")) == [f"body-{i}" for i in range(6)]


def test_an_orderly_consumer_sees_each_queue_in_order(client: Path, cluster: LocalCluster) -> None:
    run(client, "produce", cluster.namesrv, "GoOrder", "20")
    got = run(client, "orderly", cluster.namesrv, "GoOrder", "20", "go_order", "*")
    by_queue: dict[str, list[int]] = {}
    for queue, offset, _, _ in facts(got, "got"):
        by_queue.setdefault(queue, []).append(int(offset))
    assert sum(map(len, by_queue.values())) == 20
    assert all(offsets == sorted(offsets) for offsets in by_queue.values())
