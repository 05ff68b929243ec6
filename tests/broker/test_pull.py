"""Pulling: checks, subscriptions, filters, offsets, holding and waking."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from broker.harness import Bench, Link, pull_fields, records, send_fields
from contrailmq.broker.filters import SqlFilter
from contrailmq.broker.requests.cold_reads import RUNNING_MAX
from contrailmq.broker.state.groups import Group
from contrailmq.broker.state.topics import Topic
from contrailmq.store.base.status import GetResult
from contrailmq.wire.codes import ResponseCode
from contrailmq.wire.header import Command

SUSPEND = 2 | 4


def fill(bench: Bench, count: int, **properties: str) -> None:
    for number in range(count):
        bench.send(body=b"%d" % number, properties=properties)


def offsets(answer: Command) -> tuple[int, int, int, int]:
    ext = answer.ext
    return (
        int(ext["suggestWhichBrokerId"]),
        int(ext["nextBeginOffset"]),
        int(ext["minOffset"]),
        int(ext["maxOffset"]),
    )


def test_found_messages_come_with_every_field(bench: Bench) -> None:
    fill(bench, 3)
    (answer,) = bench.pull(offset=1)
    assert answer.code == 0
    assert offsets(answer) == (0, 3, 0, 3)
    assert (answer.ext["topicSysFlag"], answer.ext["groupSysFlag"]) == ("0", "0")
    assert [message.body for message in records(answer.body)] == [b"1", b"2"]


@pytest.mark.parametrize("is_binary", [False, True])
def test_lite_pull_and_binary_headers_are_served_alike(bench: Bench, is_binary: bool) -> None:
    fill(bench, 1)
    for code in (11, 361):
        answer = bench.ask(code, pull_fields("T", 0), is_binary=is_binary)
        assert answer.code == 0
        assert len(records(answer.body)) == 1


@pytest.mark.parametrize(
    ("stored", "offset", "code", "next_offset"),
    [
        (0, 0, ResponseCode.PULL_NOT_FOUND, 0),
        (0, 5, ResponseCode.PULL_OFFSET_MOVED, 0),
        (3, 3, ResponseCode.PULL_NOT_FOUND, 3),
        (3, 4, ResponseCode.PULL_OFFSET_MOVED, 3),
        (3, 100, ResponseCode.PULL_OFFSET_MOVED, 3),
    ],
)
def test_an_offset_outside_of_the_queue_is_corrected(
    bench: Bench, stored: int, offset: int, code: int, next_offset: int
) -> None:
    bench.node.topics.put(Topic("T", read_queues=4, write_queues=4))
    fill(bench, stored)
    (answer,) = bench.pull(offset=offset)
    assert answer.code == code
    assert offsets(answer)[1] == next_offset


@pytest.mark.parametrize(
    ("fields", "code", "hint"),
    [
        ({"topic": "Nothing"}, ResponseCode.TOPIC_NOT_EXIST, "Nothing"),
        ({"queueId": "4"}, ResponseCode.INVALID_PARAMETER, "has 4 queues"),
        ({"queueId": "-1"}, ResponseCode.INVALID_PARAMETER, "queueId -1"),
        ({"consumerGroup": "bad group!"}, ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, "bad group"),
        ({"consumerGroup": "shut"}, ResponseCode.NO_PERMISSION, "consumeEnable=false"),
        ({"topic": "Write"}, ResponseCode.NO_PERMISSION, "perm=2"),
        ({"consumerGroup": "barred"}, ResponseCode.NO_PERMISSION, "may not read"),
        ({"subscription": "a >", "expressionType": "SQL92"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "expected"),
        ({"subscription": "||"}, ResponseCode.SUBSCRIPTION_PARSE_FAILED, "names no tag"),
        ({"sysFlag": "0"}, ResponseCode.SUBSCRIPTION_NOT_EXIST, "not online"),
        ({"queueOffset": "x"}, ResponseCode.INVALID_PARAMETER, "queueOffset"),
    ],
)
def test_what_may_not_be_pulled_is_refused(bench: Bench, fields: dict[str, str], code: int, hint: str) -> None:
    bench.node.topics.put(Topic("T", read_queues=4, write_queues=4))
    bench.node.topics.put(Topic("Write", perm=2))
    bench.node.groups.put(Group("shut", consume_enable=False))
    bench.node.groups.set_readable("barred", "T", is_readable=False)
    answer = bench.ask(11, pull_fields("T", 0) | fields)
    assert (answer.code, hint in (answer.remark or "")) == (code, True), answer.remark


def test_forbidden_answers_name_the_kind(bench: Bench) -> None:
    bench.config.broker_permission = 2
    bench.node.topics.put(Topic("T"))
    assert bench.ask(11, pull_fields("T", 0)).ext["forbiddenType"] == "1"
    bench.config.broker_permission = 6
    bench.config.lite_pull_message_enable = False
    assert bench.ask(361, pull_fields("T", 0)).code == ResponseCode.NO_PERMISSION


def test_the_subscription_of_the_heartbeat_is_used_and_its_version_checked(bench: Bench) -> None:
    fill(bench, 1, TAGS="TagA")
    bench.heartbeat("T", expression="TagB", version=5)
    assert bench.ask(11, pull_fields("T", 0, sysFlag=0, subVersion=6)).code == ResponseCode.SUBSCRIPTION_NOT_LATEST
    (answer,) = bench.pull(sysFlag=0, subVersion=5)
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert offsets(answer)[1] == 1
    bench.node.topics.put(Topic("Other"))
    assert bench.ask(11, pull_fields("Other", 0, sysFlag=0)).code == ResponseCode.SUBSCRIPTION_NOT_EXIST


def test_a_broadcasting_group_may_be_refused(bench: Bench) -> None:
    fill(bench, 1)
    bench.node.groups.put(Group("g", consume_broadcast_enable=False))
    bench.heartbeat("T", model=0)
    answer = bench.ask(11, pull_fields("T", 0, sysFlag=0))
    assert (answer.code, answer.ext["forbiddenType"]) == (ResponseCode.NO_PERMISSION, "4")


def test_an_unusable_expression_of_a_heartbeat_is_told_at_the_pull(bench: Bench) -> None:
    fill(bench, 1)
    bench.heartbeat("T", expression="a >", expression_type="SQL92")
    answer = bench.ask(11, pull_fields("T", 0, sysFlag=0))
    assert answer.code == ResponseCode.FILTER_DATA_NOT_EXIST
    assert "expected" in (answer.remark or "")


def test_tags_and_sql_filter_on_the_broker(bench: Bench) -> None:
    for tag, region in (("TagA", "eu"), ("TagB", "us"), ("TagA", "us")):
        bench.send(properties={"TAGS": tag, "region": region})
    (tags,) = bench.pull(subscription="TagA")
    assert [message.queue_offset for message in records(tags.body)] == [0, 2]
    (sql,) = bench.pull(subscription="region = 'us' AND TAGS = 'TagA'", expressionType="SQL92")
    assert [message.queue_offset for message in records(sql.body)] == [2]
    assert offsets(sql)[1] == 3
    bench.config.enable_property_filter = False
    assert bench.ask(11, pull_fields("T", 0, subscription="a=1", expressionType="SQL92")).code == 1


def test_expressions_that_are_kept_compiled_are_bounded_together(bench: Bench) -> None:
    """A compiled expression takes up to 100 times its text; one client must not fill memory with them."""
    bench.pulls.parsed_chars_max = 1000
    bench.send()
    for number in range(100):
        ext = pull_fields("T", 0, expressionType="SQL92", subscription=f"colour = 'number {number}'")
        assert bench.ask(11, ext).code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert bench.pulls.parsed_chars <= 1000
    refused = bench.ask(11, pull_fields("T", 0, subscription="||".join("t" * 60 for _ in range(2200))))
    assert refused.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED
    assert "136398 characters, the limit is 131072" in (refused.remark or "")


def test_an_expression_that_takes_long_is_matched_by_a_worker(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The largest that is allowed took 2.7 s for the 800 messages of one pull, on the loop that serves everybody."""
    threads: list[str] = []
    original = SqlFilter.match_record

    def match(self: SqlFilter, record: memoryview) -> bool:
        threads.append(threading.current_thread().name)
        return original(self, record)

    monkeypatch.setattr(SqlFilter, "match_record", match)
    for number in range(20):
        bench.send(properties={"a": str(number)})

    def pulled(expression: str, offset: int = 0) -> list[int]:
        async def ask() -> list[Command]:
            ext = pull_fields("T", offset, expressionType="SQL92", subscription=expression)
            bench.handlers.handle(bench.link, [bench.command(11, ext)])
            await bench.link.replied(1)
            return bench.link.take()

        (answer,) = bench.run(ask())
        assert answer.code == 0
        return [int(message.properties["a"]) for message in records(answer.body)]

    light = " OR ".join(f"a = {number}" for number in (3, 5))
    heavy = " OR ".join(f"a = {number}" for number in range(3, 19, 1))
    assert pulled(light) == [3, 5]
    assert set(threads) == {threading.main_thread().name}
    threads.clear()
    assert pulled(heavy, 2) == list(range(3, 19))
    assert threading.main_thread().name not in threads


