"""What README and guides name is there: files, and every command with its options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from bench.__main__ import app as benchmarks
from contrailmq.cli import COMMANDS, app
from contrailmq.message import tags_code
from contrailmq.message.codec import Kind, check_record, decode_record
from contrailmq.store.queues.queue_unit import pack_unit

ROOT = Path(__file__).resolve().parents[2]
GUIDES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])
# Python's build, bench/compare.py, spark-submit, systemctl, kubectl
OF_OTHER_PROGRAMS = {"--enable-optimizations", "--with-lto", "--ours", "--sync", "--py-files", "--each"}
OF_OTHER_PROGRAMS |= {"--now", "--from-file"}
ROOMS = [ROOT, *(path for path in (ROOT / "src").rglob("*") if path.is_dir())]


def found_command(words: list[str]) -> Any:
    """The command that these words call; what follows a whole call are its arguments."""
    command: Any = get_command(app)
    for word in words:
        if hasattr(command, "get_command"):
            command = command.get_command(None, word)
            assert command is not None, words
    return command


def options_of(command: Any) -> set[str]:
    return {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}


def all_options(command: Any) -> set[str]:
    names = command.list_commands(None) if hasattr(command, "list_commands") else []
    return options_of(command).union(*(all_options(command.get_command(None, name)) for name in names))


def test_every_command_in_the_guides_exists_with_its_options() -> None:
    said = "\n".join(guide.read_text() for guide in GUIDES)
    told = re.findall(rf"\bcontrailmq ((?:{'|'.join(COMMANDS)})(?: [a-z][a-z|-]*)*)((?: [^`#'\n]*)?)", said)
    assert len(told) > 30
    for calls, rest in told:
        *words, last = calls.split()
        for call in last.split("|"):
            command = found_command([*words, call])
            for option in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", rest):
                # After a group its own options come first, then a command and that one's.
                assert option in all_options(command), (calls, option)


def test_every_option_in_the_guides_is_one_of_some_command() -> None:
    known = all_options(get_command(app)) | all_options(get_command(benchmarks)) | {"--help"} | OF_OTHER_PROGRAMS
    named = {option for guide in GUIDES for option in re.findall(r"(?<![\w-])--[a-z][a-z-]+", guide.read_text())}
    assert len(named) > 20
    assert named - known == set()


@pytest.mark.parametrize("guide", GUIDES, ids=lambda path: path.name)
def test_every_file_that_a_guide_names_exists(guide: Path) -> None:
    text = guide.read_text()
    named = re.findall(r"\b(?:src|tests|docs|examples|bench)/[\w./-]*\w", text)
    for name in named:
        assert (ROOT / name).exists(), name
    for name in re.findall(r"`([a-z_/]+\.py)`", text):
        assert any((room / name).exists() for room in ROOMS), name


def test_the_worked_example_of_the_formats_page_is_a_record_and_its_unit() -> None:
    text = (ROOT / "docs/formats.md").read_text()
    [block] = [part for part in text.split("```") if part.strip().startswith("00000084 daa320a7")]
    record = bytes.fromhex("".join(block.split()))
    message = decode_record(record)
    assert check_record(record, 0, physical_offset=1000).kind is Kind.WHOLE
    assert (message.topic, message.queue_id, message.queue_offset, message.body) == (
        "TopicTest", 3, 7, b"Hello RocketMQ",
    )  # fmt: skip
    assert (message.properties, len(record)) == ({"TAGS": "TagA", "KEYS": "k1"}, 132)
    [unit] = re.findall(r"The unit of the record above: `([0-9a-f ]+)`", text)
    assert bytes.fromhex("".join(unit.split())) == pack_unit(1000, 132, tags_code("TagA"))
