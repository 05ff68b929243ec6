"""Topics are deleted and the log is cleaned while other threads write, dispatch and clean."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from contrailmq.message import Message
from contrailmq.store import Drive, Files, ManualClock, MessageStore, PutStatus
from contrailmq.store.queues.consume_queue import ConsumeQueue
from contrailmq.store.queues.descriptors import DescriptorCache
from contrailmq.store.queues.queue_unit import UNIT_BYTES, Unit, pack_unit, unpack_units
from store.test_replica import FILE_BYTES, config_at, feed, slave_at, written

QUEUE_FILE_BYTES = 10 * UNIT_BYTES


class Beside(Files):
    """In the middle of a read, or of a removal, another thread has its turn, as far as it gets."""

    def __init__(self) -> None:
        super().__init__()
        self.meanwhile: Callable[[], object] | None = None
        self.other: threading.Thread | None = None

    def pread(self, descriptor: int, size_bytes: int, position: int) -> bytes:
        self._let_another()
        return super().pread(descriptor, size_bytes, position)

    def unlink(self, path: Path | str) -> None:
        self._let_another()
        super().unlink(path)

    def join(self) -> None:
        assert self.other is not None, "nothing came in between"
        self.other.join()

    def _let_another(self) -> None:
        if self.meanwhile is not None:
            self.other = threading.Thread(target=self.meanwhile)
            self.meanwhile = None
            self.other.start()
            self.other.join(0.2)  # it may have to wait until this thread is done


def queue_at(path: Path, descriptors: DescriptorCache) -> ConsumeQueue:
    return ConsumeQueue("T", 0, str(path), file_bytes=QUEUE_FILE_BYTES, files=Files(), descriptors=descriptors)


def fill(queue: ConsumeQueue, count: int, first_physical: int) -> None:
    for offset in range(count):
        place = first_physical + 100 * offset
        queue.extend(offset, pack_unit(place, 100, offset), place + 100)
    queue.write_pending()


def test_cleaning_takes_no_file_of_a_topic_that_is_deleted_and_made_again_meanwhile(tmp_path: Path) -> None:
    """Both have files of the same names."""
    files = Beside()
    descriptors = DescriptorCache(files, capacity=8)
    old, new = queue_at(tmp_path / "T/0", descriptors), queue_at(tmp_path / "T/0", descriptors)
    fill(old, 35, 0)

    def make_again() -> None:
        old.destroy()
        fill(new, 35, 10_000)

    files.meanwhile = make_again
    assert 0 < old.delete_files_below(10_000) <= 3
    files.join()
    assert old.bases == []
    units = [Unit(*unit) for begin in range(0, 35, 10) for unit in unpack_units(new.read_units(begin, 10))]
    assert [unit.physical_offset for unit in units] == [10_000 + 100 * offset for offset in range(35)]
    assert sorted(int(path.name) for path in (tmp_path / "T/0").iterdir()) == new.bases


def test_dispatch_goes_on_behind_a_file_that_is_being_deleted(tmp_path: Path) -> None:
    """Cleaning has unmapped it, and somebody else's view keeps its name: every read of a queue failed meanwhile."""
    log, _ = written(tmp_path / "master")
    with slave_at(tmp_path / "slave") as slave:
        feed(slave, log, [])
        first = slave._log_files.files[0]
        assert first.close()
        slave.dispatch()
        assert slave.dispatched_offset == len(log)
        found = [
            message for number in range(2) for message in slave.get("T", number, slave.min_offset("T", number), 32)
        ]
        assert min(message.physical_offset for message in found) == FILE_BYTES
        assert sum(len(message.body) for message in found) > 0


def test_a_message_put_while_its_topic_is_deleted_is_the_first_of_the_topic_after(tmp_path: Path) -> None:
    files = Beside()
    with MessageStore(config_at(tmp_path), files=files, clock=ManualClock()) as store:
        for number in range(50):
            store.put(Message("T", b"before"), number % 2)
        assert store.max_offset("T", 0) == 25
        store._queues.flush()  # so that there are files
        files.meanwhile = lambda: [store.put(Message("T", b"beside"), number) for number in range(2)]
        assert store.delete_topics(["T"]) == 2
        files.join()
        for number in range(2):
            assert store.put(Message("T", b"after"), number).status is PutStatus.PUT_OK
            found = store.get("T", number, 0, 32)
            assert [(message.queue_offset, message.body) for message in found] == [(0, b"beside"), (1, b"after")]


class MadeAgain(Files):
    def remove_directory(self, path: Path) -> None:
        (path / "7").mkdir()
        super().remove_directory(path)


@pytest.mark.parametrize("drive", list(Drive))
def test_a_directory_that_is_used_again_at_once_stays(drive: Drive, tmp_path: Path) -> None:
    """Deleting a topic failed with "Directory not empty" beside a thread that had made it again."""
    with MessageStore(config_at(tmp_path), files=MadeAgain(), clock=ManualClock(), drive=drive) as store:
        store.put(Message("T", b"before"), 0)
        store.dispatch()
        store._queues.flush()  # so that there are files
        assert store.delete_topics(["T"]) == 1
        assert store.queues() == {}
        assert sorted(path.name for path in (tmp_path / "consumequeue/T").iterdir()) == ["0", "7"]
