"""A message store in memory, for the timer's tests: its log can lose what was not synced, and refuse messages."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from contrailmq.message import (
    PROPERTIES_BYTES_MAX,
    Property,
    StoredMessage,
    SystemTopic,
    encode_host,
    encode_properties,
    java_hash,
)
from contrailmq.store import StoreConfig, decode_record, encode_record
from contrailmq.store.base.errors import StoreReadOnlyError
from contrailmq.store.base.status import AppendResult, Copy, PutStatus
from contrailmq.store.timer.admission import Scheduled, admit
from contrailmq.store.timer.timer_store import TimerStore

_HEAD = struct.Struct(">iiiiiqqiq8sq8siqi")  # a record up to its body
HOST = encode_host("127.0.0.1", 10911)
MADE: list[TimerStore] = []  # by a bench, in this test: store/timer/conftest.py lets go of their files when it ends


class MemoryHost:
    """What TimerStore needs of MessageStore. `refuse` may answer an append in the store's place."""

    def __init__(self, path: Path, now_ms: Callable[[], int], **settings: object) -> None:
        self.config = StoreConfig(path, **settings)
        self.records: list[bytes] = []
        self.offsets: list[int] = []
        self.queues: dict[tuple[str, int], list[tuple[int, int, int]]] = {}
        self.log_max_offset = 0
        self.log_min_offset = 0
        self.durable_offset = 0
        self.syncs = True
        self.dispatched: int | None = None  # where dispatch stands when it lags behind
        self.refuse: Callable[[str, bytes], PutStatus | None] = lambda topic, body: None
        self._now_ms = now_ms
        self._at: dict[int, bytes] = {}

    def append(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: bytes,
        *,
        tags_code: int,
        keys: str | None,
        unique_key: str | None,
        flag: int = 0,
        sys_flag: int = 0,
        born_time_ms: int = 0,
        born_host: bytes = HOST,
        store_host: bytes = HOST,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
    ) -> AppendResult:
        status = self.refuse(topic, body)
        if status is not None:
            return AppendResult(status)
        queue = self.queues.setdefault((topic, queue_id), [])
        record = encode_record(
            topic,
            body,
            properties,
            queue_id=queue_id,
            queue_offset=len(queue),
            physical_offset=self.log_max_offset,
            born_host=born_host,
            store_host=store_host,
            born_time_ms=born_time_ms,
            store_time_ms=self._now_ms(),
            flag=flag,
            sys_flag=sys_flag,
            reconsume_times=reconsume_times,
            prepared_transaction_offset=prepared_transaction_offset,
        )
        result = AppendResult(PutStatus.PUT_OK, self.log_max_offset, len(record), len(queue), self._now_ms())
        queue.append((self.log_max_offset, len(record), tags_code))
        self._at[self.log_max_offset] = record
        self.log_max_offset += len(record)
        return result

    @property
    def dispatched_offset(self) -> int:
        return self.log_max_offset if self.dispatched is None else self.dispatched

    def flush(self, offset: int) -> None:
        if not self.syncs:
            raise StoreReadOnlyError(self.config.path, cause="a sync failed")
        self.durable_offset = max(self.durable_offset, offset)

    def lose_power(self) -> None:
        """Forget everything that was not durable."""
        self.log_max_offset = self.durable_offset
        self._at = {offset: record for offset, record in self._at.items() if offset < self.durable_offset}
        for units in self.queues.values():
            while units and units[-1][0] >= self.durable_offset:
                units.pop()

    def read_units(self, topic: str, queue_id: int, offset: int, max_count: int) -> list[tuple[int, int, int]]:
        units = self.queues.get((topic, queue_id), [])[offset : offset + max_count]
        return [unit for unit in units if unit[0] < self.dispatched_offset]

    def read_record(self, physical_offset: int, size_bytes: int | None = None) -> bytes | None:
        return self._at.get(physical_offset)

    def read_log(self, offset: int, max_bytes: int) -> memoryview | None:
        record = self._at.get(offset)
        return None if record is None else memoryview(record)

    def read_cold(self, physical_offset: int, size_bytes: int) -> memoryview | None:
        record = self._at.get(physical_offset)
        return None if record is None else memoryview(record)

    def is_resident(self, physical_offset: int) -> bool:
        return True

    def append_copies(self, copies: Sequence[Copy]) -> int:
        """As the log: from the first on, up to one that `refuse` stops."""
        for done, copy in enumerate(copies):
            copied = bytes(copy.head_and_body)
            body = copied[88:]
            if self.refuse(copy.topic, body) is not None or len(copy.properties) > PROPERTIES_BYTES_MAX:
                return done
            _, _, _, _, flag, _, _, sys_flag, born_ms, born_host, _, store_host, times, prepared, _ = _HEAD.unpack_from(
                copied
            )
            place = self.append(
                copy.topic,
                copy.queue_id,
                body,
                copy.properties,
                tags_code=copy.tags_code,
                keys=copy.keys,
                unique_key=copy.unique_key,
                flag=flag,
                sys_flag=sys_flag,
                born_time_ms=born_ms,
                born_host=born_host,
                store_host=store_host,
                reconsume_times=times,
                prepared_transaction_offset=prepared,
            )
            struct.pack_into(">q", copy.head_and_body, 28, place.physical_offset)
            struct.pack_into(">q", copy.head_and_body, 56, place.store_time_ms)
        return len(copies)

    def min_offset(self, topic: str, queue_id: int) -> int:
        return 0

    def max_offset(self, topic: str, queue_id: int) -> int:
        units = self.queues.get((topic, queue_id), [])
        return len(units) if self.dispatched is None else sum(unit[0] < self.dispatched for unit in units)

    # --- for tests

    def send(self, body: bytes, *, topic: str = "Orders", queue_id: int = 0, **properties: str) -> int | None:
        """As the broker takes a message in: its slot's time, or None when it was due at once."""
        values = {Property.UNIQUE_KEY: f"{java_hash(body.decode()) & 0xFFFFFFFF:032X}"} | properties
        admitted = admit(values, self._now_ms(), self.config)
        target, target_queue = topic, queue_id
        if isinstance(admitted, Scheduled):
            values |= {
                Property.TIMER_OUT_MS: str(admitted.out_ms),
                Property.REAL_TOPIC: topic,
                Property.REAL_QUEUE_ID: str(queue_id),
            }
            target, target_queue = SystemTopic.TIMER, 0
        else:
            assert admitted is None, admitted
        result = self.append(
            target,
            target_queue,
            body,
            encode_properties(values),
            tags_code=0,
            keys=None,
            unique_key=None,
            born_time_ms=self._now_ms(),
        )
        assert result.status is PutStatus.PUT_OK
        return admitted.out_ms if isinstance(admitted, Scheduled) else None

    def messages(self, topic: str = "Orders", queue_id: int = 0) -> list[StoredMessage]:
        return [decode_record(self._at[offset]) for offset, _, _ in self.queues.get((topic, queue_id), [])]

    def bodies(self, topic: str = "Orders", queue_id: int = 0) -> list[str]:
        return [message.body.decode() for message in self.messages(topic, queue_id)]
