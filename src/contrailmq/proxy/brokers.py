"""Which broker a remoting request is meant for, when all clients know one address.

Clients of 5.x say it: `bname` (`n` in a send). Those before 5.0 do not, because each broker had an address of its own.
Their requests go to the broker of the topic if it has one only; a send goes to any broker of its topic, as the client
would have chosen. What cannot be told is refused: a guess could read, or move the offset of, another queue.

    WAY       requests                                              go to
    named     pulls, POP, offsets, queries, ends of transactions    the broker that is named, or the topic's only one
    a send    sends                                                 the one that is named, or one of the topic's
    each      heartbeats, leaving                                   every master: all of them must know the members
    some      members of a group, a check of filters                the one that is named, or any
    locks     order locks                                           the broker of the queues in the body
"""

from __future__ import annotations

import asyncio
import enum
from typing import Final

from contrailmq.client.errors import BrokerNotFoundError
from contrailmq.client.transport.instance import ClientInstance
from contrailmq.client.transport.routes import MASTER_ID
from contrailmq.message import ContrailError
from contrailmq.wire.bodies import ClusterInfo, LockBatchBody, decode_body
from contrailmq.wire.codes import RequestCode, ResponseCode, request_name
from contrailmq.wire.header import Command
from contrailmq.wire.requests import SendMessageV2

REMEMBER_S: Final = 20.0
ASK_GAP_S: Final = 1.0  # for a name that is not known


class Way(enum.Enum):
    NAMED = "named"
    SEND = "a send"
    EACH = "each"
    SOME = "some"
    LOCKS = "locks"


WAYS: Final[dict[int, Way]] = {
    **dict.fromkeys(
        (
            RequestCode.PULL_MESSAGE,
            RequestCode.LITE_PULL_MESSAGE,
            RequestCode.QUERY_MESSAGE,
            RequestCode.VIEW_MESSAGE_BY_ID,
            RequestCode.QUERY_CONSUMER_OFFSET,
            RequestCode.UPDATE_CONSUMER_OFFSET,
            RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
            RequestCode.GET_MAX_OFFSET,
            RequestCode.GET_MIN_OFFSET,
            RequestCode.GET_EARLIEST_MSG_STORETIME,
            RequestCode.CONSUMER_SEND_MSG_BACK,
            RequestCode.END_TRANSACTION,
            RequestCode.RECALL_MESSAGE,
            RequestCode.POP_MESSAGE,
            RequestCode.PEEK_MESSAGE,
            RequestCode.ACK_MESSAGE,
            RequestCode.BATCH_ACK_MESSAGE,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
            RequestCode.NOTIFICATION,
            RequestCode.POLLING_INFO,
        ),
        Way.NAMED,
    ),
    **dict.fromkeys(
        (
            RequestCode.SEND_MESSAGE,
            RequestCode.SEND_MESSAGE_V2,
            RequestCode.SEND_BATCH_MESSAGE,
            RequestCode.SEND_REPLY_MESSAGE,
            RequestCode.SEND_REPLY_MESSAGE_V2,
        ),
        Way.SEND,
    ),
    **dict.fromkeys((RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT), Way.EACH),
    **dict.fromkeys(
        (
            RequestCode.GET_CONSUMER_LIST_BY_GROUP,
            RequestCode.CHECK_CLIENT_CONFIG,
            RequestCode.QUERY_ASSIGNMENT,
        ),
        Way.SOME,
    ),
    **dict.fromkeys((RequestCode.LOCK_BATCH_MQ, RequestCode.UNLOCK_BATCH_MQ), Way.LOCKS),
}


class NotPassed(ContrailError):
    """The request is answered with this code and sentence, and goes nowhere."""

    def __init__(self, code: ResponseCode, text: str) -> None:
        super().__init__(text)
        self.code = code


