"""Tables for readers of Delta and Iceberg (iceberg_tables.py). They list the files of the commits, none is copied.

A Delta table is in place: `_delta_log` is in the table's directory. The commits stay authoritative. Publishing brings a
table to the newest commit in one Delta commit, which records that commit's number (an application transaction); new
columns come in a Delta commit before it. After a kill the next run continues from that number, and each file is listed
once. The quarantine is published beside the tables, in their forms.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from contrailmq.spark.bodies.formats import check_library
from contrailmq.spark.jobs.delta import check_delta
from contrailmq.spark.jobs.iceberg import check_iceberg
from contrailmq.spark.jobs.manifest import ArchivedFile
from contrailmq.spark.topic_tables.iceberg_tables import forget_snapshots, publish_iceberg_table
from contrailmq.spark.topic_tables.row_files import partition_values, table_schema
from contrailmq.spark.topic_tables.spec import QUARANTINE, TablesError, TableSpec
from contrailmq.spark.topic_tables.stored import load_table
from contrailmq.spark.topic_tables.table_manifest import QUARANTINE_FOLDER, TableManifest, files_of, table_folder

_APPLICATION: Final = "contrailmq-tables-commit"


def check_libraries(specs: Mapping[str, TableSpec]) -> None:
    """Refuse to begin what could not be published at the end."""
    if any(spec.table == "delta" for spec in specs.values()):
        check_delta()
    if any(spec.table == "iceberg" for spec in specs.values()):
        check_iceberg()
    for spec in specs.values():
        check_library(spec.body)


def publish(manifest: TableManifest, specs: Mapping[str, TableSpec]) -> None:
    """Bring the Delta and Iceberg tables of these topics to the newest commit. Hold the directory."""
    if not manifest.head().version:
        return
    for topic, spec in specs.items():
        stored = load_table(manifest.archive, topic)
        if spec.table != "parquet" and stored is not None:
            schema = table_schema(stored.schema(), spec.partition_by)
            _PUBLISHERS[spec.table](manifest, topic, schema, spec.partition_by)
    for form in sorted({spec.table for spec in specs.values()} - {"parquet"}):
        _PUBLISHERS[form](manifest, None, QUARANTINE, ())


def forget_replaced(manifest: TableManifest, specs: Mapping[str, TableSpec], before_ms: int) -> None:
    """Delete files that were replaced before a time, and snapshots that list them."""
    if manifest.newest().removed and any(file.time_ms <= before_ms for file in manifest.newest().removed):
        for topic, spec in specs.items():
            if spec.table == "iceberg" and spec.key:
                forget_snapshots(manifest, topic, before_ms)
        manifest.forget_replaced(before_ms)


def _publish_delta(
    manifest: TableManifest, topic: str | None, schema: pa.Schema, partition_by: tuple[str, ...]
) -> None:
    """Bring one table up; None is the quarantine."""
    from deltalake import CommitProperties, DeltaTable, Schema, Transaction
    from deltalake.transaction import create_table_with_add_actions

    folder = QUARANTINE_FOLDER if topic is None else table_folder(topic)
    place, newest = str(manifest.archive / folder), manifest.head().version
    table = DeltaTable(place) if DeltaTable.is_deltatable(place) else None
    done = 0 if table is None else int(table.transaction_version(_APPLICATION) or 0)
    if done > newest:
        raise TablesError(
            f"{place}/_delta_log is of commit {done}, and there are {newest}: restore both from one backup"
        )
    added, gone = (files_of(files, topic) for files in manifest.changes_since(done))
    if not added and not gone:
        return
    properties = CommitProperties(app_transactions=[Transaction(_APPLICATION, newest)])
    actions = [_add_action(manifest, folder, file, partition_by) for file in added]
    if table is None:
        create_table_with_add_actions(
            place,
            Schema.from_arrow(schema),
            actions,
            mode="error",
            partition_by=list(partition_by),
            commit_properties=properties,
        )
        return
    known = set(pa.schema(table.schema().to_arrow()).names)
    fields = [field for field in Schema.from_arrow(schema).fields if field.name not in known]
    if fields:
        table.alter.add_columns(fields)
        table = DeltaTable(place)
    actions += [_remove_action(folder, file, partition_by) for file in gone]
    table.create_write_transaction(
        actions, "append", Schema.from_arrow(schema), partition_by=list(partition_by), commit_properties=properties
    )


_PUBLISHERS: Final = {"delta": _publish_delta, "iceberg": publish_iceberg_table}


def _add_action(manifest: TableManifest, folder: str, file: ArchivedFile, partition_by: tuple[str, ...]) -> Any:
    from deltalake.transaction import AddAction

    return AddAction(
        file.path.removeprefix(f"{folder}/"),
        file.size_bytes,
        partition_values(file.path, partition_by),
        int((manifest.archive / file.path).stat().st_mtime * 1000),
        True,
        json.dumps({"numRecords": file.rows}),
    )


def _remove_action(folder: str, file: ArchivedFile, partition_by: tuple[str, ...]) -> Any:
    from deltalake.transaction import RemoveAction

    values = partition_values(file.path, partition_by)
    return RemoveAction(
        file.path.removeprefix(f"{folder}/"), True, time.time_ns() // 1_000_000, file.size_bytes, values
    )
