"""One connection of a slave to its master's HA port, without the socket: bytes in, reports out.

The first report says where our log ends, and the master begins there (an empty slave reports 0 and gets the master's
last file). Every later one is an acknowledgement: it names what this slave would still have after a crash that its
flushDiskType survives, which is what is synced under SYNC_FLUSH, else what is in the files. Both are borders of records
(replica.py).

Who can ask the master nothing else (a copy) begins with our last record instead, `hello_from`: what comes is compared
with what is here, up to our end, and taken from there on.
"""

from __future__ import annotations

from typing import Protocol

from contrailmq.store.config import StoreConfig
from contrailmq.store.replication.replica import Replica
from contrailmq.store.replication.stream import BlockReader, ReplicationError, encode_report


class SlaveStore(Protocol):
    """The part of MessageStore that follows."""

    @property
    def config(self) -> StoreConfig: ...
    @property
    def replica(self) -> Replica: ...
    @property
    def durable_offset(self) -> int: ...
    @property
    def log_min_offset(self) -> int: ...
    def read_log(self, offset: int, max_bytes: int) -> memoryview | None: ...


class Following:
    """Owner: the connection. Make one for each; what it gave must be durable first under SYNC_FLUSH (`hello`)."""

    def __init__(self, store: SlaveStore, *, until: int | None = None) -> None:
        """Nothing is taken of a record that reaches beyond offset `until`."""
        self._store = store
        self._until = until
        self._replica = store.replica
        self._blocks = BlockReader()
        self._reported = -1
        self._compared = self._compared_from = self._own_end = 0  # the master's bytes up to our end are to be ours
        self.master_end = 0  # the furthest place of its log that the master has named
        self.received_bytes = 0

    @property
    def reportable(self) -> int:
        """The end of what may be acknowledged."""
        return self._store.durable_offset if self._store.config.is_sync_flush else self._replica.end

    def hello(self) -> bytes:
        """The first report. Under SYNC_FLUSH the caller has flushed the log: it acknowledges all of it."""
        self._replica.drop_unfinished()
        self._reported = self._replica.end
        assert self._reported == self.reportable, "what is reported is durable"
        return encode_report(self._reported)

    def hello_from(self, begin: int) -> bytes:
        """As `hello`, to a master whose log begins at `begin`, the begin of a file, and who is asked nothing else.

        An empty log gets all of the master's, and not its last file. Another is asked for from its last record on (that
        which has a place in a queue), so that `receive` sees whether both have one history.

        A report of 0 means the last file, so that a log which begins at 0 is asked for from 1 on. The byte before it is
        the highest of the first record's size: 0, below 16 MiB.
        """
        replica = self._replica
        replica.drop_unfinished()
        self._own_end = replica.end
        if self._own_end:
            begin = min(max(replica.last_record_offset, self._store.log_min_offset, begin), self._own_end)
        elif begin == 0:
            replica.append(0, b"\0")
        self._compared_from = begin
        self._reported = self._compared = begin or 1
        return encode_report(self._reported)

    @property
    def is_compared(self) -> bool:
        """Whether the master has sent all that `hello_from` asked for of our own log."""
        return self._compared >= self._own_end

    @property
    def uncompared(self) -> tuple[int, int]:
        """From where to where the master has not sent it."""
        return self._compared_from, self._own_end

    def receive(self, data: bytes | memoryview) -> int:
        """Take bytes of the master as they came; by how many bytes the log has grown.

        ReplicationError, StoreError: the connection must be closed, and nothing of a half record counts.
        """
        grown = 0
        for offset, body in self._blocks.feed(data):
            self.master_end = max(self.master_end, offset + len(body))
            known = 0 if self.is_compared else self._compare(offset, body)
            if self._until is not None:
                body = body[: max(known, self._until - offset)]
            if len(body) > known:
                grown += self._replica.append(offset + known, body[known:])
        self.received_bytes += len(data)
        return grown

    def _compare(self, offset: int, body: memoryview) -> int:
        """How many of these bytes are ours already. ReplicationError when ours are others."""
        count = min(len(body), self._own_end - self._compared)
        if count and (offset != self._compared or self._store.read_log(offset, count) != body[:count]):
            raise ReplicationError(
                f"the log here is not a copy of the master's: its last record, at offset {self._compared_from}, is not "
                f"what the master has there. The log here ends at {self._own_end}, the master has offset "
                f"{self.master_end} and may have more. Nothing was written: give a new directory, or cut off what the "
                "master does not have (`contrailmq store truncate DIR --at OFFSET`)"
            )
        self._compared += count
        return count

    def report(self) -> bytes:
        """An acknowledgement of what is new since the last report; nothing when nothing is."""
        return b"" if self.reportable <= self._reported else self.heartbeat()

    def heartbeat(self) -> bytes:
        """A report that is due whether there is news or not."""
        self._reported = max(self._reported, self.reportable)
        return encode_report(self._reported)

    def ended(self) -> None:
        """The connection is over."""
        self._replica.drop_unfinished()
