"""A store directory seen from outside: its log files, how far they may be read, and how to cut them into ranges.

A live or crashed store has unwritten space, and after a recovery by RocketMQ also stale bytes after the end that look
like good records. So a reader can neither stop at the first bad record nor read on blindly. The confirmed end decides:

1. Below the highest end that a consume queue points to, everything was once a whole record. What is not one today, or
   is in no file, is damage and is reported. Only units that point to a whole record count when damage is passed over.
2. From there the chain is followed while records are whole, CRC included. What follows is not part of the log.

Without consume queues rule 2 starts at the last log file that begins with a record. Who passes over damage (1) gets
nothing that the store's recovery will cut after a crash. A file that a running broker
deletes before it was read counts as deleted before the directory was listed.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import socket
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple, TypeVar

from contrailmq.message import ContrailError, SysFlag, decode_host
from contrailmq.message.codec import BLANK_BYTES, BLANK_MAGIC
from contrailmq.message.record import MAGIC_AT
from contrailmq.spark.decoding.queue_units import dispatched_end, last_places, queue_files
from contrailmq.spark.decoding.records import Records
from contrailmq.spark.decoding.scan import BadStretch, Range, scan
from contrailmq.store.config import recorded_settings
from contrailmq.store.delay_levels import DELAY_LEVELS
from contrailmq.store.tools.recovered_end import end_after_crash

_log: Final = logging.getLogger(__name__)
RANGE_BYTES: Final = 64 * 1024 * 1024  # of log per task


class StoreFilesError(ContrailError):
    """A directory is not a store that this host can read."""


class LogFile(NamedTuple):
    """One commit-log file: the physical offset of its first byte, and its size."""

    path: str
    base: int
    size_bytes: int


def find_stores(pattern: str) -> list[str]:
    """The store directories of a comma list of paths and globs, each once; each must hold a commit log.

    A name that exists as it is given is a path, whatever its characters mean in a glob or in a list.
    """
    found = [store_root(os.path.abspath(match)) for match in _matches(pattern)]
    for store in found:
        log_files(store)
    return list({store_identity(store): store for store in reversed(found)}.values())[::-1]


def _matches(pattern: str) -> Iterator[str]:
    """The paths that a comma list of paths and globs means, in its order."""
    whole = pattern.strip()
    texts = [whole] if os.path.exists(whole) else [text.strip() for text in pattern.split(",")]
    for text in texts:
        matches = [text] if os.path.exists(text) else sorted(glob.glob(text))
        if not matches and (len(texts) > 1 or glob.has_magic(text)):
            advice = f": commas separate stores, {whole!r} names {len(texts)}" if len(texts) > 1 else ""
            raise StoreFilesError(f"nothing matches {text!r} on host {socket.gethostname()}{advice}")
        yield from matches or [text]  # of a single path that is not there `log_files` says more


def is_store(path: str) -> bool:
    """Whether a directory holds a commit log, or is one."""
    with contextlib.suppress(StoreFilesError, OSError):
        return bool(_log_folder(path))
    return False


def store_identity(store: str) -> str:
    """The same for every name that a store has on this host: links, and its commitlog directory."""
    return os.path.realpath(store_root(store))


def store_name(store: str) -> str | None:
    """A name for the broker that wrote a store: the address and the time of its first record; None for an empty log.

    No file of a store, Apache's or ours, holds the name of its broker. Cleaning changes the first record, so whoever
    needs the same name later keeps it. A placeholder of `store repair` has no address.
    """
    for file in log_files(store):
        first = _first_message(file)
        if first is not None:
            starts, sizes = first.store_hosts()
            host = decode_host(bytes(first.data[int(starts[0]) : int(starts[0]) + int(sizes[0])]))
            return f"{host.ip}:{host.port}@{int(first.store_time_ms[0])}"
    return None


def delay_levels(store: str) -> str:
    """The messageDelayLevel of the broker that wrote a store: what it recorded there, else RocketMQ's own."""
    return recorded_settings(Path(store_root(store))).get("message_delay_level", DELAY_LEVELS)


_Value = TypeVar("_Value")


