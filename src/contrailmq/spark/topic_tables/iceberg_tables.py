"""Tables as Iceberg tables: metadata in `_iceberg` of the directory lists the files that the commits list.

As with Delta (publishing.py): one snapshot brings a table to the newest commit, with the columns that are new, and a
property of the table records that commit. The catalog is a SQLite file; tables are `tables.<topic>`, and
`contrailmq.quarantine`. Columns of partitions are not in the files but in Iceberg's metadata, where readers find them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, date, datetime
from typing import Any, Final

import pyarrow as pa

from contrailmq.spark.jobs.iceberg import own_catalog
from contrailmq.spark.jobs.manifest import ArchivedFile
from contrailmq.spark.topic_tables.row_files import partition_values, typed_value
from contrailmq.spark.topic_tables.spec import TablesError
from contrailmq.spark.topic_tables.table_manifest import TableManifest, files_of, table_name

_PUBLISHED: Final = "contrailmq.commit"  # a property of the table
_EPOCH: Final = date(1970, 1, 1)


def publish_iceberg_table(
    manifest: TableManifest, topic: str | None, schema: pa.Schema, partition_by: tuple[str, ...]
) -> None:
    """Bring one table up; None is the quarantine."""
    from pyiceberg.table import TableProperties

    table, newest = _open(manifest, topic, schema, partition_by), manifest.head().version
    done = int(table.properties.get(_PUBLISHED, 0))
    if done > newest:
        raise TablesError(
            f"the Iceberg table of {topic or 'the quarantine'} in {manifest.archive} is of commit {done} of {newest}: "
            "restore both from one backup"
        )
    added, gone = (files_of(files, topic) for files in manifest.changes_since(done))
    if not added and not gone:
        return
    listed = _listed(table, manifest, gone)
    with table.transaction() as change:
        if set(schema.names) - {field.name for field in table.schema().fields}:
            with change.update_schema() as update:
                update.union_by_name(schema)
        names = change.table_metadata.schema().name_mapping.model_dump_json()
        change.set_properties(**{TableProperties.DEFAULT_NAME_MAPPING: names, _PUBLISHED: str(newest)})
        update = change.update_snapshot()
        with update.overwrite() if gone else update.fast_append() as snapshot:
            for data_file in listed:
                snapshot.delete_data_file(data_file)
            for file in added:
                values = partition_values(file.path, partition_by)
                kinds = {name: schema.field(name).type for name in partition_by}
                place = [_iceberg_value(typed_value(values[name], kinds[name])) for name in partition_by]
                snapshot.append_data_file(_data_file(manifest, file, place, change.table_metadata))


def forget_snapshots(manifest: TableManifest, topic: str, before_ms: int) -> None:
    """Drop a table's snapshots of before a time, for their files go; the current one stays."""
    table = own_catalog(str(manifest.archive)).load_table(_name(topic))
    if any(snapshot.timestamp_ms < before_ms for snapshot in table.snapshots()):
        moment = datetime.fromtimestamp(before_ms / 1000, UTC).replace(tzinfo=None)
        table.maintenance.expire_snapshots().older_than(moment).commit()


def _name(topic: str | None) -> tuple[str, str]:
    return ("contrailmq", "quarantine") if topic is None else ("tables", table_name(topic))


def _open(manifest: TableManifest, topic: str | None, schema: pa.Schema, partition_by: tuple[str, ...]) -> Any:
    from pyiceberg.exceptions import NoSuchTableError

    catalog, name = own_catalog(str(manifest.archive)), _name(topic)
    try:
        return catalog.load_table(name)
    except NoSuchTableError:
        catalog.create_namespace_if_not_exists(name[0])
        table = catalog.create_table(name, schema, location=f"file://{manifest.archive}/_iceberg/{'.'.join(name)}")
        with table.update_spec() as spec:
            for column in partition_by:
                spec.add_identity(column)
        return table


def _listed(table: Any, manifest: TableManifest, gone: Sequence[ArchivedFile]) -> list[Any]:
    """What the table holds of files that are to go. Refuse one that another tool rewrote: their rows would stay."""
    if not gone:
        return []
    by_path = {task.file.file_path.removeprefix("file://"): task.file for task in table.scan().plan_files()}
    unlisted = [file.path for file in gone if str(manifest.archive / file.path) not in by_path]
    if unlisted:
        raise TablesError(
            f"an Iceberg table of {manifest.archive} does not list {unlisted[0]}, which was replaced: another tool "
            "rewrote it; drop the table, it is made again"
        )
    return [by_path[str(manifest.archive / file.path)] for file in gone]


def _iceberg_value(value: Any) -> Any:
    return (value - _EPOCH).days if isinstance(value, date) else value


def _data_file(manifest: TableManifest, file: ArchivedFile, place: list[Any], table: Any) -> Any:
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=str(manifest.archive / file.path),
        file_format=FileFormat.PARQUET,
        partition=Record(*place),
        record_count=file.rows,
        file_size_in_bytes=file.size_bytes,
        spec_id=table.default_spec_id,
        sort_order_id=None,
        equality_ids=None,
        key_metadata=None,
        column_sizes={},
        value_counts={},
        null_value_counts={},
        nan_value_counts={},
        lower_bounds={},
        upper_bounds={},
        split_offsets=[],
    )
