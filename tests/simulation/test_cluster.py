"""NameServer, broker, producer and push consumer, unchanged, in a world."""

from __future__ import annotations

import asyncio
import time

from contrailmq import aio
from contrailmq.message import ContrailError, Message
from contrailmq.message.model import StoredMessage
from simulation.cluster import Cluster
from simulation.nodes import Node

TOPIC = "Orders"


class Traffic:
    """A producer that sends on and on, and a push consumer; what was acknowledged, and what was delivered."""

    def __init__(self, cluster: Cluster, *, pause_s: float = 0.5) -> None:
        self._cluster, self._pause_s = cluster, pause_s
        self.acknowledged: dict[bytes, tuple[int, int]] = {}
        self.delivered: dict[bytes, tuple[int, int]] = {}
        self.refused: list[str] = []
        self.is_sending = True

    async def produce(self, node: Node) -> None:
        async with aio.Producer("producers", namesrv=self._cluster.namesrv) as producer:
            number = 0
            while self.is_sending:
                number += 1
                body = b"message %d" % number
                try:
                    result = await producer.send(Message(TOPIC, body))
                    self.acknowledged[body] = (result.queue.queue_id, result.queue_offset)
                except ContrailError as exc:
                    self.refused.append(f"{node.world.now_s:.3f} {type(exc).__name__}")
                await asyncio.sleep(self._pause_s)

    async def consume(self, node: Node) -> None:
        async def hear(messages: list[StoredMessage]) -> None:
            for message in messages:
                self.delivered[message.body] = (message.queue_id, message.queue_offset)

        consumer = aio.PushConsumer("consumers", namesrv=self._cluster.namesrv)
        consumer.subscribe(TOPIC)
        consumer.listen(hear)
        await consumer.start()
        await asyncio.Event().wait()

    def start(self) -> None:
        self._cluster.start_client("producer", self.produce)
        self._cluster.start_client("consumer", self.consume)

    def missing(self) -> list[bytes]:
        return [body for body, place in self.acknowledged.items() if self.delivered.get(body) != place]

    def finish(self, within_s: float) -> None:
        """Send no more; all that was acknowledged arrives in time, at the offset that was acknowledged."""
        self.is_sending = False
        self._cluster.world.run_until(lambda: not self.missing(), within_s=within_s)
        assert not self.missing()
        for node in self._cluster.world.nodes.values():
            assert (node.error, node.complaints, node.failed_threads) == (None, [], []), node.name


def test_ten_virtual_minutes_of_sending_and_consuming() -> None:
    began_s = time.process_time()
    with Cluster(1) as cluster:
        cluster.start_name_server()
        cluster.start_broker("b0")
        traffic = Traffic(cluster)
        traffic.start()
        cluster.world.run_for(600)
        traffic.finish(within_s=30)
        assert len(traffic.acknowledged) > 1100
        assert traffic.refused == []
        virtual_s = cluster.world.now_s
    cpu_s = time.process_time() - began_s
    print(f"{virtual_s:.0f} virtual seconds in {cpu_s:.1f} CPU seconds: {virtual_s / cpu_s:.0f} to 1")
