"""Hooks see every way a message comes in and goes out, and cannot stop one."""

from __future__ import annotations

import pytest

from broker.harness import Bench, send_fields
from broker.test_send import batch_body
from contrailmq.broker.hooks import MessagesPulled, MessageStored
from contrailmq.message import encode_properties


def test_a_hook_sees_plain_rewritten_and_batched_messages_and_what_consumers_get(bench: Bench) -> None:
    stored: list[MessageStored] = []
    pulled: list[MessagesPulled] = []
    bench.node.hooks.on_stored.append(stored.append)
    bench.node.hooks.on_pulled.append(pulled.append)
    bench.send(properties="UNIQ_KEY\x01one\x02")
    bench.send(properties=encode_properties({"UNIQ_KEY": "two", "DELAY": "0"}).decode())
    bench.ask(320, send_fields(properties="UNIQ_KEY\x01batch\x02", m="true"), batch_body(3))
    assert [(event.unique_key, event.queue_offset, event.count) for event in stored] == [
        ("one", 0, 1),
        ("two", 1, 1),
        ("batch", 2, 3),
    ]
    assert {(event.topic, event.queue_id, event.client) for event in stored} == {("T", 0, bench.link.address)}
    (answer,) = bench.pull()
    assert answer.code == 0
    (event,) = pulled
    assert (event.group, event.topic, event.first_offset, event.next_offset, event.count) == ("g", "T", 0, 5, 5)
    assert event.size_bytes == len(answer.body)
    assert event.size_bytes == sum(event.size_bytes for event in stored)


def test_a_message_that_is_refused_is_not_shown(bench: Bench) -> None:
    stored: list[MessageStored] = []
    bench.node.hooks.on_stored.append(stored.append)
    assert bench.send("bad topic").code != 0
    assert stored == []


def test_a_hook_that_fails_is_logged_and_the_message_goes_on(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    later: list[MessageStored] = []

    def broken(event: MessageStored) -> None:
        raise RuntimeError("no collector")

    bench.node.hooks.on_stored[:] = [broken, later.append]
    assert bench.send().code == 0
    assert len(later) == 1
    assert "no collector" in caplog.text
