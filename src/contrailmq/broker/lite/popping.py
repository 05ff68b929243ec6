"""POP_LITE_MESSAGE (200070): messages of the lite topics that a client is subscribed to.

    check -> the client's `ready`, oldest first -> for each: position, read, put down as in flight -> answer | wait

A lite topic that gave messages is told of again when its batch is done, behind all others that are ready: no lite topic
keeps a client from the rest. What is not in memory is read by a worker; other pops pass that lite topic over meanwhile.

Who hears no answer asks again with the same attempt id: the lite topics of the lost answer are looked at first, and
give what they gave (pop/orders.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from concurrent.futures import Executor
from typing import Final, TypeVar

from contrailmq.broker.handlers import Handlers, Refused, answer_later
from contrailmq.broker.lite.registry import LiteClient, Registry
from contrailmq.broker.lite.telling import Telling, waiting_key
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.pop.checks import Checks
from contrailmq.broker.pop.orders import OrderTable, Place
from contrailmq.broker.pop.positions import FROM_LAST, Positions
from contrailmq.broker.pop.records_found import split_records
from contrailmq.broker.pop.waiting import EARLY_MS, Waiter, Waiters
from contrailmq.broker.requests.cold_reads import ColdReads
from contrailmq.broker.state.lite_names import BOUND_TO, QUEUE_ID
from contrailmq.message import Property
from contrailmq.message.property_text import key_of
from contrailmq.message.record import view_record
from contrailmq.store import GetResult, GetStatus, QueueRead
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.frame import encode_response
from contrailmq.wire.header import Command
from contrailmq.wire.lite_requests import PopLiteMessage, PopLiteMessageResponse
from contrailmq.wire.peer import Peer
from contrailmq.wire.pop_strings import ORDERED_QUEUE

R = TypeVar("R")

FOUND: Final = "FOUND"
NOTHING: Final = "NO_MESSAGE_IN_QUEUE"
_NO_FIELDS: Final = PopLiteMessageResponse()
_ELSEWHERE: Final = (
    GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY, GetStatus.OFFSET_FOUND_NULL,
    GetStatus.NO_MATCHED_MESSAGE, GetStatus.MESSAGE_WAS_REMOVING, GetStatus.NO_MATCHED_LOGIC_QUEUE,
)  # fmt: skip
_NAMES: Final = key_of(Property.INNER_MULTI_DISPATCH)
_OFFSETS: Final = key_of(Property.INNER_MULTI_QUEUE_OFFSET)

Placed = tuple[int, memoryview]  # offset in the lite topic, and the record


class LitePop:
    """One request on its way through its client's lite topics."""

    __slots__ = (
        "client", "command", "connection", "counts", "header", "parts", "pop_time_ms", "seen", "size_bytes", "skipped",
    )  # fmt: skip

    def __init__(self, connection: Peer, command: Command, header: PopLiteMessage, client: LiteClient | None) -> None:
        self.connection = connection
        self.command = command
        self.header = header
        self.client = client
        self.pop_time_ms = 0
        self.size_bytes = 0
        self.parts: list[bytes | memoryview] = []
        self.counts: list[int] = []  # earlier deliveries of each message
        self.seen: list[str] = []  # lite topics that were looked at
        self.skipped: list[str] = []  # that are ready again meanwhile


