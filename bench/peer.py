"""One client, one kind of work, in a process of its own: what `contrailmq bench clients` starts again and again.

The text of this file is also run by interpreters that have another client and no contrailmq, so it imports nothing of
ours but inside the functions that need it. It prints one JSON object: messages a second and CPU per message.

    python - rocketmq send 127.0.0.1:9876 BenchTopic 2000 1024 < bench/peer.py
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import Final

BATCH: Final = 32
IN_FLIGHT: Final = 256
WARM_UP: Final = 50  # messages before the watch starts: routes, connections and caches
WAIT_S: Final = 120.0
WORKS: Final = ("send", "batch", "async", "push")


class Watch:
    """Wall and CPU time from `start` on, of this process alone."""

    def __init__(self) -> None:
        self.start()

    def start(self) -> None:
        self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()

    def figures(self, count: int) -> dict[str, float]:
        wall_s, cpu_s = time.perf_counter() - self._wall_s, time.process_time() - self._cpu_s
        return {"per_s": round(count / wall_s), "cpu_us": round(cpu_s / count * 1e6, 1)}


class Received:
    """Counts what a listener was given; the watch starts with the first."""

    def __init__(self, count: int) -> None:
        self.watch = Watch()
        self.everything = threading.Event()
        self._count, self._got = count, 0
        self._lock = threading.Lock()  # the other client's listeners are called by several threads

    def add(self, messages: int) -> None:
        with self._lock:
            if not self._got:
                self.watch.start()
            self._got += messages
            if self._got >= self._count:
                self.everything.set()

    def figures(self) -> dict[str, float]:
        if not self.everything.wait(WAIT_S):
            raise SystemExit(f"only {self._got} of {self._count} messages came within {WAIT_S:g} s")
        return self.watch.figures(self._got)


def run_contrailmq(work: str, namesrv: str, topic: str, count: int, body: bytes) -> dict[str, float]:
    """Ours: the blocking clients, and the asyncio producer for many in flight."""
    from contrailmq import ConsumeFromWhere, Message, Producer, PushConsumer

    if work == "push":
        received = Received(count)
        group = f"bench_{os.getpid()}"
        with PushConsumer(group, namesrv=namesrv, from_where=ConsumeFromWhere.FIRST_OFFSET) as consumer:
            consumer.subscribe(topic)
            consumer.listen(lambda messages: received.add(len(messages)))
            return received.figures()
    if work == "async":
        return _contrailmq_in_flight(namesrv, topic, count, body)
    with Producer("bench", namesrv=namesrv) as producer:
        for _ in range(WARM_UP):
            producer.send(Message(topic, body))
        watch = Watch()
        if work == "send":
            for _ in range(count):
                producer.send(Message(topic, body))
            return watch.figures(count)
        for _ in range(count // BATCH):
            producer.send_batch([Message(topic, body) for _ in range(BATCH)])
        return watch.figures(count // BATCH * BATCH)


def _contrailmq_in_flight(namesrv: str, topic: str, count: int, body: bytes) -> dict[str, float]:
    import asyncio

    import contrailmq.aio as aio
    from contrailmq import Message
    from contrailmq.wire.transport import new_event_loop

    async def run() -> dict[str, float]:
        async with aio.Producer("bench", namesrv=namesrv) as producer:

            async def some(messages: int) -> None:
                for _ in range(messages):
                    await producer.send(Message(topic, body))

            await some(WARM_UP)
            watch = Watch()
            await asyncio.gather(*(some(count // IN_FLIGHT) for _ in range(IN_FLIGHT)))
            return watch.figures(count // IN_FLIGHT * IN_FLIGHT)

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(run())


def run_rocketmq(work: str, namesrv: str, topic: str, count: int, body: bytes) -> dict[str, float]:
    """PyPI's `rocketmq` and `rocketmq-client-python`: Python over RocketMQ's C++ library."""
    client = importlib.import_module("rocketmq.client")

    def message() -> object:
        made = client.Message(topic)
        made.set_body(body)
        return made

    if work == "push":
        received = Received(count)
        consumer = client.PushConsumer(f"bench_{os.getpid()}")
        consumer.set_namesrv_addr(namesrv)
        answer = getattr(client, "ConsumeStatus", None)  # version 2 wants one

        def handle(_: object) -> object:
            received.add(1)
            return answer and answer.CONSUME_SUCCESS

        consumer.subscribe(topic, handle)
        consumer.start()
        return received.figures()
    producer = client.Producer("bench")
    producer.set_namesrv_addr(namesrv)
    producer.start()
    for _ in range(WARM_UP):
        producer.send_sync(message())
    watch = Watch()
    if work == "send":
        for _ in range(count):
            producer.send_sync(message())
        return watch.figures(count)
    if work == "async":
        return _rocketmq_in_flight(producer, message, count)
    for _ in range(count // BATCH):
        producer.send_batch([message() for _ in range(BATCH)])
    return watch.figures(count // BATCH * BATCH)


def _rocketmq_in_flight(producer: object, message: Callable[[], object], count: int) -> dict[str, float]:
    send = getattr(producer, "send_async", None)
    if send is None:
        raise SystemExit("this client has no asynchronous send")
    room, failed = threading.Semaphore(IN_FLIGHT), []

    def stored(_: object) -> None:
        room.release()

    def lost(error: object) -> None:
        failed.append(error)
        room.release()

    watch = Watch()
    for _ in range(count):
        room.acquire()
        send(message(), stored, lost)
    for _ in range(IN_FLIGHT):
        room.acquire()
    if failed:
        raise SystemExit(f"{len(failed)} of {count} sends failed, first: {failed[0]!r}")
    return watch.figures(count)


def run_rocketmq_grpc(work: str, proxy: str, topic: str, count: int, body: bytes) -> dict[str, float]:
    """PyPI's `rocketmq-python-client` 5.x, Apache's own: pure Python over gRPC, so it needs a proxy."""
    client = importlib.import_module("rocketmq")
    producer = client.Producer(client.ClientConfiguration(proxy, client.Credentials()), (topic,))
    producer.startup()

    def message() -> object:
        made = client.Message()
        made.topic, made.body = topic, body
        return made

    for _ in range(WARM_UP):
        producer.send(message())
    watch = Watch()
    if work == "send":
        for _ in range(count):
            producer.send(message())
        return watch.figures(count)
    if work != "async":
        raise SystemExit("not measured: it has no batches, and its consumers pop from a proxy")
    room, failed = threading.Semaphore(IN_FLIGHT), []

    def ended(future: object) -> None:
        error = future.exception()  # type: ignore[attr-defined]
        if error is not None:
            failed.append(error)
        room.release()

    for _ in range(count):
        room.acquire()
        producer.send_async(message()).add_done_callback(ended)
    for _ in range(IN_FLIGHT):
        room.acquire()
    if failed:
        raise SystemExit(f"{len(failed)} of {count} sends failed, first: {failed[0]!r}")
    return watch.figures(count)


RUNS: Final = {"contrailmq": run_contrailmq, "rocketmq": run_rocketmq, "rocketmq-grpc": run_rocketmq_grpc}

if __name__ == "__main__":
    _client, _work, _namesrv, _topic, _count, _body_bytes = sys.argv[1:]
    print(json.dumps(RUNS[_client](_work, _namesrv, _topic, int(_count), b"x" * int(_body_bytes))), flush=True)
    os._exit(0)  # threads of the C++ library do not always end
