"""What `contrailmq store` prints for people."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from contrailmq.cli import app
from contrailmq.message import Message
from contrailmq.store import MessageStore, StoreConfig
from golden_stores import unpack


def run(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    return result.exit_code, result.output


@pytest.mark.parametrize("name", ["torn", "torn-half", "kill9", "clean"])
def test_inspect_and_verify_end_the_log_at_the_same_offset(name: str, tmp_path: Path) -> None:
    root = unpack(name, tmp_path)
    ends = [json.loads(run("store", command, root, "--json")[1])["log_max_offset"] for command in ("inspect", "verify")]
    assert ends[0] == ends[1]


def test_names_times_and_offsets_are_not_broken_at_80_columns(tmp_path: Path) -> None:
    root = unpack("clean", tmp_path)
    code, text = run("store", "inspect", root)
    assert code == 0
    assert max(map(len, text.splitlines()[1:])) <= 80
    shown = json.loads(run("store", "inspect", root, "--json")[1])
    for file in shown["index"]:
        assert file["name"] in text
        assert f"{file['end_offset']:,}" in text
    assert f"{shown['log_max_offset']:,}" in text


def test_one_is_not_many(tmp_path: Path) -> None:
    sizes = {"mapped_file_size_commit_log": 65_536, "max_hash_slot_num": 10, "max_index_num": 40}
    with MessageStore(StoreConfig(tmp_path, **sizes)) as store:
        store.put(Message("T", b"x"))
    lines = [line.strip() for line in run("store", "inspect", tmp_path)[1].splitlines()]
    assert "1 message in 1 queue, 1 topic" in lines
    assert "ok: 1 record, 1 queue unit, 1 index entry\n" in run("store", "verify", tmp_path)[1]
    assert "rebuilt 1 queue with 1 message and 1 index entry in 1 file, " in run("store", "rebuild", tmp_path)[1]
    (tmp_path / "abort").write_text("1")
    code, text = run("store", "verify", tmp_path)
    assert (code, "1 finding in 1 record" in text) == (1, True)
    (row,) = [line for line in text.splitlines() if "not closed cleanly" in line]
    assert "0" not in row  # it has no offset


def test_a_long_list_of_findings_is_cut_and_counted(tmp_path: Path) -> None:
    code, text = run("store", "verify", unpack("kill9-lag", tmp_path))
    assert code == 1
    assert len(text.splitlines()) < 150
    assert "and 1,443 more" in text


def test_what_the_system_refuses_comes_with_the_path_and_a_remedy(tmp_path: Path) -> None:
    root = unpack("clean", tmp_path)
    code, text = run("store", "inspect", root, "-c", tmp_path / "no.conf")
    assert code == 2
    assert text == f"{tmp_path}/no.conf: No such file or directory: give a path that exists\n"


def test_a_path_is_printed_as_it_is(tmp_path: Path) -> None:
    """In rich's markup `[red]` is a colour."""
    root = tmp_path / "disk[red]1"
    sizes = {"mapped_file_size_commit_log": 65_536, "max_hash_slot_num": 10, "max_index_num": 40}
    with MessageStore(StoreConfig(root, **sizes)) as store:
        store.put(Message("T", b"x"))
    assert run("store", "inspect", root)[1].startswith(f"store {root}, closed cleanly")
    (root / "consumequeue/[red]T/0").mkdir(parents=True)
    assert "[red]T" in run("store", "inspect", root)[1]


def test_help_names_every_command() -> None:
    code, text = run("store", "--help")
    assert code == 0
    named = {line.strip("│ ").split(" ")[0] for line in text.splitlines()}
    assert {"inspect", "verify", "rebuild", "repair", "truncate", "copy"} <= named
    assert "cut or copy its log" in " ".join(text.split())
