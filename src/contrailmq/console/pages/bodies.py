"""The body of a message: by its schema, as JSON, text and hex. A schema file may be given here."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from contrailmq.console.model.body_decoder import KINDS, DecodedBody
from contrailmq.console.model.console_model import ConsoleModel
from contrailmq.console.model.messages import MessageDetail
from contrailmq.console.model.schemas import SCHEMA_BYTES_MAX, check_file
from contrailmq.console.pages.parts import fail, heading, plain_text, show_notes
from contrailmq.console.pages.words import number
from contrailmq.message import ContrailError


class BodyPart:
    """Of one message. What does not fit its schema is a note beside the other views."""

    def __init__(self, model: ConsoleModel, detail: MessageDetail) -> None:
        self._schemas = model.schemas
        self._topic = detail.body_topic
        self._detail = detail

    async def build(self) -> None:
        view = self._detail.body
        heading(f"Body, {number(view.size_bytes)} bytes" + (", the first 64 KiB" if view.is_cut else ""))
        self._shown = ui.column().classes("full-width q-gutter-y-sm").props("aria-live=polite")
        endings = ",".join(KINDS)
        self._upload = ui.upload(on_upload=self._given, max_file_size=SCHEMA_BYTES_MAX, auto_upload=True)
        self._upload.props(f'accept="{endings}"').style("display: none")  # it has no name: the button has
        self._upload.on("rejected", lambda: fail(f"a schema is one of {endings}, with at most 1 MiB"), args=[])
        button = ui.button("Give a schema file", icon="schema").props("outline")
        button.on("click", js_handler=f"() => getElement({self._upload.id}).$refs.qRef.pickFiles()")
        await self._show()

    async def _show(self) -> None:
        found, name = None, ""
        try:
            schema = self._schemas.of(self._topic)
            found = await self._schemas.decoded(schema, self._detail.raw_body)
            name = schema.name if schema else ""
        except ContrailError as exc:
            found = DecodedBody(fault=str(exc))
        self._shown.clear()
        with self._shown:
            if found is not None:
                self._show_schema(found, name)
            self._show_tabs(found)

    def _show_schema(self, found: DecodedBody, name: str) -> None:
        """What it was read by, and for Protobuf the choice of the message."""
        if found.messages:
            ui.select(
                found.messages,
                value=found.message if found.message in found.messages else None,
                label=f"Message of {name}",
                on_change=self._chosen,
            ).style("min-width: 14rem")
        if found.fault:
            show_notes([f"{name}: {found.fault}" if name else found.fault])
        else:
            said = ", ".join(part for part in (name, found.remark) if part)
            ui.label(f"{found.kind}: {said}").classes("console-break text-caption")

    def _show_tabs(self, found: DecodedBody | None) -> None:
        view = self._detail.body
        texts = {"JSON": view.json_text, "Text": view.text, "Hex": view.hex_text}
        first = "JSON" if view.json_text else "Text" if view.is_text else "Hex"
        if found is not None and not found.fault:
            first = found.kind
            texts = {found.kind: found.text} | texts
        if not view.json_text:
            del texts["JSON"]
        with ui.tabs().props('align=left dense aria-label="How the body is shown"') as tabs:
            for name in texts:
                ui.tab(name)
        with ui.tab_panels(tabs, value=first).classes("full-width"):
            for name, text in texts.items():
                with ui.tab_panel(name).classes("q-pa-sm"):
                    plain_text(text)

    async def _given(self, event: Any) -> None:
        self._upload.reset()
        try:
            check_file(event.file.name, event.file.size())  # before it is read: not every browser asks first
            self._schemas.give(self._topic, event.file.name, await event.file.read())
        except ContrailError as exc:
            fail(str(exc))
            return
        await self._show()

    async def _chosen(self, event: Any) -> None:
        self._schemas.choose(self._topic, event.value)
        await self._show()
