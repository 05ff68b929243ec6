"""The manifest of an archive: what it refuses to commit beside another writer, and what it refuses to read."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import contrailmq
from contrailmq.spark.jobs.archive import archive
from contrailmq.spark.jobs.delta import publish_delta
from contrailmq.spark.jobs.manifest import ArchiveBusyError, ArchivedFile, ArchiveError, ArchiveState, Manifest
from contrailmq.spark.runtime.engine import LocalEngine
from spark.test_archive import archived, user_offsets
from spark.test_archive_care import CutShort, commit_path, data_files

ONE = LocalEngine(workers=1)
FOUR_BYTES = ArchivedFile("topic=T/date=2026-11-15/0123456789abcdef.parquet", "T", "2026-11-15", rows=1, size_bytes=4)


class Interrupted(LocalEngine):
    """Does something when all work is done, before the commit."""

    def __init__(self, action: Callable[[], None]) -> None:
        super().__init__(1)
        self._action = action

    def run(self, *given: Any, **named: Any) -> Iterator[Any]:
        yield from super().run(*given, **named)
        self._action()


def write_four_bytes(target: Path) -> Path:
    path = target / FOUR_BYTES.path
    path.parent.mkdir(parents=True)
    path.write_bytes(b"PAR1")
    return path


def test_a_writer_whose_lock_was_removed_does_not_commit_files_that_another_removed(
    tmp_path: Path, golden_store: Callable[[str], str]
) -> None:
    """The other takes them for leavings, and fails before a commit of its own."""
    store = golden_store("clean")

    def come_between() -> None:
        (tmp_path / "_manifest" / ".lock").unlink()
        with pytest.raises(RuntimeError, match="cut short"):
            archive(store, str(tmp_path), CutShort(1))

    with pytest.raises(ArchiveBusyError, match=r"\.lock was removed while this writer held it.*nothing was committed"):
        archive(store, str(tmp_path), Interrupted(come_between))
    assert Manifest(tmp_path).head().version == 0
    archive(store, str(tmp_path), ONE)
    assert archived(tmp_path) == user_offsets("clean")


def test_files_that_a_writer_on_another_host_removed_are_not_committed(
    tmp_path: Path, golden_store: Callable[[str], str]
) -> None:
    """Its lock is not known here."""
    store, removed = golden_store("clean"), list[Path]()
    with pytest.raises(ArchiveBusyError, match="5 of 5 files to commit were removed or changed"):
        archive(store, str(tmp_path), Interrupted(lambda: removed.extend(Manifest(tmp_path).remove_leavings())))
    assert len(removed) == 5
    assert Manifest(tmp_path).head().version == 0
    archive(store, str(tmp_path), ONE)
    assert archived(tmp_path) == user_offsets("clean")


@pytest.mark.parametrize("is_made_anew", [False, True])
def test_a_lock_file_that_is_not_the_one_held_stops_a_commit(tmp_path: Path, is_made_anew: bool) -> None:
    manifest = Manifest(tmp_path)
    lock = tmp_path / "_manifest" / ".lock"
    with manifest.writing() as head:
        lock.rename(tmp_path / "held")
        if is_made_anew:
            lock.touch()
        with pytest.raises(ArchiveBusyError, match="leave the file where it is, let one writer work at a time"):
            manifest.commit(head, [], offsets={"store": 5})
    assert manifest.head().version == 0
    with manifest.writing() as head:
        assert manifest.commit(head, [], offsets={"store": 5}).version == 1


@pytest.mark.parametrize(("content", "state"), [(None, "gone"), (b"", "0 bytes"), (b"PAR1PAR1", "8 bytes")])
def test_a_file_that_is_not_as_it_was_written_is_not_committed(
    tmp_path: Path, content: bytes | None, state: str
) -> None:
    manifest, path = Manifest(tmp_path), write_four_bytes(tmp_path)
    if content is None:
        shutil.rmtree(path.parent)
    else:
        path.write_bytes(content)
    text = rf"1 of 1 files to commit .* first is {FOUR_BYTES.path} \({state}, written were 4\): nothing was committed"
    with pytest.raises(ArchiveBusyError, match=text):
        manifest.commit(ArchiveState(), [FOUR_BYTES], offsets={"store": 5})
    assert manifest.head().version == 0
    assert os.listdir(tmp_path / "_manifest") == []


def test_a_commit_whose_text_another_writer_removed_is_told_so(tmp_path: Path) -> None:
    """The other holds no lock that this one knows of."""

    class Beside(Manifest):
        def _check_files(self, files: Any) -> None:
            super()._check_files(files)
            assert [path.name[:8] for path in Manifest(tmp_path).remove_leavings()] == [".commit-"]

    with pytest.raises(ArchiveBusyError, match="was removed by another writer before it became commit 1: nothing was"):
        Beside(tmp_path).commit(ArchiveState(), [], offsets={"store": 5})
    assert Manifest(tmp_path).head().version == 0


KILLED_AT_LINK = """
import os, signal
from contrailmq.spark.jobs.delta import publish_delta
from contrailmq.spark.jobs.manifest import ArchiveState, Manifest

