"""Traces: who sent and who consumed a message, in RocketMQ's own format, found by the message's id."""

from __future__ import annotations

import threading
import time

from cluster import name_server

from contrailmq import Admin, ConsumeFromWhere, Message, Producer, PushConsumer


def main() -> None:
    received = threading.Event()
    with name_server() as namesrv:
        with Producer("shop", namesrv=namesrv, trace=True) as producer:
            result = producer.send(Message("Traced", b"one bicycle"))
        consumer = PushConsumer("billing", namesrv=namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET, trace=True)
        consumer.subscribe("Traced")
        consumer.listen(lambda _: received.set())
        consumer.start()
        assert received.wait(20)
        consumer.shutdown()  # sends what is left of the trace
        with Admin(namesrv=namesrv) as admin:
            deadline = time.monotonic() + 20
            while len(kinds := trace_kinds(admin, result.message_id)) < 3 and time.monotonic() < deadline:
                time.sleep(0.1)
    print(f"{result.message_id}: {', '.join(kinds)}")
    assert kinds == ["Pub", "SubAfter", "SubBefore"]


def trace_kinds(admin: Admin, message_id: str) -> list[str]:
    found = admin.messages_by_key("RMQ_SYS_TRACE_TOPIC", message_id)
    records = [record for message in found for record in message.body.decode().split("\x02") if record]
    return sorted(record.split("\x01")[0] for record in records)


if __name__ == "__main__":
    main()
