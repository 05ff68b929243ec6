"""A consumer's report about itself, in the form that RocketMQ's tools read (code 307)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from contrailmq.client.assignment import Assignment
from contrailmq.client.consume_watch import TopicCounts
from contrailmq.message import MessageQueue
from contrailmq.wire.codes import OUR_VERSION, version_name

if TYPE_CHECKING:
    from contrailmq.client.group_consumer import GroupConsumer


def encode_running_info(
    consumer: GroupConsumer,
    assignments: Mapping[MessageQueue, Assignment],
    counts: Mapping[str, TopicCounts],
    *,
    threads: int = 0,
    is_orderly: bool = False,
) -> bytes:
    """ConsumerRunningInfo; the queue table has objects as keys, which is Java's JSON and not JSON."""
    head = {
        "properties": {
            "PROP_NAMESERVER_ADDR": consumer.namesrv,
            "PROP_THREADPOOL_CORE_SIZE": str(threads),
            "PROP_CONSUMEORDERLY": "true" if is_orderly else "false",
            "PROP_CONSUME_TYPE": consumer.consume_type,
            "PROP_CLIENT_VERSION": version_name(OUR_VERSION),
            "PROP_CONSUMER_START_TIMESTAMP": str(consumer.start_ms),
        },
        "statusTable": {topic: _status(count) for topic, count in counts.items()},
        "subscriptionSet": [item.as_body() for item in consumer.subscriptions.values()],
        "userConsumerInfo": {},
        "mqPopTable": {},
    }
    table = b",".join(
        msgspec.json.encode({"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic})
        + b":"
        + msgspec.json.encode(_queue_info(assignment, consumer.offsets_of(queue.topic).get(queue, -1)))
        for queue, assignment in assignments.items()
    )
    return b'{"mqTable":{' + table + b"}," + msgspec.json.encode(head)[1:]


def _status(count: TopicCounts) -> dict[str, float]:
    return {
        "consumeFailedMsgs": count.failed,
        "consumeFailedTPS": 0.0,
        "consumeOKTPS": 0.0,
        "consumeRT": 0.0,
        "pullRT": 0.0,
        "pullTPS": 0.0,
    }


def _queue_info(assignment: Assignment, committed: int) -> dict[str, object]:
    cache = assignment.cache
    low, high = cache.offset_range
    return {
        "cachedMsgCount": cache.count,
        "cachedMsgMaxOffset": high,
        "cachedMsgMinOffset": low,
        "cachedMsgSizeInMiB": cache.size_bytes // (1024 * 1024),
        "commitOffset": committed,
        "droped": cache.is_dropped,
        "lastConsumeTimestamp": 0,
        "lastLockTimestamp": 0,
        "lastPullTimestamp": 0,
        "locked": cache.is_locked,
        "transactionMsgCount": cache.consuming_count,
        "transactionMsgMaxOffset": 0,
        "transactionMsgMinOffset": 0,
        "tryUnlockTimes": 0,
    }
