"""What a kill repeats of what groups have committed, and when the journal of their offsets must not be believed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from broker.harness import Bench
from broker.test_adoption import crashed, deleted
from contrailmq import Admin, Message, Producer
from contrailmq.broker.state.config_files import ConfigFileError
from contrailmq.broker.state.offset_journal import OTHERS_MS, OffsetJournal
from contrailmq.broker.state.offsets import OFFSETS_FILE
from contrailmq.message import ContrailError
from contrailmq.store.base.journal import RUN_BYTES_MAX
from contrailmq.store.files import Files
from contrailmq.testing import LocalCluster
from store.faulty_files import no_space

PLACE = {"consumerGroup": "g", "topic": "T", "queueId": "0"}


class JournaledBench(Bench):
    """A broker that notes commits in the journal and never saves the table, unless a test says so."""

    def __init__(self, path: Path, **settings: object) -> None:
        super().__init__(path, **settings)  # type: ignore[arg-type]
        self.path = path
        if not self.node.is_slave:
            self.node.offset_journal.open()

    def commit(self, offset: int) -> None:
        assert self.ask(15, PLACE | {"commitOffset": str(offset)}).code == 0

    def commit_by_pull(self, offset: int) -> None:
        """As consumers do with every pull; nothing tells them that it was taken."""
        assert self.pull("T", offset, sysFlag=5, commitOffset=offset)

    def committed(self) -> str:
        return self.ask(14, PLACE | {"setZeroIfNotFound": "true"}).ext["offset"]

    def note(self) -> None:
        self.node.offset_journal.note()

    def killed(self, lost: tuple[str, ...] = (), **settings: object) -> JournaledBench:
        self.node.offset_journal.close()
        crashed(self, self.path, lost=lost).close()  # a start that is stopped at once, then another
        return JournaledBench(self.path, **settings)

    def close(self) -> None:
        self.node.offset_journal.close()
        super().close()


@pytest.fixture
def bench(tmp_path: Path) -> JournaledBench:
    bench = JournaledBench(tmp_path)
    for number in range(9):
        bench.send("T", b"%d" % number)
    bench.heartbeat("T", group="g")
    return bench


def journal_bytes(path: Path) -> list[int]:
    return [file.stat().st_size for file in sorted((path / "store" / "config").glob("offsets.journal.*"))]


def test_a_kill_takes_no_commit_that_was_noted_though_the_table_was_never_saved(bench: JournaledBench) -> None:
    for offset in (3, 5):
        bench.commit_by_pull(offset)
        bench.note()
    bench.commit_by_pull(8)  # and killed before the next note
    again = bench.killed()
    assert again.committed() == "5"
    assert '"T@g"' in (bench.path / "store" / "config" / OFFSETS_FILE).read_text()
    assert journal_bytes(bench.path) == [0, 0], "what it said is in the table"
    again.close()


def test_a_kill_takes_no_commit_that_was_answered(bench: JournaledBench) -> None:
    """A process that gets no processor for half a second is not at its next note then: 461 ms of commits were lost."""
    bench.commit_by_pull(3)
    bench.commit(8)
    again = bench.killed()
    assert again.committed() == "8"
    again.close()


def test_a_commit_or_reset_to_an_earlier_message_counts_too(bench: JournaledBench) -> None:
    bench.commit(7)
    bench.run(bench.saver.save(OFFSETS_FILE))
    bench.commit(2)
    bench.note()
    again = bench.killed()
    assert again.committed() == "2"
    again.heartbeat("T", group="g")
    again.commit(6)
    again.note()
    again.node.offsets.reset("g", "T", 0, 1)
    again.run(again.saver.save(OFFSETS_FILE))  # as an operator's reset is, before it is answered
    last = again.killed()
    assert last.committed() == "1", "what is in the table was noted before"
    last.close()


def test_after_a_power_failure_that_took_the_end_of_the_log_no_new_message_is_passed_over(
    bench: JournaledBench,
) -> None:
    bench.commit(9)
    bench.note()
    again = bench.killed(lost=("commitlog", "consumequeue", "queues.ledger", "checkpoint", "index"))
    assert again.send("T", b"new").ext["queueOffset"] == "0"
    assert again.committed() == "0"
    again.close()


def test_offsets_in_a_deleted_topic_do_not_come_back(bench: JournaledBench) -> None:
    bench.commit(4)
    bench.note()
    deleted(bench, "T")
    assert bench.send("T", b"new").ext["queueOffset"] == "0"
    bench.note()
    again = bench.killed()
    assert again.committed() == "0"
    again.close()


def test_a_table_that_was_written_long_after_the_journal_counts_alone(bench: JournaledBench) -> None:
    """Apache's broker has worked here since, or an operator has set offsets back."""
    bench.commit(3)
    bench.run(bench.saver.save(OFFSETS_FILE))
    bench.commit(8)
    bench.note()
    file = bench.path / "store" / "config" / OFFSETS_FILE
    written_s = max(path.stat().st_mtime for path in file.parent.glob("offsets.journal.*"))
    others_s = written_s + OTHERS_MS / 1000 + 1
    os.utime(file, (others_s, others_s))
    again = bench.killed()
    assert again.committed() == "3"
    again.close()


