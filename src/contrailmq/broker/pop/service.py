"""The part of POP that acts by time, and what puts all of it together.

A tick, fifty times a second while anything is in flight or waits: positions whose checkpoint is on the disk are
committed, waiters whose time is over are answered, messages whose time is over come again, FIFO queues that are free
again are announced. Every few seconds a picture of the table is saved (recovery.py). With it the committed offset of
the reference's revive group moves, to where the revive log ended two pictures ago: what it held then is done, if
nothing is overdue. That offset is for Apache's brokers, which would otherwise read the revive log from its beginning.

Only a master hands out messages and revives them. A slave copies the log and so has the state; it makes its table when
it is started as a master. A slave that stands in for its master (state/duty.py) leaves messages in flight to it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Final

import msgspec

from contrailmq.broker.handlers import Handlers
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.pop.acking import Acking
from contrailmq.broker.pop.checks import Checks
from contrailmq.broker.pop.in_flight import InFlight, QueueKey
from contrailmq.broker.pop.noticing import Noticing
from contrailmq.broker.pop.orders import FILE_NAME as ORDERS_FILE
from contrailmq.broker.pop.orders import FORGET_MS, OrderTable
from contrailmq.broker.pop.popping import Popping
from contrailmq.broker.pop.positions import Positions
from contrailmq.broker.pop.recovery import PICTURE_FILE, Recovery, picture_of
from contrailmq.broker.pop.revive_log import REVIVE_GROUP, ReviveLog
from contrailmq.broker.pop.reviving import Reviving
from contrailmq.broker.pop.waiting import Key, Waiters
from contrailmq.broker.state.duty import Duty
from contrailmq.broker.state.offsets import OFFSETS_FILE
from contrailmq.broker.state.persistence import TableSaver
from contrailmq.store import LIGHT_PREFIX, Arrival, StoreReadOnlyError

log = logging.getLogger("contrailmq.broker")

BUSY_MS: Final = 20
IDLE_MS: Final = 100
PICTURE_MS: Final = 5000  # and 1 ms for each checkpoint: a picture holds up the loop for 3 us for each
KEYS_MAX: Final = 50  # that are looked at in one tick: 1 ms with 8 queues each
PLACES_MAX: Final = 500
RECHECK_MS: Final = 1000
SETTLED_MS: Final = 10_000  # a checkpoint is in the revive log 2 s before it is due
OVERDUE_MS: Final = 3000
ENDS_MAX: Final = 10


class PopService:
    name = "messages in flight"

    def __init__(self, node: BrokerNode, saver: TableSaver, readers: Executor) -> None:
        self._node = node
        self._saver = saver
        self.in_flight = InFlight()
        self.log = ReviveLog(node)
        self.orders = OrderTable(node.store.files, node.config_path, node.store.store_clock)
        self.positions = Positions(node, self.in_flight)
        self.waiters, self.notified = Waiters(wakes_newest=False), Waiters(wakes_newest=True)
        checks = Checks(node)
        self.popping = Popping(
            node,
            readers,
            checks=checks,
            in_flight=self.in_flight,
            positions=self.positions,
            orders=self.orders,
            revive_log=self.log,
            waiters=self.waiters,
        )
        self.acking = Acking(
            node,
            checks=checks,
            in_flight=self.in_flight,
            orders=self.orders,
            revive_log=self.log,
            waiters=(self.waiters, self.notified),
        )
        self.noticing = Noticing(
            node,
            checks=checks,
            positions=self.positions,
            orders=self.orders,
            waiters=self.waiters,
            notified=self.notified,
        )
        self.reviving = Reviving(node, self.in_flight, self.log, readers)
        self.popping.bury = self.reviving.bury
        self.positions.on_reset = self._reset
        node.deleted.on_deleted = self._forget_topics
        node.offsets.on_group_removed = self._forget_group
        self._arrivals: list[Arrival] = []
        self._is_running = False
        self._picture_ms = self._recheck_ms = 0
        self._unchecked: dict[Waiters, list[Key]] = {self.waiters: [], self.notified: []}
        self._unannounced: list[QueueKey] = []
        self._ends: list[tuple[int, dict[int, int]]] = []  # when, and where the revive log ended
        self._revived: dict[int, list[int]] = {}
        self._announced: set[QueueKey] = set()
        self.interval_ms = IDLE_MS
        self._follow_settings()
        node.store.add_arrival_listener(self._arrived, queues=_Awaited(self.waiters, self.notified))
        saver.add(ORDERS_FILE, self.orders.snapshot)
        # A start must find no older offsets than the picture's. After a kill their journal sees to that.
        saver.add(PICTURE_FILE, self._picture, after=OFFSETS_FILE)

    def register(self, handlers: Handlers) -> None:
        for part in (self.popping, self.acking, self.noticing):
            part.register(handlers)

    # --- life

    def start(self) -> None:
        if self._node.is_slave:
            (self._node.config_path / PICTURE_FILE).unlink(missing_ok=True)  # of an earlier life as a master
        if self._node.duty is not Duty.DELIVER or self._node.is_slave:
            return
        self.in_flight.clear()
        self._is_running = True
        self.orders.load()
        self.orders.open()
        recovery = Recovery(self._node, self.in_flight, self.log)
        recovery.run()
        if not recovery.is_from_picture:
            (self._node.config_path / PICTURE_FILE).unlink(missing_ok=True)  # recovery.py says why
        for queue in self.in_flight.queues.values():
            if queue.next_offset != queue.committed:
                self.positions.moved(queue, queue.next_offset, self._node.store.appended_offset)
        for number in range(self.log.queues):
            self._revived[number] = [self._committed(number)]
        if self.in_flight.messages:
            log.info(
                "%d messages of POP are in flight, as %s says",
                self.in_flight.messages,
                PICTURE_FILE if recovery.is_from_picture else "the log",
            )
        self._saver.mark_soon(PICTURE_FILE)

    def stop(self) -> None:
        """Bring committed offsets to where the groups are, for whoever opens this store next. Blocks for the disk. The
        picture and the orders are saved with the other tables."""
        if self._is_running:
            self._is_running = False
            self.reviving.stop()
            try:
                self._node.store.flush()
            except StoreReadOnlyError as exc:
                log.warning("groups of POP get their newest messages again: %s", exc)
            self.positions.commit_durable()

    def saved(self) -> None:
        """The tables are saved for the last time."""
        self.orders.saved()

    def close(self) -> None:
        """Let go of the files as they are, as a killed process does."""
        self._is_running = False
        self.orders.close()

    def release_all(self) -> None:
        """Wake everything: the broker is going away."""
        self.waiters.release()
        self.notified.release()

    # --- by time

    def tick(self, now_ms: int) -> None:
        if not self._is_running:
            return
        self._follow_settings()
        monotonic_ms = self._node.monotonic_ms()
        self.positions.commit_durable()
        self.waiters.expire(monotonic_ms)
        self.notified.expire(monotonic_ms)
        has_more = self.reviving.tick(now_ms)
        self._announce_free_queues()
        self._recheck()
        if monotonic_ms >= self._recheck_ms:
            self._recheck_ms = monotonic_ms + RECHECK_MS
            self._begin_recheck()
        if monotonic_ms >= self._picture_ms:
            self._picture_ms = monotonic_ms + max(PICTURE_MS, self.in_flight.checkpoints)
            self._save_soon(monotonic_ms, now_ms)
        is_busy = bool(self.in_flight.checkpoints or len(self.waiters) or len(self.notified) or len(self.orders))
        self.interval_ms = 2 if has_more else BUSY_MS if is_busy else IDLE_MS

    def _follow_settings(self) -> None:
        config = self._node.config
        for waiters in (self.waiters, self.notified):
            waiters.total_max, waiters.key_max = config.max_pop_polling_size, config.pop_polling_size

    def _recheck(self) -> None:
        """Wake who has messages now although nothing arrived: some came free, or a topic is gone. A part of them in
        each tick."""
        for waiters in (self.waiters, self.notified):
            for key in self._unchecked[waiters][:KEYS_MAX]:
                if self._node.topics.get(key[0]) is None:
                    waiters.release(key)
                elif self.noticing.has_messages(*key):
                    waiters.wake(key)
            del self._unchecked[waiters][:KEYS_MAX]

    def _begin_recheck(self) -> None:
        for waiters in (self.waiters, self.notified):
            waiters.forget_closed()
            if not self._unchecked[waiters]:
                self._unchecked[waiters] = waiters.awaited()
        for queue in [one for one in self.in_flight.queues.values() if one.is_idle]:
            del self.in_flight.queues[queue.key]

    def _announce_free_queues(self) -> None:
        """FIFO queues whose batch is due again, once for each batch. A part of them in each tick."""
        if not (len(self.waiters) or len(self.notified)):
            return
        if not self._unannounced:
            self._unannounced = self.orders.places()
        for place in self._unannounced[:PLACES_MAX]:
            if self.orders.get(place) is None or self.orders.is_blocked(place, None):
                self._announced.discard(place)
            elif place not in self._announced and not place[0].startswith(LIGHT_PREFIX):
                self._announced.add(place)
                self.acking.unblocked(place)
        del self._unannounced[:PLACES_MAX]

    def _reset(self, key: QueueKey) -> None:
        """The group's offset was set: the batch that waits does not count any more."""
        if self.orders.get(key) is not None:
            self.orders.forget(lambda place, order: place == key)
            self._saver.mark_soon(ORDERS_FILE)
        self._saver.mark_soon(PICTURE_FILE)

    def knows(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether the group has popped the queue, as far as this run knows."""
        key = (topic, group, queue_id)
        return key in self.in_flight.popped or self.orders.get(key) is not None

    def set_by_hand(self, group: str, topic: str, queue_id: int) -> None:
        """An operator has set the group's offset. Positions, batches and the log's hints of before count no more, for
        the next start neither: whoever calls saves the offsets before it answers."""
        node, key = self._node, (topic, group, queue_id)
        node.offsets.note_set_by_hand(group, topic, queue_id, log_end=node.store.appended_offset)
        if self._is_running:
            self.positions.set_by_hand(key)
            self._reset(key)

    def _forget_topics(self, topics: Sequence[str]) -> None:
        """They are deleted. The next start knows by node.deleted what of the log and the picture is theirs."""
        gone = frozenset(topics)
        self._forget(lambda key: key[0] in gone)

    def _forget_group(self, group: str) -> None:
        """It is deleted with its offsets. Only the picture tells the next start, so whoever deletes saves what is
        marked before it answers."""
        self._forget(lambda key: key[1] == group)

    def _forget(self, is_gone: Callable[[QueueKey], bool]) -> None:
        self.in_flight.forget(is_gone)
        self.positions.forget(is_gone)
        self.orders.forget(lambda place, order: is_gone(place))
        self._announced = {place for place in self._announced if not is_gone(place)}
        if self._is_running:
            self._saver.mark_soon(ORDERS_FILE)
            self._saver.mark_soon(PICTURE_FILE)

    # --- arrivals

    def _arrived(self, arrival: Arrival) -> None:
        """Called while the queues are written: what it wakes reads them afterwards."""
        if not self._arrivals:
            self._node.call_soon(self._wake)
        self._arrivals.append(arrival)

    def _wake(self) -> None:
        arrivals, self._arrivals = self._arrivals, []
        for topic, queue_id, _, tags_code, _, properties in arrivals:
            for waiters in (self.waiters, self.notified):
                waiters.arrived(topic, queue_id, tags_code=tags_code, properties=properties)

    # --- files

    def _committed(self, revive_queue: int) -> int:
        stored = self._node.offsets.stored(f"{self.log.topic}@{REVIVE_GROUP}", revive_queue)
        return -1 if stored is None else stored

    def _save_soon(self, monotonic_ms: int, now_ms: int) -> None:
        if self.orders.is_dirty:
            self._forget_orders()
            self._saver.mark_soon(ORDERS_FILE)
        if self._ends and self._ends[-1][1] == self._revive_ends() and not self.in_flight.checkpoints:
            return  # nothing happens
        self._commit_revived(monotonic_ms, now_ms)
        self._ends = [*self._ends[-ENDS_MAX:], (monotonic_ms, self._revive_ends())]
        self._saver.mark_soon(PICTURE_FILE)

    def _revive_ends(self) -> dict[int, int]:
        return {number: self._node.store.max_offset(self.log.topic, number) for number in range(self.log.queues)}

    def _commit_revived(self, monotonic_ms: int, now_ms: int) -> None:
        """For whoever reads the log alone, as Apache's brokers do: what the revive log held some time ago is done."""
        first_due_ms = self.reviving.first_due_ms()
        settled = [ends for at_ms, ends in self._ends if monotonic_ms - at_ms >= SETTLED_MS]
        if not settled or (first_due_ms is not None and now_ms - first_due_ms > OVERDUE_MS):
            return
        self._ends = self._ends[len(settled) :]
        for number, end in settled[-1].items():
            known = self._committed(number)
            if end - 1 > known:
                self._revived[number] = [known, end - 1]
                self._node.offsets.commit(REVIVE_GROUP, self.log.topic, number, end - 1)

    def _picture(self) -> Callable[[], str]:
        if not self._is_running and not self.in_flight.queues and not self._revived:
            return lambda: ""
        self._node.offset_journal.note()
        picture = picture_of(self._node, self.in_flight, self.log, self._revived)
        return lambda: msgspec.json.encode(picture).decode()

    def _forget_orders(self) -> None:
        now_ms, node = self._node.now_ms(), self._node
        self.orders.forget(
            lambda place, order: (
                now_ms - order.updated_ms > FORGET_MS
                or node.topic_to_read(place[0]) is None
                or node.groups.get(place[1]) is None
            )
        )

    def figures(self) -> dict[str, str]:
        """Lines for GET_BROKER_RUNTIME_INFO."""
        return {
            "popInFlight": str(self.in_flight.messages),
            "popCheckpoints": str(self.in_flight.checkpoints),
            "popWaiting": str(len(self.waiters)),
            "popRevived": str(self.reviving.revived),
            "popDeadLetters": str(self.reviving.dead),
        }


class _Awaited:
    """The queues that somebody waits for, as the store asks for them: of nearly each message."""

    def __init__(self, poppers: Waiters, notified: Waiters) -> None:
        self._poppers = poppers
        self._notified = notified

    def __len__(self) -> int:
        return len(self._poppers) + len(self._notified)

    def __contains__(self, queue: object) -> bool:
        assert isinstance(queue, tuple)
        return queue[0] in self._poppers or queue[0] in self._notified
