"""Topics: the list, and the page of one topic with everything that can be done to it."""

from __future__ import annotations

from nicegui import ui

from contrailmq.console.model.console_model import ConsoleModel
from contrailmq.console.model.topics import TopicDetail, TopicKind
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
from contrailmq.console.pages.words import moment, number, per_second, permission, release
from contrailmq.message import ContrailError

_LIST = [
    column("name", "Topic"),
    column("kind", "Type"),
    column("queues", "Queues read/write", is_number=True),
    column("permission", "Permission"),
    column("brokers", "Brokers"),
    column("rate", "In, last minute", is_number=True),
]
_KINDS = {"": "those of people", **{str(kind): str(kind) for kind in TopicKind}}
_MADE = [str(kind) for kind in (TopicKind.NORMAL, TopicKind.FIFO, TopicKind.DELAY, TopicKind.TRANSACTION)]
_PERMISSIONS = {6: "read and write", 4: "read", 2: "write", 0: "none"}


class TopicsPage:
    def __init__(self, model: ConsoleModel) -> None:
        self._model = model

    async def build(self) -> None:
        self._notes = ui.column().classes("full-width")
        with ui.row().classes("items-center full-width"):
            self._search = ui.input("Search", on_change=self._changed).props("dense clearable debounce=300 type=search")
            self._kind = (
                ui.select(_KINDS, value="", label="Type", on_change=self._changed)
                .props("dense")
                .style("min-width: 9rem")
            )
            ui.space()
            if not self._model.is_read_only:
                ui.button("Create topic", icon="add", on_click=self._create)
        self._table = PagedTable(_LIST, self._load, "Topics", links={"name": "/topic?name="})
        await asked(self._table.show(1))

    async def _changed(self) -> None:
        try:
            await self._table.show(1)
        except ContrailError as exc:
            fail(str(exc))

    async def _load(self, page: int, rows: int) -> tuple[list[Row], int]:
        topics = self._model.topics
        seen = await topics.page(search=self._search.value or "", kind=self._kind.value or "", number=page, size=rows)
        self._notes.clear()
        with self._notes:
            show_notes(seen.notes)
        rates = await topics.put_rates([row.name for row in seen.value.rows])
        return [
            {
                "name": row.name,
                "kind": row.kind + (", in order" if row.is_ordered else ""),
                "queues": f"{row.read_queues}/{row.write_queues}",
                "permission": permission(row.permission),
                "brokers": ", ".join(row.brokers),
                "rate": per_second(rates[row.name]),
            }
            for row in seen.value.rows
        ], seen.value.row_count

    async def _create(self) -> None:
        with ui.dialog() as dialog, ui.card().style("min-width: 18rem").props('aria-label="Create a topic"'):
            ui.label("Create a topic").classes("text-h6")
            name = ui.input("Name").props("autofocus").classes("full-width")
            queues = ui.number("Queues on each broker", value=8, min=1, max=1024, format="%d").classes("full-width")
            kind = ui.select(_MADE, value=_MADE[0], label="Type").classes("full-width")
            ordered = ui.checkbox("Order topic (known to the NameServer)")

            async def create() -> None:
                work = self._model.topics.create(
                    (name.value or "").strip(),
                    queues=int(queues.value or 0),
                    permission=6,
                    kind=kind.value,
                    is_ordered=ordered.value,
                )
                if await act(work, f"topic {name.value} is created"):
                    dialog.close()
                    await self._changed()

            buttons(dialog, "Create", create)
        dialog.open()


