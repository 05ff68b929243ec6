"""What goes to one slave, from where on, and when: a master's half of the protocol, without I/O and without a clock.

    silent   -- first report -->   fed   -- a report that cannot be, or silence -->   over (ReplicationError)

The first report says where the slave's log ends, and there the feed begins. An empty slave (0) gets the newest file of
the log, from its start on, and nothing older, as in RocketMQ. A slave that ends before our first file, or behind the
end of our log, cannot be fed: RocketMQ sends such a one heartbeats for ever, here it is told apart, with both offsets.

Every later report is an acknowledgement, and must not be beyond what was sent to this slave: whoever says more than it
can know is no slave of ours, and nothing that it says counts (a garbage report acknowledged messages in RocketMQ:
#1155, #3015).

Only readable bytes leave: with the write buffer pool those that are committed to their file. Under SYNC_FLUSH they
leave when they are synced: else a power cut of the master would leave slaves ahead of it, and somebody would have to
cut them. A SYNC_MASTER that waits for slaves sends them at once: then the wait for the disk and the one for slaves take
as long as the slower of the two, and a power cut may leave a slave ahead by what was acknowledged to nobody.
"""

from __future__ import annotations

from typing import Final, Protocol

from contrailmq.store.config import StoreConfig
from contrailmq.store.replication.stream import HEAD_BYTES, ReplicationError, ReportReader

BEFORE_THE_FIRST_REPORT: Final = -1
SECOND_MS: Final = 1000
SILENT_HEARTBEATS: Final = 3  # a slave that lives reports as often as haSendHeartbeatInterval says, and more
_CONTROLLERS_HANDSHAKE: Final = 1  # what the first four bytes of a slave in controller mode say


class LogSource(Protocol):
    """What replication needs of a store."""

    @property
    def config(self) -> StoreConfig: ...
    @property
    def log_min_offset(self) -> int: ...
    @property
    def log_max_offset(self) -> int: ...
    @property
    def confirm_offset(self) -> int: ...
    def read_log(self, offset: int, max_bytes: int) -> memoryview | None: ...
    def read_cold(self, physical_offset: int, size_bytes: int) -> memoryview | None: ...
    def is_resident(self, physical_offset: int) -> bool: ...


