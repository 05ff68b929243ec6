"""`contrailmq store copy --follow` from Apache's master: ended by a signal, resumed, opened by a broker of ours."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from apache import Apache

from contrailmq import Admin, ConsumeFromWhere, LitePullConsumer, Message, Producer, SendStatus
from contrailmq.store import StoreConfig, StoreView, verify_store
from contrailmq.testing import LocalCluster
from free_ports import free_port
from waiting_for import LIMIT_S, until

pytestmark = pytest.mark.program("Apache's broker", "5.5.0")

FILE_BYTES = 1024 * 1024


def _log(store: Path) -> bytes:
    """As it stands in its files, without what is not written yet."""
    return b"".join(file.read_bytes() for file in sorted((store / "commitlog").glob("[0-9]*"))).rstrip(b"\0")


def _follow(copy: Path, ha_port: int, conf: Path, is_there: Callable[[], bool]) -> dict[str, object]:
    """Follow until something is there; what the command says at its end."""
    command = [sys.executable, "-m", "contrailmq", "store", "copy", str(copy), "--from", f"127.0.0.1:{ha_port}"]
    process = subprocess.Popen(
        [*command, "--follow", "-c", str(conf), "--json"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        until(lambda: is_there() or process.poll() is not None, "all of the log in the copy")
        assert process.poll() is None, "it waits for more"
        process.send_signal(signal.SIGTERM)
        output, _ = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, output
    said: dict[str, object] = json.loads(output)
    return said


def test_apaches_master_is_backed_up_while_it_runs(rocketmq: Apache, tmp_path: Path) -> None:
    """From its first byte, over several files; the second run goes on where the first was ended."""
    master, copy, ha_port = tmp_path / "apache", tmp_path / "opened" / "broker-0", free_port()
    conf = tmp_path / "copy.conf"
    conf.write_text(f"mappedFileSizeCommitLog={FILE_BYTES}\nmaxHashSlotNum=5000\nmaxIndexNum=20000\n")
    sizes = {"mappedFileSizeCommitLog": FILE_BYTES, "haListenPort": ha_port}
    with rocketmq.namesrv() as namesrv, rocketmq.broker(namesrv.address, store=master, **sizes):
        with Admin(namesrv=namesrv.address) as admin:
            admin.create_topic("Shop", queues=4)
        with Producer("shop", namesrv=namesrv.address) as producer:
            for number in range(900):
                sent = producer.send(Message("Shop", b"%d" % number * 500, keys=f"k{number}"))
                assert sent.status is SendStatus.OK
            first = _follow(copy, ha_port, conf, lambda: _log(copy) == _log(master))
            assert first["log_min_offset"] == 0
            producer.send_batch([Message("Shop", b"batch %d" % number) for number in range(20)])
            for number in range(900, 1000):
                producer.send(Message("Shop", b"%d" % number * 500, keys=f"k{number}"))
            second = _follow(copy, ha_port, conf, lambda: _log(copy) == _log(master))
            assert second["messages"] == 1020
    with StoreView(StoreConfig(copy)) as view:
        assert verify_store(view).findings == []
    with (
        LocalCluster(store=tmp_path / "opened", config={"mappedFileSizeCommitLog": FILE_BYTES}) as opened,
        LitePullConsumer("audit", namesrv=opened.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET) as consumer,
    ):
        consumer.subscribe("Shop")
        got: set[bytes] = set()

        def is_read() -> bool:
            got.update(message.body for message in consumer.poll(timeout=1.0))
            return len(got) == 1020

        until(is_read, "every message from the copy")
        assert {b"%d" % number * 500 for number in range(1000)} <= got
