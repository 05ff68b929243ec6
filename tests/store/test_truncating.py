"""Cutting a store's newest messages off: checked first, done once, and done again after a kill at any point."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import pytest
from faulty_files import FaultyFiles, Loss
from typer.testing import CliRunner

from contrailmq.cli.store import app
from contrailmq.message import Message
from contrailmq.store import ManualClock, MessageStore, StoreConfig, StoreView, verify_store
from contrailmq.store.base.errors import StoreLockedError
from contrailmq.store.recovery.truncation import NAME
from contrailmq.store.truncating import TruncationError, plan_truncation, truncate_store

IS_LONG = bool(os.environ.get("CONTRAILMQ_LONG"))  # every step, else some of them
SMALL: dict[str, object] = {
    "mapped_file_size_commit_log": 4096,
    "mapped_file_size_consume_queue": 400,
    "max_hash_slot_num": 20,
    "max_index_num": 60,
}


def config_at(path: Path, **given: object) -> StoreConfig:
    return StoreConfig(path, **(SMALL | given))


def filled(path: Path, count: int = 40) -> list[int]:
    """A store of several files; where each message begins. Every fifth is of a topic of its own."""
    with MessageStore(config_at(path), clock=ManualClock()) as store:
        return [
            store.put(
                Message(f"Late{number}" if number % 5 == 4 else "T", b"%d" % number * 50, keys=f"k{number}"), number % 2
            ).physical_offset
            for number in range(count)
        ]


def assert_cut(path: Path, places: list[int], at: int) -> None:
    """Nothing behind the cut is left in any way in, all before it is, and new messages do not bring anything back."""
    kept = sum(place < at for place in places)
    with MessageStore(config_at(path), clock=ManualClock()) as store:
        assert store.log_max_offset <= at
        for number, place in enumerate(places):
            topic = f"Late{number}" if number % 5 == 4 else "T"
            found = [message.physical_offset for message in store.query(topic, f"k{number}")]
            assert found == ([place] if number < kept else []), number
        total = sum(high - low for low, high in store.queues().values())
        assert total == kept
        assert not any(topic == f"Late{number}" and high for (topic, _), (_, high) in store.queues().items()
                       for number in range(kept, len(places)))  # fmt: skip
        again = store.put(Message("T", b"0" * 50, keys="new"), 0)
        assert [message.body for message in store.query("T", "new")] == [b"0" * 50]
        assert again.physical_offset >= at or again.physical_offset == store.recovery.physical_offset_max
    with StoreView(config_at(path)) as view:
        assert verify_store(view).findings == []
    tail = b"".join(file.read_bytes() for file in sorted((path / "commitlog").glob("[0-9]*")))
    assert b"%d" % (len(places) - 1) * 50 not in tail


@pytest.mark.parametrize("number", [1, 17, 20, 39])
def test_what_lies_behind_the_cut_is_gone_everywhere(number: int, tmp_path: Path) -> None:
    places = filled(tmp_path)
    (tmp_path / "timerlog").mkdir()
    (tmp_path / "timerlog" / f"{0:020d}").write_bytes(b"x" * 100)
    (tmp_path / "timerwheel").write_bytes(b"x" * 100)
    report = truncate_store(config_at(tmp_path), places[number])
    assert report.is_done
    assert sum(report.messages.values()) == len(places) - number
    assert not (tmp_path / NAME).exists()
    assert not (tmp_path / "timerwheel").exists()
    assert not (tmp_path / "timerlog").exists()
    assert_cut(tmp_path, places, places[number])


def test_a_place_inside_a_record_is_refused_with_the_borders_around_it(tmp_path: Path) -> None:
    places = filled(tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / "commitlog").iterdir()}
    for at in (places[3] + 1, places[4] - 1):
        with pytest.raises(TruncationError, match=f"{places[3]} and {places[4]}"):
            truncate_store(config_at(tmp_path), at)
    for at in (0, -5, 10**9):
        with pytest.raises(TruncationError, match="nothing was changed"):
            plan_truncation(config_at(tmp_path), at)
    assert {path: path.read_bytes() for path in (tmp_path / "commitlog").iterdir()} == before


@pytest.mark.parametrize("is_cleaned", [False, True], ids=["from 0 on", "cleaned"])
def test_a_place_far_beyond_the_end_is_refused_with_the_logs_real_offsets(is_cleaned: bool, tmp_path: Path) -> None:
    """The last file is an empty one that was made ahead: it says nothing of the end."""
    places = filled(tmp_path)
    with MessageStore(config_at(tmp_path)) as store:
        end = store.log_max_offset
    files = sorted((tmp_path / "commitlog").iterdir())
    if int(files[-1].name) <= places[-1]:
        (tmp_path / "commitlog" / f"{int(files[-1].name) + 4096:020d}").write_bytes(bytes(4096))
    begin = 0
    if is_cleaned:
        files[0].unlink()
        begin = 4096
    for at in (end + 1, end + 4096, 10**9, 10**15, begin):
        with pytest.raises(TruncationError, match=f"has the offsets {begin} to {end}, and {at} is not"):
            plan_truncation(config_at(tmp_path), at)


def test_a_log_without_a_record_has_no_offset_to_cut_at(tmp_path: Path) -> None:
    MessageStore(config_at(tmp_path)).open().close()
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(bytes(4096))
    with pytest.raises(TruncationError, match="has the offsets 0 to 0, and 5 is not"):
        plan_truncation(config_at(tmp_path), 5)


def test_a_store_in_use_is_refused(tmp_path: Path) -> None:
    places = filled(tmp_path)
    with MessageStore(config_at(tmp_path)), pytest.raises(StoreLockedError):
        truncate_store(config_at(tmp_path), places[5])
    assert not (tmp_path / NAME).exists()


@pytest.mark.parametrize("loss", list(Loss))
def test_a_power_cut_after_any_step_leaves_it_undecided_or_done(loss: Loss, tmp_path: Path) -> None:
    """Kills between every two file operations: a stale tail never comes back (Apache's #10666)."""
    places = filled(tmp_path / "whole", 25)
    at = places[9]
    root = tmp_path / "cut"
    root.mkdir()
    files = FaultyFiles(root)
    shutil.copytree(tmp_path / "whole", root, dirs_exist_ok=True)
    # What was there before is on the disk: the journal of a faulty disk begins with an empty one.
    files = take_up(root)
    began = files.journal.event
    truncate_store(config_at(root), at, files=files)
    rng = random.Random(3)
    events = range(began, files.journal.event + 1)
    outcomes = set()
    for event in events if IS_LONG else rng.sample(events, min(25, len(events))):
        image = tmp_path / f"{loss.name}-{event}"
        image.mkdir()
        files.journal.image(event, image, rng, loss)
        was_decided = (image / NAME).exists()
        with MessageStore(config_at(image), clock=ManualClock()) as store:
            end = store.log_max_offset
        outcomes.add((was_decided, end == at))
        assert end == at or (not was_decided and end > at), event
        if end == at:
            assert_cut(image, places, at)
        shutil.rmtree(image)
    assert (True, True) in outcomes


def take_up(root: Path) -> FaultyFiles:
    """A faulty disk that knows, and has synced, what lies below a directory."""
    files = FaultyFiles(root)
    for directory in [root, *(path for path in sorted(root.rglob("*")) if path.is_dir())]:
        for path in sorted(directory.iterdir()):
            if path.is_file():
                data = path.read_bytes()
                path.unlink()
                descriptor = files.open(path, create=True)
                files.pwrite(descriptor, data, 0)
                files.sync(descriptor)
                files.close(descriptor)
        files.sync_directory(directory)
    return files


def test_the_command_only_says_what_it_would_do_until_it_is_told_to(tmp_path: Path) -> None:
    places = filled(tmp_path)
    conf = tmp_path.parent / f"{tmp_path.name}.conf"
    conf.write_text("mappedFileSizeCommitLog=4096\n")
    command = ["truncate", str(tmp_path), "--at", str(places[30])]
    said = CliRunner().invoke(app, command)
    assert said.exit_code == 1
    assert "--yes" in said.output
    with MessageStore(config_at(tmp_path)) as store:
        assert store.log_max_offset > places[39]
    done = CliRunner().invoke(app, [*command, "--yes", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["is_done"] is True
    assert_cut(tmp_path, places, places[30])
    wrong = CliRunner().invoke(app, ["truncate", str(tmp_path), "--at", str(places[3] + 7), "--yes"])
    assert wrong.exit_code == 2
