"""Sending: codes 10, 310 and 320.

Two ways lead to the log. The fast one takes an ordinary message to a known topic: nothing is decoded that need not be,
the property string stays text, and the answer comes from a template. A prepared message of the usual form takes it
too. Anything out of the ordinary (an unknown topic, a retry topic, a batch, a delay, a property of ours already set)
takes the plain one, which makes an `IncomingMessage` and runs the rewrites. Both check in the order of the reference.

Either gives what it has `Stored`, and `_acknowledge` alone turns that into the answer: at once, or when what it waits
for has come (acknowledging.py).

Fast path, us of CPU per message on CPython 3.11, without frame, header and store: checks 0.5, properties 1.0, answer
0.9.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable
from typing import Final, NamedTuple

from contrailmq.broker.handlers import Handlers, Refused
from contrailmq.broker.hooks import MessageStored
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.requests.priority import place_by_priority
from contrailmq.broker.state.acknowledging import Needs, Problem
from contrailmq.broker.state.half_text import half_addition, rest_of_prepared
from contrailmq.broker.state.incoming import IncomingMessage
from contrailmq.broker.state.statistics import FIFO, NORMAL, TRANSACTION
from contrailmq.broker.state.topics import MULTI_TAG, NOT_FOR_SENDING, Topic
from contrailmq.message import (
    DLQ_PREFIX,
    PROPERTIES_BYTES_MAX,
    RETRY_PREFIX,
    TOPIC_BYTES_MAX,
    MessageError,
    Property,
    SysFlag,
    SystemTopic,
    check_topic,
    create_unique_id,
    decode_properties,
    dlq_topic,
    encode_host,
    java_hash,
    offset_message_id,
    tags_code,
    text_wants_durable,
    wants_durable,
)
from contrailmq.message.codec import split_batch
from contrailmq.message.property_text import closed, find_text
from contrailmq.store import TAG_LENGTH_MAX, AppendResult, BatchResult, PutStatus
from contrailmq.wire.codes import OUR_LANGUAGE, OUR_VERSION, RequestCode, ResponseCode
from contrailmq.wire.frame import ReplyTemplate, encode_response, escape
from contrailmq.wire.header import JSON, Command, Fields
from contrailmq.wire.peer import Peer
from contrailmq.wire.refusals import slave_takes_no_messages
from contrailmq.wire.requests import SendMessage, SendMessageV2

SendHeader = SendMessage | SendMessageV2

MAX_RECONSUME_VERSION: Final = 121  # V3_4_9: older clients do not mean what they send in maxReconsumeTimes
TAG_CODES_MAX: Final = 10_000  # hashes kept; a producer with a tag per message must not fill memory
BORN_HOST: Final = "born_host"

_PUT_OK: Final = PutStatus.PUT_OK
# How wide the hosts of a record are is ours to say: a sender's bits would make the record unreadable.
_SENDERS_FLAGS: Final = ~(SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6 | SysFlag.LOST)
_TRANSACTION: Final = int(SysFlag.TRANSACTION_MASK)
_COMMIT: Final = int(SysFlag.TRANSACTION_COMMIT)
_HALF_TOPIC: Final = SystemTopic.HALF
_UNIQUE_KEY: Final = f"{Property.UNIQUE_KEY}\x01"
_TAGS: Final = f"{Property.TAGS}\x01"
_KEYS: Final = f"{Property.KEYS}\x01"
_PREFIX: Final = struct.Struct(">iI")  # frame length, serialize type and header length

# status -> (code, prefix that tools know). What the store says in `reason` follows.
STATUS_CODES: Final[dict[PutStatus, tuple[ResponseCode, str]]] = {
    PutStatus.FLUSH_DISK_TIMEOUT: (ResponseCode.FLUSH_DISK_TIMEOUT, ""),
    PutStatus.FLUSH_SLAVE_TIMEOUT: (ResponseCode.FLUSH_SLAVE_TIMEOUT, ""),
    PutStatus.SLAVE_NOT_AVAILABLE: (ResponseCode.SLAVE_NOT_AVAILABLE, ""),
    PutStatus.IN_SYNC_REPLICAS_NOT_ENOUGH: (ResponseCode.SYSTEM_ERROR, ""),
    PutStatus.SERVICE_NOT_AVAILABLE: (ResponseCode.SERVICE_NOT_AVAILABLE, ""),
    PutStatus.CREATE_MAPPED_FILE_FAILED: (ResponseCode.SERVICE_NOT_AVAILABLE, ""),
    PutStatus.MESSAGE_ILLEGAL: (ResponseCode.MESSAGE_ILLEGAL, ""),
    PutStatus.PROPERTIES_SIZE_EXCEEDED: (ResponseCode.MESSAGE_ILLEGAL, ""),
    PutStatus.OS_PAGE_CACHE_BUSY: (ResponseCode.SYSTEM_BUSY, "[PC_SYNCHRONIZED]broker busy, "),
    PutStatus.LMQ_CONSUME_QUEUE_NUM_EXCEEDED: (ResponseCode.LMQ_QUOTA_EXCEEDED, ""),
    PutStatus.WHEEL_TIMER_MSG_ILLEGAL: (ResponseCode.MESSAGE_ILLEGAL, ""),
    PutStatus.WHEEL_TIMER_FLOW_CONTROL: (ResponseCode.SYSTEM_ERROR, ""),
    PutStatus.WHEEL_TIMER_NOT_ENABLE: (ResponseCode.SYSTEM_ERROR, ""),
    PutStatus.PUT_TO_REMOTE_BROKER_FAIL: (ResponseCode.SYSTEM_ERROR, ""),
    PutStatus.UNKNOWN_ERROR: (ResponseCode.SYSTEM_ERROR, ""),
}


class Stored(NamedTuple):
    """What a send has stored: all that its answer says, and what it waits for."""

    result: AppendResult | BatchResult
    queue_id: int
    unique_key: str
    needs: Needs
    began_ns: int = 0
    message_ids: bytes = b""  # empty for one message that was stored at this broker's own address
    more: dict[str, str] | None = None  # fields of the answer


NOTHING: Final = Needs()
_stored = tuple.__new__  # what a NamedTuple's constructor ends in, without its arguments' matching


class SendProcessor:
    """Serves sends of all kinds."""

    def __init__(self, node: BrokerNode) -> None:
        self._node = node
        self._tag_codes: dict[str, int] = {}
        self._pending = node.keeping.topics
        self._random = random.Random()
        self._look_at_clock = node.store.store_clock.look
        self._is_sync_flush = node.store.config.is_sync_flush
        self._is_replicated = node.replicas.is_awaited
        self._is_awaited = self._is_sync_flush or self._is_replicated
        node.replicas.on_shortage = self._look_open
        self.configure()

    def configure(self) -> None:
        """Compute what depends on settings; called again when they change."""
        config = self._node.config
        self._look_open()
        trace_on = str(config.trace_on).lower()
        self._own = {
            Property.MESSAGE_REGION: config.region_id,
            Property.TRACE_SWITCH: trace_on,
            Property.CLUSTER: config.broker_cluster_name,
        }
        self._suffix = "".join(f"{name}\x01{value}\x02" for name, value in self._own.items()).encode()
        self._fixed = {"MSG_REGION": config.region_id, "TRACE_ON": trace_on}
        self._template = ReplyTemplate(
            {"queueId": int, "transactionId": bytes, "msgId": bytes, "queueOffset": int}, self._fixed
        )
        self._message_id_prefix = offset_message_id(self._node.store_host, 0)[:-16].encode()
        # The template once more, with the offset of the message id inside: 0.4 us less for each message.
        self._answer_format = (
            b'{"code":0,"extFields":{"queueId":"%%d","transactionId":"%%b","msgId":"%b%%016X","queueOffset":"%%d",'
            b'"MSG_REGION":"%b","TRACE_ON":"%b"},"flag":1,"language":"%b","opaque":%%d,'
            b'"serializeTypeCurrentRPC":"JSON","version":%d}'
        ) % (
            self._message_id_prefix,
            escape(config.region_id).replace(b"%", b"%%"),
            trace_on.encode(),
            OUR_LANGUAGE.encode(),
            OUR_VERSION,
        )

    def _look_open(self) -> None:
        """Whether every topic may be sent to right now; where not, the plain path says why."""
        node, config = self._node, self._node.config
        self._is_open = (
            config.is_writable
            and not node.is_slave
            and not config.start_accept_send_request_time_stamp
            and not node.replicas.shortage
        )

    def register(self, handlers: Handlers) -> None:
        handlers.register(RequestCode.SEND_MESSAGE_V2, self.send_v2)
        handlers.register(RequestCode.SEND_MESSAGE, self.send_v1)
        handlers.register(RequestCode.SEND_BATCH_MESSAGE, self.send_v2)

    def send_v1(self, connection: Peer, command: Command) -> bytes | None:
        header = command.header(SendMessage)
        return self._acknowledge(connection, command, header, self._store(connection, command, header))

    def send_v2(self, connection: Peer, command: Command) -> bytes | None:
        fields: object = command.ext_fields  # what `header` looks at first, without the call
        header = fields if isinstance(fields, SendMessageV2) else command.header(SendMessageV2)
        return self._acknowledge(connection, command, header, self._store(connection, command, header))

    def send_halves(
        self, connection: Peer, command: Command, rewrite: Callable[[bytes, str, int], bytes]
    ) -> bytes | None:
        """A batch of which `rewrite` makes half messages, given its bytes, topic and queue."""
        header = command.header(SendMessageV2)
        self._check_accepting()
        self._check_transactions()
        topic = self.writable_topic(header)
        queue_id = self._chosen_queue(topic, header.queue_id)
        batch = rewrite(command.body, topic.name, queue_id)
        properties = decode_properties(header.properties or "")
        stored = self._store_batch(connection, batch, header, properties, SystemTopic.HALF, 0)
        return self._acknowledge(connection, command, header, stored._replace(queue_id=queue_id))

    # --- the fast path

    def _store(self, connection: Peer, command: Command, header: SendHeader) -> Stored:
        node = self._node
        topic = node.topics.get(header.topic)
        text = header.properties or ""
        queue_id = header.queue_id
        is_special = _has_special(text)
        is_half = is_special and self._is_usual_half(header, text)
        if (
            topic is None
            or not topic.is_plain
            or header.batch
            or not 0 <= queue_id < topic.queue_limit
            or not node.is_accepting
            or header.topic in self._pending
            or not self._is_open
            or (is_special and not is_half)
        ):
            return self._store_plainly(connection, command, header)
        unique_key, tags, keys = find_text(text, _UNIQUE_KEY), find_text(text, _TAGS), find_text(text, _KEYS)
        properties = closed(text.encode())
        if unique_key is None:
            unique_key = create_unique_id()
            properties += b"UNIQ_KEY\x01%b\x02" % unique_key.encode()
        properties += self._suffix
        stored_topic, stored_queue_id = header.topic, queue_id
        sys_flag = header.sys_flag & _SENDERS_FLAGS | topic.set_flags
        if is_half:
            self._look_at_clock()  # its birth is a time of the wall clock as it is now
            properties += half_addition(stored_topic, queue_id, unique_key)
            stored_topic, stored_queue_id, sys_flag = _HALF_TOPIC, 0, sys_flag & ~_TRANSACTION
        code = 0 if tags is None else self._tag_codes.get(tags) or self._new_tag_code(tags)
        born_host: bytes = connection.attributes.get(BORN_HOST) or _born_host(connection)  # type: ignore[assignment]
        began_ns = 0 if node.is_dispatch_due else node.stopwatch_ns()
        result = node.store.append(
            stored_topic,
            stored_queue_id,
            command.body,
            properties,
            tags_code=code,
            keys=keys,
            unique_key=unique_key,
            tags=tags,
            flag=header.flag,
            sys_flag=sys_flag,
            born_time_ms=header.born_timestamp,
            born_host=born_host,
            store_host=node.store_host,
            reconsume_times=header.reconsume_times or 0,
        )
        if result.status is not _PUT_OK:
            raise self._refused(result)
        kind = TRANSACTION if is_half else FIFO if "__SHARDINGKEY" in text else NORMAL
        node.statistics.note_put(stored_topic, 1, result.size_bytes, kind)
        needs = NOTHING
        if self._is_awaited and text_wants_durable(text):
            needs = self._needs(result.physical_offset + result.size_bytes, ())
        return _stored(Stored, (result, queue_id, unique_key, needs, began_ns, b"", None))

    def _is_usual_half(self, header: SendHeader, text: str) -> bool:
        """Whether a message is prepared, and a half message with an addition to its properties (half_text.py)."""
        rest = rest_of_prepared(text)
        return (
            rest is not None
            and not _has_special(rest)
            and header.sys_flag & _TRANSACTION != _COMMIT
            and not header.topic.startswith(DLQ_PREFIX)
            and not self._node.config.reject_transaction_message
            and _HALF_TOPIC not in self._pending
        )

    def _new_tag_code(self, tags: str) -> int:
        if len(tags) > TAG_LENGTH_MAX:
            return java_hash(tags)
        if len(self._tag_codes) >= TAG_CODES_MAX:
            self._tag_codes.clear()
        code = self._tag_codes[tags] = tags_code(tags)
        return code

    # --- the plain path

    def _store_plainly(self, connection: Peer, command: Command, header: SendHeader) -> Stored:
        node = self._node
        self._check_accepting()
        if node.replicas.shortage and text_wants_durable(header.properties or ""):
            raise Refused(ResponseCode.SYSTEM_ERROR, node.replicas.shortage, self._fixed)
        topic = self.writable_topic(header)
        queue_id = self._chosen_queue(topic, header.queue_id)
        is_inner = False
        if header.batch:
            properties = decode_properties(header.properties or "")
            is_inner = topic.takes_inner_batches and Property.UNIQUE_KEY in properties
            if not is_inner:
                self._check_batch(topic)
                flags = header.sys_flag & _SENDERS_FLAGS | topic.set_flags
                return self._store_batch(
                    connection, command.body, header, properties, topic.name, queue_id, sys_flag=flags
                )
        message = self.incoming(connection, command, header, topic, queue_id)
        if is_inner:
            self._make_inner_batch(message)
        else:
            place_by_priority(message, topic.write_queues)
        if topic.name.startswith(RETRY_PREFIX):
            self._check_retries(message, command, header)
        topics = (topic.name, message.topic)
        result = put_rewritten(node, message, self._fixed)
        end = result.physical_offset + result.size_bytes if wants_durable(message.properties) else 0
        return Stored(
            result,
            message.answer_queue_id,
            message.unique_key or "",
            self._needs(end, topics),
            message_ids=offset_message_id(message.store_host, result.physical_offset).encode(),
            more=message.answer_fields,
        )

    def incoming(
        self, connection: Peer, command: Command, header: SendHeader, topic: Topic, queue_id: int
    ) -> IncomingMessage:
        """The message of a request, with the properties that a broker adds; MessageError when it cannot be stored."""
        properties = decode_properties(header.properties or "")
        properties.pop(Property.POP_CHECKPOINT, None)
        for name in [name for name in properties if name.startswith("__RMQ.TRANSIENT.")]:
            del properties[name]
        properties.setdefault(Property.UNIQUE_KEY, create_unique_id())
        properties.update(self._own)
        if properties.get(Property.TRANSACTION_PREPARED, "").lower() == "true":
            self._check_transactions()
        born_host = connection.attributes.get(BORN_HOST) or _born_host(connection)
        assert isinstance(born_host, bytes)
        return IncomingMessage(
            topic.name,
            queue_id,
            command.body,
            properties,
            born_host=born_host,
            store_host=self._node.store_host,
            born_time_ms=header.born_timestamp,
            flag=header.flag,
            sys_flag=header.sys_flag & _SENDERS_FLAGS | topic.set_flags,
            reconsume_times=header.reconsume_times or 0,
            producer_group=header.producer_group,
        )

    def _check_transactions(self) -> None:
        if self._node.config.reject_transaction_message:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"broker {self._node.config.broker_name} takes no transactions: rejectTransactionMessage is set",
                self._fixed,
            )

    def writable_topic(self, header: SendHeader) -> Topic:
        """The topic of a send, made when it is new and may be; Refused says why not."""
        node, name = self._node, header.topic
        try:
            check_topic(name)
        except MessageError as exc:
            raise Refused(ResponseCode.INVALID_PARAMETER, str(exc), self._fixed) from None
        if name in NOT_FOR_SENDING:
            raise Refused(ResponseCode.NO_PERMISSION, f"sending to topic {name} is forbidden", self._fixed)
        topic = node.topics.get(name) or node.topics.create_for_send(
            name,
            template=header.default_topic,
            queues_wanted=header.default_topic_queue_nums,
            is_unit=bool(header.unit_mode),
        )
        if topic is None:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{name}] not exist on {node.config.broker_name}: create it (code 17, updateTopic) or enable "
                "autoCreateTopicEnable",
                self._fixed,
            )
        if not node.config.is_writable and topic.order:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"broker[{node.config.broker_name}] is not writable: brokerPermission={node.config.broker_permission}",
                self._fixed,
            )
        if not topic.is_writable:
            raise Refused(ResponseCode.NO_PERMISSION, f"topic[{name}] is not writable: perm={topic.perm}", self._fixed)
        return topic

    def _check_accepting(self) -> None:
        node = self._node
        if not node.is_accepting:
            raise Refused(ResponseCode.SERVICE_NOT_AVAILABLE, "the broker is stopping: send elsewhere", self._fixed)
        if node.is_slave:
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                slave_takes_no_messages(node.config.broker_name, node.config.broker_id),
                self._fixed,
            )
        since = node.config.start_accept_send_request_time_stamp
        if node.now_ms() < since:
            raise Refused(
                ResponseCode.SYSTEM_ERROR,
                f"broker unable to service, until {since} (startAcceptSendRequestTimeStamp)",
                self._fixed,
            )

    def _chosen_queue(self, topic: Topic, queue_id: int) -> int:
        if not topic.queue_limit or (queue_id < 0 and not topic.write_queues):
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"topic {topic.name} has no queues to write: give it some (code 17, updateTopic)",
                self._fixed,
            )
        if queue_id < 0:
            return self._random.randrange(topic.write_queues)
        if queue_id >= topic.queue_limit:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"queueId {queue_id} of topic {topic.name} is illegal: it has {topic.queue_limit} queues, 0 to "
                f"{topic.queue_limit - 1}",
                self._fixed,
            )
        return queue_id

    def _check_retries(self, message: IncomingMessage, command: Command, header: SendHeader) -> None:
        """A consumer sent the message back by itself: count its tries, or move it to the dead letters."""
        node = self._node
        name = message.topic[len(RETRY_PREFIX) :]
        group = node.groups.get(name)
        if group is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"subscription group not exist, {name}", self._fixed
            )
        limit = group.retry_max_times
        if header.max_reconsume_times is not None and command.version >= MAX_RECONSUME_VERSION:
            limit = header.max_reconsume_times
        if message.reconsume_times > limit or node.locks.is_any_locked(name, node.monotonic_ms()):
            dead = node.topics.create_for_group(dlq_topic(name), queues=1)
            message.topic, message.queue_id = dead.name, 0
            message.properties.pop(Property.DELAY, None)
            node.statistics.note_dead_letter(name, message.properties.get(Property.RETRY_TOPIC, ""))

    # --- batches

    def _make_inner_batch(self, message: IncomingMessage) -> None:
        """A batch for a topic with queue.type=BatchCQ is one message (SendMessageProcessor.sendBatchMessage)."""
        count = len(split_batch(message.body))
        if not count:
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "the batch holds no message", self._fixed)
        message.properties[Property.INNER_NUM] = str(count)
        message.sys_flag |= SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP
        message.answer_fields["batchUniqId"] = message.unique_key or ""

    def _check_batch(self, topic: Topic) -> None:
        if topic.name.startswith(RETRY_PREFIX):
            raise Refused(ResponseCode.MESSAGE_ILLEGAL, "a batch cannot go to a retry topic", self._fixed)
        if topic.is_lite:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"a batch cannot go to {topic.name}, a topic of lite topics: send its messages one by one",
                self._fixed,
            )
        if len(topic.name) > TOPIC_BYTES_MAX:
            raise Refused(
                ResponseCode.MESSAGE_ILLEGAL,
                f"the topic of a batch has {len(topic.name)} characters, the limit is {TOPIC_BYTES_MAX}",
                self._fixed,
            )

    def _store_batch(
        self,
        connection: Peer,
        batch: bytes,
        header: SendHeader,
        properties: dict[str, str],
        topic: str,
        queue_id: int,
        sys_flag: int = 0,
    ) -> Stored:
        """`properties` are the request's: its id and its WAIT are those of the batch, as in Java (MessageBatch)."""
        node = self._node
        born_host = connection.attributes.get(BORN_HOST) or _born_host(connection)
        assert isinstance(born_host, bytes)
        began_ns = 0 if node.is_dispatch_due else node.stopwatch_ns()
        result = node.store.append_batch(
            topic,
            queue_id,
            batch,
            sys_flag=sys_flag,
            born_time_ms=header.born_timestamp,
            born_host=born_host,
            store_host=node.store_host,
            reconsume_times=header.reconsume_times or 0,
        )
        if not result.status.is_stored:
            raise self._refused(result)
        offsets = tuple(result.physical_offsets)
        kind = TRANSACTION if topic == SystemTopic.HALF else NORMAL
        node.statistics.note_put(topic, len(offsets), result.size_bytes, kind)
        ids = b",".join([self._message_id_prefix + b"%016X"] * len(offsets)) % offsets  # one by one takes twice as long
        needs = self._needs(offsets[0] + result.size_bytes if wants_durable(properties) else 0, (topic,))
        return Stored(result, queue_id, properties.get(Property.UNIQUE_KEY, ""), needs, began_ns, ids)

    # --- answers

    def _needs(self, end_offset: int, topics: tuple[str, ...]) -> Needs:
        """Of a message that ends there; 0 when its sender does not wait."""
        return Needs(
            durable_up_to=end_offset if self._is_sync_flush else 0,
            topics=topics,
            replicated_up_to=end_offset if self._is_replicated else 0,
        )

    def _acknowledge(self, connection: Peer, command: Command, header: SendHeader, stored: Stored) -> bytes | None:
        """The answer, or none yet: acknowledging.py says for what it waits."""
        node, needs = self._node, stored.needs
        node.after_append(wants_flush=needs.durable_up_to > 0, began_ns=stored.began_ns)
        if node.hooks.on_stored:
            self._show(connection, header, stored)
        if needs is NOTHING:
            return self._render(command, stored)
        return node.acknowledging.answer(
            connection, command, needs, lambda problem: self._render(command, stored, problem)
        )

    def _render(self, command: Command, stored: Stored, problem: Problem | None = None) -> bytes:
        result, queue_id, unique_key, _, _, message_ids, more = stored
        offset = result.queue_offset
        if problem is None and not more:
            key = escape(unique_key)
            if not message_ids and isinstance(result, AppendResult):
                if command.serialize_type == JSON:
                    answer = self._answer_format % (queue_id, key, result.physical_offset, offset, command.opaque)
                    return _PREFIX.pack(len(answer) + 4, len(answer)) + answer
                message_ids = self._message_id_prefix + b"%016X" % result.physical_offset
            return self._template.render(command, (queue_id, key, message_ids, offset))
        if problem is not None and not problem.is_late:
            return encode_response(command, problem.code, self._fixed, remark=problem.remark)
        if not message_ids and isinstance(result, AppendResult):
            message_ids = self._message_id_prefix + b"%016X" % result.physical_offset
        ext: dict[str, str | int | bool | None] = {
            "queueId": queue_id,
            "transactionId": unique_key,
            "msgId": message_ids.decode(),
            "queueOffset": offset,
            **self._fixed,
            **(more or {}),
        }
        code, remark = (ResponseCode.SUCCESS, None) if problem is None else (problem.code, problem.remark)
        return encode_response(command, code, ext, remark=remark)

    def _show(self, connection: Peer, header: SendHeader, stored: Stored) -> None:
        result = stored.result
        places = result.physical_offsets if isinstance(result, BatchResult) else [result.physical_offset]
        self._node.hooks.stored(
            MessageStored(
                client=connection.address,
                producer_group=header.producer_group,
                topic=header.topic,
                queue_id=stored.queue_id,
                queue_offset=result.queue_offset,
                physical_offset=places[0],
                unique_key=stored.unique_key,
                count=len(places),
                size_bytes=result.size_bytes,
                born_time_ms=header.born_timestamp,
                store_time_ms=result.store_time_ms,
            )
        )

    def _refused(self, result: AppendResult | BatchResult) -> Refused:
        self._node.statistics.put_failed += 1
        return refused_put(result, self._fixed)


