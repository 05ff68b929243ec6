"""What must be true of a master and its slaves, seen from outside: on the wire of the HA port, and in the files.

`Witness` taps the network. Each report of a slave is held against the slave's disk the moment it is written: the log
is there up to the reported offset, it ends between two records, it is synced under SYNC_FLUSH, and while the connection
lives it is what the master has. Each acknowledgement of a master that waits for slaves is held against their reports
and their disks. `look`, now and then, compares whole logs: a slave's is a byte prefix of its master's, from where it
begins. A slave may have more, or something else, only after its master lost power and with it what was not synced.
"""

from __future__ import annotations

import os
import struct
from collections import Counter
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from typing import Final, NamedTuple

from contrailmq.broker.server import BrokerServer
from contrailmq.message import SystemTopic
from contrailmq.message.codec import BLANK_MAGIC
from contrailmq.message.record import view_record
from simulation.cluster import BROKER_PORT, SMALL_FILES, Cluster
from simulation.disks import Disk
from simulation.faults import Plan, Roles, group_of
from simulation.history import Acknowledged, Sent
from simulation.network import Stream

HA_PORT: Final = BROKER_PORT + 1
FILE_BYTES: Final = SMALL_FILES["mapped_file_size_commit_log"]
OFFSET_MAX: Final = 1 << 40
_REPORT: Final = struct.Struct(">q")
_HEAD: Final = struct.Struct(">qi")
_SIZE_AND_MAGIC: Final = struct.Struct(">iI")
WAITING: Final = (SystemTopic.SCHEDULE, SystemTopic.TIMER, SystemTopic.HALF)
_BLANK: Final = BLANK_MAGIC & 0xFFFFFFFF
_MAGICS: Final = (0xDAA320A7, 0xDAA320AB)
_PLACE_AT: Final = 28  # of a record's own offset in the log
_PLACE: Final = struct.Struct(">q")


class LogBytes:
    """The log of one broker as its files have it, by offset."""

    def __init__(self, disk: Disk) -> None:
        self._disk, self._path = disk, disk.path / "store" / "commitlog"

    @property
    def begin(self) -> int:
        """Of its first file; 0 where there is none."""
        names = [path.name for path in self._path.iterdir() if path.name.isdigit()] if self._path.is_dir() else []
        return min(map(int, names), default=0)

    @property
    def end(self) -> int:
        """Behind the last record, as far as sizes lead."""
        return self.border_before(self.begin, OFFSET_MAX)

    @property
    def whole_end(self) -> int:
        """The same, without a last record whose end has not come: it ends with a property, and not with zero."""
        end = self.end
        if self.read(end - 1, end) != b"\0":
            return end
        return self.border_before(self.begin, end - 1)

    def read(self, begin: int, end: int) -> bytes:
        """Fewer bytes where a file is missing."""
        return self._joined(begin, end, _read_part)

    def durable(self, begin: int, end: int) -> bytes:
        """What a power cut would leave of it, whatever the dice say."""
        return self._joined(begin, end, self._disk.durable)

    def record(self, offset: int) -> bytes:
        """The record that begins there; empty where none does, as inside one that was written after a power cut."""
        head = self.read(offset, offset + _PLACE_AT + _PLACE.size)
        if len(head) < _PLACE_AT + _PLACE.size:
            return b""
        size_bytes, magic = _SIZE_AND_MAGIC.unpack_from(head)
        if magic not in _MAGICS or _PLACE.unpack_from(head, _PLACE_AT) != (offset,):
            return b""
        return self.read(offset, offset + size_bytes)

    def border_before(self, begin: int, end: int) -> int:
        """The last border between records up to `end`; `begin` is one. Each file is read once."""
        at = begin
        while at < end:
            start, file_end = at, at - at % FILE_BYTES + FILE_BYTES
            data = self.read(start, min(end, file_end))
            while at - start <= len(data) - _SIZE_AND_MAGIC.size:
                size_bytes, magic = _SIZE_AND_MAGIC.unpack_from(data, at - start)
                following = file_end if magic == _BLANK else at + size_bytes
                if size_bytes <= 0 or following > end:
                    return at
                at = following
            if at < file_end:
                break
        return at

    def _joined(self, begin: int, end: int, part: Callable[[Path, int, int], bytes]) -> bytes:
        found = b""
        for base in range(begin - begin % FILE_BYTES, end, FILE_BYTES):
            try:
                found += part(self._path / f"{base:020d}", max(begin - base, 0), min(end - base, FILE_BYTES))
            except FileNotFoundError:
                break
        return found


