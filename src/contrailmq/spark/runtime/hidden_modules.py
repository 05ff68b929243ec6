"""A user's module that hides one of Python's own: `random.py` where Spark's Python workers look first.

Whoever imports the hidden one then fails far from the cause ("module 'random' has no attribute 'Random'"), most often a
worker that Spark starts in the current directory. So the cause is named when a session begins, and with Spark's errors.
"""

from __future__ import annotations

import os
import sys
import sysconfig
from pathlib import Path


def hiding_files() -> list[Path]:
    """Modules in the current directory, the script's or PYTHONPATH that have the name of one of Python's own in use."""
    own = {os.path.realpath(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")}
    folders = {os.path.realpath(folder or ".") for folder in (".", sys.path[0], *_python_path())} - own
    names = sys.stdlib_module_names & sys.modules.keys()
    found = []
    for folder in sorted(folders):
        there = set(os.listdir(folder)) if os.path.isdir(folder) else set()
        found += [Path(folder, f"{name}.py") for name in sorted(names) if f"{name}.py" in there]
        found += [Path(folder, name) for name in sorted(names & there) if Path(folder, name, "__init__.py").is_file()]
    return found


def hiding_text() -> str:
    """What to tell of them, empty if there is none."""
    return "; ".join(
        f"{path} hides Python's own module {path.stem} from Spark's Python workers, which look there first: rename it, "
        "or start from another directory"
        for path in hiding_files()
    )


def _python_path() -> list[str]:
    return [folder for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep) if folder]