@pytest.mark.parametrize("is_torn", [False, True], ids=["whole", "first entry of the new run torn"])
def test_a_journal_that_has_become_long_begins_anew_with_everything(bench: JournaledBench, is_torn: bool) -> None:
    """A file is given up when it has a megabyte: commits of a hundred queues, noted some hundred times."""
    queues = range(1, 101)
    for number in range(600):
        for queue_id in queues:
            bench.node.offsets.commit("g", "Others", queue_id, number)
        if number == 1:
            bench.commit(6)  # once only: the new run has it in its first entry
        bench.note()
    sizes = journal_bytes(bench.path)
    assert max(sizes) <= RUN_BYTES_MAX + 10_000
    assert min(sizes) > 0
    if is_torn:
        bench.node.offset_journal._journal.restart()
        bench.node.offset_journal._is_whole_due = True
        bench.commit(7)
        bench.note()
        files = (bench.path / "store" / "config").glob("offsets.journal.*")
        newest = max(files, key=lambda path: path.stat().st_mtime_ns)
        with newest.open("r+b") as file:
            file.seek(50)
            file.write(b"\xff")
    again = bench.killed()
    assert again.committed() == "6"
    again.close()


class FullDisk(Files):
    """Takes no entry of the journal while it is full."""

    is_full = False

    def pwrite(self, descriptor: int, data: bytes | bytearray | memoryview, position: int) -> None:
        if self.is_full:
            raise no_space()
        super().pwrite(descriptor, data, position)


