"""Dead letters: which groups have some; a group's letters to look at, send back and export."""

from __future__ import annotations

from urllib.parse import quote

from nicegui import ui

from contrailmq.console.model.console_model import ConsoleModel
from contrailmq.console.model.messages import MessageRow
from contrailmq.console.pages.messages import COLUMNS, PLACE, fields_of
from contrailmq.console.pages.parts import PagedTable, Row, asked, column, confirmed, fail, plain_table, show_notes
from contrailmq.console.pages.words import number
from contrailmq.message import ContrailError

_COLUMNS = [COLUMNS[0], column("topic", "Topic"), *COLUMNS[1:]]


class LetterGroupsPage:
    def __init__(self, model: ConsoleModel) -> None:
        self._model = model

    async def build(self) -> None:
        seen = await asked(self._model.letters.groups())
        if seen is None:
            return
        show_notes(seen.notes)
        plain_table(
            [column("group", "Group"), column("count", "Dead letters", is_number=True)],
            [{"group": group.name, "count": group.count} for group in seen.value],
            "Groups with dead letters",
            links={"group": "/letters?group="},
        )


class LettersPage:
    """One group's."""

    def __init__(self, model: ConsoleModel, group: str, *, has_parquet: bool) -> None:
        self._model = model
        self._group = group
        self._has_parquet = has_parquet
        self._shown: list[MessageRow] = []

    async def build(self) -> None:
        encoded = quote(self._group, safe="")
        with ui.row().classes("items-center full-width"):
            if not self._model.is_read_only:
                ui.button("Resend selected", icon="replay", on_click=self._resend_selected)
                ui.button("Resend all", icon="all_inbox", on_click=self._resend_all).props("outline")
            ui.space()
            ui.link("Export as JSON lines", f"/export/letters?group={encoded}&form=jsonl").classes("console-link")
            if self._has_parquet:
                ui.link("Export as Parquet", f"/export/letters?group={encoded}&form=parquet").classes("console-link")
        self._bar = ui.linear_progress(0.0, show_value=False).props('aria-label="Progress of the resend"')
        self._bar.set_visibility(False)
        self._said = ui.label("").props("role=status")
        self._table = PagedTable(_COLUMNS, self._load, "Dead letters", selection="multiple")
        self._table.table.add_slot("body-cell-place", PLACE)
        await asked(self._table.show(1))

    async def _load(self, page: int, rows: int) -> tuple[list[Row], int]:
        cut = await self._model.letters.page(self._group, number=page, size=rows)
        self._shown = cut.rows
        self._table.table.selected.clear()
        return [fields_of(row) for row in cut.rows], cut.row_count

    async def _resend_selected(self) -> None:
        chosen = [self._shown[row["_key"]] for row in self._table.table.selected]
        if not chosen:
            fail("select letters first: the boxes at the left")
            return
        await self._resend(chosen)

    async def _resend_all(self) -> None:
        question = f"Send every dead letter of {self._group} to it again? Those that went back before are left out."
        if await confirmed(question, "Resend all"):
            await self._resend(None)

    async def _resend(self, rows: list[MessageRow] | None) -> None:
        self._bar.set_visibility(True)
        try:
            async for at in self._model.letters.resend(self._group, rows):
                self._bar.value = 1.0 if at.is_done else min(1.0, (at.sent + at.sent_before) / max(at.total, 1))
                self._said.text = (
                    f"{number(at.sent)} sent to {self._group} again, {number(at.sent_before)} had gone back before"
                )
            await self._table.show()
        except ContrailError as exc:
            fail(str(exc))
        finally:
            self._bar.set_visibility(False)
