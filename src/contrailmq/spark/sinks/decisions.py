"""The decisions of an exactly-once write: which half messages of a batch are to become visible.

    <checkpoint>/contrailmq-sink/id                      names this folder in half messages, made once
    <checkpoint>/contrailmq-sink/<batch>.decided         the batch is committed: the places of its half messages
    <checkpoint>/contrailmq-sink/<batch>.done            every one of them is visible, as brokers have confirmed

A file appears whole and durable or not at all (written aside, synced, linked), and the first decision on a batch
stands: a link fails where one is. A lock keeps those apart who carry decisions out. A batch of a stream is named by the
query's id and its number, so a new query in an old folder begins anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import secrets
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple
from urllib.parse import urlparse
from urllib.request import url2pathname

from contrailmq.client.blocking.raw_halves import HalfPlace
from contrailmq.message import ContrailError, MessageQueue
from contrailmq.spark.columns import OptionError
from contrailmq.spark.runtime.disk_errors import cause, remedy
from contrailmq.spark.sinks.halves import decode_places, encode_places

FOLDER: Final = "contrailmq-sink"
_STREAM_BATCH: Final = re.compile(r"stream-(.+)-([0-9]{12})")
_WRITE_ID: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_KEPT: Final = 100  # done batches of a query, and writes without a name: for a look; nothing depends on them


class DecisionError(ContrailError):
    """The decisions cannot be read or written."""


class Decision(NamedTuple):
    """A batch that is committed."""

    batch: str
    places: list[HalfPlace]
    begins: dict[MessageQueue, int]  # where the queues ended before the first of its messages became visible


def stream_batch(query_id: str, number: int) -> str:
    return f"stream-{query_id}-{number:012d}"


def write_batch(write_id: str | None) -> str:
    """The name of a batch write: the user's own for one that may be started again, else one of its own."""
    if write_id is None:
        return f"once-{secrets.token_hex(12)}"
    if not _WRITE_ID.fullmatch(write_id):
        raise OptionError(f"option writeId is {write_id!r}: it takes up to 100 letters, digits, dots, dashes and _")
    return f"write-{write_id}"


class Decisions:
    """The folder of one query's or job's decisions."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @staticmethod
    def below(checkpoint: str) -> Decisions:
        """Those of a checkpoint, which must be a path that the driver can write."""
        parsed = urlparse(checkpoint)
        if parsed.scheme not in ("", "file"):
            raise OptionError(
                f"option checkpointLocation is {checkpoint!r}: with delivery=exactly-once it takes a path that the "
                "driver's host has mounted, since the decisions need an atomic link"
            )
        return Decisions(Path(url2pathname(parsed.path) if parsed.scheme else checkpoint) / FOLDER)

    def id(self) -> str:
        """What names this folder; made at the first call."""
        with self._explained():
            self.folder.mkdir(parents=True, exist_ok=True)
            if not (self.folder / "id").exists():
                self._link("id", secrets.token_hex(8).encode())
            return (self.folder / "id").read_text()

    def find(self, batch: str) -> Decision | None:
        """The decision on a batch, if it is not carried out yet."""
        with self._explained():
            try:
                data = (self.folder / f"{batch}.decided").read_bytes()
            except FileNotFoundError:
                return None
        places, texts = decode_places(data)
        begins = {MessageQueue(*queue): offset for queue, offset in json.loads(texts["begins"])}
        return Decision(batch, places, begins)

    def is_done(self, batch: str) -> bool:
        return (self.folder / f"{batch}.done").exists()

    def decide(self, batch: str, places: Sequence[HalfPlace], begins: dict[MessageQueue, int]) -> Decision:
        """Commit a batch, durably. If somebody was faster, what he decided."""
        with self._explained():
            if self._link(f"{batch}.decided", encode_places(places, begins=json.dumps(list(begins.items())))):
                return Decision(batch, list(places), begins)
        found = self.find(batch)
        assert found is not None, "a decision is removed only by who holds the lock"
        return found

    def mark_done(self, batch: str) -> None:
        """Everything of the batch is visible."""
        with self._explained():
            self._link(f"{batch}.done", b"")
            (self.folder / f"{batch}.decided").unlink(missing_ok=True)
            self._remove_old()

    def unfinished(self) -> list[str]:
        """Batches that were committed and perhaps not carried out."""
        return sorted(path.stem for path in self.folder.glob("*.decided"))

    def newest_done(self) -> dict[str, int]:
        """Query id -> its newest batch that is visible."""
        newest: dict[str, int] = {}
        for path in self.folder.glob("stream-*.done"):
            parts = _STREAM_BATCH.fullmatch(path.stem)
            if parts is not None:
                newest[parts[1]] = max(newest.get(parts[1], -1), int(parts[2]))
        return newest

    def is_past(self, batch: str) -> bool:
        """Whether the batch is done, or one after it is: nothing of it will ever be committed any more."""
        parts = _STREAM_BATCH.fullmatch(batch)
        if self.is_done(batch):
            return True
        return parts is not None and int(parts[2]) <= self.newest_done().get(parts[1], -1)

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Alone carry out decisions."""
        with self._explained():
            descriptor = os.open(self.folder / ".lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    def _link(self, name: str, data: bytes) -> bool:
        """Make a file whole and durable; if there is one, it stays, and this is False."""
        part = self.folder / f".part-{secrets.token_hex(8)}"
        try:
            with open(part, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.link(part, self.folder / name)
        except FileExistsError:
            return False
        finally:
            part.unlink(missing_ok=True)
        descriptor = os.open(self.folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return True

    def _remove_old(self) -> None:
        for pattern in ("stream-*.done", "once-*.done"):
            found = sorted(self.folder.glob(pattern), key=lambda path: path.stat().st_mtime_ns)
            for path in found[:-_KEPT]:
                path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except OSError as exc:
            raise DecisionError(
                f"{exc.filename or self.folder}: {cause(exc)}; it holds what an exactly-once write has committed: "
                f"{remedy(exc)}"
            ) from exc
