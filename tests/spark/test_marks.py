"""A topic that was made anew, or a store that another replaced, is told from the one that a stream read from."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

import contrailmq.spark.sources.rocketmq as rocketmq
from contrailmq import Message, Producer
from contrailmq.client.blocking.raw import RawPull
from contrailmq.client.blocking.sync_admin import Admin
from contrailmq.message import MessageQueue
from contrailmq.message.codec import encode_record
from contrailmq.spark.decoding.store_files import StoreFilesError
from contrailmq.spark.sources.commitlog import CommitLogSource
from contrailmq.spark.sources.rocketmq import RocketMQStreamReader, offsets_of
from contrailmq.spark.sources.topic_plan import DataLossError, QueueRange
from contrailmq.store import MessageStore, StoreConfig
from contrailmq.testing import LocalCluster
from spark.test_damaged_stores import ALL_COLUMNS
from spark.test_rocketmq_source import HOST, Q0, Q1, FakeBroker, settings_of

ALL = ReadAllAvailable()


class Remade(FakeBroker):
    """A broker whose topic was made at a certain time, and that counts pulls."""

    made_ms = 1000
    remade: frozenset[MessageQueue] = frozenset({Q0, Q1})  # of which that is the time; others are older
    text = b"always the same"
    pulls = 0

    def pull(self, queue: MessageQueue, offset: int, *, max_count: int, **more: Any) -> RawPull:
        self.pulls += 1
        return super().pull(queue, offset, max_count=max_count, **more)

    def record(self, queue: MessageQueue, number: int) -> bytes:
        made_ms = self.made_ms if queue in self.remade else 1000
        return encode_record(
            queue.topic,
            self.text,
            b"",
            queue_id=queue.queue_id,
            queue_offset=number,
            physical_offset=number * 1000,
            born_host=HOST,
            store_host=HOST,
            born_time_ms=made_ms,
            store_time_ms=made_ms,
        )


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Remade:
    made = Remade({Q0: 40, Q1: 10})
    monkeypatch.setattr(rocketmq, "reader_for", lambda _: made)
    return made


def stream(**options: str) -> RocketMQStreamReader:
    return RocketMQStreamReader(settings_of(startingOffsets="earliest", groupId="stream", **options))


def saved(offset: dict[str, Any]) -> dict[str, Any]:
    """As it comes back from a checkpoint."""
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found


def first_end() -> dict[str, Any]:
    reader = stream()
    return saved(reader.latestOffset(reader.initialOffset(), ALL))


def planned(reader: Any, start: dict[str, Any], end: dict[str, Any]) -> list[QueueRange]:
    return [partition.part for partition in reader.partitions(start, end)]


def test_a_topic_made_anew_that_has_grown_past_the_checkpoint_is_loss(broker: Remade) -> None:
    end = first_end()
    broker.made_ms, broker.remade, broker.sizes = 2000, frozenset({Q0}), {Q0: 300, Q1: 10}
    with pytest.raises(DataLossError) as raised:
        stream().latestOffset(end, ALL)
    assert "Orders/broker-a/0 (1 in all) holds another message before the offset 40" in str(raised.value)
    assert "deleted and created again" in str(raised.value)
    assert "new checkpoint, or set failOnDataLoss=false" in str(raised.value)


def test_a_topic_made_anew_that_is_just_as_long_is_told_when_a_stream_starts(broker: Remade) -> None:
    """A run that ends (AvailableNow) would take it for the old one with nothing new, and say that all is read."""
    end = first_end()
    broker.made_ms = 2000
    with pytest.raises(
        DataLossError, match=r"Orders/broker-a/0 \(2 in all\) holds another message before the offset 40"
    ):
        stream().latestOffset(end, ALL)
    reader = stream(failOnDataLoss="false")
    parts = planned(reader, end, saved(reader.latestOffset(end, ALL)))
    assert parts == [QueueRange(Q0, 0, 40), QueueRange(Q1, 0, 10)]


@pytest.mark.parametrize("limit", [ALL, ReadMaxRows(50)])
def test_where_loss_is_allowed_a_topic_made_anew_is_read_from_its_beginning(
    broker: Remade, caplog: pytest.LogCaptureFixture, limit: Any
) -> None:
    """With the limit, the new queue is read up to the very offset that the old one had."""
    end = first_end()
    broker.made_ms, broker.remade, broker.sizes = 2000, frozenset({Q0}), {Q0: 50, Q1: 10}
    if isinstance(limit, ReadMaxRows):
        broker.sizes[Q0], limit = 300, ReadMaxRows(40)
    reader = stream(failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        following = saved(reader.latestOffset(end, limit))
    assert "created again" in caplog.text
    parts = planned(reader, end, following)
    assert [(part.queue, part.start) for part in parts] == [(Q0, 0)]
    assert planned(stream(failOnDataLoss="false"), end, following) == parts  # after a restart
    broker.sizes[Q0] += 5
    last = saved(stream().latestOffset(following, ALL))  # which is strict, and finds the queue that it knows
    assert planned(stream(), following, last) == [QueueRange(Q0, parts[0].stop, broker.sizes[Q0])]


def test_a_batch_that_is_planned_again_after_the_topic_was_made_anew_is_loss(broker: Remade) -> None:
    reader = stream()
    start = reader.initialOffset()
    end = saved(reader.latestOffset(start, ALL))
    broker.made_ms = 2000
    with pytest.raises(DataLossError, match="holds another message before the offset 40"):
        stream().partitions(start, end)


def test_a_topic_made_anew_within_the_same_millisecond_differs_by_what_it_holds(broker: Remade) -> None:
    end = first_end()
    broker.text = b"another"
    with pytest.raises(DataLossError, match="holds another message before the offset 40"):
        stream().latestOffset(end, ALL)


def test_a_queue_that_was_away_is_known_again_by_its_mark(broker: Remade) -> None:
    """A stream that may lose goes on without it, and its checkpoint keeps the mark."""
    end = first_end()
    broker.sizes = {Q0: 45}
    following = saved(stream(failOnDataLoss="false").latestOffset(end, ALL))
    assert following["marks"]["Orders"]["broker-a"]["1"] == end["marks"]["Orders"]["broker-a"]["1"]
    broker.made_ms, broker.remade, broker.sizes = 2000, frozenset({Q1}), {Q0: 45, Q1: 30}
    with pytest.raises(DataLossError, match="Orders/broker-a/1 .* holds another message before the offset 10"):
        stream().latestOffset(following, ALL)
    reader = stream(failOnDataLoss="false")
    assert planned(reader, following, saved(reader.latestOffset(following, ALL))) == [QueueRange(Q1, 0, 30)]


def test_checkpoints_without_marks_go_on_and_gain_them(broker: Remade) -> None:
    old = {name: value for name, value in first_end().items() if name != "marks"}
    broker.sizes[Q0] = 45
    gained = saved(stream().latestOffset(old, ALL))
    assert offsets_of(gained) == {Q0: 45, Q1: 10}
    assert set(gained["marks"]["Orders"]["broker-a"]) == {"0", "1"}
    broker.made_ms, broker.remade, broker.sizes = 2000, frozenset({Q1}), {Q0: 45, Q1: 11}
    with pytest.raises(DataLossError, match="Orders/broker-a/1"):
        stream().latestOffset(gained, ALL)


def test_a_message_that_expired_after_it_was_read_is_no_loss(broker: Remade) -> None:
    end = first_end()
    broker.lowest, broker.sizes = {Q0: 40}, {Q0: 50, Q1: 10}
    following = saved(stream().latestOffset(end, ALL))
    assert planned(stream(), end, following) == [QueueRange(Q0, 40, 50)]
    broker.sizes[Q0] = 60
    assert offsets_of(stream().latestOffset(following, ALL)) == {Q0: 60, Q1: 10}


def test_idle_queues_are_asked_for_messages_only_at_the_start(broker: Remade) -> None:
    end, reader = first_end(), stream()
    broker.pulls = 0
    assert reader.latestOffset(end, ALL) == end
    assert broker.pulls == 2  # one of each queue
    broker.pulls = 0
    assert reader.latestOffset(end, ALL) == end
    assert broker.pulls == 0
    broker.sizes[Q0] = 41
    reader.latestOffset(end, ALL)
    assert broker.pulls == 2  # the message before the start, and the one before the end, of the queue that grew


def test_a_real_topic_deleted_and_made_anew_is_loss(tmp_path: Path) -> None:
    """300 were sent to the new topic and 260 read, without an error."""
    with LocalCluster(store=tmp_path) as cluster:
        options = {"nameServer": cluster.namesrv, "subscribe": "Orders"}
        with Admin(namesrv=cluster.namesrv) as admin, Producer("filling", namesrv=cluster.namesrv) as producer:
            admin.create_topic("Orders", queues=1)
            producer.send_batch([Message("Orders", b"old %d" % number) for number in range(40)])
            reader = RocketMQStreamReader(settings_of(startingOffsets="earliest", groupId="stream", **options))
            end = saved(reader.latestOffset(reader.initialOffset(), ALL))
            admin.delete_topic("Orders")
            admin.create_topic("Orders", queues=1)
            for begin in range(0, 300, 100):
                producer.send_batch([Message("Orders", b"new %d" % number) for number in range(begin, begin + 100)])
        with pytest.raises(DataLossError, match="holds another message before the offset 40"):
            RocketMQStreamReader(settings_of(groupId="stream", **options)).latestOffset(end, ALL)
        lenient = RocketMQStreamReader(settings_of(groupId="stream", failOnDataLoss="false", **options))
        following = saved(lenient.latestOffset(end, ALL))
        read = [
            row for part in lenient.partitions(end, following) for batch in lenient.read(part) for row in rows(batch)
        ]
    assert sorted(read) == sorted(b"new %d" % number for number in range(300))


def rows(batch: Any) -> list[bytes]:
    found: list[bytes] = batch.column("body").to_pylist()
    return found


# Files.
def filled(store: Path, count: int, text: bytes) -> None:
    with MessageStore(StoreConfig(str(store), mapped_file_size_commit_log=64 * 1024)) as opened:
        for _ in range(count):
            opened.put(Message("Orders", text), queue_id=0)


def log_stream(store: Path, **options: str) -> Any:
    return CommitLogSource({"path": str(store), **options}).streamReader(ALL_COLUMNS)


def bodies(reader: Any, start: dict[str, Any], end: dict[str, Any]) -> list[bytes]:
    return [row for part in reader.partitions(start, end) for batch in reader.read(part) for row in rows(batch)]


@pytest.mark.parametrize("count", [12, 5], ids=["longer", "just as long"])
def test_a_store_that_another_took_the_place_of_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, count: int
) -> None:
    store = tmp_path / "store"
    filled(store, 5, b"old")
    reader = log_stream(store)
    start = reader.initialOffset()
    end = saved(reader.latestOffset(start, ALL))
    shutil.rmtree(store)
    filled(store, count, b"new")
    with pytest.raises(
        StoreFilesError, match="holds other bytes before .* another store took its place.*new checkpoint"
    ):
        log_stream(store).latestOffset(end, ALL)
    with pytest.raises(StoreFilesError, match="another store took its place"):
        log_stream(store).partitions(start, end)
    lenient = log_stream(store, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        following = saved(lenient.latestOffset(end, ALL))
    assert "it is read from its beginning" in caplog.text
    assert bodies(lenient, end, following) == [b"new"] * count
    filled(store, 1, b"more")
    strict = log_stream(store)
    assert bodies(strict, following, saved(strict.latestOffset(following, ALL))) == [b"more"]


def test_a_store_that_grew_over_several_files_stays_the_same(tmp_path: Path) -> None:
    store = tmp_path / "store"
    filled(store, 5, b"x" * 5000)
    reader = log_stream(store)
    end, read = reader.initialOffset(), []
    for _ in range(4):
        following = saved(reader.latestOffset(end, ALL))
        read += bodies(reader, end, following)
        end = following
        filled(store, 9, b"y" * 5000)
    old = {name: value for name, value in end.items() if name != "marks"}
    for known in (end, old):
        last = saved(log_stream(store).latestOffset(known, ALL))
        assert bodies(log_stream(store), known, last) == [b"y" * 5000] * 9
        assert list(last["marks"]) == [str(store)]
    assert len(read) == 5 + 3 * 9
