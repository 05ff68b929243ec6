"""A log with damaged records under a broker: nothing damaged is served, and everything around it is."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.harness import MIB, Bench, Link, records, send_fields
from broker.test_delay import DelayBench
from contrailmq.message import StoredMessage, SystemTopic
from contrailmq.wire.codes import RequestCode, ResponseCode

COUNT = 600
PullStep = tuple[int, list[StoredMessage]]


def places(bench: Bench, topic: str, queue_id: int = 0) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    while len(found) < bench.store.max_offset(topic, queue_id):
        found += [unit[:2] for unit in bench.store.read_units(topic, queue_id, len(found), 100)]
    return found


def garble(root: Path, begin: int, data: bytes) -> None:
    with (root / "store" / "commitlog" / f"{begin // MIB * MIB:020d}").open("r+b") as file:
        file.seek(begin % MIB)
        file.write(data)


def pulled(bench: Bench, topic: str = "T", **fields: object) -> list[StoredMessage]:
    """What a consumer gets that follows nextBeginOffset from 0 to the end."""
    found: list[StoredMessage] = []
    offset = 0
    while offset < bench.store.max_offset(topic, 0):
        answers = bench.pull(topic, offset, **fields)
        if not answers:  # a worker reads
            bench.run(bench.link.replied(1))
            answers = bench.link.take()
        (answer,) = answers
        assert answer.code in (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY), answer.remark
        assert int(answer.ext["nextBeginOffset"]) > offset
        found += records(answer.body)
        offset = int(answer.ext["nextBeginOffset"])
    return found


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store that was closed in order, with messages of T and others between them."""
    bench = Bench(tmp_path)
    for number in range(COUNT):
        bench.send("T", b"body %d " % number * 20, properties={"KEYS": f"k{number}", "TAGS": "AB"[number % 2]})
        bench.send("U", b"other")
    bench.saver.save_all_now()
    bench.close()
    return tmp_path


@pytest.fixture
def damaged(root: Path) -> Iterator[tuple[Bench, set[int]]]:
    """The same with 3,000 garbled bytes in its midst; and which offsets of T they hit."""
    bench = Bench(root)
    units = places(bench, "T")
    bench.close()
    begin = units[100][0] + 30
    garble(root, begin, random.Random(5).randbytes(3_000))
    bench = Bench(root)
    yield bench, {number for number, (at, size) in enumerate(units) if at < begin + 3_000 and at + size > begin}
    bench.close()


def errors(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "is damaged and passed over" in record.getMessage()]


