"""What the long-running commands share: settings from flags, logging, signals, and a loop that ends cleanly."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Final

from contrailmq.wire.properties import SettingsError, environment_settings, merge, read_properties
from contrailmq.wire.transport import new_event_loop

log = logging.getLogger("contrailmq")

GC_THRESHOLD: Final = 50_000  # the hot path makes almost no cycles: collecting less often halves the longest pauses


def gathered_settings(
    *, file: Path | None, flags: Mapping[str, str], settings: Iterable[str], keys: Iterable[str]
) -> dict[str, str]:
    """One order of precedence: flag, environment, file."""
    said = dict(flags)
    for text in settings:
        key, separator, value = text.partition("=")
        if not separator:
            raise SettingsError(f"--set {text!r} has no =: write --set key=value")
        said[key.strip()] = value.strip()
    return merge(
        flags=said,
        environment=environment_settings(os.environ, keys),
        file=read_properties(file) if file is not None else {},
    )


def run_until_stopped(serve: Callable[[asyncio.Event], Awaitable[None]]) -> None:
    """Run `serve(stopped)`; SIGINT and SIGTERM set `stopped`, a second one ends the process at once."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")

    async def main() -> None:
        stopped = asyncio.Event()
        loop = asyncio.get_running_loop()

        def stop() -> None:
            if stopped.is_set():
                log.error("stopped by a second signal: nothing more is saved, the next start recovers")
                os._exit(1)
            stopped.set()

        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, stop)
        await serve(stopped)

    gc.set_threshold(GC_THRESHOLD, 20, 20)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(main())


def settle_memory() -> None:
    """After starting: what lives now lives for ever, so the collector need not look at it again."""
    gc.collect()
    gc.freeze()
