"""Pull answers with damaged records in them: a consumer gets the others, is never given these, and goes on."""

from __future__ import annotations

import logging
import queue
import random

import pytest

from contrailmq import ConsumeFromWhere, Message, Producer, PushConsumer
from contrailmq.client.records import decode_messages
from contrailmq.message import encode_host
from contrailmq.message.codec import encode_record
from contrailmq.testing import LocalCluster

HOST = encode_host("127.0.0.1", 10911)
COUNT = 10


def answer() -> tuple[bytearray, list[int]]:
    """A pull's body, and where its records begin."""
    body, begins = bytearray(), []
    for number in range(COUNT):
        begins.append(len(body))
        body += encode_record(
            "T", b"body %d" % number * 10, b"KEYS\x01k\x02", queue_id=3, queue_offset=number, physical_offset=len(body),
            born_host=HOST, store_host=HOST, born_time_ms=1, store_time_ms=2,
        )  # fmt: skip
    return body, begins


def decoded(body: bytes) -> tuple[list[int], list[str]]:
    faults: list[str] = []
    return [message.queue_offset for message in decode_messages(body, on_damage=faults.append)], faults


@pytest.mark.parametrize("number", [0, 4, COUNT - 1])
@pytest.mark.parametrize("position", [0, 4, 84, 90])
def test_one_damaged_record_is_left_out_and_the_others_are_not(position: int, number: int) -> None:
    body, begins = answer()
    at = begins[number] + position
    body[at : at + 4] = b"\x7f\x01\x02\x03"
    offsets, faults = decoded(bytes(body))
    assert offsets == [other for other in range(COUNT) if other != number]
    assert len(faults) == 1


def test_a_damaged_body_is_told_with_its_place_and_both_checksums() -> None:
    body, begins = answer()
    stored = int.from_bytes(body[begins[4] + 8 : begins[4] + 12], "big")
    body[begins[4] + 90] ^= 1
    (fault,) = decoded(bytes(body))[1]
    assert f"T/3 at queue offset 4, physical offset {begins[4]}, has the checksum 0x" in fault
    assert fault.endswith(f"expected {stored:#010x}")


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_garbled_only_what_it_hit_is_missing(seed: int) -> None:
    rng = random.Random(seed)
    body, begins = answer()
    begin = rng.randrange(len(body))
    end = min(len(body), begin + rng.randrange(1, 600))
    body[begin:end] = rng.randbytes(end - begin)
    ends = [*begins[1:], len(body)]
    untouched = [number for number in range(COUNT) if ends[number] <= begin or begins[number] >= end]
    offsets, _ = decoded(bytes(body))
    assert set(untouched) <= set(offsets)
    assert len(set(offsets) - set(untouched)) <= 2  # bytes that no checksum covers, at either end


def test_a_consumer_goes_on_behind_damage_that_its_broker_did_not_see(caplog: pytest.LogCaptureFixture) -> None:
    """The broker has just written these messages, so it trusts them; somebody changes the file under it."""
    got: queue.Queue[bytes] = queue.Queue()
    with LocalCluster() as cluster:
        with Producer("P", namesrv=cluster.namesrv) as producer:
            sent = [producer.send(Message("T", b"number %d" % number)) for number in range(8)]
        log = min(path for path in cluster.store_path.rglob("commitlog/*"))
        data = log.read_bytes()
        with log.open("r+b") as file:
            file.seek(data.index(b"number 3"))
            file.write(b"NUMBER 3")
        consumer = PushConsumer("G", namesrv=cluster.namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
        consumer.subscribe("T")
        consumer.listen(lambda messages: [got.put(message.body) for message in messages] and None)
        with consumer:
            bodies = {got.get(timeout=120) for _ in range(len(sent) - 1)}
    assert bodies == {b"number %d" % number for number in range(8) if number != 3}
    assert got.empty()
    told = [record for record in caplog.records if "gave a damaged record of T" in record.getMessage()]
    assert [record.levelno for record in told] == [logging.ERROR]
