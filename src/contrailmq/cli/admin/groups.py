"""`contrailmq admin group …`: consumer groups."""

from __future__ import annotations

from typing import Annotated

import typer

from contrailmq.cli.admin.asking import Group, Json, Namesrv, ask
from contrailmq.cli.admin.output import done, show, time_text

group_app = typer.Typer(help="Consumer groups.", no_args_is_help=True)


@group_app.command("list")
def group_list(namesrv: Namesrv = None, as_json: Json = False) -> None:
    """All consumer groups."""
    show([(group,) for group in ask(namesrv, lambda admin: admin.groups())], ("group",), as_json=as_json)


@group_app.command("create")
def group_create(group: Group, namesrv: Namesrv = None, as_json: Json = False) -> None:
    """Create a group with RocketMQ's defaults."""
    ask(namesrv, lambda admin: admin.create_group(group))
    done(f"group {group} exists", as_json=as_json)


@group_app.command("delete")
def group_delete(group: Group, namesrv: Namesrv = None, as_json: Json = False) -> None:
    """Delete a group and its offsets."""
    ask(namesrv, lambda admin: admin.delete_group(group))
    done(f"group {group} is deleted", as_json=as_json)


@group_app.command("progress")
def group_progress(
    group: Group,
    topic: Annotated[str | None, typer.Option("--topic", help="of this topic only")] = None,
    namesrv: Namesrv = None,
    as_json: Json = False,
) -> None:
    """How far the group is, queue by queue, and its lag."""
    rows = [
        (
            row.queue.topic,
            row.queue.broker_name,
            row.queue.queue_id,
            row.broker_offset,
            row.consumer_offset,
            row.lag,
            time_text(row.last_time_ms),
        )
        for row in ask(namesrv, lambda admin: admin.progress(group, topic))
    ]
    columns = ("topic", "broker", "queue", "broker_offset", "consumer_offset", "lag", "last_consumed")
    show(rows, columns, as_json=as_json)
    if not as_json:
        typer.echo(f"lag: {sum(row[5] for row in rows)}")


@group_app.command("members")
def group_members(group: Group, namesrv: Namesrv = None, as_json: Json = False) -> None:
    """Who is connected and what the group subscribes to."""
    found = ask(namesrv, lambda admin: admin.consumers(group))
    connections = found.connection_set if found is not None else []
    rows = [(item.client_id, item.client_addr, item.language, item.version) for item in connections]
    show(rows, ("client_id", "address", "language", "version"), as_json=as_json)
