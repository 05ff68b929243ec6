"""Messages on their way to lite topics: a rewrite (state/incoming.py)."""

from __future__ import annotations

from typing import Final

from contrailmq.broker.node import BrokerNode
from contrailmq.broker.state.deleted_topics import DELETED_FILE
from contrailmq.broker.state.incoming import IncomingMessage, Refusal
from contrailmq.broker.state.lite_names import is_lite_name, lite_queue
from contrailmq.message import Property
from contrailmq.wire.codes import ResponseCode

_LATER: Final = (
    Property.DELAY, Property.TIMER_DELIVER_MS, Property.TIMER_DELAY_MS, Property.TIMER_DELAY_SECONDS,
)  # fmt: skip


class LiteSending:
    def __init__(self, node: BrokerNode) -> None:
        self._node = node

    def rewrite(self, message: IncomingMessage) -> Refusal | None:
        """Have the store put it into its lite topic too; a copy for elsewhere, as a dead letter, goes to none."""
        lite_topic = message.properties.get(Property.LITE_TOPIC)
        if not lite_topic:
            return None
        topic = self._node.topics.get(message.topic)
        if topic is None or not topic.is_lite:
            message.properties.pop(Property.INNER_MULTI_DISPATCH, None)
            message.properties.pop(Property.INNER_MULTI_QUEUE_OFFSET, None)
            return None
        if not self._node.store.config.with_light_queues:
            return Refusal(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f"broker {self._node.config.broker_name} keeps no lite topics: start it with enableLmq=true and "
                "enableMultiDispatch=true",
            )
        if not is_lite_name(lite_topic):
            return Refusal(
                ResponseCode.MESSAGE_ILLEGAL,
                f"lite topic {lite_topic[:64]!r} of {topic.name}: use letters, digits, _ and - only",
            )
        if message.properties.get(Property.TRANSACTION_PREPARED, "").lower() == "true":
            return _refused(topic.name, "a transaction")
        if any(name in message.properties for name in _LATER):
            return _refused(topic.name, "a delay")
        queue = lite_queue(topic.name, lite_topic)
        message.properties[Property.INNER_MULTI_DISPATCH] = queue
        if self._node.deleted.note_made_again(queue):  # it had expired
            self._node.keeping.when_saved(DELETED_FILE, lambda _error: None)
        return None


def _refused(topic: str, what: str) -> Refusal:
    return Refusal(
        ResponseCode.MESSAGE_ILLEGAL, f"a message with {what} does not go to a lite topic of {topic}: send a plain one"
    )
