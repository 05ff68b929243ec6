"""ACK_MESSAGE and CHANGE_MESSAGE_INVISIBLETIME of messages of lite topics, which name their `liteTopic`.

An acknowledgement moves the group's position to the first message of its batch that is open. One by a handle of an
earlier delivery changes nothing and is confirmed, as of other messages. A change by such a handle is refused.
"""

from __future__ import annotations

from typing import Final

from contrailmq.broker.handlers import Refused
from contrailmq.broker.lite.telling import Telling
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.pop.acking import NO_REMARK
from contrailmq.broker.pop.orders import NOT_IN_BATCH, OLDER_DELIVERY, OrderTable, Place
from contrailmq.broker.state.lite_names import BOUND_TO, QUEUE_ID, lite_queue
from contrailmq.wire.codes import ResponseCode
from contrailmq.wire.pop_requests import AckMessage, ChangeInvisibleTime, ChangeInvisibleTimeResponse
from contrailmq.wire.pop_strings import ORDERED_QUEUE, PopHandle

_NOTHING_CHANGED: Final = ChangeInvisibleTimeResponse()


class LiteAcking:
    def __init__(self, node: BrokerNode, orders: OrderTable, telling: Telling) -> None:
        self._node = node
        self._orders = orders
        self._telling = telling

    def ack(self, header: AckMessage) -> None:
        node, place = self._node, self._place(header, None)
        queue, group, _ = place
        self._check_offset(place, header.offset, beyond=1, ext=None)
        handle = _handle(header, None)
        committed = node.offsets.query(group, queue, QUEUE_ID)
        if committed is not None and header.offset < committed:
            return
        following = self._orders.acknowledge(place, header.offset, handle.pop_time_ms, node.now_ms())
        if following == OLDER_DELIVERY:
            return
        if following == NOT_IN_BATCH:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"ack offset illegal: message {header.offset} of {queue} is not with group {group}, which is at "
                f"{-1 if committed is None else committed}",
            )
        node.commit_offset(group, queue, QUEUE_ID, following)
        order = self._orders.get(place)
        if order is not None and not order.open_offsets():
            self._orders.drop(place)
        node.offset_journal.note()
        if not self._orders.is_blocked(place, None):
            node.call_soon(lambda: self._telling.freed(place))

    def change(self, header: ChangeInvisibleTime) -> ChangeInvisibleTimeResponse:
        node, place = self._node, self._place(header, _NOTHING_CHANGED)
        self._check_offset(place, header.offset, beyond=0, ext=_NOTHING_CHANGED)
        handle = _handle(header, _NOTHING_CHANGED)
        if not 0 <= header.invisible_time <= node.store.config.timer_max_delay_sec * 1000:
            raise Refused(ResponseCode.SYSTEM_ERROR, NO_REMARK, _NOTHING_CHANGED)
        now_ms = node.now_ms()
        visible_ms = now_ms + header.invisible_time
        if header.suspend:  # of the whole lite topic (MemoryConsumerOrderInfoManager.suspendQueue)
            is_changed = self._orders.suspend(place, handle.pop_time_ms, visible_ms=visible_ms, now_ms=now_ms)
        else:
            is_changed = self._orders.change(
                place, header.offset, handle.pop_time_ms, visible_ms=visible_ms, now_ms=now_ms
            )
        if not is_changed:
            raise Refused(
                ResponseCode.NO_MESSAGE,
                f"message {header.offset} of {place[0]} is not in flight by this handle: it was acknowledged, or its "
                "invisible time was over",
                _NOTHING_CHANGED,
            )
        self._telling.due_at(place, node.store.store_clock.steady_ms() + header.invisible_time)
        return ChangeInvisibleTimeResponse(
            pop_time=handle.pop_time_ms, invisible_time=visible_ms - handle.pop_time_ms, revive_qid=ORDERED_QUEUE
        )

    def _place(self, header: AckMessage, ext: ChangeInvisibleTimeResponse | None) -> Place:
        group = self._node.groups.get(header.consumer_group)
        if group is None or group.attributes.get(BOUND_TO) != header.topic:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"group type or bind topic not match: group {header.consumer_group[:64]} is not bound to "
                f"{header.topic[:128]} ({BOUND_TO})",
                ext,
            )
        return (lite_queue(header.topic, header.lite_topic or ""), group.name, QUEUE_ID)

    def _check_offset(self, place: Place, offset: int, *, beyond: int, ext: ChangeInvisibleTimeResponse | None) -> None:
        node = self._node
        if offset >= node.store.max_offset(place[0], QUEUE_ID):
            node.dispatch_now()
        end = node.store.max_offset(place[0], QUEUE_ID)
        if not 0 <= offset < end + beyond:
            raise Refused(ResponseCode.NO_MESSAGE, f"offset is illegal, {place[0]}: {offset}, it ends at {end}", ext)


def _handle(header: AckMessage, ext: ChangeInvisibleTimeResponse | None) -> PopHandle:
    try:
        handle = PopHandle.decode(header.extra_info)
    except ValueError as exc:
        raise Refused(ResponseCode.SYSTEM_ERROR, str(exc), ext) from exc
    if header.queue_id != QUEUE_ID or not handle.is_ordered:
        raise Refused(
            ResponseCode.INVALID_PARAMETER,
            f"ack queue illegal: a lite topic has queue 0 and the revive queue {ORDERED_QUEUE}, not {header.queue_id} "
            f"and {handle.revive_queue}",
            ext,
        )
    return handle