def put_rewritten(node: BrokerNode, message: IncomingMessage, ext: Fields | None = None) -> AppendResult:
    """Run the broker's rewrites over a message and store it; Refused when one of them, or the store, says no."""
    for rewrite in node.rewrites:
        refusal = rewrite(message)
        if refusal is not None:
            raise Refused(refusal.code, refusal.remark, ext)
    result = node.put(message)
    if not result.status.is_stored:
        raise refused_put(result, ext)
    return result


def refused_put(result: AppendResult | BatchResult, ext: Fields | None = None) -> Refused:
    """The answer for what the store did not take."""
    code, prefix = STATUS_CODES.get(result.status, (ResponseCode.SYSTEM_ERROR, ""))
    return Refused(code, prefix + (result.reason or result.status.name), ext)


def _has_special(text: str) -> bool:
    """Whether a property string may hold something that the fast path must not pass over. 0.3 us, a parse takes 1.5."""
    return (
        "TRA" in text  # TRAN_MSG, TRACE_ON, TRANSIENT
        or "DELAY" in text
        or "TIMER_" in text
        or "CLUSTER" in text
        or "MSG_REGION" in text
        or "INNER_" in text
        or "POP_CK" in text
        or "_PRIORITY_" in text
    )


def _born_host(connection: Peer) -> bytes:
    host, port = connection.peer
    encoded = encode_host(host, port)
    connection.attributes[BORN_HOST] = encoded
    return encoded


assert SysFlag.MULTI_TAGS == 2
assert MULTI_TAG == "MULTI_TAG"
assert PROPERTIES_BYTES_MAX == 32_767  # the store refuses longer ones
