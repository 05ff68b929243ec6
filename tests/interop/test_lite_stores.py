"""A store with lite topics goes to Apache's broker and back: queues, positions, and what was in flight."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from apache import Apache

from broker.lite_bench import LiteBench, bodies, queue_of
from contrailmq import Message, MessageQueue, Producer
from contrailmq.client.blocking.raw import QueueReader
from contrailmq.client.records import decode_messages
from contrailmq.store.base.clock import ManualClock

pytestmark = pytest.mark.program("Apache's broker", "5.5.0")

SETTINGS = {"enableLmq": "true", "enableMultiDispatch": "true", "mappedFileSizeConsumeQueue": 1200}
SIZES = {
    "mapped_file_size_commit_log": 16 << 20,
    "mapped_file_size_consume_queue": 1200,
    "max_hash_slot_num": 5000,
    "max_index_num": 20000,
}


def bench_at(path: Path) -> LiteBench:
    return LiteBench(path, clock=ManualClock(time.time_ns() // 1_000_000), **SIZES)


def test_lite_topics_go_both_ways_with_the_positions_of_their_groups(rocketmq: Apache, tmp_path: Path) -> None:
    bench = bench_at(tmp_path)
    bench.subscribe("room1")
    bench.put("room1", *"abcdef")
    bench.done(*bench.given(maxMsgNum=4)[:2])
    bench.close()
    queue = MessageQueue(queue_of("room1"), "broker-a", 0)
    with (
        rocketmq.namesrv() as namesrv,
        rocketmq.broker(namesrv.address, store=tmp_path / "store", **SETTINGS) as broker,
        QueueReader(address=broker.address, group="light") as reader,
    ):
        pull = reader.pull(queue, 0, wait_s=20)
        assert [one.body for one in decode_messages(pull.body)] == [b"a", b"b", b"c", b"d", b"e", b"f"]
        message = Message("Chat", b"theirs")
        message.properties["__LITE_TOPIC"] = "room1"
        with Producer("p", namesrv=namesrv.address) as producer:
            producer.send(message)
        pull = reader.pull(queue, 6, wait_s=20)
        assert [one.body for one in decode_messages(pull.body)] == [b"theirs"]
    bench = bench_at(tmp_path)
    assert bench.position("room1") == 2
    bench.control("COMPLETE_ADD", "room1")
    bench.passes(11_000, step_ms=1000)
    found = bench.given()
    assert bodies(found) == ["c", "d", "e", "f", "theirs"]
    bench.done(*found)
    assert bench.position("room1") == 7
    bench.close()
