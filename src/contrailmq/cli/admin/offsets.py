"""`contrailmq admin offset …`: where groups continue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from contrailmq.cli.admin.asking import (
    Group,
    Json,
    Namesrv,
    Topic,
    ask,
    ask_of_group,
    fail,
    require_group,
    require_topic,
)
from contrailmq.cli.admin.output import done, show
from contrailmq.client.admin.times import FORMS, parse_time

if TYPE_CHECKING:
    from contrailmq import Admin

offset_app = typer.Typer(help="Offsets of groups.", no_args_is_help=True)


@offset_app.command("reset")
def offset_reset(
    group: Group,
    topic: Topic,
    to: Annotated[str, typer.Option("--to", help=f"earliest, latest, or a time: {FORMS}")],
    namesrv: Namesrv = None,
    as_json: Json = False,
) -> None:
    """Let the group continue elsewhere, running members included."""
    from contrailmq.client.admin.admin_groups import OffsetPlace

    place: int | OffsetPlace
    try:
        place = OffsetPlace(to) if to in (place.value for place in OffsetPlace) else parse_time(to)
    except ValueError as exc:
        fail(f"--to takes earliest, latest or a time; {exc}", code=2)
    moved = ask_of_group(namesrv, group, lambda admin: admin.reset_offsets(group, topic, place), topic=topic)
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

    def clone(admin: Admin) -> None:
        for group in (source, target):
            require_group(admin, group)
        require_topic(admin, topic)
        admin.clone_offsets(source, target, topic)

    ask(namesrv, clone)
    facts = {"source": source, "target": target, "topic": topic}
    done(f"group {target} is where {source} is in {topic}", facts, as_json=as_json)