@pytest.mark.parametrize(("value", "code"), [("7", 0), ("70", ResponseCode.PULL_RETRY_IMMEDIATELY)])
def test_a_held_pull_with_an_expression_that_takes_long_is_woken_by_any_arrival_and_matched_by_a_worker(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, value: str, code: int
) -> None:
    """A thousand of them would hold up the producer whose message it is."""
    on_the_loop: list[bytes] = []
    monkeypatch.setattr(SqlFilter, "match_properties", lambda self, properties: on_the_loop.append(properties))
    heavy = " OR ".join(f"a = {number}" for number in range(20))
    bench.send(properties={"a": "99"})
    assert bench.pull("T", 1, sysFlag=6, expressionType="SQL92", subscription=heavy) == []

    async def arrive() -> list[Command]:
        bench.handlers.handle(Link(2), [bench.command(310, send_fields("T", properties={"a": value}), b"x")])
        bench.settle()
        await bench.link.replied(1)
        return bench.link.take()

    (answer,) = bench.run(arrive())
    assert (answer.code, answer.ext["nextBeginOffset"]) == (code, "2")
    assert on_the_loop == []


def test_the_offset_that_rides_along_is_committed(bench: Bench) -> None:
    fill(bench, 9)
    bench.pull(offset=0, sysFlag=5, commitOffset=7)
    assert bench.node.offsets.query("g", "T", 0) == 7
    bench.pull(offset=0, sysFlag=4, commitOffset=9)
    assert bench.node.offsets.query("g", "T", 0) == 7
    assert bench.node.offsets.query_pull("g", "T", 0) == 0


