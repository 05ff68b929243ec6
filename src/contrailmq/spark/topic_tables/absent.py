"""Topics that a run of `tables` is to read and that are nowhere: misspelt, most of the time.

A run that ends would end without a word and without a table, so it is an error that names the nearest topic. A topic
that an earlier run has read may be gone since.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import Final

from contrailmq.spark.access import LOSS_OPTION, job_access
from contrailmq.spark.decoding.queue_units import all_queues
from contrailmq.spark.decoding.store_files import find_stores
from contrailmq.spark.jobs.archive_topics import archived_offsets
from contrailmq.spark.jobs.manifest import ArchiveState
from contrailmq.spark.runtime.patience import Patience
from contrailmq.spark.topic_tables.spec import TablesError

_TIMEOUT_S: Final = 20.0
_GROUP: Final = "contrailmq_spark"


def check_stores(stores: str, done: ArchiveState, topics: Iterable[str]) -> None:
    """A store without queues says nothing: its log may hold any topic."""
    known: set[str] = set()
    for store in find_stores(stores):
        queues = all_queues(store)
        if not queues:
            return
        known |= {topic for topic, _ in queues}
    read = {source.rpartition("@")[0] for source in done.offsets}
    _refuse([topic for topic in topics if topic not in known | read], known, stores)


def check_cluster(namesrv: str, target: str, topics: Iterable[str], options: Mapping[str, str]) -> None:
    """Those whose brokers are away are known by the checkpoint."""
    read = {topic for topic, _, _ in archived_offsets(target)}
    unread = [topic for topic in topics if topic not in read]
    if not unread:
        return
    access, away_timeout_s = job_access({name: value for name, value in options.items() if name != LOSS_OPTION})
    with access.open(namesrv, _GROUP, _TIMEOUT_S) as client:
        known = Patience(client, away_timeout_s).call(client.topics)
    _refuse([topic for topic in unread if topic not in known], known, namesrv)


def _refuse(absent: list[str], known: Collection[str], where: str) -> None:
    if not absent:
        return
    named = []
    for topic in absent:
        near = difflib.get_close_matches(topic, sorted(known), 1)
        named.append(f"{topic} (did you mean {near[0]}?)" if near else topic)
    raise TablesError(
        f"{where} has no topic {', '.join(named)}: check the name, or run this when the topic has messages"
    )
