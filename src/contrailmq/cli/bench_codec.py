"""`contrailmq bench codec`: what one record costs, in CPU microseconds, on one core.

Shows: encode, decode of every field (properties parsed), and the header walk with body checksum that recovery does.
Does not show: files, locks or sockets. The baseline is a bare `zlib.crc32` over the same bytes in the same run.
"""

from __future__ import annotations

import platform
import time
import zlib
from collections.abc import Callable

from contrailmq.message import Property, encode_host, encode_properties
from contrailmq.store.record import decode_record, encode_record, scan_records

ROUNDS = 200  # short ones: on a shared machine only a short round can be undisturbed
COUNT = 500


def run_codec_benchmark(body_bytes: int = 1024) -> dict[str, object]:
    """The best of many short rounds: on a shared machine the least disturbed one is the truest."""
    host = encode_host("127.0.0.1", 10911)
    body = bytes(range(256)) * (body_bytes // 256) + bytes(body_bytes % 256)
    properties = encode_properties(
        {Property.UNIQUE_KEY: "7F0000010001AABBCCDD0000ABCD0001", Property.WAIT: "true", Property.TAGS: "TagA"}
    )

    def encode() -> bytes:
        return encode_record(
            "TopicTest",
            body,
            properties,
            queue_id=1,
            queue_offset=2,
            physical_offset=0,
            born_host=host,
            store_host=host,
            born_time_ms=1_700_000_000_000,
            store_time_ms=1_700_000_000_001,
        )

    record = encode()
    log = memoryview(record * COUNT)

    def decode() -> object:
        message = decode_record(record)
        return message.properties

    def walk() -> None:
        scan = scan_records(log, 0, len(log), base_offset=None)
        assert len(scan.sizes) == COUNT

    def checksum_only() -> None:
        size, begin = len(record), 88
        for position in range(begin, len(log), size):
            zlib.crc32(log[position : position + body_bytes])

    walk_us = _cpu_us(walk, 1) / COUNT
    bare_us = _cpu_us(checksum_only, 1) / COUNT
    return {
        "machine": f"{platform.processor() or platform.machine()}, Python {platform.python_version()}",
        "record_bytes": len(record),
        "encode_cpu_us": round(_cpu_us(encode, COUNT), 2),
        "decode_cpu_us": round(_cpu_us(decode, COUNT), 2),
        "walk_cpu_us": round(walk_us, 2),
        "walk_gb_per_s": round(len(record) / walk_us / 1e3, 2),
        "bare_crc32_cpu_us": round(bare_us, 2),
        "walk_to_bare_crc32": round(walk_us / bare_us, 2),
    }


def _cpu_us(action: Callable[[], object], times: int) -> float:
    best = float("inf")
    for _ in range(ROUNDS):
        begin = time.process_time_ns()
        for _ in range(times):
            action()
        best = min(best, (time.process_time_ns() - begin) / times / 1e3)
    return best
