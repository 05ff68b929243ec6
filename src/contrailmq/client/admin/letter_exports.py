"""Dead letters as rows of a file: JSON lines, or Parquet where pyarrow is installed."""

from __future__ import annotations

import base64
import importlib.util
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

import msgspec

from contrailmq.message import Property, StoredMessage


def letter_fields(letter: StoredMessage) -> dict[str, object]:
    """A letter for an export. A body that is no UTF-8 is in base64."""
    body = bytes(letter.body)
    try:
        text, encoding = body.decode(), "utf-8"
    except UnicodeDecodeError:
        text, encoding = base64.b64encode(body).decode(), "base64"
    return {
        "message_id": letter.message_id,
        "origin_message_id": letter.properties.get(Property.ORIGIN_MESSAGE_ID, ""),
        "origin_topic": letter.properties.get(Property.RETRY_TOPIC, ""),
        "queue_id": letter.queue_id,
        "queue_offset": letter.queue_offset,
        "born_time_ms": letter.born_time_ms,
        "store_time_ms": letter.store_time_ms,
        "reconsume_times": letter.reconsume_times,
        "tags": letter.tags,
        "keys": list(letter.keys),
        "body": text,
        "body_encoding": encoding,
        "properties": dict(letter.properties),
    }


def json_line(letter: StoredMessage) -> bytes:
    return msgspec.json.encode(letter_fields(letter)) + b"\n"


def has_parquet() -> bool:
    return importlib.util.find_spec("pyarrow") is not None


class ParquetLetters:
    """A Parquet file that letters are written to, some at a time. Its end tells where its parts are: close it."""

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet

        self._schema = _schema()
        self._writer = pyarrow.parquet.ParquetWriter(path, self._schema)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._writer.close()

    def write(self, letters: Iterable[StoredMessage]) -> None:
        import pyarrow

        if rows := [_columns(letter) for letter in letters]:
            self._writer.write_batch(pyarrow.RecordBatch.from_pylist(rows, self._schema))


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