class LitePopping:
    """Serves pops. `workers` read what is not in memory."""

    def __init__(
        self,
        node: BrokerNode,
        workers: Executor,
        *,
        checks: Checks,
        registry: Registry,
        orders: OrderTable,
        positions: Positions,
        telling: Telling,
        waiters: Waiters,
    ) -> None:
        self._node = node
        self._cold = ColdReads(workers)
        self._checks = checks
        self._registry = registry
        self._orders = orders
        self._positions = positions
        self._telling = telling
        self._waiters = waiters
        self._reading: dict[Place, Peer] = {}  # by a worker, for whom

    def register(self, handlers: Handlers) -> None:
        handlers.register(RequestCode.POP_LITE_MESSAGE, self.pop)

    def pop(self, connection: Peer, command: Command) -> bytes | None:
        header = command.header(PopLiteMessage)
        if header.born_time <= 0:
            header.born_time = self._node.now_ms()
        self._checks.in_time(header.born_time, header.poll_time, _NO_FIELDS)
        self._checks.serving("pop message", _NO_FIELDS)
        self._checks.pop_allowed(header.max_msg_num, _NO_FIELDS)
        longest_ms = self._node.store.config.timer_max_delay_sec * 1000
        if not 0 <= header.invisible_time <= longest_ms:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"an invisible time of {header.invisible_time} ms: 0 to {longest_ms} are allowed (timerMaxDelaySec)",
                _NO_FIELDS,
            )
        return self._run(connection, command, header)

    def _run(self, connection: Peer, command: Command, header: PopLiteMessage) -> bytes | None:
        """From the beginning: when it comes, and each time that it was woken."""
        self._check(header, connection)
        node, client = self._node, self._registry.clients.get(header.client_id)
        if client is not None and (client.group, client.parent) != (header.consumer_group, header.topic):
            client = None
        pop = LitePop(connection, command, header, client)
        pop.pop_time_ms = node.now_ms()
        if client is not None:
            client.popped_ms = pop.pop_time_ms
            if header.attempt_id and header.attempt_id == client.attempt_id:
                client.ready = {**dict.fromkeys(client.attempted), **client.ready}
        return self._advance(pop)

    def _check(self, header: PopLiteMessage, connection: Peer) -> None:
        topic, group = self._checks.readable(header.topic, header.consumer_group, QUEUE_ID, connection, _NO_FIELDS)
        if not topic.is_lite:
            kind = topic.attributes.get("message.type", "NORMAL")
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"the topic [{topic.name}] message type not match: message.type is {kind}, LITE is needed",
                _NO_FIELDS,
            )
        if group.attributes.get(BOUND_TO) != topic.name:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"subscription bind topic not match, {group.name}: it is bound to {group.attributes.get(BOUND_TO)}, "
                f"not to {topic.name} ({BOUND_TO})",
                _NO_FIELDS,
            )

    # --- one lite topic after the other

    def _advance(self, pop: LitePop) -> bytes | None:
        client = pop.client
        while client is not None and client.ready and self._has_room(pop):
            queue = next(iter(client.ready))
            del client.ready[queue]
            if queue in pop.seen:
                pop.skipped.append(queue)
                continue
            pop.seen.append(queue)
            if not self._visit(pop, (queue, client.group, QUEUE_ID)):
                return None  # a worker reads, and goes on from here
        return self._finish(pop)

    def _has_room(self, pop: LitePop) -> bool:
        return len(pop.counts) < pop.header.max_msg_num and pop.size_bytes < self._node.config.pull_bytes_max

    def _visit(self, pop: LitePop, place: Place) -> bool:
        """False: the answer of a worker is awaited."""
        reader = self._reading.get(place)
        if (reader is not None and reader.is_open) or self._orders.is_blocked(place, pop.header.attempt_id):
            return True
        position = self._position(place)
        if position >= self._end(place, position):
            return True
        result = self._read(self._node.store.get_slices_warm, pop, place, position)
        if result is None:
            self._read_cold(pop, place, position)
            return False
        self._take(pop, place, position, result)
        return True

    def _position(self, place: Place) -> int:
        """Where the group goes on; a reset that waits is carried out, a first position committed."""
        queue, group, _ = place
        offsets = self._node.offsets
        if offsets.has_resets and offsets.take_reset(group, queue, QUEUE_ID) is not None:
            self._orders.drop(place)
        known = offsets.stored(f"{queue}@{group}", QUEUE_ID)
        if known is None:
            known = self._positions.current(place, FROM_LAST)
            offsets.commit(group, queue, QUEUE_ID, known)
        return known

    def _end(self, place: Place, position: int) -> int:
        """Where the lite topic ends. A position beyond that is of one that an administrator had cleaned away, and that
        began anew (a cut of the log is noticed by the next start)."""
        node, (queue, group, _) = self._node, place
        if position >= node.store.max_offset(queue, QUEUE_ID):
            node.dispatch_now()
        end = node.store.max_offset(queue, QUEUE_ID)
        if position > end:
            node.offsets.commit(group, queue, QUEUE_ID, max(node.store.min_offset(queue, QUEUE_ID), 0))
            self._orders.drop(place)
            self._telling.freed(place)
        return end

    def _read(self, read: QueueRead[R], pop: LitePop, place: Place, position: int) -> R:
        return read(
            place[0],
            QUEUE_ID,
            position,
            max(pop.header.max_msg_num - len(pop.counts), 1),
            max_bytes=max(self._node.config.pull_bytes_max - pop.size_bytes, 1),
            filter=None,
        )

    def _read_cold(self, pop: LitePop, place: Place, position: int) -> None:
        def done(finished: asyncio.Future[GetResult]) -> None:
            self._reading.pop(place, None)

            def go_on() -> bytes | None:
                if self._position(place) == position:
                    self._take(pop, place, position, finished.result())
                else:  # its group was deleted meanwhile, or an operator has set its offset
                    finished.result().release()
                    self._telling.freed(place)
                return self._advance(pop)

            answer_later(pop.connection, pop.command, go_on)

        self._reading[place] = pop.connection
        self._cold.read(
            pop.connection, lambda: self._read(self._node.store.get_slices_cold, pop, place, position), done
        )

    def forget_closed(self) -> None:
        """Reads for connections that are gone: nobody goes on from there, so their lite topics are told of again."""
        for place in [place for place, reader in self._reading.items() if not reader.is_open]:
            del self._reading[place]
            self._telling.freed(place)

    def _take(self, pop: LitePop, place: Place, position: int, result: GetResult) -> None:
        """What a read of a lite topic gave."""
        queue, group, _ = place
        if result.status in _ELSEWHERE and result.next_offset >= 0 and result.next_offset != position:
            position = result.next_offset
            self._node.offsets.commit(group, queue, QUEUE_ID, position)
            result = self._read(self._node.store.get_slices_sound, pop, place, position)
        if result.status is not GetStatus.FOUND:
            return
        found = [one for one in placed(queue, result.slices) if one[0] >= position]
        order = self._orders.get(place)
        done = () if order is None else set(order.offsets).difference(order.open_offsets())
        given = [one for one in found if one[0] not in done]
        if not given:  # damaged, or done behind a message that is gone
            self._node.offsets.commit(group, queue, QUEUE_ID, max(result.next_offset, position))
            self._orders.drop(place)
            result.release()
            self._telling.freed(place)
            return
        self._hand_out(pop, place, given, [offset for offset in done if offset >= position], result)

    def _hand_out(self, pop: LitePop, place: Place, given: list[Placed], done: list[int], result: GetResult) -> None:
        """Put down that these are in flight; those that are `done` already stay so."""
        group = place[1]
        header, node = pop.header, self._node
        order = self._orders.update(
            place,
            sorted({*done, *(offset for offset, _ in given)}),
            pop_time_ms=pop.pop_time_ms,
            invisible_ms=header.invisible_time,
            attempt_id=header.attempt_id or None,
            acked=done,
        )
        self._telling.due_at(place, node.store.store_clock.steady_ms() + header.invisible_time)
        pop.counts += [max(order.counts.get(offset, 0), 0) for offset, _ in given]
        pop.parts += [record for _, record in given]
        size_bytes = sum(len(record) for _, record in given)
        pop.size_bytes += size_bytes
        node.statistics.note_get(group, header.topic, len(given), size_bytes)

    # --- answers

    def _finish(self, pop: LitePop) -> bytes | None:
        node, client = self._node, pop.client
        if client is not None:
            client.ready.update(dict.fromkeys(pop.skipped))
        if pop.counts:
            if client is not None:
                client.attempt_id, client.attempted = pop.header.attempt_id or "", pop.seen
                client.consumed_ms = pop.pop_time_ms
            node.offset_journal.note()
            head = encode_response(
                pop.command, ResponseCode.SUCCESS, self._fields(pop), remark=FOUND, body_bytes=pop.size_bytes
            )
            pop.connection.reply_parts([head, *pop.parts], len(head) + pop.size_bytes)
            return None
        node.statistics.get_missed.value += 1
        remaining_ms = pop.header.born_time + pop.header.poll_time - node.now_ms() - EARLY_MS
        code = ResponseCode.POLLING_TIMEOUT
        if pop.header.poll_time > 0 and remaining_ms > 0 and node.is_accepting:
            if self._try_hold(pop, min(remaining_ms, pop.header.poll_time)):
                return None
            code = ResponseCode.POLLING_FULL
        return encode_response(pop.command, code, self._fields(pop), remark=NOTHING)

    def _try_hold(self, pop: LitePop, remaining_ms: int) -> bool:
        """Also for a client that is subscribed to nothing: that may be on its way."""

        def resume() -> None:
            answer_later(pop.connection, pop.command, lambda: self._run(pop.connection, pop.command, pop.header))

        waiter = Waiter(
            waiting_key(pop.header.client_id),
            deadline_ms=self._node.monotonic_ms() + remaining_ms,
            connection=pop.connection,
            resume=resume,
        )
        return self._waiters.try_hold(waiter)

    def _fields(self, pop: LitePop) -> PopLiteMessageResponse:
        return PopLiteMessageResponse(
            pop_time=pop.pop_time_ms,
            invisible_time=pop.header.invisible_time,
            revive_qid=ORDERED_QUEUE,
            order_count_info=";".join(map(str, pop.counts)),
        )


def placed(queue: str, slices: Iterable[memoryview]) -> list[Placed]:
    """Each record with its offset in a light queue, which its properties say: its own offset is the parent's."""
    found = []
    for _, record in split_records(slices):
        view = view_record(record)
        names, offsets = (view.find(_NAMES) or "").split(","), (view.find(_OFFSETS) or "").split(",")
        if queue in names and len(names) == len(offsets):
            text = offsets[names.index(queue)]
            if text.isascii() and text.isdigit():
                found.append((int(text), record))
    return found
