"""Where a consumer keeps its offsets.

In memory first: listeners advance offsets with every message, and a timer writes them every five seconds, to the broker
(clustering) or to a file (broadcasting, where each member has its own progress). So a crash loses up to five
seconds of progress, and those messages are delivered again.

The local file is RocketMQ's: `<dir>/<clientId>/<group>/offsets.json`, previous content kept as `.bak`. Java writes map
keys that are objects, which is not JSON; this reader understands both its own form and Java's, so a consumer can move
from Java to Python and keep its place.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from contrailmq.client.errors import ClientError
from contrailmq.message import ContrailError, MessageQueue
from contrailmq.wire.admin_bodies import ResetOffsetBody
from contrailmq.wire.bodies import decode_body, encode_body

_log = logging.getLogger("contrailmq.client.offsets")

NO_OFFSET = -1


class OffsetTable:
    """Offsets in memory: the part that both stores share. Owned by one consumer, used on its loop only."""

    def __init__(self) -> None:
        self._offsets: dict[MessageQueue, int] = {}
        self._frozen: set[MessageQueue] = set()

    def get(self, queue: MessageQueue) -> int | None:
        return self._offsets.get(queue)

    def update(self, queue: MessageQueue, offset: int) -> None:
        """Set, unless frozen."""
        if queue not in self._frozen:
            self._offsets[queue] = offset

    def raise_to(self, queue: MessageQueue, offset: int) -> None:
        """Set only upwards: listeners finish out of order."""
        if queue not in self._frozen and offset > self._offsets.get(queue, NO_OFFSET):
            self._offsets[queue] = offset

    def freeze_at(self, queue: MessageQueue, offset: int) -> None:
        """Set, and ignore updates until the queue is removed: late listeners must not undo a repair."""
        self._offsets[queue] = offset
        self._frozen.add(queue)

    def remove(self, queue: MessageQueue) -> None:
        self._offsets.pop(queue, None)
        self._frozen.discard(queue)

    def items(self) -> list[tuple[MessageQueue, int]]:
        return list(self._offsets.items())


class OffsetStore(Protocol):
    """Reads and keeps offsets. `read_stored` gives -1 when none is stored and raises when it cannot tell."""

    table: OffsetTable

    async def load(self) -> None: ...
    async def read_stored(self, queue: MessageQueue) -> int: ...
    async def persist(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        """Write what is known of these queues; returns those for which it failed."""
        ...


class LocalOffsetStore:
    """Offsets in a file beside the consumer, for broadcasting."""

    def __init__(self, directory: Path, *, client_id: str, group: str) -> None:
        self.table = OffsetTable()
        self.path = directory / client_id / group / "offsets.json"

    async def load(self) -> None:
        for queue, offset in (await asyncio.to_thread(read_offset_file, self.path)).items():
            self.table.update(queue, offset)

    async def read_stored(self, queue: MessageQueue) -> int:
        stored = await asyncio.to_thread(read_offset_file, self.path)
        return stored.get(queue, NO_OFFSET)

    async def persist(self, queues: Iterable[MessageQueue]) -> list[MessageQueue]:
        wanted = set(queues)
        offsets = {queue: offset for queue, offset in self.table.items() if queue in wanted}
        try:
            if offsets:
                await asyncio.to_thread(write_offset_file, self.path, offsets)
        except (OSError, ClientError) as exc:
            _log.warning("offsets were not written to %s, the next round tries again: %s", self.path, exc)
            return list(offsets)
        return []


def local_offset_directory() -> Path:
    """Where Java keeps them, or what the environment says."""
    configured = os.environ.get("ROCKETMQ_CLIENT_LOCAL_OFFSET_STORE_DIR")
    return Path(configured) if configured else Path.home() / ".rocketmq_offsets"


def read_offset_file(path: Path) -> dict[MessageQueue, int]:
    """The file's offsets; nothing when it does not exist. An unreadable file falls back to `.bak`."""
    backup = path.with_name(path.name + ".bak")
    errors: list[str] = []
    for candidate in (path, backup):
        try:
            text = candidate.read_text(encoding="utf-8")
            return decode_body(text.encode(), ResetOffsetBody).offsets if text.strip() else {}
        except FileNotFoundError:
            continue
        except (OSError, UnicodeDecodeError, ContrailError) as exc:
            errors.append(f"{candidate}: {exc!r}")
    if errors:
        raise ClientError(f"no readable offset file ({'; '.join(errors)}): mend or delete it; deleting starts over")
    return {}


def write_offset_file(path: Path, offsets: dict[MessageQueue, int]) -> None:
    """Merge into the file's table and replace it in one step; the old content becomes `.bak`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    known = read_offset_file(path)
    known.update(offsets)
    text = encode_body(ResetOffsetBody.of(known)).decode() + "\n"
    fresh = path.with_name(path.name + ".tmp")
    with fresh.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    if path.exists():
        os.replace(path, path.with_name(path.name + ".bak"))
    os.replace(fresh, path)
