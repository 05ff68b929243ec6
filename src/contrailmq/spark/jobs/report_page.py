"""A report as one HTML page: inline styles and SVG, no scripts, nothing fetched from anywhere.

Plots are drawn here rather than with a plotting library because the page must open anywhere, offline, from a mail, and
the four shapes it needs (stacked columns, bars, a table) take fewer lines than the library's configuration would.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from pathlib import PurePath
from typing import Final

from contrailmq.spark.jobs.report import MINUTE_MS, Report

_COLOURS: Final = ("#2f6fdb", "#e07b39", "#3d9a5d", "#b5489a", "#8a6d3b", "#5c6b7a", "#9aa5b1")
_NAMES_SHOWN: Final = 6  # the rest is drawn as one
_BINS_MAX: Final = 60
_BINS_MIN: Final = 12  # a store filled within a second is a narrow column, not a wall
_LABEL_MAX: Final = 46  # characters beside a bar: as many capitals as there is room for
_MARKS: Final = 4  # stretches of the time axis that are labelled
_HOUR_MS: Final = 60 * MINUTE_MS
# What a column may stand for, as people count time; longer logs take whole days.
_STEPS_MS: Final = (
    *(seconds * 1000 for seconds in (1, 2, 5, 10, 15)),
    *(minutes * MINUTE_MS for minutes in (1, 2, 5, 10, 15, 30)),
    *(hours * _HOUR_MS for hours in (1, 2, 3, 6, 12)),
)
_DAY_MS: Final = 24 * _HOUR_MS
_STYLE: Final = """
:root{color-scheme:light dark;--line:#8884;--soft:#8881}
body{font:15px/1.5 system-ui,sans-serif;max-width:1080px;margin:2rem auto;padding:0 1rem;overflow-wrap:break-word}
h1{font-size:1.5rem;margin:0}h2{font-size:1.1rem;margin:2.2rem 0 .6rem}
.tiles{display:flex;flex-wrap:wrap;gap:1rem;margin:1.2rem 0}
.tile{background:var(--soft);border-radius:8px;padding:.7rem 1.1rem}.tile b{display:block;font-size:1.4rem}
td:first-child{overflow-wrap:anywhere;min-width:14rem}td:not(:first-child){white-space:nowrap}
.scroll{overflow-x:auto}table{border-collapse:collapse;width:100%}
th,td{padding:.3rem .6rem;text-align:right;border-bottom:1px solid var(--line)}
th:first-child,td:first-child{text-align:left}
svg{width:100%;min-width:700px;height:auto;display:block}svg text{fill:currentColor;font:11px system-ui}
.key{display:inline-flex;align-items:baseline;margin-right:1em;overflow-wrap:anywhere}
.key i{flex:none;width:.8em;height:.8em;border-radius:2px;margin-right:.35em}
"""


def page(report: Report) -> str:
    """The whole page."""
    span, step_ms = [time_ms for _, time_ms, _, _ in report.traffic], report.step_ms
    period = f"{_time(min(span), step_ms)} to {_time(max(span) + step_ms, step_ms)} UTC" if span else "nothing stored"
    tiles = [
        ("messages", f"{report.messages:,}"),
        ("in the log", _size(report.log_bytes)),
        ("topics", str(len(report.topics))),
        ("largest lag", f"{max((lag.lag for lag in report.lags), default=0):,}"),
        ("dead letters", f"{sum(count for kind, _, count in report.retries if kind == 'dlq'):,}"),
        ("waiting for their time", f"{sum(delay.waiting for delay in report.delays):,}"),
    ]
    of = _store_prefixes(report.stores)
    sections = [
        ("Messages over time", _columns([(t, m, n) for t, m, n, _ in report.traffic], "other topics", step_ms)),
        ("Topics", _topics(report)),
        (
            "Messages by queue",
            _bars([(f"{of[s]}{t} / {q}", n) for t, q, n, _, s in sorted(report.queues, key=lambda r: -r[2])[:20]]),
        ),
        ("Queues over time", _columns(_named(report, "queue", "/"), "other queues", step_ms)),
        ("Tags", _bars([(f"{topic} : {tag}", n) for topic, tag, n in report.tags[:20]])),
        ("Tags over time", _columns(_named(report, "tag", ":"), "other tags", step_ms)),
        ("Producers", _bars([(f"{host} → {topic}", n) for topic, host, n in report.hosts[:20]])),
        ("Producers over time", _columns(_named(report, "host", "←"), "other producers", step_ms)),
        ("Consumer lag", _bars([(f"{lag.group} on {lag.topic}", lag.lag) for lag in report.lags if lag.lag][:20])),
        ("Retries and dead letters", _bars([(f"{kind} {group}", n) for kind, group, n in report.retries])),
        ("Delayed", _bars([(f"level {d.level}" if d.level else "timer", d.waiting) for d in report.delays])),
    ]
    body = "".join(f"<h2>{escape(title)}</h2>{content}" for title, content in sections if content)
    head = "".join(f'<div class="tile">{escape(name)}<b>{escape(value)}</b></div>' for name, value in tiles)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>ContrailMQ report</title><style>{_STYLE}</style>"
        f"<h1>ContrailMQ report</h1><div>{escape(', '.join(report.stores))} · {period}</div>"
        f'<div class="tiles">{head}</div>{body}</html>\n'
    )


def _named(report: Report, kind: str, sign: str) -> list[tuple[str, int, int]]:
    of = {"": "", **_store_prefixes(report.stores)}
    return [
        (f"{of[store]}{topic} {sign} {value}", time_ms, count)
        for topic, value, time_ms, count, store in report.over_time[kind]
    ]


def _store_prefixes(stores: Sequence[str]) -> dict[str, str]:
    """How queues are marked with their store: nothing for one alone, else as many last parts as tell all apart."""
    if len(stores) == 1:
        return {stores[0]: ""}
    parts = [PurePath(store).parts for store in stores]
    for number in range(1, max(map(len, parts), default=0) + 1):
        names = ["/".join(part[-number:]) for part in parts]
        if len(set(names)) == len(stores):
            return {store: f"{name} · " for store, name in zip(stores, names, strict=True)}
    return {store: f"{store} · " for store in stores}


def _columns(rows: Sequence[tuple[str, int, int]], others: str, step_ms: int) -> str:
    """Stacked columns of (name, time in ms, messages): messages per stretch of time, the largest names in colour."""
    if not rows:
        return ""
    totals: Counter[str] = Counter()
    for name, _, count in rows:
        totals[name] += count
    shown = [name for name, _ in totals.most_common(_NAMES_SHOWN)]
    first, last = min(time_ms for _, time_ms, _ in rows), max(time_ms for _, time_ms, _ in rows)
    step = _column_ms(last - first, step_ms)
    low = first // step * step
    number = max(_BINS_MIN, (last - low) // step + 1)
    bins = [[0] * (len(shown) + 1) for _ in range(-(-number // _MARKS) * _MARKS)]
    for name, time_ms, count in rows:
        bins[(time_ms - low) // step][shown.index(name) if name in shown else len(shown)] += count
    names = [*shown, *([others] if any(column[-1] for column in bins) else [])]
    keys = "".join(
        f'<span class="key"><i style="background:{_COLOURS[index]}"></i>{escape(name)}</span>'
        for index, name in enumerate(names)
    )
    return f"<div>{keys}</div>{_stacked(bins, [*shown, others], low=low, step=step)}"


def _column_ms(span_ms: int, step_ms: int) -> int:
    """The time that one column stands for: as short as there is room for."""
    for column_ms in _STEPS_MS:
        if column_ms >= step_ms and span_ms < column_ms * (_BINS_MAX - 1):
            return column_ms
    return -(-span_ms // ((_BINS_MAX - 1) * _DAY_MS)) * _DAY_MS


def _stacked(bins: list[list[int]], names: list[str], *, low: int, step: int) -> str:
    """The plot of columns that begin at `low` and stand `step` ms apart."""
    top = max(sum(column) for column in bins)
    width, height, left = 1000, 220, 60
    wide = (width - left) / len(bins)
    parts = []
    for share in (0.0, 0.5, 1.0):
        line = height - share * (height - 20)
        parts.append(f'<line x1="{left}" y1="{line}" x2="{width}" y2="{line}" stroke="#8886"/>')
        parts.append(f'<text x="{left - 6}" y="{line + 4}" text-anchor="end">{_whole(top * share)}</text>')
    for number, column in enumerate(bins):
        y = float(height)
        for index, count in enumerate(column):
            tall = count / top * (height - 20)
            y -= tall
            if count:
                title = f"{_time(low + number * step, step)} {names[index]}: {count:,}"
                parts.append(
                    f'<rect x="{left + number * wide:.1f}" y="{y:.1f}" width="{max(1.0, wide - 1):.1f}" '
                    f'height="{tall:.1f}" fill="{_COLOURS[index]}"><title>{escape(title)}</title></rect>'
                )
    for mark in range(_MARKS + 1):
        x = left + (width - left) * mark / _MARKS
        anchor = "start" if mark == 0 else "end" if mark == _MARKS else "middle"
        text = _time(low + len(bins) // _MARKS * mark * step, step)
        parts.append(f'<text x="{x}" y="{height + 16}" text-anchor="{anchor}">{text}</text>')
    return _drawing(width, height + 24, parts)


def _bars(rows: Sequence[tuple[str, int]]) -> str:
    """Horizontal bars with their labels and numbers."""
    if not rows:
        return ""
    top = max(1, *(count for _, count in rows)) if rows else 1
    parts = []
    for number, (label, count) in enumerate(rows):
        y = number * 22
        parts.append(
            f'<text x="360" y="{y + 14}" text-anchor="end">{escape(_short(label))}<title>{escape(label)}</title></text>'
            f'<rect x="370" y="{y + 3}" width="{count / top * 540:.1f}" height="15" rx="2" fill="{_COLOURS[0]}"/>'
            f'<text x="{376 + count / top * 540:.1f}" y="{y + 15}">{count:,}</text>'
        )
    return _drawing(1000, len(rows) * 22 + 4, parts)


def _short(label: str) -> str:
    """A label that fits beside its bar, cut in the middle: a queue's number and a tag stand at the end."""
    if len(label) <= _LABEL_MAX:
        return label
    kept = _LABEL_MAX - len("...")
    return f"{label[: kept - kept // 2]}...{label[-(kept // 2) :]}"


def _drawing(width: int, height: int, parts: Sequence[str]) -> str:
    return f'<div class="scroll"><svg viewBox="0 0 {width} {height}" role="img">{"".join(parts)}</svg></div>'


def _topics(report: Report) -> str:
    if not report.topics:
        return "<p>The log holds no messages.</p>"
    names = ("topic", "queues", "messages", "log", "body p50", "body p99", "born to stored p50", "p99")
    head = "".join(f"<th>{name}</th>" for name in names)
    rows = "".join(
        f"<tr><td>{escape(row.topic)}</td><td>{row.queues}</td><td>{row.messages:,}</td><td>{_size(row.log_bytes)}</td>"
        f"<td>{_size(row.size_p50)}</td><td>{_size(row.size_p99)}</td><td>{row.latency_p50_ms:,} ms</td>"
        f"<td>{row.latency_p99_ms:,} ms</td></tr>"
        for row in report.topics
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{rows}</table></div>'


def _size(count: int) -> str:
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"


def _whole(value: float) -> str:
    """A number of messages at a mark of the axis; nothing where the mark is not a whole number."""
    return f"{int(value):,}" if value == int(value) else ""


def _time(time_ms: int, step_ms: int) -> str:
    """A time as exact as the step to the next one makes sense of."""
    text = "%Y-%m-%d %H:%M:%S" if step_ms < MINUTE_MS else "%Y-%m-%d %H:%M" if step_ms < _DAY_MS else "%Y-%m-%d"
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime(text)
