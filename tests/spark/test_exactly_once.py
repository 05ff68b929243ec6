"""The protocol of exactly-once delivery, without Spark: stopped between any two of its steps, on a real broker.

A round writes three batches of two tasks as Spark would: a writer on the driver, the tasks, the commit, Spark's own
note. It dies at a step of its own choice (before or after a request, an answer or a file), perhaps several times, and
another driver goes on. Then the topic holds every row once by a plain read, and no half message is left.
"""

from __future__ import annotations

import errno
import os
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from contrailmq import Admin
from contrailmq.broker.transactions.half_batches import HalfBatches
from contrailmq.client.blocking.raw import Posted, QueueReader
from contrailmq.client.blocking.raw_halves import End, HalfPlace, post_end
from contrailmq.client.errors import NoRouteError
from contrailmq.client.results import PullStatus
from contrailmq.message import ContrailError, MessageQueue, StoredMessage, SystemTopic
from contrailmq.message.codec import decode_record
from contrailmq.spark.runtime.patience import Patience
from contrailmq.spark.sinks import settling
from contrailmq.spark.sinks.answering import Answerer
from contrailmq.spark.sinks.decisions import DecisionError, Decisions, stream_batch
from contrailmq.spark.sinks.exactly_once import Committer, TaskHalves, write_halves
from contrailmq.spark.sinks.halves import MARK, decode_places, end_all
from contrailmq.spark.sinks.sending import ExactlyOnce, SinkSettings
from contrailmq.testing import LocalCluster
from contrailmq.wire.codes import RequestCode, ResponseCode
from contrailmq.wire.errors import ConnectionClosedError, ResponseError
from how_many import IS_LONG
from waiting_for import until

ROUNDS = 50 if IS_LONG else 4
BATCHES, TASKS, ROWS = 3, 2, 6
STEPS = {"cluster": 100, "single_cluster": 250}  # about as many as a write takes
CHECKS = {"transactionTimeOut": 1, "transactionCheckInterval": 200, "transactionCheckMax": 1000}


class Killed(BaseException):
    """The process is gone: nothing that it would have done next is done."""


class Fate:
    """Counts the steps of a process and ends it at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left, self.steps = -1, 0
        for owner, name in ((QueueReader, "post"), (QueueReader, "answer"), (Decisions, "_link")):
            monkeypatch.setattr(owner, name, self._stopping(getattr(owner, name)))

    def _stopping(self, call: Any) -> Any:
        def stopping(*args: Any, **named: Any) -> Any:
            self._step()
            result = call(*args, **named)
            self._step()
            return result

        return stopping

    def _step(self) -> None:
        self.steps += 1
        if self.left == 0:
            raise Killed
        self.left -= 1


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster(config=CHECKS) as running:
        yield running


@pytest.fixture(scope="module")
def single_cluster() -> Iterator[LocalCluster]:
    """Its broker takes one half message and one end at a time, as RocketMQ's does."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(HalfBatches, "register", lambda *_: None)
        with LocalCluster(config=CHECKS) as running:
            yield running


def settings_for(cluster: LocalCluster, folder: Path, topic: str, **more: Any) -> SinkSettings:
    decisions = Decisions(folder)
    own = ExactlyOnce(str(folder), decisions.id(), "once-x", immunity_s=1)
    return SinkSettings(cluster.namesrv, topic=topic, group=f"spark_{decisions.id()}", exactly_once=own, **more)


def task(settings: SinkSettings, batch: int, number: int, rows: int = ROWS) -> TaskHalves:
    """One attempt of a task, which knows from the driver what is done."""
    done = Decisions(Path(settings.exactly_once.folder)).newest_done().get("q", -1)  # type: ignore[union-attr]
    bodies = [f"{batch}-{number}-{row}".encode() for row in range(rows)]
    frame = pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.binary())})
    return write_halves(iter([frame]), settings, f"q-{batch}-{number}", stream_batch("q", batch), is_done=batch <= done)