class Brokers:
    """Names and addresses of a cluster's masters, and the brokers of topics."""

    def __init__(self, instance: ClientInstance) -> None:
        self._instance = instance
        self._loop = asyncio.get_running_loop()
        self._masters: dict[str, str] = {}
        self._asked_s = -REMEMBER_S
        self._of_topics: dict[str, tuple[float, list[str]]] = {}

    def known(self, command: Command) -> tuple[str, str] | None:
        """Name and address without asking anybody, where the request names its broker: the usual case."""
        name = named(command)
        address = self._masters.get(name)
        is_fresh = self._loop.time() - self._asked_s < REMEMBER_S
        return (name, address) if address is not None and is_fresh else None

    async def masters(self, *, wanted: str = "") -> dict[str, str]:
        """Asked for again when they are old, when `wanted` is not among them, and when there was none at all."""
        age_s = self._loop.time() - self._asked_s
        is_enough = wanted in self._masters if wanted else bool(self._masters)
        if age_s >= REMEMBER_S or (not is_enough and age_s >= ASK_GAP_S):
            self._asked_s = self._loop.time()
            answer = await self._instance.name_servers.invoke(
                RequestCode.GET_BROKER_CLUSTER_INFO, {}, timeout_s=self._instance.options.request_timeout_s
            )
            table = decode_body(answer.body, ClusterInfo).broker_addr_table
            self._masters = {
                name: data.broker_addrs.get(MASTER_ID) or data.broker_addrs[min(data.broker_addrs)]
                for name, data in table.items()
                if data.broker_addrs
            }
        return self._masters

    def forget(self) -> None:
        """A broker could not be reached: where it is now is asked for."""
        self._asked_s = min(self._asked_s, self._loop.time() - REMEMBER_S)

    async def of(self, command: Command) -> tuple[str, str]:
        """Name and address of the one broker for a request. NotPassed says why there is none."""
        name = named(command) or await self._guessed(command)
        masters = await self.masters(wanted=name)
        if name not in masters:
            raise BrokerNotFoundError(name)
        return name, masters[name]

    async def _guessed(self, command: Command) -> str:
        way, ext = WAYS[command.code], command.ext
        if way is Way.LOCKS:
            names = {queue.broker_name for queue in decode_body(command.body, LockBatchBody).mq_set}
            if len(names) == 1:
                return names.pop()
            raise NotPassed(
                ResponseCode.INVALID_PARAMETER, f"one request locks queues of {len(names)} brokers, not of one"
            )
        masters = await self.masters()
        topic = ext.get("topic") or ext.get("b") or ext.get("originTopic") or ""
        names_of_topic = await self._topic(topic) if topic else []
        candidates = [name for name in names_of_topic if name in masters] or list(masters)
        if not candidates:
            raise NotPassed(ResponseCode.SYSTEM_ERROR, "no broker is registered with the NameServer")
        if len(candidates) == 1 or way is not Way.NAMED:
            return candidates[command.opaque % len(candidates)]
        raise NotPassed(
            ResponseCode.VERSION_NOT_SUPPORTED,
            f"{request_name(command.code)} does not name its broker (bname), and {len(candidates)} could be meant: "
            "behind a proxy in front of several brokers, clients of RocketMQ 5 are needed",
        )

    async def _topic(self, topic: str) -> list[str]:
        now_s = self._loop.time()
        known = self._of_topics.get(topic)
        if known is not None and now_s - known[0] < REMEMBER_S:
            return known[1]
        try:
            names = [group.broker_name for group in (await self._instance.fetch_route(topic)).queue_groups]
        except ContrailError:
            names = []  # a topic that a send will create
        if len(self._of_topics) >= 10_000:  # names come from clients
            self._of_topics.clear()
        self._of_topics[topic] = now_s, names
        return names


def named(command: Command) -> str:
    """The broker that a request names, else empty."""
    fields: object = command.ext_fields
    if isinstance(fields, SendMessageV2):
        return fields.bname or ""
    found = getattr(fields, "bname", None)  # other requests that were decoded with their fields
    if found is not None:
        return str(found)
    ext = command.ext
    return ext.get("bname") or ext.get("n") or ext.get("brokerName") or ""