def test_what_a_full_disk_refused_is_noted_when_there_is_room(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    files = FullDisk()
    bench = JournaledBench(tmp_path, files=files)
    for number in range(9):
        bench.send("T", b"%d" % number)
    bench.heartbeat("T", group="g")
    bench.commit(2)
    bench.note()
    files.is_full = True
    for offset in (3, 4):
        bench.commit(offset)
        bench.note()
    files.is_full = False
    bench.note()
    assert [record.levelname for record in caplog.records if "offsets.journal" in record.getMessage()] == ["ERROR"]
    again = bench.killed()
    assert again.committed() == "4"
    again.close()


@pytest.mark.parametrize("lives", [1, 2], ids=["first life", "later life"])
def test_a_journal_that_lacks_what_the_disk_refused_does_not_undo_the_table_that_was_saved_after_it(
    tmp_path: Path, lives: int
) -> None:
    """Seed 174 of ten minutes: there was no room for an entry, and then room for the table."""
    files = FullDisk()
    bench = JournaledBench(tmp_path, files=files)
    for number in range(9):
        bench.send("T", b"%d" % number)
    bench.heartbeat("T", group="g")
    for life in range(lives):
        start = 4 * life
        bench.commit(start + 1)
        bench.run(bench.saver.save(OFFSETS_FILE))
        bench.commit(start + 2)
        files.is_full = True
        bench.commit(start + 3)
        bench.run(bench.saver.save(OFFSETS_FILE))
        files.is_full = False
        bench = bench.killed(files=files)
        assert bench.committed() == str(start + 3)
        bench.heartbeat("T", group="g")
        bench.commit(start + 4)
        bench = bench.killed(files=files)
        bench.heartbeat("T", group="g")
        assert bench.committed() == str(start + 4), "what is noted after the table was saved counts as ever"
    bench.close()


class Remembering(Files):
    """What of each file was synced last."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: dict[str, bytes] = {}

    def sync(self, descriptor: int) -> None:
        super().sync(descriptor)
        self.synced[os.readlink(f"/proc/self/fd/{descriptor}")] = self.pread(descriptor, self.size(descriptor), 0)


def test_a_power_failure_leaves_no_journal_that_is_older_than_the_saved_table(tmp_path: Path) -> None:
    """Its first page was written out early, and what came after it is lost unless it was synced."""
    files = Remembering()
    bench = JournaledBench(tmp_path, files=files)
    for number in range(9):
        bench.send("T", b"%d" % number)
    bench.heartbeat("T", group="g")
    bench.commit(2)
    (journal,) = [path for path in bench.node.config_path.glob("offsets.journal.*") if path.stat().st_size]
    left = journal.read_bytes()
    bench.commit(5)
    bench.run(bench.saver.save(OFFSETS_FILE))
    bench.node.offset_journal.close()
    journal.write_bytes(files.synced.get(str(journal), left))
    bench = bench.killed()
    assert bench.committed() == "5"
    bench.close()


class Unreadable(Files):
    def __init__(self, name: str) -> None:
        super().__init__()
        self._name = name

    def pread(self, descriptor: int, size_bytes: int, position: int) -> bytes:
        if os.readlink(f"/proc/self/fd/{descriptor}").endswith(self._name):
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return super().pread(descriptor, size_bytes, position)


@pytest.mark.parametrize("name", ["offsets.journal.0", "offsets.journal.1"])
def test_a_journal_that_cannot_be_read_lets_no_broker_start_and_is_kept(bench: JournaledBench, name: str) -> None:
    """Else groups would get again what they have acknowledged, and the next entry would take the journal's place."""
    bench.commit(5)
    bench.note()
    bench.node.offset_journal.close()
    journal = OffsetJournal(Unreadable(name), bench.node.config_path, bench.node.offsets)
    with pytest.raises(ConfigFileError, match=r"offsets\.journal\.\* cannot be read: .*Input/output error"):
        journal.recover(bench.store.max_offset, lambda: pytest.fail("nothing was taken from it"))
    again = bench.killed()
    assert again.committed() == "5"
    again.close()


def test_a_slave_neither_writes_nor_believes_a_journal(bench: JournaledBench) -> None:
    bench.commit(5)
    bench.note()
    bench.node.offset_journal.close()
    slave = crashed(bench, bench.path, broker_role="SLAVE")
    assert slave.node.offsets.query("g", "T", 0) is None
    slave.node.offsets.commit("g", "T", 0, 3)
    slave.run(slave.saver.save(OFFSETS_FILE))
    assert max(journal_bytes(bench.path)) > 0, "it is its master's, as it is"
    slave.close()


def test_a_saved_offset_beyond_the_end_of_its_queue_counts_as_the_end(bench: JournaledBench) -> None:
    """A power failure under ASYNC_FLUSH takes the end of the log, and the journal, and leaves the table that was saved.

    What is stored next stands at the offsets that were lost: a group that stayed behind them would never get it.
    """
    bench.commit(9)
    bench.run(bench.saver.save(OFFSETS_FILE))
    bench.close()
    config = bench.path / "store" / "config"
    for file in config.glob("offsets.journal.*"):
        file.unlink()
    saved = config / OFFSETS_FILE
    saved.write_text(saved.read_text().replace('"0":9', '"0":12').replace('"0": 9', '"0": 12'))
    assert "12" in saved.read_text()
    again = JournaledBench(bench.path)
    assert again.committed() == "9"
    assert "12" not in saved.read_text(), "the file says so too"
    again.close()


def test_a_whole_broker_says_why_it_does_not_start_and_starts_when_the_journal_is_mended(tmp_path: Path) -> None:
    with LocalCluster(store=tmp_path, processes=True) as cluster, Admin(namesrv=cluster.namesrv) as admin:
        admin.create_topic("T", queues=1)
        admin.create_group("g")
        with Producer("shop", namesrv=cluster.namesrv) as producer:
            for number in range(9):
                queue = producer.send(Message("T", b"%d" % number)).queue
        admin.set_offset("g", queue, 5)
        cluster.kill_broker()
        (config,) = tmp_path.glob("**/config")
        journals = list(config.glob("offsets.journal.*"))
        assert len(journals) == 2
        for journal in journals:
            kept = journal.rename(config / "kept")
            journal.mkdir()
            with pytest.raises(ContrailError, match=r"offsets\.journal\.\* cannot be read: .*Is a directory"):
                cluster.restart_broker()
            journal.rmdir()
            kept.rename(journal)
        cluster.restart_broker()
        assert admin.offset("g", queue) == 5
