"""A rebuild that is disturbed: tasks that run twice, files cut short, a store that is open here."""

from __future__ import annotations

import errno
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from bench.spark import write_log
from contrailmq import Message, Producer
from contrailmq.spark.decoding.index_shape import IndexShape
from contrailmq.spark.jobs import rebuild as job
from contrailmq.spark.jobs import swap
from contrailmq.spark.jobs.rebuild import rebuild
from contrailmq.spark.jobs.swap import RebuildError, is_in_use
from contrailmq.spark.jobs.verify import verify
from contrailmq.spark.runtime.engine import Item, LocalEngine, Progress, Result, SparkEngine
from contrailmq.testing import LocalCluster
from lock_holder import in_use_by_another
from spark.conftest import unpack
from spark.test_rebuild_verify import files_below

ONE = LocalEngine(workers=1)


class After:
    """An engine of one process that does something between reading the log and writing the files.

    What it does is given a function that runs the tasks of the reading once more.
    """

    tasks_at_once = 1

    def __init__(self, disturb: Callable[[Callable[[], object]], None]) -> None:
        self.disturb = disturb

    def run(
        self, kernel: Callable[[Item], Result], items: Sequence[Item], on_progress: Progress | None = None
    ) -> Iterator[Result]:
        def again() -> list[Result]:
            return [kernel(item) for item in items]

        yield from again()
        if kernel.__name__ == "_read_part":
            self.disturb(again)


class Twice:
    """An engine whose every task runs twice, one after the other; the first or the second attempt counts."""

    tasks_at_once = 1

    def __init__(self, counts: int) -> None:
        self.counts = counts

    def run(
        self, kernel: Callable[[Item], Result], items: Sequence[Item], on_progress: Progress | None = None
    ) -> Iterator[Result]:
        for attempts in [(kernel(item), kernel(item)) for item in items]:
            yield attempts[self.counts]


def cut(store: str, kind: str, size_bytes: int) -> None:
    """Cut every fragment file of one kind."""
    fragments = list(Path(store).glob(f"rebuild-*/*.{kind}"))
    assert fragments
    for fragment in fragments:
        os.truncate(fragment, size_bytes)


@pytest.mark.parametrize(
    ("kind", "size_bytes", "told"),
    [
        (
            "units",
            400,
            r"\.units was cut short: \d+ bytes found at \d+, \d+ expected; nothing was replaced: .* run again",
        ),
        (
            "entries",
            0,
            r"\.entries was cut short: 0 bytes found at 0, \d+ expected; nothing was replaced: .* run again",
        ),
    ],
    ids=["units", "entries"],
)
def test_a_fragment_that_was_cut_short_replaces_nothing(tmp_path: Path, kind: str, size_bytes: int, told: str) -> None:
    store = unpack("clean", tmp_path)
    before = files_below(store)
    with pytest.raises(RebuildError, match=told):
        rebuild(store, After(lambda again: cut(store, kind, size_bytes)))
    assert files_below(store) == before


def test_an_index_with_entries_missing_replaces_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = unpack("clean", tmp_path)
    before, read = files_below(store), job._read_entries
    monkeypatch.setattr(job, "_read_entries", lambda entries: read(entries)[1:])
    with pytest.raises(
        RebuildError, match="the new index has 1\\d* entries where the log gives .* nothing was replaced"
    ):
        rebuild(store, ONE, range_bytes=20_000)
    assert files_below(store) == before


@pytest.mark.parametrize("counts", [0, 1], ids=["the first attempt counts", "the second attempt counts"])
def test_tasks_that_run_twice_give_the_same_store(tmp_path: Path, counts: int) -> None:
    plain, twice = unpack("clean", tmp_path / "plain"), unpack("clean", tmp_path / "twice")
    results = [rebuild(plain, ONE, range_bytes=20_000), rebuild(twice, Twice(counts), range_bytes=20_000)]
    for result in results:
        job.remove_old(result)
    assert results[0].units == results[1].units > 0
    assert files_below(twice) == files_below(plain)


