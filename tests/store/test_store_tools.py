"""inspect, verify and rebuild, as functions and as commands."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest
from plain_store import queue_files
from typer.testing import CliRunner

from contrailmq.cli import app
from contrailmq.store import Files, MessageStore, StoreConfig, StoreView, rebuild_store, verify_store
from contrailmq.store.base.errors import StoreIOError, StoreLockedError
from contrailmq.store.base.store_lock import NEW, OLD, StoreLock
from golden_stores import expected, unpack

CLEAN = ["clean", "kill9-recovered", "direct", "direct-crc"]


def all_files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


def findings_of(root: Path) -> list[tuple[str, str]]:
    with StoreView(StoreConfig(root)) as view:
        return [(finding.part, finding.problem) for finding in verify_store(view).findings]


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["store", *(str(argument) for argument in arguments)])
    return result.exit_code, result.stdout


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    root = unpack("clean", tmp_path)
    (root / "timerwheel").unlink()  # 38 MB that are none of our business
    return root


@pytest.mark.parametrize("name", CLEAN)
def test_verify_finds_nothing_in_what_apache_closed(name: str, tmp_path: Path) -> None:
    root = unpack(name, tmp_path)
    with StoreView(StoreConfig(root)) as view:
        report = verify_store(view)
    assert report.findings == []
    assert report.units == len(expected(name)["messages"])
    assert report.log_max_offset == expected(name)["maxPhyOffset"]


@pytest.mark.parametrize(("name", "missing"), [("kill9", 4), ("torn", 3)])
def test_verify_names_each_unit_that_a_crash_left_out(name: str, missing: int, tmp_path: Path) -> None:
    found = findings_of(unpack(name, tmp_path))
    assert sum(part == "queue" and problem.endswith("is missing") for part, problem in found) == missing
    assert ("store", "it was not closed cleanly: open it once, so that it is recovered") in found


def test_more_findings_than_can_be_listed_are_counted(tmp_path: Path) -> None:
    with StoreView(StoreConfig(unpack("kill9-lag", tmp_path))) as view:
        report = verify_store(view)
    assert len(report.findings) == 1000
    assert report.findings_count == 1 + 2 * 746  # the abort file; of each record its unit and its keys


def test_verify_changes_no_byte_even_of_a_damaged_store(tmp_path: Path) -> None:
    root = unpack("torn-mid", tmp_path)
    (root / "timerwheel").unlink()
    queue = next((root / "consumequeue").rglob("0" * 20))
    with queue.open("r+b") as file:
        file.truncate(50)
    before = all_files(root)
    assert run("verify", root)[0] == 1
    assert run("inspect", root)[0] == 0
    assert all_files(root) == before


def test_verify_notices_every_flipped_byte_of_queue_and_log(clean: Path) -> None:
    """Of the log: what a checksum or a length covers. Of a queue: everything before its end."""
    rng = random.Random(11)
    queue = clean / "consumequeue/GoldenBulk/0" / ("0" * 20)
    log = clean / "commitlog" / ("0" * 20)
    for path, positions in ((queue, rng.sample(range(1200), 12)), (log, [4, 12, 27, 35, 100])):
        good = path.read_bytes()
        for position in positions:
            data = bytearray(good)
            data[position] ^= 0x10
            path.write_bytes(data)
            assert findings_of(clean), (path.name, position)
        path.write_bytes(good)
    assert findings_of(clean) == []


def test_verify_sees_both_directions(clean: Path) -> None:
    shutil.rmtree(clean / "consumequeue/GoldenTx")
    (sorted((clean / "index").iterdir())[1]).unlink()
    problems = findings_of(clean)
    assert any(part == "queue" and "missing" in problem for part, problem in problems)
    assert any(part == "index" and "of this record: missing" in problem for part, problem in problems)
    sorted((clean / "commitlog").iterdir())[0].unlink()
    sorted((clean / "commitlog").iterdir())[1].unlink()
    problems = findings_of(clean)
    assert any("no record belongs to" in problem for part, problem in problems if part == "queue")
    assert any("where no record begins" in problem for part, problem in problems if part == "index")
    assert any("gap" in problem for _, problem in problems)


@pytest.mark.parametrize("name", CLEAN)
def test_rebuilt_queues_are_byte_identical_and_nothing_else_changes(name: str, tmp_path: Path) -> None:
    root = unpack(name, tmp_path)
    (root / "timerwheel").unlink(missing_ok=True)
    before = all_files(root)
    report = rebuild_store(StoreConfig(root))
    after = all_files(root)
    changed = {path for path in before if before[path] != after.get(path)}
    assert {path.partition("/")[0] for path in changed} <= {"index"}
    assert not (root / NEW).exists()
    assert not (root / OLD).exists()
    assert report.units == len(expected(name)["messages"])
    assert findings_of(root) == []


def test_rebuild_mends_what_verify_found(clean: Path) -> None:
    before = queue_files(clean)
    shutil.rmtree(clean / "consumequeue/GoldenBulk")
    next((clean / "consumequeue/GoldenTx").rglob("0" * 20)).write_bytes(b"x" * 1200)
    assert findings_of(clean)
    assert run("rebuild", clean)[0] == 0
    assert findings_of(clean) == []
    assert queue_files(clean) == before


def test_an_interrupted_rebuild_leaves_the_old_files_in_place(clean: Path) -> None:
    before = queue_files(clean)
    (clean / NEW / "consumequeue").mkdir(parents=True)
    (clean / OLD).mkdir()
    (clean / "consumequeue").rename(clean / OLD / "consumequeue")  # killed between the two renames
    rebuild_store(StoreConfig(clean))
    assert queue_files(clean) == before


def test_rebuild_refuses_a_store_that_is_open(clean: Path) -> None:
    lock = StoreLock(Files(), clean / "lock")
    lock.acquire()
    try:
        with pytest.raises(StoreLockedError):
            rebuild_store(StoreConfig(clean))
    finally:
        lock.release()


def test_inspect_shows_the_ranges_that_apache_gives(clean: Path) -> None:
    code, text = run("inspect", clean, "--json")
    assert code == 0
    shown = json.loads(text)
    told = expected("clean")
    assert (shown["log_min_offset"], shown["log_max_offset"]) == (told["minPhyOffset"], told["maxPhyOffset"])
    assert shown["messages"] == len(told["messages"])
    assert {(queue["topic"], queue["queue_id"]): queue["max_offset"] for queue in shown["queues"]} == {
        (queue["topic"], queue["queueId"]): queue["maxOffset"] for queue in told["queues"]
    }
    assert list(shown["checkpoint"].values()) == list(told["checkpointFound"].values())
    assert shown["last_store_time_ms"] == max(message["storeTimestamp"] for message in told["messages"])
    code, text = run("inspect", clean)
    assert code == 0
    assert "GoldenBulk" in text
    assert "657,654" in text


def test_the_exit_code_tells_findings_from_trouble(clean: Path, tmp_path: Path) -> None:
    assert run("verify", clean)[0] == 0
    code, text = run("verify", clean, "--json")
    assert (code, json.loads(text)["ok"]) == (0, True)
    (clean / "abort").write_text("1")
    code, text = run("verify", clean, "--json")
    assert (code, json.loads(text)["ok"]) == (1, False)
    assert run("verify", tmp_path / "nothing")[0] == 2
    assert run("rebuild", tmp_path / "nothing")[0] == 2


def test_rebuild_tells_what_it_did_as_json(clean: Path) -> None:
    code, text = run("rebuild", clean, "--json")
    assert code == 0
    told = json.loads(text)
    assert told["units"] == len(expected("clean")["messages"])


@pytest.mark.parametrize("job", ["verify", "rebuild"])
def test_long_jobs_say_how_far_they_are(job: str, clean: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the progress bar is drawn from: bytes of the log that were walked, never going back."""
    monkeypatch.setattr("contrailmq.store.tools.verify._PROGRESS_RECORDS", 100)
    steps: list[tuple[int, int]] = []
    if job == "verify":
        with StoreView(StoreConfig(clean)) as view:
            verify_store(view, lambda done, total: steps.append((done, total)))
    else:
        rebuild_store(StoreConfig(clean), on_progress=lambda done, total: steps.append((done, total)))
    log_bytes = sum(path.stat().st_size for path in (clean / "commitlog").iterdir())
    assert {total for _, total in steps} == {log_bytes}
    done = [step[0] for step in steps]
    assert done == sorted(done)
    assert len(done) > 3
    assert log_bytes / 4 < done[-1] <= log_bytes


