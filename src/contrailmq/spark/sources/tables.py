"""Tables of Spark's catalog over our sources: `CREATE TABLE t USING rocketmq OPTIONS (...)`, then SELECT and INSERT.

At CREATE TABLE Spark passes the user's options three times: bare, with the prefix `option.`, and mixed with catalog
properties (`owner`, `provider`, comments). Only the prefixed ones and the path are used.

When the table is read or written, Spark 4.3 makes the source without options: it passes only `WITH (...)` and the saved
columns. So the options are saved as metadata of the first column. Everyone who sees the table can read them, so secrets
are refused. An INSERT from a query with exactly the table's columns brings the query's metadata instead, perhaps that
of another table. Rows that were read have a queue offset and rows to send have none, so such rows are refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField, StructType

from contrailmq.spark.columns import OptionError, View

_OPTION: Final = "option."
_CATALOGS: Final = frozenset({"owner", "provider"})  # what the catalog always says of a table that it makes
_METADATA: Final = "contrailmq.options"
_SECRETS: Final = ("rocketmq.secretkey", "rocketmq.securitytoken", "rocketmq.tls.client.keypassword")


def created_with(given: Mapping[str, str]) -> dict[str, str] | None:
    """The user's own options where the catalog makes a table, by their lower-case names; None anywhere else."""
    texts = {name.lower(): value for name, value in given.items()}
    if not texts.keys() >= _CATALOGS:
        return None
    found = {name[len(_OPTION) :]: value for name, value in texts.items() if name.startswith(_OPTION)}
    if "path" in texts:
        found["path"] = texts["path"].removeprefix("file:")
    for name in _SECRETS:
        if name in found:
            raise OptionError(
                f"option {name} would be readable to all who may see the table: create a temporary view with it, "
                "CREATE TEMPORARY VIEW ... USING ... OPTIONS (...)"
            )
    return found


def table_schema(view: View, options: Mapping[str, str]) -> StructType:
    """The columns of a table, which hold its options. All may be null, so that an INSERT can leave some out."""
    if view.has_task_metrics:
        raise OptionError("option taskMetrics is for observed(frame), not for a table: leave it out")
    schema: pa.Schema = view.arrow_schema()
    fields = [StructField(field.name, field.dataType, True) for field in from_arrow_schema(schema).fields]
    fields[0].metadata = {_METADATA: json.dumps(dict(options), sort_keys=True)}
    return StructType(fields)


def saved_options(schema: StructType) -> dict[str, str] | None:
    """The options that a table was created with, from its columns; None if it is not a table."""
    for field in schema.fields:
        if _METADATA in field.metadata:
            found: dict[str, str] = json.loads(field.metadata[_METADATA])
            return found
    return None


def missing_hint(given: Mapping[str, str], name: str) -> None:
    """Say why nothing was given at all, which is how a table looks that Spark saved without what its source said."""
    if not given:
        raise OptionError(
            f"option {name} is missing, and so are all others. Of a table Spark keeps them only where the columns are "
            "left to the source: CREATE TABLE t USING ... OPTIONS (...), without columns of your own and without AS. "
            "An INSERT must name the columns that it fills: INSERT INTO t (body, tags) ..."
        )