class LostOnce(SparkEngine):
    """Spark, whose every task is lost once, when its work is done and before its result is told."""

    def run(
        self, kernel: Callable[[Item], Result], items: Sequence[Item], on_progress: Progress | None = None
    ) -> Iterator[Result]:
        def lost_once(item: Item) -> Result:
            from pyspark import TaskContext

            result, context = kernel(item), TaskContext.get()
            if context is None or context.attemptNumber() == 0:
                raise ConnectionError("this attempt is lost")
            return result

        return super().run(lost_once, items, on_progress)


@pytest.mark.spark
def test_spark_tasks_that_are_lost_once_give_the_same_store(tmp_path: Path, spark: Any) -> None:
    plain, lost = unpack("clean", tmp_path / "plain"), unpack("clean", tmp_path / "lost")
    job.remove_old(rebuild(plain, ONE, range_bytes=200_000))
    job.remove_old(rebuild(lost, LostOnce(spark), range_bytes=200_000))
    assert files_below(lost) == files_below(plain)


def test_an_attempt_that_is_no_longer_waited_for_leaves_the_files_of_the_one_that_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log is read; then another attempt begins to read it, and is lost at the first record."""
    store = str(tmp_path / "store")
    write_log(store, count=50, body_bytes=100)

    class LostError(Exception):
        pass

    def lose(*given: object) -> None:
        raise LostError

    def begin_again(again: Callable[[], object]) -> None:
        with monkeypatch.context() as patched:
            patched.setattr(job, "read_records", lose)
            with pytest.raises(LostError):
                again()

    result = rebuild(store, After(begin_again))
    assert (result.units, result.index_entries) == (50, 150)
    assert verify(store, ONE) == []


def test_why_a_rebuild_failed_is_told_though_its_folder_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A task of the pool that still writes fills the folder again while it is being removed."""
    store = unpack("clean", tmp_path)
    remove = os.rmdir

    def written_meanwhile(path: str, **named: int) -> None:
        if str(path).startswith(("rebuild-", f"{store}/rebuild-")):
            raise OSError(39, "Directory not empty", path)
        remove(path, **named)

    monkeypatch.setattr(os, "rmdir", written_meanwhile)
    with pytest.raises(RebuildError, match="was cut short"):
        rebuild(store, After(lambda again: cut(store, "entries", 0)))


def test_a_store_that_is_open_in_this_process_is_left_alone_and_keeps_its_lock(tmp_path: Path) -> None:
    """Such a lock goes with any descriptor of its file that the process closes; only another process sees that."""
    with LocalCluster(store=tmp_path) as cluster:
        (lock,) = tmp_path.rglob("lock")
        store = str(lock.parent)
        with Producer("orders", namesrv=cluster.namesrv) as producer:
            producer.send(Message("Orders", b"paid"))
        assert is_in_use(store)
        with pytest.raises(RebuildError, match=rf"in use by .* this process \({os.getpid()}\): stop it first"):
            rebuild(store, ONE)
        assert owner_seen_by_another(lock) == os.getpid()
        assert [path.name for path in Path(store).glob("*rebuild*")] == []
    assert not is_in_use(store)
    assert owner_seen_by_another(lock) == 0
    assert rebuild(store, ONE).units == 1


def owner_seen_by_another(lock: Path) -> int:
    code = (
        "import sys; from pathlib import Path; from contrailmq.store.files import Files; "
        "from contrailmq.store.base.store_lock import owner_of; print(owner_of(Files(), Path(sys.argv[1])))"
    )
    told = subprocess.run([sys.executable, "-c", code, str(lock)], capture_output=True, check=True, text=True)
    return int(told.stdout)


def test_a_rebuild_tells_which_process_holds_the_store_and_keeps_others_out_itself(tmp_path: Path) -> None:
    store = unpack("clean", tmp_path)
    with in_use_by_another(store) as pid, pytest.raises(RebuildError, match=f"in use by .* process {pid}: stop it"):
        rebuild(store, ONE)
    seen: list[object] = []
    rebuild(store, After(lambda again: seen.append((is_in_use(store), owner_seen_by_another(Path(store, "lock"))))))
    assert seen == [(True, os.getpid())]
    assert not is_in_use(store)


