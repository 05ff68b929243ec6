"""An archive as a Delta table, in place: `_delta_log` beside the manifest lists the same files, none is copied.

The manifest stays authoritative. Publishing brings the table to the newest commit of the manifest in one Delta commit,
which also records that commit's number (an application transaction). After a kill the next run continues from that
number, and each file is listed once. A commit that only replaced files (compaction) is marked as no change of data, so
streams over the table go on. Needs `pip install 'contrailmq[delta]'`.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from contrailmq.spark.columns import COLUMNS
from contrailmq.spark.jobs.manifest import ArchivedFile, ArchiveError, Layout, Manifest
from contrailmq.spark.jobs.parquet_files import topic_bounds

_APPLICATION: Final = "contrailmq-archive-commit"
_COUNTED: Final = "contrailmq-archive"  # of older versions: the number of files
_PARTITIONS: Final[dict[Layout, list[str]]] = {"packed": ["date"], "topics": ["topic", "date"]}


def publish_delta(target: str) -> int:
    """List the archive's new files in its Delta table; gives their number."""
    check_delta()
    manifest = Manifest(target)
    manifest.check_archive()
    with manifest.held():
        return bring_delta_up(manifest)


def check_delta() -> None:
    """Refuse to go on without the library."""
    try:
        from deltalake.transaction import RemoveAction  # noqa: F401  since 1.6
    except ImportError as exc:
        raise ArchiveError(f"a Delta table needs {exc.name}: pip install 'contrailmq[delta]'") from exc


def has_delta(archive: Path) -> bool:
    """Whether the archive is published as a Delta table."""
    return (archive / "_delta_log").is_dir()


def bring_delta_up(manifest: Manifest) -> int:
    """List what the archive gained and no more what it replaced; gives the number of new files. Hold the archive."""
    from deltalake import CommitProperties, DeltaTable, Schema, Transaction
    from deltalake.transaction import create_table_with_add_actions

    target, now = str(manifest.archive), manifest.load()
    table = DeltaTable(target) if DeltaTable.is_deltatable(target) else None
    done = 0 if table is None else _published(manifest, table)
    then = manifest.at(done)
    new, gone = then.changes_to(now)
    if not new and not gone:
        return 0
    properties = CommitProperties(app_transactions=[Transaction(_APPLICATION, now.version)])
    partitions, schema = _PARTITIONS[now.layout], Schema.from_arrow(_schema())
    if table is None or table.metadata().partition_columns != partitions:
        # Delta cannot partition a table in another way but by writing it anew: every file was replaced, too.
        create_table_with_add_actions(
            target,
            schema,
            [_add_action(manifest.archive, file, is_change=True) for file in now.files],
            mode="error" if table is None else "overwrite",
            partition_by=partitions,
            commit_properties=properties,
        )
        return len(now.files)
    is_change = not (gone and manifest.has_same_rows_since(done))
    _check_listed(table, manifest.archive, gone)
    actions = [_add_action(manifest.archive, file, is_change=is_change) for file in new]
    actions += [_remove_action(file, is_change=is_change) for file in gone]
    table.create_write_transaction(actions, "append", schema, partition_by=partitions, commit_properties=properties)
    return len(new)


def _published(manifest: Manifest, table: Any) -> int:
    """The commit of the manifest that a table was brought to."""
    commit = table.transaction_version(_APPLICATION)
    if commit is not None:
        return int(commit)
    return manifest.version_with(int(table.transaction_version(_COUNTED) or 0))


def _check_listed(table: Any, archive: Path, gone: list[ArchivedFile]) -> None:
    """Refuse a table that another tool rewrote: what is to go from it would stay in the files that it has instead."""
    if not gone:
        return
    listed = {str(path) for path in pa.table(table.get_add_actions())["path"].to_pylist()}
    unlisted = [file.path for file in gone if file.path not in listed]
    if unlisted:
        raise ArchiveError(
            f"the Delta table of {archive} does not list {len(unlisted)} of {len(gone)} files that were replaced, the "
            f"first is {unlisted[0]}: another tool rewrote it (OPTIMIZE, DELETE); remove {archive}/_delta_log and "
            "publish it again, and leave rewriting to `contrailmq pipeline compact`"
        )


def _schema() -> pa.Schema:
    return pa.schema([*((name, arrow) for name, (_, arrow) in COLUMNS.items()), ("date", pa.date32())])


def _values(file: ArchivedFile) -> dict[str, str | None]:
    """The partition of a file."""
    return {"topic": file.topic, "date": file.date} if file.topic else {"date": file.date}


def _add_action(archive: Path, file: ArchivedFile, *, is_change: bool) -> Any:
    from deltalake.transaction import AddAction

    facts: dict[str, Any] = {"numRecords": file.rows}
    if not file.topic:
        first, last = topic_bounds(str(archive / file.path))
        facts |= {"minValues": {"topic": first}, "maxValues": {"topic": last}, "nullCount": {"topic": 0}}
    return AddAction(
        file.path,  # deltalake encodes it for the log
        file.size_bytes,
        _values(file),
        int((archive / file.path).stat().st_mtime * 1000),
        is_change,
        json.dumps(facts),
    )


def _remove_action(file: ArchivedFile, *, is_change: bool) -> Any:
    from deltalake.transaction import RemoveAction

    return RemoveAction(file.path, is_change, time.time_ns() // 1_000_000, file.size_bytes, _values(file))
