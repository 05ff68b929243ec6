"""Many half messages in one request, and many ends: two requests of our own (SEND_HALF_BATCH, END_TRANSACTIONS).

RocketMQ's protocol has a request for each half message and each end. Writers that commit thousands of rows together
(the Spark sink) pay for that with most of their time. What is stored is the same: a half message for each part, and
for each commit a record that points back at its half message. A broker without these codes answers that it does not
know them, and a client then sends one by one.

A commit copies the half message's record as bytes (store/log/copying.py), as far as it is of the usual form; any other
takes the way of a single end.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from contrailmq.broker.handlers import Handlers, Refused
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.requests.send import SendProcessor
from contrailmq.broker.state.half_text import real_place
from contrailmq.broker.state.statistics import TRANSACTION
from contrailmq.broker.transactions.committing import committed, half_copier
from contrailmq.broker.transactions.halves import COMMIT, ROLLBACK, TransactionService
from contrailmq.broker.transactions.transaction_check import CLOCK_SET
from contrailmq.message import MessageError, Property, SystemTopic
from contrailmq.message.batch import batch_part, part_spans
from contrailmq.message.property_text import Keys, closed, find, key_of
from contrailmq.store import Copy
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.header import Command
from contrailmq.wire.peer import Peer
from contrailmq.wire.requests import EndTransaction, EndTransactions

ENDS_MAX: Final = 256  # of one request: 2 ms of the loop
RUN_BYTES: Final = 1 << 20  # of half messages that become visible in one go
ENDED, NOT_ENDED = 0, 1
# end := physical_offset:i64 half_offset:i64      (big-endian; the answer has a byte for each)
_END: Final = struct.Struct(">qq")
_PREPARED: Final = key_of(Property.TRANSACTION_PREPARED)
_GROUP: Final = key_of(Property.PRODUCER_GROUP)
# Of an earlier life as a half message, or the broker's to say.
_FORBIDDEN: Final = tuple(
    key_of(name)
    for name in (
        Property.TRANSACTION_CHECK_TIMES,
        Property.TRANSACTION_PREPARED_QUEUE_OFFSET,
        Property.REAL_TOPIC,
        Property.REAL_QUEUE_ID,
        CLOCK_SET,
    )
)
_KEYS: Final = Keys((_PREPARED, _GROUP, *_FORBIDDEN))


class HalfBatches:
    """Serves the two requests."""

    def __init__(self, node: BrokerNode, send: SendProcessor, service: TransactionService) -> None:
        self._node, self._send, self._service = node, send, service
        self._copier = half_copier()

    def register(self, handlers: Handlers) -> None:
        handlers.register(RequestCode.SEND_HALF_BATCH, self.send_halves)
        handlers.register(RequestCode.END_TRANSACTIONS, self.end_many)

    def send_halves(self, connection: Peer, command: Command) -> bytes | None:
        """Like SEND_BATCH_MESSAGE, but every part is prepared and becomes a half message."""
        self._service.look_at_clock()
        return self._send.send_halves(connection, command, _as_halves)

    def end_many(self, connection: Peer, command: Command) -> bytes | None:
        """END_TRANSACTION for many half messages of one topic; ends that are refused are marked in the answer."""
        header = command.header(EndTransactions)
        ends = self._ends_in(command.body)
        self._service.check_master()
        if header.commit_or_rollback not in (COMMIT, ROLLBACK):
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"commitOrRollback is {header.commit_or_rollback}: 8 (commit) or 12 (rollback)",
            )
        verdicts, at, stored_up_to, remark = bytearray(len(ends)), 0, 0, ""
        while at < len(ends):
            together = self._commit_run(header, ends[at:]) if header.commit_or_rollback == COMMIT else 0
            if together:
                at, stored_up_to = at + together, self._node.store.log_max_offset
                continue
            try:
                stored_up_to = max(stored_up_to, self._end_one(header, *ends[at]))
            except Refused as exc:
                verdicts[at], remark = NOT_ENDED, remark or str(exc)
            at += 1
        return self._service.answer_end(connection, command, stored_up_to, body=bytes(verdicts), remark=remark or None)

    def _ends_in(self, body: bytes) -> list[tuple[int, int]]:
        if not body or len(body) % _END.size or len(body) > ENDS_MAX * _END.size:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"{len(body)} bytes of ends: send 1 to {ENDS_MAX} of {_END.size} bytes each",
            )
        return list(_END.iter_unpack(body))

    def _end_one(self, header: EndTransactions, physical_offset: int, half_offset: int) -> int:
        return self._service.end(
            EndTransaction(
                producer_group=header.producer_group,
                tran_state_table_offset=half_offset,
                commit_log_offset=physical_offset,
                commit_or_rollback=header.commit_or_rollback,
                msg_id="",
                from_transaction_check=True,
            ),
            topic=header.topic,
        )

    def _commit_run(self, header: EndTransactions, ends: Sequence[tuple[int, int]]) -> int:
        """Commit the half messages that begin these and follow each other in their queue; how many were."""
        first, count = ends[0][1], 0
        while count < len(ends) and ends[count][1] == first + count and self._service.waits_at(first + count):
            count += 1
        if not count:
            return 0
        store = self._node.store
        found = store.get_slices_sound(SystemTopic.HALF, 0, first, count, bulk_bytes=RUN_BYTES)
        try:
            copies, places = self._copier.copies(found.slices)
            whole = []
            for copy, (half_offset, physical_offset), end in zip(copies, places, ends, strict=False):
                if end != (physical_offset, half_offset) or not _may_end(copy, header):
                    break
                whole.append(committed(copy, physical_offset))
            written = store.append_copies(whole) if whole else 0
        finally:
            found.release()
        sizes = [len(copy.head_and_body) + len(copy.properties) + len(header.topic) + 3 for copy in whole[:written]]
        if written:
            self._node.after_append(wants_flush=store.config.is_sync_flush)
            self._node.statistics.note_put(header.topic, written, sum(sizes), TRANSACTION)
            self._node.statistics.note_commit(header.topic, written)
            self._service.note_ended(first, header.topic, count=written)
        return written


def _may_end(copy: Copy, header: EndTransactions) -> bool:
    return copy.topic == header.topic and find(copy.properties, _GROUP) == header.producer_group.encode()


def _as_halves(batch: bytes, topic: str, queue_id: int) -> bytes:
    """The parts of a batch as half messages: each gets the place it is meant for at the end of its properties.

    MessageError when one of them does not say that it is one. 2 us a part: bodies are copied once.
    """
    real = real_place(topic, queue_id)
    pieces: list[bytes] = []
    position, end, number = 0, len(batch), 0
    while position < end:
        flag, body_at, properties_at, following = part_spans(batch, position, number)
        spans = _KEYS.find_spans(batch, properties_at, following)
        if batch[spans[0] : spans[1]] != b"true" or not spans[3]:
            raise MessageError(
                f"part {number} of the batch is no half message: it needs {Property.TRANSACTION_PREPARED}=true and "
                f"{Property.PRODUCER_GROUP}",
                field="properties",
            )
        if any(spans[4:]):
            name = next(key for at, key in enumerate(_FORBIDDEN) if spans[2 * at + 5])
            raise MessageError(
                f"part {number} of the batch has {name[:-1].decode()}, which is ours to set", field="properties"
            )
        properties = closed(batch[properties_at:following]) + real
        pieces += batch_part(flag, batch[body_at : properties_at - 2], properties)
        position, number = following, number + 1
    return b"".join(pieces)
