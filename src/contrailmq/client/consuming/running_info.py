"""A consumer's report about itself, in the form that RocketMQ's tools read (code 307)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from contrailmq.client.consuming.consume_watch import TopicCounts
from contrailmq.client.consuming.process_queue import Assignment
from contrailmq.message import MessageQueue
from contrailmq.wire.admin_bodies import ConsumerRunningInfo, ConsumeStatus, ProcessQueueInfo
from contrailmq.wire.bodies import queue_table
from contrailmq.wire.codes import OUR_VERSION, version_name

if TYPE_CHECKING:
    from contrailmq.client.consuming.subscriber import Subscriber


def running_info(
    consumer: Subscriber,
    assignments: Mapping[MessageQueue, Assignment],
    counts: Mapping[str, TopicCounts],
    *,
    threads: int = 0,
    is_orderly: bool = False,
) -> ConsumerRunningInfo:
    """What the consumer is doing, queue by queue."""
    queues = {
        queue: _queue_info(assignment, consumer.offsets_of(queue.topic).get(queue, -1))
        for queue, assignment in assignments.items()
    }
    return ConsumerRunningInfo(
        mq_table=queue_table(queues),
        properties={
            "PROP_NAMESERVER_ADDR": consumer.namesrv,
            "PROP_THREADPOOL_CORE_SIZE": str(threads),
            "PROP_CONSUMEORDERLY": "true" if is_orderly else "false",
            "PROP_CONSUME_TYPE": consumer.consume_type,
            "PROP_CLIENT_VERSION": version_name(OUR_VERSION),
            "PROP_CONSUMER_START_TIMESTAMP": str(consumer.start_ms),
            "PROP_DAMAGED_MESSAGES": str(consumer.damaged_count),
        },
        status_table={topic: ConsumeStatus(consume_failed_msgs=count.failed) for topic, count in counts.items()},
        subscription_set=[item.as_body() for item in consumer.subscriptions.values()],
    )


def _queue_info(assignment: Assignment, committed: int) -> ProcessQueueInfo:
    cache = assignment.cache
    low, high = cache.offset_range
    return ProcessQueueInfo(
        cached_msg_count=cache.count,
        cached_msg_max_offset=high,
        cached_msg_min_offset=low,
        cached_msg_size_in_mib=cache.size_bytes // (1024 * 1024),
        commit_offset=committed,
        droped=cache.is_dropped,
        locked=cache.is_locked,
        transaction_msg_count=cache.consuming_count,
    )
