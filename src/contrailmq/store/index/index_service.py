"""Finds messages by key: all IndexFiles of a store (ROOT/index/), oldest first.

A message is entered under its unique key and every key of KEYS, as `topic#key`, and under its tag, as `topic#T#tag`
(as RocketMQ 5.5.0 does). Rolled-back half messages are not entered, prepared ones are. Dispatch may bring a record
twice; what is below the end offset of the newest file is known already.

After a crash, files that end later than the checkpoint cannot be trusted and are removed. Apache then loses keys of
older messages; here `end_offset` tells recovery where to start dispatching to the index again. The same rule rebuilds a
deleted or damaged index. After a kill files go back to their newest mark (index_file.py). Each file is compared with
its checksum in the ledger before it answers: the newest at start, the others at their first query.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final

from contrailmq.message import SysFlag, java_hash
from contrailmq.store.base.clock import Clock
from contrailmq.store.base.errors import CorruptStoreError
from contrailmq.store.config import START_BOUNDS, StartBounds
from contrailmq.store.files import Files
from contrailmq.store.index.index_file import IndexFile, index_file_bytes, stored_hash
from contrailmq.store.queues.keys import key_hashes
from contrailmq.store.queues.queue_state import DispatchFact, QueueState

_log = logging.getLogger(__name__)

QUERY_COUNT_MAX: Final = 64  # maxMsgsNumBatch
UNITS_CHECKED_AT_LOAD_MAX: Final = 200_000  # 0.1 s; a fuller file is only checked in its header, verify checks all
_STATES_MAX: Final = 10_000
_ROLLBACK: Final = SysFlag.TRANSACTION_ROLLBACK
_TRANSACTION: Final = SysFlag.TRANSACTION_MASK


class IndexService:
    """Put and query. Owned by the store; one thread puts, any thread queries."""

    def __init__(
        self,
        root: Path,
        *,
        slots: int,
        units: int,
        files: Files,
        clock: Clock,
        on_sealed: Callable[[int], None] | None = None,
        query_count_max: int = QUERY_COUNT_MAX,
        bounds: StartBounds = START_BOUNDS,
    ) -> None:
        assert slots > 0
        assert units > 1
        self.root = root
        self.slots = slots
        self.units = units
        self._files = files
        self._clock = clock
        self._query_count_max = query_count_max
        self._bounds = bounds
        self._on_sealed = on_sealed  # takes the end time of a file that was filled and flushed
        self._index_files: list[IndexFile] = []
        self._lock = threading.Lock()  # the list; puts have one owner
        self._states: dict[str, QueueState] = {}  # of topics whose records come one by one
        self._sealing: list[IndexFile] = []
        self._sealing_turn = threading.Lock()
        self._active: IndexFile | None = None  # the file being filled, mapped for writing

    @property
    def index_files(self) -> list[IndexFile]:
        with self._lock:
            return list(self._index_files)

    @property
    def end_offset(self) -> int:
        """Physical offset of the newest record entered; -1 when the index is empty."""
        for index_file in reversed(self._index_files):
            if index_file.entries:
                return index_file.end_offset
        return -1

    @property
    def entries(self) -> int:
        return sum(index_file.entries for index_file in self._index_files)

    # --- putting

    def put(
        self,
        topic: str,
        keys: str | None,
        unique_key: str | None,
        physical_offset: int,
        store_time_ms: int,
        sys_flag: int = 0,
        tags: str | None = None,
    ) -> None:
        """Enter one record; see `put_all`."""
        state = self._states.get(topic)
        if state is None:
            state = self._state(topic)
        hashes = key_hashes(state, keys, unique_key, tags, 0, b"")
        self.put_all([(state, physical_offset, 0, 0, store_time_ms, 0, hashes, sys_flag, b"")])

    def put_all(self, facts: Sequence[DispatchFact]) -> None:
        """Enter records under the hashes of their keys and tags, each once, in log order."""
        index_file = self._active
        # Below this they were dispatched before. Java (IndexService.buildIndex) lets the newest record itself in again,
        # and so do we: a roll and a crash may have cut its keys in two. Queries name an offset once.
        begin = self.end_offset if index_file is None else index_file.end_offset
        items: list[tuple[list[int], int, int]] = []
        left = 0
        for _, physical_offset, _, _, store_time_ms, _, hashes, sys_flag, _ in facts:
            if hashes and physical_offset >= begin and sys_flag & _TRANSACTION != _ROLLBACK:
                items.append((hashes, physical_offset, store_time_ms))
                left += len(hashes)
        while items:
            if index_file is None or index_file.is_full:
                index_file = self._roll()
            done = index_file.put_all(items)
            left -= done
            items = _after(items, done) if left else []  # a full file may cut a record's keys in two

    def _state(self, topic: str) -> QueueState:
        if len(self._states) >= _STATES_MAX:
            self._states.clear()
        state = self._states[topic] = QueueState(topic, 0, 0)
        return state

    def _roll(self) -> IndexFile:
        """The file to fill next: the last one if it has room (after a load), else a new one."""
        previous = self._index_files[-1] if self._index_files else None
        if previous is not None and not previous.is_full:
            previous.make_writable()
            self._active = previous
            return previous
        self._files.make_directory(self.root)
        index_file = IndexFile(self._new_path(), slots=self.slots, units=self.units, files=self._files)
        index_file.create(previous=previous)
        self._files.sync_directory(self.root)
        with self._lock:
            self._index_files.append(index_file)
            if previous is not None:
                self._sealing.append(previous)
        self._active = index_file
        return index_file

    def _new_path(self) -> Path:
        """Named after the local time, as Apache does; never a name that is taken."""
        now_ms = self._clock.now_ms()
        name = f"{datetime.fromtimestamp(now_ms // 1000):%Y%m%d%H%M%S}{now_ms % 1000:03d}"
        if self._index_files and name <= self._index_files[-1].path.name:
            # Two files in one millisecond, or the clock went back: the order of names is the order of the files.
            name = f"{int(self._index_files[-1].path.name) + 1:017d}"
        return self.root / name

    # --- looking up

    def query(self, topic: str, key: str, max_count: int, begin_ms: int, end_ms: int) -> list[int]:
        """Physical offsets that may hold the key, newest first. Compare topic and key: hashes collide.

        To ask for a tag, make the key `T#` and the tag.
        """
        max_count = min(max_count, self._query_count_max)
        key_hash = stored_hash(java_hash(key, seed=java_hash(topic + "#")))
        found: list[int] = []
        for index_file in reversed(self.index_files):
            if len(found) >= max_count:
                break
            room = max_count - len(found) + 1  # one may be the last of the newer file
            with index_file.while_it_is_there():
                if index_file.is_doubtful:
                    index_file.settle()
                if index_file.entries and index_file.overlaps(begin_ms, end_ms):
                    hits = index_file.find(key_hash, max_count=room, begin_ms=begin_ms, end_ms=end_ms)
                    found += hits[1:] if found[-1:] == hits[:1] else hits
            if index_file.begin_time_ms < begin_ms:
                break
        return found[:max_count]

    # --- housekeeping

    @property
    def is_doubtful(self) -> bool:
        """Whether a file was not compared with its checksum yet, or is damaged."""
        return any(index_file.is_doubtful for index_file in self._index_files)

    def settle(self) -> None:
        """Compare some of the files that no query has reached yet, before one does."""
        left = self._bounds.index_bytes
        for index_file in reversed(self.index_files):
            if left > 0 and index_file.is_doubtful and not index_file.damage:
                left -= index_file.used_bytes
                with suppress(CorruptStoreError), index_file.while_it_is_there():  # logged; the ledger will say so
                    index_file.settle()

    def flush_sealed(self) -> int:
        """Force the files that were filled since the last call; the end time of the newest, 0 for none.

        Runs in a worker: a full default file has 420 MB. A start may call it while the worker does: in turn.
        """
        end_time_ms = 0
        with self._sealing_turn:
            while index_file := self._next_to_seal():
                with index_file.while_it_is_there():
                    index_file.flush()
                    index_file.seal()
                    index_file.take_checksum()
                    end_time_ms = index_file.end_time_ms
                    if self._on_sealed is not None:
                        self._on_sealed(end_time_ms)
                with self._lock:
                    if index_file in self._sealing:  # it was not deleted meanwhile
                        self._sealing.remove(index_file)
        return end_time_ms

    def _next_to_seal(self) -> IndexFile | None:
        with self._lock:
            return self._sealing[0] if self._sealing else None

    def flush(self) -> None:
        """Force everything, at close."""
        self.flush_sealed()
        if self._index_files:
            self._index_files[-1].mark()
            self._index_files[-1].flush()
            self._index_files[-1].seal()
        self._active = None
        self.take_checksums()

    def take_checksums(self) -> None:
        """Of files that nobody fills and whose checksum is not known, newest first, some at a time."""
        left = self._bounds.index_bytes
        for index_file in reversed(self.index_files):
            if left > 0 and not (index_file.is_writable or index_file.is_vouched_for):
                left -= index_file.used_bytes
                with index_file.while_it_is_there():
                    index_file.take_checksum()

    def delete_below(self, log_min_offset: int) -> int:
        """Remove files all of whose records are gone from the log, never the last one; how many."""
        deleted = 0
        while len(self._index_files) > 1 and self._index_files[0].end_offset < log_min_offset:
            with self._lock:
                index_file = self._index_files.pop(0)
                if index_file in self._sealing:
                    self._sealing.remove(index_file)
            index_file.destroy()
            deleted += 1
        return deleted

    def truncate_physical(self, physical_offset: int) -> int:
        """After the log was cut: remove files that point at or above the cut; how many.

        A chain cannot be unwound in place, so the file goes as a whole and recovery enters its records again. So does a
        new file after it that has no entries yet.
        """
        removed = 0
        while self.end_offset >= physical_offset:
            self._remove_last()
            removed += 1
        return removed

    def remove_from(self, name: str) -> int:
        """Remove the files named `name` and later: one before them is missing, and entries must stay in order."""
        removed = 0
        while self._index_files and self._index_files[-1].path.name >= name:
            self._remove_last()
            removed += 1
        return removed

    def close(self) -> None:
        self._active = None
        for index_file in self._index_files:
            index_file.close()

    # --- opening

    def load(
        self, *, trusted_end_time_ms: int | None = None, killed_with: Mapping[str, int] | None = None
    ) -> list[str]:
        """Take up the files of the directory; the reasons for those that had to go.

        With `trusted_end_time_ms`, files that end later cannot be trusted. With `killed_with` (the files that the
        ledger knows, and their counts when their checksums were taken; 0: they were not) all others go back to their
        newest mark. Everything from the first bad file on is removed: what follows is entered again from the log.
        """
        reasons: list[str] = []
        is_cut = False  # entries from here on are entered again
        for path in self._files.list_directory(self.root):
            if not path.name.isdigit():
                continue
            if not self._files.is_file(path):
                raise CorruptStoreError(path, "an index file was expected, and this is not one: move it elsewhere")
            index_file = IndexFile(path, slots=self.slots, units=self.units, files=self._files)
            reason: str | None = "follows a removed one" if reasons else ""
            if not is_cut:
                reason = self._load_fault(index_file, trusted_end_time_ms, killed_with)
            if reason is None:
                self._index_files.append(index_file)
                is_cut = killed_with is not None and not index_file.is_full
                continue
            is_cut = True
            if reason:  # what a kill cut off is not damage
                reasons.append(f"index file {path.name} {reason}")
                _log.warning("index file %s is removed and rebuilt from the log: it %s", path, reason)
            index_file.destroy()
        return reasons

    def _load_fault(
        self, index_file: IndexFile, trusted_end_time_ms: int | None, killed_with: Mapping[str, int] | None
    ) -> str | None:
        """Why a file cannot be taken up; empty when it has nothing that is not entered again anyway."""
        expected = index_file_bytes(self.slots, self.units)
        actual = self._files.size(index_file.path)
        if actual != expected:
            return f"has {actual} bytes, {expected} were expected"
        index_file.load()
        fault: str | None = None
        if killed_with is not None:
            known = killed_with.get(index_file.path.name)
            if index_file.is_marked and (known != index_file.count or not index_file.is_full):
                fault = index_file.restore()
            elif known is None:
                return ""  # begun just before the kill
            elif known not in (0, index_file.count):
                return f"has {index_file.entries} entries, it had {known - 1}"
        if trusted_end_time_ms is not None and index_file.end_time_ms > trusted_end_time_ms:
            return f"was being filled at the crash (ends at {index_file.end_time_ms}, flushed to {trusted_end_time_ms})"
        previous = self._index_files[-1] if self._index_files else None
        if previous is not None and index_file.entries and index_file.begin_offset < previous.end_offset:
            return f"begins at {index_file.begin_offset}, before the end {previous.end_offset} of the one before it"
        if fault is None and not index_file.is_restored:
            fault = index_file.fault(units_checked_max=UNITS_CHECKED_AT_LOAD_MAX)
        index_file.forget_pages()
        if fault is not None:
            index_file.close()
            return f"is damaged: {fault}"
        return None

    def _remove_last(self) -> None:
        self._active = None
        with self._lock:
            index_file = self._index_files.pop()
            if index_file in self._sealing:
                self._sealing.remove(index_file)
        index_file.destroy()


def _after(items: list[tuple[list[int], int, int]], count: int) -> list[tuple[list[int], int, int]]:
    """What is left of records after so many of their hashes."""
    for number, (hashes, physical_offset, store_time_ms) in enumerate(items):
        if count < len(hashes):
            return [(hashes[count:], physical_offset, store_time_ms), *items[number + 1 :]]
        count -= len(hashes)
    return []
