"""An archive as a Delta table, in place: `_delta_log` beside the manifest lists the same files, none is copied.

The manifest stays authoritative. Publishing adds the new files in one Delta commit, which also records how many of the
manifest's files are published (an application transaction). After a kill the next run continues from that number, and
each file is listed once. Needs `pip install 'contrailmq[delta]'`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from contrailmq.spark.columns import COLUMNS
from contrailmq.spark.jobs.manifest import ArchivedFile, ArchiveError, Manifest

_APPLICATION: Final = "contrailmq-archive"
_PARTITIONS: Final = ["topic", "date"]


def publish_delta(target: str) -> int:
    """List the archive's new files in its Delta table; gives their number."""
    try:
        from deltalake import CommitProperties, DeltaTable, Schema, Transaction
        from deltalake.transaction import create_table_with_add_actions
    except ImportError as exc:
        raise ArchiveError(f"a Delta table needs {exc.name}: pip install 'contrailmq[delta]'") from exc
    manifest = Manifest(target)
    manifest.check_archive()
    with manifest.held():
        files = manifest.load().files
        table = DeltaTable(target) if DeltaTable.is_deltatable(target) else None
        published = 0 if table is None else table.transaction_version(_APPLICATION) or 0
        new = files[published:]
        if not new:
            return 0
        properties = CommitProperties(app_transactions=[Transaction(_APPLICATION, len(files))])
        actions = [_add_action(manifest.archive, file) for file in new]
        schema = Schema.from_arrow(_schema())
        if table is None:
            create_table_with_add_actions(
                target, schema, actions, partition_by=_PARTITIONS, commit_properties=properties
            )
        else:
            table.create_write_transaction(
                actions, "append", schema, partition_by=_PARTITIONS, commit_properties=properties
            )
    return len(new)


def _schema() -> pa.Schema:
    return pa.schema([*((name, arrow) for name, (_, arrow) in COLUMNS.items()), ("date", pa.date32())])


def _add_action(archive: Path, file: ArchivedFile) -> Any:
    from deltalake.transaction import AddAction

    return AddAction(
        file.path,  # deltalake encodes it for the log
        file.size_bytes,
        {"topic": file.topic, "date": file.date},
        int((archive / file.path).stat().st_mtime * 1000),
        True,
        json.dumps({"numRecords": file.rows}),
    )
