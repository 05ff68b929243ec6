"""The commits of a directory of tables: those of an archive (manifest.py), over files of other names.

    <target>/tables/<topic>/<column>=<value>/<name>.parquet   rows of a topic
    <target>/quarantine/<name>.parquet                        rows of any topic that could not be decoded
    <target>/_commits/00000000000000000007.json               commit 7: files it added, offsets and batches after it

All tables of a directory move on in one commit, and the quarantine with them: a message is in its table or in the
quarantine, once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from contrailmq.spark.jobs.manifest import ArchivedFile, Manifest, is_data_name
from contrailmq.spark.jobs.parquet_files import escape
from contrailmq.spark.topic_tables.spec import TablesError

TABLES: Final = "tables"
QUARANTINE_FOLDER: Final = "quarantine"
_FOLDER: Final = "_commits"
_ARCHIVES: Final = "_manifest"


class TableManifest(Manifest):
    """Reads and extends the commits of one directory of tables."""

    def __init__(self, target: str | Path) -> None:
        super().__init__(target)
        self._folder = self.archive / _FOLDER
        if (self.archive / _ARCHIVES).is_dir():
            raise TablesError(f"{target} is an archive, no place for tables: give another directory")

    def _data_files(self) -> Iterator[Path]:
        for pattern in (f"{TABLES}/**/*.parquet", f"{QUARANTINE_FOLDER}/*.parquet"):
            yield from (path for path in self.archive.glob(pattern) if is_data_name(path.name) and path.is_file())

    def changes_since(self, version: int) -> tuple[list[ArchivedFile], list[ArchivedFile]]:
        """Files that came and went after a commit; only the commits after it are read as long as none went."""
        newest = self.head().version
        commits = [self.commit_of(number) for number in range(version + 1, newest + 1)]
        if not any(commit.is_whole for commit in commits):
            return [file for commit in commits for file in commit.files], []
        return self.at(version).changes_to(self.at(newest))


def table_folder(topic: str) -> str:
    """The directory of a topic's table, within that of all."""
    return f"{TABLES}/{escape(topic)}"


def files_of(files: Sequence[ArchivedFile], topic: str | None) -> tuple[ArchivedFile, ...]:
    """The files of a topic's table, or of the quarantine."""
    folder = f"{QUARANTINE_FOLDER if topic is None else table_folder(topic)}/"
    return tuple(file for file in files if file.path.startswith(folder))
