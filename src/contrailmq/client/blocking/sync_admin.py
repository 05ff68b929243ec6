"""The blocking face of `Admin`.

Made by tools/blocking_clients.py: change the asyncio clients, or blocking/base.py, and run it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Unpack

from contrailmq.client.admin import admin
from contrailmq.client.admin.admin_dead_letters import NEW_LETTERS, LetterChoice, LetterReport
from contrailmq.client.admin.admin_groups import OffsetPlace, QueueProgress
from contrailmq.client.admin.admin_messages import END_OF_TIME_MS
from contrailmq.client.admin.admin_offsets import OffsetPlan
from contrailmq.client.admin.traces import TraceStep
from contrailmq.client.blocking.base import BlockingAdmin
from contrailmq.client.consuming.subscription import SqlFilter
from contrailmq.client.records import ReceivedMessage
from contrailmq.client.results import SendResult
from contrailmq.client.settings import ClientSettings
from contrailmq.client.transport.routes import TopicRoute
from contrailmq.message import MessageQueue, StoredMessage, SystemTopic
from contrailmq.wire.admin_bodies import (
    BrokerStatsData,
    ConsumeMessageDirectlyResult,
    ConsumerConnection,
    ConsumerRunningInfo,
    HaRuntimeInfo,
    ProducerInfo,
    SubscriptionGroupConfig,
    TopicOffset,
)
from contrailmq.wire.bodies import ClusterInfo, TopicConfig, TopicConfigWrapper
from contrailmq.wire.lite_bodies import LiteTopicInfo, ParentTopicInfo


class Admin(BlockingAdmin):
    """Looks at and changes a cluster."""

    def __init__(self, *, namesrv: str | None = None, **settings: Unpack[ClientSettings]) -> None:
        super().__init__(lambda: admin.Admin(namesrv=namesrv, **settings))

    def cluster(self) -> ClusterInfo:
        """Clusters, their brokers and the brokers' addresses."""
        return self._call(lambda admin: admin.cluster())

    def route(self, topic: str) -> TopicRoute:
        """The topic's brokers and queues, fresh from the NameServer."""
        return self._call(lambda admin: admin.route(topic))

    def masters(self, *, broker: str | None = None, cluster: str | None = None) -> dict[str, str]:
        """Addresses of the masters by broker name: of one broker, one cluster, or all."""
        return self._call(lambda admin: admin.masters(broker=broker, cluster=cluster))

    def slaves_asked(self) -> dict[str, str]:
        """Addresses of slaves that were asked in place of their masters so far, by broker name."""
        return self._call(lambda admin: admin.slaves_asked())

    def topics(self) -> list[str]:
        """All topics that the NameServer routes, %RETRY% and %DLQ% ones included, sorted."""
        return self._call(lambda admin: admin.topics())

    def system_topics(self) -> list[str]:
        """Those of `topics` that brokers keep for themselves; each cluster and broker has one of its name."""
        return self._call(lambda admin: admin.system_topics())

    def topic_configs(self, *, broker: str | None = None) -> dict[str, dict[str, TopicConfig]]:
        """Settings of all topics, by broker name and topic."""
        return self._call(lambda admin: admin.topic_configs(broker=broker))

    def topic_config(self, topic: str) -> dict[str, TopicConfig]:
        """The topic's settings, by broker name."""
        return self._call(lambda admin: admin.topic_config(topic))

    def create_topic(
        self,
        topic: str,
        *,
        queues: int = 8,
        read_queues: int | None = None,
        permission: int = 6,
        order: bool = False,
        attributes: Mapping[str, str | None] | None = None,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> None:
        """Create a topic or change it, on one broker, a cluster, or everywhere. `queues` counts those per broker."""
        self._call(
            lambda admin: admin.create_topic(
                topic,
                queues=queues,
                read_queues=read_queues,
                permission=permission,
                order=order,
                attributes=attributes,
                broker=broker,
                cluster=cluster,
            )
        )

    def topic_holders(
        self, topic: str, *, broker: str | None = None, cluster: str | None = None
    ) -> dict[str, TopicConfig]:
        """The topic's settings by broker name, as the brokers say it; empty when none of them has it."""
        return self._call(lambda admin: admin.topic_holders(topic, broker=broker, cluster=cluster))

    def update_topic(
        self,
        topic: str,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        permission: int | None = None,
        order: bool | None = None,
        attributes: Mapping[str, str | None] | None = None,
        broker: str | None = None,
        cluster: str | None = None,
    ) -> dict[str, TopicConfig]:
        """Change only what is given, on each broker that has the topic; returns the new settings by broker name."""
        return self._call(
            lambda admin: admin.update_topic(
                topic,
                read_queues=read_queues,
                write_queues=write_queues,
                permission=permission,
                order=order,
                attributes=attributes,
                broker=broker,
                cluster=cluster,
            )
        )

    def put_topic_config(
        self, config: TopicConfig, *, broker: str, attributes: Mapping[str, str | None] | None = None
    ) -> None:
        """Create a topic on one broker or change it, from its full settings; an attribute of None is removed."""
        self._call(lambda admin: admin.put_topic_config(config, broker=broker, attributes=attributes))

    def delete_topic(self, topic: str, *, broker: str | None = None, cluster: str | None = None) -> None:
        """Delete a topic at the brokers, then at the NameServers; at one broker it stays with the others."""
        self._call(lambda admin: admin.delete_topic(topic, broker=broker, cluster=cluster))

    def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Smallest and next offset of each queue, and when it was last written."""
        return self._call(lambda admin: admin.topic_stats(topic))

    def lite_parent(self, topic: str) -> dict[str, ParentTopicInfo]:
        """What a topic of type LITE holds, by broker name: how many lite topics, and its groups."""
        return self._call(lambda admin: admin.lite_parent(topic))

    def lite_topic(self, topic: str, lite_topic: str) -> dict[str, LiteTopicInfo]:
        """Offsets and subscribers of one lite topic of a topic, by broker name."""
        return self._call(lambda admin: admin.lite_topic(topic, lite_topic))

    def topic_groups(self, topic: str) -> list[str]:
        """The groups that consume the topic."""
        return self._call(lambda admin: admin.topic_groups(topic))

    def queues(self, topic: str) -> list[MessageQueue]:
        """All queues that can be read."""
        return self._call(lambda admin: admin.queues(topic))

    def min_offset(self, queue: MessageQueue) -> int:
        return self._call(lambda admin: admin.min_offset(queue))

    def max_offset(self, queue: MessageQueue) -> int:
        """The offset that the next message will get."""
        return self._call(lambda admin: admin.max_offset(queue))

    def search_offset(self, queue: MessageQueue, time_ms: int) -> int:
        """The first message stored at or after the time."""
        return self._call(lambda admin: admin.search_offset(queue, time_ms))

    def earliest_store_time(self, queue: MessageQueue) -> int:
        """When the queue's first message was stored, in epoch milliseconds; -1 when it is empty."""
        return self._call(lambda admin: admin.earliest_store_time(queue))

    def put_kv(self, namespace: str, key: str, value: str) -> None:
        self._call(lambda admin: admin.put_kv(namespace, key, value))

    def get_kv(self, namespace: str, key: str) -> str | None:
        return self._call(lambda admin: admin.get_kv(namespace, key))

    def delete_kv(self, namespace: str, key: str) -> None:
        self._call(lambda admin: admin.delete_kv(namespace, key))

    def list_kv(self, namespace: str) -> dict[str, str]:
        return self._call(lambda admin: admin.list_kv(namespace))

    def topic_table(self, address: str) -> TopicConfigWrapper:
        """All that one broker says of its topics, static ones included."""
        return self._call(lambda admin: admin.topic_table(address))

    def groups(self) -> list[str]:
        """All consumer groups that any broker knows, sorted."""
        return self._call(lambda admin: admin.groups())

    def group_configs(self, *, broker: str | None = None) -> dict[str, dict[str, SubscriptionGroupConfig]]:
        """Settings of all groups, by broker name and group."""
        return self._call(lambda admin: admin.group_configs(broker=broker))

    def group_config(self, group: str) -> dict[str, SubscriptionGroupConfig]:
        """The group's settings, by broker name; empty when no broker knows it."""
        return self._call(lambda admin: admin.group_config(group))

    def create_group(
        self, config: SubscriptionGroupConfig | str, *, broker: str | None = None, cluster: str | None = None
    ) -> None:
        """Create a group or change it, from its full settings or just its name."""
        self._call(lambda admin: admin.create_group(config, broker=broker, cluster=cluster))

    def delete_group(
        self, group: str, *, clean_offsets: bool = True, broker: str | None = None, cluster: str | None = None
    ) -> None:
        self._call(lambda admin: admin.delete_group(group, clean_offsets=clean_offsets, broker=broker, cluster=cluster))

    def group_topics(self, group: str) -> list[str]:
        """The topics that the group consumes or has offsets of."""
        return self._call(lambda admin: admin.group_topics(group))

    def consumers(self, group: str) -> ConsumerConnection | None:
        """The group's members and subscriptions as the brokers see them; None when nobody is online."""
        return self._call(lambda admin: admin.consumers(group))

    def producers(self, group: str) -> list[str]:
        """Client ids of the group's producers that are connected."""
        return self._call(lambda admin: admin.producers(group))

    def all_producers(self, *, broker: str | None = None) -> dict[str, list[ProducerInfo]]:
        """Every producer that is connected, by group. Brokers before 4.9.3 cannot say."""
        return self._call(lambda admin: admin.all_producers(broker=broker))

    def running_info(self, group: str, client_id: str) -> ConsumerRunningInfo:
        """What one member says of itself."""
        return self._call(lambda admin: admin.running_info(group, client_id))

    def progress(self, group: str, topic: str | None = None) -> list[QueueProgress]:
        """How far the group is, queue by queue."""
        return self._call(lambda admin: admin.progress(group, topic))

    def lag(self, group: str, topic: str | None = None) -> int:
        """Messages that the group has not consumed."""
        return self._call(lambda admin: admin.lag(group, topic))

    def unread_beyond(self, topic: str, queues: int, *, broker: str | None = None) -> int:
        """Messages in the queues from number `queues` on that can be read and that some group has not consumed."""
        return self._call(lambda admin: admin.unread_beyond(topic, queues, broker=broker))

    def offset(self, group: str, queue: MessageQueue) -> int:
        """The group's stored offset of a queue, -1 when there is none."""
        return self._call(lambda admin: admin.offset(group, queue))

    def set_offset(self, group: str, queue: MessageQueue, offset: int) -> None:
        """Store an offset. Members that run do not notice: use `reset_offsets` for them."""
        self._call(lambda admin: admin.set_offset(group, queue, offset))

    def reset_offsets(self, group: str, topic: str, to: int | OffsetPlace) -> dict[MessageQueue, int]:
        """Let the group continue at a time (epoch milliseconds) or an end, running members included."""
        return self._call(lambda admin: admin.reset_offsets(group, topic, to))

    def clone_offsets(self, source: str, target: str, topic: str) -> None:
        """Give another group the same offsets of a topic; an error when the source has none."""
        self._call(lambda admin: admin.clone_offsets(source, target, topic))

    def plan_offsets(self, group: str, topic: str, to: int | OffsetPlace) -> OffsetPlan:
        """What it means to go on at a time (epoch milliseconds) or at an end. Changes nothing."""
        return self._call(lambda admin: admin.plan_offsets(group, topic, to))

    def plan_offset(self, group: str, topic: str, offset: int, *, queue: str = "") -> OffsetPlan:
        """What it means to go on at an offset, in one queue (`broker-a:3`) or in all of them. Changes nothing."""
        return self._call(lambda admin: admin.plan_offset(group, topic, offset, queue=queue))

    def move_offsets(self, group: str, targets: Mapping[MessageQueue, int]) -> None:
        """Store these offsets; members that run go on there at once."""
        self._call(lambda admin: admin.move_offsets(group, targets))

    def message(self, topic: str, message_id: str) -> StoredMessage | None:
        """By its id, the unique one that senders and listeners know or the offset one; None when there is none."""
        return self._call(lambda admin: admin.message(topic, message_id))

    def message_at(self, offset_message_id: str) -> StoredMessage:
        """By its place: the offset message id holds the broker's address and the physical offset."""
        return self._call(lambda admin: admin.message_at(offset_message_id))

    def messages_by_key(
        self, topic: str, key: str, *, max_count: int = 32, begin_ms: int = 0, end_ms: int = END_OF_TIME_MS
    ) -> list[StoredMessage]:
        """Messages that have the key, newest first. The index is a hash, so keys are compared again here."""
        return self._call(
            lambda admin: admin.messages_by_key(topic, key, max_count=max_count, begin_ms=begin_ms, end_ms=end_ms)
        )

    def messages_by_unique_key(self, topic: str, unique_key: str) -> list[StoredMessage]:
        """Messages with this unique id: more than one when a send was retried."""
        return self._call(lambda admin: admin.messages_by_unique_key(topic, unique_key))

    def messages_by_time(self, topic: str, *, begin_ms: int, end_ms: int, max_count: int = 1000) -> list[StoredMessage]:
        """Messages that were stored in the time span, oldest first within each queue."""
        return self._call(
            lambda admin: admin.messages_by_time(topic, begin_ms=begin_ms, end_ms=end_ms, max_count=max_count)
        )

    def read_range(
        self, queue: MessageQueue, offset: int, end: int, wanted: str | SqlFilter | None = None
    ) -> list[ReceivedMessage]:
        """The messages with offsets from `offset` up to `end`, which is not included; of them what is wanted."""
        return self._call(lambda admin: admin.read_range(queue, offset, end, wanted))

    def trace(self, message_id: str, *, topic: str = SystemTopic.TRACE) -> list[TraceStep]:
        """Who sent the message and who consumed it, in order of time; empty when nobody traced it."""
        return self._call(lambda admin: admin.trace(message_id, topic=topic))

    def consume_directly(self, group: str, client_id: str, message: StoredMessage) -> ConsumeMessageDirectlyResult:
        """Let one running member consume a message now."""
        return self._call(lambda admin: admin.consume_directly(group, client_id, message))

    def dead_letters(self, group: str, *, max_count: int = 100) -> list[StoredMessage]:
        """What the group gave up, oldest first; empty when it has no dead-letter queue."""
        return self._call(lambda admin: admin.dead_letters(group, max_count=max_count))

    def resend_dead_letter(self, group: str, message: StoredMessage) -> SendResult:
        """Give a dead letter to the group again, and only to it: through its retry topic, with fresh retries."""
        return self._call(lambda admin: admin.resend_dead_letter(group, message))

    def choose_dead_letters(self, group: str, choice: LetterChoice = NEW_LETTERS) -> LetterReport:
        """What `resend_dead_letters` would send; sends and remembers nothing."""
        return self._call(lambda admin: admin.choose_dead_letters(group, choice))

    def resend_dead_letters(self, group: str, choice: LetterChoice = NEW_LETTERS) -> LetterReport:
        """Send the chosen letters to the group again, oldest first, and remember them."""
        return self._call(lambda admin: admin.resend_dead_letters(group, choice))

    def broker_stats(self, address: str) -> dict[str, str]:
        """The broker's runtime figures, RocketMQ's keys."""
        return self._call(lambda admin: admin.broker_stats(address))

    def broker_config(self, address: str) -> dict[str, str]:
        """The broker's settings, RocketMQ's keys."""
        return self._call(lambda admin: admin.broker_config(address))

    def update_broker_config(self, address: str, changes: Mapping[str, str]) -> None:
        """Change settings while the broker runs; it refuses what it cannot change."""
        self._call(lambda admin: admin.update_broker_config(address, changes))

    def namesrv_config(self) -> dict[str, str]:
        return self._call(lambda admin: admin.namesrv_config())

    def update_namesrv_config(self, changes: Mapping[str, str]) -> None:
        self._call(lambda admin: admin.update_namesrv_config(changes))

    def stats_item(self, address: str, name: str, key: str) -> BrokerStatsData:
        """One counter of the broker over the last minute, hour and day, such as TOPIC_PUT_NUMS of a topic."""
        return self._call(lambda admin: admin.stats_item(address, name, key))

    def ha_status(self, address: str) -> HaRuntimeInfo:
        """How far the broker's slaves are."""
        return self._call(lambda admin: admin.ha_status(address))

    def wipe_write_permission(self, broker_name: str) -> int:
        """Take a broker out of writing before maintenance; returns how many topics were changed."""
        return self._call(lambda admin: admin.wipe_write_permission(broker_name))

    def add_write_permission(self, broker_name: str) -> int:
        """The way back from `wipe_write_permission`."""
        return self._call(lambda admin: admin.add_write_permission(broker_name))

    def clean_unused_topics(self, address: str) -> None:
        self._call(lambda admin: admin.clean_unused_topics(address))

    def clean_expired_queues(self, address: str) -> None:
        self._call(lambda admin: admin.clean_expired_queues(address))

    def delete_expired_files(self, address: str) -> None:
        self._call(lambda admin: admin.delete_expired_files(address))