@pytest.mark.parametrize(("damage", "offset"), [("a record", 267), ("a missing file", 131072)])
def test_rebuild_refuses_a_log_with_a_hole_and_names_the_place(damage: str, offset: int, clean: Path) -> None:
    """The second record begins at 267; log files of that store have 131,072 bytes."""
    if damage == "a record":
        with (clean / "commitlog" / ("0" * 20)).open("r+b") as log:
            log.seek(offset + 4)
            log.write(b"????")
    else:
        (clean / "commitlog" / f"{offset:020d}").unlink()
    before = all_files(clean)
    result = CliRunner().invoke(app, ["store", "rebuild", str(clean)])
    assert result.exit_code == 2
    assert f"the log is damaged at offset {offset} " in result.output
    assert "goes on at 131072" in result.output if damage == "a record" else "goes on at 262144" in result.output
    assert "Restore the file from a copy" in result.output
    assert all_files(clean) == before
    assert not (clean / NEW).exists()


def test_rebuild_says_why_the_log_ends_where_it_does(tmp_path: Path) -> None:
    """A torn end is what a start would cut, too."""
    report = rebuild_store(StoreConfig(unpack("torn", tmp_path)))
    assert report.log_max_offset == expected("torn")["maxPhyOffset"]
    assert report.log_end != ""


def test_opening_clears_away_what_a_killed_rebuild_left(clean: Path) -> None:
    """Killed between two renames: the queues are put back, and none has to be made again."""
    before = queue_files(clean)
    (clean / NEW / "index").mkdir(parents=True)
    (clean / OLD).mkdir()
    (clean / "consumequeue").rename(clean / OLD / "consumequeue")
    with MessageStore(StoreConfig(clean)) as store:
        assert store.recovery.units_added == 0
    assert queue_files(clean) == before
    assert not (clean / NEW).exists()
    assert not (clean / OLD).exists()


@pytest.mark.parametrize("name", ["index", "consumequeue"])
def test_what_cannot_be_looked_at_is_an_error_of_ours_with_its_path(name: str, clean: Path) -> None:
    shutil.rmtree(clean / name)
    (clean / name).write_text("not a directory")
    with pytest.raises(StoreIOError, match=f"looking at the store .*{name}.*Not a directory|Not a directory.*{name}"):
        StoreView(StoreConfig(clean))
