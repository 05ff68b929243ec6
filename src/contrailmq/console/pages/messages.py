"""Messages: search, and the page of one message: body, properties, trace, where each group stands."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from nicegui import ui

from contrailmq.client.admin.admin_offsets import place_text
from contrailmq.client.admin.times import FORMS
from contrailmq.console.model.asking import Seen
from contrailmq.console.model.console_model import ConsoleModel
from contrailmq.console.model.messages import Found, MessageDetail, MessageRow, read_time
from contrailmq.console.model.paging import paged
from contrailmq.console.pages.bodies import BodyPart
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
from contrailmq.console.pages.words import moment, number, size
from contrailmq.message import ContrailError, MessageQueue

COLUMNS = [
    column("place", "Message"),
    column("time", "Stored"),
    column("tags", "Tag"),
    column("keys", "Keys"),
    column("queue", "Queue"),
    column("offset", "Offset", is_number=True),
    column("size", "Size", is_number=True),
]
_WAYS = {"time": "time", "key": "key", "id": "id", "offset": "queue offset"}


class MessagesPage:
    """The fields of one way to search at a time; found rows are paged here, without bodies."""

    def __init__(self, model: ConsoleModel) -> None:
        self._model = model
        self._rows: list[MessageRow] = []

    async def build(self, topic: str = "") -> None:
        topics = await asked(self._model.topics.all())
        names = [row.name for row in topics.value] if topics else []
        with ui.row().classes("items-end full-width"):
            self._topic = ui.input("Topic", value=topic, autocomplete=names[:2000]).style("min-width: 12rem")
            self._way = ui.select(_WAYS, value="time", label="Search by", on_change=self._fields).style(
                "min-width: 8rem"
            )
            self._span = ui.row().classes("items-end")
            with self._span:
                self._begin = ui.input("From", value="-1h").props(f'title="{FORMS}"')
                self._end = ui.input("To", value="now").props(f'title="{FORMS}"')
            self._text = ui.input("Key or id")
            self._place = ui.row().classes("items-end")
            with self._place:
                self._queue = ui.input("Queue", placeholder="broker:0")
                self._offset = ui.number("Offset", value=0, min=0, format="%d")
            ui.button("Search", icon="search", on_click=self._search)
        for field in (self._topic, self._begin, self._end, self._text, self._queue):
            field.on("keydown.enter", self._search)
        self._fields()
        self._said = ui.column().classes("full-width").props("aria-live=polite")
        self._table = PagedTable(COLUMNS, self._load, "Messages found")
        self._table.table.add_slot("body-cell-place", PLACE)
        if topic:
            await self._search()

    def _fields(self) -> None:
        way = self._way.value
        self._span.set_visibility(way == "time")
        self._text.set_visibility(way in ("key", "id"))
        self._place.set_visibility(way == "offset")

    async def _search(self) -> None:
        try:
            seen = await self._find()
        except ContrailError as exc:
            fail(str(exc))
            return
        self._rows = seen.value.rows
        self._said.clear()
        with self._said:
            show_notes(seen.notes)
            if seen.value.is_cut:
                ui.label(
                    f"the newest {len(self._rows)} of about {number(seen.value.about_count)}: choose a shorter time"
                )
            else:
                ui.label(f"{len(self._rows)} found")
        await self._table.show(1)

    async def _find(self) -> Seen[Found]:
        messages, topic = self._model.messages, (self._topic.value or "").strip()
        way, text = self._way.value, self._text.value or ""
        if way == "key":
            return await messages.by_key(topic, text)
        if way == "id":
            return await messages.by_id(topic, text)
        if way == "offset":
            queues = {place_text(queue): queue for queue in await messages.queues(topic)}
            said = (self._queue.value or "").strip() or next(iter(queues), "")
            if said not in queues:
                raise ContrailError(f"topic {topic} has no queue {said!r}: it has {', '.join(queues) or 'none'}")
            return await messages.by_offset(topic, queues[said], int(self._offset.value or 0))
        begin_ms, end_ms = read_time(self._begin.value or ""), read_time(self._end.value or "")
        return await messages.by_time(topic, begin_ms=begin_ms, end_ms=end_ms)

    async def _load(self, page: int, rows: int) -> tuple[list[Row], int]:
        cut = paged(self._rows, number=page, size=rows)
        return [fields_of(row) for row in cut.rows], cut.row_count


# Leads to the message's page; `link` is made of encoded parts.
PLACE = """
<q-td :props="props"><a class="console-link console-break" :href="props.row.link">{{ props.value }}</a></q-td>
"""


def fields_of(row: MessageRow) -> Row:
    queue = row.queue
    link = (
        f"/message?topic={quote(queue.topic, safe='')}&broker={quote(queue.broker_name, safe='')}"
        f"&queue={queue.queue_id}&offset={row.queue_offset}"
    )
    return {
        "place": row.message_id,
        "link": link,
        "topic": row.sent_to,
        "time": moment(row.store_time_ms),
        "tags": row.tags,
        "keys": row.keys,
        "queue": place_text(queue),
        "offset": row.queue_offset,
        "size": size(row.size_bytes),
    }


class MessagePage:
    def __init__(self, model: ConsoleModel, queue: MessageQueue, offset: int) -> None:
        self._model = model
        self._queue = queue
        self._offset = offset

    async def build(self) -> None:
        detail = await asked(self._model.messages.detail(self._queue, self._offset))
        if detail is None:
            return
        with ui.row().classes("items-center full-width"):
            ui.label(
                f"{detail.topic}, queue {detail.row.queue.queue_id} of {detail.row.queue.broker_name}, offset "
                f"{detail.row.queue_offset}, stored {moment(detail.row.store_time_ms)}"
            ).classes("console-break")
            ui.space()
            if not self._model.is_read_only:
                ui.button("Send again", icon="replay", on_click=lambda: self._resend(detail))
                ui.button("Give to a member", icon="move_to_inbox", on_click=lambda: self._give(detail)).props(
                    "outline"
                )
        await BodyPart(self._model, detail).build()
        heading("Properties")
        more = {
            "born": f"{moment(detail.born_time_ms)} at {detail.born_host}",
            "store host": detail.store_host,
            "offset message id": detail.offset_message_id,
            "tried again": str(detail.row.reconsume_times),
        }
        rows = [{"name": name, "value": value} for name, value in (more | detail.properties).items()]
        plain_table([column("name", "Name"), column("value", "Value")], rows, "Properties")
        await self._show_standings(detail)
        await self._show_trace(detail)

    async def _show_standings(self, detail: MessageDetail) -> None:
        heading("Where the groups stand")
        seen = await asked(self._model.messages.standings(detail.row.queue, detail.row.queue_offset))
        if seen is None:
            return
        show_notes(seen.notes)
        rows = [
            {"group": item.group, "where": item.text, "offset": "" if item.offset < 0 else item.offset}
            for item in seen.value
        ]
        plain_table(
            [column("group", "Group"), column("where", "It"), column("offset", "Its offset", is_number=True)],
            rows,
            "Where the groups stand",
            links={"group": "/group?name="},
        )

    async def _show_trace(self, detail: MessageDetail) -> None:
        heading("Trace")
        try:
            steps = await self._model.messages.trace(detail.row.message_id)
        except ContrailError as exc:
            ui.label(f"The trace cannot be read: {exc}").classes("console-break")
            return
        if not steps:
            ui.label("Nobody traced it: producers and consumers do when trace=True is set (Java: enableMsgTrace).")
            return
        with ui.timeline(side="right"):
            for step in steps:
                ui.timeline_entry(
                    step.text,
                    title=f"{step.what}: {step.group}",
                    subtitle=moment(step.time_ms),
                    color="positive" if step.is_good else "negative",
                )

    async def _resend(self, detail: MessageDetail) -> None:
        question = f"Send a copy to {detail.topic}? Every group that consumes it will get it."
        if await confirmed(question, "Send"):
            await act(
                self._model.messages.resend(detail.message),
                lambda result: f"{result.status.value}: {result.message_id}, offset {result.queue_offset}",
            )

    async def _give(self, detail: MessageDetail) -> None:
        with ui.dialog() as dialog, ui.card().style("min-width: 18rem").props('aria-label="Give it to a member"'):
            ui.label("Let one running member consume it now").classes("text-h6")
            group = ui.input("Group").props("autofocus").classes("full-width")

            async def give() -> None:
                async def work() -> Any:
                    name = (group.value or "").strip()
                    seen = await self._model.groups.detail(name)
                    if not seen.value.members:
                        raise ContrailError(f"group {name} has no member online: start one")
                    client_id = seen.value.members[0].client_id
                    return await self._model.messages.consume(name, client_id, detail.message)

                done = await act(work(), lambda result: f"{result.consume_result} in {result.spent_time_mills} ms")
                if done:
                    dialog.close()

            buttons(dialog, "Give", give)
        dialog.open()