def records(namesrv: str, topic: str) -> list[StoredMessage]:
    """A plain read of every queue of a topic."""
    found: list[StoredMessage] = []
    with QueueReader(namesrv=namesrv) as reader:
        try:
            queues = reader.queues(topic)
        except NoRouteError:
            return []
        for queue in queues:
            offset = 0
            while (pulled := reader.pull(queue, offset)).status is PullStatus.FOUND:
                position = 0
                while position < len(pulled.body):
                    found.append(decode_record(pulled.body, position))
                    position += found[-1].size_bytes
                offset = pulled.next_offset
    return found


def visible(namesrv: str, topic: str) -> Counter[bytes]:
    return Counter(message.body for message in records(namesrv, topic))


def expected(batches: int = BATCHES) -> Counter[bytes]:
    return Counter(f"{b}-{t}-{r}".encode() for b in range(batches) for t in range(TASKS) for r in range(ROWS))


def pending(cluster: LocalCluster, topic: str) -> int:
    return cluster.broker().transactions.pending().get(topic, 0)


def all_are_pending(cluster: LocalCluster, topic: str) -> None:
    """The broker counts a half message when it is in its queue, a moment after the answer."""
    count = lambda: pending(cluster, topic)  # noqa: E731
    until(lambda: count() == TASKS * ROWS, f"{TASKS * ROWS} half messages are pending", seen=count)


def wait_until_nothing_is_pending(cluster: LocalCluster, settings: SinkSettings) -> None:
    """As long as somebody answers, which the driver sees to."""
    assert settings.topic is not None
    answerer = Answerer(settings)
    answerer.start()
    try:
        until(lambda: not pending(cluster, settings.topic), "no half message is pending")
    finally:
        answerer.close()


def drive(settings: SinkSettings, done: list[int], repeats: random.Random) -> None:
    """A driver from its start on, until it dies or every batch is done. `done` is Spark's own note."""
    Committer(settings, sleep=_no_sleep).recover()
    for batch in range(BATCHES):
        if batch in done:
            continue
        if repeats.random() < 0.3:
            task(settings, batch, 0)  # an attempt that Spark gave up: a speculative copy, or a lost executor
        halves = [task(settings, batch, number) for number in range(TASKS)]
        Committer(settings, sleep=_no_sleep).commit(stream_batch("q", batch), halves)
        done.append(batch)


def _no_sleep(_seconds: float) -> None:
    """Time does not matter here: nothing is on its way when a process is gone."""


@pytest.mark.parametrize("seed", range(ROUNDS))
@pytest.mark.parametrize("kind", ["cluster", "single_cluster"])
def test_a_write_that_dies_between_any_two_steps_leaves_every_row_once(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, seed: int
) -> None:
    cluster = request.getfixturevalue(kind)
    source, topic = random.Random(seed), f"Kill{seed}"
    settings = settings_for(cluster, tmp_path / "sink", topic)
    fate, done = Fate(monkeypatch), list[int]()
    for _ in range(source.randint(1, 4)):
        fate.left = source.randrange(STEPS[kind])
        try:
            drive(settings, done, source)
        except Killed:
            continue
        break
    fate.left = -1
    drive(settings, done, source)
    assert visible(cluster.namesrv, topic) == expected()
    wait_until_nothing_is_pending(cluster, settings)
    assert visible(cluster.namesrv, topic) == expected()


def test_nothing_is_visible_before_the_commit_and_all_of_it_after(cluster: LocalCluster, tmp_path: Path) -> None:
    settings = settings_for(cluster, tmp_path / "sink", "Together")
    halves = [task(settings, 0, number) for number in range(TASKS)]
    assert visible(cluster.namesrv, "Together") == Counter()
    all_are_pending(cluster, "Together")
    Committer(settings).commit(stream_batch("q", 0), halves)
    assert visible(cluster.namesrv, "Together") == expected(1)
    marks = {message.properties[MARK] for message in records(cluster.namesrv, "Together")}
    assert marks == {f"{Decisions(tmp_path / 'sink').id()}/stream-q-000000000000"}


