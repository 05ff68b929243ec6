"""How far groups are: consume stats (208, 317), time spans (303), and the units of a queue (321)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from contrailmq.broker.admin.groups import subscription_body
from contrailmq.broker.handlers import Handlers, Refused, success
from contrailmq.broker.node import BrokerNode
from contrailmq.message import RETRY_PREFIX, MessageQueue
from contrailmq.wire.admin_bodies import (
    ConsumeQueueUnit,
    ConsumeQueueUnits,
    ConsumeStats,
    ConsumeStatsList,
    OffsetProgress,
    QueueTimeSpan,
    QueueTimeSpans,
)
from contrailmq.wire.admin_requests import (
    GetBrokerConsumeStats,
    GetConsumeStats,
    QueryConsumeQueue,
    QueryConsumeTimeSpan,
)
from contrailmq.wire.bodies import MessageQueueBody, encode_body
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.header import Command
from contrailmq.wire.peer import Peer

UNITS_MAX: Final = 1024  # of one answer to 321


class ProgressAdmin:
    def __init__(self, node: BrokerNode) -> None:
        self._node = node

    def register(self, handlers: Handlers) -> None:
        handlers.register(RequestCode.GET_CONSUME_STATS, self.consume_stats)
        handlers.register(RequestCode.GET_BROKER_CONSUME_STATS, self.all_consume_stats)
        handlers.register(RequestCode.QUERY_CONSUME_TIME_SPAN, self.time_spans)
        handlers.register(RequestCode.QUERY_CONSUME_QUEUE, self.units)

    def consume_stats(self, connection: Peer, command: Command) -> bytes | None:
        node, header = self._node, command.header(GetConsumeStats)
        node.dispatch_now()
        if header.topic:
            topics = [header.topic]
        elif header.topic_list:
            topics = [part for part in header.topic_list.split(";") if part]
        else:
            topics = sorted(node.offsets.topics_of_group(header.consumer_group))
        progress = self._progress(header.consumer_group, topics)
        stats = ConsumeStats.of(progress, consume_tps=self._consume_tps(header.consumer_group, topics))
        return success(command, None, encode_body(stats))

    def _progress(self, group: str, topics: Iterable[str]) -> dict[MessageQueue, OffsetProgress]:
        node = self._node
        result: dict[MessageQueue, OffsetProgress] = {}
        for name in topics:
            topic = node.topics.get(name)
            if topic is None:
                continue
            for queue_id in range(topic.read_queues):
                end = node.store.max_offset(name, queue_id)
                consumed = node.offsets.query(group, name, queue_id) or 0
                time_ms = node.store.store_time_at(name, queue_id, consumed - 1) if consumed > 0 else 0
                result[MessageQueue(name, node.config.broker_name, queue_id)] = OffsetProgress(
                    broker_offset=end,
                    consumer_offset=consumed,
                    last_timestamp=max(time_ms, 0),
                    # A group that does not pull, as under POP, has nothing between the two.
                    pull_offset=max(consumed, node.offsets.query_pull(group, name, queue_id) or 0),
                )
        return result

    def _consume_tps(self, group: str, topics: Iterable[str]) -> float:
        total = 0.0
        for topic in topics:
            counter = self._node.statistics.find("GROUP_GET_NUMS", f"{topic}@{group}")
            total += counter.rate("minute").per_second if counter else 0.0
        return total

    def all_consume_stats(self, connection: Peer, command: Command) -> bytes | None:
        node, header = self._node, command.header(GetBrokerConsumeStats)
        node.dispatch_now()
        entries: list[dict[str, list[ConsumeStats]]] = []
        total_diff = inflight = 0
        for group in node.groups.names():
            stats = []
            for name in sorted(node.offsets.topics_of_group(group)):
                topic = node.topics.get(name)
                if topic is None or name.startswith(RETRY_PREFIX) or (header.is_order and not topic.order):
                    continue
                progress = self._progress(group, [name])
                total_diff += sum(max(p.broker_offset - p.consumer_offset, 0) for p in progress.values())
                inflight += sum(max(p.pull_offset - p.consumer_offset, 0) for p in progress.values())
                stats.append(ConsumeStats.of(progress, consume_tps=self._consume_tps(group, [name])))
            entries.append({group: stats})
        body = ConsumeStatsList(
            broker_addr=node.address, consume_stats_list=entries, total_diff=total_diff, total_inflight_diff=inflight
        )
        return success(command, None, encode_body(body))

    def time_spans(self, connection: Peer, command: Command) -> bytes | None:
        node, header = self._node, command.header(QueryConsumeTimeSpan)
        topic = node.topics.get(header.topic)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{header.topic[:128]}] not exist")
        node.dispatch_now()
        spans = []
        for queue_id in range(topic.write_queues):
            low, high = node.store.min_offset(topic.name, queue_id), node.store.max_offset(topic.name, queue_id)
            consumed = node.offsets.query(header.group, topic.name, queue_id) or 0
            first = self._time(topic.name, queue_id, low)
            spans.append(
                QueueTimeSpan(
                    message_queue=MessageQueueBody(
                        broker_name=node.config.broker_name, queue_id=queue_id, topic=topic.name
                    ),
                    min_time_stamp=first,
                    max_time_stamp=self._time(topic.name, queue_id, high - 1),
                    consume_time_stamp=self._time(topic.name, queue_id, consumed - 1) if consumed > 0 else first,
                    delay_time=self._delay(topic.name, queue_id, consumed, high),
                )
            )
        return success(command, None, encode_body(QueueTimeSpans(consume_time_span_set=spans)))

    def _time(self, topic: str, queue_id: int, offset: int) -> int:
        return self._node.store.store_time_at(topic, queue_id, offset) if offset >= 0 else -1

    def _delay(self, topic: str, queue_id: int, consumed: int, end: int) -> int:
        """For how long the first message that waits has been waiting."""
        if consumed >= end:
            return 0
        waiting = self._time(topic, queue_id, consumed)
        return max(self._node.now_ms() - waiting, 0) if waiting > 0 else 0

    def units(self, connection: Peer, command: Command) -> bytes | None:
        node, header = self._node, command.header(QueryConsumeQueue)
        topic, queue_id = header.topic or "", header.queue_id or 0
        if topic not in node.topics:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic[:128]} is not exist!")
        node.dispatch_now()
        subscription = node.clients.subscription(header.consumer_group or "", topic)
        wanted = subscription.filter if subscription else None
        units = []
        count = max(0, min(header.count or 0, UNITS_MAX))
        for physical_offset, size_bytes, code in node.store.read_units(topic, queue_id, header.index or 0, count):
            units.append(
                ConsumeQueueUnit(
                    eval=wanted is not None and wanted.match_unit(code),
                    physic_offset=physical_offset,
                    physic_size=size_bytes,
                    tags_code=code,
                )
            )
        body = ConsumeQueueUnits(
            filter_data="null",
            min_queue_index=node.store.min_offset(topic, queue_id),
            max_queue_index=node.store.max_offset(topic, queue_id),
            queue_data=units,
            subscription_data=subscription_body(subscription) if subscription else None,
        )
        return success(command, None, encode_body(body))
