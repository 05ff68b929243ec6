"""What a slave copies from its master: a pair of brokers joined in memory, on a fake clock and real files."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from broker.harness import Link
from broker.test_timers import TimerBench
from contrailmq.broker.cluster import slave_sync
from contrailmq.broker.cluster.slave_sync import SlaveSync
from contrailmq.broker.state.config_files import TableSaveError
from contrailmq.broker.state.groups import Group
from contrailmq.broker.state.topics import Topic
from contrailmq.message import Message, SystemTopic
from contrailmq.store.timer import TimerCheckpoint, decode_checkpoint
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import ConnectError
from contrailmq.wire.frame import FrameParser, encode_request, encode_response
from contrailmq.wire.header import Command, Fields

MASTER = "10.0.0.2:10911"
TABLES = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json")


class Broker(TimerBench):
    """A broker with everything that waits, ticked together."""

    def __init__(self, path: Path, *, now_ms: int = 0, **store: object) -> None:
        self.path = path
        super().__init__(path, now_ms=now_ms, **store)

    @property
    def config_path(self) -> Path:
        return self.node.config_path

    def live(self, milliseconds: int) -> None:
        for _ in range(milliseconds // 100):
            self.clock.advance(100)
            self.run_ms(0)
            self.delay.tick(self.store.store_clock.steady_ms())
            self.transactions.tick(self.store.store_clock.steady_ms())
            self.settle()

    def save(self) -> None:
        self.run(self.saver.save("topics.json", "subscriptionGroup.json", "consumerOffset.json"))

    def close(self) -> None:
        self.delay.stop()
        super().close()


class Wire:
    """Asks the master's handlers; those that are `gone` cannot be reached, `answers` replaces what a code answers."""

    def __init__(self, masters: dict[str, Broker]) -> None:
        self.masters = masters
        self.asked: list[int] = []
        self.gone: set[str] = set()
        self.answers: dict[int, bytes] = {}
        self.before_answer: Callable[[int], None] = lambda code: None

    async def invoke(
        self, address: str, code: int, ext: Fields | None = None, body: bytes = b"", timeout_s: float = 3.0
    ) -> Command:
        if address in self.gone:
            raise ConnectError(address, "refused")
        self.asked.append(code)
        self.before_answer(code)
        if code in self.answers:
            return FrameParser().feed(self.answers[code])[0]
        link = Link()
        handlers = self.masters[address].handlers
        handlers.handle(link, FrameParser().feed(encode_request(code, ext, body, opaque=1)))
        await handlers.drain()
        (answer,) = link.take()
        return answer


class Pair:
    """A master at MASTER and a slave that was told so."""

    def __init__(self, path: Path) -> None:
        self.master = Broker(path / "master")
        self.slave = Broker(path / "slave", settings={"brokerId": "1"}, broker_role="SLAVE")
        self.slave.node.set_address("10.0.0.3", 10_911)
        self.wire = Wire({MASTER: self.master})
        self.looked_again = asyncio.Event()
        self.follow()

    def follow(self) -> None:
        async def make() -> SlaveSync:
            slave = self.slave
            return SlaveSync(
                slave.node,
                self.wire,
                slave.saver,
                slave.delay,
                slave.timers,
                slave.adoption,
                look_again=self.looked_again.set,
            )

        self.sync = self.slave.run(make())
        self.sync.master_told(MASTER, "")

    def restart_slave(self) -> None:
        """Kill it, and start it again from its files."""
        path, now_ms = self.slave.path, self.slave.clock.now_ms()
        self.slave.close()
        self.slave = Broker(path, now_ms=now_ms, settings={"brokerId": "1"}, broker_role="SLAVE")
        self.slave.node.set_address("10.0.0.3", 10_911)
        self.follow()

    def copy(self, *, with_log: bool = True) -> bool:
        """One round of tables; the log comes first, as replication would send it."""
        if with_log:
            self.copy_log()
        return self.slave.run(self.sync.copy_all())

    def copy_log(self) -> None:
        source, target = self.wire.masters[self.sync.master or MASTER].store, self.slave.store
        source.dispatch()
        while target.replica.received_end < source.log_max_offset:
            chunk = source.read_log(target.replica.received_end, 777)
            assert chunk is not None
            target.replica.append(target.replica.received_end, chunk)
        self.slave.node.after_append()
        self.slave.settle()

    def live(self, milliseconds: int, *, copy_log: bool = False) -> None:
        """Both live, at one time; the slave gets the log as replication would send it, and asks at the end."""
        self.master.live(milliseconds)
        self.slave.clock.advance(milliseconds)
        assert self.copy(with_log=copy_log)
        self.slave.live(100)
        self.master.live(100)

    def close(self) -> None:
        self.master.close()
        self.slave.close()


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    yield made
    made.close()


def table(broker: Broker, name: str) -> object:
    return json.loads((broker.config_path / name).read_text())


