"""Request and reply: ask through a topic, wait for one consumer's answer."""

from __future__ import annotations

from cluster import name_server

from contrailmq import Message, Producer, PushConsumer, StoredMessage
from contrailmq.client import create_reply
from contrailmq.message import printable


def main() -> None:
    with name_server() as namesrv, Producer("shop", namesrv=namesrv) as producer:

        def answer(messages: list[StoredMessage]) -> None:
            for message in messages:
                if message.tags == "question":
                    producer.send(create_reply(message, b"42 bicycles"))

        producer.send(Message("Stock", b"create the topic"))
        consumer = PushConsumer("warehouse", namesrv=namesrv)
        consumer.subscribe("Stock", "question")
        consumer.listen(answer)
        consumer.start()
        reply = producer.request(Message("Stock", b"how many?", tags="question"), timeout=20.0)
        print("the warehouse says:", printable(reply.body))
        consumer.shutdown()


if __name__ == "__main__":
    main()
