"""How the admin commands ask a cluster: the arguments that many of them share, and one way to fail."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import typer

from contrailmq.cli.admin.secured import tls_of_flags
from contrailmq.client.errors import did_you_mean
from contrailmq.message import ContrailError

if TYPE_CHECKING:
    from contrailmq import Admin

T = TypeVar("T")

Namesrv = Annotated[
    str | None, typer.Option("-n", "--namesrv", envvar="NAMESRV_ADDR", help="NameServers, host:port;host:port")
]
Json = Annotated[bool, typer.Option("--json", help="print JSON instead of tables")]
Topic = Annotated[str, typer.Argument(help="the topic's name")]
Group = Annotated[str, typer.Argument(help="the group's name")]
Address = Annotated[str, typer.Argument(help="the broker's host:port")]
MaxCount = Annotated[int, typer.Option("--max", min=1, help="at most so many")]
All = Annotated[bool, typer.Option("--all", help="those of the system too")]
Broker = Annotated[str | None, typer.Option("--broker", help="on this broker only")]
Cluster = Annotated[str | None, typer.Option("--cluster", help="on this cluster only")]
Yes = Annotated[bool, typer.Option("--yes", help="do not ask")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="show what it would do, and do nothing")]


def ask(namesrv: str | None, question: Callable[[Admin], T]) -> T:
    """Connect, ask, disconnect. What goes wrong is one line on standard error and exit code 1."""
    from contrailmq import Admin

    if not (namesrv or "").strip("; "):
        fail("no NameServer address: add -n host:9876 or set NAMESRV_ADDR")
    try:
        with Admin(namesrv=namesrv, **tls_of_flags.get()) as admin:
            try:
                return question(admin)
            finally:
                _tell_of_slaves(admin)
    except ContrailError as exc:
        fail(str(exc))


def _tell_of_slaves(admin: Admin) -> None:
    """On standard error: a table without what only the master has looks like a whole one."""
    for broker, address in admin.slaves_asked().items():
        typer.echo(
            f"note: {broker} has no master now, and its slave {address} was asked: what the master took last may be "
            "missing; start the master",
            err=True,
        )


def ask_broker(address: str, namesrv: str | None, question: Callable[[Admin], T]) -> T:
    """Ask one broker, whose address is known. A NameServer is not asked, so none need be named: any address will do."""
    return ask(namesrv or address, question)


def ask_of_topic(namesrv: str | None, topic: str, question: Callable[[Admin], T]) -> T:
    """Ask about a topic that must exist."""

    def checked(admin: Admin) -> T:
        require_topic(admin, topic)
        return question(admin)

    return ask(namesrv, checked)


def ask_of_group(namesrv: str | None, group: str, question: Callable[[Admin], T], *, topic: str | None = None) -> T:
    """Ask about a group that must exist, and a topic if one is named."""

    def checked(admin: Admin) -> T:
        require_group(admin, group)
        if topic is not None:
            require_topic(admin, topic)
        return question(admin)

    return ask(namesrv, checked)


def fail(text: str, *, code: int = 1) -> NoReturn:
    """One line on standard error, and the end. 1: it cannot be done; 2: the command line is wrong."""
    from contrailmq.message import printable_lines

    typer.echo(f"error: {printable_lines(text)}", err=True)
    raise typer.Exit(code)


def confirm(question: str, *, is_agreed: bool) -> None:
    """Ask before something is destroyed; without a terminal nobody can answer, so `--yes` must have said it."""
    if is_agreed:
        return
    if not sys.stdin.isatty():
        fail(f"{question} There is no terminal to ask at: add --yes")
    if not typer.confirm(question, err=True):
        fail("nothing was changed")


# What a command names must be there: a mistyped name is an error, not an empty table.
def require_topic(admin: Admin, topic: str) -> None:
    known = admin.topics()
    if topic not in known and not admin.topic_holders(topic):
        hint = did_you_mean(topic, known) or ": `contrailmq admin topic list --all` shows those that do"
        raise ContrailError(f"topic {topic} does not exist{hint}")


def require_group(admin: Admin, group: str) -> None:
    known = admin.groups()
    if group not in known and not admin.group_topics(group):
        hint = did_you_mean(group, known) or ": `contrailmq admin group list --all` shows those that do"
        raise ContrailError(f"group {group} does not exist{hint}")
