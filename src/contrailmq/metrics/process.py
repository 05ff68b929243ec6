"""What the process itself uses."""

from __future__ import annotations

import os
import resource


def cpu_s() -> float:
    """User and system time."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def resident_bytes() -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()
    except OSError:  # not Linux: the most there ever was
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def open_descriptors() -> int:
    try:
        return len(os.listdir("/proc/self/fd")) - 1  # the listing has one of its own
    except OSError:
        return 0
