"""Send a message and receive it."""

from __future__ import annotations

import threading

from cluster import name_server

from contrailmq import ConsumeFromWhere, Message, Producer, PushConsumer, StoredMessage


def main() -> None:
    received = threading.Event()

    def handle(messages: list[StoredMessage]) -> None:
        for message in messages:
            print(f"received {message.body!r} with tag {message.tags} and key {message.keys[0]}")
        received.set()

    with name_server() as namesrv, Producer("shop", namesrv=namesrv) as producer:
        result = producer.send(Message("Orders", b"one bicycle", tags="paid", keys=["o-17"]))
        print(f"{result.status.name}: message {result.message_id} is number {result.queue_offset} of {result.queue}")
        consumer = PushConsumer("billing", namesrv=namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
        consumer.subscribe("Orders", "paid || shipped")
        consumer.listen(handle)
        consumer.start()
        assert received.wait(20)
        consumer.shutdown()


if __name__ == "__main__":
    main()
