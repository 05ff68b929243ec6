"""Delays: level 1 is one second, level 3 ten seconds, up to two hours (the broker's messageDelayLevel)."""

from __future__ import annotations

import threading
import time

from cluster import name_server

from contrailmq import ConsumeFromWhere, Message, Producer, PushConsumer, StoredMessage


def main() -> None:
    received = threading.Event()

    def handle(messages: list[StoredMessage]) -> None:
        for message in messages:
            late_s = time.time() - message.born_time_ms / 1000
            print(f"{message.body!r} came {late_s:.1f} s after it was sent")
        received.set()

    with name_server() as namesrv, Producer("shop", namesrv=namesrv) as producer:
        producer.send(Message("Reminders", b"pay your order", delay_level=1))
        consumer = PushConsumer("mailer", namesrv=namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
        consumer.subscribe("Reminders")
        consumer.listen(handle)
        consumer.start()
        assert received.wait(20)
        consumer.shutdown()


if __name__ == "__main__":
    main()
