"""Apache's Java producer is answered after the sync under SYNC_FLUSH, whatever its properties look like."""

from __future__ import annotations

import os
import threading

import pytest
from apache import Apache, facts

from contrailmq import Message, Producer
from contrailmq.store import Files
from contrailmq.testing import LocalCluster

pytestmark = pytest.mark.program("Java client (remoting)", "5.5.0")

SYNC_MS = 700
WAITING = ["WAIT=true", "NOWAIT=false", "XWAIT=false", "WAIT=falsely", "WAITS=false", "wait=false"]


@pytest.mark.parametrize("form", ["JSON", "ROCKETMQ"])
def test_javas_producer_waits_for_the_sync_unless_wait_is_false(
    form: str, rocketmq: Apache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a disk whose syncs take 700 ms."""
    sync = Files.sync

    def slow_sync(self: Files, descriptor: int) -> None:
        if "commitlog" in os.readlink(f"/proc/self/fd/{descriptor}"):
            threading.Event().wait(SYNC_MS / 1000)
        sync(self, descriptor)

    with LocalCluster(config={"flushDiskType": "SYNC_FLUSH"}) as cluster:
        with Producer("ours", namesrv=cluster.namesrv, send_timeout_s=60.0) as producer:
            producer.send(Message(f"Waiting{form}", b"the topic and the first log file are there"))
        monkeypatch.setattr(Files, "sync", slow_sync)
        told = rocketmq.run(
            f"-Drocketmq.serialize.type={form}", "Waiting", cluster.namesrv, f"Waiting{form}", *WAITING, "WAIT=false"
        )
        monkeypatch.undo()
    took = {(kind, name): (status, int(ms)) for kind, name, status, ms in facts(told, "took")}
    assert {status for status, _ in took.values()} == {"SEND_OK"}
    for name in WAITING:
        # A sync that was under way when the message came may be the one before its own: then it waits longer.
        assert took["single", name][1] >= SYNC_MS, took
        # The Java client takes whatever is not "true" for "false" when it makes a batch, and says WAIT=false of it.
        assert took["batch", name][1] >= SYNC_MS or name == "WAIT=falsely", took
    assert took["single", "WAIT=false"][1] < SYNC_MS > took["batch", "WAIT=false"][1], took
