"""The Python clients that wrap RocketMQ's C++ library. Runs in an environment of its own, without contrailmq.

One line per fact, its fields separated by tabs: `sent status offset id`, `got queue offset tags body`, `done true`.
"""

from __future__ import annotations

import os
import sys
import threading

from rocketmq import client as rocketmq

WAIT_S = 60.0


def say(*fields: object) -> None:
    print(*fields, sep="\t", flush=True)


def make(topic: str, number: int) -> rocketmq.Message:
    message = rocketmq.Message(topic)
    message.set_body(b"body-%d" % number)
    message.set_tags("odd" if number % 2 else "even")
    message.set_keys(f"key-{number}")
    return message


def started_producer(namesrv: str) -> rocketmq.Producer:
    producer = rocketmq.Producer("cpp_producer")
    producer.set_namesrv_addr(namesrv)
    producer.start()
    return producer


def produce(namesrv: str, topic: str, count: str) -> None:
    producer = started_producer(namesrv)
    for number in range(int(count)):
        result = producer.send_sync(make(topic, number))
        say("sent", int(result.status), result.offset, result.msg_id)


def batch(namesrv: str, topic: str, count: str) -> None:
    result = started_producer(namesrv).send_batch([make(topic, number) for number in range(int(count))])
    say("sent", int(result.status), result.offset, result.msg_id)


def consume(namesrv: str, topic: str, count: str, group: str, tags: str, kind: str = "concurrent") -> None:
    taken, everything = [], threading.Event()

    def handle(message: rocketmq.RecvMessage) -> object:
        tag = message.tags.decode() if isinstance(message.tags, bytes) else message.tags
        taken.append((message.queue_id, message.queue_offset, tag, message.body.decode()))
        if len(taken) >= int(count):
            everything.set()
        # Version 2 wants an answer, the earlier ones take none.
        return rocketmq.ConsumeStatus.CONSUME_SUCCESS if hasattr(rocketmq, "ConsumeStatus") else None

    consumer = rocketmq.PushConsumer(group, orderly=kind == "orderly")
    consumer.set_namesrv_addr(namesrv)
    consumer.set_thread_count(4)
    consumer.subscribe(topic, handle, tags)
    consumer.start()
    is_done = everything.wait(WAIT_S)
    for fields in taken:
        say("got", *fields)
    say("done", str(is_done).lower())
    consumer.shutdown()


if __name__ == "__main__":
    {"produce": produce, "batch": batch, "consume": consume}[sys.argv[1]](*sys.argv[2:])
    os._exit(0)  # the library's own threads do not always end
