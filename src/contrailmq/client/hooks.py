"""Places where users can look at, or stop, what a client does.

Subclass `ClientHooks` and override what you need. Hooks run on the client's loop: they must not block. An exception
from `check_send` forbids the send and reaches the caller; exceptions from the others are logged and change nothing.

`OpenTelemetryHooks` makes spans of sends and consumptions (extra `contrailmq[otel]`); traces in RocketMQ's own format
are a setting of the clients (`trace=True`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeVar

from contrailmq.client.results import ConsumeOutcome, SendResult
from contrailmq.message import Message, MessageQueue, StoredMessage, printable_lines

_FORMATTER: Final = logging.Formatter()


class _EscapedTraces(logging.Filter):
    """The last line of a traceback is the exception's text, which often quotes a message: `ValueError: bad body ...`.

    Control characters in it must not reach a terminal, whatever handlers the application has, so the text that handlers
    print is made here, escaped. The exception itself stays in the record for those that want it.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and not record.exc_text:
            record.exc_text = printable_lines(_FORMATTER.formatException(record.exc_info))
        return True


_ESCAPED: Final = _EscapedTraces()


def user_error_log(name: str) -> logging.Logger:
    """A logger for what listeners, checks and hooks of users raise: its tracebacks are safe to print."""
    logger = logging.getLogger(name)
    logger.addFilter(_ESCAPED)
    return logger


_log = user_error_log("contrailmq.client")
E = TypeVar("E")


def tell(hook: Callable[[E], None], event: E) -> None:
    """A hook that raises is logged, and changes nothing."""
    try:
        hook(event)
    except Exception:  # noqa: BLE001 -- user code that looks on must not stop what it looks at
        _log.exception("hook %r raised; nothing changes by that", hook)


@dataclass(slots=True)
class SendEvent:
    """One send as hooks see it. `result` or `error` is set when it ended."""

    group: str
    topic: str
    messages: Sequence[Message]
    queue: MessageQueue | None = None
    result: SendResult | None = None
    error: BaseException | None = None
    memory: dict[str, object] = field(default_factory=dict)  # what a hook carries from before to after


@dataclass(slots=True)
class ConsumeEvent:
    """One listener call as hooks see it. `outcome` is set when it ended."""

    group: str
    queue: MessageQueue
    messages: Sequence[StoredMessage]
    outcome: ConsumeOutcome | None = None
    error: BaseException | None = None
    memory: dict[str, object] = field(default_factory=dict)


class ClientHooks:
    """Does nothing: the base to derive from."""

    def check_send(self, event: SendEvent) -> None:
        """May raise to forbid the send."""

    def before_send(self, event: SendEvent) -> None: ...

    def after_send(self, event: SendEvent) -> None: ...

    def filter_pulled(self, queue: MessageQueue, messages: list[StoredMessage]) -> list[StoredMessage]:
        """What of a pull the listener shall see; the rest counts as consumed."""
        return messages

    def before_consume(self, event: ConsumeEvent) -> None: ...

    def after_consume(self, event: ConsumeEvent) -> None: ...


class _Span(Protocol):
    def set_attribute(self, key: str, value: str | int) -> object: ...
    def record_exception(self, exception: BaseException) -> object: ...
    def end(self) -> object: ...


class OpenTelemetryHooks(ClientHooks):
    """A PRODUCER span for each send, a CONSUMER span for each listener call.

    The context travels as OpenTelemetry's own headers (`traceparent`) in the message's properties.
    """

    def __init__(self, tracer_name: str = "contrailmq") -> None:
        from opentelemetry import propagate, trace

        self._tracer = trace.get_tracer(tracer_name)
        self._kind = trace.SpanKind
        self._set_in_context = trace.set_span_in_context
        self._propagate = propagate

    def before_send(self, event: SendEvent) -> None:
        span = self._tracer.start_span(f"{event.topic} send", kind=self._kind.PRODUCER)
        span.set_attribute("messaging.system", "rocketmq")
        span.set_attribute("messaging.destination.name", event.topic)
        span.set_attribute("messaging.batch.message_count", len(event.messages))
        for message in event.messages:
            self._propagate.inject(message.properties, context=self._set_in_context(span))
        event.memory["span"] = span

    def after_send(self, event: SendEvent) -> None:
        message_id = event.result.message_id if event.result is not None else ""
        self._end(event.memory.get("span"), event.error, message_id)

    def before_consume(self, event: ConsumeEvent) -> None:
        parent = self._propagate.extract(event.messages[0].properties)
        span = self._tracer.start_span(f"{event.queue.topic} process", context=parent, kind=self._kind.CONSUMER)
        span.set_attribute("messaging.system", "rocketmq")
        span.set_attribute("messaging.destination.name", event.queue.topic)
        span.set_attribute("messaging.consumer.group.name", event.group)
        event.memory["span"] = span

    def after_consume(self, event: ConsumeEvent) -> None:
        self._end(event.memory.get("span"), event.error, event.messages[0].message_id)

    def _end(self, span: object, error: BaseException | None, message_id: str) -> None:
        if span is None:
            return
        open_span: _Span = span  # type: ignore[assignment]  # opentelemetry is an extra: its types are not here
        if message_id:
            open_span.set_attribute("messaging.message.id", message_id)
        if error is not None:
            open_span.record_exception(error)
        open_span.end()
