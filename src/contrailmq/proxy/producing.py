"""SendMessage, EndTransaction and RecallMessage.

The server chooses the queue, whatever a client suggests: each language hashes message groups in its own way, and a
group must stay in one queue whoever sends.

The id of a transaction holds the place of its half message (broker, log offset, queue offset). So nothing of a
transaction is kept here: any proxy can end it, also one that was started after it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import random
from typing import Final, NamedTuple

from contrailmq.client.errors import number
from contrailmq.client.transport.routes import TopicRoute, publish_queues
from contrailmq.message import ContrailError, MessageQueue, Property, SysFlag, SystemTopic, parse_offset_message_id
from contrailmq.message.hashing import java_hash
from contrailmq.proxy.clock import now_ms
from contrailmq.proxy.cluster import FIFO, LITE, MESSAGE_TYPES, REMEMBERED_MAX, TRANSACTION, Cluster
from contrailmq.proxy.lite_messages import check_lite_messages
from contrailmq.proxy.messages import body_of, check_sent, ms_of, stored_properties, type_of
from contrailmq.proxy.protocol import Wire, v2
from contrailmq.proxy.statuses import Code, Refused, outcome, overall, status
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import ResponseError

STORED: Final[dict[int, Code]] = {
    ResponseCode.SUCCESS: Code.OK,
    ResponseCode.FLUSH_DISK_TIMEOUT: Code.MASTER_PERSISTENCE_TIMEOUT,
    ResponseCode.FLUSH_SLAVE_TIMEOUT: Code.SLAVE_PERSISTENCE_TIMEOUT,
    ResponseCode.SLAVE_NOT_AVAILABLE: Code.HA_NOT_AVAILABLE,
}
COMMIT: Final = 1
ROLLBACK: Final = 2
RESOLUTIONS: Final = {COMMIT: 8, ROLLBACK: 12}
FROM_CHECK: Final = 2
MESSAGES_MAX: Final = 1024  # of one request
_NAMES: Final = {number: name for name, number in MESSAGE_TYPES.items()}


class Producing:
    """What producers ask for. Keeps only where the last message of a topic went."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._turn = random.randrange(1 << 16)
        self._queues: dict[str, tuple[TopicRoute, list[MessageQueue]]] = {}  # of each route as it was last seen

    async def send(self, messages: list[Wire], peer: str, timeout_s: float) -> Wire:
        topic, kind = await self._check(messages)
        route = await self._cluster.route(topic)
        queue = self._queue(topic, route, messages[0], kind)
        address = await self._cluster.master(queue.broker_name, topic)
        prepared = [(body_of(message), stored_properties(message, kind, peer)) for message in messages]
        sends = [
            self._send_one(message, body, properties, queue, address, kind, timeout_s)
            for message, (body, properties) in zip(messages, prepared, strict=True)
        ]
        entries = [await sends[0]] if len(sends) == 1 else await asyncio.gather(*sends)
        return v2.SendMessageResponse(status=overall([entry.status for entry in entries]), entries=entries)

    async def _check(self, messages: list[Wire]) -> tuple[str, int]:
        """Topic and type of all messages."""
        if not messages:
            raise Refused(Code.MESSAGE_CORRUPTED, "the request holds no message")
        if len(messages) > MESSAGES_MAX:
            raise Refused(Code.BAD_REQUEST, f"the request holds {len(messages)} messages, at most {MESSAGES_MAX}")
        topics = {message.topic.name for message in messages}
        if len(topics) > 1:
            raise Refused(Code.MESSAGE_CORRUPTED, f"one request goes to {len(topics)} topics: send its messages apart")
        for message in messages:
            check_sent(message)
        kinds = {type_of(message) for message in messages}
        kind, topic = kinds.pop(), topics.pop()
        if kinds or (kind == TRANSACTION and len(messages) > 1):
            raise Refused(
                Code.BAD_REQUEST, "messages of one request are of one type, and a transaction has one message"
            )
        check_lite_messages(messages, kind)
        taken = await self._cluster.message_types(topic)
        if kind not in taken:
            names = ", ".join(_NAMES[one] for one in taken)
            raise Refused(
                Code.MESSAGE_PROPERTY_CONFLICT_WITH_TYPE,
                f"topic {topic} takes {names} messages, not {_NAMES.get(kind, kind)}: send those, or change its "
                "attribute message.type",
            )
        return topic, kind

    def _queue(self, topic: str, route: TopicRoute, first: Wire, kind: int) -> MessageQueue:
        known = self._queues.get(topic)
        if known is None or known[0] is not route:
            if len(self._queues) >= REMEMBERED_MAX:
                self._queues.clear()
            known = self._queues[topic] = route, publish_queues(topic, route)
        queues = known[1]
        if not queues:
            raise Refused(Code.FORBIDDEN, f"no writable queue: no master takes messages of topic {topic} now")
        if kind in (FIFO, LITE):
            group = first.system_properties.message_group or first.system_properties.lite_topic
            return queues[jump_hash(java_hash(group), len(queues))]
        self._turn += 1
        return queues[self._turn % len(queues)]

    async def _send_one(
        self,
        message: Wire,
        body: bytes,
        properties: str,
        queue: MessageQueue,
        address: str,
        kind: int,
        timeout_s: float,
    ) -> Wire:
        system = message.system_properties
        ext = {
            "a": queue.topic,
            "b": queue.topic,
            "c": SystemTopic.AUTO_CREATE,
            "d": "4",
            "e": str(queue.queue_id),
            "f": str(SysFlag.TRANSACTION_PREPARED if kind == TRANSACTION else 0),
            "g": str(ms_of(system.born_timestamp) if system.HasField("born_timestamp") else now_ms()),
            "h": "0",
            "i": properties,
            "j": "0",
            "k": "false",
            "m": "false",
            "n": queue.broker_name,
        }
        try:
            answer = await self._cluster.instance.remoting.invoke(
                address, RequestCode.SEND_MESSAGE_V2, ext, body, timeout_s=timeout_s
            )
            code = STORED.get(answer.code)
            if code is None:
                raise ResponseError(
                    answer.code, answer.remark, request_code=RequestCode.SEND_MESSAGE_V2, address=address
                )
        except ContrailError as exc:
            self._cluster.instance.refresh_soon(queue.topic)
            return v2.SendResultEntry(status=outcome(exc), message_id=system.message_id)
        entry = v2.SendResultEntry(status=status(code, answer.remark or ""), message_id=system.message_id)
        entry.offset = number(answer.ext, "queueOffset")
        entry.recall_handle = answer.ext.get("recallHandle", "")
        if kind == TRANSACTION:
            _, _, log_offset = parse_offset_message_id(answer.ext.get("msgId", ""))
            entry.transaction_id = Half(queue.broker_name, log_offset, entry.offset, system.message_id).text
        return entry

    async def end(self, request: Wire, timeout_s: float) -> Wire:
        if request.resolution not in RESOLUTIONS:
            raise Refused(Code.BAD_REQUEST, f"resolution {request.resolution} is neither commit (1) nor rollback (2)")
        half, topic = parse_transaction_id(request.transaction_id), request.topic.name
        await self._cluster.route(topic)
        ext = {
            "topic": topic,
            "producerGroup": topic,
            "tranStateTableOffset": half.queue_offset,
            "commitLogOffset": half.log_offset,
            "commitOrRollback": RESOLUTIONS[request.resolution],
            "fromTransactionCheck": "true" if request.source == FROM_CHECK else "false",
            "msgId": request.message_id,
            "transactionId": half.message_id,
            "bname": half.broker,
        }
        address = await self._cluster.master(half.broker, topic)
        await self._cluster.instance.call(address, RequestCode.END_TRANSACTION, ext, timeout_s=timeout_s)
        return v2.EndTransactionResponse(status=status(Code.OK))

    async def recall(self, request: Wire, timeout_s: float) -> Wire:
        topic = request.topic.name
        await self._cluster.route(topic)
        broker = _recalled_broker(request.recall_handle)
        address = await self._cluster.master(broker, topic)
        ext = {"topic": topic, "producerGroup": topic, "recallHandle": request.recall_handle, "bname": broker}
        answer = await self._cluster.instance.call(address, RequestCode.RECALL_MESSAGE, ext, timeout_s=timeout_s)
        return v2.RecallMessageResponse(status=status(Code.OK), message_id=answer.ext.get("msgId", ""))


