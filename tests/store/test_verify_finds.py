"""What verify notices that opening and reading do not: times of index entries, missing index files, extensions; and
what is no finding: a store in use, an index that is turned off, a directory that has nothing to do with the log."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

from contrailmq import Producer
from contrailmq.cli import app
from contrailmq.message import Message
from contrailmq.store import ManualClock, MessageStore, StoreConfig, StoreView, VerifyReport, verify_store
from contrailmq.testing import LocalCluster
from golden_stores import unpack
from lock_holder import in_use_by_another

BEGIN_MS = 1_794_800_000_000
SLOTS, UNITS = 10, 61
HEADER = struct.Struct(">qqqqii")
SIZES = {
    "mapped_file_size_commit_log": 16_384,
    "mapped_file_size_consume_queue": 1200,
    "max_hash_slot_num": SLOTS,
    "max_index_num": UNITS,
}
EXTENDED = SIZES | {"enable_consume_queue_ext": True, "mapped_file_size_consume_queue_ext": 512}


def filled(root: Path, sizes: dict[str, object] = SIZES) -> Path:
    """50 messages a second apart, each with a key and a unique key: 60 entries fill the first index file, 40 follow."""
    clock = ManualClock(BEGIN_MS)
    with MessageStore(StoreConfig(root, **sizes), clock=clock) as store:
        for number in range(50):
            store.put(Message("T", b"x" * 100, keys=[f"k{number}"]))
            clock.advance(1000)
    assert verified(root).findings == []
    return root


def verified(root: Path, **settings: object) -> VerifyReport:
    with StoreView(StoreConfig(root, **settings)) as view:
        return verify_store(view)


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, ["store", *(str(argument) for argument in arguments)])
    return result.exit_code, result.output


def index_files(root: Path) -> list[Path]:
    return sorted((root / "index").iterdir())


def flip(path: Path, position: int, bit: int = 0x10) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= bit
    path.write_bytes(data)


def unit_at(number: int) -> int:
    """Where a unit of an index file begins."""
    return HEADER.size + SLOTS * 4 + number * 20


# --- index: times and headers


@pytest.mark.parametrize(("file", "number", "seconds"), [(0, 1, 0), (0, 3, 1), (0, 60, 29), (1, 1, 1), (1, 40, 19)])
def test_the_seconds_of_every_index_entry_are_held_against_its_record(
    file: int, number: int, seconds: int, tmp_path: Path
) -> None:
    """The first entry of a rolled file counts from the last of the file before."""
    path = index_files(filled(tmp_path))[file]
    position = unit_at(number) + 12
    assert struct.unpack_from(">i", path.read_bytes(), position) == (seconds,)
    flip(path, position + 1)
    (finding,) = verified(tmp_path).findings
    assert (finding.part, finding.where) == ("index", path.name)
    assert (
        f"unit {number} stands at {seconds + 0x100000} s, its record's store time gives {seconds} s" in finding.problem
    )


@pytest.mark.parametrize(
    ("field", "problem"),
    [
        (0, "its header begins at time"),
        (1, "its header ends at time"),
        (2, "its header begins at offset"),
        (3, "the last unit points at"),
    ],
)
def test_times_and_offsets_of_an_index_header_are_held_against_the_log(
    field: int, problem: str, tmp_path: Path
) -> None:
    path = index_files(filled(tmp_path))[1]
    values = list(HEADER.unpack_from(path.read_bytes()))
    values[field] += -1 if field in (0, 2) else 1
    with path.open("r+b") as file:
        file.write(HEADER.pack(*values))
    (finding,) = verified(tmp_path).findings
    assert finding.problem.startswith(problem)


def test_entries_of_a_cleaned_file_are_not_asked_for_their_times(tmp_path: Path) -> None:
    """The first log file is gone, and with it the records of the first index file: nothing to compare, no finding."""
    sizes = SIZES | {"mapped_file_size_commit_log": 4096}
    filled(tmp_path, sizes)
    (tmp_path / "commitlog" / f"{0:020d}").unlink()
    assert verified(tmp_path).findings == []


@pytest.mark.parametrize(("which", "findings"), [(0, 1), (1, 20)])
def test_a_missing_index_file_is_a_finding_the_first_one_too(which: int, findings: int, tmp_path: Path) -> None:
    index_files(filled(tmp_path))[which].unlink()
    found = verified(tmp_path).findings
    assert [finding.part for finding in found] == ["index"] * findings
    if which == 0:
        assert found[0].offset == 0
        assert "it lacks 60 keys of the records before" in found[0].problem
    else:
        assert found[0].problem == "2 keys of this record: missing"


def test_an_index_that_is_gone_is_one_finding(tmp_path: Path) -> None:
    for path in index_files(filled(tmp_path)):
        path.unlink()
    (finding,) = verified(tmp_path).findings
    assert "the index is empty: it lacks 100 keys" in finding.problem


def test_an_index_that_is_turned_off_is_not_looked_at(tmp_path: Path) -> None:
    path = index_files(filled(tmp_path))[0]
    flip(path, unit_at(2) + 13)
    assert verified(tmp_path, message_index_enable=False).findings == []
    conf = tmp_path / "broker.conf"
    conf.write_text("messageIndexEnable=false\n")
    assert run("verify", tmp_path, "-c", conf)[0] == 0
    assert run("verify", tmp_path)[0] == 1


# --- extensions


@pytest.mark.parametrize(
    ("position", "problem"),
    [
        (1, "its extension at 40 cannot be read"),  # size
        (9, "its extension at 40 says (tags code, store time)"),
        (17, "its extension at 40 says (tags code, store time)"),
        (19, "its extension at 40 cannot be read"),  # length of the bitmap
    ],
)
def test_an_extension_is_held_against_its_record(position: int, problem: str, tmp_path: Path) -> None:
    """The third unit's, 20 bytes each. Behind a flipped size the file's other units cannot be found either."""
    filled(tmp_path, EXTENDED)
    (path,) = [path for path in (tmp_path / "consumequeue_ext").rglob("0*") if path.name == "0" * 20]
    flip(path, 40 + position)
    found = verified(tmp_path).findings
    assert (found[0].part, found[0].where, found[0].offset) == ("queue", "T/0", 2)
    assert found[0].problem.startswith(problem)


@pytest.mark.parametrize(
    ("place", "problem"), [(40, "does not follow that of the unit before"), (61, "cannot be read")]
)
def test_an_address_of_another_extension_is_a_finding(place: int, problem: str, tmp_path: Path) -> None:
    """Unit 3 points at 60; unit 2's extension is at 40, and none begins at 61."""
    filled(tmp_path, EXTENDED)
    path = tmp_path / "consumequeue/T/0" / ("0" * 20)
    data = bytearray(path.read_bytes())
    assert data[72:80] == struct.pack(">Q", 2**63 + 60)
    data[72:80] = struct.pack(">Q", 2**63 + place)
    path.write_bytes(data)
    (finding,) = verified(tmp_path).findings
    assert finding.offset == 3
    assert problem in finding.problem


