"""The data pipeline: archives on this machine and how far they are, and commands that are ready to run."""

from __future__ import annotations

import asyncio

from nicegui import ui

from contrailmq.console.model.console_model import ConsoleModel
from contrailmq.console.model.pipeline import ready_commands
from contrailmq.console.pages.parts import column, heading, plain_table, plain_text, show_notes
from contrailmq.console.pages.words import number

SOURCES_SHOWN_MAX = 200


class PipelinePage:
    def __init__(self, model: ConsoleModel) -> None:
        self._model = model

    async def build(self) -> None:
        await self._show_archives()
        heading("Commands")
        with ui.row().classes("items-end full-width"):
            self._topics = ui.input("Topics, with commas between").style("min-width: 14rem")
            self._archive = ui.input("Directory of the archive", value="archive")
            self._group = ui.input("Group with dead letters")
            ui.button("Write commands", icon="terminal", on_click=self._write)
        self._shown = ui.column().classes("full-width").props("aria-live=polite")
        self._write()

    async def _show_archives(self) -> None:
        heading("Archives")
        if self._model.read_archives is None:
            ui.label("None are named: start the console with --archive DIR to see how far an archive is.")
            return
        archives = await asyncio.to_thread(self._model.read_archives)
        show_notes([f"{facts.directory}: {facts.fault}" for facts in archives if facts.fault])
        plain_table(
            [
                column("directory", "Archive"),
                column("rows", "Messages", is_number=True),
                column("files", "Files", is_number=True),
                column("commits", "Commits", is_number=True),
            ],
            [
                {
                    "directory": facts.directory,
                    "rows": number(facts.rows),
                    "files": number(facts.files),
                    "commits": number(facts.commits),
                }
                for facts in archives
                if not facts.fault
            ],
            "Archives",
        )
        sources = [(facts.directory, *item) for facts in archives for item in sorted((facts.offsets or {}).items())]
        plain_table(
            [column("archive", "Archive"), column("source", "Source"), column("next", "Next offset", is_number=True)],
            [
                {"archive": archive, "source": source, "next": offset}
                for archive, source, offset in sources[:SOURCES_SHOWN_MAX]
            ],
            "Newest offsets",
        )

    def _write(self) -> None:
        topics = [part.strip() for part in (self._topics.value or "").split(",") if part.strip()]
        commands = ready_commands(
            self._model.namesrv,
            topics=topics,
            archive=(self._archive.value or "").strip(),
            group=(self._group.value or "").strip(),
        )
        self._shown.clear()
        with self._shown:
            if not topics:
                ui.label("Name topics to get the commands that archive them.")
            for command in commands:
                ui.label(command.what).classes("text-caption")
                plain_text(command.line)
