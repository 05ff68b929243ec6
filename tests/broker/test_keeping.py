"""Whatever an acknowledgement relies on is on the disk before it: new and changed topics, groups, retry topics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from broker.harness import Bench, Link, send_fields
from broker.test_timers import TimerBench
from contrailmq.broker.state.config_files import TableSaveError
from contrailmq.broker.state.keeping import GROUPS_FILE, TOPICS_FILE
from contrailmq.broker.state.persistence import TableSaver
from contrailmq.broker.state.topics import Topic
from contrailmq.message.codec import BatchPart, encode_batch
from contrailmq.wire.codes import ResponseCode
from contrailmq.wire.header import Command

FULL = TableSaveError(Path("config/topics.json"), OSError(28, "No space left on device"))


class Disk:
    """Where the tables would be saved: notes who waits for which file."""

    def __init__(self, bench: Bench) -> None:
        self.waiting: list[tuple[str, Callable[[TableSaveError | None], None]]] = []
        bench.node.keeping.when_saved = lambda file, call: self.waiting.append((file, call))

    def write(self, error: TableSaveError | None = None) -> list[str]:
        """One save of everything that changed; the files."""
        waiting, self.waiting = self.waiting, []
        for _, call in waiting:
            call(error)
        return sorted({file for file, _ in waiting})


@pytest.fixture
def later(tmp_path: Path) -> Iterator[TimerBench]:
    made = TimerBench(tmp_path)
    yield made
    made.close()


def body_of_batch() -> bytes:
    return encode_batch([BatchPart(0, b"m%d" % number, b"") for number in range(2)])


KINDS: dict[str, tuple[dict[str, Any], bytes]] = {
    "single": ({}, b"x"),
    "batch": ({"m": "true"}, body_of_batch()),
    "level": ({"properties": {"DELAY": "2"}}, b"x"),
    "timer": ({"properties": {"TIMER_DELAY_SEC": "60"}}, b"x"),
    "half": ({"properties": {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": "K"}, "f": "4"}, b"x"),
    "no wait": ({"properties": {"WAIT": "false"}}, b"x"),
}


@pytest.mark.parametrize("is_binary", [False, True], ids=["JSON", "binary"])
@pytest.mark.parametrize("kind", KINDS)
def test_the_first_message_of_a_topic_is_acknowledged_when_the_topic_is_on_the_disk(
    later: TimerBench, kind: str, is_binary: bool
) -> None:
    disk = Disk(later)
    fields, body = KINDS[kind]
    assert later.tell(310, send_fields("New", **fields), body, is_binary=is_binary) == []
    assert later.tell(310, send_fields("New"), b"y") == [], "nor is the second, which relies on it as well"
    assert later.send("TBW102", b"others do not wait").code == 0
    assert disk.write() == [TOPICS_FILE]
    assert [answer.code for answer in later.link.take()] == [0, 0]
    assert later.send("New", b"z").code == 0
    assert not disk.waiting


@pytest.mark.parametrize("kind", KINDS)
def test_with_synchronous_flush_it_waits_for_log_and_table_in_either_order(tmp_path: Path, kind: str) -> None:
    bench = TimerBench(tmp_path, flush_disk_type="SYNC_FLUSH")
    bench.store.request_flush = lambda: None  # type: ignore[method-assign]
    fields, body = KINDS[kind]
    for name, steps in (("TableFirst", "table log"), ("LogFirst", "log table")):
        disk = Disk(bench)
        assert bench.tell(310, send_fields(name, **fields), body) == []
        answers: list[Command] = []
        for step in steps.split():
            assert answers == [], f"{name} before {step}"
            if step == "table":
                disk.write()
            else:
                bench.node.durable(bench.store.log_max_offset)
            answers += bench.link.take()
            if kind == "no wait" and step == "table":
                break
        assert [answer.code for answer in answers] == [0]
    bench.close()


def test_a_topic_that_cannot_be_saved_is_no_acknowledgement_and_the_next_sender_waits_for_the_next_try(
    bench: Bench,
) -> None:
    disk = Disk(bench)
    assert bench.tell(310, send_fields("New"), b"x") == []
    disk.write(FULL)
    (answer,) = bench.link.take()
    assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert answer.remark == (
        "the message is stored, but its topic or group may be forgotten by a crash: config/topics.json cannot be "
        "saved: No space left on device: make room or mend the directory; what changed is in effect, and is saved as "
        "soon as that works"
    )
    assert bench.tell(310, send_fields("New"), b"y") == []
    disk.write()
    (answer,) = bench.link.take()
    assert (answer.code, answer.ext["queueOffset"]) == (0, "1")
    assert bench.send("New").code == 0


def test_a_message_to_a_queue_that_a_change_added_waits_for_that_change(bench: Bench) -> None:
    bench.node.topics.put(Topic("T", read_queues=1, write_queues=1))
    disk = Disk(bench)
    bench.node.topics.put(Topic("T", read_queues=4, write_queues=4))
    assert bench.tell(310, send_fields("T", e=3), b"x") == []
    disk.write()
    assert bench.link.take()[0].code == 0


@pytest.mark.parametrize(("level", "topic"), [(0, "%RETRY%g"), (-1, "%DLQ%g")], ids=["retry", "dead letter"])
def test_a_message_sent_back_is_acknowledged_when_its_topic_and_group_are_on_the_disk(
    bench: Bench, level: int, topic: str
) -> None:
    bench.send(body=b"poison")
    disk = Disk(bench)
    back = {"offset": "0", "group": "g", "delayLevel": str(level), "originTopic": "T"}
    assert bench.tell(36, back) == []
    assert topic in bench.node.topics
    assert disk.write() == [GROUPS_FILE, TOPICS_FILE]
    assert bench.link.take()[0].code == 0
    assert bench.ask(36, back).code == 0
    bench.node.topics.delete(topic)
    assert bench.tell(36, back) == []
    disk.write(FULL)
    assert bench.link.take()[0].code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_with_synchronous_flush_a_message_sent_back_is_acknowledged_when_its_copy_is_durable(tmp_path: Path) -> None:
    bench = Bench(tmp_path, flush_disk_type="SYNC_FLUSH")
    assert bench.send(properties={"WAIT": "false"}, body=b"poison").code == 0
    asked: list[None] = []
    bench.store.request_flush = lambda: asked.append(None)  # type: ignore[method-assign]
    back = {"offset": "0", "group": "g", "delayLevel": "0", "originTopic": "T"}
    assert bench.tell(36, back) == []
    assert len(asked) == 1
    bench.node.durable(bench.store.log_max_offset)
    assert [answer.code for answer in bench.link.take()] == [0]
    bench.tell(36, back)
    bench.node.parked.expire(bench.clock.monotonic_ms() + 5000)
    (late,) = bench.link.take()
    assert late.code == ResponseCode.FLUSH_DISK_TIMEOUT
    assert "syncFlushTimeout=5000" in (late.remark or "")
    bench.tell(36, back)
    bench.node.durable(-1)
    assert bench.link.take()[0].code == ResponseCode.SERVICE_NOT_AVAILABLE
    bench.close()


def test_a_retry_that_a_consumer_sends_itself_waits_for_the_topic_of_its_dead_letter(bench: Bench) -> None:
    bench.heartbeat("T")
    disk = Disk(bench)
    assert bench.tell(310, send_fields("%RETRY%g", j=17), b"poison") == []
    assert "%DLQ%g" in bench.node.topics
    disk.write()
    assert bench.link.take()[0].code == 0


def test_a_heartbeat_waits_for_its_group_and_is_answered_also_when_that_cannot_be_saved(bench: Bench) -> None:
    """Nothing that a crash takes was acknowledged: the next heartbeat makes the group again."""
    disk = Disk(bench)
    body = b'{"clientID":"c","consumerDataSet":[{"groupName":"g"}]}'
    assert bench.tell(34, None, body, link=(consumer := Link(1))) == []
    assert disk.write(FULL) == [GROUPS_FILE, TOPICS_FILE]
    assert consumer.take()[0].code == 0


def test_a_reply_waits_for_the_topic_that_it_made(bench: Bench) -> None:
    fields = send_fields("Replies", properties={"REPLY_TO_CLIENT": "nobody"})

    async def ask() -> Command:
        waiting: asyncio.Future[Callable[[TableSaveError | None], None]] = asyncio.get_running_loop().create_future()
        bench.node.keeping.when_saved = lambda file, call: waiting.set_result(call)
        bench.handlers.handle(bench.link, [bench.command(325, fields, b"x")])
        saved = await waiting
        assert bench.link.sent == []
        saved(None)
        await bench.handlers.drain()
        return bench.link.take()[0]

    assert "not found" in (bench.run(ask()).remark or "")


def test_one_save_serves_all_that_changed_before_it_and_later_changes_get_the_next(tmp_path: Path) -> None:
    async def run() -> None:
        texts: list[str] = []
        changes: list[str] = []

        def snapshot() -> Callable[[], str]:
            texts.append(",".join(changes))
            return lambda: texts[-1]

        saved: list[tuple[str, str, TableSaveError | None]] = []

        def change(name: str) -> None:
            changes.append(name)
            path = tmp_path / "topics.json"
            saver.when_saved("topics.json", lambda error: saved.append((name, path.read_text(), error)))

        with ThreadPoolExecutor(1) as worker:
            saver = TableSaver(tmp_path, {"topics.json": snapshot}, worker)
            for name in "abc":
                change(name)
            under_way = asyncio.ensure_future(saver.save())
            await asyncio.sleep(0)  # it has taken its snapshot
            assert texts == ["a,b,c"]
            change("d")
            await under_way
            assert saved == [(name, "a,b,c", None) for name in "abc"]
            await saver.save()
            assert saved[3:] == [("d", "a,b,c,d", None)]
        assert texts == ["a,b,c", "a,b,c,d"]

    asyncio.run(run())


def test_who_waits_for_a_save_hears_of_the_failure_of_his_own_file_alone(tmp_path: Path) -> None:
    async def run() -> None:
        outcomes: dict[str, TableSaveError | None] = {}
        with ThreadPoolExecutor(1) as worker:
            saver = TableSaver(tmp_path, {"a.json": lambda: lambda: "A", "b.json": lambda: lambda: "B"}, worker)
            (tmp_path / "a.json.tmp").mkdir()
            for name in ("a.json", "b.json"):
                saver.when_saved(name, lambda error, name=name: outcomes.__setitem__(name, error))  # type: ignore[misc]
            with pytest.raises(TableSaveError, match=r"a\.json cannot be saved"):
                await saver.save()
        assert outcomes["b.json"] is None
        assert "a.json cannot be saved" in str(outcomes["a.json"])

    asyncio.run(run())
