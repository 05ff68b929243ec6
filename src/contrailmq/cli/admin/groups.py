"""`contrailmq admin group …`: consumer groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from contrailmq.cli.admin.asking import (
    All,
    Broker,
    Cluster,
    Group,
    Json,
    Namesrv,
    Yes,
    ask,
    ask_of_group,
    confirm,
    fail,
    require_group,
)
from contrailmq.cli.admin.output import Moment, Release, counted, done, show
from contrailmq.cli.admin.watching import watched
from contrailmq.message import ContrailError, is_system_group, retry_topic
from contrailmq.wire.admin_bodies import SubscriptionGroupConfig

if TYPE_CHECKING:
    from contrailmq import Admin

Retries = Annotated[int | None, typer.Option("--retries", min=0, help="tries before a message is a dead letter")]
Consume = Annotated[bool | None, typer.Option("--consume/--no-consume", help="whether the group may consume")]
Orderly = Annotated[bool | None, typer.Option("--orderly/--no-orderly", help="whether it consumes in order")]
Broadcast = Annotated[bool | None, typer.Option("--broadcast/--no-broadcast", help="whether it may broadcast")]

group_app = typer.Typer(help="Consumer groups.", no_args_is_help=True)


@group_app.command("list")
@watched
def group_list(with_system: All = False, namesrv: Namesrv = None, as_json: Json = False) -> None:
    """The consumer groups, how many topics each consumes and its lag; those of the system with --all."""

    def groups(admin: Admin) -> list[tuple[str, int, int | None]]:
        rows: list[tuple[str, int, int | None]] = []
        for group in admin.groups():
            if with_system or not is_system_group(group):
                progress = admin.progress(group)
                lag = sum(row.lag for row in progress) if progress else None
                rows.append((group, len({row.queue.topic for row in progress} - {retry_topic(group)}), lag))
        return rows

    show(ask(namesrv, groups), ("group", "topics", "lag"), as_json=as_json)


@group_app.command("create")
def group_create(
    group: Group,
    retries: Retries = None,
    consume: Consume = None,
    orderly: Orderly = None,
    broadcast: Broadcast = None,
    lite_parent: Annotated[
        str | None, typer.Option("--lite-parent", help="the topic of type LITE whose lite topics it reads")
    ] = None,
    broker: Broker = None,
    cluster: Cluster = None,
    namesrv: Namesrv = None,
    as_json: Json = False,
) -> None:
    """Create a group, with RocketMQ's defaults for what is not given; one that exists is an error."""
    changes = _changes(retries=retries, consume=consume, orderly=orderly, broadcast=broadcast)

    def create(admin: Admin) -> list[str]:
        brokers = sorted(admin.masters(broker=broker, cluster=cluster))
        held = [name for name in admin.group_config(group) if name in brokers]
        if held:
            raise ContrailError(f"group {group} exists on {', '.join(held)}: change it with `group update`")
        attributes = {} if lite_parent is None else {"+lite.bind.topic": lite_parent}
        config = msgspec.structs.replace(SubscriptionGroupConfig(group_name=group), **changes, attributes=attributes)
        admin.create_group(config, broker=broker, cluster=cluster)
        return brokers

    brokers = ask(namesrv, create)
    done(f"group {group} is on {', '.join(brokers)}", {"group": group, "brokers": brokers}, as_json=as_json)


@group_app.command("update")
def group_update(
    group: Group,
    retries: Retries = None,
    consume: Consume = None,
    orderly: Orderly = None,
    broadcast: Broadcast = None,
    retry_queues: Annotated[int | None, typer.Option("--retry-queues", min=1, help="of its retry topic")] = None,
    namesrv: Namesrv = None,
    as_json: Json = False,
) -> None:
    """Change what is given and nothing else, on every broker that has the group."""
    changes = _changes(retries=retries, consume=consume, orderly=orderly, broadcast=broadcast)
    changes |= {} if retry_queues is None else {"retry_queue_nums": retry_queues}
    if not changes:
        fail("nothing to change: give --retries, --consume, --orderly, --broadcast or --retry-queues", code=2)

    def update(admin: Admin) -> dict[str, SubscriptionGroupConfig]:
        require_group(admin, group)
        changed = {
            # Of attributes brokers take changes, and there are none.
            name: msgspec.structs.replace(config, **changes, attributes={})
            for name, config in admin.group_config(group).items()
        }
        for name, config in changed.items():
            admin.create_group(config, broker=name)
        return changed

    rows = [
        {
            "broker": name,
            "retries": config.retry_max_times,
            "consume": config.consume_enable,
            "orderly": config.consume_message_orderly,
            "broadcast": config.consume_broadcast_enable,
        }
        for name, config in ask(namesrv, update).items()
    ]
    lines = [f"group {group} on {row['broker']} is changed" for row in rows]
    done(lines, {"group": group, "brokers": rows}, as_json=as_json)


def _changes(
    *, retries: int | None, consume: bool | None, orderly: bool | None, broadcast: bool | None
) -> dict[str, object]:
    given = {
        "retry_max_times": retries,
        "consume_enable": consume,
        "consume_message_orderly": orderly,
        "consume_broadcast_enable": broadcast,
    }
    return {name: value for name, value in given.items() if value is not None}


@group_app.command("delete")
def group_delete(group: Group, yes: Yes = False, namesrv: Namesrv = None, as_json: Json = False) -> None:
    """Delete a group and its offsets. Asks first."""

    def delete(admin: Admin) -> None:
        require_group(admin, group)
        topics = admin.group_topics(group)
        confirm(f"delete group {group} and its offsets in {counted(len(topics), 'topic')}?", is_agreed=yes)
        admin.delete_group(group)

    ask(namesrv, delete)
    done(f"group {group} is deleted", {"group": group, "is_deleted": True}, as_json=as_json)


@group_app.command("progress")
@watched
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
            Moment(row.last_time_ms),
        )
        for row in ask_of_group(namesrv, group, lambda admin: admin.progress(group, topic), topic=topic)
    ]
    columns = ("topic", "broker", "queue", "broker_offset", "consumer_offset", "lag", "last_consumed")
    show(rows, columns, as_json=as_json)
    if not as_json:
        typer.echo(f"lag: {sum(row[5] for row in rows)}")


@group_app.command("members")
@watched
def group_members(group: Group, namesrv: Namesrv = None, as_json: Json = False) -> None:
    """Who is connected and what the group subscribes to."""
    found = ask_of_group(namesrv, group, lambda admin: admin.consumers(group))
    connections = found.connection_set if found is not None else []
    rows = [(item.client_id, item.client_addr, item.language, Release(item.version)) for item in connections]
    show(rows, ("client_id", "address", "language", "version"), as_json=as_json)
