"""The bytes between a master and its slaves on the HA port. No I/O: bytes to values and back.

    slave to master   report := offset:i64                              where the slave's log ends
    master to slave   block  := offset:i64  size_bytes:i32  body        bytes of the log, from `offset` on

(all big-endian; DefaultHAConnection and DefaultHAClient of RocketMQ 3 to 5, outside controller mode)

A report of 0 comes from an empty slave. The first report of a connection says where the master begins, each later one
is an acknowledgement. A block of size 0 is a heartbeat: its offset is that of the next block. Blocks know nothing of
records: a body may begin and end inside one. Neither side names itself, and nothing says which protocol this is; the
first four bytes of controller mode's stream are a small number, which a report has only beyond 4 GiB.

Both readers take bytes as they arrive, cut anywhere, and keep at most 12 of them: a report is a number at once, and a
body is handed on in the pieces in which it came, each with its place in the log. Slaves of Apache's gather a whole
block in a buffer of 4 MiB, so that the largest that we send, head and all, is far below that.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from contrailmq.store.base.errors import StoreError

_REPORT: Final = struct.Struct(">q")
_HEAD: Final = struct.Struct(">qi")
REPORT_BYTES: Final = 8
HEAD_BYTES: Final = 12
assert _REPORT.size == REPORT_BYTES
assert _HEAD.size == HEAD_BYTES

READ_BUFFER_BYTES: Final = 4 * 1024 * 1024  # of a slave of Apache's (DefaultHAClient.READ_MAX_BUFFER_SIZE)
BLOCK_BYTES_MAX: Final = (
    1024 * 1024
)  # of a body that we send: a quarter of that buffer, so that the next fits behind it
# Of a body that we take. Apache's masters send haTransferBatchSize, 32 KiB unless it is set.
ACCEPTED_BYTES_MAX: Final = 64 * 1024 * 1024
assert HEAD_BYTES + BLOCK_BYTES_MAX < READ_BUFFER_BYTES


class ReplicationError(StoreError):
    """A peer's bytes cannot be replication, or its log is not a continuation of ours. The connection is over."""

    retriable = True


class Piece(NamedTuple):
    """Bytes of the log as they came, and where they belong. Empty: a heartbeat."""

    offset: int
    body: memoryview


def encode_report(offset: int) -> bytes:
    """Of a log that ends here."""
    assert offset >= 0
    return _REPORT.pack(offset)


def encode_head(offset: int, size_bytes: int) -> bytes:
    """Of a block whose body follows; of a heartbeat, when that has no bytes."""
    assert offset >= 0
    assert 0 <= size_bytes <= BLOCK_BYTES_MAX
    return _HEAD.pack(offset, size_bytes)


class ReportReader:
    """The reports of one slave. Owner: its connection."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""  # of a report that has not come whole

    def feed(self, data: bytes | memoryview) -> list[int]:
        """The reports that these bytes complete, in order. ReplicationError: no slave sends this."""
        joined = self._rest + bytes(data)
        whole = len(joined) - len(joined) % REPORT_BYTES
        self._rest = joined[whole:]
        reports = [offset for (offset,) in _REPORT.iter_unpack(joined[:whole])]
        if reports and min(reports) < 0:
            raise ReplicationError(
                f"a report of offset {min(reports)}: a slave reports where its log ends, 0 or more; is this a slave of "
                "the classic protocol (not of a controller)?"
            )
        return reports


class BlockReader:
    """The blocks of one master. Owner: the connection to it."""

    __slots__ = ("_head", "_left", "_offset", "_size_bytes_max")

    def __init__(self, size_bytes_max: int = ACCEPTED_BYTES_MAX) -> None:
        self._size_bytes_max = size_bytes_max
        self._head = b""  # of a block whose head has not come whole
        self._offset = 0  # where the next byte of a body belongs
        self._left = 0  # bytes of the body that have not come

    @property
    def is_between_blocks(self) -> bool:
        """Nothing of a block has come without the rest of it."""
        return not self._left and not self._head

    def feed(self, data: bytes | memoryview) -> list[Piece]:
        """The pieces of bodies in these bytes, and heartbeats, in order. They are views of `data`: use them before the
        buffer is filled again. ReplicationError: no master sends this, and nothing of `data` is to be believed."""
        view = memoryview(data)
        pieces: list[Piece] = []
        begin, end = 0, len(view)
        while begin < end:
            if self._left:
                count = min(self._left, end - begin)
                pieces.append(Piece(self._offset, view[begin : begin + count]))
                self._offset += count
                self._left -= count
                begin += count
                continue
            count = min(HEAD_BYTES - len(self._head), end - begin)
            self._head += bytes(view[begin : begin + count])
            begin += count
            if len(self._head) == HEAD_BYTES:
                self._offset, self._left = self._checked(*_HEAD.unpack(self._head))
                self._head = b""
                if not self._left:
                    pieces.append(Piece(self._offset, view[:0]))
        return pieces

    def _checked(self, offset: int, size_bytes: int) -> tuple[int, int]:
        if offset < 0 or not 0 <= size_bytes <= self._size_bytes_max:
            raise ReplicationError(
                f"a block of {size_bytes} bytes at offset {offset}: a master sends 0 to {self._size_bytes_max} bytes "
                "from offset 0 on; is this the HA port of a master of the classic protocol (not of a controller)?"
            )
        return offset, size_bytes
