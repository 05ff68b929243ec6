"""Where a rebuild works (ROOT/rebuild.new/, ROOT/rebuild.old/), and what is done with what a killed one left there.

Whoever has the store's lock may call `finish_interrupted`: the next rebuild does, and so does opening the store.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from contrailmq.store.files import Files

NEW: Final = "rebuild.new"
OLD: Final = "rebuild.old"
PARTS: Final = ("consumequeue", "index", "batchconsumequeue")


def finish_interrupted(root: Path, files: Files) -> None:
    """Put back what was moved aside and not yet replaced; drop half-made files."""
    old = root / OLD
    for name in PARTS:
        if files.exists(old / name) and not files.exists(root / name):
            files.rename(old / name, root / name)
    for leftover in (root / NEW, old):
        if files.exists(leftover):
            remove_tree(leftover, files)


def remove_tree(path: Path, files: Files) -> None:
    for entry in files.list_directory(path):
        if files.is_file(entry):
            files.unlink(entry)
        else:
            remove_tree(entry, files)
    files.remove_directory(path)
