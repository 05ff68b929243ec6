"""Offsets of groups: reset (222), clone (314), compare (308), and the whole table for a slave (43)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Final

from contrailmq.broker.handlers import Handlers, Refused, success
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.state.config_files import compact
from contrailmq.broker.state.offsets import OFFSETS_FILE
from contrailmq.broker.state.persistence import TableSaver
from contrailmq.broker.state.topics import Topic
from contrailmq.message import MessageQueue
from contrailmq.wire.admin_bodies import CorrectionOffsets, ResetOffsetBody
from contrailmq.wire.admin_requests import CloneGroupOffset, QueryCorrectionOffset
from contrailmq.wire.bodies import encode_body
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import WireError
from contrailmq.wire.header import Command
from contrailmq.wire.peer import Peer
from contrailmq.wire.peer_warnings import peer_warnings
from contrailmq.wire.requests import ResetOffset

log = logging.getLogger("contrailmq.broker")

SetByHand = Callable[[str, str, int], None]  # tells POP of the group, topic and queue whose offset an operator has set

QUEUES_TOLD_MAX: Final = 16  # of a reset, in its line of the log
LONG_MAX: Final = 2**63 - 1
RESET_VERSION: Final = 28  # V3_0_7_SNAPSHOT: older clients do not know the request


class OffsetAdmin:
    def __init__(self, node: BrokerNode, saver: TableSaver, set_by_hand: SetByHand) -> None:
        self._node = node
        self._saver = saver
        self._set_by_hand = set_by_hand

    def register(self, handlers: Handlers) -> None:
        handlers.register_slow(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, self.reset)
        handlers.register_slow(RequestCode.CLONE_GROUP_OFFSET, self.clone)
        handlers.register(RequestCode.QUERY_CORRECTION_OFFSET, self.correction)
        handlers.register_slow(RequestCode.GET_ALL_CONSUMER_OFFSET, self.all)

    async def reset(self, connection: Peer, command: Command) -> bytes | None:
        node, header = self._node, command.header(ResetOffset)
        topic = node.topics.get(header.topic)
        if topic is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic {header.topic[:128]} does not exist")
        if header.group not in node.groups:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group {header.group[:64]} does not exist"
            )
        node.dispatch_now()
        if node.config.use_server_side_reset_offset:
            offsets = self._server_side(header, topic)
            self._tell(header, offsets, "by the broker")
            for queue, offset in offsets.items():
                node.offsets.reset(header.group, queue.topic, queue.queue_id, offset)
                self._set_by_hand(header.group, queue.topic, queue.queue_id)
            node.offset_journal.note()
            await self._saver.save(OFFSETS_FILE)
        else:
            offsets = self._through_clients(header, topic, connection, command)
            self._tell(header, offsets, "by its clients, which were informed")
        return success(command, None, encode_body(ResetOffsetBody.of(offsets)))

    def _tell(self, header: ResetOffset, offsets: Mapping[MessageQueue, int], how: str) -> None:
        moves = []
        for queue, offset in list(offsets.items())[:QUEUES_TOLD_MAX]:
            before = self._node.offsets.query(header.group, queue.topic, queue.queue_id)
            moves.append(f"queue {queue.queue_id} from {'none' if before is None else before} to {offset}")
        more = f", and {len(offsets) - len(moves)} more" if len(offsets) > len(moves) else ""
        text = "offsets of group %s on topic %s are reset %s: %s%s"
        log.info(text, header.group, header.topic, how, ", ".join(moves) or "no queue", more)

    def _server_side(self, header: ResetOffset, topic: Topic) -> dict[MessageQueue, int]:
        """The offset of each queue that is reset: as given, else by time; -1 means the end."""
        node = self._node
        queue_id = -1 if header.queue_id is None else header.queue_id
        if queue_id >= topic.read_queues:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"queueId {queue_id} is illegal: topic {topic.name} has {topic.read_queues} queues to read",
            )
        queues = range(topic.read_queues) if queue_id < 0 else [queue_id]
        result = {}
        for number in queues:
            low, high = node.store.min_offset(topic.name, number), node.store.max_offset(topic.name, number)
            offset = header.offset if header.offset is not None and queue_id >= 0 else -1
            if offset < 0:
                offset = high if header.timestamp < 0 else node.store.offset_at(topic.name, number, header.timestamp)
            elif not low <= offset <= high:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR,
                    f"offset {offset} of queue {number} of topic {topic.name} is outside of {low} to {high}",
                )
            result[MessageQueue(topic.name, node.config.broker_name, number)] = offset
        return result

    def _through_clients(
        self, header: ResetOffset, topic: Topic, connection: Peer, command: Command
    ) -> dict[MessageQueue, int]:
        """The way of 4.x: compute the offsets, and have every consumer of the group move to them."""
        node = self._node
        offsets: dict[MessageQueue, int] = {}
        for number in range(topic.write_queues):
            consumed = node.offsets.query(header.group, topic.name, number)
            if consumed is None:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR, f"THe consumer group <{header.group}> not exist in queue {number}"
                )
            end = node.store.max_offset(topic.name, number)
            target = end if header.timestamp < 0 else node.store.offset_at(topic.name, number, header.timestamp)
            queue = MessageQueue(topic.name, node.config.broker_name, number)
            offsets[queue] = target if header.is_force or target < consumed else consumed
        live = node.clients.consumer_group(header.group)
        if live is None or not live.members:
            raise Refused(
                ResponseCode.CONSUMER_NOT_ONLINE,
                f"Consumer not online, so can not reset offset, Group: {header.group} Topic: {topic.name}",
            )
        body = encode_body(ResetOffsetBody.of(offsets))
        for client in list(live.members.values()):
            if client.version < RESET_VERSION:
                raise Refused(
                    ResponseCode.SYSTEM_ERROR, f"the client {client.client_id} is too old to have its offset reset"
                )
            try:
                client.connection.oneway(RequestCode.RESET_CONSUMER_CLIENT_OFFSET, header, body)
            except WireError as exc:
                peer_warnings.warn("a client did not learn of a reset", f"{client.client_id[:64]}: {exc}")
        return offsets

    async def clone(self, connection: Peer, command: Command) -> bytes | None:
        node, header = self._node, command.header(CloneGroupOffset)
        topics = [header.topic] if header.topic else sorted(node.offsets.topics_of_group(header.src_group))
        for topic in topics:
            if topic not in node.topics:
                peer_warnings.warn("offsets are not cloned, the topic does not exist", topic[:128])
                continue
            node.offsets.clone(header.src_group, header.dest_group, topic)
            for queue_id in node.offsets.queues(header.src_group, topic):
                self._set_by_hand(header.dest_group, topic, queue_id)
            log.info(
                "offsets of group %s on topic %s are now those of group %s", header.dest_group, topic, header.src_group
            )
        await self._saver.save(OFFSETS_FILE)
        return success(command)

    def correction(self, connection: Peer, command: Command) -> bytes | None:
        """The smallest offset of each queue over all groups; the largest number where the compared one is behind."""
        node, header = self._node, command.header(QueryCorrectionOffset)
        skipped = [part for part in (header.filter_groups or "").split(",") if part]
        smallest = node.offsets.min_offsets(header.topic, without_groups=skipped)
        for queue_id, compared in node.offsets.queues(header.compare_group, header.topic).items():
            if smallest.get(queue_id, compared) > compared:
                smallest[queue_id] = LONG_MAX
        return success(command, None, encode_body(CorrectionOffsets(correction_offsets=smallest)))

    async def all(self, connection: Peer, command: Command) -> bytes | None:
        """As of now; made JSON in a thread, since every slave asks for it every few seconds and it may be long."""
        to_json = self._node.offsets.snapshot()
        body = await asyncio.to_thread(lambda: compact(to_json()))
        return success(command, None, body)
