"""What a read of a queue answers; a module of its own because it is compiled (see `status` for the others)."""

from __future__ import annotations

import enum

# How much one read may give: bytes and messages of what is in memory, the same of what is on disk, and the count that
# was asked for, which is never exceeded by a second record. A plain tuple, because compiled code makes one per pull.
Limits = tuple[int, int, int, int, int]


class GetStatus(enum.Enum):
    FOUND = 0
    NO_MATCHED_MESSAGE = 1
    MESSAGE_WAS_REMOVING = 2
    OFFSET_FOUND_NULL = 3
    OFFSET_OVERFLOW_BADLY = 4
    OFFSET_OVERFLOW_ONE = 5
    OFFSET_TOO_SMALL = 6
    NO_MATCHED_LOGIC_QUEUE = 7
    NO_MESSAGE_IN_QUEUE = 8
    OFFSET_RESET = 9


class GetResult:
    """Slices of the log that answer one read, and where to go on.

    Code that only looks at the slices calls `release` afterwards. Code that hands them to a connection does not: they
    are read when the socket takes them, and let go of with the answer (`Connection.reply_parts`).

    A slice is a record. `get_slices_warm` gives records that follow each other in the log as one slice, and what it
    found among recent reads too; `count` is of records, `damaged` of those that were skipped.
    """

    __slots__ = (
        "count", "damaged", "max_offset", "min_offset", "next_offset", "size_bytes", "slices", "status",
        "suggest_slave",
    )  # fmt: skip

    def __init__(
        self,
        status: GetStatus,
        next_offset: int,
        min_offset: int,
        max_offset: int,
        slices: list[memoryview] | None = None,
        size_bytes: int = 0,
        suggest_slave: bool = False,
        count: int | None = None,
    ) -> None:
        self.status = status
        self.next_offset = next_offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.slices = [] if slices is None else slices
        self.size_bytes = size_bytes
        self.suggest_slave = suggest_slave
        self.damaged = 0
        self.count = len(self.slices) if count is None else count

    def release(self) -> None:
        """Let go of the log at once: a file that is to be deleted waits for this."""
        for view in self.slices:
            view.release()
        self.slices = []
