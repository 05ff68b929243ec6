"""Apache's own broker opens a store that `contrailmq store repair` mended, and its consumer reads what is left."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from apache import Apache, facts

from contrailmq import Message, Producer
from contrailmq.store import StoreConfig, repair_store
from contrailmq.testing import LocalCluster

pytestmark = pytest.mark.program("Apache's broker", "5.5.0")

FILE_BYTES = 64 * 1024
SIZES = {
    "mappedFileSizeCommitLog": str(FILE_BYTES),
    "mappedFileSizeConsumeQueue": "2000",
    "maxHashSlotNum": "100",
    "maxIndexNum": "2000",
    "maxMessageSize": "16384",
}
COUNT = 200


@pytest.mark.parametrize("damage", ["a body", "a header", "3,000 bytes", "a whole file"])
def test_apaches_broker_serves_a_repaired_store(damage: str, rocketmq: Apache, tmp_path: Path) -> None:
    topic = "Repaired"
    with LocalCluster(store=tmp_path, config=SIZES) as cluster, Producer("p", namesrv=cluster.namesrv) as producer:
        queues = producer.queues(topic)
        for number in range(COUNT):
            body = f"body-{number:03d}|{'x' * 1000}".encode()
            producer.send(Message(topic, body, keys=[f"k{number}"]), queue=queues[number % 2])
    store = tmp_path / "broker-0"
    log = store / "commitlog" / f"{FILE_BYTES:020d}"
    data = bytearray(log.read_bytes())
    at, record_bytes = data.index(b"body-"), data.index(b"body-", data.index(b"body-") + 1) - data.index(b"body-")
    begin, size, filling = {
        "a body": (at + 3 * record_bytes + 50, 1, b"!"),
        "a header": (at + 3 * record_bytes - 88, 20, b"\xff"),
        "3,000 bytes": (at + 3 * record_bytes + 400, 3000, b"\x55"),
        "a whole file": (0, FILE_BYTES, b"\0"),
    }[damage]
    there = {int(found[1]) for found in re.finditer(rb"body-(\d{3})\|", data)}
    data[begin : begin + size] = filling * size
    log.write_bytes(data)
    report = repair_store(StoreConfig(store))
    lost_count = report.messages_lost
    assert lost_count == {"a body": 1, "a header": 1, "3,000 bytes": 3, "a whole file": len(there)}[damage]
    lost_places = {(lost.queue_id, lost.queue_offset) for one in report.ranges for lost in one.lost}
    lost = {number for number in range(COUNT) if (number % 2, number // 2) in lost_places}
    assert lost <= there
    with rocketmq.namesrv() as namesrv, rocketmq.broker(namesrv.address, store=store, **SIZES):
        expected = str(COUNT - lost_count)
        got = rocketmq.client("consume", namesrv.address, f"java_{begin}_{size}", topic, "*", expected, "concurrent")
        assert facts(got, "done") == [["true", "0"]]
        bodies = [fact[5].partition("|")[0] for fact in facts(got, "got")]
        assert sorted(bodies) == [f"body-{number:03d}" for number in range(COUNT) if number not in lost]
        sent = facts(rocketmq.client("produce", namesrv.address, topic, "8"), "sent")
        assert all(int(fact[2]) >= COUNT // 2 for fact in sent if int(fact[1]) < 2)
