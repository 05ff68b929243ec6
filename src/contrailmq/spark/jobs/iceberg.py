"""An archive as an Iceberg table: metadata in `_iceberg` beside the manifest lists the same files, none is copied.

The manifest stays authoritative, as with Delta (delta.py). Each publishing is one Iceberg snapshot, and a property of
the table records the manifest's commit that it was brought to. After a kill the next run continues from there, and each
file is listed once. The date (and the topic, in older archives) is not in a file but in its partition, where Iceberg
readers find columns that a file lacks. The catalog is a SQLite file in `_iceberg` unless one is given. Needs
`pip install 'contrailmq[iceberg]'`.
"""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from contrailmq.spark.columns import COLUMNS
from contrailmq.spark.jobs.manifest import ArchivedFile, ArchiveError, Layout, Manifest
from contrailmq.spark.jobs.parquet_files import topic_bounds

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

TABLE: Final = "contrailmq.archive"
_PUBLISHED: Final = "contrailmq.commit"  # a property of the table
_COUNTED: Final = "contrailmq.files"  # of older versions, in the summary of a snapshot: the number of files
_EPOCH: Final = date(1970, 1, 1)


def publish_iceberg(target: str, catalog: Catalog | None = None, table: str = TABLE) -> int:
    """List the archive's new files in its Iceberg table; gives their number."""
    check_iceberg()
    manifest = Manifest(target)
    manifest.check_archive()
    with manifest.held():
        return bring_iceberg_up(manifest, catalog, table)


def check_iceberg() -> None:
    """Refuse to go on without the library."""
    try:
        import pyiceberg.table  # noqa: F401
    except ImportError as exc:
        raise ArchiveError(f"an Iceberg table needs {exc.name}: pip install 'contrailmq[iceberg]'") from exc


def has_iceberg(archive: Path) -> bool:
    """Whether the archive is published as an Iceberg table in a catalog of its own."""
    return (archive / "_iceberg" / "catalog.db").exists()


def bring_iceberg_up(manifest: Manifest, catalog: Catalog | None = None, table: str = TABLE) -> int:
    """List what the archive gained and no more what it replaced; gives the number of new files. Hold the archive."""
    from pyiceberg.table import TableProperties

    now = manifest.load()
    opened = _open(catalog or own_catalog(str(manifest.archive)), table, manifest.archive, now.layout)
    then = manifest.at(_published(manifest, opened))
    new, gone = then.changes_to(now)
    if not new and not gone:
        return 0
    listed = _listed(opened, manifest.archive, gone)
    with opened.transaction() as change:
        names = change.table_metadata.schema().name_mapping.model_dump_json()
        change.set_properties(**{TableProperties.DEFAULT_NAME_MAPPING: names, _PUBLISHED: str(now.version)})
        if now.layout == "packed" and any(field.name == "topic" for field in opened.spec().fields):
            with change.update_spec() as spec:
                spec.remove_field("topic")
        update = change.update_snapshot()
        with update.overwrite() if gone else update.fast_append() as snapshot:
            for data_file in listed:
                snapshot.delete_data_file(data_file)
            for file in new:
                snapshot.append_data_file(_data_file(manifest.archive, file, change.table_metadata))
    return len(new)


def expire_snapshots(manifest: Manifest, before_ms: int, catalog: Catalog | None = None, table: str = TABLE) -> None:
    """Forget snapshots that are older, for their files go; the current one stays."""
    opened = (catalog or own_catalog(str(manifest.archive))).load_table(table)
    if any(snapshot.timestamp_ms < before_ms for snapshot in opened.snapshots()):
        moment = datetime.fromtimestamp(before_ms / 1000, UTC).replace(tzinfo=None)
        opened.maintenance.expire_snapshots().older_than(moment).commit()


def _published(manifest: Manifest, table: Any) -> int:
    """The commit of the manifest that a table was brought to."""
    if _PUBLISHED in table.properties:
        return int(table.properties[_PUBLISHED])
    summaries = [snapshot.summary for snapshot in table.snapshots() if snapshot.summary is not None]
    counts = [int(summary.get(_COUNTED)) for summary in summaries if summary.get(_COUNTED) is not None]
    return manifest.version_with(counts[-1]) if counts else 0


def _listed(table: Any, archive: Path, gone: list[ArchivedFile]) -> list[Any]:
    """What the table holds of files that are to go. Refuse one that another tool rewrote: their rows would stay."""
    if not gone:
        return []
    by_path = {task.file.file_path.removeprefix("file://"): task.file for task in table.scan().plan_files()}
    unlisted = [file.path for file in gone if str(archive / file.path) not in by_path]
    if unlisted:
        raise ArchiveError(
            f"the Iceberg table of {archive} does not list {len(unlisted)} of {len(gone)} files that were replaced, "
            f"the first is {unlisted[0]}: another tool rewrote it; drop the table and publish it again, and leave "
            "rewriting to `contrailmq pipeline compact`"
        )
    return [by_path[str(archive / file.path)] for file in gone]


def own_catalog(target: str) -> Catalog:
    """The catalog beside an archive."""
    try:
        from pyiceberg.catalog.sql import SqlCatalog
    except ImportError as exc:
        raise ArchiveError(f"an Iceberg catalog needs {exc.name}: pip install 'contrailmq[iceberg]'") from exc
    folder = Manifest(target).archive / "_iceberg"
    folder.mkdir(parents=True, exist_ok=True)
    return SqlCatalog("contrailmq", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")


def _open(catalog: Catalog, name: str, archive: Path, layout: Layout) -> Any:
    from pyiceberg.exceptions import NoSuchTableError

    try:
        return catalog.load_table(name)
    except NoSuchTableError:
        catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
        schema = pa.schema([*((column, arrow) for column, (_, arrow) in COLUMNS.items()), ("date", pa.date32())])
        table = catalog.create_table(name, schema, location=f"file://{archive}/_iceberg/{name}")
        with table.update_spec() as spec:
            if layout == "topics":
                spec.add_identity("topic")
            spec.add_identity("date")
        return table


def _data_file(archive: Path, file: ArchivedFile, table: Any) -> Any:
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    day = (date.fromisoformat(file.date) - _EPOCH).days
    bounds = None if file.topic else topic_bounds(str(archive / file.path))
    topic_id = table.schema().find_field("topic").field_id
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=str(archive / file.path),
        file_format=FileFormat.PARQUET,
        partition=Record(file.topic, day) if file.topic else Record(day),
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
        lower_bounds={} if bounds is None else {topic_id: bounds[0].encode()},
        upper_bounds={} if bounds is None else {topic_id: bounds[1].encode()},
        split_offsets=[],
    )
