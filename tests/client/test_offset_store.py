"""Offsets: in memory, and in Java's local file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from contrailmq.client.errors import ClientError
from contrailmq.client.offset_store import LocalOffsetStore, OffsetTable, read_offset_file, write_offset_file
from contrailmq.message import MessageQueue

Q0, Q1 = MessageQueue("T", "b", 0), MessageQueue("T", "b", 1)
JAVA_FILE = """{
\t"offsetTable":{{
\t\t\t"brokerName":"b",
\t\t\t"queueId":0,
\t\t\t"topic":"T"
\t\t}:17,{
\t\t\t"brokerName":"b",
\t\t\t"queueId":1,
\t\t\t"topic":"T"
\t\t}:4
\t}
}"""


def test_listeners_that_finish_out_of_order_only_raise_the_offset() -> None:
    table = OffsetTable()
    table.raise_to(Q0, 5)
    table.raise_to(Q0, 3)
    assert table.get(Q0) == 5
    table.update(Q0, 2)
    assert table.get(Q0) == 2


def test_a_frozen_offset_ignores_late_listeners_until_the_queue_is_removed() -> None:
    table = OffsetTable()
    table.freeze_at(Q0, 10)
    table.raise_to(Q0, 99)
    table.update(Q0, 99)
    assert table.get(Q0) == 10
    table.remove(Q0)
    table.raise_to(Q0, 3)
    assert table.get(Q0) == 3


def test_javas_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    path.write_text(JAVA_FILE)
    assert read_offset_file(path) == {Q0: 17, Q1: 4}


def test_what_is_written_is_read_and_the_old_file_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "c" / "g" / "offsets.json"
    write_offset_file(path, {Q0: 1})
    write_offset_file(path, {Q1: 2})
    assert read_offset_file(path) == {Q0: 1, Q1: 2}
    assert read_offset_file(path.with_name("offsets.json.bak")) == {Q0: 1}


def test_a_broken_file_falls_back_to_its_backup_and_two_broken_ones_are_an_error(tmp_path: Path) -> None:
    path = tmp_path / "offsets.json"
    write_offset_file(path, {Q0: 1})
    write_offset_file(path, {Q0: 2})
    path.write_text('{"offsetTable":{{"bro')
    assert read_offset_file(path) == {Q0: 1}
    path.with_name("offsets.json.bak").write_text("nonsense")
    with pytest.raises(ClientError, match="mend or delete"):
        read_offset_file(path)


def test_a_broadcasting_consumer_finds_its_place_again(tmp_path: Path) -> None:
    async def run() -> None:
        store = LocalOffsetStore(tmp_path, client_id="ip@DEFAULT", group="g")
        await store.load()
        assert await store.read_stored(Q0) == -1
        store.table.update(Q0, 8)
        await store.persist([Q0])
        again = LocalOffsetStore(tmp_path, client_id="ip@DEFAULT", group="g")
        await again.load()
        assert again.table.get(Q0) == 8
        assert await again.read_stored(Q0) == 8

    asyncio.run(run())
    assert (tmp_path / "ip@DEFAULT" / "g" / "offsets.json").exists()
