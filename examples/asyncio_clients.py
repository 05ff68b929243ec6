"""The asyncio clients: many sends in flight, a coroutine that listens."""

from __future__ import annotations

import asyncio

from cluster import name_server

import contrailmq.aio as aio
from contrailmq import ConsumeFromWhere, Message, StoredMessage

COUNT = 200


async def run(namesrv: str) -> None:
    everything = asyncio.Event()
    seen: set[bytes] = set()

    async def handle(messages: list[StoredMessage]) -> None:
        seen.update(message.body for message in messages)
        if len(seen) == COUNT:
            everything.set()

    async with aio.Producer("shop", namesrv=namesrv) as producer:
        await asyncio.gather(*(producer.send(Message("Async", b"%d" % number)) for number in range(COUNT)))
        async with aio.PushConsumer("billing", namesrv=namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET) as consumer:
            consumer.subscribe("Async")
            consumer.listen(handle)
            await asyncio.wait_for(everything.wait(), 20)
    print(f"{COUNT} messages were sent at once and received")


def main() -> None:
    with name_server() as namesrv:
        asyncio.run(run(namesrv))


if __name__ == "__main__":
    main()
