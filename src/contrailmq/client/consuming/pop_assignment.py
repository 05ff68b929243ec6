"""Which queues a consumer pops: brokers assign them (QUERY_ASSIGNMENT, 400).

A broker answers for all brokers of the topic. An administrator may set the group's request mode there (mqadmin
setConsumeMode): in mode POP with `popShareQueueNum` a member pops its own share and those of some neighbours, else all
queues of every broker (queue -1). Mode PULL is what a broker says of a group that nobody set a mode for. This consumer
pops all the same, all queues of every broker: what is popped belongs to one member whoever else pops there.
"""

from __future__ import annotations

from typing import Final

import msgspec

from contrailmq.client.consuming.popping import ANY_QUEUE
from contrailmq.client.rebalance import AverageStrategy
from contrailmq.client.results import MessageModel
from contrailmq.client.transport.instance import ClientInstance
from contrailmq.client.transport.routes import TopicRoute, subscribe_queues
from contrailmq.message import ContrailError, MessageQueue
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.errors import RemoteProtocolError
from contrailmq.wire.pop_records import AssignmentBody, QueryAssignmentBody

ASSIGNMENT_S: Final = 3.0


async def assigned_queues(
    instance: ClientInstance, group: str, topic: str, route: TopicRoute
) -> list[MessageQueue] | None:
    """The queues to pop; None when no broker can say yet: keep what there is."""
    asked = QueryAssignmentBody(
        topic=topic,
        consumer_group=group,
        client_id=instance.client_id,
        strategy_name=AverageStrategy.name,
        message_model=MessageModel.CLUSTERING.value,
    )
    body = msgspec.json.encode(asked)
    last: ContrailError | None = None
    for broker in route.brokers:
        try:
            address = await instance.find_master(broker.name, topic)
            answer = await instance.call(address, RequestCode.QUERY_ASSIGNMENT, {}, body, timeout_s=ASSIGNMENT_S)
        except ContrailError as exc:
            last = exc
            instance.refresh_soon(topic)
            continue
        return _read(answer.body, topic, route)
    if last is not None:
        raise last
    return None


def _read(body: bytes, topic: str, route: TopicRoute) -> list[MessageQueue] | None:
    try:
        entries = msgspec.json.decode(body or b"{}", type=AssignmentBody).message_queue_assignments
    except (msgspec.DecodeError, UnicodeDecodeError) as exc:
        raise RemoteProtocolError(f"the assignment of topic {topic!r} cannot be read: {exc}") from exc
    if entries is None:
        return None
    popped = [entry.message_queue for entry in entries if entry.mode == "POP"]
    if popped:
        return [MessageQueue(topic, queue.broker_name, queue.queue_id) for queue in popped]
    brokers = dict.fromkeys(queue.broker_name for queue in subscribe_queues(topic, route))
    return [MessageQueue(topic, name, ANY_QUEUE) for name in brokers]
