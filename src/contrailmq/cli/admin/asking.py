"""How the admin commands ask a cluster: the arguments that many of them share, and one way to fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

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
MaxCount = Annotated[int, typer.Option("--max", help="at most so many")]


def ask(namesrv: str | None, question: Callable[[Admin], T]) -> T:
    """Connect, ask, disconnect. What goes wrong is one line on standard error and exit code 1."""
    from contrailmq import Admin
    from contrailmq.message import ContrailError

    try:
        with Admin(namesrv=namesrv) as admin:
            return question(admin)
    except ContrailError as exc:
        typer.echo(f"error: {exc}", err=True)
        raise typer.Exit(1) from None


def ask_broker(address: str, namesrv: str | None, question: Callable[[Admin], T]) -> T:
    """Ask one broker, whose address is known. A NameServer is not asked, so none need be named: any address will do."""
    return ask(namesrv or address, question)
