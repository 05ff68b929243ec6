"""The calls of `MessagingService`, one method each: what is wrong with a request, and who answers it.

Every method raises ContrailError for what went wrong; `server` turns that into the status of its answer. The method of
a call has its name in small letters: `QueryRoute` is `query_route`. Those that answer with several parts write them one
by one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final, TypeAlias

from contrailmq.client.errors import number
from contrailmq.client.records import decode_messages
from contrailmq.client.transport.routes import PERMISSION_READ, PERMISSION_WRITE, QueueGroup, TopicRoute
from contrailmq.message import ContrailError, MessageQueue
from contrailmq.proxy.clients import COMMANDS_MAX, Client, Clients
from contrailmq.proxy.clock import now_ms
from contrailmq.proxy.cluster import Cluster, check_consumer_group
from contrailmq.proxy.consuming import ANY_QUEUE, BATCH_MAX, SQL, Consuming, Received, Wanted
from contrailmq.proxy.lite import Lite
from contrailmq.proxy.lite_messages import with_lite_topic
from contrailmq.proxy.messages import deliver, ms_of, set_time
from contrailmq.proxy.producing import Producing
from contrailmq.proxy.protocol import Wire, v2
from contrailmq.proxy.renewing import INVISIBLE_MS, RELEASE_MS, Renewals
from contrailmq.proxy.rpc.calls import Call
from contrailmq.proxy.statuses import Code, Refused, outcome, overall, status
from contrailmq.wire.codes import RequestCode, ResponseCode

INVISIBLE_MS_MIN: Final = 10_000
INVISIBLE_MS_MAX: Final = 12 * 3_600_000
POLLING_MS_MIN: Final = 5_000
POLLING_MS_MAX: Final = 20_000
RESERVE_MS: Final = 100
REQUEST_S: Final = 3.0
NONE, READ, WRITE, BOTH = 1, 2, 3, 4
END, AT_TIME = 1, 2  # 0 is the beginning
PULL_FLAGS: Final = 2 | 4  # wait for messages; the subscription is in the request
LONGEST_S: Final = 86_400.0

Context: TypeAlias = Call


class Service:
    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._producing = Producing(cluster)
        self._consuming = Consuming(cluster)
        self.renewals = Renewals(self._consuming)
        self.clients = Clients(cluster, gone=self._gone)
        self.lite = Lite(cluster, self.clients.find)

    async def _gone(self, client: str) -> None:
        await asyncio.gather(self.renewals.release(client), self.lite.leave(client))

    # --- routes and life

    async def query_route(self, request: Wire, context: Context) -> Wire:
        topic = request.topic.name
        route = await self._cluster.route(topic)
        types = await self._cluster.message_types(topic)
        answer = v2.QueryRouteResponse(status=status(Code.OK))
        for group in route.queue_groups:
            broker = route.broker(group.broker_name)
            for broker_id in broker.addresses if broker is not None else ():
                for number_, permission in enumerate(permissions(group)):
                    queue = answer.message_queues.add(id=number_, permission=permission, accept_message_types=types)
                    queue.topic.CopyFrom(request.topic)
                    _name_broker(queue.broker, group.broker_name, broker_id, request.endpoints)
        return answer

    async def heartbeat(self, request: Wire, context: Context) -> Wire:
        client = self.clients.find(client_id(context))
        if client is None or client.settings is None:
            raise Refused(
                Code.UNRECOGNIZED_CLIENT_TYPE, "the client's settings are not known here: send them by Telemetry"
            )
        return v2.HeartbeatResponse(status=status(Code.OK))

    async def notify_client_termination(self, request: Wire, context: Context) -> Wire:
        await self.clients.forget(client_id(context))
        return v2.NotifyClientTerminationResponse(status=status(Code.OK))

    async def telemetry(self, requests: AsyncIterator[Wire], context: Context) -> AsyncIterator[Wire]:
        """Settings in, settings out, and what the server wants to know, until either side ends it."""
        client = self.clients.known(client_id(context))
        commands: asyncio.Queue[Wire | None] = asyncio.Queue(COMMANDS_MAX)
        client.commands = commands
        reading = asyncio.create_task(self._read(client, requests, commands))
        try:
            while (command := await commands.get()) is not None:
                yield command
                commands.task_done()
            reading.result()  # what ended it, if it was not the client
        finally:
            reading.cancel()
            if client.commands is commands:
                client.commands = None

    async def _read(self, client: Client, requests: AsyncIterator[Wire], commands: asyncio.Queue[Wire | None]) -> None:
        try:
            async for command in requests:
                self.clients.find(client.id)
                kind = command.WhichOneof("command")
                if kind == "settings":
                    await commands.join()  # who does not read what we say is not listened to
                    await commands.put(await self.clients.settle(client, command.settings))
                elif kind in ("thread_stack_trace", "verify_message_result"):
                    self.clients.answered(client, command)
        finally:
            await commands.put(None)

    # --- producers

    async def send_message(self, request: Wire, context: Context) -> Wire:
        self.clients.find(client_id(context))
        return await self._producing.send(list(request.messages), context.peer(), left_s(context))

    async def end_transaction(self, request: Wire, context: Context) -> Wire:
        return await self._producing.end(request, left_s(context))

    async def recall_message(self, request: Wire, context: Context) -> Wire:
        return await self._producing.recall(request, left_s(context))

    # --- consumers

    async def query_assignment(self, request: Wire, context: Context) -> Wire:
        """Every member gets the same list: messages are shared out by POP, not by queues."""
        topic = request.topic.name
        check_consumer_group(request.group.name)
        route = await self._cluster.route(topic)
        group = await self._cluster.group(request.group.name, [topic])
        answer = v2.QueryAssignmentResponse(status=status(Code.OK))
        for queues in _readable(route):
            for queue_id in range(queues.read_queues) if group.is_fifo and not group.lite_parent else (ANY_QUEUE,):
                queue = answer.assignments.add().message_queue
                queue.id, queue.permission = queue_id, READ
                queue.topic.CopyFrom(request.topic)
                _name_broker(queue.broker, queues.broker_name, 0, request.endpoints)
        if not answer.assignments:
            raise Refused(Code.FORBIDDEN, f"no readable queue: no master serves topic {topic} now")
        return answer

    async def receive_message(self, request: Wire, context: Context) -> None:
        """Status, messages, time: each in an answer of its own."""
        client = client_id(context)
        wanted = self.lite.wanted(await self._wanted(request, context), client)
        received = await self._receive(client, wanted)
        if not received:
            await context.write(
                v2.ReceiveMessageResponse(status=status(Code.MESSAGE_NOT_FOUND, "no message within the polling time"))
            )
            return
        left = list(received)
        try:
            await context.write(v2.ReceiveMessageResponse(status=status(Code.OK)))
            for one in received:
                if request.auto_renew:
                    self.clients.known(client)  # it may never say its settings: it is gone when nothing is heard of it
                    self.renewals.hold(client, wanted.group.name, wanted.topic, one.handle)
                await context.write(_received(one, wanted))
                left.pop(0)
            done = v2.ReceiveMessageResponse()
            set_time(done.delivery_timestamp, now_ms())
            await context.write(done)
        finally:
            if left:  # the stream broke: others get soon what was not written
                await self._give_back(client, wanted, left)

    async def _receive(self, client: str, wanted: Wanted) -> list[Received]:
        """When the client leaves meanwhile, the pop goes on: the broker does not know, and may have given messages."""
        receiving = asyncio.create_task(self._consuming.receive(wanted))
        try:
            return await asyncio.shield(receiving)
        except asyncio.CancelledError:
            self._cluster.instance.spawn(self._give_back_found(client, wanted, receiving), "give-back")
            raise

    async def _give_back_found(self, client: str, wanted: Wanted, receiving: asyncio.Task[list[Received]]) -> None:
        try:
            found = await receiving
        except ContrailError:
            return  # it found nothing, or nothing that is known here
        await self._give_back(client, wanted, found)

    async def _give_back(self, client: str, wanted: Wanted, left: list[Received]) -> None:
        for one in left:
            try:
                await self.renewals.change(client, wanted.group.name, wanted.topic, one.handle.text, RELEASE_MS)
            except ContrailError:  # it comes back at the end of its invisible time
                self.renewals.drop(client, one.handle.text)

    async def _wanted(self, request: Wire, context: Context) -> Wanted:
        group_name, topic = request.group.name, request.message_queue.topic.name
        check_consumer_group(group_name)
        invisible_ms = INVISIBLE_MS if request.auto_renew else ms_of(request.invisible_duration)
        if not INVISIBLE_MS_MIN <= invisible_ms <= INVISIBLE_MS_MAX:
            raise Refused(
                Code.ILLEGAL_INVISIBLE_TIME,
                f"the invisible time is {invisible_ms} ms: give {INVISIBLE_MS_MIN} to {INVISIBLE_MS_MAX}",
            )
        return Wanted(
            await self._cluster.group(group_name, [topic]),
            topic,
            request.message_queue.broker.name,
            request.message_queue.id,
            min(max(request.batch_size, 1), BATCH_MAX),
            invisible_ms,
            _polling_ms(request, context),
            request.filter_expression.type,
            request.filter_expression.expression,
            request.attempt_id,
        )

    async def ack_message(self, request: Wire, context: Context) -> Wire:
        client, group, topic = client_id(context), request.group.name, request.topic.name
        check_consumer_group(group)
        self.clients.find(client)
        if not request.entries:
            raise Refused(Code.BAD_REQUEST, "the request acknowledges nothing")
        entries, results = request.entries, []
        if len(entries) == 1:  # nearly always: no task for it
            results.append(await self._acknowledged(client, group, topic, entries[0]))
        else:
            for at in range(0, len(entries), BATCH_MAX):
                some = [self._acknowledged(client, group, topic, entry) for entry in entries[at : at + BATCH_MAX]]
                results += await asyncio.gather(*some)
        return v2.AckMessageResponse(status=overall([result.status for result in results]), entries=results)

    async def _acknowledged(self, client: str, group: str, topic: str, entry: Wire) -> Wire:
        """What became of one of them. Several of a request reach the broker in one wakeup."""
        shown = entry.receipt_handle
        text = with_lite_topic(shown, entry.lite_topic)
        try:
            await self.renewals.settle(client, text, lambda handle: self._consuming.acknowledge(group, topic, handle))
            said = status(Code.OK)
        except ContrailError as exc:
            said = outcome(exc)
        return v2.AckMessageResultEntry(message_id=entry.message_id, receipt_handle=shown, status=said)

    async def change_invisible_duration(self, request: Wire, context: Context) -> Wire:
        client, group, topic = client_id(context), request.group.name, request.topic.name
        check_consumer_group(group)
        self.clients.find(client)
        invisible_ms = ms_of(request.invisible_duration)
        if not 0 <= invisible_ms <= INVISIBLE_MS_MAX:
            raise Refused(
                Code.ILLEGAL_INVISIBLE_TIME, f"the invisible time is {invisible_ms} ms: give 0 to {INVISIBLE_MS_MAX}"
            )
        text = with_lite_topic(request.receipt_handle, request.lite_topic)
        changed = await self.renewals.change(client, group, topic, text, invisible_ms, suspends=request.suspend)
        return v2.ChangeInvisibleDurationResponse(status=status(Code.OK), receipt_handle=changed.text)

    async def forward_message_to_dead_letter_queue(self, request: Wire, context: Context) -> Wire:
        client, group = client_id(context), request.group.name
        check_consumer_group(group)
        self.clients.find(client)
        await self.renewals.settle(
            client,
            with_lite_topic(request.receipt_handle, request.lite_topic),
            lambda handle: self._consuming.forward(group, request.topic.name, handle, request.message_id),
        )
        return v2.ForwardMessageToDeadLetterQueueResponse(status=status(Code.OK))

    # --- queues by hand

    async def pull_message(self, request: Wire, context: Context) -> None:
        group, queue = request.group.name, queue_of(request.message_queue)
        check_consumer_group(group)
        await self._cluster.route(queue.topic)
        polling_ms = min(max(ms_of(request.long_polling_timeout), 0), POLLING_MS_MAX)
        ext = {
            "consumerGroup": group,
            "topic": queue.topic,
            "queueId": queue.queue_id,
            "queueOffset": request.offset,
            "maxMsgNums": min(max(request.batch_size, 1), BATCH_MAX),
            "sysFlag": PULL_FLAGS,
            "commitOffset": 0,
            "suspendTimeoutMillis": polling_ms,
            "subVersion": 0,
            "subscription": request.filter_expression.expression or "*",
            "expressionType": "SQL92" if request.filter_expression.type == SQL else "TAG",
        }
        answer = await self._cluster.instance.call(
            await self._cluster.master(queue.broker_name, queue.topic),
            RequestCode.PULL_MESSAGE,
            ext,
            timeout_s=polling_ms / 1000 + REQUEST_S,
            accept=(
                0,
                ResponseCode.PULL_NOT_FOUND,
                ResponseCode.PULL_RETRY_IMMEDIATELY,
                ResponseCode.PULL_OFFSET_MOVED,
            ),
        )
        if answer.code == 0:
            await context.write(v2.PullMessageResponse(status=status(Code.OK)))
            for message in decode_messages(answer.body, broker_name=queue.broker_name):
                part = v2.PullMessageResponse()
                deliver(message, queue.topic, part.message)
                await context.write(part)
        else:
            is_moved = answer.code == ResponseCode.PULL_OFFSET_MOVED
            said = status(Code.ILLEGAL_OFFSET if is_moved else Code.MESSAGE_NOT_FOUND, answer.remark or "")
            await context.write(v2.PullMessageResponse(status=said))
        await context.write(v2.PullMessageResponse(next_offset=number(answer.ext, "nextBeginOffset")))

    async def update_offset(self, request: Wire, context: Context) -> Wire:
        ext = {"consumerGroup": request.group.name, "commitOffset": request.offset}
        await self._ask_queue(request, RequestCode.UPDATE_CONSUMER_OFFSET, ext)
        return v2.UpdateOffsetResponse(status=status(Code.OK))

    async def get_offset(self, request: Wire, context: Context) -> Wire:
        ext = {"consumerGroup": request.group.name, "setZeroIfNotFound": "false"}
        offset = await self._ask_queue(
            request, RequestCode.QUERY_CONSUMER_OFFSET, ext, accept=(0, ResponseCode.QUERY_NOT_FOUND)
        )
        if offset is None:
            raise Refused(Code.OFFSET_NOT_FOUND, f"group {request.group.name} has no offset in this queue")
        return v2.GetOffsetResponse(status=status(Code.OK), offset=offset)

    async def query_offset(self, request: Wire, context: Context) -> Wire:
        policy = request.query_offset_policy
        if policy == AT_TIME and not request.HasField("timestamp"):
            raise Refused(Code.BAD_REQUEST, "an offset at a time is asked for without the time")
        if policy == AT_TIME:
            ext: dict[str, str | int] = {"timestamp": ms_of(request.timestamp)}
            offset = await self._ask_queue(request, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, ext)
        else:
            code = RequestCode.GET_MAX_OFFSET if policy == END else RequestCode.GET_MIN_OFFSET
            offset = await self._ask_queue(request, code, {})
        return v2.QueryOffsetResponse(status=status(Code.OK), offset=offset or 0)

    async def _ask_queue(
        self, request: Wire, code: RequestCode, ext: dict[str, str | int], accept: tuple[int, ...] = (0,)
    ) -> int | None:
        """The offset that the master of the request's queue answers with, if it does with one."""
        queue = queue_of(request.message_queue)
        await self._cluster.route(queue.topic)
        address = await self._cluster.master(queue.broker_name, queue.topic)
        named: dict[str, str | int] = {"topic": queue.topic, "queueId": queue.queue_id}
        answer = await self._cluster.instance.call(address, code, named | ext, accept=accept)
        return number(answer.ext, "offset") if answer.code == 0 and "offset" in answer.ext else None

    async def sync_lite_subscription(self, request: Wire, context: Context) -> Wire:
        return await self.lite.sync(request, client_id(context))


