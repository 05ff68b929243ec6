"""Opening a store whose tables know less than its queues: messages are served, deleted topics stay deleted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import golden_stores
from broker.harness import Bench, records, send_fields
from broker.test_timers import TimerBench
from contrailmq import Admin, Message, Producer
from contrailmq.broker.adoption import Adoption
from contrailmq.broker.config import BrokerConfig
from contrailmq.broker.node import BrokerNode
from contrailmq.broker.state import config_files
from contrailmq.broker.state.config_files import ConfigFileError
from contrailmq.broker.state.deleted_topics import DELETED_FILE, DeletedTopics
from contrailmq.broker.state.groups import Group
from contrailmq.broker.state.keeping import GROUPS_FILE, TOPICS_FILE
from contrailmq.broker.state.topics import Topic
from contrailmq.client.blocking.raw import QueueReader
from contrailmq.client.blocking.raw_connection import RawConnection
from contrailmq.message import MessageQueue, SystemTopic
from contrailmq.message.codec import BatchPart, encode_batch
from contrailmq.store.base.clock import SystemClock
from contrailmq.store.config import StoreConfig
from contrailmq.store.message_store import Drive, MessageStore
from contrailmq.testing import LocalCluster
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.header import Command


def crashed(bench: Bench, path: Path, lost: tuple[str, ...] = (), **store_settings: Any) -> Bench:
    """The broker again after a crash that came before its tables were saved, without the directories in `lost`."""
    bench.store.abandon()
    bench.loop.close()
    bench._worker.shutdown()
    for name in lost:
        remove(path / "store" / name)
    return Bench(path, **store_settings)


def remove(path: Path) -> None:
    """A file or a directory, if it is there."""
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def bodies(bench: Bench, topic: str, queue_id: int = 0) -> list[bytes]:
    (answer,) = bench.pull(topic, queue_id=queue_id)
    assert answer.code == 0, answer.remark
    return [message.body for message in records(answer.body)]


@pytest.mark.parametrize("lost", [(), ("consumequeue", "queues.ledger")], ids=["queues kept", "queues lost"])
def test_a_topic_that_only_the_queues_or_the_log_know_is_adopted_with_its_queues(
    tmp_path: Path, lost: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path)
    bench.send("Orders", b"o", e=2)
    bench.send("Bills", b"b")
    bench.settle()
    again = crashed(bench, tmp_path, lost=lost)
    orders, bills = again.node.topics.get("Orders"), again.node.topics.get("Bills")
    assert orders == Topic("Orders", read_queues=3, write_queues=3, perm=6)
    assert bills == Topic("Bills", read_queues=1, write_queues=1, perm=6)
    assert (bodies(again, "Orders", 2), bodies(again, "Bills")) == ([b"o"], [b"b"])
    assert "adopted 2 topics that the queues hold and topics.json lacks: Bills (1 queues), Orders (3 queues)" in (
        caplog.text
    )
    assert again.ask(316).code == 0
    assert bodies(again, "Orders", 2) == [b"o"], "cleaning spares it"
    assert again.send("Orders", e=2).ext["queueOffset"] == "1"
    again.close()


def test_retry_topics_bring_their_groups_and_dead_letters_come_too(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.send("T", b"poison")
    for level in (0, -1):
        assert bench.ask(36, {"offset": "0", "group": "g", "delayLevel": str(level), "originTopic": "T"}).code == 0
    bench.deliver_delayed()
    again = crashed(bench, tmp_path)
    assert again.node.groups.get("g") == Group("g")
    assert again.node.topics.get("%RETRY%g") == Topic("%RETRY%g", read_queues=1, write_queues=1)
    assert (bodies(again, "%RETRY%g"), bodies(again, "%DLQ%g")) == ([b"poison"], [b"poison"])
    again.close()


def test_without_a_table_of_groups_every_retry_topic_names_one(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.heartbeat("T", group="g")
    bench.run(bench.saver.save(TOPICS_FILE))
    again = crashed(bench, tmp_path)
    assert "g" in again.node.groups
    again.node.groups.delete("g")
    again.run(again.saver.save(GROUPS_FILE))
    last = crashed(again, tmp_path)
    assert "g" not in last.node.groups, "there is a table now, and it says so"
    last.close()


def test_topics_of_batch_queues_are_adopted_as_such(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.node.topics.put(Topic("Batch", read_queues=1, write_queues=1, attributes={"queue.type": "BatchCQ"}))
    batch = encode_batch([BatchPart(0, b"m%d" % number, b"") for number in range(3)])
    fields = send_fields("Batch", properties="UNIQ_KEY\x01b\x02", m="true")
    assert bench.ask(320, fields, batch).ext["queueOffset"] == "0"
    again = crashed(bench, tmp_path)
    topic = again.node.topics.get("Batch")
    assert topic is not None
    assert topic.takes_inner_batches
    assert again.ask(320, fields, batch).ext["queueOffset"] == "3"
    assert bodies(again, "Batch") == [batch, batch]
    again.close()


NO_QUEUES = ("consumequeue", "batchconsumequeue", "queues.ledger", "checkpoint")


@pytest.mark.parametrize("lost", [(), NO_QUEUES], ids=["killed", "queues lost"])
@pytest.mark.parametrize("order", ["single, batch", "batch, single"])
def test_a_topic_of_batch_queues_keeps_single_messages_and_batches_in_one_queue_over_a_crash(
    tmp_path: Path, order: str, lost: tuple[str, ...]
) -> None:
    """Recovery makes queues anew: it must know the kind of each before it does."""
    bench = Bench(tmp_path)
    bench.node.topics.put(Topic("Batch", read_queues=1, write_queues=1, attributes={"queue.type": "BatchCQ"}))
    bench.run(bench.saver.save(TOPICS_FILE))
    batch = encode_batch([BatchPart(0, b"m%d" % number, b"") for number in range(3)])
    fields = send_fields("Batch", properties="UNIQ_KEY\x01b\x02", m="true")
    expected = []
    for kind in order.split(", "):
        answer = bench.send("Batch", b"alone") if kind == "single" else bench.ask(320, fields, batch)
        assert answer.code == 0
        expected.append(b"alone" if kind == "single" else batch)
    again = crashed(bench, tmp_path, lost)
    assert bodies(again, "Batch") == expected
    assert again.store.queues()["Batch", 0] == (0, 4)
    assert again.send("Batch").ext["queueOffset"] == "4"
    again.close()


def test_light_queues_and_the_brokers_own_topics_are_left_alone(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"enable_lmq": True, "enable_multi_dispatch": True}
    bench = Bench(tmp_path, **settings)
    bench.send(properties={"INNER_MULTI_DISPATCH": "%LMQ%a"})
    bench.store.put(Message("rmq_sys_REVIVE_LOG_Other", b"kept"))
    bench.store.put(Message("TRANS_CHECK_MAX_TIME_TOPIC", b"half"))
    bench.settle()
    again = crashed(bench, tmp_path, **settings)
    assert "T" in again.node.topics
    assert "TRANS_CHECK_MAX_TIME_TOPIC" in again.node.topics
    assert "%LMQ%a" not in again.node.topics
    assert "rmq_sys_REVIVE_LOG_Other" not in again.node.topics
    assert {"%LMQ%a", "rmq_sys_REVIVE_LOG_Other"} <= {topic for topic, _ in again.store.queues()}
    again.close()


def test_the_operators_number_of_queues_stands(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.send("T", e=3)
    bench.node.topics.put(Topic("T", read_queues=2, write_queues=2))
    bench.run(bench.saver.save(TOPICS_FILE))
    again = crashed(bench, tmp_path)
    topic = again.node.topics.get("T")
    assert topic is not None
    assert topic.read_queues == 2
    again.close()


def test_an_empty_table_counts_as_none_and_a_garbled_one_stops_the_start(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(tmp_path)
    bench.send("Orders", b"o")
    bench.settle()
    config = tmp_path / "store" / "config"
    config.mkdir()
    (config / "topics.json").write_bytes(bytes(100))
    (config / "topics.json.bak").write_text("")
    again = crashed(bench, tmp_path)
    assert bodies(again, "Orders") == [b"o"]
    assert "topics.json.bak: empty" in caplog.text
    (config / "topics.json").write_text("{nonsense")
    with pytest.raises(ConfigFileError, match="mend the file"):
        again.node.load()
    again.close()


def test_a_slave_adopts_nothing_and_cleans_nothing(tmp_path: Path) -> None:
    """Its table is its master's, and may be behind what the log brought."""
    bench = Bench(tmp_path)
    bench.send("Orders", b"o")
    bench.settle()
    again = crashed(bench, tmp_path, broker_role="SLAVE")
    assert "Orders" not in again.node.topics
    assert again.ask(316).code == 0
    assert again.store.queues()["Orders", 0] == (0, 1)
    again.close()


