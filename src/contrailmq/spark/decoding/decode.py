"""Records to Arrow: the columns that a view asks for, of the rows that a selection keeps.

Only the requested columns are computed. Bodies are copied once, from the mapped file into the batch. The only work per
row in Python is the CRC (scan.py) and the decompression of bodies.

A `Selection` keeps rows by topic, kind, queue-offset range and store time. By default it drops what no consumer can
see: prepared and rolled-back transaction records, and the broker's own topics. `restore_real_topic` shows half and
waiting messages under their real topic and queue. A record may be an inner batch (queue.type=BatchCQ): each of its
messages becomes a row with its own queue offset, body and properties (`unwrapped`). These are rare and done in Python.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from contrailmq.message import (
    MessageError,
    Property,
    SysFlag,
    SystemTopic,
    decode_host,
    decompress,
    encode_properties,
    is_system_topic,
)
from contrailmq.message.codec import decode_record, encode_record, unwrap_inner_batch
from contrailmq.spark.columns import RECORD_COLUMN, View, styled
from contrailmq.spark.decoding.property_table import Properties, parse_properties
from contrailmq.spark.decoding.records import Int, Mask, Records, gather
from contrailmq.spark.decoding.slices import map_values, only_slice, take_slices, text_column

# Topics whose records carry the topic and queue they are meant for as properties.
PARKED_TOPICS: Final = (SystemTopic.SCHEDULE, SystemTopic.HALF, SystemTopic.TIMER)
_HOST_V4_BYTES: Final = 8
_FAR: Final = 2**63 - 1
_HEX: Final = np.frombuffer(b"".join(b"%02X" % value for value in range(256)), dtype=np.uint8).reshape(256, 2)

QueueKey = tuple[str, int]  # topic, queue id


@dataclass(frozen=True, slots=True)
class Selection:
    """Which rows to keep. Offsets and times per queue are half-open; times are store times in ms, half-open too."""

    topics: frozenset[str] | None = None
    with_system_topics: bool = False
    restore_real_topic: bool = False
    starting_offsets: Mapping[QueueKey, int] = field(default_factory=dict)
    ending_offsets: Mapping[QueueKey, int] = field(default_factory=dict)
    starting_times_ms: Mapping[QueueKey, int] = field(default_factory=dict)
    ending_times_ms: Mapping[QueueKey, int] = field(default_factory=dict)
    begin_ms: int = 0
    end_ms: int = _FAR
    tags: frozenset[str] | None = None
    keys: frozenset[str] | None = None  # one of a message's keys is enough
    queue_ids: frozenset[int] | None = None

    def wants_topic(self, topic: str) -> bool:
        return (
            topic in self.topics if self.topics is not None else self.with_system_topics or not is_system_topic(topic)
        )

    @property
    def has_queue_bounds(self) -> bool:
        return bool(self.starting_offsets or self.ending_offsets or self.starting_times_ms or self.ending_times_ms)


class Decoder:
    """Turns blocks of records into batches of one view. Holds no state but its settings."""

    def __init__(self, view: View, selection: Selection | None = None, *, decompress_bodies: bool = True) -> None:
        self.view = view
        self.selection = Selection() if selection is None else selection
        self.decompress_bodies = decompress_bodies
        self._schema = view.native_schema()

    def decode(self, records: Records, broker_name: str | None = None) -> pa.RecordBatch:
        """One batch with the rows that the selection keeps; it may be empty."""
        batches = records.physical_offset[(records.sys_flag & SysFlag.INNER_BATCH) != 0]
        records = unwrapped(records)
        block = _Block(records, batches)
        kept = self._kept(block)
        if not kept.all():
            block = _Block(records.select(kept), batches)
        columns = [self._column(field.name, block, broker_name) for field in self._schema]
        return styled(pa.RecordBatch.from_arrays(columns, schema=self._schema), self.view)

    def _kept(self, block: _Block) -> Mask:
        choice, records = self.selection, block.records
        kept = (records.store_time_ms >= choice.begin_ms) & (records.store_time_ms < choice.end_ms)
        kept &= (records.sys_flag & SysFlag.LOST) == 0  # a placeholder of `store repair` is nobody's message
        is_queued = _is_queued(records)
        if not choice.with_system_topics and not is_queued.all():
            kept &= is_queued
        topics = self._topics(block)
        if choice.topics is not None or not choice.with_system_topics:
            kept &= topics.where(choice.wants_topic)
        if choice.queue_ids is not None:
            kept &= np.isin(self._queue_ids(block), sorted(choice.queue_ids))
        if choice.tags is not None:
            tags = block.properties().column(Property.TAGS)
            kept &= _true_where(pc.is_in(tags, value_set=pa.array(sorted(choice.tags), pa.string())))
        if choice.keys is not None:
            kept &= _has_key(block.properties().column(Property.KEYS), choice.keys)
        if choice.has_queue_bounds:
            kept &= self._within_bounds(block, topics.texts)
        return kept

    def _within_bounds(self, block: _Block, topics: pa.StringArray) -> Mask:
        choice, records, queue_ids = self.selection, block.records, self._queue_ids(block)
        kept = np.ones(len(records), dtype=np.bool_)
        for bounds, values, is_start in (
            (choice.starting_offsets, records.queue_offset, True),
            (choice.ending_offsets, records.queue_offset, False),
            (choice.starting_times_ms, records.store_time_ms, True),
            (choice.ending_times_ms, records.store_time_ms, False),
        ):
            for (topic, queue_id), bound in bounds.items():
                is_outside = values < bound if is_start else values >= bound
                kept &= ~(_true_where(pc.equal(topics, topic)) & (queue_ids == queue_id) & is_outside)
        return kept

    def _topics(self, block: _Block) -> _Names:
        if not self.selection.restore_real_topic or not block.parked().any():
            return block.topics()
        real, stored = block.properties().column(Property.REAL_TOPIC), block.topics().texts
        return _Names(pc.if_else(pa.array(block.parked()), pc.coalesce(real, stored), stored))

    def _queue_ids(self, block: _Block) -> Int:
        queue_ids = block.records.queue_id
        if not self.selection.restore_real_topic or not block.parked().any():
            return queue_ids
        queue_ids = queue_ids.copy()
        real = block.properties().column(Property.REAL_QUEUE_ID).to_pylist()
        for row in np.flatnonzero(block.parked()).tolist():
            if real[row] is not None and real[row].isdecimal():
                queue_ids[row] = int(real[row])
        return queue_ids

    def _column(self, name: str, block: _Block, broker_name: str | None) -> pa.Array:
        records = block.records
        match name:
            case "topic":
                return self._topics(block).texts
            case "brokerName":
                return pa.repeat(pa.scalar(broker_name, pa.string()), len(records))
            case "queueId":
                return pa.array(self._queue_ids(block).astype(np.int32))
            case "queueOffset":
                return pa.array(records.queue_offset)
            case "physicalOffset":
                return pa.array(records.physical_offset)
            case "msgId":
                return block.message_ids()
            case "tags":
                return block.properties().column(Property.TAGS)
            case "keys":
                return block.properties().column(Property.KEYS)
            case "body":
                return block.bodies(decompress_bodies=self.decompress_bodies)
            case "properties":
                if self.view.properties == "string":
                    return text_column(block.raw_properties())
                return block.properties().maps()
            case "flag":
                return pa.array(records.flag.astype(np.int32))
            case "sysFlag":
                return pa.array(records.sys_flag.astype(np.int32))
            case "bornTimestamp":
                return _times(records.born_time_ms)
            case "storeTimestamp":
                return _times(records.store_time_ms)
            case "bornHost":
                return block.hosts(records.born_word, records.born_hosts)
            case "storeHost":
                return block.hosts(records.store_word, records.store_hosts)
            case "reconsumeTimes":
                return pa.array(records.reconsume_times.astype(np.int32))
            case _:
                assert name == RECORD_COLUMN, name
                return block.stored_records()


class _Names(NamedTuple):
    """A name for each row, and the one that all rows have, if they have the same."""

    texts: pa.StringArray
    only: str | None = None

    def where(self, is_meant: Callable[[str], bool]) -> Mask:
        """Which rows have a name that is meant: each name is asked for once."""
        if self.only is not None:
            return np.full(len(self.texts), is_meant(self.only), dtype=np.bool_)
        encoded = self.texts.dictionary_encode()
        verdicts = np.array([is_meant(name) for name in encoded.dictionary.to_pylist()], dtype=np.bool_)
        found: Mask = verdicts[encoded.indices.to_numpy()]
        return found


class _Block:
    """Parts of one block that several columns need, each made once."""

    def __init__(self, records: Records, batches: Int) -> None:
        self.records, self._batches = records, batches  # where inner batches were, which are single messages here
        self.buffer = pa.py_buffer(records.data)
        self._topics: _Names | None = None
        self._raw: pa.BinaryArray | None = None
        self._properties: Properties | None = None
        self._parked: Mask | None = None

    def topics(self) -> _Names:
        if self._topics is None:
            start, size = self.records.topic_start, self.records.topic_bytes
            only = only_slice(self.records.data, start, size)
            if only is not None:
                name = only.decode("utf-8", "replace")
                self._topics = _Names(pa.repeat(pa.scalar(name, pa.string()), len(start)), name)
            else:
                self._topics = _Names(text_column(take_slices(self.buffer, start, size)))
        return self._topics

    def raw_properties(self) -> pa.BinaryArray:
        if self._raw is None:
            self._raw = take_slices(self.buffer, self.records.properties_start, self.records.properties_bytes)
        return self._raw

    def properties(self) -> Properties:
        if self._properties is None:
            self._properties = parse_properties(self.raw_properties())
        return self._properties

    def stored_records(self) -> pa.BinaryArray:
        """Each record as it is in the log; null for a message of an inner batch, which has none of its own."""
        stored = take_slices(self.buffer, self.records.position, self.records.size)
        if not len(self._batches):
            return stored
        return pc.if_else(pa.array(np.isin(self.records.physical_offset, self._batches)), None, stored)

    def parked(self) -> Mask:
        """Rows under a topic that keeps messages meant for another one."""
        if self._parked is None:
            self._parked = self.topics().where(PARKED_TOPICS.__contains__)
        return self._parked

    def bodies(self, *, decompress_bodies: bool) -> pa.BinaryArray:
        stored = take_slices(self.buffer, self.records.body_start, self.records.body_bytes)
        packed = (self.records.sys_flag & SysFlag.COMPRESSED) != 0
        if not decompress_bodies or not packed.any():
            return stored
        bodies = stored.to_pylist()
        sys_flags = self.records.sys_flag.tolist()
        for row in np.flatnonzero(packed).tolist():
            bodies[row] = decompress(bodies[row], sys_flags[row])
        return pa.array(bodies, pa.binary())

    def hosts(self, words: Int, places: Callable[[], tuple[Int, Int]]) -> pa.StringArray:
        """Hosts as texts: of their words where all are IPv4, else of the bytes at their places."""
        if not self.records.has_only_v4():
            return map_values(take_slices(self.buffer, *places()), lambda raw: str(decode_host(raw)))
        if len(words) and (words == words[0]).all():  # one producer, one broker
            return pa.repeat(pa.scalar(_host_text(int(words[0])), pa.string()), len(words))
        encoded = pa.array(words).dictionary_encode()
        return pa.array([_host_text(word) for word in encoded.dictionary.to_pylist()], pa.string()).take(
            encoded.indices
        )

    def message_ids(self) -> pa.StringArray:
        """The unique id that the sender knows, or the offset id where it gave none."""
        unique = self.properties().column(Property.UNIQUE_KEY)
        if not unique.null_count:
            return unique
        missing = unique.is_null()
        rows = np.flatnonzero(_true_where(missing))
        offset_ids = self._offset_ids(rows)
        return pc.replace_with_mask(unique, missing, offset_ids)

    def _offset_ids(self, rows: Int) -> pa.StringArray:
        """Store host and physical offset in upper-case hex: 32 digits, or 56 when the host is IPv6."""
        start, size = self.records.store_hosts()
        hosts = take_slices(self.buffer, start[rows], size[rows]).to_pylist()
        places = self.records.physical_offset[rows].astype(">i8").tobytes()
        joined = b"".join(host + places[8 * i : 8 * i + 8] for i, host in enumerate(hosts))
        offsets = np.zeros(len(rows) + 1, dtype=np.int32)
        np.cumsum((size[rows] + 8) * 2, out=offsets[1:])
        digits = _HEX[np.frombuffer(joined, dtype=np.uint8)].reshape(-1)
        return pa.Array.from_buffers(
            pa.string(), len(rows), [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(digits))]
        )


def unwrapped(records: Records) -> Records:
    """The same records with every inner batch replaced by its messages. A body that is not a batch stays as it is."""
    is_batch = (records.sys_flag & SysFlag.INNER_BATCH) != 0
    if not is_batch.any():
        return records
    view, pieces = records.data.data, list[bytes]()
    for start, size, has_more in zip(records.position.tolist(), records.size.tolist(), is_batch.tolist(), strict=True):
        stored = bytes(view[start : start + size])
        pieces.extend(_inner_records(stored) if has_more else [stored])
    ends = np.cumsum([len(piece) for piece in pieces])
    return gather(np.frombuffer(b"".join(pieces), dtype=np.uint8), np.concatenate([[0], ends[:-1]]))


def _inner_records(stored: bytes) -> list[bytes]:
    try:
        messages = unwrap_inner_batch(decode_record(stored))
    except MessageError:
        return [stored]
    return [
        bytes(
            encode_record(
                message.topic,
                message.body,
                encode_properties(message.properties),
                queue_id=message.queue_id,
                queue_offset=message.queue_offset,
                physical_offset=message.physical_offset,
                born_time_ms=message.born_time_ms,
                born_host=message.born_host_bytes,
                store_time_ms=message.store_time_ms,
                store_host=message.store_host_bytes,
                flag=message.flag,
                sys_flag=message.sys_flag,
                reconsume_times=message.reconsume_times,
                prepared_transaction_offset=message.prepared_transaction_offset,
                body_bytes_max=max(1, len(message.body)),  # it is stored already, whatever its size
            )
        )
        for message in messages
    ]


def _host_text(word: int) -> str:
    return str(decode_host(word.to_bytes(_HOST_V4_BYTES, "little", signed=True)))


def _is_queued(records: Records) -> Mask:
    """Whether a record has a place in a consume queue: not prepared, not rolled back."""
    kind = records.sys_flag & SysFlag.TRANSACTION_MASK
    is_queued: Mask = (kind != SysFlag.TRANSACTION_PREPARED) & (kind != SysFlag.TRANSACTION_ROLLBACK)
    return is_queued


def _has_key(texts: pa.StringArray, keys: frozenset[str]) -> Mask:
    """Rows of which one of the words between spaces is one of the keys, as the index enters them."""
    words = pc.split_pattern(texts, " ")
    is_wanted = _true_where(pc.is_in(words.flatten(), value_set=pa.array(sorted(keys), pa.string())))
    found = np.zeros(len(texts), dtype=np.bool_)
    found[pc.list_parent_indices(words).to_numpy()[is_wanted]] = True
    return found


def _true_where(mask: pa.BooleanArray) -> Mask:
    return np.asarray(mask.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _times(milliseconds: Int) -> pa.TimestampArray:
    return pa.array(milliseconds * 1000).view(pa.timestamp("us", tz="UTC"))
