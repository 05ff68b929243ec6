"""Consumer groups: the list, and the page of one group: lag, members, subscriptions, offsets."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from contrailmq.client.admin.admin_offsets import OffsetPlan, place_text
from contrailmq.client.admin.times import FORMS
from contrailmq.console.model.console_model import ConsoleModel
from contrailmq.console.model.groups import GroupDetail
from contrailmq.console.model.messages import read_time
from contrailmq.console.pages.overview import chart, draw
from contrailmq.console.pages.parts import (
    PagedTable,
    Row,
    act,
    asked,
    buttons,
    column,
    confirmed,
    fail,
    heading,
    plain_table,
    show_notes,
)
from contrailmq.console.pages.words import moment, number, release
from contrailmq.message import ContrailError

QUEUES_SHOWN_MAX = 512
_LIST = [
    column("name", "Group"),
    column("lag", "Lag", is_number=True),
    column("members", "Members", is_number=True),
    column("topics", "Topics", is_number=True),
    column("model", "Model"),
    column("brokers", "Brokers"),
]
_QUEUES = [
    column("topic", "Topic"),
    column("broker", "Broker"),
    column("queue", "Queue", is_number=True),
    column("consumed", "Consumed up to", is_number=True),
    column("end", "Queue's end", is_number=True),
    column("lag", "Lag", is_number=True),
    column("last", "Last consumed was stored"),
]
_MEMBERS = [
    column("client", "Member"),
    column("address", "Address"),
    column("language", "Language"),
    column("version", "Version"),
    column("subscriptions", "Subscriptions"),
    column("odd", "Agrees"),
]
_MOVES = [
    column("queue", "Queue"),
    column("now", "Now", is_number=True),
    column("target", "Then", is_number=True),
    column("again", "Again", is_number=True),
    column("skipped", "Skipped", is_number=True),
]


class GroupsPage:
    def __init__(self, model: ConsoleModel) -> None:
        self._model = model

    async def build(self) -> None:
        self._notes = ui.column().classes("full-width")
        with ui.row().classes("items-center full-width"):
            self._search = ui.input("Search", on_change=self._changed).props("dense clearable debounce=300 type=search")
            self._system = ui.checkbox("Those of the system too", on_change=self._changed)
            ui.space()
            if not self._model.is_read_only:
                ui.button("Create group", icon="add", on_click=self._create)
        self._table = PagedTable(_LIST, self._load, "Groups", links={"name": "/group?name="})
        await asked(self._table.show(1))

    async def _changed(self) -> None:
        try:
            await self._table.show(1)
        except ContrailError as exc:
            fail(str(exc))

    async def _load(self, page: int, rows: int) -> tuple[list[Row], int]:
        seen = await self._model.groups.page(
            search=self._search.value or "", with_system=bool(self._system.value), number=page, size=rows
        )
        self._notes.clear()
        with self._notes:
            show_notes(seen.notes)
        return [
            {
                "name": row.name,
                "lag": "none consumed" if row.lag is None else number(row.lag),
                "members": row.member_count,
                "topics": row.topic_count,
                "model": row.model,
                "brokers": ", ".join(row.brokers),
            }
            for row in seen.value.rows
        ], seen.value.row_count

    async def _create(self) -> None:
        with ui.dialog() as dialog, ui.card().style("min-width: 18rem").props('aria-label="Create a group"'):
            ui.label("Create a group").classes("text-h6")
            name = ui.input("Name").props("autofocus").classes("full-width")
            retries = ui.number("Tries before a message is a dead letter", value=16, min=0, format="%d").classes(
                "full-width"
            )
            ordered = ui.checkbox("Consumes in order")

            async def create() -> None:
                work = self._model.groups.create(
                    (name.value or "").strip(), retries=int(retries.value or 0), is_ordered=ordered.value
                )
                if await act(work, f"group {name.value} is created"):
                    dialog.close()
                    await self._changed()

            buttons(dialog, "Create", create)
        dialog.open()


class GroupPage:
    """One group."""

    def __init__(self, model: ConsoleModel, name: str) -> None:
        self._model = model
        self._name = name

    async def build(self) -> None:
        seen = await asked(self._model.groups.detail(self._name))
        if seen is None:
            return
        show_notes(seen.notes)
        detail = seen.value
        if detail.is_inconsistent:
            show_notes(["Members of this group subscribe to different things: some messages will not be consumed."])
        with ui.row().classes("items-center full-width"):
            ui.label(
                f"lag {number(detail.lag)}, {len(detail.members)} members, {number(detail.retry_count)} in retry, "
                f"{number(detail.dead_letter_count)} dead letters"
            )
            ui.space()
            if not self._model.is_read_only:
                self._show_actions(detail)
        lag = self._model.sampler.lag.get(self._name)
        if lag is not None:
            draw(chart("Lag, last hour", ("lag",)), (lag,))
        self._show_tables(detail)

    def _show_actions(self, detail: GroupDetail) -> None:
        ui.button("Reset offsets", icon="history", on_click=lambda: ResetDialog(self._model, detail).open())
        ui.button("Skip backlog", icon="skip_next", on_click=lambda: self._skip(detail)).props("outline")
        ui.button("Delete", icon="delete", on_click=self._delete).props("outline color=negative")

    def _show_tables(self, detail: GroupDetail) -> None:
        heading("Lag by queue")
        plain_table(
            _QUEUES,
            [
                {
                    "topic": row.queue.topic,
                    "broker": row.queue.broker_name,
                    "queue": row.queue.queue_id,
                    "consumed": row.consumer_offset,
                    "end": row.broker_offset,
                    "lag": row.lag,
                    "last": moment(row.last_time_ms),
                }
                for row in detail.progress[:QUEUES_SHOWN_MAX]
            ],
            "Lag by queue",
            links={"topic": "/topic?name="},
        )
        heading("Members")
        plain_table(
            _MEMBERS,
            [
                {
                    "client": member.client_id,
                    "address": member.address,
                    "language": member.language,
                    "version": release(member.version),
                    "subscriptions": "not said"
                    if member.subscriptions is None
                    else ", ".join(f"{topic}: {text}" for topic, text in sorted(member.subscriptions.items())),
                    "odd": "differs" if member.is_odd else "yes",
                }
                for member in detail.members
            ],
            "Members",
        )

    async def _skip(self, detail: GroupDetail) -> None:
        previews: list[OffsetPlan] = []
        try:
            for topic in detail.topics:
                previews.append(await self._model.groups.preview_skip(self._name, topic))  # noqa: PERF401
        except ContrailError as exc:
            fail(str(exc))
            return
        count = sum(move.skipped for preview in previews for move in preview.moves)
        if not await confirmed(
            f"Skip {number(count)} messages that wait for {self._name}? It will never get them.", "Skip"
        ):
            return
        for preview in previews:
            if not await act(self._model.groups.apply(preview), f"{preview.topic}: the backlog is skipped"):
                return
        ui.navigate.reload()

    async def _delete(self) -> None:
        question = f"Delete group {self._name} with its offsets? When it comes back it begins anew."
        if not await confirmed(question, "Delete"):
            return
        if await act(self._model.groups.delete(self._name), f"group {self._name} is deleted"):
            ui.navigate.to("/groups")


class ResetDialog:
    """Choose where a group goes on, see what that means, then do it."""

    def __init__(self, model: ConsoleModel, detail: GroupDetail) -> None:
        self._model = model
        self._detail = detail
        self._preview: OffsetPlan | None = None

    def open(self) -> None:
        detail = self._detail
        queues = [place_text(row.queue) for row in detail.progress]
        with (
            ui.dialog() as self._dialog,
            ui.card().style("width: 40rem; max-width: 96vw").props('aria-label="Reset offsets"'),
        ):
            ui.label("Reset offsets").classes("text-h6")
            self._topic = ui.select(detail.topics, value=next(iter(detail.topics), None), label="Topic").classes(
                "full-width"
            )
            self._how = ui.radio({"time": "to a time", "offset": "to an offset"}, value="time").props("inline")
            self._time = ui.input("Time", value="-1h").props(f'hint="{FORMS}"').classes("full-width")
            self._offset = ui.number("Offset", value=0, min=0, format="%d").classes("full-width")
            choices = {"": "all queues", **{text: text for text in dict.fromkeys(queues)}}
            self._queue = ui.select(choices, value="", label="Queue (for an offset)").classes("full-width")
            self._shown = ui.column().classes("full-width").props("aria-live=polite")
            with ui.row().classes("justify-end full-width"):
                ui.button("Cancel", on_click=self._dialog.close).props("flat")
                ui.button("Preview", on_click=self._look).props("outline")
                self._do = ui.button("Reset", on_click=self._reset).props("color=negative")
                self._do.disable()
        for field in (self._topic, self._how, self._time, self._offset, self._queue):
            field.on_value_change(self._changed)
        self._dialog.open()

    def _changed(self, _: Any) -> None:
        """What was shown is no longer what would be done."""
        self._preview = None
        self._shown.clear()
        self._do.disable()

    async def _look(self) -> None:
        groups, topic = self._model.groups, self._topic.value or ""
        try:
            if self._how.value == "time":
                time_ms = read_time(self._time.value or "")
                self._preview = await groups.preview(self._detail.name, topic, time_ms=time_ms)
            else:
                self._preview = await groups.preview_offset(
                    self._detail.name, topic, offset=int(self._offset.value or 0), queue=self._queue.value or ""
                )
        except ContrailError as exc:
            fail(str(exc))
            return
        self._shown.clear()
        with self._shown:
            ui.label(self._preview.sentence).classes("text-weight-medium console-break")
            plain_table(
                _MOVES,
                [
                    {
                        "queue": place_text(move.queue),
                        "now": "none" if move.now < 0 else move.now,
                        "target": move.target,
                        "again": move.again,
                        "skipped": move.skipped,
                    }
                    for move in self._preview.moves[:QUEUES_SHOWN_MAX]
                ],
                "What the reset does",
            )
        self._do.enable()

    async def _reset(self) -> None:
        if self._preview is not None and await act(self._model.groups.apply(self._preview), "the offsets are reset"):
            self._dialog.close()
            ui.navigate.reload()
