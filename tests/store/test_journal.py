"""The journal of deliveries: its bytes, what is believed of it, and a disk that does not take it."""

from __future__ import annotations

import errno
import logging
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from faulty_files import FaultyFiles, no_space

from contrailmq.message import Message
from contrailmq.store import Files, MessageStore, StoreConfig
from contrailmq.store.base.journal import HEAD_BYTES, RUN_BYTES_MAX, CopyPlace, Entry, Journal, stands

COPY = CopyPlace(4711, 1_700_000_000_000)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(Files(), tmp_path / "config" / "x.journal")
    made.open()
    yield made
    made.close()


def read(path: Path) -> list[list[Entry]]:
    """The runs of a life that was killed."""
    found = Journal(Files(), path / "config" / "x.journal")
    runs = [list(run) for run in found.open()]
    found.close()
    return runs


def test_an_entry_has_these_bytes(journal: Journal, tmp_path: Path) -> None:
    journal.append(COPY, b"payload")
    rest = struct.pack(">qiqq", 1, 0, *COPY) + b"payload"
    wanted = struct.pack(">iI", 8 + len(rest), zlib.crc32(rest)) + rest
    assert (tmp_path / "config" / "x.journal.1").read_bytes() == wanted
    assert (tmp_path / "config" / "x.journal.0").read_bytes() == b""


def test_a_run_is_read_as_it_was_written_and_the_one_before_it_too(journal: Journal, tmp_path: Path) -> None:
    runs = [[Entry(CopyPlace(run, number), b"%d" % number * run) for number in range(4)] for run in range(5)]
    for run in runs:
        journal.restart()
        for entry in run:
            assert journal.append(*entry)
    assert read(tmp_path) == [runs[4], runs[3]]


def test_a_shorter_run_does_not_show_what_an_older_one_left_behind_it(journal: Journal, tmp_path: Path) -> None:
    for number in range(5):
        journal.append(CopyPlace(number, 0), b"old")
    journal.restart()
    journal.restart()
    journal.append(COPY, b"new")
    assert read(tmp_path) == [[Entry(COPY, b"new")]]


@pytest.mark.parametrize("kept", [0, 1, 7, HEAD_BYTES - 1, HEAD_BYTES, HEAD_BYTES + 3])
def test_a_torn_entry_is_passed_over_and_those_before_it_count(journal: Journal, tmp_path: Path, kept: int) -> None:
    journal.append(COPY, b"whole")
    journal.append(COPY, b"torn")
    path = tmp_path / "config" / "x.journal.1"
    first = HEAD_BYTES + len(b"whole")
    path.write_bytes(path.read_bytes()[: first + kept])
    assert read(tmp_path) == [[Entry(COPY, b"whole")]]


def test_an_entry_with_any_flipped_byte_is_not_believed(journal: Journal, tmp_path: Path) -> None:
    journal.append(COPY, b"whole")
    journal.append(COPY, b"flipped")
    path = tmp_path / "config" / "x.journal.1"
    data = path.read_bytes()
    for position in range(HEAD_BYTES + len(b"whole"), len(data)):
        path.write_bytes(data[:position] + bytes((data[position] ^ 0x41,)) + data[position + 1 :])
        assert read(tmp_path) == [[Entry(COPY, b"whole")]]


def test_a_later_life_goes_on_with_a_newer_run(journal: Journal, tmp_path: Path) -> None:
    journal.append(COPY, b"old")
    again = Journal(Files(), tmp_path / "config" / "x.journal")
    again.open()
    again.append(COPY, b"new")
    again.close()
    assert read(tmp_path) == [[Entry(COPY, b"new")], [Entry(COPY, b"old")]]


def test_a_cleared_journal_says_nothing(journal: Journal, tmp_path: Path) -> None:
    journal.append(COPY, b"old")
    journal.clear()
    assert read(tmp_path) == []


class Killed(BaseException):
    """Ends a process where nothing may catch it."""


class KilledWhileClearing(Files):
    """The process ends when the first of the two files is empty."""

    def truncate(self, descriptor: int, size_bytes: int) -> None:
        super().truncate(descriptor, size_bytes)
        raise Killed


@pytest.mark.parametrize("runs", [2, 3])
@pytest.mark.parametrize("is_reopened", [False, True])
def test_a_kill_while_the_journal_is_cleared_leaves_the_newest_run_not_the_one_before(
    tmp_path: Path, runs: int, is_reopened: bool
) -> None:
    """What is left counts at the next start: the run before says what was true long ago."""
    journal = Journal(KilledWhileClearing(), tmp_path / "config" / "x.journal")
    journal.open()
    for number in range(runs):
        journal.restart()
        assert journal.append(COPY, b"%d" % number)
    if is_reopened:
        journal.close()
        journal.open()
    with pytest.raises(Killed):
        journal.clear()
    journal.close()
    assert read(tmp_path) == [[Entry(COPY, b"%d" % (runs - 1))]]


def test_a_run_that_begins_in_a_long_file_cuts_it(journal: Journal, tmp_path: Path) -> None:
    journal.append(COPY, bytes(2 * RUN_BYTES_MAX))
    journal.restart()
    journal.restart()
    journal.append(COPY, b"short")
    assert (tmp_path / "config" / "x.journal.1").stat().st_size == HEAD_BYTES + len(b"short")


def test_a_disk_that_takes_no_entry_is_told_of_once_and_goes_on_where_it_stood(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles(tmp_path)
    journal = Journal(files, tmp_path / "config" / "x.journal")
    journal.open()
    assert journal.append(COPY, b"before")
    files.fault = lambda operation, path, count: no_space() if operation == "pwrite" else None
    assert not journal.append(COPY, b"lost")
    assert not journal.append(COPY, b"lost too")
    files.fault = lambda *_: None
    with caplog.at_level(logging.INFO):
        assert journal.append(COPY, b"after")
    journal.close()
    assert read(tmp_path) == [[Entry(COPY, b"before"), Entry(COPY, b"after")]]
    assert [record.levelname for record in caplog.records] == ["ERROR", "INFO"]
    assert "x.journal.1 is not written: [Errno 28] No space left on device" in caplog.text
    assert "a crash repeats what was delivered since the last save" in caplog.text


def test_a_journal_that_cannot_be_opened_keeps_nothing_and_is_told_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = FaultyFiles(tmp_path)
    read_only = OSError(errno.EROFS, "Read-only file system")
    files.fault = lambda operation, path, count: read_only if operation == "create" else None
    journal = Journal(files, tmp_path / "config" / "x.journal")
    assert journal.open() == []
    assert not journal.append(COPY, b"x")
    journal.clear()
    journal.close()
    assert caplog.text.count("Read-only file system") == 1


def test_a_witness_stands_only_at_its_place_and_with_its_time(tmp_path: Path) -> None:
    with MessageStore(StoreConfig(tmp_path, mapped_file_size_commit_log=1 << 20)) as store:
        store.put(Message("T", b"first"))
        put = store.put(Message("T", b"second"))
        message = store.lookup(put.physical_offset)
        assert message is not None
        place = CopyPlace(put.physical_offset, message.store_time_ms)
        assert stands(store, place)
        for other in (
            place._replace(store_time_ms=place.store_time_ms - 1),  # another store, or written again after a cut
            place._replace(physical_offset=place.physical_offset + 1),
            place._replace(physical_offset=store.log_max_offset),  # cut
            place._replace(physical_offset=1 << 40),
            place._replace(physical_offset=-1),
        ):
            assert not stands(store, other)
