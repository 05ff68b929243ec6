"""What a cluster does on an ordinary day, counted by those who do it: what a board shows is compared with these counts.

Each kind of traffic has a topic of its own, so that each count is one series. Nothing is sent twice: a send that is not
answered within its time ends the load, and with it the test, since nobody could say whether it was stored.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import grpc

from contrailmq import (
    Admin,
    ConsumeFromWhere,
    Message,
    Producer,
    PushConsumer,
    SimpleConsumer,
    StoredMessage,
    TransactionProducer,
    TransactionState,
)
from contrailmq.message import ContrailError
from contrailmq.proxy.protocol import v2
from proxy.calling import Caller, message, topic
from proxy.test_consuming import acknowledge, receive

TOPICS = ("Orders", "Tasks", "Jobs", "Steps", "Refused", "Soon", "Later", "Level", "Transactions")
ENDS = (TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN)
PAUSE_S = 0.1  # between two rounds: about 80 messages a second, so that the load needs a tenth of a core
GRPC_GROUP = "over-grpc"
KEEPING_UP = {
    "billing": "sent Orders", "in-order": "sent Steps", "popping": "sent Tasks", "simple": "sent Tasks",
    "refusing": "sent Refused", "punctual": "sent Soon", "levelled": "sent Level", "settled": "ended COMMIT",
    GRPC_GROUP: "sent Jobs",
}  # fmt: skip
HEARTBEAT_S = 10.0  # as the official clients


class MixedLoad:
    """`counts` has messages by what became of them: `sent Orders`, `got billing`, `ended COMMIT`."""

    def __init__(self, namesrv: str, grpc_address: str) -> None:
        self.counts: Counter[str] = Counter()
        self.faults: list[str] = []
        self._namesrv, self._grpc = namesrv, grpc_address
        self._is_sent, self._is_over = threading.Event(), threading.Event()
        works = (self._send, self._transact, self._pop, self._over_grpc)
        self._threads = [threading.Thread(target=self._watched, args=(work,), name=work.__name__) for work in works]
        self._consumers = self._push_consumers()

    def __enter__(self) -> MixedLoad:
        with Admin(namesrv=self._namesrv) as admin:
            for name in TOPICS:
                admin.create_topic(name, queues=4)
            admin.create_group("offline")
            for queue in admin.queues("Orders"):
                admin.set_offset("offline", queue, 0)  # a group that nobody runs: it lags by all that comes
        for consumer in self._consumers:
            consumer.start()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end_sending(self) -> None:
        """Consumers go on with what there is."""
        self._is_sent.set()
        for thread in self._threads:
            if thread.name in ("_send", "_transact"):
                thread.join()

    def is_consumed(self) -> bool:
        """Whether every group that keeps up has all that was sent."""
        counts = self.counts
        return bool(self.faults) or all(
            counts[f"got {group}"] == self.count(sent) for group, sent in KEEPING_UP.items()
        )

    def count(self, what: str) -> int:
        """Of all that begins so: `sent Jobs` is by remoting and over gRPC."""
        return sum(count for name, count in list(self.counts.items()) if name.startswith(what))

    def end(self) -> None:
        """Stop, and let consumers say what they have done; a second call does nothing."""
        self._is_sent.set()
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        for consumer in self._consumers:
            consumer.shutdown()
        self._consumers.clear()

    def _watched(self, work: Callable[[], None]) -> None:
        try:
            work()
        except (ContrailError, grpc.RpcError, AssertionError) as exc:
            self.faults.append(f"{work.__name__}: {exc!r}")

    def _push_consumers(self) -> list[PushConsumer]:
        made = []
        for group, name, more in (
            ("billing", "Orders", {}),
            ("slow", "Orders", {"consume_threads": 1, "pull_batch_size": 1, "pull_threshold_count": 8}),
            ("in-order", "Steps", {"orderly": True}),
            ("popping", "Tasks", {"pop": True}),
            ("refusing", "Refused", {"max_reconsume_times": 0}),
            ("punctual", "Soon", {}),
            ("levelled", "Level", {}),
            ("settled", "Transactions", {}),
        ):
            consumer = PushConsumer(group, namesrv=self._namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET, **more)
            consumer.subscribe(name)
            consumer.listen(lambda messages, group=group: self._listen(group, messages))
            made.append(consumer)
        return made

    def _listen(self, group: str, messages: list[StoredMessage]) -> None:
        self.counts[f"got {group}"] += len(messages)
        if group == "slow":
            self._is_over.wait(1.0)
        if group == "refusing":
            raise ValueError("this consumer refuses all that comes")

    def _send(self) -> None:
        with Producer("shop", namesrv=self._namesrv) as producer:
            for number in itertools.count():
                for name, count, more in (
                    ("Orders", 4, {}),
                    ("Tasks", 1, {}),
                    ("Jobs", 1, {}),
                    ("Steps", 1, {}),
                    ("Soon", 1, {"delay": 2.0}),
                    ("Later", 1, {"delay": 86_400.0}),
                    ("Level", 1, {"delay_level": 1}),
                    ("Refused", number % 10 == 0, {}),
                ):
                    for _ in range(count):
                        producer.send(Message(name, b"x" * 500, tags="paid", keys=[f"k-{number}"], **more))
                        self.counts[f"sent {name}"] += 1
                if self._is_sent.wait(PAUSE_S):
                    return

    def _transact(self) -> None:
        ends = itertools.cycle(ENDS)
        with TransactionProducer(
            "deciding",
            namesrv=self._namesrv,
            execute=lambda _message, _arg: next(ends),
            check=lambda _message: TransactionState.UNKNOWN,
        ) as producer:
            while not self._is_sent.wait(5 * PAUSE_S):
                result = producer.send_in_transaction(Message("Transactions", b"x"), None)
                self.counts[f"ended {result.state.name}"] += 1

    def _pop(self) -> None:
        with SimpleConsumer("simple", namesrv=self._namesrv) as consumer:
            consumer.subscribe("Tasks")
            while not self._is_over.is_set():
                for got in consumer.receive():
                    consumer.ack(got)
                    self.counts["got simple"] += 1

    def _over_grpc(self) -> None:
        asyncio.run(self._call())

    async def _call(self) -> None:
        """Its messages are counted apart: two threads must not add to one count."""
        subscription = v2.Subscription(group=topic(GRPC_GROUP), subscriptions=[_all_of("Jobs")])
        async with grpc.aio.insecure_channel(self._grpc) as channel:
            caller = Caller(channel)
            stream = caller.telemetry()
            await stream.write(v2.TelemetryCommand(settings=v2.Settings(client_type=3, subscription=subscription)))
            await stream.read()
            beat_at_s = 0.0
            while not self._is_over.is_set():
                if time.monotonic() > beat_at_s:
                    beat_at_s = time.monotonic() + HEARTBEAT_S
                    await caller.call("Heartbeat", client_type=3, group=topic(GRPC_GROUP))
                if not self._is_sent.is_set():
                    await caller.call("SendMessage", messages=[message("Jobs", b"x" * 500)])
                    self.counts["sent Jobs over gRPC"] += 1
                for got in await receive(caller, "Jobs", GRPC_GROUP):
                    handle = got.system_properties.receipt_handle
                    await acknowledge(caller, "Jobs", GRPC_GROUP, handle)
                    self.counts[f"got {GRPC_GROUP}"] += 1
                await asyncio.sleep(PAUSE_S)
            stream.cancel()


def _all_of(name: str) -> Any:
    return v2.SubscriptionEntry(topic=topic(name), expression=v2.FilterExpression(type=1, expression="*"))
