"""Queues that the broker assigns: QUERY_ASSIGNMENT (400), SET_MESSAGE_REQUEST_MODE (401), GET_ALL_MESSAGE_REQUEST_MODE.

A consumer with `clientRebalance=false` asks a broker which queues are its own and how to read them. The mode of a group
on a topic is PULL or POP (`config/messageRequestMode.json`, the reference's file). With PULL a strategy divides the
queues. With POP a queue may have several readers: `popShareQueueNum` says how many neighbours' shares a client takes
beside its own; with 0, or enough for all, everybody pops all queues of each broker (queue -1).

No list means: keep what you have. An empty one means: you have none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import msgspec

from contrailmq.broker.handlers import Handlers, Refused, success
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.state import config_files
from contrailmq.broker.state.config_files import Json, TableSaveError
from contrailmq.broker.state.connections import BROADCASTING
from contrailmq.broker.state.persistence import TableSaver
from contrailmq.client.rebalance import AllocationStrategy, AverageByCircleStrategy, AverageStrategy
from contrailmq.message import RETRY_PREFIX, MessageQueue
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import RemoteProtocolError
from contrailmq.wire.header import Command
from contrailmq.wire.peer import Peer
from contrailmq.wire.pop_records import QueryAssignmentBody, RequestModeBody

FILE_NAME: Final = "messageRequestMode.json"
MODES_MAX: Final = 100_000
_MAP: Final = "messageRequestModeMap"
_STRATEGIES: Final[dict[str, AllocationStrategy]] = {
    "AVG": AverageStrategy(),
    "AVG_BY_CIRCLE": AverageByCircleStrategy(),
}

T = TypeVar("T")
Route = Callable[[str], Awaitable[list[MessageQueue] | None]]


class Assignment:
    """Owner: the loop. `route` gives all queues of a topic, of this broker and others; None where it has none."""

    def __init__(self, node: BrokerNode, saver: TableSaver) -> None:
        self._node = node
        self._saver = saver
        self._modes: dict[str, dict[str, RequestModeBody]] = {}  # topic -> group -> mode
        self.route: Route = self._own_queues
        config_files.load(node.config_path / FILE_NAME, self._read)
        saver.add(FILE_NAME, self._snapshot)

    def register(self, handlers: Handlers) -> None:
        handlers.register_slow(RequestCode.QUERY_ASSIGNMENT, self.query)
        handlers.register_slow(RequestCode.SET_MESSAGE_REQUEST_MODE, self.set_mode)
        handlers.register(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, self.all_modes)

    # --- modes

    async def set_mode(self, connection: Peer, command: Command) -> bytes | None:
        node, wish = self._node, _body(command, RequestModeBody)
        if wish.topic.startswith(RETRY_PREFIX):
            raise Refused(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        if node.topics.get(wish.topic) is None:
            raise Refused(ResponseCode.TOPIC_NOT_EXIST, f"topic[{wish.topic[:128]}] not exist")
        if node.groups.get(wish.consumer_group) is None:
            raise Refused(ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "subscription group does not exist")
        if wish.mode not in ("PULL", "POP"):
            raise Refused(ResponseCode.INVALID_PARAMETER, f"mode {wish.mode[:32]!r} is not known: PULL or POP")
        if sum(map(len, self._modes.values())) >= MODES_MAX:
            raise Refused(ResponseCode.SYSTEM_ERROR, f"{MODES_MAX} modes are set, no more are kept")
        self._modes.setdefault(wish.topic, {})[wish.consumer_group] = wish
        try:
            await self._saver.save(FILE_NAME)
        except TableSaveError as exc:
            raise Refused(ResponseCode.SYSTEM_ERROR, str(exc)) from exc
        return success(command)

    def all_modes(self, connection: Peer, command: Command) -> bytes | None:
        return success(command, None, msgspec.json.encode({_MAP: self._modes}))

    def _mode(self, topic: str, group: str) -> RequestModeBody:
        known = self._modes.get(topic, {}).get(group)
        if known is not None:
            return known
        config = self._node.config
        if topic.startswith(RETRY_PREFIX) or config.default_message_request_mode == "PULL":
            return RequestModeBody(topic=topic, consumer_group=group)
        return RequestModeBody(
            topic=topic, consumer_group=group, mode="POP", pop_share_queue_num=config.default_pop_share_queue_num
        )

    def _read(self, data: Json) -> None:
        table = config_files.entries(data, _MAP)
        self._modes = msgspec.convert(table, dict[str, dict[str, RequestModeBody]])

    def _snapshot(self) -> Callable[[], str]:
        table = {_MAP: msgspec.to_builtins(self._modes)}
        return lambda: config_files.pretty(table)

    # --- queues

    async def query(self, connection: Peer, command: Command) -> bytes | None:
        asked = _body(command, QueryAssignmentBody)
        mode = self._mode(asked.topic, asked.consumer_group)
        queues = await self._assigned(asked, mode)
        if queues is None:
            return success(command, None, b"{}")
        entries = [
            {
                "messageQueue": {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic},
                "mode": mode.mode,
            }
            for queue in queues
        ]
        return success(command, None, msgspec.json.encode({"messageQueueAssignments": entries}))

    async def _assigned(self, asked: QueryAssignmentBody, mode: RequestModeBody) -> list[MessageQueue] | None:
        queues = await self.route(asked.topic)
        if not queues:
            return None
        if asked.message_model == BROADCASTING or not self._node.config.server_load_balancer_enable:
            return queues
        live = self._node.clients.consumer_group(asked.consumer_group)
        strategy = _STRATEGIES.get(asked.strategy_name or "")
        clients = [] if live is None else sorted({member.client_id for member in live.members.values()})
        if not clients or strategy is None:
            return None
        if mode.mode == "PULL":
            return _share(strategy, asked.client_id, queues, clients)
        return _popped(strategy, asked.client_id, queues, clients, shared=mode.pop_share_queue_num)

    async def _own_queues(self, topic: str) -> list[MessageQueue] | None:
        known = self._node.topics.get(topic)
        if known is None or not known.is_readable:
            return None
        return [MessageQueue(topic, self._node.config.broker_name, number) for number in range(known.read_queues)]


def _share(
    strategy: AllocationStrategy, client_id: str, queues: Sequence[MessageQueue], clients: Sequence[str]
) -> list[MessageQueue]:
    return strategy.allocate(client_id, sorted(queues), clients) if client_id in clients else []


def _popped(
    strategy: AllocationStrategy,
    client_id: str,
    queues: Sequence[MessageQueue],
    clients: Sequence[str],
    *,
    shared: int,
) -> list[MessageQueue]:
    """What a client pops, of `clients` that are sorted."""
    if shared <= 0 or shared >= len(clients) - 1:
        return list(dict.fromkeys(queue._replace(queue_id=-1) for queue in sorted(queues)))
    if client_id not in clients:
        return []
    index = clients.index(client_id)
    if len(clients) > len(queues):
        return [sorted(queues)[index % len(queues)]]
    found: list[MessageQueue] = []
    for step in range(shared + 1):
        found += _share(strategy, clients[(index + step) % len(clients)], queues, clients)
    return list(dict.fromkeys(found))


def _body(command: Command, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(command.body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise RemoteProtocolError(f"the body of request {command.code} cannot be read: {exc}") from exc