def test_a_task_that_fails_rolls_its_own_half_messages_back(cluster: LocalCluster, tmp_path: Path) -> None:
    settings = settings_for(cluster, tmp_path / "sink", "Failing")

    def rows() -> Iterator[pa.RecordBatch]:
        yield pa.RecordBatch.from_pydict({"body": pa.array([b"x"] * 1000, pa.binary())})
        raise RuntimeError("the source of the rows failed")

    with pytest.raises(RuntimeError, match="the source of the rows failed"):
        write_halves(rows(), settings, "q-0-0", stream_batch("q", 0), is_done=False)
    until(lambda: not pending(cluster, "Failing"), "the ends that were answered are counted")
    assert visible(cluster.namesrv, "Failing") == Counter()


def test_an_aborted_batch_is_rolled_back_and_a_decided_one_is_not(cluster: LocalCluster, tmp_path: Path) -> None:
    settings = settings_for(cluster, tmp_path / "sink", "Aborted")
    committer, halves = Committer(settings), [task(settings, 0, 0)]
    committer.abort(stream_batch("q", 0), halves)
    until(lambda: not pending(cluster, "Aborted"), "the end that was answered is in its queue, and counted")
    assert visible(cluster.namesrv, "Aborted") == Counter()
    halves = [task(settings, 0, number) for number in range(TASKS)]
    with committer._settler() as settler:
        sent = [place for task in halves for place in _places(task)]
        committer._decisions.decide(stream_batch("q", 0), sent, settler.ends(sent))
    committer.abort(stream_batch("q", 0), halves)  # Spark calls it when a commit fails half-way
    all_are_pending(cluster, "Aborted")
    Committer(settings).recover()
    assert visible(cluster.namesrv, "Aborted") == expected(1)