# ------------------------------------------------------------------------------------------------------------ deleted


def deleted(bench: Bench, topic: str) -> None:
    assert bench.ask(215, {"topic": topic}).code == 0


LOSSES: Mapping[str, tuple[str, ...]] = {
    "killed before the queues' removal was on the disk": (),
    "queues made anew from the log": ("consumequeue", "queues.ledger", "checkpoint"),
}


@pytest.mark.parametrize("lost", LOSSES.values(), ids=LOSSES)
def test_a_deleted_topic_stays_deleted_though_the_log_still_has_it(tmp_path: Path, lost: tuple[str, ...]) -> None:
    bench = Bench(tmp_path)
    bench.send("Orders", b"o")
    bench.send("Kept", b"k")
    bench.settle()
    bench.store._housekeeping.persist()  # the ledger names the queue: its absence alone would bring it back
    bench.store._housekeeping.persist_soon = lambda: None  # type: ignore[method-assign]
    deleted(bench, "Orders")
    again = crashed(bench, tmp_path, lost=lost)
    assert "Orders" not in again.node.topics
    assert ("Orders", 0) not in again.store.queues()
    assert bodies(again, "Kept") == [b"k"]
    assert again.send("Orders", b"new").ext["queueOffset"] == "0"
    again.run(again.saver.save(DELETED_FILE))
    last = crashed(again, tmp_path, lost=(*lost, "config/topics.json"))
    assert bodies(last, "Orders") == [b"new"], "made again, and lost from the table: adopted, without the old messages"
    last.close()


