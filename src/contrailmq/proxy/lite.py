"""Consumers of lite topics: what they are subscribed to, and what a broker takes away from them.

Subscriptions are kept by the brokers alone, all readable ones of the parent topic: a lite topic is where its first
message went. Here is only known which clients have any, so that brokers hear when one is gone. A proxy that dies says
nothing; brokers let go of its clients when they have heard nothing for three minutes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from contrailmq.message import ContrailError
from contrailmq.proxy.clients import Client
from contrailmq.proxy.cluster import Cluster, check_consumer_group
from contrailmq.proxy.consuming import Wanted
from contrailmq.proxy.lite_messages import LITE_CONSUMERS, check_bound, check_lite_topic
from contrailmq.proxy.protocol import Wire, v2
from contrailmq.proxy.statuses import Code, Refused, status
from contrailmq.wire.bodies import encode_body
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.connection import Connection
from contrailmq.wire.header import Command
from contrailmq.wire.lite_bodies import (
    ACTIONS,
    COMPLETE_REMOVE,
    OFFSET,
    PARTIAL_ADD,
    POLICY,
    TAIL_N,
    TIMESTAMP,
    LiteSubscription,
    LiteSubscriptionCtl,
    OffsetOption,
)

_log = logging.getLogger("contrailmq.proxy")

QUOTA_MORE: Final = 300  # what one request may name beyond the quota: clients count by themselves
SYNC_S: Final = 2.0
_OPTIONS: Final = {"policy": POLICY, "offset": OFFSET, "tail_n": TAIL_N, "timestamp": TIMESTAMP}


class Lite:
    def __init__(self, cluster: Cluster, find: Callable[[str], Client | None]) -> None:
        """`find` gives a client that is connected here."""
        self._cluster = cluster
        self._find = find
        self._subscribed: dict[str, tuple[str, str]] = {}  # client id -> its parent topic and group
        cluster.instance.remoting.register(RequestCode.NOTIFY_UNSUBSCRIBE_LITE, self._taken_away)

    def wanted(self, wanted: Wanted, client_id: str) -> Wanted:
        """A receive as one of lite topics, where the client is a consumer of those."""
        return wanted._replace(lite_client=client_id) if is_lite(self._find(client_id)) else wanted

    async def sync(self, request: Wire, client_id: str) -> Wire:
        group_name, topic, names = request.group.name, request.topic.name, list(request.lite_topic_set)
        check_consumer_group(group_name)
        self._find(client_id)
        if not 0 <= request.action < len(ACTIONS):
            raise Refused(
                Code.BAD_REQUEST, f"action {request.action}: use 0 to {len(ACTIONS) - 1}, {', '.join(ACTIONS)}"
            )
        action = ACTIONS[request.action]
        if action == PARTIAL_ADD:
            for name in names:
                check_lite_topic(name)
        group = await self._cluster.group(group_name, [topic])
        check_bound(group, topic)
        if len(names) > group.lite_quota + QUOTA_MORE:
            raise Refused(
                Code.LITE_SUBSCRIPTION_QUOTA_EXCEEDED,
                f"lite subscription quota exceeded: {len(names)} lite topics, a client of group {group_name} may have "
                f"{group.lite_quota} (lite.sub.client.quota)",
            )
        entry = LiteSubscription(
            action=action,
            client_id=client_id,
            group=group_name,
            topic=topic,
            lite_topic_set=names,
            offset_option=_option(request) if action == PARTIAL_ADD else None,
            version=request.version,
        )
        if action == COMPLETE_REMOVE:
            self._subscribed.pop(client_id, None)
        else:
            self._subscribed[client_id] = topic, group_name
        await self._tell_brokers(entry)
        return v2.SyncLiteSubscriptionResponse(status=status(Code.OK))

    async def leave(self, client_id: str) -> None:
        """The client is gone."""
        known = self._subscribed.pop(client_id, None)
        if known is None:
            return
        topic, group = known
        try:
            await self._tell_brokers(
                LiteSubscription(action=COMPLETE_REMOVE, client_id=client_id, group=group, topic=topic)
            )
        except ContrailError as exc:
            _log.info("brokers let go of the lite topics of %s when it was silent for long enough: %s", client_id, exc)

    async def _tell_brokers(self, entry: LiteSubscription) -> None:
        topic = entry.topic or ""
        route = await self._cluster.route(topic)
        body = encode_body(LiteSubscriptionCtl(subscription_set=[entry]))
        names = dict.fromkeys(group.broker_name for group in route.queue_groups if group.permission & 4)
        calls = [self._tell(name, topic, body) for name in names]
        for outcome in await asyncio.gather(*calls, return_exceptions=True):
            if isinstance(outcome, BaseException):
                raise outcome

    async def _tell(self, broker: str, topic: str, body: bytes) -> None:
        address = await self._cluster.master(broker, topic)
        await self._cluster.instance.call(address, RequestCode.LITE_SUBSCRIPTION_CTL, {}, body, timeout_s=SYNC_S)

    def _taken_away(self, connection: Connection, command: Command) -> None:
        """Another client of an exclusive group has the lite topic now. One that cannot be told now is told again, when
        it says what it has."""
        client = self._find(command.ext.get("clientId", ""))
        if client is not None and client.commands is not None and not client.commands.full():
            told = v2.TelemetryCommand()
            told.notify_unsubscribe_lite_command.lite_topic = command.ext.get("liteTopic", "")
            client.commands.put_nowait(told)


def is_lite(client: Client | None) -> bool:
    return client is not None and client.settings is not None and client.settings.client_type in LITE_CONSUMERS


def _option(request: Wire) -> OffsetOption | None:
    kind = request.offset_option.WhichOneof("offset_type") if request.HasField("offset_option") else None
    return None if kind is None else OffsetOption(type=_OPTIONS[kind], value=getattr(request.offset_option, kind))
