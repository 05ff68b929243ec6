"""Handles each message once, although it may be delivered more than once.

    consumer.listen(contrailmq.idempotent(handle, key=lambda message: message.keys[0], store="seen.sqlite"))

`idempotent` remembers the business keys of handled messages in a store: `SqliteStore` (a file, for one machine) or
`RedisStore` (extra `contrailmq[redis]`). Members of a group that share a store share the memory. Guarantees:
  - A key that was handled successfully is not handled again for `keep_s` seconds (a week by default).
  - Two members never handle one key at the same time, unless a handler runs longer than `lease_s`.
  - A failed handler (exception or RETRY) is forgotten, so its retry is handled.
  - After a crash between the effect and the store's note, the effect happens again. If the effect is a database write,
    put the key into the same transaction. Use a business key, not the message id: sending again makes a new id.
"""

from __future__ import annotations

import asyncio
import enum
import functools
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Final, Protocol

from contrailmq.client.consuming.listener_pool import Answer, Listener, is_coroutine_listener
from contrailmq.client.errors import ClientConfigError
from contrailmq.client.results import ConsumeOutcome, ConsumeResult
from contrailmq.message import StoredMessage

__all__ = ["Claim", "IdempotencyStore", "RedisStore", "SqliteStore", "idempotent"]

KEEP_S: Final = 7 * 24 * 3600.0
LEASE_S: Final = 120.0
_PURGE_EVERY: Final = 1000  # claims


class Claim(enum.Enum):
    """What a store says when a key is to be handled."""

    MINE = "mine"
    DONE = "done"
    TAKEN = "taken"  # somebody else handles it now


class IdempotencyStore(Protocol):
    """Remembers keys. Called from listener threads, so it must be thread-safe."""

    def claim(self, key: str) -> Claim: ...
    def finish(self, keys: Sequence[str]) -> None: ...
    def forget(self, keys: Sequence[str]) -> None: ...


KeyOf = Callable[[StoredMessage], str]


def idempotent(
    listener: Listener,
    *,
    key: KeyOf | str | None = None,
    store: IdempotencyStore | str | os.PathLike[str] | None = None,
) -> Listener:
    """A listener that sees each key once.

    `key` is a function of the message, the name of a property, or None for the message's first key (its id when it has
    none). `store` is a store or the path of an SQLite file; None is `contrailmq-idempotent.sqlite` in the working
    directory.
    """
    key_of = _key_function(key)
    if store is None or isinstance(store, str | os.PathLike):
        store = SqliteStore(store if store is not None else "contrailmq-idempotent.sqlite")
    once = _Once(store, key_of)
    if is_coroutine_listener(listener):
        return functools.partial(_handle_async, once, listener)
    return functools.partial(_handle, once, listener)


def _handle(once: _Once, listener: Listener, messages: list[StoredMessage]) -> Answer | Awaitable[Answer]:
    batch = once.begin(messages)
    if not batch.fresh:
        return batch.answer_without_call()
    try:
        answer = listener(batch.fresh)
    except BaseException:  # a cancellation too: the keys are given back, and it goes on its way
        once.fail(batch)
        raise
    if isinstance(answer, Awaitable):
        return _end_later(once, batch, answer)
    return once.end(batch, answer)


async def _handle_async(once: _Once, listener: Listener, messages: list[StoredMessage]) -> Answer:
    batch = await asyncio.to_thread(once.begin, messages)
    if not batch.fresh:
        return batch.answer_without_call()
    answer = listener(batch.fresh)
    assert isinstance(answer, Awaitable)  # `is_coroutine_listener` said so
    return await _end_later(once, batch, answer)


async def _end_later(once: _Once, batch: _Batch, answer: Awaitable[Answer]) -> Answer:
    """A plain function may give something to wait for, too: the pool awaits it on the loop."""
    try:
        result = await answer
    except BaseException:  # a cancellation too: the keys are given back, and it goes on its way
        await asyncio.to_thread(once.fail, batch)
        raise
    return await asyncio.to_thread(once.end, batch, result)


class _Batch:
    """Messages of one call, sorted by what is to be done with them."""

    __slots__ = ("fresh", "has_taken", "keys")

    def __init__(self) -> None:
        self.fresh: list[StoredMessage] = []
        self.keys: list[str] = []  # of the fresh ones
        self.has_taken = False

    def answer_without_call(self) -> Answer:
        return ConsumeResult.RETRY if self.has_taken else ConsumeResult.SUCCESS


class _Once:
    def __init__(self, store: IdempotencyStore, key_of: KeyOf) -> None:
        self._store = store
        self._key_of = key_of

    def begin(self, messages: Sequence[StoredMessage]) -> _Batch:
        """Claim every key. When one has no key or the store fails, what was claimed is given back at once."""
        batch = _Batch()
        try:
            for message in messages:
                self._add(batch, message)
        except BaseException:  # an interrupt too: what was claimed is given back
            self.fail(batch)
            raise
        return batch

    def _add(self, batch: _Batch, message: StoredMessage) -> None:
        key = self._key_of(message)
        if key in batch.keys:
            return  # twice in one batch: the first one counts
        claim = self._store.claim(key)
        if claim is Claim.MINE:
            batch.fresh.append(message)
            batch.keys.append(key)
        elif claim is Claim.TAKEN:
            batch.has_taken = True

    def fail(self, batch: _Batch) -> None:
        self._store.forget(batch.keys)

    def end(self, batch: _Batch, answer: Answer) -> Answer:
        given = ConsumeResult.SUCCESS if answer is None else answer
        outcome = given if isinstance(given, ConsumeOutcome) else ConsumeOutcome(given)
        if outcome.result not in (ConsumeResult.SUCCESS, ConsumeResult.COMMIT):
            self.fail(batch)  # also if it is not an answer: the pool reports that and retries
            return answer
        count = len(batch.keys) if outcome.acknowledged is None else max(0, outcome.acknowledged)
        self._store.finish(batch.keys[:count])
        self._store.forget(batch.keys[count:])
        if batch.has_taken or count < len(batch.keys):
            # The whole batch comes again; what is done is then skipped.
            return ConsumeResult.RETRY
        return ConsumeResult.SUCCESS if outcome.acknowledged is not None else answer


