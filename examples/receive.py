"""Receive and acknowledge: a simple consumer, whose messages come again unless it says that they are done."""

from __future__ import annotations

from cluster import name_server

from contrailmq import ConsumeFromWhere, Message, Producer, SimpleConsumer
from contrailmq.client.errors import ReceiptExpiredError


def main() -> None:
    with name_server() as namesrv:
        with Producer("shop", namesrv=namesrv) as producer:
            for number in range(3):
                producer.send(Message("Invoices", b"invoice %d" % number))
        with SimpleConsumer("printing", namesrv=namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET) as consumer:
            consumer.subscribe("Invoices")
            messages = []
            while len(messages) < 3:
                messages += consumer.receive(max_messages=3, invisible_duration=30.0, timeout=5.0)
            first, second, third = sorted(messages, key=lambda message: message.body)
            consumer.ack(first)
            consumer.change_invisible_duration(second, 60.0)  # it takes longer than expected
            consumer.ack(second)
            consumer.change_invisible_duration(third, 0)  # somebody else may have it, at once
            (again,) = consumer.receive(invisible_duration=30.0, timeout=5.0)
            print(f"{again.body.decode()} came again, attempt {again.reconsume_times + 1}")
            consumer.ack(again)
            try:
                consumer.change_invisible_duration(again, 60.0)
            except ReceiptExpiredError as exc:
                print("too late:", exc)


if __name__ == "__main__":
    main()
