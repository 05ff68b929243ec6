"""Half messages and ends that come many in one request: what is stored is what single ones store."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.test_transactions import COMMIT, ROLLBACK, TransactionBench
from contrailmq.message import Property, StoredMessage, SystemTopic, encode_properties
from contrailmq.message.batch import encode_batch
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.header import Command

HALF = {"TRAN_MSG": "true", "PGROUP": "pg"}


class HalfBench(TransactionBench):
    def prepare_many(self, bodies: list[bytes], **properties: str) -> Command:
        parts = [
            (7, body, encode_properties({"TAGS": "red", **HALF, **properties, "UNIQ_KEY": f"K-{body.decode()}"}))
            for body in bodies
        ]
        fields = {"a": "pg", "b": "T", "c": "TBW102", "d": "4", "e": "1", "f": "0", "g": str(self.clock.now_ms())}
        rest = {"h": "0", "i": "", "j": "0", "k": "false", "m": "true"}
        return self.ask(RequestCode.SEND_HALF_BATCH, fields | rest, encode_batch(parts))

    def end_many(self, prepared: Command, how: str, **other: str) -> Command:
        fields = {"topic": "T", "producerGroup": "pg", "commitOrRollback": how} | other
        return self.ask(RequestCode.END_TRANSACTIONS, fields, ends_of(prepared))

    def visible(self) -> list[StoredMessage]:
        return list(self.store.get("T", 1, 0, 100))


def ends_of(prepared: Command) -> bytes:
    first = int(prepared.ext["queueOffset"])
    places = [int(text[-16:], 16) for text in prepared.ext["msgId"].split(",")]
    return b"".join(struct.pack(">qq", place, first + index) for index, place in enumerate(places))


@pytest.fixture
def tx(tmp_path: Path) -> Iterator[HalfBench]:
    bench = HalfBench(tmp_path)
    yield bench
    bench.close()


def essence(message: StoredMessage) -> dict[str, Any]:
    own = {name: value for name, value in message.properties.items() if name not in BROKERS_OWN}
    return {"body": message.body, "flag": message.flag, "sys_flag": message.sys_flag, "properties": own}


# A batch's parts get none of these, half messages or not; and the transaction id is the unique key once more.
BROKERS_OWN = {Property.MESSAGE_REGION, Property.TRACE_SWITCH, Property.CLUSTER, Property.TRANSACTION_ID}


def test_a_batch_is_invisible_until_it_is_committed_and_then_as_if_sent_one_by_one(tx: HalfBench) -> None:
    prepared = tx.prepare_many([b"1", b"2"])
    assert prepared.code == 0, prepared.remark
    assert tx.bodies() == []
    assert tx.service.pending() == {"T": 2}
    halves = list(tx.store.get(SystemTopic.HALF, 0, 0, 10))
    answer = tx.end_many(prepared, COMMIT)
    assert (answer.code, answer.body) == (0, bytes(2))
    single = tx.prepare(b"3", TAGS="red")
    tx.end(single, COMMIT)
    tx.settle()
    together, alone = tx.visible()[:2], tx.visible()[2]
    assert [essence(message) for message in together] == [
        essence(alone) | {"body": body, "flag": 7, "properties": essence(alone)["properties"] | {"UNIQ_KEY": key}}
        for body, key in ((b"1", "K-1"), (b"2", "K-2"))
    ]
    assert [message.prepared_transaction_offset for message in together] == [half.physical_offset for half in halves]
    assert tx.service.pending() == {}


def test_a_rolled_back_batch_is_never_visible_and_not_asked_about(tx: HalfBench) -> None:
    assert tx.end_many(tx.prepare_many([b"1", b"2"]), ROLLBACK).body == bytes(2)
    tx.run_ms(20_000)
    assert (tx.bodies(), tx.service.pending()) == ([], {})


def test_ends_said_twice_count_once(tx: HalfBench) -> None:
    prepared = tx.prepare_many([b"1", b"2", b"3"])
    assert tx.end_many(prepared, COMMIT).body == bytes(3)
    again = tx.end_many(prepared, COMMIT)
    assert again.code == 0
    tx.run_ms(20_000)
    assert tx.bodies() == [b"1", b"2", b"3"]
    late = tx.end_many(prepared, COMMIT)  # they are long past: refused, each
    assert (late.code, late.body) == (0, b"\x01\x01\x01")
    assert tx.bodies() == [b"1", b"2", b"3"]


def test_a_half_message_that_was_put_back_is_committed_where_it_is_now(tx: HalfBench) -> None:
    prepared = tx.prepare_many([b"1", b"2"], CHECK_IMMUNITY_TIME_IN_SECONDS="100")
    tx.run_ms(20_000)  # immune ones are put back at the end of their queue
    assert tx.store.max_offset(SystemTopic.HALF, 0) > 2
    assert tx.end_many(prepared, COMMIT).body == bytes(2)
    tx.run_ms(200_000)
    assert (tx.bodies(), tx.service.pending()) == ([b"1", b"2"], {})


@pytest.mark.parametrize("other", [{"producerGroup": "others"}, {"topic": "U"}])
def test_ends_of_another_group_or_topic_are_refused_one_by_one(tx: HalfBench, other: dict[str, str]) -> None:
    prepared = tx.prepare_many([b"1", b"2"])
    answer = tx.end_many(prepared, COMMIT, **other)
    assert (answer.code, answer.body) == (0, b"\x01\x01")
    assert answer.remark
    assert tx.bodies() == []


@pytest.mark.parametrize("body", [b"", b"x", bytes(16 * 257)])
def test_a_body_that_holds_no_ends_or_too_many_is_refused(tx: HalfBench, body: bytes) -> None:
    fields = {"topic": "T", "producerGroup": "pg", "commitOrRollback": COMMIT}
    answer = tx.ask(RequestCode.END_TRANSACTIONS, fields, body)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert "send 1 to 256" in (answer.remark or "")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [({"TRAN_MSG": "false"}, "is no half message"), ({"PGROUP": ""}, "is no half message")]
    + [({name: "1"}, f"has {name}, which is ours") for name in ("REAL_TOPIC", "REAL_QID", "TRANSACTION_CHECK_TIMES")],
)
def test_a_part_that_is_no_half_message_is_refused_with_its_batch(
    tx: HalfBench, wrong: dict[str, str], said: str
) -> None:
    answer = tx.prepare_many([b"1"], **wrong)
    assert answer.code == ResponseCode.MESSAGE_ILLEGAL
    assert said in (answer.remark or "")
    assert (tx.bodies(), tx.service.pending()) == ([], {})


def test_a_commit_that_was_answered_is_not_repeated_after_a_crash(tx: HalfBench, tmp_path: Path) -> None:
    prepared = tx.prepare_many([b"1", b"2"])
    assert tx.end_many(prepared, COMMIT).body == bytes(2)
    again = tx.restarted_unsaved(tmp_path)
    again.run_ms(20_000)
    assert again.bodies() == [b"1", b"2"]
    assert again.service.pending() == {}
    again.close()
