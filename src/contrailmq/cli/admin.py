"""`contrailmq admin topic|group|message|offset|dlq|cluster|broker …`: looking at a cluster and changing it.

Every command takes `--namesrv` (or NAMESRV_ADDR) and `--json`; `broker` does without a NameServer, it has the address.
Works with our servers and with Apache's.
"""

from __future__ import annotations

from typing import Annotated

import typer

from contrailmq.cli.admin_output import (
    Json,
    Namesrv,
    ask,
    ask_broker,
    done,
    message_facts,
    print_json,
    show,
    show_messages,
    show_pairs,
    time_text,
)

app = typer.Typer(help="Look at a cluster and change it.", no_args_is_help=True)
topic_app = typer.Typer(help="Topics.", no_args_is_help=True)
group_app = typer.Typer(help="Consumer groups.", no_args_is_help=True)
message_app = typer.Typer(help="Messages.", no_args_is_help=True)
offset_app = typer.Typer(help="Offsets of groups.", no_args_is_help=True)
dlq_app = typer.Typer(help="Dead letters.", no_args_is_help=True)
cluster_app = typer.Typer(help="Clusters.", no_args_is_help=True)
broker_app = typer.Typer(help="Brokers.", no_args_is_help=True)
for _name, _part in (
    ("topic", topic_app),
    ("group", group_app),
    ("message", message_app),
    ("offset", offset_app),
    ("dlq", dlq_app),
    ("cluster", cluster_app),
    ("broker", broker_app),
):
    app.add_typer(_part, name=_name)

Topic = Annotated[str, typer.Argument(help="the topic's name")]
Group = Annotated[str, typer.Argument(help="the group's name")]
Address = Annotated[str, typer.Argument(help="the broker's host:port")]
MaxCount = Annotated[int, typer.Option("--max", help="at most so many")]


# Topics.
@topic_app.command("list")
def topic_list(namesrv: Namesrv = None, as_json: Json = False) -> None:
    """All topics."""
    show([(topic,) for topic in ask(namesrv, lambda admin: admin.topics())], ("topic",), as_json=as_json)


@topic_app.command("create")
def topic_create(
    topic: Topic,
    queues: Annotated[int, typer.Option("--queues", help="queues on each broker")] = 8,
    permission: Annotated[int, typer.Option("--perm", help="6 read and write, 4 read, 2 write")] = 6,
    order: Annotated[bool, typer.Option("--order", help="an order topic")] = False,
    broker: Annotated[str | None, typer.Option("--broker", help="on this broker only")] = None,
    cluster: Annotated[str | None, typer.Option("--cluster", help="on this cluster only")] = None,
    namesrv: Namesrv = None,
    as_json: Json = False,
) -> None:
    """Create a topic, or change it."""
    ask(
        namesrv,
        lambda admin: admin.create_topic(
            topic, queues=queues, permission=permission, order=order, broker=broker, cluster=cluster
        ),
    )
    done(f"topic {topic} has {queues} queues on each broker", as_json=as_json)


@topic_app.command("delete")
def topic_delete(topic: Topic, namesrv: Namesrv = None, as_json: Json = False) -> None:
    """Delete a topic everywhere."""
    ask(namesrv, lambda admin: admin.delete_topic(topic))
    done(f"topic {topic} is deleted", as_json=as_json)


@topic_app.command("status")
def topic_status(topic: Topic, namesrv: Namesrv = None, as_json: Json = False) -> None:
    """Offsets of each queue."""
    stats = ask(namesrv, lambda admin: admin.topic_stats(topic))
    rows = [
        (queue.broker_name, queue.queue_id, item.min_offset, item.max_offset, time_text(item.last_update_timestamp))
        for queue, item in stats.items()
    ]
    show(rows, ("broker", "queue", "min", "max", "last_written"), as_json=as_json)


@topic_app.command("route")
def topic_route(topic: Topic, namesrv: Namesrv = None, as_json: Json = False) -> None:
    """Brokers and queue counts."""
    route = ask(namesrv, lambda admin: admin.route(topic))
    rows = []
    for group in route.queue_groups:
        broker = route.broker(group.broker_name)
        addresses = dict(broker.addresses) if broker is not None else {}
        rows.append((group.broker_name, group.read_queues, group.write_queues, group.permission, addresses))
    show(rows, ("broker", "read_queues", "write_queues", "permission", "addresses"), as_json=as_json)


@topic_app.command("groups")
def topic_groups(topic: Topic, namesrv: Namesrv = None, as_json: Json = False) -> None:
    """Groups that consume the topic."""
    show([(group,) for group in ask(namesrv, lambda admin: admin.topic_groups(topic))], ("group",), as_json=as_json)


# Groups.
@group_app.command("list")
def group_list(namesrv: Namesrv = None, as_json: Json = False) -> None:
    """All consumer groups."""
    show([(group,) for group in ask(namesrv, lambda admin: admin.groups())], ("group",), as_json=as_json)


@group_app.command("create")
def group_create(group: Group, namesrv: Namesrv = None, as_json: Json = False) -> None:
    """Create a group with RocketMQ's defaults."""
    ask(namesrv, lambda admin: admin.create_group(group))
    done(f"group {group} exists", as_json=as_json)


@group_app.command("delete")
def group_delete(group: Group, namesrv: Namesrv = None, as_json: Json = False) -> None:
    """Delete a group and its offsets."""
    ask(namesrv, lambda admin: admin.delete_group(group))
    done(f"group {group} is deleted", as_json=as_json)


