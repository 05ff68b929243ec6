"""A prepared message becomes a half message, and that a visible one: as bytes or as a map, with the same properties."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.harness import send_fields
from broker.test_transactions import COMMIT, ROLLBACK, TransactionBench, half_messages
from contrailmq.broker.state.half_text import half_addition, rest_of_prepared, visible_properties
from contrailmq.message import decode_properties
from contrailmq.message.property_text import closed

PREPARED = "TRAN_MSG\x01true\x02"
GROUP = "PGROUP\x01pg\x02"
KEY = "UNIQ_KEY\x01K\x02"
OWN = {"MSG_REGION": "DefaultRegion", "TRACE_ON": "true", "CLUSTER": "C"}
REAL = {"REAL_TOPIC": "T", "REAL_QID": "1"}


@pytest.fixture
def tx(tmp_path: Path) -> Iterator[TransactionBench]:
    made = TransactionBench(tmp_path)
    yield made
    made.close()


USUAL = {
    "first": PREPARED + GROUP + KEY,
    "last": GROUP + KEY + PREPARED,
    "with a tag, keys and a user's own": GROUP + PREPARED + "TAGS\x01t\x02KEYS\x01a b\x02" + KEY + "own\x01ä\x02",
    "a name twice": PREPARED + GROUP + KEY + "own\x01old\x02own\x01new\x02",
}
UNUSUAL = {
    "without the last separator": GROUP + KEY + PREPARED[:-1],
    "in capitals": GROUP + KEY + "TRAN_MSG\x01TRUE\x02",
    "said twice": PREPARED + GROUP + PREPARED + KEY,
    "beside a name that ends alike": "XTRAN_MSG\x01true\x02" + GROUP + KEY + PREPARED,
    "with a real place of its own": PREPARED + GROUP + KEY + "REAL_TOPIC\x01Other\x02REAL_QID\x017\x02",
    "with a transaction's id": PREPARED + GROUP + KEY + "__transactionId__\x01of-another\x02",
    "checked in an earlier life": PREPARED + GROUP + KEY + "TRANSACTION_CHECK_TIMES\x015\x02",
    "put back in an earlier life": PREPARED + GROUP + KEY + "TRAN_PREPARED_QUEUE_OFFSET\x013\x02",
}
OF_AN_EARLIER_LIFE = ("TRANSACTION_CHECK_TIMES", "TRAN_PREPARED_QUEUE_OFFSET")


def test_only_the_usual_ones_are_changed_as_bytes() -> None:
    assert [rest_of_prepared(text) for text in USUAL.values()] == [
        text.replace(PREPARED, "") for text in USUAL.values()
    ]
    whole = {name for name, text in UNUSUAL.items() if "TRA" not in (rest_of_prepared(text) or "TRA")}
    assert whole == set()


@pytest.mark.parametrize("is_binary", [False, True])
@pytest.mark.parametrize("text", [*USUAL.values(), *UNUSUAL.values()], ids=[*USUAL, *UNUSUAL])
def test_a_half_message_and_its_commit_have_the_senders_properties_and_the_brokers(
    tx: TransactionBench, text: str, is_binary: bool
) -> None:
    fields = send_fields("T", properties=text, f="4", e="1", g=str(tx.clock.now_ms()))
    answer = tx.ask(310, fields, b"body", is_binary=is_binary)
    assert (answer.code, answer.ext["queueId"], answer.ext["transactionId"]) == (0, "1", "K"), answer.remark
    (half,) = half_messages(tx)
    sent = {name: value for name, value in decode_properties(text).items() if name not in OF_AN_EARLIER_LIFE}
    visible = sent | OWN | {"__transactionId__": "K"}
    for name in REAL:
        visible.pop(name, None)
    assert half.properties == visible | REAL
    assert (half.sys_flag, half.body, tx.service.pending()) == (0, b"body", {"T": 1})
    assert [ended.code for ended in tx.end(answer, COMMIT)] == [0]
    (message,) = tx.store.get("T", 1, 0)
    assert message.properties == visible
    assert (message.sys_flag, message.body, message.prepared_transaction_offset) == (8, b"body", half.physical_offset)
    assert (message.born_time_ms, message.flag) == (half.born_time_ms, half.flag)
    assert tx.service.pending() == {}
    for key in ("K", *visible.get("KEYS", "").split()):
        assert [found.body for found in tx.store.query("T", key, 10)] == [b"body"]


def test_a_message_that_only_looks_prepared_is_ordinary(tx: TransactionBench) -> None:
    for text in ("XTRAN_MSG\x01true\x02", "own\x01TRAN_MSG\x02", "TRAN_MSG\x01false\x02"):
        assert tx.send("T", text.encode(), properties=text, e="1").code == 0
    assert half_messages(tx) == []
    assert len(tx.bodies()) == 3


def test_ends_that_nobody_waits_for_count_and_are_not_answered(tx: TransactionBench) -> None:
    """The Java client sends all its ends so."""
    for name, how in ((b"a", COMMIT), (b"b", ROLLBACK), (b"c", COMMIT)):
        prepared = tx.prepare(name)
        fields = {
            "producerGroup": "pg",
            "tranStateTableOffset": prepared.ext["queueOffset"],
            "commitLogOffset": str(int(prepared.ext["msgId"][-16:], 16)),
            "commitOrRollback": how,
            "msgId": prepared.ext["transactionId"],
        }
        assert tx.tell(37, fields, is_oneway=True, is_binary=name == b"c") == []
    assert tx.bodies() == [b"a", b"c"]
    assert tx.service.pending() == {}


def test_a_commit_goes_on_in_the_next_file_of_the_log(tmp_path: Path) -> None:
    tx = TransactionBench(tmp_path, mapped_file_size_commit_log=4096)
    for number in range(20):
        (answer,) = tx.end(tx.prepare(b"%d" % number * 200), COMMIT)
        assert answer.code == 0
    assert tx.bodies() == [b"%d" % number * 200 for number in range(20)]
    tx.close()


PIECES = st.sampled_from(
    [
        PREPARED,
        GROUP,
        KEY,
        "TAGS\x01t\x02",
        "own\x01value\x02",
        "TRAN_MSG\x01false\x02",
        "XTRAN_MSG\x01true\x02",
        "\x02",
        "REAL_TOPIC\x01U\x02",
        "UNREAL_QID\x012\x02",
        "name\x01\x02",
        "no separator\x02",
        "own\x01TRAN_MSG\x02",
        "\x01x\x02",
        "__transactionId__\x01x\x02",
    ]
)


@given(
    st.lists(PIECES, max_size=8).map("".join), st.sampled_from(["T", "%RETRY%ä", "REAL_QID"]), st.integers(0, 2**31 - 1)
)
def test_as_bytes_and_as_a_map_are_the_same(text: str, topic: str, queue_id: int) -> None:
    rest = rest_of_prepared(text)
    if rest is None:
        return
    sent = decode_properties(text)
    if "TRAN_MSG" not in rest:
        assert decode_properties(rest) == {name: value for name, value in sent.items() if name != "TRAN_MSG"}
        assert sent["TRAN_MSG"] == "true"
    half = closed(text.encode()) + half_addition(topic, queue_id, "K")
    identified = sent | {"__transactionId__": "K"}
    assert decode_properties(half) == identified | {"REAL_TOPIC": topic, "REAL_QID": str(queue_id)}
    assert decode_properties(visible_properties(half, topic, queue_id)) == identified
    moved = half + b"TRANSACTION_CHECK_TIMES\x011\x02"  # a copy that was put back
    asked = identified | {"TRANSACTION_CHECK_TIMES": "1"}
    assert decode_properties(visible_properties(moved, topic, queue_id)) == asked
