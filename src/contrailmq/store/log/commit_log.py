"""The commit log: every message of every topic, one after the other, written by one writer.

Every way in (`append`, a client's batch, many messages, copies) makes drafts of records. `_write` puts drafts into the
log: it takes the store time, the file and the offsets, has a builder make the bytes (record_builders.py), copies them,
and leaves facts for dispatch. `append`, the hot path of the whole product (budget: 4 us), has the same steps inlined.

* A `QueueState` keeps what depends only on topic and queue: the topic's bytes, the verdict on its name, the next queue
  offset, the counters.
* The common record (magic V1, both hosts IPv4, no record checksum) is copied once into the mapping. All others go
  through `record.encode_record`.
* Facts for dispatch are tuples on a deque, so nothing is read back. Recovery and replication decode the record instead.

All under the one put lock: the store time never decreases; only an append that succeeded uses up a queue offset, and
never a PREPARED or ROLLBACK record; a record that would leave less than 8 bytes in the file closes it with a BLANK and
goes to the next one; the records of a batch are in one file. A record that no file could hold is refused (RocketMQ
answers success and stores nothing). Refusals are values (status and reason), which the broker turns into response
codes.
"""

from __future__ import annotations

import struct
import threading
from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Final, TypeVar

from contrailmq.message import (
    PROPERTIES_BYTES_MAX,
    MessageError,
    SysFlag,
    decode_properties,
    encode_host,
)
from contrailmq.message.checksum import crc32
from contrailmq.message.codec import BLANK_BYTES, MAGIC_V1, RECORD_SLACK_BYTES, encode_blank
from contrailmq.message.record import HEAD_V4, HEAD_V4_BYTES
from contrailmq.store.base.clock import Clock
from contrailmq.store.base.errors import StoreError
from contrailmq.store.base.status import AppendResult, BatchResult, Copy, PutStatus
from contrailmq.store.config import StoreConfig
from contrailmq.store.log.allocation import Allocator
from contrailmq.store.log.batches import Parts, drafts_of, read_parts
from contrailmq.store.log.mapped_file import MappedFile
from contrailmq.store.log.mapped_file_queue import MappedFileQueue
from contrailmq.store.log.record_builders import (
    Encoding,
    Plain,
    Shared,
    copied_records,
    encoded_records,
    plain_records,
)
from contrailmq.store.queues.batch_queue_table import inner_count, with_base
from contrailmq.store.queues.keys import key_hashes
from contrailmq.store.queues.light_queues import (
    LIGHT_MARK,
    LIGHT_PREFIX,
    LIGHT_QUEUE_ID,
    light_names,
    with_offsets,
    without_offsets,
)
from contrailmq.store.queues.queue_state import DispatchFact, Draft, NewRecord, QueueState
from contrailmq.store.queues.refusals import (
    batch_refusal,
    code_refusal,
    inner_refusal,
    light_part_refusal,
    light_refusal,
    message_refusal,
    page_cache_busy,
    too_large,
)

PAGE_CACHE_BUSY_MS_MAX: Final = 10_000_000  # RocketMQ takes a longer time for a clock that was set
FACTS_MAX: Final = 1 << 16  # beyond this dispatch reads the log instead: bounds memory when nobody dispatches
MANY_BYTES_MAX: Final = 1 << 20  # written in one go: other puts wait for it
LOCALHOST: Final = encode_host("127.0.0.1", 0)

Content = TypeVar("Content")  # of a builder
_I16: Final = struct.Struct(">h").pack

