"""Following a topic: its messages as they come, without being a member of any group.

Each queue has a pull that the broker holds until there is something (long polling), so a quiet topic costs nothing and
a message is there at once. Messages of one queue come in their order. Queues that are added are found within half a
minute. What is asked for by tag or SQL is chosen by the broker; nothing is committed, and no group is created.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Final

from contrailmq.client.admin.admin import Admin
from contrailmq.client.admin.admin_messages import PULL_COUNT, TOOLS_GROUP
from contrailmq.client.consuming.pulling import PullRequest, pull
from contrailmq.client.consuming.subscription import SqlFilter, Subscription, make_subscription
from contrailmq.client.errors import BrokerNotFoundError, NoNameServerError, NoRouteError
from contrailmq.client.records import ReceivedMessage
from contrailmq.client.results import PullStatus
from contrailmq.message import ContrailError, MessageQueue
from contrailmq.wire.errors import ConnectError, ConnectionClosedError, RequestTimeoutError

WAITING_MAX: Final = 1000  # messages that were pulled and not taken: a slow terminal must not fill the memory
QUEUES_AGAIN_S: Final = 30.0
PAUSE_S: Final = 1.0  # before a broker that is away is asked again
HELD_S: Final = 15.0
_AWAY: Final = (
    BrokerNotFoundError, ConnectError, ConnectionClosedError, NoNameServerError, NoRouteError, RequestTimeoutError,
)  # fmt: skip


class TopicFollower(Admin):
    """An administrator that reads a topic on and on."""

    async def follow(
        self,
        topic: str,
        wanted: str | SqlFilter | None = None,
        *,
        since_ms: int | None = None,
        on_trouble: Callable[[str], None] = lambda _: None,
    ) -> AsyncIterator[ReceivedMessage]:
        """From now or a time on, until it is closed. A broker that is away is told of once and waited for.

        Raises what a broker says of the filter, and NoRouteError for a topic that is not there at the start.
        """
        real = self._name(topic)
        subscription = make_subscription(real, wanted, version=0)
        place = _Place(asyncio.Queue(WAITING_MAX), on_trouble)
        following = asyncio.create_task(self._follow_queues(topic, subscription, since_ms, place))
        following.add_done_callback(lambda _: place.ended.set())
        try:
            while (message := await place.next()) is not None:
                yield message
            following.result()
        finally:
            following.cancel()
            with contextlib.suppress(asyncio.CancelledError, ContrailError):
                await following

    async def _follow_queues(self, topic: str, subscription: Subscription, since_ms: int | None, place: _Place) -> None:
        """One task a queue; ends with the first error that waiting does not mend."""
        followed: dict[MessageQueue, int] = {}
        async with _each_ends_all() as tasks:
            for queue in await self.queues(topic):
                at = await (self.max_offset(queue) if since_ms is None else self.search_offset(queue, since_ms))
                followed[queue] = at
            for queue, at in followed.items():
                tasks.create_task(self._follow_queue(queue, at, subscription, place))
            while True:
                await asyncio.sleep(QUEUES_AGAIN_S)
                with contextlib.suppress(*_AWAY):
                    for queue in await self.queues(topic):
                        if queue not in followed:
                            followed[queue] = await self.min_offset(queue)
                            tasks.create_task(self._follow_queue(queue, followed[queue], subscription, place))

    async def _follow_queue(self, queue: MessageQueue, offset: int, subscription: Subscription, place: _Place) -> None:
        is_away = False
        while True:
            request = PullRequest(
                queue, offset, subscription, PULL_COUNT, 1024 * 1024, suspend_s=HELD_S, carries_subscription=True
            )
            try:
                pulled = await pull(self._connected(), TOOLS_GROUP, request)
            except _AWAY as exc:
                if not is_away:
                    place.on_trouble(f"queue {queue.queue_id} of {queue.broker_name} is waited for: {exc}")
                is_away = True
                await asyncio.sleep(PAUSE_S)
                continue
            is_away = False
            for message in pulled.messages:
                await place.messages.put(message)
            is_held = pulled.status in (PullStatus.FOUND, PullStatus.NO_MATCHED_MESSAGE)
            if pulled.next_offset == offset and is_held:  # a slave sends us on to a master that is away
                await asyncio.sleep(PAUSE_S)
            offset = pulled.next_offset


class _Place:
    """Where the queues' messages meet."""

    def __init__(self, messages: asyncio.Queue[ReceivedMessage], on_trouble: Callable[[str], None]) -> None:
        self.messages, self.on_trouble, self.ended = messages, on_trouble, asyncio.Event()

    async def next(self) -> ReceivedMessage | None:
        """None when no more will come."""
        if self.messages.empty():
            getting = asyncio.ensure_future(self.messages.get())
            ending = asyncio.ensure_future(self.ended.wait())
            try:
                await asyncio.wait((getting, ending), return_when=asyncio.FIRST_COMPLETED)
                return getting.result() if getting.done() else None
            finally:
                getting.cancel()
                ending.cancel()
        return self.messages.get_nowait()


@contextlib.asynccontextmanager
async def _each_ends_all() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group whose first error comes out as it is."""
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except BaseExceptionGroup as group:
        raise group.exceptions[0] from None