@group_app.command("progress")
def group_progress(
    group: Group,
    topic: Annotated[str | None, typer.Option("--topic", help="of this topic only")] = None,
    namesrv: Namesrv = None,
    as_json: Json = False,
) -> None:
    """How far the group is, queue by queue, and its lag."""
    rows = [
        (
            row.queue.topic,
            row.queue.broker_name,
            row.queue.queue_id,
            row.broker_offset,
            row.consumer_offset,
            row.lag,
            time_text(row.last_time_ms),
        )
        for row in ask(namesrv, lambda admin: admin.progress(group, topic))
    ]
    columns = ("topic", "broker", "queue", "broker_offset", "consumer_offset", "lag", "last_consumed")
    show(rows, columns, as_json=as_json)
    if not as_json:
        typer.echo(f"lag: {sum(row[5] for row in rows)}")


@group_app.command("members")
def group_members(group: Group, namesrv: Namesrv = None, as_json: Json = False) -> None:
    """Who is connected and what the group subscribes to."""
    found = ask(namesrv, lambda admin: admin.consumers(group))
    connections = found.connection_set if found is not None else []
    rows = [(item.client_id, item.client_addr, item.language, item.version) for item in connections]
    show(rows, ("client_id", "address", "language", "version"), as_json=as_json)


# Messages.
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
        typer.echo(f"error: topic {topic} has no message {message_id}, or it is older than three days", err=True)
        raise typer.Exit(1)
    if as_json:
        print_json(message_facts(message))
    else:
        show_pairs(message_facts(message).items(), as_json=False)


@message_app.command("by-key")
def message_by_key(
    topic: Topic,
    key: Annotated[str, typer.Argument(help="a business key")],
    max_count: MaxCount = 32,
    namesrv: Namesrv = None,
    as_json: Json = False,
) -> None:
    """Messages with a business key, newest first."""
    found = ask(namesrv, lambda admin: admin.messages_by_key(topic, key, max_count=max_count))
    show_messages(found, as_json=as_json)


@message_app.command("by-time")
def message_by_time(
    topic: Topic,
    begin_ms: Annotated[int, typer.Option("--begin-ms", help="epoch milliseconds")] = 0,
    end_ms: Annotated[int, typer.Option("--end-ms", help="epoch milliseconds")] = 2**62,
    max_count: MaxCount = 100,
    namesrv: Namesrv = None,
    as_json: Json = False,
) -> None:
    """Messages that were stored in a time span."""
    found = ask(
        namesrv,
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
        typer.echo(f"error: {exc}", err=True)
        raise typer.Exit(1) from None
    facts = [
        ("status", result.status.value),
        ("message_id", result.message_id),
        ("broker", result.queue.broker_name),
        ("queue_id", result.queue.queue_id),
        ("queue_offset", result.queue_offset),
    ]
    show_pairs(facts, as_json=as_json)


# Offsets.
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


# Dead letters.
@dlq_app.command("list")
def dlq_list(group: Group, max_count: MaxCount = 100, namesrv: Namesrv = None, as_json: Json = False) -> None:
    """What the group gave up, oldest first."""
    show_messages(ask(namesrv, lambda admin: admin.dead_letters(group, max_count=max_count)), as_json=as_json)


@dlq_app.command("resend")
def dlq_resend(group: Group, max_count: MaxCount = 100, namesrv: Namesrv = None, as_json: Json = False) -> None:
    """Give dead letters to the group again, and only to it."""
    results = ask(namesrv, lambda admin: admin.resend_dead_letters(group, max_count=max_count))
    done(f"{len(results)} dead letters were sent to group {group} again", as_json=as_json)


# Clusters and brokers.
@cluster_app.command("list")
def cluster_list(namesrv: Namesrv = None, as_json: Json = False) -> None:
    """Clusters, brokers, addresses."""
    info = ask(namesrv, lambda admin: admin.cluster())
    rows = [
        (cluster, name, id_, address)
        for cluster, names in sorted(info.cluster_addr_table.items())
        for name in sorted(names)
        for id_, address in sorted(info.broker_addr_table[name].broker_addrs.items())
    ]
    show(rows, ("cluster", "broker", "id", "address"), as_json=as_json)


@broker_app.command("status")
def broker_status(address: Address, namesrv: Namesrv = None, as_json: Json = False) -> None:
    """Runtime figures."""
    show_pairs(ask_broker(address, namesrv, lambda admin: admin.broker_stats(address)).items(), as_json=as_json)


@broker_app.command("pending")
def broker_pending(address: Address, namesrv: Namesrv = None, as_json: Json = False) -> None:
    """Messages that wait: timers and half messages by topic, delayed ones by level. Our brokers only."""
    rows = []
    for key, text in sorted(ask_broker(address, namesrv, lambda admin: admin.broker_stats(address)).items()):
        kind, separator, name = key.partition("Pending_")
        if separator:
            rows.append((kind, name, int(text)))
    show(rows, ("kind", "of", "pending"), as_json=as_json)


@broker_app.command("config")
def broker_config(address: Address, namesrv: Namesrv = None, as_json: Json = False) -> None:
    """Settings."""
    show_pairs(ask_broker(address, namesrv, lambda admin: admin.broker_config(address)).items(), as_json=as_json)


@broker_app.command("set")
def broker_set(
    address: Address,
    setting: Annotated[str, typer.Argument(help="key=value, RocketMQ's key")],
    namesrv: Namesrv = None,
    as_json: Json = False,
) -> None:
    """Change a setting while the broker runs."""
    key, separator, value = setting.partition("=")
    if not separator:
        typer.echo(f"error: {setting!r} is not key=value", err=True)
        raise typer.Exit(2)
    ask_broker(address, namesrv, lambda admin: admin.update_broker_config(address, {key: value}))
    done(f"{address}: {key}={value}", as_json=as_json)
