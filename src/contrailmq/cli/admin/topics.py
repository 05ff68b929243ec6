"""`contrailmq admin topic …`."""

from __future__ import annotations

from typing import Annotated

import typer

from contrailmq.cli.admin.asking import Json, Namesrv, Topic, ask
from contrailmq.cli.admin.output import done, show, time_text

topic_app = typer.Typer(help="Topics.", no_args_is_help=True)


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
