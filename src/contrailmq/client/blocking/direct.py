"""A blocking send without the event loop: request and answer on a socket of the calling thread.

Handing a send to the background loop and waiting for it takes two thread switches, half of the cost of a blocking
send. So in the plain case (queues and broker address known, no hooks, trace, TLS or signature, nothing to compress) the
calling thread does it alone. Routes, heartbeats and everything unusual stay with the loop. So do further tries if this
one fails, which counts as the first.

A pool gives each send a connection of its own. One that was idle for a second is checked before it is used, because
brokers close connections that are idle for two minutes.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from typing import Final, NamedTuple

from contrailmq.client.blocking.raw_connection import RawConnection
from contrailmq.client.producing.producer import Producer
from contrailmq.client.producing.sending import Outgoing, Sender
from contrailmq.client.results import SendResult
from contrailmq.message import ContrailError, Message, MessageQueue
from contrailmq.wire.header import Command

__all__ = ["IS_POSSIBLE", "DirectSends", "Failed"]

IS_POSSIBLE: Final = os.name == "posix"  # time limits of the kernel, and a look without waiting

TRUSTED_S: Final = 1.0  # how long a connection that was not used is taken for a live one
OLD_S: Final = 60.0  # and when it is not used any more
CONNECT_S: Final = 3.0  # as RemotingClient


class Failed(Exception):
    """A try that another may follow; never seen by callers of the clients."""

    def __init__(self, outgoing: Outgoing, broker_name: str, elapsed_s: float, cause: ContrailError) -> None:
        super().__init__(broker_name)
        self.outgoing, self.broker_name, self.elapsed_s, self.cause = outgoing, broker_name, elapsed_s, cause


class _Pooled(NamedTuple):
    connection: RawConnection
    used_s: float


class DirectSends:
    """Of one producer; any thread may send."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._pid = os.getpid()
        self._pools: dict[str, deque[_Pooled]] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def send(self, message: Message, timeout_s: float | None) -> SendResult | None:
        """None when it must go the long way; Failed when it should be tried once more."""
        sender = self._producer.direct_sender()
        if sender is None or os.getpid() != self._pid:
            return None
        outgoing = sender.check(message)
        if len(outgoing.body) >= sender.options.compress_over_bytes:
            return None
        return self._send(sender, outgoing, timeout_s)

    def send_batch(self, messages: Sequence[Message], timeout_s: float | None) -> SendResult | None:
        """The same for messages that travel together."""
        sender = self._producer.direct_sender()
        if sender is None or os.getpid() != self._pid:
            return None
        return self._send(sender, self._producer.pack(messages), timeout_s)

    def _send(self, sender: Sender, outgoing: Outgoing, timeout_s: float | None) -> SendResult | None:
        place = sender.known_place(outgoing.topic)
        if place is None:
            return None
        queue, address = place
        started_s = time.monotonic()
        try:
            limit_s = sender.options.send_timeout_s if timeout_s is None else timeout_s
            answer = self._exchange(sender, outgoing, queue, address, limit_s)
            return sender.outcome(answer, outgoing, queue, address)
        except ContrailError as exc:
            if not exc.retriable:
                raise
            raise Failed(outgoing, queue.broker_name, time.monotonic() - started_s, exc) from exc

    def close(self) -> None:
        """Those that are in use are closed by their senders."""
        with self._lock:
            self._is_closed = True
            pools, self._pools = self._pools, {}
        for pool in pools.values():
            for pooled in pool:
                pooled.connection.close()

    def _exchange(
        self, sender: Sender, outgoing: Outgoing, queue: MessageQueue, address: str, timeout_s: float
    ) -> Command:
        connection = self._take(address) or RawConnection(address, connect_timeout_s=min(timeout_s, CONNECT_S))
        try:
            answer = connection.exchange(lambda opaque: sender.frame(outgoing, queue, opaque), outgoing.code, timeout_s)
        except BaseException:  # Ctrl-C too: what its answer would be taken for
            connection.close()
            raise
        self._give_back(address, connection)
        return answer

    def _take(self, address: str) -> RawConnection | None:
        pool = self._pools.get(address)
        while pool:
            try:
                connection, used_s = pool.pop()
            except IndexError:  # another thread had the last one
                return None
            idle_s = time.monotonic() - used_s
            if idle_s < TRUSTED_S or (idle_s < OLD_S and connection.is_alive()):
                return connection
            connection.close()
        return None

    def _give_back(self, address: str, connection: RawConnection) -> None:
        with self._lock:
            if not self._is_closed:
                self._pools.setdefault(address, deque()).append(_Pooled(connection, time.monotonic()))
                return
        connection.close()