os.link = lambda *given: os.kill(os.getpid(), signal.SIGKILL)
Manifest({target!r}).commit(ArchiveState(), [], offsets={{"store": 5}})
"""


def test_what_a_kill_left_of_a_commit_is_removed_by_the_next_writer(
    tmp_path: Path, golden_store: Callable[[str], str]
) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(contrailmq.__file__).parents[1])}
    code = KILLED_AT_LINK.format(target=str(tmp_path))
    assert subprocess.run([sys.executable, "-c", code], env=environment).returncode == -signal.SIGKILL
    (left,) = (tmp_path / "_manifest").iterdir()
    assert left.name.startswith(".commit-")
    others = tmp_path / "_manifest" / ".commit-of-MINE.txt"
    others.touch()
    archive(golden_store("clean"), str(tmp_path), ONE)
    assert {path.name for path in (tmp_path / "_manifest").iterdir()} == {
        ".lock",
        commit_path(tmp_path, 1).name,
        others.name,
    }


def test_a_commit_stands_though_the_file_it_was_written_as_cannot_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another writer removes it just after the link."""
    link = os.link

    def link_and_lose(part: str, path: str) -> None:
        link(part, path)
        os.unlink(part)

    monkeypatch.setattr(os, "link", link_and_lose)
    after = Manifest(tmp_path).commit(ArchiveState(), [], offsets={"store": 5})
    assert after.version == 1
    assert Manifest(tmp_path).head() == after


def parts_changed(**parts: Any) -> Callable[[dict[str, Any]], None]:
    return lambda commit: commit.update(parts)