class TopicPage:
    """One topic."""

    def __init__(self, model: ConsoleModel, name: str) -> None:
        self._model = model
        self._name = name

    async def build(self) -> None:
        seen = await asked(self._model.topics.detail(self._name))
        if seen is None:
            return
        show_notes(seen.notes)
        detail = seen.value
        with ui.row().classes("items-center full-width"):
            ui.label(
                f"{detail.row.kind}, {permission(detail.row.permission)}, {number(detail.message_count)} messages, "
                f"{per_second(detail.put_per_s)} in"
            )
            ui.space()
            if not self._model.is_read_only:
                ui.button("Send a test message", icon="send", on_click=self._send)
                ui.button("Change", icon="edit", on_click=lambda: self._change(detail)).props("outline")
                ui.button("Delete", icon="delete", on_click=self._delete).props("outline color=negative")
        self._show_queues(detail)
        self._show_clients(detail)

    def _show_queues(self, detail: TopicDetail) -> None:
        heading("Routes")
        plain_table(
            [
                column("broker", "Broker"),
                column("read", "Read queues", is_number=True),
                column("write", "Write queues", is_number=True),
                column("permission", "Permission"),
                column("attributes", "Attributes"),
            ],
            [
                {
                    "broker": name,
                    "read": config.read_queue_nums,
                    "write": config.write_queue_nums,
                    "permission": permission(config.perm),
                    "attributes": ", ".join(f"{key}={value}" for key, value in sorted(config.attributes.items())),
                }
                for name, config in sorted(detail.configs.items())
            ],
            "Routes",
        )
        heading("Queues")
        plain_table(
            [
                column("broker", "Broker"),
                column("queue", "Queue", is_number=True),
                column("min", "First offset", is_number=True),
                column("max", "Next offset", is_number=True),
                column("last", "Last written"),
            ],
            [
                {
                    "broker": queue.broker_name,
                    "queue": queue.queue_id,
                    "min": item.min_offset,
                    "max": item.max_offset,
                    "last": moment(item.last_update_timestamp),
                }
                for queue, item in list(detail.queues.items())[:256]
            ],
            "Queues",
        )

    def _show_clients(self, detail: TopicDetail) -> None:
        heading("Consumed by")
        plain_table(
            [column("group", "Group")],
            [{"group": group} for group in detail.groups[:200]],
            "Groups that consume it",
            links={"group": "/group?name="},
        )
        heading("Producers connected to its brokers")
        plain_table(
            [
                column("group", "Producer group"),
                column("client", "Client"),
                column("language", "Language"),
                column("version", "Version"),
            ],
            [
                {"group": row.group, "client": row.client_id, "language": row.language, "version": release(row.version)}
                for row in detail.producers[:200]
            ],
            "Producers",
        )

    async def _send(self) -> None:
        with (
            ui.dialog() as dialog,
            ui.card()
            .style("min-width: 18rem; width: 32rem; max-width: 96vw")
            .props('aria-label="Send a test message"'),
        ):
            ui.label("Send a test message").classes("text-h6")
            body = ui.textarea("Body").props("autofocus").classes("full-width")
            tags = ui.input("Tag").classes("full-width")
            keys = ui.input("Keys, with spaces between them").classes("full-width")

            async def send() -> None:
                work = self._model.topics.send(
                    self._name, (body.value or "").encode(), tags=(tags.value or "").strip(), keys=keys.value or ""
                )
                sent = await act(
                    work,
                    lambda result: (
                        f"{result.status.value}: {result.message_id}, queue {result.queue.queue_id} of "
                        f"{result.queue.broker_name}, offset {result.queue_offset}"
                    ),
                )
                if sent:
                    dialog.close()

            buttons(dialog, "Send", send)
        dialog.open()

    async def _change(self, detail: TopicDetail) -> None:
        first = next(iter(detail.configs.values()))
        with ui.dialog() as dialog, ui.card().style("min-width: 18rem").props('aria-label="Change the topic"'):
            ui.label("Change the topic").classes("text-h6")
            read = ui.number("Read queues on each broker", value=first.read_queue_nums, min=1, format="%d").classes(
                "full-width"
            )
            write = ui.number("Write queues on each broker", value=first.write_queue_nums, min=0, format="%d").classes(
                "full-width"
            )
            allowed = ui.select(_PERMISSIONS, value=first.perm & 6, label="Permission").classes("full-width")

            async def change() -> None:
                count = int(read.value or 0)
                try:
                    lost = await self._model.topics.unreachable(self._name, count)
                except ContrailError as exc:
                    fail(str(exc))
                    return
                question = (
                    f"{lost} messages that not every group has consumed cannot be read with {count} read queues, until "
                    "there are as many again. Change it all the same?"
                )
                if lost and not await confirmed(question, "Change"):
                    return
                work = self._model.topics.change(
                    self._name, read_queues=count, write_queues=int(write.value or 0), permission=int(allowed.value)
                )
                if await act(work, f"topic {self._name} is changed"):
                    dialog.close()
                    ui.navigate.reload()

            buttons(dialog, "Change", change)
        dialog.open()

    async def _delete(self) -> None:
        try:
            count = (await self._model.topics.detail(self._name)).value.message_count  # it may have more since then
        except ContrailError as exc:
            fail(str(exc))
            return
        question = f"Delete topic {self._name} with {number(count)} messages, everywhere?"
        if not await confirmed(question, "Delete"):
            return
        if await act(self._model.topics.delete(self._name), f"topic {self._name} is deleted"):
            ui.navigate.to("/topics")
