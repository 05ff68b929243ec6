"""Listeners of a session's queries. Spark calls them over a socket that py4j watches with `select`, which knows no
descriptor above 1,023. A process that has more open when the first listener is added would get no call, and its queries
would wait for one at their start and never end. It is told instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from contrailmq.message import ContrailError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQueryListener

SELECT_DESCRIPTORS: Final = 1_024  # FD_SETSIZE


class ListenerUnheardError(ContrailError):
    """Spark could not call a listener in this process."""


def add_listener(spark: SparkSession, listener: StreamingQueryListener) -> None:
    """Spark's addListener, where the listener can be called."""
    spark.streams.addListener(listener)
    descriptor = _callback_descriptor(spark)
    if descriptor >= SELECT_DESCRIPTORS:
        spark.streams.removeListener(listener)
        raise ListenerUnheardError(
            f"Spark cannot call a listener in this process: the socket for its calls got descriptor {descriptor}, and "
            f"py4j serves none from {SELECT_DESCRIPTORS} on. Add the listener (mirror_offsets, export_metrics) before "
            "so many files are open, in a new process"
        )


def _callback_descriptor(spark: SparkSession) -> int:
    """Of the socket at which py4j waits for calls; -1 under Spark Connect, which has none."""
    context = getattr(spark, "_sc", None)
    server = context._gateway.__dict__.get("_callback_server") if context is not None else None
    return int(server.server_socket.fileno()) if server is not None else -1
