"""`restore`: messages of an archive become a store again, at their old queue offsets, for brokers and for reading."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import contrailmq
from contrailmq.cli import app
from contrailmq.client.blocking.raw import QueueReader
from contrailmq.message.codec import decode_record, scan_records
from contrailmq.spark.decoding.decode import Selection
from contrailmq.spark.decoding.log_plan import LogSettings
from contrailmq.spark.decoding.store_files import log_files
from contrailmq.spark.jobs.archive import RECORDS_VIEW, archive
from contrailmq.spark.jobs.manifest import ArchiveError
from contrailmq.spark.jobs.restore import restore
from contrailmq.spark.jobs.upkeep import compact
from contrailmq.spark.jobs.verify import verify
from contrailmq.spark.runtime.engine import LocalEngine
from contrailmq.testing import LocalCluster
from spark.conftest import expected, unpack
from spark.test_archive_care import LIMITED

ONE = LocalEngine(workers=1)
SYSTEM = ("SCHEDULE_TOPIC_XXXX", "RMQ_SYS_", "rmq_sys_", "TRANS_CHECK")
FILE_BYTES = 131_072  # of the golden store's log files


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    found = unpack("clean", tmp_path_factory.mktemp("store"))
    assert log_files(found)[0].size_bytes == FILE_BYTES
    return found


@pytest.fixture(scope="module")
def kept(store: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An archive with records, compacted."""
    target = str(tmp_path_factory.mktemp("kept"))
    archive(store, target, ONE, settings=LogSettings(view=RECORDS_VIEW))
    compact(target)
    return target


