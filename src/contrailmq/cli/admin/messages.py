"""`contrailmq admin message …`."""

from __future__ import annotations

from typing import Annotated

import typer

from contrailmq.cli.admin.asking import Json, MaxCount, Namesrv, Topic, ask, ask_of_topic, fail
from contrailmq.cli.admin.output import message_facts, print_json, show_messages, show_pairs
from contrailmq.cli.admin.times import Since, Until, span

message_app = typer.Typer(help="Messages.", no_args_is_help=True)


@message_app.command("get")
def message_get(
    topic: Topic,
    message_id: Annotated[str, typer.Argument(help="a unique id or an offset message id")],
    namesrv: Namesrv = None,
    as_json: Json = False,
) -> None:
    """One message by its id."""
    message = ask(namesrv, lambda admin: admin.message(topic, message_id))
    if message is None:
        fail(f"topic {topic} has no message {message_id}, or it is older than three days")
    if as_json:
        print_json(message_facts(message))
    else:
        show_pairs(message_facts(message).items(), as_json=False)


@message_app.command("by-key")
def message_by_key(
    topic: Topic,
    key: Annotated[str, typer.Argument(help="a business key")],
    since_ms: Since = None,
    until_ms: Until = None,
    max_count: MaxCount = 32,
    namesrv: Namesrv = None,
    as_json: Json = False,
) -> None:
    """Messages with a business key, newest first."""
    begin_ms, end_ms = span(since_ms, until_ms)
    found = ask_of_topic(
        namesrv,
        topic,
        lambda admin: admin.messages_by_key(topic, key, max_count=max_count, begin_ms=begin_ms, end_ms=end_ms),
    )
    show_messages(found, as_json=as_json)


@message_app.command("by-time")
def message_by_time(
    topic: Topic,
    since_ms: Since = None,
    until_ms: Until = None,
    max_count: MaxCount = 100,
    namesrv: Namesrv = None,
    as_json: Json = False,
) -> None:
    """Messages that were stored in a time span."""
    begin_ms, end_ms = span(since_ms, until_ms)
    found = ask_of_topic(
        namesrv,
        topic,
        lambda admin: admin.messages_by_time(topic, begin_ms=begin_ms, end_ms=end_ms, max_count=max_count),
    )
    show_messages(found, as_json=as_json)


@message_app.command("send")
def message_send(
    topic: Topic,
    body: Annotated[str, typer.Argument(help="the body, as UTF-8 text")],
    tags: Annotated[str | None, typer.Option("--tags")] = None,
    keys: Annotated[str, typer.Option("--keys", help="separated by spaces")] = "",
    namesrv: Namesrv = None,
    as_json: Json = False,
) -> None:
    """Send one message."""
    from contrailmq import Message, Producer
    from contrailmq.message import ContrailError

    try:
        with Producer("contrailmq_admin", namesrv=namesrv) as producer:
            result = producer.send(Message(topic, body.encode(), tags=tags, keys=keys.split()))
    except ContrailError as exc:
        fail(str(exc))
    facts = [
        ("status", result.status.value),
        ("message_id", result.message_id),
        ("broker", result.queue.broker_name),
        ("queue_id", result.queue.queue_id),
        ("queue_offset", result.queue_offset),
    ]
    show_pairs(facts, as_json=as_json)
