"""What runs: `contrailmq --version`, and the first lines of a broker."""

from __future__ import annotations

import logging
import sys
import sysconfig

import pytest
from typer.testing import CliRunner

from contrailmq import __version__, _interpreter
from contrailmq._compiled import Build, build
from contrailmq.cli import app
from contrailmq.cli.serving import tell_what_runs

ARGUMENTS = {"CONFIG_ARGS": "'--enable-shared'", "Py_DEBUG": 0}


def flags(monkeypatch: pytest.MonkeyPatch, schemes: tuple[str, ...] = (), **changes: object) -> None:
    """Answer as a Python that was built with these flags."""
    told = ARGUMENTS | changes
    monkeypatch.setattr(sysconfig, "get_config_var", told.get)
    monkeypatch.setattr(sysconfig, "get_scheme_names", lambda: ("posix_prefix", *schemes))


def test_the_version_tells_the_interpreter_and_what_is_compiled() -> None:
    told = CliRunner().invoke(app, ["--version"]).output.splitlines()
    assert told[0] == f"contrailmq {__version__}"
    version = ".".join(map(str, sys.version_info[:3]))
    assert told[1].startswith(f"Python {version}, {sys.executable}, built with")
    assert told[2] == f"hot modules: {build}"


def test_a_build_says_how_many_modules_are_compiled_or_why_none() -> None:
    assert str(Build(compiled=41)) == "compiled (41 modules)"
    assert str(Build(why_plain="no C compiler")) == "plain Python: no C compiler"


@pytest.mark.parametrize(
    ("schemes", "changes", "is_optimised"),
    [
        ((), {}, False),
        ((), {"CONFIG_ARGS": "'--enable-optimizations' '--with-lto'"}, True),
        (("deb_system",), {}, True),
        (("deb_system",), {"Py_DEBUG": 1}, False),
        ((), {"CONFIG_ARGS": None}, True),
    ],
)
def test_how_a_python_was_built_is_known(
    monkeypatch: pytest.MonkeyPatch, schemes: tuple[str, ...], changes: dict[str, object], is_optimised: bool
) -> None:
    flags(monkeypatch, schemes, **changes)
    assert _interpreter.is_optimised() == is_optimised


def test_a_broker_warns_once_of_a_python_without_optimisations(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "contrailmq")
    flags(monkeypatch)
    tell_what_runs()
    assert [record.levelname for record in caplog.records] == ["INFO", "WARNING"]
    assert "built without optimisations" in caplog.messages[1]
    assert f"hot modules: {build}" in caplog.messages[0]
    caplog.clear()
    flags(monkeypatch, CONFIG_ARGS="'--enable-optimizations'")
    tell_what_runs()
    assert [record.levelname for record in caplog.records] == ["INFO"]