@pytest.fixture(scope="module")
def plain(store: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An archive without records."""
    target = str(tmp_path_factory.mktemp("plain"))
    archive(store, target, ONE)
    return target


def messages(**wanted: Any) -> list[dict[str, Any]]:
    """What Apache's classes say of the golden store's messages for users."""
    found = [m for m in expected("clean")["messages"] if not m["topic"].startswith(SYSTEM)]
    return [m for m in found if all(m[name] == value for name, value in wanted.items())]


def stored_bytes(store: str, message: dict[str, Any]) -> bytes:
    """A record as it is in the log of a store."""
    number, at = divmod(message["commitLogOffset"], FILE_BYTES)
    log = Path(store, "commitlog", f"{number * FILE_BYTES:020d}").read_bytes()
    return log[at : at + message["storeSize"]]


def pulled(client: QueueReader, topic: str) -> Iterator[bytes]:
    """Every record that a broker serves of a topic, from the least offset of each queue on."""
    for queue in client.queues(topic):
        offset = client.min_offset(queue)
        while offset < client.max_offset(queue):
            answer = client.pull(queue, offset)
            body = bytes(answer.body)
            for position in scan_records(body, 0, len(body), base_offset=None).positions:
                size = int.from_bytes(body[position : position + 4], "big")
                yield body[position : position + size]
            offset = answer.next_offset


@pytest.mark.parametrize("has_records", [True, False])
def test_our_broker_serves_a_restored_archive(
    tmp_path: Path, store: str, kept: str, plain: str, has_records: bool
) -> None:
    """Every message at its queue offset and store time; byte for byte where the archive kept the records."""
    target = tmp_path / "broker-0"
    done = restore(kept if has_records else plain, str(target), log_file_bytes=FILE_BYTES)
    assert (done.messages, done.has_old_places, done.in_no_queue) == (len(messages()), has_records, 0)
    assert verify(str(target), ONE) == []
    with (
        LocalCluster(store=tmp_path, config={"mappedFileSizeCommitLog": str(FILE_BYTES)}) as cluster,
        QueueReader(namesrv=cluster.namesrv, group="restored") as client,
    ):
        for topic in sorted({m["topic"] for m in messages()}):
            served = {}
            for record in pulled(client, topic):
                message = decode_record(record)
                served[message.queue_id, message.queue_offset] = (record, message)
            wanted = {(m["queueId"], m["queueOffset"]): m for m in messages(topic=topic)}
            assert served.keys() == wanted.keys()
            for place, (record, message) in served.items():
                assert message.store_time_ms == wanted[place]["storeTimestamp"]
                assert message.properties == wanted[place]["properties"]
                if has_records:
                    assert record == stored_bytes(store, wanted[place])
                elif not message.sys_flag & 1:
                    assert hashlib.sha256(message.body).hexdigest() == wanted[place]["bodySha256"]


def test_a_range_of_a_queue_begins_at_its_old_offset(tmp_path: Path, kept: str) -> None:
    """As in a log that was cleaned: the least offset is that of the first message that is there."""
    starting = {("GoldenBulk", 0): 40, ("GoldenBulk", 1): 50}
    selection = Selection(topics=frozenset({"GoldenBulk"}), starting_offsets=starting)
    restore(kept, str(tmp_path / "broker-0"), selection=selection, log_file_bytes=FILE_BYTES)
    with (
        LocalCluster(store=tmp_path, config={"mappedFileSizeCommitLog": str(FILE_BYTES)}) as cluster,
        QueueReader(namesrv=cluster.namesrv, group="ranged") as client,
    ):
        found = {
            queue.queue_id: (client.min_offset(queue), client.max_offset(queue))
            for queue in client.queues("GoldenBulk")
        }
        bodies = [decode_record(record).queue_offset for record in pulled(client, "GoldenBulk")]
    last = {m["queueId"]: m["queueOffset"] for m in messages(topic="GoldenBulk")}
    assert {number: bounds for number, bounds in found.items() if number in (0, 1)} == {
        0: (40, last[0] + 1),
        1: (50, last[1] + 1),
    }
    wanted = [
        m["queueOffset"]
        for m in messages(topic="GoldenBulk")
        if m["queueOffset"] >= starting.get(("GoldenBulk", m["queueId"]), 0)
    ]
    assert sorted(bodies) == sorted(wanted)


def test_a_time_range_restores_what_was_stored_then(tmp_path: Path, plain: str) -> None:
    times = sorted(m["storeTimestamp"] for m in messages())
    since, until = times[100], times[400]
    words = ["restore", "--archive", plain, "--to", str(tmp_path / "new"), "--since", str(since), "--until", str(until)]
    done = CliRunner().invoke(app, ["pipeline", *words, "--engine", "local", "--json"])
    assert done.exit_code == 0, done.output
    told = json.loads(done.stdout)
    wanted = [m for m in messages() if since <= m["storeTimestamp"] < until]
    assert told["messages"] == len(wanted)
    assert told["topics"] == len({m["topic"] for m in wanted})
    assert verify(str(tmp_path / "new"), ONE) == []
    assert [path.name for path in tmp_path.iterdir()] == ["new"]


def test_what_cannot_be_restored_is_refused_with_the_remedy(tmp_path: Path, store: str, kept: str) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(ArchiveError, match="is not an empty directory: name a new one"):
        restore(kept, str(tmp_path / "full"))
    with pytest.raises(ArchiveError, match="holds no message of this choice"):
        restore(kept, str(tmp_path / "new"), selection=Selection(topics=frozenset({"None"})))
    with pytest.raises(ArchiveError, match=r"does not fit into a log file of 65000 bytes.*--log-file-bytes"):
        restore(kept, str(tmp_path / "new"), log_file_bytes=65_000)
    two = str(tmp_path / "two")
    archive(f"{store},{unpack('direct', tmp_path)}", two, ONE)
    with pytest.raises(ArchiveError, match=r"messages of several brokers \(.*choose one with --broker-name"):
        restore(two, str(tmp_path / "new"))
    assert not (tmp_path / "new").exists()


def test_a_restore_that_was_killed_is_begun_again(tmp_path: Path, plain: str) -> None:
    (tmp_path / "new.restoring" / "commitlog").mkdir(parents=True)
    (tmp_path / "new.restoring" / "commitlog" / f"{0:020d}").write_bytes(b"half")
    assert restore(plain, str(tmp_path / "new")).messages == len(messages())
    assert not (tmp_path / "new.restoring").exists()


def test_a_disk_that_takes_no_more_is_told_and_keeps_nothing_of_the_store(tmp_path: Path, plain: str) -> None:
    """By a limit on the size of files: half a log file, which is less than a queue file has, or an index."""
    words = ["pipeline", "restore", "--archive", plain, "--to", str(tmp_path / "new")]
    words += ["--log-file-bytes", str(FILE_BYTES)]
    for bytes_max in (FILE_BYTES // 2, 2 * FILE_BYTES):
        code = LIMITED.format(bytes_max=bytes_max, words=words)
        environment = {**os.environ, "PYTHONPATH": str(Path(contrailmq.__file__).parents[1])}
        done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert done.returncode == 2, done.stderr
        *_, told = done.stderr.splitlines()
        assert told.startswith(f"error: {tmp_path}/new.restoring")
        assert told.endswith(
            "cannot be written: File too large; no store was made: raise the limit on the size of files (ulimit -f), "
            "then run again"
        )
        assert list(tmp_path.iterdir()) == []
    assert restore(plain, str(tmp_path / "new"), log_file_bytes=FILE_BYTES).messages == len(messages())
