"""Idempotence: the order is sent twice, and booked once."""

from __future__ import annotations

import threading
from pathlib import Path
from tempfile import TemporaryDirectory

from cluster import name_server

import contrailmq
from contrailmq import ConsumeFromWhere, Message, Producer, PushConsumer, StoredMessage


def main() -> None:
    booked: list[str] = []
    last = threading.Event()

    def book(messages: list[StoredMessage]) -> None:
        booked.extend(message.keys[0] for message in messages)
        if booked[-1] == "o-last":
            last.set()

    with TemporaryDirectory() as directory, name_server() as namesrv:
        with Producer("shop", namesrv=namesrv) as producer:
            queue = producer.queues("Bookings")[0]
            for key in ("o-17", "o-17", "o-last"):
                producer.send(Message("Bookings", b"bicycle", keys=[key]), queue=queue)
        consumer = PushConsumer("billing", namesrv=namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET, consume_threads=1)
        consumer.subscribe("Bookings")
        consumer.listen(contrailmq.idempotent(book, store=Path(directory, "seen.sqlite")))
        consumer.start()
        assert last.wait(20)
        consumer.shutdown()
    print("booked:", booked)
    assert booked == ["o-17", "o-last"]


if __name__ == "__main__":
    main()