def test_a_batch_that_is_done_is_not_sent_again_and_a_late_repeat_is_rolled_back(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    settings = settings_for(cluster, tmp_path / "sink", "Repeated")
    drive(settings, done := list[int](), random.Random(1))
    assert done == list(range(BATCHES))
    before = pending(cluster, "Repeated")
    assert task(settings, BATCHES - 1, 0).rows == ROWS
    assert pending(cluster, "Repeated") == before  # nothing was sent
    frame = pa.RecordBatch.from_pydict({"body": pa.array([b"late"], pa.binary())})
    late = write_halves(iter([frame]), settings, "k", stream_batch("q", BATCHES - 1), is_done=False)
    Committer(settings).commit(stream_batch("q", BATCHES - 1), [late])
    assert visible(cluster.namesrv, "Repeated") == expected()


def _places(halves: TaskHalves) -> list[HalfPlace]:
    from contrailmq.spark.sinks.halves import decode_places

    return decode_places(halves.places)[0]


def test_an_end_whose_answer_was_lost_is_not_sent_again_if_its_row_is_visible(
    single_cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_for(single_cluster, tmp_path / "sink", "Lost")
    halves = [task(settings, 0, number) for number in range(TASKS)]
    ended: Counter[str] = Counter()

    def counted(client: QueueReader, place: HalfPlace, how: End, *, group: str) -> Any:
        ended[place.unique_key] += 1
        return post_end(client, place, how, group=group)

    answer, lost = QueueReader.answer, iter(range(5))

    def losing(self: QueueReader, posted: Posted) -> Any:
        found = answer(self, posted)
        if posted.code == RequestCode.END_TRANSACTION and next(lost, None) is not None:
            raise ConnectionClosedError(posted.address, "the answer is lost")
        return found

    monkeypatch.setattr("contrailmq.spark.sinks.halves.post_end", counted)
    monkeypatch.setattr(QueueReader, "answer", losing)
    pauses: list[float] = []
    Committer(settings, sleep=pauses.append).commit(stream_batch("q", 0), halves)
    assert set(ended.values()) == {1}  # five were in doubt and visible: no broker was told twice
    assert settling.DOUBT_S in pauses
    assert visible(single_cluster.namesrv, "Lost") == expected(1)


def test_an_end_that_a_slave_was_sent_counts_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NameServers may name a slave that stands in for a master. It ends nothing, and says SLAVE_NOT_AVAILABLE."""
    with LocalCluster(slaves=1) as pair:
        settings = settings_for(pair, tmp_path / "sink", "Away")
        halves = task(settings, 0, 0)
        places = decode_places(halves.places)[0]
        slave = pair.broker_addresses[pair.slave_index()]
        with QueueReader(namesrv=pair.namesrv) as client:
            client.publish_queues("Away")
            with monkeypatch.context() as patch:
                patch.setattr(QueueReader, "_master_address", lambda *_: slave)
                failed = end_all(client, places, End.COMMIT, group=settings.group)
            assert [place for place, _ in failed] == places
            assert {exc.code for _, exc in failed if isinstance(exc, ResponseError)} == {
                ResponseCode.SLAVE_NOT_AVAILABLE
            }
            assert end_all(client, places, End.COMMIT, group=settings.group) == []
        assert visible(pair.namesrv, "Away") == Counter(f"0-0-{row}".encode() for row in range(ROWS))


@pytest.mark.parametrize("is_single", [False, True])
@pytest.mark.parametrize("step", [1, 4, 9])
def test_a_broker_that_is_killed_while_a_batch_is_written_has_every_row_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: int, is_single: bool
) -> None:
    """Between two requests, of which the first was answered or lost: when half messages come, and when ends do."""
    if is_single:
        monkeypatch.setattr(HalfBatches, "register", lambda *_: None)
    with LocalCluster(config=CHECKS) as cluster:
        settings = settings_for(cluster, tmp_path / "sink", "Killed", batch_count=2, timeout_s=5.0)
        post, posted = QueueReader.post, Counter[RequestCode]()

        def killing(self: QueueReader, queue: Any, code: RequestCode, *args: Any) -> Posted:
            ticket = post(self, queue, code, *args)
            posted[code] += 1
            if posted[code] == step:
                cluster.kill_broker()
                cluster.restart_broker()
            return ticket

        monkeypatch.setattr(QueueReader, "post", killing)
        monkeypatch.setattr("contrailmq.spark.sinks.halves.ENDS_MAX", 1)
        halves = [task(settings, 0, number) for number in range(TASKS)]
        Committer(settings, sleep=lambda seconds: time.sleep(min(seconds, 0.2))).commit(stream_batch("q", 0), halves)
        assert visible(cluster.namesrv, "Killed") == expected(1)
        wait_until_nothing_is_pending(cluster, settings)
        assert visible(cluster.namesrv, "Killed") == expected(1)


@pytest.mark.parametrize("is_escaping", [False, True])
@pytest.mark.parametrize("is_sent", [True, False])
def test_a_batch_whose_master_is_stood_in_for_waits_for_the_master(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_sent: bool, is_escaping: bool
) -> None:
    """A slave that acts shows the queues, takes nothing and ends nothing, for more rounds than a refusal is given."""
    config = {"enableSlaveActingMaster": "true", "brokerHeartbeatInterval": "100", "syncBrokerMemberGroupPeriod": "50"}
    with LocalCluster(slaves=1, config=config | {"enableRemoteEscape": str(is_escaping).lower()}) as pair:
        settings = settings_for(pair, tmp_path / "sink", "Acting")
        halves = [task(settings, 0, number) for number in range(TASKS if is_sent else 1)]
        pair.wait_until_replicated()
        pair.kill_broker(0)
        slave = pair.broker_addresses[pair.slave_index()]
        with Admin(namesrv=pair.namesrv) as admin:
            until(lambda: admin.broker_stats(slave)["isActingMaster"] == "true", "the slave stands in")
        wait, waits = Patience.wait, list[ContrailError]()

        def returning(self: Patience, exc: ContrailError) -> None:
            waits.append(exc)
            if len(waits) == (2 * settling._ROUNDS_MAX if is_sent else 3):
                pair.restart_broker(0)
            wait(self, exc)

        monkeypatch.setattr(Patience, "wait", returning)
        halves += [task(settings, 0, number) for number in range(len(halves), TASKS)]
        Committer(settings, sleep=_no_sleep).commit(stream_batch("q", 0), halves)
        assert visible(pair.namesrv, "Acting") == expected(1)
        wait_until_nothing_is_pending(pair, settings)
        assert visible(pair.namesrv, "Acting") == expected(1)


@pytest.mark.parametrize("is_decided", [False, True])
def test_a_commit_waits_for_the_only_broker_of_its_topic_while_another_broker_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_decided: bool
) -> None:
    """The NameServer then knows no such topic, which ended the query. The broker dies before the decision, or after."""
    with LocalCluster(brokers=2, config=CHECKS) as cluster, QueueReader(namesrv=cluster.namesrv) as reader:
        with Admin(namesrv=cluster.namesrv) as admin:
            admin.create_topic("Lonely", queues=2, broker="broker-0")
        settings = settings_for(cluster, tmp_path / "sink", "Lonely")
        halves = [task(settings, 0, number) for number in range(TASKS)]

        def kill() -> None:
            cluster.kill_broker(0)
            until(lambda: not reader.has_broker("broker-0"), "the broker that was killed is not in the route")

        def killing(call: Any) -> Any:
            def before(*given: Any) -> Any:
                found = call(*given)
                if not killed:
                    killed.append(True)
                    kill()
                return found

            return before

        killed, pauses = list[bool](), list[float]()

        def returning(seconds: float) -> None:
            pauses.append(seconds)
            if len(pauses) == 3:
                cluster.restart_broker(0)

        owner, name = (Decisions, "decide") if is_decided else (QueueReader, "publish_queues")
        monkeypatch.setattr(owner, name, killing(getattr(owner, name)))
        Committer(settings, sleep=returning).commit(stream_batch("q", 0), halves)
        assert len(pauses) >= 3
        assert visible(cluster.namesrv, "Lonely") == expected(1)


def test_a_half_message_that_was_put_back_by_checks_is_found_after_the_broker_forgot_its_way(tmp_path: Path) -> None:
    """The driver was away and brokers asked in vain; then the broker was restarted, and the noted place is passed."""
    with LocalCluster(config=CHECKS) as cluster:
        settings = settings_for(cluster, tmp_path / "sink", "Moved")
        committer, halves = Committer(settings), [task(settings, 0, number) for number in range(TASKS)]
        with committer._settler() as settler:
            sent = [place for task in halves for place in _places(task)]
            committer._decisions.decide(stream_batch("q", 0), sent, settler.ends(sent))
        half_queue = MessageQueue(SystemTopic.HALF, sent[0].queue.broker_name, 0)
        with QueueReader(namesrv=cluster.namesrv) as reader:
            until(lambda: reader.max_offset(half_queue) >= 4 * len(sent), "each is put back several times")
        cluster.stop_broker()
        cluster.restart_broker()
        Committer(settings, sleep=_no_sleep).recover()
        assert visible(cluster.namesrv, "Moved") == expected(1)
        wait_until_nothing_is_pending(cluster, settings)
        assert visible(cluster.namesrv, "Moved") == expected(1)


def test_a_decision_that_the_disk_does_not_take_commits_nothing_and_says_so(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = settings_for(cluster, tmp_path / "sink", "FullDisk")
    halves = [task(settings, 0, number) for number in range(TASKS)]

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr("contrailmq.spark.sinks.decisions.os.fsync", full)
        with pytest.raises(DecisionError, match="No space left on device; it holds what an exactly-once write"):
            Committer(settings, sleep=_no_sleep).commit(stream_batch("q", 0), halves)
    assert visible(cluster.namesrv, "FullDisk") == Counter()
    assert sorted(path.name for path in (tmp_path / "sink").iterdir()) == [".lock", "id"]
    Committer(settings, sleep=_no_sleep).abort(stream_batch("q", 0), halves)  # as Spark does then
    Committer(settings).commit(stream_batch("q", 0), [task(settings, 0, number) for number in range(TASKS)])
    assert visible(cluster.namesrv, "FullDisk") == expected(1)
    wait_until_nothing_is_pending(cluster, settings)
