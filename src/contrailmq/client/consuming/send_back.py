"""Handing a message back, to be delivered again later.

The broker that holds the message is asked to copy it into the group's retry topic (it still has the body, so nothing
travels). When it cannot be reached, the message is sent to the retry topic like any other, through any broker.
"""

from __future__ import annotations

import logging
from typing import Final

from contrailmq.client.producing.sending import Outgoing, Sender
from contrailmq.client.records import ReceivedMessage
from contrailmq.client.settings import ProducerOptions
from contrailmq.client.transport.instance import ClientInstance
from contrailmq.message import ContrailError, Property, create_unique_id, retry_topic
from contrailmq.wire.codes import RequestCode

_log = logging.getLogger("contrailmq.client.consumer")

INNER_GROUP: Final = "CLIENT_INNER_PRODUCER"  # RocketMQ's name for it
SEND_BACK_TIMEOUT_S: Final = 5.0
DEFAULT_RECONSUME_MAX: Final = 16
FIRST_RETRY_LEVEL: Final = 3  # level 3 is 10 s; each failure goes one level further
_LOCAL_PROPERTIES: Final = (Property.TRANSACTION_PREPARED, Property.CONSUME_START_TIME)


class SendBack:
    """Hands messages of one group back."""

    def __init__(self, instance: ClientInstance, group: str, *, max_reconsume_times: int) -> None:
        self._instance = instance
        self._group = group
        self._max = max_reconsume_times if max_reconsume_times >= 0 else DEFAULT_RECONSUME_MAX
        self._sender = Sender(instance, INNER_GROUP, ProducerOptions(send_timeout_s=SEND_BACK_TIMEOUT_S))

    async def send_back(self, message: ReceivedMessage, *, topic: str, delay_level: int = 0) -> bool:
        """Whether the message is safely with a broker again. `topic` is where it was read from."""
        try:
            address = await self._instance.find_master(message.broker_name, topic)
            ext: dict[str, str | int] = {
                "offset": message.physical_offset,
                "group": self._group,
                "delayLevel": delay_level,
                "originMsgId": message.message_id,
                "originTopic": topic,
                "unitMode": "false",
                "maxReconsumeTimes": self._max,
                "bname": message.broker_name,
            }
            await self._instance.call(address, RequestCode.CONSUMER_SEND_MSG_BACK, ext, timeout_s=SEND_BACK_TIMEOUT_S)
            return True
        except ContrailError as exc:
            _log.warning("message %s is sent to the retry topic by the client: %s", message.message_id, exc)
        return await self.send_to_retry_topic(message)

    async def send_to_retry_topic(self, message: ReceivedMessage) -> bool:
        """A plain send of the message to the group's retry topic; the broker puts it into the DLQ when it is time."""
        properties = {name: value for name, value in message.properties.items() if name not in _LOCAL_PROPERTIES}
        properties[Property.RETRY_TOPIC] = message.topic
        properties.setdefault(Property.ORIGIN_MESSAGE_ID, message.offset_message_id)
        properties[Property.RECONSUME_TIME] = str(message.reconsume_times + 1)
        properties[Property.MAX_RECONSUME_TIMES] = str(self._max)
        properties[Property.DELAY] = str(FIRST_RETRY_LEVEL + message.reconsume_times)
        message_id = properties.setdefault(Property.UNIQUE_KEY, create_unique_id())
        outgoing = Outgoing(retry_topic(self._group), bytes(message.stored_body), properties, message_id, message.flag)
        outgoing.sys_flag = message.sys_flag & 0x701  # the body is compressed as it was
        try:
            await self._sender.send(outgoing, timeout_s=SEND_BACK_TIMEOUT_S)
            return True
        except ContrailError as exc:
            _log.warning("message %s could not be handed back, it is tried again here: %s", message.message_id, exc)
            return False
