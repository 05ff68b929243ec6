"""The cluster: NameServers, brokers, how far slaves are, and the settings of each broker."""

from __future__ import annotations

from nicegui import ui

from contrailmq.console.model.asking import BrokerPlace
from contrailmq.console.model.console_model import ConsoleModel
from contrailmq.console.model.paging import paged
from contrailmq.console.model.settings import SettingRow
from contrailmq.console.pages.parts import (
    PagedTable,
    Row,
    act,
    asked,
    buttons,
    column,
    fail,
    heading,
    plain_table,
    show_notes,
)
from contrailmq.console.pages.words import size
from contrailmq.message import ContrailError

_BROKERS = [
    column("cluster", "Cluster"),
    column("broker", "Broker"),
    column("role", "Role"),
    column("address", "Address"),
]
_SLAVES = [
    column("master", "Master"),
    column("slave", "Slave"),
    column("behind", "Behind", is_number=True),
    column("sync", "In sync"),
    column("rate", "Copied", is_number=True),
]
_SETTINGS = [
    column("key", "Setting"),
    column("value", "Value"),
    column("meaning", "Means"),
    column("others", "Other brokers have"),
]


class ClusterPage:
    def __init__(self, model: ConsoleModel) -> None:
        self._model = model
        self._rows: list[SettingRow] = []

    async def build(self) -> None:
        places = await asked(self._model.settings.places())
        if places is None:
            return
        heading("NameServers")
        servers = await self._model.settings.name_servers()
        plain_table(
            [column("address", "Address"), column("state", "State")],
            [{"address": row.address, "state": row.state} for row in servers],
            "NameServers",
        )
        heading("Brokers")
        plain_table(
            _BROKERS,
            [
                {
                    "cluster": place.cluster,
                    "broker": place.name,
                    "role": "master" if place.broker_id == 0 else f"slave {place.broker_id}",
                    "address": place.address,
                }
                for place in places
            ],
            "Brokers of the cluster",
        )
        await self._show_replication()
        await self._show_settings(places)

    async def _show_replication(self) -> None:
        heading("Replication")
        seen = await asked(self._model.settings.replication())
        if seen is None:
            return
        show_notes(seen.notes)
        rows = [
            {
                "master": place.name,
                "slave": slave.addr,
                "behind": size(max(slave.diff, 0)),
                "sync": "yes" if slave.in_sync else "no",
                "rate": f"{size(slave.transferred_byte_in_second)}/s",
            }
            for place, info in seen.value.items()
            for slave in info.ha_connection_info
        ]
        plain_table(_SLAVES, rows, "Replication")

    async def _show_settings(self, places: list[BrokerPlace]) -> None:
        heading("Settings")
        labels = {place.label: place for place in places}
        if not labels:
            return
        with ui.row().classes("items-end full-width"):
            self._broker = ui.select(list(labels), value=next(iter(labels)), label="Broker", on_change=self._chosen)
            self._broker.style("min-width: 12rem")
            self._search = ui.input("Search settings", on_change=self._searched).props("dense clearable debounce=300")
            if not self._model.is_read_only:
                ui.button("Change a setting", icon="edit", on_click=self._change)
        self._labels = labels
        self._notes = ui.column().classes("full-width")
        self._table = PagedTable(_SETTINGS, self._load, "Settings")
        await asked(self._ask())
        await self._table.show(1)

    async def _ask(self) -> None:
        seen = await self._model.settings.of(self._labels[self._broker.value])
        self._rows = seen.value
        self._notes.clear()
        with self._notes:
            show_notes(seen.notes)

    async def _chosen(self) -> None:
        try:
            await self._ask()
        except ContrailError as exc:
            self._rows = []
            fail(str(exc))
        await self._table.show(1)

    async def _searched(self) -> None:
        await self._table.show(1)

    async def _load(self, page: int, rows: int) -> tuple[list[Row], int]:
        cut = paged(
            self._rows,
            number=page,
            size=rows,
            search=self._search.value or "",
            name=lambda row: f"{row.key} {row.meaning}",
        )
        return [
            {"key": row.key, "value": row.value, "meaning": row.meaning, "others": row.others} for row in cut.rows
        ], cut.row_count

    async def _change(self) -> None:
        place = self._labels[self._broker.value]
        known = {row.key: row.value for row in self._rows}
        with ui.dialog() as dialog, ui.card().style("min-width: 18rem").props('aria-label="Change a setting"'):
            ui.label(f"Change a setting of {place.label}").classes("text-h6 console-break")
            ui.label("The broker refuses what it cannot change while it runs.")
            key = ui.input("Setting", autocomplete=sorted(known)).props("autofocus").classes("full-width")
            value = ui.input("Value").classes("full-width")

            async def change() -> None:
                name = (key.value or "").strip()
                if name not in known:
                    fail(f"{place.label} has no setting {name!r}: choose one of the list")
                    return
                text = (value.value or "").strip()
                if await act(self._model.settings.change(place, name, text), f"{name}={text} on {place.label}"):
                    dialog.close()
                    await self._chosen()

            buttons(dialog, "Change", change)
        dialog.open()
