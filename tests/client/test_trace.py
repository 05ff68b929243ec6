"""Trace records as RocketMQ's tools read them."""

from __future__ import annotations

import asyncio

from contrailmq.client.producing.trace import (
    PENDING_MAX,
    ContextCode,
    MessageType,
    TraceDispatcher,
    TracedMessage,
    after_record,
    before_record,
    end_transaction_record,
    pack_records,
    publish_record,
    recall_record,
)
from contrailmq.message import Message

TRACED = TracedMessage(
    "Orders", "ID1", tags="paid", keys="k1 k2", store_host="h:1", body_bytes=3, offset_message_id="OFF"
)


def test_records_have_the_fields_of_the_reference_in_its_order() -> None:
    pub = publish_record(TRACED, time_ms=1, region="R", group="g", cost_ms=5, is_success=True)
    assert (
        pub.text
        == "\x01".join(["Pub", "1", "R", "g", "Orders", "ID1", "paid", "k1 k2", "h:1", "3", "5", "0", "OFF", "true"])
        + "\x02"
    )
    before = before_record(TRACED, time_ms=1, region="R", group="g", request_id="q")
    assert before.text == "\x01".join(["SubBefore", "1", "R", "g", "q", "ID1", "0", "k1 k2"]) + "\x02"
    after = after_record(
        TRACED,
        request_id="q",
        region="R",
        cost_ms=2,
        is_success=False,
        code=ContextCode.EXCEPTION,
        time_ms=9,
        group="g",
    )
    assert after.text == "\x01".join(["SubAfter", "q", "ID1", "2", "false", "k1 k2", "2", "9", "g"]) + "\x02"
    end = end_transaction_record(
        TRACED, time_ms=1, region="R", group="g", transaction_id="x", state="COMMIT_MESSAGE", is_from_check=False
    )
    assert end.text.split("\x01")[9:] == ["0", "x", "COMMIT_MESSAGE", "false\x02"]
    recall = recall_record(TRACED, time_ms=1, region="R", group="g", is_success=True)
    assert recall.text == "\x01".join(["Recall", "1", "R", "g", "Orders", "ID1", "true"]) + "\x02"


def test_missing_values_are_the_word_null() -> None:
    record = publish_record(
        TracedMessage("T", "I", message_type=MessageType.DELAY),
        time_ms=1,
        region="R",
        group="g",
        cost_ms=0,
        is_success=False,
    )
    assert record.text.split("\x01")[6:] == ["null", "null", "null", "0", "0", "3", "null", "false\x02"]


def test_records_of_one_topic_and_region_travel_together_and_are_found_by_every_key() -> None:
    other = TracedMessage("Other", "ID2")
    records = [
        recall_record(TRACED, time_ms=1, region="R", group="g", is_success=True),
        recall_record(other, time_ms=1, region="R", group="g", is_success=True),
        recall_record(TRACED, time_ms=2, region="R", group="g", is_success=True),
    ]
    first, second = pack_records(records)
    assert first.body.count(b"\x02") == 2
    assert first.keys == ["ID1", "k1", "k2"]
    assert second.keys == ["ID2"]
    assert first.topic == "RMQ_SYS_TRACE_TOPIC"


def test_long_traces_are_cut_into_messages_within_the_limit() -> None:
    big = TracedMessage("T", "I", keys="k" * 1000)
    records = [recall_record(big, time_ms=1, region="R" * 60_000, group="g", is_success=True) for _ in range(4)]
    assert len(pack_records(records)) == 2


def test_a_full_queue_drops_and_counts_and_closing_sends_the_rest() -> None:
    async def run() -> None:
        sent: list[Message] = []

        async def send(message: Message) -> None:
            sent.append(message)

        dispatcher = TraceDispatcher(send)
        record = recall_record(TRACED, time_ms=1, region="R", group="g", is_success=True)
        for _ in range(PENDING_MAX + 5):
            dispatcher.add(record)
        assert dispatcher.dropped_count == 5
        await dispatcher.close()
        assert sum(message.body.count(b"\x02") for message in sent) == PENDING_MAX

    asyncio.run(run())
