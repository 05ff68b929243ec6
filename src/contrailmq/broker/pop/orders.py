"""FIFO pops: one batch of a queue is in flight at a time, and the queue waits for it.

A queue of a group has at most one `OrderInfo`: the batch that was handed out last. While a message of it is neither
acknowledged nor due again, the queue gives nothing to others. Acknowledging moves the group's offset to the first
message that is open. When its time is over, the queue is read again from that offset, so messages that were
acknowledged behind an open one come again: that is the reference's rule, and clients know it. A queue waits by steady
time, which nobody can set; the file has times of the wall clock, as the reference's.

Who hears no answer asks again with the same attempt id and gets the same batch. The broker cannot tell which of the
answers arrived: the first pop may have been held and is served after the second. So each of them counts. Its handles
acknowledge, its messages are due no sooner, and what was acknowledged stays so. In the reference the newest alone
counts, and an acknowledgement under another is answered with success and forgotten.

`config/consumerOrderInfo.json` is the reference's file, both ways; it ignores `earlier`. Between two saves
`config/orders.journal` holds what changed (ours alone, store/base/journal.py): one `pwrite` before a FIFO pop,
acknowledgement or change is answered. So after a kill the same queues wait for the same messages. Before the file is
saved the journal is synced: a power failure that keeps the begin of the journal and loses the rest would else bring
back a batch that was forgotten, and acknowledgements of it would move a group that an operator has set back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Final

import msgspec

from contrailmq.broker.state import config_files
from contrailmq.broker.state.config_files import Json, TableSaveError, whole_number
from contrailmq.store import RUN_BYTES_MAX, CopyPlace, Files, Journal, Run, StoreClock

log = logging.getLogger("contrailmq.broker")

FILE_NAME: Final = "consumerOrderInfo.json"
JOURNAL_NAME: Final = "orders.journal"
NOT_IN_BATCH: Final = -1
OLDER_DELIVERY: Final = -2
FORGET_MS: Final = 86_400_000  # entries that nobody touched for a day
EARLIER_MAX: Final = 16  # answers to one attempt; who asks more often hears none of them
_NO_WITNESS: Final = CopyPlace(0, 0)


class OrderInfo(msgspec.Struct, kw_only=True):
    """The last batch of a queue."""

    pop_time_ms: int
    invisible_ms: int
    offsets: list[int]
    attempt_id: str | None = None
    visible_ms: dict[int, int] = {}  # offset -> when it is due again, if that was changed
    counts: dict[int, int] = {}  # offset -> earlier deliveries, if any
    steady_ms: dict[int, int] = {}  # offset -> when it is due again, in steady time; not in the file
    updated_ms: int = 0
    acked: int = 0  # bit k: offsets[k] is acknowledged
    earlier_ms: list[int] = []  # pop times of earlier answers to this attempt; ours

    def continues(self, old: OrderInfo) -> None:
        """It is another answer to the attempt of `old`: what that one gave stays given."""
        if self.offsets[-1] in old.offsets:  # else the two have nothing in common, as after a reset by hand
            self.offsets += [offset for offset in old.offsets if offset > self.offsets[-1]]
        still_open = {*old.open_offsets()}
        for index, offset in enumerate(self.offsets):
            if offset not in old.steady_ms:
                continue
            if offset not in still_open:
                self.acked |= 1 << index
            if offset not in self.steady_ms or old.steady_ms[offset] > self.steady_ms[offset]:
                self.steady_ms[offset] = old.steady_ms[offset]
                self.visible_ms[offset] = old.due_ms(offset)
        self.counts = {offset: count for offset, count in old.counts.items() if offset in self.offsets}
        self.earlier_ms = [*old.earlier_ms, old.pop_time_ms][-EARLIER_MAX:]

    def gave(self, offset: int, pop_time_ms: int) -> bool:
        """Whether a message was handed out then, by any answer to this attempt."""
        return offset in self.offsets and (pop_time_ms == self.pop_time_ms or pop_time_ms in self.earlier_ms)

    def first_open(self) -> int:
        """The first message that is not acknowledged, or the one after the batch."""
        for index, offset in enumerate(self.offsets):
            if not self.acked >> index & 1:
                return offset
        return self.offsets[-1] + 1 if self.offsets else 0

    def open_offsets(self) -> list[int]:
        return [offset for index, offset in enumerate(self.offsets) if not self.acked >> index & 1]

    def due_ms(self, offset: int) -> int:
        return self.visible_ms.get(offset, self.pop_time_ms + self.invisible_ms)

    def blocks(self, steady_ms: int, attempt_id: str | None) -> bool:
        if attempt_id is not None and attempt_id == self.attempt_id:
            return False
        return any(steady_ms <= self.steady_ms[offset] for offset in self.open_offsets())

    def loaded(self, *, steady_ms: int, wall_ms: int) -> None:
        """It is from a file, whose times are those of a wall clock that may have been set since: each message waits
        for its time once more at most."""
        for offset in self.offsets:
            due_ms = self.due_ms(offset)
            self.steady_ms[offset] = steady_ms + min(due_ms - wall_ms, max(due_ms - self.pop_time_ms, 0))

    def to_json(self) -> Json:
        first = self.offsets[0] if self.offsets else 0
        return {
            **({"a": self.attempt_id} if self.attempt_id is not None else {}),
            "cm": self.acked,
            "i": self.invisible_ms,
            "l": self.updated_ms,
            "o": [first, *(offset - first for offset in self.offsets[1:])] if self.offsets else [],
            **({"earlier": self.earlier_ms} if self.earlier_ms else {}),
            **({"oc": {str(offset): count for offset, count in self.counts.items()}} if self.counts else {}),
            **(
                {"ot": {str(offset): time_ms for offset, time_ms in self.visible_ms.items()}} if self.visible_ms else {}
            ),
            "popTime": self.pop_time_ms,
        }

    @classmethod
    def from_json(cls, data: Json) -> OrderInfo:
        """ValueError where a number is not one."""
        distances, earlier = data.get("o") or [], data.get("earlier") or []
        if not isinstance(distances, list) or not isinstance(earlier, list):
            raise ValueError("the offsets of an order, or the times of earlier answers, are not a list")
        numbers = [whole_number(distance) for distance in distances]
        attempt = data.get("a")
        return cls(
            pop_time_ms=whole_number(data.get("popTime", 0)),
            invisible_ms=whole_number(data.get("i") or 0),
            offsets=[numbers[0], *(numbers[0] + distance for distance in numbers[1:])] if numbers else [],
            attempt_id=attempt if isinstance(attempt, str) else None,
            visible_ms=_numbers(data.get("ot")),
            counts=_numbers(data.get("oc")),
            updated_ms=whole_number(data.get("l", 0)),
            acked=whole_number(data.get("cm", 0)),
            earlier_ms=[whole_number(time_ms) for time_ms in earlier],
        )


Place = tuple[str, str, int]  # topic, group, queue


class OrderTable:
    """Owner: the loop."""

    def __init__(self, files: Files, directory: Path, clock: StoreClock) -> None:
        self._clock = clock
        self._orders: dict[Place, OrderInfo] = {}
        self._journal = Journal(files, directory / JOURNAL_NAME)
        self._path = directory / FILE_NAME
        self._is_open = False
        self._is_whole_due = True
        self.is_dirty = False

    def __len__(self) -> int:
        return len(self._orders)

    def get(self, place: Place) -> OrderInfo | None:
        return self._orders.get(place)

    def places(self) -> list[Place]:
        return list(self._orders)

    # --- what happens to a batch

    def is_blocked(self, place: Place, attempt_id: str | None) -> bool:
        order = self._orders.get(place)
        return order is not None and order.blocks(self._clock.steady_ms(), attempt_id)

    def update(
        self,
        place: Place,
        offsets: Sequence[int],
        *,
        pop_time_ms: int,
        invisible_ms: int,
        attempt_id: str | None,
        acked: Container[int] = (),
    ) -> OrderInfo:
        """These are handed out now, but for those that are `acked` already."""
        old = self._orders.get(place)
        order = OrderInfo(
            pop_time_ms=pop_time_ms,
            invisible_ms=invisible_ms,
            offsets=list(offsets),
            attempt_id=attempt_id,
            steady_ms=dict.fromkeys(offsets, self._clock.steady_ms() + invisible_ms),
            updated_ms=pop_time_ms,
            acked=sum(1 << index for index, offset in enumerate(offsets) if offset in acked),
        )
        if old is not None and attempt_id is not None and attempt_id == old.attempt_id:
            order.continues(old)
        elif old is not None:
            order.counts = {offset: old.counts.get(offset, 0) + 1 for offset in offsets if offset in old.offsets}
        self._orders[place] = order
        self._changed(place)
        return order

    def acknowledge(self, place: Place, offset: int, pop_time_ms: int, now_ms: int) -> int:
        """Where the group goes on after it; NOT_IN_BATCH, or OLDER_DELIVERY if another pop has it by now, or may have:
        the batch is forgotten when its topic is deleted. The reference goes on after the message then (commitAndNext),
        which skips messages of a topic that was made again."""
        order = self._orders.get(place)
        if order is None:
            return OLDER_DELIVERY
        if offset not in order.offsets:
            return NOT_IN_BATCH
        if not order.gave(offset, pop_time_ms):
            return OLDER_DELIVERY
        order.acked |= 1 << order.offsets.index(offset)
        order.updated_ms = now_ms
        self._changed(place)
        return order.first_open()

    def change(self, place: Place, offset: int, pop_time_ms: int, *, visible_ms: int, now_ms: int) -> bool:
        """When a message is due again; False when it is not of this delivery. An earlier answer to the attempt can keep
        it longer and not let it go: whoever lost that answer has the newest one."""
        order = self._orders.get(place)
        if order is None or not order.gave(offset, pop_time_ms) or offset not in order.open_offsets():
            return False
        steady_ms = self._clock.steady_ms() + visible_ms - now_ms
        if pop_time_ms != order.pop_time_ms and steady_ms < order.steady_ms[offset]:
            return False
        order.visible_ms[offset] = visible_ms
        order.steady_ms[offset] = steady_ms
        order.updated_ms = now_ms
        self._changed(place)
        return True

    def suspend(self, place: Place, pop_time_ms: int, *, visible_ms: int, now_ms: int) -> bool:
        """All of the last batch that is open is due then, and this delivery counts as none; False when another pop has
        it."""
        order = self._orders.get(place)
        if order is None or pop_time_ms != order.pop_time_ms:
            return False
        for offset in order.open_offsets():
            order.visible_ms[offset] = visible_ms
            order.steady_ms[offset] = self._clock.steady_ms() + visible_ms - now_ms
            order.counts[offset] = order.counts.get(offset, 0) - 1
        order.updated_ms = now_ms
        self._changed(place)
        return True

    def drop(self, place: Place) -> None:
        """Nobody waits for it any more."""
        if self._orders.pop(place, None) is not None:
            self._changed(place)

    def forget(self, is_gone: Callable[[Place, OrderInfo], bool]) -> None:
        for place in [place for place, order in self._orders.items() if is_gone(place, order)]:
            del self._orders[place]
            self._changed(place)

    # --- files

    def load(self) -> None:
        """ConfigFileError when neither the file nor its backup can be read."""
        config_files.load(self._path, self._read)

    def _read(self, data: Json) -> None:
        table = config_files.entries(data, "table")
        orders = {}
        for key, queues in table.items():
            topic, _, group = key.partition("@")
            for queue_id, order in queues.items():
                if isinstance(order, dict):
                    orders[topic, group, int(queue_id)] = OrderInfo.from_json(order)
        self._orders = orders

    def open(self) -> None:
        """Take over what changed after the last save of an earlier run; from now on changes are journaled."""
        self.close()
        runs = self._journal.open()
        changes = _last_ones(runs[0]) if runs else {}
        for place, order in changes.items():
            known = self._orders.get(place)
            if order is None:
                self._orders.pop(place, None)
            elif known is None or order.updated_ms >= known.updated_ms:
                self._orders[place] = order
        steady_ms, wall_ms = self._clock.steady_ms(), self._clock.wall_ms()
        for order in self._orders.values():
            order.loaded(steady_ms=steady_ms, wall_ms=wall_ms)
        self._is_open = self._is_whole_due = True
        self.is_dirty = self.is_dirty or bool(changes)

    def _changed(self, place: Place) -> None:
        self.is_dirty = True
        if not self._is_open:
            return
        if self._journal.run_bytes > RUN_BYTES_MAX:
            self._journal.restart()
            self._is_whole_due = True
        told = list(self._orders) if self._is_whole_due else [place]
        entries = []
        for name in told:
            order = self._orders.get(name)
            entries.append((*name, None if order is None else order.to_json()))
        if self._journal.append(_NO_WITNESS, msgspec.json.encode(entries)):
            self._is_whole_due = False
        else:
            self._journal.restart()
            self._is_whole_due = True

    def snapshot(self) -> Callable[[], str]:
        self.is_dirty = False
        table: dict[str, Json] = {}
        for (topic, group, queue_id), order in self._orders.items():
            table.setdefault(f"{topic}@{group}", {})[str(queue_id)] = order.to_json()
        data: Json = {"orderInfoCount": len(table), "orderedConsumptionLevel": "QUEUE", "table": dict(table)}

        def synced() -> str:
            try:
                self._journal.sync()
            except OSError as exc:
                raise TableSaveError(self._path.with_name(JOURNAL_NAME), exc) from exc
            return config_files.pretty(data)

        return synced

    def saved(self) -> None:
        """The file has everything, and nothing changes any more: the journal is not needed."""
        if self._is_open:
            self._journal.clear()
            self.close()

    def close(self) -> None:
        """Let go of the journal as it is."""
        self._is_open = False
        self._journal.close()


def _last_ones(run: Run) -> dict[Place, OrderInfo | None]:
    found: dict[Place, OrderInfo | None] = {}
    kind = list[tuple[str, str, int, dict[str, object] | None]]
    for entry in run:
        for topic, group, queue_id, order in msgspec.json.decode(entry.payload, type=kind):
            found[topic, group, queue_id] = None if order is None else OrderInfo.from_json(order)
    return found


def _numbers(data: object) -> dict[int, int]:
    if not isinstance(data, dict):
        return {}
    return {int(offset): whole_number(number) for offset, number in data.items()}
