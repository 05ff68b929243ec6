"""Filters: tags are cheap and exact, SQL92 looks at properties."""

from __future__ import annotations

import threading

from cluster import name_server

from contrailmq import ConsumeFromWhere, Message, Producer, PushConsumer, SqlFilter, StoredMessage


def main() -> None:
    with name_server() as namesrv:
        with Producer("shop", namesrv=namesrv) as producer:
            for region, amount in (("eu", 5), ("eu", 50), ("us", 70)):
                properties = {"region": region, "amount": str(amount)}
                body = f"{amount} from {region}".encode()
                producer.send(Message("Payments", body, tags=region, properties=properties))
        print("tag us:", receive(namesrv, "by-tag", "us", 1))
        print("eu over 10:", receive(namesrv, "by-sql", SqlFilter("region = 'eu' AND amount > 10"), 1))


def receive(namesrv: str, group: str, wanted: str | SqlFilter, count: int) -> list[str]:
    bodies: list[str] = []
    complete = threading.Event()

    def handle(messages: list[StoredMessage]) -> None:
        bodies.extend(message.body.decode() for message in messages)
        if len(bodies) >= count:
            complete.set()

    consumer = PushConsumer(group, namesrv=namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET)
    consumer.subscribe("Payments", wanted)
    consumer.listen(handle)
    consumer.start()
    assert complete.wait(20)
    consumer.shutdown()
    return bodies


if __name__ == "__main__":
    main()
