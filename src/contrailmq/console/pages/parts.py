"""What pages are made of: notes and errors, tables that are paged on the server, questions, actions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar

from nicegui import ui

from contrailmq.console.model.paging import ROWS
from contrailmq.message import ContrailError

T = TypeVar("T")

Row = dict[str, Any]
# A cell that leads to the page of what it names. The name is data: it is encoded here, and Vue escapes what it shows.
LINK: Final = """
<q-td :props="props"><a class="console-link" :href="'%s' + encodeURIComponent(props.value)">{{ props.value }}</a></q-td>
"""


SELECT: Final = '<q-checkbox dense v-model="props.selected" :aria-label="%s"></q-checkbox>'  # a box with a name


def column(name: str, label: str, *, is_number: bool = False) -> Row:
    return {"name": name, "label": label, "field": name, "align": "right" if is_number else "left"}


def show_notes(notes: Iterable[str]) -> None:
    """What could not be asked, beside what could."""
    for note in notes:
        with ui.row().classes("console-note items-center no-wrap").props("role=status"):
            ui.icon("warning", color="warning").props("aria-hidden=true")
            ui.label(note).classes("console-break")


def show_error(text: str) -> None:
    with ui.row().classes("console-note console-error items-center no-wrap").props("role=alert"):
        ui.icon("error", color="negative").props("aria-hidden=true")
        ui.label(text).classes("console-break")


def heading(text: str) -> None:
    ui.label(text).classes("text-h6").props("role=heading aria-level=2")


def plain_text(text: str) -> None:
    """As it is, in lines: a label's text is never HTML."""
    ui.label(text).classes("console-plain").props("tabindex=0")


async def asked(question: Awaitable[T]) -> T | None:
    """The answer, or None with an error on the page."""
    try:
        return await question
    except ContrailError as exc:
        show_error(str(exc))
        return None


async def act(work: Awaitable[T], done: Callable[[T], str] | str) -> bool:
    """Do something and say how it ended. A failure stays on the screen until it is closed."""
    try:
        result = await work
    except ContrailError as exc:
        fail(str(exc))
        return False
    ui.notify(done if isinstance(done, str) else done(result), type="positive", timeout=6000)
    return True


def fail(text: str) -> None:
    ui.notify(text, type="negative", timeout=0, close_button="Close", multi_line=True, classes="console-break")


async def confirmed(question: str, action: str) -> bool:
    """Asks before something cannot be taken back."""
    with ui.dialog() as dialog, ui.card().props('role=alertdialog aria-label="Please confirm"'):
        ui.label(question).classes("console-break")
        with ui.row().classes("justify-end full-width"):
            ui.button("Cancel", on_click=lambda: dialog.submit(False)).props("flat autofocus")
            ui.button(action, on_click=lambda: dialog.submit(True)).props("color=negative")
    answer = await dialog
    dialog.delete()
    return bool(answer)


def buttons(dialog: Any, action: str, work: Callable[[], Awaitable[None]]) -> None:
    """The last line of a dialog."""
    with ui.row().classes("justify-end full-width"):
        ui.button("Cancel", on_click=dialog.close).props("flat")
        ui.button(action, on_click=work)


def plain_table(columns: Sequence[Row], rows: list[Row], label: str, *, links: dict[str, str] | None = None) -> Any:
    """A short table as a whole."""
    table = ui.table(columns=list(columns), rows=_keyed(rows), row_key="_key")
    return _dressed(table, label, links)


class PagedTable:
    """A table that asks for one page at a time: `load(number, size)` gives rows and how many there are."""

    def __init__(
        self,
        columns: Sequence[Row],
        load: Callable[[int, int], Awaitable[tuple[list[Row], int]]],
        label: str,
        *,
        links: dict[str, str] | None = None,
        selection: str | None = None,
    ) -> None:
        self._load = load
        pagination = {"page": 1, "rowsPerPage": ROWS, "rowsNumber": 0}
        self.table = ui.table(
            columns=list(columns), rows=[], row_key="_key", pagination=pagination, selection=selection
        )
        _dressed(self.table, label, links)
        self.table.props(':rows-per-page-options="[10,20,50,100]"')
        if selection:
            self.table.add_slot("header-selection", SELECT % "'Select all of this page'")
            self.table.add_slot("body-selection", SELECT % "'Select row ' + (props.rowIndex + 1)")
        self.table.on("request", self._requested, ["pagination"])

    async def show(self, number: int | None = None, size: int | None = None) -> None:
        """Load a page, the present one unless told otherwise. Raises what `load` raises."""
        at = self.table.pagination
        wanted = int(number or at.get("page") or 1)
        rows_per_page = int(size or at.get("rowsPerPage") or ROWS)
        rows, count = await self._load(wanted, rows_per_page)
        last = max(1, -(-count // rows_per_page))
        self.table.rows = _keyed(rows)
        self.table.pagination = {"page": min(wanted, last), "rowsPerPage": rows_per_page, "rowsNumber": count}
        self.table.update()

    async def _requested(self, event: Any) -> None:
        wanted = event.args["pagination"]
        try:
            await self.show(int(wanted["page"]), int(wanted["rowsPerPage"]) or 100)
        except ContrailError as exc:
            fail(str(exc))


def _keyed(rows: list[Row]) -> list[Row]:
    return [{"_key": index, **row} for index, row in enumerate(rows)]


def _dressed(table: Any, label: str, links: dict[str, str] | None) -> Any:
    table.props(f'dense flat bordered wrap-cells no-data-label="Nothing here" aria-label="{label}"').classes(
        "full-width"
    )
    for name, path in (links or {}).items():
        table.add_slot(f"body-cell-{name}", LINK % path)
    return table