def test_asking_whether_a_store_is_in_use_makes_no_lock_file_and_changes_none(tmp_path: Path) -> None:
    assert not is_in_use(str(tmp_path))
    assert list(tmp_path.iterdir()) == []
    lock = tmp_path / "lock"
    lock.write_bytes(b"")
    assert not is_in_use(str(tmp_path))
    with in_use_by_another(tmp_path):
        assert is_in_use(str(tmp_path))
    assert lock.read_bytes() == b""


class DiskRecorder:
    """Every sync, rename and removal in the order they happen, by inode: names change on the way."""

    def __init__(self, patch: pytest.MonkeyPatch, *, is_bad: Callable[[str], bool] = lambda path: False) -> None:
        self.synced: dict[int, list[tuple[int, int]]] = {}  # inode -> when, and the file's time of change then
        self.renames: list[tuple[int, str, int]] = []  # when, new name, inode of its folder
        self.removals: list[int] = []
        self.failed: list[str] = []
        self.now = 0
        self._is_bad = is_bad
        self._sync, self._rename, self._unlink, self._rmdir = os.fsync, os.rename, os.unlink, os.rmdir
        for name in ("fsync", "rename", "unlink", "rmdir"):
            patch.setattr(os, name, getattr(self, name))

    def fsync(self, descriptor: int) -> None:
        self.now += 1
        status = os.fstat(descriptor)
        self.synced.setdefault(status.st_ino, []).append((self.now, status.st_mtime_ns))
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if self._is_bad(path):
            self.failed.append(path)
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._sync(descriptor)

    def rename(self, source: str | Path, target: str | Path) -> None:
        self.now += 1
        self._rename(source, target)
        self.renames.append((self.now, str(target), os.stat(Path(target).parent).st_ino))

    def unlink(self, path: str, **named: int) -> None:
        self.now += 1
        self.removals.append(self.now)
        self._unlink(path, **named)

    def rmdir(self, path: str, **named: int) -> None:
        self.now += 1
        self.removals.append(self.now)
        self._rmdir(path, **named)

    def last_sync(self, path: Path, *, before: int) -> tuple[int, int]:
        syncs = [seen for seen in self.synced.get(path.stat().st_ino, []) if seen[0] < before]
        assert syncs, f"{path} was not synced"
        return max(syncs)


