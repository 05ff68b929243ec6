"""Broadcasting: every member of the group gets every message and keeps its own place, in a local file."""

from __future__ import annotations

import threading
from tempfile import TemporaryDirectory

from cluster import name_server

from contrailmq import ConsumeFromWhere, Message, MessageModel, Producer, PushConsumer, StoredMessage
from contrailmq.message import printable


def main() -> None:
    with TemporaryDirectory() as directory, name_server() as namesrv:
        members = []
        for number in (1, 2):
            received = threading.Event()

            def handle(
                messages: list[StoredMessage], number: int = number, received: threading.Event = received
            ) -> None:
                print(f"member {number} drops {printable(messages[0].body)} from its cache")
                received.set()

            consumer = PushConsumer(
                "caches",
                namesrv=namesrv,
                model=MessageModel.BROADCASTING,
                from_where=ConsumeFromWhere.FIRST_OFFSET,
                instance_name=f"cache-{number}",
                local_offset_dir=directory,
            )
            consumer.subscribe("Invalidations")
            consumer.listen(handle)
            consumer.start()
            members.append((consumer, received))
        with Producer("prices", namesrv=namesrv) as producer:
            producer.send(Message("Invalidations", b"price-17"))
        for consumer, received in members:
            assert received.wait(20)
            consumer.shutdown()


if __name__ == "__main__":
    main()
