"""The messages that a push consumer has by POP, from the answer that brought them until the broker knows their fate.

Each message is in one of these states. Nothing else may happen to it:

    held       it waits for a listener, or a listener has it: renewed before its invisible time ends
    judged     its fate is known, and a renewal of it is on its way: told when that is over
    told       acknowledged, put off, buried or let go: the broker is being told
    lost       its invisible time ended, or the broker said so: it may be with another consumer, and nothing is told

A renewal gives a message a new handle, and only the newest handle counts: so nothing is told while one is on its way.
What waits for a broker together is acknowledged in one request: while one request is on its way the next fills up, so a
busy consumer sends few large ones and an idle one acknowledges at once. A broker that cannot be reached is told again
until the message's time is over.

Renewing ends after `held_s_max`: a listener that hangs must not keep a message from others for ever.
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable, Coroutine, Iterable
from typing import Final

from contrailmq.client.consuming import popping
from contrailmq.client.errors import ReceiptExpiredError
from contrailmq.client.hooks import user_error_log
from contrailmq.client.records import PoppedMessage
from contrailmq.client.transport.instance import ClientInstance
from contrailmq.client.transport.waiting import set_within
from contrailmq.message import ContrailError
from contrailmq.wire.errors import ResponseError

_log = user_error_log("contrailmq.client.consumer")

RENEW_AT: Final = 1 / 3  # of the invisible time is left
LOOK_AT: Final = 1 / 12  # of the invisible time passes between two looks
TELL_AGAIN_S: Final = 0.2
LAST_WORDS_S: Final = 5.0  # that a shutdown waits for brokers


class Fate(enum.Enum):
    ACKNOWLEDGED = "acknowledged"
    PUT_OFF = "put off"
    BURIED = "buried"
    LET_GO = "let go"


class Held:
    """One message. Owned by its `PopHolding`."""

    __slots__ = ("fate", "is_lost", "is_renewing", "later_s", "message", "on_gone", "since_s")

    def __init__(self, message: PoppedMessage, since_s: float, on_gone: Callable[[Held], None]) -> None:
        self.message = message
        self.since_s = since_s
        self.on_gone = on_gone
        self.is_renewing = False
        self.is_lost = False
        self.fate: Fate | None = None
        self.later_s = 0.0


class PopHolding:
    """Owner: one push consumer, on its loop."""

    def __init__(self, instance: ClientInstance, group: str, *, invisible_s: float, held_s_max: float) -> None:
        self._instance = instance
        self._group = group
        self._invisible_s = invisible_s
        self._held_s_max = held_s_max
        self._all: set[Held] = set()
        self._acks: dict[str, list[Held]] = {}  # by broker: those that a request is to tell
        self._empty = asyncio.Event()
        self._empty.set()

    def __len__(self) -> int:
        return len(self._all)

    def hold(self, messages: Iterable[PoppedMessage], on_gone: Callable[[Held], None]) -> list[Held]:
        """Have messages from now on. `on_gone` is told of each when this consumer has it no more."""
        now_s = self._instance.loop.time()
        held = [Held(message, now_s, on_gone) for message in messages]
        self._all.update(held)
        if held:
            self._empty.clear()
        return held

    def is_live(self, held: Held) -> bool:
        """Whether it is this consumer's for sure. Any thread may ask."""
        return not held.is_lost and self._instance.loop.time() < held.message.visible_at_s

    # --- what becomes of them

    def settle(self, held: Held, fate: Fate, later_s: float = 0.0) -> None:
        """Tell the broker, as soon as no renewal is on its way.

        The first fate counts: a shutdown does not wait for a listener for ever, and lets its message go.
        """
        if held.fate is not None:
            return
        held.fate, held.later_s = fate, later_s
        if not held.is_renewing:
            self._tell(held)

    def _tell(self, held: Held) -> None:
        if not self.is_live(held):
            self._lose(held)
        elif held.fate is Fate.ACKNOWLEDGED:
            self._acknowledge_soon(held)
        else:
            self._instance.spawn(self._tell_one(held), "settle")

    def _lose(self, held: Held) -> None:
        held.is_lost = True
        if held.fate is Fate.ACKNOWLEDGED:
            text = "message %s of topic %s was consumed after its invisible time had ended: it comes again"
            _log.warning(text, held.message.message_id, held.message.topic)
        self._gone(held)

    def _gone(self, held: Held) -> None:
        self._all.discard(held)
        if not self._all:
            self._empty.set()
        held.on_gone(held)

    async def _tell_one(self, held: Held) -> None:
        message = held.message
        await self._insisting(held, lambda: self._said(held))
        if held.fate is Fate.BURIED and not held.is_lost:
            text = "message %s of topic %s failed %d times: it is a dead letter now"
            _log.warning(text, message.message_id, message.topic, message.reconsume_times + 1)
        self._gone(held)

    def _said(self, held: Held) -> Coroutine[object, object, None]:
        instance, group, message = self._instance, self._group, held.message
        if held.fate is Fate.ACKNOWLEDGED:
            return popping.acknowledge(instance, group, message)
        if held.fate is Fate.BURIED:
            return popping.bury(instance, group, message)
        return popping.change(instance, group, message, held.later_s, is_attempt=held.fate is not Fate.LET_GO)

    async def _insisting(self, held: Held, say: Callable[[], Coroutine[object, object, None]]) -> None:
        """Say it until the broker has answered, or the message is not ours any more."""
        while self.is_live(held):
            try:
                await say()
                return
            except (ReceiptExpiredError, ResponseError) as exc:
                held.is_lost = True
                _log.warning("message %s could not be %s: %s", held.message.message_id, _name(held), exc)
            except ContrailError as exc:
                _log.info("message %s is %s in a moment: %s", held.message.message_id, _name(held), exc)
                await asyncio.sleep(TELL_AGAIN_S)
        held.is_lost = True

    # --- acknowledgements, many at once

    def _acknowledge_soon(self, held: Held) -> None:
        broker = held.message.handle.broker_name
        waiting = self._acks.get(broker)
        if waiting is None:
            self._acks[broker] = [held]
            self._instance.spawn(self._acknowledge(broker), "acknowledge")
        else:
            waiting.append(held)

    async def _acknowledge(self, broker: str) -> None:
        """Requests to one broker, one after the other, until nothing waits."""
        while waiting := self._acks[broker]:
            self._acks[broker] = waiting[popping.ACKED_AT_ONCE_MAX :]
            batch = []
            for held in waiting[: popping.ACKED_AT_ONCE_MAX]:
                if self.is_live(held):
                    batch.append(held)
                else:
                    self._lose(held)
            if batch:
                await self._acknowledge_batch(broker, batch)
        del self._acks[broker]

    async def _acknowledge_batch(self, broker: str, batch: list[Held]) -> None:
        try:
            await popping.acknowledge_all(self._instance, self._group, [held.message for held in batch])
        except ResponseError as exc:  # of which, it does not say: each for itself
            _log.info("broker %s did not take %d acknowledgements at once: %s", broker, len(batch), exc)
            for held in batch:
                await self._tell_one(held)
            return
        except ContrailError as exc:
            _log.info("broker %s is told of %d acknowledgements in a moment: %s", broker, len(batch), exc)
            self._acks[broker] = batch + self._acks[broker]
            await asyncio.sleep(TELL_AGAIN_S)
            return
        for held in batch:
            self._gone(held)

    # --- renewal

    async def keep_renewing(self) -> None:
        """Until it is cancelled."""
        while True:
            await asyncio.sleep(self._invisible_s * LOOK_AT)
            self.renew_due()

    def renew_due(self) -> None:
        now_s = self._instance.loop.time()
        for held in self._all:
            if held.fate is not None or held.is_renewing or held.is_lost:
                continue
            left_s = held.message.visible_at_s - now_s
            if left_s < self._invisible_s * RENEW_AT and now_s - held.since_s < self._held_s_max:
                held.is_renewing = True
                self._instance.spawn(self._renew(held), "renew")

    async def _renew(self, held: Held) -> None:
        try:
            if self.is_live(held):
                await popping.change(self._instance, self._group, held.message, self._invisible_s)
        except (ReceiptExpiredError, ResponseError) as exc:
            held.is_lost = True
            _log.warning("message %s is not this consumer's any more: %s", held.message.message_id, exc)
        except ContrailError as exc:
            _log.info("message %s could not be kept longer, it is tried again: %s", held.message.message_id, exc)
        finally:
            held.is_renewing = False
        if held.fate is not None:
            self._tell(held)

    # --- the end

    async def close(self) -> None:
        """Let others have what nobody has judged, and wait until brokers know of everything."""
        for held in list(self._all):
            if held.fate is None:
                self.settle(held, Fate.LET_GO)
        if not await set_within(self._empty, LAST_WORDS_S):
            _log.warning("brokers were not told of %d messages: they come again", len(self._all))


def _name(held: Held) -> str:
    assert held.fate is not None
    return held.fate.value
