"""Opens a trace dispatcher that sends through a sender of its own, so that traces are never traced."""

from __future__ import annotations

import itertools

from contrailmq.client.producing.sending import Sender
from contrailmq.client.producing.trace import BODY_BYTES_MAX, TraceDispatcher
from contrailmq.client.settings import ClientOptions, ProducerOptions
from contrailmq.client.transport.instance import ClientInstance
from contrailmq.message import Message, SystemTopic

_numbers = itertools.count()


def open_trace(instance: ClientInstance, options: ClientOptions, *, group: str, kind: str) -> TraceDispatcher:
    """A running dispatcher; close it before the instance is released."""
    inner_options = ProducerOptions(namesrv=options.namesrv, send_timeout_s=5.0, max_message_bytes=BODY_BYTES_MAX)
    inner = Sender(instance, f"_INNER_TRACE_PRODUCER-{group}-{kind}-{next(_numbers)}", inner_options)

    async def send(message: Message) -> None:
        await inner.send(await inner.prepare(message), timeout_s=inner_options.send_timeout_s)

    dispatcher = TraceDispatcher(send, trace_topic=options.trace_topic or SystemTopic.TRACE)
    dispatcher.start()
    return dispatcher
