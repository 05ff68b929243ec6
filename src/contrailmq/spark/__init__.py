"""The log as DataFrames: Spark reads topics and store files, writes to topics, and runs the jobs around a store.

    import contrailmq.spark
    spark = contrailmq.spark.session()
    spark.read.format("commitlog").load("/data/store").groupBy("topic").count().show()

Only the data sources need pyspark. Names that need NumPy or PyArrow are looked up on first use, so that a missing
extra gives an error that says what to install.
"""

import importlib
from typing import TYPE_CHECKING

try:
    from contrailmq.spark.environment import ROWS_JAVA_OPTIONS, SparkEnvironmentError, ensure_java, register, session
except ModuleNotFoundError:
    import contrailmq.spark.runtime.needs  # noqa: F401  it tells all that is missing, and the remedy

    raise

if TYPE_CHECKING:
    from contrailmq.spark.columns import OptionError
    from contrailmq.spark.decoding.scan import CorruptLogError
    from contrailmq.spark.decoding.store_files import StoreFilesError
    from contrailmq.spark.explaining import explain
    from contrailmq.spark.jobs.archive import archive, archive_stream, read_archive
    from contrailmq.spark.jobs.archive_repair import repair
    from contrailmq.spark.jobs.archive_topics import archive_topics
    from contrailmq.spark.jobs.ask import ask
    from contrailmq.spark.jobs.delta import publish_delta
    from contrailmq.spark.jobs.iceberg import publish_iceberg
    from contrailmq.spark.jobs.rebuild import rebuild
    from contrailmq.spark.jobs.replay import redrive, replay
    from contrailmq.spark.jobs.report import report
    from contrailmq.spark.jobs.restore import restore
    from contrailmq.spark.jobs.upkeep import Tables, compact, expire, vacuum
    from contrailmq.spark.jobs.verify import findings_frame, verify
    from contrailmq.spark.mirror import mirror_offsets
    from contrailmq.spark.progress import describe, export_metrics, observed
    from contrailmq.spark.sinks.sink import deduplicated
    from contrailmq.spark.topic_tables.job import tables, tables_stream, tables_topics
    from contrailmq.spark.topic_tables.reading import read_quarantine, read_table

__all__ = [
    "ROWS_JAVA_OPTIONS",
    "CorruptLogError",
    "OptionError",
    "SparkEnvironmentError",
    "StoreFilesError",
    "Tables",
    "archive",
    "archive_stream",
    "archive_topics",
    "ask",
    "compact",
    "deduplicated",
    "describe",
    "ensure_java",
    "expire",
    "explain",
    "export_metrics",
    "findings_frame",
    "mirror_offsets",
    "observed",
    "publish_delta",
    "publish_iceberg",
    "read_archive",
    "read_quarantine",
    "read_table",
    "rebuild",
    "redrive",
    "register",
    "repair",
    "replay",
    "report",
    "restore",
    "session",
    "tables",
    "tables_stream",
    "tables_topics",
    "vacuum",
    "verify",
]

_HOMES = {
    "CorruptLogError": "contrailmq.spark.decoding.scan",
    "OptionError": "contrailmq.spark.columns",
    "StoreFilesError": "contrailmq.spark.decoding.store_files",
    "Tables": "contrailmq.spark.jobs.upkeep",
    "archive": "contrailmq.spark.jobs.archive",
    "archive_stream": "contrailmq.spark.jobs.archive",
    "archive_topics": "contrailmq.spark.jobs.archive_topics",
    "ask": "contrailmq.spark.jobs.ask",
    "compact": "contrailmq.spark.jobs.upkeep",
    "deduplicated": "contrailmq.spark.sinks.sink",
    "describe": "contrailmq.spark.progress",
    "expire": "contrailmq.spark.jobs.upkeep",
    "explain": "contrailmq.spark.explaining",
    "export_metrics": "contrailmq.spark.progress",
    "findings_frame": "contrailmq.spark.jobs.verify",
    "mirror_offsets": "contrailmq.spark.mirror",
    "observed": "contrailmq.spark.progress",
    "publish_delta": "contrailmq.spark.jobs.delta",
    "publish_iceberg": "contrailmq.spark.jobs.iceberg",
    "read_archive": "contrailmq.spark.jobs.archive",
    "read_quarantine": "contrailmq.spark.topic_tables.reading",
    "read_table": "contrailmq.spark.topic_tables.reading",
    "rebuild": "contrailmq.spark.jobs.rebuild",
    "redrive": "contrailmq.spark.jobs.replay",
    "repair": "contrailmq.spark.jobs.archive_repair",
    "replay": "contrailmq.spark.jobs.replay",
    "report": "contrailmq.spark.jobs.report",
    "restore": "contrailmq.spark.jobs.restore",
    "tables": "contrailmq.spark.topic_tables.job",
    "tables_stream": "contrailmq.spark.topic_tables.job",
    "tables_topics": "contrailmq.spark.topic_tables.job",
    "vacuum": "contrailmq.spark.jobs.upkeep",
    "verify": "contrailmq.spark.jobs.verify",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_HOMES[name]), name)
    except ImportError as exc:
        raise SparkEnvironmentError(
            f"contrailmq.spark.{name} needs {exc.name}: install it with pip install 'contrailmq[spark]'"
        ) from exc