_PUT_OK: Final = PutStatus.PUT_OK
_CODE_SURE: Final = 1 << 61  # a compiled compare is quick up to here
_UNUSUAL: Final = 0xB0  # INNER_BATCH and both bits of IPv6 hosts; numbers, not names: a compiled append has them inline
_INNER_NAMES: Final = b"INNER_"  # with which the names of inner batches and light queues begin
_NO_QUEUE: Final = 0x4  # the bit that PREPARED and ROLLBACK have and COMMIT has not
assert _UNUSUAL == SysFlag.INNER_BATCH | SysFlag.BORN_HOST_V6 | SysFlag.STORE_HOST_V6
assert _NO_QUEUE == SysFlag.TRANSACTION_PREPARED
_I32_END: Final = 1 << 31
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
        self._encoding = Encoding(config)
        self._with_light_queues = config.with_light_queues
        self._is_odd = self._encoding.with_record_crc or self._with_light_queues  # every record takes the slower way

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

    def forget_queues(self, keys: Iterable[tuple[str, int]]) -> None:
        """Deleted queues start again at offset 0. Call it while nothing is put."""
        for key in keys:
            self._states.pop(key, None)

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

    def keys_of(self, topics: Container[str]) -> list[tuple[str, int]]:
        """The queues of these topics that have had a message."""
        return [key for key in list(self._states) if key[0] in topics]

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
        size = state.overhead_bytes + len(body) + len(properties)
        is_plain = self._is_plain(state, len(body), properties, size, sys_flag)
        if not is_plain or self.lock_since_ms or not -_CODE_SURE < tags_code < _CODE_SURE:
            refused = self._refused(state, len(body), properties, size, sys_flag) or code_refusal(tags_code)
            if refused is not None:
                return refused
        hashes = key_hashes(state, keys, unique_key, tags, tags_code, properties)
        if not is_plain or len(born_host) != 8 or len(store_host) != 8:
            shared = (born_time_ms, born_host, store_host, reconsume_times, prepared_transaction_offset)
            return self._append_odd(state, (shared, [flag], [body]), properties, tags_code, hashes, sys_flag)
        crc = crc32(body) & 0x7FFFFFFF
        # From here on `_write` and `plain_records`, inlined for one record: 5.5 us instead of 6.9 (CPython 3.11).
        with self.lock:
            file = self._file_for(size)
            if file is None:
                return self._no_file()
            now_ms, begin = self.last_time_ms, file.wrote
            offset, end = file.base + begin, begin + size
            takes_offset = not sys_flag & _NO_QUEUE
            queue_offset = state.next_offset if takes_offset else 0
            try:
                head = HEAD_V4.pack(
                    size, MAGIC_V1, crc, queue_id, flag, queue_offset, offset, sys_flag, born_time_ms, born_host,
                    now_ms, store_host, reconsume_times, prepared_transaction_offset, len(body),
                )  # fmt: skip
                file.target[begin:end] = b"".join((head, body, state.topic_part, _I16(len(properties)), properties))
            except (struct.error, OSError) as exc:
                return self._unfit(exc)
            if takes_offset:
                state.next_offset = queue_offset + 1
            state.put_count += 1
            state.put_bytes += size
            fact = (state, offset, size, tags_code, now_ms, queue_offset, hashes, sys_flag, properties)
            self._count(file, end, [fact])
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
        drafts = drafts_of(read.all, state, sys_flag)
        shared = (born_time_ms, born_host, store_host, reconsume_times, 0)
        content = (shared, [part[0] for part in read.all], [part[1] for part in read.all])
        is_odd = self._encoding.with_record_crc or not state.topic_part or len(born_host) != 8 or len(store_host) != 8
        is_odd = is_odd or sys_flag & _UNUSUAL != 0
        if is_odd:
            drafts = [self._odd(draft, shared) for draft in drafts]
            for number, body in enumerate(content[2]):
                refused = self._odd_refusal(drafts[number], body)
                if refused is not None:
                    return BatchResult(refused.status, reason=refused.reason)
        total = sum([draft[1] for draft in drafts])
        if total + BLANK_BYTES > self._file_bytes:
            return BatchResult(PutStatus.MESSAGE_ILLEGAL, reason=too_large("a batch", total, self._file_bytes))
        with self.lock:
            if is_odd:
                written = self._write(drafts, total, encoded_records, (self._encoding, content))
            else:
                written = self._write(drafts, total, plain_records, content)
        if not isinstance(written, list):
            return BatchResult(written.status, reason=written.reason)
        _, _, _, _, store_time_ms, first, _, _, _ = written[0]
        return BatchResult(_PUT_OK, [fact[1] for fact in written], total, first, store_time_ms)

    def append_many(
        self, news: Sequence[NewRecord], queue_id: int, *, born_time_ms: int, host: bytes
    ) -> list[AppendResult]:
        """Write these messages, born and stored at one host; as `append` for each, but several in one go."""
        results: list[AppendResult] = []
        shared = (born_time_ms, host, host, 0, 0)
        while len(results) < len(news):
            with self.lock:
                drafts, content = self._many_drafts(news[len(results) :] if results else news, queue_id, shared)
                written = self._write(drafts, drafts[0][1], plain_records, content) if drafts else None
            if written is None:
                topic, body, properties, code, keys, unique_key, tags, flag = news[len(results)]
                results.append(
                    self.append(
                        topic, queue_id, body, properties, tags_code=code, keys=keys, unique_key=unique_key, tags=tags,
                        flag=flag, born_time_ms=born_time_ms, born_host=host, store_host=host,
                    )
                )  # fmt: skip
            elif isinstance(written, list):
                results += _results_of(written)
            else:
                results += [written] * len(drafts)
        return results

    def _many_drafts(self, news: Sequence[NewRecord], queue_id: int, shared: Shared) -> tuple[list[Draft], Plain]:
        """Up to the first one that `append` has to look at, and no more than other puts can wait for."""
        drafts: list[Draft] = []
        flags: list[int] = []
        bodies: list[bytes] = []
        states = self._states
        room = MANY_BYTES_MAX if len(shared[1]) == 8 else 0
        for topic, body, properties, code, keys, unique_key, tags, flag in news:
            state = states.get((topic, queue_id))
            if state is None or (flag and not -_I32_END <= flag < _I32_END):
                break
            size = state.overhead_bytes + len(body) + len(properties)
            room -= size
            if room < 0 or not self._is_plain(state, len(body), properties, size, 0):
                break
            hashes = key_hashes(state, keys, unique_key, tags, code, properties)
            drafts.append((state, size, 1, code, hashes, 0, properties))
            flags.append(flag)
            bodies.append(body)
        return drafts, (shared, flags, bodies)

    def append_copies(self, copies: Sequence[Copy]) -> int:
        """Write these records once more, elsewhere, in one go; how many of them, from the first on.

        It ends where a file does, and before one that needs more than this: a new queue, a refusal; `append` is for
        that one. One lock, one store time and one write: half of what `append` takes for a record.
        """
        drafts: list[Draft] = []
        with self.lock:
            for topic, queue_id, record, properties, code, keys, unique_key, tags, sys_flag in copies:
                state = self._states.get((topic, queue_id))
                if state is None:
                    break
                size = state.overhead_bytes - HEAD_V4_BYTES + len(record) + len(properties)
                if not self._is_plain(state, len(record) - HEAD_V4_BYTES, properties, size, sys_flag):
                    break
                hashes = key_hashes(state, keys, unique_key, tags, code, properties)
                drafts.append((state, size, 0 if sys_flag & _NO_QUEUE else 1, code, hashes, sys_flag, properties))
            if not drafts:
                return 0
            written = self._write(drafts, drafts[0][1], copied_records, copies)
        return len(written) if isinstance(written, list) else 0

    def _append_odd(
        self, state: QueueState, content: Plain, properties: bytes, tags_code: int, hashes: list[int], sys_flag: int
    ) -> AppendResult:
        """As append, for long topics, IPv6 hosts, record checksums, light queues and inner batches."""
        count = 0 if sys_flag & _NO_QUEUE else 1
        light: Sequence[QueueState] = ()
        with self.lock:
            try:
                if sys_flag & SysFlag.INNER_BATCH:
                    known = decode_properties(properties)
                    properties = with_base(known, state.next_offset)
                    count = inner_count(known) if count else 0
                if not self._with_light_queues:
                    properties = without_offsets(properties)
                elif LIGHT_MARK in properties:
                    known = decode_properties(properties)
                    found = self._light_states(light_names(state.topic, known))
                    if isinstance(found, AppendResult):
                        return found
                    if found:
                        light, properties = found, with_offsets(known, [queue.next_offset for queue in found])
            except MessageError as exc:  # with what the log adds they are too long
                return self._unfit(exc)
            body = content[2][0]
            size = state.overhead_bytes + len(body) + len(properties)
            draft = self._odd((state, size, count, tags_code, hashes, sys_flag, properties), content[0])
            refused = self._odd_refusal(draft, body)
            if refused is not None:
                return refused
            for queue in light:
                queue.next_offset += 1
                self._states[queue.key] = queue
            written = self._write((draft,), draft[1], encoded_records, (self._encoding, content))
            if not isinstance(written, list):
                self._give_back_light(light)
        return _results_of(written)[0] if isinstance(written, list) else written

    def _odd(self, draft: Draft, shared: Shared) -> Draft:
        """The draft as the encoding will make its record."""
        state, size, count, code, hashes, sys_flag, properties = draft
        kept = self._encoding.kept(properties)
        size += len(kept) - len(properties) + self._encoding.added_bytes(state, kept, shared)
        return state, size, count, code, hashes, sys_flag, kept

    def _odd_refusal(self, draft: Draft, body: bytes) -> AppendResult | None:
        """The limits once more, with what the log adds: a record that is refused must not begin a new file."""
        _, size, _, _, _, _, properties = draft
        properties_bytes = len(properties) + self._encoding.crc_bytes(properties)
        return self._size_refusal(len(body), properties_bytes, size)

    def _light_states(self, names: Sequence[str]) -> list[QueueState] | AppendResult:
        """Of these light queues; new ones count as soon as a message went there."""
        keys = [(name, LIGHT_QUEUE_ID) for name in names]
        new_count = sum(key not in self._states for key in keys)
        would_be = sum(topic.startswith(LIGHT_PREFIX) for topic, _ in self._states) + new_count if new_count else 0
        refused = light_refusal(names, would_be=would_be, limit=self.config.max_lmq_consume_queue_num)
        if refused is not None:
            return refused
        return [self._states.get(key) or QueueState(*key, 0, is_indexed=self._is_indexed) for key in keys]

    def _give_back_light(self, queues: Sequence[QueueState]) -> None:
        for queue in queues:
            queue.next_offset -= 1
            if not queue.next_offset:
                del self._states[queue.key]

    # --- the one place where records get into the log

    def _write(
        self,
        drafts: Sequence[Draft],
        least_bytes: int,
        build: Callable[[Content, list[DispatchFact]], bytes],
        content: Content,
    ) -> list[DispatchFact] | AppendResult:
        """Write drafts, from the first on, as many as one file takes; what dispatch is told of them.

        Those that have `least_bytes` together are all written, or nothing is and the refusal says why. The caller holds
        the put lock. The rules, in this order: the store time never decreases; a new file begins when the least does
        not fit; queue offsets are taken before the records count, so that an interrupt may waste some and never repeats
        one, and are given back when nothing was written; then the records count, and dispatch may hear of them.
        """
        file = self._file_for(least_bytes)
        if file is None:
            return self._no_file()
        now_ms, begin, base = self.last_time_ms, file.wrote, file.base
        offset, room_end = base + begin, base + self._file_bytes - BLANK_BYTES
        facts: list[DispatchFact] = []
        for state, size, count, code, hashes, sys_flag, properties in drafts:
            if offset + size > room_end:
                break
            queue_offset = 0
            if count:
                queue_offset = state.next_offset
                state.next_offset = queue_offset + count
            state.put_count += count or 1
            state.put_bytes += size
            facts.append((state, offset, size, code, now_ms, queue_offset, hashes, sys_flag, properties))
            offset += size
        end = offset - base
        try:
            file.target[begin:end] = build(content, facts)
        except BaseException as exc:  # noqa: BLE001 - nothing was written, by an interrupt either; `_unfit` raises those
            self._give_back(drafts[: len(facts)])
            return self._unfit(exc)
        self._count(file, end, facts)
        return facts

    def _file_for(self, least_bytes: int) -> MappedFile | None:
        """The file that takes the next records; None when there is no room. Their store time is `last_time_ms`."""
        now_ms = self._now_ms()
        if now_ms < self.last_time_ms:
            now_ms = self.last_time_ms  # searches by time rely on it
        self.last_time_ms = self.lock_since_ms = now_ms
        file = self._file
        if file is None or file.wrote + least_bytes + BLANK_BYTES > self._file_bytes:
            return self._roll(least_bytes)
        return file

    def _count(self, file: MappedFile, end: int, facts: list[DispatchFact]) -> None:
        """The records up to here count from now on, and dispatch may hear of them."""
        file.store_time_ms = self.last_time_ms
        file.wrote = end
        if len(self.facts) + len(facts) <= FACTS_MAX:
            self.facts.extend(facts)
        if end > self._prefault_at:
            self._prefault_at = self._allocator.prefault_ahead(file, end)
        self.lock_since_ms = 0

    def _give_back(self, drafts: Sequence[Draft]) -> None:
        for state, size, count, _, _, _, _ in drafts:
            state.next_offset -= count
            state.put_count -= count or 1
            state.put_bytes -= size

    def file_of_replica(self, at: int) -> MappedFile:
        """The file that takes a master's bytes at the end of the log (replica.py); raises a StoreError when there is
        no room. The caller holds the put lock."""
        file = self.files.last
        try:
            if file is None or file.is_full:
                following = self._allocator.take(at)
                if file is not None:
                    self._allocator.unlock(file)
                self.files.add(following)
                self._adopt(following)
                self._prefault_at = self._allocator.prefault_ahead(following, 0)
                return following
            if file is not self._file:
                file.ensure_allocated()
                self._adopt(file)
                self._prefault_at = self._allocator.prefault_ahead(file, file.wrote)
        except OSError as exc:
            assert file is not None
            raise self._allocator.explained(file.path, exc) from exc
        return file

    def count_replicated(self, file: MappedFile, end: int, store_time_ms: int) -> None:
        """A master's records up to here count; 0 for the time when there is nothing but a BLANK."""
        self.last_time_ms = max(self.last_time_ms, store_time_ms)
        self._count(file, end, [])

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

    def _is_plain(self, state: QueueState, body_bytes: int, properties: bytes, size: int, sys_flag: int) -> bool:
        """Whether a record breaks no rule and has the common form. `_refused` says which rule it breaks otherwise."""
        return not (
            self.refusal is not None
            or state.refusal is not None
            or self._is_odd
            or not state.topic_part
            or len(properties) > PROPERTIES_BYTES_MAX
            or body_bytes > self._body_bytes_max
            or size > self._record_bytes_max
            or sys_flag & _UNUSUAL != 0
            or _INNER_NAMES in properties
        )

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
        return refused or self._size_refusal(body_bytes, len(properties), size)

    def _size_refusal(self, body_bytes: int, properties_bytes: int, size: int) -> AppendResult | None:
        return message_refusal(
            body_bytes, properties_bytes, size, body_bytes_max=self._body_bytes_max, size_max=self._record_bytes_max
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

    def _unfit(self, error: BaseException) -> AppendResult:
        """What is answered when records could not be built or written; raises what is not their fault."""
        self.lock_since_ms = 0
        if isinstance(error, OSError):
            assert self._file is not None
            self.last_error = self._allocator.explained(self._file.path, error)
            return self._no_file()
        if isinstance(error, MessageError):
            is_properties = error.field == "properties"
            status = PutStatus.PROPERTIES_SIZE_EXCEEDED if is_properties else PutStatus.MESSAGE_ILLEGAL
            return AppendResult(status, reason=str(error))
        if isinstance(error, (struct.error, ValueError)):
            return AppendResult(PutStatus.MESSAGE_ILLEGAL, reason=_MISFIT + str(error))
        raise error


_MISFIT: Final = (
    "a number does not fit the record: flag, sysFlag and reconsumeTimes have 32 bits, times and offsets 64: "
)


def _is_no_batch_topic(topic: str) -> bool:
    """Until the store says which topics have queue.type=BatchCQ."""
    return False


def _results_of(facts: list[DispatchFact]) -> list[AppendResult]:
    return [
        _result(AppendResult, (_PUT_OK, offset, size, queue_offset, time_ms, ""))
        for _, offset, size, _, time_ms, queue_offset, _, _, _ in facts
    ]