def renamed(known: Mapping[str, _Value], names: Iterable[str]) -> dict[str, _Value]:
    """What is known of stores, under `names` for those that these are: links to a store, its commitlog directory.

    A name that is known stays what it is: where a store was moved and the link to it follows, that is the same store.
    Of several other names for one store the last in `known` counts.
    """
    now = {store_identity(name): name for name in names}
    others = {name: now[store_identity(name)] for name in known if store_identity(name) in now}
    others = {name: new for name, new in others.items() if name != new}
    found = {name: value for name, value in known.items() if name not in others}
    return found | {new: known[name] for name, new in others.items() if new not in known}


def store_root(path: str) -> str:
    """The store whose commit log a path is, or the path itself."""
    root, name = os.path.split(os.path.realpath(path))
    if name != "commitlog" or os.path.isdir(os.path.join(path, "commitlog")):
        return path
    parent = os.path.dirname(path)
    return parent if os.path.realpath(parent) == root else root


def log_files(store: str) -> list[LogFile]:
    """The commit-log files of a store (or of a commitlog directory itself) in order, empty ones left out."""
    folder, files = store, list[LogFile]()
    try:
        folder = _log_folder(store)
        names = sorted(entry.name for entry in os.scandir(folder) if entry.is_file() and entry.name.isdecimal())
        for name in names:
            path = os.path.join(folder, name)
            with contextlib.suppress(FileNotFoundError):
                size_bytes = os.stat(path).st_size
                if size_bytes:
                    files.append(LogFile(path, int(name), size_bytes))
    except OSError as exc:
        raise StoreFilesError(
            f"host {socket.gethostname()} cannot read {folder}: {exc.strerror}; every executor needs the store's path"
        ) from exc
    return files


def _log_folder(store: str) -> str:
    folder = os.path.join(store, "commitlog")
    if os.path.isdir(folder):
        return folder
    if os.path.isdir(store) and any(name.isdecimal() and len(name) == 20 for name in os.listdir(store)):
        return store
    state = "has no commitlog directory" if os.path.isdir(store) else "is not a directory"
    raise StoreFilesError(f"{store} {state} on host {socket.gethostname()}: give the root directory of a store")


def confirmed_end(store: str, *, known_end: int = 0, skips_damage: bool = False) -> int:
    """The physical offset up to which the log may be read. `known_end` is an end found earlier, from which to go on.

    For a reader that `skips_damage` it is the end of a whole record, and of what the store's own recovery will keep: if
    its broker did not stop cleanly, it cuts the log at the first damage that may never have been written.
    """
    pointed_to = dispatched_end(store) if skips_damage and not known_end else 0  # first: a log may grow meanwhile
    end = _end_of_log(store, known_end, skips_damage=skips_damage)
    kept = end_after_crash(store_root(store)) if skips_damage else None
    if kept is None or kept[0] >= end:
        if pointed_to > end:
            _log.warning(
                "%s: %d to %d is not read: queues point there, and it holds no whole record or no file has it "
                "(contrailmq pipeline verify)",
                *(store, end, pointed_to),
            )
        return end
    _log.warning(
        "%s: %d to %d is not read: its broker did not stop cleanly, and the next start will cut the log at %d, where "
        "it finds %s",
        store,
        *(kept[0], end, *kept),
    )
    return max(known_end, kept[0])


def _end_of_log(store: str, known_end: int, *, skips_damage: bool) -> int:
    files = log_files(store)
    if not files:
        return known_end
    reached = _follow_whole(files, known_end) if known_end else 0
    if known_end and _is_unwritten(files, reached):
        return max(known_end, reached)
    # At first, and wherever the chain breaks at something: only the queues know whether the log goes on after it.
    dispatched = max(reached, _whole_end(store, files) if skips_damage else dispatched_end(store))
    if dispatched == 0:
        file = next((file for file in reversed(files) if first_record(file) is not None), files[0])
        return _follow_whole(files, file.base)
    return max(dispatched, _follow_whole(files, dispatched))


def _whole_end(store: str, files: list[LogFile]) -> int:
    """The highest end of a whole record among those that the last units of the queues point to, or 0."""
    newest = [place for queue in queue_files(store) for place in last_places(queue)]
    for physical_offset, size_bytes in sorted(newest, reverse=True):
        for file in files:
            if file.base <= physical_offset < file.base + file.size_bytes:
                limit = min(physical_offset + size_bytes, file.base + file.size_bytes)
                place = Range(file.path, file.base, physical_offset, limit, limit, is_aligned=True)
                item = first_item(place, check_crc=True, ends_at_break=True)
                if isinstance(item, Records) and int(item.size[0]) == size_bytes:
                    return limit
    return 0