def fill(master: Broker) -> None:
    """A topic, a group and an offset of each kind, and messages that wait and were delivered."""
    master.node.topics.put(Topic("T", read_queues=3, write_queues=4, attributes={"message.type": "FIFO"}, order=True))
    master.node.groups.put(Group("g", retry_max_times=3, consume_enable=False))
    master.node.groups.set_readable("g", "T", is_readable=False)
    master.node.offsets.commit("g", "T", 2, 17)
    master.node.offsets.note_pull("g", "T", 2, 18)
    for number in range(3):
        master.send("T", b"level", properties={"DELAY": "1", "UNIQ_KEY": f"L{number}"})
        master.send("T", b"timer", properties={"TIMER_DELAY_SEC": f"{1 + 100 * number}", "UNIQ_KEY": f"W{number}"})


def test_every_table_arrives_in_the_slaves_files_as_the_master_has_it(pair: Pair) -> None:
    fill(pair.master)
    pair.live(20_100, copy_log=True)  # the master knows since the last 100 ms that what it saved is on disk
    pair.master.save()
    for name in TABLES:
        assert table(pair.slave, name) == table(pair.master, name), name
    assert table(pair.slave, "delayOffset.json")["offsetTable"] == {"1": 3}  # type: ignore[index]
    checkpoints = [
        decode_checkpoint((broker.config_path / "timercheck").read_bytes()) for broker in (pair.master, pair.slave)
    ]
    assert checkpoints[0].read_time_ms > 1_700_000_000_000
    assert checkpoints[0].master_queue_offset == 3
    # The log of timers is the slave's own; the rest is the master's, its version too.
    own = {"log_flushed_position": checkpoints[1].log_flushed_position, "queue_offset": 3}
    assert checkpoints[1] == checkpoints[0]._replace(**own)
    metrics = [(broker.config_path / "timermetrics").read_text() for broker in (pair.master, pair.slave)]
    assert metrics[0] == metrics[1]
    assert '"T":{"count":2,' in metrics[1]


def test_what_the_master_removed_is_removed_from_the_slave(pair: Pair) -> None:
    fill(pair.master)
    assert pair.copy()
    assert "T" in pair.slave.node.topics
    pair.master.node.topics.delete("T")
    pair.master.node.groups.delete("g")
    pair.master.node.offsets.remove_group("g")
    pair.master.node.offsets.commit("h", "U", 0, 1)
    assert pair.copy()
    assert "T" not in pair.slave.node.topics
    assert "g" not in pair.slave.node.groups
    assert not pair.slave.node.groups.is_forbidden("g", "T")
    assert pair.slave.node.offsets.query("g", "T", 2) is None
    assert pair.slave.node.offsets.query("h", "U", 0) == 1
    assert "T@g" not in (pair.slave.config_path / "consumerOffset.json").read_text()


def test_an_unchanged_table_is_asked_for_and_not_written_again(pair: Pair) -> None:
    fill(pair.master)
    pair.live(11_000, copy_log=True)
    files = [pair.slave.config_path / name for name in TABLES]
    before = [file.stat().st_ino for file in files]
    pair.wire.asked.clear()
    assert pair.copy()
    assert pair.wire.asked == [28, 33, 60, 28, 21, 43, 28, 201, 45, 28, 61]
    assert [file.stat().st_ino for file in files] == before
    pair.master.node.offsets.commit("g", "T", 2, 19)  # its version stays
    assert pair.copy()
    after = [file.stat().st_ino for file in files]
    assert [name for name, old, new in zip(TABLES, before, after, strict=True) if old != new] == ["consumerOffset.json"]
    assert pair.slave.node.offsets.query("g", "T", 2) == 19


