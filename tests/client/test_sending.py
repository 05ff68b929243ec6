"""What a producer does when brokers fail: RocketMQ's rules, with scripted peers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine

import pytest

import contrailmq.aio as aio
from contrailmq import Message, MessageQueue, SendStatus, TransactionState
from contrailmq.client.errors import (
    ClientConfigError,
    NoNameServerError,
    NoRouteError,
    ReplyTimeoutError,
    SendFailedError,
)
from contrailmq.client.hooks import ClientHooks, SendEvent
from contrailmq.client.producing.sending import COMPRESS_IN_THREAD_BYTES
from contrailmq.message import MessageError, SysFlag
from contrailmq.wire.acl import AclCredentials, sign_content, signed_content
from contrailmq.wire.codes import RequestCode
from contrailmq.wire.errors import RequestTimeoutError, ResponseError

from .fake_peer import FakePeer, name_server, nothing_listens, refused, route_to, stored


def run(work: Coroutine[object, object, None]) -> None:
    asyncio.run(asyncio.wait_for(work, 120))


ALL_OF_IT_S = 3.0  # a send takes all of it; a process may stand still for most of it
RETRIED = (1, 2, 14, 16, 17, 204, 205, 1500)
FATAL = (13, 26, 29, 3)


@pytest.mark.parametrize("code", RETRIED)
def test_a_code_that_says_elsewhere_is_tried_on_another_broker(code: int) -> None:
    async def work() -> None:
        async with FakePeer(refused(code)) as bad, FakePeer(stored) as good:
            routes = route_to(("a", bad.address), ("b", good.address))
            async with name_server(lambda _: routes) as namesrv, aio.Producer("g", namesrv=namesrv.address) as producer:
                for _ in range(4):
                    result = await producer.send(Message("T", b"x"))
                    assert result.queue.broker_name == "b"
            assert len(good.asked(RequestCode.SEND_MESSAGE_V2)) == 4
            assert bad.asked(RequestCode.SEND_MESSAGE_V2)

    run(work())


@pytest.mark.parametrize("code", FATAL)
def test_any_other_code_fails_at_once_with_number_name_and_remark(code: int) -> None:
    async def work() -> None:
        async with FakePeer(refused(code)) as broker, name_server(lambda _: route_to(("a", broker.address))) as namesrv:
            async with aio.Producer("g", namesrv=namesrv.address) as producer:
                with pytest.raises(ResponseError, match="scripted") as caught:
                    await producer.send(Message("T", b"x"))
            assert caught.value.code == code
            assert broker.address in str(caught.value)
            assert len(broker.asked(RequestCode.SEND_MESSAGE_V2)) == 1

    run(work())


def test_a_broker_that_is_gone_is_passed_over() -> None:
    async def work() -> None:
        async with FakePeer(stored) as good:
            routes = route_to(("a", nothing_listens()), ("b", good.address))
            async with name_server(lambda _: routes) as namesrv, aio.Producer("g", namesrv=namesrv.address) as producer:
                results = [await producer.send(Message("T", b"x")) for _ in range(6)]
        assert {result.queue.broker_name for result in results} == {"b"}

    run(work())


def test_after_the_last_try_the_error_lists_tries_time_and_brokers() -> None:
    async def work() -> None:
        routes = route_to(("a", nothing_listens()), ("b", nothing_listens()))
        async with name_server(lambda _: routes) as namesrv, aio.Producer("g", namesrv=namesrv.address) as producer:
            with pytest.raises(
                SendFailedError, match=r"after \d+ tries in \d+\.\d+ s \(brokers [ab], [ab]\)"
            ) as caught:
                await producer.send(Message("T", b"x"), timeout=ALL_OF_IT_S)
        assert caught.value.code == 10001
        assert set(caught.value.brokers) == {"a", "b"}
        assert "cannot connect" in str(caught.value)

    run(work())


def test_all_tries_share_one_budget_of_time() -> None:
    async def work() -> None:
        async with (
            FakePeer(lambda _: None) as silent,
            name_server(lambda _: route_to(("a", silent.address))) as namesrv,
            aio.Producer("g", namesrv=namesrv.address) as producer,
        ):
            with pytest.raises(SendFailedError, match="no answer from") as caught:
                await producer.send(Message("T", b"x"), timeout=ALL_OF_IT_S)
            assert len(silent.asked(RequestCode.SEND_MESSAGE_V2)) == 1  # it used up the time of all three
        assert caught.value.code == 10002

    run(work())


def test_a_queue_of_the_callers_choice_is_tried_once_and_its_error_is_raised_as_it_is() -> None:
    async def work() -> None:
        async with (
            FakePeer(lambda _: None) as silent,
            name_server(lambda _: route_to(("a", silent.address))) as namesrv,
        ):
            async with aio.Producer("g", namesrv=namesrv.address) as producer:
                with pytest.raises(RequestTimeoutError, match=r"SEND_MESSAGE_V2.* within [\d.]+ s"):
                    await producer.send(Message("T", b"x"), queue=MessageQueue("T", "a", 0), timeout=ALL_OF_IT_S)
            assert len(silent.asked(RequestCode.SEND_MESSAGE_V2)) == 1

    run(work())


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (10, SendStatus.FLUSH_DISK_TIMEOUT),
        (11, SendStatus.SLAVE_NOT_AVAILABLE),
        (12, SendStatus.FLUSH_SLAVE_TIMEOUT),
    ],
)
@pytest.mark.parametrize("is_retried", [False, True])
def test_stored_but_not_safe_is_a_result_and_is_retried_only_on_request(
    code: int, status: SendStatus, is_retried: bool
) -> None:
    async def work() -> None:
        async with (
            FakePeer(lambda request: stored(request, code)) as broker,
            name_server(lambda _: route_to(("a", broker.address))) as namesrv,
            aio.Producer("g", namesrv=namesrv.address, retry_another_broker_when_not_store_ok=is_retried) as producer,
        ):
            assert (await producer.send(Message("T", b"x"))).status is status
            assert len(broker.asked(RequestCode.SEND_MESSAGE_V2)) == (3 if is_retried else 1)

    run(work())


def test_a_broker_that_failed_is_avoided_when_fault_tolerance_is_on() -> None:
    async def work() -> None:
        async with FakePeer(refused(2)) as bad, FakePeer(stored) as good:
            routes = route_to(("a", bad.address), ("b", good.address), queues=4)
            async with (
                name_server(lambda _: routes) as namesrv,
                aio.Producer("g", namesrv=namesrv.address, send_latency_fault_enable=True) as producer,
            ):
                for _ in range(20):
                    await producer.send(Message("T", b"x"))
            assert len(bad.asked(RequestCode.SEND_MESSAGE_V2)) <= 1

    run(work())


def test_an_unknown_topic_is_sent_with_the_template_topics_route() -> None:
    async def work() -> None:
        async with FakePeer(stored) as broker:
            template = route_to(("a", broker.address), queues=8)
            async with (
                name_server(lambda topic: template if topic == "TBW102" else None) as namesrv,
                aio.Producer("g", namesrv=namesrv.address) as producer,
            ):
                await producer.send(Message("New", b"x"))
                assert len(await producer.queues("New")) == 4
            (sent,) = broker.asked(RequestCode.SEND_MESSAGE_V2)
            assert (sent.ext["b"], sent.ext["c"], sent.ext["d"]) == ("New", "TBW102", "4")

    run(work())


def test_without_template_the_error_says_what_to_do() -> None:
    async def work() -> None:
        async with name_server(lambda _: None) as namesrv, aio.Producer("g", namesrv=namesrv.address) as producer:
            with pytest.raises(NoRouteError, match="autoCreateTopicEnable"):
                await producer.queues("New")

    run(work())


def test_name_servers_are_tried_one_after_the_other() -> None:
    async def work() -> None:
        async with FakePeer(stored) as broker, name_server(lambda _: route_to(("a", broker.address))) as namesrv:
            addresses = ";".join([nothing_listens(), namesrv.address, nothing_listens()])
            async with aio.Producer("g", namesrv=addresses) as producer:
                assert (await producer.send(Message("T", b"x"))).status is SendStatus.OK
        async with aio.Producer("g", namesrv=addresses) as producer:
            with pytest.raises(NoNameServerError, match="none of the NameServers"):
                await producer.queues("T")

    run(work())


def test_sending_goes_on_while_no_name_server_is_there() -> None:
    async def work() -> None:
        async with FakePeer(stored) as broker:
            async with name_server(lambda _: route_to(("a", broker.address))) as namesrv:
                producer = aio.Producer("g", namesrv=namesrv.address, poll_namesrv_interval_s=0.01)
                await producer.start()
                await producer.send(Message("T", b"x"))
            for _ in range(5):
                assert (await producer.send(Message("T", b"x"))).status is SendStatus.OK
            await producer.shutdown()

    run(work())


def test_the_request_has_rocketmqs_short_names_and_flags() -> None:
    async def work() -> None:
        async with (
            FakePeer(stored) as broker,
            name_server(lambda _: route_to(("a", broker.address))) as namesrv,
            aio.Producer("g", namesrv=namesrv.address) as producer,
        ):
            await producer.send(Message("T", b"x" * 5000, flag=9))
            (sent,) = broker.asked(RequestCode.SEND_MESSAGE_V2)
            ext = sent.ext
            assert (ext["a"], ext["b"], ext["e"], ext["h"], ext["j"], ext["m"], ext["n"]) == (
                "g", "T", "0", "9", "0", "false", "a",
            )  # fmt: skip
            assert int(ext["f"]) == SysFlag.COMPRESSED | 0x300
            assert len(sent.body) < 100
            await producer.send_batch([Message("T", b"x" * 5000)])
            (batch,) = broker.asked(RequestCode.SEND_BATCH_MESSAGE)
            assert (batch.ext["m"], batch.ext["f"]) == ("true", "0")
            assert len(batch.body) > 5000

    run(work())


def test_every_request_is_signed_when_credentials_are_given() -> None:
    async def work() -> None:
        async with (
            FakePeer(stored) as broker,
            name_server(lambda _: route_to(("a", broker.address))) as namesrv,
            aio.Producer("g", namesrv=namesrv.address, credentials=AclCredentials("key", "secret")) as producer,
        ):
            await producer.send(Message("T", b"x"))
            for request in [*namesrv.requests, *broker.asked(RequestCode.SEND_MESSAGE_V2)]:
                content = signed_content(request.ext, request.body)
                assert request.ext["Signature"] == sign_content(content, "secret")

    run(work())


def test_a_selector_must_return_a_queue_of_the_topic() -> None:
    async def work() -> None:
        async with (
            FakePeer(stored) as broker,
            name_server(lambda _: route_to(("a", broker.address), queues=3)) as namesrv,
            aio.Producer("g", namesrv=namesrv.address) as producer,
        ):
            result = await producer.send(Message("T", b"x"), selector=lambda queues, _, arg: queues[-1], arg=1)
            assert result.queue.queue_id == 2
            with pytest.raises(ClientConfigError, match="one of the queues"):
                await producer.send(Message("T", b"x"), selector=lambda *_: None)  # type: ignore[arg-type,return-value]

    run(work())


def test_in_flight_sends_are_bounded_and_all_end() -> None:
    async def work() -> None:
        async with (
            FakePeer(stored) as broker,
            name_server(lambda _: route_to(("a", broker.address))) as namesrv,
            aio.Producer("g", namesrv=namesrv.address, in_flight_max=3) as producer,
        ):
            results = await asyncio.gather(*(producer.send(Message("T", b"x")) for _ in range(50)))
            assert len(results) == 50

    run(work())


def test_hooks_see_every_send_and_may_forbid_it() -> None:
    class Watch(ClientHooks):
        def __init__(self) -> None:
            self.seen: list[str] = []

        def check_send(self, event: SendEvent) -> None:
            if event.messages[0].body == b"secret":
                raise PermissionError("not this one")

        def before_send(self, event: SendEvent) -> None:
            event.messages[0].properties["traceparent"] = "abc"
            self.seen.append("before")

        def after_send(self, event: SendEvent) -> None:
            self.seen.append("ok" if event.result is not None else type(event.error).__name__)

    async def work() -> None:
        watch = Watch()
        async with (
            FakePeer(stored) as broker,
            name_server(lambda _: route_to(("a", broker.address))) as namesrv,
            aio.Producer("g", namesrv=namesrv.address, hooks=watch) as producer,
        ):
            await producer.send(Message("T", b"x"))
            assert "traceparent\x01abc" in broker.asked(RequestCode.SEND_MESSAGE_V2)[0].ext["i"]
            broker.script = refused(13)
            with pytest.raises(ResponseError):
                await producer.send(Message("T", b"x"))
            with pytest.raises(PermissionError):
                await producer.send(Message("T", b"secret"))
        assert watch.seen == ["before", "ok", "before", "ResponseError"]

    run(work())


@pytest.mark.parametrize("size", [5_000, COMPRESS_IN_THREAD_BYTES])
def test_a_body_that_compression_would_enlarge_goes_as_it_is(size: int) -> None:
    noise = random.Random(7).randbytes(size)

    async def work() -> None:
        async with (
            FakePeer(stored) as broker,
            name_server(lambda _: route_to(("a", broker.address))) as namesrv,
            aio.Producer("g", namesrv=namesrv.address, max_message_bytes=size) as producer,
        ):
            await producer.send(Message("T", noise))
            await producer.send(Message("T", bytes(size)))
            as_it_is, compressed = broker.asked(RequestCode.SEND_MESSAGE_V2)
            assert (as_it_is.body == noise, int(as_it_is.ext["f"]) & SysFlag.COMPRESSED) == (True, 0)
            assert (len(compressed.body) < size, int(compressed.ext["f"]) & SysFlag.COMPRESSED) == (True, 1)

    run(work())


def test_a_queue_of_another_topic_is_refused() -> None:
    async def work() -> None:
        async with (
            FakePeer(stored) as broker,
            name_server(lambda _: route_to(("a", broker.address))) as namesrv,
            aio.Producer("g", namesrv=namesrv.address, namespace="prod") as producer,
        ):
            foreign, (own,) = MessageQueue("Other", "a", 0), await producer.queues("T")
            for send in (producer.send, producer.send_oneway):
                with pytest.raises(MessageError, match="not of the message's topic"):
                    await send(Message("T", b"x"), queue=foreign)
            with pytest.raises(MessageError, match="not of the message's topic"):
                await producer.send_batch([Message("T", b"x")], queue=foreign)
            assert (await producer.send(Message("T", b"x"), queue=own)).queue == own

    run(work())


class Stamps(ClientHooks):
    """Writes a new number into each message; raises where it is told to."""

    def __init__(self, raises_in: str = "") -> None:
        self.raises_in = raises_in
        self.number = 0
        self.ends: list[BaseException | None] = []

    def check_send(self, event: SendEvent) -> None:
        if event.messages[0].body == b"secret":
            raise PermissionError("not this one")

    def before_send(self, event: SendEvent) -> None:
        for message in event.messages:
            self.number += 1
            message.properties["stamp"] = str(self.number)
        if self.raises_in == "before":
            raise ZeroDivisionError

    def after_send(self, event: SendEvent) -> None:
        self.ends.append(event.error)
        if self.raises_in == "after":
            raise ZeroDivisionError


@pytest.mark.parametrize("raises_in", ["before", "after"])
def test_a_hook_that_raises_changes_nothing(raises_in: str) -> None:
    async def work() -> None:
        hooks = Stamps(raises_in)
        async with (
            FakePeer(stored) as broker,
            name_server(lambda _: route_to(("a", broker.address))) as namesrv,
            aio.Producer("g", namesrv=namesrv.address, hooks=hooks) as producer,
        ):
            assert (await producer.send(Message("T", b"x"))).status is SendStatus.OK
            broker.script = refused(13)
            with pytest.raises(ResponseError):
                await producer.send(Message("T", b"x"))
            first, second = hooks.ends
            assert first is None
            assert isinstance(second, ResponseError)

    run(work())


def test_what_a_hook_writes_travels_with_each_send_of_an_object_and_with_batches() -> None:
    async def work() -> None:
        async with (
            FakePeer(stored) as broker,
            name_server(lambda _: route_to(("a", broker.address))) as namesrv,
            aio.Producer("g", namesrv=namesrv.address, hooks=Stamps()) as producer,
        ):
            message = Message("T", b"x")
            await producer.send(message)
            await producer.send(message)
            sent = [request.ext["i"] for request in broker.asked(RequestCode.SEND_MESSAGE_V2)]
            assert ["stamp\x011\x02" in sent[0], "stamp\x012\x02" in sent[1]] == [True, True]
            await producer.send_batch([Message("T", b"x"), Message("T", b"y")])
            (batch,) = broker.asked(RequestCode.SEND_BATCH_MESSAGE)
            assert b"stamp\x013\x02" in batch.body
            assert b"stamp\x014\x02" in batch.body

    run(work())


def test_a_oneway_send_can_be_forbidden_too() -> None:
    async def work() -> None:
        hooks = Stamps()
        async with (
            FakePeer(lambda _: None) as broker,
            name_server(lambda _: route_to(("a", broker.address))) as namesrv,
            aio.Producer("g", namesrv=namesrv.address, hooks=hooks) as producer,
        ):
            with pytest.raises(PermissionError):
                await producer.send_oneway(Message("T", b"secret"))
            await producer.send_oneway(Message("T", b"x"))
            await broker.wait_for(RequestCode.SEND_MESSAGE_V2)
            (sent,) = broker.asked(RequestCode.SEND_MESSAGE_V2)
            assert (sent.body, "stamp\x011\x02" in sent.ext["i"]) == (b"x", True)
        assert hooks.ends == [None]

    run(work())


@pytest.mark.parametrize("silent", ["broker", "name server"])
def test_a_request_that_was_not_stored_does_not_say_that_nobody_replied(silent: str) -> None:
    async def work() -> None:
        async with (
            FakePeer(lambda _: None) as broker,
            FakePeer(lambda _: None) as hung,
            name_server(lambda _: route_to(("a", broker.address))) as namesrv,
            aio.Producer(
                "g", namesrv=(namesrv if silent == "broker" else hung).address, request_timeout_s=3600.0
            ) as producer,
        ):
            # It ends, so it did not wait for as long as other requests may take.
            with pytest.raises(SendFailedError):
                await producer.request(Message("T", b"x"), timeout=0.2)
            broker.script = stored
            if silent == "broker":
                with pytest.raises(ReplyTimeoutError):
                    await producer.request(Message("T", b"x"), timeout=ALL_OF_IT_S)

    run(work())


def test_a_name_server_that_hangs_uses_up_the_time_of_the_send_and_no_more() -> None:
    async def work() -> None:
        async with (
            FakePeer(lambda _: None) as hung,
            aio.Producer("g", namesrv=hung.address, request_timeout_s=3600.0) as producer,
        ):
            # It ends, so it did not wait for as long as other requests may take.
            with pytest.raises(SendFailedError, match=r"GET_ROUTEINFO_BY_TOPIC.* within 0\.2 s"):
                await producer.send(Message("T", b"x"), timeout=0.2)

    run(work())


def test_producers_tell_brokers_that_they_come_and_go() -> None:
    async def work() -> None:
        async with FakePeer(stored) as broker, name_server(lambda _: route_to(("a", broker.address))) as namesrv:
            async with aio.Producer("g", namesrv=namesrv.address) as producer:
                await producer.send(Message("T", b"x"))
                await broker.wait_for(RequestCode.HEART_BEAT)
                client_id = producer.client_id
            (goodbye,) = broker.asked(RequestCode.UNREGISTER_CLIENT)
            assert (goodbye.ext["clientID"], goodbye.ext["producerGroup"]) == (client_id, "g")

    run(work())


def test_a_broker_that_was_away_hears_of_its_producers_as_soon_as_it_is_reached_again() -> None:
    """Long before the next regular heartbeat, half a minute away: it asks about transactions by what it was told."""

    async def work() -> None:
        async with (
            FakePeer(stored) as broker,
            name_server(lambda _: route_to(("a", broker.address))) as namesrv,
            aio.Producer("g", namesrv=namesrv.address) as producer,
        ):
            await producer.send(Message("T", b"x"))
            await broker.wait_for(RequestCode.HEART_BEAT)
            broker.hang_up()
            await producer.send(Message("T", b"x"))
            async with asyncio.timeout(120):
                await broker.wait_for(RequestCode.HEART_BEAT)

    run(work())


def test_a_half_message_that_is_not_safe_is_rolled_back_and_nothing_is_executed() -> None:
    executed: list[Message] = []

    def execute(message: Message, arg: object) -> TransactionState:
        executed.append(message)
        return TransactionState.COMMIT

    async def work() -> None:
        async with (
            FakePeer(lambda request: stored(request, 10)) as broker,
            name_server(lambda _: route_to(("a", broker.address))) as namesrv,
            aio.TransactionProducer(
                "g", namesrv=namesrv.address, execute=execute, check=lambda _: TransactionState.UNKNOWN
            ) as producer,
        ):
            result = await producer.send_in_transaction(Message("T", b"x"))
            await broker.wait_for(RequestCode.END_TRANSACTION)
            assert (result.status, result.state) == (SendStatus.FLUSH_DISK_TIMEOUT, TransactionState.ROLLBACK)
            (end,) = broker.asked(RequestCode.END_TRANSACTION)
            assert end.ext["commitOrRollback"] == "12"
        assert executed == []

    run(work())
