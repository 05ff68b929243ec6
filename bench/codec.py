"""`contrailmq bench codec`: what one record costs, in CPU microseconds, on one core.

Shows: encode, decode of every field (properties parsed), and two walks over headers with body checksums. `scan` is
`record.scan_records`, which only finds where records lie. `walk` is `log_walk.walk`, on which recovery, verify and
rebuild stand: it hands topic, numbers and properties of each record to a sink, here one that counts. Recovery's own
sink, its comparison with the consume queues and its shortcut for records that are as expected are not in the figure.
Does not show: files, locks or sockets. The baseline is a bare `zlib.crc32` over the same bytes in the same run.
"""

from __future__ import annotations

import zlib
from mmap import mmap
from typing import NamedTuple

from bench.machine import best_cpu_us, machine
from contrailmq.message import Property, encode_host, encode_properties
from contrailmq.message.codec import decode_record, encode_record, scan_records
from contrailmq.message.record import RecordView
from contrailmq.store.recovery.log_walk import walk

ROUNDS = 200  # short ones: on a shared machine only a short round can be undisturbed
COUNT = 500


class _MemoryLog(NamedTuple):
    """A log file that is memory only."""

    base: int
    size_bytes: int
    mapping: mmap


class _Counter:
    """A sink that counts."""

    def __init__(self) -> None:
        self.records = 0

    def take(self, _record: RecordView, /) -> None:
        self.records += 1


def run_codec_benchmark(body_bytes: int = 1024) -> dict[str, object]:
    """The best of many short rounds: on a shared machine the least disturbed one is the truest."""
    host = encode_host("127.0.0.1", 10911)
    body = bytes(range(256)) * (body_bytes // 256) + bytes(body_bytes % 256)
    properties = encode_properties(
        {Property.UNIQUE_KEY: "7F0000010001AABBCCDD0000ABCD0001", Property.WAIT: "true", Property.TAGS: "TagA"}
    )

    def encode(physical_offset: int = 0) -> bytes:
        return encode_record(
            "TopicTest",
            body,
            properties,
            queue_id=1,
            queue_offset=2,
            physical_offset=physical_offset,
            born_host=host,
            store_host=host,
            born_time_ms=1_700_000_000_000,
            store_time_ms=1_700_000_000_001,
        )

    record = encode()
    log = memoryview(b"".join(encode(number * len(record)) for number in range(COUNT)))
    mapping = mmap(-1, len(log))
    mapping[:] = log
    log_file = _MemoryLog(0, len(log), mapping)

    def decode() -> object:
        message = decode_record(record)
        return message.properties

    def scan() -> None:
        found = scan_records(log, 0, len(log), base_offset=0)
        assert len(found.sizes) == COUNT

    def walk_all() -> None:
        counter = _Counter()
        end = walk(log_file, counter, check_body_crc=True)
        assert end.records == counter.records == COUNT

    def checksum_only() -> None:
        size, begin = len(record), 88
        for position in range(begin, len(log), size):
            zlib.crc32(log[position : position + body_bytes])

    scan_us = best_cpu_us(scan, 1, ROUNDS) / COUNT
    walk_us = best_cpu_us(walk_all, 1, ROUNDS) / COUNT
    bare_us = best_cpu_us(checksum_only, 1, ROUNDS) / COUNT
    return {
        "machine": machine(),
        "record_bytes": len(record),
        "encode_cpu_us": round(best_cpu_us(encode, COUNT, ROUNDS), 2),
        "decode_cpu_us": round(best_cpu_us(decode, COUNT, ROUNDS), 2),
        "scan_cpu_us": round(scan_us, 2),
        "scan_gb_per_s": round(len(record) / scan_us / 1e3, 2),
        "walk_cpu_us": round(walk_us, 2),
        "walk_gb_per_s": round(len(record) / walk_us / 1e3, 2),
        "bare_crc32_cpu_us": round(bare_us, 2),
        "walk_to_bare_crc32": round(walk_us / bare_us, 2),
    }