class SqliteStore:
    """Keys in an SQLite file, shared by the processes of one machine.

    Written with a write-ahead log: a killed process loses nothing; a power failure may lose the last moments, which
    then are handled again.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        keep_s: float = KEEP_S,
        lease_s: float = LEASE_S,
        clock_s: Callable[[], float] = time.time,
    ) -> None:
        self.path = Path(path)
        self._keep_s, self._lease_s, self._clock_s = keep_s, lease_s, clock_s
        self._owner = uuid.uuid4().hex
        self._lock = threading.Lock()
        self._claims = 0
        try:
            self._database = sqlite3.connect(self.path, timeout=30, check_same_thread=False, isolation_level=None)
            self._database.execute("PRAGMA journal_mode=WAL")
            self._database.execute("PRAGMA synchronous=NORMAL")
            self._database.execute(
                "CREATE TABLE IF NOT EXISTS handled (key TEXT PRIMARY KEY, done INTEGER NOT NULL, "
                "owner TEXT NOT NULL, until_s REAL NOT NULL) WITHOUT ROWID"
            )
        except sqlite3.Error as exc:
            raise ClientConfigError(f"the idempotency store {self.path} cannot be opened: {exc}") from exc

    def claim(self, key: str) -> Claim:
        now_s = self._clock_s()
        with self._lock:
            self._maybe_purge(now_s)
            taken = self._database.execute(
                "INSERT INTO handled VALUES (?1, 0, ?2, ?3) ON CONFLICT (key) DO UPDATE SET "
                "done = 0, owner = ?2, until_s = ?3 WHERE until_s <= ?4",
                (key, self._owner, now_s + self._lease_s, now_s),
            )
            if taken.rowcount == 1:
                return Claim.MINE
            row = self._database.execute("SELECT done FROM handled WHERE key = ?", (key,)).fetchone()
        return Claim.DONE if row is not None and row[0] else Claim.TAKEN

    def finish(self, keys: Sequence[str]) -> None:
        until_s = self._clock_s() + self._keep_s
        rows = [(key, self._owner, until_s) for key in keys]
        with self._lock, self._database:  # a failure rolls back: else no later one could begin
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany(
                "INSERT INTO handled VALUES (?1, 1, ?2, ?3) ON CONFLICT (key) DO UPDATE SET done = 1, until_s = ?3",
                rows,
            )

    def forget(self, keys: Sequence[str]) -> None:
        with self._lock:
            self._database.executemany(
                "DELETE FROM handled WHERE key = ? AND done = 0 AND owner = ?", [(key, self._owner) for key in keys]
            )

    def close(self) -> None:
        with self._lock:
            self._database.close()

    def _maybe_purge(self, now_s: float) -> None:
        self._claims += 1
        if self._claims % _PURGE_EVERY == 0:
            self._database.execute("DELETE FROM handled WHERE until_s <= ?", (now_s,))


class _Redis(Protocol):
    """The three commands that are used; `redis.Redis` has them."""

    def set(self, name: str, value: str, *, nx: bool = False, px: int | None = None) -> object: ...
    def get(self, name: str) -> object: ...
    def eval(self, script: str, numkeys: int, *keys_and_args: str) -> object: ...


# In one step: between a look and a deletion the lease could end, and the claim be another's.
_FORGET_OWN: Final = "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) end return 0"


class RedisStore:
    """Keys in Redis, shared by all machines: `RedisStore(redis.Redis(...), prefix="billing:")`."""

    _DONE: Final = "done"

    def __init__(
        self, redis: _Redis, *, prefix: str = "contrailmq:", keep_s: float = KEEP_S, lease_s: float = LEASE_S
    ) -> None:
        self._redis = redis
        self._prefix = prefix
        self._keep_ms, self._lease_ms = round(keep_s * 1000), round(lease_s * 1000)
        self._owner = uuid.uuid4().hex

    def claim(self, key: str) -> Claim:
        name = self._prefix + key
        if self._redis.set(name, self._owner, nx=True, px=self._lease_ms):
            return Claim.MINE
        value = self._redis.get(name)
        text = value.decode() if isinstance(value, bytes) else value
        return Claim.DONE if text == self._DONE else Claim.TAKEN

    def finish(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._redis.set(self._prefix + key, self._DONE, px=self._keep_ms)

    def forget(self, keys: Sequence[str]) -> None:
        for key in keys:
            self._redis.eval(_FORGET_OWN, 1, self._prefix + key, self._owner)


def _key_function(key: KeyOf | str | None) -> KeyOf:
    if callable(key):
        return key
    if key is None:
        return lambda message: message.keys[0] if message.keys else message.message_id
    name = key

    def of_property(message: StoredMessage) -> str:
        value = message.properties.get(name)
        if not value:
            raise ClientConfigError(f"message {message.message_id} has no property {name!r} to de-duplicate by")
        return value

    return of_property
