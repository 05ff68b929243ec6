"""Messages that appear only when a local transaction commits.

`send_in_transaction` stores the message where nobody sees it (a half message), runs `execute(message, arg)`, and
reports commit or rollback. The report is oneway: when it is lost, or `execute` said UNKNOWN, the broker asks back, and
any producer of the group answers with its `check(message)`. So `check` must find out from the outside world (a
database row) what became of the transaction; it may run in another process than the one that sent.

`execute` and `check` may be plain functions (run in a thread) or coroutine functions. An exception means UNKNOWN.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import inspect
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, Unpack

from contrailmq.client.errors import number
from contrailmq.client.hooks import user_error_log
from contrailmq.client.producing.producer import Producer
from contrailmq.client.producing.sending import Sender
from contrailmq.client.producing.trace import MessageType, TracedMessage, end_transaction_record
from contrailmq.client.records import ReceivedMessage
from contrailmq.client.results import SendResult, SendStatus, TransactionResult, TransactionState
from contrailmq.client.settings import ProducerSettings
from contrailmq.client.transport.waiting import is_being_cancelled
from contrailmq.message import ContrailError, Message, Property, StoredMessage, SystemTopic, parse_offset_message_id
from contrailmq.wire.codes import RequestCode

_log = user_error_log("contrailmq.client.transactions")

CHECKS_WAITING_MAX: Final = 2000  # Java's checkRequestHoldMax; a dropped check is asked again by the broker
CHECKS_AT_ONCE: Final = 4
MEET_EVERY_S: Final = 1.0

Execute = Callable[[Message, object], "TransactionState | Awaitable[TransactionState | None] | None"]
Check = Callable[[StoredMessage], "TransactionState | Awaitable[TransactionState | None] | None"]


class TransactionProducer(Producer):
    """A producer whose messages wait for a local transaction."""

    def __init__(
        self,
        group: str,
        *,
        execute: Execute,
        check: Check,
        namesrv: str | None = None,
        **settings: Unpack[ProducerSettings],
    ) -> None:
        super().__init__(group, namesrv=namesrv, **settings)
        self._execute = execute
        self._check = check
        self._threads: ThreadPoolExecutor | None = None
        self._checks: asyncio.Queue[tuple[ReceivedMessage, dict[str, str], str]] = asyncio.Queue(CHECKS_WAITING_MAX)

    async def start(self) -> None:
        await super().start()
        instance = self._running().instance
        self._threads = ThreadPoolExecutor(CHECKS_AT_ONCE, thread_name_prefix="contrailmq-transaction")
        instance.transaction_checks[self.group] = self._take_check
        self._workers = [instance.spawn(self._answer_checks(), "transaction-check") for _ in range(CHECKS_AT_ONCE)]
        self._workers.append(instance.spawn(self._meet_brokers(), "transaction-brokers"))

    async def _meet_brokers(self) -> None:
        """Let brokers know the group before anything is sent: they ask it about halves that a dead member left.

        They are those of the default topic, as in Java, and those that hold half messages.
        """
        sender = self._running()
        topics = (self.options.default_topic, SystemTopic.HALF)
        for topic in topics:
            sender.want(topic)
        while not any(topic in sender.instance.routes for topic in topics):
            for topic in topics:
                with contextlib.suppress(ContrailError):  # asked again in a second
                    await sender.instance.refresh_route(topic)
            await asyncio.sleep(MEET_EVERY_S)

    async def shutdown(self) -> None:
        if self._life.is_running:
            self._running().instance.transaction_checks.pop(self.group, None)
            for worker in self._workers:
                worker.cancel()
            await asyncio.gather(*self._workers, return_exceptions=True)
        await super().shutdown()
        threads, self._threads = self._threads, None
        if threads is not None:  # not on the loop: an `execute` that runs may need it for calls of its own
            await asyncio.to_thread(threads.shutdown, wait=True, cancel_futures=True)

    async def send_in_transaction(
        self, message: Message, arg: object = None, *, timeout: float | None = None
    ) -> TransactionResult:
        """Send a half message, run `execute`, report. Raises only when the half message could not be stored.

        When the store status is not OK, `execute` is not run and the message is rolled back.
        """
        sender = self._running()
        half = Message(message.topic, message.body, flag=message.flag)
        half.properties = {
            **{name: value for name, value in message.properties.items() if name != Property.DELAY},
            Property.TRANSACTION_PREPARED: "true",
            Property.PRODUCER_GROUP: self.group,
        }
        result = await self.send(half, timeout=timeout)
        remark = ""
        state = TransactionState.ROLLBACK
        if result.status is SendStatus.OK:
            # `execute` learns the ids; the caller's object stays as it is, so it can be sent again as a new message.
            given = Message(message.topic, message.body, flag=message.flag)
            given.properties = {
                **message.properties,
                Property.TRANSACTION_ID: result.transaction_id or result.message_id,
                Property.UNIQUE_KEY: result.message_id,
            }
            state, remark = await self._decide(functools.partial(self._execute, given, arg), "execute", result)
        _, _, physical_offset = parse_offset_message_id(result.offset_message_id)
        try:
            address = await sender.instance.find_master(result.queue.broker_name, half.topic)
            ext = self._end_ext(
                half.topic,
                state,
                table_offset=result.queue_offset,
                physical_offset=physical_offset,
                message_id=result.message_id,
                transaction_id=result.transaction_id or result.message_id,
                is_from_check=False,
                broker_name=result.queue.broker_name,
            )
            await sender.instance.remoting.oneway(address, RequestCode.END_TRANSACTION, ext, remark=remark or None)
        except ContrailError as exc:
            _log.warning("%s of %s was not reported, the broker will ask: %s", state.name, result.message_id, exc)
        self._trace_end(half, result, state)
        return TransactionResult(result, state)

    async def _decide(
        self,
        call: functools.partial[TransactionState | Awaitable[TransactionState | None] | None],
        what: str,
        context: SendResult | StoredMessage,
    ) -> tuple[TransactionState, str]:
        if self._threads is None:
            return TransactionState.UNKNOWN, "the producer was shut down before the transaction was decided"
        try:
            if inspect.iscoroutinefunction(call.func):
                answer = call()
            else:
                answer = await asyncio.get_running_loop().run_in_executor(self._threads, call)
            if inspect.isawaitable(answer):
                answer = await answer
        except (Exception, asyncio.CancelledError) as exc:
            if is_being_cancelled():
                raise  # not what `execute` or `check` waited for: the caller, or shutdown
            _log.warning("%s raised for %s: %r", what, context.message_id, exc)
            return TransactionState.UNKNOWN, f"{what} raised: {exc!r}"
        if isinstance(answer, TransactionState):
            return answer, ""
        remark = "" if answer is None else f"{what} returned {answer!r}, not a TransactionState"
        return TransactionState.UNKNOWN, remark

    # The broker asks back.
    def _take_check(self, message: ReceivedMessage, ext: dict[str, str], address: str) -> None:
        try:
            self._checks.put_nowait((message, ext, address))
        except asyncio.QueueFull:
            _log.warning("transaction check of %s dropped: %d wait already", message.message_id, CHECKS_WAITING_MAX)

    async def _answer_checks(self) -> None:
        while True:
            message, ext, address = await self._checks.get()
            state, remark = await self._decide(functools.partial(self._check, message), "check", message)
            try:
                answer = self._end_ext(
                    message.topic,
                    state,
                    table_offset=number(ext, "tranStateTableOffset"),
                    physical_offset=number(ext, "commitLogOffset"),
                    message_id=ext.get("msgId") or message.message_id,
                    transaction_id=ext.get("transactionId") or message.message_id,
                    is_from_check=True,
                    broker_name=ext.get("bname", ""),
                )
                remoting = self._running().instance.remoting
                await remoting.oneway(address, RequestCode.END_TRANSACTION, answer, remark=remark or None)
            except ContrailError as exc:
                _log.warning("check of %s was not answered, the broker will ask again: %s", message.message_id, exc)

    def _end_ext(
        self,
        topic: str,
        state: TransactionState,
        *,
        table_offset: int,
        physical_offset: int,
        message_id: str,
        transaction_id: str,
        is_from_check: bool,
        broker_name: str,
    ) -> dict[str, str | int]:
        return {
            "topic": topic,
            "producerGroup": self.group,
            "tranStateTableOffset": table_offset,
            "commitLogOffset": physical_offset,
            "commitOrRollback": state.value,
            "fromTransactionCheck": "true" if is_from_check else "false",
            "msgId": message_id,
            "transactionId": transaction_id,
            "bname": broker_name,
        }

    def _trace_end(self, half: Message, result: SendResult, state: TransactionState) -> None:
        if self._trace is None:
            return
        sender: Sender = self._running()
        traced = TracedMessage(
            half.topic,
            result.message_id,
            tags=half.tags or "",
            keys=half.properties.get(Property.KEYS, ""),
            store_host=sender.instance.master_address(result.queue.broker_name),
            message_type=MessageType.TRANSACTION_COMMIT,
        )
        self._trace.add(
            end_transaction_record(
                traced,
                time_ms=time.time_ns() // 1_000_000,
                region=result.region_id,
                group=self.group,
                transaction_id=result.transaction_id or "",
                state={"COMMIT": "COMMIT_MESSAGE", "ROLLBACK": "ROLLBACK_MESSAGE"}.get(state.name, "UNKNOW"),
                is_from_check=False,
            )
        )
