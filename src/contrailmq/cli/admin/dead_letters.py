"""`contrailmq admin dlq …`: what groups gave up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from contrailmq.cli.admin.asking import Group, Json, MaxCount, Namesrv, ask_of_group
from contrailmq.cli.admin.output import counted, done, show_messages
from contrailmq.cli.admin.times import Since, Until, span
from contrailmq.message import ContrailError

if TYPE_CHECKING:
    from contrailmq import Admin
    from contrailmq.client import LetterReport

dlq_app = typer.Typer(help="Dead letters.", no_args_is_help=True)


@dlq_app.command("list")
def dlq_list(group: Group, max_count: MaxCount = 100, namesrv: Namesrv = None, as_json: Json = False) -> None:
    """What the group gave up, oldest first."""
    show_messages(
        ask_of_group(namesrv, group, lambda admin: admin.dead_letters(group, max_count=max_count)), as_json=as_json
    )


@dlq_app.command("resend")
def dlq_resend(
    group: Group,
    ids: Annotated[list[str] | None, typer.Option("--id", help="this letter, or the message that it was")] = None,
    keys: Annotated[list[str] | None, typer.Option("--key", help="letters with this business key")] = None,
    since_ms: Since = None,
    until_ms: Until = None,
    max_count: MaxCount = 100,
    again: Annotated[bool, typer.Option("--all", help="from the oldest, also what was sent back before")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="show the letters, send nothing")] = False,
    namesrv: Namesrv = None,
    as_json: Json = False,
) -> None:
    """Give dead letters to the group again, and only to it: those that were not sent back before, oldest first."""
    from contrailmq.client import LetterChoice

    begin_ms, end_ms = span(since_ms, until_ms)
    choice = LetterChoice(
        ids=frozenset(ids or ()),
        keys=frozenset(keys or ()),
        since_ms=begin_ms,
        until_ms=end_ms,
        max_count=max_count,
        again=again,
    )

    def resend(admin: Admin) -> LetterReport:
        if dry_run or choice.ids:
            chosen = admin.choose_dead_letters(group, choice)
            unknown = sorted(choice.ids - chosen.found_ids)
            if unknown and not chosen.is_cut:
                raise ContrailError(f"group {group} has no dead letter {', '.join(unknown)}: `dlq list` shows them")
            if dry_run:
                return chosen
        return admin.resend_dead_letters(group, choice)

    report = ask_of_group(namesrv, group, resend)
    if dry_run:
        show_messages(report.letters, as_json=as_json)
        if as_json:
            return
    facts = {
        "group": group,
        "sent": len(report.results),
        "sent_before": report.sent_before,
        "has_more": report.is_cut,
        "message_ids": [letter.message_id for letter in report.letters],
    }
    done(_sentence(group, report, is_sent=not dry_run), facts, as_json=as_json)


def _sentence(group: str, report: LetterReport, *, is_sent: bool) -> str:
    text = counted(len(report.letters), "dead letter")
    text += f" {'sent' if is_sent else 'would be sent'} to group {group} again"
    if report.sent_before:
        text += f"; {report.sent_before} were sent back before (--all sends them once more)"
    if report.is_cut:
        text += "; there are more (--max)"
    return text
