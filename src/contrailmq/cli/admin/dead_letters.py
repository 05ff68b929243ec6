"""`contrailmq admin dlq …`: what groups gave up."""

from __future__ import annotations

import enum
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO, Final

import typer

from contrailmq.cli.admin.asking import Group, Json, MaxCount, Namesrv, Yes, ask_of_group, confirm, fail
from contrailmq.cli.admin.output import counted, done, show_messages
from contrailmq.cli.admin.times import Since, Until, span
from contrailmq.cli.admin.watching import watched
from contrailmq.message import ContrailError, dlq_topic

if TYPE_CHECKING:
    from contrailmq import Admin, StoredMessage
    from contrailmq.client import LetterReport

EXPORT_STEP: Final = 200

dlq_app = typer.Typer(help="Dead letters.", no_args_is_help=True)


@dlq_app.command("list")
@watched
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


class Form(enum.StrEnum):
    JSONL = "jsonl"
    PARQUET = "parquet"


@dlq_app.command("export")
def dlq_export(
    group: Group,
    to: Annotated[Path | None, typer.Option("--to", help="a file; without it JSON lines go to standard output")] = None,
    form: Annotated[Form | None, typer.Option("--format", help="without it, by the file's name")] = None,
    since_ms: Since = None,
    until_ms: Until = None,
    yes: Yes = False,
    namesrv: Namesrv = None,
    as_json: Json = False,
) -> None:
    """Every letter that is there now, as JSON lines or Parquet. Asks before it replaces a file."""
    form = form or (Form.PARQUET if to is not None and to.suffix == ".parquet" else Form.JSONL)
    if form is Form.PARQUET and to is None:
        fail("Parquet needs a file: add --to FILE", code=2)
    if as_json and to is None:
        fail("--json tells of a file that was written: add --to FILE", code=2)
    begin_ms, end_ms = span(since_ms, until_ms)
    if to is not None and to.exists():
        confirm(f"replace the file {to}?", is_agreed=yes)

    def export(admin: Admin) -> int:
        letters = _letters(admin, group, begin_ms, end_ms)
        if to is None:
            return _write_lines(letters, sys.stdout.buffer)
        part = to.with_name(to.name + ".part")
        try:
            if form is Form.PARQUET:
                written = _write_parquet(letters, part)
            else:
                with part.open("wb") as file:
                    written = _write_lines(letters, file)
            part.replace(to)
        except OSError as exc:
            raise ContrailError(f"{to} cannot be written: {exc.strerror or exc}") from exc
        finally:
            part.unlink(missing_ok=True)
        return written

    count = ask_of_group(namesrv, group, export)
    if to is not None:
        facts = {"group": group, "file": str(to), "format": str(form), "letters": count}
        done(f"{counted(count, 'dead letter')} of group {group} in {to}", facts, as_json=as_json)


def _letters(admin: Admin, group: str, begin_ms: int, end_ms: int) -> Iterator[list[StoredMessage]]:
    """Some at a time, oldest first within each queue; those that come meanwhile are left out."""
    topic = dlq_topic(group)
    for queue in admin.queues(topic) if topic in admin.topics() else []:
        end = admin.max_offset(queue)
        for first in range(admin.min_offset(queue), end, EXPORT_STEP):
            found = admin.read_range(queue, first, min(first + EXPORT_STEP, end))
            yield [letter for letter in found if begin_ms <= letter.store_time_ms <= end_ms]


def _write_lines(letters: Iterable[list[StoredMessage]], file: BinaryIO) -> int:
    from contrailmq.client.admin.letter_exports import json_line

    count = 0
    for some in letters:
        file.write(b"".join(map(json_line, some)))
        count += len(some)
    file.flush()
    return count


def _write_parquet(letters: Iterable[list[StoredMessage]], path: Path) -> int:
    from contrailmq.client.admin.letter_exports import ParquetLetters

    count = 0
    with ParquetLetters(path) as file:
        for some in letters:
            file.write(some)
            count += len(some)
    return count


def _sentence(group: str, report: LetterReport, *, is_sent: bool) -> str:
    text = counted(len(report.letters), "dead letter")
    text += f" {'sent' if is_sent else 'would be sent'} to group {group} again"
    if report.sent_before:
        text += f"; {report.sent_before} were sent back before (--all sends them once more)"
    if report.is_cut:
        text += "; there are more (--max)"
    return text
