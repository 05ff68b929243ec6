"""The front door: what `make` says before it makes anything."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def old_python(path: Path) -> Path:
    """A Python that says it is 3.10.4: it runs `-c` and nothing else, so nothing can be installed with it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        f"#!{sys.executable}\n"
        "import sys\n"
        "sys.version_info = (3, 10, 4, 'final', 0)\n"
        "assert sys.argv[1] == '-c', sys.argv\n"
        "code, sys.argv = sys.argv[2], ['-c', *sys.argv[3:]]\n"
        "exec(code)\n"
    )
    path.chmod(0o755)
    return path


def make_install(*settings: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["make", "-C", str(ROOT), "install", *settings], capture_output=True, text=True, timeout=60)


@needs_make
def test_an_older_python_is_refused_before_a_venv_is_made(tmp_path: Path) -> None:
    python, venv = old_python(tmp_path / "python3.10"), tmp_path / "venv"
    done = make_install(f"PYTHON={python}", f"VENV={venv}")
    assert done.returncode != 0
    assert f"ContrailMQ needs Python 3.11 or newer, PYTHON={python} is 3.10.4: install one" in done.stderr
    assert not venv.exists()


@needs_make
def test_a_venv_of_an_older_python_is_named_with_the_remedy(tmp_path: Path) -> None:
    venv = tmp_path / "venv"
    old_python(venv / "bin" / "python")
    done = make_install(f"PYTHON={sys.executable}", f"VENV={venv}")
    assert done.returncode != 0
    assert "ContrailMQ needs Python 3.11 or newer" in done.stderr
    assert f"the Python in {venv} is 3.10.4: make clean removes it" in done.stderr


def said_to_be(path: Path, version: str, *, optimised: bool) -> Path:
    """A program that answers as a Python of this version and build."""
    path.parent.mkdir(parents=True, exist_ok=True)
    answer = f"[[{version.replace('.', ', ')}], {str(optimised).lower()}, 0]"
    path.write_text(f"#!/bin/sh\necho '{answer}'\n")
    path.chmod(0o755)
    return path


def best_python(*folders: Path) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "tools" / "best_python.py")],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PATH": os.pathsep.join(map(str, folders))},
    )
    return done.stdout.strip(), done.stderr


def test_the_first_python_with_optimisations_is_taken(tmp_path: Path) -> None:
    first = said_to_be(tmp_path / "a" / "python3", "3.13.0", optimised=False)
    said_to_be(tmp_path / "b" / "python3", "3.10.4", optimised=True)
    said_to_be(tmp_path / "b" / "python3.12", "3.12.1", optimised=False)
    wanted = said_to_be(tmp_path / "c" / "python3.12", "3.12.4", optimised=True)
    chosen, said = best_python(tmp_path / "a", tmp_path / "b", tmp_path / "c")
    assert chosen == str(wanted)
    assert said == f"==> Python 3.12.4, {wanted}, built with optimisations ({first} is not)\n"


def test_python3_is_taken_where_no_better_one_is_there(tmp_path: Path) -> None:
    first = said_to_be(tmp_path / "a" / "python3", "3.11.7", optimised=False)
    said_to_be(tmp_path / "a" / "python3.13", "3.13.0", optimised=False)
    assert best_python(tmp_path / "a") == (
        str(first),
        f"==> Python 3.11.7, {first}, built without optimisations: no other is on PATH\n",
    )
    assert best_python(tmp_path / "empty") == ("python3", "")


def test_this_python_answers_for_itself() -> None:
    """The rule of the package, asked of a real one."""
    from contrailmq._interpreter import is_optimised

    sys.path.insert(0, str(ROOT / "tools"))
    try:
        from best_python import asked  # type: ignore[import-not-found]
    finally:
        sys.path.remove(str(ROOT / "tools"))
    assert asked(sys.executable) == [list(sys.version_info[:3]), is_optimised(), sys.base_prefix]
