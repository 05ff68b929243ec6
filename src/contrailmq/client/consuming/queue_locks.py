"""Broker locks of queues: who may consume a queue in order.

A broker gives a lock of a queue to one client of a group for 60 s. The client renews all its locks every 20 s and
trusts one for 30 s only, so there is never a moment at which two clients believe that they hold it (as long as clocks
advance at about the same speed).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from contrailmq.client.transport.instance import ClientInstance
from contrailmq.message import ContrailError, MessageQueue
from contrailmq.wire.bodies import LockBatchBody, LockedQueues, MessageQueueBody, decode_body, encode_body
from contrailmq.wire.codes import RequestCode

_log = logging.getLogger("contrailmq.client.consumer")

LOCK_TIMEOUT_S: Final = 1.0
RENEW_EVERY_S: Final = 20.0


class QueueLocks:
    """Asks brokers for locks in the name of one group member."""

    def __init__(self, instance: ClientInstance, group: str) -> None:
        self._instance = instance
        self._group = group

    async def lock(self, queues: Iterable[MessageQueue]) -> set[MessageQueue]:
        """Those of the queues that are ours now. A broker that does not answer has given none."""
        batches = list(_by_broker(queues).items())
        results = await asyncio.gather(*(self._lock_at(name, batch) for name, batch in batches))
        return set().union(*results) if results else set()

    async def unlock(self, queues: Iterable[MessageQueue]) -> None:
        """Give locks back; a failure only means that they run out by themselves."""
        for name, batch in _by_broker(queues).items():
            try:
                address = await self._instance.find_master(name, batch[0].topic)
                await self._instance.call(
                    address, RequestCode.UNLOCK_BATCH_MQ, {}, self._body(batch), timeout_s=LOCK_TIMEOUT_S
                )
            except ContrailError as exc:
                _log.info("locks at broker %s were not given back, they run out in 60 s: %s", name, exc)

    async def _lock_at(self, broker_name: str, queues: list[MessageQueue]) -> set[MessageQueue]:
        try:
            address = await self._instance.find_master(broker_name, queues[0].topic)
            answer = await self._instance.call(
                address, RequestCode.LOCK_BATCH_MQ, {}, self._body(queues), timeout_s=LOCK_TIMEOUT_S
            )
            locked = decode_body(answer.body, LockedQueues).queues
        except ContrailError as exc:
            _log.warning("broker %s gave no locks: %s", broker_name, exc)
            return set()
        return {item.queue for item in locked}

    def _body(self, queues: list[MessageQueue]) -> bytes:
        return encode_body(
            LockBatchBody(
                client_id=self._instance.client_id,
                consumer_group=self._group,
                mq_set=[MessageQueueBody.of(queue) for queue in queues],
            )
        )


def _by_broker(queues: Iterable[MessageQueue]) -> dict[str, list[MessageQueue]]:
    batches: dict[str, list[MessageQueue]] = {}
    for queue in queues:
        batches.setdefault(queue.broker_name, []).append(queue)
    return batches
