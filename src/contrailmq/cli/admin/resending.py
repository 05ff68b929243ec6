"""`contrailmq admin message trace|resend`: what became of a message, and giving it to somebody once more."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Final

import typer

from contrailmq.cli.admin.asking import Json, Namesrv, Topic, Yes, ask, ask_of_topic, confirm, require_group
from contrailmq.cli.admin.output import Moment, counted, done, show
from contrailmq.cli.admin.secured import tls_of_flags
from contrailmq.message import ContrailError, SystemTopic

if TYPE_CHECKING:
    from contrailmq import Admin, StoredMessage
    from contrailmq.client.admin.traces import TraceStep

MessageId = Annotated[str, typer.Argument(help="a unique id or an offset message id")]
RESENDER: Final = "contrailmq_admin"


def message_trace(
    message_id: Annotated[str, typer.Argument(help="the message's unique id")],
    trace_topic: Annotated[str, typer.Option("--trace-topic", help="where clients write traces")] = SystemTopic.TRACE,
    namesrv: Namesrv = None,
    as_json: Json = False,
) -> None:
    """Who sent a message and who consumed it, in order of time, as their traces say."""

    def trace(admin: Admin) -> list[TraceStep]:
        if trace_topic not in admin.topics():
            raise ContrailError(
                f"topic {trace_topic} does not exist: clients write traces to it when tracing is on at both sides, "
                "traceTopicEnable=true at the broker"
            )
        steps = admin.trace(message_id, topic=trace_topic)
        if not steps:
            raise ContrailError(f"nobody has traced message {message_id}: tracing must be on in the client")
        return steps

    steps = ask(namesrv, trace)
    began_ms = min((step.time_ms for step in steps if step.time_ms > 0), default=0)
    rows = [
        (
            Moment(step.time_ms),
            step.time_ms - began_ms if step.time_ms > 0 else None,
            step.what,
            step.group,
            step.is_good,
            step.text,
        )
        for step in steps
    ]
    show(rows, ("time", "after_ms", "what", "group", "is_good", "detail"), as_json=as_json)


def message_resend(
    topic: Topic,
    message_id: MessageId,
    group: Annotated[str | None, typer.Option("--group", help="to one running member of this group, now")] = None,
    client: Annotated[str | None, typer.Option("--client", help="with --group: to the member of this id")] = None,
    yes: Yes = False,
    namesrv: Namesrv = None,
    as_json: Json = False,
) -> None:
    """Send a message once more, to its topic or to one member of a group. Says what that does, and asks."""

    def resend(admin: Admin) -> None:
        message = admin.message(topic, message_id)
        if message is None:
            raise ContrailError(f"topic {topic} has no message {message_id}, or it is older than three days")
        if group is None:
            if client is not None:
                raise ContrailError("--client needs --group: a member of which group?")
            _to_topic(admin, message, namesrv, yes=yes, as_json=as_json)
        else:
            require_group(admin, group)
            _to_member(admin, message, group, client, yes=yes, as_json=as_json)

    ask_of_topic(namesrv, topic, resend)


def _to_topic(admin: Admin, message: StoredMessage, namesrv: str | None, *, yes: bool, as_json: bool) -> None:
    from contrailmq import Producer
    from contrailmq.client.admin.admin_messages import copy_of

    groups = admin.topic_groups(message.topic)
    readers = f"{counted(len(groups), 'group')} ({', '.join(groups)})" if groups else "no group yet"
    confirm(
        f"send a copy of message {message.message_id} to topic {message.topic}? It is a new message with the same "
        f"body, tags, keys and properties, for every group of the topic: {readers}.",
        is_agreed=yes,
    )
    with Producer(RESENDER, namesrv=namesrv, **tls_of_flags.get()) as producer:
        result = producer.send(copy_of(message))
    facts = {
        "message_id": message.message_id,
        "topic": message.topic,
        "new_message_id": result.message_id,
        "broker": result.queue.broker_name,
        "queue_id": result.queue.queue_id,
        "queue_offset": result.queue_offset,
    }
    done(
        f"message {message.message_id} is in topic {message.topic} again, as {result.message_id} in queue "
        f"{result.queue.queue_id} of {result.queue.broker_name}",
        facts,
        as_json=as_json,
    )


def _to_member(
    admin: Admin, message: StoredMessage, group: str, client: str | None, *, yes: bool, as_json: bool
) -> None:
    members = admin.consumers(group)
    online = sorted(item.client_id for item in members.connection_set) if members is not None else []
    if not online:
        raise ContrailError(f"group {group} has no member online: start one, or send the message to its topic again")
    if client is not None and client not in online:
        raise ContrailError(f"group {group} has no member {client} online: it has {', '.join(online)}")
    chosen = client or online[0]
    confirm(
        f"let member {chosen} of group {group} consume message {message.message_id} now? Its listener is called with "
        "it, whether the group has consumed it or not; no offset moves, and a failure is not tried again.",
        is_agreed=yes,
    )
    result = admin.consume_directly(group, chosen, message)
    facts = {
        "message_id": message.message_id,
        "group": group,
        "client_id": chosen,
        "result": str(result.consume_result),
        "spent_ms": result.spent_time_mills,
        "remark": result.remark,
    }
    if result.consume_result not in ("CR_SUCCESS", "CR_COMMIT"):
        why = f": {result.remark}" if result.remark else ""
        raise ContrailError(f"member {chosen} did not consume it, it answered {result.consume_result}{why}")
    done(f"member {chosen} consumed it in {result.spent_time_mills} ms", facts, as_json=as_json)
