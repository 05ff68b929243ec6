"""A gRPC consumer in the words of remoting: what brokers and administrators learn of it.

Its settings say it: the kind of client, group, subscriptions, and in the user agent its language and version.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from contrailmq.client.consuming.subscription import SqlFilter, make_subscription
from contrailmq.message import ContrailError
from contrailmq.proxy.consuming import SQL
from contrailmq.proxy.protocol import Wire
from contrailmq.wire.admin_bodies import ConsumerRunningInfo
from contrailmq.wire.bodies import ConsumerData, SubscriptionData
from contrailmq.wire.codes import OUR_VERSION, version_name, version_number
from contrailmq.wire.peer_warnings import peer_warnings

PUSH_KINDS: Final = (2, 5)  # PUSH_CONSUMER, LITE_PUSH_CONSUMER
# Languages of v2.proto by their numbers. Remoting has no name for the others (Objective-C, Dart, Kotlin).
LANGUAGES: Final = {
    1: "JAVA", 2: "CPP", 3: "DOTNET", 4: "GO", 5: "RUST", 6: "PYTHON", 7: "PHP", 8: "NODE_JS", 9: "RUBY",
}  # fmt: skip


class Speaker(NamedTuple):
    """Which client speaks, as headers say it."""

    language: str
    version: int


def speaker(settings: Wire) -> Speaker:
    """A version that remoting has no number for is ours, as in the reference (ClientActivity.parseClientVersion)."""
    agent = settings.user_agent
    number = version_number(agent.version)
    return Speaker(LANGUAGES.get(agent.language, "OTHER"), OUR_VERSION if number is None else number)


def consumer_data(settings: Wire, *, version_ms: int) -> ConsumerData:
    """What heartbeats say. A subscription of a higher version replaces one of a lower."""
    return ConsumerData(
        group_name=settings.subscription.group.name,
        consume_type=_consume_type(settings),
        subscription_data_set=_subscriptions(settings, version_ms),
    )


def running_info(settings: Wire, *, stack: str | None) -> ConsumerRunningInfo:
    """What is known of a consumer. It has no queues of its own: it takes messages by POP."""
    properties = {
        "PROP_CONSUMEORDERLY": "true" if settings.subscription.fifo else "false",
        "PROP_CONSUME_TYPE": _consume_type(settings),
        "PROP_CLIENT_VERSION": version_name(speaker(settings).version),
        "PROP_CONSUMER_START_TIMESTAMP": "0",  # it is not said; tools of RocketMQ fail without a number
    }
    return ConsumerRunningInfo(jstack=stack, properties=properties, subscription_set=_subscriptions(settings, 0))


def _consume_type(settings: Wire) -> str:
    return "CONSUME_PASSIVELY" if settings.client_type in PUSH_KINDS else "CONSUME_ACTIVELY"


def _subscriptions(settings: Wire, version_ms: int) -> list[SubscriptionData]:
    found = []
    for entry in settings.subscription.subscriptions:
        topic, text = entry.topic.name, entry.expression.expression
        try:
            wanted = SqlFilter(text) if entry.expression.type == SQL else text
            found.append(make_subscription(topic, wanted, version=version_ms).as_body())
        except ContrailError as exc:  # its receives are refused too; the other topics are shown
            peer_warnings.warn("subscription of a gRPC consumer that cannot be shown", f"{topic[:128]}: {exc}")
    return found
