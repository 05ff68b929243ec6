"""Embedded puts: from a `Message` to a record that is durable as configured and can be read (see `put` for when).

What a put takes under ASYNC_FLUSH: its properties and unique id as bytes, the append (commit_log.py) and, for every 64
messages together, their dispatch to queues and index. Nothing wakes another thread: the flush thread comes by its
interval. MessageStore binds `put` and `put_many` as its own, so that they are one call away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

from contrailmq.message import (
    Message,
    MessageError,
    Property,
    SysFlag,
    as_body,
    create_unique_id,
    create_unique_ids,
    encode_properties,
    tags_code,
    wants_durable,
)
from contrailmq.message.batch import encode_batch
from contrailmq.store.base.clock import Clock
from contrailmq.store.base.errors import StoreReadOnlyError
from contrailmq.store.base.stats import StoreStats
from contrailmq.store.base.status import PutResult, PutStatus
from contrailmq.store.config import StoreConfig
from contrailmq.store.dispatch import Dispatcher
from contrailmq.store.log.commit_log import CommitLog
from contrailmq.store.log.flush import FlushFailedError, LogCommitter, LogFlusher
from contrailmq.store.queues.queue_state import NewRecord

LAG_MAX: Final = 64  # messages that puts leave to be dispatched together: half the cost of one by one

_PUT_OK: Final = PutStatus.PUT_OK
_WAIT: Final = Property.WAIT
_TAGS: Final = Property.TAGS
_KEYS: Final = Property.KEYS
_UNIQUE_KEY: Final = Property.UNIQUE_KEY
_result = tuple.__new__  # what a NamedTuple's constructor ends in, without its arguments' matching


class Putter:
    """Puts for any number of threads. `lag_max` is how many messages may wait for dispatch: 0 when someone listens."""

    def __init__(
        self,
        config: StoreConfig,
        clock: Clock,
        log: CommitLog,
        flusher: LogFlusher,
        committer: LogCommitter | None,
        dispatcher: Dispatcher,
        stats: StoreStats,
        *,
        store_host: bytes,
        confirm_offset: Callable[[], int],
        on_refusal: Callable[[PutResult], None],
    ) -> None:
        """`on_refusal` raises for what is the store's fault and not the message's."""
        self.lag_max = LAG_MAX
        self._config = config
        self._now_ms = clock.now_ms
        self._log = log
        self._facts = log.facts
        self._flusher = flusher
        self._committer = committer
        self._dispatcher = dispatcher
        self._stats = stats
        self._store_host = store_host
        self._confirm_offset = confirm_offset
        self._on_refusal = on_refusal
        # Nothing to wait for and nobody to wake: a put is then an append and, in its turn, a dispatch.
        self._is_plain = not (config.is_sync_flush or config.wake_flush_when_put_message or committer)
        self._sync_timeout_s = config.sync_flush_timeout / 1000

    def put(
        self,
        message: Message,
        queue_id: int = 0,
        *,
        sys_flag: int = 0,
        born_time_ms: int = 0,
        born_host: bytes = b"",
    ) -> PutResult:
        """Store one message; returns when it is durable as configured and, as a rule, can be read.

        Two settings let it return before: with the write buffer pool a message can be read when it was committed (200
        ms at the latest, commitIntervalCommitLog), and under SYNC_FLUSH one that asks not to wait (WAIT=false) when the
        next flush has covered it.

        Raises StoreFullError (nothing was stored; try again when there is room), StoreReadOnlyError (a sync failed: it
        is unknown whether the message is stored), StoreClosedError. A message that breaks a rule is not stored: see
        `status` and `reason`.
        """
        started_ms = self._now_ms()
        new = _new_record(message)
        host = self._store_host
        result = self._append_new(new, queue_id, started_ms, sys_flag, born_time_ms or started_ms, born_host or host)
        if result[0] is not _PUT_OK:
            self._stats.put_failed_count += 1
            self._on_refusal(result)
            return result
        if self._is_plain:
            if len(self._facts) >= self.lag_max:
                self._dispatcher.dispatch(result[4] + result[5])
        elif not self._settle(result[4] + result[5], waits=wants_durable(message.properties)):
            result = result._replace(status=PutStatus.FLUSH_DISK_TIMEOUT, reason=self._timeout_text())
        self._stats.note_put_time(self._now_ms() - started_ms)
        return result

    def put_many(self, messages: Sequence[Message], queue_id: int = 0) -> list[PutResult]:
        """Store several messages with one flush; a result for each, refused ones included.

        Raises as `put` does; MessageError (a property that is not text or holds a separator) comes before anything is
        stored.
        """
        started_ms = self._now_ms()
        host = self._store_host
        ids = create_unique_ids(len(messages))
        news = [_new_record(message, ids[number]) for number, message in enumerate(messages)]
        appended = self._log.append_many(news, queue_id, born_time_ms=started_ms, host=host)
        took = max(0, self._now_ms() - started_ms)
        results: list[PutResult] = []
        failed, end = 0, -1
        for number, (status, offset, size, queue_offset, time_ms, reason) in enumerate(appended):
            key = news[number][5]
            results.append(
                _result(PutResult, (status, key, queue_id, queue_offset, offset, size, time_ms, host, reason, took))
            )
            if status is _PUT_OK:
                end = offset + size
            else:
                failed += 1
        self._stats.put_failed_count += failed
        if failed == len(results):
            if results:
                self._on_refusal(results[0])
            return results
        waits = not self._is_plain and any(wants_durable(message.properties) for message in messages)
        if not self._settle(end, waits=waits):
            late, text = PutStatus.FLUSH_DISK_TIMEOUT, self._timeout_text()
            results = [r._replace(status=late, reason=text) if r.status is _PUT_OK else r for r in results]
        self._stats.note_put_time(self._now_ms() - started_ms)
        return results

    def put_inner_batch(self, topic: str, messages: Sequence[Message], queue_id: int = 0) -> PutResult:
        """Store messages as one record, which a topic with queue.type=BatchCQ takes; they get offsets in a row.

        `queue_offset` of the result is the first one's. Readers see the messages; keys and tags of the batch are those
        of its first message. Messages of another topic are refused: the record has one topic.
        """
        others = {message.topic for message in messages} - {topic}
        if others and self._log.refusal is None:
            self._stats.put_failed_count += 1
            named = f"a message of topic {sorted(others)[0]!r} does not go into a batch of topic {topic!r}"
            return PutResult(PutStatus.MESSAGE_ILLEGAL, "", queue_id, reason=f"{named}: send it by itself")
        news = [_new_record(message) for message in messages]
        envelope = Message(topic, encode_batch((new[7], new[1], new[2]) for new in news))
        if messages:
            own = messages[0].properties
            envelope.properties.update({name: own[name] for name in (_TAGS, _KEYS, _WAIT) if name in own})
        envelope.properties[Property.INNER_NUM] = str(len(messages))
        return self.put(envelope, queue_id, sys_flag=SysFlag.INNER_BATCH | SysFlag.NEED_UNWRAP)

    def _append_new(
        self, new: NewRecord, queue_id: int, started_ms: int, sys_flag: int, born_time_ms: int, born_host: bytes
    ) -> PutResult:
        topic, body, properties, code, keys, unique_key, tags, flag = new
        host = self._store_host
        status, offset, size, queue_offset, time_ms, reason = self._log.append(
            topic,
            queue_id,
            body,
            properties,
            tags_code=code,
            keys=keys,
            unique_key=unique_key,
            tags=tags,
            flag=flag,
            sys_flag=sys_flag,
            born_time_ms=born_time_ms,
            born_host=born_host,
            store_host=host,
        )
        took = max(0, self._now_ms() - started_ms)  # a clock may be set back
        return _result(
            PutResult, (status, unique_key, queue_id, queue_offset, offset, size, time_ms, host, reason, took)
        )

    def _settle(self, end: int, *, waits: bool) -> bool:
        """After an append: durable as configured, and dispatched. False when the disk took too long."""
        is_durable = True
        if self._config.is_sync_flush:
            if waits:
                try:
                    is_durable = self._flusher.wait(end, self._sync_timeout_s)
                except FlushFailedError as exc:
                    raise StoreReadOnlyError(self._config.path, cause=str(exc)) from exc
            else:
                self._flusher.request()
        elif self._committer is not None:
            if self._config.wake_commit_when_put_message:
                self._committer.request()
        elif self._config.wake_flush_when_put_message:
            self._flusher.request()
        if len(self._facts) >= self.lag_max:
            self._dispatcher.dispatch(self._confirm_offset())
        return is_durable

    def _timeout_text(self) -> str:
        return (
            f"the message is stored but was not on the disk within {self._config.sync_flush_timeout} ms "
            "(syncFlushTimeout): the disk is slow"
        )


def _new_record(message: Message, new_id: str = "") -> NewRecord:
    """What the log takes of a message, which gets a unique id here unless it has one."""
    properties = message.properties
    anything: Any = message  # a body may be any buffer, which compiled code would refuse as a `bytes`
    given = anything.body
    body: bytes = given if isinstance(given, bytes) else as_body(given)
    unique_key = properties.get(_UNIQUE_KEY)
    try:
        if unique_key is None:
            unique_key = new_id or create_unique_id()
            encoded = encode_properties(properties, unique_key)
        else:
            encoded = encode_properties(properties)
    except MessageError as exc:
        if exc.size is None:  # not properties at all: their author has to know
            raise
        encoded = bytes(exc.size)  # too large: the log refuses what has this size, in the turn of that rule
    tags, keys = properties.get(_TAGS), properties.get(_KEYS)
    return message.topic, body, encoded, tags_code(tags) if tags else 0, keys, unique_key, tags, message.flag
