"""Apache's Java clients, unchanged, that know `contrailmq proxy` alone, in front of two brokers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from apache import Apache, facts

from contrailmq import Admin
from contrailmq.testing import LocalCluster

pytestmark = pytest.mark.program("Java client (remoting)", "5.5.0")

pytest.importorskip("google.protobuf", reason="the proxy needs the extra grpc")


@contextmanager
def proxy_of(namesrv: str) -> Iterator[str]:
    """The address for remoting clients."""
    flags = ("-n", namesrv, "--port", "0", "--remoting-port", "0")
    process = subprocess.Popen([sys.executable, "-m", "contrailmq", "proxy", *flags], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        ready = process.stdout.readline().split()
        assert ready[:2] == ["ready", "proxy"], ready
        yield ready[-1]
    finally:
        process.terminate()
        process.wait(30)
        process.stdout.close()


@pytest.fixture(scope="module")
def proxy() -> Iterator[str]:
    with LocalCluster(brokers=2, config={"transactionTimeOut": "1000", "transactionCheckInterval": "1000"}) as cluster:
        with Admin(namesrv=cluster.namesrv) as admin:
            for topic in ("JavaPlain", "JavaOrder", "JavaRetry", "JavaHalf"):
                admin.create_topic(topic, queues=2)
        with proxy_of(cluster.namesrv) as address:
            yield address


def bodies(output: str) -> list[str]:
    return sorted(fact[5] for fact in facts(output, "got"))


def all_of(count: int) -> list[str]:
    return sorted(f"body-{number}" for number in range(count))


def test_a_push_consumer_gets_what_a_producer_sent(rocketmq: Apache, proxy: str) -> None:
    rocketmq.client("produce", proxy, "JavaPlain", "20")
    assert bodies(rocketmq.client("consume", proxy, "java", "JavaPlain", "*", "20", "concurrent")) == all_of(20)


def test_queues_are_locked_for_an_orderly_consumer(rocketmq: Apache, proxy: str) -> None:
    rocketmq.client("ordered", proxy, "JavaOrder", "40")
    assert bodies(rocketmq.client("consume", proxy, "java_order", "JavaOrder", "*", "40", "orderly")) == all_of(40)


def test_a_failed_message_comes_back(rocketmq: Apache, proxy: str) -> None:
    rocketmq.client("produce", proxy, "JavaRetry", "3")
    got = rocketmq.client("consume", proxy, "java_retry", "JavaRetry", "*", "3", "retry")
    assert sorted((fact[5], fact[2]) for fact in facts(got, "got")) == [(f"body-{number}", "1") for number in range(3)]
