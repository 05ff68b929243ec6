"""The first page: rates, backlog, disk and brokers, with charts of the last hour. It shows what the sampler has."""

from __future__ import annotations

from typing import Any

from nicegui import ui

from contrailmq.console.model.asking import MASTER_ID
from contrailmq.console.model.console_model import ConsoleModel
from contrailmq.console.model.sampling import BrokerSample, Overview
from contrailmq.console.model.series import Series
from contrailmq.console.pages.parts import Row, column, heading, plain_table, show_error, show_notes
from contrailmq.console.pages.words import moment, number, per_second, size

REFRESH_S = 2.0
_BROKERS = [
    column("name", "Broker"),
    column("role", "Role"),
    column("address", "Address"),
    column("version", "Version"),
    column("put", "In", is_number=True),
    column("get", "Out", is_number=True),
    column("latency", "Put latency, 99 %"),
    column("disk", "Disk free", is_number=True),
    column("replication", "Slowest slave behind", is_number=True),
]


class OverviewPage:
    """One browser's view; `refresh` runs while it is open."""

    def __init__(self, model: ConsoleModel) -> None:
        self._model = model
        self._notes = ui.column().classes("full-width")
        self._noted: tuple[str, ...] | None = None
        with ui.row().classes("full-width q-gutter-sm"):
            self._put = figure("Messages in")
            self._get = figure("Messages out")
            self._backlog = figure("Backlog of all groups")
            self._brokers = figure("Brokers")
        self._rates = chart("Messages a second, last hour", ("in", "out"))
        self._latency = chart("Put latency of the slowest master in milliseconds, last hour", ("99 %", "99.9 %"))
        self._lag = chart("Backlog, last hour", ("backlog",))
        heading("Brokers")
        self._table = plain_table(_BROKERS, [], "Brokers")
        self._stamp = ui.label("").classes("text-caption")
        self.refresh()
        ui.timer(REFRESH_S, self.refresh)

    def refresh(self) -> None:
        sampler = self._model.sampler
        sampler.looked_at()
        overview = sampler.overview
        self._show_notes(overview.error, overview.notes)  # brokers that are gone: on every page, see frame.py
        self._put.text, self._get.text = per_second(overview.put_per_s), per_second(overview.get_per_s)
        self._backlog.text = "counting" if overview.backlog is None else number(overview.backlog)
        self._brokers.text = str(len(overview.brokers))
        draw(self._rates, (sampler.put_rate, sampler.get_rate))
        draw(self._latency, (sampler.put_latency_99, sampler.put_latency_999))
        draw(self._lag, (sampler.backlog,))
        self._table.rows = [{"_key": index, **row_of(sample)} for index, sample in enumerate(overview.brokers)]
        self._stamp.text = stamp(overview)

    def _show_notes(self, error: str, notes: tuple[str, ...]) -> None:
        said = (error, *notes)
        if said == self._noted:
            return
        self._noted = said
        self._notes.clear()
        with self._notes:
            if error:
                show_error(error)
            show_notes(notes)


def stamp(overview: Overview) -> str:
    """Many groups take long to go through: their backlog may be much older than the rest."""
    if not overview.time_ms:
        return "not asked yet"
    counted = f", the backlog as of {moment(overview.backlog_ms)}" if overview.backlog is not None else ""
    return f"as of {moment(overview.time_ms)}{counted}"


def row_of(sample: BrokerSample) -> Row:
    behind = sample.slowest_slave_bytes
    return {
        "name": sample.place.name,
        "role": "master" if sample.place.broker_id == MASTER_ID else f"slave {sample.place.broker_id}",
        "address": sample.place.address,
        "version": sample.figures.version,
        "put": per_second(sample.put_per_s),
        "get": per_second(sample.get_per_s),
        "latency": sample.figures.put_latency,
        "disk": size(sample.figures.disk_free_bytes),
        "replication": "" if behind is None else size(max(behind, 0)),
    }


def figure(title: str) -> Any:
    with ui.card().classes("console-figure q-pa-sm").props("flat bordered"):
        ui.label(title).classes("text-caption")
        return ui.label("").classes("text-h5")


def chart(title: str, names: tuple[str, ...]) -> Any:
    """Lines over an hour. The same numbers stand on the page as text, for those who do not see it."""
    grey = "#888"
    axis = {"axisLabel": {"color": grey}, "splitLine": {"lineStyle": {"color": "#8884"}}}
    options = {
        "title": {"text": title, "left": 0, "textStyle": {"color": grey, "fontSize": 14, "fontWeight": "normal"}},
        "legend": {"data": list(names), "right": 8, "top": 0, "textStyle": {"color": grey}},
        "grid": {"left": 8, "right": 16, "top": 40, "bottom": 8, "containLabel": True},
        "tooltip": {"trigger": "axis", "renderMode": "richText"},
        "xAxis": {"type": "time", **axis},
        "yAxis": {"type": "value", "min": 0, "minInterval": 1, **axis},
        "animation": False,
        "series": [{"name": name, "type": "line", "showSymbol": False, "data": []} for name in names],
    }
    drawn = ui.echart(options).classes("full-width").style("height: 14rem")
    return drawn.props(f'role=img aria-label="{title}"')


def draw(drawn: Any, series: tuple[Series, ...]) -> None:
    lines = [[[time_ms, round(value, 2)] for time_ms, value in one.points()] for one in series]
    shown = drawn.options["series"]
    if all(
        len(line["data"]) == len(data) and line["data"][-1:] == data[-1:]
        for line, data in zip(shown, lines, strict=True)
    ):
        return
    for line, data in zip(shown, lines, strict=True):
        line["data"] = data
    drawn.update()
