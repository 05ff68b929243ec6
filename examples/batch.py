"""Batches: one request for many messages; a long list is cut to what a request may hold."""

from __future__ import annotations

from cluster import name_server

from contrailmq import Message, Producer
from contrailmq.client import split_batch


def main() -> None:
    messages = [Message("Readings", b"%06d " % number + b"x" * 5000) for number in range(500)]
    with name_server() as namesrv, Producer("meters", namesrv=namesrv) as producer:
        for batch in split_batch(messages):
            result = producer.send_batch(batch)
            print(f"{len(batch)} messages are in {result.queue}, from offset {result.queue_offset} on")


if __name__ == "__main__":
    main()
