"""Hooks for traces, audits and quotas: what was stored and what was handed out.

    server.node.hooks.on_stored.append(lambda event: span(event.unique_key, event.topic))

A hook is called on the broker's loop, afterwards but before the answer leaves (under SYNC_FLUSH that is before the
message is durable): it must be quick and cannot refuse anything. One that raises is logged, and the message goes on.
Without hooks the hot path only checks an empty list.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from contrailmq.broker.mistakes import mistakes

Event = TypeVar("Event")


@dataclass(frozen=True, slots=True)
class MessageStored:
    """One request's message, or its batch of `count`, is in the log. `client` is the sender's host:port."""

    client: str
    producer_group: str
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    unique_key: str
    count: int
    size_bytes: int
    born_time_ms: int
    store_time_ms: int


@dataclass(frozen=True, slots=True)
class MessagesPulled:
    """Messages [first_offset, next_offset) of a queue, less what the filter left out, go to a consumer."""

    client: str
    group: str
    topic: str
    queue_id: int
    first_offset: int
    next_offset: int
    count: int
    size_bytes: int


class Hooks:
    """Owner: the loop. Both lists may change at any time between two wakeups."""

    __slots__ = ("on_pulled", "on_stored")

    def __init__(self) -> None:
        self.on_stored: list[Callable[[MessageStored], None]] = []
        self.on_pulled: list[Callable[[MessagesPulled], None]] = []

    def stored(self, event: MessageStored) -> None:
        _tell(self.on_stored, event)

    def pulled(self, event: MessagesPulled) -> None:
        _tell(self.on_pulled, event)


def _tell(hooks: list[Callable[[Event], None]], event: Event) -> None:
    for hook in hooks:
        try:
            hook(event)
        except Exception:  # noqa: BLE001 - a stranger's code: the message is stored, its answer must leave
            mistakes.note(f"a hook failed on {type(event).__name__}")
