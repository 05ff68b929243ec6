"""What the long-running commands share: settings from flags, logging, signals, and a loop that ends cleanly."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from contrailmq.cli.logs import LogSettings, start_logging
from contrailmq.wire.properties import (
    SettingsError,
    environment_settings,
    merge,
    outdone_by_file,
    read_properties,
    rocketmq_settings,
)
from contrailmq.wire.transport import ENDS_WITH_STDIN, new_event_loop

log = logging.getLogger("contrailmq")

GC_THRESHOLD: Final = 50_000  # the hot path makes almost no cycles: collecting less often halves the longest pauses

# For mallopt, as glibc's malloc.h has them.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
KEPT_BYTES_MAX: Final = 32 * 1024 * 1024
KEPT_BLOCK_BYTES_MAX: Final = 4 * 1024 * 1024  # RocketMQ's largest body


def set_flags(**flags: bool) -> dict[str, str]:
    """The settings of flags that are given."""
    return {key: "true" for key, is_given in flags.items() if is_given}


def gathered_settings(
    *, file: Path | None, flags: Mapping[str, str], settings: Iterable[str], keys: Iterable[str]
) -> tuple[dict[str, str], list[str]]:
    """The settings by the one order of precedence (wire/properties.py), and warnings about what does not count."""
    said = dict(flags)
    for text in settings:
        key, separator, value = text.partition("=")
        if not separator:
            raise SettingsError(f"--set {text!r} has no =: write --set key=value")
        said[key.strip()] = value.strip()
    keys = set(keys)
    in_file = read_properties(file) if file is not None else {}
    rocketmq = rocketmq_settings(os.environ, keys)
    ours = environment_settings(os.environ, keys)
    merged = merge(flags=said, environment=ours, file=in_file, rocketmq=rocketmq)
    return merged, outdone_by_file(merged, file=in_file, rocketmq=rocketmq, path=file or "")


def run_until_stopped(serve: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run `serve(stopped)`; SIGINT and SIGTERM set `stopped`, a second one of a kind ends the process at once.

    One of each is one wish: Ctrl-C reaches every process of a terminal, and then a parent asks its children to end.
    """
    if not logging.getLogger().handlers:
        start_logging(LogSettings())

    async def main() -> None:
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()

        seen: set[signal.Signals] = set()

        def stop(number: signal.Signals) -> None:
            if number in seen:
                log.error("stopped by a second signal: nothing more is saved, the next start recovers")
                os._exit(1)
            seen.add(number)
            stopped.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop, number)
        if os.environ.pop(ENDS_WITH_STDIN, ""):  # not for children of ours
            _end_with_stdin(loop, stopped)
        await serve(stopped)

    gc.set_threshold(GC_THRESHOLD, 20, 20)
    keep_freed_memory()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())


def _end_with_stdin(loop: asyncio.AbstractEventLoop, stopped: asyncio.Event) -> None:
    """Stop as after a signal when the process that started us is gone: its end of the pipe closes then."""
    stdin = 0

    def heard() -> None:
        if not os.read(stdin, 4096):
            loop.remove_reader(stdin)
            if not stopped.is_set():
                log.warning("the process that started this one is gone: it ends too")
            stopped.set()

    loop.add_reader(stdin, heard)


def tell_what_runs() -> None:
    """What a broker's speed depends on: each of the two is worth a third of it."""
    from contrailmq._compiled import build
    from contrailmq._interpreter import described, is_optimised

    log.info("%s; hot modules: %s", described(), build)
    if not is_optimised():
        log.warning(
            "this Python was built without optimisations, a broker takes a third fewer messages on it: install with "
            "one that has them (Debian's and Ubuntu's do; pyenv's with PYTHON_CONFIGURE_OPTS=--enable-optimizations)"
        )


def keep_freed_memory() -> None:
    """Let glibc keep up to 32 MiB that were freed. Each batch of 1 MiB is held several times on its way to the log, and
    its pages went back to the system and were faulted in again for the next one: 1.1 us of the 10 to 11 us of CPU that
    a message of 1 KiB in such a batch takes. A MALLOC_TRIM_THRESHOLD_ that is set counts instead.
    """
    if "MALLOC_TRIM_THRESHOLD_" in os.environ:
        return
    with contextlib.suppress(AttributeError, OSError):  # another C library has no such thing, and other habits
        libc = ctypes.CDLL(None)
        libc.mallopt(_M_MMAP_THRESHOLD, KEPT_BLOCK_BYTES_MAX)
        libc.mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES_MAX)


def settle_memory() -> None:
    """After starting: what lives now lives for ever, so the collector need not look at it again."""
    gc.collect()
    gc.freeze()