def first_record(file: LogFile) -> Records | None:
    """The header of the file's first record, None when the file does not begin with one, or is gone."""
    limit = file.base + file.size_bytes
    part = Range(file.path, file.base, file.base, file.base + 1, limit, is_aligned=True)
    item = first_item(part, check_crc=False, ends_at_break=True)
    return item if isinstance(item, Records) else None


def _first_message(file: LogFile) -> Records | None:
    """The first record of the file that is not a placeholder, as far as the chain from its beginning goes."""
    end = file.base + file.size_bytes
    whole = Range(file.path, file.base, file.base, end, end, is_aligned=True)
    with contextlib.suppress(FileNotFoundError):
        for item in scan(whole, check_crc=False, block_rows=1, ends_at_break=True):
            if isinstance(item, Records) and not int(item.sys_flag[0]) & SysFlag.LOST:
                return item
    return None


def first_item(part: Range, *, check_crc: bool, ends_at_break: bool = False) -> Records | BadStretch | None:
    """What a range begins with; None when it has nothing, or its file is gone."""
    with contextlib.suppress(FileNotFoundError):
        return next(iter(scan(part, check_crc=check_crc, block_rows=1, ends_at_break=ends_at_break)), None)
    return None


def _follow_whole(files: list[LogFile], position: int) -> int:
    """Where the chain of whole records that passes `position` ends; a file's filler leads to the next file."""
    for file in files:
        end = file.base + file.size_bytes
        if end <= position:
            continue
        if position < file.base:
            head = _head_at(file, 0)
            if head is None or _is_filler(head):  # RocketMQ leaves a file of filler after a message too large for one
                continue
            if first_record(file) is None:
                return position
            position = file.base
        rest = Range(file.path, file.base, position, end, end, is_aligned=True)
        with contextlib.suppress(FileNotFoundError):
            for item in scan(rest, check_crc=True, ends_at_break=True):
                if isinstance(item, BadStretch):
                    return item.start
                position = file.base + int(item.position[-1] + item.size[-1])
    return position


def _head_at(file: LogFile, position: int) -> bytes | None:
    """Size and magic at a position in the file; None where the file is gone."""
    with contextlib.suppress(FileNotFoundError), open(file.path, "rb") as opened:
        opened.seek(position)
        return opened.read(BLANK_BYTES)
    return None


def _is_filler(head: bytes) -> bool:
    return head[MAGIC_AT:] == BLANK_MAGIC.to_bytes(4, "big", signed=True)


def _is_unwritten(files: list[LogFile], position: int) -> bool:
    """Whether there is nothing where a chain of records ends, as at the end of a live log."""
    for file in files:
        if position < file.base + file.size_bytes:
            head = _head_at(file, max(0, position - file.base))
            if head is not None and not _is_filler(head):
                return not any(head)
    return True


def plan_ranges(store: str, start: int, stop: int, *, range_bytes: int = RANGE_BYTES) -> list[Range]:
    """Cut the log between two physical offsets, both the beginning of a record, into ranges of about equal size.

    Together they cover all of it: what no file holds is a range of its own.
    """
    ranges: list[Range] = []
    folder, reached = _log_folder(store), start
    for file in log_files(store):
        low, high = max(start, file.base), min(stop, file.base + file.size_bytes)
        if low >= high:
            continue
        if reached < low:
            ranges.append(_missing(folder, reached, low))
        reached = high
        count = max(1, round((high - low) / range_bytes))
        cuts = [low + (high - low) * index // count for index in range(count)] + [high]
        ranges.extend(
            Range(file.path, file.base, cuts[index], cuts[index + 1], limit=high, is_aligned=index == 0)
            for index in range(count)
        )
    if reached < stop:
        ranges.append(_missing(folder, reached, stop))
    return ranges


def _missing(folder: str, start: int, stop: int) -> Range:
    return Range(folder, start, start, stop, stop, is_aligned=True, is_missing=True)


def record_at_or_after(store: str, position: int, end: int) -> int:
    """The first record that begins at or after a physical offset, or `end`."""
    for file in log_files(store):
        stop = min(end, file.base + file.size_bytes)
        low = max(position, file.base)
        if low >= stop:
            continue
        if low == file.base:
            return low
        part = Range(file.path, file.base, low, stop, stop, is_aligned=False)
        item = first_item(part, check_crc=False)
        if isinstance(item, Records):
            return file.base + int(item.position[0])
    return end
