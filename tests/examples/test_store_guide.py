"""What docs/store.md says of settings, and the program in it, hold."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import pytest

from contrailmq.store import MessageStore, RecoveryReport, StoreConfig

GUIDE = (Path(__file__).resolve().parents[2] / "docs/store.md").read_text()


def test_every_default_in_the_guide_is_the_stores() -> None:
    told = re.findall(r"`(\w+)` \((\d+)(?: %| s)?\)", GUIDE)
    defaults = {field.name: field.default for field in fields(StoreConfig)}
    assert len(told) >= 6
    for name, value in told:
        assert int(str(defaults[name])) in (int(value), int(value) * 1000), name


def test_every_setting_in_the_guide_exists() -> None:
    known = {field.name for field in fields(StoreConfig)}
    calls = {name for name in dir(MessageStore) if not name.startswith("_")} | {"put_many", "put_inner_batch"}
    functions = {"inspect_store", "verify_store", "rebuild_store", "find_damage", "repair_store"}
    functions |= {"from_properties", "next_offset", "embedded_store"}
    reported = {field.name for field in fields(RecoveryReport)}
    named = set(re.findall(r"\b[a-z]+(?:_[a-z]+)+\b", re.sub(r"(tests|store)/\S+", "", GUIDE)))
    of_clients = {"damaged_count"}
    words = {"time_ms", "physical_offset", "queue_offset"}
    assert named - known - calls - functions - reported - of_clients - words == set()


def test_the_guides_program_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In a directory of the test's, with small files."""
    block = re.search(r"```python\n(.*?)```", GUIDE, re.DOTALL)
    assert block is not None
    small = f'"{tmp_path}/store", mapped_file_size_commit_log=65536, max_hash_slot_num=10, max_index_num=40,'
    program = block[1].replace('"/data/orders",', small)
    assert program != block[1]
    exec(compile(program, "docs/store.md", "exec"), {"__name__": "__main__"})
    assert "0 b'one bicycle'\n1 b'bell'\n2 b'light'\n" in capsys.readouterr().out
