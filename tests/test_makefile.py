"""The front door: what `make` says before it makes anything."""

from __future__ import annotations

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
