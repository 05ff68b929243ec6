"""A topic has queues of one kind: batch queues, where its table or an inner batch in the log says so.

A slave may get messages of a topic before it is told of it. An inner batch says what it is (its sysFlag); a single
message of a topic with queue.type=BatchCQ looks like any other, and dispatch puts it into an ordinary queue. Once the
topic is known, its units move to batch queues: the records that both kinds point at are entered in log order, as a
rebuild does it. That is on the disk before an ordinary queue goes. A crash before that leaves both kinds, or the
ordinary one alone; opening moves them again, and believes no batch queue while there are both.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from contrailmq.message.codec import Kind, check_record
from contrailmq.message.record import view_record
from contrailmq.store.log.mapped_file_queue import MappedFileQueue
from contrailmq.store.queues.consume_queue import ConsumeQueue
from contrailmq.store.queues.consume_queue_table import ConsumeQueueTable
from contrailmq.store.recovery.reconcile import BatchSink

_log = logging.getLogger(__name__)


def unify_queues(queues: ConsumeQueueTable, log_files: MappedFileQueue, persist: Callable[[], None]) -> list[str]:
    """Move what is in the wrong kind of queue; of which topics. Nobody dispatches, cleans or persists meanwhile.

    `persist` syncs the queues and notes it in the ledger.
    """
    topics = queues.misplaced()
    if not topics:
        return []
    for queue in queues:
        if queue.topic in topics:
            _refill(queue, queues, log_files)
    persist()
    for topic in topics:
        queues.delete_topic(topic)
    persist()
    _log.info("moved to batch queues, which these topics have: %s", ", ".join(topics))
    return topics


def _refill(queue: ConsumeQueue, queues: ConsumeQueueTable, log_files: MappedFileQueue) -> None:
    """Make the batch queue that belongs in the place of an ordinary one."""
    batches = queues.batches.find_or_create(queue.topic, queue.queue_id)
    following = max(queue.max_offset, batches.max_offset)
    places = {unit.physical_offset for unit in batches.scan(batches.first)}
    for _, unit in queue.scan(queue.min_offset, queue.max_offset):
        if unit.is_valid and not unit.is_pre_blank:
            places.add(unit.physical_offset)
    batches.reset()
    sink = BatchSink(queues.batches, begin=0)
    for place in sorted(places):
        file = log_files.find(place)
        if file is None:
            continue  # cleaned
        position = place - file.base
        verdict = check_record(
            file.mapping,
            position,
            limit=file.read_position,
            physical_offset=place,
            check_body_crc=False,
            check_zero_tail=False,
        )
        if verdict.kind is Kind.WHOLE:
            sink.take(view_record(file.mapping, position))
    if batches.end == batches.first:  # all of them are gone: no offset is given out twice
        batches.start_at(following)
