"""Logs of real size: every row of a million equals what the decoder of one record says, and memory does not grow.

`make test` takes a tenth of the million; `make test-long` all of it, and the log of five gigabytes.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import contrailmq
from bench.spark import write_log
from contrailmq.message import Compression, SysFlag, compress, encode_host
from contrailmq.message.codec import encode_blank, encode_record

ROWS = 1_000_000 if os.environ.get("CONTRAILMQ_LONG") else 100_000
FILE_BYTES = 32 * 1024 * 1024
HOSTS = [encode_host("10.0.0.1", 1234), encode_host("fd00::1", 40000)]
PACKED = [(Compression.ZLIB, SysFlag.COMPRESSED | 3 << 8), (Compression.LZ4, SysFlag.COMPRESSED | 1 << 8)]
PROPERTIES = (
    b"",
    b"TAGS\x01a\x02",
    b"KEYS\x01k 1\x02UNIQ_KEY\x01U%d",  # without the last separator
    b"UNIQ_KEY\x01U%d\x02TAGS\x01b\x02KEYS\x01order-%d\x02CLUSTER\x01Default\x02WAIT\x01true\x02",
    b"a\x01\x02\x01b\x02TAGS\x01c\x02TAGS\x01d\x02x\x01y\x01z\x02",  # empty value, empty name, repeated, 0x01 inside
    "name\x01größe 😀\x02".encode(),
)


def write_varied_log(store: Path, count: int) -> list[int]:
    """Records of every shape in files of 32 MiB; gives their physical offsets."""
    rng = random.Random(count)
    pool = rng.randbytes(1 << 16)
    (store / "commitlog").mkdir(parents=True)
    offsets: list[int] = []
    base, data = 0, bytearray()
    for number in range(count):
        body = pool[number % 50_000 :][: rng.randrange(600)]
        sys_flag = 0
        if number % 17 == 0:
            kind, sys_flag = PACKED[number % 2]
            body = compress(bytes(300) + body[:50], kind)
        place = PROPERTIES[number % 7 % len(PROPERTIES)]
        for _ in range(2):
            record = encode_record(
                topic=("T", "Orders", "%RETRY%" + "g" * 200)[number % 23 % 3],
                body=body,
                properties=place.replace(b"%d", b"%d" % number),
                queue_id=number % 5,
                queue_offset=number // 5,
                physical_offset=base + len(data),
                born_time_ms=1_700_000_000_000 + number,
                born_host=HOSTS[number % 11 == 0],
                store_time_ms=1_700_000_000_500 + number,
                store_host=HOSTS[number % 13 == 0],
                flag=number % 3,
                sys_flag=sys_flag,
                reconsume_times=number % 4,
            )
            if len(data) + len(record) + 8 <= FILE_BYTES:
                break
            data += encode_blank(FILE_BYTES - len(data))
            (store / "commitlog" / f"{base:020d}").write_bytes(bytes(data).ljust(FILE_BYTES, b"\0"))
            base, data = base + FILE_BYTES, bytearray()
        offsets.append(base + len(data))
        data += record
    (store / "commitlog" / f"{base:020d}").write_bytes(bytes(data).ljust(FILE_BYTES, b"\0"))
    return offsets


@pytest.mark.spark
def test_every_row_of_a_large_log_equals_the_record(spark: Any, tmp_path: Path) -> None:
    """Rows go through Spark and back into tasks, which decode the record at each row's place one by one."""
    store = tmp_path / "store"
    offsets = write_varied_log(store, ROWS)
    folder = str(store / "commitlog")

    def compare(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import mmap

        from contrailmq.message.codec import decode_record

        maps: dict[int, Any] = {}
        for batch in batches:
            wrong = []
            for row in batch.to_pylist():
                base, at = divmod(row["physicalOffset"], FILE_BYTES)
                if base not in maps:
                    with open(f"{folder}/{base * FILE_BYTES:020d}", "rb") as file:
                        maps[base] = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                record = decode_record(maps[base], at)
                found = {name: row[name] for name in row if not name.endswith("Timestamp")}
                found["properties"] = dict(row["properties"])
                found["times"] = [round(row[f"{kind}Timestamp"].timestamp() * 1000) for kind in ("born", "store")]
                told = {
                    "topic": record.topic,
                    "brokerName": None,
                    "queueId": record.queue_id,
                    "queueOffset": record.queue_offset,
                    "physicalOffset": record.physical_offset,
                    "msgId": record.message_id,
                    "tags": record.properties.get("TAGS"),
                    "keys": record.properties.get("KEYS"),
                    "body": record.body,
                    "properties": record.properties,
                    "flag": record.flag,
                    "sysFlag": record.sys_flag,
                    "bornHost": str(record.born_host),
                    "storeHost": str(record.store_host),
                    "reconsumeTimes": record.reconsume_times,
                    "times": [record.born_time_ms, record.store_time_ms],
                }
                if found != told:
                    wrong.append(f"{found} is not {told}")
            places = np.array(batch.column("physicalOffset")).tobytes()
            yield pa.RecordBatch.from_pydict({"places": [places], "wrong": [wrong[:3]]}, schema=schema)

    schema = pa.schema([("places", pa.binary()), ("wrong", pa.list_(pa.string()))])
    frame = spark.read.format("commitlog").option("includeSystemTopics", "true").option("rangeBytes", "7000000")
    answers = frame.load(str(store)).mapInArrow(compare, "places binary, wrong array<string>").collect()
    assert [text for answer in answers for text in answer["wrong"]] == []
    places = np.concatenate([np.frombuffer(bytes(answer["places"]), dtype=np.int64) for answer in answers])
    assert np.array_equal(np.sort(places), np.array(offsets))


# Of the package and of bench/.
PLACES = [str(Path(contrailmq.__file__).parents[1]), str(Path(__file__).resolve().parents[2])]
READ = """
import json, sys, threading
from pathlib import Path
import os
import contrailmq.spark
from bench.spark import process_table

def family():
    table, found = process_table(), {os.getpid()}
    while True:
        grown = found | {row.pid for row in table if row.parent in found}
        if grown == found:
            return found
        found = grown

def anonymous_kb(pid):
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return "", 0
    facts = dict(line.split(":", 1) for line in lines)
    return facts["Name"].strip(), int(facts.get("RssAnon", "0 kB").split()[0])

peaks, ended = {"java": 0, "python": 0}, threading.Event()

def watch():
    while not ended.wait(0.1):
        used = [anonymous_kb(pid) for pid in family()]
        java = sum(kb for name, kb in used if name == "java")
        peaks["java"] = max(peaks["java"], java)
        peaks["python"] = max(peaks["python"], sum(kb for _, kb in used) - java)

spark = contrailmq.spark.session("large", master="local[2]", spark_driver_memory="1g")
threading.Thread(target=watch, daemon=True).start()
frame = spark.read.format("commitlog").load(sys.argv[1])
frame.write.format("noop").mode("overwrite").save()
peaks["rows"] = frame.select("queueId").count()
ended.set()
print(json.dumps(peaks))
spark.stop()
"""


def repeat_log(store: Path, times: int) -> None:
    """The one file of a log again and again, each time with the physical offsets of its place."""
    template = store / "commitlog" / f"{0:020d}"
    data = np.fromfile(template, dtype=np.uint8)
    raw, positions, at = data.tobytes(), [], 0
    while raw[at + 4 : at + 7] == b"\xda\xa3\x20":
        positions.append(at)
        at += int.from_bytes(raw[at : at + 4], "big")
    data[at : at + 8] = np.frombuffer(encode_blank(len(data) - at)[:8], dtype=np.uint8)
    fields = np.array(positions)[:, None] + np.arange(28, 36)
    data.tofile(template)
    for number in range(1, times):
        base = number * len(data)
        data[fields] = (np.array(positions) + base).astype(">i8").view(np.uint8).reshape(-1, 8)
        data.tofile(store / "commitlog" / f"{base:020d}")


@pytest.mark.long
@pytest.mark.spark
def test_five_gigabytes_cost_no_more_memory_than_half_a_gigabyte(tmp_path: Path) -> None:
    """With `spark.driver.memory=1g`. Memory is what processes have for themselves, not the mapped log."""
    peaks = {}
    for files in (2, 20):
        store = tmp_path / f"of-{files}"
        count = 200_000
        write_log(str(store), count=count, body_bytes=1024)
        repeat_log(store, files)
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(PLACES)}
        done = subprocess.run([sys.executable, "-c", READ, str(store)], env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-3000:]
        peaks[files] = json.loads(done.stdout.splitlines()[-1])
        assert peaks[files]["rows"] == files * count
        for path in (store / "commitlog").iterdir():
            path.unlink()
    print(json.dumps(peaks))
    small, large = peaks[2], peaks[20]
    assert large["python"] <= small["python"] * 1.1 + 16 * 1024
    # The JVM takes what it may before it collects; with a gigabyte of heap that is a gigabyte and its own overhead.
    assert large["java"] <= 1.6 * 1024 * 1024
