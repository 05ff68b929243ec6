"""The commit log: every message of every topic, one after the other, written by one writer.

`append` is the hot path of the whole product (budget: 4 us). Its shape follows from that:

* What depends only on (topic, queue) is computed once and kept in a `QueueState`: the topic's bytes as the record holds
  them, the verdict on the topic's name, the next queue offset, the counters.
* The common record (magic V1, both hosts IPv4, no record checksum) is packed by one precompiled struct, joined once and
  copied once into the mapping. Everything else goes through `record.encode_record`.
* What dispatch will need is put on a deque as a tuple, so that nothing is read back or decoded (dispatch.py). A reader
  of the log that finds no facts there (recovery, replication) decodes the record instead.

Rules, all under the one put lock: the store time is taken inside and never decreases; a queue offset is used up only by
an append that succeeded, and never by a PREPARED or ROLLBACK record; a record that would leave less than 8 bytes in the
file closes it with a BLANK and goes to the next one; the records of a batch lie in one file. A record that no file
could hold is refused (RocketMQ answers such a send with success and stores nothing).

Refusals are values (status and reason), not exceptions: the broker turns them into response codes.
"""

from __future__ import annotations

import itertools
import struct
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from contrailmq.message import (
    PROPERTIES_BYTES_MAX,
    MessageError,
    Property,
    SysFlag,
    decode_properties,
    encode_host,
)
from contrailmq.message.checksum import crc32
from contrailmq.message.property_text import without
from contrailmq.message.record import HEAD_V4, HEAD_V4_BYTES
from contrailmq.store.allocation import Allocator
from contrailmq.store.batch_queue_table import inner_count, with_base
from contrailmq.store.batches import Parts, facts_of, plain_sizes, read_parts, write_records
from contrailmq.store.clock import Clock
from contrailmq.store.config import StoreConfig
from contrailmq.store.errors import StoreError
from contrailmq.store.keys import key_hashes
from contrailmq.store.light_queues import (
    LIGHT_MARK,
    LIGHT_PREFIX,
    LIGHT_QUEUE_ID,
    light_names,
    with_offsets,
    without_offsets,
)
from contrailmq.store.mapped_file import MappedFile
from contrailmq.store.mapped_file_queue import MappedFileQueue
from contrailmq.store.queue_state import DispatchFact, NewRecord, QueueState
from contrailmq.store.record import (
    BLANK_BYTES,
    CRC_PROPERTY_BYTES,
    MAGIC_V1,
    RECORD_SLACK_BYTES,
    encode_blank,
    encode_record,
)
from contrailmq.store.refusals import (
    batch_refusal,
    code_refusal,
    inner_refusal,
    light_part_refusal,
    light_refusal,
    message_refusal,
    page_cache_busy,
    too_large,
)
from contrailmq.store.status import AppendResult, BatchResult, Copy, PutStatus

PAGE_CACHE_BUSY_MS_MAX: Final = 10_000_000  # RocketMQ takes a longer time for a clock that was set
FACTS_MAX: Final = 1 << 16  # beyond this dispatch reads the log instead: bounds memory when nobody dispatches
MANY_BYTES_MAX: Final = 1 << 20  # written in one go: other puts wait for it
LOCALHOST: Final = encode_host("127.0.0.1", 0)

_I16: Final = struct.Struct(">h").pack
_I32_INTO: Final = struct.Struct(">i").pack_into
_I64_INTO: Final = struct.Struct(">q").pack_into
_TWO_I64_INTO: Final = struct.Struct(">qq").pack_into

_CRC: Final = Property.CRC32.encode()
_PUT_OK: Final = PutStatus.PUT_OK
_CODE_SURE: Final = 1 << 61  # a compiled compare is quick up to here
_UNUSUAL: Final = 0xB0  # INNER_BATCH and both bits of IPv6 hosts; numbers, not names: a compiled append has them inline
_INNER_NAMES: Final = b"INNER_"  # with which the names of inner batches and light queues begin
_NO_QUEUE: Final = 0x4  # the bit that PREPARED and ROLLBACK have and COMMIT has not
assert _UNUSUAL == SysFlag.INNER_BATCH | SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
assert _NO_QUEUE == SysFlag.TRANSACTION_PREPARED
_result = tuple.__new__  # what a NamedTuple's constructor ends in, without its arguments' matching: 0.2 us less


