"""`contrailmq admin message tail`: a topic's messages as lines, the last ones or all that come.

Tags and SQL are the broker's to choose by; keys and properties are looked at here, so that they work with any broker.
Reading is no consuming: no group is created and no offset is stored.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Final

import typer

from contrailmq.cli.admin.asking import Json, Namesrv, Topic, ask_of_topic, fail
from contrailmq.cli.admin.output import message_facts, print_json_line, short_body, time_text
from contrailmq.cli.admin.secured import tls_of_flags
from contrailmq.cli.admin.times import Since
from contrailmq.message import ContrailError, printable

if TYPE_CHECKING:
    from contrailmq import Admin, SqlFilter
    from contrailmq.client.records import ReceivedMessage

LOOKED_AT_MAX: Final = 10_000  # of each queue, for the last ones that a filter takes


@dataclass(frozen=True, slots=True)
class Choice:
    """Which messages."""

    wanted: str | SqlFilter
    keys: frozenset[str]
    properties: dict[str, str]

    @property
    def is_all(self) -> bool:
        return self.wanted == "*" and not self.keys and not self.properties

    def takes(self, message: ReceivedMessage) -> bool:
        if self.keys and self.keys.isdisjoint(message.keys):
            return False
        return all(message.properties.get(name) == text for name, text in self.properties.items())


def message_tail(
    topic: Topic,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="go on with what comes, until Ctrl-C")] = False,
    lines: Annotated[int, typer.Option("--lines", min=1, help="without -f: at most so many, the newest")] = 10,
    tags: Annotated[list[str] | None, typer.Option("--tag", help="with this tag; may be repeated")] = None,
    sql: Annotated[str | None, typer.Option("--sql", help="SQL92 over properties, if the broker filters by it")] = None,
    keys: Annotated[list[str] | None, typer.Option("--key", help="with this business key; may be repeated")] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", metavar="NAME=TEXT", help="with this property; may be repeated")
    ] = None,
    since_ms: Since = None,
    namesrv: Namesrv = None,
    as_json: Json = False,
) -> None:
    """The last messages of a topic, or with -f all that come from now or --since on. JSON is a line a message."""
    choice = _choice(tags, sql, keys, properties)
    if not follow:
        for message in ask_of_topic(namesrv, topic, lambda admin: _last(admin, topic, choice, since_ms, lines)):
            _print(message, as_json=as_json)
        return
    ask_of_topic(namesrv, topic, lambda admin: None)
    try:
        asyncio.run(_follow(namesrv, topic, choice, since_ms, as_json=as_json))
    except ContrailError as exc:
        fail(str(exc))
    except KeyboardInterrupt:  # that is how one ends it
        return


def _choice(tags: list[str] | None, sql: str | None, keys: list[str] | None, properties: list[str] | None) -> Choice:
    from contrailmq import SqlFilter

    if tags and sql:
        fail("a broker filters by tags or by SQL: give --tag or --sql, one of them", code=2)
    pairs = [text.partition("=") for text in properties or ()]
    if odd := next((name for name, separator, _ in pairs if not separator), None):
        fail(f"--property {odd!r} is not NAME=TEXT", code=2)
    if sql is not None and not sql.strip():
        fail("--sql needs an expression", code=2)
    wanted = SqlFilter(sql) if sql else " || ".join(tags) if tags else "*"
    return Choice(wanted, frozenset(keys or ()), {name: text for name, _, text in pairs})


def _last(admin: Admin, topic: str, choice: Choice, since_ms: int | None, lines: int) -> list[ReceivedMessage]:
    found: list[ReceivedMessage] = []
    for queue in admin.queues(topic):
        end = admin.max_offset(queue)
        begin = max(admin.min_offset(queue), end - (lines if choice.is_all else LOOKED_AT_MAX))
        if since_ms is not None:
            begin = max(begin, admin.search_offset(queue, since_ms))
        found += [message for message in admin.read_range(queue, begin, end, choice.wanted) if choice.takes(message)]
    return sorted(found, key=lambda message: message.store_time_ms)[-lines:]


async def _follow(namesrv: str | None, topic: str, choice: Choice, since_ms: int | None, *, as_json: bool) -> None:
    from contrailmq.client.admin.following import TopicFollower

    def trouble(text: str) -> None:
        typer.echo(printable(text), err=True)

    async with TopicFollower(namesrv=namesrv, **tls_of_flags.get()) as follower:
        async for message in follower.follow(topic, choice.wanted, since_ms=since_ms, on_trouble=trouble):
            if choice.takes(message):
                _print(message, as_json=as_json)


def _print(message: ReceivedMessage, *, as_json: bool) -> None:
    if as_json:
        print_json_line({"broker": message.broker_name} | message_facts(message))
        return
    place = f"{message.broker_name}:{message.queue_id}@{message.queue_offset}"
    marks = [f"[{message.tags}]"] if message.tags else []
    text = " ".join((time_text(message.store_time_ms), place, message.message_id, *marks, *message.keys))
    typer.echo(printable(f"{text}  {short_body(message.body)}"))
