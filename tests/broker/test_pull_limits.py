"""How much one pull gives: RocketMQ's limits for every client, and more for those that ask with `maxTransferBytes`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from broker.harness import Bench, Link, pull_fields, records, send_fields
from contrailmq.broker.state.topics import Topic
from contrailmq.client.producing.batch import pack_batch
from contrailmq.message import Message
from contrailmq.wire.header import Command

MIB = 1 << 20
SUSPEND = 2 | 4


def fill(bench: Bench, count: int, *, body_bytes: int = 10, **properties: str) -> None:
    for _ in range(count):
        bench.send(body=bytes(body_bytes), properties=properties)


def ask(bench: Bench, *, is_binary: bool = False, code: int = 11, **fields: Any) -> list[Command]:
    return bench.tell(code, pull_fields("T", 0, **fields), is_binary=is_binary)


def given(answers: list[Command]) -> tuple[int, int]:
    """(messages, next offset) of the one answer."""
    (answer,) = answers
    assert answer.code == 0, answer.remark
    return len(records(answer.body)), int(answer.ext["nextBeginOffset"])


@pytest.mark.parametrize("is_binary", [False, True])
@pytest.mark.parametrize("code", [11, 361])
@pytest.mark.parametrize("fields", [{}, {"maxMsgBytes": 4 * MIB}])
def test_a_pull_that_asks_for_1000_gets_32(bench: Bench, is_binary: bool, code: int, fields: dict[str, int]) -> None:
    """RocketMQ's maxTransferCountOnMessageInMemory; its brokers ignore maxMsgBytes."""
    fill(bench, 100)
    assert given(ask(bench, is_binary=is_binary, code=code, maxMsgNums=1000, **fields)) == (32, 32)


@pytest.mark.parametrize("asked_bytes", [100, 4 * MIB])
def test_a_pull_gets_262144_bytes_whatever_it_asks_for(bench: Bench, asked_bytes: int) -> None:
    fill(bench, 32, body_bytes=20_000)
    (answer,) = ask(bench, maxMsgNums=32, maxMsgBytes=asked_bytes)
    size = len(answer.body) // 12
    assert given([answer]) == (12, 12)
    assert 12 * size <= 262_144 < 13 * size


def test_what_is_far_from_the_end_of_the_log_comes_in_portions_of_8_messages_or_64_kib(tmp_path: Path) -> None:
    """With 0 % of the memory's size, whatever is not at the very end counts as on disk."""
    bench = Bench(tmp_path, access_message_in_memory_max_ratio=0)
    fill(bench, 20)
    assert given(ask(bench, maxMsgNums=1000)) == (8, 8)
    assert given(ask(bench, maxMsgNums=1000, maxTransferBytes=MIB)) == (20, 20)
    for _ in range(8):
        bench.send("Large", bytes(20_000))
    (answer,) = bench.pull("Large", maxMsgNums=1000)
    assert given([answer]) == (3, 3)
    (answer,) = bench.pull("Large", maxMsgNums=1000, maxTransferBytes=MIB)
    assert given([answer]) == (8, 8)
    bench.close()


@pytest.mark.parametrize("is_binary", [False, True])
@pytest.mark.parametrize("code", [11, 361])
def test_more_is_given_to_who_asks_with_the_field_of_our_clients(bench: Bench, is_binary: bool, code: int) -> None:
    fill(bench, 100)
    assert given(ask(bench, is_binary=is_binary, code=code, maxMsgNums=1000, maxTransferBytes=MIB)) == (100, 100)
    assert given(ask(bench, is_binary=is_binary, code=code, maxMsgNums=50, maxTransferBytes=MIB)) == (50, 50)


