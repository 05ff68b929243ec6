"""`contrailmq admin topic …`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from contrailmq.cli.admin.asking import (
    All,
    Broker,
    Cluster,
    Json,
    Namesrv,
    Topic,
    Yes,
    ask,
    ask_of_topic,
    confirm,
    fail,
    require_topic,
)
from contrailmq.cli.admin.output import Moment, counted, done, show
from contrailmq.cli.admin.watching import watched
from contrailmq.message import ContrailError
from contrailmq.wire.admin_bodies import TopicOffset

if TYPE_CHECKING:
    from contrailmq import Admin
    from contrailmq.wire.bodies import TopicConfig

topic_app = typer.Typer(help="Topics.", no_args_is_help=True)


@topic_app.command("list")
@watched
def topic_list(with_system: All = False, namesrv: Namesrv = None, as_json: Json = False) -> None:
    """The topics, those of the system with --all."""

    def topics(admin: Admin) -> list[str]:
        hidden = () if with_system else admin.system_topics()
        return [topic for topic in admin.topics() if topic not in hidden]

    show([(topic,) for topic in ask(namesrv, topics)], ("topic",), as_json=as_json)


@topic_app.command("create")
def topic_create(
    topic: Topic,
    queues: Annotated[int, typer.Option("--queues", min=1, help="queues on each broker")] = 8,
    permission: Annotated[int, typer.Option("--perm", help="6 read and write, 4 read, 2 write")] = 6,
    order: Annotated[bool, typer.Option("--order", help="an order topic")] = False,
    kind: Annotated[
        str | None,
        typer.Option(
            "--type", help="messages it takes: NORMAL, FIFO, DELAY, TRANSACTION, MIXED, PRIORITY, LITE (message.type)"
        ),
    ] = None,
    broker: Broker = None,
    cluster: Cluster = None,
    namesrv: Namesrv = None,
    as_json: Json = False,
) -> None:
    """Create a topic; one that exists is an error and stays as it is."""

    def create(admin: Admin) -> list[str]:
        held = admin.topic_holders(topic, broker=broker, cluster=cluster)
        if held:
            raise ContrailError(
                f"topic {topic} exists on {', '.join(held)}: change it with `topic update`, or name with --broker a "
                "broker that does not have it"
            )
        attributes = {"message.type": kind.upper()} if kind else None
        admin.create_topic(
            topic,
            queues=queues,
            permission=permission,
            order=order,
            attributes=attributes,
            broker=broker,
            cluster=cluster,
        )
        return sorted(admin.masters(broker=broker, cluster=cluster))

    brokers = ask(namesrv, create)
    done(
        f"topic {topic} has {counted(queues, 'queue')} on {', '.join(brokers)}",
        {"topic": topic, "queues": queues, "brokers": brokers},
        as_json=as_json,
    )


@topic_app.command("update")
def topic_update(
    topic: Topic,
    queues: Annotated[int | None, typer.Option("--queues", help="queues to read and to write on each broker")] = None,
    read_queues: Annotated[int | None, typer.Option("--read-queues", help="beats --queues")] = None,
    write_queues: Annotated[int | None, typer.Option("--write-queues", help="beats --queues")] = None,
    permission: Annotated[int | None, typer.Option("--perm", help="6 read and write, 4 read, 2 write")] = None,
    order: Annotated[bool | None, typer.Option("--order/--no-order", help="an order topic")] = None,
    attributes: Annotated[
        list[str] | None, typer.Option("--attribute", metavar="NAME=TEXT", help="NAME= removes it; may be repeated")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="also when unread messages become unreachable")] = False,
    broker: Broker = None,
    cluster: Cluster = None,
    namesrv: Namesrv = None,
    as_json: Json = False,
) -> None:
    """Change what is given and nothing else."""
    read_queues = queues if read_queues is None else read_queues
    write_queues = queues if write_queues is None else write_queues
    if read_queues is None and write_queues is None and permission is None and order is None and not attributes:
        fail("nothing to change: give --queues, --read-queues, --write-queues, --perm, --order or --attribute", code=2)
    pairs = [text.partition("=") for text in attributes or ()]
    if odd := next((name for name, separator, _ in pairs if not separator), None):
        fail(f"--attribute {odd!r} is not NAME=TEXT", code=2)

    def update(admin: Admin) -> tuple[int, dict[str, TopicConfig]]:
        held = admin.topic_holders(topic, broker=broker, cluster=cluster)
        unread = 0
        if held and read_queues is not None:
            unread = sum(admin.unread_beyond(topic, read_queues, broker=name) for name in held)
        if unread and not force:
            raise ContrailError(
                f"{counted(unread, 'message')} of topic {topic} that not every group has consumed would become "
                f"unreachable with {counted(read_queues or 0, 'queue')} to read: lower --write-queues alone and let "
                "the groups finish, or add --force"
            )
        changed = admin.update_topic(
            topic,
            read_queues=read_queues,
            write_queues=write_queues,
            permission=permission,
            order=order,
            attributes={name: text or None for name, _, text in pairs},
            broker=broker,
            cluster=cluster,
        )
        return unread, changed

    unread, changed = ask(namesrv, update)
    _tell_update(topic, unread, changed, as_json=as_json)


def _tell_update(topic: str, unread: int, changed: dict[str, TopicConfig], *, as_json: bool) -> None:
    rows = [
        {
            "broker": name,
            "read_queues": config.read_queue_nums,
            "write_queues": config.write_queue_nums,
            "permission": config.perm,
            "order": config.order,
        }
        for name, config in changed.items()
    ]
    lines = [
        f"topic {topic} on {row['broker']}: {row['read_queues']} queues to read, {row['write_queues']} to write, "
        f"permission {row['permission']}" + (", in order" if row["order"] else "")
        for row in rows
    ]
    if unread:
        lines.append(f"{counted(unread, 'unread message')} cannot be reached until the topic has as many queues again")
    done(lines, {"topic": topic, "brokers": rows, "unreachable_messages": unread}, as_json=as_json)


@topic_app.command("delete")
def topic_delete(topic: Topic, yes: Yes = False, namesrv: Namesrv = None, as_json: Json = False) -> None:
    """Delete a topic everywhere, with its messages. Asks first."""

    def delete(admin: Admin) -> None:
        require_topic(admin, topic)
        if not yes:
            stats = admin.topic_stats(topic)
            messages = sum(item.max_offset - item.min_offset for item in stats.values())
            what = f"{counted(messages, 'message')} in {counted(len(stats), 'queue')}"
            confirm(f"delete topic {topic} with {what}?", is_agreed=False)
        admin.delete_topic(topic)

    ask(namesrv, delete)
    done(f"topic {topic} is deleted", {"topic": topic, "is_deleted": True}, as_json=as_json)


@topic_app.command("status")
@watched
def topic_status(topic: Topic, namesrv: Namesrv = None, as_json: Json = False) -> None:
    """Offsets of each queue."""
    stats = ask_of_topic(namesrv, topic, lambda admin: admin.topic_stats(topic))
    rows = [
        (queue.broker_name, queue.queue_id, item.min_offset, item.max_offset, Moment(item.last_update_timestamp))
        for queue, item in stats.items()
    ]
    show(rows, ("broker", "queue", "min", "max", "last_written"), as_json=as_json)


@topic_app.command("lite")
@watched
def topic_lite(topic: Topic, namesrv: Namesrv = None, as_json: Json = False) -> None:
    """How many lite topics a topic of type LITE has on each broker, and the groups that read them."""
    parents = ask_of_topic(namesrv, topic, lambda admin: admin.lite_parent(topic))
    rows = [(name, info.lite_topic_count, info.ttl, sorted(info.groups)) for name, info in parents.items()]
    show(rows, ("broker", "lite_topics", "expire_after_minutes", "groups"), as_json=as_json)


@topic_app.command("lite-status")
@watched
def topic_lite_status(
    topic: Topic,
    lite_topic: Annotated[str, typer.Argument(help="one of its lite topics")],
    namesrv: Namesrv = None,
    as_json: Json = False,
) -> None:
    """Offsets of one lite topic, and how many clients are subscribed to it."""
    found = ask_of_topic(namesrv, topic, lambda admin: admin.lite_topic(topic, lite_topic))
    rows = []
    for name, info in found.items():
        place = info.topic_offset or TopicOffset()
        written = Moment(place.last_update_timestamp)
        rows.append((name, place.min_offset, place.max_offset, written, len(info.subscriber)))
    show(rows, ("broker", "min", "max", "last_written", "subscribers"), as_json=as_json)


@topic_app.command("route")
@watched
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
@watched
def topic_groups(topic: Topic, namesrv: Namesrv = None, as_json: Json = False) -> None:
    """Groups that consume the topic."""
    show(
        [(group,) for group in ask_of_topic(namesrv, topic, lambda admin: admin.topic_groups(topic))],
        ("group",),
        as_json=as_json,
    )
