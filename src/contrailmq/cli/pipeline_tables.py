"""`contrailmq pipeline tables`: topics as typed tables."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from contrailmq.cli.pipeline_output import print_found
from contrailmq.cli.pipeline_running import (
    chosen_engine,
    listed_names,
    shown_progress,
    spark_session,
    told_errors,
)

if TYPE_CHECKING:
    from contrailmq.spark.topic_tables.spec import TableSpec

Config = Annotated[
    Path | None, typer.Option("--config", help="TOML file with a section for each topic; see docs/spark.md.")
]
Schema = Annotated[
    str | None, typer.Option("--schema", help="Of JSON bodies, as DDL or a file with it; inferred if not given.")
]
TableForm = Annotated[str, typer.Option("--table", help="parquet, delta or iceberg.")]


def specs_of(topics: str | None, config: Path | None, schema: str | None, table: str) -> dict[str, TableSpec]:
    """What tables to keep: those of the file, or one for each topic named."""
    from contrailmq.spark.topic_tables.spec import make_specs, read_specs

    if (topics is None) == (config is None):
        raise typer.BadParameter("give either --topics or --config")
    if config is not None:
        if schema is not None or table != "parquet":
            raise typer.BadParameter("--schema and --table have no effect with --config: say it there")
        return read_specs(config)
    tree: dict[str, Any] = {"table": table} if schema is None else {"table": table, "schema": schema}
    return make_specs(dict.fromkeys(listed_names(topics, "--topics") or [], tree), "the command")


def keep_from_store(
    store: str,
    target: str,
    specs: dict[str, TableSpec],
    *,
    skip_corrupt: bool,
    broker_name: str | None,
    dry_run: bool,
    engine: str,
    master: str | None,
    as_json: bool,
) -> None:
    """Run the job over stores and print what it did."""
    with told_errors():
        from contrailmq.spark.topic_tables import job

        with chosen_engine(engine, master, store) as chosen, shown_progress("tables", as_json) as tell:
            done = job.tables(
                store,
                target,
                chosen,
                specs,
                skip_corrupt=skip_corrupt,
                broker_name=broker_name,
                dry_run=dry_run,
                on_progress=tell,
            )
        print_found(asdict(done), as_json, title="tables")


def keep_from_brokers(
    namesrv: str,
    target: str,
    specs: dict[str, TableSpec],
    *,
    options: dict[str, str],
    master: str | None,
    as_json: bool,
) -> None:
    """Run the job over topics of a cluster and print what it did."""
    with told_errors(loss_option="--accept-loss"):
        from contrailmq.spark.topic_tables import job

        with spark_session("contrailmq tables", master) as spark:
            done = job.tables_topics(spark, namesrv, target, specs, options=options)
        print_found(asdict(done), as_json, title="tables")
