"""Apache's own broker serves a store that `pipeline restore` made of an archive."""

from __future__ import annotations

from pathlib import Path

import pytest
from apache import Apache, facts

from contrailmq import Message, Producer
from contrailmq.client.blocking.raw import QueueReader
from contrailmq.spark.decoding.decode import Selection
from contrailmq.spark.decoding.log_plan import LogSettings
from contrailmq.spark.jobs.archive import RECORDS_VIEW, archive
from contrailmq.spark.jobs.restore import restore
from contrailmq.spark.runtime.engine import LocalEngine
from contrailmq.testing import LocalCluster

pytestmark = pytest.mark.program("Apache's broker", "5.5.0")

FILE_BYTES = 64 * 1024
SIZES = {"mappedFileSizeCommitLog": str(FILE_BYTES), "maxMessageSize": "16384"}
INDEX = {"maxHashSlotNum": "5000000", "maxIndexNum": "20000000"}  # Apache's defaults, which the new index has
COUNT, SKIPPED = 200, 30


@pytest.mark.parametrize("has_records", [True, False])
def test_apaches_broker_serves_a_restored_archive(has_records: bool, rocketmq: Apache, tmp_path: Path) -> None:
    """A part of one of two topics: its old queue offsets, and then new messages after them."""
    one = LocalEngine(workers=1)
    with LocalCluster(store=tmp_path, config=SIZES) as cluster, Producer("p", namesrv=cluster.namesrv) as producer:
        queues = {topic: producer.queues(topic) for topic in ("Restored", "Other")}
        for number in range(COUNT):
            for topic in ("Restored", "Other"):
                body = f"body-{number:03d}|{'x' * 500}".encode()
                producer.send(Message(topic, body, keys=[f"k{number}"]), queue=queues[topic][number % 2])
    settings = LogSettings(view=RECORDS_VIEW) if has_records else None
    archive(str(tmp_path / "broker-0"), str(tmp_path / "archive"), one, settings=settings)
    selection = Selection(
        topics=frozenset({"Restored"}), starting_offsets={("Restored", 0): SKIPPED, ("Restored", 1): SKIPPED}
    )
    store = tmp_path / "restored"
    done = restore(str(tmp_path / "archive"), str(store), one, selection=selection, log_file_bytes=FILE_BYTES)
    assert (done.messages, done.has_old_places) == (COUNT - 2 * SKIPPED, has_records)
    with rocketmq.namesrv() as namesrv, rocketmq.broker(namesrv.address, store=store, **SIZES, **INDEX):
        with QueueReader(namesrv=namesrv.address, group="looking") as client:
            bounds = {
                queue.queue_id: (client.min_offset(queue), client.max_offset(queue))
                for queue in client.queues("Restored")
            }
        assert bounds == {0: (SKIPPED, COUNT // 2), 1: (SKIPPED, COUNT // 2)}
        count = str(COUNT - 2 * SKIPPED)
        got = rocketmq.client("consume", namesrv.address, f"java_{has_records}", "Restored", "*", count, "concurrent")
        assert facts(got, "done") == [["true", "0"]]
        bodies = [fact[5].partition("|")[0] for fact in facts(got, "got")]
        assert sorted(bodies) == [f"body-{number:03d}" for number in range(2 * SKIPPED, COUNT)]
        sent = facts(rocketmq.client("produce", namesrv.address, "Restored", "8"), "sent")
        assert all(int(fact[2]) >= COUNT // 2 for fact in sent)
