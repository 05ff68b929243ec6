"""A table, or the quarantine, as a DataFrame: exactly the files that the newest commit lists."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pyarrow as pa

from contrailmq.spark.bodies.types import ddl_of
from contrailmq.spark.jobs.archive import literal_path
from contrailmq.spark.topic_tables.row_files import table_schema
from contrailmq.spark.topic_tables.spec import QUARANTINE, TablesError
from contrailmq.spark.topic_tables.stored import load_table
from contrailmq.spark.topic_tables.table_manifest import QUARANTINE_FOLDER, TableManifest, files_of, table_folder

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_table(spark: SparkSession, target: str, topic: str) -> DataFrame:
    """The table of a topic, with its newest columns."""
    manifest = TableManifest(target)
    stored = load_table(manifest.archive, topic)
    if stored is None:
        raise TablesError(
            f"{target} has no table of {topic}: `contrailmq pipeline tables` makes it with its first message"
        )
    return _read(spark, manifest, topic, table_schema(stored.schema(), stored.fixed.partition_by))


def read_quarantine(spark: SparkSession, target: str) -> DataFrame:
    """The messages of all topics that could not be decoded, each with its reason and its place."""
    return _read(spark, TableManifest(target), None, QUARANTINE)


def _read(spark: SparkSession, manifest: TableManifest, topic: str | None, schema: pa.Schema) -> DataFrame:
    files = files_of(manifest.load().files, topic)
    if not files:
        return spark.createDataFrame([], ddl_of(schema))
    folder = manifest.archive / (QUARANTINE_FOLDER if topic is None else table_folder(topic))
    reader = spark.read.schema(ddl_of(schema)).option("basePath", str(folder))
    frame = reader.parquet(*(literal_path(str(manifest.archive / file.path)) for file in files))
    return frame.select(*(f"`{name}`" for name in schema.names))