@pytest.mark.parametrize("lost", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("attributes", ["", "+queue.type=BatchCQ"], ids=["ordinary queues", "batch queues"])
def test_no_queue_of_a_topic_made_again_gets_its_old_messages_back(
    tmp_path: Path, lost: tuple[str, ...], attributes: str
) -> None:
    """The log tells a new life of a queue by its first message; one without any needs the note of the deletion."""
    bench = Bench(tmp_path)
    make = {"topic": "Orders", "defaultTopic": "TBW102", "readQueueNums": "3", "writeQueueNums": "3", "perm": "6"}
    make |= {"topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false", "attributes": attributes}
    assert bench.ask(17, make).code == 0
    for queue_id in (0, 1, 1, 2):
        bench.send("Orders", b"old", e=queue_id)
    bench.settle()
    deleted(bench, "Orders")
    assert bench.ask(17, make).code == 0
    assert bench.send("Orders", b"new", e=0).ext["queueOffset"] == "0"
    again = crashed(bench, tmp_path, lost=lost)
    assert bodies(again, "Orders") == [b"new"]
    assert {key: ends for key, ends in again.store.queues().items() if ends[1]} == {("Orders", 0): (0, 1)}
    assert again.send("Orders", b"first", e=1).ext["queueOffset"] == "0"
    last = crashed(again, tmp_path, lost=lost)
    assert bodies(last, "Orders", 1) == [b"first"]
    assert last.send("Orders", b"late", e=2).ext["queueOffset"] == "0"
    last.close()


@pytest.mark.parametrize("lost", LOSSES.values(), ids=LOSSES)
@pytest.mark.parametrize("written", [(DELETED_FILE,), (DELETED_FILE, TOPICS_FILE)], ids=["note", "note and table"])
def test_after_a_deletion_that_a_kill_interrupted_no_group_passes_over_new_messages(
    tmp_path: Path, lost: tuple[str, ...], written: tuple[str, ...]
) -> None:
    """A group that kept its offset would pass over as many messages of the new life as it had consumed of the old."""
    bench = Bench(tmp_path)
    for body in (b"1", b"2"):
        bench.send("Orders", body)
    bench.heartbeat("Orders", group="billing")
    place = {"consumerGroup": "billing", "topic": "Orders", "queueId": "0"}
    assert bench.ask(15, place | {"commitOffset": "2"}).code == 0
    bench.run(bench.saver.save(TOPICS_FILE, "consumerOffset.json"))
    bench.node.topics.delete("Orders")
    bench.node.delete_queues(["Orders"])
    bench.run(bench.saver.save(*written))
    again = crashed(bench, tmp_path, lost=lost)
    assert again.send("Orders", b"new").ext["queueOffset"] == "0"
    assert bodies(again, "Orders") == [b"new"]
    assert again.ask(14, place | {"setZeroIfNotFound": "true"}).ext["offset"] == "0"
    again.run(again.saver.save(DELETED_FILE))
    last = crashed(again, tmp_path, lost=("config/topics.json", "config/topics.json.bak"))
    assert bodies(last, "Orders") == [b"new"], "it exists, so it is adopted"
    last.close()


def test_a_topic_deleted_before_its_first_message_was_dispatched_is_not_adopted(bench: Bench) -> None:
    assert bench.ask(310, send_fields("Orders"), b"o", settle=False).code == 0
    deleted(bench, "Orders")
    assert "Orders" not in bench.node.topics
    assert ("Orders", 0) not in bench.store.queues()


def test_with_synchronous_flush_what_was_not_dispatched_yet_is_deleted_too_and_takes_no_place(tmp_path: Path) -> None:
    """Else it would come behind the deletion, with its old offset, and keep new messages out of the queue."""
    bench = Bench(tmp_path, flush_disk_type="SYNC_FLUSH", flush_interval_commit_log=3_600_000)
    for body in (b"1", b"2"):
        assert bench.send("Orders", body, properties={"WAIT": "false"}).code == 0
    bench.store.flush()
    bench.node.durable(bench.store.durable_offset)
    assert bench.send("Orders", b"not dispatched", properties={"WAIT": "false"}).code == 0
    bench.run(bench.handlers.drain())
    deleted(bench, "Orders")
    assert bench.send("Orders", b"new", properties={"WAIT": "false"}).ext["queueOffset"] == "0"
    bench.store.flush()
    bench.node.durable(bench.store.durable_offset)
    assert bodies(bench, "Orders") == [b"new"]
    bench.close()


def test_what_is_delivered_late_to_a_deleted_topic_does_not_bring_it_back(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.send("Orders", b"o")
    deleted(bench, "Orders")
    bench.store.put(Message("Orders", b"was delayed"))
    bench.settle()
    again = crashed(bench, tmp_path)
    assert "Orders" not in again.node.topics
    assert again.send("Orders", b"new").ext["queueOffset"] == "1"
    assert bodies(again, "Orders") == [b"was delayed", b"new"]
    again.close()


def test_deleted_groups_and_cleaned_topics_stay_away_too(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.send("T", b"poison")
    assert bench.ask(36, {"offset": "0", "group": "g", "delayLevel": "0", "originTopic": "T"}).code == 0
    bench.deliver_delayed()
    bench.store.put(Message("Stray", b"of no topic"))
    assert bench.ask(207, {"groupName": "g", "cleanOffset": "true"}).code == 0
    assert bench.ask(316).code == 0
    again = crashed(bench, tmp_path, lost=("consumequeue", "queues.ledger"))
    assert again.node.groups.get("g") is None
    assert {topic for topic, _ in again.store.queues()} == {"T", SystemTopic.SCHEDULE}
    again.close()


def test_the_deletion_is_on_the_disk_before_the_table_without_the_topic(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    bench.send("Orders", b"o")
    config = tmp_path / "store" / "config"
    written = []
    original = bench.saver._write

    def write(texts: Mapping[str, object]) -> object:
        written.append(list(texts))
        return original(texts)  # type: ignore[arg-type]

    bench.saver._write = write  # type: ignore[method-assign, assignment]
    deleted(bench, "Orders")
    assert written == [[DELETED_FILE, TOPICS_FILE, "consumerOffset.json"]]
    assert json.loads((config / DELETED_FILE).read_text()) == {
        "deletedTopics": {"Orders": {"logEnd": bench.store.appended_offset, "isMadeAgain": False}}
    }
    bench.close()


def test_deletions_are_forgotten_with_their_records_and_move_back_with_a_log_that_lost_its_end() -> None:
    topics = DeletedTopics()
    topics.note("Old", log_end=1000)
    topics.note("New", log_end=5000)
    assert not topics.fit(0, 6000)
    assert topics.fit(1000, 4000)
    assert not topics.is_gone("Old")
    assert topics.is_gone("New")
    assert topics.log_ends() == {"New": 4000}, "what lies beyond was written after the power cut"
    assert topics.note_made_again("New")
    assert not topics.note_made_again("New")
    assert not topics.is_gone("New")


# --------------------------------------------------------------------------------------------------- what comes later

LATER = {
    "level": {"DELAY": "2"},
    "timer": {"TIMER_DELAY_SEC": "5"},
    "half": {"TRAN_MSG": "true", "PGROUP": "pg"},
}


@pytest.mark.parametrize("kind", LATER)
def test_without_a_table_what_waits_for_its_time_comes_to_a_topic_that_can_be_read(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    bench = TimerBench(tmp_path)
    answers = []
    for queue_id in (1, 3):
        properties = LATER[kind] | {"UNIQ_KEY": f"K{queue_id}"}
        flags = "4" if kind == "half" else "0"
        answers.append(bench.send("Later", b"%d" % queue_id, properties=properties, e=queue_id, f=flags, g=0))
        assert answers[-1].code == 0
    now_ms = bench.clock.now_ms()
    bench.settle()
    bench.store.abandon()
    bench.timers.crash()
    bench.loop.close()
    bench._worker.shutdown()
    again = TimerBench(tmp_path, now_ms=now_ms)
    assert "Later" not in again.node.topics, "nothing of it is in a queue of its own yet"
    for answer in answers if kind == "half" else ():
        fields = {"producerGroup": "pg", "tranStateTableOffset": answer.ext["queueOffset"], "commitOrRollback": "8"}
        place = {"commitLogOffset": str(int(answer.ext["msgId"][-16:], 16)), "msgId": answer.ext["transactionId"]}
        assert again.ask(37, fields | place | {"fromTransactionCheck": "false"}).code == 0
    again.run_ms(7000)
    again.delay.tick(again.clock.now_ms())
    again.settle()
    assert (bodies(again, "Later", 1), bodies(again, "Later", 3)) == ([b"1"], [b"3"])
    topic = again.node.topics.get("Later")
    assert topic is not None
    assert topic.read_queues == 4
    assert "adopted topic Later: a message came to its queue 1" in caplog.text
    again.close()


def test_a_retry_that_waits_for_a_deleted_group_does_not_bring_it_back(tmp_path: Path) -> None:
    bench = TimerBench(tmp_path)
    bench.send("T", b"poison")
    assert bench.ask(36, {"offset": "0", "group": "g", "delayLevel": "2", "originTopic": "T"}).code == 0
    assert bench.ask(207, {"groupName": "g", "cleanOffset": "true"}).code == 0
    bench.clock.advance(7000)
    bench.delay.tick(bench.clock.now_ms())
    bench.settle()
    assert bench.store.max_offset("%RETRY%g", 0) == 1
    assert "%RETRY%g" not in bench.node.topics
    assert bench.node.groups.get("g") is None
    bench.close()


TABLES_OF_TIME = {
    "levels": ("config/delayOffset.json", "config/delayOffset.json.bak"),
    "timer checkpoint": ("config/timercheck",),
    "timer wheel": ("timerwheel",),
    "timer log and wheel": ("timerlog", "timerwheel"),
    "all tables": ("config", "timerlog", "timerwheel"),
    "all but the log": ("config", "timerlog", "timerwheel", "consumequeue", "index", "queues.ledger", "checkpoint"),
}


@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.parametrize("lost", TABLES_OF_TIME.values(), ids=TABLES_OF_TIME)
def test_whatever_is_lost_of_the_tables_of_levels_and_timers_no_message_is(
    tmp_path: Path, lost: tuple[str, ...], how: str
) -> None:
    """Their positions are derived from the log's queues: what was delivered before may come again."""
    bench = TimerBench(tmp_path)
    sent = set()
    for name, properties in {
        "soon level": {"DELAY": "1"},
        "late level": {"DELAY": "4"},
        "soon timer": {"TIMER_DELAY_SEC": "1"},
        "late timer": {"TIMER_DELAY_SEC": "30"},
    }.items():
        assert bench.send("T", name.encode(), properties=properties | {"UNIQ_KEY": name}).code == 0
        sent.add(name.encode())
    bench.run_ms(3000)
    bench.delay.tick(bench.clock.now_ms())
    bench.settle()
    assert {message.body for message in bench.messages()} == {b"soon level", b"soon timer"}
    now_ms = bench.clock.now_ms()
    if how == "stopped":
        bench.delay.stop()
        bench.run(bench.saver.save(TOPICS_FILE))
        bench.close()
    else:
        bench.timers.crash()
        bench.delay.crash()
        bench.store.abandon()
        bench.loop.close()
        bench._worker.shutdown()
    for name in lost:
        remove(tmp_path / "store" / name)
    again = TimerBench(tmp_path, now_ms=now_ms)
    again.run_ms(60_000)
    again.delay.tick(again.clock.now_ms())
    again.settle()
    assert set(bodies(again, "T")) == sent
    again.close()


# --------------------------------------------------------------------------------------------------- a broker's life


@pytest.mark.parametrize("files", [("topics.json", "topics.json.bak"), ("",)], ids=["no topics.json", "no config"])
def test_a_store_without_tables_serves_all_its_messages(tmp_path: Path, files: tuple[str, ...]) -> None:
    sent: dict[str, set[bytes]] = {}
    with LocalCluster(store=tmp_path) as cluster:
        with Producer("shop", namesrv=cluster.namesrv) as producer:
            for number in range(40):
                topic = f"Orders{number % 4}"
                sent.setdefault(topic, set()).add(b"%d" % number)
                producer.send(Message(topic, b"%d" % number))
            producer.send_batch([Message("Batched", b"a"), Message("Batched", b"b")])
            sent["Batched"] = {b"a", b"b"}
        cluster.stop_broker()
        config = tmp_path / "broker-0" / "config"
        for name in files:
            shutil.rmtree(config) if not name else (config / name).unlink(missing_ok=True)
        cluster.restart_broker()
        with QueueReader(namesrv=cluster.namesrv) as reader:
            for topic, expected in sent.items():
                found = [message for queue in reader.queues(topic) for message in pulled(reader, queue)]
                assert set(found) == expected
                assert len(found) == len(expected)
        cluster.stop_broker()
        assert "Orders3" in (config / "topics.json").read_text(), "adopted for good"


def pulled(reader: QueueReader, queue: MessageQueue) -> list[bytes]:
    return [message.body for message in records(bytes(reader.pull(queue, 0).body))]


def test_a_topic_deleted_and_a_broker_killed_stay_so(tmp_path: Path) -> None:
    with LocalCluster(store=tmp_path) as cluster, Producer("shop", namesrv=cluster.namesrv) as producer:
        for _ in range(3):
            producer.send(Message("Orders", b"o"))
            with Admin(namesrv=cluster.namesrv) as admin:
                admin.delete_topic("Orders")
            cluster.kill_broker()
            shutil.rmtree(tmp_path / "broker-0" / "consumequeue", ignore_errors=True)
            cluster.restart_broker()
            assert "Orders" not in Admin(namesrv=cluster.namesrv).topics()


def ask(cluster: LocalCluster, code: int, fields: Mapping[str, str], body: bytes = b"") -> Command:
    with closing(RawConnection(cluster.broker_addresses[0])) as connection:
        return connection.invoke(RequestCode(code), fields, body, timeout_s=120)


def test_a_killed_broker_opens_batch_queues_as_such(tmp_path: Path) -> None:
    made = {"topic": "Batch", "defaultTopic": "TBW102", "readQueueNums": "1", "writeQueueNums": "1", "perm": "6"}
    more = {"topicFilterType": "SINGLE_TAG", "order": "false", "topicSysFlag": "0", "attributes": "+queue.type=BatchCQ"}
    batch = encode_batch([BatchPart(0, b"m%d" % number, b"") for number in range(3)])
    fields = send_fields("Batch", properties="UNIQ_KEY\x01b\x02", m="true")
    with LocalCluster(store=tmp_path) as cluster:
        assert ask(cluster, 17, made | more).code == 0
        assert ask(cluster, 310, send_fields("Batch"), b"alone").code == 0
        assert ask(cluster, 320, fields, batch).ext["queueOffset"] == "1"
        cluster.kill_broker()
        cluster.restart_broker()
        with QueueReader(namesrv=cluster.namesrv) as reader:
            assert pulled(reader, MessageQueue("Batch", "broker-0", 0)) == [b"alone", batch]


def test_a_broker_that_cannot_save_a_topic_says_so_until_it_can(tmp_path: Path) -> None:
    config = tmp_path / "broker-0" / "config"
    with LocalCluster(store=tmp_path) as cluster:
        (config / "topics.json.tmp").mkdir(parents=True)
        refused = ask(cluster, 310, send_fields("Orders"), b"1")
        assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "the message is stored" in (refused.remark or "")
        assert "topics.json cannot be saved: Is a directory: make room or mend" in (refused.remark or "")
        (config / "topics.json.tmp").rmdir()
        assert ask(cluster, 310, send_fields("Orders"), b"2").code == 0
        cluster.kill_broker()
        assert "Orders" in (config / "topics.json").read_text()
        cluster.restart_broker()
        with QueueReader(namesrv=cluster.namesrv) as reader:
            assert pulled(reader, MessageQueue("Orders", "broker-0", 0)) == [b"1", b"2"]


def test_adopting_says_which_files_are_out_of_date(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    assert bench.adoption.at_opening() == []
    bench.store.put(Message("%RETRY%g", b"r"))
    bench.store.dispatch()
    assert bench.adoption.at_opening() == [TOPICS_FILE, GROUPS_FILE]
    assert bench.adoption.at_opening() == []
    bench.close()


@pytest.mark.parametrize("name", golden_stores.NAMES)
def test_in_a_store_of_apaches_broker_only_topics_are_adopted_that_its_table_lacks(tmp_path: Path, name: str) -> None:
    path = golden_stores.unpack(name, tmp_path)
    table = path / "config" / "topics.json"
    before = config_files.entries(config_files.parse(table.read_text()), "topicConfigTable") if table.exists() else {}
    config, _ = BrokerConfig.from_properties({"brokerName": "golden", "brokerClusterName": "GoldenCluster"})
    with MessageStore(StoreConfig(path), drive=Drive.LOOP) as store:
        node = BrokerNode(
            config, store, clock=SystemClock(), call_soon=lambda call: None, address=("127.0.0.1", 10_911)
        )
        node.load()
        Adoption(node).at_opening()
        held = {topic for (topic, _), (low, high) in store.queues().items() if high > low}
        assert {topic for topic in held if not topic.startswith("rmq_sys_")} <= set(node.topics.names())
        for topic, entry in before.items():
            known = node.topics.get(topic)
            assert known is not None
            assert known.to_json() == Topic.from_json(entry).to_json(), "as its operator left it"
