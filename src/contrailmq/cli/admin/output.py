"""What the admin commands print: a table for people, JSON for programs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Final

import msgspec
import typer

from contrailmq.wire.codes import version_name

if TYPE_CHECKING:
    from contrailmq import StoredMessage


on_one_line: Final = ContextVar("on_one_line", default=False)  # whether JSON has a line a document


@dataclass(frozen=True, slots=True)
class Moment:
    """A time in a table. JSON has it as a number, or null where there is none, under the column's name with `_ms`."""

    time_ms: int

    def __str__(self) -> str:
        return time_text(self.time_ms)


@dataclass(frozen=True, slots=True)
class Release:
    """A client's version in a table. JSON has RocketMQ's number for it."""

    ordinal: int

    def __str__(self) -> str:
        return version_name(self.ordinal)


def show(rows: Sequence[Sequence[object]], columns: Sequence[str], *, as_json: bool) -> None:
    """Rows as a table, or as a list of objects."""
    if as_json:
        print_json([dict(map(_json_pair, columns, row)) for row in rows])
        return
    from rich.console import Console
    from rich.table import Table

    from contrailmq.message import printable

    table = Table(*columns, box=None, header_style="bold")
    for row in rows:
        table.add_row(*("" if value is None else printable(str(value)) for value in row))
    # What messages hold is not markup: a body of "[/x]" would be an error, one of ":smile:" a picture.
    Console(width=None if Console().is_terminal else 200, markup=False, emoji=False).print(table)


def _json_pair(column: str, value: object) -> tuple[str, object]:
    if isinstance(value, Moment):
        return f"{column}_ms", value.time_ms if value.time_ms > 0 else None
    return column, value.ordinal if isinstance(value, Release) else value


def show_pairs(pairs: Iterable[tuple[str, object]], *, as_json: bool) -> None:
    """Names and values."""
    known = dict(pairs)
    if as_json:
        print_json(known)
        return
    show(list(known.items()), ("name", "value"), as_json=False)


def print_json(value: object) -> None:
    from contrailmq.message import printable_json

    data = msgspec.json.encode(value, enc_hook=str)
    typer.echo(printable_json((data if on_one_line.get() else msgspec.json.format(data, indent=2)).decode()))


def print_json_line(value: object) -> None:
    """One of many: a program reads them line by line."""
    token = on_one_line.set(True)
    try:
        print_json(value)
    finally:
        on_one_line.reset(token)


def done(text: str | Sequence[str], facts: Mapping[str, object], *, as_json: bool) -> None:
    """What was done: a sentence for people, or a line for each, and its facts for programs."""
    if as_json:
        print_json(facts)
    else:
        from contrailmq.message import printable

        for line in [text] if isinstance(text, str) else text:
            typer.echo(printable(line))


def counted(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count:,} {noun}s"


def show_messages(messages: Sequence[StoredMessage], *, as_json: bool) -> None:
    if as_json:
        print_json([message_facts(message) for message in messages])
        return
    rows = [
        (
            message.message_id,
            message.topic,
            message.queue_id,
            message.queue_offset,
            message.tags,
            " ".join(message.keys),
            time_text(message.store_time_ms),
            message.reconsume_times,
            short_body(message.body),
        )
        for message in messages
    ]
    show(rows, ("id", "topic", "queue", "offset", "tags", "keys", "stored", "retries", "body"), as_json=False)


def message_facts(message: StoredMessage) -> dict[str, object]:
    return {
        "message_id": message.message_id,
        "offset_message_id": message.offset_message_id,
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "tags": message.tags,
        "keys": message.keys,
        "properties": message.properties,
        "born_time_ms": message.born_time_ms,
        "born_host": str(message.born_host),
        "store_time_ms": message.store_time_ms,
        "store_host": str(message.store_host),
        "reconsume_times": message.reconsume_times,
        "body": message.body.decode("utf-8", "backslashreplace"),
    }


def time_text(time_ms: int) -> str:
    if time_ms <= 0:
        return "-"
    return datetime.fromtimestamp(time_ms / 1000).astimezone().isoformat(sep=" ", timespec="milliseconds")


def short_body(body: bytes) -> str:
    text = body[:60].decode("utf-8", "backslashreplace")
    return text if len(body) <= 60 else text + "…"
