"""Offsets kept by the broker: what a group in clustering mode shares."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from contrailmq.client.errors import number
from contrailmq.client.offset_store import NO_OFFSET, OffsetTable
from contrailmq.client.transport.instance import ClientInstance
from contrailmq.message import ContrailError, MessageQueue
from contrailmq.wire.codes import RequestCode, ResponseCode

_log = logging.getLogger("contrailmq.client.offsets")

OFFSET_TIMEOUT_S: Final = 5.0


class RemoteOffsetStore:
    """The broker's offsets of one group, with the table of this member in front.

    Where nothing is stored, brokers answer 0 for a queue whose first message is still in memory, as RocketMQ's clients
    expect. With `is_exact` they say that there is nothing: whoever asks for a point in time means it on any queue.
    """

    def __init__(self, instance: ClientInstance, group: str, *, is_exact: bool = False) -> None:
        self.table = OffsetTable()
        self._instance = instance
        self._group = group
        self._is_exact = is_exact

    async def load(self) -> None:
        """Nothing: offsets are read queue by queue when a queue is taken."""

    async def read_stored(self, queue: MessageQueue) -> int:
        """-1 when the broker has none; any other trouble is raised, because guessing would skip or repeat messages."""
        address, _ = await self._instance.find_reader(queue.broker_name, queue.topic)
        answer = await self._instance.call(
            address,
            RequestCode.QUERY_CONSUMER_OFFSET,
            {**self._ext(queue), "setZeroIfNotFound": "false"} if self._is_exact else self._ext(queue),
            timeout_s=OFFSET_TIMEOUT_S,
            accept=(ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND),
        )
        return number(answer.ext, "offset") if answer.code == ResponseCode.SUCCESS else NO_OFFSET

    async def persist(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Write what is known, all at once; failures are logged and returned, for the next round to try again."""
        known = [(queue, offset) for queue in queues if (offset := self.table.get(queue)) is not None and offset >= 0]
        results = await asyncio.gather(*(self._try_write(queue, offset) for queue, offset in known))
        return [queue for (queue, _), is_stored in zip(known, results, strict=True) if not is_stored]

    async def _try_write(self, queue: MessageQueue, offset: int) -> bool:
        try:
            await self.write(queue, offset)
        except ContrailError as exc:
            _log.warning("offset %d of %s was not stored, the next round tries again: %s", offset, queue, exc)
            return False
        return True

    async def write(self, queue: MessageQueue, offset: int) -> None:
        """Store one offset and wait for the broker's answer."""
        address, _ = await self._instance.find_reader(queue.broker_name, queue.topic)
        ext = {**self._ext(queue), "commitOffset": offset}
        await self._instance.call(address, RequestCode.UPDATE_CONSUMER_OFFSET, ext, timeout_s=OFFSET_TIMEOUT_S)

    def _ext(self, queue: MessageQueue) -> dict[str, str | int]:
        return {
            "consumerGroup": self._group,
            "topic": queue.topic,
            "queueId": queue.queue_id,
            "bname": queue.broker_name,
        }
