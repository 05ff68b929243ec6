"""How much a start reads to check what it finds. What lies beyond is compared when it is first read (or not: then the
report says how many bytes were taken on trust). All of it is about a second of cold reads on a plain disk."""

from __future__ import annotations

from typing import Final, NamedTuple


class StartBounds(NamedTuple):
    """Parameters for tests; nobody needs others."""

    queue_bytes: int = 1 << 30  # of queue files, compared with the ledger's checksums: 50 million messages
    index_bytes: int = 1 << 29  # of index files, likewise; the newest one in any case
    walk_bytes: int = 1 << 30  # of a log without a ledger, walked to compare all queues
    index_entries: int = 1 << 19  # of an index without a ledger, compared with that log: four seconds


START_BOUNDS: Final = StartBounds()
