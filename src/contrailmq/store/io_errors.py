"""An OSError as an error of the store: with the path, the numbers and the remedy."""

from __future__ import annotations

import errno
from pathlib import Path

from contrailmq.store.config import StoreConfig
from contrailmq.store.errors import StoreError, StoreFullError, StoreIOError
from contrailmq.store.files import PAGE_BYTES, Files
from contrailmq.store.index_file import index_file_bytes


def explained(operation: str, error: OSError, config: StoreConfig, files: Files) -> StoreError:
    """`config` is resolved; the error names the file, if it knows it."""
    path = Path(error.filename) if isinstance(error.filename, str) else config.path
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free_bytes = files.disk_usage(path).free_bytes
        return StoreFullError(path, free_bytes=free_bytes, needed_bytes=_needed_bytes(path, config))
    return StoreIOError(operation, config.path, error)


def _needed_bytes(path: Path, config: StoreConfig) -> int:
    """What a new file takes where this one was to be."""
    directory = path.resolve().parent
    if directory == config.index_path.resolve():
        return index_file_bytes(config.max_hash_slot_num, config.max_index_num)
    if directory in [log_path.resolve() for log_path in config.commit_log_paths]:
        return config.mapped_file_size_commit_log
    if config.consume_queue_path.resolve() in directory.parents:
        return config.mapped_file_size_consume_queue
    if config.batch_queue_path.resolve() in directory.parents:
        return config.mapper_file_size_batch_consume_queue
    return PAGE_BYTES