class Half(NamedTuple):
    """Where a half message is."""

    broker: str
    log_offset: int
    queue_offset: int
    message_id: str

    @property
    def text(self) -> str:
        return base64.urlsafe_b64encode(" ".join(map(str, self)).encode()).decode()


def parse_transaction_id(text: str) -> Half:
    try:
        broker, log_offset, queue_offset, message_id = base64.urlsafe_b64decode(text).decode().split(" ")
        return Half(broker, int(log_offset), int(queue_offset), message_id)
    except (ValueError, binascii.Error):
        raise Refused(
            Code.INVALID_TRANSACTION_ID, f"transaction id {text[:80]!r} is not one that a send answered with"
        ) from None


def half_of(ext: dict[str, str], broker: str, properties: dict[str, str]) -> Half:
    """The half message that a broker asks about."""
    message_id = ext.get("transactionId") or properties.get(Property.UNIQUE_KEY) or ext.get("msgId", "")
    return Half(broker, number(ext, "commitLogOffset"), number(ext, "tranStateTableOffset"), message_id)


def _recalled_broker(handle: str) -> str:
    """`v1 topic broker time id`, in base64."""
    try:
        parts = base64.urlsafe_b64decode(handle + "=" * (-len(handle) % 4)).decode().split(" ")
    except (ValueError, binascii.Error):
        parts = []
    if len(parts) != 5 or parts[0] != "v1":
        raise Refused(Code.BAD_REQUEST, f"recall handle {handle[:80]!r} is not one that a send answered with")
    return parts[2]


def jump_hash(key: int, buckets: int) -> int:
    """Jump consistent hash of a signed key, as the reference's proxy chooses the queue of a message group."""
    state, bucket, jump = key & 0xFFFF_FFFF_FFFF_FFFF, -1, 0
    while jump < buckets:
        bucket = jump
        state = (state * 2862933555777941757 + 1) & 0xFFFF_FFFF_FFFF_FFFF
        jump = int((bucket + 1) / (((state >> 33) + 1) / (1 << 31)))
    return bucket
