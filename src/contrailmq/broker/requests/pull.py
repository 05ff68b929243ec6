"""Pulling: PULL_MESSAGE and LITE_PULL_MESSAGE.

    check -> subscription -> reset? -> store -> answer | hold

A found batch is never decoded: the answer is a head from a template and slices of the mapped log, handed to the socket
with one call. What lies outside memory is read by a worker thread instead, so that a consumer far behind never stops
the loop (cold_reads.py).

A pull that finds nothing is held when the client allows it, and runs once more when something arrives, when the
five-second check says so, or when its time is over. The second run answers whatever it finds and does not commit the
piggybacked offset again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Final, TypeVar

from contrailmq.broker.filters import SQL92, SqlError, Subscription, parse_subscription
from contrailmq.broker.handlers import Handlers, Refused, answer_later
from contrailmq.broker.hooks import MessagesPulled
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.requests.cold_reads import ColdReads
from contrailmq.broker.state.connections import BROADCASTING
from contrailmq.broker.state.groups import Group
from contrailmq.broker.state.long_polling import HeldPull
from contrailmq.broker.state.topics import Topic
from contrailmq.store import GetResult, GetStatus, QueueRead
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.frame import ReplyTemplate, response_code
from contrailmq.wire.header import Command
from contrailmq.wire.peer import Peer
from contrailmq.wire.requests import PullMessage

R = TypeVar("R")

COMMIT_OFFSET: Final = 1
SUSPEND: Final = 2
SUBSCRIPTION: Final = 4

SENT_ON_MS: Final = 100  # what a slave waits for a message of its own before it sends a consumer on to the master
PARSED_MAX: Final = 4096  # subscriptions of requests, kept parsed
PARSED_CHARS_MAX: Final = 512 * 1024  # of all their expressions: a compiled one takes up to 100 bytes a character

# Why a pull is not permitted: forbiddenType of the answer (code 16).
BY_BROKER: Final = 1
BY_GROUP: Final = 2
BY_TOPIC: Final = 3
BY_BROADCAST: Final = 4
BY_SUBSCRIPTION: Final = 5

_CODES: Final[dict[GetStatus, ResponseCode]] = {
    GetStatus.FOUND: ResponseCode.SUCCESS,
    GetStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    GetStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    GetStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    GetStatus.OFFSET_RESET: ResponseCode.PULL_OFFSET_MOVED,
}
_FIELDS: Final[dict[str, type[int] | type[bytes]]] = {
    "suggestWhichBrokerId": int,
    "nextBeginOffset": int,
    "minOffset": int,
    "maxOffset": int,
    "topicSysFlag": int,
    "groupSysFlag": int,
}
_TEMPLATES: Final = {
    code: ReplyTemplate(_FIELDS, code=code)
    for code in (
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    )
}
# Constants of this module are found at once by compiled code, members of an enum are looked up.
_FOUND: Final = _TEMPLATES[ResponseCode.SUCCESS]
_NOT_FOUND: Final = ResponseCode.PULL_NOT_FOUND
_AT_THE_END: Final = GetStatus.OFFSET_OVERFLOW_ONE
_BEYOND_THE_END: Final = (
    GetStatus.OFFSET_OVERFLOW_BADLY,
    GetStatus.NO_MESSAGE_IN_QUEUE,
    GetStatus.NO_MATCHED_LOGIC_QUEUE,
)
assert _CODES[_AT_THE_END] is _NOT_FOUND


class Pull:
    """One request on its way through here: who asks, what for, and as whom.

    It is held at most once: `may_hold` ends then, and the second run answers whatever it finds. What both runs look at
    is taken from the header once.
    """

    __slots__ = (
        "began_ns", "command", "connection", "group", "header", "may_hold", "offset", "processor", "queue_id",
        "subscription", "topic",
    )  # fmt: skip

    def __init__(
        self,
        processor: PullProcessor,
        connection: Peer,
        command: Command,
        header: PullMessage,
        group: Group,
        topic: Topic,
        subscription: Subscription,
    ) -> None:
        self.processor = processor
        self.connection = connection
        self.command = command
        self.header = header
        self.queue_id = header.queue_id
        self.offset = header.queue_offset
        self.group = group
        self.topic = topic
        self.subscription = subscription
        self.may_hold = True
        self.began_ns = processor.latencies.began_ns

    def reply_later(self, answer: Callable[[], bytes | None]) -> None:
        """Answer outside of the handler, with a refusal where `answer` raises one."""
        answer_later(self.connection, self.command, answer, self._answered)

    def _answered(self, answer: bytes) -> None:
        self.note(response_code(answer))

    def note(self, code: int) -> None:
        """It is answered."""
        self.processor.latencies.note(self.command.code, code, self.began_ns, is_long_polling=not self.may_hold)

    def resume(self) -> None:
        """Something has arrived, or its time is over."""
        self.may_hold = False
        self.reply_later(self._again)

    def _again(self) -> bytes | None:
        return self.processor.pull_again(self)


class PullProcessor:
    """Serves pulls. `workers` read what is not in memory."""

    def __init__(self, node: BrokerNode, workers: Executor) -> None:
        self._node = node
        self._reader = node.store.reader
        self.latencies = node.latencies
        self._cold = ColdReads(workers)
        self._parsed: dict[tuple[str, str, str | None], Subscription] = {}
        self.parsed_chars = 0  # of the expressions that are kept
        self.parsed_chars_max = PARSED_CHARS_MAX

    def register(self, handlers: Handlers) -> None:
        handlers.register(RequestCode.PULL_MESSAGE, self.pull)
        handlers.register(RequestCode.LITE_PULL_MESSAGE, self.lite_pull)

    def pull(self, connection: Peer, command: Command) -> bytes | None:
        fields: object = command.ext_fields  # what `header` looks at first, without the call
        header = fields if isinstance(fields, PullMessage) else command.header(PullMessage)
        return self._pull(connection, command, header)

    def lite_pull(self, connection: Peer, command: Command) -> bytes | None:
        if not self._node.config.lite_pull_message_enable:
            raise _forbidden(BY_BROKER, "lite pull is switched off: litePullMessageEnable=false")
        return self._pull(connection, command, command.header(PullMessage))

    def _pull(self, connection: Peer, command: Command, header: PullMessage) -> bytes | None:
        node = self._node
        group, topic = self._checked(header.consumer_group, header.topic, header.queue_id)
        pull = Pull(self, connection, command, header, group, topic, self._subscription(header, group))
        group_name, name, queue_id = group.name, topic.name, pull.queue_id
        if node.offsets.has_resets and node.config.use_server_side_reset_offset:
            reset = node.offsets.take_reset(group_name, name, queue_id)
            if reset is not None:
                return self._moved(pull, reset)
        if header.sys_flag & COMMIT_OFFSET and not node.is_slave and header.commit_offset >= 0:
            node.commit_offset(group_name, name, queue_id, header.commit_offset)
        node.offsets.note_pull(group_name, name, queue_id, pull.offset)
        # A slave's writer counts no offsets of queues: it has its master's bytes.
        if node.is_dispatch_due and (node.is_slave or self._reader.is_behind(name, queue_id)):
            node.dispatch_now()
        result = None if self._is_for_workers(pull) else self._read(node.store.get_slices_warm, pull)
        if result is None:
            self._pull_cold(pull)
            return None
        return self._answer(pull, result)

    def pull_again(self, pull: Pull) -> bytes | None:
        """The second run of a pull that was held."""
        node, offsets = self._node, self._node.offsets
        # What was allowed when it was held may not be any more.
        pull.group, pull.topic = self._checked(pull.group.name, pull.topic.name, pull.queue_id)
        if offsets.has_resets:
            reset = offsets.take_reset(pull.group.name, pull.topic.name, pull.queue_id)
            if reset is not None:
                return self._moved(pull, reset)
        if self._is_for_workers(pull):
            self._pull_cold(pull)
            return None
        result = self._read(node.store.get_slices_warm, pull)
        if result is None:  # what has just arrived is in memory, so this is somebody far behind whose time is over
            result = self._read(node.store.get_slices_sound, pull)
        return self._answer(pull, result)

    # --- checks

    def _checked(self, group_name: str, topic_name: str, queue_id: int) -> tuple[Group, Topic]:
        node = self._node
        if node.is_slave and not node.config.slave_read_enable:
            raise Refused(
                ResponseCode.SYSTEM_BUSY,
                "[REJECTREQUEST]system busy: this broker is a slave that serves no reads (slaveReadEnable=false): pull "
                "from its master",
            )
        if not node.config.is_readable:
            raise _forbidden(
                BY_BROKER,
                f"broker[{node.config.broker_name}] is not readable: brokerPermission={node.config.broker_permission}",
            )
        group = node.group_to_read(group_name)
        if group is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST,
                f"subscription group [{group_name[:64]}] does not exist: create it (updateSubGroup) or "
                "enable autoCreateSubscriptionGroup",
            )
        if not group.consume_enable:
            raise _forbidden(BY_GROUP, f"subscription group {group.name} may not consume: consumeEnable=false")
        topic = node.topic_to_read(topic_name)
        if topic is None:
            raise Refused(
                ResponseCode.TOPIC_NOT_EXIST,
                f"topic[{topic_name[:128]}] not exist, apply first please: nothing was sent to it, nobody created it",
            )
        if not topic.is_readable:
            raise _forbidden(BY_TOPIC, f"topic[{topic.name}] is not readable: perm={topic.perm}")
        if node.groups.is_forbidden(group.name, topic.name):
            raise _forbidden(BY_SUBSCRIPTION, f"group {group.name} may not read topic {topic.name}")
        if not 0 <= queue_id < topic.read_queues:
            raise Refused(
                ResponseCode.INVALID_PARAMETER,
                f"queueId {queue_id} is illegal: topic {topic.name} has {topic.read_queues} queues to read",
            )
        return group, topic

    def _subscription(self, header: PullMessage, group: Group) -> Subscription:
        if header.sys_flag & SUBSCRIPTION:
            subscription = self._of_request(header)
        else:
            subscription = self._of_heartbeat(header, group)
        if subscription.expression_type == SQL92 and not self._node.config.enable_property_filter:
            raise Refused(ResponseCode.SYSTEM_ERROR, "the broker does not filter by SQL92: enablePropertyFilter=false")
        if subscription.error:
            raise Refused(ResponseCode.FILTER_DATA_NOT_EXIST, subscription.error)
        return subscription

    def _of_request(self, header: PullMessage) -> Subscription:
        key = (header.topic, header.subscription or "", header.expression_type or None)
        known = self._parsed.get(key)
        if known is None:
            try:
                known = parse_subscription(*key)
            except SqlError as exc:
                raise Refused(
                    ResponseCode.SUBSCRIPTION_PARSE_FAILED,
                    f"the subscription of group {header.consumer_group} to {header.topic} cannot be used: {exc}",
                ) from None
            size = len(header.topic) + len(header.subscription or "")
            if len(self._parsed) >= PARSED_MAX or self.parsed_chars + size > self.parsed_chars_max:
                self._parsed.clear()
                self.parsed_chars = 0
            self._parsed[key] = known
            self.parsed_chars += size
        return known

    def _of_heartbeat(self, header: PullMessage, group: Group) -> Subscription:
        live = self._node.clients.consumer_group(group.name)
        if live is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"the consumer's group {group.name} is not online: no heartbeat of it reached this broker",
            )
        if live.message_model == BROADCASTING and not group.consume_broadcast_enable:
            raise _forbidden(BY_BROADCAST, f"group {group.name} may not consume by broadcast")
        subscription = live.subscriptions.get(header.topic)
        if subscription is None:
            raise Refused(
                ResponseCode.SUBSCRIPTION_NOT_EXIST,
                f"group {group.name} has not subscribed to {header.topic}: all its consumers must subscribe alike",
            )
        if subscription.version < header.sub_version:
            raise Refused(
                ResponseCode.SUBSCRIPTION_NOT_LATEST,
                f"the broker knows version {subscription.version} of the subscription of {group.name} to "
                f"{header.topic}, the client has {header.sub_version}: wait for the next heartbeat",
            )
        return subscription

    # --- reading and answering

    def _read(self, read: QueueRead[R], pull: Pull) -> R:
        """Within the store's limits (maxTransfer...), which are RocketMQ's; maxMsgBytes is ignored as there.

        Clients of ours raise them with maxTransferBytes, up to limits of this broker.
        """
        config, header = self._node.config, pull.header
        count, count_max = header.max_msg_nums, config.pull_count_max
        return read(
            pull.topic.name,
            pull.queue_id,
            pull.offset,
            1 if count < 1 else count_max if count > count_max else count,
            max_bytes=config.pull_bytes_max,
            bulk_bytes=header.max_transfer_bytes or 0,
            filter=pull.subscription.filter,
        )

    def _answer(self, pull: Pull, result: GetResult) -> bytes | None:
        if result.status is not GetStatus.FOUND:
            return self._answer_nothing(pull, result)
        node, group, topic, size_bytes = self._node, pull.group, pull.topic, result.size_bytes
        node.statistics.note_get(group.name, topic.name, result.count, size_bytes)
        if node.hooks.on_pulled:
            self._show(pull, result)
        suggested = self._replica_for(group) if result.suggest_slave else 0
        values = (suggested, result.next_offset, result.min_offset, result.max_offset, topic.sys_flag, group.sys_flag)
        head = _FOUND.render(pull.command, values, body_bytes=size_bytes)
        parts: list[bytes | memoryview] = [head]
        parts += result.slices
        pull.connection.reply_parts(parts, len(head) + size_bytes)
        pull.note(0)
        return None

    def _answer_nothing(self, pull: Pull, result: GetResult) -> bytes | None:
        node, status, next_offset = self._node, result.status, result.next_offset
        node.statistics.get_missed.value += 1
        if status is _AT_THE_END:  # as a rule
            code = _NOT_FOUND
        elif status in _BEYOND_THE_END and self._reader.is_logged(pull.topic.name, pull.queue_id, pull.offset):
            # Under SYNC_FLUSH readers see what is synced, and a slave may have shown to them what is not yet: it is
            # coming. RocketMQ's masters show at once what they have, and move back who is ahead of their queues.
            code, next_offset = _NOT_FOUND, pull.offset
        elif status in (GetStatus.NO_MATCHED_LOGIC_QUEUE, GetStatus.NO_MESSAGE_IN_QUEUE):
            code, next_offset = ResponseCode.PULL_OFFSET_MOVED, 0
        else:
            code = _CODES[status]
        if node.is_slave:
            code, next_offset = self._on_slave(pull, code, next_offset)
        is_sent_on = code is ResponseCode.PULL_RETRY_IMMEDIATELY and node.is_slave and next_offset <= pull.offset
        if (
            (code is _NOT_FOUND or is_sent_on)
            and pull.may_hold
            and pull.header.sys_flag & SUSPEND
            and node.is_accepting
            and self._try_hold(pull, min(SENT_ON_MS, self._hold_ms(pull)) if is_sent_on else self._hold_ms(pull))
        ):
            return None
        values = (0, next_offset, result.min_offset, result.max_offset, pull.topic.sys_flag, pull.group.sys_flag)
        return _TEMPLATES[code].render(pull.command, values)

    def _replica_for(self, group: Group) -> int:
        """Whom a consumer far behind is to ask next: a slave, where slaves serve reads and one is up to date."""
        node = self._node
        if not node.config.slave_read_enable or not (node.is_slave or node.replicas.slaves_in_sync()):
            return 0
        return group.which_broker_when_slow

    def _on_slave(self, pull: Pull, code: ResponseCode, next_offset: int) -> tuple[ResponseCode, int]:
        """What a slave answers where it has no messages: its queues may end before its master's.

        The consumer is sent to the master; one that asks for what is not here never gets another offset. It waits for
        SENT_ON_MS first: a client whose route lacks the master comes back here, at once and again and again, until its
        next look at the route. Where there is no master it waits as it would there. RocketMQ's slaves send on without a
        wait in both cases.
        """
        node = self._node
        if node.has_master and code is not ResponseCode.PULL_OFFSET_MOVED:
            return ResponseCode.PULL_RETRY_IMMEDIATELY, next_offset
        if code is ResponseCode.PULL_OFFSET_MOVED and not node.store.config.offset_check_in_slave:
            waits = ResponseCode.PULL_RETRY_IMMEDIATELY if node.has_master else ResponseCode.PULL_NOT_FOUND
            return waits, pull.offset
        return code, next_offset

    def _show(self, pull: Pull, result: GetResult) -> None:
        self._node.hooks.pulled(
            MessagesPulled(
                client=pull.connection.address,
                group=pull.group.name,
                topic=pull.topic.name,
                queue_id=pull.queue_id,
                first_offset=pull.offset,
                next_offset=result.next_offset,
                count=result.count,
                size_bytes=result.size_bytes,
            )
        )

    def _moved(self, pull: Pull, offset: int) -> bytes:
        """The group's offset was reset: it goes on from there."""
        store, group, topic, queue_id = self._node.store, pull.group, pull.topic, pull.queue_id
        low, high = store.min_offset(topic.name, queue_id), store.max_offset(topic.name, queue_id)
        values = (0, offset, low, high, topic.sys_flag, group.sys_flag)
        return _TEMPLATES[ResponseCode.PULL_OFFSET_MOVED].render(pull.command, values)

    def _hold_ms(self, pull: Pull) -> int:
        config = self._node.config
        return pull.header.suspend_timeout_millis if config.long_polling_enable else config.short_polling_time_mills

    def _try_hold(self, pull: Pull, timeout_ms: int) -> bool:
        node, subscription = self._node, pull.subscription
        held = HeldPull(
            offset=pull.offset,
            deadline_ms=node.monotonic_ms() + (timeout_ms if timeout_ms > 0 else 0),
            filter=subscription.filter,
            connection=pull.connection,
            resume=pull.resume,
            is_heavy=subscription.is_heavy,
        )
        return node.held.try_hold(pull.topic.name, pull.queue_id, held)

    # --- what is not in memory, or takes long

    def _is_for_workers(self, pull: Pull) -> bool:
        """Whether there are messages to match, by an expression that takes long."""
        if not pull.subscription.is_heavy:
            return False
        return pull.offset < self._reader.max_offset(pull.topic.name, pull.queue_id)

    def _pull_cold(self, pull: Pull) -> None:
        """Read in a worker and answer when it is done."""

        def answer(finished: asyncio.Future[GetResult]) -> None:
            pull.reply_later(lambda: self._answer(pull, finished.result()))

        self._cold.read(pull.connection, lambda: self._read(self._node.store.get_slices_cold, pull), answer)


def _forbidden(kind: int, remark: str) -> Refused:
    return Refused(ResponseCode.NO_PERMISSION, remark, {"forbiddenType": kind})
