"""The official Python client of RocketMQ 5 (rocketmq-python-client), used as its examples do; prints what it sees.

client.py flow ENDPOINT SUFFIX     sends of every type, push consumers (one in order), a simple one, a failure
client.py decide ENDPOINT SUFFIX   transactions: committed, rolled back, and one that the broker asks about
"""

from __future__ import annotations

import sys
import threading
import time

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

command, endpoint, suffix = sys.argv[1:4]
PLAIN, ORDERED, LATER, DECIDED = (f"Grpc{name}{suffix}" for name in ("Plain", "Ordered", "Later", "Decided"))
DEADLINE_S = 120
said = threading.Lock()


def say(*words: object) -> None:
    with said:
        print("\t".join(map(str, words)), flush=True)


def configuration() -> ClientConfiguration:
    return ClientConfiguration(endpoint, Credentials("", ""))


class Listener(MessageListener):
    """Fails what asks for it, once."""

    def __init__(self, name: str, wanted: int) -> None:
        self.name, self.left, self.done = name, wanted, threading.Event()

    def consume(self, message: Message) -> ConsumeResult:
        body = message.body.decode()
        say(self.name, message.topic, body, message.tag, message.message_group, message.delivery_attempt)
        self.left -= 1
        if self.left == 0:
            self.done.set()
        return ConsumeResult.FAILURE if body == "fails" and message.delivery_attempt == 1 else ConsumeResult.SUCCESS


def made(topic: str, body: str, **fields: object) -> Message:
    message = Message()
    message.topic, message.body = topic, body.encode()
    for name, value in fields.items():
        setattr(message, name, value)
    return message


def flow() -> None:
    producer = Producer(configuration(), (PLAIN, ORDERED, LATER))
    producer.startup()
    listener, in_order = Listener("push", wanted=20 + 2 + 10 + 1), Listener("in-order", wanted=10)
    everything = FilterExpression("*")
    push = PushConsumer(
        configuration(), f"GrpcPush{suffix}", listener, {PLAIN: everything, ORDERED: everything, LATER: everything}
    )
    push.startup()
    ordered = PushConsumer(configuration(), f"GrpcInOrder{suffix}", in_order, {ORDERED: everything})
    ordered.startup()
    simple = SimpleConsumer(configuration(), f"GrpcSimple{suffix}", {PLAIN: FilterExpression("odd")}, 10)
    simple.startup()
    taken: set[str] = set()

    def take() -> None:
        end_s = time.monotonic() + DEADLINE_S
        while len(taken) < 10 and time.monotonic() < end_s:
            for message in simple.receive(16, 20) or ():
                say("simple", message.topic, message.body.decode(), message.tag, message.delivery_attempt)
                simple.ack(message)
                taken.add(message.body.decode())

    taking = threading.Thread(target=take)
    taking.start()
    for number in range(20):
        producer.send(made(PLAIN, f"plain-{number}", tag="odd" if number % 2 else "even", keys=f"key-{number}"))
    producer.send(made(PLAIN, "fails"))
    for number in range(10):
        producer.send(made(ORDERED, f"ordered-{number}", message_group="one"))
    due = int(time.time()) + 4
    producer.send(made(LATER, f"later-{due}", delivery_timestamp=due))
    taking.join(DEADLINE_S)
    end_s = time.monotonic() + DEADLINE_S
    for one in (listener, in_order):
        one.done.wait(max(end_s - time.monotonic(), 0.1))
    push.shutdown()
    ordered.shutdown()
    simple.shutdown()
    producer.shutdown()


class Checker(TransactionChecker):
    def __init__(self) -> None:
        self.asked = threading.Event()

    def check(self, message: Message) -> TransactionResolution:
        """On a busy machine the others are asked about as well, before their ends arrive."""
        body = message.body.decode()
        say("checked", body)
        if body == "orphan":
            self.asked.set()
        return TransactionResolution.ROLLBACK if body == "undone" else TransactionResolution.COMMIT


def decide() -> None:
    checker = Checker()
    producer = Producer(configuration(), (DECIDED,), checker)
    producer.startup()
    for body in ("committed", "undone", "orphan"):
        transaction = producer.begin_transaction()
        receipt = producer.send(made(DECIDED, body, keys=body), transaction)
        say("half", body, receipt.message_id)
        if body == "committed":
            transaction.commit()
        elif body == "undone":
            transaction.rollback()
    say("asked", checker.asked.wait(DEADLINE_S))
    time.sleep(1)  # its answer leaves in another thread
    producer.shutdown()


{"flow": flow, "decide": decide}[command]()
