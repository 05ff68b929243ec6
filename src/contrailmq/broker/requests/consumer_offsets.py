"""Offsets as requests: a group's progress (14, 15) and a queue's bounds (29, 30, 31, 32)."""

from __future__ import annotations

from typing import Protocol

from contrailmq.broker.handlers import Handlers, Refused, success
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.state.offsets import OFFSETS_FILE
from contrailmq.broker.state.persistence import TableSaver
from contrailmq.broker.state.topics import QUEUES_MAX
from contrailmq.store import LIGHT_PREFIX, Boundary
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.frame import ReplyTemplate
from contrailmq.wire.header import Command
from contrailmq.wire.peer import Peer
from contrailmq.wire.requests import (
    GetMaxOffset,
    OffsetResponse,
    QueryConsumerOffset,
    QueueHeader,
    SearchOffset,
    TimestampResponse,
    UpdateConsumerOffset,
)

_DONE = ReplyTemplate({})


class PopOffsets(Protocol):
    """What POP is asked and told when somebody stores an offset."""

    def knows(self, group: str, topic: str, queue_id: int) -> bool: ...

    def set_by_hand(self, group: str, topic: str, queue_id: int) -> None: ...


class OffsetProcessor:
    def __init__(self, node: BrokerNode, saver: TableSaver, pop: PopOffsets) -> None:
        self._node = node
        self._saver = saver
        self._pop = pop
        self._handlers: Handlers | None = None

    def register(self, handlers: Handlers) -> None:
        self._handlers = handlers
        handlers.register(RequestCode.QUERY_CONSUMER_OFFSET, self.query)
        handlers.register(RequestCode.UPDATE_CONSUMER_OFFSET, self.update)
        handlers.register(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, self.search)
        handlers.register(RequestCode.GET_MAX_OFFSET, self.max_offset)
        handlers.register(RequestCode.GET_MIN_OFFSET, self.min_offset)
        handlers.register(RequestCode.GET_EARLIEST_MSG_STORETIME, self.earliest)

    def query(self, connection: Peer, command: Command) -> bytes | None:
        """The committed offset; without one, 0 while nothing of the queue is lost and its beginning is in memory.

        A queue that is still empty counts as such: else a message that arrives between this answer and the client's
        next question for the maximum would never be delivered to a group that starts at the end.
        RocketMQ 5.5 answers QUERY_NOT_FOUND there.
        """
        node, header = self._node, command.header(QueryConsumerOffset)
        offset = node.offsets.query(header.consumer_group, header.topic, header.queue_id)
        if offset is None:
            node.dispatch_now()
            store, topic, queue_id = node.store, header.topic, header.queue_id
            is_allowed = header.set_zero_if_not_found is not False
            if (
                not is_allowed
                or store.min_offset(topic, queue_id) > 0
                or store.is_cold(topic, queue_id, 0, by_distance=True)
            ):
                raise Refused(
                    ResponseCode.QUERY_NOT_FOUND,
                    f"Not found, maybe this is a group that consumes for the first time: {header.consumer_group[:64]}",
                )
            offset = 0
        return success(command, OffsetResponse(offset=offset))

    def update(self, connection: Peer, command: Command) -> bytes | None:
        node, header = self._node, command.header(UpdateConsumerOffset)
        if node.topic_to_read(header.topic) is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic {header.topic[:128]} does not exist")
        is_light = node.store.config.enable_lmq and header.consumer_group.startswith(LIGHT_PREFIX)
        if header.consumer_group not in node.groups and not is_light:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"Group {header.consumer_group[:64]} not exist: it never sent a heartbeat nor pulled here",
            )
        if not 0 <= header.queue_id < QUEUES_MAX or header.commit_offset < 0:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"queueId {header.queue_id} must be 0 to {QUEUES_MAX - 1} and commitOffset {header.commit_offset} not "
                "negative",
            )
        node.commit_offset(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        node.offset_journal.note()  # what is answered is not lost, however long this process gets no processor
        if self._is_by_hand(header, connection):
            self._pop.set_by_hand(header.consumer_group, header.topic, header.queue_id)
            assert self._handlers is not None
            self._handlers.start(self._answer_saved, connection, command)
            return None
        return _DONE.render(command, ())

    def _is_by_hand(self, header: UpdateConsumerOffset, connection: Peer) -> bool:
        """Whether an operator sets where a group of POP goes on. Members of a group commit what they have done: one
        that pulls, in a group that pops too, must not bring back what is in flight. In RocketMQ a smaller offset is
        undone within half a second of a pop (PopBufferMergeService.commitOffset)."""
        group, queue_id = header.consumer_group, header.queue_id
        if not self._pop.knows(group, header.topic, queue_id):
            return False
        live = self._node.clients.consumer_group(group)
        return live is None or connection not in live.members

    async def _answer_saved(self, connection: Peer, command: Command) -> bytes | None:
        await self._saver.save(OFFSETS_FILE)
        return _DONE.render(command, ())

    def search(self, connection: Peer, command: Command) -> bytes | None:
        node, header = self._node, command.header(SearchOffset)
        text = (header.boundary_type or "LOWER").upper()
        boundary = Boundary.UPPER if text == "UPPER" else Boundary.LOWER
        node.dispatch_now()
        offset = node.store.offset_at(header.topic, header.queue_id, header.timestamp, boundary)
        return success(command, OffsetResponse(offset=offset))

    def max_offset(self, connection: Peer, command: Command) -> bytes | None:
        header = command.header(GetMaxOffset)
        self._node.dispatch_now()
        return success(command, OffsetResponse(offset=self._node.store.max_offset(header.topic, header.queue_id)))

    def min_offset(self, connection: Peer, command: Command) -> bytes | None:
        header = command.header(QueueHeader)
        return success(command, OffsetResponse(offset=self._node.store.min_offset(header.topic, header.queue_id)))

    def earliest(self, connection: Peer, command: Command) -> bytes | None:
        header = command.header(QueueHeader)
        self._node.dispatch_now()
        store = self._node.store
        first = store.min_offset(header.topic, header.queue_id)
        time_ms = store.store_time_at(header.topic, header.queue_id, first)
        return success(command, TimestampResponse(timestamp=time_ms))