def test_new_files_are_on_the_disk_before_the_swap_and_its_names_before_anything_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Queues of several files, several index files, several topics; and each folder after what stands in it."""
    store = unpack("clean", tmp_path)
    with monkeypatch.context() as patched:
        seen = DiskRecorder(patched)
        result = rebuild(store, ONE, queue_file_bytes=400, index_shape=IndexShape(100, 400))
        job.remove_old(result)
    swap = [when for when, target, _ in seen.renames if Path(target).name in ("consumequeue", "index")][-4:]
    handed_over = [when for when, target, _ in seen.renames if "before-rebuild" in target]
    assert (len(swap), len(handed_over)) == (4, 2)
    roots = [Path(store, name) for name in ("consumequeue", "index")]
    made = [path for root in roots for path in (root, *root.rglob("*"))]
    assert len([path for path in made if path.is_file()]) > 10 * result.index_files > 10
    for path in made:
        when, changed_ns = seen.last_sync(path, before=swap[0])
        if path.is_file():
            assert changed_ns == path.stat().st_mtime_ns, f"{path} was written after its sync"
            assert when < seen.last_sync(path.parent, before=swap[0])[0]
        else:
            assert when > max((at for at, _, into in seen.renames if into == path.stat().st_ino), default=0)
    swap_durable, names_durable = [when for when, _ in seen.synced.get(Path(store).stat().st_ino, [])]
    assert swap[-1] < swap_durable < min(when for when in seen.removals if when > swap[0])
    assert handed_over[-1] < names_durable


@pytest.mark.parametrize(
    "bad",
    [rf"/GoldenOrder/2/{0:020d}", r"/GoldenOrder/2", r"/consumequeue/GoldenOrder", r"/consumequeue", r"/[0-9]{17}"],
    ids=["file of a queue", "folder of a queue", "folder of a topic", "folder of all queues", "file of the index"],
)
def test_a_sync_that_fails_is_not_tried_again_and_replaces_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: str
) -> None:
    store = unpack("clean", tmp_path)
    before = files_below(store)
    with monkeypatch.context() as patched:
        disk = DiskRecorder(patched, is_bad=lambda path: re.search(f"{bad}$", path) is not None)
        with pytest.raises(OSError, match="Input/output error") as told:
            rebuild(store, ONE)
    assert disk.failed == [told.value.filename]
    assert files_below(store) == before


def test_a_swap_whose_names_cannot_be_synced_says_so_and_keeps_the_old_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = unpack("kill9-lag", tmp_path)
    queues = files_below(f"{store}/consumequeue")
    with monkeypatch.context() as patched:
        DiskRecorder(patched, is_bad=lambda path: path == store)
        with pytest.raises(
            RebuildError, match=f"{store} cannot be synced: Input/output error; .* the old ones are kept"
        ):
            rebuild(store, ONE)
    (kept,) = Path(store).glob("consumequeue.*/consumequeue")
    assert files_below(str(kept)) == queues
    assert verify(store, ONE) == []


class KilledError(BaseException):
    """Stands for the end of the process: nothing after it may run."""


def die(*given: object, **named: object) -> None:
    raise KilledError


def killed_after_the_swap(store: str, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(swap, "hand_over", die)
    rebuild(store, ONE)


def killed_while_old_files_are_removed(store: str, patch: pytest.MonkeyPatch) -> None:
    result = rebuild(store, ONE)
    patch.setattr(shutil, "rmtree", die)
    job.remove_old(result)


@pytest.mark.parametrize("killed", [killed_after_the_swap, killed_while_old_files_are_removed])
def test_old_files_that_a_killed_rebuild_left_go_with_the_next_and_those_that_were_kept_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: Callable[[str, pytest.MonkeyPatch], None]
) -> None:
    store = unpack("clean", tmp_path)
    kept = rebuild(store, ONE).old
    before = {name: files_below(name) for name in kept}
    assert len(before) == 2
    names = set(os.listdir(store))
    with monkeypatch.context() as patched, pytest.raises(KilledError):
        killed(store, patched)
    assert len(set(os.listdir(store)) - names) == 2
    job.remove_old(rebuild(store, ONE))
    assert set(os.listdir(store)) == names
    assert {name: files_below(name) for name in kept} == before
    assert verify(store, ONE) == []


def test_old_files_that_a_killed_rebuild_left_stay_until_new_ones_are_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = unpack("clean", tmp_path)
    with monkeypatch.context() as patched, pytest.raises(KilledError):
        killed_after_the_swap(store, patched)
    before = files_below(store)
    assert any(".replaced-by-rebuild-" in name for name in before)
    with pytest.raises(RebuildError, match="was cut short"):
        rebuild(store, After(lambda again: cut(store, "entries", 0)))
    assert files_below(store) == before


def test_an_index_that_a_killed_rebuild_took_away_is_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It died before the last of its four renames; the next one is given a log that it refuses."""
    store = unpack("clean", tmp_path)
    index, rename = files_below(f"{store}/index"), os.rename

    def killed_at_last(source: str | Path, target: str | Path) -> None:
        if str(target) == f"{store}/index":
            raise KilledError
        rename(source, target)

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", killed_at_last)
        with pytest.raises(KilledError):
            rebuild(store, ONE)
    assert not Path(store, "index").exists()
    with pytest.raises(RebuildError, match="was cut short"):
        rebuild(store, After(lambda again: cut(store, "entries", 0)))
    assert files_below(f"{store}/index") == index