def holds(log: LogBytes, acknowledged: Acknowledged, body: bytes) -> bool:
    """Whether a message stands where it was acknowledged. A copy for a retry may have come to begin there since."""
    return _holds(log, acknowledged, body, (acknowledged.place.queue.topic,))


def holds_waiting(log: LogBytes, acknowledged: Acknowledged, body: bytes) -> bool:
    """The same of a message that waited there for its time or its transaction."""
    return _holds(log, acknowledged, body, WAITING)


def _holds(log: LogBytes, acknowledged: Acknowledged, body: bytes, topics: tuple[str, ...]) -> bool:
    record = log.record(acknowledged.physical_offset)
    return body in record and view_record(record).topic_name in topics


class Likeness(Enum):
    """How a slave's log stands to its master's."""

    PREFIX = "a prefix"
    EQUAL = "all of it"
    AHEAD = "longer"
    PARTED = "another history"


class Compared(NamedTuple):
    likeness: Likeness
    common_end: int  # the last border up to which both are the same
    slave_end: int
    master_end: int


class Witness:
    """Of one trial. `blame` takes sentences."""

    def __init__(self, cluster: Cluster, plan: Plan, roles: Roles, blame: Callable[[str], None]) -> None:
        self._cluster, self._world, self._blame = cluster, cluster.world, blame
        self._plan, self._roles = plan, roles
        self._is_synced = plan.flush == "SYNC_FLUSH"
        self._names = {cluster.host(name).address: name for name in plan.members}
        self._unread: dict[Stream, bytes] = {}  # of a report that was not written whole
        self._blocks: dict[Stream, tuple[bytes, int]] = {}  # of a head that was not written whole, of a body
        self._checked: dict[str, int] = {}  # slave -> a border; its reports were checked up to there
        self._compared: dict[str, int] = {}  # slave -> a border; it was like its master's up to there
        self._reported: dict[str, int] = {}  # slave -> its furthest report to the master that runs now
        self._launches: Counter[str] = Counter()
        self._began_s: dict[str, float] = {}  # member -> when its process began
        self._lost_s: dict[str, float] = {}  # member -> when it last lost what it may have acknowledged
        self._unsure: set[str] = set()  # who lost something and was not seen with all of its master's log since
        self.may_differ: set[str] = set()  # slaves whose master has lost the end of its log
        self.reports = 0
        if plan.slaves:
            cluster.network.tap = self._tap

    def log_of(self, name: str) -> LogBytes:
        return LogBytes(self._cluster.disk(name))

    # --- told by the trial

    def launched(self, name: str) -> None:
        self._began_s[name] = self._world.now_s
        self._launches[name] += 1
        for slave in self._slaves_of(name):
            self._reported.pop(slave, None)  # that was to another process
        for slave in self._slaves_of(name) or (name,):
            self._checked.pop(slave, None)
            self._compared.pop(slave, None)

    def power_was_cut(self, name: str) -> None:
        """Under SYNC_FLUSH that takes nothing that was acknowledged or reported, but what was on its way."""
        if not self._is_synced:
            self._lost_s[name] = self._world.now_s
            self._unsure.add(name)
        if not self._is_synced or self._plan.role == "SYNC_MASTER":
            self.may_differ.update(self._slaves_of(name))

    def wiped(self, name: str) -> None:
        self._lost_s[name] = self._world.now_s
        self._unsure.add(name)

    def _slaves_of(self, name: str) -> tuple[str, ...]:
        return self._roles.slaves_of(group_of(name)) if self._roles.is_master(name) else ()

    def successors(self, master: str) -> list[str]:
        """The slaves of a master that is gone, furthest first; none unless they have all that it acknowledged."""
        slaves = self._slaves_of(master)
        if any(slave in self._unsure or self.log_of(slave).begin for slave in slaves):
            return []
        return sorted(slaves, key=lambda slave: self.log_of(slave).whole_end, reverse=True)

    def has_all(self, slave: str) -> bool:
        """Whether its log is the one of its master, which is stopped."""
        ours, theirs = self.log_of(slave), self.log_of(self._roles.master_of(slave))
        end = theirs.end
        return ours.begin == theirs.begin == 0 and ours.end == end and ours.read(0, end) == theirs.read(0, end)

    # --- reports

    def _tap(self, stream: Stream, data: bytes) -> None:
        if stream.local[1] == HA_PORT and self._is_synced and self._plan.in_sync == 1:
            self._look_at_blocks(stream, data)
        if stream.remote[1] != HA_PORT:
            return
        joined = self._unread.pop(stream, b"") + data
        whole = len(joined) - len(joined) % _REPORT.size
        if joined[whole:]:
            self._unread[stream] = joined[whole:]
        for (offset,) in _REPORT.iter_unpack(joined[:whole]):
            self._was_reported(self._names[stream.host.address], offset, stream)

    def _look_at_blocks(self, stream: Stream, data: bytes) -> None:
        """A master that waits for no slave sends what it has synced: a power cut leaves no slave ahead of it."""
        unread, left = self._blocks.get(stream, (b"", 0))
        while data:
            if left:
                count = min(left, len(data))
                data, left = data[count:], left - count
                continue
            unread, data = unread + data[: _HEAD.size - len(unread)], data[_HEAD.size - len(unread) :]
            if len(unread) == _HEAD.size:
                (offset, left), unread = _HEAD.unpack(unread), b""
                master = self._names[stream.host.address]
                log = self.log_of(master)
                if log.durable(offset, offset + left) != log.read(offset, offset + left):
                    self._blame(f"{master} sends {offset} to {offset + left} of its log and has not synced it")
        self._blocks[stream] = (unread, left)

    def _was_reported(self, slave: str, offset: int, stream: Stream) -> None:
        self.reports += 1
        log, peer = self.log_of(slave), stream.peer
        begin = self._checked.get(slave, log.begin)
        is_heard = peer is not None and not peer.is_forgotten and not peer.is_closed
        if is_heard:
            self._reported[slave] = max(offset, self._reported.get(slave, 0))
        if offset <= begin:
            return
        data = log.read(begin, offset)
        if len(data) < offset - begin or log.border_before(begin, offset) != offset:
            self._blame(f"{slave} reports {offset}, where its log does not end between two records")
        if self._is_synced and log.durable(begin, offset) != data:
            self._blame(f"{slave} reports {offset} and has not synced it, from {begin} on")
        if is_heard and self.log_of(self._roles.master_of(slave)).read(begin, offset) != data:
            self._blame(f"{slave} reports {offset}, and its log from {begin} on is not its master's")
        self._checked[slave] = offset

    # --- acknowledgements

    def acknowledged(self, sent: Sent, one: Acknowledged) -> None:
        """A producer has just heard that a message is safe."""
        group, since_s, needed = one.place.queue.broker, sent.at_s, self._plan.in_sync - 1
        master, slaves = self._roles.master_of(group), self._roles.slaves_of(group)
        if not slaves or needed <= 0 or self._lost_s.get(master, -1.0) >= since_s:
            return
        offset, record = one.physical_offset, self.log_of(master).record(one.physical_offset)
        end = offset + len(record)
        doubtful = [slave for slave in slaves if self._lost_s.get(slave, -1.0) >= since_s]
        sure = [slave for slave in slaves if slave not in doubtful]
        holders = [slave for slave in sure if self._holds(slave, offset, record)]
        if not record or len(holders) + len(doubtful) < needed:
            self._blame(f"{one.place}, {offset} of the log, was acknowledged; {needed} slaves must have it: {holders}")
        if self._began_s.get(master, 0.0) >= since_s:
            return  # the reports went to the process before
        heard = [slave for slave in slaves if slave in doubtful or self._reported.get(slave, 0) >= end]
        if len(heard) < needed:
            self._blame(f"{one.place}, {offset} of the log, was acknowledged; {needed} slaves must report it: {heard}")

    def _holds(self, slave: str, offset: int, record: bytes) -> bool:
        log = self.log_of(slave)
        read = log.durable if self._is_synced else log.read
        return read(offset, offset + len(record)) == record

    # --- whole logs

    def compare(self, slave: str) -> Compared | None:
        """None while one of the two does not serve."""
        ends = [self._end_of(name) for name in (slave, self._roles.master_of(slave))]
        if ends[0] is None or ends[1] is None:
            return None
        found = self._compare(slave, ends[0], ends[1])
        if found.likeness is Likeness.EQUAL:
            self._unsure.discard(slave)
        return found

    def _end_of(self, name: str) -> int | None:
        server = self._cluster.servers.get(name)
        if (
            not isinstance(server, BrokerServer)
            or not self._cluster.node(name).is_alive
            or not server.store._life.is_open
        ):
            return None
        return server.store.appended_offset

    def _compare(self, slave: str, slave_end: int, master_end: int) -> Compared:
        ours, theirs = self.log_of(slave), self.log_of(self._roles.master_of(slave))
        # A slave with an empty disk may begin anywhere, later than when it was compared last.
        begin, end = max(self._compared.get(slave, 0), ours.begin), min(slave_end, master_end)
        if ours.read(begin, end) == theirs.read(begin, end):
            common = max(begin, ours.border_before(begin, end))
            likeness = Likeness.PREFIX if slave_end < master_end else Likeness.EQUAL
            self._compared[slave] = common
            return Compared(Likeness.AHEAD if slave_end > master_end else likeness, common, slave_end, master_end)
        low, high = begin, end  # the first difference lies between
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if ours.read(begin, middle) == theirs.read(begin, middle) else (low, middle)
        return Compared(Likeness.PARTED, ours.border_before(begin, low), slave_end, master_end)

    def look_at_positions(self, slave: str) -> None:
        """Positions that a slave has copied are not beyond what its queues hold: what they stand for is in its log.

        A power cut under ASYNC_FLUSH may leave the positions and take the log. And while the master is away, groups
        that have read further there commit at the slave where they are.
        """
        server = self._cluster.servers.get(slave)
        if self._end_of(slave) is None or slave in self._lost_s or not isinstance(server, BrokerServer):
            return
        store, offsets = server.store, server.node.offsets
        is_steady = self._launches[self._roles.master_of(slave)] == 1
        for (key, queue_id), offset in offsets.whole().items() if is_steady else ():
            topic = key.partition("@")[0]
            if (key, queue_id) not in offsets.changes and offset > store.max_offset(topic, queue_id):
                self._blame(f"{slave} has offset {offset} for {key} {queue_id}: {store.max_offset(topic, queue_id)}")
        for level, offset in server.delay.offsets.items():
            if offset > store.max_offset(SystemTopic.SCHEDULE, level - 1):
                self._blame(f"{slave} has offset {offset} of delay level {level}, which is beyond its queue")

    def judge(self, slave: str) -> None:
        """After a clean stop of both."""
        self._compared.pop(slave, None)
        found = self._compare(slave, self.log_of(slave).end, self.log_of(self._roles.master_of(slave)).end)
        if found.likeness not in (Likeness.PREFIX, Likeness.EQUAL):
            self._blame(f"{slave} stopped with a log that is not a prefix of its master's: {found}")


def _read_part(path: Path, begin: int, end: int) -> bytes:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.pread(descriptor, end - begin, begin)
    finally:
        os.close(descriptor)
