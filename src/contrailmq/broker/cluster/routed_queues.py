"""All queues of a topic that consumers may read, on this broker and on others, as the NameServers know them.

For the assignment of queues (pop/assignment.py), which every consumer asks for every 20 seconds: what a NameServer said
counts for ROUTE_MS. A NameServer that does not answer leaves what was known; a topic that it does not know has none.
"""

from __future__ import annotations

import logging
from typing import Final, Protocol

from contrailmq.broker.node import BrokerNode
from contrailmq.message import MessageQueue
from contrailmq.wire.admin_requests import GetRouteInfo
from contrailmq.wire.bodies import TopicRouteData, decode_body
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import WireError
from contrailmq.wire.header import Command, Fields

log = logging.getLogger("contrailmq.broker")

ROUTE_MS: Final = 5000
ASK_TIMEOUT_S: Final = 2.0  # consumers wait 3 s for the answer
TOPICS_MAX: Final = 10_000
_READ: Final = 4


class Asking(Protocol):
    async def invoke(
        self, address: str, code: int, ext: Fields | None = None, body: bytes = b"", timeout_s: float = 3.0
    ) -> Command: ...


class RoutedQueues:
    """Owner: BrokerServer."""

    def __init__(self, node: BrokerNode, client: Asking) -> None:
        self._node = node
        self._client = client
        self._known: dict[str, tuple[int, list[MessageQueue] | None]] = {}  # topic -> when it was asked for, queues

    async def of(self, topic: str) -> list[MessageQueue] | None:
        """None when nobody has the topic, or nobody can be asked."""
        now_ms = self._node.monotonic_ms()
        asked_ms, known = self._known.get(topic, (None, None))
        if asked_ms is not None and now_ms - asked_ms < ROUTE_MS:
            return known
        for address in self._node.config.namesrv_addresses:
            try:
                answer = await self._client.invoke(
                    address, RequestCode.GET_ROUTEINFO_BY_TOPIC, GetRouteInfo(topic=topic), b"", ASK_TIMEOUT_S
                )
            except WireError as exc:
                log.debug("NameServer %s does not say where topic %s is: %s", address, topic, exc)
                continue
            if answer.code in (ResponseCode.SUCCESS, ResponseCode.TOPIC_NOT_EXIST):
                known = _queues(topic, answer) if answer.code == ResponseCode.SUCCESS else None
                if len(self._known) >= TOPICS_MAX:
                    self._known.clear()
                self._known[topic] = now_ms, known
                return known
        return known


def _queues(topic: str, answer: Command) -> list[MessageQueue]:
    route = decode_body(answer.body, TopicRouteData)
    return [
        MessageQueue(topic, queues.broker_name, queue_id)
        for queues in route.queue_datas
        if queues.perm & _READ
        for queue_id in range(queues.read_queue_nums)
    ]
