"""What is stored beside the tables: the schema that each has, fixed from its first row on.

    <target>/_schemas/<topic>/000001.json    version 1 of a table's columns; versions are only ever added

A version appears whole or not at all, before the first row is written by it. A kill in between leaves a version without
rows, with which the next run goes on.
"""

from __future__ import annotations

import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa

from contrailmq.spark.bodies.registry import RegisteredSchema
from contrailmq.spark.bodies.types import parse_ddl
from contrailmq.spark.jobs.manifest import explained, make_folder, sync_folder
from contrailmq.spark.topic_tables.spec import FixedChoices, TablesError
from contrailmq.spark.topic_tables.table_manifest import table_name

_FOLDER: Final = "_schemas"


class StoredTable(msgspec.Struct, frozen=True):
    """One version of a table."""

    fixed: FixedChoices
    columns: str  # those of bodies, as DDL
    declared: str  # the schema by which bodies are decoded; empty with a registry
    schemas: dict[str, RegisteredSchema] = {}  # of the registry, by their ids
    refused: dict[str, str] = {}  # why rows of some of these are bad

    def schema(self) -> pa.Schema:
        """The columns of bodies."""
        return parse_ddl(self.columns) if self.columns else pa.schema([])


def load_table(target: Path, topic: str) -> StoredTable | None:
    """The newest version, None before the first."""
    versions = _versions(target, topic)
    if not versions:
        return None
    path = versions[-1]
    try:
        return msgspec.json.decode(path.read_bytes(), type=StoredTable)
    except msgspec.DecodeError as exc:
        raise TablesError(f"{path} is damaged ({exc}): restore it from a backup") from exc


def save_table(target: Path, topic: str, table: StoredTable) -> None:
    """Add a version. It is on disk when this returns."""
    folder = target / _FOLDER / table_name(topic)
    make_folder(folder)
    number = len(_versions(target, topic)) + 1
    path, part = folder / f"{number:06d}.json", folder / f".{secrets.token_hex(8)}"
    try:
        with explained(path):
            with open(part, "xb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(table)))
                file.flush()
                os.fsync(file.fileno())
            os.link(part, path)
    finally:
        with suppress(OSError):  # the version does not depend on it
            part.unlink()
    sync_folder(folder)


def _versions(target: Path, topic: str) -> list[Path]:
    return sorted((target / _FOLDER / table_name(topic)).glob("[0-9]*.json"))