def client_id(context: Context) -> str:
    if said := context.metadata("x-mq-client-id"):
        return said
    raise Refused(Code.CLIENT_ID_REQUIRED, "the metadata lacks x-mq-client-id")


def left_s(context: Context) -> float:
    """How long the client will wait; a little less, so that it hears of a timeout."""
    left = context.time_remaining()
    return REQUEST_S if left is None or left > LONGEST_S else max(left - RESERVE_MS / 1000, 0.01)


def _polling_ms(request: Wire, context: Context) -> int:
    left = context.time_remaining()
    left_ms = POLLING_MS_MAX + 2 * RESERVE_MS if left is None else int(left * 1000)
    if request.HasField("long_polling_timeout"):
        wanted = ms_of(request.long_polling_timeout)
    else:
        wanted = left_ms - int(REQUEST_S * 500)
    wanted = min(max(wanted, POLLING_MS_MIN), POLLING_MS_MAX)
    if wanted <= left_ms - RESERVE_MS:
        return wanted
    if left_ms < POLLING_MS_MIN:
        raise Refused(
            Code.ILLEGAL_POLLING_TIME, f"{left_ms} ms are left of the call, polling takes at least {POLLING_MS_MIN}"
        )
    return left_ms - RESERVE_MS


def permissions(group: QueueGroup) -> list[int]:
    """Of a broker's queues in the order of their numbers: read only, write only, both, none."""
    can_read, can_write = group.permission & PERMISSION_READ, group.permission & PERMISSION_WRITE
    read, write = group.read_queues, group.write_queues
    if can_read and can_write:
        both = min(read, write)
        return [READ] * (read - both) + [WRITE] * (write - both) + [BOTH] * both
    if can_read:
        return [READ] * read
    return [WRITE] * write if can_write else [NONE] * max(1, read, write)


def _readable(route: TopicRoute) -> list[QueueGroup]:
    masters = {broker.name for broker in route.brokers if 0 in broker.addresses}
    return [one for one in route.queue_groups if one.permission & PERMISSION_READ and one.broker_name in masters]


def _name_broker(broker: Wire, name: str, broker_id: int, endpoints: Wire) -> None:
    """Clients come back to where they came from: this proxy, under the name that they know it by."""
    broker.name, broker.id = name, broker_id
    broker.endpoints.CopyFrom(endpoints)


def queue_of(queue: Wire) -> MessageQueue:
    return MessageQueue(queue.topic.name, queue.broker.name, queue.id)


def _received(one: Received, wanted: Wanted) -> Wire:
    answer = v2.ReceiveMessageResponse()
    deliver(one.message, wanted.topic, answer.message)
    system = answer.message.system_properties
    system.receipt_handle = one.handle.text
    set_time(system.invisible_duration, one.handle.invisible_ms)
    return answer
