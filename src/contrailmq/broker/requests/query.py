"""Finding messages: by key (12) and by commit-log offset (33). The index is a hash: clients check key and topic."""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor
from typing import Final

from contrailmq.broker.handlers import Handlers, Refused, answer_later, success
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.requests.cold_reads import ColdReads
from contrailmq.message import StoredMessage
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.header import Command
from contrailmq.wire.peer import Peer
from contrailmq.wire.requests import QueryMessage, QueryMessageResponse, ViewMessage

UNIQUE_KEY_COUNT: Final = 32  # defaultQueryMaxNum: what a query by unique key asks for, whatever maxNum says
ANSWER_BYTES_MAX: Final = 12 * 1024 * 1024  # below a frame's 16 MiB, with room for one more message of 4 MiB


class QueryProcessor:
    def __init__(self, node: BrokerNode, workers: Executor) -> None:
        self._node = node
        self._cold = ColdReads(workers)

    def register(self, handlers: Handlers) -> None:
        handlers.register(RequestCode.QUERY_MESSAGE, self.query)
        handlers.register(RequestCode.VIEW_MESSAGE_BY_ID, self.view)

    def query(self, connection: Peer, command: Command) -> bytes | None:
        header = command.header(QueryMessage)
        self._node.dispatch_now()
        if self._node.store.is_index_doubtful:  # it may have to read whole files first

            def answer(finished: asyncio.Future[list[StoredMessage]]) -> None:
                answer_later(connection, command, lambda: self._answer(command, header, finished.result()))

            self._cold.read(connection, lambda: self._found(header), answer)
            return None
        return self._answer(command, header, self._found(header))

    def _found(self, header: QueryMessage) -> list[StoredMessage]:
        is_unique = bool(header.unique_key_query) or header.index_type == "U"
        count = UNIQUE_KEY_COUNT if is_unique else max(0, min(header.max_num, 4 * UNIQUE_KEY_COUNT))
        return self._node.store.query_sound(
            header.topic, header.key, count, begin_ms=header.begin_timestamp, end_ms=header.end_timestamp
        )

    def _answer(self, command: Command, header: QueryMessage, found: list[StoredMessage]) -> bytes:
        node = self._node
        records: list[bytes] = []
        size = 0
        for message in found:
            record = node.store.read_record(message.physical_offset, message.size_bytes)
            if record is None:
                continue
            size += len(record)
            records.append(record)
            if size > ANSWER_BYTES_MAX:
                break
        ext = QueryMessageResponse(
            index_last_update_timestamp=max((message.store_time_ms for message in found), default=0),
            index_last_update_phyoffset=node.store.dispatched_offset,
        )
        if not records:
            raise Refused(
                ResponseCode.QUERY_NOT_FOUND,
                f"can not find message, maybe time range not correct: topic {header.topic}, key {header.key[:128]}",
                ext,
            )
        return success(command, ext, b"".join(records))

    def view(self, connection: Peer, command: Command) -> bytes | None:
        header = command.header(ViewMessage)
        record = self._node.store.read_record(header.offset)
        if record is None:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"can not find message by the offset, {header.offset}")
        return success(command, None, record)