def test_missing_extension_files_are_findings(tmp_path: Path) -> None:
    filled(tmp_path, EXTENDED)
    for path in (tmp_path / "consumequeue_ext").rglob("0" * 20):
        path.unlink()
    report = verified(tmp_path)
    assert report.findings_count == 25  # as many 20 bytes as the first file has, with 4 to spare


# --- no store, and no fault


@pytest.mark.parametrize("command", ["inspect", "verify", "rebuild"])
def test_a_directory_that_is_no_store_ends_with_2_and_stays_as_it_is(command: str, tmp_path: Path) -> None:
    filled(tmp_path / "parent" / "data" / "store")
    code, text = run(command, tmp_path / "parent")
    assert code == 2
    assert "is not a store" in text
    assert "commitlog" in text
    assert os.listdir(tmp_path / "parent") == ["data"]


def test_the_stores_of_a_directory_are_found_shown_and_verified_each(tmp_path: Path) -> None:
    """As `contrailmq up --store` lays them out: a directory for each broker, beside the NameServer's."""
    for name in ("broker-a", "broker-b"):
        filled(tmp_path / name)
    (tmp_path / "namesrv").mkdir()
    code, told = run("inspect", tmp_path, "--json")
    paths = [str(tmp_path / name) for name in ("broker-a", "broker-b")]
    assert (code, [store["path"] for store in json.loads(told)["stores"]]) == (0, paths)
    assert all(path in run("inspect", tmp_path)[1] for path in paths)
    assert "commit log" in run("inspect", tmp_path / "broker-a")[1]
    assert json.loads(run("inspect", tmp_path / "broker-a", "--json")[1])["path"] == paths[0]
    code, told = run("verify", tmp_path, "--json")
    assert (code, [store["ok"] for store in json.loads(told)["stores"]]) == (0, [True, True])
    (tmp_path / "broker-b" / "commitlog" / "README").write_text("x")
    code, told = run("verify", tmp_path, "--json")
    assert (code, [store["ok"] for store in json.loads(told)["stores"]]) == (1, [True, False])
    code, told = run("rebuild", tmp_path)
    assert (code, "holds the stores of broker-a, broker-b" in told) == (2, True)


def test_a_store_that_is_written_to_has_no_findings(tmp_path: Path) -> None:
    """Looks at it while a thread puts: records, units and keys are on their way all the time."""
    sizes = {"mapped_file_size_commit_log": 1 << 18, "max_hash_slot_num": 1000, "max_index_num": 4000}
    reports: list[VerifyReport] = []
    with MessageStore(StoreConfig(tmp_path, flush_interval_consume_queue=1, **sizes)) as store:

        def put() -> None:
            for number in range(3000):
                store.put(Message(f"T{number % 7}", b"x" * 300, tags="t", keys=[f"k-{number}"]), number % 3)

        writer = threading.Thread(target=put)
        writer.start()
        while writer.is_alive():
            reports.append(verified(tmp_path))
        reports.append(verified(tmp_path))
    assert [report.findings for report in reports] == [[]] * len(reports)
    assert reports[-1].records == 3000
    assert verified(tmp_path).findings == []


