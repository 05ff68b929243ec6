"""Keys of change streams: which message changes which row, and the bucket that a key is in.

**Newest** is the last change of a queue in its broker's log. Queue offsets follow that order until the topic is deleted
and made again: then they begin at 0, so they alone would take every later change for an older one. Rows of the table do
not have their place in the log; a change is newer than the table's row if it has the higher queue offset or the later
store time. A change that is read a second time has neither.
If a key comes in several queues, it is the row with the latest store time among the newest of each. So a key should
have one queue (send it with a sharding key).
**Deleted** is a key whose newest message has an empty body or the JSON `null`; then the first of the message's own keys
(KEYS) is the key. So is one whose message has a field with one of the values that `delete` names.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from contrailmq.spark.bodies.rows import Row

Ints = npt.NDArray[np.int64]
# Of files of changes only: whether the key is deleted, and the place in the log.
DELETED_COLUMN: Final = "_deleted"
LOG_COLUMN: Final = "_physicalOffset"
_TOMBSTONES: Final = (b"", b"null")
_NOT_IN_LOG: Final = -1
_SEPARATOR: Final = "\x1f"


def apply_tombstones(
    bodies: Sequence[bytes],
    keys: Sequence[str | None],
    key: pa.Field,
    rows: list[Row | None],
    reasons: dict[int, str],
) -> None:
    """Make rows that hold a key alone of messages that delete it."""
    for number, body in enumerate(bodies):
        if body not in _TOMBSTONES:
            continue
        text = (keys[number] or "").split(" ")[0]
        try:
            value = int(text) if pa.types.is_integer(key.type) else text
            if not text:
                raise ValueError
        except ValueError:
            rows[number] = None
            reasons[number] = (
                f"the body deletes a key, and the message's keys are {keys[number]!r}: it takes {key.name}"
            )
            continue
        rows[number] = {key.name: value}
        reasons.pop(number, None)


def deleted(
    bodies: Sequence[bytes], rows: Sequence[Row | None], rules: Sequence[tuple[str, tuple[Any, ...]]]
) -> list[bool]:
    """Which messages delete their key."""
    return [
        body in _TOMBSTONES or (row is not None and any(row.get(name) in values for name, values in rules))
        for body, row in zip(bodies, rows, strict=True)
    ]


def refuse_null_keys(rows: Sequence[Row | None], key: tuple[str, ...], reasons: dict[int, str]) -> None:
    for number, row in enumerate(rows):
        lacks = [] if row is None else [name for name in key if row.get(name) is None]
        if lacks:
            reasons[number] = f"the key {lacks[0]} is null: which row it changes is not known"


def buckets_of(rows: pa.Table, key: tuple[str, ...], count: int) -> Ints:
    """The bucket of each row."""
    return np.fromiter((zlib.crc32(text.encode()) % count for text in _texts(rows, key)), np.int64, len(rows))


def bucket_folder(bucket: int) -> str:
    return f"bucket-{bucket:04d}"


def newest(rows: pa.Table, key: tuple[str, ...]) -> Ints:
    """Which rows are the newest of their keys, of changes and of a table's rows, which have no place in the log."""
    keys, queues = _codes(_texts(rows, key)), _codes(_texts(rows, ("_queueId", "_brokerName")))
    offsets = rows["_queueOffset"].to_numpy()
    times = rows["_storeTimestamp"].cast(pa.int64()).to_numpy()
    is_change = rows[LOG_COLUMN].is_valid().to_numpy()
    in_log = rows[LOG_COLUMN].fill_null(_NOT_IN_LOG).to_numpy()
    # A table's row comes before all changes of its queue; messages of an inner batch have one place in the log.
    of_queues = _lasts(np.lexsort((offsets, in_log, queues, keys)), keys, queues)
    of_table = np.flatnonzero(~is_change)
    groups = keys * (queues.max(initial=0) + 1) + queues
    _, places, in_table = np.intersect1d(groups[of_queues], groups[of_table], return_indices=True)
    last, kept = of_queues[places], of_table[in_table]
    is_newer = (offsets[last] > offsets[kept]) | (times[last] > times[kept])
    of_queues[places] = np.where(is_newer, last, kept)
    order = of_queues[np.lexsort((queues[of_queues], times[of_queues], keys[of_queues]))]
    return np.sort(_lasts(order, keys))


def _lasts(order: Ints, *groups: Ints) -> Ints:
    """The last row of each group, of rows in an order that keeps groups together."""
    is_last = np.zeros(len(order), bool)
    is_last[-1:] = True
    for group in groups:
        is_last[:-1] |= group[order][1:] != group[order][:-1]
    return order[is_last]


def _codes(texts: Sequence[str]) -> Ints:
    found: Ints = pa.array(texts, pa.string()).dictionary_encode().indices.to_numpy().astype(np.int64)
    return found


def _texts(rows: pa.Table, key: tuple[str, ...]) -> list[str]:
    """A text for each row that only rows with the same values have."""
    columns = [rows[name].cast(pa.string()).to_pylist() for name in key]
    if len(columns) == 1:
        return [str(value) for value in columns[0]]
    return [_SEPARATOR.join(f"{len(str(v))}:{v}" for v in values) for values in zip(*columns, strict=True)]
