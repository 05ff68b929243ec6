"""What looks on while messages are consumed: hooks, the trace, and counters."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from contrailmq.client.hooks import ClientHooks, ConsumeEvent, tell, user_error_log
from contrailmq.client.producing.trace import ContextCode, TraceDispatcher, TracedMessage, after_record, before_record
from contrailmq.client.records import ReceivedMessage
from contrailmq.client.results import ConsumeOutcome, ConsumeResult
from contrailmq.message import MessageQueue, Property, create_unique_id

_log = user_error_log("contrailmq.client.consumer")


@dataclass(slots=True)
class TopicCounts:
    """Since the start, for running-info reports."""

    succeeded: int = 0
    failed: int = 0


class ConsumeWatch:
    """Told before and after each listener call. `before` may run in a listener thread."""

    def __init__(self, group: str, hooks: ClientHooks | None, trace: TraceDispatcher | None) -> None:
        self._group = group
        self._hooks = hooks
        self._trace = trace
        self._open: dict[int, tuple[ConsumeEvent, float, str]] = {}
        self.counts: dict[str, TopicCounts] = {}
        self.is_on = hooks is not None or trace is not None

    def before(self, queue: MessageQueue, messages: Sequence[ReceivedMessage]) -> None:
        event = ConsumeEvent(self._group, queue, messages)
        self._open[id(messages)] = (event, time.monotonic(), create_unique_id())
        if self._hooks is not None:
            tell(self._hooks.before_consume, event)

    def after(
        self,
        queue: MessageQueue,
        messages: Sequence[ReceivedMessage],
        outcome: ConsumeOutcome,
        error: BaseException | None,
    ) -> None:
        counts = self.counts.get(queue.topic)
        if counts is None:
            counts = self.counts[queue.topic] = TopicCounts()
        is_success = outcome.result in (ConsumeResult.SUCCESS, ConsumeResult.COMMIT)
        if is_success:
            counts.succeeded += len(messages)
        else:
            counts.failed += len(messages)
        if not self.is_on:
            return
        event, began_s, request_id = self._open.pop(id(messages))
        event.outcome, event.error = outcome, error
        if self._hooks is not None:
            tell(self._hooks.after_consume, event)
        if self._trace is not None:
            code = ContextCode.SUCCESS if is_success else ContextCode.EXCEPTION if error else ContextCode.FAILED
            self._trace_call(messages, request_id, began_s, code)

    def _trace_call(
        self, messages: Sequence[ReceivedMessage], request_id: str, began_s: float, code: ContextCode
    ) -> None:
        assert self._trace is not None
        cost_s = time.monotonic() - began_s
        now_ms = time.time_ns() // 1_000_000
        for message in messages:
            properties = message.properties
            region = properties.get(Property.MESSAGE_REGION)
            if properties.get(Property.TRACE_SWITCH) == "false" or region is None:
                continue
            traced = TracedMessage(
                message.topic,
                message.message_id,
                keys=properties.get(Property.KEYS, ""),
                retry_times=message.reconsume_times,
            )
            began_ms = now_ms - round(cost_s * 1000)
            self._trace.add(
                before_record(traced, time_ms=began_ms, region=region, group=self._group, request_id=request_id)
            )
            self._trace.add(
                after_record(
                    traced,
                    request_id=request_id,
                    region=region,
                    cost_ms=round(cost_s * 1000 / len(messages)),
                    is_success=code is ContextCode.SUCCESS,
                    code=code,
                    time_ms=now_ms,
                    group=self._group,
                )
            )


def filtered(hooks: ClientHooks, queue: MessageQueue, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
    """What the application's filter leaves of a pull."""
    try:
        chosen = hooks.filter_pulled(queue, list(messages))
    except Exception:  # noqa: BLE001 -- user code must not stop the pulling
        _log.exception("a filter_pulled hook raised; nothing is filtered")
        return messages
    return [message for message in chosen if isinstance(message, ReceivedMessage)]
