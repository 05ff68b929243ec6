"""Messages with a priority: the queue they go to is their priority.

A sender's `_SYS_MSG_PRIORITY_` is a whole number from 0. Such a message goes to the queue of that number, or to the
last one, whatever queue the sender named; pops of topics with `message.type=PRIORITY` read the queues from the highest
down (`pop/popping.py`). As in the reference (5.4 and later) the topic's type is not asked for here, and a message that
is of another type by its properties (transaction, delay, FIFO) loses its priority. Messages of a batch keep the queue
of their batch.
"""

from __future__ import annotations

import re
from typing import Final

from contrailmq.broker.state.incoming import IncomingMessage
from contrailmq.message import Property

_INT_MAX: Final = 2**31 - 1
_NUMBER: Final = re.compile(r"\+?[0-9]{1,10}", re.ASCII)
_DELAYS: Final = (
    Property.DELAY,
    Property.TIMER_DELIVER_MS,
    Property.TIMER_DELAY_SECONDS,
    Property.TIMER_DELAY_MS,
)


def place_by_priority(message: IncomingMessage, write_queues: int) -> None:
    """Choose the queue of a message that has a priority."""
    properties = message.properties
    priority = _priority(properties.get(Property.PRIORITY))
    if priority is None:
        return
    is_other = (
        properties.get(Property.TRANSACTION_PREPARED, "").lower() == "true"
        or any(name in properties for name in _DELAYS)
        or Property.SHARDING_KEY in properties
    )
    if is_other:
        del properties[Property.PRIORITY]
    else:
        message.queue_id = min(priority, max(write_queues - 1, 0))
        message.answer_queue_id = message.queue_id


def _priority(text: str | None) -> int | None:
    """What Java's NumberUtils.toInt makes of it, if that is not negative."""
    if text is None or _NUMBER.fullmatch(text) is None:
        return None
    number = int(text)
    return number if number <= _INT_MAX else None