def test_the_field_of_our_clients_only_ever_raises_the_bytes(bench: Bench) -> None:
    fill(bench, 40, body_bytes=20_000)
    size = len(ask(bench, maxMsgNums=1)[0].body)
    assert given(ask(bench, maxMsgNums=40, maxTransferBytes=1)) == (262_144 // size, 262_144 // size)
    assert given(ask(bench, maxMsgNums=40, maxTransferBytes=-1)) == (262_144 // size, 262_144 // size)
    assert given(ask(bench, maxMsgNums=40, maxTransferBytes=20 * size)) == (20, 20)


def test_what_our_clients_may_ask_for_has_bounds_that_the_broker_sets(tmp_path: Path) -> None:
    bench = Bench(tmp_path, settings={"pullCountMax": "64", "pullBytesMax": "400000"})
    fill(bench, 100)
    assert given(ask(bench, maxMsgNums=2**31 - 1, maxTransferBytes=2**31 - 1)) == (64, 64)
    for _ in range(30):
        bench.send("Large", bytes(20_000))
    (answer,) = bench.pull("Large", maxMsgNums=1000, maxTransferBytes=2**31 - 1)
    assert 400_000 - 21_000 < len(answer.body) <= 400_000
    bench.close()


def test_a_setting_raises_what_every_client_gets(tmp_path: Path) -> None:
    bench = Bench(tmp_path, max_transfer_count_on_message_in_memory=60)
    fill(bench, 100)
    assert given(ask(bench, maxMsgNums=1000)) == (60, 60)
    assert given(ask(bench, maxMsgNums=40)) == (40, 40)
    bench.close()


@pytest.mark.parametrize(("fields", "count"), [({}, 32), ({"maxTransferBytes": MIB}, 50)])
@pytest.mark.parametrize(
    "subscription", [{"subscription": "a"}, {"subscription": "n = 'a'", "expressionType": "SQL92"}]
)
def test_a_filter_counts_the_messages_that_match(
    bench: Bench, fields: dict[str, int], count: int, subscription: dict[str, str]
) -> None:
    for _ in range(50):
        bench.send(properties={"TAGS": "a", "n": "a"})
        bench.send(properties={"TAGS": "b", "n": "b"})
    found, following = given(ask(bench, maxMsgNums=1000, **subscription, **fields))
    assert found == count
    assert following in (2 * count - 1, 2 * count)


@pytest.mark.parametrize(("fields", "count"), [({}, 32), ({"maxTransferBytes": MIB}, 50)])
def test_a_held_pull_gets_as_much_as_one_that_finds_at_once(bench: Bench, fields: dict[str, int], count: int) -> None:
    """Fifty messages of one wakeup arrive before the pull is woken."""
    bench.send()
    held, consumer = pull_fields("T", 1, maxMsgNums=1000, sysFlag=SUSPEND, **fields), Link(1)
    assert bench.tell(11, held, link=consumer) == []
    for _ in range(50):
        bench.tell(310, send_fields("T"), b"x", settle=False)
    bench.settle()
    assert given(consumer.take()) == (count, count + 1)


@pytest.mark.parametrize(("fields", "count"), [({}, 32), ({"maxTransferBytes": MIB}, 40)])
def test_what_a_worker_reads_is_bounded_alike(
    bench: Bench, fields: dict[str, int], count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(bench, 40)
    monkeypatch.setattr(bench.store, "get_slices_warm", lambda *_, **__: None)

    async def pull() -> None:
        bench.handlers.handle(bench.link, [bench.command(11, pull_fields("T", 0, maxMsgNums=1000, **fields))])
        await bench.link.replied(1)

    bench.run(pull())
    assert given(bench.link.take()) == (count, count)


def test_two_groups_that_ask_for_different_amounts_get_their_own(bench: Bench) -> None:
    """What one group has just read is kept for others (recent.py), who may have asked for less."""
    fill(bench, 64)
    for _ in range(20):
        assert given(bench.pull(group="g", maxMsgNums=64)) == (32, 32)
        assert given(bench.pull(group="h", maxMsgNums=64, maxTransferBytes=MIB)) == (64, 64)
        assert given(bench.pull(group="i", maxMsgNums=32)) == (32, 32)


@pytest.mark.parametrize(
    ("asked", "fields", "records_given"),
    [
        (1000, {}, 2),  # 20 and 20: the limit of 32 is not reached before the second
        (39, {}, 1),
        (32, {}, 1),
        (10, {}, 1),  # the first comes whole
        (60, {"maxTransferBytes": MIB}, 3),
        (99, {"maxTransferBytes": MIB}, 4),
        (1000, {"maxTransferBytes": MIB}, 5),
    ],
)
def test_batches_of_one_record_count_by_their_messages(
    bench: Bench, asked: int, fields: dict[str, int], records_given: int
) -> None:
    """The rule of DefaultMessageStore.isTheBatchFull, where a unit counts as many messages as it holds."""
    bench.node.topics.put(Topic("T", read_queues=1, write_queues=1, attributes={"queue.type": "BatchCQ"}))
    body, _ = pack_batch([Message("T", b"x") for _ in range(20)])
    for _ in range(5):
        assert bench.ask(320, send_fields("T", properties="UNIQ_KEY\x01batch\x02", m="true"), body).code == 0
    assert given(ask(bench, maxMsgNums=asked, **fields)) == (records_given, 20 * records_given)


def test_a_slave_gives_as_much_as_its_master(tmp_path: Path) -> None:
    master = Bench(tmp_path)
    fill(master, 40)
    master.close()
    slave = Bench(tmp_path, settings={"brokerId": "1", "slaveReadEnable": "true"}, broker_role="SLAVE")
    slave.node.topics.put(Topic("T"))
    assert given(ask(slave, maxMsgNums=1000)) == (32, 32)
    assert given(ask(slave, maxMsgNums=1000, maxTransferBytes=MIB)) == (40, 40)
    slave.close()
