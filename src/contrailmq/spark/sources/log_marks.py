"""By what a stream knows that a store is still the one it read from: the bytes before its offset.

As topic_marks.py for topics: another store under the same path, once its log is longer than the offset in a checkpoint,
would be read from the middle. What a log holds below its confirmed end never changes, so a checkpoint holds a digest of
it: of the first kilobyte of the log file that the offset ends in, and of the last one before the offset. A file that
was cleaned away has no mark; then the ordinary rule for bytes that were deleted unread holds.
"""

from __future__ import annotations

import contextlib
import hashlib
from typing import Final

from contrailmq.spark.decoding.store_files import log_files

_SAMPLE_BYTES: Final = 1024  # one record at least leaves its times and its id in that, unless its body is large
_DIGEST_BYTES: Final = 8


def mark_before(store: str, offset: int) -> str | None:
    """The mark of what lies before a physical offset; None if no file holds that, or none any more."""
    for file in log_files(store):
        if file.base < offset <= file.base + file.size_bytes:
            held = offset - file.base
            with contextlib.suppress(FileNotFoundError), open(file.path, "rb") as opened:
                first = opened.read(min(held, _SAMPLE_BYTES))
                opened.seek(max(0, held - _SAMPLE_BYTES))
                last = opened.read(min(held, _SAMPLE_BYTES))
                return hashlib.blake2b(first + last, digest_size=_DIGEST_BYTES).hexdigest()
    return None


def is_another(store: str, offset: int, mark: str | None) -> bool:
    """Whether a store holds other bytes before an offset than when it was marked."""
    return mark is not None and mark_before(store, offset) not in (mark, None)
