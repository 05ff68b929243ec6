"""What a record of the log is due: a unit in its queue, units in light queues, keys in the index.

This is the one statement of the rule (RocketMQ's DispatchRequest and its dispatchers). Dispatch, recovery, verify and
rebuild ask here. tests/spark/test_derivation.py holds Spark's vectorised twin (spark/decoding/dispatched.py) against
it.

    transaction type      queue    index        besides
    none, COMMIT          yes      yes          an inner batch, or a topic with batch queues: in a batch queue
    PREPARED              no       yes
    ROLLBACK              no       no           a placeholder of `store repair`: a pre-blank unit at its queue offset

The unit of a message in a delay level holds its delivery time instead of the tag's hash.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Final, NamedTuple

from contrailmq.message import Property, SysFlag, SystemTopic, names_directory, tags_code
from contrailmq.message.property_text import find, find_decoded, key_of
from contrailmq.message.record import RecordView
from contrailmq.store.delay_levels import DelayLevels
from contrailmq.store.queues.batch_consume_queue import BatchUnit
from contrailmq.store.queues.batch_queue_table import unit_of
from contrailmq.store.queues.light_queues import LIGHT_MARK, light_units
from contrailmq.store.queues.placeholder import is_placeholder

_CODES_MAX: Final = 10_000  # tags that are remembered, of one derivation
_SCHEDULE: Final = SystemTopic.SCHEDULE.encode()
_TAGS: Final = key_of(Property.TAGS)
_KEYS: Final = key_of(Property.KEYS)
_UNIQUE_KEY: Final = key_of(Property.UNIQUE_KEY)
_DELAY: Final = key_of(Property.DELAY)
IN_NO_QUEUE: Final = SysFlag.TRANSACTION_PREPARED | SysFlag.INNER_BATCH  # ROLLBACK has the bit of PREPARED


class Due(Enum):
    """The kind of unit that a record is due."""

    NOTHING = "nothing"
    UNIT = "a unit"
    BATCH_UNIT = "a unit in a batch queue"
    EMPTY_UNIT = "a pre-blank unit"


class IndexKeys(NamedTuple):
    """What the index enters a record under, in this order; of `keys` each word by itself."""

    unique_key: str | None
    keys: str | None
    tags: str | None


class Derived(NamedTuple):
    """All that is due for one record."""

    due: Due
    tags_code: int  # of the unit
    light: list[tuple[str, int]]  # units in light queues: name and offset
    batch: BatchUnit | None
    keys: IndexKeys | None


def due_by_flag(sys_flag: int) -> Due:
    """As far as the system flag says; the topic may say more (`due_of`)."""
    if not sys_flag & IN_NO_QUEUE:
        return Due.UNIT
    if is_placeholder(sys_flag):
        return Due.EMPTY_UNIT
    return Due.NOTHING if sys_flag & SysFlag.TRANSACTION_PREPARED else Due.BATCH_UNIT


def due_of(record: RecordView, is_batch_topic: Callable[[str], bool]) -> Due:
    """The unit of a record. `is_batch_topic` says whose records are in batch queues."""
    due = due_by_flag(record.sys_flag)
    if due is Due.NOTHING or not names_directory(record.topic_name):
        return Due.NOTHING
    if due is Due.EMPTY_UNIT:  # where it is not known what was there, no offset is kept
        return due if record.queue_offset >= 0 else Due.NOTHING
    return Due.BATCH_UNIT if due is Due.UNIT and is_batch_topic(record.topic_name) else due


def batch_unit(record: RecordView) -> BatchUnit:
    place = (record.physical_offset, record.size_bytes, record.store_time_ms, record.queue_offset)
    return unit_of(*place, record.properties)


def index_keys(record: RecordView) -> IndexKeys | None:
    """None for a record that the index does not enter at all."""
    if record.sys_flag & SysFlag.TRANSACTION_MASK == SysFlag.TRANSACTION_ROLLBACK:
        return None
    return IndexKeys(record.find(_UNIQUE_KEY), record.find(_KEYS), record.find(_TAGS))


class Derivation:
    """The rule under the settings of one store; `is_batch_topic` as in `due_of`."""

    def __init__(
        self, delay_levels: DelayLevels, is_batch_topic: Callable[[str], bool], *, with_light_queues: bool
    ) -> None:
        self.with_light_queues = with_light_queues
        self.marks: dict[int, bytes] = {}  # by tags code: a tag that has it, and the separator after it
        self._delay_levels = delay_levels
        self._is_batch_topic = is_batch_topic
        self._codes: dict[bytes, int] = {}

    def derive(self, record: RecordView) -> Derived:
        due = due_of(record, self._is_batch_topic)
        batch = batch_unit(record) if due is Due.BATCH_UNIT else None
        light = self.light_units(record) if due is Due.UNIT else []
        return Derived(due, self.tags_code(record) if due is Due.UNIT else 0, light, batch, index_keys(record))

    def tags_code(self, record: RecordView) -> int:
        """The hash of the tag, or the delivery time of a message that waits for a delay level."""
        if record.topic == _SCHEDULE:
            return self.waiting_code(record.properties, record.store_time_ms)
        tag = find(record.properties, _TAGS)
        return 0 if tag is None else self._codes.get(tag) or self._meet(tag)

    def waiting_code(self, properties: bytes, store_time_ms: int) -> int:
        """That of a message of SCHEDULE_TOPIC_XXXX; one that names no level has the code of its tag."""
        due_ms = self._delay_levels.due_ms(find_decoded(properties, _DELAY), store_time_ms)
        return tags_code(find_decoded(properties, _TAGS)) if due_ms is None else due_ms

    def _meet(self, tag: bytes) -> int:
        if len(self._codes) >= _CODES_MAX:
            self._codes.clear()
            self.marks.clear()
        code = self._codes[tag] = tags_code(tag.decode("utf-8", "replace"))
        self.marks[code] = tag + b"\x02"
        return code

    def light_units(self, record: RecordView) -> list[tuple[str, int]]:
        """(light queue, offset in it); the tags code is that of the record's own unit."""
        if not self.with_light_queues or LIGHT_MARK not in record.properties:
            return []
        return light_units(record.topic_name, record.properties)
