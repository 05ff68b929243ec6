"""The commits of a directory of tables: those of an archive (manifest.py), over files of other names.

    <target>/tables/<topic>/<column>=<value>/<name>.parquet   rows of a topic
    <target>/tables/<topic>/bucket-0007/<name>.parquet        rows of a change stream, by their keys
    <target>/changes/<topic>/bucket-0007/<name>.parquet       what changes them, until it is merged; no commit lists it
    <target>/quarantine/<name>.parquet                        rows of any topic that could not be decoded
    <target>/_commits/00000000000000000007.json               commit 7: files it added, offsets and batches after it

All tables of a directory move on in one commit, and the quarantine with them: a message is in its table or in the
quarantine, once.
"""

from __future__ import annotations

import re
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from contrailmq.spark.jobs.manifest import ArchivedFile, ArchiveState, Manifest, RemovedFile, is_data_name
from contrailmq.spark.topic_tables.spec import TablesError

TABLES: Final = "tables"
QUARANTINE_FOLDER: Final = "quarantine"
CHANGES: Final = "changes"
_FOLDER: Final = "_commits"
_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_.-]|^\.+")
_ARCHIVES: Final = "_manifest"


class TableManifest(Manifest):
    """Reads and extends the commits of one directory of tables."""

    def __init__(self, target: str | Path) -> None:
        super().__init__(Path(target).absolute())  # Iceberg lists whole paths
        self._folder = self.archive / _FOLDER
        if (self.archive / _ARCHIVES).is_dir():
            raise TablesError(f"{target} is an archive, no place for tables: give another directory")

    def _data_files(self) -> Iterator[Path]:
        for pattern in (f"{TABLES}/**/*.parquet", f"{QUARANTINE_FOLDER}/*.parquet", f"{CHANGES}/**/*.parquet"):
            yield from (path for path in self.archive.glob(pattern) if is_data_name(path.name) and path.is_file())

    def advance(
        self,
        head: ArchiveState,
        files: Sequence[ArchivedFile],
        gone: Collection[str],
        *,
        offsets: Mapping[str, int] | None = None,
        names: Mapping[str, str] | None = None,
        batches: Mapping[str, int] | None = None,
        checkpoints: Mapping[str, str] | None = None,
    ) -> ArchiveState:
        """Add one commit on top of `head`: new files in, those that they replace out, positions on."""
        if not gone:
            return self.commit(
                head,
                files,
                offsets=dict(offsets or {}),
                names=dict(names or {}),
                batches=dict(batches or {}),
                checkpoints=dict(checkpoints or {}),
            )
        before = self.load()
        now_ms = time.time_ns() // 1_000_000
        after = replace(
            before,
            version=before.version + 1,
            offsets={**before.offsets, **(offsets or {})},
            names={**before.names, **(names or {})},
            batches={**before.batches, **(batches or {})},
            checkpoints={**before.checkpoints, **(checkpoints or {})},
            files=(*(file for file in before.files if file.path not in gone), *files),
            removed=(*before.removed, *(RemovedFile(path, now_ms) for path in sorted(gone))),
            is_whole=True,
            has_same_rows=False,
        )
        self.write(after, files)
        return after

    def forget_replaced(self, before_ms: int) -> int:
        """Delete files that were replaced before a time; gives their number. Hold the directory, tables brought up."""
        state = self.newest()
        left = [file for file in state.removed if file.time_ms > before_ms]
        if len(left) == len(state.removed):
            return 0
        self.replace_files(state, (), (), has_same_rows=True, removed=left)
        kept = {file.path for file in left}
        for file in state.removed:
            if file.path not in kept:
                (self.archive / file.path).unlink(missing_ok=True)
        return len(state.removed) - len(left)

    def changes_since(self, version: int) -> tuple[list[ArchivedFile], list[ArchivedFile]]:
        """Files that came and went after a commit; only the commits after it are read as long as none went."""
        newest = self.head().version
        commits = [self.commit_of(number) for number in range(version + 1, newest + 1)]
        if not any(commit.is_whole for commit in commits):
            return [file for commit in commits for file in commit.files], []
        return self.at(version).changes_to(self.at(newest))


def table_name(topic: str) -> str:
    """A topic as the name of a table and a directory, `~25RETRY~25group`: Delta takes a % in a path for its own."""
    return _UNSAFE.sub(lambda found: "".join(f"~{byte:02X}" for byte in found[0].encode()), topic)


def table_folder(topic: str) -> str:
    """The directory of a topic's table, within that of all."""
    return f"{TABLES}/{table_name(topic)}"


def files_of(files: Sequence[ArchivedFile], topic: str | None) -> tuple[ArchivedFile, ...]:
    """The files of a topic's table, or of the quarantine."""
    folder = f"{QUARANTINE_FOLDER if topic is None else table_folder(topic)}/"
    return tuple(file for file in files if file.path.startswith(folder))
