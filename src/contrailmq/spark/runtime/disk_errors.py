"""Errors of the disk in words: what happened, and what a user can do about it."""

from __future__ import annotations

import errno
import os
from typing import Final

_RIGHTS: Final = "give this user the right to it, or name another place"
_REMEDIES: Final = {
    errno.ENOSPC: "free space on its disk",
    errno.EDQUOT: "free space, or have the quota raised",
    errno.EFBIG: "raise the limit on the size of files (ulimit -f)",
    errno.EROFS: "name a place on a disk that may be written",
    errno.EACCES: _RIGHTS,
    errno.EPERM: _RIGHTS,
    errno.ENOENT: "check the path",
    errno.ENOTDIR: "name a directory",
}


def cause(exc: OSError) -> str:
    """What happened. Arrow's errors have the system's number, but long texts of their own."""
    return os.strerror(exc.errno) if exc.errno in _REMEDIES else exc.strerror or str(exc)


def remedy(exc: OSError) -> str:
    """What to do about it."""
    return _REMEDIES.get(exc.errno or 0, "check that it exists and may be read and written")
