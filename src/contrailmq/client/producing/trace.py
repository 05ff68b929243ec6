"""Message traces in RocketMQ's own format, so that its dashboard and tools read them.

Fields are joined by U+0001, records end with U+0002, and a missing value is `null`. Records of one topic and region
share a message on the trace topic. Its KEYS are all message ids and keys inside, so either finds the trace. At most
2048 records wait; the dispatcher drops and counts the rest, so it never slows the traffic down.

    Pub            := type time region group topic id tags keys storeHost bodyLength cost msgType offsetId success
    SubBefore      := type time region group requestId id retryTimes keys            (one record a message)
    SubAfter       := type requestId id cost success keys contextCode time group
    EndTransaction := type time region group topic id tags keys storeHost msgType transactionId state fromCheck
    Recall         := type time region group topic id success
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Final

from contrailmq.client.producing.sending import Sender
from contrailmq.client.settings import ClientOptions, ProducerOptions
from contrailmq.client.transport.instance import ClientInstance
from contrailmq.client.transport.waiting import set_within
from contrailmq.message import ContrailError, Message, SystemTopic

_log = logging.getLogger("contrailmq.client.producing.trace")

FIELD: Final = "\x01"
RECORD: Final = "\x02"
PENDING_MAX: Final = 2048  # Java's queue; full means dropped
BATCH_RECORDS: Final = 10  # Java's traceMsgBatchNum
BODY_BYTES_MAX: Final = 128_000  # Java's limit for one trace message
FLUSH_SECONDS: Final = 5.0
CLOSE_S_MAX: Final = 5.0


class MessageType(enum.IntEnum):
    """Ordinals of RocketMQ's MessageType."""

    NORMAL = 0
    TRANSACTION_HALF = 1
    TRANSACTION_COMMIT = 2
    DELAY = 3
    ORDER = 4


