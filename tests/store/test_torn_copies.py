"""A slave's machine loses power between a sync and the rest of a record: the master's bytes take its place."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from plain_store import QuickFiles
from test_replica import FILE_BYTES, config_at, feed, log_bytes, slave_at

from contrailmq.message import Message
from contrailmq.message.record import view_record
from contrailmq.store import ManualClock, MessageStore
from contrailmq.store.recovery.torn_copies import SECTOR_BYTES

COUNT = 100


class Machine(QuickFiles):
    """`boot` names this start of it."""

    def __init__(self, boot: str) -> None:
        super().__init__()
        self._boot = boot

    def boot_id(self) -> str:
        return self._boot


def written(path: Path, value: str = "v" * 90) -> tuple[bytes, list[int]]:
    """A master's log of one file, and where its records begin."""
    with MessageStore(config_at(path, mapped_file_size_commit_log=16 * FILE_BYTES), clock=ManualClock()) as master:
        messages = [
            Message("Orders", b"body" * (number % 9), keys=f"k{number}", properties={"p": value})
            for number in range(COUNT)
        ]
        places = [master.put(message).physical_offset for message in messages]
        end = master.log_max_offset
    return log_bytes(path)[:end], places


def killed_slave(path: Path, log: bytes) -> None:
    slave = slave_at(path, files=Machine("first"), mapped_file_size_commit_log=16 * FILE_BYTES).open()
    feed(slave, log, [])
    slave.dispatch()
    slave.abandon()


def tears(log: bytes, places: list[int]) -> Iterator[tuple[int, int, int]]:
    """For each record with a sector's border in its topic and properties: it, and what reads as zeros before that or
    behind it."""
    for place in places:
        record = view_record(log, place)
        end = place + record.size_bytes
        for border in range((record.body_end // SECTOR_BYTES + 1) * SECTOR_BYTES, end, SECTOR_BYTES):
            yield place, max(record.body_end + 1, border - 16), border
            yield place, border, min(border + 16, end - 1)


def torn(path: Path, begin: int, end: int) -> None:
    with (path / "commitlog" / f"{0:020d}").open("r+b") as file:
        file.seek(begin)
        file.write(bytes(end - begin))


def test_a_slave_ends_before_the_record_that_lost_a_part_and_gets_it_again(tmp_path: Path) -> None:
    log, places = written(tmp_path / "master")
    killed_slave(tmp_path / "slave", log)
    tried = 0
    for place, begin, end in tears(log, places):
        copy = tmp_path / f"torn at {begin}"
        shutil.copytree(tmp_path / "slave", copy)
        torn(copy, begin, end)
        with slave_at(copy, files=Machine("second"), mapped_file_size_commit_log=16 * FILE_BYTES) as slave:
            assert slave.log_max_offset == slave.replica.end == place
            feed(slave, log, [])
            slave.dispatch()
            last = slave.query("Orders", f"k{COUNT - 1}")
        assert [message.properties["p"] for message in last] == ["v" * 90]
        assert log_bytes(copy)[: len(log)] == log
        tried += 1
    assert tried > COUNT // 3


@pytest.mark.parametrize("boot", ["first", "second"])
def test_a_log_that_lost_nothing_stays_whole(tmp_path: Path, boot: str) -> None:
    log, _ = written(tmp_path / "master")
    killed_slave(tmp_path / "slave", log)
    with slave_at(tmp_path / "slave", files=Machine(boot), mapped_file_size_commit_log=16 * FILE_BYTES) as slave:
        assert slave.log_max_offset == len(log)


def test_properties_that_are_zeros_by_themselves_cost_a_slave_no_more_than_getting_them_again(tmp_path: Path) -> None:
    log, _ = written(tmp_path / "master", value="\0" * 90)
    killed_slave(tmp_path / "slave", log)
    for boot, is_cut in (("first", False), ("second", True)):  # a kill takes nothing from the page cache
        with slave_at(tmp_path / "slave", files=Machine(boot), mapped_file_size_commit_log=16 * FILE_BYTES) as slave:
            assert (slave.log_max_offset < len(log)) == is_cut
            feed(slave, log, [])
            slave.dispatch()
            slave.abandon() if not is_cut else None
    assert log_bytes(tmp_path / "slave")[: len(log)] == log


def test_a_master_keeps_what_it_alone_has(tmp_path: Path) -> None:
    log, places = written(tmp_path / "master", value="\0" * 90)
    killed_slave(tmp_path / "slave", log)
    config = config_at(tmp_path / "slave", mapped_file_size_commit_log=16 * FILE_BYTES)
    with MessageStore(config, files=Machine("second"), clock=ManualClock()) as master:
        assert master.log_max_offset == len(log)
        assert master.max_offset("Orders", 0) == len(places)