class Feed:
    """One slave's place in the log. Owner: its connection. Times are monotonic milliseconds."""

    __slots__ = (
        "_bytes_before",
        "_reader",
        "_second_began_ms",
        "_source",
        "acknowledged",
        "bytes_per_second",
        "bytes_sent",
        "heard_ms",
        "next_offset",
        "wrote_ms",
    )

    def __init__(self, source: LogSource, now_ms: int) -> None:
        self._source = source
        self._reader = ReportReader()
        self.next_offset = BEFORE_THE_FIRST_REPORT  # what is sent next; everything before it was sent, or was there
        self.acknowledged = BEFORE_THE_FIRST_REPORT  # the newest report
        self.heard_ms = self.wrote_ms = now_ms
        self.bytes_sent = 0  # heads and bodies
        self.bytes_per_second = 0  # in the last whole second
        self._second_began_ms = now_ms
        self._bytes_before = 0  # sent before this second

    @property
    def is_fed(self) -> bool:
        return self.next_offset != BEFORE_THE_FIRST_REPORT

    # --- what the slave says

    def take(self, data: bytes, now_ms: int) -> bool:
        """Bytes of the slave; True when they held a report. ReplicationError: it cannot be fed, or is no slave."""
        self.heard_ms = now_ms
        reports = self._reader.feed(data)
        for report in reports:
            if not self.is_fed:
                self.next_offset = self._begin(report)
            elif report > self.next_offset:
                raise ReplicationError(
                    f"it reports offset {report}, but was sent the log up to {self.next_offset}: no slave knows more "
                    "than that; nothing that it says is counted"
                )
            self.acknowledged = report
        return bool(reports)

    def _begin(self, report: int) -> int:
        """Where to begin for a slave whose log ends here."""
        source = self._source
        first, end = source.log_min_offset, source.log_max_offset
        if report > end:
            raise ReplicationError(_ahead(report, end))
        if report == 0:
            return end - end % source.config.mapped_file_size_commit_log
        if report < first:
            raise ReplicationError(_behind(report, first))
        return report

    # --- what it gets

    def size_due(self, now_ms: int) -> int:
        """How many bytes of the log to send now, from `next_offset` on; within one file. ReplicationError: the files
        that the slave still needs were deleted."""
        if not self.is_fed:
            return 0
        source, config = self._source, self._source.config
        begin = self.next_offset
        left = (source.log_max_offset if config.waits_for_slaves else source.confirm_offset) - begin
        if left <= 0:
            return 0
        if begin < source.log_min_offset:
            raise ReplicationError(_behind(begin, source.log_min_offset))
        file_bytes = config.mapped_file_size_commit_log
        size = min(left, config.ha_transfer_batch_size, file_bytes - begin % file_bytes)
        if config.ha_flow_control_enable:
            size = min(size, self._allowed(now_ms) - HEAD_BYTES)
        return max(size, 0)

    def _allowed(self, now_ms: int) -> int:
        """Bytes that may still leave in this second. RocketMQ's classic master counts heads alone: no limit at all."""
        self.look_at_the_clock(now_ms)
        return self._source.config.max_ha_transfer_byte_in_second - (self.bytes_sent - self._bytes_before)

    def sent(self, size_bytes: int, now_ms: int) -> None:
        """A block of so many bytes is on its way, or a heartbeat."""
        self.next_offset += size_bytes
        self.bytes_sent += HEAD_BYTES + size_bytes
        self.wrote_ms = now_ms

    # --- time

    def look_at_the_clock(self, now_ms: int) -> None:
        """Begin the next second when it is time."""
        if now_ms - self._second_began_ms >= SECOND_MS:
            elapsed_ms = now_ms - self._second_began_ms
            self.bytes_per_second = (self.bytes_sent - self._bytes_before) * SECOND_MS // elapsed_ms
            self._second_began_ms, self._bytes_before = now_ms, self.bytes_sent

    def is_heartbeat_due(self, now_ms: int) -> bool:
        return self.is_fed and now_ms - self.wrote_ms > self._source.config.ha_send_heartbeat_interval

    def is_silent(self, now_ms: int) -> bool:
        """Whether the slave may be dead, although its connection lives: nothing that it said counts until it speaks."""
        return now_ms - self.heard_ms > SILENT_HEARTBEATS * self._source.config.ha_send_heartbeat_interval

    def check_heard(self, now_ms: int) -> None:
        """ReplicationError when the slave has been silent for too long."""
        silence_ms, limit_ms = now_ms - self.heard_ms, self._source.config.ha_housekeeping_interval
        if silence_ms > limit_ms:
            what = "it has sent no report" if self.is_fed else "it has never sent a report"
            raise ReplicationError(
                f"{what} for {silence_ms} ms, the limit is haHousekeepingInterval={limit_ms} ms: a slave that lives "
                "connects again"
            )


def _ahead(report: int, end: int) -> str:
    if report >> 32 == _CONTROLLERS_HANDSHAKE:
        return (
            f"its first report is {report}, our log ends at {end}: this looks like a slave of a controller "
            "(enableControllerMode), whose protocol is another one; start it without"
        )
    return (
        f"its log ends at {report}, {report - end} bytes behind the end of ours, {end}: this master lost the end of "
        "its log, or the slave has followed another one. Cut the slave's log (contrailmq store truncate), or give it "
        "an empty store; or start it as the master, if what it has must be kept"
    )


def _behind(offset: int, first: int) -> str:
    return (
        f"it needs the log from offset {offset} on, ours begins at {first}: files were deleted (fileReservedTime) "
        "before the slave had them. Give the slave an empty store, or a copy of this one's"
    )
