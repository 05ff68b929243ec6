"""One connection of a slave to its master's HA port, without the socket: bytes in, reports out.

The first report says where our log ends, and the master begins there (an empty slave reports 0 and gets the master's
last file). Every later one is an acknowledgement: it names what this slave would still have after a crash that its
flushDiskType survives, which is what is synced under SYNC_FLUSH, else what is in the files. Both are borders of records
(replica.py).
"""

from __future__ import annotations

from typing import Protocol

from contrailmq.store.config import StoreConfig
from contrailmq.store.replication.replica import Replica
from contrailmq.store.replication.stream import BlockReader, encode_report


class SlaveStore(Protocol):
    """The part of MessageStore that follows."""

    @property
    def config(self) -> StoreConfig: ...
    @property
    def replica(self) -> Replica: ...
    @property
    def durable_offset(self) -> int: ...


class Following:
    """Owner: the connection. Make one for each; what it gave must be durable first under SYNC_FLUSH (`hello`)."""

    def __init__(self, store: SlaveStore) -> None:
        self._store = store
        self._replica = store.replica
        self._blocks = BlockReader()
        self._reported = -1
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
        """As `hello`, but an empty log begins at `begin`, the begin of a file, and not with the master's last one.

        A report of 0 means the last file, so that a log which begins at 0 is asked for from 1 on. The byte before it is
        the highest of the first record's size: 0, below 16 MiB.
        """
        if self._replica.end:
            return self.hello()
        self._replica.drop_unfinished()
        if begin == 0:
            self._replica.append(0, b"\0")
        self._reported = begin or 1
        return encode_report(self._reported)

    def receive(self, data: bytes | memoryview) -> int:
        """Take bytes of the master as they came; by how many bytes the log has grown.

        ReplicationError, StoreError: the connection must be closed, and nothing of a half record counts.
        """
        grown = 0
        for offset, body in self._blocks.feed(data):
            self.master_end = max(self.master_end, offset + len(body))
            if body:
                grown += self._replica.append(offset, body)
        self.received_bytes += len(data)
        return grown

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
