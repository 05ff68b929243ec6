"""Real brokers, killed (SIGKILL) right after they acknowledged the first message of a topic.

One life for each kind of message and flush mode, ten under CONTRAILMQ_LONG=1. What was acknowledged is asked for in two
ways: the table that the killed broker left must hold the topic, and a later broker must serve the message.
"""

from __future__ import annotations

import json
import os
import uuid
from contextlib import closing
from pathlib import Path

import pytest

from broker.harness import records, send_fields
from contrailmq.client.blocking.raw import QueueReader
from contrailmq.client.blocking.raw_connection import RawConnection
from contrailmq.message import MessageQueue
from contrailmq.message.codec import BatchPart, encode_batch
from contrailmq.testing import LocalCluster
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.header import Command

ROUNDS = 10 if os.environ.get("CONTRAILMQ_LONG") else 1
WAIT_S = 120.0  # a bound for a machine that is busy, not a duration
QUEUE_ID = 2

KINDS: dict[str, dict[str, str]] = {
    "single": {},
    "batch": {},
    "level": {"DELAY": "1"},
    "timer": {"TIMER_DELAY_SEC": "1"},
    "half": {"TRAN_MSG": "true", "PGROUP": "pg"},
    "nowait": {"WAIT": "false"},
    "dead": {},
}


class Killed:
    """A cluster of one broker that does not survive its first acknowledgement."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self._halves: list[Command] = []

    def ask(self, code: int, fields: dict[str, str], body: bytes = b"") -> Command:
        with closing(RawConnection(self._cluster.broker_addresses[0])) as connection:
            answer = connection.invoke(RequestCode(code), fields, body, timeout_s=WAIT_S)
        assert answer.code == 0, answer.remark
        return answer

    def life(self, kind: str, topic: str) -> str:
        """Send, kill, start again; the topic that holds the message."""
        properties = KINDS[kind] | {"UNIQ_KEY": uuid.uuid4().hex.upper()}
        fields = send_fields(topic, properties=properties, e=QUEUE_ID, f="4" if kind == "half" else "0")
        if kind == "batch":
            fields["m"] = "true"
            answer = self.ask(310, fields, encode_batch([BatchPart(0, topic.encode(), b"")]))
        else:
            answer = self.ask(310, fields, topic.encode())
        if kind == "dead":
            offset = str(int(answer.ext["msgId"][-16:], 16))
            self.ask(36, {"offset": offset, "group": topic, "delayLevel": "-1", "originTopic": topic})
            topic = f"%DLQ%{topic}"
        if kind == "half":
            self._halves.append(answer)
        self._cluster.kill_broker()
        tables = self._cluster.store_path / "broker-0" / "config"
        assert topic in json.loads((tables / "topics.json").read_text())["topicConfigTable"]
        if kind == "dead":
            groups = json.loads((tables / "subscriptionGroup.json").read_text())["subscriptionGroupTable"]
            assert topic.removeprefix("%DLQ%") in groups
        self._cluster.restart_broker()
        return topic

    def commit_halves(self) -> None:
        for answer in self._halves:
            self.ask(
                37,
                {
                    "producerGroup": "pg",
                    "tranStateTableOffset": answer.ext["queueOffset"],
                    "commitLogOffset": str(int(answer.ext["msgId"][-16:], 16)),
                    "commitOrRollback": "8",
                    "fromTransactionCheck": "true",
                    "msgId": answer.ext["transactionId"],
                },
            )


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_the_first_message_of_a_topic_outlives_a_kill_right_after_its_acknowledgement(
    tmp_path: Path, flush: str
) -> None:
    config = {"flushDiskType": flush, "messageDelayLevel": "1s"}
    places: dict[str, str] = {}
    with LocalCluster(store=tmp_path, processes=True, config=config) as cluster:
        killed = Killed(cluster)
        for number in range(ROUNDS):
            for kind in KINDS:
                places[f"{kind}{number}"] = killed.life(kind, f"{kind}{number}")
        killed.commit_halves()
        with QueueReader(namesrv=cluster.namesrv) as reader:
            found = {name: received(reader, topic) for name, topic in places.items()}
    assert found == {name: {name.encode()} for name in places}


def received(reader: QueueReader, topic: str) -> set[bytes]:
    queue_id = 0 if topic.startswith("%DLQ%") else QUEUE_ID
    pull = reader.pull(MessageQueue(topic, "broker-0", queue_id), 0, wait_s=WAIT_S)
    return {message.body for message in records(bytes(pull.body))}
