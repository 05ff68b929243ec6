"""An archive as an Iceberg table: metadata in `_iceberg` beside the manifest lists the same files, none is copied.

The manifest stays authoritative, as with Delta (delta.py). Each publishing is one Iceberg snapshot, whose summary
records how many of the manifest's files are published. After a kill the next run continues from that number, and each
file is listed once. Topic and date are not in a file but in its partition, where Iceberg readers find columns
that a file lacks. The catalog is a SQLite file in `_iceberg` unless one is given. Needs
`pip install 'contrailmq[iceberg]'`.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from contrailmq.spark.columns import COLUMNS
from contrailmq.spark.jobs.manifest import ArchivedFile, ArchiveError, Manifest

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog

_PUBLISHED: Final = "contrailmq.files"  # in the summary of a snapshot
_EPOCH: Final = date(1970, 1, 1)


def publish_iceberg(target: str, catalog: Catalog | None = None, table: str = "contrailmq.archive") -> int:
    """List the archive's new files in its Iceberg table; gives their number."""
    try:
        from pyiceberg.table import TableProperties
    except ImportError as exc:
        raise ArchiveError(f"an Iceberg table needs {exc.name}: pip install 'contrailmq[iceberg]'") from exc
    manifest = Manifest(target)
    manifest.check_archive()
    with manifest.held():
        files = manifest.load().files
        opened = _open(catalog or own_catalog(target), table, manifest.archive)
        snapshot = opened.current_snapshot()
        published = 0 if snapshot is None or snapshot.summary is None else int(snapshot.summary.get(_PUBLISHED) or 0)
        new = files[published:]
        if not new:
            return 0
        with opened.transaction() as change:
            names = change.table_metadata.schema().name_mapping.model_dump_json()
            change.set_properties(**{TableProperties.DEFAULT_NAME_MAPPING: names})
            with change.update_snapshot(snapshot_properties={_PUBLISHED: str(len(files))}).fast_append() as append:
                for file in new:
                    append.append_data_file(_data_file(manifest.archive, file, change.table_metadata.default_spec_id))
    return len(new)


def own_catalog(target: str) -> Catalog:
    """The catalog beside an archive."""
    try:
        from pyiceberg.catalog.sql import SqlCatalog
    except ImportError as exc:
        raise ArchiveError(f"an Iceberg catalog needs {exc.name}: pip install 'contrailmq[iceberg]'") from exc
    folder = Manifest(target).archive / "_iceberg"
    folder.mkdir(parents=True, exist_ok=True)
    return SqlCatalog("contrailmq", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}")


def _open(catalog: Catalog, name: str, archive: Path) -> Any:
    from pyiceberg.exceptions import NoSuchTableError

    try:
        return catalog.load_table(name)
    except NoSuchTableError:
        catalog.create_namespace_if_not_exists(name.rpartition(".")[0])
        schema = pa.schema([*((column, arrow) for column, (_, arrow) in COLUMNS.items()), ("date", pa.date32())])
        table = catalog.create_table(name, schema, location=f"file://{archive}/_iceberg/{name}")
        with table.update_spec() as spec:
            spec.add_identity("topic")
            spec.add_identity("date")
        return table


def _data_file(archive: Path, file: ArchivedFile, spec_id: int) -> Any:
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=str(archive / file.path),
        file_format=FileFormat.PARQUET,
        partition=Record(file.topic, (date.fromisoformat(file.date) - _EPOCH).days),
        record_count=file.rows,
        file_size_in_bytes=file.size_bytes,
        spec_id=spec_id,
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
