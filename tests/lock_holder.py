"""Another process that holds the lock of a store: POSIX locks exclude other processes only."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CODE = (
    "import fcntl, sys; held = open(sys.argv[1], 'r+b'); fcntl.lockf(held, fcntl.LOCK_EX, 1, 0); "
    "print('held', flush=True); input()"
)


@contextmanager
def in_use_by_another(store: str | Path) -> Iterator[int]:
    """While the process holds it; its id."""
    command = [sys.executable, "-c", _CODE, str(Path(store, "lock"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        yield holder.pid
        holder.communicate(b"\n")
