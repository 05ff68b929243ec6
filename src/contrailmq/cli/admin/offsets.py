"""`contrailmq admin offset …`: where groups continue."""

from __future__ import annotations

from typing import Annotated

import typer

from contrailmq.cli.admin.asking import Group, Json, Namesrv, Topic, ask
from contrailmq.cli.admin.output import done, show

offset_app = typer.Typer(help="Offsets of groups.", no_args_is_help=True)


@offset_app.command("reset")
def offset_reset(
    group: Group,
    topic: Topic,
    to: Annotated[str, typer.Option("--to", help="earliest, latest, or epoch milliseconds")],
    namesrv: Namesrv = None,
    as_json: Json = False,
) -> None:
    """Let the group continue elsewhere, running members included."""
    from contrailmq.client.admin_groups import OffsetPlace

    if not to.isdigit() and to not in (place.value for place in OffsetPlace):
        typer.echo(f"error: --to is {to!r}: give earliest, latest, or epoch milliseconds", err=True)
        raise typer.Exit(2)
    place = int(to) if to.isdigit() else OffsetPlace(to)
    moved = ask(namesrv, lambda admin: admin.reset_offsets(group, topic, place))
    rows = [(queue.broker_name, queue.queue_id, offset) for queue, offset in sorted(moved.items())]
    show(rows, ("broker", "queue", "offset"), as_json=as_json)


@offset_app.command("clone")
def offset_clone(
    source: Annotated[str, typer.Argument(help="the group that has the offsets")],
    target: Annotated[str, typer.Argument(help="the group that gets them")],
    topic: Topic,
    namesrv: Namesrv = None,
    as_json: Json = False,
) -> None:
    """Give another group the same offsets."""
    ask(namesrv, lambda admin: admin.clone_offsets(source, target, topic))
    done(f"group {target} is where {source} is in {topic}", as_json=as_json)
