"""Where a simple consumer's messages come from: a *source* is a topic at a broker.

Each `receive` begins at the next source, topics in turn and the brokers of each in turn. What is known of a source:

    open      nothing: a receive asks it for messages
    watched   it had nothing, and a question waits at its broker: passed over until the answer, then open
    resting   it failed: passed over for a second, then open

A question (NOTIFICATION) takes nothing, so all sources can be asked at once while messages are taken from one. It
outlives the `receive` that began it: the next one need not ask a source again that had nothing and will tell.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Final, NamedTuple

from contrailmq.client.transport.routes import TopicRoute, subscribe_queues
from contrailmq.message import ContrailError

_log = logging.getLogger("contrailmq.client.consumer")

REST_S: Final = 1.0

Spawn = Callable[[Coroutine[object, object, None], str], asyncio.Task[None]]


class Source(NamedTuple):
    """A topic at a broker."""

    topic: str
    broker_name: str


class Sources:
    """Owner: one simple consumer, on its loop."""

    def __init__(self, spawn: Spawn) -> None:
        self._spawn = spawn
        self._turn = 0
        self._silent: dict[Source, asyncio.Task[None]] = {}  # watched or resting
        self.changed = asyncio.Event()  # a source is open, or there are others

    def in_turn(self, routes: Mapping[str, TopicRoute]) -> list[Source]:
        """All sources, the one whose turn it is first."""
        turn, self._turn = self._turn, self._turn + 1
        topics = sorted(routes)
        at, laps = turn % max(len(topics), 1), turn // max(len(topics), 1)
        of_topics = []
        for topic in topics[at:] + topics[:at]:
            names = list(dict.fromkeys(queue.broker_name for queue in subscribe_queues(topic, routes[topic])))
            begin = laps % max(len(names), 1)
            of_topics.append([Source(topic, name) for name in names[begin:] + names[:begin]])
        return [source for row in itertools.zip_longest(*of_topics) for source in row if source is not None]

    def is_open(self, source: Source) -> bool:
        return source not in self._silent

    def watch(self, source: Source, ask: Callable[[Source], Awaitable[object]]) -> None:
        """Leave it alone until the question is answered."""
        if source not in self._silent:
            self._silent[source] = self._spawn(self._ask(source, ask), "watch")

    def rest(self, source: Source) -> None:
        """Leave it alone for a second."""
        if source not in self._silent:
            self._silent[source] = self._spawn(self._pause(source), "rest")

    def forget(self, topic: str) -> None:
        """What is wanted of the topic is something else now, or nothing."""
        for source in [source for source in self._silent if source.topic == topic]:
            self._silent.pop(source).cancel()
        self.changed.set()

    def close(self) -> None:
        for task in self._silent.values():
            task.cancel()
        self._silent.clear()
        self.changed.set()

    async def _ask(self, source: Source, ask: Callable[[Source], Awaitable[object]]) -> None:
        try:
            await ask(source)
        except ContrailError as exc:
            _log.info("broker %s cannot be asked for messages of %s: %s", source.broker_name, source.topic, exc)
            await asyncio.sleep(REST_S)
        self._open(source)

    async def _pause(self, source: Source) -> None:
        await asyncio.sleep(REST_S)
        self._open(source)

    def _open(self, source: Source) -> None:
        if self._silent.get(source) is asyncio.current_task():  # else it was forgotten, and perhaps asked anew
            del self._silent[source]
            self.changed.set()
