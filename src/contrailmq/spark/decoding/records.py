"""Many record headers at once: where every field of a run of commit-log records lies, as NumPy arrays.

A record (message/codec.py has the whole grammar) starts with 48 bytes that are the same for all, among them `sysFlag`,
whose bits 4 and 5 say whether the two host fields that follow take 8 or 20 bytes. So there are four header shapes.
`gather` looks at the bytes as overlapping items of 96 bytes (stride 1), takes one item per record and reinterprets it:
one gather per record instead of one per field (4 times faster than thirteen gathers). Rows of another shape than the
first are gathered again with their own layout and scattered into place; a log without IPv6 pays nothing for that.

`gather` trusts positions, never lengths: `Records.sound` says which rows have parts that add up to their size. Nothing
here reads outside the buffer, whatever the bytes say.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

import numpy as np
import numpy.typing as npt

from contrailmq.message import SysFlag
from contrailmq.message.checksum import crc32
from contrailmq.message.codec import CRC_PROPERTY_BYTES, MAGIC_V2, encode_crc_property
from contrailmq.message.record import (
    BORN_HOST_AT,
    HEAD_V4_BYTES,
    HEADS,
    HOST_V4_BYTES,
    HOST_V6_BYTES,
    HOSTS_V6,
    RECORD_BYTES_MIN,
    STORE_HOST_AT,
    head_fields,
)

Int = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]
Mask = npt.NDArray[np.bool_]

_V6_BITS: Final = int(HOSTS_V6)
_TYPES: Final = {
    "i": ">i4",
    "q": ">i8",
    f"{HOST_V4_BYTES}s": f"V{HOST_V4_BYTES}",
    f"{HOST_V6_BYTES}s": f"V{HOST_V6_BYTES}",
}
_COLUMNS: Final = {"born_time": "born_time_ms", "store_time": "store_time_ms"}


def _layout(hosts_v6: int) -> np.dtype[np.void]:
    fields = head_fields(hosts_v6).items()
    return np.dtype([(_COLUMNS.get(name, name), _TYPES[code]) for name, code in fields])


# Indexed by bits 4 and 5 of sysFlag: 0 none, 1 born host, 2 store host, 3 both are IPv6.
_LAYOUTS: Final = tuple(_layout(shape << 4) for shape in range(4))
assert [layout.itemsize for layout in _LAYOUTS] == [HEADS[shape << 4].size for shape in range(4)]
_CRC_NAME: Final = b"__CRC32#\x01"
_INTEGERS: Final = tuple(name for name in _LAYOUTS[0].names or () if not name.endswith("_host"))


@dataclass(frozen=True, slots=True)
class Records:
    """Headers and the places of the parts of n records in `data`. Arrays are parallel; positions index `data`."""

    data: Bytes
    position: Int
    size: Int
    magic: Int
    body_crc: Int
    queue_id: Int
    flag: Int
    queue_offset: Int
    physical_offset: Int
    sys_flag: Int
    born_time_ms: Int
    store_time_ms: Int
    reconsume_times: Int
    prepared_transaction_offset: Int
    body_start: Int
    body_bytes: Int
    topic_start: Int
    topic_bytes: Int
    properties_start: Int
    properties_bytes: Int
    sound: Mask  # the parts add up to the size
    born_word: Int  # the eight bytes of an IPv4 host and its port as a little-endian number, where has_only_v4
    store_word: Int

    def __len__(self) -> int:
        return len(self.position)

    def select(self, rows: Mask | slice) -> Records:
        """The rows that the mask or slice keeps."""
        kept = {f.name: getattr(self, f.name)[rows] for f in fields(self) if f.name != "data"}
        return Records(self.data, **kept)

    def born_hosts(self) -> tuple[Int, Int]:
        """Start and length of each born host (IP and port)."""
        return self.position + BORN_HOST_AT, _host_bytes(self.sys_flag, SysFlag.BORN_HOST_V6)

    def store_hosts(self) -> tuple[Int, Int]:
        """Start and length of each store host (IP and port)."""
        _, born_bytes = self.born_hosts()
        return self.position + (STORE_HOST_AT - HOST_V4_BYTES) + born_bytes, _host_bytes(
            self.sys_flag, SysFlag.STORE_HOST_V6
        )

    def has_only_v4(self) -> bool:
        return not (self.sys_flag & _V6_BITS).any()

    def bad_bodies(self) -> Mask:
        """Rows whose body does not have the CRC that the record states. Java checks no empty body, nor do we."""
        view = self.data.data  # a memoryview
        start, end = self.body_start.tolist(), (self.body_start + self.body_bytes).tolist()
        computed = np.array([crc32(view[a:b]) for a, b in zip(start, end, strict=True)], dtype=np.int64)
        bad: Mask = ((computed & 0x7FFFFFFF) != self.body_crc) & (self.body_bytes > 0)
        return bad

    def bad_records(self) -> Mask:
        """Rows that end in a checksum of the whole record (enabledAppendPropCRC), or nearly, which is not theirs.

        Nearly is more than half of its name, as for the store's own check: other properties may look a little like it.
        """
        end = self.position + self.size
        bad = np.zeros(len(self), np.bool_)
        has_room = np.flatnonzero(self.properties_bytes >= CRC_PROPERTY_BYTES)
        begin = end[has_room] - CRC_PROPERTY_BYTES
        perhaps = sum((self.data[begin + at] == _CRC_NAME[at]).astype(np.int8) for at in (0, 3, 8))
        for row in has_room[np.asarray(perhaps) >= 2].tolist():
            start, behind = int(self.position[row]), int(end[row]) - CRC_PROPERTY_BYTES
            stored = self.data[behind : behind + CRC_PROPERTY_BYTES].tobytes()
            if sum(a == b for a, b in zip(stored, _CRC_NAME, strict=False)) > len(_CRC_NAME) // 2:
                computed = crc32(self.data.data[start:behind]) & 0x7FFFFFFF
                bad[row] = stored != encode_crc_property(computed)
        return bad


def gather(data: Bytes, position: Int) -> Records:
    """Read the headers of the records that start at `position` (ascending). Every position needs 48 bytes of room."""
    found = _gather_headers(data, position)
    size = found["size"]
    hosts_bytes: Int | int = 2 * HOST_V4_BYTES
    if (found["sys_flag"] & _V6_BITS).any():
        hosts_bytes = sum(_host_bytes(found["sys_flag"], bit) for bit in (SysFlag.BORN_HOST_V6, SysFlag.STORE_HOST_V6))
    end = position + size
    body_start = position + (HEAD_V4_BYTES - 2 * HOST_V4_BYTES) + hosts_bytes  # after the body's length
    body_end = body_start + found["body_bytes"]
    is_long = found["magic"] == MAGIC_V2
    sound = (found["body_bytes"] >= 0) & (size >= RECORD_BYTES_MIN) & (end <= len(data))
    topic_start = body_end + 1 + is_long
    sound &= topic_start + 2 <= end
    topic_bytes = _read_int8(data, body_end, sound)
    if is_long.any():
        topic_bytes = np.where(is_long, _read_int16(data, body_end, sound), topic_bytes)
    topic_end = topic_start + topic_bytes
    sound &= (topic_bytes >= 0) & (topic_end + 2 <= end)
    properties_bytes = _read_int16(data, topic_end, sound)
    properties_start = topic_end + 2
    sound &= (properties_bytes >= 0) & (properties_start + properties_bytes == end)
    return Records(
        data=data,
        position=position,
        body_start=body_start,
        topic_start=topic_start,
        topic_bytes=topic_bytes,
        properties_start=properties_start,
        properties_bytes=properties_bytes,
        sound=sound,
        **found,
    )


def stable_order(values: Int | npt.NDArray[np.uint32]) -> Int:
    """`np.argsort(values, kind="stable")` of values that are not negative: 16 bits at a time, which NumPy sorts by
    counting. Three to eight times as fast for the few bits that queues, lengths and slots have."""
    order: Int = np.argsort(values.astype(np.uint16), kind="stable")
    rest = values >> 16
    while rest.any():
        order = order[np.argsort(rest[order].astype(np.uint16), kind="stable")]
        rest = rest >> 16
    return order


def _gather_headers(data: Bytes, position: Int) -> dict[str, Int]:
    """The fields of every header. Rows whose header is cut off by the end of the data come out with size 0."""
    if len(position) and int(position[-1]) + _LAYOUTS[3].itemsize > len(data):
        # The widest shape must have room after the last row: a short tail is copied and padded with zeros.
        data, position = _with_room(data, position)
    rows = _take_items(data, position, _LAYOUTS[0])
    found = {name: rows[name].astype(np.int64) for name in _INTEGERS}
    found["born_word"], found["store_word"] = (rows[name].view("<i8") for name in ("born_host", "store_host"))
    shape = (found["sys_flag"] >> 4) & 3
    if shape.any():
        for number in (1, 2, 3):
            chosen = np.flatnonzero(shape == number)
            if len(chosen):
                others = _take_items(data, position[chosen], _LAYOUTS[number])
                for name in ("store_time_ms", "reconsume_times", "prepared_transaction_offset", "body_bytes"):
                    found[name][chosen] = others[name]
    return found


def _take_items(data: Bytes, position: Int, layout: np.dtype[np.void]) -> npt.NDArray[np.void]:
    width = layout.itemsize
    overlapping = np.ndarray((max(0, len(data) - width + 1),), dtype=f"V{width}", buffer=data, strides=(1,))
    return overlapping[position].view(layout)


def _with_room(data: Bytes, position: Int) -> tuple[Bytes, Int]:
    first = int(position[0])
    padded = np.zeros(len(data) - first + _LAYOUTS[3].itemsize, dtype=np.uint8)
    padded[: len(data) - first] = data[first:]
    return padded, position - first


def _host_bytes(sys_flag: Int, bit: int) -> Int:
    return np.where(sys_flag & bit, HOST_V6_BYTES, HOST_V4_BYTES).astype(np.int64)


def _read_int8(data: Bytes, position: Int, valid: Mask) -> Int:
    return data[np.where(valid, position, 0)].view(np.int8).astype(np.int64)


def _read_int16(data: Bytes, position: Int, valid: Mask) -> Int:
    at = np.where(valid, position, 0)
    high = data[at].view(np.int8).astype(np.int64)
    value: Int = (high << 8) | data[at + 1]
    return value