@pytest.mark.parametrize("way", ["commit", "pull"])
@pytest.mark.parametrize("offset", [4, 1000, 2**62])
def test_an_offset_committed_beyond_the_end_is_the_end_and_nothing_that_comes_later_is_passed_over(
    bench: Bench, way: str, offset: int, caplog: pytest.LogCaptureFixture
) -> None:
    fill(bench, 3)
    if way == "pull":
        (answer,) = bench.pull(offset=offset, sysFlag=5, commitOffset=offset)
        assert (answer.code, offsets(answer)[1]) == (ResponseCode.PULL_OFFSET_MOVED, 3)
    else:
        bench.pull(offset=0)
        fields = {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": offset}
        assert bench.ask(15, fields).code == 0
    assert bench.node.offsets.query("g", "T", 0) == 3
    assert f"committed {offset} in queue 0 of topic T, which ends at 3" in caplog.text
    fill(bench, 2)
    (found,) = bench.pull(offset=int(bench.ask(14, {"consumerGroup": "g", "topic": "T", "queueId": 0}).ext["offset"]))
    assert len(records(found.body)) == 2


def test_a_negative_offset_is_not_committed(bench: Bench) -> None:
    fill(bench, 3)
    bench.pull(offset=0, sysFlag=5, commitOffset=2)
    bench.pull(offset=0, sysFlag=5, commitOffset=-1)
    answer = bench.ask(15, {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": -5})
    assert (answer.code, "commitOffset -5" in (answer.remark or "")) == (ResponseCode.INVALID_PARAMETER, True)
    assert bench.node.offsets.query("g", "T", 0) == 2


def test_a_slave_takes_an_offset_of_its_master_that_lies_beyond_its_own_queue(tmp_path: Path) -> None:
    bench = Bench(tmp_path, settings={"brokerId": "1"}, broker_role="SLAVE")
    bench.node.topics.put(Topic("T"))
    bench.node.groups.find_or_create("g")
    bench.ask(15, {"consumerGroup": "g", "topic": "T", "queueId": 0, "commitOffset": 9})
    assert bench.node.offsets.query("g", "T", 0) == 9
    bench.close()


def test_a_reset_moves_the_next_pull_once(bench: Bench) -> None:
    fill(bench, 3)
    bench.node.offsets.reset("g", "T", 0, 1)
    (moved,) = bench.pull(offset=3)
    assert moved.code == ResponseCode.PULL_OFFSET_MOVED
    assert offsets(moved) == (0, 1, 0, 3)
    (found,) = bench.pull(offset=1)
    assert len(records(found.body)) == 2


@pytest.mark.parametrize(
    ("is_allowed", "in_sync", "suggested"), [("true", 1, "3"), ("true", 0, "0"), ("false", 1, "0")]
)
def test_a_consumer_that_is_far_behind_is_sent_to_the_slave_that_its_group_names(
    tmp_path: Path, is_allowed: str, in_sync: int, suggested: str
) -> None:
    bench = Bench(tmp_path, settings={"slaveReadEnable": is_allowed}, access_message_in_memory_max_ratio=0)
    bench.node.replicas.slaves_in_sync = lambda: in_sync
    bench.node.groups.put(Group("g", which_broker_when_slow=3))
    for _ in range(3):
        bench.send()
    (answer,) = bench.pull(maxMsgNums=1)
    assert (answer.code, answer.ext["suggestWhichBrokerId"]) == (0, suggested)
    bench.close()


def slave_of(path: Path, count: int, **settings: str) -> Bench:
    """A slave with so many messages of its master in queue 0 of T."""
    master = Bench(path / "master")
    for number in range(count):
        master.send(body=b"%d" % number, queueId="0")
    log = master.store.read_log(0, 1 << 20)
    data = bytes(log or b"")
    if log is not None:
        log.release()
    master.close()
    slave = Bench(path / "slave", settings={"brokerId": "1", "slaveReadEnable": "true"} | settings, broker_role="SLAVE")
    slave.node.topics.put(Topic("T", read_queues=4, write_queues=4))
    slave.node.groups.put(Group("g"))
    slave.store.replica.append(0, data)
    slave.node.after_append()
    slave.settle()
    return slave


def test_a_slave_gives_what_it_has_and_sends_consumers_back_to_the_master(tmp_path: Path) -> None:
    slave = slave_of(tmp_path, 3)
    slave.node.has_master = True
    (found,) = slave.pull(offset=1)
    assert [record.body for record in records(found.body)] == [b"1", b"2"]
    assert found.ext["suggestWhichBrokerId"] == "0"
    for offset in (3, 7):  # at its end, and beyond: the master may have more
        (answer,) = slave.pull(offset=offset)
        assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
        assert (answer.ext["suggestWhichBrokerId"], answer.ext["nextBeginOffset"]) == ("0", str(offset))
    assert len(slave.node.held) == 0
    slave.close()


@pytest.mark.parametrize("offset", [3, 7], ids=["at its end", "beyond"])
def test_a_client_whose_route_lacks_the_master_does_not_spin_at_the_slave(tmp_path: Path, offset: int) -> None:
    """It asks again as soon as it is answered: ten times a second, and not as often as the network lets it."""
    slave = slave_of(tmp_path, 3)
    slave.node.has_master = True
    consumer = Link(1)
    answers = 0
    assert slave.pull(link=consumer, offset=offset, sysFlag=SUSPEND, suspendTimeoutMillis="15000") == []
    for _ in range(1000):  # milliseconds
        slave.clock.advance(1)
        slave.node.held.expire(slave.node.monotonic_ms())
        for answer in consumer.take():
            answers += 1
            assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
            assert (answer.ext["suggestWhichBrokerId"], answer.ext["nextBeginOffset"]) == ("0", str(offset))
            slave.pull(link=consumer, offset=offset, sysFlag=SUSPEND, suspendTimeoutMillis="15000")
    assert answers == 10
    slave.close()


def test_a_consumer_that_a_filter_moves_on_is_not_held_up_at_the_slave(tmp_path: Path) -> None:
    slave = slave_of(tmp_path, 3)
    slave.node.has_master = True
    (answer,) = slave.pull(offset=0, sysFlag=SUSPEND, subscription="NoSuchTag", suspendTimeoutMillis="15000")
    assert (answer.code, answer.ext["nextBeginOffset"]) == (ResponseCode.PULL_RETRY_IMMEDIATELY, "3")
    slave.close()


def test_a_slow_consumer_stays_at_the_slave(tmp_path: Path) -> None:
    slave = slave_of(tmp_path, 3)
    slave.node.has_master = True
    slave.close()
    slave = Bench(
        tmp_path / "slave",
        settings={"brokerId": "1", "slaveReadEnable": "true"},
        broker_role="SLAVE",
        access_message_in_memory_max_ratio=0,
    )
    slave.node.topics.put(Topic("T", read_queues=4, write_queues=4))
    slave.node.groups.put(Group("g", which_broker_when_slow=1))
    (found,) = slave.pull(maxMsgNums=1)
    assert (found.code, found.ext["suggestWhichBrokerId"]) == (0, "1")
    slave.close()


def test_without_a_master_a_slave_holds_pulls_and_never_moves_an_offset(tmp_path: Path) -> None:
    slave = slave_of(tmp_path, 3)
    consumers = {offset: Link(offset) for offset in (3, 7)}
    for offset, link in consumers.items():
        assert slave.pull(link=link, offset=offset, sysFlag=SUSPEND, suspendTimeoutMillis="5000") == []
    assert len(slave.node.held) == 2
    slave.clock.advance(6000)
    slave.node.held.expire(slave.node.monotonic_ms())
    for offset, link in consumers.items():
        (answer,) = link.take()
        assert answer.code == ResponseCode.PULL_NOT_FOUND
        assert answer.ext["nextBeginOffset"] == str(offset)
    slave.close()


def test_a_slave_that_serves_no_reads_says_so(tmp_path: Path) -> None:
    slave = slave_of(tmp_path, 1, slaveReadEnable="false")
    (answer,) = slave.pull()
    assert answer.code == ResponseCode.SYSTEM_BUSY
    assert "slaveReadEnable" in answer.remark
    slave.close()


# ------------------------------------------------------------------------------------------------------ long polling


def test_a_pull_that_finds_nothing_is_held_and_woken_by_an_arrival(bench: Bench) -> None:
    bench.node.topics.put(Topic("T", read_queues=4, write_queues=4))
    consumer = Link(1)
    assert bench.pull(link=consumer, sysFlag=SUSPEND) == []
    assert len(bench.node.held) == 1
    bench.send(body=b"news")
    (answer,) = consumer.take()
    assert answer.code == 0
    assert records(answer.body)[0].body == b"news"
    assert len(bench.node.held) == 0


def test_an_arrival_that_the_filter_drops_wakes_only_the_check(bench: Bench) -> None:
    bench.node.topics.put(Topic("T", read_queues=4, write_queues=4))
    consumer = Link(1)
    bench.pull(link=consumer, sysFlag=SUSPEND, subscription="TagA")
    bench.send(properties={"TAGS": "TagB"})
    assert consumer.take() == []
    bench.node.held.recheck(bench.store.max_offset)
    (answer,) = consumer.take()
    assert answer.code == ResponseCode.PULL_RETRY_IMMEDIATELY
    assert offsets(answer)[1] == 1


def test_a_held_pull_answers_not_found_when_its_time_is_over(bench: Bench) -> None:
    bench.node.topics.put(Topic("T", read_queues=4, write_queues=4))
    consumer = Link(1)
    bench.pull(link=consumer, sysFlag=SUSPEND | 1, commitOffset=3, suspendTimeoutMillis=15_000)
    bench.node.offsets.commit("g", "T", 0, 9)
    bench.node.held.expire(bench.clock.monotonic_ms() + 15_000)
    (answer,) = consumer.take()
    assert answer.code == ResponseCode.PULL_NOT_FOUND
    assert offsets(answer) == (0, 0, 0, 0)
    assert bench.node.offsets.query("g", "T", 0) == 9, "the piggybacked offset was committed twice"


@pytest.mark.parametrize("step_ms", [-3_600_000, 3_600_000])
def test_a_clock_that_is_stepped_neither_ends_nor_prolongs_a_held_pull(bench: Bench, step_ms: int) -> None:
    bench.node.topics.put(Topic("T", read_queues=4, write_queues=4))
    consumer = Link(1)
    bench.pull(link=consumer, sysFlag=SUSPEND, suspendTimeoutMillis=15_000)
    bench.clock.set_wall(bench.clock.now_ms() + step_ms)
    bench.clock.advance(14_999)
    bench.node.held.expire(bench.node.monotonic_ms())
    assert consumer.take() == []
    bench.clock.advance(1)
    bench.node.held.expire(bench.node.monotonic_ms())
    assert [answer.code for answer in consumer.take()] == [ResponseCode.PULL_NOT_FOUND]


def test_a_held_pull_that_fails_is_answered_so_and_the_others_get_their_messages(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    bench.node.topics.put(Topic("T", read_queues=4, write_queues=4))
    unlucky, lucky = Link(1), Link(2)
    for link in (unlucky, lucky):
        bench.pull(link=link, sysFlag=SUSPEND)
    read, failures = bench.store.get_slices_warm, [OSError(5, "input/output error")]

    def failing_once(*args: Any, **kwargs: Any) -> GetResult | None:
        if failures:
            raise failures.pop()
        return read(*args, **kwargs)

    monkeypatch.setattr(bench.store, "get_slices_warm", failing_once)
    bench.send()
    (answer,) = unlucky.take()
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "input/output error" in (answer.remark or "")
    assert [answer.code for answer in lucky.take()] == [ResponseCode.SUCCESS]


def test_a_pull_finds_what_the_same_wakeup_sent_and_leaves_other_queues_to_its_end(bench: Bench) -> None:
    """Queues are brought up to date together at the end of a wakeup; a pull does it before only for its own queue."""
    bench.send(e=1)
    link = Link()
    send = bench.command(310, send_fields(e=0), b"new")
    elsewhere = bench.command(11, pull_fields("T", 1, queue_id=1, sysFlag=SUSPEND))
    bench.handlers.handle(link, [send, elsewhere])
    assert len(bench.node.held) == 1
    assert bench.store.max_offset("T", 0) == 0
    bench.handlers.handle(link, [bench.command(11, pull_fields("T", 0, queue_id=0))])
    _, pulled = link.take()
    assert [message.body for message in records(pulled.body)] == [b"new"]
    assert len(bench.node.held) == 1
    bench.handlers.handle(link, [bench.command(310, send_fields(e=1), b"second")])
    bench.settle()
    assert [message.body for answer in link.take() for message in records(answer.body)] == [b"second"]


def test_without_the_suspend_bit_nothing_is_held(bench: Bench) -> None:
    bench.node.topics.put(Topic("T", read_queues=4, write_queues=4))
    (answer,) = bench.pull(sysFlag=4)
    assert answer.code == ResponseCode.PULL_NOT_FOUND


def test_short_polling_holds_for_a_second(tmp_path: Path) -> None:
    bench = Bench(tmp_path, settings={"longPollingEnable": "false"})
    bench.node.topics.put(Topic("T", read_queues=4, write_queues=4))
    bench.pull(sysFlag=SUSPEND)
    bench.node.held.expire(bench.clock.monotonic_ms() + 999)
    assert len(bench.node.held) == 1
    bench.node.held.expire(bench.clock.monotonic_ms() + 1000)
    assert len(bench.node.held) == 0
    bench.close()


def test_a_reset_reaches_a_held_pull(bench: Bench) -> None:
    fill(bench, 2)
    consumer = Link(1)
    bench.pull(offset=2, link=consumer, sysFlag=SUSPEND)
    bench.node.offsets.reset("g", "T", 0, 0)
    bench.send()
    (answer,) = consumer.take()
    assert answer.code == ResponseCode.PULL_OFFSET_MOVED
    assert offsets(answer)[1] == 0


@pytest.mark.parametrize("readable", [0, 2])
def test_who_has_read_further_at_a_slave_than_the_disk_has_is_not_moved_back(tmp_path: Path, readable: int) -> None:
    """With SYNC_FLUSH a message can be read when it is synced. A slave may have it sooner (seed 20 of one minute)."""
    bench = Bench(tmp_path, flush_disk_type="SYNC_FLUSH")
    bench.node.topics.put(Topic("T", read_queues=4, write_queues=4))
    bench.store.request_flush = lambda: None  # type: ignore[method-assign]
    for _ in range(readable):
        bench.tell(310, send_fields(), b"x", link=Link(2))
    bench.store.flush()
    bench.node.durable(bench.store.durable_offset)
    for _ in range(2):
        bench.tell(310, send_fields(), b"y", link=Link(2))
    (answer,) = bench.pull(offset=readable + 2)
    assert (answer.code, offsets(answer)[1:]) == (ResponseCode.PULL_NOT_FOUND, (readable + 2, 0, readable))
    (beyond,) = bench.pull(offset=readable + 3)
    assert (beyond.code, offsets(beyond)[1]) == (ResponseCode.PULL_OFFSET_MOVED, readable)
    consumer = Link(1)
    assert bench.pull(offset=readable + 2, link=consumer, sysFlag=SUSPEND) == []
    bench.tell(310, send_fields(), b"z", link=Link(2))
    bench.store.flush()
    bench.node.durable(bench.store.durable_offset)
    (found,) = consumer.take()
    assert [message.body for message in records(found.body)] == [b"z"]
    bench.close()


def test_a_held_pull_of_a_topic_that_is_deleted_is_answered_so_at_once(bench: Bench) -> None:
    bench.send()
    other = Link(2)
    bench.send("Other")
    bench.pull("Other", 1, sysFlag=6, link=other)
    assert bench.pull("T", 1, sysFlag=6) == []
    deleted, held = bench.tell(215, {"topic": "T"}, settle=False)[::-1]
    assert (deleted.code, held.code) == (0, ResponseCode.TOPIC_NOT_EXIST)
    assert (other.take(), len(bench.node.held)) == ([], 1)


def test_what_was_allowed_when_a_pull_was_held_is_asked_again_when_it_is_woken(bench: Bench) -> None:
    bench.send()
    assert bench.pull("T", 1, sysFlag=6) == []
    bench.node.groups.set_readable("g", "T", is_readable=False)
    bench.send(link=Link(2))
    (answer,) = bench.link.take()
    assert (answer.code, answer.ext["forbiddenType"]) == (ResponseCode.NO_PERMISSION, "5")


def test_a_pull_whose_client_is_gone_is_not_answered(bench: Bench) -> None:
    bench.node.topics.put(Topic("T", read_queues=4, write_queues=4))
    consumer = Link(1)
    bench.pull(link=consumer, sysFlag=SUSPEND)
    consumer.close()
    bench.send()
    assert consumer.sent == []


def test_sends_and_pulls_of_one_wakeup_see_each_other(bench: Bench) -> None:
    """A pull right behind a send on the same connection finds the message although dispatch is put off."""
    bench.send()
    commands = [bench.command(310, send_fields(), b"x"), bench.command(11, pull_fields("T", 1))]
    bench.handlers.handle(bench.link, commands)
    sent, pulled = bench.link.take()
    assert sent.ext["queueOffset"] == "1"
    assert len(records(pulled.body)) == 1


# ---------------------------------------------------------------------------------------------------------- cold data


def test_what_is_not_in_memory_is_read_by_a_worker(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(bench, 3)
    monkeypatch.setattr(bench.store, "get_slices_warm", lambda *args, **kwargs: None)
    link = Link(1)

    async def pull() -> None:
        bench.handlers.handle(link, [bench.command(11, pull_fields("T", 0))])
        assert link.sent == []
        await link.replied(1)

    bench.run(pull())
    (answer,) = link.take()
    assert [message.body for message in records(answer.body)] == [b"0", b"1", b"2"]


def test_a_consumer_on_evicted_files_does_not_hold_up_producers(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk answers only after a send that came behind the pull was answered."""
    fill(bench, 3)
    monkeypatch.setattr(bench.store._reader.residency, "_opened_at", bench.store._reader._log.max_offset)
    monkeypatch.setattr(bench.store.files, "is_resident", lambda mapping, start, size_bytes: False)
    disk, readers = threading.Event(), set()
    read = bench.store.get_slices_cold

    def slow_read(*args: Any, **kwargs: Any) -> GetResult:
        readers.add(threading.current_thread())
        assert disk.wait(120)
        return read(*args, **kwargs)

    monkeypatch.setattr(bench.store, "get_slices_cold", slow_read)
    consumer, producer = Link(1), Link(2)

    async def run() -> None:
        bench.handlers.handle(consumer, [bench.command(11, pull_fields("T", 0))])
        bench.handlers.handle(producer, [bench.command(310, send_fields("T"), b"3")])
        bench.settle()
        await producer.replied(1)
        assert consumer.sent == []
        disk.set()
        await consumer.replied(1)

    bench.run(run())
    assert threading.main_thread() not in readers
    (answer,) = consumer.take()
    assert [message.body for message in records(answer.body)][:3] == [b"0", b"1", b"2"]
    assert [answer.code for answer in producer.take()] == [ResponseCode.SUCCESS]


def test_a_cold_read_that_fails_is_answered(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(bench, 1)
    monkeypatch.setattr(bench.store, "get_slices_warm", lambda *args, **kwargs: None)

    def broken(*args: Any, **kwargs: Any) -> GetResult:
        raise OSError(5, "input/output error")

    monkeypatch.setattr(bench.store, "get_slices_cold", broken)
    link = Link(1)

    async def pull() -> None:
        bench.handlers.handle(link, [bench.command(11, pull_fields("T", 0))])
        await asyncio.wait_for(link.replied(1), 120)

    bench.run(pull())
    (answer,) = link.take()
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "input/output error" in (answer.remark or "")


def test_cold_reads_of_one_connection_wait_for_each_other_and_all_are_answered(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(bench, 1)
    monkeypatch.setattr(bench.store, "get_slices_warm", lambda *args, **kwargs: None)
    read, at_once, most, lock, disk = bench.store.get_slices_cold, [0], [0], threading.Lock(), threading.Event()

    def counted(*args: Any, **kwargs: Any) -> GetResult:
        with lock:
            at_once[0] += 1
            most[0] = max(most[0], at_once[0])
        assert disk.wait(120)
        with lock:
            at_once[0] -= 1
        return read(*args, **kwargs)

    monkeypatch.setattr(bench.store, "get_slices_cold", counted)
    link = Link(1)

    async def pull() -> None:
        with ThreadPoolExecutor(RUNNING_MAX + 4) as workers:
            monkeypatch.setattr(bench.pulls._cold, "_workers", workers)
            bench.handlers.handle(link, [bench.command(11, pull_fields("T", 0)) for _ in range(3 * RUNNING_MAX)])
            assert bench.pulls._cold.waiting(link) == 2 * RUNNING_MAX
            disk.set()
            await link.replied(3 * RUNNING_MAX)

    bench.run(pull())
    assert [answer.code for answer in link.take()] == [ResponseCode.SUCCESS] * 3 * RUNNING_MAX
    assert 1 <= most[0] <= RUNNING_MAX


def test_cold_reads_that_wait_go_with_their_connection(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(bench, 1)
    monkeypatch.setattr(bench.store, "get_slices_warm", lambda *args, **kwargs: None)
    read, reads, disk = bench.store.get_slices_cold, [], threading.Event()

    def counted(*args: Any, **kwargs: Any) -> GetResult:
        reads.append(args)
        assert disk.wait(120)
        return read(*args, **kwargs)

    monkeypatch.setattr(bench.store, "get_slices_cold", counted)
    gone, other = Link(1), Link(2)

    async def pull() -> None:
        bench.handlers.handle(gone, [bench.command(11, pull_fields("T", 0)) for _ in range(RUNNING_MAX + 3)])
        gone.close()
        disk.set()
        bench.handlers.handle(other, [bench.command(11, pull_fields("T", 0))])
        await other.replied(1)

    bench.run(pull())
    assert len(reads) == RUNNING_MAX + 1
    assert gone.sent == []
    assert [answer.code for answer in other.take()] == [ResponseCode.SUCCESS]


def light_bench(path: Path, **settings: str) -> Bench:
    return Bench(path, settings=settings, enable_lmq=True, enable_multi_dispatch=True)


def test_a_light_queue_is_pulled_like_a_topic_of_one_queue(tmp_path: Path) -> None:
    bench = light_bench(tmp_path)
    for number in range(3):
        name = "%LMQ%b" if number == 1 else "%LMQ%a,%LMQ%b"
        bench.send(body=b"%d" % number, properties={"INNER_MULTI_DISPATCH": name})
    bench.settle()
    answer = bench.ask(11, pull_fields("%LMQ%a", 0))
    assert (answer.code, offsets(answer)) == (0, (0, 2, 0, 2))
    found = records(answer.body)
    assert [(message.topic, message.body) for message in found] == [("T", b"0"), ("T", b"2")]
    assert found[1].properties["INNER_MULTI_QUEUE_OFFSET"] == "1,2"
    assert bench.ask(30, {"topic": "%LMQ%b", "queueId": "0"}).ext["offset"] == "3"
    assert bench.ask(11, pull_fields("%LMQ%a", 2)).code == ResponseCode.PULL_NOT_FOUND
    refused = bench.ask(11, pull_fields("%LMQ%a", 0, queue_id=1))
    assert refused.code == ResponseCode.INVALID_PARAMETER
    assert "%LMQ%a" not in bench.node.topics
    bench.close()


def test_a_light_queue_remembers_the_offset_of_a_group_that_no_table_holds(tmp_path: Path) -> None:
    bench = light_bench(tmp_path, autoCreateSubscriptionGroup="false")
    bench.send(properties={"INNER_MULTI_DISPATCH": "%LMQ%a"})
    place = {"consumerGroup": "%LMQ%g", "topic": "%LMQ%a", "queueId": "0"}
    assert bench.ask(15, place | {"commitOffset": "1"}).code == 0
    assert bench.ask(14, place).ext["offset"] == "1"
    assert bench.ask(11, pull_fields("%LMQ%a", 0, group="%LMQ%g")).code == 0
    assert "%LMQ%g" not in bench.node.groups
    bench.close()


def test_without_light_queues_their_names_are_those_of_missing_topics(bench: Bench) -> None:
    assert bench.ask(11, pull_fields("%LMQ%a", 0)).code == ResponseCode.TOPIC_NOT_EXIST
    place = {"consumerGroup": "g", "topic": "%LMQ%a", "queueId": "0", "commitOffset": "1"}
    assert bench.ask(15, place).code == ResponseCode.TOPIC_NOT_EXIST


def test_a_held_pull_of_a_light_queue_is_answered_by_a_message_for_it(tmp_path: Path) -> None:
    bench = light_bench(tmp_path)
    link = Link()
    bench.send(properties={"INNER_MULTI_DISPATCH": "%LMQ%a"})
    bench.settle()
    bench.tell(11, pull_fields("%LMQ%a", 1, sysFlag=str(SUSPEND), suspendTimeoutMillis="15000"), link=link)
    assert link.sent == []
    bench.send(body=b"other")
    bench.settle()
    assert link.sent == []
    bench.send(body=b"late", properties={"INNER_MULTI_DISPATCH": "%LMQ%a"})
    bench.settle()
    (answer,) = link.take()
    assert [message.body for message in records(answer.body)] == [b"late"]
    bench.close()