class ContextCode(enum.IntEnum):
    """How a listener ended, in SubAfter."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURNED_NULL = 3
    FAILED = 4


@dataclass(frozen=True, slots=True)
class TraceRecord:
    """One encoded record with what it is grouped and found by."""

    text: str
    topic: str
    region: str
    lookup_keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TracedMessage:
    """What every record says about a message."""

    topic: str
    message_id: str
    tags: str | None = None
    keys: str | None = None
    store_host: str | None = None
    body_bytes: int = 0
    offset_message_id: str | None = None
    retry_times: int = 0
    message_type: MessageType = MessageType.NORMAL

    @property
    def lookup_keys(self) -> tuple[str, ...]:
        return (self.message_id, *(self.keys or "").split())


def publish_record(
    message: TracedMessage, *, time_ms: int, region: str, group: str, cost_ms: int, is_success: bool
) -> TraceRecord:
    fields = (
        "Pub", time_ms, region, group, message.topic, message.message_id, message.tags, message.keys,
        message.store_host, message.body_bytes, cost_ms, int(message.message_type), message.offset_message_id,
        is_success,
    )  # fmt: skip
    return TraceRecord(_join(fields), message.topic, region, message.lookup_keys)


def before_record(message: TracedMessage, *, time_ms: int, region: str, group: str, request_id: str) -> TraceRecord:
    fields = ("SubBefore", time_ms, region, group, request_id, message.message_id, message.retry_times, message.keys)
    return TraceRecord(_join(fields), message.topic, region, message.lookup_keys)


def after_record(
    message: TracedMessage,
    *,
    request_id: str,
    region: str,
    cost_ms: int,
    is_success: bool,
    code: ContextCode,
    time_ms: int,
    group: str,
) -> TraceRecord:
    fields = (
        "SubAfter", request_id, message.message_id, cost_ms, is_success, message.keys, int(code), time_ms, group,
    )  # fmt: skip
    return TraceRecord(_join(fields), message.topic, region, message.lookup_keys)


def end_transaction_record(
    message: TracedMessage,
    *,
    time_ms: int,
    region: str,
    group: str,
    transaction_id: str,
    state: str,
    is_from_check: bool,
) -> TraceRecord:
    fields = (
        "EndTransaction", time_ms, region, group, message.topic, message.message_id, message.tags, message.keys,
        message.store_host, int(message.message_type), transaction_id, state, is_from_check,
    )  # fmt: skip
    return TraceRecord(_join(fields), message.topic, region, message.lookup_keys)


def recall_record(message: TracedMessage, *, time_ms: int, region: str, group: str, is_success: bool) -> TraceRecord:
    fields = ("Recall", time_ms, region, group, message.topic, message.message_id, is_success)
    return TraceRecord(_join(fields), message.topic, region, message.lookup_keys)


def pack_records(records: Iterable[TraceRecord], *, trace_topic: str = SystemTopic.TRACE) -> list[Message]:
    """Trace messages: one for each original topic and region, cut at the size limit."""
    groups: dict[tuple[str, str], list[TraceRecord]] = {}
    for record in records:
        groups.setdefault((record.topic, record.region), []).append(record)
    return [message for group in groups.values() for message in _pack_group(group, trace_topic)]


class TraceDispatcher:
    """Collects records and sends them in the background through `send`. Owned by one client."""

    def __init__(
        self,
        send: Callable[[Message], Awaitable[object]],
        *,
        trace_topic: str = SystemTopic.TRACE,
        batch_records: int = BATCH_RECORDS,
    ) -> None:
        self._send = send
        self.trace_topic = trace_topic
        self._batch_records = batch_records
        self._pending: deque[TraceRecord] = deque()
        self._wakeup = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.dropped_count = 0

    def start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._run(), name="contrailmq-trace")

    def add(self, record: TraceRecord) -> None:
        if len(self._pending) >= PENDING_MAX:
            self.dropped_count += 1
            return
        self._pending.append(record)
        if len(self._pending) >= self._batch_records:
            self._wakeup.set()

    async def close(self) -> None:
        """Send what waits, then stop. A broker that is away is not waited for longer than one send takes."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        try:
            async with asyncio.timeout(CLOSE_S_MAX):
                await self.flush()
        except TimeoutError:
            self.dropped_count += len(self._pending)
            _log.warning("%d trace records were dropped: they were not sent in %.0f s", len(self._pending), CLOSE_S_MAX)
            self._pending.clear()

    async def flush(self) -> None:
        while self._pending:
            records = [self._pending.popleft() for _ in range(min(self._batch_records, len(self._pending)))]
            for message in pack_records(records, trace_topic=self.trace_topic):
                try:
                    await self._send(message)
                except ContrailError as exc:
                    self.dropped_count += len(records)
                    _log.warning("%d trace records were dropped: %s", len(records), exc)

    async def _run(self) -> None:
        while True:
            await set_within(self._wakeup, FLUSH_SECONDS)
            self._wakeup.clear()
            await self.flush()


def _pack_group(records: list[TraceRecord], trace_topic: str) -> list[Message]:
    messages: list[Message] = []
    body, keys = bytearray(), dict[str, None]()
    for record in records:
        data = record.text.encode()
        if body and len(body) + len(data) > BODY_BYTES_MAX:
            messages.append(Message(trace_topic, bytes(body), keys=list(keys)))
            body, keys = bytearray(), {}
        body += data
        keys.update(dict.fromkeys(record.lookup_keys))
    messages.append(Message(trace_topic, bytes(body), keys=list(keys)))
    return messages


def _join(fields: tuple[object, ...]) -> str:
    return FIELD.join(_text(value) for value in fields) + RECORD


def _text(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


_numbers = itertools.count()


def open_trace(instance: ClientInstance, options: ClientOptions, *, group: str, kind: str) -> TraceDispatcher:
    """A running dispatcher with a sender of its own, so that traces are never traced. Close it before the instance."""
    inner_options = ProducerOptions(namesrv=options.namesrv, send_timeout_s=5.0, max_message_bytes=BODY_BYTES_MAX)
    inner = Sender(instance, f"_INNER_TRACE_PRODUCER-{group}-{kind}-{next(_numbers)}", inner_options)

    async def send(message: Message) -> None:
        await inner.send(await inner.prepare(message), timeout_s=inner_options.send_timeout_s)

    dispatcher = TraceDispatcher(send, trace_topic=options.trace_topic or SystemTopic.TRACE)
    dispatcher.start()
    return dispatcher
