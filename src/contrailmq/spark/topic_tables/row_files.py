"""Batches of messages to files of typed rows, inside the task that read them; bad rows to files of the quarantine.

As with the archive, names carry random letters and only files that a commit lists count. A table's files are in
directories `column=value` for the columns that it is partitioned by; the value is in the directory's name and not in
the file, as Hive, Spark, Delta and Iceberg have it. An empty text is null there, as for them. Of a change stream, files
of changes are written instead, by buckets of keys (merging.py).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from contrailmq.spark.bodies.rows import BodyDecoder, struct_array
from contrailmq.spark.bodies.types import has_short_decimal
from contrailmq.spark.jobs.manifest import ArchivedFile, data_name, explained, make_folder, sync_folder
from contrailmq.spark.topic_tables.keys import (
    DELETED_COLUMN,
    LOG_COLUMN,
    apply_tombstones,
    bucket_folder,
    buckets_of,
    deleted,
    refuse_null_keys,
)
from contrailmq.spark.topic_tables.spec import DATE_COLUMN, PLACE, QUARANTINE
from contrailmq.spark.topic_tables.table_manifest import CHANGES, QUARANTINE_FOLDER, table_folder, table_name

_FLUSH_BYTES: Final = 64 * 1024 * 1024  # a task never holds more than about this much unwritten
NULL_PARTITION: Final = "__HIVE_DEFAULT_PARTITION__"
_UNSAFE: Final = re.compile(r"""[\x00-\x1f"#%'*/:=?\\\x7f{}\[\]^ ]""")
_PARTITION_BYTES_MAX: Final = 64  # of a text: a directory's name has 255 bytes, and each may take three


class TopicPlan(NamedTuple):
    """All that a task needs to know of a topic. `columns` are those of bodies in the table."""

    topic: str
    decoder: BodyDecoder
    columns: pa.Schema
    partition_by: tuple[str, ...]
    sort_by: tuple[str, ...]
    key: tuple[str, ...] = ()  # of a change stream
    delete: tuple[tuple[str, tuple[Any, ...]], ...] = ()  # fields, and their values that delete the key
    buckets: int = 1

    def schema(self) -> pa.Schema:
        """The table's schema, with the columns that it is partitioned by."""
        return table_schema(self.columns, self.partition_by)


def table_schema(columns: pa.Schema, partition_by: tuple[str, ...]) -> pa.Schema:
    """A table's columns: the place of a message, its day if the table is partitioned by it, and the body's."""
    place = [(name, arrow) for name, (_, arrow) in PLACE.items()]
    day = [(DATE_COLUMN, pa.date32())] if DATE_COLUMN in partition_by else []
    return pa.schema([*place, *day, *columns])