@pytest.mark.parametrize("is_changing", [False, True], ids=["standing still", "changing"])
def test_a_long_table_is_asked_for_in_pages(pair: Pair, monkeypatch: pytest.MonkeyPatch, is_changing: bool) -> None:
    monkeypatch.setattr(slave_sync, "PAGE", 7)
    for number in range(30):
        pair.master.node.topics.put(Topic(f"T{number}"))
        pair.master.node.groups.put(Group(f"g{number}"))
    pair.master.node.groups.set_readable("g29", "T1", is_readable=False)

    def change(code: int) -> None:
        """A topic and a group go and come while the third page is asked for."""
        if is_changing and pair.wire.asked.count(code) == 3:
            pair.master.node.topics.delete("T0")
            pair.master.node.topics.put(Topic("New"))
            pair.master.node.groups.put(Group("new"))

    pair.wire.before_answer = change
    assert pair.copy()
    assert sorted(pair.slave.node.topics.names()) == sorted(pair.master.node.topics.names())
    assert sorted(pair.slave.node.groups.names()) == sorted(pair.master.node.groups.names())
    assert pair.slave.node.topics.version.parts == pair.master.node.topics.version.parts
    assert pair.slave.node.groups.is_forbidden("g29", "T1")
    assert pair.wire.asked.count(21) == -(-len(pair.master.node.topics) // 7) + (3 if is_changing else 0)


def test_a_master_without_pages_is_asked_once(pair: Pair) -> None:
    """RocketMQ before 5.3.4 sends all of it and no total."""
    fill(pair.master)
    body = pair.master.ask(21).body
    pair.wire.answers[21] = encode_response(Command(), 0, None, body)
    assert pair.copy()
    assert pair.wire.asked.count(21) == 1
    assert sorted(pair.slave.node.topics.names()) == sorted(pair.master.node.topics.names())


def test_a_master_that_is_gone_changes_nothing_and_is_told_once_and_when_it_is_back(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    fill(pair.master)
    assert pair.copy()
    pair.wire.gone.add(MASTER)
    for _ in range(5):
        assert not pair.copy()
        assert not pair.slave.run(pair.sync.copy_checkpoint())
    assert "T" in pair.slave.node.topics
    told = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == 1
    assert f"{MASTER} does not answer" in told[0].getMessage()
    assert "keeps what it has and asks again" in told[0].getMessage()
    pair.wire.gone.clear()
    pair.master.node.topics.put(Topic("Later"))
    assert pair.copy()
    assert "Later" in pair.slave.node.topics
    assert "the master: well again" in caplog.records[-1].getMessage()


def test_without_a_master_the_remedy_is_told_once_and_the_name_servers_are_asked_sooner(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        pair.sync.master_told("", "")
        assert not pair.copy()
    (told,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "no NameServer knows one; start the master of b (brokerId=0), or start this broker as one" in told

    async def first_round() -> None:
        task = pair.slave.loop.create_task(pair.sync.run())
        await pair.looked_again.wait()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    pair.slave.run(first_round())


def test_a_slave_is_not_its_own_master(pair: Pair) -> None:
    """The NameServer may still have the entry of this address from before its role changed."""
    pair.sync.master_told("10.0.0.3:10911", "")
    assert not pair.copy()
    assert pair.wire.asked == []


def test_another_master_is_followed(pair: Pair, tmp_path: Path) -> None:
    other = Broker(tmp_path / "other")
    other.node.topics.put(Topic("Other"))
    pair.wire.masters["10.0.0.9:1"] = other
    fill(pair.master)
    assert pair.copy(with_log=False)
    pair.sync.master_told("10.0.0.9:1", "")
    assert pair.copy()
    assert "Other" in pair.slave.node.topics
    assert "T" not in pair.slave.node.topics
    other.close()


@pytest.mark.parametrize("sends", [0, 50])
def test_tables_of_a_master_that_came_back_without_its_log_are_not_copied(
    pair: Pair, tmp_path: Path, sends: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Shorter than the slave's log, or longer by now, with other messages."""
    fill(pair.master)
    pair.live(11_000, copy_log=True)
    before = {name: (pair.slave.config_path / name).read_bytes() for name in TABLES}
    remade = Broker(tmp_path / "remade")
    for _ in range(sends):
        remade.send("Else", b"another message")
    remade.node.topics.put(Topic("Else"))
    pair.wire.masters[MASTER] = remade
    pair.slave.node.commit_offset("g", "T", 0, 1)
    assert not pair.copy(with_log=False)
    rounds(pair, 12)
    assert {name: (pair.slave.config_path / name).read_bytes() for name in TABLES} == before
    assert "T" in pair.slave.node.topics
    assert "Else" not in pair.slave.node.topics
    assert remade.node.offsets.query("g", "T", 0) is None
    assert "store truncate" in caplog.text
    remade.close()


BROKEN = {
    "refused": encode_response(Command(), 1, remark="not today"),
    "no JSON": encode_response(Command(), 0, None, b"\xff{"),
    "another thing": encode_response(Command(), 0, None, b"[1]"),
    "no table": encode_response(Command(), 0, None, b'{"offsetTable":3}'),
    "bad entries": encode_response(
        Command(), 0, None, b'{"topicConfigTable":{"T":1},"subscriptionGroupTable":{"g":[]},"offsetTable":{"1":"x"}}'
    ),
    "nothing": encode_response(Command(), 0, None, b"{}"),
}


@pytest.mark.parametrize("answer", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("code", [21, 201, 43, 45, 60, 61])
def test_an_answer_that_is_no_table_is_told_and_keeps_nothing_else_from_being_copied(
    pair: Pair, caplog: pytest.LogCaptureFixture, code: int, answer: bytes
) -> None:
    fill(pair.master)
    assert pair.copy()
    before = (pair.slave.node.topics.names(), pair.slave.node.groups.names(), dict(pair.slave.delay.offsets))
    checkpoint = pair.slave.timer.checkpoint
    pair.wire.answers[code] = answer
    pair.master.node.offsets.commit("g", "T", 2, 18)
    pair.master.node.groups.set_readable("g", "T", is_readable=True)
    for _ in range(2):
        assert pair.copy()
    assert pair.slave.node.offsets.query("g", "T", 2) == (17 if code == 43 else 18)
    assert pair.slave.node.groups.is_forbidden("g", "T") is (code == 201)
    after = (pair.slave.node.topics.names(), pair.slave.node.groups.names(), dict(pair.slave.delay.offsets))
    assert after == before
    assert pair.slave.timer.checkpoint == checkpoint
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == 1
    assert "not copied from 10.0.0.2:10911" in told[0]


def test_what_a_full_disk_does_not_take_is_in_effect_and_saved_when_there_is_room(
    pair: Pair, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, text: str) -> None:
        raise TableSaveError(path, OSError(28, "No space left on device"))

    fill(pair.master)
    with monkeypatch.context() as broken:
        broken.setattr("contrailmq.broker.state.config_files.save", full)
        assert pair.copy()
        assert pair.copy()
    assert "T" in pair.slave.node.topics
    assert pair.slave.node.offsets.query("g", "T", 2) == 17
    assert [record.getMessage() for record in caplog.records if "cannot be saved" in record.getMessage()] == [
        record.getMessage() for record in caplog.records
    ]
    pair.slave.run(pair.slave.saver.save())  # as its own task does every second
    pair.master.save()
    assert table(pair.slave, "topics.json") == table(pair.master, "topics.json")
    assert table(pair.slave, "consumerOffset.json") == table(pair.master, "consumerOffset.json")


def test_positions_wait_until_the_log_has_come_as_far_as_the_masters_had(pair: Pair) -> None:
    """They say what was delivered: its copies lie further on in the log, which may never come."""
    fill(pair.master)
    pair.live(100, copy_log=True)
    pair.master.live(20_100)  # all three levels are delivered, and one timer
    pair.master.node.offsets.commit("g", "T", 2, 18)
    assert pair.copy(with_log=False)
    assert "T" in pair.slave.node.topics
    assert pair.slave.delay.offsets.get(1, 0) == 0
    assert pair.slave.node.offsets.query("g", "T", 2) == 17
    before = pair.slave.timer.checkpoint
    pair.copy_log()
    pair.slave.run(pair.sync.copy_checkpoint())  # what the next second brings
    assert pair.slave.delay.offsets[1] == 3
    assert pair.slave.node.offsets.query("g", "T", 2) == 18
    assert pair.slave.timer.checkpoint.read_time_ms > before.read_time_ms


def test_offsets_committed_at_a_slave_reach_the_master_that_returns_and_never_go_back(pair: Pair) -> None:
    """Named after RocketMQ's #1094 and #7790."""
    for group in ("g", "h", "new"):
        pair.master.node.groups.put(Group(group))
    for _ in range(30):
        pair.master.send("T", b"x", queueId="0")
    pair.master.node.offsets.commit("g", "T", 0, 10)
    pair.master.node.offsets.commit("h", "T", 0, 20)
    assert pair.copy()
    pair.wire.gone.add(MASTER)
    for group, offset in (("g", 25), ("h", 15), ("new", 3), ("unknown", 4)):
        pair.slave.node.commit_offset(group, "T", 0, offset)
    assert not pair.copy()
    pair.wire.gone.clear()
    pair.master.node.offsets.commit("h", "T", 0, 22)
    assert pair.copy()
    for broker in (pair.master, pair.slave):
        assert {group: broker.node.offsets.query(group, "T", 0) for group in ("g", "h", "new")} == {
            "g": 25,
            "h": 22,
            "new": 3,
        }
    pair.master.node.offsets.reset("g", "T", 0, 5)
    assert pair.copy()
    assert pair.master.node.offsets.stored("T@g", 0) == 5, "what was handed over is not handed over again"
    assert pair.slave.node.offsets.stored("T@g", 0) == 5


def test_offsets_committed_at_a_slave_that_is_started_again_reach_the_master_too(pair: Pair) -> None:
    pair.master.node.groups.put(Group("g"))
    for _ in range(30):
        pair.master.send("T", b"x")
    pair.master.node.offsets.commit("g", "T", 0, 10)
    assert pair.copy()
    pair.wire.gone.add(MASTER)
    pair.slave.node.commit_offset("g", "T", 0, 25)
    pair.slave.run(pair.slave.saver.save("consumerOffset.json"))  # as a task does every 5 s, and a stop
    pair.restart_slave()
    assert not pair.copy()
    assert pair.slave.node.offsets.query("g", "T", 0) == 25
    pair.wire.gone.clear()
    assert pair.copy()
    assert pair.master.node.offsets.query("g", "T", 0) == 25
    assert pair.slave.node.offsets.query("g", "T", 0) == 25


def test_what_was_handed_over_once_is_not_handed_over_by_the_next_start(pair: Pair) -> None:
    """It would undo a reset at the master."""
    pair.master.node.groups.put(Group("g"))
    for _ in range(30):
        pair.master.send("T", b"x")
    assert pair.copy()
    pair.wire.gone.add(MASTER)
    pair.slave.node.commit_offset("g", "T", 0, 25)
    pair.slave.run(pair.slave.saver.save("consumerOffset.json"))
    pair.wire.gone.clear()
    assert pair.copy(with_log=False)
    assert pair.master.node.offsets.query("g", "T", 0) == 25
    pair.restart_slave()
    pair.master.node.offsets.reset("g", "T", 0, 5)
    assert pair.copy()
    assert pair.master.node.offsets.stored("T@g", 0) == 5
    assert pair.slave.node.offsets.stored("T@g", 0) == 5


def rounds(pair: Pair, count: int) -> None:
    """As many as `run` does in that many seconds."""
    for _ in range(count):
        pair.slave.run(pair.sync.round())
        pair.slave.clock.advance(1000)


def test_a_topic_or_a_group_of_the_master_is_known_at_the_slave_within_two_seconds(pair: Pair) -> None:
    """Also one that is deleted: a slave that is made the master meanwhile would have it still."""
    assert pair.copy()
    rounds(pair, 2)
    pair.master.node.topics.put(Topic("New"))
    pair.master.node.groups.put(Group("new"))
    rounds(pair, 2)
    assert "New" in pair.slave.node.topics
    assert "new" in pair.slave.node.groups
    pair.master.node.topics.delete("New")
    rounds(pair, 2)
    assert "New" not in pair.slave.node.topics
    asked = len(pair.wire.asked)
    rounds(pair, 3)  # nothing has changed: the tables are not asked for before their time
    assert RequestCode.GET_ALL_TOPIC_CONFIG not in pair.wire.asked[asked:]


def test_a_master_that_is_back_gets_the_offsets_of_its_slave_within_a_second(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    """Its groups begin at its own until then. It may be back at the same address before a NameServer missed it."""
    caplog.set_level(logging.INFO)
    pair.master.node.groups.put(Group("g"))
    for _ in range(30):
        pair.master.send("T", b"x")
    pair.copy_log()
    rounds(pair, 2)
    pair.wire.gone.add(MASTER)
    pair.slave.node.commit_offset("g", "T", 0, 25)
    rounds(pair, 2)
    assert pair.looked_again.is_set(), "the NameServers are asked each second whether there is another master"
    pair.wire.gone.clear()
    pair.wire.asked.clear()
    rounds(pair, 1)
    assert pair.master.node.offsets.query("g", "T", 0) == 25
    # The topics, which say what was deleted, and no other table before the offsets; 60 has the version of the tables.
    assert pair.wire.asked[:8] == [28, 33, 60, 28, 21, 43, 30, 15], "once both have one history"
    assert "handed over 1 offsets committed at this slave to the master: T@g queue 0 from 0 to 25" in caplog.text


def test_offsets_are_handed_over_although_older_ones_still_wait_for_the_log(pair: Pair) -> None:
    pair.master.node.groups.put(Group("g"))
    for _ in range(30):
        pair.master.send("T", b"x")
    pair.copy_log()
    pair.master.send("T", b"the slave never gets this one")
    pair.master.node.offsets.commit("g", "T", 0, 10)
    pair.slave.run(pair.sync.round())  # the master's offsets wait now
    pair.wire.gone.add(MASTER)
    pair.slave.node.commit_offset("g", "T", 0, 25)
    rounds(pair, 2)
    pair.wire.gone.clear()
    rounds(pair, 1)
    assert pair.master.node.offsets.query("g", "T", 0) == 25
    pair.copy_log()
    rounds(pair, 1)
    assert pair.slave.node.offsets.query("g", "T", 0) == 25


def away_and_back(pair: Pair, **offsets: int) -> None:
    """A master that was gone while groups committed at its slave; they read T, of which 30 messages are there."""
    pair.master.node.groups.put(Group("g"))
    for _ in range(30):
        pair.master.send("T", b"x")
    pair.copy_log()
    rounds(pair, 1)
    pair.wire.gone.add(MASTER)
    for group, offset in offsets.items():
        pair.slave.node.commit_offset(group, "T", 0, offset)
    rounds(pair, 1)
    pair.wire.gone.clear()


@pytest.mark.parametrize("code", [ResponseCode.SYSTEM_BUSY, ResponseCode.SYSTEM_ERROR, ResponseCode.NO_PERMISSION])
def test_an_offset_that_the_master_does_not_take_now_is_sent_again(
    pair: Pair, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    """It was dropped at the first answer that said no, and the group read those messages again."""
    away_and_back(pair, g=25)
    request = FrameParser().feed(encode_request(15, None, b"", opaque=1))[0]
    pair.wire.answers[15] = encode_response(request, code, remark="not now")
    rounds(pair, 3)
    assert pair.master.node.offsets.query("g", "T", 0) is None
    assert pair.slave.node.offsets.query("g", "T", 0) == 25, "nothing is taken back meanwhile"
    said = [record.getMessage() for record in caplog.records if "not now" in record.getMessage()]
    assert len(said) == 1, "one line, not one each second"
    pair.slave.run(pair.slave.saver.save("consumerOffset.json"))  # as a task does every 5 s, and a stop
    pair.restart_slave()
    del pair.wire.answers[15]
    rounds(pair, 1)
    assert pair.master.node.offsets.query("g", "T", 0) == 25
    assert not pair.slave.node.offsets.changes


def test_offsets_of_a_group_that_began_at_the_slave_wait_until_the_master_hears_of_it(pair: Pair) -> None:
    """A consumer that was started while the master was gone tells it of the group by its next heartbeat."""
    away_and_back(pair, new=25)
    pair.master.node.offsets.commit("g", "T", 0, 7)
    rounds(pair, 25)
    assert pair.slave.node.offsets.query("new", "T", 0) == 25
    assert pair.slave.node.offsets.query("g", "T", 0) == 7, "the other groups' offsets are copied meanwhile"
    pair.master.node.groups.put(Group("new"))
    rounds(pair, 10)
    assert pair.master.node.offsets.query("new", "T", 0) == 25
    assert not pair.slave.node.offsets.changes


def test_offsets_that_no_master_can_take_are_dropped_with_one_line(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    away_and_back(pair, g=25, nobody=9)
    pair.slave.node.offsets.commit("g", "Unknown", 0, 4)
    rounds(pair, 1)
    assert {key for key, _ in pair.slave.node.offsets.changes} == {"T@nobody"}
    rounds(pair, 80)
    assert not pair.slave.node.offsets.changes
    said = [record.getMessage() for record in caplog.records if "is dropped" in record.getMessage()]
    assert ["offset 4 of Unknown@g" in said[0], "offset 9 of T@nobody" in said[1], len(said)] == [True, True, 2]
    assert pair.master.node.offsets.query("g", "T", 0) == 25
    assert pair.slave.node.offsets.query("nobody", "T", 0) is None, "the table is the master's"


def queues(broker: Broker, topic: str) -> int:
    found = broker.node.topics.get(topic)
    assert found is not None
    return found.read_queues


def test_a_topic_that_the_log_brings_has_the_tables_asked_for_at_once_and_once_a_second(pair: Pair) -> None:
    rounds(pair, 2)
    asked = pair.wire.asked.count(21)
    assert asked == 1
    pair.master.node.topics.put(Topic("Young", read_queues=7, write_queues=7))
    for queue_id in range(3):
        pair.master.send("Young", b"x", e=queue_id)
    pair.copy_log()
    assert pair.sync._is_due.is_set(), "run does not wait for the next second"
    rounds(pair, 3)
    assert pair.wire.asked.count(21) == asked + 1
    assert queues(pair.slave, "Young") == 7


def test_a_topic_younger_than_the_last_copy_is_served_while_the_master_is_gone(pair: Pair) -> None:
    rounds(pair, 2)
    pair.master.node.topics.put(Topic("Young", read_queues=7, write_queues=7))
    pair.master.send("Young", b"young", e=2)
    pair.master.node.groups.put(Group("young"))
    pair.master.node.topics.put(Topic("%RETRY%young", read_queues=1, write_queues=1))
    pair.master.send("%RETRY%young", b"again")
    pair.copy_log()
    pair.wire.gone.add(MASTER)
    rounds(pair, 2)
    assert "Young" not in pair.slave.node.topics, "one lost answer is not a lost master"
    rounds(pair, 1)
    assert queues(pair.slave, "Young") == 3, "as many as its highest queue asks for"
    assert "young" in pair.slave.node.groups
    pair.slave.node.config.slave_read_enable = True
    (answer,) = pair.slave.pull("Young", queue_id=2)
    assert answer.code == 0
    assert answer.body.count(b"young") == 1
    pair.slave.run(pair.slave.saver.save())
    kept = table(pair.slave, "topics.json")
    assert isinstance(kept, dict)
    assert "Young" in kept["topicConfigTable"]
    pair.wire.gone.clear()
    pair.slave.clock.advance(10_000)
    rounds(pair, 1)
    assert queues(pair.slave, "Young") == 7
    assert pair.slave.node.topics.version.parts == pair.master.node.topics.version.parts


@pytest.mark.parametrize("is_master_gone", [False, True])
def test_a_batch_topic_younger_than_the_last_copy_gets_the_masters_queues(pair: Pair, is_master_gone: bool) -> None:
    """A single message does not say that its queue is a batch queue; the inner batch after it does."""
    rounds(pair, 2)
    young = Topic("Young", read_queues=1, write_queues=1, attributes={"queue.type": "BatchCQ"})
    pair.master.node.topics.put(young)
    pair.master.send("Young", b"single")
    if is_master_gone:
        inner = [Message("Young", b"one"), Message("Young", b"two")]
        assert pair.master.store.put_inner_batch("Young", inner).queue_offset == 1
        pair.wire.gone.add(MASTER)
    pair.copy_log()
    rounds(pair, 3)
    assert pair.slave.node.topics.get("Young") is not None
    assert pair.slave.store.has_batch_queues("Young")
    assert pair.slave.store.queues()["Young", 0] == pair.master.store.queues()["Young", 0]
    assert pair.slave.store._queues.get("Young", 0) is None, "no ordinary queue is left"
    pair.slave.node.config.slave_read_enable = True
    assert pair.slave.pull("Young", queue_id=0)[0].body == pair.master.pull("Young", queue_id=0)[0].body
    pair.restart_slave()
    assert pair.slave.store.has_batch_queues("Young")
    assert pair.slave.store.queues()["Young", 0] == pair.master.store.queues()["Young", 0]


def test_a_topic_that_the_master_has_deleted_is_not_adopted_from_the_log(pair: Pair) -> None:
    rounds(pair, 1)
    pair.master.node.topics.put(Topic("Old"))
    pair.master.send("Old", b"x")
    pair.master.node.topics.delete("Old")
    pair.copy_log()
    rounds(pair, 2)
    pair.wire.gone.add(MASTER)
    rounds(pair, 5)
    assert "Old" not in pair.slave.node.topics


# --------------------------------------------------------------------------------------- a slave that becomes a master


def bodies(broker: Broker) -> list[bytes]:
    return sorted(message.body for message in broker.messages())


def send_all(master: Broker) -> None:
    """Due after 1, 5, 10, 30 s: by level and by timer."""
    for level, seconds in ((1, 1), (2, 5), (3, 10), (4, 30)):
        master.send("T", b"level %d" % seconds, properties={"DELAY": str(level), "UNIQ_KEY": f"L{level}"})
        timer = {"TIMER_DELAY_SEC": str(seconds), "UNIQ_KEY": f"W{level}"}
        master.send("T", b"timer %d" % seconds, properties=timer)


EARLY = [b"level 1", b"level 10", b"level 5", b"timer 1", b"timer 10", b"timer 5"]
REST = [b"level 30", b"timer 30"]


@pytest.mark.parametrize("way", ["as it grows", "file by file"])
def test_a_slave_started_as_a_master_delivers_exactly_the_rest(tmp_path: Path, way: str) -> None:
    """The log is what the running slave got, or is put in its place when it is stopped; the positions are the
    master's."""
    pair = Pair(tmp_path)
    send_all(pair.master)
    pair.live(20_000, copy_log=True)
    assert bodies(pair.master) == EARLY
    now_ms = pair.master.clock.now_ms()
    pair.close()
    path = pair.slave.path
    if way == "file by file":
        shutil.rmtree(path / "store" / "commitlog")
        shutil.copytree(pair.master.path / "store" / "commitlog", path / "store" / "commitlog")
    promoted = Broker(path, now_ms=now_ms)
    assert bodies(promoted) == EARLY
    promoted.live(5000)
    assert bodies(promoted) == EARLY
    promoted.live(10_000)
    assert bodies(promoted) == sorted(EARLY + REST)
    assert promoted.timers.pending() == {}
    assert promoted.delay.pending() == {}
    assert promoted.node.topics.get("T") is not None
    promoted.close()


def prepare(broker: Broker, body: bytes) -> Command:
    half = {"TRAN_MSG": "true", "PGROUP": "pg", "UNIQ_KEY": f"K-{body.decode()}"}
    answer = broker.send("T", body, properties=half, f="4", g=str(broker.clock.now_ms()))
    assert answer.code == 0, answer.remark
    return answer


def end(broker: Broker, prepared: Command, how: str) -> Command:
    fields = {
        "producerGroup": "pg",
        "tranStateTableOffset": prepared.ext["queueOffset"],
        "commitLogOffset": str(int(prepared.ext["msgId"][-16:], 16)),
        "commitOrRollback": how,
        "fromTransactionCheck": "false",
        "msgId": prepared.ext["transactionId"],
        "transactionId": prepared.ext["transactionId"],
    }
    return broker.ask(37, fields)


def test_a_slave_ends_no_transaction_and_started_as_a_master_goes_on_with_those_that_wait(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    committed, rolled_back, waiting = (prepare(pair.master, body) for body in (b"committed", b"rolled", b"waiting"))
    assert end(pair.master, committed, "8").code == 0
    assert end(pair.master, rolled_back, "12").code == 0
    pair.live(5000, copy_log=True)
    assert end(pair.slave, waiting, "8").code == 11
    now_ms, path = pair.master.clock.now_ms(), pair.slave.path
    pair.close()
    promoted = Broker(path, now_ms=now_ms)
    assert bodies(promoted) == [b"committed"]
    assert promoted.transactions.pending() == {"T": 1}
    for ended in (committed, rolled_back):
        end(promoted, ended, "8")  # too late, whatever it is answered
    assert end(promoted, waiting, "8").code == 0
    promoted.settle()
    assert bodies(promoted) == [b"committed", b"waiting"]
    promoted.close()


def test_a_slave_started_as_a_master_that_crashes_at_once_still_knows_what_was_delivered(tmp_path: Path) -> None:
    """It has to take in again what its master had: a crash on the way must not deliver the old ones."""
    pair = Pair(tmp_path)
    send_all(pair.master)
    pair.live(20_000, copy_log=True)
    now_ms = pair.master.clock.now_ms()
    pair.close()
    path = pair.slave.path
    shutil.rmtree(path / "store" / "commitlog")
    shutil.copytree(pair.master.path / "store" / "commitlog", path / "store" / "commitlog")
    for _ in range(3):
        crashed = Broker(path, now_ms=now_ms)
        crashed.timers.crash()
        crashed.store.abandon()
    promoted = Broker(path, now_ms=now_ms)
    promoted.live(20_000)
    assert bodies(promoted) == sorted(EARLY + REST)
    promoted.close()


def test_a_slave_that_is_started_again_keeps_positions_that_are_ahead_of_its_log(tmp_path: Path) -> None:
    """Its log is lost: what its master told must not be brought back to what its own queues hold."""
    pair = Pair(tmp_path)
    fill(pair.master)
    pair.live(20_100, copy_log=True)
    before = {name: table(pair.slave, name) for name in TABLES}
    version = pair.slave.timer.checkpoint.version_counter
    pair.slave.saver.save_all_now()
    pair.close()
    shutil.rmtree(pair.slave.path / "store" / "commitlog")
    again = Broker(pair.slave.path, now_ms=pair.slave.clock.now_ms(), broker_role="SLAVE")
    assert again.delay.offsets == {1: 3}
    assert again.timer.checkpoint.version_counter == version
    assert again.timer.checkpoint.master_queue_offset == 3
    again.live(5000)
    assert {name: table(again, name) for name in TABLES} == before
    again.close()


def test_a_slave_delivers_nothing_however_long_its_master_is_gone(pair: Pair) -> None:
    send_all(pair.master)
    half = {"TRAN_MSG": "true", "UNIQ_KEY": "H", "PGROUP": "pg"}
    pair.master.send("T", b"half", properties=half, f="4")
    pair.live(100, copy_log=True)
    producer = Link(40_001)
    pair.slave.heartbeat("T", link=producer)
    end = pair.slave.store.log_max_offset
    pair.wire.gone.add(MASTER)
    for _ in range(3):
        assert not pair.copy()
        pair.slave.live(60_000)
    assert pair.slave.store.log_max_offset == end
    assert pair.slave.store.max_offset(SystemTopic.SCHEDULE, 3) == 1
    assert bodies(pair.slave) == []
    assert [code for code, _, _ in producer.requests if code == 39] == []


def test_a_slave_whose_clock_is_ahead_keeps_what_its_master_has_not_delivered(tmp_path: Path) -> None:
    """The slots between its own time and its master's are still to be delivered."""
    pair = Pair(tmp_path)
    pair.slave.close()
    pair.slave = Broker(tmp_path / "slave", now_ms=pair.master.clock.now_ms() + 3_600_000, broker_role="SLAVE")
    send_all(pair.master)
    pair.master.live(2000)
    checkpoint = decode_checkpoint(pair.master.ask(60).body)
    pair.slave.timers.follow(pair.master.ask(60).body)
    assert pair.slave.timer.read_time_ms == checkpoint.read_time_ms < pair.slave.clock.now_ms() - 3_000_000
    pair.close()


def test_a_slaves_topics_and_groups_are_changed_at_its_master(pair: Pair) -> None:
    topic = {
        "topic": "T",
        "defaultTopic": "TBW102",
        "readQueueNums": "1",
        "writeQueueNums": "1",
        "perm": "6",
        "topicFilterType": "SINGLE_TAG",
        "order": "false",
    }
    requests: list[tuple[int, dict[str, str] | None, bytes]] = [
        (17, topic, b""),
        (18, None, b'{"topicConfigList":[]}'),
        (215, {"topic": "T"}, b""),
        (200, None, b'{"groupName":"g"}'),
        (225, None, b'{"groupConfigList":[]}'),
        (207, {"groupName": "g"}, b""),
        (353, {"group": "g", "topic": "T", "readable": "false"}, b""),
    ]
    for code, ext, body in requests:
        answer = pair.slave.ask(code, ext, body)
        assert answer.code == 1
        assert (answer.remark or "").startswith("Can't modify topic or subscription group from slave broker"), code
    assert "T" not in pair.slave.node.topics
    assert pair.slave.ask(353, {"group": "g", "topic": "T"}).code == 0


def test_a_broker_without_timers_tells_no_slave_of_them(tmp_path: Path) -> None:
    bench = TimerBench(tmp_path, timer_wheel_enable=False)
    for code in (60, 61):
        answer = bench.ask(code)
        assert answer.code == 1
        assert "timerWheelEnable=false" in (answer.remark or "")
    with pytest.raises(ValueError, match="56 are needed"):
        bench.timers.follow(b"\0" * 55)
    assert bench.timer.saved_checkpoint == TimerCheckpoint()
    bench.close()
