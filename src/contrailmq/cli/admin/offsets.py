"""`contrailmq admin group reset|skip` and `contrailmq admin offset …`: where groups continue.

What a move means is shown before it is made, queue by queue, and what was shown is done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from contrailmq.cli.admin.asking import (
    DryRun,
    Group,
    Json,
    Namesrv,
    Topic,
    Yes,
    ask,
    ask_of_group,
    confirm,
    fail,
    require_group,
    require_topic,
)
from contrailmq.cli.admin.output import done, show
from contrailmq.client.admin.times import FORMS, parse_time
from contrailmq.message import ContrailError, printable, retry_topic

if TYPE_CHECKING:
    from contrailmq import Admin
    from contrailmq.client.admin.admin_groups import OffsetPlace
    from contrailmq.client.admin.admin_offsets import OffsetPlan

offset_app = typer.Typer(help="Offsets of groups.", no_args_is_help=True)

COLUMNS = ("topic", "broker", "queue", "old_offset", "offset", "skipped", "again")


@offset_app.command("reset")
def group_reset(
    group: Group,
    topic: Topic,
    to: Annotated[str | None, typer.Option("--to", help=f"earliest, latest, or a time: {FORMS}")] = None,
    offset: Annotated[int | None, typer.Option("--offset", help="a queue offset, instead of --to")] = None,
    queue: Annotated[str, typer.Option("--queue", help="with --offset: this queue only, broker:id")] = "",
    dry_run: DryRun = False,
    yes: Yes = False,
    namesrv: Namesrv = None,
    as_json: Json = False,
) -> None:
    """Let the group continue elsewhere, running members included. Shows what that means, and asks."""
    if (to is None) == (offset is None):
        fail("give --to or --offset, one of them", code=2)
    if queue and offset is None:
        fail("--queue goes with --offset", code=2)
    place = None if to is None else _place(to)

    def plan(admin: Admin) -> list[OffsetPlan]:
        if place is not None:
            return [admin.plan_offsets(group, topic, place)]
        assert offset is not None
        return [admin.plan_offset(group, topic, offset, queue=queue)]

    ask_of_group(
        namesrv,
        group,
        lambda admin: _carry_out(admin, plan(admin), dry_run=dry_run, yes=yes, as_json=as_json),
        topic=topic,
    )


def group_skip(
    group: Group,
    topic: Annotated[str | None, typer.Argument(help="its backlog; of all topics of the group without it")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    namesrv: Namesrv = None,
    as_json: Json = False,
) -> None:
    """Leave out the messages that wait now: the group continues with what comes next. Messages to retry stay."""

    def skip(admin: Admin) -> None:
        from contrailmq.client.admin.admin_groups import OffsetPlace

        topics = [topic] if topic else [name for name in admin.group_topics(group) if name != retry_topic(group)]
        if not topics:
            raise ContrailError(f"group {group} consumes no topic: there is nothing to skip")
        plans = [admin.plan_offsets(group, name, OffsetPlace.LATEST) for name in topics]
        _carry_out(admin, plans, dry_run=dry_run, yes=yes, as_json=as_json)

    ask_of_group(namesrv, group, skip, topic=topic)


def _place(to: str) -> int | OffsetPlace:
    from contrailmq.client.admin.admin_groups import OffsetPlace

    try:
        return OffsetPlace(to) if to in (place.value for place in OffsetPlace) else parse_time(to)
    except ValueError as exc:
        fail(f"--to takes earliest, latest or a time; {exc}", code=2)


def _carry_out(admin: Admin, plans: list[OffsetPlan], *, dry_run: bool, yes: bool, as_json: bool) -> None:
    """Show the plans, ask, and do what they say."""
    rows = [
        (
            plan.topic,
            move.queue.broker_name,
            move.queue.queue_id,
            move.now if move.now >= 0 else None,
            move.target,
            move.skipped,
            move.again,
        )
        for plan in plans
        for move in sorted(plan.moves, key=lambda move: move.queue)
    ]
    sentence = "; ".join(plan.sentence for plan in plans)
    if not as_json:
        show(rows, COLUMNS, as_json=False)
        typer.echo(printable(sentence))
    if not dry_run:
        confirm(f"{sentence}. Move {plans[0].group} there?", is_agreed=yes)
        for plan in plans:
            admin.move_offsets(plan.group, plan.targets)
    if as_json:
        show(rows, COLUMNS, as_json=True)
    else:
        typer.echo("nothing was changed (--dry-run)" if dry_run else "moved")


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