class CommitLog:
    """Single writer. `refusal` is set by the store while it takes no writes; readers need no lock."""

    def __init__(self, config: StoreConfig, clock: Clock, files: MappedFileQueue, allocator: Allocator) -> None:
        self.config = config
        self.files = files
        self.lock = threading.Lock()
        self.facts: deque[DispatchFact] = deque()
        self.refusal: AppendResult | None = None
        self.is_batch_topic: Callable[[str], bool] = _is_no_batch_topic
        self.last_error: StoreError | None = None  # why the newest refusal for want of a file happened
        self.lock_since_ms = 0  # store time of the put that holds the lock; 0 when none does
        self._now_ms = clock.now_ms
        self._allocator = allocator
        self._states: dict[tuple[str, int], QueueState] = {}
        self._file: MappedFile | None = None
        self._file_bytes = config.mapped_file_size_commit_log
        self._body_bytes_max = config.max_message_size
        self._record_bytes_max = min(config.max_message_size + RECORD_SLACK_BYTES, self._file_bytes - BLANK_BYTES)
        self.last_time_ms = 0
        self._prefault_at = 0
        self._is_indexed = config.message_index_enable
        self._with_record_crc = config.enabled_append_prop_crc
        self._with_light_queues = config.with_light_queues
        self._is_odd = self._with_record_crc or self._with_light_queues  # every record takes the slower way

    # --- opening

    def start_writing(self, next_offsets: dict[tuple[str, int], int]) -> None:
        """After recovery: queue offsets go on from here, bytes from the recovered end."""
        is_indexed = self._is_indexed
        self._states = {key: QueueState(*key, offset, is_indexed=is_indexed) for key, offset in next_offsets.items()}
        self._file = None
        last = self.files.last
        if last is None or last.is_full:
            self._allocator.prepare(self.files.wrote_offset)
        else:
            self._allocator.prepare(last.end)

    def stop_writing(self) -> None:
        """After `refusal` was set: on return no put is in progress and none will find a file."""
        assert self.refusal is not None
        with self.lock:
            self._file = None

    def forget_queue(self, topic: str, queue_id: int) -> None:
        """A deleted queue starts again at offset 0."""
        with self.lock:
            self._states.pop((topic, queue_id), None)

    # --- where it is

    @property
    def min_offset(self) -> int:
        return self.files.min_offset

    @property
    def max_offset(self) -> int:
        return self.files.max_offset

    @property
    def states(self) -> Sequence[QueueState]:
        return list(self._states.values())

    def next_offset(self, topic: str, queue_id: int) -> int:
        state = self._states.get((topic, queue_id))
        return state.next_offset if state is not None else 0

    # --- appending

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
        tags: str | None = None,
        flag: int = 0,
        sys_flag: int = 0,
        born_time_ms: int = 0,
        born_host: bytes = LOCALHOST,
        store_host: bytes = LOCALHOST,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
    ) -> AppendResult:
        """Write one record. It is neither durable nor dispatched when this returns."""
        state = self._states.get((topic, queue_id)) or self._new_state(topic, queue_id)
        body_bytes, properties_bytes = len(body), len(properties)
        size = state.overhead_bytes + body_bytes + properties_bytes
        is_unusual = sys_flag & _UNUSUAL != 0 or _INNER_NAMES in properties
        if (
            self.refusal is not None
            or state.refusal is not None
            or self.lock_since_ms
            or properties_bytes > PROPERTIES_BYTES_MAX
            or body_bytes > self._body_bytes_max
            or size > self._record_bytes_max
            or is_unusual
        ) and (refused := self._refused(state, body_bytes, properties, size, sys_flag)) is not None:
            return refused
        if not -_CODE_SURE < tags_code < _CODE_SURE and (refused := code_refusal(tags_code)) is not None:
            return refused
        if self._is_odd or is_unusual or not state.topic_part or len(born_host) != 8 or len(store_host) != 8:
            return self._append_odd(
                state, body, properties, tags_code, keys, unique_key, tags, flag, sys_flag, born_time_ms, born_host,
                store_host, reconsume_times, prepared_transaction_offset,
            )  # fmt: skip
        crc = crc32(body) & 0x7FFFFFFF
        hashes = key_hashes(state, keys, unique_key, tags, tags_code, properties)
        with self.lock:
            now_ms = self._now_ms()
            if now_ms < self.last_time_ms:
                now_ms = self.last_time_ms  # searches by time rely on it
            self.last_time_ms = self.lock_since_ms = now_ms
            file = self._file
            if file is None or file.wrote + size + BLANK_BYTES > self._file_bytes:
                file = self._roll(size)
                if file is None:
                    return self._no_file()
            position = file.wrote
            offset, takes_offset = file.base + position, not sys_flag & _NO_QUEUE
            queue_offset = state.next_offset if takes_offset else 0
            try:
                head = HEAD_V4.pack(
                    size, MAGIC_V1, crc, queue_id, flag, queue_offset, offset, sys_flag, born_time_ms,
                    born_host, now_ms, store_host, reconsume_times, prepared_transaction_offset, body_bytes,
                )  # fmt: skip
                # One joined copy: 1.0 us for 1 KiB where five slice assignments take 1.6 us.
                record = b"".join((head, body, state.topic_part, _I16(properties_bytes), properties))
                end = position + size
                file.target[position:end] = record
            except (struct.error, OSError) as exc:
                return self._unfit(exc)
            if takes_offset:  # before the record counts: an interrupt in between may waste an offset, never repeat one
                state.next_offset = queue_offset + 1
            file.store_time_ms = now_ms
            file.wrote = end
            state.put_count += 1
            state.put_bytes += size
            if len(self.facts) < FACTS_MAX:
                self.facts.append((state, offset, size, tags_code, now_ms, queue_offset, hashes, sys_flag, properties))
            if end > self._prefault_at:
                self._prefault_at = self._allocator.prefault_ahead(file, end)
            self.lock_since_ms = 0
        return _result(AppendResult, (_PUT_OK, offset, size, queue_offset, now_ms, ""))

    def append_batch(
        self,
        topic: str,
        queue_id: int,
        batch: bytes,
        *,
        sys_flag: int = 0,
        born_time_ms: int = 0,
        born_host: bytes = LOCALHOST,
        store_host: bytes = LOCALHOST,
        reconsume_times: int = 0,
    ) -> BatchResult:
        """Write a client's batch: a record for each part, all in one file, or nothing. MessageError: malformed."""
        state = self._states.get((topic, queue_id)) or self._new_state(topic, queue_id)
        read = read_parts(batch, state)
        refused = self._batch_refusal(state, read, len(batch), sys_flag)
        if refused is not None:
            return BatchResult(refused.status, reason=refused.reason)
        parts = read.all
        is_odd = self._with_record_crc or not state.topic_part or len(born_host) != 8 or len(store_host) != 8
        is_odd = is_odd or sys_flag & _UNUSUAL != 0
        sizes = plain_sizes(parts, state.overhead_bytes)
        if is_odd:
            hosts = {"born_host": born_host, "store_host": store_host}
            sizes = [self._size_of(state, body, properties, **hosts) for _, body, properties, _, _ in parts]
        total = sum(sizes)
        if total + BLANK_BYTES > self._file_bytes:
            return BatchResult(PutStatus.MESSAGE_ILLEGAL, reason=too_large("a batch", total, self._file_bytes))
        with self.lock:
            now_ms = self._enter()
            file = self._file
            if file is None or file.wrote + total + BLANK_BYTES > self._file_bytes:
                file = self._roll(total)
                if file is None:
                    refused = self._no_file()
                    return BatchResult(refused.status, reason=refused.reason)
            offsets = list(itertools.accumulate(sizes, initial=file.base + file.wrote))
            offsets.pop()  # the end of the last one
            first = state.next_offset
            try:
                if is_odd:
                    records = b"".join(
                        self._encode(
                            state, body, properties, flag, first + index, offsets[index], sys_flag,
                            born_time_ms, born_host, now_ms, store_host, reconsume_times, 0,
                        )
                        for index, (flag, body, properties, _, _) in enumerate(parts)
                    )  # fmt: skip
                else:
                    records = write_records(
                        parts, sizes, offsets, state, sys_flag, born_time_ms, born_host, now_ms, store_host,
                        reconsume_times,
                    )  # fmt: skip
                self._place(file, state, records, now_ms, len(parts))
            except (struct.error, MessageError, OSError) as exc:
                refused = self._unfit(exc)
                return BatchResult(refused.status, reason=refused.reason)
            state.put_count += len(parts)
            if len(self.facts) + len(parts) <= FACTS_MAX:
                self.facts.extend(facts_of(parts, offsets, sizes, state, first, sys_flag, now_ms))
            self.lock_since_ms = 0
        return BatchResult(_PUT_OK, offsets, total, first, now_ms)

    def append_copies(self, copies: Sequence[Copy]) -> int:
        """Write these records once more, elsewhere, in one go; how many of them, from the first on.

        It ends before one that needs more than this: a new file, a new queue, a refusal; `append` is for that one. One
        lock, one store time and one write: half of what `append` takes for a record.
        """
        if self.refusal is not None or self._is_odd:
            return 0
        pieces: list[bytes | bytearray] = []
        facts: list[DispatchFact] = []
        with self.lock:
            file = self._file
            if file is None:
                return 0
            now_ms = self._enter()
            offset, room_end = file.base + file.wrote, file.end - BLANK_BYTES
            for topic, queue_id, record, properties, code, keys, unique_key, tags, sys_flag in copies:
                state = self._states.get((topic, queue_id))
                if state is None or state.refusal is not None or not state.topic_part:
                    break
                properties_bytes = len(properties)
                size = state.overhead_bytes - HEAD_V4_BYTES + len(record) + properties_bytes
                if (
                    offset + size > room_end
                    or properties_bytes > PROPERTIES_BYTES_MAX
                    or size > self._record_bytes_max
                    or len(record) > self._body_bytes_max + HEAD_V4_BYTES
                    or _INNER_NAMES in properties
                ):
                    break
                takes_offset = not sys_flag & _NO_QUEUE
                queue_offset = state.next_offset if takes_offset else 0
                state.next_offset += takes_offset
                _I32_INTO(record, 0, size)
                _I32_INTO(record, 12, queue_id)
                _TWO_I64_INTO(record, 20, queue_offset, offset)
                _I64_INTO(record, 56, now_ms)
                pieces += (record, state.topic_part, _I16(properties_bytes), properties)
                hashes = key_hashes(state, keys, unique_key, tags, code, properties)
                facts.append((state, offset, size, code, now_ms, queue_offset, hashes, sys_flag, properties))
                offset += size
            is_written = self._place_all(file, facts, b"".join(pieces), now_ms)
            self.lock_since_ms = 0
        return len(facts) if is_written else 0

    def append_many(
        self, news: Sequence[NewRecord], queue_id: int, *, born_time_ms: int, host: bytes
    ) -> list[DispatchFact]:
        """Write these messages in one go, born and stored at one IPv4 host; what was written, from the first on.

        As `append_copies`, it ends before one that needs more.
        """
        facts: list[DispatchFact] = []
        if self.refusal is not None or self._is_odd or len(host) != 8:
            return facts
        pieces: list[bytes | bytearray] = []
        with self.lock:
            file = self._file
            if file is None:
                return facts
            now_ms = self._enter()
            offset = file.base + file.wrote
            room_end = min(file.end - BLANK_BYTES, offset + MANY_BYTES_MAX)
            body_bytes_max, size_max, states = self._body_bytes_max, self._record_bytes_max, self._states
            for topic, body, properties, code, keys, unique_key, tags, flag in news:
                state = states.get((topic, queue_id))
                if state is None or state.refusal is not None or not state.topic_part:
                    break
                body_bytes, properties_bytes = len(body), len(properties)
                size = state.overhead_bytes + body_bytes + properties_bytes
                if (
                    offset + size > room_end
                    or properties_bytes > PROPERTIES_BYTES_MAX
                    or body_bytes > body_bytes_max
                    or size > size_max
                    or _INNER_NAMES in properties
                ):
                    break
                queue_offset = state.next_offset
                try:
                    head = HEAD_V4.pack(
                        size, MAGIC_V1, crc32(body) & 0x7FFFFFFF, queue_id, flag, queue_offset, offset, 0,
                        born_time_ms, host, now_ms, host, 0, 0, body_bytes,
                    )  # fmt: skip
                except struct.error:  # `append` says which number does not fit
                    break
                state.next_offset = queue_offset + 1
                pieces += (head, body, state.topic_part, _I16(properties_bytes), properties)
                hashes = key_hashes(state, keys, unique_key, tags, code, properties)
                facts.append((state, offset, size, code, now_ms, queue_offset, hashes, 0, properties))
                offset += size
            is_written = self._place_all(file, facts, b"".join(pieces), now_ms)
            self.lock_since_ms = 0
        return facts if is_written else []

    def _place_all(self, file: MappedFile, facts: list[DispatchFact], data: bytes, now_ms: int) -> bool:
        """False, and no queue offset is used up, when the disk did not take them."""
        try:
            file.target[file.wrote : file.wrote + len(data)] = data
        except OSError:  # `append` tries again and says why
            for state, _, _, _, _, queue_offset, _, sys_flag, _ in reversed(facts):
                state.next_offset = state.next_offset if sys_flag & _NO_QUEUE else queue_offset
            return False
        file.store_time_ms = now_ms
        file.wrote += len(data)
        for fact in facts:
            fact[0].put_count += 1
            fact[0].put_bytes += fact[2]
        if len(self.facts) < FACTS_MAX:
            self.facts.extend(facts)
        if file.wrote > self._prefault_at:
            self._prefault_at = self._allocator.prefault_ahead(file, file.wrote)
        return True

    def append_raw(self, offset: int, data: bytes | memoryview) -> bool:
        """Add a master's bytes at exactly this offset (replication); False when they do not continue the log.

        The bytes may begin and end anywhere in a record, but never cross a file.
        """
        with self.lock:
            if offset != self.files.wrote_offset and self.files.last is not None:
                return False
            file = self.files.last
            if file is None or file.is_full:
                try:
                    file = self._allocator.take(offset - offset % self._file_bytes)
                except StoreError as exc:
                    self.last_error = exc
                    return False
                file.set_positions(offset - file.base)
                self.files.add(file)
            else:
                file.ensure_allocated()
            self._file = file
            return file.append_raw(data)

    # --- the slower ways

    def _append_odd(
        self, state: QueueState, body: bytes, properties: bytes, tags_code: int, keys: str | None,
        unique_key: str | None, tags: str | None, flag: int, sys_flag: int, born_time_ms: int, born_host: bytes,
        store_host: bytes, reconsume_times: int, prepared_transaction_offset: int,
    ) -> AppendResult:  # fmt: skip
        """As append, for long topics, IPv6 hosts, record checksums, light queues and inner batches."""
        with self.lock:
            light: list[QueueState] = []
            count = 1
            if sys_flag & SysFlag.INNER_BATCH:
                known = decode_properties(properties)
                count, properties = inner_count(known), with_base(known, state.next_offset)
            if not self._with_light_queues:
                properties = without_offsets(properties)
            elif LIGHT_MARK in properties:
                known = decode_properties(properties)
                found = self._light_states(light_names(state.topic, known))
                if isinstance(found, AppendResult):
                    return found
                if found:
                    light, properties = found, with_offsets(known, [queue.next_offset for queue in found])
            size = self._size_of(state, body, properties, born_host=born_host, store_host=store_host)
            if size > self._record_bytes_max:
                return AppendResult(
                    PutStatus.MESSAGE_ILLEGAL, reason=too_large("a record", size, self._record_bytes_max)
                )
            now_ms = self._enter()
            file = self._file
            if file is None or file.wrote + size + BLANK_BYTES > self._file_bytes:
                file = self._roll(size)
                if file is None:
                    return self._no_file()
            physical_offset = file.base + file.wrote
            takes_offset = not sys_flag & _NO_QUEUE
            queue_offset = state.next_offset if takes_offset else 0
            try:
                record = self._encode(
                    state, body, properties, flag, queue_offset, physical_offset, sys_flag, born_time_ms, born_host,
                    now_ms, store_host, reconsume_times, prepared_transaction_offset,
                )  # fmt: skip
                self._place(file, state, record, now_ms, count if takes_offset else 0, light)
            except (MessageError, OSError) as exc:
                return self._unfit(exc)
            state.put_count += count
            if len(self.facts) < FACTS_MAX:
                hashes = key_hashes(state, keys, unique_key, tags, tags_code, properties)
                self.facts.append(
                    (state, physical_offset, size, tags_code, now_ms, queue_offset, hashes, sys_flag, properties)
                )
            self.lock_since_ms = 0
        return AppendResult(_PUT_OK, physical_offset, size, queue_offset, now_ms)

    def _light_states(self, names: Sequence[str]) -> list[QueueState] | AppendResult:
        """Of these light queues; new ones count as soon as a message went there."""
        keys = [(name, LIGHT_QUEUE_ID) for name in names]
        new_count = sum(key not in self._states for key in keys)
        would_be = sum(topic.startswith(LIGHT_PREFIX) for topic, _ in self._states) + new_count if new_count else 0
        refused = light_refusal(names, would_be=would_be, limit=self.config.max_lmq_consume_queue_num)
        if refused is not None:
            return refused
        return [self._states.get(key) or QueueState(*key, 0, is_indexed=self._is_indexed) for key in keys]

    def _enter(self) -> int:
        """The store time of a put that has just taken the lock."""
        self.last_time_ms = self.lock_since_ms = max(self._now_ms(), self.last_time_ms)
        return self.last_time_ms

    def _place(
        self, file: MappedFile, state: QueueState, data: bytes, now_ms: int, count: int,
        light: Sequence[QueueState] = (),
    ) -> None:  # fmt: skip
        """Write records that take so many of the queue's offsets, and one of each light queue. OSError: none is taken.

        As in `append`, offsets go before the records count: an interrupt in between may waste some, never repeat one.
        """
        end = file.wrote + len(data)
        file.target[file.wrote : end] = data
        state.next_offset += count
        for queue in light:
            queue.next_offset += 1
            self._states[queue.key] = queue
        file.store_time_ms = now_ms
        file.wrote = end
        state.put_bytes += len(data)
        if end > self._prefault_at:
            self._prefault_at = self._allocator.prefault_ahead(file, end)

    def _encode(
        self, state: QueueState, body: bytes, properties: bytes, flag: int, queue_offset: int, physical_offset: int,
        sys_flag: int, born_time_ms: int, born_host: bytes, store_time_ms: int, store_host: bytes,
        reconsume_times: int, prepared_transaction_offset: int,
    ) -> bytes:  # fmt: skip
        return encode_record(
            state.topic,
            body,
            _without_record_crc(properties) if self._with_record_crc else properties,
            queue_id=state.queue_id,
            queue_offset=queue_offset,
            physical_offset=physical_offset,
            born_host=born_host,
            store_host=store_host,
            born_time_ms=born_time_ms,
            store_time_ms=store_time_ms,
            flag=flag,
            sys_flag=sys_flag,
            reconsume_times=reconsume_times,
            prepared_transaction_offset=prepared_transaction_offset,
            long_topics=self.config.auto_message_version_on_topic_len,
            with_record_crc=self._with_record_crc,
            body_bytes_max=self._body_bytes_max,
        )

    def _size_of(
        self, state: QueueState, body: bytes, properties: bytes, *, born_host: bytes, store_host: bytes
    ) -> int:
        """What `_encode` will produce."""
        size = state.overhead_bytes + len(body) + len(properties) + len(born_host) + len(store_host) - 16
        if not state.topic_part:
            size += 1
        if self._with_record_crc:
            kept = _without_record_crc(properties)
            size += len(kept) - len(properties) + CRC_PROPERTY_BYTES + (bool(kept) and kept[-1] != 2)
        return size

    def _roll(self, size: int) -> MappedFile | None:
        """The file that takes the next `size` bytes, with the put lock held; None (and `last_error`) when none can.

        The next file is there before the old one is closed with its BLANK, so a full disk changes nothing.
        """
        if self.refusal is not None:  # closed or failed since the put was checked
            return None
        file = self._file
        try:
            if file is None and (file := self.files.last) is not None and not file.is_full:
                file.ensure_allocated()
                self._adopt(file)
            if file is not None and file.wrote + size + BLANK_BYTES <= self._file_bytes:
                self._prefault_at = self._allocator.prefault_ahead(file, file.wrote)
                return file
            following = self._allocator.take(0 if file is None else file.end)
        except StoreError as exc:
            self.last_error = exc
            return None
        except OSError as exc:
            assert file is not None
            self.last_error = self._allocator.explained(file.path, exc)
            return None
        if file is not None:
            self._close_with_blank(file)
            self._allocator.unlock(file)
        self.files.add(following)
        self._adopt(following)
        self._prefault_at = self._allocator.prefault_ahead(following, 0)
        self.last_error = None
        return following

    def _adopt(self, file: MappedFile) -> None:
        self._file = file
        if self.config.is_sync_flush:
            file.write_by_call()

    def _close_with_blank(self, file: MappedFile) -> None:
        """Nothing more fits: say so, and count the rest as used. (Through the mapping: it has its blocks.)"""
        if not file.is_full:
            target = file.mapping if file.write_buffer is None else file.write_buffer
            target[file.wrote : file.wrote + BLANK_BYTES] = encode_blank(self._file_bytes - file.wrote)
            file.wrote = self._file_bytes

    # --- refusing

    def _new_state(self, topic: str, queue_id: int) -> QueueState:
        state = QueueState(topic, queue_id, 0, is_indexed=self._is_indexed)
        if state.refusal is None and self.refusal is None:
            with self.lock:
                state = self._states.setdefault((topic, queue_id), state)
        return state

    def _refused(
        self, state: QueueState, body_bytes: int, properties: bytes, size: int, sys_flag: int
    ) -> AppendResult | None:
        """The first rule that a put breaks, in RocketMQ's order; None when it breaks none."""
        if self.refusal is not None:
            return self.refusal
        if state.refusal is not None:
            return state.refusal
        since = self.lock_since_ms
        # A put that an exception ended (Ctrl-C) leaves its time behind, but not the lock.
        held_ms = self._now_ms() - since if since and self.lock.locked() else 0
        busy_ms_max = self.config.os_page_cache_busy_time_out_mills
        if busy_ms_max < held_ms < PAGE_CACHE_BUSY_MS_MAX:
            return page_cache_busy(held_ms, busy_ms_max)
        refused = inner_refusal(properties, sys_flag, is_batch_topic=self.is_batch_topic(state.topic))
        return refused or message_refusal(
            body_bytes, properties, size, body_bytes_max=self._body_bytes_max, size_max=self._record_bytes_max
        )

    def _batch_refusal(self, state: QueueState, batch: Parts, batch_bytes: int, sys_flag: int) -> AppendResult | None:
        refused = batch_refusal(len(batch.all), sys_flag, is_delayed=batch.is_delayed)
        if refused is not None:
            return self.refusal or refused
        for number in batch.suspects:
            _, body, properties, _, _ = batch.all[number]
            size = state.overhead_bytes + len(body) + len(properties)
            refused = self._refused(state, len(body), properties, size, sys_flag)
            if refused is None and LIGHT_MARK in properties:
                refused = light_part_refusal(number, state.topic, properties, with_light_queues=self._with_light_queues)
            if refused is not None:
                return refused
        if batch_bytes > self._body_bytes_max:
            return AppendResult(
                PutStatus.MESSAGE_ILLEGAL,
                reason=f"the batch has {batch_bytes} bytes, the limit is {self._body_bytes_max} (maxMessageSize): "
                "send smaller batches",
            )
        return None

    def _no_file(self) -> AppendResult:
        self.lock_since_ms = 0
        return self.refusal or AppendResult(PutStatus.CREATE_MAPPED_FILE_FAILED, reason=str(self.last_error))

    def _unfit(self, error: struct.error | MessageError | OSError) -> AppendResult:
        """What is answered when a record could not be encoded or written; the log is as it was."""
        self.lock_since_ms = 0
        if isinstance(error, OSError):
            assert self._file is not None
            self.last_error = self._allocator.explained(self._file.path, error)
            return self._no_file()
        if isinstance(error, MessageError):
            is_properties = error.field == "properties"
            status = PutStatus.PROPERTIES_SIZE_EXCEEDED if is_properties else PutStatus.MESSAGE_ILLEGAL
            return AppendResult(status, reason=str(error))
        return AppendResult(PutStatus.MESSAGE_ILLEGAL, reason=_MISFIT + str(error))


_MISFIT: Final = (
    "a number does not fit the record: flag, sysFlag and reconsumeTimes have 32 bits, times and offsets 64: "
)


def _is_no_batch_topic(topic: str) -> bool:
    """Until the store says which topics have queue.type=BatchCQ."""
    return False


def _without_record_crc(properties: bytes) -> bytes:
    """A sender's own CRC property is not ours: RocketMQ drops it before it writes the true one."""
    return without(properties, (_CRC,)) if _CRC in properties else properties