@pytest.mark.parametrize("is_cold", [False, True])
def test_what_lies_behind_garbled_bytes_is_served_and_they_are_not(
    is_cold: bool, damaged: tuple[Bench, set[int]], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, hit = damaged
    if is_cold:
        monkeypatch.setattr(bench.store.files, "is_resident", lambda *_: False)
    for _ in range(2):
        offsets = [message.queue_offset for message in pulled(bench)]
        assert offsets == [number for number in range(COUNT) if number not in hit]
    assert len(hit) > 3
    told = [text for text in errors(caplog) if "the record of T/0 at" in text]
    assert len(told) == len(hit)  # once each, though they were met twice


def test_what_is_known_of_damage_is_in_the_runtime_figures(damaged: tuple[Bench, set[int]]) -> None:
    bench, hit = damaged
    pulled(bench)
    table = json.loads(bench.ask(RequestCode.GET_BROKER_RUNTIME_INFO).body)["table"]
    assert table["damagedRecords"] == str(len(hit))
    listed = json.loads(table["damagedPlaces"])
    units = places(bench, "T")
    assert {(place["topic"], place["queueId"], place["queueOffset"]) for place in listed} == {
        ("T", 0, number) for number in hit
    }
    assert [place["physicalOffset"] for place in listed] == [units[number][0] for number in sorted(hit)]


@pytest.mark.parametrize("expression", [("A", "TAG"), ("TAGS = 'A'", "SQL92")])
def test_filters_pass_over_damage(expression: tuple[str, str], damaged: tuple[Bench, set[int]]) -> None:
    bench, hit = damaged
    bench.config.enable_property_filter = True
    text, kind = expression
    offsets = [message.queue_offset for message in pulled(bench, subscription=text, expressionType=kind)]
    assert offsets == [number for number in range(0, COUNT, 2) if number not in hit]


BODY, HEAD = 88, 0


@pytest.mark.parametrize(
    ("position", "data"),
    [
        (BODY + 5, b"!"),
        (HEAD, b"\x7f\xff\xff\xff"),  # size
        (4, b"\0\0\0\0"),  # magic
        (8, b"\1\2\3\4"),  # checksum
        (12, b"\0\0\0\7"),  # queue id
        (20, b"\0\0\0\0\0\0\1\0"),  # queue offset
        (28, b"\0\0\0\0\0\0\1\0"),  # physical offset
        (84, b"\x7f\0\0\0"),  # body length
        (BODY + len(b"body 7 " * 20) + 1, b"U"),  # topic
    ],
)
@pytest.mark.parametrize("checks", ["cold", "all", "off"])
def test_any_damaged_field_costs_its_message_alone(checks: str, position: int, data: bytes, root: Path) -> None:
    bench = Bench(root)
    at = places(bench, "T")[7][0]
    bench.close()
    garble(root, at + position, data)
    bench = Bench(root, check_crc_on_read=checks)
    found = bench.store.get_slices_warm("T", 0, 0, 20)
    assert found is not None
    assert (found.count, found.next_offset, found.damaged) == ((20, 20, 0) if checks == "off" else (20, 21, 1))
    found.release()
    bench.close()


def test_what_this_broker_has_just_written_is_checked_when_all_is(tmp_path: Path) -> None:
    for checks, expected in (("cold", 0), ("all", 1)):
        bench = Bench(tmp_path / checks, check_crc_on_read=checks)
        bench.send("T", b"x" * 100)
        garble(tmp_path / checks, BODY + 5, b"!")
        found = bench.store.get_slices_warm("T", 0, 0, 20)
        assert found is not None
        assert found.damaged == expected
        found.release()
        bench.close()


def test_query_and_view_do_not_show_damage(root: Path) -> None:
    bench = Bench(root)
    at = places(bench, "T")[7][0]
    bench.close()
    garble(root, at + BODY + 5, b"!")
    bench = Bench(root)
    fields = {"topic": "T", "key": "k7", "maxNum": "32", "beginTimestamp": "0", "endTimestamp": str(2**62)}
    assert bench.ask(RequestCode.QUERY_MESSAGE, fields).code == ResponseCode.QUERY_NOT_FOUND
    assert bench.ask(RequestCode.QUERY_MESSAGE, fields | {"key": "k8"}).code == ResponseCode.SUCCESS
    assert bench.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(at)}).code == ResponseCode.SYSTEM_ERROR
    assert [place.queue_offset for place in bench.store.damaged_places()] == [7]
    bench.close()


def test_a_damaged_level_message_is_counted_and_the_others_come(tmp_path: Path) -> None:
    bench = DelayBench(tmp_path)
    for number in range(20):
        bench.send("T", b"late %d" % number, properties={"DELAY": "1"})
    units = places(bench, SystemTopic.SCHEDULE)
    garble(tmp_path, units[5][0] + BODY + 1, b"!")
    garble(tmp_path, units[9][0], bytes(80))
    bench.run_ms(3_000)
    bodies = {message.body for message in bench.messages()}
    assert bodies == {b"late %d" % number for number in range(20) if number not in (5, 9)}
    assert bench.delay.undeliverable == 2
    assert [(place.topic, place.queue_offset) for place in bench.store.damaged_places()] == [
        (SystemTopic.SCHEDULE, 5), (SystemTopic.SCHEDULE, 9)
    ]  # fmt: skip
    bench.close()


def test_a_held_pull_that_a_damaged_record_wakes_goes_on_behind_it(tmp_path: Path) -> None:
    """It is neither given the record nor held again before it, where every arrival would wake it."""
    bench = Bench(tmp_path, check_crc_on_read="all")
    bench.send("T", b"sound")
    consumer = Link(1)
    hold = {"sysFlag": 2 | 4, "suspendTimeoutMillis": 15_000}
    assert bench.pull("T", 1, link=consumer, **hold) == []
    at = bench.store.log_max_offset
    bench.tell(RequestCode.SEND_MESSAGE_V2, send_fields("T"), b"x" * 100, settle=False)
    garble(tmp_path, at + BODY + 5, b"!")
    bench.settle()
    (answer,) = consumer.take()
    assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "2")
    assert not answer.body
    assert bench.pull("T", 2, link=consumer, **hold) == []
    bench.send("T", b"after")
    (answer,) = consumer.take()
    assert [record.body for record in records(answer.body)] == [b"after"]
    assert [place.queue_offset for place in bench.store.damaged_places()] == [1]
    bench.close()
