"""Timers and transactions: what waits inside the brokers."""

from __future__ import annotations

import time

from nicegui import ui

from contrailmq.console.model.console_model import ConsoleModel
from contrailmq.console.pages.parts import asked, column, heading, plain_table, show_notes
from contrailmq.console.pages.words import moment, number

HALVES_SHOWN_MAX = 500
_WAITING = [
    column("kind", "Waits as"),
    column("of", "Topic or level"),
    column("broker", "Broker"),
    column("count", "Messages", is_number=True),
]
_HALVES = [
    column("topic", "Topic"),
    column("id", "Message"),
    column("age", "Age"),
    column("born", "Sent"),
    column("group", "Producer group"),
    column("checked", "Asked for", is_number=True),
    column("broker", "Broker"),
]


class PendingPage:
    def __init__(self, model: ConsoleModel) -> None:
        self._model = model

    async def build(self) -> None:
        seen = await asked(self._model.pending.seen())
        if seen is None:
            return
        show_notes(seen.notes)
        heading("Timers and delayed messages")
        plain_table(
            _WAITING,
            [{"kind": row.kind, "of": row.of, "broker": row.broker, "count": row.count} for row in seen.value.waiting],
            "Timers and delayed messages",
        )
        heading("Half messages: transactions that nobody has ended")
        now_ms = time.time_ns() // 1_000_000
        halves = seen.value.halves
        if seen.value.is_cut or len(halves) > HALVES_SHOWN_MAX:
            ui.label(f"the oldest {number(min(len(halves), HALVES_SHOWN_MAX))}; there are more")
        plain_table(
            _HALVES,
            [
                {
                    "topic": half.topic,
                    "id": half.message_id,
                    "age": age(now_ms - half.born_time_ms),
                    "born": moment(half.born_time_ms),
                    "group": half.producer_group,
                    "checked": half.checked,
                    "broker": half.broker,
                }
                for half in halves[:HALVES_SHOWN_MAX]
            ],
            "Half messages",
        )


def age(span_ms: int) -> str:
    seconds = max(0, span_ms) // 1000
    for unit, length in (("days", 86_400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length} {unit}"
    return f"{seconds} seconds"
