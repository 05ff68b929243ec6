"""The package's front: names are there when asked for, and nothing is imported before."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import contrailmq
from contrailmq.cli import COMMANDS

PACKAGE = Path(contrailmq.__file__).parent


def modules_after(*arguments: str) -> set[str]:
    """The modules that a fresh interpreter has loaded when it is done."""
    done = subprocess.run(
        [sys.executable, "-X", "importtime", *arguments],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(PACKAGE.parent)},
    )
    lines = (line.split("|") for line in done.stderr.splitlines() if line.startswith("import time:"))
    return {parts[2].strip() for parts in lines}


@pytest.mark.parametrize("name", contrailmq.__all__)
def test_every_public_name_can_be_imported_and_is_listed(name: str) -> None:
    assert getattr(contrailmq, name) is not None
    assert name in dir(contrailmq)


def test_a_name_that_does_not_exist_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        contrailmq.Nonsense  # noqa: B018


def test_no_public_name_is_the_name_of_a_module() -> None:
    """Importing `contrailmq.name` would set that attribute to the module."""
    modules = {path.stem for path in PACKAGE.iterdir()}
    assert not modules & set(contrailmq.__all__)


def test_type_checkers_see_the_same_names_from_the_same_modules() -> None:
    [block] = [node for node in ast.parse((PACKAGE / "__init__.py").read_text()).body if isinstance(node, ast.If)][:1]
    seen = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == contrailmq._HOMES


def test_importing_the_package_loads_no_client() -> None:
    loaded = modules_after("-c", "import contrailmq")
    ours = {name for name in loaded if name.startswith("contrailmq")}
    assert ours == {"contrailmq", "contrailmq._compiled", "contrailmq._lazy", "contrailmq._version"}
    assert "asyncio" not in loaded


def test_the_name_server_starts_without_clients_stores_and_tables() -> None:
    """Half a second from start to the first answer is mostly imports."""
    loaded = modules_after("-m", "contrailmq", "namesrv", "--print-config")
    rooms = {name.split(".")[1] for name in loaded if name.startswith("contrailmq.")}
    assert rooms == {"_compiled", "_faults", "_lazy", "_version", "cli", "message", "metrics", "namesrv", "wire"}
    assert not loaded & {"rich.console", "rich.table", "sqlite3", "http.client", "urllib.request", "numpy", "pyarrow"}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_has_its_help(name: str) -> None:
    from typer.testing import CliRunner

    from contrailmq.cli import app

    done = CliRunner().invoke(app, [name, "--help"])
    assert done.exit_code == 0, done.output
    assert f"contrailmq {name}" in done.output
