"""Order: messages of one key go to one queue, and a queue is consumed by one listener call at a time."""

from __future__ import annotations

import threading

from cluster import name_server

from contrailmq import ConsumeFromWhere, Message, Producer, PushConsumer, StoredMessage
from contrailmq.client import by_hash
from contrailmq.message import printable

ORDERS = ("o-1", "o-2", "o-3")
STEPS = ("created", "paid", "packed", "shipped")


def main() -> None:
    history: dict[str, list[str]] = {order: [] for order in ORDERS}
    complete = threading.Event()

    def handle(messages: list[StoredMessage]) -> None:
        for message in messages:
            history[message.keys[0]].append(printable(message.body))
        if all(len(steps) == len(STEPS) for steps in history.values()):
            complete.set()

    with name_server() as namesrv, Producer("shop", namesrv=namesrv) as producer:
        for step in STEPS:
            for order in ORDERS:
                producer.send(Message("Steps", step.encode(), keys=[order]), selector=by_hash, arg=order)
        consumer = PushConsumer("tracking", namesrv=namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET, orderly=True)
        consumer.subscribe("Steps")
        consumer.listen(handle)
        consumer.start()
        assert complete.wait(20)
        consumer.shutdown()
    for order, steps in history.items():
        print(order, " -> ".join(steps))
        assert tuple(steps) == STEPS


if __name__ == "__main__":
    main()
