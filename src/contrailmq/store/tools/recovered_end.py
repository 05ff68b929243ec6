"""Where recovery would end the log of a store that nobody has open, for readers that pass over damage."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from contrailmq.store.base.store_lock import owner_of
from contrailmq.store.config import StoreConfig
from contrailmq.store.delay_levels import DelayLevels
from contrailmq.store.files import Files
from contrailmq.store.recovery.log_walk import LogFile
from contrailmq.store.recovery.recovery import recovered_end
from contrailmq.store.tools.read_only import StoreView


class _Log:
    """The log as recovery sees it."""

    def __init__(self, files: Sequence[LogFile]) -> None:
        self.files = files

    def truncate_dirty_files(self, _offset: int, /) -> int:
        raise AssertionError("a reader cuts nothing")


def end_after_crash(path: str | Path) -> tuple[int, str] | None:
    """Where the next start will end the log, and what it finds there; None if the store is open, or was closed."""
    config, files = StoreConfig(path), Files()
    if not files.exists(config.abort_path) or owner_of(files, config.lock_path):
        return None
    with StoreView(config) as view:
        if not view.log_files:
            return None
        return recovered_end(
            _Log(view.log_files),
            view.queues,
            checkpoint=view.checkpoint,
            ledger=view.ledger,
            was_clean_exit=False,
            delay_levels=DelayLevels(view.config.message_delay_level),
            boot_id=files.boot_id(),
        )