def file_changed(place: int, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(commit: dict[str, Any]) -> None:
        commit["files"][0][place] = value

    return change


def offsets_changed(change: Callable[[int], Any]) -> Callable[[dict[str, Any]], None]:
    return lambda commit: commit.update(offsets={store: change(end) for store, end in commit["offsets"].items()})


DAMAGES = {
    "no offsets": (parts_changed(offsets={}), "it does not say how far .*store was read"),
    "no offsets and no topics": (
        parts_changed(offsets={}, topics={}),
        "it lists 5 files, but not how far their source was read",
    ),
    "no batch of a checkpoint": (parts_changed(checkpoints={"q": "c"}), "it does not say how far q was read"),
    "offsets as text": (offsets_changed(str), "Expected `int`, got `str`"),
    "offsets as truth": (offsets_changed(bool), "Expected `int`, got `bool`"),
    "offsets below zero": (offsets_changed(lambda end: -end), "Expected `int` >= 0"),
    "a list of offsets": (parts_changed(offsets=[]), "Expected `object`, got `array`"),
    "batches as text": (parts_changed(batches={"q": "1"}), "Expected `int`, got `str`"),
    "files as an object": (parts_changed(files={}), "Expected `array`, got `object`"),
    "a file without its size": (lambda commit: commit["files"][0].pop(), "Expected `array` of length 5"),
    "a path that is none": (file_changed(0, 7), "Expected `str`, got `int`"),
    "rows as text": (file_changed(3, "7"), "Expected `int`, got `str`"),
    "rows below zero": (file_changed(3, -7), "has -7 rows"),
    "an absolute path": (file_changed(0, "/etc/passwd"), "the file '/etc/passwd' is not in the archive"),
    "a path that leads out": (file_changed(0, "topic=T/../../x"), "the file 'topic=T/../../x' is not in the archive"),
    "an empty path": (file_changed(0, ""), "the file '' is not in the archive"),
    "topics as text": (parts_changed(topics="all"), "Expected `object`, got `str`"),
    "checkpoints as numbers": (parts_changed(batches={"q": 1}, checkpoints={"q": 1}), "Expected `str`, got `int`"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_commit_that_is_still_json_is_refused(
    tmp_path: Path, golden_store: Callable[[str], str], damage: str
) -> None:
    """No job takes it for less or for more than was archived."""
    store, target = golden_store("clean"), str(tmp_path)
    archive(store, target, ONE)
    path, before = commit_path(tmp_path, 1), data_files(tmp_path)
    whole = path.read_bytes()
    commit = json.loads(whole)
    change, text = DAMAGES[damage]
    change(commit)
    path.write_text(json.dumps(commit))
    for job in (
        partial(archive, store, target, ONE),
        partial(archive, store, target, ONE, dry_run=True),
        partial(publish_delta, target),
        Manifest(tmp_path).paths,
    ):
        with pytest.raises(
            ArchiveError, match=rf"^{path} is damaged: .*{text}.*restore it from a backup, nothing was deleted$"
        ):
            job()
    assert data_files(tmp_path) == before
    path.write_bytes(whole)
    assert archive(store, target, ONE).rows == 0


@pytest.mark.parametrize(
    ("second", "text"),
    [
        ({"offsets": {}}, "its offsets lack a, before it was at 5"),
        ({"offsets": {"b": 7}}, "its offsets lack a, before it was at 5"),
        ({"offsets": {"a": 5, "b": 6}}, "its offsets have b at 6, before it was at 7"),
        ({"batches": {}}, "its batches lack q, before it was at 3"),
        ({"batches": {"q": 2}}, "its batches have q at 2, before it was at 3"),
    ],
)
def test_a_position_that_is_lost_or_lower_than_before_is_damage(
    tmp_path: Path, second: dict[str, dict[str, int]], text: str
) -> None:
    """Whether it is the newest commit, which writers go by, or one that only its files are read of."""
    manifest = Manifest(tmp_path)
    first = manifest.commit(ArchiveState(), [], offsets={"a": 5, "b": 7}, batches={"q": 3})
    after = manifest.commit(first, [], offsets={"a": 6}, batches={"q": 4})
    path = commit_path(tmp_path, 2)
    whole = path.read_text()
    path.write_text(json.dumps(json.loads(whole) | second))
    for read in (manifest.head, manifest.load):
        with pytest.raises(ArchiveError, match=f"^{path} is damaged: {text}; restore it from a backup"):
            read()
    path.rename(tmp_path / "second")
    path.write_text(whole)
    manifest.commit(after, [], offsets={"a": 8})
    (tmp_path / "second").rename(path)
    with pytest.raises(ArchiveError, match=f"^{path} is damaged: {text}; restore it from a backup"):
        manifest.load()


def test_a_source_that_goes_on_under_another_name_is_no_damage(tmp_path: Path) -> None:
    manifest = Manifest(tmp_path)
    first = manifest.commit(ArchiveState(), [], offsets={"link": 5, "b": 7})
    manifest.commit(ArchiveState(first.version, {"b": 7}), [], offsets={"store": 6})
    assert manifest.head().offsets == manifest.load().offsets == {"b": 7, "store": 6}


@pytest.mark.parametrize(
    ("replacement", "text"),
    [
        (Path.mkdir, "it is a directory"),
        (lambda path: path.symlink_to("nowhere"), "it is a link to nothing"),
        (lambda path: path.symlink_to(path.name), "it is a link to itself"),
    ],
    ids=["directory", "dangling link", "link to itself"],
)
@pytest.mark.parametrize("number", [1, 2])
def test_what_stands_in_place_of_a_commit_is_told_with_the_remedy(
    tmp_path: Path, replacement: Callable[[Path], None], text: str, number: int
) -> None:
    manifest = Manifest(tmp_path)
    first = manifest.commit(ArchiveState(), [], offsets={"store": 5})
    manifest.commit(first, [], offsets={"store": 6})
    path = commit_path(tmp_path, number)
    path.unlink()
    replacement(path)
    for read in (manifest.head, manifest.load):
        with pytest.raises(ArchiveError, match=f"^{path} is damaged: {text}; restore it from a backup, nothing was"):
            read()
