"""`contrailmq admin dlq …`: what groups gave up."""

from __future__ import annotations

import typer

from contrailmq.cli.admin.asking import Group, Json, MaxCount, Namesrv, ask_of_group
from contrailmq.cli.admin.output import done, show_messages

dlq_app = typer.Typer(help="Dead letters.", no_args_is_help=True)


@dlq_app.command("list")
def dlq_list(group: Group, max_count: MaxCount = 100, namesrv: Namesrv = None, as_json: Json = False) -> None:
    """What the group gave up, oldest first."""
    show_messages(
        ask_of_group(namesrv, group, lambda admin: admin.dead_letters(group, max_count=max_count)), as_json=as_json
    )


@dlq_app.command("resend")
def dlq_resend(group: Group, max_count: MaxCount = 100, namesrv: Namesrv = None, as_json: Json = False) -> None:
    """Give dead letters to the group again, and only to it."""
    results = ask_of_group(namesrv, group, lambda admin: admin.resend_dead_letters(group, max_count=max_count))
    done(
        f"{len(results)} dead letters were sent to group {group} again",
        {"group": group, "sent": len(results)},
        as_json=as_json,
    )
