"""What a local session says on its own: nothing that is not an error, and of an error one line.

Spark writes a dozen lines before the first answer, and a stack trace of each of its layers when a task fails or a
stream is stopped in the middle of a batch. The error that ends a query is raised with all of its text anyway.
CONTRAILMQ_SPARK_LOG=debug (or info, warn, error) gives Spark its own log back, from that level on.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from contrailmq.spark.runtime.shipping import cache_folder

LOG_VARIABLE: Final = "CONTRAILMQ_SPARK_LOG"
# They tell of a task or a write that is aborted; whoever waits for it gets the error itself.
_SAID_ELSEWHERE: Final = (
    "org.apache.spark.util.Utils",
    "org.apache.spark.broadcast.TorrentBroadcast",
    "org.apache.spark.executor.Executor",
    "org.apache.spark.scheduler.TaskSetManager",
    "org.apache.spark.api.python",
    "org.apache.spark.sql.execution.datasources.v2",
    "org.apache.spark.sql.execution.streaming.runtime.MicroBatchExecution",
    "org.apache.spark.sql.execution.python",
)
_HEAD: Final = """status = error
rootLogger.level = error
rootLogger.appenderRef.console.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m%n%ex{0}
# Spark gives all loggers the level of this one, and tells of it if it is not the root's.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""


def wanted_level() -> str | None:
    """The level of Spark's log that the user asks for; None: as little as possible."""
    level = os.environ.get(LOG_VARIABLE, "").strip().upper()
    return level or None


def log_settings() -> Path:
    """A file with which Spark's JVM logs as said above."""
    text = _HEAD + "".join(
        f"logger.quiet{number}.name = {name}\nlogger.quiet{number}.level = off\n"
        for number, name in enumerate(_SAID_ELSEWHERE)
    )
    path = cache_folder() / "quiet-log4j2.properties"
    if not path.exists() or path.read_text() != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}-{os.getpid()}")
        part.write_text(text)
        os.replace(part, path)
    return path