def test_a_queue_file_without_a_size_is_on_its_way_in_a_store_in_use_alone(tmp_path: Path) -> None:
    filled(tmp_path)
    first = next(path for path in sorted((tmp_path / "consumequeue").rglob("0" * 20)) if path.stat().st_size)
    new = first.with_name(f"{first.stat().st_size:020d}")
    new.touch()
    with in_use_by_another(tmp_path):
        assert verified(tmp_path).findings == []
    (found,) = verified(tmp_path).findings
    assert f"queue file {new.name} has 0 bytes" in found.problem


def test_what_cannot_be_on_its_way_is_found_in_a_store_in_use(tmp_path: Path) -> None:
    """A unit that was on disk when the store was closed, and is another or none now; a garbled record."""
    filled(tmp_path)
    queue = next(path for path in sorted((tmp_path / "consumequeue").rglob("0" * 20)) if path.stat().st_size)
    with open(queue, "r+b") as file:
        file.seek(12)
        file.write(b"\x07" * 8)
    log = next((tmp_path / "commitlog").iterdir())
    with in_use_by_another(tmp_path):
        found = [finding.problem for finding in verified(tmp_path).findings]
        assert len(found) == 1
        assert "should be" in found[0]
        with open(log, "r+b") as file:
            file.seek(100)
            file.write(b"\x00\x07" * 40)
        assert "log" in {finding.part for finding in verified(tmp_path).findings}


def test_units_behind_the_checkpoint_of_a_store_in_use_may_be_missing(tmp_path: Path) -> None:
    """The same files closed and in use: 746 of 1,395 records have no unit yet."""
    place = unpack("kill9-lag", tmp_path)
    missing = [finding for finding in verified(place).findings if "is missing" in finding.problem]
    assert missing
    with in_use_by_another(place):
        assert [finding for finding in verified(place).findings if "is missing" in finding.problem] == []


@pytest.mark.parametrize("levels", ["2s 7s 1m", ""])
def test_delay_levels_are_those_of_the_stores_broker(tmp_path: Path, levels: str) -> None:
    config = {"messageDelayLevel": levels} if levels else {}
    with (
        LocalCluster(store=tmp_path, config=config) as cluster,
        Producer("later", namesrv=cluster.namesrv) as producer,
    ):
        for level in (1, 2, 3):
            producer.send(Message("Later", b"x", delay_level=level))
    (place,) = (path.parent for path in tmp_path.glob("*/commitlog"))
    assert run("verify", place)[0] == 0
    (tmp_path / "broker.conf").write_text("messageDelayLevel=9h 9h 9h\n")
    assert run("verify", place, "-c", str(tmp_path / "broker.conf"))[0] == 1
    recorded = place / "config" / "store.properties"
    assert recorded.exists() is bool(levels), "RocketMQ's own levels need no file"


def test_what_is_no_log_file_by_nature_is_no_finding(tmp_path: Path) -> None:
    """A directory, as opening it passes over; a file with another name stops the opening."""
    filled(tmp_path)
    (tmp_path / "commitlog/lost+found").mkdir()
    assert verified(tmp_path).findings == []
    (tmp_path / "commitlog/README").write_text("x")
    assert [finding.problem for finding in verified(tmp_path).findings] == ["README is not a log file"]


def test_a_store_in_use_is_not_called_badly_closed(tmp_path: Path) -> None:
    """By another process; and by this one, which knows its own."""
    filled(tmp_path)
    (tmp_path / "abort").write_text("1")
    with in_use_by_another(tmp_path) as pid:
        code, told = run("verify", tmp_path, "--json")
        assert (code, json.loads(told)["owner_pid"]) == (0, pid)
        assert f"in use by process {pid}" in run("inspect", tmp_path)[1]
        assert f"in use by process {pid}" in run("verify", tmp_path)[1]
    assert "NOT closed cleanly" in run("inspect", tmp_path)[1]
    (tmp_path / "abort").unlink()
    with MessageStore(StoreConfig(tmp_path)):
        assert verified(tmp_path).owner_pid == os.getpid()
        asked = "import fcntl, sys; fcntl.lockf(open(sys.argv[1], 'r+b'), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)"
        tried = subprocess.run([sys.executable, "-c", asked, str(tmp_path / "lock")], capture_output=True, check=False)
        assert tried.returncode == 1, "looking at a store that is open here drops its lock"


def test_units_that_are_missing_are_not_counted_as_seen(tmp_path: Path) -> None:
    """1,395 records, of which 746 never reached their queues."""
    report = verified(unpack("kill9-lag", tmp_path))
    assert (report.records, report.units) == (1395, 649)
