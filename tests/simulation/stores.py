"""What the stores of a trial hold in the end, read from the files after a clean stop.

The log is walked by the store's own reader, which changes nothing; `store verify` says of the same files whether queues
and index are what a rebuild of the log would give.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from contrailmq.message import MessageError, StoredMessage
from contrailmq.message.inner_batch import unwrapped
from contrailmq.message.record import RecordView, read_record
from contrailmq.store.config import StoreConfig
from contrailmq.store.recovery.log_walk import walk_over
from contrailmq.store.tools.read_only import StoreView
from contrailmq.store.tools.verify import verify_store
from simulation.history import Place, Queue

HALVES, TIMERS, LEVELS = "RMQ_SYS_TRANS_HALF_TOPIC", "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX"
RETRY, DEAD = "%RETRY%", "%DLQ%"


class Record(NamedTuple):
    place: Place
    physical_offset: int
    store_time_ms: int
    body: bytes
    properties: dict[str, str]
    flag: int = 0


class Left(NamedTuple):
    """Of one broker: the messages of its log in order, what `store verify` says, its groups' offsets, its queues."""

    broker: str
    records: list[Record]
    findings: list[tuple[int | None, str]]  # (offset, sentence)
    offsets: dict[tuple[str, Queue], int]  # (group, queue)
    ends: dict[Queue, int]


def read_store(broker: str, config: StoreConfig) -> Left:
    sink = _Records(broker)
    with StoreView(config) as view:
        for file in view.log_files:
            walk_over(file, sink)
        report = verify_store(view)
        ends = {Queue(topic, broker, number): end for (topic, number), end in view.queues.next_offsets().items()}
    findings = [
        (one.offset, f"{broker}: {one.part} {one.where} {one.offset}: {one.problem}") for one in report.findings
    ]
    return Left(broker, sink.records, findings, _offsets(broker, config.path), ends)


class _Records:
    """Sink of a walk."""

    def __init__(self, broker: str) -> None:
        self._broker = broker
        self.records: list[Record] = []

    def take(self, record: RecordView, /) -> None:
        stored = read_record(StoredMessage, record.buffer, record.position)
        try:
            messages = [(message, message.body) for message in unwrapped(stored)]
        except MessageError:  # damaged: `History.flipped` knows
            messages = [(stored, b"")]
        queue = Queue(stored.topic, self._broker, stored.queue_id)
        for message, body in messages:
            place = Place(queue, message.queue_offset)
            self.records.append(
                Record(
                    place, message.physical_offset, message.store_time_ms, body, dict(message.properties), message.flag
                )
            )


def _offsets(broker: str, path: Path) -> dict[tuple[str, Queue], int]:
    file = path / "config" / "consumerOffset.json"
    if not file.exists():
        return {}
    found = {}
    for name, queues in json.loads(file.read_text())["offsetTable"].items():
        topic, _, group = name.partition("@")
        for queue_id, offset in queues.items():
            found[group, Queue(topic, broker, int(queue_id))] = offset
    return found