class TableWriter:
    """Gathers messages of any topics and writes them as rows of their tables. Call `close` to get the list."""

    def __init__(self, target: str, plans: Mapping[str, TopicPlan]) -> None:
        self._target, self._plans = Path(target), plans
        self._held: dict[str | None, list[pa.Table]] = {}  # under None those that are bad
        self._held_bytes = 0
        self._files: list[ArchivedFile] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Take a batch of messages, of which those of topics without a plan are passed over."""
        topics = batch.column("topic")
        for topic in topics.unique().to_pylist():
            plan = self._plans.get(topic)
            if plan is None:
                continue
            rows = batch if len(topics.unique()) == 1 else batch.filter(pc.equal(topics, topic))
            good, bad = typed_rows(rows, plan)
            self._hold(topic, good)
            self._hold(None, bad)
        if self._held_bytes >= _FLUSH_BYTES:
            self._flush()

    def close(self) -> list[ArchivedFile]:
        """Write what is left and give every file written, each of them durable."""
        self._flush()
        return self._files

    def _hold(self, topic: str | None, rows: pa.Table) -> None:
        if len(rows):
            self._held.setdefault(topic, []).append(rows)
            self._held_bytes += rows.nbytes

    def _flush(self) -> None:
        for topic, held in self._held.items():
            rows = pa.concat_tables(held)
            if topic is None:
                self._files.append(write_file(self._target, QUARANTINE_FOLDER, "", rows))
                continue
            plan = self._plans[topic]
            parts = _buckets(rows, plan) if plan.key else _partitions(rows, plan)
            root = f"{CHANGES}/{table_name(topic)}" if plan.key else table_folder(topic)
            for folder, part in parts:
                self._files.append(write_file(self._target, f"{root}{folder}", topic, part))
        self._held.clear()
        self._held_bytes = 0


def write_rows(batches: Iterable[pa.RecordBatch], target: str, plans: Mapping[str, TopicPlan]) -> list[ArchivedFile]:
    """Write all batches of one task."""
    writer = TableWriter(target, plans)
    for batch in batches:
        writer.add(batch)
    return writer.close()


def typed_rows(batch: pa.RecordBatch, plan: TopicPlan) -> tuple[pa.Table, pa.Table]:
    """Messages of a topic as rows of its table, and those that are bad as rows of the quarantine."""
    bodies = batch.column("body").to_pylist()
    rows, reasons = plan.decoder.decode(bodies)
    if plan.key:
        if len(plan.key) == 1:
            keys = batch.column("keys").to_pylist()
            apply_tombstones(bodies, keys, plan.columns.field(plan.key[0]), rows, reasons)
        refuse_null_keys(rows, plan.key, reasons)
    if has_short_decimal(plan.decoder.schema):  # those of a table have more digits than the schema may allow
        struct_array(rows, pa.struct(list(plan.decoder.schema)), reasons)
    values = struct_array(rows, pa.struct(list(plan.columns)), reasons)
    arrays = [batch.column(source).cast(arrow) for source, arrow in PLACE.values()]
    if DATE_COLUMN in plan.partition_by:
        arrays.append(batch.column("storeTimestamp").cast(pa.timestamp("us")).cast(pa.date32(), safe=False))
    good = pa.Table.from_arrays([*arrays, *values.flatten()], schema=plan.schema())
    if plan.key:
        good = good.append_column(DELETED_COLUMN, pa.array(deleted(bodies, rows, plan.delete), pa.bool_()))
        good = good.append_column(LOG_COLUMN, batch.column("physicalOffset"))
    _refuse_long_partitions(good, plan, reasons)
    if not reasons:
        return good, QUARANTINE.empty_table()
    is_good = np.ones(len(batch), bool)
    is_good[list(reasons)] = False
    numbers = sorted(reasons)
    found = batch.take(pa.array(numbers, pa.int64()))
    columns = {name: found.column(name) for name in QUARANTINE.names if name != "reason"}
    columns["reason"] = pa.array([reasons[number] for number in numbers], pa.string())
    bad = pa.Table.from_arrays(
        [columns[name].cast(QUARANTINE.field(name).type) for name in QUARANTINE.names], schema=QUARANTINE
    )
    return good.filter(pa.array(is_good)), bad


def _refuse_long_partitions(rows: pa.Table, plan: TopicPlan, reasons: dict[int, str]) -> None:
    for name in plan.partition_by:
        if pa.types.is_string(rows.schema.field(name).type):
            lengths = pc.fill_null(pc.binary_length(rows[name]), 0).to_numpy()
            for number in np.flatnonzero(lengths > _PARTITION_BYTES_MAX).tolist():
                reasons.setdefault(
                    number,
                    f"{name} has {lengths[number]} bytes, and the table is partitioned by it: at most "
                    f"{_PARTITION_BYTES_MAX} fit into a directory's name",
                )


def _partitions(rows: pa.Table, plan: TopicPlan) -> Iterator[tuple[str, pa.Table]]:
    """The rows of each partition and its directory, sorted as the table is to be."""
    if not plan.partition_by:
        yield "", sorted_rows(rows, plan.sort_by)
        return
    codes, texts = np.zeros(len(rows), np.int64), []
    for name in plan.partition_by:
        column = rows[name].combine_chunks().cast(pa.string())
        column = pc.if_else(pc.equal(column, ""), pa.scalar(None, pa.string()), column)
        encoded = column.dictionary_encode(null_encoding="encode")
        texts.append((name, encoded.dictionary.to_pylist(), encoded.indices.to_numpy()))
        codes = codes * len(encoded.dictionary) + encoded.indices.to_numpy()
    order = np.argsort(codes, kind="stable")
    begins = [0, *(np.flatnonzero(np.diff(codes[order])) + 1).tolist()]
    ordered = rows.drop_columns(list(plan.partition_by)).take(pa.array(order))
    for begin, end in pairwise([*begins, len(rows)]):
        first = int(order[begin])
        folder = "".join(f"/{_directory(name, values[indices[first]])}" for name, values, indices in texts)
        yield folder, sorted_rows(ordered.slice(begin, end - begin), plan.sort_by)


def _buckets(rows: pa.Table, plan: TopicPlan) -> Iterator[tuple[str, pa.Table]]:
    """The changes of each bucket of keys and its directory."""
    buckets = buckets_of(rows, plan.key, plan.buckets)
    for bucket in np.unique(buckets).tolist():
        yield f"/{bucket_folder(bucket)}", rows.filter(pa.array(buckets == bucket))


def sorted_rows(rows: pa.Table, sort_by: tuple[str, ...]) -> pa.Table:
    """Rows in the order of some columns; those that a file lacks are the same in all of its rows."""
    order = [(name, "ascending") for name in sort_by if name in rows.column_names]
    return rows.sort_by(order) if order else rows


def _directory(name: str, text: str | None) -> str:
    if not text:
        return f"{_escaped(name)}={NULL_PARTITION}"
    return f"{_escaped(name)}={'%5F' + text[1:] if text == NULL_PARTITION else _escaped(text)}"


def _escaped(text: str) -> str:
    """As Hive and Spark do: they take other letters than ASCII as they are."""
    return _UNSAFE.sub(lambda found: f"%{ord(found[0]):02X}", text)


def partition_values(path: str, partition_by: tuple[str, ...]) -> dict[str, str | None]:
    """The partition of a file as texts, from its path."""
    found = dict(part.split("=", 1) for part in path.split("/")[2:-1] if "=" in part)
    texts = {unquote(name): value for name, value in found.items()}
    return {name: None if texts[name] == NULL_PARTITION else unquote(texts[name]) for name in partition_by}


def typed_value(text: str | None, arrow: pa.DataType) -> Any:
    """A partition's value from its text."""
    if text is None or pa.types.is_string(arrow):
        return text
    return pa.scalar(text, pa.string()).cast(arrow).as_py()


def write_file(target: Path, folder: str, topic: str, rows: pa.Table) -> ArchivedFile:
    """Write one file, durable when this returns."""
    name = f"{folder}/{data_name()}"
    path = target / name
    with explained(path):
        make_folder(path.parent)
        pq.write_table(rows, path, compression="zstd", compression_level=1)
        with open(path, "rb") as file:
            os.fsync(file.fileno())
        sync_folder(path.parent)
        return ArchivedFile(name, topic, "", len(rows), path.stat().st_size)
