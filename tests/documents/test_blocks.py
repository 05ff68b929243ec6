"""Every code block of the documents runs, or is parsed where running it would do harm."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import tomllib
from collections.abc import Iterator

import click
import pytest
import yaml
from typer.main import get_command

from contrailmq.cli import app
from contrailmq.testing import LocalCluster
from documents.pages import DOCS, ROOT, Block, blocks, shell_commands

# Pages whose programs run in tests of their own.
ELSEWHERE = {
    "README.md": ("examples/test_readme.py", "spark/test_examples.py"),
    "store.md": ("examples/test_store_guide.py",),
    "security.md": ("testing/test_tls_cluster.py",),
    "spark.md": ("spark/test_ways_to_start.py",),  # the ways to start; the others are parsed here
}
HERE = {"start.md", "tour.md"}


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_a_program_is_python(block: Block) -> None:
    ast.parse(block.text)


def test_the_tests_that_run_programs_elsewhere_name_their_page() -> None:
    for page, tests in ELSEWHERE.items():
        said = "".join((ROOT / "tests" / name).read_text() for name in tests)
        assert page in said, f"no test of {page}"


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalCluster]:
    with LocalCluster() as running:
        yield running


@pytest.mark.parametrize("block", [b for b in blocks("python") if b.page.name == "start.md"], ids=str)
def test_the_first_program_runs(block: Block, cluster: LocalCluster, capsys: pytest.CaptureFixture[str]) -> None:
    assert block.text.count("127.0.0.1:9876") == 2
    exec(compile(block.text.replace("127.0.0.1:9876", cluster.namesrv), str(block), "exec"), {})
    assert capsys.readouterr().out == "SendStatus.OK\nb'one bicycle' paid\n"


def test_every_other_program_runs(cluster: LocalCluster) -> None:
    """Against one broker; a block that cannot run says why above it (`documents/pages.py`)."""
    for block in blocks("python"):
        if block.page.name not in ELSEWHERE.keys() | HERE and not block.reason:
            exec(compile(re.sub(r"[\w.]+:9876", cluster.namesrv, block.text), str(block), "exec"), {})


def test_the_tour_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    """Without Spark, whose block tests/spark/test_examples.py runs."""
    seen: dict[str, object] = {}
    for block in [block for block in blocks("python") if block.page.name == "tour.md"]:
        if "contrailmq.spark" not in block.text:
            exec(compile(block.text, str(block), "exec"), seen)
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "SendStatus.OK 0"
    assert sorted(ast.literal_eval(printed[1])) == [b"a bell", b"in half a second", b"one bicycle"]
    assert printed[2] == "b'no such article' %DLQ%billing"
    assert re.fullmatch(r"\d 0 b'one bicycle'", printed[3])


@pytest.mark.parametrize("block", blocks("sh"), ids=str)
def test_a_shell_block_is_shell(block: Block) -> None:
    done = subprocess.run(["bash", "-n"], input=block.text, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("place", "line"), shell_commands())
def test_a_command_line_is_accepted_by_its_command(place: str, line: str) -> None:
    """Parsed as the program does it, with all options and arguments, and not run."""
    line = line.partition("  #")[0].partition(" > ")[0].partition(" | ")[0].replace("…", "").strip()
    words = [word for word in shlex.split(line, comments=True) if word not in ("&", "...")]
    if any("|" in word for word in words):
        pytest.skip("several commands in one line: tests/examples/test_guides.py takes them apart")
    command: click.Command = get_command(app)
    context: click.Context | None = None
    try:
        while isinstance(command, click.Group):
            context = command.make_context(command.name or "", words, parent=context, allow_interspersed_args=False)
            name, found, words = command.resolve_command(context, [*context._protected_args, *context.args])
            assert found is not None, name
            command = found
        command.make_context(command.name or "", words, parent=context)
    except click.UsageError as exc:
        pytest.fail(f"{place}: contrailmq {line}: {exc.format_message()}")


@pytest.mark.parametrize("block", blocks("properties", "json", "yaml", "toml"), ids=str)
def test_settings_are_of_their_form(block: Block) -> None:
    match block.language:
        case "json":
            json.loads(block.text)
        case "yaml":
            yaml.safe_load(block.text)
        case "toml":
            tomllib.loads(block.text)
        case _:
            assert all(re.fullmatch(r"[\w.]+=.*|#.*|", line) for line in block.text.splitlines())


def test_a_drawing_has_a_kind_that_is_drawn() -> None:
    kinds = {block.text.split()[0] for block in blocks("mermaid")}
    assert kinds == {"flowchart", "sequenceDiagram"}
    assert len([block for block in blocks("mermaid") if block.page == DOCS / "concepts.md"]) >= 7
