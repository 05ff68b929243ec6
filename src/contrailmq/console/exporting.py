"""Dead letters as a file for the browser: JSON lines, or Parquet where pyarrow is installed. Neither is held whole."""

from __future__ import annotations

import importlib.util
import re
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import msgspec

from contrailmq.console.model.letters import Letters, json_line, letter_fields
from contrailmq.message import StoredMessage

CHUNK_BYTES: Final = 1 << 20


def has_parquet() -> bool:
    return importlib.util.find_spec("pyarrow") is not None


def file_name(group: str, form: str) -> str:
    """A name that no header and no file system misreads."""
    return f"dead-letters-{re.sub(r'[^A-Za-z0-9_-]', '_', group)[:80]}.{form}"


async def json_lines(letters: Letters, group: str) -> AsyncIterator[bytes]:
    async for some in letters.export(group):
        yield b"".join(map(json_line, some))


async def parquet(letters: Letters, group: str) -> AsyncIterator[bytes]:
    """Written to a temporary file first: its end tells where its parts are."""
    import pyarrow.parquet

    with tempfile.TemporaryDirectory(prefix="contrailmq-export-") as directory:
        path = Path(directory) / "letters.parquet"
        schema = _schema()
        with pyarrow.parquet.ParquetWriter(path, schema) as writer:
            async for some in letters.export(group):
                if some:
                    writer.write_batch(pyarrow.RecordBatch.from_pylist([_columns(item) for item in some], schema))
        with path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                yield chunk


def _schema() -> Any:
    import pyarrow as pa

    texts = ("message_id", "origin_message_id", "origin_topic", "tags")
    numbers = ("queue_id", "queue_offset", "born_time_ms", "store_time_ms", "reconsume_times")
    return pa.schema(
        [
            *((name, pa.string()) for name in texts),
            *((name, pa.int64()) for name in numbers),
            ("keys", pa.list_(pa.string())),
            ("body", pa.binary()),
            ("properties", pa.string()),  # a JSON object
        ]
    )


def _columns(letter: StoredMessage) -> dict[str, object]:
    fields = letter_fields(letter)
    del fields["body_encoding"]
    return fields | {"body": bytes(letter.body), "properties": msgspec.json.encode(dict(letter.properties)).decode()}
